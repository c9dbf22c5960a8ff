//! Minting: the next epoch lies above everything that was ever issued for the lock (protocol section 2).
//!
//! Start with [`next`]. Never a count, a list length, a generation or `leaseTransitions` (cases B03, D11), never a clock.

use std::fmt;

use thiserror::Error;

use super::{Epoch, EpochFloor};

/// How many epochs one write of the reservation covers.
pub const BLOCK: u64 = 1_000;
/// A fence further than this above everything else is taken for a value that somebody wrote by hand.
pub const PLAUSIBLE_FENCE_LEAD: u64 = 1 << 32;
/// The largest step that the CRD accepts in `status.epoch`, except to `epochFloor + 1`.
pub const LARGEST_JUMP: u64 = 1 << 40;

/// The name of the ConfigMap of each namespace that has the reservations of its locks.
pub const RESERVATIONS: &str = "fencedlock-epochs";

/// The reservation of one lock, as it stands in the namespace's ConfigMap: `<last epoch of the block> <uid of the lock>`.
/// It outlives the FencedLock, whose status dies with it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reservation {
    /// The last epoch of the reserved block.
    pub last: u64,
    /// The uid of the FencedLock that reserved it.
    pub uid: String,
}

/// Why a reservation could not be read or raised. Minting waits: guessing could repeat an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Error)]
pub enum ReservationError {
    /// Its text is nothing that this software writes; at most 80 characters of it.
    #[error("{0:?} is not `<last epoch> <uid>`")]
    Malformed(String),
    /// A right is missing: the verb, resource and namespace.
    #[error("the operator may not {0}")]
    Forbidden(String),
    /// The API server refuses to read or write it, because it is full or immutable for instance.
    #[error("{0}")]
    Refused(String),
    /// It cannot be read or written just now.
    #[error("{0}")]
    Unavailable(String),
}

impl Reservation {
    /// Parses the ConfigMap's value.
    ///
    /// # Errors
    /// When it is anything but a number in the epochs' range, one space and a uid.
    pub fn parse(text: &str) -> Result<Self, ReservationError> {
        let error = || ReservationError::Malformed(text.chars().take(80).collect());
        let (last, uid) = text.split_once(' ').ok_or_else(error)?;
        let canonical = !last.starts_with(['0', '+']) && !uid.is_empty() && !uid.contains(char::is_whitespace);
        match last.parse::<u64>() {
            Ok(last) if canonical && last <= Epoch::MAX_VALUE => Ok(Self { last, uid: uid.to_owned() }),
            _ => Err(error()),
        }
    }

    /// What the reservation says about the lock with this uid and status: everything up to the result may have been
    /// issued. 0 when the lock's own status lies inside its own block, because then the status knows better.
    pub(super) fn floor_for(&self, uid: &str, status: Option<Epoch>) -> EpochFloor {
        let epoch = status.map_or(0, Epoch::get);
        let inside = self.last.saturating_sub(BLOCK) < epoch && epoch <= self.last;
        if self.uid == uid && inside { 0 } else { self.last }
    }
}

impl fmt::Display for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.last, self.uid)
    }
}

/// A fence that stands behind a guard that the operator installed or proved. Others do not count: anybody can write a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TrustedFence {
    /// The name of the boundary.
    pub boundary: String,
    /// The epoch that the boundary accepts now.
    pub epoch: u64,
    /// The holder that it accepts; empty is nobody.
    pub holder: String,
}

impl TrustedFence {
    /// Whether a grant with this epoch and holder can never be activated behind this fence.
    pub fn shuts_out(&self, epoch: Epoch, holder: &str) -> bool {
        self.epoch > epoch.get() || (self.epoch == epoch.get() && self.holder != holder)
    }
}

/// Everything that remembers an epoch of one lock.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// The FencedLock's uid.
    pub lock_uid: &'a str,
    /// `status.epoch`: the highest ever minted.
    pub status: Option<Epoch>,
    /// `spec.epochFloor`: a person's word.
    pub floor: EpochFloor,
    /// The reservation, `None` when there is none yet.
    pub reservation: Option<&'a Reservation>,
    /// The highest epoch that this process ever saw for the lock.
    pub remembered: Option<Epoch>,
    /// The fences behind trusted guards.
    pub fences: &'a [TrustedFence],
}

