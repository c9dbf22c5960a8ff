//! Reads manifests: files, folders, standard input; YAML with several documents, JSON, Lists. What cannot be read is kept as such with its place, and
//! the rest goes on. Memory does not grow with the number of documents: they pass by in order, a few at a time, parsed on every core.
//!
//! `walk` finds the files, `split` cuts a file into documents, `parse` parses one, `pool` keeps the cores busy and the order. Start with [`read`].

mod parse;
mod pool;
mod split;
mod walk;

use std::sync::Arc;

pub(super) use parse::{Parsed, Problem, parse};
pub(super) use walk::Exclude;

use super::Failure;

/// One document's text.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    /// The file, `-` for standard input.
    pub(super) file: Arc<str>,
    /// The line of the text's first line, counted from 1.
    pub(super) line: u32,
    /// What it is.
    pub(super) text: Text,
    /// How its file came to be read.
    pub(super) how: How,
}

/// How a file came to be read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct How {
    /// Somebody named it, and did not only name a folder that it is in.
    pub(super) is_named: bool,
    /// A kustomization lays it over other objects: it holds parts of them.
    pub(super) is_patch: bool,
}

/// What a chunk is.
#[derive(Clone, Debug)]
pub(super) enum Text {
    /// A document, or a part of a List that is too large to be held at once.
    Document(Vec<u8>),
    /// A Helm chart's `Chart.yaml`: its templates are no manifests.
    Chart,
    /// A file that cannot be opened: why.
    Unreadable(String),
}

/// Reads everything at the paths: each chunk is turned into something on one of the cores, and taken in order.
///
/// # Errors
/// A path that is not there, standard input or a named file without a document, and a folder without manifests. A file that cannot be opened within a
/// folder is a chunk that says so.
pub(super) fn read<T: Send>(
    paths: &[String],
    exclude: &Exclude,
    turn: impl Fn(Chunk) -> T + Sync,
    take: impl FnMut(T),
) -> Result<(), Failure> {
    pool::run(|send| walk::all(paths, exclude, send), turn, take)
}
