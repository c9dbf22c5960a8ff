//! Reads a cluster into a look: the declared locks and boundaries with what the operator wrote, and the Leases. Only reads, page by page; what may not be
//! read is an error, because a lock that was not seen was not judged. A cluster that knows no FencedLocks declares none: its Leases are found all the same.

use std::{
    io::{self, Write},
    sync::Arc,
};

use futures::{StreamExt, stream};
use indicatif::{ProgressBar, ProgressStyle};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Namespace, Pod},
};
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
        inventory::{Declarations, Fact},
    },
    cli::{Failure, cluster, runtime},
};

/// How many objects one answer holds.
const PAGE: u32 = 500;

/// How many pods are asked for at once.
const AT_ONCE: usize = 16;

pub(super) fn gather(context: Option<&String>, namespace: Option<&String>, all: bool) -> Result<Look, Failure> {
    runtime()?.block_on(async {
        let (client, namespace) = cluster::connect(context, namespace).await?;
        let mut scope = Scope { client, namespace: (!all).then_some(namespace), declared: Declarations::default() };
        scope.check_namespace().await?;
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
    /// The locks that were read.
    declared: Declarations,
}

impl Scope {
    async fn objects<K: Resource<DynamicType = ()>>(
        &mut self,
        what: &'static str,
        bar: &ProgressBar,
        look: &mut Look,
    ) -> Result<(), Failure> {
        bar.set_message(what);
        bar.set_position(0);
        let mut unowned = Vec::new();
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
            let page = match api.list(&pages).await {
                Ok(page) => page,
                // Leases are in every cluster: what knows none is something else, such as a proxy with another path.
                Err(kube::Error::Api(status)) if status.code == 404 && K::group(&()) == Lease::group(&()) => {
                    return Err(Failure::Other(
                        "the server knows no Leases, so it is no Kubernetes API: look at its address in the kubeconfig".into(),
                    ));
                }
                Err(kube::Error::Api(status)) if status.code == 404 => {
                    bar.suspend(|| {
                        writeln!(io::stderr(), "note: this cluster knows no {what}: none is declared. fencedlock crds | kubectl apply -f -, or the chart, brings them")
                    })?;
                    return Ok(());
                }
                Err(error) => return Err(self.failed(what, &error)),
            };
            for object in page.items {
                let object = typed::<K>(object);
                if let Some(kept) = read::object(&object, &Place::default(), &nowhere) {
                    if let Kept::Lock(lock) = &kept {
                        self.declared.add(&lock.id.namespace, lock.lease.as_deref(), None);
                    }
                    // Whose they are is asked at the end: a page that is waited for expires.
                    match kept {
                        Kept::Fact(fact) if self.is_unowned(&fact) => unowned.push(fact),
                        kept => look.add(kept),
                    }
                }
                bar.inc(1);
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => pages = pages.continue_token(&token),
                None => break,
            }
        }
        let mut owned = stream::iter(unowned).map(|fact| self.with_owner(fact)).buffered(AT_ONCE);
        while let Some(fact) = owned.next().await {
            look.add(Kept::Fact(fact));
        }
        Ok(())
    }

    /// A namespace that is not there has no locks, and an audit of it would find nothing wrong.
    async fn check_namespace(&self) -> Result<(), Failure> {
        let Some(namespace) = &self.namespace else { return Ok(()) };
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        // Without the right to read it, it is not told.
        match namespaces.get_metadata_opt(namespace).await {
            Ok(None) => Err(Failure::Other(format!("there is no namespace {namespace:?} in this cluster"))),
            Ok(Some(_)) | Err(_) => Ok(()),
        }
    }

    /// Whether it is a Lease of which only its holder can tell whose it is.
    fn is_unowned(&self, fact: &Fact) -> bool {
        let Fact::Lease(lease) = fact else { return false };
        lease.owner.is_none() && !lease.pod().is_empty() && !self.declared.has_lease(&lease.id().namespace, &lease.id().name)
    }

    /// Whose a Lease is, by the pod that holds it. A courtesy: without the right to read pods it is not told.
    async fn with_owner(&self, mut fact: Box<Fact>) -> Box<Fact> {
        if let Fact::Lease(lease) = fact.as_mut() {
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), &lease.id().namespace);
            lease.owner = pods.get_metadata_opt(lease.pod()).await.ok().flatten().and_then(|pod| owner(&pod));
        }
        fact
    }

    fn failed(&self, what: &str, error: &kube::Error) -> Failure {
        let place = self.namespace.as_ref().map_or_else(|| "in all namespaces".to_owned(), |namespace| format!("in namespace {namespace}"));
        Failure::Other(match error {
            kube::Error::Api(status) if status.code == 403 => {
                format!("{what} cannot be listed {place}: {}. The right \"list\" on {what} is needed", status.message)
            }
            error => format!("{what} cannot be listed {place}: {}", cluster::told(error)),
        })
    }
}

/// What a pod belongs to. A Deployment's pods belong to its ReplicaSet, whose name ends with the hash of the template.
fn owner(pod: &PartialObjectMeta<Pod>) -> Option<String> {
    let owner = pod.owner_references().first()?;
    let deployment = pod.labels().get("pod-template-hash").and_then(|hash| owner.name.strip_suffix(hash)?.strip_suffix('-'));
    Some(match deployment {
        Some(name) if owner.kind == "ReplicaSet" => format!("Deployment {name}"),
        _ => format!("{} {}", owner.kind, owner.name),
    })
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
