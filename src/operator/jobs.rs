//! Slow work that no reconcile waits for longer than a moment: activating a boundary, reading its fence. A reconcile asks, gets
//! what is known, and is woken when there is more. So a boundary that does not answer delays only its own lock
//! (architecture, section 1).

use std::{
    collections::HashMap,
    future::Future,
    hash::Hash,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::watch;

/// What is known of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress<R> {
    /// It is under way.
    Running,
    /// It ended.
    Done(R),
    /// It failed. It is tried again when it is asked for after the given time; sooner, it wakes its lock.
    Failed(String, Duration),
}

impl<R> Progress<R> {
    /// How long to wait before it is asked for again.
    pub(super) const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Failed(_, wait) => Some(*wait),
            Self::Running | Self::Done(_) => None,
        }
    }
}

/// Why a job failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    why: String,
    /// Whether it is tried again soon, however often it failed.
    soon: bool,
}

impl Failure {
    /// One that passes as soon as somebody else is done.
    pub(super) const fn soon(why: String) -> Self {
        Self { why, soon: true }
    }
}

impl From<String> for Failure {
    fn from(why: String) -> Self {
        Self { why, soon: false }
    }
}

#[derive(Debug)]
enum State<R> {
    /// Under way; after a failure, with what failed last.
    Running(Option<String>),
    Done(R),
    Failed {
        why: String,
        again_at: Instant,
    },
}

#[derive(Debug)]
struct Job<T, R> {
    ticket: T,
    /// Tells this run from earlier ones that were forgotten while they were under way.
    serial: u64,
    attempts: u32,
    state: State<R>,
}

impl<T, R: Clone> Job<T, R> {
    /// While a failed job is tried again, its failure is still the latest thing that is known.
    fn progress(&self) -> Progress<R> {
        match &self.state {
            State::Running(None) => Progress::Running,
            State::Running(Some(why)) => Progress::Failed(why.clone(), LONGEST_WAIT),
            State::Done(result) => Progress::Done(result.clone()),
            State::Failed { why, again_at } => Progress::Failed(why.clone(), again_at.saturating_duration_since(Instant::now())),
        }
    }

    fn last_failure(&self) -> Option<String> {
        match &self.state {
            State::Failed { why, .. } => Some(why.clone()),
            State::Running(why) => why.clone(),
            State::Done(_) => None,
        }
    }

    fn is_due(&self) -> bool {
        matches!(self.state, State::Failed { again_at, .. } if again_at <= Instant::now())
    }
}

/// Jobs, at most one per key. A job is for one ticket (a grant, a declaration); another ticket replaces it.
#[derive(Debug)]
pub(super) struct Jobs<K, T, R> {
    all: Arc<Mutex<HashMap<K, Job<T, R>>>>,
    /// Notified whenever a job ends.
    ends: watch::Sender<()>,
    serials: AtomicU64,
}

impl<K, T, R> Default for Jobs<K, T, R> {
    fn default() -> Self {
        Self { all: Arc::default(), ends: watch::Sender::new(()), serials: AtomicU64::new(0) }
    }
}

/// The first wait after a failure; it doubles up to [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// The longest wait after a failure.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

