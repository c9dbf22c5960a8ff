//! The names of conditions and reasons, each written once, and the one setter of conditions.
//!
//! No judgement lives here: [`crate::audit`] chooses among these names.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

/// Condition types of a FencedLock.
pub mod lock {
    /// This generation has been evaluated. A finding is never `Ready=False`, unless `rollout: Block` asks for it.
    pub const READY: &str = "Ready";
    /// The verdict meets the class.
    pub const COMPLIANT: &str = "Compliant";
    /// Critical: boundaries are listed, and each one exists and refers back.
    pub const BOUNDARY_REGISTERED: &str = "BoundaryRegistered";
    /// Every required boundary is proven.
    pub const BOUNDARY_ENFORCED: &str = "BoundaryEnforced";
    /// The present holder's grant is active.
    pub const EPOCH_ACTIVE: &str = "EpochActive";
    /// Nothing saw the epoch source behind a fence or a memory.
    pub const EPOCH_MONOTONIC: &str = "EpochMonotonic";
    /// The holder is one process life.
    pub const OWNER_UNIQUE: &str = "OwnerUnique";
    /// Only with `rollout: Block`: the finding has held for 60 s.
    pub const STALLED: &str = "Stalled";
}

/// Condition types of a WriteBoundary; `True` is good.
pub mod boundary {
    /// This generation has been evaluated.
    pub const READY: &str = "Ready";
    /// The guard is in place.
    pub const GUARD_INSTALLED: &str = "GuardInstalled";
    /// The fence is at the lock's active grant.
    pub const ACTIVATED: &str = "Activated";
    /// A complete proof is fresh.
    pub const PROVEN: &str = "Proven";
    /// No way around the guard was found.
    pub const BYPASS_FREE: &str = "BypassFree";
    /// The fence survives what the receiver may go through.
    pub const FENCE_DURABLE: &str = "FenceDurable";
    /// The risk acceptance has not ended and does not end soon. Only where there is one.
    pub const ACCEPTANCE_LASTS: &str = "AcceptanceLasts";
    /// The ledger of an external receiver has no operation whose outcome was unknown for too long. Only where one is declared.
    pub const RECONCILED: &str = "Reconciled";
}

