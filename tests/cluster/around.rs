//! Ways around the guard of Kubernetes objects: each is opened on a real API server, and has to be named.

use std::{sync::LazyLock, time::Duration};

use crate::{
    guard::{plane, policies},
    objects::{Objects, data, owner, spec},
    support::plane::Plane,
};
use fencedlock::{
    api::{BoundaryVerdict, GuardMode, conditions::boundary as on_boundary},
    boundary::{Activation, Ask, Backend, proof::Examination},
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

/// Rights that hold in the whole cluster concern every boundary of it.
static PLANE: LazyLock<Plane> = LazyLock::new(|| plane("around"));

fn right(verb: &str, group: &str, resource: &str, name: Option<&str>) -> Value {
    let names = name.map_or_else(Vec::new, |name| vec![name]);
    json!({"verbs": [verb], "apiGroups": [group], "resources": [resource], "resourceNames": names})
}

fn account(namespace: &str, name: &str) -> Value {
    json!({"kind": "ServiceAccount", "namespace": namespace, "name": name})
}

/// Gives a subject a right, in a namespace or everywhere, and takes it away with [`Given::take_away`].
struct Given(String);

impl Given {
    fn new(namespace: Option<&str>, rule: &Value, subject: &Value) -> Self {
        let kind = if namespace.is_some() { "Role" } else { "ClusterRole" };
        let api = "rbac.authorization.k8s.io";
        let metadata = json!({"name": "around", "namespace": namespace});
        let items = json!({"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": format!("{api}/v1"), "kind": kind, "metadata": metadata, "rules": [rule]},
            {"apiVersion": format!("{api}/v1"), "kind": format!("{kind}Binding"), "metadata": metadata, "subjects": [subject],
             "roleRef": {"apiGroup": api, "kind": kind, "name": "around"}}]});
        PLANE.kubectl(&["apply", "-f", "-"], &items.to_string());
        Self(items.to_string())
    }

    fn take_away(self) {
        PLANE.kubectl(&["delete", "-f", "-"], &self.0);
    }
}

