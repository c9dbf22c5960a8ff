//! Every rule: its id, its severity, one sentence, and the page that explains it. Ids are stable across versions: pipelines name them.
//! What must not come in: the judging, which is in the modules beside this one.

use super::{Rule, Severity};

macro_rules! rules {
    ($($name:ident: $severity:ident $id:literal $summary:literal)*) => {
        $(
            #[doc = concat!("`", $id, "`: ", $summary, ".")]
            pub static $name: Rule =
                Rule { id: $id, severity: Severity::$severity, summary: $summary, page: include_str!(concat!("pages/", $id, ".md")) };
        )*
        /// All rules, in the order in which they are listed to people.
        pub static ALL: &[&Rule] = &[$(&$name),*];
    };
}

rules! {
    CRITICAL_LOCK_WITHOUT_BOUNDARY: Error "critical-lock-without-boundary" "a correctness-critical lock has no write boundary, so nothing refuses an obsolete owner"
    BOUNDARY_MISSING: Error "boundary-missing" "a lock lists a write boundary that is not there, or that belongs to another lock"
    BOUNDARY_NOT_LISTED: Warning "boundary-not-listed" "a write boundary refers to a lock that does not list it, so that deleting it would go unnoticed"
    BOUNDARY_WITHOUT_LOCK: Warning "boundary-without-lock" "a write boundary refers to a lock that is not there"
    BOUNDARY_INVALID: Error "boundary-invalid" "a lock needs a write boundary whose declaration contradicts itself"
    BOUNDARY_NOT_PROVEN: Error "boundary-not-proven" "a write boundary was not seen to refuse an obsolete owner"
    PROOF_EXPIRED: Error "proof-expired" "the proof of a write boundary is too old, or is void since something changed"
    BOUNDARY_VIOLATED: Error "boundary-violated" "a write boundary accepted an obsolete owner, or its guard can be gone around"
    CONTRACT_TOO_WEAK: Error "contract-too-weak" "a write boundary refuses an obsolete owner later than its lock needs"
    LOCK_AS_BOUNDARY: Error "lock-as-boundary" "a lock is declared where a write boundary belongs"
    RECEIVER_CANNOT_ENFORCE: Error "receiver-cannot-enforce" "an external receiver cannot refuse an obsolete owner, and nobody answers for that"
    RISK_ACCEPTANCE_EXPIRED: Error "risk-acceptance-expired" "the acceptance of a risk has ended"
    RISK_ACCEPTANCE_EXPIRES_SOON: Warning "risk-acceptance-expires-soon" "the acceptance of a risk ends soon"
    EPOCH_IN_IDEMPOTENCY_KEY: Error "epoch-in-idempotency-key" "an idempotency key contains the epoch, so a new owner's repetition is not recognised"
    STATEMENT_WITHOUT_COMPARISON: Error "statement-without-comparison" "a conditional update does not compare the fence column with the epoch, or does not store the epoch"
    SELECT_THEN_UPDATE: Error "select-then-update" "a SELECT decides and another statement writes: an obsolete owner wakes up between the two"
    EQUAL_EPOCH_UNDECLARED: Error "equal-epoch-undeclared" "a comparison lets equal epochs through although one write per epoch is declared"
    WRITES_PER_EPOCH_CONTRADICTION: Error "writes-per-epoch-contradiction" "a comparison refuses the owner's second write although many are declared"
    STATEMENT_NOT_PROVABLE: Error "statement-not-provable" "a conditional update has a form that is never proven to refuse an obsolete owner"
    UNCLASSIFIED_LOCK: Error "unclassified-lock" "a FencedLock does not say what two holders would do"
    CLASS_DOWNGRADED: Error "class-downgraded" "a lock that was correctness-critical in the baseline is declared efficiency-only"
    CRITICAL_LOCK_GONE: Warning "critical-lock-gone" "a lock that was correctness-critical in the baseline is not declared any more"
    CRITICAL_LOCK_WITHOUT_PURPOSE: Warning "critical-lock-without-purpose" "a correctness-critical lock does not say what two holders would corrupt"
    REPLAY_UNDECLARED: Warning "replay-undeclared" "a fenced lock does not say what makes a repeated write under one epoch harmless"
    EFFICIENCY_LOCK_TOUCHES_DATA: Info "efficiency-lock-touches-data" "an efficiency-only lock is described in words of data that two writers can corrupt"
    RANDOM_ID_AS_TOKEN: Error "random-id-as-token" "a random owner id is used as a fencing token; it has no order"
    CLIENT_TIMESTAMP_AS_TOKEN: Error "client-timestamp-as-token" "a client's clock is used as a fencing token; clocks go back and collide"
    UNORDERED_COORDINATOR: Error "unordered-coordinator" "the coordinator of a correctness-critical lock hands out no ordered token"
    EXTERNAL_COORDINATOR_WITH_GUARD: Error "external-coordinator-with-guard" "a guard waits for epochs that an external coordinator never gets"
    SHARED_LEASE: Error "shared-lease" "two FencedLocks are declared on one Lease"
    PER_RUN_LEASE_NAME: Warning "per-run-lease-name" "the name of a Lease contains a value that differs in each run, so that no two runs ever contend"
    STATUS_DIFFERS: Warning "status-differs" "what the operator wrote about a lock is not what this program says about it"
    UNCLASSIFIED_LEADER_ELECTION: Warning "unclassified-leader-election" "a workload elects a leader and no FencedLock says what two leaders would do"
    UNCLASSIFIED_LEASE: Warning "unclassified-lease" "a Lease in the cluster is somebody's lock and no FencedLock says what two holders would do"
    UNFENCED_SINGLETON: Info "unfenced-singleton" "a workload relies on running once; that is a lock which Kubernetes does not fence"
    LEASE_TIMING_WITHOUT_MARGIN: Warning "lease-timing-without-margin" "a candidate gives up no earlier than another one may take over"
    LONG_LEASE: Info "long-lease" "a lease lasts for hours, so that a dead holder blocks everybody"
    SHARED_IDENTITY: Warning "shared-identity" "two processes can pass as one holder"
    FIELD_INVALID: Error "field-invalid" "a field is refused by the schema of its kind"
    UNREADABLE_DOCUMENT: Error "unreadable-document" "a document cannot be read"
    DUPLICATE_KEY: Error "duplicate-key" "a mapping has a key twice, and which one counts depends on the reader"
    DECLARED_TWICE: Error "declared-twice" "an object is declared twice, and which declaration counts depends on what is applied last"
    HELM_CHART_NOT_RENDERED: Info "helm-chart-not-rendered" "a Helm chart was found, and its templates are no manifests"
    PATCH_NOT_APPLIED: Warning "patch-not-applied" "a kustomization patches a lock or a write boundary, and what comes of it was not read"
    SUPPRESSION_INVALID: Warning "suppression-invalid" "an annotation that suppresses a finding does not say why, until when, or of which rule"
    SUPPRESSION_EXPIRED: Warning "suppression-expired" "an annotation that suppresses a finding has ended"
}

/// Rules that no annotation answers for: what they ask is a decision, which an annotation in the same object would take the place of, or they are
/// about an object that nothing else can be said of.
pub fn needs_a_decision(rule: &Rule) -> bool {
    [&UNCLASSIFIED_LOCK, &CLASS_DOWNGRADED, &FIELD_INVALID, &SHARED_LEASE, &SUPPRESSION_INVALID].contains(&rule)
}

/// The rule of an id.
pub fn by_id(id: &str) -> Option<&'static Rule> {
    ALL.iter().copied().find(|rule| rule.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ids_are_unique_and_in_kebab_case() {
        let ids: BTreeSet<_> = ALL.iter().map(|rule| rule.id).collect();
        assert_eq!(ids.len(), ALL.len());
        // An annotation's name has at most 63 characters, and a suppression is one.
        assert!(ids.iter().all(|id| id.len() <= 53 && id.chars().all(|c| c.is_ascii_lowercase() || c == '-')));
    }
}
