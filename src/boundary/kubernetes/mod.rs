//! Kubernetes objects (design: boundaries.md section 4). The fence is on the guarded object itself, in labels and annotations; two policies of the
//! chart compare the requester with it. Everything that knows this guard is in this folder and in `charts/fencedlock/files`.
//!
//! Start with [`Kubernetes`]; `examine` is one look at it. `stamp` is what an object carries, `targets` finds the objects, `activate` stamps them; `policies` is what has to be
//! installed, `canary` what a proof writes to; `bypass` judges who could go around, by what `place` and `rbac` gather.

use std::{fmt, sync::Arc};

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::{Api, Client, api::PostParams};

mod activate;
mod bypass;
mod canary;
mod examine;
mod exempt;
mod follow;
mod place;
mod policies;
mod rbac;
mod record;
mod servers;
mod stamp;
mod targets;

use activate::{Not, fence, is_ahead, stamp_all};
use exempt::{all_default_exemptions, default_exemptions};
use follow::{Followed, PolicyWatch, Unwatched};
use record::Record;
use stamp::{Seen, Stamp};
use targets::Found;

pub use servers::ApiServers;

use super::{
    Activation, Ask, Backend, BackendError, Observation, Owner, Tell,
    proof::{Examination, Outcome},
};
use crate::api::{ClaimKind, GuardMode, KubernetesBoundary};

/// A boundary of Kubernetes objects.
#[derive(Clone)]
pub struct Kubernetes {
    client: Client,
    namespace: String,
    name: String,
    spec: KubernetesBoundary,
    mode: GuardMode,
    shared: Shared,
}

/// What the boundaries of one operator share.
#[derive(Clone, Default)]
pub(super) struct Shared {
    rbac: Arc<rbac::Cache>,
    policies: Arc<PolicyWatch>,
    unwatched: Arc<Unwatched>,
    pub(super) servers: ApiServers,
}

impl fmt::Debug for Kubernetes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kubernetes").field("boundary", &format_args!("{}/{}", self.namespace, self.name)).finish_non_exhaustive()
    }
}

/// Who the operator is to the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Identity {
    user: String,
    /// The name of its pod, when its token is bound to one.
    pod_name: Option<String>,
    /// The pod's uid.
    pod_uid: Option<String>,
}

impl Kubernetes {
    /// A boundary, as it is declared.
    pub fn new(client: Client, namespace: String, name: String, spec: KubernetesBoundary, mode: GuardMode) -> Self {
        Self { client, namespace, name, spec, mode, shared: Shared::default() }
    }

    /// The same, with API servers that are tried one by one.
    #[must_use]
    pub fn with_servers(mut self, servers: ApiServers) -> Self {
        self.shared.servers = servers;
        self
    }

    /// The same, with what others share with it.
    pub(super) fn sharing(self, shared: &Shared) -> Self {
        Self { shared: shared.clone(), ..self }
    }

    async fn found(&self) -> Result<Vec<Found>, BackendError> {
        if self.name.len() > stamp::MAX_NAME {
            return Err(BackendError::Refused(format!(
                "metadata.name: {:?} has more than {} characters, and a label cannot carry it: choose a shorter name",
                self.name,
                stamp::MAX_NAME
            )));
        }
        targets::find(&self.client, &self.namespace, &self.name, &self.spec.targets).await
    }

    fn stamps(&self, found: &[Found], owner: &Seen) -> Vec<Stamp> {
        found.iter().map(|found| Stamp::new(&self.name, self.mode, &self.spec, owner, &default_exemptions(found))).collect()
    }

    /// The fences of all targets; `None` for one that carries none.
    fn fences(&self, found: &[Found]) -> Result<Vec<Option<Seen>>, String> {
        found.iter().flat_map(|found| &found.objects).map(|object| stamp::read(object, &self.name)).collect()
    }

    /// The fence of an owner. Who claims by text is known by no pod.
    fn wanted(&self, owner: &Owner) -> Seen {
        let uid = owner.pod_uid.clone().filter(|_| self.spec.claim == ClaimKind::PodIdentity).unwrap_or_default();
        Seen { epoch: owner.epoch, holder: owner.holder().to_owned(), uid }
    }

    async fn activate_now(&self, owner: &Owner) -> Result<Activation, BackendError> {
        if self.spec.claim == ClaimKind::PodIdentity && owner.holder.is_some() && owner.pod_uid.is_none() {
            return Err(BackendError::Refused(format!(
                "HolderPodUnknown: no single pod is known to be holder {:?}: let its identity be the pod's name or <pod>_<suffix> (and set podNamespace \
                 of the coordinator), or use claim: Annotation",
                owner.holder()
            )));
        }
        let wanted = self.wanted(owner);
        let found = self.found().await?;
        let seen = self.fences(&found).map_err(BackendError::Refused)?;
        if let Some(ahead) = seen.into_iter().flatten().filter(|seen| is_ahead(seen, &wanted)).max() {
            return Ok(Activation::Superseded(fence(&ahead)));
        }
        if let Some(answer) = self.record(&found, &wanted).await? {
            return Ok(answer);
        }
        let stamps = self.stamps(&found, &wanted);
        match stamp_all(&self.client, &self.namespace, &self.name, &found, &stamps, &wanted).await {
            Ok(true) => Ok(Activation::Activated),
            Ok(false) => Ok(Activation::Unchanged),
            Err(Not::Ahead(seen)) => Ok(Activation::Superseded(fence(&seen))),
            Err(Not::Failed(error)) => Err(error),
        }
    }

