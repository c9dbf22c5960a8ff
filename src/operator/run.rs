//! Wires units together and runs them until they are told to stop.

use std::{convert::Infallible, fmt::Debug, net::TcpListener, sync::Arc, time::Instant};

use futures::{FutureExt, Stream, StreamExt, TryFuture, channel::mpsc::unbounded, future};
use kube::{
    Api, Client, Resource,
    runtime::{
        controller::{self, Action, ReconcileRequest, applier},
        reflector::{Store, store},
    },
};
use thiserror::Error;
use tokio::{sync::watch as watch_channel, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    admin::{self, Units},
    boundaries,
    error::Error,
    metrics::Metrics,
    reconcile, served,
    settings::{Scope, Settings},
    signs::Signs,
    undeclared,
    unit::{Guarded, Parts, Queue, Unit},
    watch,
};
use crate::{
    api::{FencedLock, WriteBoundary},
    boundary::Backends,
    client::elect::{self, Elector},
};

/// The operator ended without having been told to: a defect. The process has to end, so that another one begins.
#[derive(Debug, Error)]
#[error("a part of the operator ended by itself, which is a defect of fencedlock: {0}")]
pub struct Stopped(String);

/// Runs the operator until `stop` is cancelled; then passes under way are finished. `/livez`, `/readyz` and `/metrics` are served
/// at `listener`, if there is one.
///
/// # Errors
/// When a part of it ended by itself. The other parts were stopped then.
pub async fn run(
    client: Client,
    settings: Settings,
    backends: Arc<dyn Backends>,
    metrics: Arc<Metrics>,
    listener: Option<TcpListener>,
    stop: CancellationToken,
) -> Result<(), Stopped> {
    let namespaces: Vec<Option<String>> = match &settings.scope {
        Scope::Cluster => vec![None],
        Scope::Namespaces(names) => names.iter().cloned().map(Some).collect(),
    };
    let (mut parts, units) = (JoinSet::new(), Arc::new(Units::new(namespaces.len())));
    // Without an election every replica leads.
    let leads = watch_channel::Sender::new(settings.election.is_none());
    if let Some(election) = &settings.election {
        let leases = Api::namespaced(client.clone(), &election.namespace);
        let elector = Elector::new(leases, &election.name, &election.identity, election.timing);
        let (leads, stop) = (leads.clone(), stop.clone());
        parts.spawn(async {
            elect::run(elector, leads, stop).await;
            Ok(())
        });
    }
    if let Some(listener) = listener {
        let serving = admin::serve(listener, Arc::clone(&units), Arc::clone(&metrics), leads.subscribe(), stop.clone());
        parts.spawn(async { serving.await.map_err(|error| Stopped(format!("/livez, /readyz and /metrics: {error}"))) });
    }
    served::compare(&client).await;
    for namespace in namespaces {
        let shared = Shared {
            client: client.clone(),
            settings: settings.clone(),
            backends: Arc::clone(&backends),
            metrics: Arc::clone(&metrics),
            units: Arc::clone(&units),
            leads: leads.subscribe(),
        };
        parts.spawn(unit(shared, namespace, stop.clone()));
    }
    let mut outcome = Ok(());
    while let Some(ended) = parts.join_next().await {
        let ended = ended.unwrap_or_else(|error| Err(Stopped(error.to_string())));
        if ended.is_err() {
            stop.cancel();
            outcome = outcome.and(ended);
        }
    }
    outcome
}

/// What all units share.
struct Shared {
    client: Client,
    settings: Settings,
    backends: Arc<dyn Backends>,
    metrics: Arc<Metrics>,
    units: Arc<Units>,
    leads: watch_channel::Receiver<bool>,
}

async fn unit(shared: Shared, namespace: Option<String>, stop: CancellationToken) -> Result<(), Stopped> {
    let (locks, lock_writer) = store();
    let (boundaries, boundary_writer) = store();
    let (lock_queue, lock_requests) = unbounded();
    let (boundary_queue, boundary_requests) = unbounded();
    let signs = Arc::new(Signs::new(Instant::now()));
    let unit = Arc::new(Unit::new(Parts {
        client: shared.client,
        namespace,
        settings: shared.settings,
        backends: shared.backends,
        metrics: shared.metrics,
        leads: shared.leads,
        signs,
        locks: locks.clone(),
        boundaries: boundaries.clone(),
        lock_queue: Queue(lock_queue),
        boundary_queue: Queue(boundary_queue),
    }));
    shared.units.add(&unit);
    let mut watches = JoinSet::new();
    watches.spawn(watch::locks(Arc::clone(&unit), lock_writer));
    watches.spawn(watch::boundaries(Arc::clone(&unit), boundary_writer));
    watches.spawn(watch::leases(Arc::clone(&unit)));
    watches.spawn(watch::pods(Arc::clone(&unit)));
    watches.spawn(watch::leadership(Arc::clone(&unit)));
    watches.spawn(undeclared::tell(Arc::clone(&unit)));
    let lock_passes = passes(
        &unit,
        locks,
        lock_requests,
        stop.clone(),
        |lock: Arc<Guarded<FencedLock>>, unit| Box::pin(reconcile::reconcile(lock, unit)),
        |lock, error, unit| reconcile::after_error(&lock, error, &unit),
    );
    let boundary_passes = passes(
        &unit,
        boundaries,
        boundary_requests,
        stop.clone(),
        |boundary: Arc<Guarded<WriteBoundary>>, unit| Box::pin(boundaries::reconcile(boundary, unit)),
        |boundary, error, unit| boundaries::after_error(&boundary, error, &unit),
    );
    // A watch never ends by itself: one that did has panicked, and nothing would be seen any more.
    let ended = tokio::select! {
        _ = future::join(lock_passes, boundary_passes) => None,
        ended = watches.join_next() => ended,
    };
    match ended {
        None | Some(Ok(())) if stop.is_cancelled() => Ok(()),
        Some(Err(error)) => Err(Stopped(error.to_string())),
        None | Some(Ok(())) => Err(Stopped("a watch or a queue".into())),
    }
}

/// Works off a queue until `stop`, then finishes what is under way.
async fn passes<K, F>(
    unit: &Arc<Unit>,
    objects: Store<K>,
    requests: impl Stream<Item = ReconcileRequest<K>>,
    stop: CancellationToken,
    pass: impl FnMut(Arc<K>, Arc<Unit>) -> F,
    after_error: impl Fn(Arc<K>, &Error, Arc<Unit>) -> Action,
) where
    K: Clone + Resource<DynamicType = ()> + Debug + 'static,
    F: TryFuture<Ok = Action, Error = Error> + Unpin,
{
    let queue = requests.take_until(stop.clone().cancelled_owned()).map(Ok::<_, Infallible>);
    let config = controller::Config::default().concurrency(unit.settings.concurrency.max(1));
    let work = applier(pass, after_error, Arc::clone(unit), objects.clone(), Box::pin(queue), config).for_each(|outcome| {
        // Failures were logged where they happened; an object that is gone before its turn is no failure.
        if let Err(error) = outcome {
            tracing::debug!(%error, "a pass ended early");
        }
        future::ready(())
    });
    // Without a first listing no pass ever began, and the applier would wait for it for ever.
    let nothing_began = async {
        stop.cancelled().await;
        if objects.wait_until_ready().now_or_never().is_none() {
            return;
        }
        tokio::time::sleep(unit.settings.reconcile_timeout).await;
    };
    tokio::select! {
        () = work => {}
        () = nothing_began => {}
    }
}
