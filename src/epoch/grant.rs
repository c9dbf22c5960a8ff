//! Grants: which epoch the present holder has, and whether it may use it (protocol sections 2 and 3).
//!
//! Start with [`decide`]: from what the lock's status remembers and what the Lease shows to the next epoch and grant.
//! The caller records the answer by compare-and-swap, activates, and calls [`Grant::activated`].

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Epoch, EpochFloor, Holder, HolderError,
    mint::{self, MintError, Minted, Reservation, ReservationError, Sources, TrustedFence},
    recorded::Recorded,
    revoke::{Revocation, RevocationStatus},
    term::{self, LeaseView, Record, Step, Term, TermRule},
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
        self.record().baseline(reconciled)
    }

    /// Whether the Lease is the one of this grant, by its uid, and names its holder.
    pub fn is_of(&self, lease: &LeaseView) -> bool {
        self.record().is_of(lease)
    }

    pub(super) fn record(&self) -> Record<'_> {
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
    /// `spec.revoke`.
    pub revoke: Option<&'a Revocation>,
    /// `status.revoked`.
    pub revoked: Option<&'a RevocationStatus>,
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

impl<'a> Input<'a> {
    fn recorded(&self) -> Option<Recorded<'a>> {
        Recorded::of(self.grant, self.revoked)
    }
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
    /// The holder's term was revoked: only a new one gets a grant.
    Revoked,
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
    /// The next `status.revoked`. One that was just minted is `Pending`.
    pub revoked: Option<RevocationStatus>,
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
    /// What the next status records of the owner.
    pub fn recorded(&self) -> Option<Recorded<'_>> {
        Recorded::of(self.grant.as_ref(), self.revoked.as_ref())
    }

    /// Whether carrying this out would change the lock's epoch or grant. Then it must rest on uncached reads.
    pub fn changes(&self, input: &Input<'_>) -> bool {
        self.epoch != input.epoch || self.grant.as_ref() != input.grant || self.revoked.as_ref() != input.revoked || self.rolled_back
    }
}

/// Decides about epoch and grant. `now` only stamps a new grant.
///
/// The same term keeps the recorded epoch, through retries and restarts; a new term gets a new one; nobody gets none and
/// leaves the epoch as the floor. What cannot be read changes nothing (case G09: the epoch is frozen, not reset). A term that is revoked
/// loses its grant to an epoch of nobody, and gets no other one.
///
/// # Warning
/// When the answer is to be carried out, the lock must have been read **before** the Lease and everything else. The other way
/// round, a grant that another replica recorded in between looks newer than the Lease, and a roll-back is reported that
/// never was.
pub fn decide(input: &Input<'_>, now: &Time) -> Decision {
    if let Some((revocation, rolled_back)) = to_revoke(input) {
        return revoke(input, revocation, rolled_back);
    }
    let lease = match input.lease {
        LeaseRead::Found(lease) => lease,
        LeaseRead::Missing => return ended(input, Standing::LeaseMissing),
        LeaseRead::NoCoordinator => return without_grant(input, Standing::NoCoordinator),
        LeaseRead::Forbidden(what) => return frozen(input, Standing::Forbidden(what.clone())),
        LeaseRead::Unreadable(why) => return frozen(input, Standing::LeaseUnreadable(why.clone())),
    };
    if let Some(older) = input.shared_with {
        return without_grant(input, Standing::LeaseShared(older.to_owned()));
    }
    let rolled_back = rolled_back(input, lease);
    let refuse = |standing| Decision { rolled_back, ..ended(input, standing) };
    let holder = match &lease.holder {
        Ok(Some(holder)) => holder,
        Ok(None) => return refuse(Standing::Released),
        Err(error) => return refuse(Standing::HolderUnusable(error.clone())),
    };
    let step = if rolled_back { Step::Begins(TermRule::RolledBack) } else { term::step(record(input), holder, lease, input.pod_uid) };
    match (step, input.grant) {
        (Step::Continues, None) => without_grant(input, Standing::Revoked),
        (Step::Begins(rule), _) => begin(input, rule, holder, lease, rolled_back, now),
        (Step::Continues, Some(grant)) => Decision { grant: Some(resolved(grant, input.pod_uid)), ..frozen(input, Standing::Granted) },
    }
}

