//! From watch events to the queue. An event that cannot change an answer ends here.
//!
//! Start with [`locks`]; each kind has one function. A watch that may not run is written down in the unit's
//! [`super::unit::Watches`], so that the locks that depend on it say so.

use std::{
    fmt::Debug,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{Stream, StreamExt};
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{
    Api, Resource, ResourceExt,
    core::PartialObjectMeta,
    runtime::{
        WatchStreamExt,
        reflector::store::Writer,
        watcher::{self, Event, watcher},
    },
};
use serde::de::DeserializeOwned;
use tokio::sync::watch::Sender;

use super::{
    error::Step,
    follow::{Followed, Key},
    thin::ThinLease,
    unit::{Guarded, PodSeen, Unit, Unseen, WatchState, key_of, settled},
};
use crate::{
    api::{FencedLock, WriteBoundary},
    apiserver,
    audit::inventory::leases::NODE_LEASES,
};

fn api<K>(unit: &Unit) -> Api<K>
where
    K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
{
    unit.namespace.as_deref().map_or_else(|| Api::all(unit.watching.clone()), |ns| Api::namespaced(unit.watching.clone(), ns))
}

/// The first pause after a watch was given up; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How long a watch may fail before it counts as showing nothing.
const FAILS_FOR: Duration = Duration::from_mins(1);

/// Drives a watch for ever, notes how it fares, and calls `on_event`. A watch that is refused, or fails for a while, is given up
/// and begun anew: only a listing tells for certain that it shows everything again.
async fn drive<K, S>(
    unit: &Unit,
    begin: impl Fn() -> S,
    state: impl Fn(&Unit) -> &Sender<WatchState>,
    resource: &'static str,
    mut on_event: impl FnMut(Event<K>),
) where
    K: Debug,
    S: Stream<Item = watcher::Result<Event<K>>>,
{
    let (state, namespace) = (state(unit), unit.namespace.as_deref().unwrap_or_default());
    let mut pause = FIRST_PAUSE;
    loop {
        let (mut events, mut failing_since) = (std::pin::pin!(begin()), None);
        let unseen = loop {
            match events.next().await {
                None => break Unseen::Failing("the watch ended".into()),
                Some(Ok(event)) => {
                    unit.metrics.watch_delivered(resource, Timestamp::now().as_second());
                    let complete = !matches!(event, Event::Init | Event::InitApply(_));
                    on_event(event);
                    if complete {
                        (pause, failing_since) = (FIRST_PAUSE, None);
                        note(unit, state, WatchState::Running);
                    }
                }
                Some(Err(error)) => {
                    if let Some(right) = refusal(&error, resource, namespace) {
                        tracing::warn!(resource, namespace, right, "a watch is refused and is tried again");
                        break Unseen::Refused(right);
                    }
                    tracing::warn!(resource, namespace, %error, "a watch failed and is tried again");
                    if failing_since.get_or_insert_with(Instant::now).elapsed() > FAILS_FOR {
                        break Unseen::Failing(error.to_string());
                    }
                }
            }
        };
        note(unit, state, WatchState::Unseen(unseen));
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Notes how a watch fares. Every lock may say something else then.
fn note(unit: &Unit, state: &Sender<WatchState>, now: WatchState) {
    if *state.borrow() != now {
        state.send_replace(now);
        wake_all(unit);
    }
}

/// Every lock may say something else now that a watch began or ceased to deliver.
fn wake_all(unit: &Unit) {
    for lock in unit.locks.state() {
        unit.lock_queue.push(&key_of(&*lock));
    }
    for boundary in unit.boundaries.state() {
        unit.boundary_queue.push(&key_of(&*boundary));
    }
}

/// What a person has to do when a watch is refused; `None` when it may pass by itself.
fn refusal(error: &watcher::Error, resource: &'static str, namespace: &str) -> Option<String> {
    let (code, verb) = apiserver::answered(error)?;
    match code {
        403 => Some(Step { verb, resource, namespace, name: "" }.right()),
        404 => Some(format!("{verb} {resource}, which the API server does not serve (the CustomResourceDefinitions: fencedlock crds)")),
        _ => None,
    }
}

/// Objects per page of a listing. A page is in memory several times at once, so larger ones cost more than they save.
const PAGE_SIZE: u32 = 100;

fn config(unit: &Unit) -> watcher::Config {
    watcher::Config::default().page_size(PAGE_SIZE).timeout(u32::try_from(unit.settings.watch_timeout.as_secs()).unwrap_or(u32::MAX))
}

/// Looks at everything when this replica begins to lead. What happened while it stood by was not worked off.
pub(super) async fn leadership(unit: Arc<Unit>) {
    let mut leads = unit.leads.clone();
    while leads.changed().await.is_ok() {
        if *leads.borrow_and_update() {
            wake_all(&unit);
        }
    }
    // The election is over because the operator stops.
    std::future::pending::<()>().await;
}

/// Watches FencedLocks: each change is reconciled.
pub(super) async fn locks(unit: Arc<Unit>, mut writer: Writer<Guarded<FencedLock>>) {
    drive(
        &unit,
        || stored::<Guarded<FencedLock>>(&unit),
        |u| &u.watches.locks,
        "fencedlocks.fencedlock.dev",
        |event| {
            if matches!(event, Event::Init) {
                unit.locks_by_lease.listing_begins();
            }
            writer.apply_watcher_event(&event);
            match &event {
                Event::Apply(lock) | Event::InitApply(lock) => lock_changed(&unit, lock, matches!(event, Event::Apply(_))),
                Event::Delete(lock) => lock_gone(&unit, &key_of(lock)),
                Event::Init => {}
                Event::InitDone => {
                    for (lock, lease) in unit.locks_by_lease.listing_ended() {
                        lock_gone(&unit, &lock);
                        wake_members(&unit, &lease);
                    }
                    // Only now does the store show what the listing named.
                    unit.locks.state().iter().for_each(|lock| unit.lock_queue.push(&key_of(&**lock)));
                }
            }
        },
    )
    .await;
}

fn lock_changed(unit: &Unit, lock: &Guarded<FencedLock>, wake: bool) {
    let key = key_of(lock);
    let lease = lock.0.as_ref().ok().and_then(|l| l.spec.coordinator.lease.as_ref()).map(|l| (key.0.clone(), l.name.clone()));
    let known = lease.as_ref().is_some_and(|lease| unit.locks_by_lease.members(lease).contains(&key));
    let left = unit.locks_by_lease.put(&key, lease.as_ref());
    // Followed from now on, so that the listing of the Leases, which comes later, serves all locks at once.
    unit.leases.follow(&key, lease.as_ref());
    if !wake {
        return;
    }
    unit.lock_queue.push(&key);
    unit.boundary_queue.push_all(&unit.boundaries_by_lock.members(&key));
    if let Some(left) = left {
        wake_members(unit, &left);
    }
    if let (false, Some(lease)) = (known, &lease) {
        wake_members(unit, lease);
    }
}

fn lock_gone(unit: &Unit, key: &Key) {
    unit.forget_lock(key);
    if let Some(lease) = unit.locks_by_lease.put(key, None) {
        wake_members(unit, &lease);
    }
    unit.boundary_queue.push_all(&unit.boundaries_by_lock.members(key));
}

/// The locks on one Lease: which of them is the oldest may have changed.
fn wake_members(unit: &Unit, lease: &Key) {
    unit.lock_queue.push_all(&unit.locks_by_lease.members(lease));
}

/// Watches WriteBoundaries: each change concerns itself, its lock, and locks that list it.
pub(super) async fn boundaries(unit: Arc<Unit>, mut writer: Writer<Guarded<WriteBoundary>>) {
    drive(
        &unit,
        || stored::<Guarded<WriteBoundary>>(&unit),
        |u| &u.watches.boundaries,
        "writeboundaries.fencedlock.dev",
        |event| {
            if matches!(event, Event::Init) {
                unit.boundaries_by_lock.listing_begins();
            }
            writer.apply_watcher_event(&event);
            match &event {
                Event::Apply(boundary) | Event::InitApply(boundary) => {
                    let key = key_of(boundary);
                    let lock = boundary.lock().map(|name| (key.0.clone(), name.to_owned()));
                    let known = lock.as_ref().is_some_and(|lock| unit.boundaries_by_lock.members(lock).contains(&key));
                    let left = unit.boundaries_by_lock.put(&key, lock.as_ref());
                    if matches!(event, Event::Apply(_)) {
                        unit.boundary_queue.push(&key);
                        unit.lock_queue.push_all(lock.iter().chain(&left));
                        if !known {
                            wake_listing(&unit, &key);
                        }
                    }
                }
                Event::Delete(boundary) => boundary_gone(&unit, &key_of(boundary)),
                Event::Init => {}
                Event::InitDone => {
                    for (boundary, lock) in unit.boundaries_by_lock.listing_ended() {
                        unit.lock_queue.push(&lock);
                        boundary_gone(&unit, &boundary);
                    }
                    wake_all(&unit);
                }
            }
        },
    )
    .await;
}

fn boundary_gone(unit: &Unit, key: &Key) {
    unit.activations.forget(key);
    unit.fence_reads.forget(key);
    unit.proofs.forget(key);
    unit.followers.forget(key);
    unit.ledgers.forget(key);
    unit.checked_boundaries.forget(key);
    if let Some(lock) = unit.boundaries_by_lock.put(key, None) {
        unit.lock_queue.push(&lock);
    }
    wake_listing(unit, key);
}

/// Locks that list a boundary of this name.
fn wake_listing(unit: &Unit, (namespace, name): &Key) {
    let lists = |lock: &Guarded<FencedLock>| {
        lock.namespace().as_deref() == Some(namespace) && lock.0.as_ref().is_ok_and(|l| l.spec.write_boundaries.contains(name))
    };
    unit.locks.state_filter(lists).iter().for_each(|lock| unit.lock_queue.push(&key_of(&**lock)));
}

fn stored<K>(unit: &Unit) -> impl Stream<Item = watcher::Result<Event<K>>> + use<K>
where
    K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    watcher(api::<K>(unit), config(unit)).default_backoff().modify(|object| object.managed_fields_mut().clear())
}

/// Watches the Leases of the scope. Those that no lock follows are dropped, and so is every renewal.
pub(super) async fn leases(unit: Arc<Unit>) {
    // First the locks, which say what has to be kept of the listing.
    drop(settled(&unit.watches.locks).await);
    // The kubelets' heartbeats are never ours, and there are as many as nodes (case G04).
    let config = if unit.namespace.is_none() { config(&unit).fields(&format!("metadata.namespace!={NODE_LEASES}")) } else { config(&unit) };
    let events = || watcher(api::<ThinLease>(&unit), config.clone()).default_backoff();
    let state = |lease: &ThinLease| lease.view.clone();
    drive(
        &unit,
        events,
        |u| &u.watches.leases,
        "leases.coordination.k8s.io",
        |event| {
            match &event {
                Event::Apply(lease) | Event::InitApply(lease) => unit.undeclared.delivered(lease, Instant::now()),
                Event::Delete(lease) => unit.undeclared.gone(&key_of(lease)),
                Event::Init => unit.undeclared.listing_begins(),
                Event::InitDone => unit.undeclared.listing_ended(),
            }
            follow(&unit, &unit.leases, &event, state);
        },
    )
    .await;
}

/// Watches the metadata of pods. Those that hold no lock are dropped.
pub(super) async fn pods(unit: Arc<Unit>) {
    let events = || watcher(api::<PartialObjectMeta<Pod>>(&unit), config(&unit)).default_backoff();
    let state = |pod: &PartialObjectMeta<Pod>| {
        let (uid, resource_version) = (pod.uid().unwrap_or_default(), pod.resource_version().unwrap_or_default());
        Some(PodSeen { uid, resource_version, view: None })
    };
    drive(&unit, events, |u| &u.watches.pods, "pods", |event| follow(&unit, &unit.pods, &event, state)).await;
}

/// Hands an event about a followed kind to its followers. An object that cannot be read wakes them, so that they say so.
fn follow<K, T>(unit: &Unit, followed: &Followed<T>, event: &Event<K>, state: impl Fn(&K) -> Option<T>)
where
    K: ResourceExt,
    T: super::follow::Followable,
{
    let wake = match event {
        Event::Apply(object) | Event::InitApply(object) => match state(object) {
            Some(state) => followed.delivered(&key_of(object), state, matches!(event, Event::InitApply(_))),
            None => followed.unreadable(&key_of(object)),
        },
        Event::Delete(object) => match state(object) {
            Some(state) => followed.deleted(&key_of(object), &state),
            None => followed.unreadable(&key_of(object)),
        },
        Event::Init => {
            followed.listing_begins();
            Vec::new()
        }
        Event::InitDone => followed.listing_ended(),
    };
    unit.lock_queue.push_all(&wake);
}
