//! What there is to say about a lock beyond its verdict.
//!
//! Start with [`about`].

use serde_json::Value;

use super::{Finding, Rule, Severity, catalogue as rule, hints};
use crate::{
    api::{BoundaryVerdict, Contract, FencedLockSpec, LockClass, Reacquire, TokenKind, Verdict, WriteBoundarySpec, conditions::reason},
    audit::{
        schema::FieldError,
        verdict::{self, Found, Required},
    },
};

/// A lock as it was judged.
#[derive(Clone, Copy, Debug)]
pub struct Judged<'a> {
    /// Its name.
    pub name: &'a str,
    /// The declaration.
    pub spec: &'a FencedLockSpec,
    /// What was said about it.
    pub judged: &'a verdict::Judgement,
    /// The boundaries that count for it.
    pub boundaries: &'a [Required],
    /// The declarations of those that can be read, by name.
    pub specs: &'a [(&'a str, &'a WriteBoundarySpec)],
    /// Whether somebody could have looked: a manifest is never proven.
    pub is_cluster: bool,
}

/// What there is to say about a lock, worst first.
pub fn about(lock: &Judged<'_>) -> Vec<Finding> {
    let is_critical = lock.spec.class == LockClass::CorrectnessCritical;
    let of_boundaries = lock.boundaries.iter().filter_map(|required| of_boundary(lock, required));
    let mut findings: Vec<_> = of_boundaries.filter(|found| is_critical || *found.rule == rule::BOUNDARY_INVALID).collect();
    // What the verdict says of one boundary is said already, of each and under its name.
    let whole = by_verdict(lock).filter(|whole| findings.iter().all(|found| found.rule != whole.rule));
    findings.extend(whole);
    findings.extend(weak_contracts(lock));
    match lock.spec.class {
        LockClass::CorrectnessCritical => {
            findings.extend(without_order(lock));
            findings.extend(undeclared(lock));
        }
        LockClass::EfficiencyOnly => findings.extend(hints::says_otherwise(lock)),
    }
    for extra in lock.boundaries.iter().filter(|b| !b.listed) {
        let message = format!(
            "WriteBoundary {:?} refers to this lock and spec.writeBoundaries does not list it: list it, so that deleting it cannot go unnoticed",
            extra.name
        );
        findings.push(rule::BOUNDARY_NOT_LISTED.finds(&extra.name, message));
    }
    if let Some(value) = lock.spec.coordinator.lease.as_ref().and_then(|lease| hints::per_run(&lease.name)) {
        let message = format!(
            "spec.coordinator.lease.name contains {value:?}, which looks like a value of one run or one version: two runs with different names never \
             contend, and the lock excludes nobody. Name the Lease after what is protected"
        );
        findings.push(rule::PER_RUN_LEASE_NAME.finds("", message));
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

/// A field of a FencedLock that the schema refuses.
pub fn about_field(error: &FieldError, object: &Value) -> Finding {
    let class = object.pointer("/spec/class");
    if error.path == "spec.class" && class.is_none_or(|class| class.is_null() || class.as_str() == Some("")) {
        let message = "spec.class is not decided: CorrectnessCritical when two holders at once would corrupt data, EfficiencyOnly when they would only \
                       waste work. Absent never means efficiency-only";
        return rule::UNCLASSIFIED_LOCK.finds("", message);
    }
    rule::FIELD_INVALID.finds(&error.path, error.to_string())
}

/// The finding of a verdict that is not good.
fn by_verdict(lock: &Judged<'_>) -> Option<Finding> {
    let judged = lock.judged;
    let rule: &Rule = match (judged.verdict, judged.reason) {
        (Verdict::NotRequired | Verdict::RiskAccepted | Verdict::Enforced, _) => return None,
        (Verdict::Unproven, reason::PROOF_EXPIRED | reason::PROOF_VOID) => &rule::PROOF_EXPIRED,
        (Verdict::Unproven, _) => &rule::BOUNDARY_NOT_PROVEN,
        (Verdict::Violated, _) => &rule::BOUNDARY_VIOLATED,
        (_, reason::NO_BOUNDARY_REGISTERED) => &rule::CRITICAL_LOCK_WITHOUT_BOUNDARY,
        (_, reason::BOUNDARY_MISSING) => &rule::BOUNDARY_MISSING,
        (_, reason::CANNOT_ENFORCE) => &rule::RECEIVER_CANNOT_ENFORCE,
        (_, reason::RISK_ACCEPTANCE_EXPIRED) => &rule::RISK_ACCEPTANCE_EXPIRED,
        (_, reason::CONTRACT_TOO_WEAK) => &rule::CONTRACT_TOO_WEAK,
        (_, reason::LEASE_SHARED) => &rule::SHARED_LEASE,
        (_, reason::COORDINATOR_GETS_NO_GRANTS) => &rule::EXTERNAL_COORDINATOR_WITH_GUARD,
        (_, reason::TOKEN_NOT_ORDERED) => unordered(lock.spec),
        (_, reason::BOUNDARY_INVALID) => &rule::BOUNDARY_INVALID,
        _ => &rule::FIELD_INVALID,
    };
    Some(to_come(lock, judged.reason, rule.finds("", &judged.message)))
}

/// A proof that is still to come is no fault, and in a manifest nobody can have looked. To observe first is the documented way to begin.
fn to_come(lock: &Judged<'_>, reason: &str, found: Finding) -> Finding {
    match reason {
        reason::PROOF_PENDING if !lock.is_cluster => found.at_most(Severity::Info),
        reason::PROOF_PENDING | reason::OBSERVING => found.at_most(Severity::Warning),
        _ => found,
    }
}

/// What keeps one boundary from being good.
fn of_boundary(lock: &Judged<'_>, required: &Required) -> Option<Finding> {
    let name = required.name.as_str();
    let judgement = match &required.found {
        Found::Missing | Found::OtherLock(_) => {
            return verdict::missing(std::slice::from_ref(required)).map(|message| rule::BOUNDARY_MISSING.finds(name, message));
        }
        Found::Malformed(why) => return Some(rule::BOUNDARY_INVALID.finds(name, format!("write boundary {name:?}: {why}"))),
        // Said once, of all of them.
        Found::Unreadable(_) => return None,
        Found::Present(present) => &present.judgement,
    };
    let rule: &Rule = match (judgement.verdict, judgement.reason) {
        (BoundaryVerdict::Proven | BoundaryVerdict::RiskAccepted, _) => return None,
        (BoundaryVerdict::Invalid, _) => &rule::BOUNDARY_INVALID,
        (BoundaryVerdict::Violated, _) => &rule::BOUNDARY_VIOLATED,
        (BoundaryVerdict::CannotEnforce, reason::RISK_ACCEPTANCE_EXPIRED) => &rule::RISK_ACCEPTANCE_EXPIRED,
        (BoundaryVerdict::CannotEnforce, _) => &rule::RECEIVER_CANNOT_ENFORCE,
        (BoundaryVerdict::Unproven, reason::PROOF_EXPIRED | reason::PROOF_VOID) => &rule::PROOF_EXPIRED,
        (BoundaryVerdict::Unproven, _) => &rule::BOUNDARY_NOT_PROVEN,
    };
    Some(to_come(lock, judgement.reason, rule.finds(name, format!("write boundary {name:?}: {}", judgement.message))))
}

fn unordered(spec: &FencedLockSpec) -> &'static Rule {
    match spec.coordinator.external.as_ref().map(|e| e.token) {
        Some(TokenKind::RandomOwnerId) => &rule::RANDOM_ID_AS_TOKEN,
        Some(TokenKind::ClientTimestamp) => &rule::CLIENT_TIMESTAMP_AS_TOKEN,
        _ => &rule::UNORDERED_COORDINATOR,
    }
}

/// A token that cannot fence, also where the verdict has a worse reason: whoever mends that would meet this next.
fn without_order(lock: &Judged<'_>) -> Option<Finding> {
    let is_said = lock.judged.reason == reason::TOKEN_NOT_ORDERED;
    let message = verdict::unordered(lock.spec.coordinator.external.as_ref().map(|e| e.token)).filter(|_| !is_said)?;
    Some(unordered(lock.spec).finds("", message))
}

/// Boundaries that can give no more than `AfterAcceptance`, whatever a proof shows.
fn weak_contracts(lock: &Judged<'_>) -> Vec<Finding> {
    let is_needed = lock.spec.class == LockClass::CorrectnessCritical && lock.spec.contract == Contract::AfterActivation;
    // The verdict says it once there is a proof.
    if !is_needed || lock.judged.reason == reason::CONTRACT_TOO_WEAK {
        return Vec::new();
    }
    let weak = lock.specs.iter().filter_map(|(name, spec)| {
        let why = if spec.is_conditional() {
            "a conditional update learns of a new owner by that owner's first write"
        } else if spec.kubernetes.as_ref().is_some_and(|kubernetes| kubernetes.reacquire == Reacquire::Allow) {
            "with reacquire: Allow a process that owned the lock before is admitted again, with what it still had in flight"
        } else {
            return None;
        };
        let message = format!(
            "write boundary {name:?} can give AfterAcceptance at most, and the lock needs AfterActivation: {why}. Use a guard that can be activated, or set \
             spec.contract to AfterAcceptance if an old owner's write before the new owner's first one does no harm"
        );
        Some(rule::CONTRACT_TOO_WEAK.finds(*name, message))
    });
    weak.collect()
}

/// What a critical lock leaves open.
fn undeclared(lock: &Judged<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    if lock.spec.purpose.as_ref().is_none_or(|purpose| purpose.trim().is_empty()) {
        let message = "spec.purpose is absent: say in a sentence what two holders would corrupt, for whoever is on call";
        findings.push(rule::CRITICAL_LOCK_WITHOUT_PURPOSE.finds("", message));
    }
    let is_fenced = |found: &Found| match found {
        Found::Present(present) => present.judgement.verdict != BoundaryVerdict::CannotEnforce && present.needs_activation,
        _ => false,
    };
    if lock.spec.replay.is_none() && lock.boundaries.iter().any(|b| is_fenced(&b.found)) {
        let message = "spec.replay is absent: an owner can repeat a write under its own epoch; say what makes that harmless (Transactional, IdempotencyKey \
                       or Ledger)";
        findings.push(rule::REPLAY_UNDECLARED.finds("", message));
    }
    findings
}
