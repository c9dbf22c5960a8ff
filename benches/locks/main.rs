//! Thousands of FencedLocks with their Leases and boundaries on a real API server: memory, start, renewals, latencies, and the same
//! beside a Go peer (`bench/peer`). Run by `make bench`; writes `bench/results/latest.json`. The API server shares the machine with
//! what is measured, so absolute figures are this machine's.
//!
//! FENCEDLOCK_BENCH_LOCKS=1000 makes it smaller, and then nothing is written.

#![allow(missing_docs, unreachable_pub, clippy::pedantic, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "bench code")]
#![allow(dead_code, reason = "the tests' support has more than is needed here")]

mod memory;
#[path = "../../tests/cluster/support/plane.rs"]
mod plane;
mod program;
mod results;
mod world;

use std::time::Instant;

use kube::{
    Client, Config,
    api::{Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;

use plane::Plane;
use program::{Program, Which};
use results::{
    Goal::{self, AtLeast, AtMost},
    Results, quantile,
};
use world::{Newest, World, is_granted, lease_spec, name, writes};

/// What the goals are for.
const FULL: usize = 10_000;
const RENEWALS: usize = 20_000;
const EDITS: usize = 200;

#[tokio::main]
async fn main() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    // `cargo bench` passes --bench; nothing else is understood.
    let count: usize = std::env::var("FENCEDLOCK_BENCH_LOCKS").map_or(FULL, |n| n.parse().unwrap());
    let plane = Plane::start("bench");
    plane.install_crds();
    let file = Kubeconfig::read_from(&plane.kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
    println!("creating {count} locks with their Leases and boundaries");
    let world = World::create(Client::try_from(config).unwrap(), count).await;
    let (mut results, mut newest) = (Results::default(), Newest::watch(&world));

    first_start(&plane, &world, &mut results).await;
    let operator = start_again(&plane, &world, &mut results).await;
    let ours = work(&operator, &world, &mut newest, "holder-b", 1).await;
    results.add("renewal_cpu_us", ours.renewals * 1e6 / RENEWALS as f64, "us", AtMost(30.0));
    results.add("renewals_per_s", ours.renewals_per_s, "1/s", Goal::None);
    results.add("renewal_reconciles", ours.renewal_reconciles, "reconciles", AtMost(0.0));
    edits(&world, &mut newest, &mut results).await;
    operator.stop();
    let bystanders = with_bystanders(&plane, &world).await;
    results.add("rss_with_bystanders_over_without", bystanders / ours.rss, "ratio", AtMost(1.05));
    let mut floors = Vec::new();
    for n in 0..EDITS {
        floors.push(floor(&world, &mut newest, n).await);
    }
    let mut grants = ours.grants.clone();
    results.add("grant_latency_p50_ms", quantile(&mut grants, 0.5), "ms", Goal::None);
    results.add("grant_latency_p99_ms", quantile(&mut grants, 0.99), "ms", Goal::None);
    results.add("grant_latency_over_floor", quantile(&mut grants, 0.5) / quantile(&mut floors, 0.5), "ratio", AtMost(1.3));

    // The peer's first start writes its own words into every status; what is compared is the work after that.
    let peer = Program::start(Which::Peer, &plane);
    peer.until("every lock to be reconciled", |p| p.reconciles() >= count as f64).await;
    peer.quiet().await;
    peer.stop();
    let peer = Program::start(Which::Peer, &plane);
    peer.until("every lock to be reconciled", |p| p.reconciles() >= count as f64).await;
    peer.quiet().await;
    let mut theirs = work(&peer, &world, &mut newest, "holder-d", 3).await;
    peer.stop();
    results.add("peer_rss_mib", theirs.rss, "MiB", Goal::None);
    results.add("peer_grant_latency_p50_ms", quantile(&mut theirs.grants, 0.5), "ms", Goal::None);
    results.add("rss_over_go_peer", ours.rss / theirs.rss, "ratio", AtMost(0.25));
    results.add("cpu_over_go_peer", ours.cpu / theirs.cpu, "ratio", AtMost(0.5));
    if count == FULL {
        results.write();
    }
}

/// Every lock gets its epoch and its first status.
async fn first_start(plane: &Plane, world: &World, results: &mut Results) {
    let all = world.count as f64;
    let operator = Program::start(Which::Operator, plane);
    let evaluated = |o: &Program| o.metric("fencedlock_locks{", &[]) - o.metric("fencedlock_locks{", &["verdict=\"None\""]) >= all;
    let took = operator.until("every lock to be evaluated", evaluated).await;
    results.add("status_changes_per_s", all / took.as_secs_f64(), "1/s", AtLeast(50.0));
    operator.quiet().await;
    operator.stop();
}

/// Nothing has changed, so everything is looked at and nothing is written.
async fn start_again(plane: &Plane, world: &World, results: &mut Results) -> Program {
    let all = world.count as f64;
    let before = writes(plane);
    let operator = Program::start(Which::Operator, plane);
    let ready = operator.until("readiness", |o| o.get("/readyz").is_some()).await;
    let passes = |o: &Program| o.metric("fencedlock_reconcile_duration_seconds_count", &["FencedLock"]);
    let done = operator.until("every lock to be looked at", |o| passes(o) >= all).await;
    results.add("locks_10k_cold_start_s", done.as_secs_f64(), "s", AtMost(10.0));
    results.add("resync_10k_s", (done - ready).as_secs_f64(), "s", AtMost(5.0));
    operator.quiet().await;
    results.add("resync_10k_api_writes", (writes(plane) - before) as f64, "writes", AtMost(0.0));
    results.add("locks_10k_rss_mib", operator.memory("VmRSS"), "MiB", AtMost(64.0));
    results.add("locks_10k_peak_rss_mib", operator.memory("VmHWM"), "MiB", AtMost(128.0));
    operator
}

/// The memory of an operator in a cluster with 5,000 nodes and 5,000 Secrets, in MiB.
async fn with_bystanders(plane: &Plane, world: &World) -> f64 {
    world.add_bystanders(5_000).await;
    let operator = Program::start(Which::Operator, plane);
    operator.until("every lock to be looked at", |o| o.reconciles() >= world.count as f64).await;
    operator.quiet().await;
    let rss = operator.memory("VmRSS");
    operator.stop();
    rss
}

/// What both programs do after they have started again.
struct Work {
    rss: f64,
    /// Seconds of CPU since the program started, for the start, the renewals and the takeovers.
    cpu: f64,
    /// Seconds of CPU for the renewals.
    renewals: f64,
    renewals_per_s: f64,
    renewal_reconciles: f64,
    /// Milliseconds from the write of the Lease to the delivery of the active grant.
    grants: Vec<f64>,
}

async fn work(program: &Program, world: &World, newest: &mut Newest, holder: &str, transitions: i32) -> Work {
    let rss = program.memory("VmRSS");
    let (cpu, reconciles, began) = (program.cpu(), program.reconciles(), Instant::now());
    world.renew(RENEWALS).await;
    let renewals_per_s = RENEWALS as f64 / began.elapsed().as_secs_f64();
    program.quiet().await;
    let (renewals, renewal_reconciles) = (program.cpu() - cpu, program.reconciles() - reconciles);
    let mut grants = Vec::new();
    for n in 0..EDITS {
        let began = Instant::now();
        world.take_over(n, holder, transitions).await;
        newest.until(&name(n), |lock| is_granted(lock, holder)).await;
        grants.push(began.elapsed().as_secs_f64() * 1e3);
    }
    program.quiet().await;
    Work { rss, cpu: program.cpu(), renewals, renewals_per_s, renewal_reconciles, grants }
}

async fn edits(world: &World, newest: &mut Newest, results: &mut Results) {
    let mut edits = Vec::new();
    for n in 0..EDITS {
        let patch = json!({"spec": {"purpose": format!("Edited for the {n}th time.")}});
        let began = Instant::now();
        let edited = world.locks(n).patch(&name(n), &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        let generation = edited.metadata.generation;
        newest.until(&name(n), |l| l.status.as_ref().is_some_and(|s| s.observed_generation == generation)).await;
        edits.push(began.elapsed().as_secs_f64() * 1e3);
    }
    results.add("edit_to_condition_p99_ms", quantile(&mut edits, 0.99), "ms", AtMost(1000.0));
}

/// What nobody could do faster: the Lease is read and written, two statuses are written, and the second one is delivered. Measured
/// without an operator, which would overwrite them.
async fn floor(world: &World, newest: &mut Newest, n: usize) -> f64 {
    let mut lock = world.locks(n).get(&name(n)).await.unwrap();
    let began = Instant::now();
    let mut lease = world.leases(n).get(&name(n)).await.unwrap();
    lease.spec = Some(lease_spec("holder-c", 2));
    world.leases(n).replace(&name(n), &PostParams::default(), &lease).await.unwrap();
    for word in ["One", "Two"] {
        lock.status.as_mut().unwrap().reason = Some(word.into());
        lock = world.locks(n).replace_status(&name(n), &PostParams::default(), &lock).await.unwrap();
    }
    newest.until(&name(n), |l| l.status.as_ref().and_then(|s| s.reason.as_deref()) == Some("Two")).await;
    began.elapsed().as_secs_f64() * 1e3
}
