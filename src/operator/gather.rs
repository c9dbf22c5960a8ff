//! Gathers everything that a decision about one lock needs. Reads from caches; minting demands more (protocol section 1), see
//! [`Freshness`].

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Pod},
    jiff::Timestamp,
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PartialObjectMeta},
};

use super::{
    decide::{Counted, CountedState, Decision, Freshness, Observed, UnreadFence, holder},
    error::{Error, Step, is_missing},
    follow::{Key, Seen},
    jobs::{Failure, Progress},
    reservation,
    unit::{FenceRead, Guarded, PodSeen, Unit, Unseen, declared, key_of, owner, seen, settled, ticket},
};
use crate::{
    api::{FencedLock, FencedLockStatus, Identity, WriteBoundary},
    apiserver,
    audit::{boundary::Evidence, conditions::Activation, inventory::leases::NODE_LEASES, owner::PodRead},
    boundary::{self, Backend, Owner},
    epoch::{
        grant::{LeaseRead, Standing},
        mint::TrustedFence,
        pod::PodView,
        term::LeaseView,
    },
};

/// The lock as the API server has it now; `None` when it is gone.
pub(super) async fn fresh_lock(unit: &Unit, (namespace, name): &Key) -> Result<Option<Arc<FencedLock>>, Error> {
    let step = Step { verb: "get", resource: "fencedlocks.fencedlock.dev", namespace, name };
    match Api::<FencedLock>::namespaced(unit.client.clone(), namespace).get_opt(name).await {
        Ok(lock) => Ok(lock.map(Arc::new)),
        Err(error) => Err(step.failed(&error)),
    }
}

/// Gathers about a lock.
pub(super) async fn gather(unit: &Unit, lock: Arc<FencedLock>, freshness: Freshness) -> Result<Observed, Error> {
    let key = key_of(&*lock);
    let before = lock.status.clone().unwrap_or_default();
    let reservation = async {
        // Only minting reads it, and minting always rests on uncached reads.
        if freshness == Freshness::Cached { Ok(Ok(None)) } else { reservation::read(unit, &key).await }
    };
    let (lease, reservation) = futures::join!(read_lease(unit, &key, &lock, freshness), reservation);
    let (lease, reservation) = (lease?, reservation?);
    let pod = read_pod(unit, &key, &lock, &lease).await?;
    let living = living_pods(unit, &key, &lock, &before, freshness).await;
    let (boundaries, boundaries_unread) = cached_boundaries(unit, &key, &lock).await;
    let activations = owner(&before).map_or_else(BTreeMap::new, |owner| activated(unit, &boundaries, &owner));
    Ok(Observed {
        field_errors: unit.checked_locks.errors(&key, &lock.spec),
        older: older(unit, &key, &lock),
        remembered: unit.remember(&lock),
        now: Timestamp::now(),
        freshness,
        boundaries_fresh: false,
        fences_read: false,
        fences: Vec::new(),
        unreadable_fences: BTreeMap::new(),
        lease,
        pod,
        living,
        boundaries,
        boundaries_unread,
        reservation,
        activations,
        lock,
    })
}

async fn read_lease(unit: &Unit, key: &Key, lock: &FencedLock, freshness: Freshness) -> Result<LeaseRead, Error> {
    let Some(lease) = &lock.spec.coordinator.lease else {
        unit.leases.follow(key, None);
        return Ok(LeaseRead::NoCoordinator);
    };
    if key.0 == NODE_LEASES {
        return Ok(LeaseRead::Unreadable(format!("Leases in {NODE_LEASES} are the nodes' heartbeats and are not followed")));
    }
    let object: Key = (key.0.clone(), lease.name.clone());
    // Followed before it is read, so that no change in between is lost.
    unit.leases.follow(key, Some(&object));
    match settled(&unit.watches.leases).await {
        Ok(()) => {}
        Err(Unseen::Refused(right)) => return Ok(LeaseRead::Forbidden(right)),
        Err(Unseen::Failing(why)) => return Ok(LeaseRead::Unreadable(why)),
    }
    let recorded = lock.status.as_ref().and_then(FencedLockStatus::recorded);
    let baseline = |lease: &LeaseView| recorded.map_or_else(|| lease.clone(), |recorded| recorded.baseline(lease));
    let cached = if freshness == Freshness::Cached { unit.leases.cached(key, &object, baseline) } else { None };
    let read = if let Some(seen) = cached {
        seen
    } else {
        match get_lease(unit, key, &object, baseline).await? {
            Ok(seen) => seen,
            Err(unknown) => return Ok(unknown),
        }
    };
    Ok(match read {
        Seen::There(lease) => LeaseRead::Found(lease),
        Seen::Missing => LeaseRead::Missing,
    })
}

