//! The forms of running once. Each is a lock that Kubernetes keeps as well as it can and fences not at all.

use serde_json::Value;

/// A form of running once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Single {
    /// A CronJob with `concurrencyPolicy: Forbid`.
    Forbid,
    /// A StatefulSet of one replica.
    OneReplica,
    /// A Deployment with `strategy: Recreate`.
    Recreate,
    /// A volume for one pod only.
    ReadWriteOncePod,
}

impl Single {
    /// What tells it apart within its object.
    pub(super) const fn key(self) -> &'static str {
        match self {
            Self::Forbid => "concurrencyPolicy",
            Self::OneReplica => "replicas",
            Self::Recreate => "strategy",
            Self::ReadWriteOncePod => "accessModes",
        }
    }

    /// What it is called.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Forbid => "CronJob that forbids concurrency",
            Self::OneReplica => "StatefulSet of one replica",
            Self::Recreate => "Deployment that is recreated",
            Self::ReadWriteOncePod => "volume for one pod",
        }
    }

    pub(super) fn message(self) -> String {
        let (what, why) = match self {
            Self::Forbid => (
                "concurrencyPolicy: Forbid lets one Job run at a time",
                "a pod on a node that does not answer goes on while the next Job starts, and a retried pod can overlap with the one before",
            ),
            Self::OneReplica => (
                "a StatefulSet of one replica runs its pod once",
                "a pod that is deleted by force, or whose node comes back, goes on beside its successor",
            ),
            Self::Recreate => (
                "strategy Recreate stops the old pod before it starts the new one",
                "that holds for a rollout; after an eviction or a lost node two pods run",
            ),
            Self::ReadWriteOncePod => (
                "ReadWriteOncePod lets one pod use the volume",
                "it stops a second pod from starting on the same storage system, and nothing that the first one has under way elsewhere",
            ),
        };
        format!(
            "{what}. This is a lock that Kubernetes does not fence: {why}. If two at once would corrupt data, take a Lease and declare it \
             (--scaffold writes the manifest)"
        )
    }
}

pub(super) fn of(value: &Value, kind: &str) -> Vec<Single> {
    let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str);
    let has_mode = |claim: &Value| {
        let modes = claim.pointer("/spec/accessModes").and_then(Value::as_array);
        modes.into_iter().flatten().any(|mode| mode.as_str() == Some("ReadWriteOncePod"))
    };
    let mut singles = Vec::new();
    match kind {
        "CronJob" if text("/spec/concurrencyPolicy") == Some("Forbid") => singles.push(Single::Forbid),
        "Deployment" if text("/spec/strategy/type") == Some("Recreate") => singles.push(Single::Recreate),
        "StatefulSet" if value.pointer("/spec/replicas").is_none_or(|replicas| replicas.is_null() || replicas.as_i64() == Some(1)) => {
            singles.push(Single::OneReplica);
        }
        "PersistentVolumeClaim" if has_mode(value) => singles.push(Single::ReadWriteOncePod),
        _ => {}
    }
    let templates = value.pointer("/spec/volumeClaimTemplates").and_then(Value::as_array);
    if templates.into_iter().flatten().any(has_mode) {
        singles.push(Single::ReadWriteOncePod);
    }
    singles
}
