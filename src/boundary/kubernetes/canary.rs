//! The canary of guarded objects: a ConfigMap in the operator's own namespace, guarded by the same policies. The operator's pod is both owner and
//! obsolete owner: stamped with its own uid its writes must pass, stamped with another they must be refused. Nobody is impersonated.

use std::time::{Duration, Instant};

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    core::Status,
};
use serde_json::{Value, json};

use super::{
    Identity,
    stamp::{self, CLAIM, Seen, Stamp},
};
use crate::{
    api::{ClaimKind, GuardMode, KubernetesBoundary},
    boundary::{
        BackendError,
        digest::hash,
        proof::{
            Answers, Failure, Outcome, Probe,
            run::{Answer, Canary, Raced, Write},
            script::{Claim, Kind, Race},
        },
    },
    epoch::Epoch,
};

/// How many writers race at the same time with an activation.
const WRITERS: usize = 4;
/// How long policies may take until they are in force at an API server.
const IN_FORCE: Duration = Duration::from_secs(10);
/// How often it is asked whether they are.
const POLL: Duration = Duration::from_millis(100);
/// How long they go on when nothing refuses them.
const RACE: Duration = Duration::from_secs(10);

/// A refusal by the guard, and not by anything else.
pub(super) fn is_rejection(status: &Status) -> bool {
    status.code == 403 && status.message.contains("fencedlock: ")
}

/// The canary.
#[derive(Clone)]
pub(super) struct ObjectCanary {
    api: Api<ConfigMap>,
    name: String,
    boundary: String,
    spec: KubernetesBoundary,
    uid: String,
    /// The operator's pod: with it the canary goes, also when nobody is left to take it away.
    pod: Option<String>,
    /// The epoch on the object, which goes up with each stamp.
    epoch: u64,
    /// Whom the script has activated, under which of its epochs.
    owner: (u64, Option<String>),
    /// The owner as the object carries it.
    stamped: Option<(String, String)>,
}

