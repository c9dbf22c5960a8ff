//! What an audit reports: one rule per kind of problem, each with a stable id that explains itself, a severity and a page.
//!
//! Start with [`lock::about`] and [`boundary::about`]: from a verdict to findings. The rules add nothing to the verdict's judgement but an id,
//! a severity, and what a verdict does not say. `catalogue` lists them, `hints` holds the words that say more than a class does. Locks that
//! nobody declared are [`super::inventory`]'s.

pub mod boundary;
pub mod catalogue;
mod hints;
pub mod lock;

use std::fmt;

use serde::{Deserialize, Serialize};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// Somebody should look at it.
    Warning,
    /// A correctness-critical lock is not fenced, or a declaration is wrong.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// A kind of problem.
#[derive(Debug)]
pub struct Rule {
    /// Its id, stable across versions: `critical-lock-without-boundary`.
    pub id: &'static str,
    /// How bad it is unless a configuration says otherwise.
    pub severity: Severity,
    /// What is wrong, in one clause.
    pub summary: &'static str,
    /// Why it matters, a wrong and a right manifest, and how a risk is accepted, in Markdown.
    pub page: &'static str,
}

impl Rule {
    /// A finding of this rule. What it is about within its object makes it the same finding when the message or the line changes.
    pub fn finds(&'static self, about: impl Into<String>, message: impl Into<String>) -> Finding {
        Finding { rule: self, severity: self.severity, about: about.into(), message: message.into() }
    }
}

impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Rule {}

/// One thing that an audit found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The rule.
    pub rule: &'static Rule,
    /// How bad it is.
    pub severity: Severity,
    /// What within the object: a field, a boundary, a container. Empty for the object as a whole.
    pub about: String,
    /// What is wrong and the next step.
    pub message: String,
}

impl Finding {
    /// The same, no worse than a severity.
    #[must_use]
    pub fn at_most(self, severity: Severity) -> Self {
        Self { severity: self.severity.min(severity), ..self }
    }
}
