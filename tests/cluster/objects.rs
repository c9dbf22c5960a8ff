//! Kubernetes objects as a write boundary: the operator stamps them before a new owner starts, with the rights that the chart and the team give it,
//! as a pod whose token is bound to it.

use std::{
    process::Command,
    sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use crate::{
    guard::{plane, policies},
    support::{
        Lab,
        lab::{Running, condition_of},
        lease::at,
        plane::{Plane, tool},
        requests::{PLAIN, Requester},
    },
};
use fencedlock::{
    api::{
        BoundaryVerdict, FencedLockStatus, GuardMode, KubernetesBoundary, LimitName, Verdict, WriteBoundary, WriteBoundaryStatus,
        conditions::boundary as on_boundary, conditions::lock as on,
    },
    boundary::{
        Activation, Ask, Backend, BuiltIn, Fence, Owner,
        kubernetes::{ApiServers, Kubernetes},
        proof::{Examination, Failure, Outcome, Probe, Right, conclude, right},
    },
    epoch::{Epoch, Holder},
    operator::{Scope, Settings},
};
use futures::StreamExt;
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{MicroTime, Time},
    jiff::{SignedDuration, Timestamp},
};
use kube::{
    Client, ResourceExt,
    api::{Patch, PatchParams, WatchEvent, WatchParams},
};
use serde_json::{Value, json};

/// A control plane on which nobody but those who can do everything goes around the guard.
static PLANE: LazyLock<Plane> = LazyLock::new(|| plane("objects"));

/// A namespace with workers' pods and a ConfigMap, and an operator's client that is bound to a pod.
pub struct Objects {
    pub lab: Lab,
    operator: Client,
    /// The operator's pod, and its uid.
    pod: String,
    pod_uid: String,
}

impl Objects {
    pub async fn new() -> Self {
        Self::on(&PLANE).await
    }

    pub async fn on(plane: &'static Plane) -> Self {
        let objects = Self::without_rights(plane).await;
        objects.team_binds("configmaps", &["get", "list", "watch", "patch"]);
        objects
    }

