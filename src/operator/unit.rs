//! One scope that is served on its own: the whole cluster, or one namespace of several. What a unit remembers is a cache:
//! losing it at any point loses no epoch.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures::channel::mpsc::UnboundedSender;
use kube::{
    Client, Resource, ResourceExt,
    runtime::{
        controller::{Action, ReconcileRequest},
        reflector::{ObjectRef, Store},
    },
};
use tokio::sync::watch;

use super::{
    checked::Checked,
    error::{Error, contained},
    events::Announcer,
    follow::{Followable, Followed, Key, Seen},
    followers::Followers,
    groups::Groups,
    jobs::Jobs,
    ledgers::Ledgers,
    metrics::{Kind, Metrics},
    prove::Proofs,
    quarrel::Quarrels,
    reservation::Turns,
    settings::Settings,
    signs::{self, Signs},
    undeclared::Undeclared,
};
use crate::{
    api::{FencedLock, FencedLockStatus, WriteBoundary},
    boundary::{Activation, Backends, Observation, Owner},
    epoch::{
        Epoch,
        grant::GrantState,
        pod::PodView,
        term::{LeaseView, precedes},
    },
};

pub(super) use super::guarded::Guarded;

/// How a watch fares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WatchState {
    /// The first listing is under way.
    Starting,
    /// It delivers.
    Running,
    /// It does not.
    Unseen(Unseen),
}

/// Why a watch shows nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unseen {
    /// A right is missing, or the kind is not installed: the right.
    Refused(String),
    /// It has failed for a while: with what, the last time.
    Failing(String),
}

impl Unseen {
    /// What is wrong and what to do.
    pub(super) fn sentence(&self) -> String {
        match self {
            Self::Refused(right) => format!("the operator may not {right}: grant it that right"),
            Self::Failing(why) => format!("the API server does not deliver them: {why}"),
        }
    }
}

/// Where reconciles are asked for.
#[derive(Clone, Debug)]
pub(super) struct Queue<K: Resource>(pub(super) UnboundedSender<ReconcileRequest<K>>);

impl<K: Resource<DynamicType = ()>> Queue<K> {
    /// Asks for a reconcile. A closed queue means that the unit is shutting down.
    pub(super) fn push(&self, (namespace, name): &Key) {
        drop(self.0.unbounded_send(ObjectRef::new(name).within(namespace).into()));
    }

    /// Asks for several.
    pub(super) fn push_all<'a>(&self, keys: impl IntoIterator<Item = &'a Key>) {
        for key in keys {
            self.push(key);
        }
    }
}

/// A pod as the watch and a read show it. Events carry metadata only, so the rest is read when it is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodSeen {
    pub(super) uid: String,
    pub(super) resource_version: String,
    pub(super) view: Option<PodView>,
}

impl Followable for PodSeen {
    fn is_late(&self, known: &Self) -> bool {
        self.uid == known.uid && precedes(&self.resource_version, &known.resource_version)
    }

    fn matters_after(&self, used: &Self) -> bool {
        self.uid != used.uid || self.resource_version != used.resource_version
    }
}

impl Followable for LeaseView {
    fn is_late(&self, known: &Self) -> bool {
        self.uid == known.uid && precedes(&self.resource_version, &known.resource_version)
    }

    fn matters_after(&self, used: &Self) -> bool {
        self.differs_from(used)
    }

    fn lasts(&self) -> Option<Duration> {
        let is_held = self.holder != Ok(None);
        self.duration_seconds.filter(|_| is_held).and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs)
    }
}

/// One version of a boundary's declaration: its uid and its generation.
pub(super) type Declared = (Option<String>, Option<i64>);

/// The version of a boundary's declaration.
pub(super) fn declared(boundary: &WriteBoundary) -> Declared {
    (boundary.uid(), boundary.metadata.generation)
}

/// What a look at a boundary showed, and when it began.
pub(super) type FenceRead = (Instant, Observation);

/// What an activation is for: a grant at one version of a boundary's declaration.
pub(super) type Ticket = (Owner, Declared);

