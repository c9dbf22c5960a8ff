//! A boundary in memory, honest or made to misbehave. For tests and the model; it can be injected, the CRD does not know it.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::BoxFuture;
use kube::ResourceExt;
use tokio::sync::watch;

pub mod canary;

use super::{Activation, Ask, Backend, BackendError, Backends, Fence, Observation, Owner, admits, step};
use canary::{Flaw, MemoryCanary};

use super::proof::{self, Bypass, Examination};
use crate::{
    api::{BoundaryType, WriteBoundary},
    epoch::{Epoch, Holder},
};

/// How an in-memory boundary behaves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Behaviour {
    /// As a managed guard should.
    #[default]
    Honest,
    /// It does not answer until it is made to behave otherwise.
    Slow,
    /// It answers every activation with a refusal.
    Refuses,
    /// It cannot be reached.
    Gone,
    /// It answers truthfully, after this time.
    Late(Duration),
    /// As a guard that nobody knows to be the operator's.
    Untrusted,
}

#[derive(Debug, Default)]
struct State {
    fence: Option<Fence>,
    activations: Vec<(Epoch, Option<Holder>)>,
    /// Found at each examination.
    flaws: BTreeSet<Flaw>,
    bypasses: Vec<Bypass>,
    /// Which server it is: another one after a failover.
    server: u32,
    examinations: u64,
}

/// A boundary in memory. Clones share one state.
#[derive(Clone, Debug)]
pub struct Memory {
    state: Arc<Mutex<State>>,
    behaviour: watch::Sender<Behaviour>,
}

impl Default for Memory {
    fn default() -> Self {
        Self { state: Arc::new(Mutex::new(State::default())), behaviour: watch::Sender::new(Behaviour::Honest) }
    }
}

impl Memory {
    /// Makes it behave so from now on.
    pub fn behave(&self, behaviour: Behaviour) {
        self.behaviour.send_replace(behaviour);
    }

    /// The fence now.
    pub fn fence(&self) -> Option<Fence> {
        self.locked(|state| state.fence.clone())
    }

    /// Puts the fence somewhere, as a restore of the receiver would.
    pub fn restore(&self, fence: Option<Fence>) {
        self.locked(|state| state.fence = fence);
    }

    /// Gives its guard these flaws, and no others.
    pub fn flaw(&self, flaws: impl IntoIterator<Item = Flaw>) {
        self.locked(|state| state.flaws = flaws.into_iter().collect());
    }

    /// Opens these ways around its guard, and no others.
    pub fn bypass(&self, bypasses: Vec<Bypass>) {
        self.locked(|state| state.bypasses = bypasses);
    }

    /// Fails over to a server that remembers this fence.
    pub fn fail_over(&self, fence: Option<Fence>) {
        self.locked(|state| (state.fence, state.server) = (fence, state.server + 1));
    }

    /// How often it was examined.
    pub fn examinations(&self) -> u64 {
        self.locked(|state| state.examinations)
    }

    /// Whether a write with this claim would be accepted now.
    pub fn accepts(&self, epoch: u64, holder: &str) -> bool {
        self.locked(|state| admits(state.fence.as_ref(), epoch, holder))
    }

    /// Every activation that moved the fence, in order.
    pub fn activations(&self) -> Vec<(Epoch, Option<Holder>)> {
        self.locked(|state| state.activations.clone())
    }

    fn locked<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits while slow; then says whether it can be reached.
    async fn reach(&self) -> Result<Behaviour, BackendError> {
        let mut behaviour = self.behaviour.subscribe();
        let now = behaviour.wait_for(|b| *b != Behaviour::Slow).await.map(|b| b.clone());
        match now {
            Ok(Behaviour::Gone) | Err(_) => Err(BackendError::Unreachable("connection refused".into())),
            Ok(Behaviour::Late(after)) => {
                tokio::time::sleep(after).await;
                Ok(Behaviour::Late(after))
            }
            Ok(behaviour) => Ok(behaviour),
        }
    }
}

impl Backend for Memory {
    fn observe(&self) -> BoxFuture<'_, Result<Observation, BackendError>> {
        Box::pin(async move {
            let behaviour = self.reach().await?;
            Ok(Observation { fence: self.fence(), trusted: behaviour != Behaviour::Untrusted })
        })
    }

    fn activate<'a>(&'a self, owner: &'a Owner) -> BoxFuture<'a, Result<Activation, BackendError>> {
        Box::pin(async move {
            if self.reach().await? == Behaviour::Refuses {
                return Err(BackendError::Refused("permission denied".into()));
            }
            Ok(self.locked(|state| {
                let (answer, fence) = step(state.fence.as_ref(), owner.epoch, owner.holder.as_ref());
                if answer == Activation::Activated {
                    state.activations.push((owner.epoch, owner.holder.clone()));
                }
                state.fence = Some(fence);
                answer
            }))
        })
    }

    fn examine<'a>(&'a self, _: &'a Ask) -> BoxFuture<'a, Result<Examination, BackendError>> {
        Box::pin(async move {
            self.reach().await?;
            let (flaws, bypasses, server, fence) = self.locked(|state| {
                state.examinations += 1;
                (state.flaws.clone(), state.bypasses.clone(), state.server, state.fence.clone())
            });
            let profile = MemoryCanary::MANAGED;
            let answers = proof::run::run(&mut MemoryCanary::new(profile, flaws), &profile, "memory").await;
            Ok(Examination {
                profile,
                server: format!("memory {server}"),
                guard: "memory".to_owned(),
                guard_altered: None,
                shared: None,
                answers: Some(answers),
                bypasses,
                not_durable: None,
                limits: Vec::new(),
                fence,
                refused: None,
                last_refused: None,
                notes: Vec::new(),
                others: Vec::new(),
                unfinished: None,
            })
        })
    }
}

/// In-memory backends by `namespace/name` of the boundary; each is made when it is first asked for.
#[derive(Clone, Debug, Default)]
pub struct Memories(Arc<Mutex<HashMap<String, Memory>>>);

impl Memories {
    /// The backend of a boundary.
    pub fn of(&self, namespace: &str, name: &str) -> Memory {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        map.entry(format!("{namespace}/{name}")).or_default().clone()
    }
}

impl Backends for Memories {
    fn backend(&self, boundary: &WriteBoundary) -> Option<Arc<dyn Backend>> {
        let namespace = boundary.namespace().unwrap_or_default();
        (boundary.spec.type_ != BoundaryType::External).then(|| Arc::new(self.of(&namespace, &boundary.name_any())) as Arc<dyn Backend>)
    }
}