    /// The chart's rights, and not yet the team's.
    async fn without_rights(plane: &'static Plane) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let lab = Lab::on(plane).await;
        let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/fencedlock");
        let output = Command::new(tool("helm"))
            .args(["template", "fencedlock", chart, "--namespace", "fencedlock", "--set", &format!("namespaces={{{}}}", lab.namespace)])
            .args(["--show-only", "templates/rbac.yaml"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        {
            // Some of it is one for all tests: applied side by side, one would find it created by the other.
            static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
            let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            plane.kubectl(&["apply", "-f", "-"], &String::from_utf8(output.stdout).unwrap());
        }
        let pod = |name: &str, account: &str| {
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
                   "spec": {"serviceAccountName": account, "containers": [{"name": "c", "image": "x"}],
                       "volumes": [{"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}]}})
        };
        let items = json!({"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "worker"}},
            {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "worker"},
             "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}]},
            {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "worker"},
             "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "worker"},
             "subjects": [{"kind": "ServiceAccount", "name": "worker", "namespace": lab.namespace}]},
            pod("worker-a", "worker"), pod("worker-b", "worker"),
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web", "labels": {"app": "web"}}, "data": {"owner": "none"}}]});
        plane.kubectl(&["apply", "-n", &lab.namespace, "-f", "-"], &items.to_string());
        let name = format!("operator-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        plane.kubectl(&["apply", "-n", "fencedlock", "-f", "-"], &pod(&name, "fencedlock").to_string());
        let uid = plane.kubectl(&["get", "pod", &name, "-n", "fencedlock", "-o", "jsonpath={.metadata.uid}"], "");
        let operator = Requester::account(plane, &lab.admin, "fencedlock", "fencedlock", Some((&name, &uid))).await.client;
        Self { lab, operator, pod: name, pod_uid: uid }
    }

    /// What a team does to let the operator fence its objects.
    pub fn team_binds(&self, resource: &str, verbs: &[&str]) {
        let namespace = &self.lab.namespace;
        self.lab.plane.kubectl(
            &[
                "create",
                "role",
                &format!("fence-{resource}"),
                "-n",
                namespace,
                &format!("--resource={resource}"),
                &format!("--verb={}", verbs.join(",")),
            ],
            "",
        );
        self.lab.plane.kubectl(
            &[
                "create",
                "rolebinding",
                &format!("fence-{resource}"),
                "-n",
                namespace,
                &format!("--role=fence-{resource}"),
                "--serviceaccount=fencedlock:fencedlock",
            ],
            "",
        );
    }

    /// What a kubelet says when it has started a pod's container.
    fn started(&self, pod: &str, at: Timestamp) {
        let container = json!({"name": "c", "image": "x", "imageID": "", "ready": true, "restartCount": 0,
            "state": {"running": {"startedAt": Time(at)}}});
        let status = json!({"status": {"containerStatuses": [container]}}).to_string();
        self.lab
            .plane
            .kubectl(&["patch", "pod", pod, "-n", &self.lab.namespace, "--subresource=status", "--type=merge", "-p", &status], "");
    }

    pub fn uid(&self, pod: &str) -> String {
        self.lab.plane.kubectl(&["get", "pod", pod, "-n", &self.lab.namespace, "-o", "jsonpath={.metadata.uid}"], "")
    }

    pub async fn worker(&self, pod: &str) -> Requester {
        Requester::account(self.lab.plane, &self.lab.admin, &self.lab.namespace, "worker", Some((pod, &self.uid(pod)))).await
    }

    pub fn web(&self) -> String {
        format!("/api/v1/namespaces/{}/configmaps/web", self.lab.namespace)
    }

    pub fn backend(&self, spec: Value, mode: GuardMode) -> Kubernetes {
        let spec: KubernetesBoundary = serde_json::from_value(spec).unwrap();
        Kubernetes::new(self.operator.clone(), self.lab.namespace.clone(), "objects".into(), spec, mode)
    }

    pub fn run(&self) -> Running {
        let scope = Scope::Namespaces(vec![self.lab.namespace.clone()]);
        let settings = Settings { scope, ..Settings::default() };
        self.lab.operator_set(self.operator.clone(), settings, std::sync::Arc::new(BuiltIn::new(self.operator.clone())))
    }

    /// Declares a boundary that is examined every ten seconds, and its lock.
    pub async fn declare(&self, kubernetes: Value) {
        self.declare_every("10s", kubernetes).await;
    }

    pub async fn declare_every(&self, interval: &str, kubernetes: Value) {
        let acceptance = json!({"covers": ["CreateNotFenced"], "acceptedBy": "a", "reason": "r", "compensation": "c", "expires": "2099-01-01T00:00:00Z"});
        let boundary = json!({"lockRef": {"name": "a"}, "type": "Kubernetes", "mode": "Enforce", "proof": {"interval": interval},
            "riskAcceptance": acceptance, "kubernetes": kubernetes});
        self.lab.declare_boundary("objects", boundary).await;
        let lock = json!({"class": "CorrectnessCritical", "purpose": "p", "coordinator": {"lease": {"name": "a"}}, "writeBoundaries": ["objects"]});
        self.lab.declare_spec("a", lock).await;
    }

    /// The operator's client, with another connection to an API server on this port.
    async fn operator_at(&self, port: u16) -> Client {
        let server = format!("https://127.0.0.1:{port}");
        let client = Requester::account_at(
            self.lab.plane,
            Some(&server),
            &self.lab.admin,
            "fencedlock",
            "fencedlock",
            Some((&self.pod, &self.pod_uid)),
        )
        .await
        .client;
        let began = std::time::Instant::now();
        while client.apiserver_version().await.is_err() {
            assert!(began.elapsed() < Duration::from_secs(60), "the API server at {server} does not start");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        client
    }

    /// Waits until somebody's writes are refused, or are not any more.
    async fn refuses(&self, by: &Requester, path: &str, refused: bool) {
        let status = if refused { 403 } else { 200 };
        let began = std::time::Instant::now();
        for n in 0.. {
            let reply = by.merge(&format!("{path}?dryRun=All"), data(&format!("{status} {n}"))).await;
            if reply.status == status {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(30), "never {status}: {reply:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The boundary's verdicts from now on.
    async fn verdicts(&self) -> Verdicts {
        let now = self.lab.boundaries().get("objects").await.unwrap();
        let params = WatchParams::default().fields("metadata.name=objects");
        let events = self.lab.boundaries().watch(&params, &now.resource_version().unwrap()).await.unwrap();
        Verdicts(Box::pin(events))
    }

    pub async fn until_verdict(&self, verdict: BoundaryVerdict, reason: &str) -> WriteBoundaryStatus {
        let is = |b: Option<&WriteBoundary>| {
            b.and_then(|b| b.status.as_ref()).is_some_and(|s| s.verdict == Some(verdict) && s.reason.as_deref() == Some(reason))
        };
        self.lab.until_boundary("objects", &format!("{verdict:?} {reason}"), is).await.status.unwrap()
    }
}

/// Every status of a boundary, one after the other.
struct Verdicts(std::pin::Pin<Box<dyn futures::Stream<Item = Result<WatchEvent<WriteBoundary>, kube::Error>> + Send>>);

impl Verdicts {
    /// Waits until these reasons were there, in this order.
    async fn pass_through(&mut self, reasons: &[&str]) {
        for wanted in reasons {
            let reached = async {
                while let Some(event) = self.0.next().await {
                    if let WatchEvent::Modified(boundary) = event.unwrap()
                        && boundary.status.as_ref().and_then(|status| status.reason.as_deref()) == Some(wanted)
                    {
                        return;
                    }
                }
            };
            tokio::time::timeout(Duration::from_secs(40), reached).await.unwrap_or_else(|_| panic!("never {wanted}"));
        }
    }
}

pub fn spec(claim: &str) -> Value {
    json!({"claim": claim, "targets": [{"resource": "configmaps", "names": ["web"]}]})
}

pub fn owner(epoch: u64, holder: &str, uid: Option<String>) -> Owner {
    Owner { epoch: Epoch::new(epoch).unwrap(), holder: Some(Holder::new(holder).unwrap()), pod_uid: uid }
}

pub fn data(owner: &str) -> Value {
    json!({"data": {"owner": owner}})
}

/// The whole way: an unmodified writer that lost the lock is refused by the API server, and gets in again when it owns it again.
#[tokio::test]
async fn an_unmodified_writer_is_fenced_by_the_api_server() {
    let objects = Objects::new().await;
    let (a, b, web) = (objects.worker("worker-a").await, objects.worker("worker-b").await, objects.web());
    let _operator = objects.run();
    objects.declare(spec("PodIdentity")).await;
    objects.lab.lease("a").put(Some("worker-a"), Some(0), at(0)).await;
    objects.lab.until_active("a", 1, "worker-a").await;
    assert_eq!(a.merge(&web, data("a")).await.status, 200);
    let refused = b.merge(&web, data("b")).await;
    assert!(refused.status == 403 && refused.message.contains("epoch 1 of write boundary objects belongs to worker-a"), "{refused:?}");
    objects.lab.lease("a").put(Some("worker-b"), Some(1), at(1)).await;
    objects.lab.until_active("a", 2, "worker-b").await;
    let refused = a.merge(&web, data("late")).await;
    assert!(refused.status == 403 && refused.message.contains("epoch 2 of write boundary objects belongs to worker-b"), "{refused:?}");
    assert_eq!(b.merge(&web, data("b")).await.status, 200);
    let status = objects.until_verdict(BoundaryVerdict::RiskAccepted, "RiskAccepted").await;
    assert!(status.fence.as_ref().is_some_and(|fence| fence.epoch.get() == 2 && fence.holder == "worker-b"), "{status:?}");
    let condition = |kind: &str| status.conditions.iter().find(|c| c.type_ == kind).unwrap_or_else(|| panic!("{kind}: {status:#?}"));
    assert_eq!(condition(on_boundary::ACTIVATED).status, "True");
    assert_eq!(condition(on_boundary::BYPASS_FREE).status, "True");
    objects.lab.until("a", "RiskAccepted", |status| status.verdict == Some(Verdict::RiskAccepted)).await;
    let stored = a.send("GET", &web, PLAIN, &Value::Null).await.body;
    assert_eq!((stored["data"]["owner"].as_str(), stored["metadata"]["labels"]["app"].as_str()), (Some("b"), Some("web")));
}

/// What happens is seen when it happens: with proofs an hour apart, a target that is created later is fenced at once, and said not to be until then;
/// a binding that is deleted is told at once, and so is its return.
#[tokio::test]
async fn what_happens_is_seen_at_once() {
    static OWN: LazyLock<Plane> = LazyLock::new(|| plane("watched"));
    let objects = Objects::on(&OWN).await;
    let (namespace, web) = (objects.lab.namespace.clone(), objects.web());
    let _operator = objects.run();
    let many = json!({"claim": "PodIdentity", "targets": [{"resource": "configmaps", "selector": "app=web"}]});
    objects.declare_every("1h", many).await;
    objects.lab.lease("a").put(Some("worker-a"), Some(0), at(0)).await;
    objects.until_verdict(BoundaryVerdict::RiskAccepted, "RiskAccepted").await;
    let (a, b) = (objects.worker("worker-a").await, objects.worker("worker-b").await);
    let late = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late", "labels": {"app": "web"}}});
    let mut verdicts = objects.verdicts().await;
    assert_eq!(b.send("POST", web.trim_end_matches("/web"), PLAIN, &late).await.status, 201);
    objects.refuses(&b, &web.replace("/web", "/late"), true).await;
    verdicts.pass_through(&["NotActivated", "RiskAccepted"]).await;
    assert_eq!(a.merge(&web.replace("/web", "/late"), data("a")).await.status, 200);

    OWN.kubectl(&["delete", "validatingadmissionpolicybinding", "fencedlock-guard"], "");
    objects.until_verdict(BoundaryVerdict::Violated, "GuardAltered").await;
    OWN.kubectl(&["apply", "-f", "-"], &policies());
    // Not before it is in force again: nothing is said that is not so.
    objects.until_verdict(BoundaryVerdict::RiskAccepted, "RiskAccepted").await;
    assert_eq!(b.merge(&web, data("late")).await.status, 403);
    // An operator that may not watch the targets says so.
    OWN.kubectl(
        &[
            "patch",
            "role",
            "fence-configmaps",
            "-n",
            &namespace,
            "--type=json",
            "-p",
            r#"[{"op": "replace", "path": "/rules/0/verbs", "value": ["get", "list", "patch"]}]"#,
        ],
        "",
    );
    let again = Patch::Merge(json!({"spec": {"proof": {"interval": "10s"}}}));
    objects.lab.boundaries().patch("objects", &PatchParams::default(), &again).await.unwrap();
    let says = |b: Option<&WriteBoundary>| {
        b.and_then(|b| b.status.as_ref()).is_some_and(|status| {
            status.conditions.iter().any(|c| c.type_ == on_boundary::GUARD_INSTALLED && c.message.contains("may not watch configmaps"))
        })
    };
    objects.lab.until_boundary("objects", "may not watch", says).await;
}

/// Objects that are targets by their names, in a namespace that asks for it: what carries no fence is judged by the operator's record. That closes
/// what an object cannot be asked: its creation anew, its /scale, and writes before it is stamped.
#[tokio::test]
async fn what_is_named_is_fenced_before_it_is_there() {
    static OWN: LazyLock<Plane> = LazyLock::new(|| plane("named"));
    let objects = Objects::on(&OWN).await;
    let namespace = objects.lab.namespace.clone();
    OWN.kubectl(&["label", "namespace", &namespace, "fencedlock.dev/named=true"], "");
    objects.team_binds("deployments.apps", &["get", "list", "watch", "patch"]);
    OWN.kubectl(&["create", "role", "scales", "-n", &namespace, "--verb=*", "--resource=deployments.apps,deployments.apps/scale"], "");
    let account = format!("--serviceaccount={namespace}:worker");
    OWN.kubectl(&["create", "rolebinding", "scales", "-n", &namespace, "--role=scales", &account], "");
    OWN.kubectl(&["create", "deployment", "web", "-n", &namespace, "--image=x"], "");
    let named = json!({"claim": "PodIdentity", "exemptions": [{"user": "helm", "reason": "r"}], "targets": [
        {"resource": "configmaps", "names": ["web", "later"]}, {"group": "apps", "resource": "deployments", "names": ["web"]}]});
    let backend = objects.backend(named.clone(), GuardMode::Enforce);
    let [uid_a, uid_b] = ["worker-a", "worker-b"].map(|pod| objects.uid(pod));
    assert_eq!(backend.activate(&owner(7, "worker-a", Some(uid_a))).await, Ok(Activation::Activated));
    let (a, b) = (objects.worker("worker-a").await, objects.worker("worker-b").await);
    let (maps, scale) =
        (format!("/api/v1/namespaces/{namespace}/configmaps"), format!("/apis/apps/v1/namespaces/{namespace}/deployments/web/scale"));
    let later = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "later"}});
    let other = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}});
    // From the moment that the activation returned.
    let refused = b.send("POST", &maps, PLAIN, &later).await;
    let wanted =
        "fencedlock: epoch 7 of write boundary objects belongs to worker-a, and only it may create configmaps/later, not pod worker-b";
    assert!(refused.status == 403 && refused.message.contains(wanted), "{refused:?}");
    assert_eq!(b.send("POST", &maps, PLAIN, &other).await.status, 201, "what is not named is nobody's");
    let replicas = |n: u8| json!({"spec": {"replicas": n}});
    let refused = b.merge(&scale, replicas(3)).await;
    assert!(refused.status == 403 && refused.message.contains("write deployments.apps/web/scale"), "{refused:?}");
    assert_eq!(a.merge(&scale, replicas(2)).await.status, 200);
    assert_eq!(a.send("POST", &maps, PLAIN, &later).await.status, 201);
    // It carries no fence until the operator has seen it, and is the owner's all the same.
    let later = format!("{maps}/later");
    assert_eq!(b.merge(&later, data("b")).await.status, 403);
    assert_eq!(a.merge(&later, data("a")).await.status, 200);
    assert_eq!(b.send("DELETE", &later, PLAIN, &Value::Null).await.status, 403);
    // G07: elections go on, whatever the policies are busy with.
    let leases = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "web"}});
    OWN.kubectl(&["create", "role", "leases", "-n", &namespace, "--verb=*", "--resource=leases.coordination.k8s.io"], "");
    OWN.kubectl(&["create", "rolebinding", "leases", "-n", &namespace, "--role=leases", &account], "");
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
    let mut status = 403;
    let began = std::time::Instant::now();
    while status == 403 && began.elapsed() < Duration::from_secs(30) {
        status = b.send("POST", &path, PLAIN, &leases).await.status;
    }
    assert_eq!(status, 201);
    // Nobody but the operator writes the record.
    let record = format!("{maps}/fencedlock-fences");
    assert_eq!(a.merge(&record, json!({"data": {"objects": "Observe"}})).await.status, 403);
    assert_eq!(a.send("DELETE", &record, PLAIN, &Value::Null).await.status, 403);
    // The next owner.
    assert_eq!(backend.activate(&owner(8, "worker-b", Some(uid_b.clone()))).await, Ok(Activation::Activated));
    assert_eq!((a.merge(&scale, replicas(4)).await.status, b.merge(&scale, replicas(4)).await.status), (403, 200));
    assert_eq!((a.merge(&later, data("late")).await.status, b.merge(&later, data("b")).await.status), (403, 200));
    assert_eq!(backend.activate(&owner(8, "worker-b", Some(uid_b.clone()))).await, Ok(Activation::Unchanged));
    assert!(matches!(backend.activate(&owner(7, "worker-a", Some(uid_b.clone()))).await, Ok(Activation::Superseded(_))));

    let examined = backend.examine(&Ask { is_activated: true, ..Ask::default() }).await.unwrap();
    assert_eq!(examined.answers.as_ref().unwrap().of(Probe::RecreatedRefused), Some(&Outcome::Passed), "{:?}", examined.unfinished);
    let (seen, proven) = conclude(&examined, None, Some(1), Timestamp::now());
    assert!(proven.is_some() && seen.limits.is_empty(), "nothing is left to accept: {seen:?}");
    // Nobody's: the last owner is refused as well, what is there and what is not.
    assert_eq!(backend.activate(&Owner::nobody(Epoch::new(9).unwrap())).await, Ok(Activation::Activated));
    assert_eq!((b.merge(&later, data("late")).await.status, b.merge(&scale, replicas(5)).await.status), (403, 403));
    let nobodys = Ask { is_activated: true, owner: Some(Owner::nobody(Epoch::new(9).unwrap())), ..Ask::default() };
    let examined = backend.examine(&nobodys).await.unwrap();
    assert_eq!(examined.answers.as_ref().unwrap().of(Probe::RecreatedRefused), Some(&Outcome::Passed), "{:?}", examined.unfinished);
    assert_eq!(examined.fence, Some(Fence { epoch: Epoch::new(9).unwrap(), holder: None }));
    // An API server that does not judge by the record holds the next grant up, and is named.
    let lame = OWN.another_apiserver(&["--disable-admission-plugins=ValidatingAdmissionPolicy"]);
    let lame = ("lame".to_owned(), objects.operator_at(lame.port).await);
    let servers = ApiServers::These(vec![("first".to_owned(), objects.operator.clone()), lame]);
    let held = objects
        .backend(named.clone(), GuardMode::Enforce)
        .with_servers(servers)
        .activate(&owner(10, "worker-b", Some(uid_b.clone())))
        .await;
    assert!(matches!(&held, Err(error) if error.to_string().contains("API server lame does not judge")), "{held:?}");
    // What is found by label cannot be known before it is there, and a namespace that does not ask has the limits.
    let mixed = json!({"claim": "PodIdentity", "targets": [{"resource": "configmaps", "names": ["web"]}, {"resource": "configmaps", "selector": "app=web"}]});
    let limits = |examined: &Examination| conclude(examined, None, Some(1), Timestamp::now()).0.limits;
    let mixed = objects.backend(mixed, GuardMode::Enforce).examine(&Ask::default()).await.unwrap();
    assert_eq!(limits(&mixed), [LimitName::CreateNotFenced]);
    OWN.kubectl(&["label", "namespace", &namespace, "fencedlock.dev/named-"], "");
    let unasked = backend.examine(&Ask::default()).await.unwrap();
    assert_eq!(limits(&unasked), [LimitName::ScaleNotFenced, LimitName::CreateNotFenced]);
}

/// A target that is named and not there yet is no hole and no trouble: there is nothing to fence but its creation.
#[tokio::test]
async fn what_is_not_there_yet_is_proven_by_its_name() {
    let objects = Objects::new().await;
    PLANE.kubectl(&["label", "namespace", &objects.lab.namespace, "fencedlock.dev/named=true"], "");
    let _operator = objects.run();
    objects.declare_every("1h", json!({"claim": "PodIdentity", "targets": [{"resource": "configmaps", "names": ["never"]}]})).await;
    let first = objects.until_verdict(BoundaryVerdict::Unproven, "Inconclusive").await;
    assert!(first.conditions.iter().any(|c| c.message.contains("no epoch is active here yet")), "{first:#?}");
    objects.lab.lease("a").put(Some("worker-a"), Some(0), at(0)).await;
    objects.lab.until_active("a", 1, "worker-a").await;
    objects.until_verdict(BoundaryVerdict::Proven, "AllProbesPassed").await;
    objects.lab.until("a", "Enforced", |status| status.verdict == Some(Verdict::Enforced)).await;
    let never = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "never"}});
    let maps = objects.web().replace("/web", "");
    assert_eq!(objects.worker("worker-b").await.send("POST", &maps, PLAIN, &never).await.status, 403);
    // Nobody owns the lock any more, and what is created now carries no fence.
    objects.lab.lease("a").release().await;
    objects.lab.until("a", "no grant", |status| status.grant.is_none()).await;
    assert_eq!(objects.worker("worker-a").await.send("POST", &maps, PLAIN, &never).await.status, 201, "by its last owner");
    objects.until_verdict(BoundaryVerdict::Unproven, "NotActivated").await;
}

