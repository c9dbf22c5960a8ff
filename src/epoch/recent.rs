//! The pods that were granted epochs before, and whether the same process could be granted one again (protocol section 4, "Processes, not only
//! pods"). A guard that recognises pods cannot tell two terms of one process apart: a request of the earlier one could land in the later one, on top
//! of what another owner wrote in between.
//!
//! Start with [`reused`]. What must not come in: any guess about how long a request may be under way.

use std::collections::BTreeSet;

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Epoch, Holder,
    grant::Grant,
    pod::{Container, Life, PodView},
};

/// How many pods are remembered. When there are more, an older pod that is not among them counts as one that was granted an epoch.
pub const MAX_RECENT: usize = 16;

/// A pod that was granted an epoch before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecentOwner {
    /// The pod's uid.
    #[schemars(length(min = 1, max = 64))]
    pub pod_uid: String,
    /// The epoch that it had.
    pub epoch: Epoch,
    /// When its grant ended, by the operator's clock.
    pub until: Time,
    /// The uuid that its identity ended with, which client-go makes anew at each start. Another one is another process, when all containers were
    /// started since this one acquired the lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 36))]
    pub process: Option<String>,
    /// When it acquired the lock, by its own clock, which is the one that its containers' starts are told by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acquired: Option<Time>,
}

impl RecentOwner {
    fn of(grant: &Grant, now: &Time) -> Option<Self> {
        let process = grant.holder.process().map(str::to_owned);
        // In whole seconds, like the kubelet's times: a start in the same second counts as one before.
        let acquired = grant.term.acquire_time.map(|at| Time(crate::api::conditions::truncate(at)));
        Some(Self { pod_uid: grant.term.pod_uid.clone()?, epoch: grant.epoch, until: now.clone(), process, acquired })
    }

    /// The moment that a container must have been started after, to be another process than any that had the epoch.
    fn threshold(&self, holder: &Holder) -> Timestamp {
        let acquired = self.acquired.as_ref().map(|at| at.0);
        match (&self.process, holder.process(), acquired) {
            // The same process, whatever a clock says.
            (Some(earlier), Some(now), _) if earlier == now => Timestamp::MAX,
            // The process that had it ran when it acquired it, so whatever was started since is not that one; and its identity was not taken on by
            // a later one, which has its own. Both times are the node's.
            (Some(_), Some(_), Some(acquired)) => acquired,
            // Lives that follow each other under one identity continue a term, so only what was started after its end is new. That is told by
            // another clock, and at least the acquisition by the same one.
            (.., acquired) => acquired.map_or(self.until.0, |acquired| acquired.max(self.until.0)),
        }
    }
}

/// Why the holder of a grant may be a process that was granted an epoch before, with another owner in between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reused {
    /// The epoch that it may have had; `None` when the pod is older than all that is remembered.
    pub epoch: Option<Epoch>,
    /// A container that may be that process.
    pub container: String,
}

/// The pods to remember once `last` is the grant no longer. `living` are the uids of the pods that exist, when they are known: a pod that is gone
/// comes never back.
pub fn ended(recent: &[RecentOwner], last: &Grant, living: Option<&BTreeSet<String>>, now: &Time) -> Vec<RecentOwner> {
    // Once somebody had to be forgotten the list stays full: it is by that that an older pod counts as known.
    let living = living.filter(|_| recent.len() < MAX_RECENT);
    let is_there = |owner: &&RecentOwner| living.is_none_or(|living| living.contains(&owner.pod_uid));
    let mut recent: Vec<_> = recent.iter().filter(is_there).cloned().collect();
    let Some(mut owner) = RecentOwner::of(last, now) else { return recent };
    if let Some(place) = recent.iter().position(|earlier| earlier.pod_uid == owner.pod_uid) {
        let earlier = recent.remove(place);
        if !follows(&earlier, last) {
            // The process of the earlier epoch may live on, and others owned the lock since.
            owner.epoch = earlier.epoch;
        }
    }
    recent.push(owner);
    recent.drain(..recent.len().saturating_sub(MAX_RECENT));
    recent
}

