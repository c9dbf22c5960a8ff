//! Leases that are somebody's lock and that no FencedLock declares. They are counted whenever somebody asks, and told as one Event each, a few in a round, so
//! that a cluster with thousands of them is not flooded. No object is made for them.
//!
//! [`Undeclared`] keeps what the watch of the Leases delivers; [`tell`] writes the Events. What is a lock is [`crate::audit::inventory::leases`]' to say.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use k8s_openapi::{api::coordination::v1::Lease, jiff::Timestamp};
use kube::{Api, Resource};

use super::{
    announce::Announcement,
    follow::Key,
    thin::ThinLease,
    unit::{Unit, WatchState, key_of},
};
use crate::audit::{
    assess::{Id, Place},
    inventory::leases,
    rules::Severity,
};

/// How many Leases are told of in one round. With a round a minute and Events that last an hour there are never more than 600 of them.
const PER_ROUND: usize = 10;

/// The Leases of a unit that are somebody's lock.
#[derive(Debug, Default)]
pub(super) struct Undeclared(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    seen: BTreeMap<Key, Candidate>,
}

#[derive(Debug)]
struct Candidate {
    since: Instant,
    excused_until: Option<Timestamp>,
    is_told: bool,
    /// Named in the listing that is under way.
    listed: bool,
}

impl Candidate {
    fn counts(&self, now: Timestamp) -> bool {
        self.excused_until.is_none_or(|until| until <= now)
    }
}

impl Undeclared {
    fn locked<R>(&self, work: impl FnOnce(&mut Inner) -> R) -> R {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A Lease is as it is delivered.
    pub(super) fn delivered(&self, lease: &ThinLease, now: Instant) {
        let key = key_of(lease);
        self.locked(|inner| {
            if !lease.is_lock {
                inner.seen.remove(&key);
                return;
            }
            let new = Candidate { since: now, excused_until: None, is_told: false, listed: true };
            let seen = inner.seen.entry(key).or_insert(new);
            (seen.excused_until, seen.listed) = (lease.excused_until, true);
        });
    }

    /// A Lease is gone.
    pub(super) fn gone(&self, key: &Key) {
        self.locked(|inner| inner.seen.remove(key));
    }

    /// A listing begins.
    pub(super) fn listing_begins(&self) {
        self.locked(|inner| inner.seen.values_mut().for_each(|seen| seen.listed = false));
    }

    /// A listing ended: what it did not name is gone.
    pub(super) fn listing_ended(&self) {
        self.locked(|inner| inner.seen.retain(|_, seen| seen.listed));
    }

    /// How many are not declared, and nobody answers for.
    pub(super) fn count(&self, now: Timestamp, is_declared: impl Fn(&Key) -> bool) -> usize {
        self.locked(|inner| inner.seen.iter().filter(|(key, seen)| seen.counts(now) && !is_declared(key)).count())
    }

    /// Those to tell of now: seen since before `before`, told of never. Somebody who installs a lock with its worker has that long.
    fn due(&self, now: Timestamp, before: Instant, is_declared: impl Fn(&Key) -> bool) -> Vec<Key> {
        self.locked(|inner| {
            let due = inner.seen.iter().filter(|(key, seen)| !seen.is_told && seen.since < before && seen.counts(now) && !is_declared(key));
            due.take(PER_ROUND).map(|(key, _)| key.clone()).collect()
        })
    }

    fn told(&self, key: &Key) {
        self.locked(|inner| {
            if let Some(seen) = inner.seen.get_mut(key) {
                seen.is_told = true;
            }
        });
    }
}

/// Tells of the Leases that nobody declared, for ever.
pub(super) async fn tell(unit: Arc<Unit>) {
    let mut rounds = tokio::time::interval(unit.settings.undeclared_round);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        // Before the locks are listed, everything looks undeclared.
        let sees = *unit.watches.locks.borrow() == WatchState::Running && *unit.watches.leases.borrow() == WatchState::Running;
        let Some(before) = Instant::now().checked_sub(unit.settings.undeclared_round).filter(|_| sees && *unit.leads.borrow()) else {
            continue;
        };
        for key in unit.undeclared.due(Timestamp::now(), before, |key| unit.locks_by_lease.has(key)) {
            match one(&unit, &key).await {
                Ok(()) => unit.undeclared.told(&key),
                Err(error) => {
                    tracing::warn!(lease = %format_args!("{}/{}", key.0, key.1), %error, "an Event about a Lease that nobody declared could not be written");
                    // What is refused once is refused again.
                    if matches!(&error, kube::Error::Api(status) if (400..500).contains(&status.code)) {
                        unit.undeclared.told(&key);
                    }
                }
            }
        }
    }
}