/// The Lease as the API server has it now, or why that cannot be told.
async fn get_lease(
    unit: &Unit,
    lock: &Key,
    object: &Key,
    baseline: impl FnOnce(&LeaseView) -> LeaseView,
) -> Result<Result<Seen<LeaseView>, LeaseRead>, Error> {
    let step = Step { verb: "get", resource: "leases.coordination.k8s.io", namespace: &object.0, name: &object.1 };
    let begun = unit.leases.begin_read(object);
    let read = match Api::<Lease>::namespaced(unit.client.clone(), &object.0).get(&object.1).await {
        Ok(lease) => Some(LeaseView::from(lease)),
        Err(error) if is_missing(&error) => None,
        Err(kube::Error::SerdeError(error)) => return Ok(Err(LeaseRead::Unreadable(error.to_string()))),
        Err(error) => {
            return match step.failed(&error) {
                Error::Forbidden(right) => Ok(Err(LeaseRead::Forbidden(right))),
                other => Err(other),
            };
        }
    };
    let read = seen(read);
    unit.lock_queue.push_all(&unit.leases.read(lock, object, begun, &read, baseline));
    Ok(Ok(read))
}

async fn read_pod(unit: &Unit, key: &Key, lock: &FencedLock, lease: &LeaseRead) -> Result<PodRead, Error> {
    let spec = lock.spec.coordinator.lease.as_ref().filter(|l| l.identity == Identity::Auto);
    let name = holder(lease).and_then(crate::epoch::Holder::pod_name);
    let (Some(spec), Some(name)) = (spec, name) else {
        unit.pods.follow(key, None);
        return Ok(PodRead::NotSought);
    };
    let namespace = spec.pod_namespace.clone().unwrap_or_else(|| key.0.clone());
    let object: Key = (namespace, name.to_owned());
    let watched = unit.covers(&object.0);
    unit.pods.follow(key, watched.then_some(&object));
    if watched {
        match settled(&unit.watches.pods).await {
            Ok(()) => {}
            Err(Unseen::Refused(right)) => return Ok(PodRead::Forbidden(right)),
            Err(Unseen::Failing(why)) => return Ok(PodRead::Unreadable(why)),
        }
    }
    match unit.pods.cached(key, &object, Clone::clone) {
        Some(Seen::Missing) if watched => return Ok(PodRead::Missing),
        Some(Seen::There(PodSeen { view: Some(view), .. })) if watched => return Ok(PodRead::Found(view)),
        _ => {}
    }
    let step = Step { verb: "get", resource: "pods", namespace: &object.0, name: &object.1 };
    let begun = unit.pods.begin_read(&object);
    let pod = match Api::<Pod>::namespaced(unit.client.clone(), &object.0).get(&object.1).await {
        Ok(pod) => Some(pod),
        Err(error) if is_missing(&error) => None,
        Err(kube::Error::SerdeError(error)) => return Ok(PodRead::Unreadable(error.to_string())),
        Err(error) => {
            return match step.failed(&error) {
                Error::Forbidden(right) => Ok(PodRead::Forbidden(right)),
                other => Err(other),
            };
        }
    };
    let read = seen(pod.map(|pod| PodSeen {
        uid: pod.uid().unwrap_or_default(),
        resource_version: pod.resource_version().unwrap_or_default(),
        view: Some(PodView::from(pod)),
    }));
    unit.lock_queue.push_all(&unit.pods.read(key, &object, begun, &read, Clone::clone));
    Ok(match read {
        Seen::There(PodSeen { view: Some(view), .. }) => PodRead::Found(view),
        _ => PodRead::Missing,
    })
}

/// How many earlier owners may be remembered before it is looked which of them exist.
const REMEMBERED: usize = 8;

/// The uids of the pods where the holders run, so that those that are gone are not remembered. Listed only when a term may end and many are.
async fn living_pods(
    unit: &Unit,
    key: &Key,
    lock: &FencedLock,
    before: &FencedLockStatus,
    freshness: Freshness,
) -> Option<BTreeSet<String>> {
    let lease =
        lock.spec.coordinator.lease.as_ref().filter(|_| freshness != Freshness::Cached && before.recent_owners.len() >= REMEMBERED)?;
    let pods = lease.pod_namespace.as_deref().unwrap_or(&key.0);
    let api: Api<PartialObjectMeta<Pod>> = Api::namespaced(unit.client.clone(), pods);
    // What cannot be listed is remembered longer.
    let pods = apiserver::all(&api, ListParams::default()).await.ok()?;
    Some(pods.into_iter().filter_map(|pod| pod.metadata.uid).collect())
}

