//! Thousands of FencedLocks and their Leases on a real API server: memory, start, renewals, latencies. Run by `make bench`; writes
//! `bench/results/latest.json`. The operator is the release program as users run it, in a process of its own; the API server shares the
//! machine with it, so absolute figures are this machine's.
//!
//! FENCEDLOCK_BENCH_LOCKS=1000 makes it smaller.

#![allow(missing_docs, unreachable_pub, clippy::pedantic, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "bench code")]
#![allow(dead_code, reason = "the tests' support has more than is needed here")]

#[path = "../tests/cluster/support/plane.rs"]
mod plane;

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use fencedlock::{api::FencedLock, epoch::grant::GrantState};
use futures::{StreamExt, stream};
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, Client, Config,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};

use plane::Plane;

const PARALLEL: usize = 32;
const COMMAND: &str = "make bench";

/// Everything that was measured, in the order of measuring.
#[derive(Default)]
struct Results(Vec<Value>);

impl Results {
    fn add(&mut self, name: &str, value: f64, unit: &str, goal: Option<(&str, f64)>) {
        let met = goal.map(|(relation, bound)| if relation == "<=" { value <= bound } else { value >= bound });
        let goal = goal.map_or_else(|| "none".to_owned(), |(relation, bound)| format!("{relation} {bound}"));
        let value = (value * 1000.0).round() / 1000.0;
        println!("{name:<28} {value:>12} {unit:<12} goal {goal}{}", if met == Some(false) { "  MISSED" } else { "" });
        self.0.push(json!({"name": name, "value": value, "unit": unit, "goal": goal, "met": met, "command": COMMAND}));
    }
}

/// The operator in a process of its own.
struct Operator {
    child: Child,
    port: u16,
    started: Instant,
}

impl Operator {
    fn start(plane: &Plane) -> Self {
        // Free a moment ago; nobody else binds ports here.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let log = fs::File::create(Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-operator.log")).unwrap();
        let started = Instant::now();
        let child = Command::new(env!("CARGO_BIN_EXE_fencedlock"))
            .args(["operator", "--listen", &format!("127.0.0.1:{port}")])
            .env("KUBECONFIG", &plane.kubeconfig)
            .env("RUST_LOG", "warn")
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { child, port, started }
    }

    fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes()).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        text.starts_with("HTTP/1.1 200").then_some(text)
    }

    /// The sum of a metric's samples whose line contains all of `labels`.
    fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let text = self.get("/metrics").unwrap_or_default();
        let lines = text.lines().filter(|l| l.starts_with(name) && labels.iter().all(|label| l.contains(label)));
        lines.filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    async fn until(&self, what: &str, wanted: impl Fn(&Self) -> bool) -> Duration {
        let began = Instant::now();
        while !wanted(self) {
            assert!(began.elapsed() < Duration::from_mins(8), "waited for {what}; {}", self.get("/metrics").unwrap_or_default());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.started.elapsed()
    }

    /// Waits until nothing is reconciled for a second.
    async fn quiet(&self) {
        let mut last = -1.0;
        loop {
            let now = self.metric("fencedlock_reconciles_total", &[]);
            if now == last {
                return;
            }
            last = now;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// A line of /proc/PID/status, in MiB.
    fn memory(&self, field: &str) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|l| l.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
    }

    /// CPU time used so far, user and system.
    fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        // USER_HZ is 100 on every Linux that Rust runs on.
        Duration::from_millis(ticks * 10)
    }

    fn stop(mut self) {
        Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn name(n: usize) -> String {
    format!("lock-{n:05}")
}

fn lease_spec(holder: &str, transitions: i32) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(holder.into()),
        lease_duration_seconds: Some(3_600),
        lease_transitions: Some(transitions),
        acquire_time: Some(MicroTime(Timestamp::now())),
        renew_time: Some(MicroTime(Timestamp::now())),
        ..LeaseSpec::default()
    }
}

async fn in_parallel<F: Future<Output = ()>>(count: usize, work: impl Fn(usize) -> F) {
    stream::iter(0..count).map(work).buffer_unordered(PARALLEL).collect::<Vec<()>>().await;
}

fn quantile(values: &mut [f64], q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * q).round() as usize]
}

/// How many writes of ours and of reservations the API server has answered.
fn writes(plane: &Plane) -> usize {
    let log = fs::read_to_string(&plane.audit_log).unwrap();
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let wrote = |e: &Value| ["create", "update", "patch", "delete"].contains(&e["verb"].as_str().unwrap_or_default());
    let ours = |e: &Value| e["objectRef"]["apiGroup"] == "fencedlock.dev" || e["objectRef"]["resource"] == "configmaps";
    events.filter(|e| wrote(e) && ours(e) && e["stage"] == "ResponseComplete").count()
}