/// What is left to remember of the pod of a grant: nothing, once all of its containers that can hold the lock were started since.
pub fn settled(recent: &[RecentOwner], grant: &Grant, pod: &PodView, containers: &[String]) -> Vec<RecentOwner> {
    // A full list stays full.
    let is_over = |owner: &RecentOwner| {
        owner.pod_uid == pod.uid && recent.len() < MAX_RECENT && oldest(pod, containers, owner.threshold(&grant.holder)).is_none()
    };
    let is_owner = grant.term.pod_uid.as_deref() == Some(&pod.uid);
    recent.iter().filter(|owner| !(is_owner && is_over(owner))).cloned().collect()
}

/// Whether the holder of a grant may be a process that was granted an epoch before, with another owner in between. `pod` is the holder's, when it
/// could be read; `containers` are those that can hold the lock, all when there is none.
pub fn reused(recent: &[RecentOwner], grant: &Grant, pod: Option<&PodView>, containers: &[String]) -> Option<Reused> {
    let uid = grant.term.pod_uid.as_deref()?;
    let pod = pod.filter(|pod| pod.uid == uid);
    let lives_since = |moment| match pod {
        None => Some("of a pod that could not be read".to_owned()),
        Some(pod) => oldest(pod, containers, moment).map(|container| container.name.clone()),
    };
    if let Some(owner) = recent.iter().find(|owner| owner.pod_uid == uid) {
        let epoch = Some(owner.epoch);
        return lives_since(owner.threshold(&grant.holder)).filter(|_| !follows(owner, grant)).map(|container| Reused { epoch, container });
    }
    // It may have been forgotten to make room.
    let earliest = recent.iter().map(|owner| owner.until.0).min().filter(|_| recent.len() >= MAX_RECENT)?;
    let is_younger = pod.and_then(|pod| pod.created).is_some_and(|created| created > earliest);
    lives_since(earliest).filter(|_| !is_younger).map(|container| Reused { epoch: None, container })
}

/// Whether nobody was granted an epoch between the two.
fn follows(earlier: &RecentOwner, grant: &Grant) -> bool {
    earlier.epoch.get() + 1 == grant.epoch.get()
}

