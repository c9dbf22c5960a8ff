//! What is known of how boundaries behave: examinations in the background, each boundary's on its own clock, and what they let a
//! verdict say. A database that does not answer delays no other boundary's proof, and no lock's epoch.
//!
//! Start with [`Proofs::evidence`]. What an examination shows is decided in [`crate::boundary::proof`].

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::SignedDuration, jiff::Timestamp};
use tokio::sync::Semaphore;

use super::{
    follow::Key,
    jobs::{Failure, Jobs, Progress},
    unit::{Declared, declared, key_of},
};
use crate::{
    api::{
        self, BoundaryType, BoundaryVerdict, Drill, ProofSchedule, WriteBoundary, WriteBoundarySpec, WriteBoundaryStatus,
        conditions::{reason, shorten, truncate},
    },
    audit::boundary::{Evidence, Seen, remembered},
    boundary::{
        Ask, Backend, BackendError, Fence, Owner,
        proof::{self, Answers, Examination, NamedLimit, Proven},
    },
    epoch::Epoch,
};

/// How many boundaries are examined at the same time. Those that wait for a database that does not answer count too, so it is far
/// more than work at once.
const AT_ONCE: usize = 512;
/// How soon another look follows one during which something changed.
const HURRIED: Duration = Duration::from_secs(1);
/// How soon a look follows one that saw no fence, once there is one.
const SETTLED: Duration = Duration::from_secs(5);
/// How soon a guard that was found altered is installed again: late enough to be seen, early enough to matter.
const MEND_AFTER: Duration = Duration::from_secs(10);

/// The longest reason that a drill could not be made, in bytes: a status stays under 8 KiB.
const MAX_FAILURE: usize = 240;

/// An examination, when it began, and how long it took.
#[derive(Clone, Debug)]
pub(super) struct Examined {
    began: Instant,
    took: Duration,
    found: Arc<Examination>,
}

/// A fence as it was seen or moved last; `None` when there is none.
pub(super) type FenceKnown = Option<(Epoch, String)>;

/// Everything that is known of one boundary.
#[derive(Clone, Debug)]
struct Known {
    declared: Declared,
    /// Counts the examinations, so that each is asked for once.
    round: u64,
    due: Instant,
    /// The last examination that ended well.
    last: Option<Examined>,
    /// What it let a verdict say.
    seen: Seen,
    proven: Option<Proven>,
    /// Why the last one could not be made.
    failure: Option<String>,
    /// The drill that the examination under way is for.
    drilling: Option<Drilling>,
    /// The last drill that ended.
    drill: Option<Drill>,
    /// The count of refused writes that was told.
    refused: Option<u64>,
    /// When the count of mode Observe was written last.
    observed_written: Option<Instant>,
    /// Since when this process sees a finding recorded.
    finding_since: Option<Instant>,
    /// What was not told yet.
    news: News,
    /// Whether something changed while an examination may have looked already.
    is_hurried: bool,
}

/// A drill that is under way.
#[derive(Clone, Debug)]
struct Drilling {
    request: String,
    generation: Option<i64>,
    at: Timestamp,
    began: Instant,
}

/// What examinations brought that has to be told once. It waits until a pass could write its status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// Writes that were refused.
    pub(super) refused: u64,
    /// The fence that was seen; `None` when nothing new was.
    pub(super) fence: Option<FenceKnown>,
    /// Why what was proven before counts no longer.
    pub(super) void: Option<String>,
}

/// An examination to make.
pub(super) struct Work {
    pub(super) backend: Arc<dyn Backend>,
    /// The owner of the lock's active grant, or after a revocation nobody.
    pub(super) owner: Option<Owner>,
    /// Whose term was revoked.
    pub(super) revoked: Option<Owner>,
    /// The namespace that the holders' pods run in, when the lock names one.
    pub(super) pods_in: Option<String>,
    /// How long it may take.
    pub(super) limit: Duration,
}