/// The older lock on the same Lease: by creation, then by name. A lock that is malformed claims nothing.
fn older(unit: &Unit, key: &Key, lock: &FencedLock) -> Option<String> {
    let lease = (key.0.clone(), lock.spec.coordinator.lease.as_ref()?.name.clone());
    let age = |lock: &FencedLock| (lock.creation_timestamp().map(|t| t.0), lock.name_any());
    let others = unit.locks_by_lease.members(&lease).into_iter().filter(|other| other != key);
    let others = others.filter_map(|other| Some(age(unit.lock(&other)?.0.as_ref().ok()?)));
    others.min().filter(|oldest| *oldest < age(lock)).map(|(_, name)| name)
}

/// The boundaries that count, as the watch delivered them, and why they are not known, when they are not.
async fn cached_boundaries(unit: &Unit, key: &Key, lock: &FencedLock) -> (Vec<Counted>, Option<String>) {
    let unread = settled(&unit.watches.boundaries).await.err().map(|unread| unread.sentence());
    let unlisted = unit.boundaries_by_lock.members(key).into_iter().map(|(_, name)| name);
    let found = |name: &str| unit.boundary(&(key.0.clone(), name.to_owned()));
    let look_up = |name: &str| found(name).map_or(CountedState::Missing, |boundary| state(unit, &key.1, &boundary));
    let state = |name: &str| unread.as_ref().map_or_else(|| look_up(name), |why| CountedState::Unreadable(why.clone()));
    (counted(lock, unlisted, state), unread)
}

/// The boundaries that count: those that the lock lists, then those that refer to it and are not listed.
fn counted(lock: &FencedLock, referring: impl Iterator<Item = String>, state: impl Fn(&str) -> CountedState) -> Vec<Counted> {
    let listed = &lock.spec.write_boundaries;
    let unlisted = referring.filter(|name| !listed.contains(name));
    let names = listed.iter().cloned().map(|name| (name, true)).chain(unlisted.map(|name| (name, false)));
    names.map(|(name, listed)| Counted { state: state(&name), name, listed }).collect()
}

/// Reads the boundaries once more, straight from the API server: all of the namespace, because one that is not listed and that no
/// replica has noticed yet counts too. A listing waits for the API server's own cache, 50 ms on the average; reading the known ones by
/// their names does not, and would miss that one.
pub(super) async fn read_boundaries(unit: &Unit, observed: &mut Observed) -> Result<(), Error> {
    let (namespace, name) = key_of(&*observed.lock);
    let step = Step { verb: "list", resource: "writeboundaries.fencedlock.dev", namespace: &namespace, name: "" };
    let api = Api::<Guarded<WriteBoundary>>::namespaced(unit.client.clone(), &namespace);
    observed.boundaries_fresh = true;
    match api.list(&ListParams::default()).await {
        Ok(list) => {
            let found: BTreeMap<_, _> = list.items.iter().map(|boundary| (boundary.name_any(), boundary)).collect();
            let refers = |boundary: &Guarded<WriteBoundary>| boundary.lock() == Some(name.as_str());
            let referring = found.iter().filter(|(_, boundary)| refers(boundary)).map(|(name, _)| name.clone());
            let look_up = |boundary: &str| found.get(boundary).map_or(CountedState::Missing, |boundary| state(unit, &name, boundary));
            (observed.boundaries, observed.boundaries_unread) = (counted(&observed.lock, referring, look_up), None);
            let owner = observed.lock.status.as_ref().and_then(owner);
            observed.activations = owner.map_or_else(BTreeMap::new, |owner| activated(unit, &observed.boundaries, &owner));
            Ok(())
        }
        Err(error) => match step.failed(&error) {
            Error::Forbidden(right) => {
                observed.boundaries_unread = Some(Unseen::Refused(right).sentence());
                Ok(())
            }
            other => Err(other),
        },
    }
}

