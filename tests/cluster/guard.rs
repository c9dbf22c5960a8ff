//! The guard of Kubernetes objects as the chart installs it, request by request, with tokens that are bound to real pods. The operator's own
//! requests are made by hand here: these tests are about what the API server admits.

use std::{
    process::Command,
    sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering},
    },
};

use crate::support::{
    lab::{LIMIT, admin},
    plane::{Plane, tool},
    requests::{APPLY, JSON_PATCH, PLAIN, Reply, Requester, STRATEGIC},
};
use serde_json::{Value, json};

/// A control plane with the chart's policies; the operator is ServiceAccount fencedlock in namespace fencedlock.
pub static PLANE: LazyLock<Plane> = LazyLock::new(|| plane("guard"));

/// One of one's own, for a test that takes the policies away.
pub fn plane(name: &str) -> Plane {
    let plane = Plane::start(name);
    plane.install_crds();
    plane.kubectl(&["create", "namespace", "fencedlock"], "");
    plane.kubectl(&["apply", "-f", "-"], &policies());
    plane
}

/// The policies as the chart renders them.
pub fn policies() -> String {
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/fencedlock");
    let output = Command::new(tool("helm"))
        .args(["template", "fencedlock", chart, "--namespace", "fencedlock", "--set", "guard.named=true"])
        .args(["--api-versions", "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"])
        .args(["--show-only", "templates/guard.yaml", "--show-only", "templates/serviceaccount.yaml"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A namespace with two workers' pods, and everybody who makes requests in it.
struct Guarded {
    namespace: String,
    uids: [String; 2],
    a: Requester,
    b: Requester,
    operator: Requester,
    root: Requester,
    helm: Requester,
}

const BOUNDARY: &str = "fencedlock.dev/boundary";

impl Guarded {
    async fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let namespace = format!("guarded-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let client = admin(&PLANE).await;
        PLANE.kubectl(&["create", "namespace", &namespace], "");
        let pod = |name: &str| {
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
                   "spec": {"serviceAccountName": "worker", "containers": [{"name": "c", "image": "x"}]}})
        };
        let subject = |name: &str| json!({"kind": "ServiceAccount", "name": name, "namespace": namespace});
        let items = json!({"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "worker"}},
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "root"}},
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "helm"}},
            {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "all"},
             "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]},
            {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "all"},
             "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "all"},
             "subjects": [subject("worker"), subject("root"), subject("helm"),
                {"kind": "ServiceAccount", "name": "fencedlock", "namespace": "fencedlock"}]},
            pod("worker-a"), pod("worker-b"),
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web"}, "data": {"owner": "none"}},
            {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {
                "selector": {"matchLabels": {"app": "d"}}, "template": {"metadata": {"labels": {"app": "d"}},
                "spec": {"containers": [{"name": "c", "image": "x"}]}}}}]});
        PLANE.kubectl(&["apply", "-n", &namespace, "-f", "-"], &items.to_string());
        PLANE.kubectl(
            &["create", "clusterrolebinding", &namespace, "--clusterrole=cluster-admin", &format!("--serviceaccount={namespace}:root")],
            "",
        );
        let uid = |pod: &str| PLANE.kubectl(&["get", "pod", pod, "-n", &namespace, "-o", "jsonpath={.metadata.uid}"], "");
        let uids = [uid("worker-a"), uid("worker-b")];
        let of = async |account: &str, pod: Option<(&str, &str)>| Requester::account(&PLANE, &client, &namespace, account, pod).await;
        let (a, b) = (of("worker", Some(("worker-a", &uids[0]))).await, of("worker", Some(("worker-b", &uids[1]))).await);
        let operator = Requester::account(&PLANE, &client, "fencedlock", "fencedlock", None).await;
        let (root, helm) = (of("root", None).await, of("helm", None).await);
        let guarded = Self { namespace, uids, a, b, operator, root, helm };
        guarded.until_in_force().await;
        guarded
    }

    /// Policies are in force some time after they were created: first the guard, then what carries.
    async fn until_in_force(&self) {
        let labelled = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "labels": {BOUNDARY: "x"}}});
        let began = std::time::Instant::now();
        let path = self.path("configmaps", "?dryRun=All");
        while self.a.send("POST", &path, PLAIN, &labelled).await.status != 403 {
            assert!(began.elapsed() < LIMIT, "the guard is not in force");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        let stamped = self.stamped("sentinel", 1, "", "", json!({"boundary": "sentinel"}));
        assert_eq!(self.operator.send("POST", &self.path("configmaps", ""), PLAIN, &stamped).await.status, 201);
        let whole = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "sentinel"}});
        loop {
            let reply = self.root.send("PUT", &self.path("configmaps", "/sentinel?dryRun=All"), PLAIN, &whole).await;
            // What was not carried would be refused for the fence that is missing.
            if reply.message.contains("belongs to nobody") {
                break;
            }
            assert!(began.elapsed() < LIMIT, "nothing is carried: {reply:?}");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    fn path(&self, resource: &str, rest: &str) -> String {
        let group = if resource == "deployments" { "/apis/apps/v1" } else { "/api/v1" };
        format!("{group}/namespaces/{}/{resource}{rest}", self.namespace)
    }

    fn web(&self) -> String {
        self.path("configmaps", "/web")
    }

    fn stamp(&self, epoch: impl std::fmt::Display, holder: &str, uid: &str, more: Value) -> Value {
        let mut stamp = json!({
            "labels": {BOUNDARY: "web-config", "fencedlock.dev/mode": "Enforce", "fencedlock.dev/claim-kind": "PodIdentity"},
            "annotations": {"fencedlock.dev/epoch": epoch.to_string(), "fencedlock.dev/holder": holder, "fencedlock.dev/holder-uid": uid,
                "fencedlock.dev/exempt": "", "fencedlock.dev/status-writers": ""}});
        for (key, value) in more.as_object().unwrap() {
            let place = if ["mode", "claim-kind", "boundary"].contains(&key.as_str()) { "labels" } else { "annotations" };
            stamp[place][format!("fencedlock.dev/{key}")] = value.clone();
        }
        json!({"metadata": stamp})
    }

    fn stamped(&self, name: &str, epoch: u64, holder: &str, uid: &str, more: Value) -> Value {
        let mut object = self.stamp(epoch, holder, uid, more);
        object["apiVersion"] = "v1".into();
        object["kind"] = "ConfigMap".into();
        object["metadata"]["name"] = name.into();
        object
    }

    /// The operator activates an epoch on the ConfigMap.
    async fn activate(&self, epoch: u64, holder: usize, more: Value) -> Reply {
        let name = ["worker-a", "worker-b"][holder];
        self.operator.merge(&self.web(), self.stamp(epoch, name, &self.uids[holder], more)).await
    }

    async fn stored(&self) -> Value {
        self.root.send("GET", &self.web(), PLAIN, &Value::Null).await.body
    }
}