impl Objects {
    /// Whether the API server itself lets a user do that, as soon as it knows of the right.
    async fn until_may(&self, user: &str, namespace: Option<&str>, rule: &Value) {
        let (resource, sub) = rule["resources"][0]
            .as_str()
            .unwrap()
            .split_once('/')
            .map_or_else(|| (rule["resources"][0].as_str().unwrap(), None), |(resource, sub)| (resource, Some(sub)));
        let attributes = json!({"verb": rule["verbs"][0], "group": rule["apiGroups"][0], "resource": resource, "subresource": sub,
            "namespace": namespace, "name": rule["resourceNames"][0]});
        let review: k8s_openapi::api::authorization::v1::SubjectAccessReview =
            serde_json::from_value(json!({"metadata": {}, "spec": {"user": user, "resourceAttributes": attributes}})).unwrap();
        let api = Api::all(self.lab.admin.clone());
        let began = std::time::Instant::now();
        while !api.create(&PostParams::default(), &review).await.unwrap().status.unwrap().allowed {
            assert!(began.elapsed() < Duration::from_secs(30), "the API server does not allow it: {attributes}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn examined(&self, spec: Value) -> Examination {
        self.backend(spec, GuardMode::Enforce).examine(&Ask { is_known: true, is_activated: true, ..Ask::default() }).await.unwrap()
    }
}

fn texts(examined: &Examination) -> Vec<&str> {
    examined.bypasses.iter().map(|bypass| bypass.text.as_str()).collect()
}

/// Everything that boundaries.md section 4 lists, each way opened alone: the API server itself says that it is open, and it is named.
#[tokio::test]
async fn every_right_that_goes_around_is_named() {
    let objects = Objects::on(&PLANE).await;
    let namespace = objects.lab.namespace.clone();
    let widgets = format!("widgets.{namespace}.example.com");
    let group = format!("{namespace}.example.com");
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": widgets}, "spec": {
        "group": group, "scope": "Namespaced", "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object",
            "x-kubernetes-preserve-unknown-fields": true}}}]}});
    PLANE.kubectl(&["apply", "-f", "-"], &definition.to_string());
    PLANE.kubectl(&["wait", "--for=condition=Established", "--timeout=30s", &format!("crd/{widgets}")], "");
    objects.team_binds(&widgets, &["get", "list", "patch"]);
    objects.team_binds("deployments.apps", &["get"]);
    // A Deployment owns a ConfigMap, by way of a Secret that nobody may read yet.
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "parent"}, "spec": {
        "selector": {"matchLabels": {"app": "d"}}, "template": {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}}});
    PLANE.kubectl(&["apply", "-n", &namespace, "-f", "-"], &deployment.to_string());
    let uid = |kind: &str, name: &str| PLANE.kubectl(&["get", kind, name, "-n", &namespace, "-o", "jsonpath={.metadata.uid}"], "");
    let owned_by = |version: &str, kind: &str, name: &str| json!([{"apiVersion": version, "kind": kind, "name": name, "uid": uid(&kind.to_lowercase(), name)}]);
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "between", "ownerReferences": owned_by("apps/v1", "Deployment", "parent")}});
    PLANE.kubectl(&["apply", "-n", &namespace, "-f", "-"], &secret.to_string());
    let owners = json!({"metadata": {"ownerReferences": owned_by("v1", "Secret", "between")}}).to_string();
    PLANE.kubectl(&["patch", "configmap", "web", "-n", &namespace, "--type=merge", "-p", &owners], "");

    let targets = json!([{"resource": "configmaps", "names": ["web"]}, {"group": group, "resource": "widgets", "selector": "app=x"}]);
    let spec = json!({"claim": "PodIdentity", "targets": targets});
    let backend = objects.backend(spec.clone(), GuardMode::Enforce);
    assert_eq!(backend.activate(&owner(7, "worker-a", Some(objects.uid("worker-a")))).await, Ok(Activation::Activated));
    let unread = objects.examined(spec.clone()).await.unfinished.unwrap();
    assert!(unread.contains("may not get secrets \"between\", which owns a target"), "{unread}");
    objects.team_binds("secrets", &["get"]);
    let closed = objects.examined(spec.clone()).await;
    assert_eq!((texts(&closed), &closed.unfinished), (vec![], &None), "nothing is open yet");

    let (reg, pod_uid) = ("admissionregistration.k8s.io", "userextras/authentication.kubernetes.io/pod-uid");
    let (here, theirs) = (Some(namespace.as_str()), Some("fencedlock"));
    let user = "system:serviceaccount:fencedlock:fencedlock";
    for (place, rule, wanted) in [
        (None, right("patch", reg, "validatingadmissionpolicies", Some("fencedlock-guard")), "change validatingadmissionpolicies"),
        (None, right("delete", reg, "validatingadmissionpolicybindings", None), "change validatingadmissionpolicybindings"),
        (None, right("deletecollection", reg, "validatingadmissionpolicybindings", None), "change validatingadmissionpolicybindings"),
        (None, right("update", reg, "mutatingadmissionpolicies", None), "change mutatingadmissionpolicies"),
        (None, right("escalate", "rbac.authorization.k8s.io", "clusterroles", None), "give itself any right"),
        (None, right("impersonate", "", "users", Some(user)), "impersonate the operator"),
        (theirs, right("impersonate", "", "serviceaccounts", Some("fencedlock")), "impersonate the operator"),
        (None, right("impersonate", "", "groups", Some("system:masters")), "impersonate system:masters"),
        (None, right("impersonate", "authentication.k8s.io", pod_uid, None), "pass for any pod by impersonation"),
        (theirs, right("create", "", "serviceaccounts/token", Some("fencedlock")), "mint tokens of the operator"),
        (theirs, right("create", "", "pods", None), "run pods as the operator"),
        (here, right("create", "", "serviceaccounts/token", None), "mint tokens of owners' pods"),
        (here, right("create", "", "pods/exec", None), "enter owners' pods"),
        (here, right("create", "", "pods/attach", Some("worker-a")), "enter owners' pods"),
        (here, right("patch", "", "pods/ephemeralcontainers", None), "enter owners' pods"),
        (None, right("create", "", "nodes/proxy", None), "enter any pod by its kubelet"),
        (None, right("delete", "apiextensions.k8s.io", "customresourcedefinitions", Some(&widgets)), "delete the definition"),
        (None, right("delete", "", "namespaces", Some(&namespace)), "delete the namespace"),
        (here, right("delete", "apps", "deployments", Some("parent")), "delete deployments \"parent\", which owns a target"),
        (here, right("delete", "", "secrets", Some("between")), "delete secrets \"between\", which owns a target"),
    ] {
        let given = Given::new(place, &rule, &json!({"kind": "User", "name": "mallory"}));
        objects.until_may("mallory", place, &rule).await;
        let found = objects.examined(spec.clone()).await;
        let [text] = texts(&found)[..] else { panic!("{rule}: {:?}", texts(&found)) };
        assert!(text.starts_with("User \"mallory\" may ") && text.contains(wanted), "{wanted}: {text}");
        given.take_away();
    }
    assert_eq!(texts(&objects.examined(spec).await), Vec::<&str>::new());
}