/// An epoch to be issued, and what must be written before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Minted {
    /// The epoch.
    pub epoch: Epoch,
    /// The reservation that must be recorded before the epoch is, when the present one does not cover it.
    pub reserve: Option<Reservation>,
}

/// Why no epoch can be minted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Error)]
pub enum MintError {
    /// Every epoch up to 2^53 − 1 was issued (case F08). There is no wrap.
    #[error("every epoch up to {} was issued: move the work to a lock with another name", Epoch::MAX_VALUE)]
    Exhausted,
    /// A fence is further above everything else than ownership changes can explain.
    #[error(
        "the fence of write boundary {boundary:?} is {fence}, more than 2^32 above every other source ({known}): \
         if it is right, set spec.epochFloor to {fence}"
    )]
    FenceImplausible {
        /// The boundary.
        boundary: String,
        /// Its fence.
        fence: u64,
        /// The highest epoch that anything else knows.
        known: u64,
    },
    /// The step is larger than the CRD accepts without a person's word.
    #[error("the next epoch would be {next}, more than 2^40 above status.epoch: set spec.epochFloor to {floor}", floor = next - 1)]
    JumpTooLarge {
        /// The epoch that would be next.
        next: u64,
    },
}

/// Chooses the next epoch: one above the highest of all sources.
///
/// # Errors
/// When the epochs are exhausted, or when a source is implausibly far ahead.
pub fn next(sources: &Sources<'_>) -> Result<Minted, MintError> {
    let status = sources.status.map_or(0, Epoch::get);
    let reserved = sources.reservation.map_or(0, |r| r.floor_for(sources.lock_uid, sources.status));
    let known = [status, sources.floor, reserved, sources.remembered.map_or(0, Epoch::get)].into_iter().max().unwrap_or(0);
    let mut highest = known;
    for fence in sources.fences {
        if fence.epoch > known.saturating_add(PLAUSIBLE_FENCE_LEAD) {
            return Err(MintError::FenceImplausible { boundary: fence.boundary.clone(), fence: fence.epoch, known });
        }
        highest = highest.max(fence.epoch);
    }
    let epoch = highest.checked_add(1).and_then(|n| Epoch::new(n).ok()).ok_or(MintError::Exhausted)?;
    if epoch.get() > status.saturating_add(LARGEST_JUMP) && epoch.get() != sources.floor + 1 {
        return Err(MintError::JumpTooLarge { next: epoch.get() });
    }
    let covered = sources.reservation.is_some_and(|r| r.uid == sources.lock_uid && epoch.get() <= r.last);
    let reserve =
        (!covered).then(|| Reservation { last: (epoch.get() + BLOCK - 1).min(Epoch::MAX_VALUE), uid: sources.lock_uid.to_owned() });
    Ok(Minted { epoch, reserve })
}

/// The uid in a reservation that no lock's own status may overrule.
const NO_LOCK: &str = "retired-boundary";

