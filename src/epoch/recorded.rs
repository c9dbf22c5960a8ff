//! What a lock's status records of its owner: a grant, or the revocation that took its place. Everything that is the same for both is here.
//!
//! Start with [`Recorded::of`]. What must not come in: what becomes of either, which is [`super::grant::decide`]'s.

use super::{
    Epoch, Holder,
    grant::{Grant, GrantState},
    revoke::RevocationStatus,
    term::{LeaseView, Record},
};

/// A grant, or the revocation that took its place. A status never has both (protocol section 5).
#[derive(Clone, Copy, Debug)]
pub enum Recorded<'a> {
    /// The holder has an epoch.
    Granted(&'a Grant),
    /// The holder's term was revoked, and the epoch is nobody's.
    Revoked(&'a RevocationStatus),
}

impl<'a> Recorded<'a> {
    /// Of `status.grant` and `status.revoked`; `None` when the lock has no owner and no revoked one.
    pub fn of(grant: Option<&'a Grant>, revoked: Option<&'a RevocationStatus>) -> Option<Self> {
        grant.map(Self::Granted).or_else(|| revoked.map(Self::Revoked))
    }

    /// The epoch that every boundary has to be at.
    pub const fn epoch(self) -> Epoch {
        match self {
            Self::Granted(grant) => grant.epoch,
            Self::Revoked(revoked) => revoked.epoch,
        }
    }

    /// Whom every boundary has to admit; `None` is nobody.
    pub const fn admitted(self) -> Option<&'a Holder> {
        match self {
            Self::Granted(grant) => Some(&grant.holder),
            Self::Revoked(_) => None,
        }
    }

    /// The same as a fence spells it: nobody is empty.
    pub fn holder(self) -> &'a str {
        self.admitted().map_or("", Holder::as_str)
    }

    /// Whether every boundary that is waited for was brought there.
    pub fn is_active(self) -> bool {
        let state = match self {
            Self::Granted(grant) => grant.state,
            Self::Revoked(revoked) => revoked.state,
        };
        state == GrantState::Active
    }

    /// The term that later views of the Lease are compared with; `None` when it was seen to end.
    pub(super) fn record(self) -> Option<Record<'a>> {
        match self {
            Self::Granted(grant) => Some(grant.record()),
            Self::Revoked(revoked) => (!revoked.ended).then(|| revoked.record()),
        }
    }

    /// The view that later ones have to be compared with once `reconciled` was reconciled and left this: see [`Grant::baseline`].
    pub fn baseline(self, reconciled: &LeaseView) -> LeaseView {
        self.record().map_or_else(|| reconciled.clone(), |record| record.baseline(reconciled))
    }
}
