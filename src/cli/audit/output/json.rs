//! For programs. The form is documented by a generated schema, `docs/reference/audit.schema.json`, and versioned: fields are added within a version, and
//! none changes its meaning or goes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::Serialize;

use super::Counts;
use crate::{
    api::{LockClass, Verdict},
    audit::{
        assess::{
            Excuse, Id, Located,
            judge::{Assessment, JudgedLock, Ways},
        },
        inventory::{Form, FoundLock},
        rules::Severity,
    },
    cli::Failure,
};

/// The version of this form.
const VERSION: &str = "fencedlock.dev/audit/v1";

/// What `fencedlock audit --output json` prints.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report<'a> {
    /// The version of this form: `fencedlock.dev/audit/v1`.
    version: &'static str,
    /// The time that everything was judged as of.
    as_of: Time,
    summary: Summary,
    /// The declared locks.
    locks: Vec<Lock<'a>>,
    /// The findings, worst first, also those that do not count.
    findings: Vec<Finding<'a>>,
    /// The locks that nobody declared.
    unclassified: Vec<Unclassified<'a>>,
}

/// How many there are.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Summary {
    /// Declared locks.
    locks: usize,
    /// Found locks that nobody declared.
    unclassified: usize,
    /// Found locks that are declared.
    classified: usize,
    /// Findings of severity error that count.
    errors: usize,
    /// Findings of severity warning that count.
    warnings: usize,
    /// Findings of severity info that count.
    infos: usize,
    /// Findings that an annotation answers for.
    suppressed: usize,
    /// Findings that were in the baseline.
    known: usize,
    /// Entries of the baseline that are no longer found.
    gone: usize,
    /// Findings that are not here because the configuration switches their rules off.
    off: usize,
}

/// What an object is called, and where it was read.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Object<'a> {
    kind: &'a str,
    namespace: &'a str,
    name: &'a str,
}

/// A file and a line; absent for an object of a cluster.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct At<'a> {
    /// `-` for standard input.
    file: &'a str,
    /// Counted from 1.
    line: u32,
}

/// A declared lock.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Lock<'a> {
    namespace: &'a str,
    name: &'a str,
    /// Absent when the declaration cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<LockClass>,
    verdict: Verdict,
    /// Why, in one word.
    reason: &'a str,
    message: &'a str,
    /// Whether the verdict meets the class: `True`, `False` or `Unknown`.
    compliant: &'a str,
    boundaries: Boundaries,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<At<'a>>,
}

/// The boundaries that count for a lock.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Boundaries {
    /// Those that are proven or accepted.
    good: usize,
    /// All.
    all: usize,
}

/// A finding.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Finding<'a> {
    /// The rule's id. Ids are stable.
    rule: &'a str,
    severity: Severity,
    /// Absent for a document that cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<Object<'a>>,
    /// What within the object: a field, a boundary, a container; absent for the object as a whole.
    #[serde(skip_serializing_if = "str::is_empty")]
    about: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<At<'a>>,
    /// Why it does not count, if it does not: an annotation answers for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    suppressed: Option<Suppressed<'a>>,
    /// Whether it does not count because it was in the baseline.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    known: bool,
}

/// Who answers for a finding.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Suppressed<'a> {
    reason: &'a str,
    until: Time,
}

/// A lock that nobody declared.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Unclassified<'a> {
    /// How it is a lock: `leader election`, `Lease`, or a form of running once.
    form: String,
    /// The object that shows it.
    object: Object<'a>,
    /// The container that elects.
    #[serde(skip_serializing_if = "Option::is_none")]
    container: Option<&'a str>,
    /// The Lease, when it can be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<At<'a>>,
}

pub(super) fn render(result: &Assessment, ways: &Ways) -> Result<String, Failure> {
    let counts = Counts::of(result);
    let report = Report {
        version: VERSION,
        as_of: Time(ways.now),
        summary: Summary {
            locks: result.locks.len(),
            unclassified: result.unclassified.len(),
            classified: result.classified,
            errors: counts.errors,
            warnings: counts.warnings,
            infos: counts.infos,
            suppressed: counts.suppressed,
            known: counts.known,
            gone: result.gone,
            off: result.off,
        },
        locks: result.locks.iter().map(lock).collect(),
        findings: result.findings.iter().map(finding).collect(),
        unclassified: result.unclassified.iter().map(unclassified).collect(),
    };
    serde_json::to_string_pretty(&report).map_err(|error| Failure::Other(error.to_string()))
}

/// The documentation of the form.
#[cfg(test)]
pub(super) fn schema() -> schemars::Schema {
    schemars::generate::SchemaSettings::default().for_serialize().into_generator().into_root_schema_for::<Report<'static>>()
}

fn object(id: &Id) -> Object<'_> {
    Object { kind: &id.kind, namespace: &id.namespace, name: &id.name }
}

fn at(place: &crate::audit::assess::Place) -> Option<At<'_>> {
    (place.line > 0).then(|| At { file: &place.file, line: place.line })
}

fn lock(lock: &JudgedLock) -> Lock<'_> {
    let (good, all) = lock.judged.summary;
    Lock {
        namespace: &lock.id.namespace,
        name: &lock.id.name,
        class: lock.class,
        verdict: lock.judged.verdict,
        reason: lock.judged.reason,
        message: &lock.judged.message,
        compliant: lock.judged.compliant.as_str(),
        boundaries: Boundaries { good, all },
        at: at(&lock.place),
    }
}

fn finding(found: &Located) -> Finding<'_> {
    Finding {
        rule: found.finding.rule.id,
        severity: found.finding.severity,
        object: (!found.object.kind.is_empty()).then(|| object(&found.object)),
        about: &found.finding.about,
        message: &found.finding.message,
        at: at(&found.place),
        suppressed: match &found.excused {
            Some(Excuse::Suppressed { reason, until }) => Some(Suppressed { reason, until: Time(*until) }),
            _ => None,
        },
        known: found.excused == Some(Excuse::Known),
    }
}

fn unclassified(found: &FoundLock) -> Unclassified<'_> {
    let (container, lease) = match &found.form {
        Form::Election { container, lease, .. } => (Some(container.as_str()), lease.as_deref()),
        Form::Lease { .. } => (None, Some(&*found.object.name)),
        Form::Single(_) => (None, None),
    };
    Unclassified { form: found.form.to_string(), object: object(&found.object), container, lease, at: at(&found.place) }
}
