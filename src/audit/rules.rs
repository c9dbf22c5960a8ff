//! What an audit reports: one rule per kind of problem, each with a stable id that explains itself.
//!
//! Start with [`about_lock`] and [`about_boundary`]: from a verdict to findings. The rules add nothing to the verdict's
//! judgement but an id, a severity and what a verdict does not say.

use serde::Serialize;

use super::{
    boundary,
    verdict::{self, Found, Required},
};
use crate::api::{BoundaryVerdict, FencedLockSpec, LockClass, TokenKind, Verdict, conditions::reason};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// Somebody should look at it.
    Warning,
    /// A correctness-critical lock is not fenced, or a declaration is wrong.
    Error,
}

/// One thing that an audit found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// The rule's id, stable across versions: `critical-lock-without-boundary`.
    pub rule: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong and the next step.
    pub message: String,
}

impl Finding {
    /// A finding.
    pub fn new(rule: &'static str, severity: Severity, message: impl Into<String>) -> Self {
        Self { rule, severity, message: message.into() }
    }
}

/// A document that cannot be read.
pub const UNREADABLE_DOCUMENT: &str = "unreadable-document";
/// A field that the schema refuses.
pub const FIELD_INVALID: &str = "field-invalid";

/// What there is to say about a lock, worst first.
pub fn about_lock(spec: &FencedLockSpec, judged: &verdict::Judgement, boundaries: &[Required]) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some((rule, severity)) = rule_of(spec, judged) {
        findings.push(Finding::new(rule, severity, &judged.message));
    }
    if spec.class == LockClass::CorrectnessCritical {
        if spec.purpose.is_none() {
            findings.push(Finding::new(
                "critical-lock-without-purpose",
                Severity::Warning,
                "spec.purpose is absent: say in a sentence what two holders would corrupt, for whoever is on call",
            ));
        }
        let fenced = boundaries
            .iter()
            .any(|b| matches!(&b.found, Found::Present(p) if p.judgement.verdict != BoundaryVerdict::CannotEnforce && p.needs_activation));
        if spec.replay.is_none() && fenced {
            findings.push(Finding::new(
                "replay-undeclared",
                Severity::Warning,
                "spec.replay is absent: an owner can repeat a write under its own epoch; say what makes that harmless (Transactional, IdempotencyKey or Ledger)",
            ));
        }
    }
    for extra in boundaries.iter().filter(|b| !b.listed) {
        let message = format!(
            "WriteBoundary {:?} refers to this lock and spec.writeBoundaries does not list it: list it, so that deleting it cannot go unnoticed",
            extra.name
        );
        findings.push(Finding::new("boundary-not-listed", Severity::Warning, message));
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

/// The rule that a verdict breaks, if it breaks one.
fn rule_of(spec: &FencedLockSpec, judged: &verdict::Judgement) -> Option<(&'static str, Severity)> {
    let rule = match (judged.verdict, judged.reason) {
        (Verdict::NotRequired | Verdict::RiskAccepted | Verdict::Enforced, _) => return None,
        (Verdict::Unproven, _) => return Some(("boundary-not-proven", Severity::Warning)),
        (Verdict::Violated, _) => "boundary-violated",
        (_, reason::NO_BOUNDARY_REGISTERED) => "critical-lock-without-boundary",
        (_, reason::BOUNDARY_MISSING) => "boundary-missing",
        (_, reason::CANNOT_ENFORCE) => "receiver-cannot-enforce",
        (_, reason::RISK_ACCEPTANCE_EXPIRED) => "risk-acceptance-expired",
        (_, reason::CONTRACT_TOO_WEAK) => "contract-too-weak",
        (_, reason::LEASE_SHARED) => "shared-lease",
        (_, reason::COORDINATOR_GETS_NO_GRANTS) => "external-coordinator-with-guard",
        (_, reason::TOKEN_NOT_ORDERED) => match spec.coordinator.external.as_ref().map(|e| e.token) {
            Some(TokenKind::RandomOwnerId) => "random-id-as-token",
            Some(TokenKind::ClientTimestamp) => "client-timestamp-as-token",
            _ => "unordered-coordinator",
        },
        (_, reason::BOUNDARY_INVALID) => "boundary-invalid",
        _ => FIELD_INVALID,
    };
    Some((rule, Severity::Error))
}

/// What there is to say about a boundary that its lock's findings do not say already.
pub fn about_boundary(judged: &boundary::Judgement, lock_is_there: bool, lock: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    if judged.verdict == BoundaryVerdict::Invalid {
        findings.push(Finding::new(FIELD_INVALID, Severity::Error, &judged.message));
    }
    if !lock_is_there {
        let message = format!("there is no FencedLock {lock:?} in this namespace among what was read: create it, or delete this boundary");
        findings.push(Finding::new("boundary-without-lock", Severity::Warning, message));
    }
    findings
}