/// Tells of one Lease, as it is now.
async fn one(unit: &Unit, (namespace, name): &Key) -> kube::Result<()> {
    let leases: Api<Lease> = Api::namespaced(unit.client.clone(), namespace);
    let Some(lease) = leases.get_opt(name).await? else { return Ok(()) };
    let id = Id { kind: Lease::kind(&()).into_owned().into(), namespace: namespace.as_str().into(), name: name.as_str().into() };
    let value = serde_json::to_value(&lease).map_err(kube::Error::SerdeError)?;
    let Some(found) = leases::lease(&value, &id, &Place::default()).map(leases::LeaseSeen::found) else { return Ok(()) };
    let finding = found.finding();
    let announcement =
        Announcement { reason: "UnclassifiedLease", warning: finding.severity > Severity::Info, note: finding.message, begins_term: false };
    unit.announcer.announce_once(&lease, &announcement).await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use serde_json::json;

    fn lease(name: &str, annotations: &serde_json::Value) -> ThinLease {
        serde_json::from_value(json!({"metadata": {"name": name, "namespace": "n", "annotations": annotations}})).unwrap()
    }

    fn key(name: &str) -> Key {
        ("n".into(), name.into())
    }

    #[test]
    fn a_lease_counts_until_it_is_declared_excused_or_gone() {
        let (all, start, now) = (Undeclared::default(), Instant::now(), Timestamp::UNIX_EPOCH);
        let nobody = |_: &Key| false;
        for name in ["a", "b", "c"] {
            all.delivered(&lease(name, &json!({})), start);
        }
        assert_eq!(all.count(now, nobody), 3);
        assert_eq!(all.count(now, |seen| *seen == key("a")), 2);
        all.delivered(&lease("b", &json!({"fencedlock.dev/suppress.unclassified-lease": "until 1970-01-02: why"})), start);
        assert_eq!(all.count(now, nobody), 2);
        assert_eq!(all.count(now + Duration::from_hours(72), nobody), 3, "the suppression ended");
        all.gone(&key("c"));
        assert_eq!(all.count(now, nobody), 1);
        all.listing_begins();
        all.delivered(&lease("b", &json!({})), start);
        all.listing_ended();
        assert_eq!(all.count(now, nobody), 1);
        assert_eq!(all.due(now, start + Duration::from_secs(1), nobody), [key("b")], "the listing did not name a");
    }

    #[test]
    fn each_is_told_once_a_few_at_a_time_and_not_at_once() {
        let (all, start, now) = (Undeclared::default(), Instant::now(), Timestamp::UNIX_EPOCH);
        let nobody = |_: &Key| false;
        for number in 0..PER_ROUND + 3 {
            all.delivered(&lease(&format!("lease-{number:03}"), &json!({})), start);
        }
        assert_eq!(all.due(now, start, nobody), Vec::<Key>::new(), "whoever installs it may still declare it");
        let later = start + Duration::from_mins(1);
        let first = all.due(now, later, nobody);
        assert_eq!(first.len(), PER_ROUND);
        for key in &first {
            all.told(key);
        }
        // A renewal is no news.
        all.delivered(&lease("lease-000", &json!({})), later);
        let second = all.due(now, later, nobody);
        assert_eq!(second.len(), 3);
        for key in &second {
            all.told(key);
        }
        assert_eq!(all.due(now, later, nobody), Vec::<Key>::new());
        assert_eq!(all.count(now, nobody), PER_ROUND + 3, "told, and still not declared");
    }
}
