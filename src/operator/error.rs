//! Why a step against the cluster failed, in the few kinds that make a difference.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt;
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
    /// A defect of this software.
    #[error("{0} panicked, which is a defect of fencedlock")]
    Defect(String),
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
    /// Every word that [`Error::category`] says.
    pub const CATEGORIES: [&'static str; 6] = ["conflict", "forbidden", "refused", "unavailable", "timeout", "defect"];

    /// A stable word for metrics and logs, one of [`Error::CATEGORIES`].
    pub const fn category(&self) -> &'static str {
        match self {
            Self::Conflict(_) => "conflict",
            Self::Forbidden(_) => "forbidden",
            Self::Refused { .. } => "refused",
            Self::Unavailable { .. } => "unavailable",
            Self::TimedOut { .. } => "timeout",
            Self::Defect(_) => "defect",
        }
    }

    /// Whether trying again soon can help.
    pub const fn is_retryable(&self) -> bool {
        !matches!(self, Self::Forbidden(_) | Self::Refused { .. } | Self::Defect(_))
    }
}

/// Bounds a pass over an object in time, and keeps a panic in it from ending the passes over others.
pub(super) async fn contained<T>(what: String, limit: Duration, pass: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    // What passes share is behind mutexes that outlive a poisoning.
    let pass = AssertUnwindSafe(pass).catch_unwind();
    match tokio::time::timeout(limit, pass).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(Error::Defect(what)),
        Err(_) => Err(Error::TimedOut { what, limit }),
    }
}

/// What the operator does to which resource, to name it in errors: `get leases.coordination.k8s.io "x" in namespace "y"`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step<'a> {
    /// The verb, as RBAC spells it.
    pub(super) verb: &'static str,
    /// The resource and its group, as RBAC spells them.
    pub(super) resource: &'a str,
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
            // Quotas and namespaces that are going away answer 403 too, and no right would help there.
            kube::Error::Api(status) if status.code == 403 && status.message.contains(" cannot ") => Error::Forbidden(self.right()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pass_that_panics_or_hangs_is_an_error_of_its_object() {
        let limit = Duration::from_millis(1);
        let panics = async { panic!("on purpose") };
        assert!(
            matches!(contained::<()>("a pass".into(), Duration::from_mins(1), panics).await, Err(Error::Defect(what)) if what == "a pass")
        );
        assert!(matches!(contained::<()>("a pass".into(), limit, std::future::pending()).await, Err(Error::TimedOut { .. })));
        assert!(contained("a pass".into(), Duration::from_mins(1), async { Ok(()) }).await.is_ok());
    }
}