/// What the present holder and Lease are compared with.
fn record<'a>(input: &Input<'a>) -> Option<Record<'a>> {
    input.recorded().and_then(Recorded::record)
}

/// What has to be revoked now, and whether something went back: the grant that `spec.revoke` names, unless the Lease names a later term
/// already, whose epoch fences it as well; or a revoked term that goes on while something remembers more than its epoch. Its epoch and state
/// are [`revoke`]'s to set.
fn to_revoke(input: &Input<'_>) -> Option<(RevocationStatus, bool)> {
    let continues = |record: Record<'_>, lease: &LeaseView| match &lease.holder {
        Ok(Some(holder)) => Some(term::step(Some(record), holder, lease, input.pod_uid) == Step::Continues),
        Ok(None) | Err(_) => None,
    };
    if let Some((asked, grant)) = input.revoke.zip(input.grant).filter(|(asked, grant)| asked.names(grant)) {
        let ended = match input.lease {
            LeaseRead::Found(lease) => match continues(grant.record(), lease) {
                Some(false) if input.shared_with.is_none() => return None,
                // Of another Lease nothing is learnt about this term.
                continues => continues != Some(true) && lease.uid == grant.term.lease_uid,
            },
            LeaseRead::Missing | LeaseRead::Forbidden(_) | LeaseRead::Unreadable(_) | LeaseRead::NoCoordinator => false,
        };
        let revocation = RevocationStatus {
            epoch: grant.epoch,
            state: GrantState::Pending,
            holder: grant.holder.clone(),
            term: grant.term.clone(),
            same_holder_steps: grant.same_holder_steps,
            ended,
            reason: asked.reason.clone(),
        };
        let LeaseRead::Found(lease) = input.lease else { return Some((revocation, false)) };
        let rolled_back = rolled_back(input, lease);
        return Some((if rolled_back { seen_now(revocation, lease) } else { revocation }, rolled_back));
    }
    let LeaseRead::Found(lease) = input.lease else { return None };
    if let Some(revoked) = input.revoked {
        let goes_on = !revoked.ended && continues(revoked.record(), lease) == Some(true);
        return (goes_on && rolled_back(input, lease)).then(|| (seen_now(revoked.clone(), lease), true));
    }
    // A lock that was created anew remembers nothing, and its request may have come with it.
    let asked = input.revoke.filter(|asked| input.epoch.is_none() && input.grant.is_none() && asked.shows(lease, input.pod_uid))?;
    let Ok(Some(holder)) = &lease.holder else { return None };
    let revocation = RevocationStatus {
        epoch: Epoch::FIRST,
        state: GrantState::Pending,
        holder: holder.clone(),
        term: lease.term(input.pod_uid),
        same_holder_steps: 0,
        ended: false,
        reason: asked.reason.clone(),
    };
    Some((revocation, false))
}

/// With the Lease as it is seen now: what was older than its record is not older than that.
fn seen_now(revocation: RevocationStatus, lease: &LeaseView) -> RevocationStatus {
    let is_of = revocation.term.lease_uid == lease.uid;
    let version = if is_of { &lease.resource_version } else { &revocation.term.resource_version };
    let term = Term { resource_version: version.clone(), ..revocation.term.clone() };
    RevocationStatus { term, ..revocation }
}