/// What is there under a boundary's name, as the lock sees it.
fn state(unit: &Unit, lock: &str, found: &Guarded<WriteBoundary>) -> CountedState {
    if let Some(other) = found.lock().filter(|other| *other != lock) {
        return CountedState::OtherLock(other.to_owned());
    }
    match &found.0 {
        Err(malformed) => CountedState::Malformed(malformed.error.clone()),
        Ok(boundary) => {
            let has_backend = unit.backends.backend(boundary).is_some();
            CountedState::Present {
                field_errors: unit.checked_boundaries.errors(&key_of(boundary), &boundary.spec),
                evidence: evidence(unit, boundary, Timestamp::now()),
                object: Arc::new(boundary.clone()),
                has_backend,
            }
        }
    }
}

/// What is known of a boundary's behaviour.
pub(super) fn evidence(unit: &Unit, boundary: &WriteBoundary, now: Timestamp) -> Evidence {
    if unit.backends.backend(boundary).is_some() { unit.proofs.evidence(boundary, now) } else { Evidence::NotImplemented }
}

/// What became of activating the recorded owner.
fn activated(unit: &Unit, boundaries: &[Counted], owner: &Owner) -> BTreeMap<String, Activation> {
    let known = |counted: &Counted| {
        let CountedState::Present { object, .. } = &counted.state else { return None };
        let progress = unit.activations.peek(&key_of(&**object), &ticket(owner, object))?;
        Some((counted.name.clone(), activation(progress)))
    };
    boundaries.iter().filter_map(known).collect()
}

/// What a job says, as the conditions put it.
pub(super) fn activation(progress: Progress<boundary::Activation>) -> Activation {
    match progress {
        Progress::Running => Activation::Waiting,
        Progress::Done(boundary::Activation::Activated | boundary::Activation::Unchanged) => Activation::Done,
        Progress::Done(boundary::Activation::Superseded(fence)) => Activation::Superseded(fence.epoch),
        Progress::Done(boundary::Activation::Blocked(by)) => Activation::Failed(format!("blocked by {by}")),
        Progress::Failed(why, _) => Activation::Failed(why),
    }
}

fn trusted(name: &str, fence: &boundary::Fence) -> TrustedFence {
    let (epoch, holder) = fence.owner();
    TrustedFence { boundary: name.to_owned(), epoch: epoch.get(), holder }
}

/// How long a pass waits for fences to be read. When that is not enough it ends, and the lock is woken when a read does.
const MOMENT: Duration = Duration::from_millis(300);

/// How old what was read of a fence may be when an epoch is minted on it: older than the slowest boundary takes to answer, so that
/// the first of two answers is still good when the second comes.
fn fresh_for(unit: &Unit) -> Duration {
    unit.settings.backend_timeout.saturating_mul(2).max(Duration::from_secs(10))
}

/// Reads the fences of all boundaries that have a backend. A read is not tied to a state of the Lease, which may change while
/// the boundary is slow to answer; what was read serves until it is too old or an epoch was minted on it.
pub(super) async fn read_fences(unit: &Arc<Unit>, observed: &mut Observed) {
    let lock = key_of(&*observed.lock);
    let present = observed.boundaries.iter().filter_map(|counted| match &counted.state {
        CountedState::Present { object, .. } => Some((counted.name.clone(), Arc::clone(object), unit.backends.backend(object)?)),
        _ => None,
    });
    let boundaries: Vec<_> = present.collect();
    let is_old = |(_, object, _): &(String, Arc<WriteBoundary>, Arc<dyn Backend>)| {
        let read = unit.fence_reads.peek(&key_of(&**object), &declared(object));
        matches!(read, Some(Progress::Done((at, _))) if at.elapsed() > fresh_for(unit))
    };
    if boundaries.iter().any(is_old) {
        forget_fences(unit, observed);
    }
    for (_, object, backend) in &boundaries {
        let work = || observe(unit, Arc::clone(backend));
        unit.fence_reads.ask(&key_of(&**object), &declared(object), work, waker(unit, &lock));
    }
    let keys: Vec<_> = boundaries.iter().map(|(_, object, _)| key_of(&**object)).collect();
    unit.fence_reads.until_ended(&keys, MOMENT).await;
    let owner = observed.lock.status.as_ref().and_then(owner);
    for (name, object, _) in boundaries {
        let seen = match unit.fence_reads.peek(&key_of(&*object), &declared(&object)) {
            Some(Progress::Done((_, seen))) => seen,
            Some(Progress::Failed(why, _)) => {
                observed.unreadable_fences.insert(name, UnreadFence::Failed(why));
                continue;
            }
            Some(Progress::Running) | None => {
                observed.unreadable_fences.insert(name, UnreadFence::UnderWay);
                continue;
            }
        };
        let fence = seen.fence.map(|fence| trusted(&name, &fence));
        let is_ahead = |owner: &Owner| fence.as_ref().is_some_and(|f| f.shuts_out(owner.epoch, owner.holder()));
        if matches!(observed.activations.get(&name), Some(Activation::Superseded(_))) && !owner.as_ref().is_some_and(is_ahead) {
            // Whatever was ahead is not any more: the activation is worth another try.
            unit.activations.forget(&key_of(&*object));
        }
        observed.fences.extend(fence.filter(|_| seen.trusted));
    }
    observed.fences_read = true;
}

