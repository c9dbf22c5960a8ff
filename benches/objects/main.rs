//! What the guard of Kubernetes objects costs, on a real API server: guarded against unguarded writes of one owner, taking turns in one run; the
//! same without any policy; activation of 1, 100 and 1,000 targets. Run by `make bench`.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::pedantic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    dead_code,
    reason = "a measuring program"
)]

#[path = "../locks/results.rs"]
mod results;
#[path = "../../tests/cluster/support"]
mod support {
    pub mod plane;
    pub mod requests;
}

use std::{
    process::Command,
    time::{Duration, Instant},
};

use fencedlock::{
    api::{GuardMode, KubernetesBoundary},
    boundary::{Activation, Backend, Owner, kubernetes::Kubernetes},
    epoch::{Epoch, Holder},
};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use results::{Goal, Results, quantile};
use serde_json::{Value, json};
use support::{
    plane::{Plane, tool},
    requests::Requester,
};

/// How often the objects take turns, and how many writes each turn has.
const ROUNDS: usize = 10;
const WRITES: usize = 300;
const NAMESPACE: &str = "bench";

#[tokio::main]
async fn main() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let plane: &'static Plane = Box::leak(Box::new(Plane::start("bench-objects")));
    plane.install_crds();
    for namespace in ["fencedlock", NAMESPACE] {
        plane.kubectl(&["create", "namespace", namespace], "");
    }
    plane.kubectl(&["apply", "-f", "-"], &rendered("serviceaccount"));
    let pod = |name: &str, account: &str| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"serviceAccountName": account, "containers": [{"name": "c", "image": "x"}]}});
    plane.kubectl(&["create", "serviceaccount", "worker", "-n", NAMESPACE], "");
    plane.kubectl(&["apply", "-n", NAMESPACE, "-f", "-"], &pod("worker", "worker").to_string());
    plane.kubectl(&["create", "role", "all", "-n", NAMESPACE, "--verb=*", "--resource=configmaps,namespaces"], "");
    let accounts = ["--serviceaccount=bench:worker", "--serviceaccount=fencedlock:fencedlock"];
    plane.kubectl(&["create", "rolebinding", "all", "-n", NAMESPACE, "--role=all", accounts[0], accounts[1]], "");
    let names = ["guarded", "plain"].map(|name| config_map(name, "one"));
    let many = (0..1000).map(|n| config_map(&format!("many-{n}"), if n < 100 { "hundred" } else { "thousand" }));
    let items: Vec<Value> = names.into_iter().chain(many).collect();
    plane.kubectl(&["create", "-n", NAMESPACE, "-f", "-"], &json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string());
    let file = Kubeconfig::read_from(&plane.kubeconfig).unwrap();
    let admin = Client::try_from(Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap()).unwrap();
    let uid = plane.kubectl(&["get", "pod", "worker", "-n", NAMESPACE, "-o", "jsonpath={.metadata.uid}"], "");
    let worker = Requester::account(plane, &admin, NAMESPACE, "worker", Some(("worker", &uid))).await;
    let operator = Requester::account(plane, &admin, "fencedlock", "fencedlock", None).await.client;

    let mut results = Results::default();
    // A right is known some time after it was given.
    while worker.merge("/api/v1/namespaces/bench/configmaps/plain", json!({"data": {"n": "1"}})).await.status == 403 {}
    let mut bare = Vec::new();
    write(&worker, "plain", &mut bare).await;
    bare.clear();
    for _ in 0..ROUNDS {
        write(&worker, "plain", &mut bare).await;
    }
    plane.kubectl(&["apply", "-f", "-"], &rendered("guard"));
    let one = backend(&operator, "one", json!({"resource": "configmaps", "names": ["guarded"]}));
    activate(&one, 1, &uid).await;
    until_in_force(plane).await;
    let (mut guarded, mut plain) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        write(&worker, "guarded", &mut guarded).await;
        write(&worker, "plain", &mut plain).await;
    }
    for (name, share, goal) in [("p50", 0.5, Goal::AtMost(0.35)), ("p99", 0.99, Goal::None)] {
        let added = quantile(&mut guarded, share) - quantile(&mut plain, share);
        results.add(&format!("k8s_guard_added_{name}_ms"), added, "ms", goal);
    }
    // What of it is the carrying policy's: the guard refuses just the same without.
    plane.kubectl(&["delete", "mutatingadmissionpolicybinding", "fencedlock-carry"], "");
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    write(&worker, "guarded", &mut alone).await;
    alone.clear();
    for _ in 0..ROUNDS {
        write(&worker, "guarded", &mut alone).await;
        write(&worker, "plain", &mut beside).await;
    }
    results.add("k8s_guard_without_carry_added_p50_ms", quantile(&mut alone, 0.5) - quantile(&mut beside, 0.5), "ms", Goal::None);
    results.add("k8s_unguarded_write_p50_ms", quantile(&mut plain, 0.5), "ms", Goal::None);
    results.add("k8s_unlabelled_over_without_policies_p50", quantile(&mut plain, 0.5) / quantile(&mut bare, 0.5), "ratio", Goal::None);

    for (name, selector, unit, scale, goal) in [
        ("k8s_activate_1_ms", "app=one", "ms", 1000.0, Goal::None),
        ("k8s_activate_100_ms", "app=hundred", "ms", 1000.0, Goal::None),
        ("k8s_activate_1000_s", "app in (hundred, thousand)", "s", 1.0, Goal::AtMost(10.0)),
    ] {
        // Each in a boundary of its own would be refused: an object belongs to one. The last one takes the hundred with it.
        let boundary = if selector == "app=one" { "one" } else { "many" };
        let targets = backend(&operator, boundary, json!({"resource": "configmaps", "selector": selector}));
        let mut took = Vec::new();
        for epoch in 10..15 {
            let epoch = if selector.contains("thousand") { epoch + 100 } else { epoch };
            let began = Instant::now();
            activate(&targets, epoch, &uid).await;
            took.push(began.elapsed().as_secs_f64() * scale);
        }
        results.add(name, quantile(&mut took, 0.5), unit, goal);
    }
    results.write();
}