fn data(owner: &str) -> Value {
    json!({"data": {"owner": owner}})
}

fn whole(owner: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web"}, "data": {"owner": owner}})
}

#[track_caller]
fn admitted(reply: &Reply) {
    assert!((200..300).contains(&reply.status), "{reply:?}");
}

#[track_caller]
fn refused(reply: &Reply, word: &str) {
    assert_eq!(reply.status, 403, "{reply:?}");
    assert!(reply.message.contains("fencedlock: ") && reply.message.contains(word), "{word}: {reply:?}");
}

/// Every way to write: the owner gets in, and whoever does not own the lock any more is refused in words that say what to do.
#[tokio::test]
async fn an_old_owner_is_refused_whatever_it_sends() {
    let g = Guarded::new().await;
    admitted(&g.a.merge(&g.web(), data("unguarded")).await);
    refused(&g.a.merge(&g.web(), g.stamp(7, "worker-a", &g.uids[0], json!({}))).await, "only the operator");
    admitted(&g.activate(41, 0, json!({})).await);
    let writes = async |who: &Requester, word: &str| {
        let web = g.web();
        vec![
            who.merge(&web, data(word)).await,
            who.send("PATCH", &web, JSON_PATCH, &json!([{"op": "replace", "path": "/data/owner", "value": format!("{word} json")}])).await,
            who.send("PATCH", &web, STRATEGIC, &data(&format!("{word} strategic"))).await,
            who.send("PATCH", &format!("{web}?fieldManager={word}&force=true"), APPLY, &whole(&format!("{word} applied"))).await,
            who.send("PUT", &web, PLAIN, &whole(&format!("{word} put"))).await,
        ]
    };
    for reply in writes(&g.a, "a").await {
        admitted(&reply);
    }
    let fence = |object: &Value| (object["metadata"]["labels"].clone(), object["metadata"]["annotations"].clone());
    let before = g.stored().await;
    assert_eq!(before["metadata"]["annotations"]["fencedlock.dev/epoch"], "41", "a PUT from scratch carries the fence on");
    for reply in writes(&g.b, "b").await {
        refused(&reply, "epoch 41 of write boundary web-config belongs to worker-a, and this request is not by it (pod worker-b)");
    }
    admitted(&g.activate(42, 1, json!({"exempt": format!("system:serviceaccount:{}:helm\nsomebody", g.namespace)})).await);
    for reply in writes(&g.a, "stale").await {
        refused(&reply, "acquire the lock again");
    }
    let strip = json!({"metadata": {"labels": {BOUNDARY: null}, "annotations": null}, "data": {"owner": "stale"}});
    refused(&g.a.merge(&g.web(), strip).await, "belongs to worker-b");
    refused(&g.a.send("DELETE", &g.web(), PLAIN, &Value::Null).await, "belongs to worker-b");
    refused(
        &g.a.send("DELETE", &g.path("configmaps", "?labelSelector=fencedlock.dev/boundary=web-config"), PLAIN, &Value::Null).await,
        "belongs to worker-b",
    );
    refused(
        &g.a.send(
            "POST",
            &g.path("configmaps", ""),
            PLAIN,
            &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "n", "labels": {BOUNDARY: "web-config"}}}),
        )
        .await,
        "only the operator",
    );
    admitted(&g.a.merge(&g.web(), json!({})).await);
    // cluster-admin is no owner, and an exempted user may write.
    refused(&g.root.merge(&g.web(), data("root")).await, "belongs to worker-b");
    refused(&g.operator.merge(&g.web(), data("operator")).await, "belongs to worker-b");
    refused(&g.operator.merge(&format!("{}?dryRun=All", g.web()), data("operator")).await, "belongs to worker-b");
    admitted(&g.helm.merge(&g.web(), data("helm")).await);
    admitted(&g.helm.send("PUT", &g.web(), PLAIN, &whole("helm put")).await);
    let after = g.stored().await;
    assert_eq!(after["data"]["owner"], "helm put");
    refused(&g.root.merge(&g.web(), json!({"metadata": {"annotations": {"fencedlock.dev/epoch": "999999"}}})).await, "belongs to worker-b");
    admitted(&g.b.merge(&g.web(), json!({"metadata": {"annotations": {"fencedlock.dev/epoch": "999999"}}})).await);
    assert_eq!(fence(&g.stored().await), fence(&after), "carried, not moved");
    refused(&g.root.merge(&g.web(), json!({"metadata": {"annotations": {"fencedlock.dev/new": "1"}}})).await, "only the operator");
    refused(&g.root.merge(&g.web(), json!({"metadata": {"labels": {"fencedlock.dev/new": "1"}}})).await, "only the operator");
    admitted(&g.b.merge(&g.web(), data("b")).await);
    admitted(&g.b.send("DELETE", &g.web(), PLAIN, &Value::Null).await);
}

