//! One lock, one pass: gather, decide, act, report. Every step that writes is a compare-and-swap or idempotent, so a crash
//! between any two of them, a repetition or another replica changes nothing.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::jiff::Timestamp;
use kube::runtime::controller::Action;
use serde_json::json;

use super::{
    decide::{CountedState, Decision, Freshness, Needs, Observed, UnreadFence, decide},
    error::Error,
    follow::Key,
    gather::{self, fresh_lock},
    guarded::Malformed,
    jobs::Progress,
    metrics::Kind,
    reservation, status,
    unit::{Guarded, Unit, key_of, owner},
};
use crate::{
    api::{FencedLock, Verdict, conditions::reason},
    audit::{conditions::malformed_lock, schema},
    epoch::{
        grant::{LeaseRead, Standing},
        mint::ReservationError,
    },
};

/// How often a pass may start over because somebody else wrote first.
const MAX_ATTEMPTS: usize = 8;
/// When to look again at what no event announces: a right that was given back, a reservation that was mended.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(15);

/// The longest wait for a moment that is known in advance.
const LONGEST_WAIT: Duration = Duration::from_hours(6);

/// Reconciles one lock, in bounded time.
pub(super) async fn reconcile(object: Arc<Guarded<FencedLock>>, unit: Arc<Unit>) -> Result<Action, Error> {
    let key = key_of(&*object);
    let pass = async {
        match &object.0 {
            Ok(lock) => one_lock(&unit, &key, Arc::new(lock.clone())).await,
            Err(invalid) => malformed(&unit, &key, invalid).await,
        }
    };
    unit.pass(Kind::Lock, &key, Box::pin(pass)).await
}

async fn one_lock(unit: &Arc<Unit>, key: &Key, cached: Arc<FencedLock>) -> Result<Action, Error> {
    let began = Instant::now();
    let (mut lock, mut freshness) = (cached, Freshness::Cached);
    for _ in 0..MAX_ATTEMPTS {
        let mut observed = gather::gather(unit, Arc::clone(&lock), freshness).await?;
        let mut decision = decide(&observed);
        // Each step reads more of what the decision rests on.
        while let Some(needs) = decision.needs {
            match needs {
                Needs::FreshReads => observed = gather::gather(unit, Arc::clone(&lock), Freshness::LeaseRead).await?,
                Needs::FreshLock => {
                    let Some(fresh) = fresh_lock(unit, key).await? else { return Ok(Action::await_change()) };
                    observed = gather::gather(unit, fresh, Freshness::AllRead).await?;
                }
                Needs::Fences => gather::read_fences(unit, &mut observed).await,
                Needs::FreshBoundaries => gather::read_boundaries(unit, &mut observed).await?,
            }
            decision = decide(&observed);
        }
        match carry_out(unit, key, &mut observed, &mut decision).await {
            Ok(Outcome::Waits) => return Ok(Action::await_change()),
            Ok(Outcome::Stands(recorded, left_alone_for)) => {
                unit.measure_grant(&recorded, decision.grant.began.is_some(), began);
                if activate(unit, key, &recorded, &observed, &decision) {
                    (lock, freshness) = (recorded, Freshness::Cached);
                    continue;
                }
                return Ok(next_look(unit, &observed, &decision, left_alone_for));
            }
            Err(Error::Conflict(_)) => {
                freshness = Freshness::AllRead;
                match fresh_lock(unit, key).await? {
                    Some(fresh) => lock = fresh,
                    None => return Ok(Action::await_change()),
                }
            }
            Err(error) => return Err(error),
        }
    }
    Err(Error::Conflict(format!("FencedLock {}/{}", key.0, key.1)))
}

/// What became of a decision.
enum Outcome {
    /// The lock as it stands. It says what was decided, unless another replica's words are left alone for a while.
    Stands(Arc<FencedLock>, Option<Duration>),
    /// Nothing is done before something happens that wakes the lock.
    Waits,
}

/// Writes what was decided: the reservation first, then the status, then the Events. When the reservation cannot be raised, that
/// is decided upon and recorded instead.
async fn carry_out(unit: &Unit, key: &Key, observed: &mut Observed, decision: &mut Decision) -> Result<Outcome, Error> {
    if is_read_in_this_term(observed, decision) {
        return Ok(Outcome::Waits);
    }
    if let Some(to) = &decision.reserve {
        let read = observed.reservation.as_ref().ok().and_then(Option::as_ref);
        if let Err(why) = reservation::raise(unit, key, read, to).await? {
            tracing::warn!(object = %format_args!("{}/{}", key.0, key.1), %why, "an epoch could not be reserved");
            observed.reservation = Err(why);
            *decision = decide(observed);
        }
    }
    let before = observed.lock.status.clone().unwrap_or_default();
    if before == decision.status {
        return Ok(Outcome::Stands(Arc::clone(&observed.lock), None));
    }
    if let Some(wait) = unit.quarrels.patience(key, &before, &decision.status, Instant::now()) {
        if observed.freshness != Freshness::AllRead {
            // An old copy differs from what this process wrote last, too, and nobody has contradicted then.
            return Err(Error::Conflict(format!("FencedLock {}/{}", key.0, key.1)));
        }
        return Ok(Outcome::Stands(Arc::clone(&observed.lock), Some(wait)));
    }
    let recorded = status::record_lock(unit, &observed.lock, decision.status.clone()).await?;
    unit.remember(&recorded);
    unit.quarrels.wrote(key, &recorded.status.clone().unwrap_or_default(), Instant::now());
    if before.epoch != decision.status.epoch {
        gather::forget_fences(unit, observed);
    }
    unit.announcer.announce(&*recorded, decision.announcements.clone());
    Ok(Outcome::Stands(recorded, None))
}

