//! Cuts a file into documents, as it is read. A document ends where a line says `---` or `...`; a line that is a JSON object of its own is a
//! document; a List that is larger than [`LARGE`] is cut between its items.

use std::{io::BufRead, sync::Arc};

use serde::de::IgnoredAny;

use super::{Chunk, How, Text, pool::Sender};
use crate::cli::Failure;

/// The size in bytes from which a List is cut. An anchor is not known beyond a cut.
const LARGE: usize = 4 << 20;

/// The document that is being read.
struct Cutter<'a> {
    file: &'a Arc<str>,
    how: How,
    send: &'a mut Sender,
    text: Vec<u8>,
    /// The line of the text's first line.
    start: u32,
    /// The line that comes next.
    line: u32,
    /// How far the items of a List are indented, once one has begun.
    items: Option<usize>,
    is_list: bool,
    /// The lines that say of what kind the document is, as far as they have come.
    head: Vec<u8>,
}

/// Cuts a file.
pub(super) fn split(mut input: impl BufRead, file: &Arc<str>, how: How, send: &mut Sender) -> Result<(), Failure> {
    let mut cutter = Cutter { file, how, send, text: Vec::new(), start: 1, line: 1, items: None, is_list: false, head: Vec::new() };
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = input.read_until(b'\n', &mut line).map_err(|error| Failure::Other(format!("{file}: {error}")))?;
        if read == 0 {
            cutter.end(0);
            return Ok(());
        }
        let bytes = if cutter.line == 1 { line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&line) } else { &line };
        cutter.take(bytes);
    }
}

impl Cutter<'_> {
    fn take(&mut self, line: &[u8]) {
        let bare = line.trim_ascii_end();
        if bare == b"---" || bare == b"..." {
            self.end(1);
        } else if let Some(rest) = line.strip_prefix(b"---").filter(|rest| rest.starts_with(b" ") || rest.starts_with(b"\t")) {
            // What follows belongs to the document: "--- {kind: List}".
            self.end(0);
            self.text.extend_from_slice(b"   ");
            self.text.extend_from_slice(rest);
        } else if self.text.is_empty() && line.starts_with(b"%") {
            self.start = self.line + 1;
        } else {
            self.cut_list(line, bare);
            self.text.extend_from_slice(line);
            if self.text.len() == line.len() && line.starts_with(b"{") && serde_json::from_slice::<IgnoredAny>(line).is_ok() {
                self.line += 1;
                self.end(0);
                return;
            }
        }
        self.line += 1;
    }

    /// Ends the document; the next one starts so many lines later.
    fn end(&mut self, skip: u32) {
        let text = std::mem::take(&mut self.text);
        if text.iter().any(|byte| !byte.is_ascii_whitespace()) {
            self.send.send(Chunk { file: self.file.clone(), line: self.start, text: Text::Document(text), how: self.how });
        }
        (self.start, self.items, self.is_list) = (self.line + skip, None, false);
        self.head.clear();
    }

    /// Cuts before an item when what is there is large already. Each part is a List of its own.
    fn cut_list(&mut self, line: &[u8], bare: &[u8]) {
        if line.starts_with(b"kind:") || line.starts_with(b"apiVersion:") {
            self.head.extend_from_slice(line);
        }
        if bare == b"items:" {
            (self.is_list, self.items) = (true, None);
            return;
        }
        let indent = line.iter().take_while(|byte| **byte == b' ').count();
        let begins = self.is_list && line[indent..].starts_with(b"- ");
        if self.is_list && self.items.is_none() && begins {
            self.items = Some(indent);
        }
        if self.text.len() >= LARGE && begins && self.items == Some(indent) {
            let (items, head) = (self.items, std::mem::take(&mut self.head));
            self.end(0);
            // The lines that are put in front are not in the file.
            let in_front = u32::try_from(memchr::memchr_iter(b'\n', &head).count()).unwrap_or(u32::MAX).saturating_add(1);
            (self.start, self.items, self.is_list) = (self.line.saturating_sub(in_front), items, true);
            self.text.extend_from_slice(&head);
            self.text.extend_from_slice(b"items:\n");
            self.head = head;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::manifests::pool;

    /// Every chunk's first line and text.
    fn chunks(text: &[u8]) -> Vec<(u32, String)> {
        let mut chunks = Vec::new();
        let file = "f".into();
        let turn = |chunk: Chunk| match chunk.text {
            Text::Document(text) => (chunk.line, String::from_utf8(text).unwrap()),
            other => panic!("{other:?}"),
        };
        pool::run(|send| split(text, &file, How::default(), send), turn, |chunk| chunks.push(chunk)).unwrap();
        chunks
    }

    #[test]
    fn documents_end_where_a_line_says_so() {
        let text = "\u{feff}a: 1\n---\n# only a comment\n--- \nb: |\n  ---\n  text\n...\n%YAML 1.2\n--- {c: 3}\n---\td: 4\n---\n\n";
        let found = chunks(text.as_bytes());
        let expected = [(1, "a: 1\n"), (3, "# only a comment\n"), (5, "b: |\n  ---\n  text\n"), (10, "    {c: 3}\n"), (11, "   \td: 4\n")];
        assert_eq!(found, expected.map(|(line, text)| (line, text.to_owned())));
        assert_eq!(chunks(b"a: 1\r\n---\r\nb: 2"), [(1, "a: 1\r\n".to_owned()), (3, "b: 2".to_owned())]);
    }

    #[test]
    fn each_line_of_json_is_a_document_and_a_large_object_is_one() {
        assert_eq!(chunks(b"{\"a\": 1}\n{\"b\": 2}\n"), [(1, "{\"a\": 1}\n".to_owned()), (2, "{\"b\": 2}\n".to_owned())]);
        assert_eq!(chunks(b"{\n\"a\": 1\n}\n").len(), 1);
    }

    #[test]
    fn a_large_list_is_cut_between_its_items_and_keeps_its_lines() {
        let padding = "x".repeat(LARGE / 4);
        let item = |n: usize| format!("- kind: A\n  metadata: {{name: a{n}}}\n  list:\n  - x\n  pad: {padding}");
        let text = format!("kind: List\nitems:\n{}\n", (0..12).map(item).collect::<Vec<_>>().join("\n"));
        let found = chunks(text.as_bytes());
        assert!(found.len() >= 3, "{}", found.len());
        let read: Vec<_> = found.iter().flat_map(|(line, text)| crate::cli::manifests::parse(text.as_bytes(), *line)).collect();
        let lines: Vec<_> = read
            .iter()
            .map(|parsed| match parsed {
                crate::cli::manifests::Parsed::Object(line, _) => *line,
                crate::cli::manifests::Parsed::Problem(..) => 0,
            })
            .collect();
        assert_eq!(lines, (0..12).map(|n| 3 + 5 * n).collect::<Vec<u32>>());
    }
}
