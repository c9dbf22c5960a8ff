//! `FencedLock`: a lock as people declare it, and what the operator says about it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::write_boundary::{BoundaryType, BoundaryVerdict};
use crate::epoch::{
    Epoch, EpochFloor,
    grant::Grant,
    recent::RecentOwner,
    recorded::Recorded,
    revoke::{Revocation, RevocationStatus},
};

/// What it costs when two hold the lock at once. Required and never defaulted: absent never means efficiency-only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum LockClass {
    /// Two holders corrupt data: every place that the lock's writes land must refuse an obsolete owner.
    CorrectnessCritical,
    /// Two holders waste work and nothing else.
    EfficiencyOnly,
}

/// What an obsolete owner is promised to be refused after (protocol section 4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Contract {
    /// An old owner is refused from the moment that a new grant is active, before the new owner's first write.
    #[default]
    AfterActivation,
    /// An old owner is refused once the boundary has accepted a newer epoch.
    AfterAcceptance,
}

impl Contract {
    /// Whether a boundary that was proven to give `self` is enough for a lock that needs `needed`.
    pub fn satisfies(self, needed: Self) -> bool {
        self == Self::AfterActivation || needed == Self::AfterAcceptance
    }
}

/// How a repeated write under the same epoch is handled by the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Replay {
    /// The owner's own transactions decide.
    Transactional,
    /// The receiver drops a repeated key.
    IdempotencyKey,
    /// A durable ledger of operations decides.
    Ledger,
}

/// What a rollout that waits for this object does about findings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Rollout {
    /// Findings are reported and block nothing.
    #[default]
    Report,
    /// A release waits for the first proof, and fails when the lock stayed Violated, Invalid or Unenforced for 60 s.
    Block,
}

/// How the holder's identity text is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Identity {
    /// The holder is a pod's name, or `<pod>_<suffix>` as client-go writes it; resolved when exactly one pod fits.
    #[default]
    Auto,
    /// The holder is free text and never resolved to a pod.
    Opaque,
}

/// What kind of token an external coordinator hands out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum TokenKind {
    /// A number that grows with each ownership. The only kind that can fence.
    Ordered,
    /// A random id that tells owners apart and has no order.
    RandomOwnerId,
    /// A time by the client's clock.
    ClientTimestamp,
    /// No token.
    None,
}

/// A lock, declared: what two holders at once would do, what decides who owns it, and where its writes land.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "fencedlock.dev",
    version = "v1alpha1",
    kind = "FencedLock",
    plural = "fencedlocks",
    singular = "fencedlock",
    shortname = "fl",
    category = "fencing",
    namespaced,
    status = "FencedLockStatus",
    derive = "PartialEq",
    selectable = ".spec.class",
    doc = "A lock, declared: what two holders at once would do, what decides who owns it, and where its writes land.",
    printcolumn(name = "Class", type_ = "string", json_path = ".spec.class"),
    printcolumn(name = "Verdict", type_ = "string", json_path = ".status.verdict"),
    printcolumn(name = "Epoch", type_ = "integer", json_path = ".status.epoch"),
    printcolumn(name = "Boundaries", type_ = "string", json_path = ".status.boundarySummary"),
    printcolumn(name = "Proven", type_ = "date", json_path = ".status.provenAt"),
    printcolumn(name = "Holder", type_ = "string", json_path = ".status.grant.holder"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason", priority = 1),
    printcolumn(name = "Grant", type_ = "string", json_path = ".status.grant.state", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct FencedLockSpec {
    /// What it costs when two hold the lock at once. Required: absent never means efficiency-only.
    pub class: LockClass,
    /// What happens when two hold the lock, in a sentence for the person who is on call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub purpose: Option<String>,
    /// What decides who owns the lock: exactly one of `lease` and `external`.
    pub coordinator: Coordinator,
    /// The names of the WriteBoundaries in this namespace that must refuse an obsolete owner of this lock.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 253)))]
    pub write_boundaries: Vec<String>,
    /// The contract that the lock needs from every boundary.
    #[serde(default)]
    pub contract: Contract,
    /// How a repeated write under the same epoch is handled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<Replay>,
    /// The next epoch lies above this. Raised by a person after a restore; never needs lowering. At most 2^52.
    #[serde(default)]
    #[schemars(range(min = 0, max = 4_503_599_627_370_496_u64))]
    pub epoch_floor: EpochFloor,
    /// What a rollout that waits for this object does about findings.
    #[serde(default)]
    pub rollout: Rollout,
    /// The term that is to be fenced without waiting for its lease to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoke: Option<Revocation>,
}

/// What decides who owns a lock: exactly one member is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Coordinator {
    /// A Kubernetes Lease in the lock's namespace, written by any leader-election client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseCoordinator>,
    /// A lock service outside Kubernetes, declared so that it is audited. It gets no grants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<ExternalCoordinator>,
}

/// A Lease as coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeaseCoordinator {
    /// The Lease's name: any DNS subdomain.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// How the holder's identity text is read.
    #[serde(default)]
    pub identity: Identity,
    /// The namespace that the holders' pods run in; the lock's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub pod_namespace: Option<String>,
}

/// A coordinator outside Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExternalCoordinator {
    /// What it is, in free text: Redlock, ZooKeeper, pg_advisory_lock, ….
    #[schemars(length(min = 1, max = 128))]
    pub system: String,
    /// What kind of token it hands out. Only `Ordered` can fence.
    pub token: TokenKind,
}

/// The audit's answer for a lock. The first one in this order that applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Verdict {
    /// The declaration contradicts itself.
    Invalid,
    /// An efficiency-only lock needs no boundary.
    NotRequired,
    /// A write that must be refused was accepted, or can be.
    Violated,
    /// No registered boundary enforces the lock.
    Unenforced,
    /// Boundaries are registered, and nobody saw them refuse an obsolete owner recently enough.
    Unproven,
    /// What is not enforced is covered by acceptances that have not expired.
    RiskAccepted,
    /// Every required boundary was seen to refuse obsolete owners, recently enough.
    Enforced,
}

/// What the operator says about a lock.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FencedLockStatus {
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The audit's answer, as of `provenAt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// Why, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub reason: Option<String>,
    /// The highest epoch ever minted for this lock. Never decreases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
    /// The present holder's grant. Absent when nobody holds the lock or the holder has no epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<Grant>,
    /// What became of the last revocation, until another term begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<RevocationStatus>,
    /// The pods that were granted epochs before and still exist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub recent_owners: Vec<RecentOwner>,
    /// How many of the required boundaries are proven or accepted, of how many: `1/2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub boundary_summary: Option<String>,
    /// The boundaries that count for this lock, listed or not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub boundaries: Vec<BoundaryStatus>,
    /// When the oldest of the required proofs was made. The verdict speaks of that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proven_at: Option<Time>,
    /// The conditions, one per type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub conditions: Vec<Condition>,
}

impl FencedLockStatus {
    /// What is recorded of the owner.
    pub fn recorded(&self) -> Option<Recorded<'_>> {
        Recorded::of(self.grant.as_ref(), self.revoked.as_ref())
    }
}

/// A boundary, as the lock sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BoundaryStatus {
    /// The WriteBoundary's name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Its type; absent when there is no such WriteBoundary.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "type")]
    pub type_: Option<BoundaryType>,
    /// Its verdict; absent when there is no such WriteBoundary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<BoundaryVerdict>,
    /// The epoch that it is known to accept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<Epoch>,
    /// The contract that it was proven to give.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contract: Option<Contract>,
    /// The generation of the WriteBoundary that this entry is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