/// Reasons: one word each, the same in status, Events and the audit's output.
pub mod reason {
    macro_rules! reasons {
        ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
            $($(#[$doc])* pub const $name: &str = $text;)*
            /// The reason that a status spells, if this version knows it.
            pub fn known(text: &str) -> Option<&'static str> {
                [$($text),*].into_iter().find(|known| *known == text)
            }
        };
    }
    reasons! {
        /// This generation has been evaluated.
        EVALUATED = "Evaluated";
        /// Nobody has evaluated it yet.
        PENDING = "Pending";
        /// `rollout: Block` waits for the first proof.
        PROVING = "Proving";
        /// The object could not be read as its kind.
        MALFORMED = "Malformed";
        /// A field contradicts the API's rules: only an old or edited CRD lets such an object in.
        FIELD_INVALID = "FieldInvalid";
        /// An external coordinator has a boundary that needs activation.
        COORDINATOR_GETS_NO_GRANTS = "CoordinatorGetsNoGrants";
        /// Another lock guards the same table or object.
        TARGET_SHARED = "TargetShared";
        /// An older lock is declared on the same Lease.
        LEASE_SHARED = "LeaseShared";
        /// A required boundary is invalid.
        BOUNDARY_INVALID = "BoundaryInvalid";
        /// The class needs no boundary.
        NOT_REQUIRED = "NotRequired";
        /// A required boundary is violated.
        BOUNDARY_VIOLATED = "BoundaryViolated";
        /// Two living processes pass as one owner.
        IDENTITY_REUSED = "IdentityReused";
        /// A critical lock lists no boundary.
        NO_BOUNDARY_REGISTERED = "NoBoundaryRegistered";
        /// A listed boundary is not there, or names another lock.
        BOUNDARY_MISSING = "BoundaryMissing";
        /// A boundary refers to the lock and the lock does not list it.
        BOUNDARY_NOT_LISTED = "BoundaryNotListed";
        /// The receiver cannot compare epochs, and nobody accepted that.
        CANNOT_ENFORCE = "CannotEnforce";
        /// The coordinator's token has no order.
        TOKEN_NOT_ORDERED = "TokenNotOrdered";
        /// A boundary gives less than the lock needs.
        CONTRACT_TOO_WEAK = "ContractTooWeak";
        /// An acceptance is past its date.
        RISK_ACCEPTANCE_EXPIRED = "RiskAcceptanceExpired";
        /// What is left is covered by acceptances.
        RISK_ACCEPTED = "RiskAccepted";
        /// No proof was made yet.
        PROOF_PENDING = "ProofPending";
        /// The guard only counts.
        OBSERVING = "Observing";
        /// The last proof is older than maxAge.
        PROOF_EXPIRED = "ProofExpired";
        /// Boundary, guard or server changed since the last proof.
        PROOF_VOID = "ProofVoid";
        /// A probe could not tell.
        INCONCLUSIVE = "Inconclusive";
        /// A write that must be refused was accepted, or one that must be accepted was refused.
        PROBE_FAILED = "ProbeFailed";
        /// The guard that was installed is missing, disabled or altered.
        GUARD_ALTERED = "GuardAltered";
        /// The fence is not at the active grant.
        NOT_ACTIVATED = "NotActivated";
        /// There is a way around the guard.
        BYPASS_FOUND = "BypassFound";
        /// The fence may be lost.
        FENCE_NOT_DURABLE = "FenceNotDurable";
        /// A limit blocks and nobody accepted it.
        LIMIT_NOT_ACCEPTED = "LimitNotAccepted";
        /// The lock that a boundary names is not there.
        LOCK_NOT_FOUND = "LockNotFound";
        /// This version cannot prove boundaries of this type yet.
        BACKEND_NOT_IMPLEMENTED = "BackendNotImplemented";
        /// The epochs' source went back.
        STATE_ROLLED_BACK = "StateRolledBack";
        /// Every required boundary is proven.
        ALL_BOUNDARIES_PROVEN = "AllBoundariesProven";
        /// Every probe passed.
        ALL_PROBES_PASSED = "AllProbesPassed";
        /// A boundary is registered.
        REGISTERED = "Registered";
        /// The grant is active.
        ACTIVE = "Active";
        /// Nobody holds the Lease.
        RELEASED = "Released";
        /// The Lease is not there.
        LEASE_MISSING = "LeaseMissing";
        /// The Lease could not be read or understood.
        LEASE_UNREADABLE = "LeaseUnreadable";
        /// The grant waits for boundaries.
        ACTIVATION_PENDING = "ActivationPending";
        /// A boundary could not be activated.
        ACTIVATION_FAILED = "ActivationFailed";
        /// The holder's identity cannot be carried.
        HOLDER_UNUSABLE = "HolderUnusable";
        /// Every epoch was issued.
        EPOCH_EXHAUSTED = "EpochExhausted";
        /// A boundary's fence could not be read.
        FENCE_UNREADABLE = "FenceUnreadable";
        /// A fence is implausibly far ahead.
        FENCE_IMPLAUSIBLE = "FenceImplausible";
        /// The reservation could not be read or written.
        RESERVATION_UNREADABLE = "ReservationUnreadable";
        /// The coordinator is external.
        NO_COORDINATOR = "NoCoordinator";
        /// A right is missing: verb, resource and namespace are named in the message.
        FORBIDDEN = "Forbidden";
        /// Nothing saw the epochs go back.
        NEVER_WENT_BACK = "NeverWentBack";
        /// The holder is one pod.
        ONE_PROCESS = "OneProcess";
        /// The identity names no pod.
        NOT_A_POD = "NotAPod";
        /// The holder's pod was not known when its epoch was granted.
        POD_NOT_RECORDED = "PodNotRecorded";
        /// The identity is declared opaque.
        OPAQUE = "Opaque";
        /// A container of the pod was started after the lock was acquired.
        CONTAINER_RESTARTED = "ContainerRestarted";
        /// The holder's pod mounts no token that is bound to it.
        TOKEN_NOT_BOUND = "TokenNotBound";
        /// A boundary recognises owners by their pods, and the holder's is not known.
        HOLDER_POD_UNKNOWN = "HolderPodUnknown";
        /// The holder may be a process that had an epoch before, with another owner in between.
        PROCESS_REUSED = "ProcessReused";
        /// The risk acceptance ends soon.
        RISK_ACCEPTANCE_EXPIRES_SOON = "RiskAcceptanceExpiresSoon";
        /// The ledger has no operation whose outcome was unknown for too long.
        RECONCILED = "Reconciled";
        /// Operations in the ledger have an unknown outcome for longer than declared.
        OUTCOMES_UNKNOWN = "OutcomesUnknown";
        /// Work items in the ledger may have taken effect more than once.
        SENT_MORE_THAN_ONCE = "SentMoreThanOnce";
        /// The ledger's table is not behind a guard of the lock.
        LEDGER_NOT_FENCED = "LedgerNotFenced";
        /// The ledger was not read, or cannot be.
        LEDGER_UNREAD = "LedgerUnread";
        /// The term was revoked by a person: only a new one gets a grant.
        REVOKED = "Revoked";
        /// The client rewrites what tells terms apart.
        COUNTER_UNRELIABLE = "CounterUnreliable";
        /// There is no holder.
        NOBODY = "Nobody";
        /// The present findings are young: `rollout: Block` waits.
        WAITING = "Waiting";
        /// The guard is installed.
        INSTALLED = "Installed";
        /// Nothing was found that goes around the guard.
        NO_WAY_AROUND = "NoWayAround";
        /// The fence survives a crash.
        DURABLE = "Durable";
        /// The lock's grant is not active.
        NO_ACTIVE_GRANT = "NoActiveGrant";
    }
}

