//! `WriteBoundary`: the last place that a lock's writes pass before they take effect, and that can refuse them.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Contract, ShortDuration};
use crate::epoch::Epoch;

/// What kind of receiver a boundary is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum BoundaryType {
    /// Tables of a PostgreSQL database.
    Postgres,
    /// Kubernetes objects.
    Kubernetes,
    /// A receiver outside that cannot compare epochs: mail, payments.
    External,
}

impl fmt::Display for BoundaryType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Whether an installed guard refuses, or only counts what it would refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum GuardMode {
    /// Count what would be refused, refuse nothing. Never proven.
    Observe,
    /// Refuse.
    Enforce,
}

/// How many writes an owner may make under one epoch (protocol section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum WritesPerEpoch {
    /// One write per epoch: the comparison is strict.
    Once,
    /// Any number: equality is accepted.
    Many,
    /// Any number, each with the next sequence number.
    Sequenced,
}

/// The last place that a lock's writes pass before they take effect, and that can refuse them.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "fencedlock.dev",
    version = "v1alpha1",
    kind = "WriteBoundary",
    plural = "writeboundaries",
    singular = "writeboundary",
    shortname = "wb",
    category = "fencing",
    namespaced,
    status = "WriteBoundaryStatus",
    derive = "PartialEq",
    doc = "The last place that a lock's writes pass before they take effect, and that can refuse them.",
    printcolumn(name = "Lock", type_ = "string", json_path = ".spec.lockRef.name"),
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.type"),
    printcolumn(name = "Mode", type_ = "string", json_path = ".spec.mode"),
    printcolumn(name = "Verdict", type_ = "string", json_path = ".status.verdict"),
    printcolumn(name = "Fence", type_ = "integer", json_path = ".status.fence.epoch"),
    printcolumn(name = "Proven", type_ = "date", json_path = ".status.proof.provenAt"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason", priority = 1),
    printcolumn(name = "Contract", type_ = "string", json_path = ".status.contract", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct WriteBoundarySpec {
    /// The lock whose writes land here. Immutable.
    pub lock_ref: LockRef,
    /// What kind of receiver this is; the member of the same name is set. Immutable.
    #[serde(rename = "type")]
    pub type_: BoundaryType,
    /// Whether the guard that the operator installs refuses or only counts. `Observe` when absent. Not for `External` and
    /// `conditionalUpdate`, where there is nothing to switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<GuardMode>,
    /// How many writes an owner may make under one epoch. Has a default per type; required with `conditionalUpdate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writes_per_epoch: Option<WritesPerEpoch>,
    /// How often the boundary is proven, and how long a proof is good for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<ProofSchedule>,
    /// What is not enforced here and who answers for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub risk_acceptance: Option<RiskAcceptance>,
    /// Tables of a PostgreSQL database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub postgres: Option<PostgresBoundary>,
    /// Kubernetes objects in this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<KubernetesBoundary>,
    /// A receiver outside that cannot compare epochs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<ExternalBoundary>,
}

impl WriteBoundarySpec {
    /// Whether a new grant must be activated here before it may be used: everything but external receivers, and
    /// conditional updates that promise no more than `AfterAcceptance` (protocol section 3).
    pub fn needs_activation(&self, contract: Contract) -> bool {
        match self.type_ {
            BoundaryType::External => false,
            BoundaryType::Kubernetes => true,
            BoundaryType::Postgres => !self.is_conditional() || contract == Contract::AfterActivation,
        }
    }

    /// Whether the guard is the application's own statement, which learns of a new owner by its first write.
    pub fn is_conditional(&self) -> bool {
        self.postgres.as_ref().is_some_and(|postgres| postgres.conditional_update.is_some())
    }

    /// Whether the guard only counts. Guards that the operator installs start so.
    pub fn observes(&self) -> bool {
        self.type_ != BoundaryType::External && !self.is_conditional() && self.mode != Some(GuardMode::Enforce)
    }
}

/// The lock that a boundary belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LockRef {
    /// The FencedLock's name, in the same namespace.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// How often a boundary is proven, and how long a proof is good for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProofSchedule {
    /// The time between two proofs; 5 minutes when absent, at least 10 seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<ShortDuration>,
    /// How long a proof is good for; three intervals when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age: Option<ShortDuration>,
}

impl ProofSchedule {
    /// The interval when none is given.
    pub const DEFAULT_INTERVAL: ShortDuration = ShortDuration::from_secs(300);
    /// The shortest interval.
    pub const MIN_INTERVAL: ShortDuration = ShortDuration::from_secs(10);

    /// How long a proof is good for, in effect, for a boundary that may have no schedule.
    pub fn max_age_of(schedule: Option<&Self>) -> std::time::Duration {
        let interval = schedule.and_then(|s| s.interval).unwrap_or(Self::DEFAULT_INTERVAL).get();
        schedule.and_then(|s| s.max_age).map_or(interval * 3, ShortDuration::get)
    }
}

/// What a proof cannot cover, by name. `riskAcceptance.covers` uses the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum LimitName {
    /// The receiver cannot compare epochs at all.
    CannotEnforce,
    /// A failover may forget the fence.
    FailoverMayForget,
    /// A writer may choose an enormous epoch and lock the owner out.
    EpochNotBounded,
    /// The guard compares the epoch and not the holder.
    EpochNotBoundToHolder,
    /// The guard admits the last owner although nobody owns the lock.
    NobodyNotRefused,
    /// Creating the object is not fenced.
    CreateNotFenced,
    /// `/scale` is not fenced.
    ScaleNotFenced,
    /// The owner is refused when it writes objects built from scratch. Informs and does not block.
    WholeObjectWritersRefused,
}

