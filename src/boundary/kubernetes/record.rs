//! The record of fences of named targets: ConfigMap `fencedlock-fences` in a namespace that asks for it, by which `fencedlock-named` judges what carries
//! no fence itself (charts/fencedlock/files/named.yaml). It is guarded like a target, so that only the operator writes it.
//!
//! Start with [`Record::put`]. Every API server caches it: nothing counts before [`Record::until_in_force`].

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api, Client,
    api::{PostParams, Resource},
};
use serde_json::json;

use super::{
    activate::{Not, is_ahead},
    canary::is_rejection,
    failed,
    stamp::{self, Seen, Stamp},
    targets::spelled,
};
use crate::{
    api::{GuardMode, KubernetesBoundary},
    boundary::{
        BackendError,
        proof::{Failure, Outcome},
    },
    epoch::Epoch,
};

/// The ConfigMap.
pub(super) const NAME: &str = "fencedlock-fences";
/// The label of a namespace that asks for it.
pub(super) const ASKED: &str = "fencedlock.dev/named";
/// What the record's own fence is called, and what nobody creates: by it is seen which record an API server judges by.
const OWN: &str = "fencedlock-fences";
/// How often a write is tried again because another boundary's came first.
const TRIES: u32 = 16;
/// How long the API servers may take to learn of a record.
const IN_FORCE: Duration = Duration::from_secs(8);
const POLL: Duration = Duration::from_millis(20);

/// The record of one boundary.
pub(super) struct Record<'a> {
    pub(super) namespace: &'a str,
    pub(super) boundary: &'a str,
    pub(super) mode: GuardMode,
    pub(super) spec: &'a KubernetesBoundary,
    /// Users that are exempt beside those that are declared.
    pub(super) defaults: &'a [String],
}

/// Whether a namespace asks for records.
pub(super) async fn is_asked_for(client: &Client, namespace: &str) -> Result<bool, BackendError> {
    let found = Api::<Namespace>::all(client.clone()).get_metadata_opt(namespace).await;
    let labels = match found {
        Ok(found) => found.and_then(|namespace| namespace.metadata.labels).unwrap_or_default(),
        Err(kube::Error::Api(status)) if status.code == 403 => {
            return Err(BackendError::Refused(format!(
                "the operator may not get namespace {namespace}: install the chart with guard.enabled, which gives it that right"
            )));
        }
        Err(error) => return Err(failed(format_args!("get namespace {namespace}"), &error)),
    };
    Ok(labels.get(ASKED).is_some_and(|asked| asked == "true"))
}

/// What nobody creates, for one boundary.
fn phantom(boundary: &str) -> String {
    format!("{boundary}.{OWN}")
}