#[tokio::main]
async fn main() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    // `cargo bench` passes --bench; nothing else is understood.
    let count: usize = std::env::var("FENCEDLOCK_BENCH_LOCKS").map_or(10_000, |n| n.parse().unwrap());
    let plane = Plane::start("bench");
    plane.install_crds();
    let file = Kubeconfig::read_from(&plane.kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
    let client = Client::try_from(config).unwrap();
    let locks = Api::<FencedLock>::namespaced(client.clone(), "default");
    let leases = Api::<Lease>::namespaced(client.clone(), "default");
    let mut results = Results::default();

    println!("creating {count} locks and Leases");
    in_parallel(count, |n| {
        let (locks, leases) = (locks.clone(), leases.clone());
        async move {
            let name = name(n);
            let lock = json!({"apiVersion": "fencedlock.dev/v1alpha1", "kind": "FencedLock", "metadata": {"name": name}, "spec": {
                "class": if n % 4 == 0 { "EfficiencyOnly" } else { "CorrectnessCritical" }, "purpose": "Two owners would corrupt what it protects.",
                "coordinator": {"lease": {"name": name}}}});
            locks.create(&PostParams::default(), &serde_json::from_value(lock).unwrap()).await.unwrap();
            let metadata = ObjectMeta { name: Some(name), ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(lease_spec("holder-a", 0)) };
            leases.create(&PostParams::default(), &lease).await.unwrap();
        }
    })
    .await;

    // The first start: every lock gets its epoch and its status.
    let operator = Operator::start(&plane);
    let all = count as f64;
    let evaluated = |o: &Operator| o.metric("fencedlock_locks{", &[]) - o.metric("fencedlock_locks{", &["verdict=\"None\""]) >= all;
    let took = operator.until("every lock to be evaluated", evaluated).await;
    results.add("status_changes_per_s", all / took.as_secs_f64(), "1/s", Some((">=", 50.0)));
    operator.quiet().await;
    operator.stop();

    // The next start: nothing has changed, so everything is looked at and nothing is written.
    let before = writes(&plane);
    let operator = Operator::start(&plane);
    let ready = operator.until("readiness", |o| o.get("/readyz").is_some()).await;
    let done = operator
        .until("every lock to be looked at", |o| o.metric("fencedlock_reconcile_duration_seconds_count", &["FencedLock"]) >= all)
        .await;
    results.add("locks_10k_cold_start_s", done.as_secs_f64(), "s", Some(("<=", 10.0)));
    results.add("resync_10k_s", (done - ready).as_secs_f64(), "s", Some(("<=", 5.0)));
    operator.quiet().await;
    results.add("resync_10k_api_writes", (writes(&plane) - before) as f64, "writes", Some(("<=", 0.0)));
    results.add("locks_10k_rss_mib", operator.memory("VmRSS"), "MiB", Some(("<=", 64.0)));
    results.add("locks_10k_peak_rss_mib", operator.memory("VmHWM"), "MiB", None);

    // Renewals, as fast as this API server takes them.
    let (renewed, seconds) = (20_000, Instant::now());
    let (cpu, reconciles) = (operator.cpu(), operator.metric("fencedlock_reconciles_total", &[]));
    in_parallel(renewed, |n| {
        let leases = leases.clone();
        async move {
            let now = json!({"spec": {"renewTime": MicroTime(Timestamp::now())}});
            leases.patch(&name(n % count), &PatchParams::default(), &Patch::Merge(now)).await.unwrap();
        }
    })
    .await;
    let seconds = seconds.elapsed().as_secs_f64();
    operator.quiet().await;
    let used = (operator.cpu() - cpu).as_secs_f64();
    results.add("renewal_cpu_us", used * 1e6 / renewed as f64, "us", Some(("<=", 30.0)));
    results.add("renewals_per_s", renewed as f64 / seconds, "1/s", None);
    results.add("renewal_reconciles", operator.metric("fencedlock_reconciles_total", &[]) - reconciles, "reconciles", Some(("<=", 0.0)));

    let mut latencies = Latencies::watch(&locks).await;
    let mut edits = Vec::new();
    for n in 0..200 {
        let patch = json!({"spec": {"purpose": format!("Edited for the {n}th time.")}});
        let began = Instant::now();
        let edited = locks.patch(&name(n), &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        let generation = edited.metadata.generation;
        latencies.until(&name(n), |l| l.status.as_ref().is_some_and(|s| s.observed_generation == generation)).await;
        edits.push(began.elapsed().as_secs_f64() * 1e3);
    }
    results.add("edit_to_condition_p99_ms", quantile(&mut edits, 0.99), "ms", Some(("<=", 1000.0)));

    // A takeover until its grant is active, beside what nobody could do faster: a write of the Lease, the event, two status writes.
    let (mut grants, mut floors) = (Vec::new(), Vec::new());
    let taken_over = |n: usize| name(2_000 % (count - 200) + n);
    for n in 0..200 {
        let lock = taken_over(n);
        let mut lease = leases.get(&lock).await.unwrap();
        lease.spec = Some(lease_spec("holder-b", 1));
        let began = Instant::now();
        leases.replace(&lock, &PostParams::default(), &lease).await.unwrap();
        let is_granted = |l: &FencedLock| {
            let grant = l.status.as_ref().and_then(|s| s.grant.as_ref());
            grant.is_some_and(|g| g.holder.as_str() == "holder-b" && g.state == GrantState::Active)
        };
        latencies.until(&lock, is_granted).await;
        grants.push(began.elapsed().as_secs_f64() * 1e3);
    }
    operator.stop();
    for n in 0..200 {
        floors.push(floor(&locks, &leases, &mut latencies, &taken_over(n)).await * 1e3);
    }
    let ratio = quantile(&mut grants, 0.5) / quantile(&mut floors, 0.5);
    results.add("grant_latency_p50_ms", quantile(&mut grants, 0.5), "ms", None);
    results.add("grant_latency_p99_ms", quantile(&mut grants, 0.99), "ms", None);
    results.add("grant_latency_over_floor", ratio, "ratio", Some(("<=", 1.3)));

    if count == 10_000 {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap();
        let model = cpuinfo.lines().find(|l| l.starts_with("model name")).and_then(|l| l.split(": ").nth(1)).unwrap_or("unknown");
        let cores = cpuinfo.lines().filter(|l| l.starts_with("processor")).count();
        let machine = format!("{cores} cores of {model}, shared with etcd and kube-apiserver");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/results/latest.json");
        let text = serde_json::to_string_pretty(&json!({"machine": machine, "results": results.0})).unwrap();
        fs::write(path, text + "\n").unwrap();
    }
}

/// What the fastest operator would need: the Lease is written, two statuses are, and the second one is delivered. Measured without
/// an operator, which would overwrite them.
async fn floor(locks: &Api<FencedLock>, leases: &Api<Lease>, latencies: &mut Latencies, name: &str) -> f64 {
    let mut lease = leases.get(name).await.unwrap();
    lease.spec = Some(lease_spec("holder-c", 2));
    let mut lock = locks.get(name).await.unwrap();
    let began = Instant::now();
    leases.replace(name, &PostParams::default(), &lease).await.unwrap();
    for word in ["One", "Two"] {
        lock.status.as_mut().unwrap().reason = Some(word.into());
        lock = locks.replace_status(name, &PostParams::default(), &lock).await.unwrap();
    }
    latencies.until(name, |l| l.status.as_ref().and_then(|s| s.reason.as_deref()) == Some("Two")).await;
    began.elapsed().as_secs_f64()
}

/// The newest state of every lock, from a watch.
struct Latencies {
    events: std::pin::Pin<Box<dyn futures::Stream<Item = Result<FencedLock, watcher::Error>> + Send>>,
    newest: BTreeMap<String, FencedLock>,
}

impl Latencies {
    async fn watch(locks: &Api<FencedLock>) -> Self {
        let events = watcher(locks.clone(), watcher::Config::default()).touched_objects();
        Self { events: Box::pin(events), newest: BTreeMap::new() }
    }

    async fn until(&mut self, name: &str, wanted: impl Fn(&FencedLock) -> bool) -> FencedLock {
        loop {
            if let Some(lock) = self.newest.get(name).filter(|lock| wanted(lock)) {
                return lock.clone();
            }
            let event = tokio::time::timeout(Duration::from_mins(1), self.events.next());
            if let Some(Ok(lock)) = event.await.unwrap_or_else(|_| panic!("{name} does not get there: {:#?}", self.newest.get(name))) {
                self.newest.insert(lock.metadata.name.clone().unwrap(), lock);
            }
        }
    }
}
