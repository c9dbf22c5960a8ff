//! When a Lease may be taken and what is written into it, by client-go's rules (`k8s.io/client-go/tools/leaderelection`). Pure: the
//! clocks are arguments.
//!
//! Two clocks, on purpose. Whether a Lease has expired is judged by the local monotonic clock since its record was last seen to
//! change, because the times in it come from another machine. The times that are written are for people, and for whoever compares
//! terms.

use std::time::{Duration, Instant};

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use thiserror::Error;

/// How long things take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    duration: Duration,
    deadline: Duration,
    retry: Duration,
}

/// Why a timing cannot work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TimingError {
    /// Others would take over while this process still believes that it leads.
    #[error("the lease duration must be longer than the renew deadline")]
    DeadlineTooLong,
    /// A single failed attempt would lose the Lease.
    #[error("the renew deadline must be longer than 1.2 times the retry period")]
    RetryTooSlow,
    /// A Lease counts whole seconds.
    #[error("the lease duration must be whole seconds, from 1 to 2147483647")]
    NotWholeSeconds,
    /// Nothing would be waited for.
    #[error("the retry period must be longer than nothing")]
    NoRetry,
}

impl Default for Timing {
    /// client-go's usual 15 s, 10 s, 2 s.
    fn default() -> Self {
        Self { duration: Duration::from_secs(15), deadline: Duration::from_secs(10), retry: Duration::from_secs(2) }
    }
}

impl Timing {
    /// How long others wait for a renewal, for how long this process tries to renew before it gives up, and the pause between two
    /// attempts.
    ///
    /// # Errors
    /// When they contradict each other; the same rules as client-go's.
    pub fn new(duration: Duration, deadline: Duration, retry: Duration) -> Result<Self, TimingError> {
        if retry.is_zero() {
            Err(TimingError::NoRetry)
        } else if duration <= deadline {
            Err(TimingError::DeadlineTooLong)
        } else if deadline <= retry.mul_f64(1.2) {
            Err(TimingError::RetryTooSlow)
        } else if duration.subsec_nanos() != 0 || i32::try_from(duration.as_secs()).is_err() {
            Err(TimingError::NotWholeSeconds)
        } else {
            Ok(Self { duration, deadline, retry })
        }
    }

    /// For how long this process tries to renew before it gives up.
    pub const fn deadline(&self) -> Duration {
        self.deadline
    }

    /// The pause between two attempts.
    pub const fn retry(&self) -> Duration {
        self.retry
    }

    fn seconds(&self) -> i32 {
        i32::try_from(self.duration.as_secs()).unwrap_or(i32::MAX)
    }
}

/// What to do about the Lease now.
#[derive(Clone, Debug, PartialEq)]
pub enum Move {
    /// Write this, by compare-and-swap: create it, or replace the version that was seen.
    Write(LeaseSpec),
    /// Somebody else holds it.
    Wait,
}

#[derive(Clone, Debug)]
struct Seen {
    uid: Option<String>,
    spec: LeaseSpec,
    since: Instant,
}

/// One candidate for one Lease.
#[derive(Clone, Debug)]
pub struct Election {
    identity: String,
    timing: Timing,
    seen: Option<Seen>,
    /// When the attempt began that was confirmed last.
    renewed: Option<Instant>,
}

impl Election {
    /// A candidate. No two processes may ever have the same identity: use one that changes with each start.
    pub fn new(identity: impl Into<String>, timing: Timing) -> Self {
        Self { identity: identity.into(), timing, seen: None, renewed: None }
    }

    /// Takes note of the Lease as it was read, or that there is none.
    pub fn see(&mut self, lease: Option<&Lease>, now: Instant) {
        let Some(lease) = lease else {
            self.seen = None;
            return;
        };
        let (uid, spec) = (lease.metadata.uid.clone(), lease.spec.clone().unwrap_or_default());
        let is_same = self.seen.as_ref().is_some_and(|seen| seen.uid == uid && seen.spec == spec);
        if !is_same {
            self.seen = Some(Seen { uid, spec, since: now });
        }
    }

