//! What every kind of write boundary implements, and nothing of any one kind.
//!
//! Start with [`Backend`]; [`step`] is the one rule of how a fence moves. One module per backend; no backend's names
//! outside its module and the union in the API. The in-memory backend serves tests and the model; the CRD does not know it.

use std::{fmt, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use kube::{Client, ResourceExt};
use thiserror::Error;

use crate::{
    api::{BoundaryType, GuardMode, WriteBoundary, WriteBoundarySpec, WritesPerEpoch},
    epoch::{Epoch, Holder, recorded::Recorded},
};

pub(crate) mod digest;
pub mod kubernetes;
pub mod memory;
pub mod postgres;
pub mod proof;

use proof::Examination;

/// What a boundary remembers durably: the epoch and the holder that it accepts now.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fence {
    /// The epoch.
    pub epoch: Epoch,
    /// The holder; `None` is nobody, and then every claim is refused.
    pub holder: Option<Holder>,
}

impl Fence {
    /// Epoch and holder as texts carry them: an empty holder is nobody.
    pub fn owner(&self) -> (Epoch, String) {
        (self.epoch, self.holder.as_ref().map_or_else(String::new, |holder| holder.as_str().to_owned()))
    }
}

/// Whom a boundary is activated for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The epoch.
    pub epoch: Epoch,
    /// The holder, as the Lease spells it; `None` is nobody.
    pub holder: Option<Holder>,
    /// The uid of the holder's pod, when exactly one pod is known to be it.
    pub pod_uid: Option<String>,
}

impl From<Recorded<'_>> for Owner {
    fn from(recorded: Recorded<'_>) -> Self {
        let pod_uid = match recorded {
            Recorded::Granted(grant) => grant.term.pod_uid.clone(),
            Recorded::Revoked(_) => None,
        };
        Self { epoch: recorded.epoch(), holder: recorded.admitted().cloned(), pod_uid }
    }
}

impl Owner {
    /// Nobody, from this epoch on.
    pub const fn nobody(epoch: Epoch) -> Self {
        Self { epoch, holder: None, pod_uid: None }
    }

    /// The holder as a fence spells it: nobody is empty.
    pub fn holder(&self) -> &str {
        self.holder.as_ref().map_or("", Holder::as_str)
    }
}

/// What became of an activation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// The fence moved up to the grant.
    Activated,
    /// The fence was there already.
    Unchanged,
    /// The fence is at a later epoch, or at this one with another holder. It does not move, and this grant is over.
    Superseded(Fence),
    /// Somebody keeps the fence from moving, for instance an old owner's open transaction.
    Blocked(String),
}

/// How a fence moves: up, never down, and never to another holder of the same epoch (protocol section 3, invariant 4).
/// Returns the answer and the fence afterwards.
pub fn step(fence: Option<&Fence>, epoch: Epoch, holder: Option<&Holder>) -> (Activation, Fence) {
    let wanted = Fence { epoch, holder: holder.cloned() };
    match fence {
        Some(now) if *now == wanted => (Activation::Unchanged, wanted),
        Some(now) if now.epoch >= epoch => (Activation::Superseded(now.clone()), now.clone()),
        _ => (Activation::Activated, wanted),
    }
}

/// Whether a managed guard admits a write: equality of epoch and holder (protocol section 3). A fence that is absent or
/// belongs to nobody admits nobody.
pub fn admits(fence: Option<&Fence>, epoch: u64, holder: &str) -> bool {
    fence.is_some_and(|f| f.epoch.get() == epoch && f.holder.as_ref().is_some_and(|h| h.as_str() == holder))
}

/// What a look at a boundary shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// The fence, `None` when there is none yet.
    pub fence: Option<Fence>,
    /// Whether the fence stands behind a guard that the operator installed or proved. Only then does it count for minting.
    pub trusted: bool,
}

