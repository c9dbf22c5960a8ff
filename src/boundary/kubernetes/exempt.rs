//! Who writes to guarded objects whoever owns the lock. Pure.

use super::targets::Found;

/// Controllers that write to objects of a kind whoever owns the lock, by group and plural: exempt by default, and listed in the status.
/// Without credentials of their own all of them are the controller manager.
const DEFAULT_EXEMPTIONS: [(&str, &str, &[&str]); 11] = [
    ("apps", "deployments", &["deployment-controller"]),
    ("apps", "replicasets", &["replicaset-controller", "deployment-controller"]),
    ("apps", "statefulsets", &["statefulset-controller"]),
    ("apps", "daemonsets", &["daemon-set-controller"]),
    ("batch", "jobs", &["job-controller", "cronjob-controller", "ttl-after-finished-controller"]),
    ("batch", "cronjobs", &["cronjob-controller"]),
    ("autoscaling", "horizontalpodautoscalers", &["horizontal-pod-autoscaler"]),
    ("policy", "poddisruptionbudgets", &["disruption-controller"]),
    ("", "persistentvolumeclaims", &["persistent-volume-binder", "pvc-protection-controller", "expand-controller"]),
    ("", "resourcequotas", &["resourcequota-controller"]),
    ("", "replicationcontrollers", &["replication-controller"]),
];

/// The users that are exempt on a kind although nobody lists them.
pub(super) fn default_exemptions(found: &Found) -> Vec<String> {
    let is_it = |(group, plural, _): &&(&str, &str, &[&str])| *group == found.kind.group && *plural == found.kind.plural;
    let Some((_, _, controllers)) = DEFAULT_EXEMPTIONS.iter().find(is_it) else { return Vec::new() };
    let own = controllers.iter().map(|controller| format!("system:serviceaccount:kube-system:{controller}"));
    own.chain(["system:kube-controller-manager".to_owned()]).collect()
}

/// The same for all targets.
pub(super) fn all_default_exemptions(found: &[Found]) -> Vec<String> {
    let mut all: Vec<_> = found.iter().flat_map(default_exemptions).collect();
    all.sort_unstable();
    all.dedup();
    all
}