/// Whom the boundaries of a lock are to admit, by its status: the owner of the grant, or after a revocation nobody.
pub(super) fn owner(status: &FencedLockStatus) -> Option<Owner> {
    status.recorded().map(Owner::from)
}

/// The ticket of activating an owner at a boundary.
pub(super) fn ticket(owner: &Owner, boundary: &WriteBoundary) -> Ticket {
    (owner.clone(), declared(boundary))
}

/// The states of a unit's watches.
#[derive(Debug)]
pub(super) struct Watches {
    pub(super) locks: watch::Sender<WatchState>,
    pub(super) boundaries: watch::Sender<WatchState>,
    pub(super) leases: watch::Sender<WatchState>,
    pub(super) pods: watch::Sender<WatchState>,
}

impl Default for Watches {
    fn default() -> Self {
        let new = || watch::Sender::new(WatchState::Starting);
        Self { locks: new(), boundaries: new(), leases: new(), pods: new() }
    }
}

/// The state of a watch once it is known, or why it shows nothing.
pub(super) async fn settled(state: &watch::Sender<WatchState>) -> Result<(), Unseen> {
    let mut receiver = state.subscribe();
    match receiver.wait_for(|s| *s != WatchState::Starting).await.map(|s| s.clone()) {
        Ok(WatchState::Unseen(why)) => Err(why),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// One scope, with everything that serves it.
pub(super) struct Unit {
    pub(super) client: Client,
    /// The client of the watches, which notes their signs of life.
    pub(super) watching: Client,
    pub(super) namespace: Option<String>,
    pub(super) settings: Settings,
    pub(super) backends: Arc<dyn Backends>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) announcer: Announcer,
    pub(super) locks: Store<Guarded<FencedLock>>,
    pub(super) boundaries: Store<Guarded<WriteBoundary>>,
    pub(super) lock_queue: Queue<Guarded<FencedLock>>,
    pub(super) boundary_queue: Queue<Guarded<WriteBoundary>>,
    pub(super) watches: Watches,
    pub(super) locks_by_lease: Groups,
    pub(super) boundaries_by_lock: Groups,
    pub(super) leases: Followed<LeaseView>,
    pub(super) undeclared: Undeclared,
    pub(super) pods: Followed<PodSeen>,
    /// Activations by the boundary.
    pub(super) activations: Jobs<Key, Ticket, Activation>,
    /// Reads of fences by the boundary, each for one minting.
    pub(super) fence_reads: Jobs<Key, Declared, FenceRead>,
    /// What is known of how boundaries behave.
    pub(super) proofs: Arc<Proofs>,
    /// What the ledgers of external receivers show.
    pub(super) ledgers: Ledgers,
    /// What receivers tell by themselves.
    pub(super) followers: Followers,
    pub(super) checked_locks: Checked,
    pub(super) checked_boundaries: Checked,
    pub(super) quarrels: Quarrels,
    pub(super) reserving: Turns,
    /// The signs of life of its watches.
    pub(super) signs: Arc<Signs>,
    /// Whether this replica works, or stands by with warm caches.
    pub(super) leads: watch::Receiver<bool>,
    /// Epochs that were minted and are not active yet, by the lock, with the beginning of the pass that minted them.
    minted: Mutex<HashMap<Key, (Epoch, Instant)>>,
    /// The highest epoch that was ever seen, by the lock, with the uid that it is about.
    remembered: Mutex<HashMap<Key, (String, Epoch)>>,
}

impl fmt::Debug for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unit").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

/// What a unit is made of besides its empty caches.
pub(super) struct Parts {
    pub(super) client: Client,
    pub(super) namespace: Option<String>,
    pub(super) settings: Settings,
    pub(super) backends: Arc<dyn Backends>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) locks: Store<Guarded<FencedLock>>,
    pub(super) boundaries: Store<Guarded<WriteBoundary>>,
    pub(super) lock_queue: Queue<Guarded<FencedLock>>,
    pub(super) boundary_queue: Queue<Guarded<WriteBoundary>>,
    pub(super) signs: Arc<Signs>,
    pub(super) leads: watch::Receiver<bool>,
}

