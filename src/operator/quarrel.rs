//! Keeps replicas from overwriting each other for ever. Two of them may see one thing differently for a while (one is refused
//! where the other finds nobody; one has lost a right and the other's watch still runs), and each write of one is an event for
//! the other. So a replica that was overwritten leaves the other's status alone for a while, unless it knows something that must
//! not wait: another epoch, grant or declaration, or that a lock is worse than it looks.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::follow::Key;
use crate::api::{
    FencedLockStatus,
    conditions::{find, lock as on_lock},
};

/// How long a replica leaves another one's status alone.
const PATIENCE: Duration = Duration::from_mins(1);

/// What this process wrote last, by the lock, and when.
#[derive(Debug, Default)]
pub(super) struct Quarrels(Mutex<HashMap<Key, (Print, Instant)>>);

/// Stands for a status, which takes hundreds of times the space. Two that look the same to it cost one write that could have waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Print(u64);

fn print(status: &FencedLockStatus) -> Print {
    let mut hasher = DefaultHasher::new();
    serde_json::to_vec(status).unwrap_or_default().hash(&mut hasher);
    Print(hasher.finish())
}

impl Quarrels {
    fn locked<R>(&self, work: impl FnOnce(&mut HashMap<Key, (Print, Instant)>) -> R) -> R {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// How long to wait before `next` is written over `recorded`; `None` when it may be written now.
    pub(super) fn patience(&self, lock: &Key, recorded: &FencedLockStatus, next: &FencedLockStatus, now: Instant) -> Option<Duration> {
        if !may_wait(recorded, next) {
            return None;
        }
        self.locked(|wrote| {
            let (mine, at) = wrote.get(lock)?;
            let left = PATIENCE.checked_sub(now.duration_since(*at))?;
            (*mine != print(recorded) && !left.is_zero()).then_some(left)
        })
    }

    /// Remembers what this process wrote.
    pub(super) fn wrote(&self, lock: &Key, status: &FencedLockStatus, now: Instant) {
        self.locked(|wrote| wrote.insert(lock.clone(), (print(status), now)));
    }

    /// Forgets a lock that is gone.
    pub(super) fn forget(&self, lock: &Key) {
        self.locked(|wrote| wrote.remove(lock));
    }
}

/// Whether nothing that others act upon is different, and nothing is worse.
fn may_wait(recorded: &FencedLockStatus, next: &FencedLockStatus) -> bool {
    let compliant = |status: &FencedLockStatus| find(&status.conditions, on_lock::COMPLIANT).map(|c| c.status.clone());
    let is_worse = compliant(recorded).as_deref() == Some("True") && compliant(next).as_deref() != Some("True");
    let same_owner = recorded.epoch == next.epoch && recorded.grant == next.grant && recorded.revoked == next.revoked;
    let same = same_owner && recorded.observed_generation == next.observed_generation;
    same && !is_worse
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status(compliant: &str, message: &str, epoch: u64) -> FencedLockStatus {
        let condition = json!({"type": "Compliant", "status": compliant, "reason": "R", "message": message,
            "lastTransitionTime": "2026-12-01T00:00:00Z"});
        serde_json::from_value(json!({"observedGeneration": 1, "epoch": epoch, "conditions": [condition]})).unwrap()
    }

    #[test]
    fn a_replica_that_was_overwritten_waits_unless_it_knows_what_must_not_wait() {
        let (quarrels, lock, now) = (Quarrels::default(), ("ns".into(), "a".into()), Instant::now());
        let (mine, theirs) = (status("False", "mine", 1), status("False", "theirs", 1));
        let waits = |recorded: &FencedLockStatus, next: &FencedLockStatus, now| quarrels.patience(&lock, recorded, next, now).is_some();
        assert!(!waits(&theirs, &mine, now), "it wrote nothing yet");
        quarrels.wrote(&lock, &mine, now);
        assert!(!waits(&mine, &status("False", "news", 1), now), "nobody contradicts");
        assert!(waits(&theirs, &mine, now) && waits(&theirs, &mine, now + PATIENCE / 2));
        assert!(!waits(&theirs, &mine, now + PATIENCE), "one correction");
        assert!(!waits(&theirs, &status("False", "mine", 2), now), "an epoch never waits");
        assert!(!waits(&status("True", "theirs", 1), &mine, now), "a lock that is not green never looks so for longer");
        assert!(waits(&theirs, &status("True", "mine", 1), now));
        quarrels.forget(&lock);
        assert!(!waits(&theirs, &mine, now));
    }
}
