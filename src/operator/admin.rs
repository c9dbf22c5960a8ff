//! What the operator serves: `/livez` and `/readyz` for the kubelet, `/metrics` for Prometheus. Nothing here changes anything.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::TcpListener,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Instant,
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse,
    routing::get,
};
use k8s_openapi::jiff::Timestamp;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, text::encode},
    metrics::{MetricType, gauge::ConstGauge},
    registry::Registry,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    metrics::Metrics,
    orphans,
    unit::{Unit, WatchState},
};
use crate::audit::boundary as judging;

/// The units that run, for whoever asks how they fare.
#[derive(Debug)]
pub(super) struct Units {
    /// How many there will be.
    expected: usize,
    running: Mutex<Vec<Weak<Unit>>>,
}

impl Units {
    pub(super) fn new(expected: usize) -> Self {
        Self { expected, running: Mutex::default() }
    }

    pub(super) fn add(&self, unit: &Arc<Unit>) {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(unit));
    }

    fn all(&self) -> Vec<Arc<Unit>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect()
    }

    /// The watches that are dead, as sentences.
    fn dead(&self) -> Vec<String> {
        let now = Instant::now();
        let of = |unit: Arc<Unit>| {
            let limit = unit.settings.watch_timeout + unit.settings.watch_grace;
            let dead = unit.signs.dead(now, limit).into_iter();
            dead.map(|(kind, silence)| format!("the watch of {kind}{} gave no sign for {} s", scope(&unit), silence.as_secs()))
                .collect::<Vec<_>>()
        };
        self.all().into_iter().flat_map(of).collect()
    }

    /// What the units still wait for before they can say anything, as sentences.
    fn starting(&self) -> Vec<String> {
        let of = |unit: Arc<Unit>| {
            let watches =
                [("fencedlocks", &unit.watches.locks), ("writeboundaries", &unit.watches.boundaries), ("leases", &unit.watches.leases)];
            let starting = watches.iter().filter(|(_, state)| *state.borrow() == WatchState::Starting);
            starting.map(|(kind, _)| format!("the first listing of {kind}{} is under way", scope(&unit))).collect::<Vec<_>>()
        };
        let all = self.all();
        let missing = (all.len() < self.expected).then(|| "the operator starts".to_owned());
        missing.into_iter().chain(all.into_iter().flat_map(of)).collect()
    }
}

fn scope(unit: &Unit) -> String {
    unit.namespace.as_ref().map_or_else(String::new, |namespace| format!(" in namespace {namespace:?}"))
}

/// Counts locks and boundaries from the caches whenever somebody asks.
#[derive(Debug)]
struct Counts {
    units: Arc<Units>,
    metrics: Arc<Metrics>,
    leads: watch::Receiver<bool>,
}