fn rendered(template: &str) -> String {
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/fencedlock");
    let output = Command::new(tool("helm"))
        .args(["template", "fencedlock", chart, "--namespace", "fencedlock"])
        .args(["--api-versions", "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"])
        .args(["--show-only", &format!("templates/{template}.yaml")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn config_map(name: &str, app: &str) -> Value {
    let app = if name == "plain" { "none" } else { app };
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"app": app}}, "data": {"n": "0"}})
}

fn backend(operator: &Client, name: &str, target: Value) -> Kubernetes {
    let spec: KubernetesBoundary = serde_json::from_value(json!({"claim": "PodIdentity", "targets": [target]})).unwrap();
    Kubernetes::new(operator.clone(), NAMESPACE.into(), name.into(), spec, GuardMode::Enforce)
}

async fn activate(backend: &Kubernetes, epoch: u64, uid: &str) {
    let owner = Owner { epoch: Epoch::new(epoch).unwrap(), holder: Some(Holder::new("worker").unwrap()), pod_uid: Some(uid.to_owned()) };
    assert_eq!(backend.activate(&owner).await, Ok(Activation::Activated), "epoch {epoch}");
}

/// A turn of one object: its writes, in milliseconds each.
async fn write(worker: &Requester, name: &str, took: &mut Vec<f64>) {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps/{name}");
    for n in 0..WRITES {
        let began = Instant::now();
        let reply = worker.merge(&path, json!({"data": {"n": format!("{n} {}", took.len())}})).await;
        took.push(began.elapsed().as_secs_f64() * 1000.0);
        assert_eq!(reply.status, 200, "{}", reply.message);
    }
}

/// Somebody else is refused, and what an owner that writes from scratch leaves out is carried.
async fn until_in_force(plane: &Plane) {
    let began = Instant::now();
    while plane.try_kubectl(&["annotate", "configmap", "guarded", "-n", NAMESPACE, "--overwrite", "--dry-run=server", "a=b"], "").0 {
        assert!(began.elapsed() < Duration::from_secs(30), "the guard is not in force");
    }
    while plane
        .try_kubectl(
            &[
                "label",
                "configmap",
                "guarded",
                "-n",
                NAMESPACE,
                "--dry-run=server",
                "-o",
                "jsonpath={.metadata.labels}",
                "fencedlock.dev/boundary-",
            ],
            "",
        )
        .1
        .contains("error")
    {
        assert!(began.elapsed() < Duration::from_secs(30), "the carrying policy is not in force");
    }
}
