//! Revocations: a term that is fenced although its owner still renews its Lease (protocol section 5).
//!
//! Start with [`RevocationStatus`]. What is decided about one is [`super::grant::decide`]'s.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Epoch, Holder,
    grant::{Grant, GrantState},
    term::{LeaseView, Record, Term, are_two_pods},
};

/// A request to fence the present owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Revocation {
    /// The term that is fenced. It never gets another grant.
    pub term: Term,
    /// The identity that held it.
    #[schemars(length(min = 1, max = 512))]
    pub holder: String,
    /// Why, for the record.
    #[schemars(length(min = 1, max = 1024))]
    pub reason: String,
}

impl Revocation {
    /// The request to revoke a grant.
    pub fn of(grant: &Grant, reason: impl Into<String>) -> Self {
        Self { term: grant.term.clone(), holder: grant.holder.as_str().to_owned(), reason: reason.into() }
    }

    /// Whether it means this grant. A pod that became known since is no other one.
    pub fn names(&self, grant: &Grant) -> bool {
        let of = |term: &Term| Term { pod_uid: None, ..term.clone() };
        let same_pod = !are_two_pods(self.term.pod_uid.as_deref(), grant.term.pod_uid.as_deref());
        self.holder == grant.holder.as_str() && of(&self.term) == of(&grant.term) && same_pod
    }

    /// Whether it means the term that a Lease shows, for a lock that remembers none: it was created anew, and its request with it.
    pub(super) fn shows(&self, lease: &LeaseView, pod_uid: Option<&str>) -> bool {
        self.term.is_written(&self.holder, lease) && !are_two_pods(self.term.pod_uid.as_deref(), pod_uid)
    }
}

/// What became of a revocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RevocationStatus {
    /// The epoch of nobody that fences the revoked term.
    pub epoch: Epoch,
    /// Whether every boundary is at it.
    pub state: GrantState,
    /// The identity that was fenced.
    pub holder: Holder,
    /// The term that was fenced. Later views of the Lease are compared with it, so that it gets no other grant.
    pub term: Term,
    /// How many terms in a row only `leaseTransitions` and `acquireTime` told apart (protocol section 1).
    #[serde(default)]
    #[schemars(range(min = 0, max = 16))]
    pub same_holder_steps: u8,
    /// Whether that term was seen to end: whoever acquires the lock next begins another.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended: bool,
    /// Why.
    #[schemars(length(min = 1, max = 1024))]
    pub reason: String,
}

impl RevocationStatus {
    /// The term as later views of the Lease are compared with it.
    pub(super) fn record(&self) -> Record<'_> {
        Record { holder: &self.holder, term: &self.term, same_holder_steps: self.same_holder_steps }
    }

    /// The same once no boundary admits the revoked owner any more.
    #[must_use]
    pub fn activated(&self) -> Self {
        Self { state: GrantState::Active, ..self.clone() }
    }
}