/// Each API server learns of policies by itself. One at which they are not in force is found, also when all others refuse.
#[tokio::test]
async fn every_api_server_is_tried() {
    static OWN: LazyLock<Plane> = LazyLock::new(|| plane("two"));
    let objects = Objects::on(&OWN).await;
    let at_7 = owner(7, "worker-a", Some(objects.uid("worker-a")));
    let others = [OWN.another_apiserver(&[]), OWN.another_apiserver(&["--disable-admission-plugins=ValidatingAdmissionPolicy"])];
    let clients = [objects.operator_at(others[0].port).await, objects.operator_at(others[1].port).await];
    let first = ("first".to_owned(), objects.operator.clone());
    let second = ("second".to_owned(), clients[0].clone());
    let lame = ("lame".to_owned(), clients[1].clone());
    let with =
        |servers: Vec<(String, Client)>| objects.backend(spec("PodIdentity"), GuardMode::Enforce).with_servers(ApiServers::These(servers));
    assert_eq!(with(vec![]).activate(&at_7).await, Ok(Activation::Activated));
    let answer = async |servers| with(servers).examine(&Ask::default()).await.unwrap();
    let good = answer(vec![first.clone(), second.clone()]).await;
    assert_eq!(good.answers.as_ref().unwrap().of(Probe::StaleRefused), Some(&Outcome::Passed), "{:?}", good.unfinished);
    let bad = answer(vec![first.clone(), second, lame]).await;
    let failed = bad.answers.as_ref().unwrap().of(Probe::StaleRefused).unwrap();
    assert!(matches!(failed, Outcome::Failed(Failure::Accepted, why) if why.contains("API server lame admits")), "{failed:?}");
    let (seen, proven) = conclude(&bad, None, Some(1), Timestamp::now());
    assert!(seen.stale_accepted.is_some() && proven.is_none());
    // A cluster that is too old for policies is told by its version.
    let without = "ValidatingAdmissionPolicy,MutatingAdmissionPolicy,ValidatingAdmissionWebhook,MutatingAdmissionWebhook";
    let old = OWN
        .another_apiserver(&["--runtime-config=admissionregistration.k8s.io/v1=false", &format!("--disable-admission-plugins={without}")]);
    let spec_of = |spec: Value| serde_json::from_value::<KubernetesBoundary>(spec).unwrap();
    let old = Kubernetes::new(
        objects.operator_at(old.port).await,
        objects.lab.namespace.clone(),
        "objects".into(),
        spec_of(spec("PodIdentity")),
        GuardMode::Enforce,
    );
    let said = old.examine(&Ask::default()).await.unwrap().unfinished.unwrap();
    assert!(said.contains("this cluster (Kubernetes v1.") && said.contains("Kubernetes 1.30 or later is needed"), "{said}");
    // One that cannot be asked leaves it open.
    let [_, stopped] = others;
    drop(stopped);
    let gone = answer(vec![first, ("gone".to_owned(), clients[1].clone())]).await;
    assert!(
        matches!(gone.answers.as_ref().unwrap().of(Probe::StaleRefused), Some(Outcome::Inconclusive(why)) if why.contains("API server gone"))
    );
}