/// What one examination adds to the metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tally {
    /// Writes that were refused since the one before.
    pub(super) refused: u64,
    /// How each probe came out.
    pub(super) probes: Vec<api::ProbeResult>,
}

/// What is known of all boundaries of a unit.
#[derive(Debug)]
pub(super) struct Proofs {
    known: Mutex<HashMap<Key, Known>>,
    /// Where an activation moved a fence, and when: newer than what an examination saw before it.
    moved: Mutex<HashMap<Key, (Instant, FenceKnown)>>,
    jobs: Jobs<Key, (Declared, u64), Examined>,
    turns: Arc<Semaphore>,
}

impl Default for Proofs {
    fn default() -> Self {
        Self { known: Mutex::default(), moved: Mutex::default(), jobs: Jobs::default(), turns: Arc::new(Semaphore::new(AT_ONCE)) }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is known of a boundary as it is declared now.
fn current<'a>(all: &'a HashMap<Key, Known>, boundary: &WriteBoundary) -> Option<&'a Known> {
    all.get(&key_of(boundary)).filter(|known| known.declared == declared(boundary))
}

/// How often a boundary is looked at.
pub(super) fn interval(spec: &WriteBoundarySpec) -> Duration {
    spec.proof.as_ref().and_then(|schedule| schedule.interval).unwrap_or(ProofSchedule::DEFAULT_INTERVAL).get()
}

/// Half of a proof's age: within it, that a proof was made again is no news.
fn rhythm(spec: &WriteBoundarySpec) -> Duration {
    ProofSchedule::max_age_of(spec.proof.as_ref()) / 2
}

impl Known {
    /// What a status lets a process know that has just begun.
    fn recorded(boundary: &WriteBoundary, now: Timestamp) -> Self {
        let status = boundary.status.as_ref();
        let is_current = status.is_some_and(|status| status.observed_generation == boundary.metadata.generation);
        let (seen, is_good) = status.filter(|_| is_current).map_or_else(Default::default, remembered);
        let proven = status.and_then(|status| status.proof.as_ref()).map(Proven::recorded);
        let age = proven.as_ref().map(|proven| Duration::try_from(now.duration_since(proven.at)).unwrap_or_default());
        // A proof that is in order is made again when it would have been; anything else is looked at now.
        let wait = age.filter(|_| is_good).map_or(Duration::ZERO, |age| interval(&boundary.spec).saturating_sub(age));
        Self {
            declared: declared(boundary),
            round: 0,
            due: Instant::now() + wait,
            last: None,
            seen,
            proven,
            failure: None,
            drilling: None,
            drill: status.and_then(|status| status.drill.clone()),
            refused: None,
            observed_written: None,
            finding_since: None,
            news: News::default(),
            is_hurried: false,
        }
    }
}

impl Proofs {
    /// Asks for an examination now: something was changed.
    pub(super) fn hurry(&self, key: &Key) {
        if let Some(known) = locked(&self.known).get_mut(key) {
            (known.due, known.is_hurried) = (Instant::now(), true);
        }
    }

