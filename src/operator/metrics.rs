//! What the operator counts and measures, with bounded labels only: no name of an object is ever one. What can be counted from
//! the caches is counted when somebody asks (`admin`), not kept here.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::Registry,
};

use super::{error::Error, follow::Key, prove::Tally};
use crate::api::BoundaryType;

type Labels<const N: usize> = [(&'static str, &'static str); N];

/// Seconds, from a millisecond to a minute.
const BUCKETS: [f64; 12] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0];

fn histogram() -> Histogram {
    Histogram::new(BUCKETS)
}

/// Which kind a pass is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Lock,
    Boundary,
}

impl Kind {
    const fn label(self) -> (&'static str, &'static str) {
        (
            "kind",
            match self {
                Self::Lock => "FencedLock",
                Self::Boundary => "WriteBoundary",
            },
        )
    }
}

/// What the operator counts and measures.
#[derive(Debug)]
pub struct Metrics {
    reconciles: Family<Labels<1>, Counter>,
    reconcile_seconds: Family<Labels<1>, Histogram, fn() -> Histogram>,
    reconcile_errors: Family<Labels<2>, Counter>,
    transitions: Counter,
    renewal_failures: Counter,
    grant_latency: Histogram,
    activation_seconds: Histogram,
    rejected_writes: Family<[(&'static str, String); 1], Counter>,
    probes: Family<[(&'static str, String); 3], Counter>,
    watch_events: Family<Labels<1>, Gauge>,
    /// Reconciles by `namespace/name` of the lock. Grows with every name, so it is kept only where it is asked for.
    per_lock: Option<Mutex<HashMap<String, u64>>>,
}

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
            reconciles: Family::default(),
            reconcile_seconds: Family::new_with_constructor(histogram),
            reconcile_errors: Family::default(),
            transitions: Counter::default(),
            renewal_failures: Counter::default(),
            grant_latency: histogram(),
            activation_seconds: histogram(),
            rejected_writes: Family::default(),
            probes: Family::default(),
            watch_events: Family::default(),
            per_lock: None,
        };
        // A counter that is not there before its first event hides that event from increase().
        drop(metrics.rejected_writes.get_or_create(&[("type", BoundaryType::Postgres.to_string())]));
        for kind in [Kind::Lock, Kind::Boundary] {
            drop(metrics.reconciles.get_or_create(&[kind.label()]));
            drop(metrics.reconcile_seconds.get_or_create(&[kind.label()]));
            for category in Error::CATEGORIES {
                drop(metrics.reconcile_errors.get_or_create(&[kind.label(), ("category", category)]));
            }
        }
        metrics
    }
}

impl Metrics {
    /// Metrics that also tell the locks apart. For tests.
    pub fn per_lock() -> Self {
        Self { per_lock: Some(Mutex::default()), ..Self::default() }
    }

    /// Adds everything to a registry, whose prefix is `fencedlock`.
    pub(super) fn register(&self, registry: &mut Registry) {
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The version that runs, also when there is nothing to do", version);
        registry.register("reconciles", "Passes over an object that began", self.reconciles.clone());
        registry.register("reconcile_duration_seconds", "How long a pass took", self.reconcile_seconds.clone());
        registry.register("reconcile_errors", "Passes that failed, by the kind of failure", self.reconcile_errors.clone());
        registry.register("ownership_transitions", "Terms of ownership that began", self.transitions.clone());
        registry.register(
            "lease_renewal_failures",
            "Leases of declared locks that ran past their duration without a renewal, as this process saw it",
            self.renewal_failures.clone(),
        );
        registry.register("grant_latency_seconds", "From the pass that mints an epoch to its active grant", self.grant_latency.clone());
        registry.register(
            "activation_duration_seconds",
            "How long an activation of a write boundary took",
            self.activation_seconds.clone(),
        );
        registry.register(
            "rejected_writes",
            "Writes that a write boundary refused, or in mode Observe would have refused, as seen between two examinations; probes are not counted",
            self.rejected_writes.clone(),
        );
        registry.register("probes", "What came of the probes of examinations", self.probes.clone());
        registry.register(
            "watch_last_event_timestamp_seconds",
            "When a watch delivered something last, in seconds since 1970; a quiet cluster delivers nothing",
            self.watch_events.clone(),
        );
    }

    pub(super) fn pass_began(&self, kind: Kind, (namespace, name): &Key) {
        self.reconciles.get_or_create(&[kind.label()]).inc();
        if let (Kind::Lock, Some(per_lock)) = (kind, &self.per_lock) {
            *per_lock.lock().unwrap_or_else(PoisonError::into_inner).entry(format!("{namespace}/{name}")).or_default() += 1;
        }
    }

    pub(super) fn pass_ended(&self, kind: Kind, took: Duration) {
        self.reconcile_seconds.get_or_create(&[kind.label()]).observe(took.as_secs_f64());
    }

    pub(super) fn pass_failed(&self, kind: Kind, category: &'static str) {
        self.reconcile_errors.get_or_create(&[kind.label(), ("category", category)]).inc();
    }

    pub(super) fn term_began(&self) {
        self.transitions.inc();
    }

    pub(super) fn leases_lapsed(&self, count: u64) {
        self.renewal_failures.inc_by(count);
    }

    pub(super) fn granted(&self, took: Duration) {
        self.grant_latency.observe(took.as_secs_f64());
    }

    pub(super) fn activated(&self, took: Duration) {
        self.activation_seconds.observe(took.as_secs_f64());
    }

    pub(super) fn examined(&self, type_: BoundaryType, tally: &Tally) {
        if tally.refused > 0 {
            self.rejected_writes.get_or_create(&[("type", type_.to_string())]).inc_by(tally.refused);
        }
        for probe in &tally.probes {
            let labels = [("type", type_.to_string()), ("probe", probe.name.clone()), ("outcome", format!("{:?}", probe.outcome))];
            self.probes.get_or_create(&labels).inc();
        }
    }

    pub(super) fn watch_delivered(&self, resource: &'static str, unix_seconds: i64) {
        self.watch_events.get_or_create(&[("kind", resource)]).set(unix_seconds);
    }

    /// How often a lock was reconciled; 0 unless made by [`Metrics::per_lock`].
    pub fn reconciles_of(&self, namespace: &str, name: &str) -> u64 {
        let count = |per_lock: &Mutex<HashMap<String, u64>>| {
            per_lock.lock().unwrap_or_else(PoisonError::into_inner).get(&format!("{namespace}/{name}")).copied()
        };
        self.per_lock.as_ref().and_then(count).unwrap_or_default()
    }
}