/// A right of the account that the owners run as is a violation; somebody else's is not proven; and it is no finding once somebody answers for it.
#[tokio::test]
async fn who_can_go_around_decides_the_verdict() {
    static OWN: LazyLock<Plane> = LazyLock::new(|| plane("answered"));
    let objects = Objects::on(&OWN).await;
    let namespace = objects.lab.namespace.clone();
    let _operator = objects.run();
    objects.declare(spec("PodIdentity")).await;
    objects.lab.lease("a").put(Some("worker-a"), Some(0), crate::support::lease::at(0)).await;
    objects.until_verdict(BoundaryVerdict::RiskAccepted, "RiskAccepted").await;
    let exec = right("create", "", "pods/exec", None);
    for (name, subject, verdict) in [
        ("worker", account(&namespace, "worker"), BoundaryVerdict::Violated),
        ("devs", json!({"kind": "Group", "name": "devs"}), BoundaryVerdict::Unproven),
    ] {
        let api = "rbac.authorization.k8s.io";
        let items = json!({"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": format!("{api}/v1"), "kind": "Role", "metadata": {"name": name}, "rules": [exec]},
            {"apiVersion": format!("{api}/v1"), "kind": "RoleBinding", "metadata": {"name": name}, "subjects": [subject],
             "roleRef": {"apiGroup": api, "kind": "Role", "name": name}}]});
        OWN.kubectl(&["apply", "-n", &namespace, "-f", "-"], &items.to_string());
        let status = objects.until_verdict(verdict, "BypassFound").await;
        let free = status.conditions.iter().find(|c| c.type_ == on_boundary::BYPASS_FREE).unwrap();
        assert!(free.message.contains("enter owners' pods (pods/exec") && free.message.contains(name), "{}", free.message);
        if name == "worker" {
            OWN.kubectl(&["delete", "rolebinding", name, "-n", &namespace], "");
            objects.until_verdict(BoundaryVerdict::RiskAccepted, "RiskAccepted").await;
        }
    }
    let answered = Patch::Merge(json!({"spec": {"kubernetes": {"exemptSubjects": [{"group": "devs", "reason": "on call"}]}}}));
    objects.lab.boundaries().patch("objects", &PatchParams::default(), &answered).await.unwrap();
    objects.until_verdict(BoundaryVerdict::RiskAccepted, "RiskAccepted").await;
}