/// When the first of the failed activations and reads may be tried again.
pub(super) fn retry_after(unit: &Unit, observed: &Observed, decision: &Decision) -> Option<Duration> {
    let owner = owner(&decision.status);
    let waits = observed.boundaries.iter().filter_map(|counted| {
        let CountedState::Present { object, .. } = &counted.state else { return None };
        let key = key_of(&**object);
        let activation = owner.as_ref().filter(|_| decision.activate.contains(&counted.name));
        let activation = activation.and_then(|owner| unit.activations.peek(&key, &ticket(owner, object))?.retry_after());
        let has_failed = matches!(observed.unreadable_fences.get(&counted.name), Some(UnreadFence::Failed(_)));
        let is_wanted = has_failed && matches!(decision.grant.standing, Standing::FenceUnreadable { .. });
        let read = unit.fence_reads.peek(&key, &declared(object)).filter(|_| is_wanted).and_then(|p| p.retry_after());
        [activation, read].into_iter().flatten().min()
    });
    waits.min().map(|wait| wait.max(Duration::from_millis(100)))
}

/// Forgets what was read of the fences, so that the next minting reads them again.
pub(super) fn forget_fences(unit: &Unit, observed: &Observed) {
    for counted in &observed.boundaries {
        if let CountedState::Present { object, .. } = &counted.state {
            unit.fence_reads.forget(&key_of(&**object));
        }
    }
}

fn observe(unit: &Unit, backend: Arc<dyn Backend>) -> impl Future<Output = Result<FenceRead, Failure>> + Send + use<> {
    let limit = unit.settings.backend_timeout;
    async move { bounded(limit, backend.observe()).await.map(|seen| (Instant::now(), seen)) }
}

/// Starts activating an owner at a boundary, or says how far that is.
pub(super) fn activate(unit: &Arc<Unit>, lock: &Key, boundary: &WriteBoundary, owner: &Owner) -> Option<Progress<boundary::Activation>> {
    let backend = unit.backends.backend(boundary)?;
    let limit = unit.settings.backend_timeout;
    let ticket = ticket(owner, boundary);
    let owner = owner.clone();
    let (metrics, proofs, key) = (Arc::clone(&unit.metrics), Arc::clone(&unit.proofs), key_of(boundary));
    let own = key.clone();
    let work = move || async move {
        let began = Instant::now();
        let answer = bounded(limit, backend.activate(&owner)).await?;
        metrics.activated(began.elapsed());
        match answer {
            // Somebody's open work is waited for: it is tried again at once, and while it lasts.
            boundary::Activation::Blocked(by) => Err(Failure::soon(format!("blocked by {by}"))),
            boundary::Activation::Activated | boundary::Activation::Unchanged => {
                proofs.moved(&own, Some((owner.epoch, owner.holder().to_owned())));
                Ok(answer)
            }
            boundary::Activation::Superseded(_) => Ok(answer),
        }
    };
    let wake_lock = waker(unit, lock);
    let queue = unit.boundary_queue.clone();
    let wake = move || {
        wake_lock();
        queue.push(&key);
    };
    Some(unit.activations.ask(&key_of(boundary), &ticket, work, wake))
}

fn waker(unit: &Arc<Unit>, lock: &Key) -> impl FnOnce() + Send + 'static {
    let (queue, lock) = (unit.lock_queue.clone(), lock.clone());
    move || queue.push(&lock)
}

async fn bounded<T>(limit: Duration, work: impl Future<Output = Result<T, boundary::BackendError>>) -> Result<T, Failure> {
    match tokio::time::timeout(limit, work).await {
        Ok(answer) => answer.map_err(|error| error.to_string().into()),
        Err(_) => Err(boundary::BackendError::TimedOut(limit).to_string().into()),
    }
}