impl ObjectCanary {
    pub(super) fn new(
        client: &Client,
        identity: &Identity,
        namespace: &str,
        name: &str,
        spec: &KubernetesBoundary,
    ) -> Result<Self, BackendError> {
        let own = identity.user.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split(':').next());
        let own = own.ok_or_else(|| {
            BackendError::Refused(format!("the operator runs as {:?}, which is no ServiceAccount: nothing can be tried", identity.user))
        })?;
        let uid = identity.pod_uid.clone().ok_or_else(|| {
            BackendError::Refused(
                "the operator's token is bound to no pod, so it cannot be the owner of anything: run it in the cluster".to_owned(),
            )
        })?;
        let suffix = hash([namespace, name, uid.as_str()])[..10].to_owned();
        // Not the exemptions: who is exempt would be admitted.
        let spec = KubernetesBoundary { exemptions: Vec::new(), status_writers: Vec::new(), ..spec.clone() };
        Ok(Self {
            api: Api::namespaced(client.clone(), own),
            name: format!("fencedlock-canary-{suffix}"),
            boundary: format!("canary-{suffix}"),
            spec,
            uid,
            pod: identity.pod_name.clone(),
            epoch: 0,
            owner: (0, None),
            stamped: None,
        })
    }

    /// Writes that must be refused, to nobody's object, at each API server. Policies take effect some time after they were created, at each server
    /// at its own time: it is waited for, and one at which they do not is told.
    pub(super) async fn at_each(&mut self, servers: &[(String, Client)], run_id: &str) -> Result<Answers, BackendError> {
        Canary::reset(self).await?;
        let tries = servers.iter().map(|(server, client)| self.until_refused(server, client, run_id));
        let mut answers = Answers::default();
        for outcome in futures::future::join_all(tries).await {
            answers.add(Probe::StaleRefused, outcome);
        }
        Ok(answers)
    }

    async fn until_refused(&self, server: &str, client: &Client, run_id: &str) -> Outcome {
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), self.api.namespace().unwrap_or_default());
        let params = PatchParams { dry_run: true, ..PatchParams::default() };
        let until = Instant::now() + IN_FORCE;
        for n in 0.. {
            // Each write is another one: one that changes nothing passes.
            let change = json!({"data": {"marker": format!("{run_id}-{n}")}});
            match api.patch(&self.name, &params, &Patch::Merge(change)).await {
                Err(kube::Error::Api(status)) if is_rejection(&status) => break,
                Err(error) => return Outcome::Inconclusive(format!("API server {server}: {error}")),
                Ok(_) if Instant::now() < until => tokio::time::sleep(POLL).await,
                Ok(_) => {
                    let what = format!("API server {server} admits a write to what belongs to nobody: the policies are not in force there");
                    return Outcome::Failed(Failure::Accepted, what);
                }
            }
        }
        Outcome::Passed
    }

    /// Takes it away.
    pub(super) async fn remove(&self) -> Result<(), BackendError> {
        let Some(object) = self.api.get_opt(&self.name).await.map_err(|error| failed(&error))? else { return Ok(()) };
        self.api
            .patch(&self.name, &PatchParams::default(), &Patch::Merge(stamp::removal(&object.metadata)))
            .await
            .map_err(|error| failed(&error))?;
        match self.api.delete(&self.name, &DeleteParams::default()).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(failed(&error)),
        }
    }

    /// Stamps it for somebody. Claims name the script's epochs; by pod identity any higher one will do.
    async fn stamp(&mut self, holder: &str, uid: &str) -> Result<(), BackendError> {
        self.epoch = match self.spec.claim {
            ClaimKind::Annotation => self.owner.0.max(1),
            ClaimKind::PodIdentity => self.epoch + 1,
        };
        let epoch = Epoch::new(self.epoch).map_err(|error| BackendError::Refused(error.to_string()))?;
        let seen = Seen { epoch, holder: holder.to_owned(), uid: uid.to_owned() };
        let stamp = Stamp::new(&self.boundary, GuardMode::Enforce, &self.spec, &seen, &[]);
        if let Some(object) = self.api.get_opt(&self.name).await.map_err(|error| failed(&error))? {
            // Nobody else moves its fence.
            let mut patch = stamp.patch(&object.metadata);
            patch["metadata"].as_object_mut().map(|metadata| metadata.remove("resourceVersion"));
            self.api.patch(&self.name, &PatchParams::default(), &Patch::Merge(patch)).await.map_err(|error| failed(&error))?;
        } else {
            let mut object = stamp.patch(&kube::api::ObjectMeta::default());
            object["metadata"]["name"] = Value::from(self.name.as_str());
            if let Some(pod) = &self.pod {
                object["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": self.uid}]);
            }
            let object: ConfigMap = serde_json::from_value(object).map_err(|error| BackendError::Refused(error.to_string()))?;
            self.api.create(&PostParams::default(), &object).await.map_err(|error| failed(&error))?;
        }
        self.stamped = Some((holder.to_owned(), uid.to_owned()));
        Ok(())
    }

    /// By pod identity the writer is always this pod: the object says whether it is the owner.
    async fn prepare(&mut self, claim: &Claim) -> Result<(), BackendError> {
        if self.spec.claim == ClaimKind::Annotation {
            return Ok(());
        }
        let holder = self.owner.1.clone();
        let is_owner = match (claim, &holder) {
            (Claim::Made { foreign: false, holder: by, .. }, Some(owner)) => by == owner,
            _ => false,
        };
        let uid = match &holder {
            Some(_) if is_owner => self.uid.clone(),
            Some(other) => format!("pod-of-{other}"),
            None => String::new(),
        };
        let wanted = (holder.unwrap_or_default(), uid);
        if self.stamped.as_ref() == Some(&wanted) {
            return Ok(());
        }
        self.stamp(&wanted.0, &wanted.1).await
    }

    fn body(&self, claim: &Claim, marker: &str) -> Value {
        let mut body = json!({"data": {"marker": marker}});
        if let (ClaimKind::Annotation, Claim::Made { foreign, epoch, holder, sequence }) = (self.spec.claim, claim) {
            let another = if *foreign { "of-another-lock-" } else { "" };
            body["metadata"] = json!({"annotations": {CLAIM: format!("{epoch}.{sequence}.{another}{holder}")}});
        }
        body
    }

    async fn patch(&self, claim: &Claim, marker: &str) -> Answer {
        let body = self.body(claim, marker);
        answered(self.api.patch(&self.name, &PatchParams::default(), &Patch::Merge(body)).await.map(drop))
    }

    async fn write_now(&mut self, write: &Write<'_>) -> Result<Answer, BackendError> {
        self.prepare(write.claim).await?;
        match write.kind {
            Kind::Upsert => Ok(self.patch(write.claim, write.marker).await),
            Kind::Delete => Ok(answered(self.api.delete(&self.name, &DeleteParams::default()).await.map(drop))),
        }
    }

    /// Writers that go on while the fence moves to somebody else: what is there once it has moved stays.
    async fn race_now(&mut self, old: &Claim, next: (u64, &'static str), marker: &str) -> Result<Raced, BackendError> {
        self.prepare(old).await?;
        let mut writers = tokio::task::JoinSet::new();
        let until = Instant::now() + RACE;
        // Each claim is good once, so claims come one after the other.
        let count = if self.spec.claim == ClaimKind::Annotation { 1 } else { WRITERS };
        for writer in 0..count {
            let (canary, old, marker) = (self.clone(), old.clone(), marker.to_owned());
            writers.spawn(async move {
                for n in 0.. {
                    let claim = match old.clone() {
                        Claim::Made { foreign, epoch, holder, sequence } => Claim::Made { foreign, epoch, holder, sequence: sequence + n },
                        absent @ Claim::Absent => absent,
                    };
                    match canary.patch(&claim, &format!("{marker}-{writer}-{n}")).await {
                        Answer::Accepted if Instant::now() < until => {}
                        Answer::Accepted => break,
                        refused => return refused,
                    }
                }
                Answer::Unclear("writes were accepted for longer than it was waited".to_owned())
            });
        }
        // The first write has to be there, or nothing raced.
        let mut has_begun = false;
        while !has_begun && Instant::now() < until {
            has_begun = self.read().await?.is_some_and(|now| now.starts_with(marker));
        }
        self.activate_now(next.0, Some(next.1)).await?;
        if self.spec.claim == ClaimKind::PodIdentity {
            self.stamp(next.1, &format!("pod-of-{}", next.1)).await?;
        }
        let then = self.read().await?;
        let mut answer = Answer::Unclear("no writer ended".to_owned());
        while let Some(ended) = writers.join_next().await {
            answer = ended.unwrap_or_else(|error| Answer::Unclear(error.to_string()));
        }
        let after = self.read().await?;
        let landed = then != after;
        if !has_begun && !landed {
            answer = Answer::Unclear("no write was under way when the fence moved".to_owned());
        }
        Ok(Raced { landed_by_activation: false, landed, answer })
    }

    async fn read(&self) -> Result<Option<String>, BackendError> {
        let object = self.api.get_opt(&self.name).await.map_err(|error| failed(&error))?;
        Ok(object.and_then(|object| object.data?.get("marker").cloned()))
    }

    async fn activate_now(&mut self, epoch: u64, holder: Option<&str>) -> Result<(), BackendError> {
        self.owner = (epoch, holder.map(str::to_owned));
        if self.spec.claim == ClaimKind::Annotation {
            return self.stamp(holder.unwrap_or_default(), "").await;
        }
        // By pod identity it is stamped when it is known who writes next; nobody is nobody at once.
        match holder {
            Some(_) => Ok(()),
            None => self.stamp("", "").await,
        }
    }
}