/// Whom nobody can tell from others gets no grant: it is said why, and nothing that worked is taken away.
#[tokio::test]
async fn a_holder_that_is_no_pod_is_named_and_has_a_way_out() {
    let objects = Objects::new().await;
    let _operator = objects.run();
    objects.declare(spec("PodIdentity")).await;
    objects.lab.lease("a").put(Some("somebody"), Some(0), at(0)).await;
    let said = |status: &FencedLockStatus| {
        status.conditions.iter().any(|c| c.type_ == on::EPOCH_ACTIVE && c.status == "False" && c.reason == "HolderPodUnknown")
    };
    let lock = objects.lab.until("a", "HolderPodUnknown", said).await;
    assert!(condition_of(lock.status.as_ref().unwrap(), on::EPOCH_ACTIVE).message.contains("claim: Annotation"));
    assert_eq!(objects.worker("worker-a").await.merge(&objects.web(), data("a")).await.status, 200, "nothing is fenced yet");
    let annotation = Patch::Merge(json!({"spec": {"kubernetes": {"claim": "Annotation"}}}));
    objects.lab.boundaries().patch("objects", &PatchParams::default(), &annotation).await.unwrap();
    objects.lab.until_active("a", 1, "somebody").await;
    let claim = json!({"metadata": {"annotations": {"fencedlock.dev/claim": "1.1.somebody"}}, "data": {"owner": "somebody"}});
    assert_eq!(objects.worker("worker-a").await.merge(&objects.web(), claim).await.status, 200);
}