    /// What to do now. `wall` is only written.
    pub fn next(&self, wall: Timestamp, now: Instant) -> Move {
        let fresh = |transitions| LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(self.timing.seconds()),
            acquire_time: Some(MicroTime(wall)),
            renew_time: Some(MicroTime(wall)),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        };
        let Some(seen) = &self.seen else { return Move::Write(fresh(0)) };
        let holder = seen.spec.holder_identity.as_deref().unwrap_or_default();
        let transitions = seen.spec.lease_transitions.unwrap_or_default();
        if holder == self.identity {
            let renewed = LeaseSpec { lease_transitions: Some(transitions), ..fresh(0) };
            return Move::Write(LeaseSpec { acquire_time: seen.spec.acquire_time.clone().or(renewed.acquire_time), ..renewed });
        }
        let lasts = seen.spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok()).map_or(self.timing.duration, Duration::from_secs);
        if !holder.is_empty() && now.duration_since(seen.since) < lasts {
            return Move::Wait;
        }
        Move::Write(LeaseSpec { strategy: seen.spec.strategy.clone(), ..fresh(transitions.saturating_add(1)) })
    }

    /// Takes note that what [`Election::next`] wanted was written: the Lease as it is then, and when the attempt began.
    pub fn wrote(&mut self, lease: &Lease, began: Instant) {
        self.see(Some(lease), began);
        self.renewed = Some(began);
    }

    /// Whether this process leads: it holds the Lease as far as it saw, and renewed it within the deadline. So it has stopped before
    /// anybody else may take over.
    pub fn leads(&self, now: Instant) -> bool {
        self.leads_for(now).is_some()
    }

    /// How much longer this process leads if it never renews again; `None` when it does not lead.
    pub fn leads_for(&self, now: Instant) -> Option<Duration> {
        let holds = self.seen.as_ref().is_some_and(|seen| seen.spec.holder_identity.as_deref() == Some(self.identity.as_str()));
        let left = self.timing.deadline.checked_sub(now.duration_since(self.renewed.filter(|_| holds)?))?;
        (!left.is_zero()).then_some(left)
    }

    /// What gives the Lease back, if this process holds it: nobody, for one second, with the count kept (case B01).
    pub fn release(&self, wall: Timestamp) -> Option<LeaseSpec> {
        let seen = self.seen.as_ref().filter(|seen| seen.spec.holder_identity.as_deref() == Some(self.identity.as_str()))?;
        Some(LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            acquire_time: Some(MicroTime(wall)),
            renew_time: Some(MicroTime(wall)),
            lease_transitions: seen.spec.lease_transitions,
            ..LeaseSpec::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wall(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn lease(spec: LeaseSpec) -> Lease {
        let mut lease = Lease { spec: Some(spec), ..Lease::default() };
        lease.metadata.uid = Some("u".into());
        lease
    }

    fn written(next: Move) -> LeaseSpec {
        match next {
            Move::Write(spec) => spec,
            Move::Wait => panic!("it waits"),
        }
    }

    #[test]
    fn a_term_keeps_its_acquisition_and_the_next_one_counts_up() {
        let start = Instant::now();
        let mut a = Election::new("a", Timing::default());
        let first = written(a.next(wall(0), start));
        assert_eq!((first.lease_transitions, first.holder_identity.as_deref()), (Some(0), Some("a")));
        a.wrote(&lease(first.clone()), start);
        let renewed = written(a.next(wall(2), start + Duration::from_secs(2)));
        assert_eq!((&renewed.acquire_time, renewed.lease_transitions), (&first.acquire_time, Some(0)), "a renewal begins no term");
        assert_ne!(renewed.renew_time, first.renew_time);
        let released = a.release(wall(3)).unwrap();
        assert_eq!((released.holder_identity.as_deref(), released.lease_transitions), (Some(""), Some(0)));
        let mut b = Election::new("b", Timing::default());
        b.see(Some(&lease(released)), start);
        let next = written(b.next(wall(4), start));
        assert_eq!((next.lease_transitions, next.acquire_time), (Some(1), Some(MicroTime(wall(4)))), "taken at once, and counted");
    }

    /// The times in the Lease are never compared: only that its record stood still for its duration, by the local clock.
    #[test]
    fn another_holder_is_waited_for_by_the_local_clock_alone() {
        let start = Instant::now();
        let mut b = Election::new("b", Timing::default());
        for renewed in [-1_000_000, 0, 1_000_000] {
            let held = LeaseSpec {
                holder_identity: Some("a".into()),
                lease_duration_seconds: Some(6),
                renew_time: Some(MicroTime(wall(renewed))),
                ..LeaseSpec::default()
            };
            b.see(Some(&lease(held.clone())), start);
            assert_eq!(b.next(wall(0), start + Duration::from_millis(5_999)), Move::Wait, "{renewed}");
            b.see(Some(&lease(held)), start + Duration::from_secs(5));
            assert_eq!(written(b.next(wall(0), start + Duration::from_secs(6))).lease_transitions, Some(1), "the same record ages on");
        }
    }

    #[test]
    fn whoever_could_not_renew_has_stopped_before_others_may_start() {
        let timing = Timing::default();
        let start = Instant::now();
        let mut a = Election::new("a", timing);
        assert!(!a.leads(start));
        a.wrote(&lease(written(a.next(wall(0), start))), start);
        assert!(a.leads(start + Duration::from_millis(9_999)) && !a.leads(start + Duration::from_secs(10)));
        a.see(None, start);
        assert!(!a.leads(start), "deleted by somebody");
    }

    #[test]
    fn a_timing_that_cannot_work_is_refused() {
        let timing = |duration, deadline, retry| {
            Timing::new(Duration::from_millis(duration), Duration::from_millis(deadline), Duration::from_millis(retry))
        };
        assert_eq!(timing(15_000, 10_000, 2_000), Ok(Timing::default()));
        assert_eq!(timing(10_000, 10_000, 2_000), Err(TimingError::DeadlineTooLong));
        assert_eq!(timing(15_000, 2_400, 2_000), Err(TimingError::RetryTooSlow));
        assert_eq!(timing(1_500, 1_000, 200), Err(TimingError::NotWholeSeconds));
        assert_eq!(timing(15_000, 10_000, 0), Err(TimingError::NoRetry));
    }

    proptest! {
        /// Two candidates with clocks that advance together, reads and writes in any order, compare-and-swap: never do both lead.
        #[test]
        fn two_candidates_never_lead_at_once(steps in prop::collection::vec((0u8..4, 0u64..7_000), 1..200)) {
            let (mut now, mut stored): (Instant, Option<(u64, LeaseSpec)>) = (Instant::now(), None);
            let mut candidates = [("a", None), ("b", None)].map(|(id, seen): (_, Option<u64>)| (Election::new(id, Timing::default()), seen));
            for (turn, (step, pause)) in steps.into_iter().enumerate() {
                now += Duration::from_millis(pause);
                // Each renewal writes another time: a record that stands still is what shows that nobody renews.
                let wall = wall(i64::try_from(turn).unwrap());
                let (me, acts) = (usize::from(step % 2), step / 2);
                let (election, seen) = &mut candidates[me];
                if acts == 0 {
                    *seen = stored.as_ref().map(|(version, _)| *version);
                    election.see(stored.as_ref().map(|(_, spec)| lease(spec.clone())).as_ref(), now);
                } else if let Move::Write(spec) = election.next(wall, now)
                    && *seen == stored.as_ref().map(|(version, _)| *version)
                {
                    let version = stored.as_ref().map_or(1, |(version, _)| version + 1);
                    election.wrote(&lease(spec.clone()), now);
                    (*seen, stored) = (Some(version), Some((version, spec)));
                }
                prop_assert!(!(candidates[0].0.leads(now) && candidates[1].0.leads(now)));
            }
        }
    }
}