impl fmt::Display for LimitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A risk that somebody answers for, until a date.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RiskAcceptance {
    /// What is accepted.
    #[schemars(length(min = 1, max = 8))]
    pub covers: Vec<LimitName>,
    /// Who answers for it: a team or a role that can be asked.
    #[schemars(length(min = 1, max = 256))]
    pub accepted_by: String,
    /// Why it is accepted.
    #[schemars(length(min = 1, max = 1024))]
    pub reason: String,
    /// What repairs the damage when it happens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub compensation: Option<String>,
    /// When the acceptance ends by itself.
    pub expires: Time,
}

/// Tables of a PostgreSQL database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PostgresBoundary {
    /// How the operator reaches the database.
    pub connection: Connection,
    /// The tables that the lock's writes land in.
    #[schemars(length(min = 1, max = 64))]
    pub tables: Vec<PostgresTable>,
    /// The application's own guarded statement. Absent: the operator installs fence and triggers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditional_update: Option<ConditionalUpdate>,
    /// The roles that applications write with: probes and the bypass audit run as these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 63)))]
    pub writer_roles: Vec<String>,
    /// Other privileged roles that somebody answers for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub exempt_roles: Vec<ExemptRole>,
    /// How long an activation waits before an old owner's open transaction is ended; 10 s when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patience: Option<ShortDuration>,
}

/// Where the connection string is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Connection {
    /// A key of a Secret in this namespace that holds a connection URL. Read when needed, never watched, never shown.
    pub secret_key_ref: SecretKeyRef,
}

/// A key of a Secret in the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretKeyRef {
    /// The Secret's name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The key in it.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PostgresTable {
    /// Its schema.
    #[schemars(length(min = 1, max = 63))]
    pub schema: String,
    /// Its name.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
}

/// The application's own guarded statement, proven as written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConditionalUpdate {
    /// The statement, with `$1`-style parameters. No returned row is the rejection.
    #[schemars(length(min = 1, max = 8192))]
    pub statement: String,
    /// Which parameter is what.
    pub parameters: Parameters,
    /// The column that holds the fence.
    #[schemars(length(min = 1, max = 63))]
    pub fence_column: String,
    /// The column that holds the holder, when the statement carries it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub holder_column: Option<String>,
    /// The key of a row that probes may use in the real table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub canary_key: Option<String>,
}

/// Which parameter of a statement is what, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Parameters {
    /// The row's key.
    #[schemars(range(min = 1, max = 64))]
    pub key: u8,
    /// What is written.
    #[schemars(range(min = 1, max = 64))]
    pub payload: u8,
    /// The epoch.
    #[schemars(range(min = 1, max = 64))]
    pub epoch: u8,
    /// The holder, when the statement carries it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub holder: Option<u8>,
}

/// A privileged role that somebody answers for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExemptRole {
    /// The role.
    #[schemars(length(min = 1, max = 63))]
    pub role: String,
    /// Why.
    #[schemars(length(min = 1, max = 1024))]
    pub reason: String,
}

/// How an owner of Kubernetes objects is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ClaimKind {
    /// By the pod that its token is bound to: unmodified controllers are fenced.
    PodIdentity,
    /// By the annotation `fencedlock.dev/claim`, which the worker writes.
    Annotation,
}

