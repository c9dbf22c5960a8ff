//! What was known when an audit was adopted: its findings do not count again, and a lock that was critical then is not made efficiency-only unseen.
//!
//! Start with [`Baseline`]. It is a file that is committed; lines and messages are not in it, so that it does not change with them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{
    assess::{Excuse, Located},
    rules::catalogue,
};
use crate::api::LockClass;

/// The version of the file's form.
pub const VERSION: u32 = 1;

/// What was known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Baseline {
    /// The version of this form.
    pub version: u32,
    /// The locks, by `namespace/name`.
    #[serde(default)]
    pub locks: BTreeMap<String, KnownLock>,
    /// The findings.
    #[serde(default)]
    pub findings: BTreeSet<Known>,
    /// The file that it was read from, for findings about what is gone.
    #[serde(skip)]
    pub file: Arc<str>,
}

/// A lock, as it was declared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownLock {
    /// Its class.
    pub class: LockClass,
    /// Its Lease, by which it is known again under another name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<String>,
}

/// A finding, without what changes when nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    /// The rule's id.
    pub rule: String,
    /// The object, or the file when the object cannot be read.
    pub object: String,
    /// What within the object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
}

impl Known {
    fn of(found: &Located) -> Self {
        let object = if found.object.kind.is_empty() { found.place.file.to_string() } else { found.object.to_string() };
        Self { rule: found.finding.rule.id.to_owned(), object, about: found.finding.about.clone() }
    }
}

impl Baseline {
    /// What is known now.
    pub fn new<'a>(locks: impl Iterator<Item = (String, KnownLock)>, findings: impl Iterator<Item = &'a Located>) -> Self {
        // A suppression answers for itself, and ends by itself.
        let counted = findings.filter(|found| !matches!(found.excused, Some(Excuse::Suppressed { .. })));
        // Who accepts a baseline has not agreed to a downgrade: it would be gone from the next one.
        let counted = counted.filter(|found| *found.finding.rule != catalogue::CLASS_DOWNGRADED);
        Self { version: VERSION, locks: locks.collect(), findings: counted.map(Known::of).collect(), file: Arc::default() }
    }

    /// Excuses the findings that are known, and returns how many known ones are gone.
    pub fn excuse(&self, findings: &mut [Located]) -> usize {
        let mut gone = self.findings.clone();
        for found in findings {
            let known = Known::of(found);
            gone.remove(&known);
            if found.excused.is_none() && self.findings.contains(&known) {
                found.excused = Some(Excuse::Known);
            }
        }
        gone.len()
    }

    /// The correctness-critical locks: namespace, name, Lease.
    pub fn critical(&self) -> impl Iterator<Item = (&str, &str, Option<&str>)> {
        let critical = self.locks.iter().filter(|(_, lock)| lock.class == LockClass::CorrectnessCritical);
        critical.filter_map(|(id, lock)| {
            let (namespace, name) = id.split_once('/')?;
            Some((namespace, name, lock.lease.as_deref()))
        })
    }
}
