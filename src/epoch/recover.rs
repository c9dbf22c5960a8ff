//! What has to be done after something was restored (protocol section 5): which side is behind, and above what the next epoch has to lie. Pure.
//!
//! Start with [`plan`]. What must not come in: lowering anything.

use std::fmt;

use thiserror::Error;

use super::{
    Epoch, EpochFloor,
    mint::{self, MintError, Reservation, Sources, TrustedFence},
    recorded::Recorded,
};

/// How many epochs are left out above everything that is known, for those that were issued after the backup and that nothing remembers: more than a
/// change of owner in each second of eleven days.
pub const MARGIN: u64 = 1_000_000;
/// The highest `spec.epochFloor` that the API accepts.
pub const MAX_FLOOR: EpochFloor = 1 << 52;

/// A boundary and its fence, as the operator saw it last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The boundary.
    pub name: String,
    /// Its fence, and who is admitted there; `None` when there is none.
    pub fence: Option<(Epoch, String)>,
    /// Whether it can have one.
    pub has_fence: bool,
}

/// Everything that remembers an epoch of a lock.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The FencedLock's uid.
    pub lock_uid: &'a str,
    /// `status.epoch`.
    pub epoch: Option<Epoch>,
    /// `spec.epochFloor`.
    pub floor: EpochFloor,
    /// The reservation.
    pub reservation: Option<&'a Reservation>,
    /// The grant, or the revocation that took its place.
    pub recorded: Option<Recorded<'a>>,
    /// The boundaries.
    pub boundaries: &'a [Seen],
    /// An epoch that somebody knows of otherwise: from a log, a row, another cluster.
    pub above: u64,
    /// How many are left out above all of them.
    pub margin: u64,
}

/// A sign that something is behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sign {
    /// A boundary's fence is above the lock's status: Kubernetes was restored.
    KubernetesBehind(String),
    /// The status is not what its own reservation says: it went back, or the FencedLock was created anew.
    StatusBehind,
    /// The reservation is below the status, or gone: its ConfigMap was restored or deleted.
    ReservationBehind,
    /// A boundary is below the lock's epoch: the receiver was restored.
    BoundaryBehind(String),
}

impl fmt::Display for Sign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KubernetesBehind(name) => {
                write!(f, "the fence of {name:?} is above status.epoch: Kubernetes was restored, or the FencedLock created anew")
            }
            Self::StatusBehind => f.write_str(
                "status.epoch is not in the block that is reserved for it: the status went back, or the FencedLock was created anew",
            ),
            Self::ReservationBehind => {
                f.write_str("the reservation is below status.epoch, or gone: ConfigMap fencedlock-epochs was restored or deleted")
            }
            Self::BoundaryBehind(name) => {
                write!(f, "the fence of {name:?} is below the lock's epoch: that receiver was restored, or was not activated so far")
            }
        }
    }
}

/// What has to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What is seen to be behind. Empty: all sides agree, because nothing was restored, or everything was, together, or because the operator has not
    /// looked at a boundary since. The floor does not depend on it: the fences are read once more when an epoch is minted.
    pub signs: Vec<Sign>,
    /// The highest epoch that anything remembers.
    pub known: u64,
    /// The next `spec.epochFloor`.
    pub floor: EpochFloor,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RecoverError {
    /// What is known does not let an epoch be minted either: a fence is implausibly far ahead, for one.
    #[error(transparent)]
    NotMinted(#[from] MintError),
    /// There is no room above what is known.
    #[error(
        "the next epochs would lie above {known} by {margin}, and spec.epochFloor ends at 2^52: use a smaller --margin, or move the work to a lock with another name"
    )]
    Exhausted {
        /// The highest epoch known.
        known: u64,
        /// What was to be left out.
        margin: u64,
    },
}