/// What happens when the same process could be granted the lock twice with another owner in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Reacquire {
    /// The grant stays pending until the process is a new one.
    #[default]
    NewProcess,
    /// It is granted, and the contract is no better than `AfterAcceptance`.
    Allow,
}

/// Kubernetes objects in the boundary's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubernetesBoundary {
    /// How the owner is recognised.
    pub claim: ClaimKind,
    /// The objects that the lock's writes land in.
    #[schemars(length(min = 1, max = 32))]
    pub targets: Vec<KubernetesTarget>,
    /// What happens when the same process could be granted the lock twice.
    #[serde(default)]
    pub reacquire: Reacquire,
    /// Which containers of a pod can hold the lock; all when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 63)))]
    pub containers: Vec<String>,
    /// Who else may write `/status`; only the owner when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub status_writers: Vec<RequestExemption>,
    /// Subjects that the bypass audit does not report because somebody answers for them. Gives no right to write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub exempt_subjects: Vec<SubjectExemption>,
    /// Who else may write the objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub exemptions: Vec<RequestExemption>,
}

/// Objects of one kind, by name or by label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubernetesTarget {
    /// The API group; empty for the core group.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub group: String,
    /// The resource in the plural, as in `kubectl api-resources`. Leases are refused.
    #[schemars(length(min = 1, max = 63))]
    pub resource: String,
    /// The objects' names; exactly one of `names` and `selector`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 253)))]
    pub names: Vec<String>,
    /// A label selector in kubectl's notation, `app=web,tier!=test`; exactly one of `names` and `selector`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub selector: Option<String>,
}

/// A user who may write although it does not own the lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RequestExemption {
    /// The user name that the API server authenticates.
    #[schemars(length(min = 1, max = 512))]
    pub user: String,
    /// Why.
    #[schemars(length(min = 1, max = 1024))]
    pub reason: String,
}

/// A subject that the bypass audit does not report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SubjectExemption {
    /// A user name; exactly one of `user` and `group`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub user: Option<String>,
    /// A group name; exactly one of `user` and `group`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub group: Option<String>,
    /// Why.
    #[schemars(length(min = 1, max = 1024))]
    pub reason: String,
}

/// A receiver outside that cannot compare epochs. Never enforced: an open finding, or an accepted risk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExternalBoundary {
    /// What receives the effect, in free text.
    #[schemars(length(min = 1, max = 256))]
    pub receiver: String,
    /// The key by which the receiver drops a repeated request. Omit when it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<IdempotencyKey>,
    /// A durable ledger of the operations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger: Option<Ledger>,
}

/// A key by which a receiver drops a repeated request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IdempotencyKey {
    /// How the key is made. Placeholders: `{workItem}`, `{lock}`, `{namespace}`. The epoch is not among them: a new
    /// owner that repeats the work would get a new key.
    #[schemars(length(min = 1, max = 256))]
    pub template: String,
    /// How long the receiver remembers a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<ShortDuration>,
}

/// A durable ledger of operations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ledger {
    /// How the operator reaches the database.
    pub connection: Connection,
    /// The table's schema.
    #[schemars(length(min = 1, max = 63))]
    pub schema: String,
    /// The table.
    #[schemars(length(min = 1, max = 63))]
    pub table: String,
    /// The age at which an operation of unknown outcome is reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown_after: Option<ShortDuration>,
}

/// The audit's answer for a boundary. The first one in this order that applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum BoundaryVerdict {
    /// The declaration contradicts itself or names what is refused.
    Invalid,
    /// An external receiver without an unexpired acceptance.
    CannotEnforce,
    /// A write that must be refused was accepted, or can be.
    Violated,
    /// It was not seen to refuse obsolete owners recently enough.
    Unproven,
    /// What is not enforced is covered by an unexpired acceptance.
    RiskAccepted,
    /// It was seen to refuse obsolete owners, and to accept the present one, recently enough.
    Proven,
}

/// What the operator says about a boundary.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WriteBoundaryStatus {
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The audit's answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<BoundaryVerdict>,
    /// Why, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub reason: Option<String>,
    /// The contract that was proven.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contract: Option<Contract>,
    /// What the boundary accepts now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<Fence>,
    /// Mode Observe: who would have been refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed: Option<Observed>,
    /// What the proof cannot cover.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub limits: Vec<Limit>,
    /// The last complete proof.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<Proof>,
    /// The last drill that somebody asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drill: Option<Drill>,
    /// The conditions, one per type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub conditions: Vec<Condition>,
}