/// The fence moves up and in no other way, by the operator and nobody else.
#[tokio::test]
async fn the_fence_moves_up_and_only_by_the_operator() {
    let g = Guarded::new().await;
    admitted(&g.activate(42, 1, json!({})).await);
    let up = "only up from epoch 42";
    for epoch in ["41", "043", "+43", "43.0", "0", "-1", "", "9007199254740992", "99999999999999999"] {
        refused(&g.operator.merge(&g.web(), g.stamp(epoch, "worker-a", &g.uids[0], json!({}))).await, up);
    }
    refused(&g.activate(42, 0, json!({})).await, up);
    for (key, value) in [
        ("mode", json!("Off")),
        ("claim-kind", json!("None")),
        ("holder", Value::Null),
        ("holder-uid", Value::Null),
        ("exempt", Value::Null),
    ] {
        refused(&g.activate(43, 0, json!({key: value})).await, up);
    }
    refused(&g.activate(43, 0, json!({"boundary": "other"})).await, "fenced by write boundary web-config, and cannot be by other as well");
    // At the same epoch and holder: exemptions and mode, and nothing else.
    let helm = format!("system:serviceaccount:{}:helm", g.namespace);
    admitted(&g.activate(42, 1, json!({"exempt": helm})).await);
    admitted(&g.helm.merge(&g.web(), data("helm")).await);
    admitted(&g.activate(42, 1, json!({"exempt": ""})).await);
    refused(&g.helm.merge(&g.web(), data("helm again")).await, "belongs to worker-b");
    refused(&g.activate(42, 1, json!({"claim-kind": "Annotation"})).await, up);
    refused(&g.operator.merge(&g.web(), g.stamp(42, "worker-b", "another", json!({}))).await, up);
    // Nobody owns it: nobody gets in, not even a pod without a uid.
    admitted(&g.operator.merge(&g.web(), g.stamp(43, "", "", json!({}))).await);
    refused(&g.b.merge(&g.web(), data("b")).await, "belongs to nobody");
    refused(&g.helm.merge(&g.web(), data("helm again")).await, "belongs to nobody");
    // It is given back whole, and not in part.
    let part = json!({"metadata": {"labels": {BOUNDARY: null}}});
    refused(&g.operator.merge(&g.web(), part).await, "only up from epoch 43");
    let all = json!({"metadata": {"labels": {BOUNDARY: null, "fencedlock.dev/mode": null, "fencedlock.dev/claim-kind": null},
        "annotations": {"fencedlock.dev/epoch": null, "fencedlock.dev/holder": null, "fencedlock.dev/holder-uid": null,
            "fencedlock.dev/exempt": null, "fencedlock.dev/status-writers": null}}});
    admitted(&g.operator.merge(&g.web(), all).await);
    admitted(&g.a.merge(&g.web(), data("a")).await);
}