    /// Records the fence of named targets where the namespace asks for it, and waits until every API server judges by it. An answer is one that ends
    /// the activation.
    async fn record(&self, found: &[Found], wanted: &Seen) -> Result<Option<Activation>, BackendError> {
        // Most boundaries do not ask, and then nothing more is read.
        if !self.asks_for_record().await? || !policies::look(&self.client, &self.identity().await?.user).await?.names {
            return Ok(None);
        }
        let defaults = all_default_exemptions(found);
        let record = self.record_of(&defaults);
        match record.put(&self.client, wanted).await {
            Ok(_) if self.mode == GuardMode::Observe => return Ok(None),
            Ok(_) => {}
            Err(Not::Ahead(seen)) => return Ok(Some(Activation::Superseded(fence(&seen)))),
            Err(Not::Failed(error)) => return Err(error),
        }
        match record.until_in_force(&self.shared.servers.clients(&self.client).await?, wanted).await {
            Outcome::Failed(_, why) | Outcome::Inconclusive(why) | Outcome::NotApplicable(why) => Err(BackendError::Refused(why)),
            Outcome::Passed => Ok(None),
        }
    }

    /// Whether what is named should be guarded by a record as well, where the chart has installed the policy for it.
    async fn asks_for_record(&self) -> Result<bool, BackendError> {
        let has_names = self.spec.targets.iter().any(|target| !target.names.is_empty());
        Ok(has_names && record::is_asked_for(&self.client, &self.namespace).await?)
    }

    fn record_of<'a>(&'a self, defaults: &'a [String]) -> Record<'a> {
        Record { namespace: &self.namespace, boundary: &self.name, mode: self.mode, spec: &self.spec, defaults }
    }

    async fn identity(&self) -> Result<Identity, BackendError> {
        let api: Api<SelfSubjectReview> = Api::all(self.client.clone());
        let review = api.create(&PostParams::default(), &SelfSubjectReview::default()).await;
        let info = review
            .map_err(|error| BackendError::Unreachable(error.to_string()))?
            .status
            .and_then(|status| status.user_info)
            .unwrap_or_default();
        let extra = |key: &str| info.extra.as_ref().and_then(|extra| extra.get(key)?.first().cloned());
        let (pod_name, pod_uid) = (extra("authentication.kubernetes.io/pod-name"), extra("authentication.kubernetes.io/pod-uid"));
        Ok(Identity { user: info.username.unwrap_or_default(), pod_name, pod_uid })
    }

    async fn observe_now(&self) -> Result<Observation, BackendError> {
        let found = self.found().await?;
        let highest = self.fences(&found).map_err(BackendError::Refused)?.into_iter().flatten().max();
        let identity = self.identity().await?;
        // Without the policies, or where they only observe, anybody could have written it.
        let is_enforced = self.mode == GuardMode::Enforce && found.iter().flat_map(|found| &found.objects).all(stamp::is_enforced);
        let trusted = is_enforced && policies::look(&self.client, &identity.user).await?.wrong.is_none();
        Ok(Observation { fence: highest.as_ref().map(fence), trusted })
    }
}

/// What the API server said to an attempt.
fn failed(what: impl fmt::Display, error: &kube::Error) -> BackendError {
    match error {
        kube::Error::Api(status) => BackendError::Refused(format!("{what}: {}", status.message)),
        other => BackendError::Unreachable(other.to_string()),
    }
}

impl Backend for Kubernetes {
    fn observe(&self) -> BoxFuture<'_, Result<Observation, BackendError>> {
        self.observe_now().boxed()
    }

    fn activate<'a>(&'a self, owner: &'a Owner) -> BoxFuture<'a, Result<Activation, BackendError>> {
        self.activate_now(owner).boxed()
    }

    fn examine<'a>(&'a self, ask: &'a Ask) -> BoxFuture<'a, Result<Examination, BackendError>> {
        self.examine_now(ask).boxed()
    }

    fn follow(&self, tell: Tell) -> Option<BoxFuture<'static, ()>> {
        let (client, targets) = (self.client.clone(), self.spec.targets.clone());
        let followed = Followed { client, namespace: self.namespace.clone(), name: self.name.clone(), targets };
        Some(follow::follow(followed, Arc::clone(&self.shared.policies), Arc::clone(&self.shared.unwatched), tell).boxed())
    }
}