/// B02, protocol section 4: one process that owns the lock twice, with somebody else in between, could write in its second term what it sent
/// in its first. It is held back and told so, and its way back is a new process.
#[tokio::test]
async fn a_process_that_comes_back_is_held_back_until_it_is_a_new_one() {
    let objects = Objects::new().await;
    let web = objects.web();
    let long_ago = Timestamp::now() - SignedDuration::from_hours(1);
    for pod in ["worker-a", "worker-b"] {
        objects.started(pod, long_ago);
    }
    let (a, b) = (objects.worker("worker-a").await, objects.worker("worker-b").await);
    let _operator = objects.run();
    objects.declare(spec("PodIdentity")).await;
    let lease = objects.lab.lease("a");
    let [first, second] =
        ["5f2c0c1e-7d0a-4a53-9a3c-0a5d5f6b7c8d", "6f2c0c1e-7d0a-4a53-9a3c-0a5d5f6b7c8d"].map(|uuid| format!("worker-a_{uuid}"));
    let after = |minutes: i64| Some(MicroTime(long_ago + SignedDuration::from_mins(minutes)));
    lease.put(Some(&first), Some(0), after(1)).await;
    objects.lab.until_active("a", 1, &first).await;
    // It crashes while it owns the lock, and the process that follows it has an identity of its own.
    objects.started("worker-a", long_ago + SignedDuration::from_mins(2));
    lease.put(Some("worker-b"), Some(1), after(3)).await;
    objects.lab.until_active("a", 2, "worker-b").await;
    lease.put(Some(&second), Some(2), after(4)).await;
    objects.lab.until_active("a", 3, &second).await;
    assert_eq!(a.merge(&web, data("a again")).await.status, 200);

    lease.put(Some("worker-b"), Some(3), after(5)).await;
    let is = |status: &FencedLockStatus| condition_of(status, on::EPOCH_ACTIVE).reason == "ProcessReused";
    let status = objects.lab.until("a", "ProcessReused", is).await.status.unwrap();
    let said = condition_of(&status, on::EPOCH_ACTIVE).message;
    for wanted in ["under epoch 2", "container \"c\"", "kubectl delete pod"] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    assert_eq!(status.recent_owners.iter().map(|owner| owner.epoch.get()).collect::<Vec<_>>(), [2, 3], "that of epoch 1 is dead");
    let refused = b.merge(&web, data("late")).await;
    assert!(refused.status == 403 && refused.message.contains("epoch 3 of write boundary objects belongs to worker-a"), "{refused:?}");
    objects.started("worker-b", Timestamp::now() + SignedDuration::from_secs(2));
    objects.lab.until_active("a", 4, "worker-b").await;
    assert_eq!(b.merge(&web, data("b again")).await.status, 200);
    assert_eq!(a.merge(&web, data("late")).await.status, 403);
}

