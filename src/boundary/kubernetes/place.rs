//! Where everything is that a bypass could go through: gathered for `bypass`, which judges it.

use std::collections::BTreeSet;

use k8s_openapi::{
    api::core::v1::Pod, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ObjectMeta},
    core::GroupVersionKind,
};

use super::{
    bypass::{OwnerObject, Place},
    exempt::all_default_exemptions,
    failed, policies,
    stamp::{self, Seen},
    targets::{Found, served},
};
use crate::{
    api::{ClaimKind, KubernetesBoundary},
    boundary::BackendError,
    epoch::Holder,
};

/// Who may delete what is guarded (charts/fencedlock/files/guard.yaml, `housekeeping`).
const HOUSEKEEPERS: [&str; 2] =
    ["system:serviceaccount:kube-system:namespace-controller", "system:serviceaccount:kube-system:generic-garbage-collector"];
/// How many owners are followed from one target: deletion goes down all of them.
const DEEPEST: usize = 8;

/// Gathers.
///
/// # Errors
/// When something could not be read: then it is not known who could go around the guard.
pub(super) async fn gather(
    client: &Client,
    namespace: &str,
    spec: &KubernetesBoundary,
    found: &[Found],
    operators: &[String],
    pods: &str,
    fence: Option<&Seen>,
) -> Result<Place, BackendError> {
    let by_pod = spec.claim == ClaimKind::PodIdentity;
    let declared = spec.exemptions.iter().chain(&spec.status_writers).map(|exemption| exemption.user.clone());
    let exempt = declared.chain(all_default_exemptions(found)).chain(HOUSEKEEPERS.map(str::to_owned));
    Ok(Place {
        operators: operators.to_vec(),
        exempt: exempt.collect(),
        policies: policies::resources().into_iter().map(|(resource, name)| (resource.plural, name.to_owned())).collect(),
        namespace: namespace.to_owned(),
        pods: by_pod.then(|| pods.to_owned()),
        owner: match fence.filter(|_| by_pod) {
            Some(fence) => account_of(client, pods, fence).await?,
            None => None,
        },
        definitions: definitions(client, found).await?,
        owners: owners(client, namespace, found).await?,
        is_recorded: false,
    })
}

/// The ServiceAccount of the pod that a fence names; `None` when that pod is gone.
async fn account_of(client: &Client, namespace: &str, fence: &Seen) -> Result<Option<String>, BackendError> {
    let Ok(holder) = Holder::new(&fence.holder) else { return Ok(None) };
    let Some(name) = holder.pod_name() else { return Ok(None) };
    let pod = match Api::<Pod>::namespaced(client.clone(), namespace).get_opt(name).await {
        Ok(pod) => pod.filter(|pod| pod.metadata.uid.as_deref() == Some(&fence.uid)),
        Err(error) => return Err(failed(format_args!("get pod {name:?} in {namespace}"), &error)),
    };
    let account = |pod: Pod| pod.spec.and_then(|spec| spec.service_account_name).unwrap_or_else(|| "default".to_owned());
    Ok(pod.map(account))
}

/// The definitions of those kinds that are custom resources.
async fn definitions(client: &Client, found: &[Found]) -> Result<Vec<String>, BackendError> {
    let names: BTreeSet<_> = found.iter().filter(|found| !found.kind.group.is_empty()).map(Found::resource).collect();
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut definitions = Vec::new();
    for name in names {
        let there = api.get_metadata_opt(&name).await;
        if there.map_err(|error| failed(format_args!("get customresourcedefinition {name:?}"), &error))?.is_some() {
            definitions.push(name);
        }
    }
    Ok(definitions)
}

/// What owns a target, or owns its owner, and carries no fence.
async fn owners(client: &Client, namespace: &str, found: &[Found]) -> Result<Vec<OwnerObject>, BackendError> {
    let objects = || found.iter().flat_map(|found| &found.objects);
    let guarded: BTreeSet<_> = objects().filter(|object| stamp::boundary_of(object).is_some()).filter_map(|o| o.uid.as_deref()).collect();
    let references = |object: &ObjectMeta| object.owner_references.clone().unwrap_or_default();
    let mut level: Vec<OwnerReference> = objects().flat_map(references).collect();
    let (mut owners, mut seen) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..DEEPEST {
        let mut above = Vec::new();
        for reference in level {
            if guarded.contains(reference.uid.as_str()) || !seen.insert(reference.uid.clone()) {
                continue;
            }
            // What is not served cannot be deleted.
            let Some((kind, is_namespaced)) = served_kind(client, &reference).await? else { continue };
            let scope = is_namespaced.then_some(namespace);
            let api: Api<DynamicObject> =
                scope.map_or_else(|| Api::all_with(client.clone(), &kind), |ns| Api::namespaced_with(client.clone(), ns, &kind));
            let there = match api.get_metadata_opt(&reference.name).await {
                Ok(there) => there.filter(|owner| owner.metadata.uid.as_ref() == Some(&reference.uid)),
                Err(kube::Error::Api(status)) if status.code == 403 => {
                    return Err(BackendError::Refused(format!(
                        "the operator may not get {} {:?}, which owns a target: let its ServiceAccount get it, so that it is known who can have the \
                         target deleted with it",
                        kind.plural, reference.name
                    )));
                }
                Err(error) => return Err(failed(format_args!("get {} {:?}", kind.plural, reference.name), &error)),
            };
            // What another boundary guards is deleted by its own owner only.
            let Some(owner) = there.filter(|owner| stamp::boundary_of(&owner.metadata).is_none()) else { continue };
            above.extend(references(&owner.metadata));
            owners.insert(OwnerObject { group: kind.group, plural: kind.plural, name: reference.name, is_namespaced });
        }
        level = above;
    }
    if !level.is_empty() {
        return Err(BackendError::Refused(format!(
            "a target is owned through more than {DEEPEST} objects, which are not followed further"
        )));
    }
    Ok(owners.into_iter().collect())
}

/// The kind that a reference names; `None` when the API server does not serve it.
async fn served_kind(client: &Client, reference: &OwnerReference) -> Result<Option<(ApiResource, bool)>, BackendError> {
    let (group, version) = reference.api_version.split_once('/').unwrap_or(("", &reference.api_version));
    let Some(served) = served(client, group, version).await? else { return Ok(None) };
    let of = served.iter().find(|resource| resource.kind == reference.kind && !resource.name.contains('/'));
    let gvk = GroupVersionKind::gvk(group, version, &reference.kind);
    Ok(of.map(|of| (ApiResource::from_gvk_with_plural(&gvk, &of.name), of.namespaced)))
}
