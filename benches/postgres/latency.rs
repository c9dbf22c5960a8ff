//! How long a new owner waits for its grant when one PostgreSQL boundary has to be activated first, and the least that it could be:
//! the Lease read and written, two status writes, a durable commit in the database between them, one delivery. And how long a revoked owner is still
//! admitted, as it sees it itself: it writes without a pause until the database refuses it.

use std::{pin::Pin, time::Instant};

use fencedlock::{
    api::{BoundaryVerdict, FencedLock, WriteBoundary},
    epoch::{claim, revoke::Revocation},
};
use futures::{Stream, StreamExt};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Namespace, Secret},
};
use kube::{
    Api, Client, Config,
    api::{Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};

use crate::{
    plane::Plane,
    program::{Program, Which},
    results::{
        Goal::{AtMost, None as NoGoal},
        Results, quantile,
    },
    support::{Db, connect, said},
    world::{is_granted, lease_spec},
};

const TAKEOVERS: i32 = 200;
const REVOCATIONS: i32 = 100;
const NAMESPACE: &str = "team";

type Deliveries = Pin<Box<dyn Stream<Item = Result<FencedLock, watcher::Error>> + Send>>;

struct Cluster {
    leases: Api<Lease>,
    locks: Api<FencedLock>,
    boundaries: Api<WriteBoundary>,
    delivered: Deliveries,
}

/// Measures both.
pub async fn measure(db: &Db, results: &mut Results) {
    let plane = Plane::start("bench-postgres");
    plane.install_crds();
    let file = Kubeconfig::read_from(&plane.kubeconfig).unwrap();
    let client = Client::try_from(Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap()).unwrap();
    let mut cluster = Cluster::declare(client, db).await;
    let operator = Program::start(Which::Operator, &plane);
    cluster.until(|lock| is_granted(lock, "w-0")).await;
    while cluster.boundaries.get("db").await.unwrap().status.is_none_or(|s| s.verdict != Some(BoundaryVerdict::Proven)) {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    let mut grants = Vec::new();
    for n in 1..=TAKEOVERS {
        let holder = format!("w-{n}");
        let began = Instant::now();
        cluster.take_over(&holder, n).await;
        cluster.until(|lock| is_granted(lock, &holder)).await;
        grants.push(began.elapsed().as_secs_f64() * 1e3);
    }
    let mut revocations = Vec::new();
    for n in 1..=REVOCATIONS {
        revocations.push(cluster.revocation(db, TAKEOVERS + n).await);
    }
    operator.stop();
    db.admin.batch_execute("create table floor (epoch bigint); insert into floor values (0)").await.unwrap();
    let mut floors = Vec::new();
    for n in 1..=TAKEOVERS {
        floors.push(cluster.floor(db, n).await);
    }
    results.add("grant_latency_pg_p50_ms", quantile(&mut grants, 0.5), "ms", NoGoal);
    results.add("grant_latency_pg_p99_ms", quantile(&mut grants, 0.99), "ms", NoGoal);
    results.add("grant_latency_pg_over_floor", quantile(&mut grants, 0.5) / quantile(&mut floors, 0.5), "ratio", AtMost(1.3));
    results.add("revocation_pg_p50_ms", quantile(&mut revocations, 0.5), "ms", NoGoal);
    results.add("revocation_pg_p99_ms", quantile(&mut revocations, 0.99), "ms", AtMost(1_000.0));
    results.add("revocation_over_grant_pg", quantile(&mut revocations, 0.5) / quantile(&mut grants, 0.5), "ratio", NoGoal);
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

impl Cluster {
    async fn declare(client: Client, db: &Db) -> Self {
        let new = PostParams::default();
        Api::<Namespace>::all(client.clone()).create(&new, &read(json!({"metadata": {"name": NAMESPACE}}))).await.unwrap();
        let secret = json!({"metadata": {"name": "s"}, "stringData": {"url": db.url(&db.operator)}});
        Api::<Secret>::namespaced(client.clone(), NAMESPACE).create(&new, &read(secret)).await.unwrap();
        let locks = Api::<FencedLock>::namespaced(client.clone(), NAMESPACE);
        let boundaries = Api::<WriteBoundary>::namespaced(client.clone(), NAMESPACE);
        let leases = Api::<Lease>::namespaced(client, NAMESPACE);
        let lock = json!({"apiVersion": "fencedlock.dev/v1alpha1", "kind": "FencedLock", "metadata": {"name": "a"}, "spec": {
            "class": "CorrectnessCritical", "purpose": "It is measured.", "coordinator": {"lease": {"name": "a"}}, "writeBoundaries": ["db"]}});
        locks.create(&new, &read(lock)).await.unwrap();
        let boundary = json!({"apiVersion": "fencedlock.dev/v1alpha1", "kind": "WriteBoundary", "metadata": {"name": "db"}, "spec": {
            "lockRef": {"name": "a"}, "type": "Postgres", "mode": "Enforce", "postgres": db.spec()}});
        boundaries.create(&new, &read(boundary)).await.unwrap();
        let metadata = read(json!({"name": "a"}));
        leases.create(&new, &Lease { metadata, spec: Some(lease_spec("w-0", 0)) }).await.unwrap();
        let delivered = watcher(locks.clone(), watcher::Config::default()).touched_objects().boxed();
        Self { leases, locks, boundaries, delivered }
    }

    async fn take_over(&self, holder: &str, transitions: i32) {
        let mut lease = self.leases.get("a").await.unwrap();
        lease.spec = Some(lease_spec(holder, transitions));
        self.leases.replace("a", &PostParams::default(), &lease).await.unwrap();
    }

    async fn until(&mut self, wanted: impl Fn(&FencedLock) -> bool) {
        loop {
            let event = tokio::time::timeout(std::time::Duration::from_mins(1), self.delivered.next()).await.expect("it is delivered");
            if event.unwrap().is_ok_and(|lock| wanted(&lock)) {
                return;
            }
        }
    }

    /// From before the request is written until a write of the owner is refused, which goes on renewing nothing and asks nobody.
    async fn revocation(&mut self, db: &Db, n: i32) -> f64 {
        let holder = format!("w-{n}");
        self.take_over(&holder, n).await;
        self.until(|lock| is_granted(lock, &holder)).await;
        let grant = self.locks.get("a").await.unwrap().status.unwrap().grant.unwrap();
        let owner = connect(&db.url(&db.writer)).await;
        let claim = claim::claim(NAMESPACE, "a", grant.epoch, &grant.holder);
        owner.batch_execute(&format!("set fencedlock.claim = '{claim}'")).await.unwrap();
        assert_eq!(said(&owner, "update t set v = v").await, "ok");
        let patch = json!({"spec": {"revoke": Revocation::of(&grant, "it is measured")}});
        let (locks, began) = (self.locks.clone(), Instant::now());
        let asked = tokio::spawn(async move { locks.patch("a", &PatchParams::default(), &Patch::Merge(patch)).await });
        let refused = loop {
            match said(&owner, "update t set v = v").await.as_str() {
                "ok" => {}
                refused => break refused.to_owned(),
            }
        };
        let took = began.elapsed().as_secs_f64() * 1e3;
        assert_eq!(refused, "FL002");
        asked.await.unwrap().unwrap();
        took
    }

    /// Measured without an operator, which would overwrite the statuses.
    async fn floor(&mut self, db: &Db, n: i32) -> f64 {
        let mut lock = self.locks.get("a").await.unwrap();
        let began = Instant::now();
        self.take_over("floor", TAKEOVERS + n).await;
        let (one, two) = (format!("One{n}"), format!("Two{n}"));
        lock.status.as_mut().unwrap().reason = Some(one);
        lock = self.locks.replace_status("a", &PostParams::default(), &lock).await.unwrap();
        db.admin.execute("update floor set epoch = epoch + 1", &[]).await.unwrap();
        lock.status.as_mut().unwrap().reason = Some(two.clone());
        self.locks.replace_status("a", &PostParams::default(), &lock).await.unwrap();
        self.until(|lock| lock.status.as_ref().and_then(|status| status.reason.as_deref()) == Some(&*two)).await;
        began.elapsed().as_secs_f64() * 1e3
    }
}
