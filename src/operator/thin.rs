//! A Lease as its watch delivers it: what terms are told apart by, and nothing else. A renewal is the commonest event that there is,
//! so the other fields are not even parsed, but for what tells a lock from a heartbeat. A Lease whose times cannot be read is delivered all the same (case G03).

use std::borrow::Cow;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::Resource;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    audit::{inventory::leases, rules::catalogue as rule, suppress},
    epoch::term::LeaseView,
};

/// A Lease of which only the needed is known.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Wire")]
pub(super) struct ThinLease {
    /// Name, namespace, uid and resourceVersion.
    metadata: ObjectMeta,
    /// What it shows; `None` when that cannot be read.
    pub(super) view: Option<LeaseView>,
    /// Whether it is somebody's lock, declared or not.
    pub(super) is_lock: bool,
    /// Until when somebody answers for that nobody declared it.
    pub(super) excused_until: Option<Timestamp>,
}

#[derive(Deserialize)]
struct Wire {
    metadata: WireMeta,
    #[serde(default)]
    spec: WireSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireMeta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    labels: Option<Map<String, Value>>,
    annotations: Option<Map<String, Value>>,
    owner_references: Option<Vec<WireOwner>>,
}

#[derive(Deserialize)]
struct WireOwner {
    kind: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireSpec {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<i32>,
    lease_transitions: Option<i32>,
    acquire_time: Option<String>,
    renew_time: Option<String>,
}

impl From<Wire> for ThinLease {
    fn from(Wire { metadata, spec }: Wire) -> Self {
        let WireMeta { name, namespace, uid, resource_version, labels, annotations, owner_references } = metadata;
        let owner = owner_references.as_ref().and_then(|owners| owners.first()).and_then(|owner| owner.kind.as_deref());
        let labels = labels.iter().flat_map(|labels| labels.keys()).map(String::as_str);
        let is_lock = leases::is_lock(namespace.as_deref().unwrap_or_default(), labels, owner);
        let (suppressions, _) = suppress::read(annotations.as_ref());
        let excused_until = suppressions.iter().filter(|s| *s.rule == rule::UNCLASSIFIED_LEASE).map(|s| s.until).max();
        let metadata = ObjectMeta { name, namespace, uid, resource_version, ..ObjectMeta::default() };
        let view = read(spec).ok().map(|spec| LeaseView::from(Lease { metadata: metadata.clone(), spec: Some(spec) }));
        Self { metadata, view, is_lock, excused_until }
    }
}

fn read(spec: WireSpec) -> Result<LeaseSpec, k8s_openapi::jiff::Error> {
    let time = |text: Option<String>| text.map(|text| text.parse().map(MicroTime)).transpose();
    Ok(LeaseSpec {
        holder_identity: spec.holder_identity,
        lease_duration_seconds: spec.lease_duration_seconds,
        lease_transitions: spec.lease_transitions,
        acquire_time: time(spec.acquire_time)?,
        renew_time: time(spec.renew_time)?,
        ..LeaseSpec::default()
    })
}

impl Resource for ThinLease {
    type DynamicType = ();
    type Scope = <Lease as Resource>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        Lease::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Lease::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Lease::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Lease::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(spec: &Value) -> Value {
        let fields = json!([{"manager": "x", "operation": "Update", "fieldsV1": {"f:spec": {}}}]);
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec, "metadata": {
            "name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7", "managedFields": fields}})
    }

    /// What is thin shows the same as what is not.
    #[test]
    fn a_thin_lease_shows_what_the_whole_one_shows() {
        for spec in [
            json!({}),
            json!({"holderIdentity": ""}),
            json!({"holderIdentity": "x", "leaseTransitions": 3, "leaseDurationSeconds": 15, "preferredHolder": "y", "strategy": "s",
                "acquireTime": "2026-05-04T03:02:01.123456Z", "renewTime": "2026-05-04T03:02:02.000000Z"}),
            json!({"holderIdentity": "x\n", "acquireTime": null, "renewTime": "2026-05-04T03:02:02+02:00"}),
        ] {
            let whole: Lease = serde_json::from_value(object(&spec)).unwrap();
            let thin: ThinLease = serde_json::from_value(object(&spec)).unwrap();
            assert_eq!((thin.metadata.name.as_deref(), thin.metadata.namespace.as_deref()), (Some("a"), Some("n")));
            assert_eq!(thin.view, Some(LeaseView::from(whole)));
        }
        let bare: ThinLease = serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap();
        assert_eq!(bare.view.unwrap().holder, Ok(None));
    }

    #[test]
    fn a_lease_tells_whether_it_is_a_lock_and_who_answers_for_it() {
        let of = |namespace: &str, metadata: Value| -> ThinLease {
            let mut object = object(&json!({}));
            object["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
            object["metadata"]["namespace"] = namespace.into();
            serde_json::from_value(object).unwrap()
        };
        assert!(of("n", json!({})).is_lock);
        assert!(of("n", json!({"labels": {"app": "x"}, "ownerReferences": [{"kind": "Deployment", "name": "x"}]})).is_lock);
        assert!(!of("kube-node-lease", json!({})).is_lock);
        assert!(!of("n", json!({"labels": {"apiserver.kubernetes.io/identity": "kube-apiserver"}})).is_lock);
        assert!(!of("n", json!({"labels": {crate::api::OPERATOR_ELECTION_LABEL: "true"}})).is_lock);
        assert!(!of("n", json!({"ownerReferences": [{"kind": "Node", "name": "a"}]})).is_lock);
        let excused = |name: &str| of("n", json!({"annotations": {name: "until 2027-03-31: leaves in spring"}})).excused_until;
        assert_eq!(excused("fencedlock.dev/suppress.unclassified-lease").unwrap().to_string(), "2027-04-01T00:00:00Z");
        assert_eq!(excused("fencedlock.dev/suppress.shared-lease"), None);
    }

    #[test]
    fn a_lease_with_an_unreadable_time_is_delivered() {
        let thin: ThinLease = serde_json::from_value(object(&json!({"holderIdentity": "x", "acquireTime": "soon"}))).unwrap();
        assert_eq!((thin.metadata.name.as_deref(), thin.view), (Some("a"), None));
    }
}