/// Mode Observe refuses nothing, warns whoever would have been, and protects the fence all the same.
#[tokio::test]
async fn observing_warns_and_refuses_nothing() {
    let g = Guarded::new().await;
    admitted(&g.activate(5, 0, json!({"mode": "Observe"})).await);
    let owner = g.a.merge(&g.web(), data("a")).await;
    assert!(owner.status == 200 && owner.warnings.is_empty(), "{owner:?}");
    let other = g.b.merge(&g.web(), data("b")).await;
    assert_eq!(other.status, 200);
    assert!(other.warnings.iter().any(|warning| warning.contains("belongs to worker-a")), "{other:?}");
    admitted(&g.activate(5, 0, json!({"mode": "Enforce"})).await);
    refused(&g.b.merge(&g.web(), data("b again")).await, "belongs to worker-a");
    let forged = json!({"metadata": {"labels": {"fencedlock.dev/mode": "Observe"}}, "data": {"owner": "forged"}});
    refused(&g.b.merge(&g.web(), forged).await, "belongs to worker-a");
}

/// Writers that are no pods claim in the object itself; each claim is good once.
#[tokio::test]
async fn a_claim_in_an_annotation_is_good_once() {
    let g = Guarded::new().await;
    admitted(&g.activate(41, 0, json!({"claim-kind": "Annotation", "holder": "batch.eu-1", "holder-uid": ""})).await);
    let write = async |claim: &str, word: &str| {
        let body = json!({"metadata": {"annotations": {"fencedlock.dev/claim": claim}}, "data": {"owner": word}});
        g.b.merge(&g.web(), body).await
    };
    refused(&g.b.merge(&g.web(), data("without")).await, "the next one is \\\"41.1.batch.eu-1\\\"".replace("\\\"", "\"").as_str());
    admitted(&write("41.1.batch.eu-1", "one").await);
    for wrong in [
        "41.1.batch.eu-1",
        "41.3.batch.eu-1",
        "41.02.batch.eu-1",
        "+41.2.batch.eu-1",
        "41.2.batch.eu-2",
        "41.2.",
        "40.2.batch.eu-1",
        "42.2.batch.eu-1",
        "41.2.batch.eu-1 ",
        "",
    ] {
        refused(&write(wrong, "wrong").await, "41.2.batch.eu-1");
    }
    admitted(&write("41.2.batch.eu-1", "two").await);
    let put = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web", "annotations": {"fencedlock.dev/claim": "41.3.batch.eu-1"}}, "data": {"owner": "three"}});
    admitted(&g.b.send("PUT", &g.web(), PLAIN, &put).await);
    refused(&g.b.send("PUT", &g.web(), PLAIN, &whole("none")).await, "41.4.batch.eu-1");
    refused(&g.b.send("DELETE", &g.web(), PLAIN, &Value::Null).await, "belongs to batch.eu-1");
    assert_eq!(g.stored().await["data"]["owner"], "three");
    // Under the next epoch the count begins again, and the old claim is over.
    admitted(&g.activate(42, 0, json!({"claim-kind": "Annotation", "holder": "batch.eu-1", "holder-uid": ""})).await);
    refused(&write("41.4.batch.eu-1", "old").await, "42.1.batch.eu-1");
    admitted(&write("42.1.batch.eu-1", "again").await);
    // An exempted user neither needs a claim nor may make one up.
    let helm = format!("system:serviceaccount:{}:helm", g.namespace);
    admitted(
        &g.activate(
            42,
            0,
            json!({"claim-kind": "Annotation", "holder": "batch.eu-1", "holder-uid": "", "exempt": helm, "claim": "42.1.batch.eu-1"}),
        )
        .await,
    );
    admitted(&g.helm.send("PUT", &g.web(), PLAIN, &whole("helm")).await);
    let made_up = json!({"metadata": {"annotations": {"fencedlock.dev/claim": "42.9.batch.eu-1"}}});
    refused(&g.helm.merge(&g.web(), made_up).await, "42.2.batch.eu-1");
    // Nobody owns it: no claim is right.
    admitted(&g.activate(43, 0, json!({"claim-kind": "Annotation", "holder": "", "holder-uid": ""})).await);
    refused(&write("43.1.", "nobody").await, "belongs to nobody");
}

