//! Prints the page of a rule, or the list of all.

use std::io::{self, Write};

use crate::{
    audit::rules::catalogue,
    cli::{Failure, table},
};

pub(super) fn run(rule: &str) -> Result<u8, Failure> {
    let mut out = io::stdout();
    if rule.is_empty() {
        let rows: Vec<_> =
            catalogue::ALL.iter().map(|rule| vec![rule.id.to_owned(), rule.severity.to_string(), rule.summary.to_owned()]).collect();
        writeln!(out, "{}", table::render(&["RULE", "SEVERITY", "WHAT IS WRONG"], &rows))?;
        return Ok(0);
    }
    let found = catalogue::by_id(rule)
        .ok_or_else(|| Failure::Other(format!("there is no rule {rule:?}: fencedlock audit --explain, without a rule, lists them")))?;
    write!(out, "{}", found.page)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::LockClass,
        audit::{
            assess::judge::{Assessment, Look, Ways},
            baseline::{self, Baseline, KnownLock},
            rules::Severity,
        },
        cli::{
            audit::gather::turn,
            manifests::{Chunk, How, Text},
        },
    };

    /// A block of a page: what its fence says after the backquotes, and its text.
    fn block<'a>(page: &'a str, heading: &str) -> (&'a str, &'a str) {
        let rest = page.split_once(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("there is no {heading}")).1;
        let (_, rest) = rest.split_once("```").unwrap();
        let (fence, rest) = rest.split_once('\n').unwrap();
        (fence, rest.split_once("```").unwrap().0)
    }

    fn audit((fence, text): (&str, &str)) -> Assessment {
        let mut look = Look::default();
        for text in text.split("\n---\n") {
            let chunk = Chunk { file: "page.yaml".into(), line: 1, text: Text::Document(text.as_bytes().to_vec()), how: How::default() };
            for kept in turn(&chunk, &"default".into()) {
                look.add(kept);
            }
        }
        let mut ways = Ways {
            now: "2026-12-02T00:00:00Z".parse().unwrap(),
            soon: k8s_openapi::jiff::SignedDuration::from_hours(720),
            is_cluster: fence == "yaml cluster",
            baseline: None,
            severities: std::collections::BTreeMap::new(),
        };
        // The baseline of a page knows one critical lock.
        if let Some(name) = fence.strip_prefix("yaml baseline ") {
            let known = KnownLock { class: LockClass::CorrectnessCritical, lease: Some(name.to_owned()) };
            let locks = [(format!("default/{name}"), known)].into();
            ways.baseline = Some(Baseline { version: baseline::VERSION, locks, ..Baseline::default() });
        }
        look.judge(&ways)
    }

    #[test]
    fn every_page_shows_what_its_rule_finds_and_what_it_does_not() {
        for rule in catalogue::ALL {
            assert!(rule.page.starts_with(&format!("# {}\n", rule.id)), "{}", rule.id);
            let (wrong, right) = (block(rule.page, "Wrong"), block(rule.page, "Right"));
            assert!(rule.page.contains("\n## If you accept it\n"), "{}", rule.id);
            let finds = |found: &Assessment| found.findings.iter().any(|found| *found.finding.rule == **rule);
            if wrong.0 != "text" {
                let found = audit(wrong);
                assert!(finds(&found), "{}: the wrong manifest is not found: {:#?}", rule.id, found.findings);
                let own = found.findings.iter().find(|found| *found.finding.rule == **rule).unwrap();
                assert!(own.finding.severity == rule.severity || own.finding.severity < Severity::Error, "{}", rule.id);
            }
            if right.0 != "text" {
                let found = audit(right);
                assert!(!finds(&found), "{}: the right manifest is found: {:#?}", rule.id, found.findings);
                let errors: Vec<_> = found.findings.iter().filter(|found| found.finding.severity == Severity::Error).collect();
                assert!(errors.is_empty(), "{}: the right manifest has other errors: {errors:#?}", rule.id);
            }
        }
    }
}
