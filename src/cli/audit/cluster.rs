//! Reads a cluster into a look: the declared locks and boundaries with what the operator wrote, and the Leases. Only reads, page by page; what may not be
//! read is said, because a lock that was not seen was not judged.

use std::sync::Arc;

use indicatif::{ProgressBar, ProgressStyle};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams, PartialObjectMeta},
    core::GroupVersionKind,
};
use serde_json::Value;

use crate::{
    api::{FencedLock, WriteBoundary},
    audit::{
        assess::{
            Place,
            judge::Look,
            read::{self, Kept},
        },
        inventory::Fact,
    },
    cli::{Failure, cluster, runtime},
};

/// How many objects one answer holds.
const PAGE: u32 = 500;

pub(super) fn gather(context: Option<&String>, namespace: Option<&String>, all: bool) -> Result<Look, Failure> {
    runtime()?.block_on(async {
        let (client, namespace) = cluster::connect(context, namespace).await?;
        let scope = Scope { client, namespace: (!all).then_some(namespace) };
        let bar = ProgressBar::new_spinner()
            .with_style(ProgressStyle::with_template("{spinner} {msg}: {pos}").unwrap_or_else(|_| ProgressStyle::default_spinner()));
        let mut look = Look::default();
        scope.objects::<FencedLock>("fencedlocks", &bar, &mut look).await?;
        scope.objects::<WriteBoundary>("writeboundaries", &bar, &mut look).await?;
        scope.objects::<Lease>("leases", &bar, &mut look).await?;
        bar.finish_and_clear();
        Ok(look)
    })
}

/// What is read, and where.
struct Scope {
    client: Client,
    /// `None` for all.
    namespace: Option<String>,
}

impl Scope {
    async fn objects<K: Resource<DynamicType = ()>>(&self, what: &'static str, bar: &ProgressBar, look: &mut Look) -> Result<(), Failure> {
        bar.set_message(what);
        bar.set_position(0);
        // Read as it stands: an object that does not fit its kind is a finding, and no failure.
        let kind = GroupVersionKind::gvk(&K::group(&()), &K::version(&()), &K::kind(&()));
        let resource = ApiResource::from_gvk_with_plural(&kind, &K::plural(&()));
        let api: Api<DynamicObject> = match &self.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        };
        let nowhere: Arc<str> = "".into();
        let mut pages = ListParams::default().limit(PAGE);
        loop {
            let page = api.list(&pages).await.map_err(|error| self.failed(what, &error))?;
            for object in page.items {
                let object = typed::<K>(object);
                if let Some(kept) = read::object(&object, &Place::default(), &nowhere) {
                    look.add(self.with_owner(kept).await);
                }
                bar.inc(1);
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => pages = pages.continue_token(&token),
                None => return Ok(()),
            }
        }
    }

    /// Whose a Lease is, by the pod that holds it. A courtesy: without the right to read pods it is not told.
    async fn with_owner(&self, mut kept: Kept) -> Kept {
        if let Kept::Fact(fact) = &mut kept
            && let Fact::Lease(lease) = fact.as_mut()
            && lease.owner.is_none()
            && !lease.pod().is_empty()
        {
            let pods: Api<PartialObjectMeta<Pod>> = Api::namespaced(self.client.clone(), &lease.id().namespace);
            let pod = pods.get_metadata_opt(lease.pod()).await.ok().flatten();
            lease.owner = pod.and_then(|pod| {
                let owner = pod.owner_references().first()?;
                Some(format!("{} {}", owner.kind, owner.name))
            });
        }
        kept
    }

    fn failed(&self, what: &str, error: &kube::Error) -> Failure {
        let place = self.namespace.as_ref().map_or_else(|| "in all namespaces".to_owned(), |namespace| format!("in namespace {namespace}"));
        Failure::Other(match error {
            kube::Error::Api(status) if status.code == 404 => {
                format!(
                    "{what} cannot be listed: this cluster does not know them; fencedlock crds | kubectl apply -f -, or install the chart"
                )
            }
            kube::Error::Api(status) if status.code == 403 => {
                format!("{what} cannot be listed {place}: {}. The right \"list\" on {what} is needed", status.message)
            }
            kube::Error::Api(status) => format!("{what} cannot be listed {place}: {}", status.message),
            error => format!("{what} cannot be listed {place}: {error}"),
        })
    }
}

/// An item of a list does not say what it is.
fn typed<K: Resource<DynamicType = ()>>(mut object: DynamicObject) -> Value {
    object.managed_fields_mut().clear();
    let mut value = serde_json::to_value(object).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        fields.insert("apiVersion".into(), K::api_version(&()).into());
        fields.insert("kind".into(), K::kind(&()).into());
    }
    value
}