/// Why a backend could not answer. Carries no secret.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BackendError {
    /// The receiver could not be reached.
    #[error("not reachable: {0}")]
    Unreachable(String),
    /// It answered, and refused.
    #[error("refused: {0}")]
    Refused(String),
    /// It did not answer in time.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// This version has no backend for the type.
    #[error("this version of fencedlock cannot activate {0} boundaries")]
    NotImplemented(BoundaryType),
}

impl BackendError {
    /// A stable word for metrics and logs.
    pub const fn category(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "unreachable",
            Self::Refused(_) => "refused",
            Self::TimedOut(_) => "timeout",
            Self::NotImplemented(_) => "not_implemented",
        }
    }
}

/// What an examination is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// Whether a guard that was found altered is installed again. Not at first: what was found is told before it is mended.
    pub repair: bool,
    /// Whether a guard is known to have been installed before: one that is not there at all was taken away.
    pub is_known: bool,
    /// Whether the fence was activated under the present declaration, so that everything has to be as it is declared.
    pub is_activated: bool,
    /// Whom the boundary has to admit now: the owner of the lock's active grant, or after a revocation nobody.
    pub owner: Option<Owner>,
    /// Whose term was revoked: what its account may do counts as an owner's, because its process may live.
    pub revoked: Option<Owner>,
    /// The namespace that the holders' pods run in, when it is another one than the boundary's.
    pub pods_in: Option<String>,
}

/// What a receiver tells by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The guard was changed.
    Guard,
    /// Something that has to be guarded carries no fence.
    Unfenced,
}

/// Whom it tells.
pub type Tell = Arc<dyn Fn(Change) + Send + Sync>;

/// One write boundary, as the operator drives it. Every call is idempotent; the caller bounds it in time.
pub trait Backend: Send + Sync + fmt::Debug {
    /// Reads the fence. Changes nothing.
    fn observe(&self) -> BoxFuture<'_, Result<Observation, BackendError>>;

    /// Moves the fence up to a grant, by the rule of [`step`].
    fn activate<'a>(&'a self, owner: &'a Owner) -> BoxFuture<'a, Result<Activation, BackendError>>;

    /// Installs what is missing, looks for ways around, and tries the guard. Leaves nothing in anybody's data.
    fn examine<'a>(&'a self, ask: &'a Ask) -> BoxFuture<'a, Result<Examination, BackendError>>;

    /// Tells of changes for as long as it is polled. `None` where a receiver tells nothing: there the next examination sees them.
    fn follow(&self, _tell: Tell) -> Option<BoxFuture<'static, ()>> {
        None
    }
}

/// Finds the backend of a boundary.
pub trait Backends: Send + Sync + fmt::Debug {
    /// The backend, or `None` when there is nothing to drive: an external receiver, or a type that this version cannot.
    fn backend(&self, boundary: &WriteBoundary) -> Option<Arc<dyn Backend>>;

    /// How the ledger of an external receiver is reached; `None` when it has none.
    fn ledger(&self, _boundary: &WriteBoundary) -> Option<postgres::Access> {
        None
    }
}

/// Whether this version can drive such a boundary.
pub fn is_built_in(spec: &WriteBoundarySpec) -> bool {
    match spec.type_ {
        BoundaryType::Postgres => spec.postgres.is_some(),
        BoundaryType::Kubernetes => spec.kubernetes.is_some(),
        BoundaryType::External => false,
    }
}

/// The backends of this version: PostgreSQL, by the managed guard or the application's own statement, and Kubernetes objects.
#[derive(Clone)]
pub struct BuiltIn {
    client: Client,
    patience: postgres::Patience,
    objects: kubernetes::Shared,
}

impl BuiltIn {
    /// Backends that read Secrets and stamp objects with this client.
    pub fn new(client: Client) -> Self {
        Self { client, patience: Arc::default(), objects: kubernetes::Shared::default() }
    }

    /// The same, trying the guard of objects at each API server.
    #[must_use]
    pub fn with_servers(mut self, servers: kubernetes::ApiServers) -> Self {
        self.objects.servers = servers;
        self
    }
}