/// A condition's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Truth {
    /// It holds.
    True,
    /// It does not.
    False,
    /// It cannot be told.
    Unknown,
}

impl Truth {
    /// What a condition's status says.
    pub fn of(status: &str) -> Self {
        match status {
            "True" => Self::True,
            "False" => Self::False,
            _ => Self::Unknown,
        }
    }

    /// As it stands in a condition.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for Truth {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// A condition without its time, as the pure rules produce it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The condition's type.
    pub type_: &'static str,
    /// Its status.
    pub status: Truth,
    /// Its reason, one of [`reason`].
    pub reason: &'static str,
    /// What is wrong, where, and the next step.
    pub message: String,
}

impl Finding {
    /// A condition.
    pub fn new(type_: &'static str, status: impl Into<Truth>, reason: &'static str, message: impl Into<String>) -> Self {
        Self { type_, status: status.into(), reason, message: message.into() }
    }
}

/// The longest message of a condition, in bytes; longer ones are cut with a mark. A status stays under 8 KiB.
pub const MAX_MESSAGE: usize = 512;

/// Puts findings on top of what was there before. `lastTransitionTime` moves only where the status flips; times have
/// whole seconds; types that are not among the findings are dropped; the order is the findings'.
pub fn merge(before: &[Condition], findings: Vec<Finding>, generation: Option<i64>, now: Timestamp) -> Vec<Condition> {
    let now = truncate(now);
    findings
        .into_iter()
        .map(|finding| {
            let status = finding.status.as_str();
            let since = before.iter().find(|c| c.type_ == finding.type_ && c.status == status);
            Condition {
                type_: finding.type_.to_owned(),
                status: status.to_owned(),
                reason: finding.reason.to_owned(),
                message: shorten(&printable(&finding.message), MAX_MESSAGE),
                last_transition_time: since.map_or_else(|| Time(now), |c| c.last_transition_time.clone()),
                observed_generation: generation,
            }
        })
        .collect()
}

/// The time in whole seconds, which is all that `metav1.Time` keeps.
pub fn truncate(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// Cuts a text to at most `max` bytes at a character boundary, with `…` where something is missing.
pub fn shorten(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let mut end = max.saturating_sub('…'.len_utf8());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &text[..end])
}

/// A text on one line, as it looks: control characters, line separators and marks that reorder text are escaped, so that what
/// somebody wrote into an object cannot pass for a line or a word of ours.
pub fn printable(text: &str) -> String {
    let deceives =
        |c: char| c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
    text.chars().map(|c| if deceives(c) { c.escape_unicode().to_string() } else { c.to_string() }).collect()
}

/// The condition of a type.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == type_)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::new(second, 123_456_789).unwrap()
    }

    /// G01: a transition time moves only when the status flips.
    #[test]
    fn a_transition_time_moves_only_when_the_status_flips() {
        let finding = |status: bool, message: &str| vec![Finding::new(lock::READY, status, reason::EVALUATED, message)];
        let first = merge(&[], finding(true, "one"), Some(1), at(100));
        assert_eq!(first[0].last_transition_time, Time(Timestamp::from_second(100).unwrap()), "whole seconds");
        let same = merge(&first, finding(true, "one"), Some(1), at(200));
        assert_eq!(same, first, "nothing changed, so nothing would be written");
        let other_message = merge(&first, finding(true, "two"), Some(2), at(300));
        assert_eq!(other_message[0].last_transition_time, first[0].last_transition_time);
        let flipped = merge(&first, finding(false, "two"), Some(2), at(400));
        assert_eq!(flipped[0].last_transition_time, Time(Timestamp::from_second(400).unwrap()));
    }

    #[test]
    fn a_text_of_others_cannot_pass_for_a_line_of_ours() {
        assert_eq!(printable("a\nVerdict: Enforced\u{1b}[31m\u{202e}"), "a\\u{a}Verdict: Enforced\\u{1b}[31m\\u{202e}");
        assert_eq!(printable("ü💥 plain"), "ü💥 plain");
    }

    /// B15: whatever a holder is called, a message fits and is cut at a character.
    #[test]
    fn a_long_message_is_cut_at_a_character() {
        let cut = shorten(&"ü💥".repeat(100_000), MAX_MESSAGE);
        assert!(cut.len() <= MAX_MESSAGE && cut.ends_with('…'));
        assert_eq!(shorten("short", MAX_MESSAGE), "short");
    }
}