/// Mints an epoch for nobody. While that is not possible the grant stays: without its record the same term would be taken for a new one.
fn revoke(input: &Input<'_>, revocation: RevocationStatus, rolled_back: bool) -> Decision {
    match mint(input) {
        Err(standing) => Decision { rolled_back, ..frozen(input, standing) },
        Ok(minted) => Decision {
            epoch: Some(minted.epoch),
            grant: None,
            revoked: Some(RevocationStatus { epoch: minted.epoch, state: GrantState::Pending, ..revocation }),
            reserve: minted.reserve,
            began: None,
            standing: Standing::Revoked,
            rolled_back,
        },
    }
}

/// Begins a term: mints an epoch, or says why that is not possible. The previous owner's grant is gone in either case,
/// because the Lease names another term.
fn begin(input: &Input<'_>, rule: TermRule, holder: &Holder, lease: &LeaseView, rolled_back: bool, now: &Time) -> Decision {
    let minted = match mint(input) {
        Ok(minted) => minted,
        Err(standing) => return Decision { rolled_back, ..ended(input, standing) },
    };
    let same_holder_steps = match (rule, record(input)) {
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
        revoked: None,
        reserve: minted.reserve,
        began: Some(rule),
        standing: Standing::Granted,
        rolled_back,
    }
}

/// The next epoch, or why there is none.
fn mint(input: &Input<'_>) -> Result<Minted, Standing> {
    if let Some((boundary, why)) = input.unreadable_fence {
        return Err(Standing::FenceUnreadable { boundary: boundary.to_owned(), why: why.to_owned() });
    }
    let reservation = input.reservation.as_ref().map_err(|error| Standing::ReservationUnreadable(error.clone()))?;
    let sources = Sources {
        lock_uid: input.lock_uid,
        status: input.epoch,
        floor: input.floor,
        reservation: reservation.as_ref(),
        remembered: input.remembered,
        fences: input.fences,
    };
    mint::next(&sources).map_err(Standing::NotMinted)
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
    let read_is_old = record(input).is_some_and(|record| term::is_older(lease, record.term));
    let memory_is_ahead = input.remembered.is_some_and(|epoch| epoch.get() > status);
    let fence_is_ahead = input.epoch.is_some()
        && input
            .fences
            .iter()
            .any(|fence| fence.epoch > status || input.recorded().is_some_and(|owner| fence.shuts_out(owner.epoch(), owner.holder())));
    read_is_old || memory_is_ahead || fence_is_ahead
}

fn without_grant(input: &Input<'_>, standing: Standing) -> Decision {
    Decision { grant: None, ..frozen(input, standing) }
}

/// Nobody that is known here has an epoch. That a revoked term has ended is known from its own Lease only.
fn ended(input: &Input<'_>, standing: Standing) -> Decision {
    let is_of = |revoked: &RevocationStatus| matches!(input.lease, LeaseRead::Found(lease) if lease.uid == revoked.term.lease_uid);
    let revoked = input.revoked.map(|revoked| RevocationStatus { ended: revoked.ended || is_of(revoked), ..revoked.clone() });
    Decision { revoked, ..without_grant(input, standing) }
}

fn frozen(input: &Input<'_>, standing: Standing) -> Decision {
    Decision {
        epoch: input.epoch,
        grant: input.grant.cloned(),
        revoked: input.revoked.cloned(),
        reserve: None,
        began: None,
        standing,
        rolled_back: false,
    }
}

