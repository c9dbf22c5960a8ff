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

/// A pod that was not known when the epoch was minted is recorded once it is, so that its successor can be told from it.
fn resolved(grant: &Grant, pod_uid: Option<&str>) -> Grant {
    let mut grant = grant.clone();
    if grant.term.pod_uid.is_none() {
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