/// The cluster's own housekeeping goes on: deletion by the garbage collector and the namespace controller, and finalizers.
#[tokio::test]
async fn housekeeping_goes_on_and_carries_no_data() {
    let g = Guarded::new().await;
    let finalizer = json!({"metadata": {"finalizers": ["example.com/one", "example.com/two"]}});
    admitted(&g.a.merge(&g.web(), finalizer).await);
    admitted(&g.activate(7, 0, json!({})).await);
    let remove = |left: Value| json!({"metadata": {"finalizers": left}});
    refused(&g.b.merge(&g.web(), remove(json!(["example.com/one"]))).await, "belongs to worker-a");
    admitted(&g.a.send("DELETE", &g.web(), PLAIN, &Value::Null).await);
    let with_data = json!({"metadata": {"finalizers": ["example.com/one"]}, "data": {"owner": "smuggled"}});
    refused(&g.b.merge(&g.web(), with_data).await, "belongs to worker-a");
    let with_label = json!({"metadata": {"finalizers": ["example.com/one"], "labels": {"more": "x"}}});
    refused(&g.b.merge(&g.web(), with_label).await, "belongs to worker-a");
    admitted(&g.b.merge(&g.web(), remove(json!(["example.com/one"]))).await);
    admitted(&g.b.merge(&g.web(), remove(json!(null))).await);
    assert_eq!(g.root.send("GET", &g.web(), PLAIN, &Value::Null).await.status, 404);
    // A dependent is orphaned by the garbage collector, and nothing is smuggled in with that.
    let gc = "system:serviceaccount:kube-system:generic-garbage-collector";
    let mut owned = g.stamped("owned", 7, "worker-a", &g.uids[0], json!({}));
    let reference = |n: u32| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": format!("o{n}"), "uid": format!("00000000-0000-0000-0000-00000000000{n}")});
    owned["metadata"]["ownerReferences"] = json!([reference(1), reference(2)]);
    admitted(&g.operator.send("POST", &g.path("configmaps", ""), PLAIN, &owned).await);
    let patch = |body: Value, user: &str| {
        let args = [
            "patch",
            "cm",
            "owned",
            "-n",
            &g.namespace,
            "--type=merge",
            "-p",
            &body.to_string(),
            "--as",
            user,
            "--as-group",
            "system:masters",
        ];
        PLANE.try_kubectl(&args, "")
    };
    let one = json!({"metadata": {"ownerReferences": [reference(1)]}});
    for (body, user) in [
        (json!({"metadata": {"ownerReferences": [reference(1)]}, "data": {"x": "y"}}), gc),
        (json!({"metadata": {"ownerReferences": [reference(1), reference(3)]}}), gc),
        (one.clone(), "somebody"),
    ] {
        let (ok, said) = patch(body, user);
        assert!(!ok && said.contains("belongs to worker-a"), "{said}");
    }
    let (ok, said) = patch(one, gc);
    assert!(ok, "{said}");
    for user in [
        "system:serviceaccount:kube-system:namespace-controller",
        "system:serviceaccount:kube-system:generic-garbage-collector",
        "system:kube-controller-manager",
    ] {
        let name = user.rsplit(':').next().unwrap();
        let stamped = g.stamped(name, 7, "worker-a", &g.uids[0], json!({}));
        admitted(&g.operator.send("POST", &g.path("configmaps", ""), PLAIN, &stamped).await);
        let (ok, said) = PLANE.try_kubectl(
            &[
                "patch",
                "cm",
                name,
                "-n",
                &g.namespace,
                "--type=merge",
                "-p",
                "{\"data\":{\"x\":\"y\"}}",
                "--as",
                user,
                "--as-group",
                "system:masters",
            ],
            "",
        );
        assert!(!ok && said.contains("belongs to worker-a"), "{said}");
        PLANE.kubectl(&["delete", "cm", name, "-n", &g.namespace, "--as", user, "--as-group", "system:masters"], "");
    }
}

