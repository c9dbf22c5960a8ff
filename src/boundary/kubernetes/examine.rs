//! One look at a boundary of objects: its policies, its targets, the probes, and who could go around. What it means is decided in
//! [`crate::boundary::proof`].

use std::collections::BTreeSet;

use kube::{
    Client,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{
    Identity, Kubernetes,
    activate::{fence, is_ahead},
    bypass::{self, Place},
    canary,
    exempt::{all_default_exemptions, default_exemptions},
    place, policies, rbac,
    stamp::{self, Seen, Stamp},
    targets::Found,
};
use crate::{
    api::{ClaimKind, Contract, GuardMode, LimitName, Reacquire, WritesPerEpoch},
    boundary::{
        Ask, BackendError,
        proof::{Answers, Bypass, ClaimForm, Examination, Failure, Judges, NamedLimit, Outcome, Probe, Profile, run},
    },
};

/// What stands in the place of a count: refusals happen in the API servers, which count them for all boundaries together.
const NOT_COUNTED: &str = "NotCounted: the API servers warn who would be refused, write it into their audit logs, and count it for all boundaries in \
                           apiserver_validating_admission_policy_check_total";
/// How many targets are tried with a dry run in one examination.
const TRIED: usize = 16;

/// Where the targets' fences are together, and what is wrong with them: `expected` is the owner's, when there is one. Where there is no target at all,
/// nothing has to be fenced.
fn standing(fences: &[Option<Seen>], expected: Option<&Seen>) -> (Option<Seen>, Option<String>) {
    let Some(lowest) = fences.iter().min() else { return (expected.cloned(), None) };
    let Some(expected) = expected else { return (lowest.clone(), None) };
    let ahead: Vec<_> = fences.iter().flatten().filter(|seen| is_ahead(seen, expected)).collect();
    if ahead.is_empty() {
        return (lowest.clone(), None);
    }
    // A later epoch may be of a grant that is not known here yet: it is not said to be forged, and is not at the owner's either.
    let same = ahead.into_iter().find(|seen| seen.epoch == expected.epoch);
    let forged = same.map(|seen| {
        format!(
            "a fence is of epoch {}, holder {:?}, pod uid {:?}, which nobody was granted: let the owner acquire the lock anew, so that all move above it",
            seen.epoch, seen.holder, seen.uid
        )
    });
    (None, forged)
}

impl Kubernetes {
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

    pub(super) async fn examine_now(&self, ask: &Ask) -> Result<Examination, BackendError> {
        let identity = self.identity().await?;
        let policies = policies::look(&self.client, &identity.user).await?;
        let found = self.found().await?;
        let (fences, shared) = match self.fences(&found) {
            Ok(fences) => (fences, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        let expected = ask.owner.as_ref().map(|owner| self.wanted(owner));
        let (lowest, forged) = standing(&fences, expected.as_ref().filter(|_| shared.is_none()));
        let undeclared: Vec<_> = forged.into_iter().chain(self.undeclared(&found)).collect();
        let is_recorded = policies.names && self.asks_for_record().await?;
        let defaults = all_default_exemptions(&found);
        let unwritten = match &lowest {
            Some(fence) if is_recorded => !self.record_of(&defaults).is_written(&self.client, fence).await?,
            _ => false,
        };
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
            fence: lowest.as_ref().filter(|_| undeclared.is_empty() && !unwritten).map(fence),
            refused: None,
            last_refused: Some(NOT_COUNTED.to_owned()),
            notes: self.notes(&found, &policies),
            others: Vec::new(),
            unfinished: policies.wrong.filter(|_| policies.is_absent && !ask.is_known),
        };
        if self.mode == GuardMode::Observe || examined.guard_altered.is_some() || examined.unfinished.is_some() || examined.shared.is_some()
        {
            return Ok(examined);
        }
        let servers = self.shared.servers.clients(&self.client).await;
        let tried = match &servers {
            Ok(servers) => self.probe(&identity, &found, servers).await,
            Err(error) => Err(error.clone()),
        };
        match tried {
            Ok(answers) => examined.answers = Some(answers),
            Err(error) => examined.unfinished = Some(error.to_string()),
        }
        if let (true, Some(answers), Ok(servers)) = (is_recorded, &mut examined.answers, &servers) {
            let outcome = match &lowest {
                Some(_) if unwritten => {
                    Outcome::Inconclusive("the record of named targets is not written yet, or was changed: it is written again".to_owned())
                }
                Some(fence) => self.record_of(&defaults).until_in_force(servers, fence).await,
                None => Outcome::Inconclusive(
                    "no epoch is active here yet, so there is no record to try a creation by: it is tried with the first one".to_owned(),
                ),
            };
            answers.add(Probe::RecreatedRefused, outcome);
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
        // A fence that is nobody's names no pod, and the revoked owner's may live.
        let revoked = ask.revoked.as_ref().map(|owner| self.wanted(owner));
        let fence = fence.filter(|fence| !fence.holder.is_empty()).or(revoked.as_ref());
        let place = place::gather(&self.client, &self.namespace, &self.spec, found, operators, pods, fence).await?;
        let place = Place { is_recorded, ..place };
        let rbac = rbac::read(&self.client, &self.shared.rbac, &place.namespaces()).await?;
        Ok(bypass::find(&rbac, &place, self.spec.claim, &self.spec.exempt_subjects))
    }

    async fn probe(&self, identity: &Identity, found: &[Found], servers: &[(String, Client)]) -> Result<Answers, BackendError> {
        let mut canary = canary::ObjectCanary::new(&self.client, identity, &self.namespace, &self.name, &self.spec)?;
        let run_id = run::id();
        let mut answers = canary.at_each(servers, &run_id).await?;
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoch::Epoch;

    #[test]
    fn fences_stand_where_the_lowest_is_and_none_is_ahead() {
        let seen = |epoch: u64, holder: &str, uid: &str| Seen { epoch: Epoch::new(epoch).unwrap(), holder: holder.into(), uid: uid.into() };
        let (old, now, zombie, later) = (seen(6, "z", "z"), seen(7, "a", "a"), seen(7, "a", "z"), seen(9, "z", "z"));
        let at = |fences: &[Option<Seen>]| {
            let (lowest, forged) = standing(fences, Some(&now));
            (lowest.map(|seen| seen.epoch.get()), forged.is_some())
        };
        let some = |seen: &Seen| Some(seen.clone());
        assert_eq!(at(&[some(&now), some(&now)]), (Some(7), false));
        assert_eq!(at(&[some(&now), some(&old)]), (Some(6), false), "an activation is under way");
        assert_eq!(at(&[some(&now), None]), (None, false));
        assert_eq!(at(&[some(&now), some(&later)]), (None, false), "not at the owner's");
        assert_eq!(at(&[some(&now), some(&zombie)]), (None, true), "the same epoch for another pod");
        assert_eq!(at(&[]), (Some(7), false), "there is nothing to fence");
        assert_eq!(standing(&[], None), (None, None));
    }
}
