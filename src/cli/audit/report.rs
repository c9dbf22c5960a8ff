//! Prints what was judged: a table for people, JSON for programs.

use std::fmt::Write;

use serde_json::json;

use super::{
    super::{Failure, table},
    judge::Judged,
};
use crate::{api::conditions::printable, audit::rules::Severity};

/// The verdicts as a table, then the findings as sentences, then one line that counts.
pub(super) fn table(judged: &Judged) -> String {
    let mut text = String::new();
    if judged.locks.is_empty() {
        text.push_str("No FencedLock was found.\n");
    } else {
        let rows: Vec<_> = judged
            .locks
            .iter()
            .map(|lock| {
                vec![
                    lock.namespace.clone(),
                    lock.name.clone(),
                    lock.class.map_or_else(|| "?".to_owned(), |class| format!("{class:?}")),
                    format!("{:?}", lock.judged.verdict),
                    lock.judged.reason.to_owned(),
                    format!("{}/{}", lock.judged.summary.0, lock.boundaries),
                ]
            })
            .collect();
        text.push_str(&table::render(&["NAMESPACE", "NAME", "CLASS", "VERDICT", "REASON", "BOUNDARIES"], &rows));
        text.push('\n');
    }
    for found in &judged.findings {
        let severity = match found.finding.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Info => "info",
        };
        let object = if found.object.is_empty() { String::new() } else { format!(": {}", printable(&found.object)) };
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "\n{severity}[{}]{object}\n  at {}:{}\n  {}\n",
            found.finding.rule,
            printable(&found.place.file),
            found.place.line,
            printable(&found.finding.message)
        );
    }
    let count = |severity| judged.findings.iter().filter(|f| f.finding.severity == severity).count();
    let _ = write!(
        text,
        "\n{}, {}, {}",
        plural(judged.locks.len(), "lock"),
        plural(count(Severity::Error), "error"),
        plural(count(Severity::Warning), "warning")
    );
    text
}

fn plural(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// The same as JSON.
pub(super) fn json(judged: &Judged) -> Result<String, Failure> {
    let locks: Vec<_> = judged
        .locks
        .iter()
        .map(|lock| {
            json!({
                "namespace": lock.namespace,
                "name": lock.name,
                "class": lock.class,
                "verdict": lock.judged.verdict,
                "reason": lock.judged.reason,
                "message": lock.judged.message,
                "compliant": lock.judged.compliant.as_str(),
                "boundaries": {"good": lock.judged.summary.0, "all": lock.boundaries},
                "file": lock.place.file,
                "line": lock.place.line,
            })
        })
        .collect();
    let findings: Vec<_> = judged
        .findings
        .iter()
        .map(|found| {
            json!({
                "rule": found.finding.rule,
                "severity": found.finding.severity,
                "object": found.object,
                "message": found.finding.message,
                "file": found.place.file,
                "line": found.place.line,
            })
        })
        .collect();
    serde_json::to_string_pretty(&json!({"locks": locks, "findings": findings})).map_err(|error| Failure::Other(error.to_string()))
}