    /// Runs on a boundary's clock: takes in an examination that ended, begins one that is due. Returns what to count, and when to come
    /// again.
    pub(super) fn drive(
        &self,
        boundary: &WriteBoundary,
        Work { backend, owner, revoked, pods_in, limit }: Work,
        now: Timestamp,
        wake: impl FnOnce() + Send + 'static,
    ) -> (Option<Tally>, Duration) {
        let (key, is_declared) = (key_of(boundary), declared(boundary));
        let mut known = locked(&self.known);
        let entry = known.entry(key.clone()).or_insert_with(|| Known::recorded(boundary, now));
        if entry.declared != is_declared {
            // Another declaration: nothing of the old one is good for it, but what was counted stays counted.
            let Known { round, drill, refused, news, .. } = entry.clone();
            *entry = Known { round, drill, refused, news, ..Known::recorded(boundary, now) };
            (entry.due, entry.seen) = (Instant::now(), Seen::default());
        }
        let mut tally = None;
        let ticket = (is_declared, entry.round);
        match self.jobs.peek(&key, &ticket) {
            Some(Progress::Done(examined)) => {
                let is_outdated = self.fence_after(&key, Some(examined.began)).is_some();
                tally = Some(entry.take_in(boundary, examined, is_outdated, now));
                entry.round += 1;
                self.jobs.forget(&key);
            }
            Some(Progress::Failed(why, wait)) => {
                entry.drill_ended(|drill| drill.failure = Some(shorten(&why, MAX_FAILURE)));
                entry.failure = Some(why);
                if !wait.is_zero() && entry.asked_drill(boundary).is_none() {
                    return (tally, wait);
                }
            }
            Some(Progress::Running) => return (tally, limit),
            None => {}
        }
        if let Some(request) = entry.asked_drill(boundary) {
            // Nobody who asks waits for the next turn, and what began before the request is no answer to it. Two at once would use one canary.
            if self.jobs.is_running(&key) {
                return (tally, limit);
            }
            let (generation, began) = (boundary.metadata.generation, Instant::now());
            entry.drilling = Some(Drilling { request, generation, at: now, began });
            (entry.due, entry.round) = (began, entry.round + 1);
            self.jobs.forget(&key);
        }
        let wait = entry.due.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            return (tally, wait);
        }
        let status = boundary.status.as_ref();
        let is_known = status.is_some_and(|status| status.fence.is_some() || status.proof.is_some());
        let fence = status.and_then(|status| status.fence.as_ref());
        let is_activated = fence.is_some_and(|fence| fence.generation == boundary.metadata.generation);
        // What changes from here on is looked at once more.
        entry.is_hurried = false;
        let ask = Ask { repair: entry.seen.guard_altered.is_some(), is_known, is_activated, owner, revoked, pods_in };
        let turns = Arc::clone(&self.turns);
        let work = move || async move {
            let turn = turns.acquire().await.map_err(|error| Failure::from(error.to_string()))?;
            let began = Instant::now();
            let examined = tokio::time::timeout(limit, backend.examine(&ask)).await;
            drop(turn);
            match examined {
                Ok(examined) => {
                    let found = Arc::new(examined.map_err(|error| Failure::from(error.to_string()))?);
                    Ok(Examined { began, took: began.elapsed(), found })
                }
                Err(_) => Err(BackendError::TimedOut(limit).to_string().into()),
            }
        };
        self.jobs.ask(&key, &(entry.declared.clone(), entry.round), work, wake);
        (tally, limit)
    }

    /// What is known of a boundary's behaviour, in the words of its verdict.
    pub(super) fn evidence(&self, boundary: &WriteBoundary, now: Timestamp) -> Evidence {
        let all = locked(&self.known);
        let fresh;
        let known = if let Some(known) = current(&all, boundary) {
            known
        } else {
            fresh = Known::recorded(boundary, now);
            &fresh
        };
        let mut seen = known.seen.clone();
        if let Some(why) = &known.failure {
            // What was seen before stands in the verdict, for a while; that it could not be looked at is said.
            (seen.inconclusive, seen.examined) = (Some(why.clone()), false);
        }
        if let Some(proof) = &mut seen.proof {
            proof.at = shown(boundary, known.proven.as_ref(), now).map_or(proof.at, |shown| shown.proven_at.0);
        }
        if let Some(fence) = self.fence_after(&key_of(boundary), known.looked()) {
            seen.fence = fence;
        }
        Evidence::Seen(Box::new(seen))
    }

    /// Takes note that an activation moved a fence.
    pub(super) fn moved(&self, key: &Key, fence: FenceKnown) {
        if fence.is_some()
            && let Some(known) = locked(&self.known).get_mut(key)
            && let Some(Examined { began, found, .. }) = &known.last
            && found.fence.is_none()
        {
            // Not at once, so that a fence that is lost again and again is not looked at all the time.
            known.due = known.due.min(*began + SETTLED);
        }
        locked(&self.moved).insert(key.clone(), (Instant::now(), fence));
    }

    /// Where this process moved the fence to, when no examination saw it since.
    pub(super) fn moved_to(&self, key: &Key) -> Option<FenceKnown> {
        let looked = locked(&self.known).get(key).and_then(Known::looked);
        self.fence_after(key, looked)
    }

    /// Where a fence was moved to after a moment, if it was.
    fn fence_after(&self, key: &Key, moment: Option<Instant>) -> Option<FenceKnown> {
        let moved = locked(&self.moved);
        let (at, fence) = moved.get(key)?;
        moment.is_none_or(|moment| moment < *at).then(|| fence.clone())
    }

    /// The fence as it is known now, by whichever saw it last; `None` when this process has not seen it.
    pub(super) fn fence(&self, key: &Key) -> Option<FenceKnown> {
        self.moved_to(key).or_else(|| {
            let known = locked(&self.known);
            let examined = known.get(key)?.last.as_ref()?;
            Some(examined.found.fence.as_ref().map(Fence::owner))
        })
    }

    /// The proof as a status shows it: that it was made again is written only when the one that is shown is half as old as it may be.
    pub(super) fn proof(&self, boundary: &WriteBoundary, now: Timestamp) -> Option<api::Proof> {
        shown(boundary, current(&locked(&self.known), boundary)?.proven.as_ref(), now)
    }

    /// What the last examination of this process found; `None` before it.
    pub(super) fn last(&self, boundary: &WriteBoundary) -> Option<Arc<Examination>> {
        current(&locked(&self.known), boundary)?.last.as_ref().map(|examined| Arc::clone(&examined.found))
    }

    /// The last drill, as far as this process knows.
    pub(super) fn drill(&self, boundary: &WriteBoundary) -> Option<Drill> {
        let known = locked(&self.known);
        let recorded = || boundary.status.as_ref().and_then(|status| status.drill.clone());
        known.get(&key_of(boundary)).map_or_else(recorded, |known| known.drill.clone())
    }

    /// The guards of other boundaries that the last examinations saw, in any order and possibly more than once.
    pub(super) fn others(&self) -> Vec<proof::OtherGuard> {
        let known = locked(&self.known);
        known.values().filter_map(|known| known.last.as_ref()).flat_map(|examined| examined.found.others.clone()).collect()
    }

    /// What has to be told. It stays until [`Proofs::told`], but for a fence that was moved since it was seen.
    pub(super) fn news(&self, key: &Key) -> News {
        let was_moved = self.moved_to(key).is_some();
        let news = locked(&self.known).get(key).map_or_else(News::default, |known| known.news.clone());
        News { fence: news.fence.filter(|_| !was_moved), ..news }
    }

    /// Everything was told.
    pub(super) fn told(&self, key: &Key) {
        if let Some(known) = locked(&self.known).get_mut(key) {
            known.news = News::default();
        }
    }

    /// Whether a verdict may take the place of the recorded one. A finding that somebody recorded, another replica perhaps, stands until
    /// this process has looked itself since it saw it; then it looks at once.
    pub(super) fn may_record(&self, boundary: &WriteBoundary, verdict: BoundaryVerdict) -> bool {
        let mut known = locked(&self.known);
        let Some(known) = known.get_mut(&key_of(boundary)) else { return true };
        let status = boundary.status.as_ref().filter(|status| status.observed_generation == boundary.metadata.generation);
        if !status.is_some_and(is_finding) {
            known.finding_since = None;
            return true;
        }
        let since = *known.finding_since.get_or_insert_with(Instant::now);
        let has_looked = known.looked().is_some_and(|began| began > since);
        let is_good = matches!(verdict, BoundaryVerdict::Proven | BoundaryVerdict::RiskAccepted);
        if is_good && !has_looked {
            known.due = Instant::now();
        }
        !is_good || has_looked
    }

    /// Mode Observe: who would have been refused, as a status shows it, at most once per half of a proof's age.
    pub(super) fn observed(&self, boundary: &WriteBoundary) -> Option<api::Observed> {
        let before = boundary.status.as_ref().and_then(|status| status.observed.clone());
        let mut known = locked(&self.known);
        let Some(known) = known.get_mut(&key_of(boundary)) else { return before };
        let Some(Examined { found: examined, .. }) = &known.last else { return before };
        if !boundary.spec.observes() {
            return None;
        }
        let observed = api::Observed { would_refuse: examined.refused, last: examined.last_refused.clone() };
        let now = (observed.would_refuse.is_some() || observed.last.is_some()).then_some(observed);
        let is_soon = known.observed_written.is_some_and(|at| at.elapsed() < rhythm(&boundary.spec));
        if now == before || (is_soon && before.is_some()) {
            return before;
        }
        known.observed_written = Some(Instant::now());
        now
    }

    /// Forgets everything about a boundary that is gone.
    pub(super) fn forget(&self, key: &Key) {
        locked(&self.known).remove(key);
        locked(&self.moved).remove(key);
        self.jobs.forget(key);
    }
}

