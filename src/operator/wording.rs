//! Which failure this process described last, per lock. Two replicas may see one failure differently (one is refused where the
//! other finds nobody), and each would overwrite the other's words for ever. So a replica that was overwritten keeps the other's
//! words for a while: at most one correction per replica and [`PATIENCE`].

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::follow::Key;

/// How long a replica leaves another one's words alone.
const PATIENCE: Duration = Duration::from_mins(1);

/// What this process said, and when.
#[derive(Debug, Default)]
pub(super) struct Wordings(Mutex<HashMap<Key, (String, Instant)>>);

impl Wordings {
    fn locked<R>(&self, work: impl FnOnce(&mut HashMap<Key, (String, Instant)>) -> R) -> R {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether another replica overwrote what this one said less than [`PATIENCE`] ago.
    pub(super) fn is_contested(&self, lock: &Key, recorded: &str, now: Instant) -> bool {
        self.locked(|said| said.get(lock).is_some_and(|(mine, at)| mine != recorded && now.duration_since(*at) < PATIENCE))
    }

    /// Remembers what this process said.
    pub(super) fn said(&self, lock: &Key, message: &str, now: Instant) {
        self.locked(|said| said.insert(lock.clone(), (message.to_owned(), now)));
    }

    /// Forgets a lock that is gone.
    pub(super) fn forget(&self, lock: &Key) {
        self.locked(|said| said.remove(lock));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_contested_only_while_another_replica_overwrote_them_just_now() {
        let (wordings, lock, now) = (Wordings::default(), ("ns".into(), "a".into()), Instant::now());
        assert!(!wordings.is_contested(&lock, "theirs", now), "it said nothing yet");
        wordings.said(&lock, "mine", now);
        assert!(!wordings.is_contested(&lock, "mine", now), "nobody contradicts");
        assert!(wordings.is_contested(&lock, "theirs", now + PATIENCE / 2));
        assert!(!wordings.is_contested(&lock, "theirs", now + PATIENCE));
        wordings.forget(&lock);
        assert!(!wordings.is_contested(&lock, "theirs", now));
    }
}
