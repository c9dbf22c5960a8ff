//! Which epoch an acquisition was granted, and whether it still counts (protocol section 3). Pure.

use crate::{
    api::FencedLockStatus,
    epoch::{Epoch, grant::GrantState, recorded::Recorded, term::LeaseView},
};

/// What a lock's status means to whoever holds its Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// There is no epoch for this acquisition yet.
    Waiting,
    /// The epoch of this acquisition: the work may begin.
    Granted(Epoch),
    /// Somebody has a later epoch than this: the work has to end, as if the Lease were lost.
    Passed(Epoch),
}

/// What a status means to the holder of the Lease as it wrote it itself. `mine` is the epoch that it works under, which is read once per
/// acquisition: whoever looks it up again hands itself its successor's.
pub fn standing(status: &FencedLockStatus, held: &LeaseView, mine: Option<Epoch>) -> Standing {
    if let Some(mine) = mine {
        return match status.epoch {
            Some(now) if now > mine => Standing::Passed(now),
            _ => Standing::Granted(mine),
        };
    }
    match status.recorded() {
        Some(Recorded::Granted(grant)) if grant.state == GrantState::Active && grant.term.is_written(grant.holder.as_str(), held) => {
            Standing::Granted(grant.epoch)
        }
        // A term that was revoked before it was used never gets an epoch.
        Some(Recorded::Revoked(revoked)) if revoked.term.is_written(revoked.holder.as_str(), held) => Standing::Passed(revoked.epoch),
        _ => Standing::Waiting,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status(epoch: u64, state: &str, holder: &str, transitions: i32) -> FencedLockStatus {
        serde_json::from_value(
            json!({"epoch": epoch, "grant": {"epoch": epoch, "holder": holder, "state": state, "since": "2027-01-15T08:00:00Z",
            "term": {"leaseUid": "u", "leaseTransitions": transitions, "acquireTime": "2027-01-15T08:00:00.000000Z", "podUid": "",
                     "resourceVersion": "1"}}}),
        )
        .unwrap()
    }

    fn held(holder: &str, transitions: i32) -> LeaseView {
        let lease = json!({"metadata": {"uid": "u", "resourceVersion": "9"}, "spec": {"holderIdentity": holder, "leaseTransitions": transitions,
            "acquireTime": "2027-01-15T08:00:00.000000Z"}});
        LeaseView::from(serde_json::from_value::<k8s_openapi::api::coordination::v1::Lease>(lease).unwrap())
    }

    #[test]
    fn an_epoch_is_ones_own_only_with_ones_own_term() {
        let granted = Standing::Granted(Epoch::new(7).unwrap());
        assert_eq!(standing(&status(7, "Active", "a", 3), &held("a", 3), None), granted);
        for (status, held) in [
            (status(7, "Pending", "a", 3), held("a", 3)),
            (status(7, "Active", "b", 3), held("a", 3)),
            (status(7, "Active", "a", 2), held("a", 3)),
            (FencedLockStatus::default(), held("a", 3)),
        ] {
            assert_eq!(standing(&status, &held, None), Standing::Waiting);
        }
        let mut other = held("a", 3);
        other.acquire_time = None;
        assert_eq!(standing(&status(7, "Active", "a", 3), &other, None), Standing::Waiting);
        other = held("a", 3);
        other.uid = "another".into();
        assert_eq!(standing(&status(7, "Active", "a", 3), &other, None), Standing::Waiting);
    }

    /// E07: a grant that is delivered late, after its successor's, is known to be obsolete before it is used.
    #[test]
    fn a_later_epoch_ends_it_and_is_never_taken_over() {
        let mine = Epoch::new(7).ok();
        assert_eq!(standing(&status(7, "Active", "a", 3), &held("a", 3), mine), Standing::Granted(Epoch::new(7).unwrap()));
        assert_eq!(standing(&status(8, "Active", "a", 3), &held("a", 3), mine), Standing::Passed(Epoch::new(8).unwrap()));
        assert_eq!(standing(&FencedLockStatus::default(), &held("a", 3), mine), Standing::Granted(Epoch::new(7).unwrap()), "not a loss");
    }
}