/// A container whose process may be as old as that: one that runs since then or before, or of which nothing is known.
fn oldest<'a>(pod: &'a PodView, named: &'a [String], moment: Timestamp) -> Option<&'a Container> {
    let may_be_old = |container: &&Container| match container.life {
        Life::Since(started) => started <= moment,
        Life::None => false,
        Life::Unknown => true,
    };
    let mut counted = pod.holders(named).peekable();
    debug_assert!(counted.peek().is_some() || pod.containers.is_empty(), "a pod's holders are among its containers");
    counted.find(may_be_old)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoch::{grant::GrantState, term::Term};
    use proptest::prelude::*;

    const UUIDS: [&str; 2] = ["5f2c0c1e-7d0a-4a53-9a3c-0a5d5f6b7c8d", "6f2c0c1e-7d0a-4a53-9a3c-0a5d5f6b7c8d"];

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn grant(epoch: u64, pod: &str, process: &str, acquired: i64) -> Grant {
        let holder = if process.is_empty() { pod.to_owned() } else { format!("{pod}_{process}") };
        Grant {
            epoch: Epoch::new(epoch).unwrap(),
            holder: Holder::new(holder).unwrap(),
            state: GrantState::Active,
            since: Time(at(acquired)),
            same_holder_steps: 0,
            term: Term {
                lease_uid: "u".into(),
                lease_transitions: None,
                acquire_time: Some(at(acquired)),
                pod_uid: Some(pod.into()),
                resource_version: "1".into(),
            },
        }
    }

    /// A pod of two containers; a start of -1 is one that nothing is known of, 0 is none.
    fn pod(uid: &str, started: [i64; 2]) -> PodView {
        let life = |second| match second {
            -1 => Life::Unknown,
            0 => Life::None,
            second => Life::Since(at(second)),
        };
        let container = |name: &str, second| Container { name: name.into(), life: life(second) };
        PodView { uid: uid.into(), containers: vec![container("app", started[0]), container("proxy", started[1])], ..PodView::default() }
    }

    /// What is remembered after terms that ended one after the other, each at the second that its epoch times ten is.
    fn after(terms: &[(u64, &str, &str)]) -> Vec<RecentOwner> {
        terms.iter().fold(Vec::new(), |recent, (epoch, pod, process)| {
            let second = i64::try_from(*epoch).unwrap() * 10;
            ended(&recent, &grant(*epoch, pod, process, second - 9), None, &Time(at(second)))
        })
    }

    #[test]
    fn the_same_process_is_told_by_when_its_containers_were_started() {
        let all: &[String] = &[];
        let app = &["app".to_owned()][..];
        let [one, two] = UUIDS;
        let between = after(&[(1, "a", ""), (2, "b", "")]);
        let of_processes = after(&[(1, "a", one), (2, "b", one)]);
        for (what, recent, grant, started, containers, wanted) in [
            ("both are as old as its first term", &between, grant(3, "a", "", 25), [1, 1], all, Some("app")),
            ("one was started since", &between, grant(3, "a", "", 25), [11, 1], all, Some("proxy")),
            ("a sidecar was", &between, grant(3, "a", "", 25), [1, 11], app, Some("app")),
            ("the only one that counts was", &between, grant(3, "a", "", 25), [11, 1], app, None),
            ("both were", &between, grant(3, "a", "", 25), [11, 12], all, None),
            ("in the second of its end", &between, grant(3, "a", "", 25), [10, 12], all, Some("app")),
            ("one is dead", &between, grant(3, "a", "", 25), [11, 0], all, None),
            ("nothing is known of one", &between, grant(3, "a", "", 25), [11, -1], all, Some("proxy")),
            ("restarted during the term, and may have gone on with it", &between, grant(3, "a", "", 25), [5, 5], all, Some("app")),
            ("restarted during the term of another process", &of_processes, grant(3, "a", two, 25), [5, 5], all, None),
            ("as old as that process", &of_processes, grant(3, "a", two, 25), [1, 5], all, Some("app")),
            ("the same process, whatever its containers", &of_processes, grant(3, "a", one, 25), [15, 15], all, Some("app")),
            ("another identity that shows no process", &of_processes, grant(3, "a", "", 25), [5, 5], all, Some("app")),
            ("nobody was in between", &after(&[(1, "a", "")]), grant(2, "a", "", 25), [1, 1], all, None),
            ("another pod", &between, grant(3, "c", "", 25), [1, 1], all, None),
        ] {
            let found = reused(recent, &grant, Some(&pod(grant.term.pod_uid.as_deref().unwrap(), started)), containers);
            assert_eq!(found.as_ref().map(|found| found.container.as_str()), wanted, "{what}");
        }
        let unread = reused(&between, &grant(3, "a", "", 25), None, all).unwrap();
        assert_eq!(unread.epoch, Epoch::new(1).ok(), "a pod that could not be read is not known to be new");
        assert!(reused(&between, &grant(3, "a", "", 25), Some(&pod("other", [25, 25])), all).is_some(), "nor is another one's");
    }

    /// A grant that was held back and dropped does not make the next one of the same process look as if nobody had been in between.
    #[test]
    fn a_grant_that_waited_does_not_wash_its_process() {
        let old = [1, 1];
        let recent = after(&[(1, "a", ""), (2, "b", ""), (3, "a", "")]);
        assert!(reused(&recent, &grant(4, "a", "", 35), Some(&pod("a", old)), &[]).is_some());
        assert!(reused(&recent, &grant(4, "a", "", 35), Some(&pod("a", [31, 31])), &[]).is_none(), "the way back");
        let fresh = settled(&recent, &grant(3, "a", "", 25), &pod("a", [31, 31]), &[]);
        assert_eq!(fresh.iter().map(|owner| owner.pod_uid.as_str()).collect::<Vec<_>>(), ["b"], "it is another process now");
        assert_eq!(settled(&recent, &grant(3, "a", "", 25), &pod("a", [31, 1]), &[]), recent);
        assert_eq!(settled(&recent, &grant(3, "b", "", 25), &pod("a", [31, 31]), &[]), recent, "it is not the owner's pod");
    }

    #[test]
    fn what_was_forgotten_for_room_counts_as_known() {
        let terms: Vec<_> = (1..=17).map(|epoch| (epoch, format!("p{epoch}"))).collect();
        let recent = after(&terms.iter().map(|(epoch, pod)| (*epoch, pod.as_str(), "")).collect::<Vec<_>>());
        assert_eq!((recent.len(), recent[0].pod_uid.as_str()), (MAX_RECENT, "p2"));
        let again = grant(18, "p1", "", 175);
        let created = |second: i64| PodView { created: Some(at(second)), ..pod("p1", [1, 1]) };
        assert_eq!(reused(&recent, &again, Some(&created(5)), &[]).unwrap().epoch, None);
        assert!(reused(&recent, &again, Some(&pod("p1", [1, 1])), &[]).is_some(), "nobody knows how old it is");
        assert!(reused(&recent, &again, Some(&created(21)), &[]).is_none(), "it is younger than all that was forgotten");
        assert!(
            reused(&recent, &again, Some(&PodView { created: Some(at(5)), ..pod("p1", [21, 21]) }), &[]).is_none(),
            "its processes are"
        );
        let living = ["p16".to_owned(), "p17".to_owned()].into();
        let full = ended(&recent, &again, Some(&living), &Time(at(180)));
        assert_eq!(full.len(), MAX_RECENT, "that somebody was forgotten is not forgotten");
        let few = after(&[(1, "p15", ""), (2, "p16", ""), (3, "p17", "")]);
        let pruned = ended(&few, &again, Some(&living), &Time(at(180)));
        assert_eq!(pruned.iter().map(|owner| owner.pod_uid.as_str()).collect::<Vec<_>>(), ["p16", "p17", "p1"]);
    }

    proptest! {
        /// In every history: whenever a process is granted an epoch again, with another pod's grant since its first, that is noticed; and a process
        /// that was started after all grants of its pod had ended is never held back.
        #[test]
        fn no_process_is_granted_twice_unseen(turns in prop::collection::vec((0usize..3, any::<bool>(), any::<bool>()), 1..40)) {
            let (mut recent, mut second, mut started) = (Vec::new(), 100, [1_i64; 3]);
            // For each pod: the epochs of its living process.
            let mut had: [Vec<u64>; 3] = Default::default();
            let mut last_owner: Vec<usize> = Vec::new();
            for (turn, (who, restarts, looks)) in turns.into_iter().enumerate() {
                let epoch = turn as u64 + 1;
                let (name, view) = (format!("p{who}"), |started: [i64; 3]| pod(&format!("p{who}"), [started[who], started[who]]));
                if restarts {
                    second += 2;
                    started[who] = second;
                    had[who].clear();
                }
                second += 2;
                let grant = grant(epoch, &name, "", second);
                let found = reused(&recent, &grant, Some(&view(started)), &[]);
                let in_between = had[who].first().is_some_and(|first| last_owner.iter().skip(usize::try_from(*first).unwrap()).any(|o| *o != who));
                prop_assert!(found.is_some() || !in_between, "epoch {epoch} of p{who}: {recent:?}");
                prop_assert!(found.is_none() || !restarts, "epoch {epoch}: a new process is held back: {recent:?}");
                if looks {
                    recent = settled(&recent, &grant, &view(started), &[]);
                }
                had[who].push(epoch);
                last_owner.push(who);
                second += 2;
                recent = ended(&recent, &grant, None, &Time(at(second)));
            }
        }
    }
}
