//! Parses one document. Nothing in it can stop the rest: what cannot be read is a [`Problem`] with its line.

use std::{collections::HashSet, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Value, value::RawValue};
use serde_saphyr::{DuplicateKeyPolicy, Options, Spanned};

use crate::api::conditions::shorten;

/// What came of a document.
#[derive(Debug)]
pub(in crate::cli) enum Parsed {
    /// An object, and the line on which it starts, counted from 1.
    Object(u32, Value),
    /// Something that is wrong.
    Problem(u32, Problem),
}

/// What is wrong with a document.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) enum Problem {
    /// It cannot be read: why.
    Unreadable(String),
    /// A key is there twice: which.
    Duplicate(String),
}

/// How YAML is read. Limits against bombs are the parser's own; only those on size are raised, for Lists and generated files.
fn options(duplicate_keys: DuplicateKeyPolicy) -> Options {
    let mut options = Options::default();
    options.duplicate_keys = duplicate_keys;
    if let Some(budget) = &mut options.budget {
        budget.max_events = 8_000_000;
        budget.max_nodes = 4_000_000;
        budget.max_total_scalar_bytes = 256 << 20;
    }
    options
}

#[derive(Deserialize)]
struct Items {
    items: Vec<Spanned<Value>>,
}

#[derive(Deserialize)]
struct RawItems<'a> {
    #[serde(borrow)]
    items: Vec<&'a RawValue>,
}

/// Parses a document; a List is taken apart. The start is the line of the text's first line.
pub(in crate::cli) fn parse(bytes: &[u8], start: u32) -> Vec<Parsed> {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let line = start + count_lines(&bytes[..error.valid_up_to()]);
            return vec![Parsed::Problem(line, Problem::Unreadable("is not UTF-8 text".into()))];
        }
    };
    let is_content = |line: &str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    let Some(first) = text.lines().position(|line| line.split('\r').any(is_content)) else { return Vec::new() };
    let line = start.saturating_add(u32::try_from(first).unwrap_or(u32::MAX));
    let trimmed = text.trim_start();
    if trimmed.starts_with(['{', '['])
        && let Some(parsed) = json(text, start)
    {
        return parsed;
    }
    yaml(text, start, line)
}

fn count_lines(bytes: &[u8]) -> u32 {
    u32::try_from(memchr::memchr_iter(b'\n', bytes).count()).unwrap_or(u32::MAX)
}

/// JSON, one document after the other; `None` when it is something else.
fn json(text: &str, start: u32) -> Option<Vec<Parsed>> {
    // The parts come in their order, so that every line is counted once.
    let (mut counted, mut line) = (0, start);
    let mut line_of = |part: &str| {
        let at = part.as_ptr() as usize - text.as_ptr() as usize;
        line += count_lines(&text.as_bytes()[counted..at]);
        counted = at;
        line
    };
    let mut parsed = Vec::new();
    for raw in serde_json::Deserializer::from_str(text).into_iter::<&RawValue>() {
        let raw = raw.ok()?;
        if let Some((below, why)) = twice(raw.get()) {
            parsed.push(Parsed::Problem(line_of(raw.get()).saturating_add(below), Problem::Duplicate(why)));
        }
        if let Ok(list) = serde_json::from_str::<RawItems<'_>>(raw.get())
            && let kind = serde_json::from_str(raw.get()).ok()?
            && is_list(&kind)
        {
            for item in list.items {
                item_of(&kind, line_of(item.get()), serde_json::from_str(item.get()).ok()?, &mut parsed);
            }
            continue;
        }
        parsed.push(Parsed::Object(line_of(raw.get()), serde_json::from_str(raw.get()).ok()?));
    }
    Some(parsed)
}

/// The first key that is there twice in a JSON document, and how many lines further down.
fn twice(json: &str) -> Option<(u32, String)> {
    let error = serde_json::from_str::<Unique>(json).err().filter(serde_json::Error::is_data)?;
    let why = error.to_string();
    let why = why.rsplit_once(" at line ").map_or(why.as_str(), |(what, _)| what);
    Some((u32::try_from(error.line()).unwrap_or(1).saturating_sub(1), why.to_owned()))
}

