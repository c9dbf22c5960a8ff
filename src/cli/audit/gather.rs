//! Reads manifests into a look.

use std::sync::Arc;

use crate::{
    audit::{
        assess::{
            Id, Located, Place,
            judge::Look,
            read::{self, Kept},
        },
        rules::{Finding, Severity, catalogue as rule},
    },
    cli::{
        Failure,
        manifests::{self, Chunk, Exclude, Parsed, Problem, Text},
    },
};

/// Everything at the paths.
pub(super) fn manifests(paths: &[String], exclude: &Exclude, namespace: &str) -> Result<Look, Failure> {
    let namespace: Arc<str> = namespace.into();
    let mut look = Look::default();
    manifests::read(paths, exclude, |chunk| turn(&chunk, &namespace), |kept| kept.into_iter().for_each(|kept| look.add(kept)))?;
    Ok(look)
}

/// What is kept of one document.
pub(super) fn turn(chunk: &Chunk, namespace: &Arc<str>) -> Vec<Kept> {
    let place = |line| Place { file: chunk.file.clone(), line };
    let wrong =
        |line, finding: Finding| Kept::Wrong(Box::new(Located { object: Id::default(), place: place(line), finding, excused: None }));
    let text = match &chunk.text {
        Text::Document(text) => text,
        Text::Unreadable(why) => return vec![wrong(chunk.line, rule::UNREADABLE_DOCUMENT.finds("", why).at_most(Severity::Warning))],
        Text::Chart => {
            let message = "a Helm chart: its templates are programs and were not read; audit what it renders: helm template NAME CHART | fencedlock audit -";
            return vec![wrong(chunk.line, rule::HELM_CHART_NOT_RENDERED.finds("", message))];
        }
    };
    // What somebody names, or what may hold a lock, has to be readable. Anything may lie in a folder.
    let names_us = memchr::memmem::find(text, crate::api::GROUP.as_bytes()).is_some();
    let is_ours = chunk.is_named || names_us;
    let weigh = |finding: Finding| if is_ours { finding } else { finding.at_most(Severity::Warning) };
    let parsed = manifests::parse(text, chunk.line).into_iter();
    parsed
        .filter_map(|parsed| match parsed {
            // "// comment" makes text of what follows it.
            Parsed::Object(line, value) if names_us && !value.is_object() && !value.is_null() => {
                let message = "speaks of fencedlock.dev and is no object: write one manifest per document";
                Some(wrong(line, rule::UNREADABLE_DOCUMENT.finds(line.to_string(), message)))
            }
            Parsed::Object(line, value) => read::object(&value, &place(line), namespace),
            Parsed::Problem(line, Problem::Unreadable(why)) => {
                Some(wrong(line, weigh(rule::UNREADABLE_DOCUMENT.finds(line.to_string(), format!("is not YAML: {why}")))))
            }
            Parsed::Problem(line, Problem::Duplicate(why)) => {
                let message = format!("{why}: the last one counts here, and another reader may take the first or refuse the document");
                let finding = rule::DUPLICATE_KEY.finds(line.to_string(), message);
                // Of two classes one is not what somebody reads.
                Some(wrong(line, if names_us { finding } else { finding.at_most(Severity::Warning) }))
            }
        })
        .collect()
}
