//! Which objects a boundary names, found in the cluster: their kinds by discovery, their metadata by name or label. Nothing but metadata is read.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResource;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams, ObjectMeta, PartialObjectMeta},
    core::GroupVersionKind,
};

use super::stamp;
use crate::{api::KubernetesTarget, apiserver, boundary::BackendError};

/// What one entry of `spec.kubernetes.targets` names.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) kind: ApiResource,
    /// Whether it has `/scale`, which changes it and is an object of another kind.
    pub(super) has_scale: bool,
    pub(super) objects: Vec<ObjectMeta>,
    /// Names that no object has.
    pub(super) missing: Vec<String>,
}

impl Found {
    pub(super) fn api(&self, client: &Client, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(client.clone(), namespace, &self.kind)
    }

    /// The kind as kubectl spells it.
    pub(super) fn resource(&self) -> String {
        spelled(&self.kind.group, &self.kind.plural)
    }
}

/// A kind by its group and plural, as kubectl spells it.
pub(super) fn spelled(group: &str, plural: &str) -> String {
    if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") }
}

/// The ConfigMaps in which the operator reserves epochs and records fences: fenced for somebody, it could not write them any more.
const OWN: [&str; 2] = ["fencedlock-epochs", super::record::NAME];
/// Kinds that are no targets, by group and plural, and why.
const REFUSED: [(&str, &str, &str); 9] = [
    ("", "pods", "/binding would overwrite the fence, and neither the scheduler nor the kubelet could write them"),
    ("fencedlock.dev", "fencedlocks", "the operator could not write their status any more"),
    ("fencedlock.dev", "writeboundaries", "the operator could not write their status any more"),
    ("events.k8s.io", "events", "everybody writes them"),
    ("coordination.k8s.io", "leases", "fencing Leases could stop the elections that they are for"),
    ("", "services", "the cluster copies its labels to EndpointSlices, and could not write those any more"),
    ("", "endpoints", "the cluster copies its labels to EndpointSlices, and could not write those any more"),
    ("discovery.k8s.io", "endpointslices", "the cluster writes them itself"),
    ("", "events", "everybody writes them"),
];

/// Finds everything.
///
/// # Errors
/// Names the field, or the right that is missing.
pub(super) async fn find(
    client: &Client,
    namespace: &str,
    boundary: &str,
    targets: &[KubernetesTarget],
) -> Result<Vec<Found>, BackendError> {
    let mut all = Vec::new();
    for (place, target) in targets.iter().enumerate() {
        let is_ours = |name: &str| target.group.is_empty() && target.resource == "configmaps" && OWN.contains(&name);
        let field = format!("spec.kubernetes.targets[{place}]");
        if let Some((_, _, why)) = REFUSED.iter().find(|(group, resource, _)| *group == target.group && *resource == target.resource) {
            return Err(BackendError::Refused(format!("{field}.resource: {} cannot be a target: {why}", target.resource)));
        }
        let (kind, has_scale) = kind(client, target, &field).await?;
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind);
        let metadata: Api<PartialObjectMeta<DynamicObject>> = Api::namespaced_with(client.clone(), namespace, &kind);
        let (mut objects, mut missing) = (BTreeMap::new(), Vec::new());
        if let Some(name) = target.names.iter().find(|name| is_ours(name)) {
            return Err(BackendError::Refused(format!(
                "{field}.names: {name} is where the operator reserves epochs or records fences, and cannot be a target"
            )));
        }
        for name in &target.names {
            match api.get_metadata_opt(name).await.map_err(|error| refusal(&error, "get", target, namespace))? {
                Some(object) => drop(objects.insert(name.clone(), object.metadata)),
                None => missing.push(name.clone()),
            }
        }
        let stamped = format!("{}={boundary}", stamp::BOUNDARY);
        for selector in target.selector.iter().chain([&stamped]) {
            // What carries the fence already goes on moving with it, also when it matches no longer: it would be its last owner's for ever.
            let listed = apiserver::all(&metadata, ListParams::default().labels(selector)).await;
            let listed = listed.map_err(|error| refusal(&error, "list", target, namespace))?;
            let named = listed.into_iter().map(|object| (object.metadata.name.clone().unwrap_or_default(), object.metadata));
            objects.extend(named.filter(|(name, _)| !is_ours(name)));
        }
        all.push(Found { kind, has_scale, objects: objects.into_values().collect(), missing });
    }
    Ok(all)
}

/// The kind behind a group and a plural, in the version that the API server prefers, and whether it has `/scale`.
pub(super) async fn kind(client: &Client, target: &KubernetesTarget, field: &str) -> Result<(ApiResource, bool), BackendError> {
    let unreachable = |error: kube::Error| BackendError::Unreachable(error.to_string());
    let version = if target.group.is_empty() {
        "v1".to_owned()
    } else {
        let groups = client.list_api_groups().await.map_err(unreachable)?;
        let group = groups.groups.into_iter().find(|group| group.name == target.group);
        let preferred = group.and_then(|group| group.preferred_version.map(|version| version.version));
        preferred.ok_or_else(|| BackendError::Refused(format!("{field}.group: the API server serves no group {:?}", target.group)))?
    };
    let served = served(client, &target.group, &version).await?.unwrap_or_default();
    let of = served.iter().find(|resource| resource.name == target.resource).ok_or_else(|| {
        let group = if target.group.is_empty() { "the core group".to_owned() } else { format!("group {:?}", target.group) };
        BackendError::Refused(format!(
            "{field}.resource: the API server serves no {:?} in {group}: write the plural that `kubectl api-resources` shows",
            target.resource
        ))
    })?;
    if !of.namespaced {
        return Err(BackendError::Refused(format!(
            "{field}.resource: {} are not in namespaces, and a boundary guards what is in its own",
            of.name
        )));
    }
    let has_scale = served.iter().any(|resource| resource.name.strip_prefix(&of.name) == Some("/scale"));
    let gvk = GroupVersionKind::gvk(&target.group, &version, &of.kind);
    Ok((ApiResource::from_gvk_with_plural(&gvk, &of.name), has_scale))
}

/// What the API server serves of a group's version; `None` when it knows none of them.
pub(super) async fn served(client: &Client, group: &str, version: &str) -> Result<Option<Vec<APIResource>>, BackendError> {
    let served = if group.is_empty() {
        client.list_core_api_resources(version).await
    } else {
        client.list_api_group_resources(&format!("{group}/{version}")).await
    };
    match served {
        Ok(list) => Ok(Some(list.resources)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(BackendError::Unreachable(error.to_string())),
    }
}

/// What the API server said, in words that name the right that is missing.
fn refusal(error: &kube::Error, verb: &str, target: &KubernetesTarget, namespace: &str) -> BackendError {
    let what = spelled(&target.group, &target.resource);
    match error {
        kube::Error::Api(status) if status.code == 403 && !status.message.contains("fencedlock: ") => BackendError::Refused(format!(
            "the operator may not {verb} {what} in namespace {namespace}: bind a Role that lets its ServiceAccount get, list and patch them"
        )),
        error => super::failed(format_args!("{verb} {what}"), error),
    }
}