impl Unit {
    pub(super) fn new(parts: Parts) -> Self {
        Self {
            announcer: Announcer::new(parts.client.clone()),
            watching: signs::noting(parts.client.clone(), Arc::clone(&parts.signs)),
            client: parts.client,
            namespace: parts.namespace,
            settings: parts.settings,
            backends: parts.backends,
            metrics: parts.metrics,
            locks: parts.locks,
            boundaries: parts.boundaries,
            lock_queue: parts.lock_queue,
            boundary_queue: parts.boundary_queue,
            watches: Watches::default(),
            locks_by_lease: Groups::default(),
            boundaries_by_lock: Groups::default(),
            leases: Followed::default(),
            undeclared: Undeclared::default(),
            pods: Followed::default(),
            activations: Jobs::default(),
            fence_reads: Jobs::default(),
            proofs: Arc::default(),
            ledgers: Ledgers::default(),
            followers: Followers::default(),
            checked_locks: Checked::new("FencedLock"),
            checked_boundaries: Checked::new("WriteBoundary"),
            quarrels: Quarrels::default(),
            reserving: Turns::default(),
            signs: parts.signs,
            leads: parts.leads,
            minted: Mutex::default(),
            remembered: Mutex::default(),
        }
    }

    /// Whether objects in this namespace are watched by this unit.
    pub(super) fn covers(&self, namespace: &str) -> bool {
        self.namespace.as_deref().is_none_or(|own| own == namespace)
    }

    pub(super) fn lock(&self, (namespace, name): &Key) -> Option<Arc<Guarded<FencedLock>>> {
        self.locks.get(&ObjectRef::new(name).within(namespace))
    }

    pub(super) fn boundary(&self, (namespace, name): &Key) -> Option<Arc<Guarded<WriteBoundary>>> {
        self.boundaries.get(&ObjectRef::new(name).within(namespace))
    }

    /// Remembers that the lock was seen at its status' epoch, and says the highest that was ever seen.
    pub(super) fn remember(&self, lock: &FencedLock) -> Option<Epoch> {
        let (key, uid) = (key_of(lock), lock.uid()?);
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        let known = remembered.get(&key).filter(|(of, _)| *of == uid).map(|(_, epoch)| *epoch);
        let highest = known.max(lock.status.as_ref().and_then(|s| s.epoch));
        if let Some(epoch) = highest {
            remembered.insert(key, (uid, epoch));
        }
        highest
    }

    /// One pass over an object, bounded, contained and measured. None while another replica leads.
    pub(super) async fn pass(&self, kind: Kind, key: &Key, pass: impl Future<Output = Result<Action, Error>>) -> Result<Action, Error> {
        if !*self.leads.borrow() {
            return Ok(Action::await_change());
        }
        self.metrics.pass_began(kind, key);
        let began = Instant::now();
        let outcome = contained(format!("reconciling {}/{}", key.0, key.1), self.settings.reconcile_timeout, pass).await;
        self.metrics.pass_ended(kind, began.elapsed());
        outcome
    }

    /// Measures grants: called with the lock as it was recorded, and the beginning of the pass that did it.
    pub(super) fn measure_grant(&self, lock: &FencedLock, minted: bool, began: Instant) {
        let Some(grant) = lock.status.as_ref().and_then(|s| s.grant.as_ref()) else { return };
        let mut all = self.minted.lock().unwrap_or_else(PoisonError::into_inner);
        if minted {
            self.metrics.term_began();
            all.insert(key_of(lock), (grant.epoch, began));
        }
        if grant.state == GrantState::Active
            && let Some((epoch, since)) = all.remove(&key_of(lock))
            && epoch == grant.epoch
        {
            self.metrics.granted(since.elapsed());
        }
    }

    /// Forgets everything about a lock that is gone.
    pub(super) fn forget_lock(&self, key: &Key) {
        self.leases.follow(key, None);
        self.pods.follow(key, None);
        self.quarrels.forget(key);
        self.checked_locks.forget(key);
        self.minted.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

/// Namespace and name of an object.
pub(super) fn key_of<K: ResourceExt>(object: &K) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// A read, as a follower's state.
pub(super) fn seen<T>(object: Option<T>) -> Seen<T> {
    object.map_or(Seen::Missing, Seen::There)
}