impl Known {
    /// When its last examination began.
    fn looked(&self) -> Option<Instant> {
        self.last.as_ref().map(|examined| examined.began)
    }

    /// The drill that a boundary asks for and that was neither made nor begun.
    fn asked_drill(&self, boundary: &WriteBoundary) -> Option<String> {
        let begun = self.drilling.as_ref().map(|drilling| &drilling.request);
        let made = self.drill.as_ref().map(|drill| &drill.request);
        boundary.asked_drill().map(str::to_owned).filter(|asked| begun != Some(asked) && made != Some(asked))
    }

    /// The drill that was under way, if one was, has ended.
    fn drill_ended(&mut self, tell: impl FnOnce(&mut Drill)) {
        let Some(Drilling { request, generation, at, began }) = self.drilling.take() else { return };
        let mut drill = Drill {
            request,
            generation,
            began_at: Time(truncate(at)),
            took_microseconds: proof::micros(began.elapsed()),
            activation_microseconds: None,
            failure: None,
            probes: Vec::new(),
            refused: None,
            last_refused: None,
        };
        tell(&mut drill);
        self.drill = Some(drill);
    }

    /// Takes in an examination. One that is outdated saw the fence before an activation moved it.
    fn take_in(&mut self, boundary: &WriteBoundary, taken: Examined, is_outdated: bool, now: Timestamp) -> Tally {
        let examined = Arc::clone(&taken.found);
        self.drill_ended(|drill| tell(drill, &taken));
        let (generation, fence) = (boundary.metadata.generation, examined.fence.as_ref().map(Fence::owner));
        let went_back = !is_outdated && went_back(boundary, fence.as_ref().map(|(epoch, _)| *epoch));
        // A fence that went back is another database than the one that was proven, whatever else is the same.
        let before = self.proven.as_ref().filter(|_| !went_back);
        let (seen, proven) = proof::conclude(&examined, before, generation, now);
        let is_same_declaration = |proven: &&Proven| proven.generation == generation && !examined.server.is_empty();
        let void =
            self.proven.as_ref().filter(is_same_declaration).and_then(|proven| proven.void(generation, &examined.guard, &examined.server));
        let refused = match (self.refused, examined.refused) {
            (Some(before), Some(after)) => after.saturating_sub(before),
            _ => 0,
        };
        self.news.refused += refused;
        self.news.fence = Some(fence).filter(|_| !is_outdated);
        self.news.void = void.or_else(|| self.news.void.take());
        let tally = Tally { refused, probes: proof::results(&proof::outcomes(&examined)) };
        let wait = if seen.guard_altered.is_some() { MEND_AFTER.min(interval(&boundary.spec)) } else { interval(&boundary.spec) };
        (self.seen, self.proven, self.failure) = (seen, proven, None);
        // What was looked at without a fence, which is there by now, could not be tried whole.
        let was_early = is_outdated && examined.fence.is_none();
        let wait = if std::mem::take(&mut self.is_hurried) || was_early { HURRIED.min(wait) } else { wait };
        (self.due, self.refused) = (Instant::now() + wait, examined.refused.or(self.refused));
        self.last = Some(taken);
        tally
    }
}