impl<K, T, R> Jobs<K, T, R>
where
    K: Hash + Eq + Clone + Send + 'static,
    T: PartialEq + Clone + Send + 'static,
    R: Clone + Send + 'static,
{
    /// What is known of the job for this ticket, starting it when it is not under way, or when it failed and its time has come.
    /// `wake` is called when it ends.
    pub(super) fn ask<F>(&self, key: &K, ticket: &T, work: impl FnOnce() -> F, wake: impl FnOnce() + Send + 'static) -> Progress<R>
    where
        F: Future<Output = Result<R, Failure>> + Send + 'static,
    {
        let mut jobs = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let known = jobs.get(key).filter(|job| job.ticket == *ticket);
        if let Some(job) = known.filter(|job| !job.is_due()) {
            return job.progress();
        }
        let (attempts, last_failure) = known.map_or((0, None), |job| (job.attempts, job.last_failure()));
        let serial = self.serials.fetch_add(1, Ordering::Relaxed);
        let job = Job { ticket: ticket.clone(), serial, attempts: attempts + 1, state: State::Running(last_failure) };
        let progress = job.progress();
        jobs.insert(key.clone(), job);
        drop(jobs);
        let (all, ends, key) = (Arc::clone(&self.all), self.ends.clone(), key.clone());
        let work = tokio::spawn(work());
        tokio::spawn(async move {
            // A job that panics has failed: its lock says so and others go on.
            let result = work.await.unwrap_or_else(|error| Err(format!("a defect of fencedlock: {error}").into()));
            let mut jobs = all.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(job) = jobs.get_mut(&key).filter(|job| job.serial == serial) {
                job.state = match result {
                    Ok(result) => State::Done(result),
                    Err(Failure { why, soon }) => {
                        State::Failed { why, again_at: Instant::now() + if soon { FIRST_WAIT } else { wait_after(job.attempts) } }
                    }
                };
            }
            drop(jobs);
            ends.send_replace(());
            wake();
        });
        progress
    }

    /// What is known of the job for this ticket, without starting anything.
    pub(super) fn peek(&self, key: &K, ticket: &T) -> Option<Progress<R>> {
        let jobs = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.get(key).filter(|job| job.ticket == *ticket).map(Job::progress)
    }

    /// Whether a job is under way, for whichever ticket.
    pub(super) fn is_running(&self, key: &K) -> bool {
        let jobs = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.get(key).is_some_and(|job| matches!(job.state, State::Running(_)))
    }

    /// Waits until none of these jobs is under way, and no longer than `limit`.
    pub(super) async fn until_ended(&self, keys: &[K], limit: Duration) {
        let mut ends = self.ends.subscribe();
        let ended = ends.wait_for(|()| !keys.iter().any(|key| self.is_running(key)));
        drop(tokio::time::timeout(limit, ended).await);
    }

    /// Forgets a job: its result is used up, or its subject is gone.
    pub(super) fn forget(&self, key: &K) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

fn wait_after(attempts: u32) -> Duration {
    FIRST_WAIT.saturating_mul(2u32.saturating_pow(attempts.saturating_sub(1).min(16))).min(LONGEST_WAIT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn a_job_is_started_once_per_ticket_and_wakes_its_lock() {
        let jobs: Jobs<u8, u8, u8> = Jobs::default();
        let (woken, wait) = oneshot::channel();
        let answer = jobs.ask(&1, &1, || async { Ok(7) }, move || woken.send(()).unwrap());
        assert_eq!(answer, Progress::Running);
        wait.await.unwrap();
        assert_eq!(jobs.ask(&1, &1, || async { Ok(8) }, || ()), Progress::Done(7));
        assert_eq!(jobs.ask(&1, &2, || async { Ok(9) }, || ()), Progress::Running, "another ticket is another job");
    }

    #[tokio::test]
    async fn jobs_are_waited_for_until_they_end_and_no_longer_than_said() {
        let jobs: Jobs<u8, u8, u8> = Jobs::default();
        let (end, ends) = oneshot::channel();
        jobs.ask(&1, &1, || async { ends.await.map_err(|e| e.to_string().into()) }, || ());
        jobs.until_ended(&[1], Duration::from_millis(1)).await;
        assert_eq!(jobs.peek(&1, &1), Some(Progress::Running));
        end.send(7).unwrap();
        jobs.until_ended(&[1, 2], Duration::from_mins(1)).await;
        assert_eq!(jobs.peek(&1, &1), Some(Progress::Done(7)));
    }

    #[tokio::test]
    async fn a_job_that_was_forgotten_does_not_answer_for_the_next_one() {
        let jobs: Jobs<u8, u8, u8> = Jobs::default();
        let ((end, ends), (woken, wait)) = (oneshot::channel(), oneshot::channel());
        jobs.ask(&1, &1, || async { ends.await.map_err(|e| e.to_string().into()) }, move || woken.send(()).unwrap());
        jobs.forget(&1);
        jobs.ask(&1, &1, std::future::pending::<Result<u8, Failure>>, || ());
        end.send(7).unwrap();
        wait.await.unwrap();
        assert_eq!(jobs.peek(&1, &1), Some(Progress::Running));
    }

    #[tokio::test]
    async fn a_job_that_panics_has_failed() {
        let jobs: Jobs<u8, u8, u8> = Jobs::default();
        jobs.ask(&1, &1, || async { panic!("on purpose") }, || ());
        jobs.until_ended(&[1], Duration::from_mins(1)).await;
        let answer = jobs.peek(&1, &1);
        assert!(matches!(&answer, Some(Progress::Failed(why, _)) if why.contains("on purpose")), "{answer:?}");
    }

    #[tokio::test]
    async fn a_failure_is_kept_and_tried_again_later() {
        let jobs: Jobs<u8, u8, u8> = Jobs::default();
        let (woken, wait) = oneshot::channel();
        jobs.ask(&1, &1, || async { Err("down".to_owned().into()) }, move || woken.send(()).unwrap());
        wait.await.unwrap();
        let answer = jobs.ask(&1, &1, || async { Ok(7) }, || ());
        assert!(matches!(&answer, Progress::Failed(why, wait) if why == "down" && *wait <= FIRST_WAIT), "{answer:?}");
        assert_eq!([wait_after(1), wait_after(2), wait_after(50)], [FIRST_WAIT, FIRST_WAIT * 2, LONGEST_WAIT]);
    }
}
