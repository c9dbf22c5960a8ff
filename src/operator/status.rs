//! The one writer of status: PUT of the status subresource with resourceVersion, and nothing else. A forced apply would let
//! a stale writer win (architecture, section 5).

use std::sync::Arc;

use kube::{
    Api, Resource, ResourceExt,
    api::{DynamicObject, PostParams},
    core::{ApiResource, NamespaceResourceScope},
};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    error::{Error, Step},
    follow::Key,
    unit::Unit,
};
use crate::api::{FencedLock, FencedLockStatus, WriteBoundary, WriteBoundaryStatus};

async fn put<K>(unit: &Unit, resource: &'static str, object: &K) -> Result<K, Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Serialize + DeserializeOwned + Clone + std::fmt::Debug,
{
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let api = Api::<K>::namespaced(unit.client.clone(), &namespace);
    let step = Step { verb: "update", resource, namespace: &namespace, name: &name };
    api.replace_status(&name, &PostParams::default(), object).await.map_err(|error| step.failed(&error))
}

/// Records a lock's status over the given version of it. Returns the lock as it is then.
///
/// # Errors
/// [`Error::Conflict`] when somebody else wrote first.
pub(super) async fn record_lock(unit: &Unit, lock: &FencedLock, status: FencedLockStatus) -> Result<Arc<FencedLock>, Error> {
    let next = FencedLock { status: Some(status), ..lock.clone() };
    put(unit, "fencedlocks.fencedlock.dev/status", &next).await.map(Arc::new)
}

/// Records a boundary's status over the given version of it.
///
/// # Errors
/// [`Error::Conflict`] when somebody else wrote first.
pub(super) async fn record_boundary(unit: &Unit, boundary: &WriteBoundary, status: WriteBoundaryStatus) -> Result<(), Error> {
    let next = WriteBoundary { status: Some(status), ..boundary.clone() };
    put(unit, "writeboundaries.fencedlock.dev/status", &next).await.map(drop)
}

/// An object that cannot be read as its kind, as it stands in the API server.
pub(super) async fn raw<K: Resource<DynamicType = ()>>(unit: &Unit, (namespace, name): &Key) -> Result<Option<DynamicObject>, Error> {
    let resource = ApiResource::erase::<K>(&());
    let step = Step { verb: "get", resource: "fencedlock.dev objects", namespace, name };
    let api = Api::<DynamicObject>::namespaced_with(unit.client.clone(), namespace, &resource);
    api.get_opt(name).await.map_err(|error| step.failed(&error))
}

/// Records fields of the status of an object that cannot be read as its kind; the others stay as they are.
pub(super) async fn record_raw<K: Resource<DynamicType = ()>>(
    unit: &Unit,
    mut object: DynamicObject,
    fields: serde_json::Value,
) -> Result<(), Error> {
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let resource = ApiResource::erase::<K>(&());
    let step = Step { verb: "update", resource: "fencedlock.dev objects/status", namespace: &namespace, name: &name };
    let before = object.data.get("status").cloned();
    let mut status = before.clone().filter(serde_json::Value::is_object).unwrap_or_else(|| serde_json::json!({}));
    if let (Some(status), serde_json::Value::Object(fields)) = (status.as_object_mut(), fields) {
        status.extend(fields);
    }
    if before.as_ref() == Some(&status) {
        return Ok(());
    }
    if let Some(data) = object.data.as_object_mut() {
        data.insert("status".into(), status);
    }
    let api = Api::<DynamicObject>::namespaced_with(unit.client.clone(), &namespace, &resource);
    api.replace_status(&name, &PostParams::default(), &object).await.map_err(|error| step.failed(&error))?;
    Ok(())
}
