//! JUnit, for pipelines that show tests: a test case for each declared lock, which fails by its findings, and one for each other object with a
//! finding.

use std::collections::BTreeMap;

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use super::counted;
use crate::{
    audit::{
        assess::{Located, judge::Assessment},
        rules::Severity,
    },
    cli::Failure,
};

pub(super) fn render(result: &Assessment) -> Result<String, Failure> {
    let mut findings: BTreeMap<String, Vec<&Located>> = BTreeMap::new();
    for lock in &result.locks {
        findings.entry(lock.id.to_string()).or_default();
    }
    for found in counted(result) {
        let object = if found.object.kind.is_empty() { found.place.file.to_string() } else { found.object.to_string() };
        findings.entry(object).or_default().push(found);
    }
    let mut suite = TestSuite::new("fencedlock audit");
    for (object, findings) in findings {
        suite.add_test_case(case(object, &findings));
    }
    let mut report = Report::new("fencedlock");
    report.add_test_suite(suite);
    report.to_string().map_err(|error| Failure::Other(error.to_string()))
}

fn case(object: String, findings: &[&Located]) -> TestCase {
    // JUnit knows passed and failed: what is for information is printed and fails nothing.
    let (failing, noted): (Vec<_>, Vec<_>) = findings.iter().partition(|found| found.finding.severity > Severity::Info);
    let say = |found: &&&Located| {
        let place = if found.place.line == 0 { String::new() } else { format!(" at {}:{}", found.place.file, found.place.line) };
        format!("{}[{}]{place}\n{}", found.finding.severity, found.finding.rule.id, found.finding.message)
    };
    let status = failing.first().map_or_else(TestCaseStatus::success, |first| {
        let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
        let text: Vec<_> = failing.iter().map(say).collect();
        status.set_type(first.finding.rule.id).set_message(first.finding.message.as_str()).set_description(text.join("\n\n"));
        status
    });
    let mut case = TestCase::new(object, status);
    case.set_classname("fencedlock");
    if !noted.is_empty() {
        case.set_system_out(noted.iter().map(say).collect::<Vec<_>>().join("\n\n"));
    }
    case
}