/// What an examination tells of the drill that it was made for.
fn tell(drill: &mut Drill, Examined { took, found, .. }: &Examined) {
    drill.took_microseconds = proof::micros(*took);
    drill.activation_microseconds = found.answers.as_ref().map(Answers::activation).filter(|took| !took.is_zero()).map(proof::micros);
    drill.failure = found.unfinished.as_deref().map(|why| shorten(why, MAX_FAILURE));
    drill.probes = proof::drilled(found);
    drill.refused = found.refused;
    drill.last_refused = found.last_refused.as_deref().map(|words| shorten(words, MAX_FAILURE));
}

/// Whether a fence is behind where a status has it: something was restored. One that is gone was lost with its database, but an object that carries
/// none is a new one.
pub(super) fn went_back(boundary: &WriteBoundary, now: Option<Epoch>) -> bool {
    let recorded = boundary.status.as_ref().and_then(|status| status.fence.as_ref()).map(|fence| fence.epoch);
    let may_be_new = now.is_none() && boundary.spec.type_ == BoundaryType::Kubernetes;
    now < recorded && !may_be_new
}

/// Whether a status records what only another look can take back.
fn is_finding(status: &WriteBoundaryStatus) -> bool {
    let found = [
        reason::PROBE_FAILED,
        reason::BYPASS_FOUND,
        reason::GUARD_ALTERED,
        reason::FENCE_NOT_DURABLE,
        reason::TARGET_SHARED,
        reason::PROOF_VOID,
    ];
    status.reason.as_deref().is_some_and(|reason| found.contains(&reason))
}