/// Every probe that counts passes on the canary and on the targets, whichever way owners are recognised.
#[tokio::test]
async fn every_probe_that_counts_passes_on_what_the_chart_installs() {
    for claim in ["PodIdentity", "Annotation"] {
        let objects = Objects::new().await;
        let backend = objects.backend(spec(claim), GuardMode::Enforce);
        assert_eq!(backend.activate(&owner(7, "worker-a", Some(objects.uid("worker-a")))).await, Ok(Activation::Activated));
        let examined = backend.examine(&Ask::default()).await.unwrap();
        let answers = examined.answers.as_ref().unwrap_or_else(|| panic!("{claim}: {:?}", examined.unfinished));
        for probe in Probe::ALL {
            match right(probe, &examined.profile) {
                Right::MustPass | Right::PassOrLimit(_) => assert_eq!(answers.of(probe), Some(&Outcome::Passed), "{claim}: {probe}"),
                Right::Limit(limit) => assert_eq!(limit, LimitName::CreateNotFenced, "{claim}: {probe}"),
                Right::NotApplicable(_) => {}
            }
        }
        assert_eq!((examined.guard_altered, examined.shared), (None, None));
        assert_eq!(examined.fence.as_ref().unwrap().owner(), (Epoch::new(7).unwrap(), "worker-a".to_owned()));
        assert_eq!((&examined.bypasses, &examined.unfinished), (&vec![], &None), "nobody but those who can do everything goes around");
        let (seen, proven) = conclude(&backend.examine(&Ask::default()).await.unwrap(), None, Some(1), Timestamp::now());
        assert!(proven.is_some(), "{seen:?}");
        assert_eq!(seen.limits, [LimitName::CreateNotFenced]);
        // Other tests' operators have canaries there at the same time; this one's is named in what it would have left.
        let made = objects.lab.plane.requests_of("system:serviceaccount:fencedlock:fencedlock");
        let of = |verb: &str| {
            let pod = &objects.pod_uid;
            let is = |event: &&Value| {
                event["verb"] == verb
                    && event["objectRef"]["resource"] == "configmaps"
                    && event["objectRef"]["namespace"] == "fencedlock"
                    && event["user"]["extra"]["authentication.kubernetes.io/pod-uid"][0] == pod.as_str()
                    && event["responseStatus"]["code"].as_u64().is_some_and(|code| code < 300)
            };
            made.iter().filter(is).count()
        };
        assert_eq!(
            (of("create"), of("delete")),
            (4, 4),
            "{claim}: what was made was taken away: for all API servers, for the script, and all again"
        );
    }
}

