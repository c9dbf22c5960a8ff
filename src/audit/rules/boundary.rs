//! What there is to say about a boundary that its lock's findings do not say already.
//!
//! Start with [`about`].

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::{Finding, catalogue as rule, hints};
use crate::{
    api::{BoundaryVerdict, PostgresBoundary, WriteBoundarySpec, WritesPerEpoch},
    audit::{boundary, schema::FieldError},
    boundary::postgres::conditional::text::{self, Mistake},
};

/// A boundary as it was judged.
#[derive(Clone, Copy, Debug)]
pub struct Judged<'a> {
    /// The declaration.
    pub spec: &'a WriteBoundarySpec,
    /// What was said about it.
    pub judged: &'a boundary::Judgement,
    /// Whether its lock is there.
    pub lock_is_there: bool,
    /// When it was judged.
    pub now: Timestamp,
    /// How long before its end an acceptance is reported.
    pub soon: SignedDuration,
}

/// What there is to say about a boundary.
pub fn about(boundary: &Judged<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    if boundary.judged.verdict == BoundaryVerdict::Invalid {
        findings.push(rule::FIELD_INVALID.finds("", &boundary.judged.message));
    }
    if !boundary.lock_is_there {
        let lock = &boundary.spec.lock_ref.name;
        let message = format!("there is no FencedLock {lock:?} in this namespace among what was read: create it, or delete this boundary");
        findings.push(rule::BOUNDARY_WITHOUT_LOCK.finds("", message));
    }
    findings.extend(expires_soon(boundary));
    findings.extend(is_a_lock(boundary.spec));
    let postgres = boundary.spec.postgres.as_ref();
    findings.extend(postgres.and_then(|postgres| statement(postgres, boundary.spec.writes_per_epoch)));
    findings
}

/// A field of a WriteBoundary that the schema refuses.
pub fn about_field(error: &FieldError, object: &Value) -> Finding {
    const TEMPLATE: &str = "spec.external.idempotencyKey.template";
    let template = object.pointer("/spec/external/idempotencyKey/template").and_then(Value::as_str).unwrap_or_default();
    let rule = if error.path == TEMPLATE && template.contains("{epoch}") { &rule::EPOCH_IN_IDEMPOTENCY_KEY } else { &rule::FIELD_INVALID };
    rule.finds(&error.path, error.to_string())
}

fn expires_soon(boundary: &Judged<'_>) -> Option<Finding> {
    let accepted = boundary.spec.risk_acceptance.as_ref()?;
    let (term, _) = boundary::term(accepted, boundary.now, boundary.soon);
    (term == boundary::Term::EndsSoon).then(|| {
        let days = accepted.expires.0.duration_since(boundary.now).as_hours() / 24;
        let message = format!(
            "the acceptance by {} ends on {}, in {days} {}: renew spec.riskAcceptance, or move the effect behind a boundary that can refuse",
            accepted.accepted_by,
            accepted.expires.0,
            if days == 1 { "day" } else { "days" }
        );
        rule::RISK_ACCEPTANCE_EXPIRES_SOON.finds("", message)
    })
}

fn is_a_lock(spec: &WriteBoundarySpec) -> Option<Finding> {
    let receiver = &spec.external.as_ref()?.receiver;
    let word = hints::lock_service(receiver)?;
    let message = format!(
        "spec.external.receiver {receiver:?} names a lock ({word}): a lock tells who may write and refuses no write. Register the place that the writes land: \
         a WriteBoundary of type Postgres or Kubernetes; the lock itself belongs in spec.coordinator.external of the FencedLock"
    );
    Some(rule::LOCK_AS_BOUNDARY.finds("", message))
}

fn statement(postgres: &PostgresBoundary, writes: Option<WritesPerEpoch>) -> Option<Finding> {
    let declared = postgres.conditional_update.as_ref()?;
    let (mistake, why) = text::mistake(declared, &postgres.tables, writes?)?;
    let rule = match mistake {
        Mistake::Lock => &rule::LOCK_AS_BOUNDARY,
        Mistake::SelectDecides => &rule::SELECT_THEN_UPDATE,
        Mistake::Unconditional => &rule::STATEMENT_WITHOUT_COMPARISON,
        Mistake::EqualPasses => &rule::EQUAL_EPOCH_UNDECLARED,
        Mistake::EqualRefused => &rule::WRITES_PER_EPOCH_CONTRADICTION,
        Mistake::NotProvable => &rule::STATEMENT_NOT_PROVABLE,
    };
    let field = "spec.postgres.conditionalUpdate.statement";
    Some(rule.finds(field, format!("{field}: {why}")))
}
