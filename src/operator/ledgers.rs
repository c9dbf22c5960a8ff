//! The ledgers of external receivers, read on each boundary's own clock in the background. What they mean is decided in
//! [`crate::ledger::judge`].

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::{
    follow::Key,
    jobs::{Failure, Jobs, Progress},
    prove::interval,
    unit::{Declared, Unit, declared, key_of},
};
use crate::{
    api::{
        BoundaryType, GuardMode, Ledger, WriteBoundary,
        conditions::{Finding, boundary as on_boundary, find, reason},
    },
    boundary::{BackendError, postgres},
    ledger::{
        Place,
        judge::{self, Facts, Seen},
        read::{Counts, Reader},
    },
};

/// How long a ledger is left alone, however soon its next operation is overdue.
const AT_LEAST: Duration = Duration::from_secs(5);

/// What is known of one ledger.
#[derive(Clone, Debug)]
struct Known {
    declared: Declared,
    /// Counts the reads, so that each is asked for once.
    round: u64,
    due: Instant,
    seen: Seen,
}

/// What is known of all ledgers of a unit.
#[derive(Debug, Default)]
pub(super) struct Ledgers {
    known: Mutex<HashMap<Key, Known>>,
    jobs: Jobs<Key, (Declared, u64), Counts>,
}

/// What is to be said of a ledger, unless what was said before stands; and when to come again.
pub(super) type Looked = (Option<Finding>, Duration);

impl Ledgers {
    /// What is open in all of them, by the reason that the condition has for it.
    pub(super) fn open(&self) -> [(&'static str, u64); 3] {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut open = [(reason::OUTCOMES_UNKNOWN, 0), (reason::SENT_MORE_THAN_ONCE, 0), (reason::LEDGER_UNREAD, 0u64)];
        for known in known.values() {
            let of = match &known.seen {
                Seen::NotYet => [0, 0, 0],
                Seen::Unreadable(_) => [0, 0, 1],
                Seen::Counts(counts) => [counts.overdue, counts.repeated, 0],
            };
            for ((_, sum), more) in open.iter_mut().zip(of) {
                *sum = sum.saturating_add(more);
            }
        }
        open
    }

    /// Forgets a boundary that is gone, or has no ledger any more.
    pub(super) fn forget(&self, key: &Key) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        self.jobs.forget(key);
    }

    /// Takes in a read that ended, begins one that is due.
    fn drive(&self, unit: &Unit, key: &Key, boundary: &WriteBoundary, ledger: &Ledger) -> (Seen, Duration) {
        let limit = unit.settings.proof_timeout;
        let fresh = || Known { declared: declared(boundary), round: 0, due: Instant::now(), seen: Seen::NotYet };
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.entry(key.clone()).or_insert_with(fresh);
        if known.declared != declared(boundary) {
            *known = Known { round: known.round + 1, ..fresh() };
        }
        let ticket = (known.declared.clone(), known.round);
        let wait = match self.jobs.peek(key, &ticket) {
            Some(Progress::Done(counts)) => {
                let next = counts.next.map_or(Duration::MAX, |next| next.max(AT_LEAST));
                known.due = Instant::now() + interval(&boundary.spec).min(next);
                (known.seen, known.round) = (Seen::Counts(counts), known.round + 1);
                self.jobs.forget(key);
                known.due.saturating_duration_since(Instant::now())
            }
            Some(Progress::Failed(why, wait)) => {
                // What was counted before says nothing about now.
                known.seen = Seen::Unreadable(why);
                wait
            }
            Some(Progress::Running) => limit,
            None => known.due.saturating_duration_since(Instant::now()),
        };
        if !wait.is_zero() {
            return (known.seen.clone(), wait);
        }
        let place = Place::new(&ledger.schema, &ledger.table, &key.0, &boundary.spec.lock_ref.name);
        let access = unit.backends.ledger(boundary);
        let patience = judge::patience(ledger);
        let work = move || async move {
            let place = place.map_err(|error| Failure::from(error.to_string()))?;
            let access = access.ok_or_else(|| Failure::from("this version reads no ledgers".to_owned()))?;
            let read = async { Reader::connect(&access, place).await?.counts(patience).await };
            let counts = tokio::time::timeout(limit, read).await.unwrap_or(Err(BackendError::TimedOut(limit)));
            counts.map_err(|error| Failure::from(error.to_string()))
        };
        let (queue, own) = (unit.boundary_queue.clone(), key.clone());
        self.jobs.ask(key, &(known.declared.clone(), known.round), work, move || queue.push(&own));
        (known.seen.clone(), limit)
    }
}

/// What is to be said of a boundary's ledger; `None` when none is declared.
pub(super) fn look(unit: &Unit, key: &Key, boundary: &WriteBoundary) -> Option<Looked> {
    let Some(ledger) = boundary.spec.external.as_ref().and_then(|external| external.ledger.as_ref()) else {
        // Only a receiver outside can have had one.
        if boundary.spec.type_ == BoundaryType::External {
            unit.ledgers.forget(key);
        }
        return None;
    };
    let (seen, wait) = unit.ledgers.drive(unit, key, boundary, ledger);
    let was_said = boundary.status.as_ref().and_then(|status| find(&status.conditions, on_boundary::RECONCILED));
    let stands = was_said.is_some_and(|c| c.observed_generation == boundary.metadata.generation && c.reason != reason::LEDGER_UNREAD);
    // Before this process looked, what another one said stands.
    let says = !(seen == Seen::NotYet && stands);
    let finding = || judge::reconciled(&Facts { ledger, guards: &guards(unit, key, boundary, ledger), seen: &seen });
    Some((says.then(finding), wait))
}

/// The triggers of the guards that refuse, by which other boundaries of the lock fence the ledger's table.
fn guards(unit: &Unit, key: &Key, boundary: &WriteBoundary, ledger: &Ledger) -> Vec<String> {
    let lock = &boundary.spec.lock_ref.name;
    let siblings = unit.boundaries_by_lock.members(&(key.0.clone(), lock.clone()));
    let of = |sibling: &Key| {
        let object = unit.boundary(sibling)?;
        let spec = &object.0.as_ref().ok()?.spec;
        let postgres = spec.postgres.as_ref().filter(|postgres| postgres.conditional_update.is_none())?;
        let lists = postgres.tables.iter().any(|table| table.schema == ledger.schema && table.name == ledger.table);
        (lists && spec.mode == Some(GuardMode::Enforce)).then(|| postgres::trigger(&sibling.0, &sibling.1, lock))
    };
    siblings.iter().filter(|sibling| **sibling != key_of(boundary)).filter_map(of).collect()
}