/// The fence goes up, and what is ahead is not passed.
#[tokio::test]
async fn an_activation_is_monotone_and_repeatable() {
    let objects = Objects::new().await;
    let backend = objects.backend(spec("PodIdentity"), GuardMode::Enforce);
    let (a, b) = (objects.uid("worker-a"), objects.uid("worker-b"));
    let activate = async |epoch: u64, holder: &str, uid: &str| backend.activate(&owner(epoch, holder, Some(uid.to_owned()))).await;
    assert_eq!(activate(7, "worker-a", &a).await, Ok(Activation::Activated));
    assert_eq!(activate(7, "worker-a", &a).await, Ok(Activation::Unchanged));
    for (epoch, holder, uid) in [(6, "worker-b", &b), (7, "worker-b", &b), (7, "worker-a", &b)] {
        let answer = activate(epoch, holder, uid).await;
        assert!(matches!(&answer, Ok(Activation::Superseded(fence)) if fence.epoch.get() == 7), "{epoch} {holder}: {answer:?}");
    }
    assert_eq!(activate(8, "worker-b", &b).await, Ok(Activation::Activated));
    let observed = backend.observe().await.unwrap();
    assert_eq!((observed.fence.unwrap().owner(), observed.trusted), ((Epoch::new(8).unwrap(), "worker-b".to_owned()), true));
    // Exemptions are changed under the same epoch, and withdrawn.
    let mut exempting = spec("PodIdentity");
    exempting["exemptions"] = json!([{"user": format!("system:serviceaccount:{}:worker", objects.lab.namespace), "reason": "r"}]);
    let at_8 = owner(8, "worker-b", Some(b.clone()));
    assert_eq!(objects.backend(exempting, GuardMode::Enforce).activate(&at_8).await, Ok(Activation::Activated));
    assert_eq!(objects.worker("worker-a").await.merge(&objects.web(), data("exempt")).await.status, 200);
    assert_eq!(backend.activate(&at_8).await, Ok(Activation::Activated));
    assert_eq!(objects.worker("worker-a").await.merge(&objects.web(), data("late")).await.status, 403);
    // Observing refuses nothing.
    assert_eq!(objects.backend(spec("PodIdentity"), GuardMode::Observe).activate(&at_8).await, Ok(Activation::Activated));
    assert_eq!(objects.worker("worker-a").await.merge(&objects.web(), data("observed")).await.status, 200);
}

/// Many targets, by label, stamped side by side; an activation that is broken off is finished by the next one.
#[tokio::test]
async fn many_targets_are_stamped_and_a_broken_off_activation_is_finished() {
    let objects = Objects::new().await;
    let items: Vec<Value> = (0..150)
        .map(|n| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("many-{n}"), "labels": {"app": "many"}}}))
        .collect();
    objects.lab.plane.kubectl(
        &["create", "-n", &objects.lab.namespace, "-f", "-"],
        &json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string(),
    );
    let backend = objects
        .backend(json!({"claim": "PodIdentity", "targets": [{"resource": "configmaps", "selector": "app=many"}]}), GuardMode::Enforce);
    let (a, b) = (objects.uid("worker-a"), objects.uid("worker-b"));
    let stamped = |epoch: u64| {
        let list = objects.lab.plane.kubectl(&["get", "configmaps", "-n", &objects.lab.namespace, "-l", "app=many", "-o", "json"], "");
        let list: Value = serde_json::from_str(&list).unwrap();
        let is = |item: &&Value| item["metadata"]["annotations"]["fencedlock.dev/epoch"].as_str() == Some(&*epoch.to_string());
        list["items"].as_array().unwrap().iter().filter(is).count()
    };
    // Broken off as soon as some are stamped.
    let at_7 = owner(7, "worker-a", Some(a));
    let activation = backend.activate(&at_7);
    let some = async {
        while stamped(7) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! { _ = activation => {}, () = some => {} }
    let examined = backend.examine(&Ask::default()).await.unwrap();
    assert!(stamped(7) == 150 || examined.fence.is_none(), "a fence that is not everywhere is none");
    backend.activate(&at_7).await.unwrap();
    assert_eq!(stamped(7), 150);
    assert_eq!(backend.activate(&owner(8, "worker-b", Some(b))).await, Ok(Activation::Activated));
    assert_eq!(stamped(8), 150);
    // The owner takes one out of the selector: the next owner gets it all the same.
    let out = format!("/api/v1/namespaces/{}/configmaps/many-0", objects.lab.namespace);
    assert_eq!(objects.worker("worker-b").await.merge(&out, json!({"metadata": {"labels": {"app": "few"}}})).await.status, 200);
    assert_eq!(backend.activate(&owner(9, "worker-a", Some(objects.uid("worker-a")))).await, Ok(Activation::Activated));
    assert_eq!(objects.worker("worker-a").await.merge(&out, data("mine")).await.status, 200);
    assert_eq!(backend.examine(&Ask::default()).await.unwrap().fence.unwrap().epoch.get(), 9);
}