/// A fence that nobody activated cannot be made: neither by creating an object with one, in any mode, nor by leaving no room for the next.
#[tokio::test]
async fn nobody_makes_or_freezes_a_fence() {
    let g = Guarded::new().await;
    for mode in ["Observe", "Enforce", "Off"] {
        let forged = g.stamped("forged", 9_007_199_254_740_991, "worker-a", &g.uids[0], json!({"mode": mode}));
        refused(&g.a.send("POST", &g.path("configmaps", ""), PLAIN, &forged).await, "only the operator");
        refused(&g.root.send("POST", &g.path("configmaps", ""), PLAIN, &forged).await, "only the operator");
    }
    admitted(&g.activate(7, 0, json!({})).await);
    let filled = |size: usize| json!({"metadata": {"annotations": {"filling": "x".repeat(size)}}});
    refused(&g.a.merge(&g.web(), filled(250_000)).await, "245760 bytes");
    admitted(&g.a.merge(&g.web(), filled(240_000)).await);
    admitted(&g.activate(8, 1, json!({})).await);
}

/// Subresources: those whose object is the target itself are guarded; those that are another kind pass unseen, which the operator names as limits.
#[tokio::test]
async fn subresources_are_guarded_where_the_object_is_seen() {
    let g = Guarded::new().await;
    let d = g.path("deployments", "/d");
    admitted(&g.operator.merge(&d, g.stamp(7, "worker-b", &g.uids[1], json!({}))).await);
    refused(&g.a.merge(&d, json!({"spec": {"replicas": 3}})).await, "belongs to worker-b");
    refused(&g.a.merge(&format!("{d}/status"), json!({"status": {"replicas": 4}})).await, "belongs to worker-b");
    admitted(&g.b.merge(&format!("{d}/status"), json!({"status": {"replicas": 4}})).await);
    let writer = format!("system:serviceaccount:{}:helm", g.namespace);
    admitted(&g.operator.merge(&d, g.stamp(7, "worker-b", &g.uids[1], json!({"status-writers": writer}))).await);
    admitted(&g.helm.merge(&format!("{d}/status"), json!({"status": {"replicas": 5}})).await);
    refused(&g.helm.merge(&d, json!({"spec": {"replicas": 3}})).await, "belongs to worker-b");
    // Known limits: ScaleNotFenced and CreateNotFenced.
    admitted(&g.a.merge(&format!("{d}/scale"), json!({"spec": {"replicas": 4}})).await);
    admitted(&g.b.send("DELETE", &d, PLAIN, &Value::Null).await);
}

/// A custom resource is guarded like everything else, its status too.
#[tokio::test]
async fn custom_resources_are_targets_too() {
    let g = Guarded::new().await;
    let path = format!("/apis/fencedlock.dev/v1alpha1/namespaces/{}/fencedlocks", g.namespace);
    let lock = json!({"apiVersion": "fencedlock.dev/v1alpha1", "kind": "FencedLock", "metadata": {"name": "l"},
        "spec": {"class": "EfficiencyOnly", "purpose": "p", "coordinator": {"lease": {"name": "l"}}}});
    admitted(&g.a.send("POST", &path, PLAIN, &lock).await);
    let path = format!("{path}/l");
    admitted(&g.operator.merge(&path, g.stamp(3, "worker-b", &g.uids[1], json!({}))).await);
    refused(&g.a.merge(&path, json!({"spec": {"purpose": "stale"}})).await, "belongs to worker-b");
    refused(&g.a.merge(&format!("{path}/status"), json!({"status": {"reason": "Stale"}})).await, "belongs to worker-b");
    admitted(&g.b.merge(&path, json!({"spec": {"purpose": "owner"}})).await);
    admitted(&g.b.merge(&format!("{path}/status"), json!({"status": {"reason": "Owner"}})).await);
}