fn answered(result: Result<(), kube::Error>) -> Answer {
    match result {
        Ok(()) => Answer::Accepted,
        Err(kube::Error::Api(status)) if is_rejection(&status) => Answer::Rejected(status.message.clone()),
        Err(error) => Answer::Unclear(error.to_string()),
    }
}

fn failed(error: &kube::Error) -> BackendError {
    super::failed("the canary", error)
}

impl Canary for ObjectCanary {
    fn reset(&mut self) -> BoxFuture<'_, Result<(), BackendError>> {
        async move {
            self.remove().await?;
            (self.epoch, self.owner, self.stamped) = (0, (0, None), None);
            // What carries no fence is not guarded: it begins with nobody's.
            self.stamp("", "").await
        }
        .boxed()
    }

    fn activate(&mut self, epoch: u64, holder: Option<&'static str>) -> BoxFuture<'_, Result<(), BackendError>> {
        async move { self.activate_now(epoch, holder).await }.boxed()
    }

    fn open<'a>(&'a mut self, claim: &'a Claim, marker: &'a str) -> BoxFuture<'a, Result<(), BackendError>> {
        async move {
            let write = Write { kind: Kind::Upsert, claim, via: crate::boundary::proof::script::Via::Own, marker };
            self.write_now(&write).await.map(drop)
        }
        .boxed()
    }

    fn write<'a>(&'a mut self, write: Write<'a>) -> BoxFuture<'a, Result<Answer, BackendError>> {
        async move { self.write_now(&write).await }.boxed()
    }

    fn stored(&mut self) -> BoxFuture<'_, Result<Option<String>, BackendError>> {
        async move { self.read().await }.boxed()
    }

    fn race<'a>(
        &'a mut self,
        old: &'a Claim,
        next: (u64, &'static str),
        _: Race,
        marker: &'a str,
    ) -> BoxFuture<'a, Result<Raced, BackendError>> {
        async move { self.race_now(old, next, marker).await }.boxed()
    }
}
