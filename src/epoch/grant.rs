//! Grants: which epoch the present holder has, and whether it may use it (protocol sections 2 and 3).
//!
//! Start with [`decide`]: from what the lock's status remembers and what the Lease shows to the next epoch and grant.
//! The caller records the answer by compare-and-swap, activates, and calls [`Grant::activated`].

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Epoch, EpochFloor, Holder, HolderError,
    mint::{self, MintError, Reservation, ReservationError, Sources, TrustedFence},
    term::{self, LeaseView, MAX_SAME_HOLDER_STEPS, Record, Step, Term, TermRule},
};

/// Whether a grant may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum GrantState {
    /// The epoch is consumed, but some boundary may still admit the previous owner.
    Pending,
    /// Every boundary that must enforce the lock accepts this epoch and no other: the holder may work.
    Active,
}

/// An epoch for one holder in one term.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Grant {
    /// The epoch, which no other grant of this lock ever carries.
    pub epoch: Epoch,
    /// The identity that may use it, byte for byte as it stands in the Lease.
    pub holder: Holder,
    /// Whether it may be used yet.
    pub state: GrantState,
    /// When this state was entered, by the operator's clock.
    pub since: Time,
    /// How many terms in a row only `leaseTransitions` and `acquireTime` told apart (protocol section 1).
    #[serde(default)]
    #[schemars(range(min = 0, max = 16))]
    pub same_holder_steps: u8,
    /// The term it was minted for. A client may use the epoch only when this is the term that it wrote itself.
    pub term: Term,
}

impl Grant {
    /// The grant once every boundary that must enforce it is activated, from `now` on.
    #[must_use]
    pub fn activated(&self, now: Time) -> Self {
        match self.state {
            GrantState::Active => self.clone(),
            GrantState::Pending => Self { state: GrantState::Active, since: now, ..self.clone() },
        }
    }

    /// The view that later ones have to be compared with ([`LeaseView::differs_from`]) once `reconciled` was reconciled
    /// and left this grant. Rule 4 compares with the term as it was recorded, not with the last renewal.
    ///
    /// # Warning
    /// A watch that compares with the last renewal drops ownership changes behind a client that counts its renewals
    /// (case B03): granted at `tr=1`, reconciled again at `tr=9`, and then `tr=2` with another `acquireTime`.
    #[must_use]
    pub fn baseline(&self, reconciled: &LeaseView) -> LeaseView {
        if !self.is_of(reconciled) {
            return reconciled.clone();
        }
        let rule_4_is_off = self.same_holder_steps >= MAX_SAME_HOLDER_STEPS;
        LeaseView {
            // Nothing grows above the largest counter, so such a client's renewals wake nobody either.
            transitions: if rule_4_is_off { Some(i32::MAX) } else { self.term.lease_transitions },
            acquire_time: self.term.acquire_time,
            ..reconciled.clone()
        }
    }

    /// Whether the Lease is the one of this grant, by its uid, and names its holder.
    pub fn is_of(&self, lease: &LeaseView) -> bool {
        self.term.lease_uid == lease.uid && lease.holder.as_ref() == Ok(&Some(self.holder.clone()))
    }

    fn record(&self) -> Record<'_> {
        Record { holder: &self.holder, term: &self.term, same_holder_steps: self.same_holder_steps }
    }
}

/// What is known of the lock's Lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LeaseRead {
    /// It was read.
    Found(LeaseView),
    /// There is none of that name.
    Missing,
    /// It may not be read: the verb, resource and namespace that are refused.
    Forbidden(String),
    /// It could not be read for another reason, or not be understood.
    Unreadable(String),
    /// The lock's coordinator is no Lease, so nothing grants it epochs.
    NoCoordinator,
}

/// Everything that a decision about the grant depends on.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The FencedLock's uid.
    pub lock_uid: &'a str,
    /// `status.epoch`.
    pub epoch: Option<Epoch>,
    /// `status.grant`.
    pub grant: Option<&'a Grant>,
    /// The Lease.
    pub lease: &'a LeaseRead,
    /// The older lock on the same Lease, if there is one: only that one is granted epochs.
    pub shared_with: Option<&'a str>,
    /// The uid of the holder's pod, when exactly one fits.
    pub pod_uid: Option<&'a str>,
    /// `spec.epochFloor`.
    pub floor: EpochFloor,
    /// The reservation, or why it could not be read. `Ok(None)` when there is none.
    pub reservation: &'a Result<Option<Reservation>, ReservationError>,
    /// The highest epoch that this process saw for the lock.
    pub remembered: Option<Epoch>,
    /// Fences behind trusted guards.
    pub fences: &'a [TrustedFence],
    /// A boundary whose fence could not be read, and why. Minting waits for it.
    pub unreadable_fence: Option<(&'a str, &'a str)>,
}

/// Why the present holder has an active grant or has none. The operator turns it into the condition `EpochActive`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// There is a grant for the present holder; its state says whether it may be used.
    Granted,
    /// Nobody holds the Lease.
    Released,
    /// The Lease is not there.
    LeaseMissing,
    /// Reading the Lease is forbidden.
    Forbidden(String),
    /// The Lease could not be read or understood.
    LeaseUnreadable(String),
    /// The coordinator is external and gets no grants.
    NoCoordinator,
    /// An older lock is declared on the same Lease.
    LeaseShared(String),
    /// The holder's identity cannot be carried.
    HolderUnusable(HolderError),
    /// A boundary's fence could not be read.
    FenceUnreadable {
        /// The boundary.
        boundary: String,
        /// Why.
        why: String,
    },
    /// The reservation could not be read.
    ReservationUnreadable(ReservationError),
    /// No epoch could be minted.
    NotMinted(MintError),
}