/// JSON in which every key is there once. Nothing of it is kept.
struct Unique;

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Unique {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self, A::Error> {
        while items.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self, A::Error> {
        let mut keys = HashSet::new();
        while let Some(key) = fields.next_key::<String>()? {
            if keys.contains(&key) {
                return Err(A::Error::custom(format!("the key {:?} is there twice", shorten(&key, 64))));
            }
            keys.insert(key);
            fields.next_value::<Self>()?;
        }
        Ok(self)
    }
}

/// What the parts of a List have in common; a part of a large one has no kind.
#[derive(Deserialize)]
struct Kind {
    kind: Option<String>,
    #[serde(rename = "apiVersion")]
    api_version: Option<String>,
}

impl Kind {
    fn of(value: &Value) -> Self {
        let text = |name| value.get(name).and_then(Value::as_str).map(str::to_owned);
        Self { kind: text("kind"), api_version: text("apiVersion") }
    }
}

/// An item of a List. It can be a List itself, and in one of its own kind (`FencedLockList`) it need not say what it is.
fn item_of(list: &Kind, line: u32, mut item: Value, parsed: &mut Vec<Parsed>) {
    if let (Some(fields), Some(kind), Some(version)) = (item.as_object_mut(), &list.kind, &list.api_version)
        && let Some(kind) = without_list(kind).filter(|kind| !kind.is_empty())
    {
        fields.entry("kind").or_insert_with(|| kind.into());
        fields.entry("apiVersion").or_insert_with(|| version.as_str().into());
    }
    let inner = Kind::of(&item);
    if let (true, Some(Value::Array(items))) = (inner.kind.is_some() && is_list(&inner), item.get_mut("items").map(Value::take)) {
        for item in items {
            item_of(&inner, line, item, parsed);
        }
    } else {
        parsed.push(Parsed::Object(line, item));
    }
}

fn is_list(kind: &Kind) -> bool {
    kind.kind.as_ref().is_none_or(|kind| without_list(kind).is_some())
}

/// A List's kind without that word. Another spelling is no kind for an API server, and whoever wrote it means one.
fn without_list(kind: &str) -> Option<&str> {
    let (item, list) = kind.split_at_checked(kind.len().checked_sub(4)?)?;
    list.eq_ignore_ascii_case("list").then_some(item)
}

fn yaml(text: &str, start: u32, line: u32) -> Vec<Parsed> {
    let mut parsed = Vec::new();
    let value = match serde_saphyr::from_str_with_options::<Value>(text, options(DuplicateKeyPolicy::Error)) {
        Ok(value) => value,
        Err(error) => {
            let (at, why, is_duplicate) = explain(&error, start, line);
            let again = is_duplicate.then(|| serde_saphyr::from_str_with_options::<Value>(text, options(DuplicateKeyPolicy::LastWins)));
            let Some(Ok(value)) = again else { return vec![Parsed::Problem(at, Problem::Unreadable(why))] };
            parsed.push(Parsed::Problem(at, Problem::Duplicate(why)));
            value
        }
    };
    let kind = Kind::of(&value);
    if is_list(&kind) && value.get("items").is_some_and(Value::is_array) {
        // Read again, for the places: a List is rare.
        if let Ok(list) = serde_saphyr::from_str_with_options::<Items>(text, options(DuplicateKeyPolicy::LastWins)) {
            let at = |item: &Spanned<Value>| start + u32::try_from(item.referenced.line()).unwrap_or(1).saturating_sub(1);
            for item in list.items {
                item_of(&kind, at(&item), item.value, &mut parsed);
            }
            return parsed;
        }
    }
    parsed.push(Parsed::Object(line, value));
    parsed
}

/// The line, what is wrong, and whether it is a key that is there twice.
fn explain(error: &serde_saphyr::Error, start: u32, line: u32) -> (u32, String, bool) {
    let error = error.without_snippet();
    let at = error.location().filter(|location| location.line() > 0);
    let at = at.map_or(line, |location| start + u32::try_from(location.line()).unwrap_or(1).saturating_sub(1));
    let why = error.to_string();
    let why = why.lines().next().unwrap_or_default();
    // The parser counts from the start of the document; the place counts from the start of the file.
    let why = why.rsplit_once(" at line ").map_or(why, |(what, _)| what);
    if let serde_saphyr::Error::DuplicateMappingKey { key, .. } = error {
        let key = key.as_ref().map_or_else(String::new, |key| format!(" {:?}", shorten(key, 64)));
        return (at, format!("the key{key} is there twice"), true);
    }
    (at, why.to_owned(), false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(text: &str) -> Vec<(u32, String)> {
        let read = parse(text.as_bytes(), 1).into_iter();
        read.map(|parsed| match parsed {
            Parsed::Object(line, value) => (line, value.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned()),
            Parsed::Problem(line, problem) => (line, format!("{problem:?}")),
        })
        .collect()
    }

    #[test]
    fn lists_are_taken_apart_and_keep_their_places() {
        let yaml = "# a comment\nkind: List\nitems:\n- kind: A\n  metadata: {name: a}\n- kind: B\n  metadata:\n    name: b\n";
        assert_eq!(objects(yaml), [(4, "a".into()), (6, "b".into())]);
        let json =
            "{\n \"items\": [\n  {\"metadata\": {\"name\": \"a\"}},\n\n\t{\"metadata\": {\"name\": \"b\"}}\n ],\n \"kind\": \"PodList\"}\n";
        assert_eq!(objects(json), [(3, "a".into()), (5, "b".into())]);
        assert_eq!(objects("{\"metadata\": {\"name\": \"a\"}}\n{\"metadata\": {\"name\": \"b\"}}"), [(1, "a".into()), (2, "b".into())]);
        // A List in a List, and one of a kind of its own whose items do not say what they are.
        let inner = "apiVersion: v1\nkind: List\nitems:\n- kind: List\n  items:\n  - {kind: A, metadata: {name: a}}\n- kind: B\n  metadata: {name: b}\n";
        assert_eq!(objects(inner), [(4, "a".into()), (7, "b".into())]);
        let yaml = "apiVersion: x/v1\nkind: LockList\nitems:\n- metadata: {name: a}\n";
        let json = r#"{"apiVersion": "x/v1", "kind": "LockList", "items": [{"metadata": {"name": "a"}}]}"#;
        for text in [yaml, json] {
            let read = parse(text.as_bytes(), 1);
            let [Parsed::Object(_, value)] = read.as_slice() else { panic!("{read:?}") };
            assert_eq!((value["kind"].as_str(), value["apiVersion"].as_str()), (Some("Lock"), Some("x/v1")));
        }
        // A kind of somebody's that has items is no List.
        assert_eq!(objects("kind: Menu\nmetadata: {name: m}\nitems: [{metadata: {name: soup}}]"), [(1, "m".into())]);
    }

    #[test]
    fn hostile_documents_are_survived() {
        let level = |n: usize| format!("a{n}: &a{n} [{}]", vec![format!("*a{}", n - 1); 10].join(", "));
        let bomb = format!("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n{}\n", (1..12).map(level).collect::<Vec<_>>().join("\n"));
        let deep = format!("a: {}{}", "[".repeat(100_000), "]".repeat(100_000));
        let deep_json = format!("{{\"a\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        for text in [&bomb, &deep, &deep_json] {
            let read = parse(text.as_bytes(), 7);
            assert!(matches!(read.as_slice(), [Parsed::Problem(line, Problem::Unreadable(_))] if *line >= 7), "{read:?}");
        }
        assert!(matches!(parse(b"a: b\nc: \xff\xfe\n", 1).as_slice(), [Parsed::Problem(2, Problem::Unreadable(_))]));
        assert!(matches!(parse(b"metadata:\n\tname: x\n", 1).as_slice(), [Parsed::Problem(2, Problem::Unreadable(_))]));
    }

    #[test]
    fn what_yaml_allows_is_read() {
        let merged = "base: &base {name: a}\nmetadata:\n  <<: *base\n";
        assert_eq!(objects(merged), [(1, "a".into())]);
        assert_eq!(objects("metadata:\r\n  name: a\r\n"), [(1, "a".into())]);
        assert_eq!(objects("metadata: {name: a}\ndata: {8080: x, true: y}\n"), [(1, "a".into())]);
        let twice = objects("metadata:\n  name: a\n  name: b\n");
        assert_eq!(twice, [(3, "Duplicate(\"the key \\\"name\\\" is there twice\")".into()), (1, "b".into())]);
        let json = "{\"metadata\": {\"name\": \"a\",\n \"name\": \"b\"}}";
        assert_eq!(objects(json), [(2, "Duplicate(\"the key \\\"name\\\" is there twice\")".into()), (1, "b".into())]);
        assert_eq!(objects("kind: list\nitems: [{metadata: {name: a}}]\n"), [(2, "a".into())]);
        assert_eq!(objects("just text"), [(1, String::new())]);
        assert_eq!(objects("# nothing\n\n"), []);
    }
}