impl fmt::Debug for BuiltIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BuiltIn")
    }
}

impl Backends for BuiltIn {
    fn backend(&self, boundary: &WriteBoundary) -> Option<Arc<dyn Backend>> {
        let (namespace, name) = (boundary.namespace()?, boundary.name_any());
        let mode = boundary.spec.mode.unwrap_or(GuardMode::Observe);
        if let Some(spec) = boundary.spec.kubernetes.as_ref().filter(|_| boundary.spec.type_ == BoundaryType::Kubernetes) {
            let objects = kubernetes::Kubernetes::new(self.client.clone(), namespace, name, spec.clone(), mode);
            return Some(Arc::new(objects.sharing(&self.objects)));
        }
        let spec = boundary.spec.postgres.as_ref().filter(|_| boundary.spec.type_ == BoundaryType::Postgres)?;
        let which = postgres::Which {
            namespace: &namespace,
            boundary: &name,
            lock: &boundary.spec.lock_ref.name,
            uid: boundary.metadata.uid.as_deref().unwrap_or_default(),
            generation: boundary.metadata.generation.unwrap_or_default(),
        };
        let (client, key) = (self.client.clone(), spec.connection.secret_key_ref.clone());
        let access = postgres::Access::Secret { client, namespace: namespace.clone(), key, field: "spec.postgres.connection.secretKeyRef" };
        if let Some(declared) = spec.conditional_update.clone() {
            let writes = boundary.spec.writes_per_epoch.unwrap_or(WritesPerEpoch::Many);
            return Some(Arc::new(postgres::Conditional::new(access, which, spec.clone(), declared, writes)));
        }
        Some(Arc::new(postgres::Postgres::new(access, which, spec.clone(), mode, Arc::clone(&self.patience))))
    }

    fn ledger(&self, boundary: &WriteBoundary) -> Option<postgres::Access> {
        let ledger = boundary.spec.external.as_ref()?.ledger.as_ref()?;
        Some(postgres::Access::Secret {
            client: self.client.clone(),
            namespace: boundary.namespace()?,
            key: ledger.connection.secret_key_ref.clone(),
            field: "spec.external.ledger.connection.secretKeyRef",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fence(epoch: u64, holder: &str) -> Fence {
        Fence { epoch: Epoch::new(epoch).unwrap(), holder: Holder::new(holder).ok() }
    }

    proptest! {
        /// Invariant 4: a fence never goes down and never changes its holder under one epoch; the same grant is a no-op.
        #[test]
        fn a_fence_only_goes_up(moves in prop::collection::vec((1u64..6, "[ab]?"), 1..30)) {
            let mut now: Option<Fence> = None;
            for (epoch, holder) in moves {
                let (epoch, holder) = (Epoch::new(epoch).unwrap(), Holder::new(holder).ok());
                let (answer, next) = step(now.as_ref(), epoch, holder.as_ref());
                if let Some(before) = &now {
                    prop_assert!(next.epoch > before.epoch || next == *before);
                }
                let there = next == Fence { epoch, holder: holder.clone() };
                prop_assert_eq!(there, matches!(answer, Activation::Activated | Activation::Unchanged));
                prop_assert_eq!(step(Some(&next), epoch, holder.as_ref()).1, next.clone(), "idempotent");
                now = Some(next);
            }
        }
    }

    #[test]
    fn a_guard_admits_the_owner_and_nobody_else() {
        let at = fence(7, "a");
        assert!(admits(Some(&at), 7, "a"));
        for (epoch, holder) in [(6, "a"), (8, "a"), (7, "b"), (0, "a"), (7, ""), (u64::MAX, "a")] {
            assert!(!admits(Some(&at), epoch, holder), "{epoch} {holder}");
        }
        let nobody = fence(7, "");
        assert_eq!(nobody.holder, None);
        assert!(!admits(Some(&nobody), 7, "") && !admits(Some(&nobody), 7, "a") && !admits(None, 7, "a"));
    }
}