/// What has to be done about a lock after a restore. Nothing is ever lowered.
///
/// # Errors
/// When there is no room above what is known, or when no epoch would be minted from it: see [`mint::next`], whose rule about what counts this is.
pub fn plan(facts: &Facts<'_>) -> Result<Plan, RecoverError> {
    let status = facts.epoch.map_or(0, Epoch::get);
    let reserved = facts.reservation.map_or(0, |reservation| reservation.last);
    let mut signs = Vec::new();
    // An owner that is being activated says nothing about where its boundaries are. Without any, they are where the last one was.
    let expected = match facts.recorded {
        Some(recorded) => recorded.is_active().then(|| recorded.epoch().get()),
        None => Some(status),
    };
    for boundary in facts.boundaries.iter().filter(|boundary| boundary.has_fence) {
        let fence = boundary.fence.as_ref().map_or(0, |(fence, _)| fence.get());
        if fence > status {
            signs.push(Sign::KubernetesBehind(boundary.name.clone()));
        } else if expected.is_some_and(|expected| fence < expected) {
            signs.push(Sign::BoundaryBehind(boundary.name.clone()));
        }
    }
    match facts.reservation {
        Some(reservation) if reservation.last < status => signs.push(Sign::ReservationBehind),
        // What is above the block's beginning is this lock's own.
        Some(reservation) if reservation.floor_for(facts.lock_uid, facts.epoch) > 0 => signs.push(Sign::StatusBehind),
        None if status > 0 => signs.push(Sign::ReservationBehind),
        _ => {}
    }
    let fences: Vec<_> = facts
        .boundaries
        .iter()
        .filter_map(|boundary| {
            let (fence, holder) = boundary.fence.as_ref()?;
            Some(TrustedFence { boundary: boundary.name.clone(), epoch: fence.get(), holder: holder.clone() })
        })
        .collect();
    let next = mint::next(&Sources {
        lock_uid: facts.lock_uid,
        status: facts.epoch,
        floor: facts.floor.max(facts.above).max(reserved),
        reservation: facts.reservation,
        remembered: None,
        fences: &fences,
    })?;
    let known = next.epoch.get() - 1;
    let floor = known.checked_add(facts.margin).filter(|floor| *floor <= MAX_FLOOR);
    let floor = floor.ok_or(RecoverError::Exhausted { known, margin: facts.margin })?;
    Ok(Plan { signs, known, floor })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoch::grant::Grant;
    use proptest::prelude::*;
    use serde_json::json;

    fn n(epoch: u64) -> Epoch {
        Epoch::new(epoch).unwrap()
    }

    fn grant(epoch: u64) -> Grant {
        let term = json!({"leaseUid": "u"});
        serde_json::from_value(json!({"epoch": epoch, "holder": "a", "state": "Active", "since": "2027-01-15T08:00:00Z", "term": term}))
            .unwrap()
    }

    fn at(fence: u64) -> Vec<Seen> {
        vec![Seen { name: "db".into(), fence: Some((n(fence), "a".into())), has_fence: true }]
    }

    /// E01, D06: each side that can be behind is told, and the floor lies above all of them.
    #[test]
    fn what_is_behind_is_told_and_the_floor_lies_above_everything() {
        let own = Reservation { last: 1_000, uid: "me".into() };
        let other = Reservation { last: 1_000, uid: "before".into() };
        let granted = grant(57);
        let base = Facts {
            lock_uid: "me",
            epoch: Some(n(57)),
            floor: 0,
            reservation: Some(&own),
            recorded: Some(Recorded::Granted(&granted)),
            boundaries: &at(57),
            above: 0,
            margin: MARGIN,
        };
        let of = |facts: &Facts<'_>| plan(facts).unwrap();
        let calm = of(&base);
        assert_eq!((calm.signs.as_slice(), calm.known, calm.floor), (&[][..], 1_000, 1_001_000));
        assert_eq!(of(&Facts { boundaries: &at(2_057), ..base }).signs, [Sign::KubernetesBehind("db".into())]);
        assert_eq!(of(&Facts { boundaries: &at(2_057), ..base }).known, 2_057);
        assert_eq!(of(&Facts { boundaries: &at(40), ..base }).signs, [Sign::BoundaryBehind("db".into())]);
        let empty = [Seen { name: "db".into(), fence: None, has_fence: true }];
        assert_eq!(of(&Facts { boundaries: &empty, ..base }).signs, [Sign::BoundaryBehind("db".into())]);
        let mail = [Seen { name: "mail".into(), fence: None, has_fence: false }];
        assert_eq!(of(&Facts { boundaries: &mail, ..base }).signs, []);
        assert_eq!(of(&Facts { reservation: None, ..base }).signs, [Sign::ReservationBehind]);
        assert_eq!(of(&Facts { reservation: Some(&Reservation { last: 40, uid: "me".into() }), ..base }).signs, [Sign::ReservationBehind]);
        assert_eq!(of(&Facts { reservation: Some(&other), ..base }).signs, [Sign::StatusBehind]);
        let anew = Facts { epoch: None, recorded: None, reservation: Some(&other), ..base };
        assert_eq!(of(&anew).signs, [Sign::KubernetesBehind("db".into()), Sign::StatusBehind]);
        // The writers are stopped, as they should be: that nobody owns the lock hides no database that went back.
        let stopped = Facts { recorded: None, ..base };
        assert_eq!(of(&stopped).signs, []);
        assert_eq!(of(&Facts { boundaries: &at(40), ..stopped }).signs, [Sign::BoundaryBehind("db".into())]);
        assert_eq!(of(&Facts { boundaries: &empty, ..stopped }).signs, [Sign::BoundaryBehind("db".into())]);
        assert_eq!(of(&Facts { above: 9_000_000, ..base }).floor, 10_000_000);
        assert!(matches!(plan(&Facts { above: MAX_FLOOR, ..base }), Err(RecoverError::Exhausted { .. })));
        // Anybody can write a fence somewhere: one that is implausible becomes nobody's word by this, unless somebody says so.
        let absurd = Facts { boundaries: &at(1 << 51), ..base };
        assert!(matches!(plan(&absurd), Err(RecoverError::NotMinted(MintError::FenceImplausible { .. }))));
        assert_eq!(of(&Facts { above: 1 << 51, ..absurd }).known, 1 << 51);
    }

    proptest! {
        #[test]
        fn nothing_is_ever_lowered(
            status in 0u64..5_000, floor in 0u64..5_000, last in 1u64..5_000, fence in 1u64..5_000, above in 0u64..5_000, margin in 0u64..5_000,
        ) {
            let reservation = Reservation { last, uid: "me".into() };
            let facts = Facts { lock_uid: "me", epoch: Epoch::new(status).ok(), floor, reservation: Some(&reservation), recorded: None,
                boundaries: &at(fence), above, margin };
            let plan = plan(&facts).unwrap();
            prop_assert!(plan.floor >= status.max(floor).max(last).max(fence).max(above) + margin);
        }
    }
}