/// The recorded proof while it says the same and is young enough, else the one that was made last.
fn shown(boundary: &WriteBoundary, proven: Option<&Proven>, now: Timestamp) -> Option<api::Proof> {
    let proven = proven?;
    let recorded = boundary.status.as_ref().and_then(|status| status.proof.clone());
    let says_the_same = |recorded: &api::Proof| Proven { at: proven.at, ..Proven::recorded(recorded) } == *proven;
    let rhythm = SignedDuration::try_from(rhythm(&boundary.spec)).unwrap_or(SignedDuration::MAX);
    let is_young = |recorded: &api::Proof| now.duration_since(recorded.proven_at.0) < rhythm && recorded.proven_at.0 <= proven.at;
    recorded.filter(says_the_same).filter(is_young).or_else(|| {
        Some(api::Proof {
            proven_at: Time(truncate(proven.at)),
            server: proven.server.clone(),
            guard: proven.guard.clone(),
            generation: proven.generation,
            contract: Some(proven.contract),
            probes: proven.probes.clone(),
        })
    })
}

/// The limits of an examination, as a status shows them: those that were found out otherwise, then those that the probes showed.
pub(super) fn limits(examined: &Examination, seen: &Seen, accepted: impl Fn(api::LimitName) -> bool) -> Vec<api::Limit> {
    let detail = |name: api::LimitName| {
        let found = |limit: &&NamedLimit| limit.name == name;
        examined.limits.iter().find(found).map_or_else(|| proof::limit_detail(name).to_owned(), |limit| limit.detail.clone())
    };
    seen.limits.iter().map(|name| api::Limit { name: *name, detail: detail(*name), accepted: accepted(*name) }).collect()
}
