//! One look at many objects: from what was read, in manifests or in a cluster, to verdicts and findings. Pure: reading files and talking to a
//! cluster are the command line's.
//!
//! [`read`] turns one object into what is kept of it, [`judge`] judges all of them together. Start with [`judge::Look`].

pub mod judge;
pub mod read;

use std::sync::Arc;

use super::rules::Finding;

/// Where an object was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The file, `-` for standard input; empty for an object of a cluster.
    pub file: Arc<str>,
    /// The line, counted from 1; 0 for an object of a cluster.
    pub line: u32,
}

/// What an object is called.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    /// Its kind; empty for a document that cannot be read.
    pub kind: Arc<str>,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.kind.is_empty() { Ok(()) } else { write!(f, "{} {}/{}", self.kind, self.namespace, self.name) }
    }
}

/// A finding with the object that it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// The object.
    pub object: Id,
    /// Where it was read.
    pub place: Place,
    /// What was found.
    pub finding: Finding,
    /// Why it does not count, if it does not.
    pub excused: Option<Excuse>,
}

/// Why a finding does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Excuse {
    /// An annotation answers for it.
    Suppressed {
        /// Why.
        reason: String,
        /// Until when.
        until: k8s_openapi::jiff::Timestamp,
    },
    /// It was in the baseline already.
    Known,
}