/// The answer of [`decide`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The next `status.epoch`.
    pub epoch: Option<Epoch>,
    /// The next `status.grant`. A grant that was just minted is `Pending`.
    pub grant: Option<Grant>,
    /// The reservation that must be written before the status is.
    pub reserve: Option<Reservation>,
    /// The rule by which a new term began, when an epoch was minted.
    pub began: Option<TermRule>,
    /// Why things stand as they do.
    pub standing: Standing,
    /// Something saw the epochs' source go back: a read older than its record, a fence or a memory above the status.
    pub rolled_back: bool,
}

impl Decision {
    /// Whether carrying this out would change the lock's epoch or grant. Then it must rest on uncached reads.
    pub fn changes(&self, input: &Input<'_>) -> bool {
        self.epoch != input.epoch || self.grant.as_ref() != input.grant || self.rolled_back
    }
}

/// Decides about epoch and grant. `now` only stamps a new grant.
///
/// The same term keeps the recorded epoch, through retries and restarts; a new term gets a new one; nobody gets none and
/// leaves the epoch as the floor. What cannot be read changes nothing (case G09: the epoch is frozen, not reset).
///
/// # Warning
/// When the answer is to be carried out, the lock must have been read **before** the Lease and everything else. The other way
/// round, a grant that another replica recorded in between looks newer than the Lease, and a roll-back is reported that
/// never was.
pub fn decide(input: &Input<'_>, now: &Time) -> Decision {
    let lease = match input.lease {
        LeaseRead::Found(lease) => lease,
        LeaseRead::Missing => return without_grant(input, Standing::LeaseMissing),
        LeaseRead::NoCoordinator => return without_grant(input, Standing::NoCoordinator),
        LeaseRead::Forbidden(what) => return frozen(input, Standing::Forbidden(what.clone())),
        LeaseRead::Unreadable(why) => return frozen(input, Standing::LeaseUnreadable(why.clone())),
    };
    if let Some(older) = input.shared_with {
        return without_grant(input, Standing::LeaseShared(older.to_owned()));
    }
    let rolled_back = rolled_back(input, lease);
    let refuse = |standing| Decision { rolled_back, ..without_grant(input, standing) };
    let holder = match &lease.holder {
        Ok(Some(holder)) => holder,
        Ok(None) => return refuse(Standing::Released),
        Err(error) => return refuse(Standing::HolderUnusable(error.clone())),
    };
    let step = if rolled_back {
        Step::Begins(TermRule::RolledBack)
    } else {
        term::step(input.grant.map(Grant::record), holder, lease, input.pod_uid)
    };
    match (step, input.grant) {
        (Step::Begins(rule), _) => begin(input, rule, holder, lease, rolled_back, now),
        (Step::Continues, Some(grant)) => Decision { grant: Some(resolved(grant, input.pod_uid)), ..frozen(input, Standing::Granted) },
        // `step` continues only from a record, and a record is a grant.
        (Step::Continues, None) => without_grant(input, Standing::Released),
    }
}

/// Begins a term: mints an epoch, or says why that is not possible. The previous owner's grant is gone in either case,
/// because the Lease names another term.
fn begin(input: &Input<'_>, rule: TermRule, holder: &Holder, lease: &LeaseView, rolled_back: bool, now: &Time) -> Decision {
    let refuse = |standing| Decision { rolled_back, ..without_grant(input, standing) };
    if let Some((boundary, why)) = input.unreadable_fence {
        return refuse(Standing::FenceUnreadable { boundary: boundary.to_owned(), why: why.to_owned() });
    }
    let reservation = match input.reservation {
        Ok(reservation) => reservation.as_ref(),
        Err(error) => return refuse(Standing::ReservationUnreadable(error.clone())),
    };
    let minted = match mint::next(&Sources {
        lock_uid: input.lock_uid,
        status: input.epoch,
        floor: input.floor,
        reservation,
        remembered: input.remembered,
        fences: input.fences,
    }) {
        Ok(minted) => minted,
        Err(error) => return refuse(Standing::NotMinted(error)),
    };
    let same_holder_steps = match (rule, input.grant) {
        (TermRule::Reacquired, Some(last)) => last.same_holder_steps.saturating_add(1),
        _ => 0,
    };
    Decision {
        epoch: Some(minted.epoch),
        grant: Some(Grant {
            epoch: minted.epoch,
            holder: holder.clone(),
            state: GrantState::Pending,
            since: now.clone(),
            same_holder_steps,
            term: lease.term(input.pod_uid),
        }),
        reserve: minted.reserve,
        began: Some(rule),
        standing: Standing::Granted,
        rolled_back,
    }
}

/// A pod that was not known when the epoch was minted is recorded while nobody can have used the grant yet. Later it could be
/// the first owner's successor under the same name, which would then pass for the owner.
fn resolved(grant: &Grant, pod_uid: Option<&str>) -> Grant {
    let mut grant = grant.clone();
    if grant.term.pod_uid.is_none() && grant.state == GrantState::Pending {
        grant.term.pod_uid = pod_uid.map(str::to_owned);
    }
    grant
}

/// Whether something remembers a later state than the one that is seen (protocol section 5, cases E01 and D06).
fn rolled_back(input: &Input<'_>, lease: &LeaseView) -> bool {
    let status = input.epoch.map_or(0, Epoch::get);
    let read_is_old = input.grant.is_some_and(|grant| term::is_older(lease, &grant.term));
    let memory_is_ahead = input.remembered.is_some_and(|epoch| epoch.get() > status);
    let fence_is_ahead = input.epoch.is_some()
        && input
            .fences
            .iter()
            .any(|fence| fence.epoch > status || input.grant.is_some_and(|grant| fence.shuts_out(grant.epoch, grant.holder.as_str())));
    read_is_old || memory_is_ahead || fence_is_ahead
}

fn without_grant(input: &Input<'_>, standing: Standing) -> Decision {
    Decision { grant: None, ..frozen(input, standing) }
}