impl Record<'_> {
    /// What the record says of this boundary.
    fn lines(&self, owner: &Seen) -> BTreeMap<String, String> {
        let (mode, claim) = stamp::words(self.mode, self.spec.claim);
        let named = self.spec.targets.iter().flat_map(|target| {
            let resource = spelled(&target.group, &target.resource);
            target.names.iter().map(move |name| format!("{resource}/{name}"))
        });
        let targets: Vec<_> = named.chain([format!("configmaps/{}", phantom(self.boundary))]).collect();
        let exempt: Vec<_> = self.spec.exemptions.iter().map(|e| e.user.as_str()).chain(self.defaults.iter().map(String::as_str)).collect();
        let status: Vec<_> = self.spec.status_writers.iter().map(|e| e.user.as_str()).collect();
        let name = self.boundary;
        BTreeMap::from([
            (name.to_owned(), [mode, claim, &owner.epoch.to_string(), &owner.holder, &owner.uid].join("\n")),
            (format!("{name}_targets"), targets.join("\n")),
            (format!("{name}_exempt"), exempt.join("\n")),
            (format!("{name}_status"), status.join("\n")),
        ])
    }

    /// Writes down whom the fence admits, by compare-and-swap and never back; whether anything was changed.
    pub(super) async fn put(&self, client: &Client, owner: &Seen) -> Result<bool, Not> {
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), self.namespace);
        let lines = self.lines(owner);
        for _ in 0..TRIES {
            let read = api.get_opt(NAME).await.map_err(|error| Not::Failed(failed(format_args!("get ConfigMap {NAME:?}"), &error)))?;
            let (before, mut next) = read.map_or_else(|| (None, ConfigMap::default()), |found| (Some(found.clone()), found));
            let data = next.data.get_or_insert_default();
            if let Some(seen) = data.get(self.boundary).and_then(|text| seen(text))
                && is_ahead(&seen, owner)
            {
                return Err(Not::Ahead(seen));
            }
            if says(data, &lines) {
                return Ok(false);
            }
            data.extend(lines.clone());
            // Its own fence moves with each write: that is what lets the operator write it, and nobody else.
            let fence = before.as_ref().map(|found| stamp::read(&found.metadata, OWN)).transpose()?.flatten();
            let epoch = fence.map_or(Ok(Epoch::FIRST), |fence| Epoch::new(fence.epoch.get() + 1));
            let epoch = epoch.map_err(|error| Not::Failed(BackendError::Refused(error.to_string())))?;
            let nobody = Seen { epoch, holder: String::new(), uid: String::new() };
            let plain = KubernetesBoundary { exemptions: Vec::new(), status_writers: Vec::new(), ..self.spec.clone() };
            Stamp::new(OWN, GuardMode::Enforce, &plain, &nobody, &[]).put_on(next.meta_mut());
            next.metadata.name = Some(NAME.to_owned());
            let written = match before {
                Some(_) => api.replace(NAME, &PostParams::default(), &next).await,
                None => api.create(&PostParams::default(), &next).await,
            };
            match written {
                Ok(_) => return Ok(true),
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(Not::Failed(failed(format_args!("ConfigMap {NAME:?}"), &error))),
            }
        }
        Err(Not::Failed(BackendError::Refused(format!("ConfigMap {NAME:?} is written so often that it could not be; it is tried again"))))
    }

    /// Whether the record says of this boundary what it should.
    pub(super) async fn is_written(&self, client: &Client, owner: &Seen) -> Result<bool, BackendError> {
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), self.namespace);
        let found = api.get_opt(NAME).await.map_err(|error| failed(format_args!("get ConfigMap {NAME:?}"), &error))?;
        let data = found.and_then(|found| found.data).unwrap_or_default();
        Ok(says(&data, &self.lines(owner)))
    }

    /// Waits until each API server judges by this owner's record, or a later one, by what it says to a creation that it must refuse.
    pub(super) async fn until_in_force(&self, servers: &[(String, Client)], owner: &Seen) -> Outcome {
        let tries = servers.iter().map(|(server, client)| self.until_at(server, client, owner));
        let outcomes = futures::future::join_all(tries).await;
        outcomes.into_iter().max().unwrap_or_else(|| Outcome::Inconclusive("no API server was tried".to_owned()))
    }

    async fn until_at(&self, server: &str, client: &Client, owner: &Seen) -> Outcome {
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), self.namespace);
        let object = serde_json::from_value::<ConfigMap>(json!({"metadata": {"name": phantom(self.boundary)}}));
        let Ok(object) = object else { return Outcome::Inconclusive("the probe cannot be built".to_owned()) };
        let params = PostParams { dry_run: true, ..PostParams::default() };
        let until = Instant::now() + IN_FORCE;
        loop {
            let said = match api.create(&params, &object).await {
                Ok(_) => "it would be created".to_owned(),
                Err(kube::Error::Api(status)) if is_rejection(&status) => {
                    let wanted = if owner.holder.is_empty() { "nobody" } else { &owner.holder };
                    if judged_by(&status.message, self.boundary)
                        .is_some_and(|(epoch, holder)| epoch > owner.epoch.get() || (epoch == owner.epoch.get() && holder == wanted))
                    {
                        return Outcome::Passed;
                    }
                    status.message.clone()
                }
                Err(error) => return Outcome::Inconclusive(format!("API server {server}: {error}")),
            };
            if Instant::now() >= until {
                let what = format!("API server {server} does not judge named targets by the record of epoch {}: {said}", owner.epoch);
                return Outcome::Failed(Failure::Accepted, what);
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

/// Whether a record has these lines.
fn says(data: &BTreeMap<String, String>, lines: &BTreeMap<String, String>) -> bool {
    lines.iter().all(|(key, value)| data.get(key) == Some(value))
}

/// Epoch and holder by which a creation was refused; the policy spells an empty holder as `nobody`.
fn judged_by<'a>(message: &'a str, boundary: &str) -> Option<(u64, &'a str)> {
    let (_, rest) = message.split_once("fencedlock: epoch ")?;
    let (epoch, rest) = rest.split_once(' ')?;
    let rest = rest.strip_prefix(&format!("of write boundary {boundary} belongs to "))?;
    let (holder, _) = rest.split_once(", and only it may create configmaps/")?;
    Some((epoch.parse().ok()?, holder))
}

/// The fence in a record.
fn seen(text: &str) -> Option<Seen> {
    let lines: Vec<_> = text.split('\n').collect();
    let [_, _, epoch, holder, uid] = lines.as_slice() else { return None };
    let epoch = epoch.parse().ok().and_then(|number| Epoch::new(number).ok())?;
    Some(Seen { epoch, holder: (*holder).to_owned(), uid: (*uid).to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_what_the_policy_reads() {
        let spec: KubernetesBoundary = serde_json::from_value(json!({"claim": "PodIdentity", "targets": [
            {"resource": "configmaps", "names": ["web", "api"]}, {"group": "apps", "resource": "deployments", "names": ["web"]},
            {"resource": "secrets", "selector": "app=x"}],
            "exemptions": [{"user": "helm", "reason": "r"}], "statusWriters": [{"user": "s", "reason": "r"}]}))
        .unwrap();
        let defaults = ["deployer".to_owned()];
        let record = Record { namespace: "n", boundary: "db", mode: GuardMode::Enforce, spec: &spec, defaults: &defaults };
        let owner = Seen { epoch: Epoch::new(7).unwrap(), holder: "web-0_x".into(), uid: "u".into() };
        let lines = record.lines(&owner);
        assert_eq!(lines["db"], "Enforce\nPodIdentity\n7\nweb-0_x\nu");
        assert_eq!(lines["db_targets"], "configmaps/web\nconfigmaps/api\ndeployments.apps/web\nconfigmaps/db.fencedlock-fences");
        assert_eq!((lines["db_exempt"].as_str(), lines["db_status"].as_str()), ("helm\ndeployer", "s"));
        assert_eq!(seen(&lines["db"]), Some(owner));
        let said = "configmaps \"x\" is forbidden: denied request: fencedlock: epoch 7 of write boundary db belongs to a, b, and only it may create configmaps/x, not c.";
        assert_eq!(judged_by(said, "db"), Some((7, "a, b")));
        assert_eq!((judged_by(said, "other"), judged_by("forbidden", "db")), (None, None));
        assert_eq!((seen("x"), seen("Enforce\nPodIdentity\n07x\na\nu")), (None, None));
    }
}