/// Bad targets are named by their field, and a missing right by its verb.
#[tokio::test]
async fn what_is_wrong_with_targets_is_said() {
    let objects = Objects::without_rights(&PLANE).await;
    for (target, wanted) in [
        (
            json!({"resource": "nothings", "names": ["x"]}),
            "spec.kubernetes.targets[0].resource: the API server serves no \"nothings\" in the core group",
        ),
        (
            json!({"group": "nowhere.example", "resource": "x", "names": ["x"]}),
            "spec.kubernetes.targets[0].group: the API server serves no group \"nowhere.example\"",
        ),
        (json!({"resource": "nodes", "names": ["x"]}), "nodes are not in namespaces"),
        (json!({"resource": "services", "names": ["x"]}), "EndpointSlices"),
        (json!({"resource": "pods", "names": ["x"]}), "/binding"),
        (json!({"group": "fencedlock.dev", "resource": "fencedlocks", "names": ["x"]}), "the operator could not write"),
        (json!({"resource": "configmaps", "names": ["fencedlock-epochs"]}), "reserves epochs"),
        (json!({"group": "coordination.k8s.io", "resource": "leases", "names": ["x"]}), "stop the elections"),
        (json!({"resource": "configmaps", "names": ["web"]}), "the operator may not get configmaps"),
        (json!({"resource": "configmaps", "selector": "app=web"}), "the operator may not list configmaps"),
    ] {
        let backend = objects.backend(json!({"claim": "PodIdentity", "targets": [target]}), GuardMode::Enforce);
        let said = backend.examine(&Ask::default()).await.unwrap_err().to_string();
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    objects.team_binds("configmaps", &["get", "list"]);
    let backend = objects.backend(spec("PodIdentity"), GuardMode::Enforce);
    let said = backend.activate(&owner(1, "worker-a", Some(objects.uid("worker-a")))).await.unwrap_err().to_string();
    assert!(said.contains("cannot patch resource \"configmaps\""), "{said}");
    // An object belongs to one lock.
    let objects = Objects::new().await;
    let at_1 = owner(1, "worker-a", Some(objects.uid("worker-a")));
    objects.backend(spec("PodIdentity"), GuardMode::Enforce).activate(&at_1).await.unwrap();
    let spec: KubernetesBoundary = serde_json::from_value(spec("PodIdentity")).unwrap();
    let other = Kubernetes::new(objects.operator.clone(), objects.lab.namespace.clone(), "other".into(), spec, GuardMode::Enforce);
    assert!(other.activate(&at_1).await.unwrap_err().to_string().contains("one object belongs to one lock"));
    assert!(other.examine(&Ask::default()).await.unwrap().shared.unwrap().contains("fenced by write boundary \"objects\""));
}

/// Breaking the glass, and giving objects back for good, as docs/kubernetes.md says it, step by step.
#[tokio::test]
async fn the_glass_can_be_broken_and_objects_given_back() {
    static OWN: LazyLock<Plane> = LazyLock::new(|| plane("glass"));
    let objects = Objects::on(&OWN).await;
    let (namespace, web) = (objects.lab.namespace.as_str(), objects.web());
    OWN.kubectl(&["label", "namespace", namespace, "fencedlock.dev/named=true"], "");
    let configmaps = format!("/api/v1/namespaces/{namespace}/configmaps");
    let never = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "never"}});
    let operator = objects.run();
    objects.declare_every("1h", json!({"claim": "PodIdentity", "targets": [{"resource": "configmaps", "names": ["web", "never"]}]})).await;
    objects.lab.lease("a").put(Some("worker-a"), Some(0), at(0)).await;
    objects.lab.until_active("a", 1, "worker-a").await;
    objects.until_verdict(BoundaryVerdict::Proven, "AllProbesPassed").await;
    let b = objects.worker("worker-b").await;
    let until = async |status: u16| objects.refuses(&b, &web, status == 403).await;
    until(403).await;
    OWN.kubectl(&["delete", "validatingadmissionpolicybinding", "fencedlock-guard", "fencedlock-named"], "");
    until(200).await;
    let status = objects.until_verdict(BoundaryVerdict::Violated, "GuardAltered").await;
    let installed = status.conditions.iter().find(|c| c.type_ == on_boundary::GUARD_INSTALLED).unwrap();
    assert!(installed.message.contains("ValidatingAdmissionPolicyBinding \"fencedlock-guard\" is not there"), "{installed:?}");
    OWN.kubectl(&["apply", "-f", "-"], &policies());
    until(403).await;
    objects.until_verdict(BoundaryVerdict::Proven, "AllProbesPassed").await;

    // For good.
    assert_eq!(b.send("POST", &configmaps, PLAIN, &never).await.status, 403, "what is named and not there is fenced too");
    objects.lab.boundaries().delete("objects", &kube::api::DeleteParams::default()).await.unwrap();
    operator.stop().await;
    until(403).await;
    OWN.kubectl(&["label", "namespace", namespace, "fencedlock.dev/named-"], "");
    OWN.kubectl(&["delete", "validatingadmissionpolicybinding/fencedlock-guard", "mutatingadmissionpolicybinding/fencedlock-carry"], "");
    until(200).await;
    let labels = ["boundary", "mode", "claim-kind"].map(|key| format!("fencedlock.dev/{key}-"));
    let began = std::time::Instant::now();
    // Until the carrying policy is out of force it puts them back.
    while !OWN.kubectl(&["get", "configmaps", "-n", namespace, "-l", "fencedlock.dev/boundary=objects", "-o", "name"], "").is_empty() {
        assert!(began.elapsed() < Duration::from_secs(30), "the label stays");
        OWN.kubectl(&[&["label", "configmap", "web", "-n", namespace][..], &labels.each_ref().map(String::as_str)[..]].concat(), "");
    }
    let annotations = ["epoch", "holder", "holder-uid", "exempt", "status-writers", "claim"].map(|key| format!("fencedlock.dev/{key}-"));
    OWN.kubectl(&[&["annotate", "configmap", "web", "-n", namespace][..], &annotations.each_ref().map(String::as_str)[..]].concat(), "");
    OWN.kubectl(&["apply", "-f", "-"], &policies());
    // The guard is in force again for what carries the label, and this does not.
    let sentinel = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "s", "labels": {"fencedlock.dev/boundary": "x"}}});
    let began = std::time::Instant::now();
    while b.send("POST", &format!("/api/v1/namespaces/{namespace}/configmaps?dryRun=All"), PLAIN, &sentinel).await.status != 403 {
        assert!(began.elapsed() < Duration::from_secs(30), "the guard is not back");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(b.merge(&web, data("mine")).await.status, 200);
    assert_eq!(b.send("POST", &configmaps, PLAIN, &never).await.status, 201);
}
