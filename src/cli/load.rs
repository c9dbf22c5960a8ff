//! Reads manifests: files, folders, standard input; YAML with several documents, JSON, Lists. What cannot be read is kept as
//! such with its place, and the rest goes on.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::Failure;

/// Where a document starts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// The file, `-` for standard input.
    pub(super) file: String,
    /// The line, counted from 1.
    pub(super) line: usize,
}

/// A document of one of our kinds, or one that cannot be read.
#[derive(Clone, Debug)]
pub(super) struct Document {
    pub(super) place: Place,
    pub(super) content: Result<Object, String>,
}

/// An object of one of our kinds.
#[derive(Clone, Debug)]
pub(super) struct Object {
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) value: Value,
}

/// All documents of our kinds in the given paths, in order.
pub(super) fn all(paths: &[String], default_namespace: &str) -> Result<Vec<Document>, Failure> {
    let mut documents = Vec::new();
    for path in paths {
        if path == "-" {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text)?;
            documents.extend(split("-", &text, default_namespace));
            continue;
        }
        let found = files(Path::new(path))?;
        if found.is_empty() {
            return Err(Failure::Other(format!("{path}: there is no .yaml, .yml or .json file in it")));
        }
        for file in found {
            let name = file.display().to_string();
            match fs::read(&file) {
                Ok(bytes) => match String::from_utf8(bytes) {
                    Ok(text) => documents.extend(split(&name, &text, default_namespace)),
                    Err(_) => documents.push(unreadable(&name, 1, "is not UTF-8 text".into())),
                },
                Err(error) => return Err(Failure::Other(format!("{name}: {error}"))),
            }
        }
    }
    Ok(documents)
}

/// The manifests at a path: itself, or everything below it, in the order of names.
fn files(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    let error = |error: io::Error| Failure::Other(format!("{}: {error}", path.display()));
    if !fs::metadata(path).map_err(error)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut entries: Vec<_> = fs::read_dir(path).map_err(error)?.collect::<Result<_, _>>().map_err(error)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    let mut found = Vec::new();
    for entry in entries {
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        let child = entry.path();
        let is_manifest = child.extension().is_some_and(|e| ["yaml", "yml", "json"].iter().any(|known| e.eq_ignore_ascii_case(known)));
        // Links to folders are not followed: they can lead round in circles.
        match entry.file_type().map_err(error)? {
            kind if kind.is_dir() && !hidden => found.extend(files(&child)?),
            kind if !kind.is_dir() && is_manifest => found.push(child),
            _ => {}
        }
    }
    Ok(found)
}

fn unreadable(file: &str, line: usize, why: String) -> Document {
    Document { place: Place { file: file.into(), line }, content: Err(why) }
}

/// The documents of one text. Each is parsed on its own, so that a broken one does not take the others with it.
fn split(file: &str, text: &str, default_namespace: &str) -> Vec<Document> {
    let text = text.trim_start_matches('\u{feff}');
    let mut documents = Vec::new();
    let (mut start, mut lines) = (1, Vec::new());
    for (index, line) in text.lines().chain(std::iter::once("---")).enumerate() {
        let separator = line == "---" || line.starts_with("--- ") || line.starts_with("---\t");
        if separator {
            one(file, start, &lines.join("\n"), default_namespace, &mut documents);
            (start, lines) = (index + 2, Vec::new());
        } else {
            lines.push(line);
        }
    }
    documents
}

fn one(file: &str, start: usize, text: &str, default_namespace: &str, documents: &mut Vec<Document>) {
    let first = text.lines().position(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'));
    let Some(first) = first else { return };
    let line = start + first;
    match serde_saphyr::from_str::<Value>(text) {
        Ok(value) => objects(file, line, value, default_namespace, documents),
        Err(error) => {
            let at = error.location().map_or(line, |location| start + usize::try_from(location.line()).unwrap_or(1).saturating_sub(1));
            let why = error.without_snippet().to_string();
            let why = why.lines().next().unwrap_or_default();
            // The parser counts from the start of the document; the place counts from the start of the file.
            let why = why.rsplit_once(" at line ").map_or(why, |(what, _)| what);
            documents.push(unreadable(file, at, format!("is not YAML: {why}")));
        }
    }
}

/// Our objects in a document, which may be a List.
fn objects(file: &str, line: usize, value: Value, default_namespace: &str, documents: &mut Vec<Document>) {
    let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let (api_version, kind) = (text("/apiVersion").unwrap_or_default(), text("/kind").unwrap_or_default());
    if kind.ends_with("List")
        && let Some(items) = value.get("items").and_then(Value::as_array)
    {
        for item in items {
            objects(file, line, item.clone(), default_namespace, documents);
        }
        return;
    }
    if api_version.split('/').next() != Some(crate::api::GROUP) {
        return;
    }
    let name = text("/metadata/name").unwrap_or_default();
    let namespace = text("/metadata/namespace").unwrap_or_else(|| default_namespace.to_owned());
    let content = match kind.as_str() {
        "FencedLock" | "WriteBoundary" if name.is_empty() => Err("metadata.name: is required".to_owned()),
        "FencedLock" | "WriteBoundary" => Ok(Object { kind, namespace, name, value }),
        other => Err(format!("kind: {other:?} is not a kind of {}; there are FencedLock and WriteBoundary", crate::api::GROUP)),
    };
    documents.push(Document { place: Place { file: file.into(), line }, content });
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "apiVersion: fencedlock.dev/v1alpha1\nkind: FencedLock\nmetadata: {name: a}\n";

    #[test]
    fn a_broken_document_is_reported_with_its_line_and_the_others_go_on() {
        let text = format!("\u{feff}# comment\n{LOCK}---\nkey: [unclosed\n---\n\n{LOCK}---\n# only a comment\n");
        let found = split("f", &text, "default");
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].content.is_ok() && found[2].content.is_ok());
        assert_eq!((found[0].place.line, found[2].place.line), (2, 9));
        assert!(found[1].content.is_err());
        assert!((6..=7).contains(&found[1].place.line), "{:?}", found[1]);
    }

    #[test]
    fn lists_and_crlf_and_foreign_kinds() {
        let list = format!(
            "apiVersion: v1\r\nkind: List\r\nitems:\r\n- {{{}}}\r\n- {{apiVersion: v1, kind: Pod}}\r\n",
            LOCK.trim().replace('\n', ", ")
        );
        let found = split("f", &list, "default");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].content.as_ref().map(|o| (o.namespace.as_str(), o.name.as_str())).ok(), Some(("default", "a")));
        assert!(split("f", "apiVersion: v1\nkind: ConfigMap\n", "d").is_empty());
        assert!(split("f", "just text", "d").is_empty());
        assert!(split("f", "apiVersion: fencedlock.dev/v1alpha1\nkind: FencedLok\nmetadata: {name: x}", "d")[0].content.is_err());
    }
}
