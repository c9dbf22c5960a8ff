//! What receivers tell by themselves, each boundary's in a task of its own for as long as the boundary is declared so. What is told only makes
//! something be looked at, or activated, sooner.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::task::JoinSet;

use super::{
    follow::Key,
    unit::{Declared, Unit},
};
use crate::boundary::{Backend, Change, Tell};

/// The tasks, by the boundary. A set ends its task when it is dropped.
#[derive(Default)]
pub(super) struct Followers(Mutex<HashMap<Key, (Declared, JoinSet<()>)>>);

impl fmt::Debug for Followers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Followers")
    }
}

impl Followers {
    /// Follows a boundary as it is declared now, unless that is being done.
    pub(super) fn follow(&self, unit: &Arc<Unit>, key: &Key, is_declared: Declared, backend: &dyn Backend) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.get(key).is_some_and(|(known, _)| *known == is_declared) {
            return;
        }
        let mut task = JoinSet::new();
        if let Some(following) = backend.follow(tell(unit, key)) {
            task.spawn(following);
        }
        all.insert(key.clone(), (is_declared, task));
    }

    /// Ends following a boundary that is gone.
    pub(super) fn forget(&self, key: &Key) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

fn tell(unit: &Arc<Unit>, key: &Key) -> Tell {
    let (unit, key) = (Arc::downgrade(unit), key.clone());
    Arc::new(move |change| {
        let Some(unit) = unit.upgrade() else { return };
        match change {
            Change::Guard => unit.proofs.hurry(&key),
            Change::Unfenced => {
                // Its fence is not everywhere any more: the boundary says so, and the lock's next pass activates it again.
                unit.activations.forget(&key);
                unit.proofs.moved(&key, None);
            }
        }
        unit.boundary_queue.push(&key);
    })
}