fn frozen(input: &Input<'_>, standing: Standing) -> Decision {
    Decision { epoch: input.epoch, grant: input.grant.cloned(), reserve: None, began: None, standing, rolled_back: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::jiff::Timestamp;
    use proptest::prelude::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn n(epoch: u64) -> Epoch {
        Epoch::new(epoch).unwrap()
    }

    /// `L(holder, tr, acq)` of the cases under uid U1. `""` is nobody.
    fn lease(holder: &str, transitions: i32, acquired: i64) -> LeaseView {
        LeaseView {
            uid: "U1".into(),
            resource_version: "100".into(),
            holder: if holder.is_empty() { Ok(None) } else { Holder::new(holder).map(Some) },
            transitions: Some(transitions),
            acquire_time: Some(at(acquired)),
            renew_time: None,
            duration_seconds: Some(15),
        }
    }

    fn recreated(lease: LeaseView) -> LeaseView {
        LeaseView { uid: "U2".into(), ..lease }
    }

    /// A FencedLock whose status is written as `decide` says, with everything else that a decision depends on.
    #[derive(Clone)]
    struct Lock {
        epoch: Option<Epoch>,
        grant: Option<Grant>,
        reservation: Result<Option<Reservation>, ReservationError>,
        remembered: Option<Epoch>,
        fences: Vec<TrustedFence>,
        floor: EpochFloor,
        pod: Option<&'static str>,
        unreadable_fence: Option<&'static str>,
        older: Option<&'static str>,
    }

    impl Lock {
        fn new() -> Self {
            Self {
                epoch: None,
                grant: None,
                reservation: Ok(None),
                remembered: None,
                fences: Vec::new(),
                floor: 0,
                pod: None,
                unreadable_fence: None,
                older: None,
            }
        }

        /// A lock at an epoch inside its own block, that nobody holds.
        fn at(epoch: u64) -> Self {
            let reservation = Reservation { last: (epoch + mint::BLOCK - 1).min(Epoch::MAX_VALUE), uid: "lock".into() };
            Self { epoch: Some(n(epoch)), reservation: Ok(Some(reservation)), ..Self::new() }
        }

        /// A lock whose holder has the active grant `epoch` in the term that `view` shows.
        fn active(epoch: u64, view: &LeaseView) -> Self {
            let mut lock = Self::at(epoch - 1);
            lock.sees(view);
            lock.activate();
            assert_eq!(lock.granted(), Some((epoch, "a".to_owned())), "the case's starting point");
            lock
        }

        fn behind(mut self, epoch: u64, holder: &str) -> Self {
            self.fences = vec![TrustedFence { boundary: "db".into(), epoch, holder: holder.into() }];
            self
        }

        fn input<'a>(&'a self, lease: &'a LeaseRead) -> Input<'a> {
            Input {
                lock_uid: "lock",
                epoch: self.epoch,
                grant: self.grant.as_ref(),
                lease,
                shared_with: self.older,
                pod_uid: self.pod,
                floor: self.floor,
                reservation: &self.reservation,
                remembered: self.remembered,
                fences: &self.fences,
                unreadable_fence: self.unreadable_fence.map(|name| (name, "connection refused")),
            }
        }

        /// What would be decided, without recording it.
        fn weighs(&self, lease: &LeaseRead) -> Decision {
            decide(&self.input(lease), &Time(at(1_000)))
        }

        fn would_change(&self, view: &LeaseView) -> bool {
            let read = LeaseRead::Found(view.clone());
            self.weighs(&read).changes(&self.input(&read))
        }

        /// Decides and records the answer: the reservation first, then the status.
        fn reads(&mut self, lease: &LeaseRead) -> Decision {
            let decision = self.weighs(lease);
            if let Some(reservation) = &decision.reserve {
                self.reservation = Ok(Some(reservation.clone()));
            }
            self.epoch = decision.epoch;
            self.grant.clone_from(&decision.grant);
            decision
        }

        fn sees(&mut self, view: &LeaseView) -> Decision {
            self.reads(&LeaseRead::Found(view.clone()))
        }

        fn activate(&mut self) {
            self.grant = self.grant.as_ref().map(|grant| grant.activated(Time(at(2_000))));
        }

        fn granted(&self) -> Option<(u64, String)> {
            self.grant.as_ref().map(|grant| (grant.epoch.get(), grant.holder.to_string()))
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "it is compared with what `Lock::granted` returns")]
    fn granted(epoch: u64, holder: &str) -> Option<(u64, String)> {
        Some((epoch, holder.to_owned()))
    }

    // --- New terms ---

    /// A01, A09: nothing is needed from the old owner, no callback, no restart.
    #[test]
    fn another_holder_gets_the_next_epoch_as_a_pending_grant() {
        let mut lock = Lock::active(7, &lease("a", 0, 10));
        let decision = lock.sees(&lease("b", 1, 20));
        assert_eq!((lock.granted(), decision.began), (granted(8, "b"), Some(TermRule::HolderChanged)));
        let grant = lock.grant.unwrap();
        assert_eq!(grant.state, GrantState::Pending, "some boundary may still admit a");
        assert_eq!(grant.term, lease("b", 1, 20).term(None), "b recognises the term that it wrote");
        assert_eq!(decision.reserve, None, "the block covers it");
    }

    #[test]
    fn the_first_owner_gets_epoch_one_and_reserves_a_block() {
        let mut lock = Lock::new();
        let decision = lock.sees(&lease("a", 0, 10));
        assert_eq!((lock.granted(), decision.began), (granted(1, "a"), Some(TermRule::Acquired)));
        assert_eq!(decision.reserve, Some(Reservation { last: 1_000, uid: "lock".into() }));
    }

    /// B01: the last holder that was somebody equals the new one, and yet it is a new term. Both ways to write nobody.
    #[test]
    fn a_released_lease_gets_no_epoch_and_its_return_a_new_one() {
        for nobody in ["holderIdentity: \"\"", "duration: 1"] {
            let spec = if nobody.contains("holder") { serde_json::json!({"holderIdentity": ""}) } else { serde_json::json!({}) };
            let object = serde_json::json!({"metadata": {"uid": "U1", "resourceVersion": "100"}, "spec": spec});
            let released = LeaseView::from(serde_json::from_value::<k8s_openapi::api::coordination::v1::Lease>(object).unwrap());
            let mut lock = Lock::active(12, &lease("a", 3, 10));
            let decision = lock.sees(&released);
            assert_eq!((decision.standing, lock.granted(), lock.epoch), (Standing::Released, None, Some(n(12))), "{nobody}");
            lock.sees(&lease("a", 4, 30));
            assert_eq!(lock.granted(), granted(13, "a"), "{nobody}");
        }
    }

    /// B01 in a watch gap: the release itself was never seen.
    #[test]
    fn a_release_and_return_that_was_not_seen_is_a_new_term() {
        let mut lock = Lock::active(12, &lease("a", 3, 10));
        assert_eq!(lock.sees(&lease("a", 4, 30)).began, Some(TermRule::Reacquired));
        assert_eq!(lock.granted(), granted(13, "a"));
    }

    /// B02: the Lease cannot show it, the pod can.
    #[test]
    fn another_pod_behind_the_same_name_gets_a_new_epoch() {
        let mut lock = Lock { pod: Some("pod-1"), ..Lock::at(4) };
        let before = LeaseView { renew_time: Some(at(10)), ..lease("db-0", 3, 10) };
        let after = LeaseView { renew_time: Some(at(90)), ..before.clone() };
        lock.sees(&before);
        lock.activate();
        assert!(!lock.would_change(&after), "nothing but renewTime changed, and the pod is the same");
        lock.pod = Some("pod-2");
        assert_eq!(lock.sees(&after).began, Some(TermRule::PodReplaced));
        assert_eq!(lock.granted(), granted(6, "db-0"));
    }

    /// B02 without a pod: the renewal alone starts nothing; OwnerUnique says that it is not known (audit::owner).
    #[test]
    fn nothing_but_a_new_renew_time_begins_no_term() {
        let before = lease("a", 3, 10);
        let lock = Lock::active(5, &before);
        assert!(!lock.would_change(&LeaseView { renew_time: Some(at(90)), ..before }));
    }

    /// A02: the operator does no arithmetic about expiry.
    #[test]
    fn a_renew_time_in_the_future_or_the_past_is_no_transition() {
        let before = LeaseView { renew_time: Some(at(1_000)), ..lease("a", 3, 10) };
        let mut lock = Lock::active(5, &before);
        for (renewed, duration) in [(-3_600, Some(15)), (1_000 + 3_600, Some(15)), (4_000_000_000, Some(1)), (0, None)] {
            assert!(!lock.would_change(&LeaseView { renew_time: Some(at(renewed)), duration_seconds: duration, ..before.clone() }));
        }
        lock.sees(&LeaseView { renew_time: Some(at(4_600)), ..lease("b", 4, 4_600) });
        assert_eq!(lock.granted(), granted(6, "b"), "the takeover is one");
    }

    /// B03, D11: a counter of renewals that is reset at the takeover is no epoch.
    #[test]
    fn a_client_that_counts_its_renewals_has_one_epoch_for_its_tenure() {
        let mut lock = Lock::active(5, &lease("a", 1, 10));
        for counted in 2..200 {
            assert_eq!(lock.sees(&lease("a", counted, 10)).began, None);
        }
        lock.sees(&lease("b", 0, 20));
        assert_eq!(lock.granted(), granted(6, "b"));
    }

    /// B04: the old Go client wrote transitions + 1 on takeover and then zero.
    #[test]
    fn a_counter_that_falls_under_the_same_holder_begins_no_term() {
        let lock = Lock::active(5, &lease("a", 1, 10));
        assert!(!lock.would_change(&lease("a", 0, 10)));
    }

    /// B05: the Lease is deleted, then created by another holder or by the same one.
    #[test]
    fn a_deleted_lease_keeps_the_floor_and_a_recreated_one_is_a_new_term() {
        for next in ["a", "b"] {
            let mut lock = Lock::active(12, &lease("a", 7, 10));
            let gone = lock.reads(&LeaseRead::Missing);
            assert_eq!((gone.standing, lock.granted(), lock.epoch), (Standing::LeaseMissing, None, Some(n(12))));
            lock.sees(&recreated(lease(next, 0, 20)));
            assert_eq!(lock.granted(), granted(13, next));
        }
    }

    /// B05 inside a watch gap: the deletion was never seen, and the new Lease may say the same things as the old one.
    #[test]
    fn a_recreated_lease_is_a_new_term_though_its_deletion_was_not_seen() {
        for next in [lease("a", 0, 10), lease("a", 7, 10), lease("b", 0, 20)] {
            let mut lock = Lock::active(12, &lease("a", 7, 10));
            assert_eq!(lock.sees(&recreated(next)).began, Some(TermRule::LeaseRecreated));
            assert_eq!(lock.epoch, Some(n(13)));
        }
    }

    /// B11: absent times never panic, are never equal to a change, and hide no takeover.
    #[test]
    fn a_lease_without_times_is_compared_by_its_holder() {
        let without = |holder, transitions| LeaseView { acquire_time: None, ..lease(holder, transitions, 0) };
        let mut lock = Lock::active(5, &without("a", 1));
        assert!(!lock.would_change(&without("a", 1)) && !lock.would_change(&without("a", 2)));
        assert!(!lock.would_change(&lease("a", 1, 10)), "a client that begins to write the time");
        lock.sees(&without("b", 1));
        assert_eq!(lock.granted(), granted(6, "b"));
    }

    /// B12: the tempting key (holder, acquireTime) would mint an epoch per second here.
    #[test]
    fn a_client_that_rewrites_acquire_time_has_one_epoch_for_its_tenure() {
        let mut lock = Lock::active(5, &lease("a", 1, 10));
        for second in 11..200 {
            assert_eq!(lock.sees(&lease("a", 1, second)).began, None);
        }
        assert_eq!(lock.granted(), granted(5, "a"));
    }

    /// B14
    #[test]
    fn owners_that_alternate_get_an_epoch_each_time() {
        let mut lock = Lock::at(4);
        for turn in 0..300 {
            let holder = if turn % 2 == 0 { "a" } else { "b" };
            lock.sees(&lease(holder, turn, i64::from(turn)));
            lock.activate();
            assert_eq!(lock.granted(), granted(5 + u64::try_from(turn).unwrap(), holder));
        }
    }

    /// B15
    #[test]
    fn a_holder_that_cannot_be_carried_gets_no_grant_and_is_never_shortened() {
        for (holder, why) in [
            ("x".repeat(200_000), HolderError::TooLong(200_000)),
            ("two\nlines".to_owned(), HolderError::ControlCharacter { code: 0x0A, at: 3 }),
        ] {
            let mut lock = Lock::active(5, &lease("a", 1, 10));
            let decision = lock.sees(&lease(&holder, 2, 20));
            assert_eq!((decision.standing, lock.granted(), lock.epoch), (Standing::HolderUnusable(why), None, Some(n(5))));
            lock.sees(&lease("a", 3, 30));
            assert_eq!(lock.granted(), granted(6, "a"));
        }
        for text in ["a/b#c_ü💥", " leading", "trailing ", "with \"quotes\"", "A"] {
            let mut lock = Lock::active(5, &lease("a", 1, 10));
            lock.sees(&lease(text, 2, 20));
            assert_eq!(lock.granted(), granted(6, text));
        }
    }

    /// B15: an empty spec is nobody. Also at the largest counter, where int32 would wrap.
    #[test]
    fn an_empty_spec_is_no_owner_and_the_largest_counter_is_no_obstacle() {
        let empty = LeaseView { transitions: None, acquire_time: None, duration_seconds: None, ..lease("", 0, 0) };
        let mut lock = Lock::new();
        assert_eq!(lock.sees(&empty).standing, Standing::Released);
        assert_eq!((lock.epoch, lock.granted()), (None, None));
        let mut lock = Lock::active(5, &lease("a", i32::MAX, 10));
        lock.sees(&lease("b", i32::MAX, 20));
        assert_eq!(lock.granted(), granted(6, "b"));
    }

    /// B17
    #[test]
    fn holders_with_a_common_prefix_are_two_and_the_empty_one_is_nobody() {
        let mut lock = Lock::at(4);
        lock.sees(&lease("host-1_x", 0, 10));
        lock.sees(&lease("host-10_y", 1, 20));
        assert_eq!(lock.granted(), granted(6, "host-10_y"));
        assert_eq!(lock.sees(&lease("", 1, 30)).standing, Standing::Released);
        assert_eq!(lock.granted(), None);
    }

    /// G05: A, B, A in a watch gap, in its three variants.
    #[test]
    fn an_owner_in_between_that_was_not_seen_is_noticed_where_the_lease_shows_it() {
        let before = lease("a", 4, 10);
        for (what, after, rule) in [
            ("the counter grew and the time changed", lease("a", 6, 30), Some(TermRule::Reacquired)),
            ("deleted and recreated", recreated(lease("a", 0, 30)), Some(TermRule::LeaseRecreated)),
            ("a client that leaves the counter: not to be seen in the Lease", lease("a", 4, 30), None),
        ] {
            let mut lock = Lock::active(9, &before);
            assert_eq!(lock.sees(&after).began, rule, "{what}");
            assert_eq!(lock.granted(), granted(if rule.is_some() { 10 } else { 9 }, "a"), "{what}");
        }
    }

    /// Rule 4 is off after three terms in a row that nothing else told apart, and on again after another holder.
    #[test]
    fn a_client_that_rewrites_both_fields_at_each_renewal_runs_out_of_terms() {
        let mut lock = Lock::active(5, &lease("a", 0, 10));
        for renewal in 1..20 {
            lock.sees(&lease("a", renewal, 10 + i64::from(renewal)));
        }
        assert_eq!(lock.granted(), granted(8, "a"), "three terms too many, then none");
        assert_eq!(lock.grant.as_ref().unwrap().same_holder_steps, MAX_SAME_HOLDER_STEPS, "what OwnerUnique=CounterUnreliable reads");
        lock.sees(&lease("b", 20, 50));
        lock.sees(&lease("a", 21, 60));
        assert_eq!(lock.grant.as_ref().unwrap().same_holder_steps, 0);
        assert_eq!(lock.sees(&lease("a", 23, 80)).began, Some(TermRule::Reacquired), "rule 4 is on again");
    }

    /// A13: an epoch is issued to the identity in the Lease and to nobody who asks for one.
    #[test]
    fn an_epoch_is_only_for_the_identity_in_the_lease() {
        let mut lock = Lock::active(5, &lease("a", 0, 10));
        lock.sees(&lease("b", 1, 20));
        lock.activate();
        for _ in 0..5 {
            let decision = lock.sees(&lease("b", 1, 20));
            assert_eq!((decision.began, lock.granted()), (None, granted(6, "b")), "however often the zombie makes us look");
        }
    }

    // --- Retries ---

    #[test]
    fn a_retry_of_the_same_term_reuses_the_recorded_epoch() {
        let mut lock = Lock::at(4);
        let view = lease("a", 0, 10);
        lock.sees(&view);
        let recorded = lock.grant.clone();
        for state in ["pending", "active"] {
            for _ in 0..3 {
                assert!(!lock.would_change(&view), "{state}");
                let decision = lock.sees(&view);
                assert_eq!((decision.began, decision.reserve, decision.standing), (None, None, Standing::Granted), "{state}");
            }
            lock.activate();
        }
        assert_eq!(lock.grant.as_ref().map(|g| g.epoch), recorded.map(|g| g.epoch));
    }

    #[test]
    fn an_activated_grant_keeps_the_time_of_its_activation() {
        let mut lock = Lock::at(4);
        lock.sees(&lease("a", 0, 10));
        let active = lock.grant.as_ref().unwrap().activated(Time(at(50)));
        assert_eq!((active.state, &active.since), (GrantState::Active, &Time(at(50))));
        assert_eq!(active.activated(Time(at(99))), active, "activation again is a no-op");
    }

    /// Protocol section 3: the epoch stays consumed.
    #[test]
    fn a_pending_grant_is_abandoned_when_the_holder_changes() {
        let mut lock = Lock::active(5, &lease("a", 0, 10));
        lock.sees(&lease("b", 1, 20));
        assert_eq!(lock.grant.as_ref().unwrap().state, GrantState::Pending);
        lock.sees(&lease("c", 2, 30));
        assert_eq!(lock.granted(), granted(7, "c"));
        lock.sees(&lease("", 2, 40));
        assert_eq!((lock.granted(), lock.epoch), (None, Some(n(7))), "a release abandons it as well");
        lock.sees(&lease("b", 3, 50));
        assert_eq!(lock.granted(), granted(8, "b"), "6 and 7 are never issued again");
    }

    #[test]
    fn the_pod_is_recorded_while_nobody_can_have_used_the_grant_and_begins_no_term() {
        let view = lease("a", 0, 10);
        let mut active = Lock::active(5, &view);
        active.pod = Some("pod-1");
        assert!(!active.would_change(&view), "it could be the successor of the pod that was granted the epoch");
        let mut lock = Lock::at(4);
        lock.sees(&view);
        lock.pod = Some("pod-1");
        let decision = lock.sees(&view);
        assert_eq!((decision.began, lock.granted()), (None, granted(5, "a")));
        assert_eq!(lock.grant.as_ref().unwrap().term.pod_uid.as_deref(), Some("pod-1"));
        assert_eq!(lock.grant.as_ref().unwrap().state, GrantState::Pending);
        lock.pod = None;
        assert!(!lock.would_change(&view), "a pod that is not known is never compared, and does not erase one that was");
        lock.pod = Some("pod-2");
        assert_eq!(lock.sees(&view).began, Some(TermRule::PodReplaced));
    }

    // --- What went back ---

    /// A10: the operator decides to mint on uncached reads, so an older view there can only come from a restore. (A late
    /// delivery of the watch is dropped before it comes here.)
    #[test]
    fn an_uncached_read_older_than_the_record_is_a_roll_back_and_a_new_term() {
        let rv = |version: &str, view| LeaseView { resource_version: version.into(), ..view };
        let mut lock = Lock::active(9, &rv("500", lease("a", 4, 20)));
        let decision = lock.sees(&rv("420", lease("a", 4, 20)));
        assert_eq!((decision.rolled_back, decision.began), (true, Some(TermRule::RolledBack)));
        assert_eq!(lock.granted(), granted(10, "a"));
        assert!(!lock.would_change(&rv("420", lease("a", 4, 20))), "the new view is the record now");
        let mut lock = Lock::active(9, &rv("500", lease("a", 4, 20)));
        assert!(!lock.sees(&recreated(rv("420", lease("b", 4, 20)))).rolled_back, "another uid has no common order");
    }

    /// D06, E01: a store that is ahead of the status is respected.
    #[test]
    fn a_fence_ahead_of_the_status_puts_the_present_holder_above_it() {
        let view = lease("a", 11, 10);
        let mut lock = Lock::active(40, &view).behind(57, "b");
        let decision = lock.sees(&view);
        assert_eq!((decision.rolled_back, decision.began, lock.granted()), (true, Some(TermRule::RolledBack), granted(58, "a")));
        let mut nobody = Lock::at(40).behind(57, "b");
        assert!(nobody.sees(&lease("", 11, 10)).rolled_back);
        assert_eq!(nobody.epoch, Some(n(40)), "nobody gets none");
        nobody.sees(&lease("b", 12, 20));
        assert_eq!(nobody.granted(), granted(58, "b"));
    }

    /// D06: the boundary is behind. The grant stands and is activated again; no epoch is consumed.
    #[test]
    fn a_fence_behind_the_status_mints_nothing() {
        let view = lease("a", 11, 10);
        let lock = Lock::active(57, &view).behind(40, "a");
        assert!(!lock.would_change(&view));
    }

    /// E01: the same number for another owner can never be activated, so it is a roll-back too. Nobody is another owner.
    #[test]
    fn a_fence_at_the_same_epoch_with_another_holder_is_a_roll_back() {
        let view = lease("a", 11, 10);
        for other in ["b", ""] {
            let mut lock = Lock::active(40, &view).behind(40, other);
            assert_eq!(lock.sees(&view).began, Some(TermRule::RolledBack), "{other:?}");
            assert_eq!(lock.granted(), granted(41, "a"));
        }
        assert!(!Lock::active(40, &view).behind(40, "a").would_change(&view));
    }

    #[test]
    fn a_running_operator_that_remembers_more_than_the_status_says_so() {
        let view = lease("a", 11, 10);
        let mut lock = Lock { remembered: Some(n(44)), ..Lock::active(40, &view) };
        let decision = lock.sees(&view);
        assert_eq!((decision.rolled_back, lock.granted()), (true, granted(45, "a")));
    }

    /// B05: a lock without any status is new or recreated; a fence above it is history and no roll-back.
    #[test]
    fn a_recreated_lock_continues_above_the_fence_without_an_alarm() {
        let mut lock = Lock::new().behind(57, "b");
        let decision = lock.sees(&lease("a", 0, 10));
        assert_eq!((decision.rolled_back, decision.began, lock.granted()), (false, Some(TermRule::Acquired), granted(58, "a")));
    }

    /// D11: 3 was lost, a count would give 4 again.
    #[test]
    fn the_next_epoch_is_one_above_the_highest_of_all_sources() {
        let mut lock = Lock { floor: 12, remembered: Some(n(4)), ..Lock::at(4) };
        lock.sees(&lease("a", 0, 10));
        assert_eq!(lock.granted(), granted(13, "a"));
        let mut lock = Lock { floor: 12, ..Lock::at(4).behind(20, "b") };
        lock.sees(&lease("a", 0, 10));
        assert_eq!(lock.granted(), granted(21, "a"));
    }

    // --- No epoch ---

    /// F08
    #[test]
    fn an_exhausted_lock_grants_nothing_more_and_still_lets_go() {
        let mut lock = Lock::active(Epoch::MAX_VALUE, &lease("a", 0, 10));
        assert!(!lock.would_change(&lease("a", 0, 10)), "the last epoch works");
        let decision = lock.sees(&lease("b", 1, 20));
        assert_eq!(decision.standing, Standing::NotMinted(MintError::Exhausted));
        assert_eq!((lock.granted(), lock.epoch), (None, Some(Epoch::LAST)), "no wrap, and a has no grant any more");
        assert_eq!(lock.sees(&lease("", 1, 30)).standing, Standing::Released);
        assert_eq!(lock.epoch, Some(Epoch::LAST));
    }

    /// G09, A04: what cannot be read freezes epoch and grant; it resets nothing.
    #[test]
    fn a_lease_that_cannot_be_read_freezes_epoch_and_grant() {
        for (read, standing) in [
            (LeaseRead::Forbidden("get leases".into()), Standing::Forbidden("get leases".into())),
            (LeaseRead::Unreadable("timeout".into()), Standing::LeaseUnreadable("timeout".into())),
        ] {
            let view = lease("a", 0, 10);
            let mut lock = Lock::active(5, &view);
            assert!(!lock.weighs(&read).changes(&lock.input(&read)));
            assert_eq!(lock.reads(&read).standing, standing);
            assert_eq!(lock.granted(), granted(5, "a"));
            assert!(!lock.would_change(&view), "the same term goes on afterwards");
        }
    }

    #[test]
    fn a_coordinator_outside_kubernetes_gets_no_grant() {
        let mut lock = Lock::active(5, &lease("a", 0, 10));
        assert_eq!(lock.reads(&LeaseRead::NoCoordinator).standing, Standing::NoCoordinator);
        assert_eq!((lock.granted(), lock.epoch), (None, Some(n(5))));
    }

    #[test]
    fn minting_waits_for_a_fence_that_cannot_be_read() {
        let a = lease("a", 0, 10);
        let mut lock = Lock { unreadable_fence: Some("db"), ..Lock::active(5, &a) };
        assert!(!lock.would_change(&a), "a grant that stands needs no minting");
        let decision = lock.sees(&lease("b", 1, 20));
        assert!(matches!(decision.standing, Standing::FenceUnreadable { boundary, .. } if boundary == "db"));
        assert_eq!((lock.granted(), lock.epoch), (None, Some(n(5))), "a's grant is over, b has none yet");
        lock.unreadable_fence = None;
        lock.sees(&lease("b", 1, 20));
        assert_eq!(lock.granted(), granted(6, "b"));
    }

    #[test]
    fn minting_waits_for_a_reservation_that_cannot_be_read() {
        let a = lease("a", 0, 10);
        let mut lock = Lock::active(5, &a);
        let good = std::mem::replace(&mut lock.reservation, Err(Reservation::parse("what?").unwrap_err()));
        assert!(!lock.would_change(&a));
        assert!(matches!(lock.sees(&lease("b", 1, 20)).standing, Standing::ReservationUnreadable(_)));
        assert_eq!((lock.granted(), lock.epoch), (None, Some(n(5))));
        lock.reservation = good;
        lock.sees(&lease("b", 1, 20));
        assert_eq!(lock.granted(), granted(6, "b"));
    }

    #[test]
    fn a_newer_lock_on_the_same_lease_gets_no_grant() {
        let mut lock = Lock { older: Some("the-first"), ..Lock::new() };
        assert_eq!(lock.sees(&lease("a", 0, 10)).standing, Standing::LeaseShared("the-first".into()));
        assert_eq!((lock.epoch, lock.granted()), (None, None));
        lock.older = None;
        lock.sees(&lease("a", 0, 10));
        assert_eq!(lock.granted(), granted(1, "a"), "once the older one is gone");
    }

    // --- Renewals that a watch may drop ---

    /// B03 with a reconcile in the middle of the tenure, then G05 in a watch gap: compared with the last renewal, the change
    /// of owner would be dropped, and found by chance at the next reconcile.
    #[test]
    fn renewals_are_compared_with_the_recorded_term_and_not_with_the_last_renewal() {
        let lock = Lock::active(5, &lease("a", 1, 10));
        let grant = lock.grant.clone().unwrap();
        let (renewed, reacquired) = (lease("a", 9, 10), lease("a", 2, 30));
        assert!(!lock.would_change(&renewed));
        assert!(!reacquired.differs_from(&renewed) && lock.would_change(&reacquired), "why the last renewal is the wrong view");
        assert!(reacquired.differs_from(&grant.baseline(&renewed)));
        assert!(!renewed.differs_from(&grant.baseline(&renewed)));
        let (other, returned) = (lease("b", 0, 20), recreated(lease("a", 0, 20)));
        assert_eq!((grant.baseline(&other), grant.baseline(&returned)), (other, returned), "the grant says nothing about another term");
    }

    #[test]
    fn a_client_that_ran_out_of_terms_wakes_nobody() {
        let mut lock = Lock::active(5, &lease("a", 0, 10));
        for renewal in 1..5 {
            lock.sees(&lease("a", renewal, 10 + i64::from(renewal)));
        }
        let baseline = lock.grant.as_ref().unwrap().baseline(&lease("a", 4, 14));
        assert!(!lease("a", 5, 15).differs_from(&baseline) && !lease("a", i32::MAX, 16).differs_from(&baseline));
        assert!(lease("b", 5, 15).differs_from(&baseline) && recreated(lease("a", 5, 15)).differs_from(&baseline));
    }

    /// What may happen to a lock, in small domains so that everything meets everything.
    #[derive(Clone, Debug)]
    enum Happens {
        Shows(LeaseView, Option<&'static str>),
        Reads(LeaseRead),
        FenceCannotBeRead,
        Activates,
        Restarts,
    }

    /// A Lease with any of a few holders, one of them nobody and one unusable, and any habit of its client.
    fn any_view() -> impl Strategy<Value = LeaseView> {
        let holder = prop_oneof![1 => Just(String::new()), 4 => Just("a".into()), 3 => Just("b".into()), 1 => Just("c".into()), 1 => Just("x\n".into())];
        let time = prop::option::weighted(0.8, 0i64..4);
        (holder, prop::option::weighted(0.9, 0i32..5), time, prop_oneof![9 => Just("U1"), 1 => Just("U2")]).prop_map(
            |(holder, transitions, acquired, uid)| LeaseView {
                uid: uid.into(),
                transitions,
                acquire_time: acquired.map(at),
                ..lease(&holder, 0, 0)
            },
        )
    }

    fn any_event() -> impl Strategy<Value = Happens> {
        let pod = prop::option::of(prop_oneof![Just("pod-1"), Just("pod-2")]);
        let unread = prop_oneof![
            Just(LeaseRead::Missing),
            Just(LeaseRead::Forbidden("get".into())),
            Just(LeaseRead::Unreadable("504".into())),
            Just(LeaseRead::NoCoordinator)
        ];
        prop_oneof![
            8 => (any_view(), pod).prop_map(|(view, pod)| Happens::Shows(view, pod)),
            1 => unread.prop_map(Happens::Reads),
            1 => Just(Happens::FenceCannotBeRead),
            3 => Just(Happens::Activates),
            1 => Just(Happens::Restarts),
        ]
    }

    /// Views of one Lease in the order of their resourceVersions.
    fn rising(view: &LeaseView, version: usize) -> LeaseView {
        LeaseView { resource_version: version.to_string(), ..view.clone() }
    }

    proptest! {
        /// Invariants 1 and 2 in every history of one lock, and decisions that are their own fixpoint.
        #[test]
        fn epochs_only_rise_and_are_never_reused(history in prop::collection::vec(any_event(), 1..60)) {
            let mut lock = Lock::new();
            let mut last_issued = 0;
            for (version, event) in history.iter().enumerate() {
                let read = match event {
                    Happens::Activates => { lock.activate(); continue }
                    Happens::Restarts => { lock.remembered = None; continue }
                    Happens::FenceCannotBeRead => { lock.unreadable_fence = Some("db"); continue }
                    Happens::Shows(view, pod) => { lock.pod = *pod; LeaseRead::Found(rising(view, version)) }
                    Happens::Reads(read) => read.clone(),
                };
                let before = lock.clone();
                let decision = lock.reads(&read);
                prop_assert!(lock.epoch >= before.epoch, "status.epoch never decreases");
                prop_assert!(!decision.rolled_back, "nothing was restored");
                if let Some(grant) = &lock.grant {
                    prop_assert_eq!(Some(grant.epoch), lock.epoch, "a grant carries the newest epoch");
                }
                if decision.began.is_some() {
                    let issued = lock.grant.as_ref().unwrap();
                    prop_assert!(issued.epoch.get() > last_issued, "{} after {}", issued.epoch, last_issued);
                    prop_assert_eq!(issued.state, GrantState::Pending);
                    last_issued = issued.epoch.get();
                } else {
                    prop_assert_eq!(lock.epoch, before.epoch, "an epoch is consumed by a term and by nothing else");
                    let kept = lock.grant.as_ref().map(|g| (g.epoch, &g.holder, g.state));
                    let had = before.grant.as_ref().map(|g| (g.epoch, &g.holder, g.state));
                    prop_assert!(kept.is_none() || kept == had, "without a term the grant is kept or dropped");
                }
                prop_assert!(!lock.weighs(&read).changes(&lock.input(&read)), "the same observation again changes nothing");
                lock.remembered = lock.remembered.max(lock.epoch);
                lock.unreadable_fence = None;
            }
        }

        /// A view that does not differ from the last recorded one changes nothing, whatever was dropped in between and
        /// whenever something else (a resync, a pod, a spec) caused a reconcile: this is what lets the operator drop renewals.
        #[test]
        fn a_view_that_a_watch_drops_would_have_changed_nothing(
            history in prop::collection::vec((any_view(), prop::bool::weighted(0.2)), 1..60), known in any::<bool>(),
        ) {
            let mut lock = Lock { pod: known.then_some("pod-1"), ..Lock::new() };
            let mut compared: Option<LeaseView> = None;
            for (version, (view, by_something_else)) in history.iter().enumerate() {
                let view = rising(view, version);
                let matters = compared.as_ref().is_none_or(|earlier| view.differs_from(earlier));
                prop_assert!(matters || !lock.would_change(&view), "dropped: {view:?}\nwith: {:?}", lock.grant);
                if matters || *by_something_else {
                    lock.sees(&view);
                    compared = Some(lock.grant.as_ref().map_or_else(|| view.clone(), |grant| grant.baseline(&view)));
                }
            }
        }

        /// One client's tenure, whatever its habit, as long as it does not both count and rewrite: one epoch, and no reconcile.
        #[test]
        fn a_tenure_has_one_epoch_and_wakes_nobody(counts in any::<bool>(), steps in prop::collection::vec((-3i32..4, -3i64..4), 1..60)) {
            let first = lease("a", 50, 500);
            let mut lock = Lock::active(5, &first);
            let baseline = lock.grant.as_ref().unwrap().baseline(&first);
            let (mut transitions, mut acquired) = (50, 500);
            for (counter, time) in steps {
                if counts { transitions = (transitions + counter).max(0) } else { acquired += time }
                let renewal = lease("a", transitions, acquired);
                prop_assert!(!renewal.differs_from(&baseline));
                prop_assert_eq!(lock.sees(&renewal).began, None);
            }
        }
    }
}
