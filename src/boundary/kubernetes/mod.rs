//! Kubernetes objects (design: boundaries.md section 4). The fence is on the guarded object itself, in labels and annotations; two policies of the
//! chart compare the requester with it. Everything that knows this guard is in this folder and in `charts/fencedlock/files`.
//!
//! Start with [`Kubernetes`]. `stamp` is what an object carries, `targets` finds the objects, `activate` stamps them; `policies` is what has to be
//! installed, `canary` what a proof writes to; `bypass` judges who could go around, by what `place` and `rbac` gather.

use std::{collections::BTreeSet, fmt, sync::Arc};

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

mod activate;
mod bypass;
mod canary;
mod follow;
mod place;
mod policies;
mod rbac;
mod record;
mod servers;
mod stamp;
mod targets;

use activate::{Not, fence, is_ahead, stamp_all};
use bypass::Place;
use follow::{Followed, PolicyWatch, Unwatched};
use record::Record;
use stamp::{Seen, Stamp};
use targets::Found;

pub use servers::ApiServers;

use super::{
    Activation, Ask, Backend, BackendError, Observation, Owner, Tell,
    proof::{Answers, Bypass, ClaimForm, Examination, Failure, Judges, NamedLimit, Outcome, Probe, Profile, run},
};
use crate::api::{ClaimKind, Contract, GuardMode, KubernetesBoundary, LimitName, Reacquire, WritesPerEpoch};

/// What stands in the place of a count: refusals happen in the API servers, which count them for all boundaries together.
const NOT_COUNTED: &str = "NotCounted: the API servers warn who would be refused, write it into their audit logs, and count it for all boundaries in \
                           apiserver_validating_admission_policy_check_total";
/// How many targets are tried with a dry run in one examination.
const TRIED: usize = 16;

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

/// Controllers that write to objects of a kind whoever owns the lock, by group and plural: exempt by default, and listed in the status.
/// Without credentials of their own all of them are the controller manager.
const DEFAULT_EXEMPTIONS: [(&str, &str, &[&str]); 11] = [
    ("apps", "deployments", &["deployment-controller"]),
    ("apps", "replicasets", &["replicaset-controller", "deployment-controller"]),
    ("apps", "statefulsets", &["statefulset-controller"]),
    ("apps", "daemonsets", &["daemon-set-controller"]),
    ("batch", "jobs", &["job-controller", "cronjob-controller", "ttl-after-finished-controller"]),
    ("batch", "cronjobs", &["cronjob-controller"]),
    ("autoscaling", "horizontalpodautoscalers", &["horizontal-pod-autoscaler"]),
    ("policy", "poddisruptionbudgets", &["disruption-controller"]),
    ("", "persistentvolumeclaims", &["persistent-volume-binder", "pvc-protection-controller", "expand-controller"]),
    ("", "resourcequotas", &["resourcequota-controller"]),
    ("", "replicationcontrollers", &["replication-controller"]),
];

fn default_exemptions(found: &Found) -> Vec<String> {
    let is_it = |(group, plural, _): &&(&str, &str, &[&str])| *group == found.kind.group && *plural == found.kind.plural;
    let Some((_, _, controllers)) = DEFAULT_EXEMPTIONS.iter().find(is_it) else { return Vec::new() };
    let own = controllers.iter().map(|controller| format!("system:serviceaccount:kube-system:{controller}"));
    own.chain(["system:kube-controller-manager".to_owned()]).collect()
}

