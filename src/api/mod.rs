//! What people declare and read: the custom resources of `fencedlock.dev/v1alpha1`.
//!
//! Start with [`FencedLock`]; [`WriteBoundary`] is where its writes land. The types hold data and carry no judgement:
//! that is [`crate::audit`]'s. The descriptions here are what `kubectl explain` shows.

pub mod conditions;
pub mod crd;
mod duration;
mod fenced_lock;
mod write_boundary;

pub use duration::{DurationError, ShortDuration};
pub use fenced_lock::{
    BoundaryStatus, Contract, Coordinator, ExternalCoordinator, FencedLock, FencedLockSpec, FencedLockStatus, Identity, LeaseCoordinator,
    LockClass, Replay, Rollout, TokenKind, Verdict,
};
pub use write_boundary::{
    BoundaryType, BoundaryVerdict, ClaimKind, ConditionalUpdate, Connection, DRILL_ANNOTATION, Drill, DrillProbe, ExemptRole,
    ExternalBoundary, Fence, GuardMode, IdempotencyKey, KubernetesBoundary, KubernetesTarget, Ledger, Limit, LimitName, LockRef, Observed,
    Parameters, PostgresBoundary, PostgresTable, ProbeOutcome, ProbeResult, Proof, ProofSchedule, Reacquire, RequestExemption,
    RiskAcceptance, SecretKeyRef, SubjectExemption, WriteBoundary, WriteBoundarySpec, WriteBoundaryStatus, WritesPerEpoch, named_lock,
};

/// The API group of both kinds.
pub const GROUP: &str = "fencedlock.dev";
/// The version of both kinds.
pub const VERSION: &str = "v1alpha1";
/// The label of the Lease of the operator's own election, which saves work and protects nothing, so that nobody has to classify it.
pub const OPERATOR_ELECTION_LABEL: &str = "fencedlock.dev/operator-election";
/// How many boundaries one lock can list, and how many its status shows.
pub const MAX_BOUNDARIES: usize = 32;
