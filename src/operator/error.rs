//! Why a step against the cluster failed, in the few kinds that make a difference.

use std::time::Duration;

use thiserror::Error;

/// Why a step failed.
#[derive(Debug, Error)]
pub enum Error {
    /// Somebody else wrote first: read again, decide again.
    #[error("somebody else changed {0} first")]
    Conflict(String),
    /// A right is missing.
    #[error("the operator may not {0}")]
    Forbidden(String),
    /// The API server refused what was written.
    #[error("the API server refused {what}: {why}")]
    Refused {
        /// The object.
        what: String,
        /// What it said.
        why: String,
    },
    /// Anything that may pass by itself.
    #[error("{what}: {why}")]
    Unavailable {
        /// The step.
        what: String,
        /// What went wrong.
        why: String,
    },
    /// The step took too long.
    #[error("{what} took longer than {limit:?}")]
    TimedOut {
        /// The step.
        what: String,
        /// The limit.
        limit: Duration,
    },
}

impl Error {
    /// A stable word for metrics and logs.
    pub const fn category(&self) -> &'static str {
        match self {
            Self::Conflict(_) => "conflict",
            Self::Forbidden(_) => "forbidden",
            Self::Refused { .. } => "refused",
            Self::Unavailable { .. } => "unavailable",
            Self::TimedOut { .. } => "timeout",
        }
    }

    /// Whether trying again soon can help.
    pub const fn is_retryable(&self) -> bool {
        !matches!(self, Self::Forbidden(_) | Self::Refused { .. })
    }
}

/// What the operator does to which resource, to name it in errors: `get leases.coordination.k8s.io "x" in namespace "y"`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step<'a> {
    /// The verb, as RBAC spells it.
    pub(super) verb: &'static str,
    /// The resource and its group, as RBAC spells them.
    pub(super) resource: &'static str,
    /// The namespace; empty for all.
    pub(super) namespace: &'a str,
    /// The object; empty for none.
    pub(super) name: &'a str,
}

impl Step<'_> {
    /// The right that the step needs, which is what a person has to grant.
    pub(super) fn right(&self) -> String {
        let scope = if self.namespace.is_empty() { "in all namespaces".to_owned() } else { format!("in namespace {:?}", self.namespace) };
        format!("{} {} {scope}", self.verb, self.resource)
    }

    /// The step with its object.
    fn what(&self) -> String {
        format!("{} {} {}/{}", self.verb, self.resource, self.namespace, self.name)
    }

    /// The error of a failed request.
    pub(super) fn failed(&self, error: &kube::Error) -> Error {
        match error {
            kube::Error::Api(status) if status.code == 409 => {
                Error::Conflict(format!("{} {}/{}", self.resource, self.namespace, self.name))
            }
            kube::Error::Api(status) if status.code == 403 => Error::Forbidden(self.right()),
            kube::Error::Api(status) if (400..429).contains(&status.code) => {
                Error::Refused { what: self.what(), why: status.message.clone() }
            }
            other => Error::Unavailable { what: self.what(), why: other.to_string() },
        }
    }
}

/// Whether the API server says that the object is not there.
pub(super) fn is_missing(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}