fn all_default_exemptions(found: &[Found]) -> Vec<String> {
    let mut all: Vec<_> = found.iter().flat_map(default_exemptions).collect();
    all.sort_unstable();
    all.dedup();
    all
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

    const fn profile(&self) -> Profile {
        let (writes, claim) = match self.spec.claim {
            ClaimKind::PodIdentity => (WritesPerEpoch::Many, ClaimForm::Identity),
            ClaimKind::Annotation => (WritesPerEpoch::Sequenced, ClaimForm::Text),
        };
        let contract = match self.spec.reacquire {
            Reacquire::NewProcess => Contract::AfterActivation,
            Reacquire::Allow => Contract::AfterAcceptance,
        };
        Profile { contract, writes, claim, names_holder: true, stays_on_connection: false, judges: Judges::WhatIsThere }
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

    /// What targets carry beside a fence that the declaration does not have: an exemption that is not listed, another mode.
    fn undeclared(&self, found: &[Found]) -> Vec<String> {
        let mut undeclared = Vec::new();
        for found in found {
            for object in &found.objects {
                let Ok(Some(seen)) = stamp::read(object, &self.name) else { continue };
                let wanted = Stamp::new(&self.name, self.mode, &self.spec, &seen, &default_exemptions(found));
                let differs = wanted.differs(object);
                if !differs.is_empty() {
                    let name = object.name.as_deref().unwrap_or_default();
                    undeclared.push(format!("{} {name:?}: {}", found.resource(), differs.join(", ")));
                }
            }
        }
        undeclared
    }

    /// The fences of all targets; `None` for one that carries none.
    fn fences(&self, found: &[Found]) -> Result<Vec<Option<Seen>>, String> {
        found.iter().flat_map(|found| &found.objects).map(|object| stamp::read(object, &self.name)).collect()
    }

    async fn activate_now(&self, owner: &Owner) -> Result<Activation, BackendError> {
        let uid = match (self.spec.claim, &owner.pod_uid) {
            (ClaimKind::Annotation, _) => String::new(),
            (ClaimKind::PodIdentity, Some(uid)) => uid.clone(),
            (ClaimKind::PodIdentity, None) => {
                return Err(BackendError::Refused(format!(
                    "HolderPodUnknown: no single pod is known to be holder {:?}: let its identity be the pod's name or <pod>_<suffix> (and set \
                     podNamespace of the coordinator), or use claim: Annotation",
                    owner.holder.as_str()
                )));
            }
        };
        let wanted = Seen { epoch: owner.epoch, holder: owner.holder.as_str().to_owned(), uid };
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
        if !self.is_recorded().await? {
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

    /// Whether what is named is guarded by a record as well.
    async fn is_recorded(&self) -> Result<bool, BackendError> {
        Ok(self.spec.targets.iter().any(|target| !target.names.is_empty()) && record::is_asked_for(&self.client, &self.namespace).await?)
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

    async fn examine_now(&self, ask: &Ask) -> Result<Examination, BackendError> {
        let identity = self.identity().await?;
        let policies = policies::look(&self.client, &identity.user).await?;
        let found = self.found().await?;
        let (fences, shared) = match self.fences(&found) {
            Ok(fences) => (fences, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        let lowest = fences.iter().min().cloned().flatten();
        let undeclared = self.undeclared(&found);
        let is_recorded = self.is_recorded().await?;
        // By its label nobody finds what is not there, so every target has to have a name.
        let all_named = is_recorded && self.spec.targets.iter().all(|target| target.selector.is_none());
        let mut examined = Examination {
            profile: self.profile(),
            server: format!("policies {}", policies.uids),
            guard: policies.hash.clone(),
            guard_altered: policies.wrong.clone().filter(|_| !policies.is_absent || ask.is_known),
            shared,
            answers: None,
            bypasses: Vec::new(),
            not_durable: None,
            limits: self.limits(&found, policies.carries, all_named),
            // What carries something else is not activated as it is declared, whatever its epoch.
            fence: lowest.as_ref().filter(|_| undeclared.is_empty()).map(fence),
            refused: None,
            last_refused: Some(NOT_COUNTED.to_owned()),
            notes: self.notes(&found, &policies),
            unfinished: policies.wrong.filter(|_| policies.is_absent && !ask.is_known),
        };
        if self.mode == GuardMode::Observe || examined.guard_altered.is_some() || examined.unfinished.is_some() || examined.shared.is_some()
        {
            return Ok(examined);
        }
        match self.probe(&identity, &found).await {
            Ok(answers) => examined.answers = Some(answers),
            Err(error) => examined.unfinished = Some(error.to_string()),
        }
        if let (true, Some(fence), Some(answers)) = (is_recorded, &lowest, &mut examined.answers) {
            let defaults = all_default_exemptions(&found);
            let servers = self.shared.servers.clients(&self.client).await?;
            answers.add(Probe::RecreatedRefused, self.record_of(&defaults).until_in_force(&servers, fence).await);
            if all_named {
                examined.profile.judges = Judges::WhatIsNamed;
            }
        }
        // While a declaration is being carried out they differ, and nobody did anything.
        if let Some(first) = undeclared.first().filter(|_| ask.is_activated) {
            let more = crate::audit::boundary::more(undeclared.len() - 1);
            examined.bypasses.push(Bypass {
                by_writer: false,
                text: format!(
                    "somebody went around the guard and gave a target what is not declared: {first}{more}: it is taken away again; find out who wrote it \
                     while the guard was not in force"
                ),
            });
        }
        match self.around(&found, &policies.operators, lowest.as_ref(), is_recorded, ask).await {
            Ok((bypasses, notes)) => {
                examined.bypasses.extend(bypasses);
                examined.notes.extend(notes);
            }
            Err(error) => drop(examined.unfinished.get_or_insert_with(|| error.to_string())),
        }
        Ok(examined)
    }

    /// The ways around the guard, and what is worth knowing of them.
    async fn around(
        &self,
        found: &[Found],
        operators: &[String],
        fence: Option<&Seen>,
        is_recorded: bool,
        ask: &Ask,
    ) -> Result<(Vec<Bypass>, Vec<String>), BackendError> {
        let pods = ask.pods_in.as_deref().unwrap_or(&self.namespace);
        let place = place::gather(&self.client, &self.namespace, self.spec.claim, found, operators, pods, fence).await?;
        let place = Place { is_recorded, ..place };
        let operators = operators.iter().filter_map(|user| Some(rbac::account(user)?.0));
        let namespaces = operators.chain([self.namespace.as_str(), pods]).collect();
        let rbac = rbac::read(&self.client, &self.shared.rbac, &namespaces).await?;
        Ok(bypass::find(&rbac, &place, self.spec.claim, &self.spec.exempt_subjects))
    }

    async fn probe(&self, identity: &Identity, found: &[Found]) -> Result<Answers, BackendError> {
        let mut canary = canary::ObjectCanary::new(&self.client, identity, &self.namespace, &self.name, &self.spec)?;
        let run_id = run::id();
        let servers = self.shared.servers.clients(&self.client).await?;
        let mut answers = canary.at_each(&servers, &run_id).await?;
        answers.extend(run::run(&mut canary, &self.profile(), &run_id).await);
        canary.remove().await?;
        answers.extend(self.on_targets(found, &run_id).await);
        Ok(answers)
    }

    /// Dry runs on the real targets: the operator owns none of them, and has to be refused.
    async fn on_targets(&self, found: &[Found], run_id: &str) -> Answers {
        let mut answers = Answers::default();
        let mut targets = Vec::new();
        for found in found {
            targets.extend(found.objects.iter().filter(|object| stamp::boundary_of(object).is_some()).map(|object| (found, object)));
        }
        for (found, object) in targets.into_iter().take(TRIED) {
            let name = object.name.clone().unwrap_or_default();
            let change = json!({"metadata": {"annotations": {"fencedlock-probe": run_id}}});
            let params = PatchParams { dry_run: true, ..PatchParams::default() };
            let what = format!("{} {name:?}, dry run: a write by the operator, who does not own it", found.resource());
            let outcome = match found.api(&self.client, &self.namespace).patch_metadata(&name, &params, &Patch::Merge(change)).await {
                Ok(_) => Outcome::Failed(Failure::Accepted, format!("{what} would be accepted")),
                Err(kube::Error::Api(status)) if canary::is_rejection(&status) => Outcome::Passed,
                Err(kube::Error::Api(status)) if status.code == 404 => continue,
                Err(error) => Outcome::Inconclusive(format!("{what}: {error}")),
            };
            answers.add(Probe::StaleRefused, outcome);
        }
        answers
    }

    fn notes(&self, found: &[Found], policies: &policies::Policies) -> Vec<String> {
        let mut notes = Vec::new();
        let objects: usize = found.iter().map(|found| found.objects.len()).sum();
        notes.push(format!("{objects} object{}", if objects == 1 { "" } else { "s" }));
        let missing: Vec<_> =
            found.iter().flat_map(|found| found.missing.iter().map(move |name| format!("{} {name:?}", found.resource()))).collect();
        if !missing.is_empty() {
            notes.push(format!(
                "not there, and fenced when {} created: {}",
                if missing.len() == 1 { "it is" } else { "they are" },
                missing.join(", ")
            ));
        }
        for found in found.iter().filter(|found| !default_exemptions(found).is_empty()) {
            notes.push(format!(
                "exempt on {}, because they write it whoever owns the lock: {}",
                found.resource(),
                default_exemptions(found).join(", ")
            ));
        }
        notes.extend(self.shared.servers.note().map(str::to_owned));
        if let Some(why) = self.shared.unwatched.why(&self.namespace, &self.name) {
            notes.push(format!("what is created later is fenced at the next proof.interval, not at once: {why}"));
        }
        if policies.operators.len() > 1 {
            notes.push(format!("fences may be moved by {}", policies.operators.join(", ")));
        }
        notes
    }

    fn limits(&self, found: &[Found], carries: bool, all_named: bool) -> Vec<NamedLimit> {
        let mut limits = Vec::new();
        let scaled: BTreeSet<_> = found.iter().filter(|found| found.has_scale).map(|found| format!("{}/scale", found.resource())).collect();
        if !scaled.is_empty() && !all_named {
            let detail = format!(
                "{} is another kind of object, which carries no fence: whoever may write it changes the target unseen",
                scaled.into_iter().collect::<Vec<_>>().join(", ")
            );
            limits.push(NamedLimit { name: LimitName::ScaleNotFenced, detail });
        }
        if !carries && self.spec.claim == ClaimKind::PodIdentity {
            let detail = "this cluster has no MutatingAdmissionPolicy v1 (Kubernetes 1.36): an owner that PUTs objects built from scratch is refused".to_owned();
            limits.push(NamedLimit { name: LimitName::WholeObjectWritersRefused, detail });
        }
        limits
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
