//! SARIF 2.1.0, for code scanners. The few parts of the standard that are used are written here; the whole is validated against the published schema in
//! the tests.

use serde_json::{Value, json};

use crate::{
    audit::{
        assess::{Excuse, Located, judge::Assessment},
        rules::{Rule, Severity, catalogue},
    },
    cli::Failure,
};

const SCHEMA: &str = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json";

pub(super) fn render(result: &Assessment) -> Result<String, Failure> {
    let log = json!({
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "fencedlock",
                "semanticVersion": env!("CARGO_PKG_VERSION"),
                "rules": catalogue::ALL.iter().map(|rule| descriptor(rule)).collect::<Vec<_>>(),
            }},
            "columnKind": "unicodeCodePoints",
            "results": result.findings.iter().map(one).collect::<Vec<_>>(),
        }],
    });
    serde_json::to_string_pretty(&log).map_err(|error| Failure::Other(error.to_string()))
}

const fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Info => "note",
    }
}

fn descriptor(rule: &Rule) -> Value {
    json!({
        "id": rule.id,
        "shortDescription": {"text": rule.summary},
        "help": {"text": rule.page, "markdown": rule.page},
        "defaultConfiguration": {"level": level(rule.severity)},
    })
}

fn one(found: &Located) -> Value {
    let finding = &found.finding;
    let index = catalogue::ALL.iter().position(|rule| rule.id == finding.rule.id);
    let object = found.object.to_string();
    let mut location = json!({});
    if found.place.line > 0 {
        // A scanner shows what lies in the repository; standard input has no file.
        let uri = if &*found.place.file == "-" { "stdin".into() } else { uri(&found.place.file) };
        location["physicalLocation"] = json!({"artifactLocation": {"uri": uri}, "region": {"startLine": found.place.line}});
    }
    if !object.is_empty() {
        location["logicalLocations"] = json!([{"fullyQualifiedName": object, "kind": "object"}]);
    }
    let mut result = json!({
        "ruleId": finding.rule.id,
        "ruleIndex": index,
        "level": level(finding.severity),
        "message": {"text": if object.is_empty() { finding.message.clone() } else { format!("{object}: {}", finding.message) }},
        "locations": [location],
        // What makes it the same finding when lines move.
        "partialFingerprints": {"fencedlock/v1": format!("{}/{object}/{}", finding.rule.id, finding.about)},
    });
    match &found.excused {
        None => {}
        Some(Excuse::Suppressed { reason, until }) => {
            result["suppressions"] = json!([{"kind": "inSource", "justification": format!("{reason} (until {until})")}]);
        }
        Some(Excuse::Known) => {
            result["baselineState"] = json!("unchanged");
            result["suppressions"] = json!([{"kind": "external", "justification": "it is in the baseline"}]);
        }
    }
    result
}

/// A file's name as a relative or absolute URI.
fn uri(file: &str) -> String {
    const KEPT: &[u8] = b"/-._~";
    let mut text = String::new();
    for byte in file.bytes() {
        if byte.is_ascii_alphanumeric() || KEPT.contains(&byte) {
            text.push(byte.into());
        } else {
            // Writing to a String cannot fail.
            let _ = std::fmt::Write::write_fmt(&mut text, format_args!("%{byte:02X}"));
        }
    }
    if file.starts_with('/') { format!("file://{text}") } else { text }
}