/// Each change of the policies is named, and so is what was written while they were not in force.
#[tokio::test]
async fn what_was_changed_and_what_was_written_meanwhile_is_named() {
    static OWN: LazyLock<Plane> = LazyLock::new(|| plane("changed"));
    let objects = Objects::on(&OWN).await;
    let namespace = objects.lab.namespace.clone();
    let at_7 = owner(7, "worker-a", Some(objects.uid("worker-a")));
    let backend = objects.backend(spec("PodIdentity"), GuardMode::Enforce);
    assert_eq!(backend.activate(&at_7).await, Ok(Activation::Activated));
    let (policy, binding) = ("validatingadmissionpolicy", "validatingadmissionpolicybinding");
    for (kind, name, change, wanted) in [
        (
            binding,
            "fencedlock-guard",
            json!([{"op": "replace", "path": "/spec/validationActions", "value": ["Audit"]}]),
            "validationActions",
        ),
        (binding, "fencedlock-create", json!([{"op": "replace", "path": "/spec/policyName", "value": "another"}]), "policyName"),
        (policy, "fencedlock-guard", json!([{"op": "replace", "path": "/spec/failurePolicy", "value": "Ignore"}]), "failurePolicy"),
        (
            policy,
            "fencedlock-guard",
            json!([{"op": "replace", "path": "/spec/validations/0/expression", "value": "true"}]),
            "validations.0.expression",
        ),
        (
            policy,
            "fencedlock-guard",
            json!([{"op": "add", "path": "/spec/matchConditions", "value": [{"name": "n", "expression": "false"}]}]),
            "matchConditions",
        ),
        (
            "mutatingadmissionpolicybinding",
            "fencedlock-carry",
            json!([{"op": "replace", "path": "/spec/policyName", "value": "another"}]),
            "policyName",
        ),
    ] {
        OWN.kubectl(&["patch", kind, name, "--type=json", "-p", &change.to_string()], "");
        let altered = objects.examined(spec("PodIdentity")).await.guard_altered.unwrap_or_else(|| panic!("{wanted}: nothing is said"));
        assert!(altered.contains(name) && altered.contains(wanted), "{wanted}: {altered}");
        OWN.kubectl(&["replace", "-f", "-"], &policies());
    }
    // While the glass is broken somebody exempts himself, and somebody takes a label off.
    OWN.kubectl(&["delete", "validatingadmissionpolicybinding/fencedlock-guard", "mutatingadmissionpolicybinding/fencedlock-carry"], "");
    let b = objects.worker("worker-b").await;
    let mine = format!("system:serviceaccount:{namespace}:worker");
    let began = std::time::Instant::now();
    // The guard refuses it, and the carrying policy puts back what was there, until both are out of force.
    let exempts = async || b.merge(&objects.web(), json!({"metadata": {"annotations": {"fencedlock.dev/exempt": mine}}})).await.body;
    while exempts().await["metadata"]["annotations"]["fencedlock.dev/exempt"] != mine.as_str() {
        assert!(began.elapsed() < Duration::from_secs(30), "the guard stays in force");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    OWN.kubectl(&["apply", "-f", "-"], &policies());
    let found = objects.examined(spec("PodIdentity")).await;
    let [text] = texts(&found)[..] else { panic!("{:?} {:?}", texts(&found), found.guard_altered) };
    assert!(text.contains("configmaps \"web\"") && text.contains("fencedlock.dev/exempt is") && text.contains(&mine), "{text}");
    assert_eq!(found.fence, None, "it is not as it was activated");
    let unactivated = backend.examine(&Ask { is_known: true, ..Ask::default() }).await.unwrap();
    assert_eq!((texts(&unactivated), &unactivated.fence), (vec![], &None), "while a declaration is being carried out they differ");
    assert_eq!(backend.activate(&at_7).await, Ok(Activation::Activated), "the way back");
    let began = std::time::Instant::now();
    let mut n = 0;
    // The policies are in force again some time after they were created.
    while b.merge(&format!("{}?dryRun=All", objects.web()), data(&format!("late {n}"))).await.status != 403 {
        assert!(began.elapsed() < Duration::from_secs(30), "the exemption stays");
        n += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(texts(&objects.examined(spec("PodIdentity")).await), Vec::<&str>::new());

    // Somebody makes himself the owner's pod.
    OWN.kubectl(&["delete", "validatingadmissionpolicybinding/fencedlock-guard", "mutatingadmissionpolicybinding/fencedlock-carry"], "");
    let uid_b = objects.uid("worker-b");
    let poses = async || b.merge(&objects.web(), json!({"metadata": {"annotations": {"fencedlock.dev/holder-uid": uid_b}}})).await.body;
    let began = std::time::Instant::now();
    while poses().await["metadata"]["annotations"]["fencedlock.dev/holder-uid"] != uid_b.as_str() {
        assert!(began.elapsed() < Duration::from_secs(30), "the guard stays in force");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    OWN.kubectl(&["apply", "-f", "-"], &policies());
    let ask = Ask { is_known: true, is_activated: true, owner: Some(at_7), ..Ask::default() };
    let found = backend.examine(&ask).await.unwrap();
    let [text] = texts(&found)[..] else { panic!("{:?} {:?}", texts(&found), found.guard_altered) };
    assert!(text.contains("which nobody was granted") && text.contains(&uid_b) && found.fence.is_none(), "{text}");
    let at_8 = owner(8, "worker-a", Some(objects.uid("worker-a")));
    assert_eq!(backend.activate(&at_8).await, Ok(Activation::Activated), "the way back is a new epoch");
    let found = backend.examine(&Ask { owner: Some(at_8), ..ask }).await.unwrap();
    assert!(texts(&found).is_empty() && found.fence.is_some(), "{:?}", texts(&found));
}
