//! The cluster that is measured in: FencedLocks with a Lease and a boundary each, spread over namespaces, and what happens to them.

use std::{collections::BTreeMap, fs, pin::Pin, time::Duration};

use fencedlock::{
    api::{FencedLock, WriteBoundary},
    epoch::grant::GrantState,
};
use futures::{Stream, StreamExt, stream};
use k8s_openapi::{
    api::{
        coordination::v1::{Lease, LeaseSpec},
        core::v1::{Namespace, Secret},
    },
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};

use crate::plane::Plane;

const PARALLEL: usize = 32;
const PER_NAMESPACE: usize = 200;
const NODE_LEASES: &str = "kube-node-lease";

/// A number of locks, each with its Lease and its boundary.
#[derive(Clone)]
pub struct World {
    client: Client,
    pub count: usize,
}

pub fn name(n: usize) -> String {
    format!("lock-{n:05}")
}

fn namespace(n: usize) -> String {
    format!("team-{:03}", n / PER_NAMESPACE)
}

pub fn lease_spec(holder: &str, transitions: i32) -> LeaseSpec {
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

impl World {
    pub async fn create(client: Client, count: usize) -> Self {
        let world = Self { client, count };
        let namespaces = Api::<Namespace>::all(world.client.clone());
        for n in (0..count).step_by(PER_NAMESPACE) {
            let namespace = serde_json::from_value(json!({"metadata": {"name": namespace(n)}})).unwrap();
            namespaces.create(&PostParams::default(), &namespace).await.unwrap();
        }
        in_parallel(count, |n| world.create_one(n)).await;
        world
    }

    async fn create_one(&self, n: usize) {
        let name = name(n);
        let lock = json!({"apiVersion": "fencedlock.dev/v1alpha1", "kind": "FencedLock", "metadata": {"name": name}, "spec": {
            "class": if n.is_multiple_of(4) { "EfficiencyOnly" } else { "CorrectnessCritical" }, "purpose": "Two owners would corrupt what it protects.",
            "coordinator": {"lease": {"name": name}}, "writeBoundaries": [name]}});
        self.locks(n).create(&PostParams::default(), &serde_json::from_value(lock).unwrap()).await.unwrap();
        let boundary = json!({"apiVersion": "fencedlock.dev/v1alpha1", "kind": "WriteBoundary", "metadata": {"name": name}, "spec": {
            "lockRef": {"name": name}, "type": "External", "external": {"receiver": "the mail provider"}}});
        let boundaries = Api::<WriteBoundary>::namespaced(self.client.clone(), &namespace(n));
        boundaries.create(&PostParams::default(), &serde_json::from_value(boundary).unwrap()).await.unwrap();
        let metadata = ObjectMeta { name: Some(name), ..ObjectMeta::default() };
        let lease = Lease { metadata, spec: Some(lease_spec("holder-a", 0)) };
        self.leases(n).create(&PostParams::default(), &lease).await.unwrap();
    }

    pub fn locks(&self, n: usize) -> Api<FencedLock> {
        Api::namespaced(self.client.clone(), &namespace(n))
    }

    pub fn leases(&self, n: usize) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &namespace(n))
    }

    /// Renews the Leases in turn, as fast as the API server takes it.
    pub async fn renew(&self, times: usize) {
        in_parallel(times, |n| async move {
            let n = n % self.count;
            let now = json!({"spec": {"renewTime": MicroTime(Timestamp::now())}});
            self.leases(n).patch(&name(n), &PatchParams::default(), &Patch::Merge(now)).await.unwrap();
        })
        .await;
    }

    /// What is none of our business and is there in every large cluster (case G04): a Lease for each node, and Secrets.
    pub async fn add_bystanders(&self, count: usize) {
        let leases = Api::<Lease>::namespaced(self.client.clone(), NODE_LEASES);
        let secrets = Api::<Secret>::namespaced(self.client.clone(), &namespace(0));
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let node_leases = serde_json::from_value(json!({"metadata": {"name": NODE_LEASES}})).unwrap();
        // The API server makes it by itself, sooner or later.
        let _ = namespaces.create(&PostParams::default(), &node_leases).await;
        in_parallel(count, |n| {
            let (leases, secrets) = (leases.clone(), secrets.clone());
            async move {
                let metadata = ObjectMeta { name: Some(format!("node-{n:05}")), ..ObjectMeta::default() };
                let lease = Lease { metadata: metadata.clone(), spec: Some(lease_spec("kubelet", 0)) };
                leases.create(&PostParams::default(), &lease).await.unwrap();
                let string_data = Some(BTreeMap::from([("key".to_owned(), "x".repeat(2_000))]));
                secrets.create(&PostParams::default(), &Secret { metadata, string_data, ..Secret::default() }).await.unwrap();
            }
        })
        .await;
    }

    /// Gives a Lease to somebody else.
    pub async fn take_over(&self, n: usize, holder: &str, transitions: i32) {
        let mut lease = self.leases(n).get(&name(n)).await.unwrap();
        lease.spec = Some(lease_spec(holder, transitions));
        self.leases(n).replace(&name(n), &PostParams::default(), &lease).await.unwrap();
    }
}

/// How many writes of ours and of reservations the API server has answered.
pub fn writes(plane: &Plane) -> usize {
    let log = fs::read_to_string(&plane.audit_log).unwrap();
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let wrote = |e: &Value| ["create", "update", "patch", "delete"].contains(&e["verb"].as_str().unwrap_or_default());
    let ours = |e: &Value| e["objectRef"]["apiGroup"] == "fencedlock.dev" || e["objectRef"]["resource"] == "configmaps";
    events.filter(|e| wrote(e) && ours(e) && e["stage"] == "ResponseComplete").count()
}

pub fn is_granted(lock: &FencedLock, holder: &str) -> bool {
    let grant = lock.status.as_ref().and_then(|s| s.grant.as_ref());
    grant.is_some_and(|g| g.holder.as_str() == holder && g.state == GrantState::Active)
}

/// The newest state of every lock, from a watch.
pub struct Newest {
    events: Pin<Box<dyn Stream<Item = Result<FencedLock, watcher::Error>> + Send>>,
    locks: BTreeMap<String, FencedLock>,
}

impl Newest {
    pub fn watch(world: &World) -> Self {
        let events = watcher(Api::<FencedLock>::all(world.client.clone()), watcher::Config::default()).touched_objects();
        Self { events: Box::pin(events), locks: BTreeMap::new() }
    }

    pub async fn until(&mut self, name: &str, wanted: impl Fn(&FencedLock) -> bool) {
        while !self.locks.get(name).is_some_and(&wanted) {
            let event = tokio::time::timeout(Duration::from_mins(1), self.events.next());
            if let Some(Ok(lock)) = event.await.unwrap_or_else(|_| panic!("{name} does not get there: {:#?}", self.locks.get(name))) {
                self.locks.insert(lock.name_any(), lock);
            }
        }
    }
}