#[cfg(test)]
mod tests {
    use super::{super::term::MAX_SAME_HOLDER_STEPS, *};
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
        revoke: Option<Revocation>,
        revoked: Option<RevocationStatus>,
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
                revoke: None,
                revoked: None,
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
                revoke: self.revoke.as_ref(),
                revoked: self.revoked.as_ref(),
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
            self.revoked.clone_from(&decision.revoked);
            decision
        }

        fn sees(&mut self, view: &LeaseView) -> Decision {
            self.reads(&LeaseRead::Found(view.clone()))
        }

        fn activate(&mut self) {
            self.grant = self.grant.as_ref().map(|grant| grant.activated(Time(at(2_000))));
            self.revoked = self.revoked.as_ref().map(RevocationStatus::activated);
        }

        /// A person asks for the present grant to be revoked, as the CLI does.
        fn is_to_be_revoked(&mut self) {
            self.revoke = self.grant.as_ref().map(|grant| Revocation::of(grant, "it runs away"));
        }

        /// What a watch compares later views with, as the operator asks for it.
        fn baseline(&self, view: &LeaseView) -> LeaseView {
            Recorded::of(self.grant.as_ref(), self.revoked.as_ref()).map_or_else(|| view.clone(), |recorded| recorded.baseline(view))
        }

        /// The epoch of nobody, and whether the revoked term has ended.
        fn nobody(&self) -> Option<(u64, bool)> {
            self.revoked.as_ref().map(|revoked| (revoked.epoch.get(), revoked.ended))
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

    /// E05: the lease of the old owner had not expired and was renewed a second ago. It is an ownership change all the same: nothing here knows
    /// when a lease expires.
    #[test]
    fn an_owner_that_renewed_a_moment_ago_is_succeeded_like_any_other() {
        let renewed = |view: LeaseView, second| LeaseView { renew_time: Some(at(second)), duration_seconds: Some(3_600), ..view };
        let mut lock = Lock::active(7, &renewed(lease("a", 0, 10), 999));
        lock.sees(&renewed(lease("b", 1, 1_000), 1_000));
        assert_eq!(lock.granted(), granted(8, "b"));
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

    /// B05, E02: the Lease is deleted, then created by another holder or by the same one; the old one may still believe that it holds it.
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

    /// B05, E06: a lock without any status is new or recreated, or its numbers began anew; a fence above it is history and no roll-back. The fence is
    /// never lowered to it.
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

    // --- Revocation ---

    #[test]
    fn a_revoked_term_is_fenced_by_an_epoch_of_nobody_and_never_gets_another() {
        let a = lease("a", 3, 10);
        let mut lock = Lock::active(7, &a);
        lock.is_to_be_revoked();
        let decision = lock.sees(&a);
        assert_eq!((lock.granted(), lock.nobody(), decision.standing), (None, Some((8, false)), Standing::Revoked));
        assert_eq!(lock.revoked.as_ref().unwrap().state, GrantState::Pending, "some boundary may still admit a");
        lock.activate();
        // It renews, by any habit of a client, and also when the request is taken back.
        lock.revoke = None;
        for renewal in [a.clone(), lease("a", 3, 11), lease("a", 9, 10), lease("a", 0, 99)] {
            let decision = lock.sees(&renewal);
            assert_eq!((lock.granted(), lock.nobody(), decision.standing), (None, Some((8, false)), Standing::Revoked));
            assert!(!lock.would_change(&renewal));
        }
        for next in [lease("b", 4, 20), lease("a", 4, 20), recreated(a.clone())] {
            let mut lock = lock.clone();
            assert!(lock.sees(&next).began.is_some());
            assert_eq!((lock.granted().map(|(epoch, _)| epoch), lock.nobody()), (Some(9), None));
        }
    }

    /// The way back in: give the Lease up and take it anew, also with a client that changes nothing but the holder.
    #[test]
    fn a_revoked_owner_gets_in_again_with_a_new_term() {
        let a = lease("a", 3, 10);
        let mut lock = Lock::active(7, &a);
        lock.is_to_be_revoked();
        lock.sees(&a);
        assert_eq!(lock.sees(&lease("", 3, 10)).standing, Standing::Released);
        assert_eq!(lock.nobody(), Some((8, true)), "what it left behind stays fenced, and is still to be told");
        let again = rising(&a, 200);
        lock.sees(&again);
        lock.sees(&again);
        assert_eq!((lock.granted(), lock.nobody()), (granted(9, "a"), None), "spec.revoke is about another grant");
        // Another pod behind the same name is another term, also when nothing else has changed.
        let mut lock = Lock { pod: Some("pod-1"), ..Lock::at(4) };
        lock.sees(&a);
        lock.is_to_be_revoked();
        lock.sees(&a);
        lock.pod = Some("pod-2");
        lock.sees(&a);
        lock.sees(&a);
        assert_eq!((lock.granted(), lock.nobody()), (granted(7, "a"), None));
    }

    /// Another Lease says nothing about the term, whether it is there or not.
    #[test]
    fn a_look_at_another_lease_ends_no_revocation() {
        let a = lease("a", 3, 10);
        for elsewhere in [LeaseRead::Missing, LeaseRead::Found(recreated(lease("", 0, 0))), LeaseRead::Found(recreated(lease("x\n", 0, 0)))]
        {
            let mut lock = Lock::active(7, &a);
            lock.is_to_be_revoked();
            lock.sees(&a);
            lock.reads(&elsewhere);
            assert_eq!(lock.sees(&a).standing, Standing::Revoked, "{elsewhere:?}");
            assert_eq!((lock.granted(), lock.nobody()), (None, Some((8, false))));
        }
    }

    /// A FencedLock that is deleted and created again with its request has no status, and the Lease shows the same term.
    #[test]
    fn a_recreated_lock_carries_its_request_out() {
        let a = lease("a", 3, 10);
        let mut lock = Lock::active(7, &a);
        lock.is_to_be_revoked();
        let mut again = Lock { revoke: lock.revoke.clone(), reservation: lock.reservation.clone(), ..Lock::new() };
        again.sees(&rising(&a, 700));
        assert_eq!((again.granted(), again.nobody().map(|(_, ended)| ended)), (None, Some(false)));
        assert_eq!(again.sees(&rising(&a, 701)).standing, Standing::Revoked);
        let mut other = Lock { revoke: lock.revoke, ..Lock::new() };
        other.sees(&lease("a", 4, 30));
        assert_eq!(other.granted(), granted(1, "a"), "another term");
    }

    /// A client that counts and rewrites at each renewal must not come back by that.
    #[test]
    fn a_revoked_client_that_ran_out_of_terms_stays_out() {
        let mut lock = Lock::active(5, &lease("a", 0, 10));
        for renewal in 1..5 {
            lock.sees(&lease("a", renewal, 10 + i64::from(renewal)));
        }
        lock.is_to_be_revoked();
        for renewal in 5..9 {
            lock.sees(&lease("a", renewal, 10 + i64::from(renewal)));
            assert_eq!((lock.granted(), lock.nobody()), (None, Some((9, false))));
        }
    }

    #[test]
    fn a_revocation_needs_no_lease_and_gives_way_to_a_later_term() {
        let a = lease("a", 3, 10);
        for (read, ended) in [
            (LeaseRead::Forbidden("get".into()), false),
            (LeaseRead::Unreadable("504".into()), false),
            (LeaseRead::Missing, false),
            (LeaseRead::Found(recreated(lease("", 3, 10))), false),
            (LeaseRead::Found(lease("", 3, 10)), true),
            (LeaseRead::Found(lease("x\n", 4, 20)), true),
        ] {
            let mut lock = Lock::active(7, &a);
            lock.is_to_be_revoked();
            lock.reads(&read);
            assert_eq!((lock.granted(), lock.nobody()), (None, Some((8, ended))), "{read:?}");
        }
        let mut lock = Lock::active(7, &a);
        lock.is_to_be_revoked();
        lock.sees(&lease("b", 4, 20));
        assert_eq!((lock.granted(), lock.nobody()), (granted(8, "b"), None), "its epoch fences a as well");
    }

    /// While no epoch can be minted the grant stays: without its record the same term would get another one.
    #[test]
    fn a_revocation_waits_for_an_epoch_with_the_grant_in_place() {
        let a = lease("a", 3, 10);
        let mut lock = Lock { unreadable_fence: Some("db"), ..Lock::active(7, &a) };
        lock.is_to_be_revoked();
        assert!(matches!(lock.sees(&a).standing, Standing::FenceUnreadable { .. }));
        assert_eq!((lock.granted(), lock.nobody()), (granted(7, "a"), None));
        lock.unreadable_fence = None;
        lock.sees(&a);
        assert_eq!((lock.granted(), lock.nobody()), (None, Some((8, false))));
    }

    /// E01: a fence that is ahead of the epoch of nobody gets the next one, and the revoked term still none.
    #[test]
    fn a_revoked_term_gets_no_grant_from_a_restore() {
        let a = lease("a", 3, 10);
        let mut lock = Lock::active(7, &a);
        lock.is_to_be_revoked();
        lock.sees(&a);
        lock.activate();
        lock = lock.behind(40, "c");
        assert!(lock.sees(&a).rolled_back);
        assert_eq!((lock.granted(), lock.nobody()), (None, Some((41, false))));
        assert_eq!(lock.revoked.as_ref().unwrap().state, GrantState::Pending);
        lock.sees(&lease("b", 4, 20));
        assert_eq!((lock.granted(), lock.nobody()), (granted(42, "b"), None));
        // A Lease that is older than the record of it asks for one more epoch, and not for one at each look.
        let mut lock = Lock::active(7, &rising(&a, 500));
        lock.is_to_be_revoked();
        lock.sees(&rising(&a, 500));
        let old = rising(&a, 420);
        assert!(lock.sees(&old).rolled_back);
        assert_eq!(lock.nobody(), Some((9, false)));
        assert!(!lock.would_change(&old));
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
        IsToBeRevoked,
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
            2 => Just(Happens::IsToBeRevoked),
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
                    Happens::IsToBeRevoked => { lock.is_to_be_revoked(); continue }
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
                } else if lock.epoch != before.epoch {
                    let nobody = lock.revoked.as_ref().expect("an epoch is consumed by a term or a revocation, and by nothing else");
                    let had = before.grant.as_ref().expect("a grant was revoked");
                    prop_assert!(lock.revoke.as_ref().is_some_and(|asked| asked.names(had)));
                    prop_assert!(Some(nobody.epoch) == lock.epoch && nobody.epoch.get() > last_issued && lock.grant.is_none());
                    last_issued = nobody.epoch.get();
                } else {
                    let kept = lock.grant.as_ref().map(|g| (g.epoch, &g.holder, g.state));
                    let had = before.grant.as_ref().map(|g| (g.epoch, &g.holder, g.state));
                    prop_assert!(kept.is_none() || kept == had, "without a term the grant is kept or dropped");
                }
                prop_assert!(lock.grant.is_none() || lock.revoked.is_none(), "a term that is revoked has no grant beside it");
                if let (Some(had), Some(now)) = (&before.revoked, &lock.grant) {
                    let same = term::step(Some(had.record()), &now.holder, match &read { LeaseRead::Found(view) => view, _ => unreachable!() }, lock.pod);
                    prop_assert!(had.ended || same != Step::Continues, "the same term never gets another grant");
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
            history in prop::collection::vec((any_view(), prop::bool::weighted(0.2), prop::bool::weighted(0.1)), 1..60), known in any::<bool>(),
        ) {
            let mut lock = Lock { pod: known.then_some("pod-1"), ..Lock::new() };
            let mut compared: Option<LeaseView> = None;
            for (version, (view, by_something_else, revokes)) in history.iter().enumerate() {
                if *revokes && let Some(last) = &compared {
                    // A change of the declaration causes a reconcile, on the view that is known.
                    let last = rising(last, version);
                    lock.is_to_be_revoked();
                    lock.sees(&last);
                    compared = Some(lock.baseline(&last));
                }
                let view = rising(view, version);
                let matters = compared.as_ref().is_none_or(|earlier| view.differs_from(earlier));
                prop_assert!(matters || !lock.would_change(&view), "dropped: {view:?}\nwith: {:?}", lock.grant);
                if matters || *by_something_else {
                    lock.sees(&view);
                    compared = Some(lock.baseline(&view));
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