/// Whether a fence is still being read for a holder that has a grant already, of an earlier term of its own (rule 4). Its grant
/// stays until the read ends, which wakes the lock: a client that rewrites its Lease at each renewal would lose the count of
/// such terms with it.
fn is_read_in_this_term(observed: &Observed, decision: &Decision) -> bool {
    let is_read = matches!(decision.grant.standing, Standing::FenceUnreadable { .. })
        && observed.unreadable_fences.values().all(|fence| *fence == UnreadFence::UnderWay)
        && !observed.unreadable_fences.is_empty();
    let grant = observed.lock.status.as_ref().and_then(|s| s.grant.as_ref());
    is_read && matches!((&observed.lease, grant), (LeaseRead::Found(lease), Some(grant)) if grant.is_of(lease))
}

/// Starts the activations of the recorded owner. Says whether one ended already, so that the pass should go on.
fn activate(unit: &Arc<Unit>, key: &Key, recorded: &FencedLock, observed: &Observed, decision: &Decision) -> bool {
    let Some(owner) = recorded.status.as_ref().and_then(owner) else { return false };
    let mut ended = false;
    for counted in observed.boundaries.iter().filter(|b| decision.activate.contains(&b.name)) {
        if let CountedState::Present { object, .. } = &counted.state {
            let known = observed.activations.get(&counted.name);
            let progress = gather::activate(unit, key, object, &owner);
            ended |= matches!(progress, Some(Progress::Done(_))) && known.is_none();
        }
    }
    ended
}

/// When this lock has to be looked at again although nothing happens.
fn next_look(unit: &Unit, observed: &Observed, decision: &Decision, left_alone_for: Option<Duration>) -> Action {
    let by_rule = decision.until.map(wait_until);
    let unwatched = |s: &Standing| matches!(s, Standing::Forbidden(_) | Standing::LeaseUnreadable(_) | Standing::NotMinted(_));
    // A right that is given back while the watch goes on is announced by nothing.
    let unread = observed.reservation.is_err() || observed.boundaries_unread.is_some();
    let blind = (unwatched(&decision.grant.standing) || unread || observed.is_superseded()).then_some(LOOK_AGAIN);
    let retry = gather::retry_after(unit, observed, decision);
    let reserving = matches!(observed.reservation, Err(ReservationError::Unavailable(_))).then_some(Duration::from_secs(2));
    [by_rule, blind, retry, reserving, left_alone_for].into_iter().flatten().min().map_or_else(Action::await_change, Action::requeue)
}

/// How long to wait for a moment: a little longer, so that the clock has passed it, and never so long that a timer could not
/// hold it.
pub(super) fn wait_until(moment: Timestamp) -> Duration {
    let wait = Duration::try_from(moment.duration_since(Timestamp::now())).unwrap_or_default();
    wait.saturating_add(Duration::from_millis(100)).min(LONGEST_WAIT)
}

/// Says what is wrong with a lock that cannot be read as one. Its epoch and grant stay as they are.
async fn malformed(unit: &Unit, key: &Key, invalid: &Malformed) -> Result<Action, Error> {
    let Some(object) = status::raw::<FencedLock>(unit, key).await? else { return Ok(Action::await_change()) };
    let errors = schema::check("FencedLock", &object.data);
    let message = errors.first().map_or_else(|| invalid.error.clone(), ToString::to_string);
    let generation = object.metadata.generation;
    let before = object.data.pointer("/status/conditions").cloned().unwrap_or_default();
    let before: Vec<_> = serde_json::from_value(before).unwrap_or_default();
    let conditions = malformed_lock(&message, &before, generation, Timestamp::now());
    let fields = json!({
        "observedGeneration": generation,
        "verdict": Verdict::Invalid,
        "reason": reason::MALFORMED,
        "conditions": conditions,
    });
    status::record_raw::<FencedLock>(unit, object, fields).await?;
    Ok(Action::await_change())
}

/// What to do after a pass failed: try again soon, or look again later when a person has to act first.
pub(super) fn after_error(object: &Guarded<FencedLock>, error: &Error, unit: &Unit) -> Action {
    let (namespace, name) = key_of(object);
    unit.metrics.pass_failed(Kind::Lock, error.category());
    tracing::warn!(object = %format_args!("{namespace}/{name}"), category = error.category(), %error, "a lock could not be reconciled");
    Action::requeue(if error.is_retryable() { Duration::from_secs(2) } else { LOOK_AGAIN })
}