/// The reservation that keeps the fence of a boundary that is going away, when nothing else would keep the next epoch
/// above it. It carries no lock's uid, so that the lock continues above the whole of it.
pub fn retire(fence: EpochFloor, lock_uid: &str, status: Option<Epoch>, reservation: Option<&Reservation>) -> Option<Reservation> {
    let kept_by_status = fence <= status.map_or(0, Epoch::get);
    let kept_by_reservation = reservation.is_some_and(|r| fence <= r.floor_for(lock_uid, status));
    (!kept_by_status && !kept_by_reservation)
        .then(|| Reservation { last: fence.max(reservation.map_or(0, |r| r.last)).min(Epoch::MAX_VALUE), uid: NO_LOCK.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sources(status: u64, reservation: Option<&Reservation>) -> Sources<'_> {
        Sources { lock_uid: "me", status: Epoch::new(status).ok(), floor: 0, reservation, remembered: None, fences: &[] }
    }

    fn fence(epoch: u64) -> TrustedFence {
        TrustedFence { boundary: "db".into(), epoch, holder: "a".into() }
    }

    fn block(last: u64, uid: &str) -> Reservation {
        Reservation { last, uid: uid.into() }
    }

    #[test]
    fn the_first_epoch_is_one_and_reserves_a_block() {
        let minted = next(&sources(0, None)).unwrap();
        assert_eq!(minted, Minted { epoch: Epoch::FIRST, reserve: Some(block(1_000, "me")) });
    }

    #[test]
    fn a_block_is_written_once_in_a_thousand_terms() {
        let mut reservation: Option<Reservation> = None;
        let mut status = 0;
        let mut writes = 0;
        for expected in 1..=3_000 {
            let minted = next(&sources(status, reservation.as_ref())).unwrap();
            assert_eq!(minted.epoch.get(), expected);
            if let Some(block) = minted.reserve {
                reservation = Some(block);
                writes += 1;
            }
            status = expected;
        }
        assert_eq!(writes, 3);
    }

    /// B05: the counter survives deletion and recreation of the FencedLock, and a status that went back.
    #[test]
    fn a_recreated_lock_continues_above_the_block_of_its_predecessor() {
        assert_eq!(next(&sources(0, Some(&block(1_000, "other")))).unwrap().epoch.get(), 1_001);
        assert_eq!(next(&sources(0, Some(&block(1_000, "me")))).unwrap().epoch.get(), 1_001);
        assert_eq!(next(&sources(40, Some(&block(2_000, "me")))).unwrap().epoch.get(), 2_001, "the status went back");
        assert_eq!(next(&sources(1_040, Some(&block(2_000, "me")))).unwrap().epoch.get(), 1_041, "inside its own block");
        assert_eq!(next(&sources(40, Some(&block(1_000, "other")))).unwrap().reserve, Some(block(2_000, "me")));
    }

    /// D11: gaps in the history are no reason to reuse a number; D06: a fence that is ahead is respected.
    #[test]
    fn the_next_epoch_is_one_above_the_maximum_never_a_count() {
        let fences = [fence(57)];
        let reservation = block(1_000, "me");
        let all = Sources { floor: 12, remembered: Epoch::new(44).ok(), fences: &fences, ..sources(40, Some(&reservation)) };
        assert_eq!(next(&all).unwrap().epoch.get(), 58);
        assert_eq!(next(&Sources { fences: &[], ..all }).unwrap().epoch.get(), 45);
        assert_eq!(next(&Sources { fences: &[], floor: 900, ..all }).unwrap().epoch.get(), 901);
    }

    #[test]
    fn one_absurd_fence_does_not_exhaust_a_lock() {
        let fences = [fence(7 + (1 << 32) + 1)];
        let absurd = Sources { fences: &fences, ..sources(7, None) };
        assert!(matches!(next(&absurd), Err(MintError::FenceImplausible { known: 7, .. })));
        let said_by_a_person = Sources { floor: fences[0].epoch, ..absurd };
        assert_eq!(next(&said_by_a_person).unwrap().epoch.get(), fences[0].epoch + 1);
        let plausible = [fence(7 + (1 << 32))];
        assert_eq!(next(&Sources { fences: &plausible, ..absurd }).unwrap().epoch.get(), 8 + (1 << 32));
    }

    #[test]
    fn a_step_that_the_crd_refuses_is_named_before_it_is_tried() {
        let far = block((1 << 41) + 5, "other");
        let step = sources(0, Some(&far));
        assert_eq!(next(&step), Err(MintError::JumpTooLarge { next: (1 << 41) + 6 }));
        let raised = Sources { floor: far.last, ..step };
        assert_eq!(next(&raised).unwrap().epoch.get(), far.last + 1);
    }

    /// F08: at the end there is a clear answer and no wrap.
    #[test]
    fn the_last_epoch_is_issued_and_then_none() {
        let last = block(Epoch::MAX_VALUE, "me");
        let minted = next(&sources(Epoch::MAX_VALUE - 1, Some(&last))).unwrap();
        assert_eq!(minted.epoch, Epoch::LAST);
        assert_eq!(next(&sources(Epoch::MAX_VALUE, Some(&last))), Err(MintError::Exhausted));
        assert_eq!(next(&sources(0, Some(&block(Epoch::MAX_VALUE, "other")))), Err(MintError::Exhausted));
    }

    #[test]
    fn a_reservation_that_cannot_be_read_is_an_error_not_a_zero() {
        assert_eq!(Reservation::parse("1000 uid-1").unwrap(), block(1_000, "uid-1"));
        assert_eq!(block(1_000, "uid-1").to_string(), "1000 uid-1");
        for text in ["", "1000", "1000 ", " uid", "x uid", "01 uid", "+1 uid", "-1 uid", "0 uid", "1  uid", "9007199254740992 uid", "1 u v"]
        {
            assert!(Reservation::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_boundary_that_goes_away_leaves_its_fence_in_the_reservation() {
        let status = Epoch::new(40).ok();
        for (fence, before) in
            [(57, None), (57, Some(block(1_000, "me"))), (1_500, Some(block(1_000, "me"))), (57, Some(block(50, "other")))]
        {
            let after = retire(fence, "me", status, before.as_ref()).unwrap();
            assert!(next(&sources(40, Some(&after))).unwrap().epoch.get() > fence, "{fence} {before:?}");
            assert!(after.last >= before.map_or(0, |r| r.last), "a reservation is never lowered");
        }
        assert_eq!(retire(40, "me", status, None), None, "the status keeps it");
        assert_eq!(retire(57, "me", status, Some(&block(1_000, "other"))), None, "the reservation keeps it");
    }

    proptest! {
        /// Invariant 1: whatever the sources say, the next epoch is above each of them, or there is none.
        #[test]
        fn the_next_epoch_is_above_every_source(
            status in 0..Epoch::MAX_VALUE, floor in 0u64..(1 << 52), last in 1..Epoch::MAX_VALUE, own in any::<bool>(),
            remembered in 0..Epoch::MAX_VALUE, fence in 0..Epoch::MAX_VALUE,
        ) {
            let reservation = block(last, if own { "me" } else { "other" });
            let fences = [super::tests::fence(fence)];
            let all = Sources {
                floor, remembered: Epoch::new(remembered).ok(), fences: &fences, ..sources(status, Some(&reservation))
            };
            if let Ok(minted) = next(&all) {
                let n = minted.epoch.get();
                prop_assert!(n > status && n > floor && n > remembered && n > fence);
                let status_knows = own && last.saturating_sub(BLOCK) < status && status <= last;
                prop_assert!(n > last || status_knows);
                prop_assert!(minted.reserve.as_ref().map_or(last, |r| r.last) >= n, "reserved before it is issued");
            }
        }

        /// A crash at any point between reservation and status never leads to a second issue of an epoch, also not when the
        /// lock is deleted and recreated there.
        #[test]
        fn no_interleaving_of_crashes_and_recreations_repeats_an_epoch(steps in prop::collection::vec(0u8..4, 1..200)) {
            let mut reservation: Option<Reservation> = None;
            let (mut status, mut life) = (None, 0);
            let mut issued = std::collections::BTreeSet::new();
            for step in steps {
                let uid = format!("life-{life}");
                let minted = next(&Sources { lock_uid: &uid, status, ..sources(0, reservation.as_ref()) }).unwrap();
                if step > 0 && let Some(block) = minted.reserve.clone() {
                    reservation = Some(block);
                }
                let reserved = minted.reserve.is_none() || step > 0;
                if step > 1 && reserved {
                    prop_assert!(issued.insert(minted.epoch.get()), "{} was issued twice", minted.epoch);
                    prop_assert!(issued.last() == Some(&minted.epoch.get()), "{} is not the highest", minted.epoch);
                    status = Some(minted.epoch);
                }
                if step == 3 {
                    (status, life) = (None, life + 1);
                }
            }
        }
    }
}