/// What a boundary accepts now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Fence {
    /// The epoch.
    pub epoch: Epoch,
    /// The holder; empty is nobody.
    #[serde(default)]
    #[schemars(length(max = 512))]
    pub holder: String,
    /// When the operator activated it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activated_at: Option<Time>,
    /// The generation of the declaration that it was activated under. Another declaration is activated again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
}

/// The lock that an object names, also one that cannot be read as a WriteBoundary: it counts for that lock all the same.
pub fn named_lock(object: &serde_json::Value) -> Option<&str> {
    object.pointer("/spec/lockRef/name").and_then(serde_json::Value::as_str)
}

/// Who would have been refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Observed {
    /// How many writes; absent where they are not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9_007_199_254_740_991_u64))]
    pub would_refuse: Option<u64>,
    /// The last one, in words, or where to look when they are not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub last: Option<String>,
}

/// Something that a proof cannot cover.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Limit {
    /// Which.
    pub name: LimitName,
    /// What it means here.
    #[schemars(length(max = 512))]
    pub detail: String,
    /// Whether an unexpired acceptance covers it.
    pub accepted: bool,
}

/// A complete proof.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Proof {
    /// When it was made.
    pub proven_at: Time,
    /// The identity of the server that it was made on.
    #[schemars(length(max = 512))]
    pub server: String,
    /// The hash of the guard that it was made of.
    #[schemars(length(max = 128))]
    pub guard: String,
    /// The generation of the declaration that it was made of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// The contract that it proves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contract: Option<Contract>,
    /// The probes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub probes: Vec<ProbeResult>,
}

/// What came of one probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProbeResult {
    /// Its name.
    #[schemars(length(min = 1, max = 64))]
    pub name: String,
    /// What came of it.
    pub outcome: ProbeOutcome,
    /// Why, unless it passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub detail: Option<String>,
}

/// What came of one probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ProbeOutcome {
    /// The answer was the right one.
    Passed,
    /// The answer was the wrong one.
    Failed,
    /// It could not run, or the answer was neither an acceptance nor the declared rejection.
    Inconclusive,
    /// It means nothing here.
    NotApplicable,
}

/// The annotation of a boundary that asks the operator for a drill: an examination that begins after the value was written. `fencedlock drill`
/// writes it.
pub const DRILL_ANNOTATION: &str = "fencedlock.dev/drill";

impl WriteBoundary {
    /// The drill that is asked for. A value that is empty or has more than 64 characters asks for none.
    pub fn asked_drill(&self) -> Option<&str> {
        let asked = self.metadata.annotations.as_ref()?.get(DRILL_ANNOTATION)?;
        (1..=64).contains(&asked.chars().count()).then_some(asked.as_str())
    }
}

/// What came of a drill: an examination of the boundary that somebody asked for. Writes were made to a canary that is guarded in the same way,
/// never to what is guarded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drill {
    /// The value of the annotation `fencedlock.dev/drill` that asked for it.
    #[schemars(length(min = 1, max = 64))]
    pub request: String,
    /// The generation of the declaration that was examined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// When it began.
    pub began_at: Time,
    /// How long it took, in microseconds.
    #[schemars(range(min = 0, max = 9_007_199_254_740_991_u64))]
    pub took_microseconds: u64,
    /// The longest time that it took to activate the canary for another owner, in microseconds; absent when that was not tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9_007_199_254_740_991_u64))]
    pub activation_microseconds: Option<u64>,
    /// Why it could not be made, or ended early.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub failure: Option<String>,
    /// The probes. None when the guard only counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub probes: Vec<DrillProbe>,
    /// How many writes the guard has refused, probes aside, since it was installed; absent where they are not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9_007_199_254_740_991_u64))]
    pub refused: Option<u64>,
    /// The last of them, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub last_refused: Option<String>,
}

/// What came of one probe of a drill.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrillProbe {
    /// Its name.
    #[schemars(length(min = 1, max = 64))]
    pub name: String,
    /// What came of it.
    pub outcome: ProbeOutcome,
    /// Why, unless it passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub detail: Option<String>,
    /// How many writes were refused that had to be; absent when none was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub refused: Option<u32>,
    /// In which words the first of them was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub words: Option<String>,
    /// The longest time that a refusal took, in microseconds; a race's includes the activation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9_007_199_254_740_991_u64))]
    pub took_microseconds: Option<u64>,
}
