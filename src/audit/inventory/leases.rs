//! Leases of a cluster, and whose they are.

use k8s_openapi::jiff::{Timestamp, civil, tz};
use serde_json::Value;

use super::{Form, FoundLock};
use crate::{
    api::{OPERATOR_ELECTION_LABEL, conditions::shorten},
    audit::{
        assess::{Id, Place, read::annotations},
        rules::Finding,
        suppress::{self, Suppression},
    },
};

/// A Lease that is somebody's lock.
#[derive(Clone, Debug)]
pub struct LeaseSeen {
    id: Id,
    pub(super) place: Place,
    holder: String,
    transitions: i64,
    since: Option<Timestamp>,
    /// What it belongs to, when it can be told: `Deployment web`.
    pub owner: Option<String>,
    suppressions: Vec<Suppression>,
    /// What is wrong with those.
    pub(super) wrong: Vec<Finding>,
}

/// The namespace of the kubelets' heartbeats, which no watch of the operator delivers.
pub const NODE_LEASES: &str = "kube-node-lease";
/// The label by which API servers mark the Leases that stand for themselves.
const IDENTITY_LABEL: &str = "apiserver.kubernetes.io/identity";

/// Whether a Lease is somebody's lock: no node's heartbeat, no API server's identity, no election of this operator.
pub fn is_lock<'a>(namespace: &str, labels: impl IntoIterator<Item = &'a str>, owner_kind: Option<&str>) -> bool {
    let is_known = labels.into_iter().any(|label| label == IDENTITY_LABEL || label == OPERATOR_ELECTION_LABEL);
    !is_known && namespace != NODE_LEASES && owner_kind != Some("Node")
}

/// A Lease, when it is somebody's lock.
pub fn lease(value: &Value, id: &Id, place: &Place) -> Option<LeaseSeen> {
    let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str);
    let labels = value.pointer("/metadata/labels").and_then(Value::as_object).into_iter().flat_map(|labels| labels.keys());
    if !is_lock(&id.namespace, labels.map(String::as_str), text("/metadata/ownerReferences/0/kind")) {
        return None;
    }
    let owner = text("/metadata/ownerReferences/0/kind").zip(text("/metadata/ownerReferences/0/name"));
    let (suppressions, wrong) = suppress::read(annotations(value));
    Some(LeaseSeen {
        id: id.clone(),
        place: place.clone(),
        holder: text("/spec/holderIdentity").unwrap_or_default().to_owned(),
        transitions: value.pointer("/spec/leaseTransitions").and_then(Value::as_i64).unwrap_or_default(),
        since: text("/metadata/creationTimestamp").and_then(|time| time.parse().ok()),
        owner: owner.map(|(kind, name)| format!("{kind} {name}")),
        suppressions,
        wrong,
    })
}

impl LeaseSeen {
    /// What it is called.
    pub const fn id(&self) -> &Id {
        &self.id
    }

    /// The pod that the holder names, if it names one as client-go does.
    pub fn pod(&self) -> &str {
        self.holder.split('_').next().unwrap_or_default()
    }

    /// The lock that it is.
    pub fn found(self) -> FoundLock {
        let holder =
            if self.holder.is_empty() { "is held by nobody".to_owned() } else { format!("is held by {:?}", shorten(&self.holder, 80)) };
        let owner = self.owner.map(|owner| format!(" ({owner})")).unwrap_or_default();
        let since = self.since.map(|since| format!(", exists since {}", day(since))).unwrap_or_default();
        let transitions = format!(", changed hands {} {}", self.transitions, if self.transitions == 1 { "time" } else { "times" });
        FoundLock {
            object: self.id,
            place: self.place,
            form: Form::Lease { seen: format!("{holder}{owner}{since}{transitions}") },
            suppressions: self.suppressions,
        }
    }
}

fn day(time: Timestamp) -> civil::Date {
    time.to_zoned(tz::TimeZone::UTC).date()
}
