//! A Lease as its watch delivers it: what terms are told apart by, and nothing else. A renewal is the commonest event that there is,
//! so none of the other fields are even parsed. A Lease whose times cannot be read is delivered all the same (case G03).

use std::borrow::Cow;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::Resource;
use serde::Deserialize;

use crate::epoch::term::LeaseView;

/// A Lease of which only the needed is known.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Wire")]
pub(super) struct ThinLease {
    /// Name, namespace, uid and resourceVersion.
    metadata: ObjectMeta,
    /// What it shows; `None` when that cannot be read.
    pub(super) view: Option<LeaseView>,
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
        let WireMeta { name, namespace, uid, resource_version } = metadata;
        let metadata = ObjectMeta { name, namespace, uid, resource_version, ..ObjectMeta::default() };
        let view = read(spec).ok().map(|spec| LeaseView::from(Lease { metadata: metadata.clone(), spec: Some(spec) }));
        Self { metadata, view }
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
    use serde_json::{Value, json};

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
    fn a_lease_with_an_unreadable_time_is_delivered() {
        let thin: ThinLease = serde_json::from_value(object(&json!({"holderIdentity": "x", "acquireTime": "soon"}))).unwrap();
        assert_eq!((thin.metadata.name.as_deref(), thin.view), (Some("a"), None));
    }
}