type Count = BTreeMap<[(&'static str, String); 2], i64>;

fn family(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, count: Count) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, number) in count {
        ConstGauge::new(number).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

impl Collector for Counts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (mut locks, mut boundaries, mut accepted) = (Count::new(), Count::new(), Count::new());
        for unit in self.units.all() {
            self.metrics.leases_lapsed(unit.leases.lapsed(Instant::now()));
            for lock in unit.locks.state() {
                let lock = lock.0.as_ref().ok();
                let class = lock.map_or_else(|| "Malformed".into(), |l| format!("{:?}", l.spec.class));
                let verdict = lock.map_or_else(|| "Invalid".into(), |l| label(l.status.as_ref().and_then(|s| s.verdict)));
                *locks.entry([("class", class), ("verdict", verdict)]).or_default() += 1;
            }
            for boundary in unit.boundaries.state() {
                let boundary = boundary.0.as_ref().ok();
                if let Some((type_, risk)) = boundary.and_then(|b| Some((b.spec.type_, b.spec.risk_acceptance.as_ref()?))) {
                    let (term, _) = judging::term(risk, Timestamp::now(), judging::SOON);
                    *accepted.entry([("type", type_.to_string()), ("term", format!("{term:?}"))]).or_default() += 1;
                }
                let type_ = boundary.map_or_else(|| "Malformed".into(), |b| b.spec.type_.to_string());
                let verdict = boundary.map_or_else(|| "Invalid".into(), |b| label(b.status.as_ref().and_then(|s| s.verdict)));
                *boundaries.entry([("type", type_), ("verdict", verdict)]).or_default() += 1;
            }
        }
        let help = "When the API server last answered a watch well, in seconds since 1970; of several namespaces, the longest ago";
        let mut answered = encoder.encode_descriptor("watch_last_answer_timestamp_seconds", help, None, MetricType::Gauge)?;
        let mut oldest = BTreeMap::new();
        for (kind, at) in self.units.all().into_iter().flat_map(|unit| unit.signs.answered()) {
            let oldest = oldest.entry(kind).or_insert(at);
            *oldest = at.min(*oldest);
        }
        for (kind, at) in oldest {
            ConstGauge::new(at).encode(answered.encode_family(&[("kind", kind)])?)?;
        }
        let help = "1 in the replica that works; the others stand by";
        let leader = encoder.encode_descriptor("leader", help, None, MetricType::Gauge)?;
        ConstGauge::new(i64::from(*self.leads.borrow())).encode(leader)?;
        let undeclared = |unit: Arc<Unit>| unit.undeclared.count(Timestamp::now(), |lease| unit.locks_by_lease.has(lease));
        let undeclared: usize = self.units.all().into_iter().map(undeclared).sum();
        let help = "Leases that are somebody's lock, that no FencedLock declares and that nobody answers for; heartbeats and identities are not counted";
        let leases = encoder.encode_descriptor("unclassified_leases", help, None, MetricType::Gauge)?;
        ConstGauge::new(i64::try_from(undeclared).unwrap_or(i64::MAX)).encode(leases)?;
        let mut open = BTreeMap::<&str, u64>::new();
        for (reason, number) in self.units.all().iter().flat_map(|unit| unit.ledgers.open()) {
            let sum = open.entry(reason).or_default();
            *sum = sum.saturating_add(number);
        }
        let help = "Operations in the ledgers of external receivers that somebody has to look at: of unknown outcome for longer than declared, or work \
                    items that were sent more than once; and ledgers that cannot be read";
        let mut unreconciled = encoder.encode_descriptor("operations_unreconciled", help, None, MetricType::Gauge)?;
        for (reason, number) in open {
            ConstGauge::new(i64::try_from(number).unwrap_or(i64::MAX)).encode(unreconciled.encode_family(&[("reason", reason)])?)?;
        }
        let orphans: BTreeSet<String> = self.units.all().iter().flat_map(|unit| orphans::all(unit)).collect();
        let help = "Guards in databases whose WriteBoundary is not there any more, as another boundary of the same database sees them";
        let guards = encoder.encode_descriptor("orphaned_guards", help, None, MetricType::Gauge)?;
        ConstGauge::new(i64::try_from(orphans.len()).unwrap_or(i64::MAX)).encode(guards)?;
        family(&mut encoder, "locks", "FencedLocks by their class and verdict", locks)?;
        let help = "Risk acceptances of WriteBoundaries by the boundary's type and by how far they are from their end; soon is 30 days";
        family(&mut encoder, "risk_acceptances", help, accepted)?;
        family(&mut encoder, "boundaries", "WriteBoundaries by their type and verdict", boundaries)
    }
}

fn label(verdict: Option<impl fmt::Debug>) -> String {
    verdict.map_or_else(|| "None".into(), |v| format!("{v:?}"))
}

#[derive(Clone, Debug)]
struct Shared {
    units: Arc<Units>,
    registry: Arc<Registry>,
}

/// Serves until `stop`.
pub(super) async fn serve(
    listener: TcpListener,
    units: Arc<Units>,
    metrics: Arc<Metrics>,
    leads: watch::Receiver<bool>,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let mut registry = Registry::with_prefix("fencedlock");
    metrics.register(&mut registry);
    registry.register_collector(Box::new(Counts { units: Arc::clone(&units), metrics, leads }));
    let app = Router::new()
        .route("/livez", get(|State(shared): State<Shared>| async move { health(&shared.units.dead()) }))
        .route("/readyz", get(|State(shared): State<Shared>| async move { health(&shared.units.starting()) }))
        .route("/metrics", get(scrape))
        .with_state(Shared { units, registry: Arc::new(registry) });
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    axum::serve(listener, app).with_graceful_shutdown(stop.cancelled_owned()).await
}

fn health(wrong: &[String]) -> (StatusCode, String) {
    if wrong.is_empty() { (StatusCode::OK, "ok\n".into()) } else { (StatusCode::SERVICE_UNAVAILABLE, wrong.join("\n") + "\n") }
}

async fn scrape(State(shared): State<Shared>) -> impl IntoResponse {
    let mut text = String::new();
    match encode(&mut text, &shared.registry) {
        Ok(()) => (StatusCode::OK, [(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, [(CONTENT_TYPE, "text/plain")], error.to_string()),
    }
}
