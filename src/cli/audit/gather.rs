//! Reads manifests into a look.

use std::sync::Arc;

use serde_json::Value;

use crate::{
    api::GROUP,
    audit::{
        assess::{
            Id, Located, Place,
            judge::Look,
            read::{self, Kept},
        },
        rules::{Finding, Severity, catalogue as rule},
    },
    boundary::digest,
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
        Text::Unreadable(why) => return vec![wrong(chunk.line, rule::UNREADABLE_DOCUMENT.finds("", why))],
        Text::Chart => {
            let message = "a Helm chart: its templates are programs and were not read; audit what it renders: helm template NAME CHART | fencedlock audit -";
            return vec![wrong(chunk.line, rule::HELM_CHART_NOT_RENDERED.finds("", message))];
        }
    };
    // What somebody names, or what may hold a lock, has to be readable. Anything may lie in a folder.
    let names_us = names_us(text);
    let is_ours = chunk.how.is_named || names_us;
    let weigh = |finding: Finding| if is_ours { finding } else { finding.at_most(Severity::Warning) };
    if chunk.how.is_patch && !names_us {
        return Vec::new();
    }
    let parsed = manifests::parse(text, chunk.line).into_iter();
    let kept = parsed
        .filter_map(|parsed| match parsed {
            // "// comment" makes text of what follows it, and a command's error message is text.
            Parsed::Object(line, value) if is_ours && !value.is_object() && !value.is_null() => {
                let message = "is no object: write one manifest per document";
                Some(wrong(line, rule::UNREADABLE_DOCUMENT.finds(print(text), message)))
            }
            // "Error: …" of the command before the pipe is a mapping.
            Parsed::Object(line, value) if chunk.how.is_named && value.as_object().is_some_and(|fields| !fields.contains_key("kind")) => {
                let found = rule::UNREADABLE_DOCUMENT.finds(print(text), "has no kind, so it is no manifest: did the command that wrote it fail?");
                Some(wrong(line, if names_us || &*chunk.file == "-" { found } else { found.at_most(Severity::Warning) }))
            }
            Parsed::Object(line, value) if patches(&value) => {
                // One that does not say what it patches may mean a lock.
                Some(wrong(line, if names_us { unapplied() } else { unapplied().at_most(Severity::Info) }))
            }
            Parsed::Object(line, value) => match read::object(&value, &place(line), namespace) {
                None if let Some(at) = names_us.then(|| read::buried(&value)).flatten() => {
                    let at = at.trim_start_matches('.');
                    let message = format!(
                        "{at} is a FencedLock or a WriteBoundary that lies within another object, and was not read: audit what is made of it, as \
                         helm template, kustomize build or oc process print it"
                    );
                    Some(wrong(line, rule::UNREADABLE_DOCUMENT.finds(at, message)))
                }
                kept => kept,
            },
            Parsed::Problem(line, Problem::Unreadable(why)) => {
                Some(wrong(line, weigh(rule::UNREADABLE_DOCUMENT.finds(print(text), format!("is not YAML: {why}")))))
            }
            Parsed::Problem(line, Problem::Duplicate(why)) => {
                let message = format!("{why}: the last one counts here, and another reader may take the first or refuse the document");
                let finding = rule::DUPLICATE_KEY.finds(print(text), message);
                // Of two classes one is not what somebody reads.
                Some(wrong(line, if names_us { finding } else { finding.at_most(Severity::Warning) }))
            }
        })
        .filter(|kept| !chunk.how.is_patch || is_whole(kept));
    let patch = chunk.how.is_patch.then(|| wrong(chunk.line, unapplied()));
    kept.chain(patch).collect()
}

/// What makes a document that cannot be read the same one when lines move above it, and another one when it changes.
fn print(text: &[u8]) -> String {
    let mut print = digest::hash([&*String::from_utf8_lossy(text)]);
    print.truncate(12);
    print
}

/// Whether a text speaks of our kinds, also in UTF-16, which is refused.
fn names_us(text: &[u8]) -> bool {
    const WIDE: &[u8] = b"f\0e\0n\0c\0e\0d\0l\0o\0c\0k\0.\0d\0e\0v";
    let has = |name| memchr::memmem::find(text, name).is_some();
    [GROUP.as_bytes(), b"FencedLock", b"WriteBoundary"].into_iter().any(has) || memchr::memchr(0, text).is_some() && has(WIDE)
}

/// Whether an object is a kustomization that patches others; Flux has one of its own.
fn patches(value: &Value) -> bool {
    const FIELDS: &[&str] = &["patches", "patchesJson6902", "patchesStrategicMerge", "replacements"];
    let is_kustomization = value.get("kind").is_none_or(|kind| kind == "Kustomization" || kind == "Component");
    let has = |value: &Value| FIELDS.iter().any(|field| value.get(field).is_some());
    is_kustomization && (has(value) || value.get("spec").is_some_and(has))
}

fn unapplied() -> Finding {
    let message = "a kustomization lays parts over objects, perhaps over a FencedLock or a WriteBoundary, and what comes of it is not here: kustomize build FOLDER \
                   | fencedlock audit -";
    rule::PATCH_NOT_APPLIED.finds("", message)
}

/// Whether a patch happens to be a whole object, which somebody may apply as it is.
fn is_whole(kept: &Kept) -> bool {
    match kept {
        Kept::Lock(lock) => lock.object.is_some(),
        Kept::Boundary(boundary) => boundary.object.is_some(),
        Kept::Fact(_) | Kept::Wrong(_) => false,
    }
}
