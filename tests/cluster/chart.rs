//! The chart: what it renders is valid for a real API server, its values are checked, its roles and admission policies let
//! through and refuse whom they should.

use std::path::Path;

use crate::support::{
    Lab,
    lab::{CHART, LIMIT, helm},
};
use serde_json::{Value, json};

/// What the chart renders with these values.
fn render(release: &str, namespace: &str, values: &Value) -> Result<String, String> {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("values-{release}-{namespace}.json"));
    std::fs::write(&file, values.to_string()).unwrap();
    let output = helm(&["template", release, CHART, "--namespace", namespace, "--values", file.to_str().unwrap()]);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

/// Every switch turned.
fn everything(namespaces: &[&str]) -> Value {
    let monitor = json!({"enabled": true, "interval": "15s", "labels": {"release": "prometheus"}});
    json!({
        "namespaces": namespaces, "replicas": 3, "concurrency": 1024, "backendTimeoutSeconds": 300,
        "image": {"repository": "registry.example/fencedlock", "digest": format!("sha256:{}", "a".repeat(64)), "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "pull"}], "podAnnotations": {"a": "b"}, "podLabels": {"c": "d"}, "nodeSelector": {"e": "f"},
        "tolerations": [{"operator": "Exists"}], "priorityClassName": "system-cluster-critical",
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions":
            [{"key": "g", "operator": "Exists"}]}]}}},
        "serviceAccount": {"name": "other", "annotations": {"h": "i"}},
        "networkPolicy": {"from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]},
        "metrics": {"port": 9999, "serviceMonitor": monitor, "podMonitor": monitor,
            "prometheusRule": {"enabled": true, "labels": {"j": "k"}}, "dashboard": {"enabled": true}},
    })
}

/// Every switch turned off.
fn nothing() -> Value {
    json!({"replicas": 0, "leaderElection": {"enabled": false}, "rbac": {"aggregate": false, "secretRole": false, "auditRole": false}, "crds": {"enabled": false}, "networkPolicy": {"enabled": false},
        "podDisruptionBudget": {"enabled": false}, "admission": {"enabled": false}})
}

#[tokio::test]
async fn whatever_the_switches_say_the_api_server_accepts_it() {
    let lab = Lab::new().await;
    for (what, values) in [
        ("defaults", json!({})),
        ("namespaced", json!({"namespaces": [lab.namespace]})),
        ("everything", everything(&[&lab.namespace])),
        ("nothing", nothing()),
    ] {
        let rendered = render("switches", &lab.namespace, &values).unwrap_or_else(|e| panic!("{what}: {e}"));
        // Kinds of the Prometheus operator are not served here.
        let known: Vec<_> = rendered.split("\n---").filter(|document| !document.contains("monitoring.coreos.com")).collect();
        let unknown = rendered.matches("apiVersion: monitoring.coreos.com").count();
        assert_eq!(unknown, if what == "everything" { 3 } else { 0 });
        let (accepted, said) = lab.plane.try_kubectl(
            &["apply", "--dry-run=server", "--validate=strict", "--server-side", "--force-conflicts", "-f", "-"],
            &known.join("\n---"),
        );
        assert!(accepted, "{what}: {said}");
    }
    let lint = helm(&["lint", "--strict", CHART]);
    assert!(lint.status.success(), "{}", String::from_utf8_lossy(&lint.stdout));
}

#[test]
fn a_value_that_is_wrong_or_misspelt_is_refused_by_its_name() {
    for (values, wanted) in [
        (json!({"replica": 2}), "replica"),
        (json!({"replicas": "two"}), "replicas"),
        (json!({"namespaces": ["Not_A_Name"]}), "namespaces"),
        (json!({"namespaces": "a"}), "namespaces"),
        (json!({"concurrency": 0}), "concurrency"),
        (json!({"image": {"digest": "latest"}}), "digest"),
        (json!({"metrics": {"port": 80}}), "port"),
        (json!({"log": {"format": "xml"}}), "format"),
    ] {
        let refused = render("wrong", "default", &values).expect_err(&values.to_string());
        assert!(refused.contains(wanted), "{values}: {refused}");
    }
}

/// The chart carries the CustomResourceDefinitions as they are generated, numbers included.
#[test]
fn the_chart_installs_the_generated_definitions() {
    for crd in fencedlock::api::crd::all().unwrap() {
        let name = fencedlock::api::crd::file_name(&crd);
        let generated = fencedlock::api::crd::to_yaml(&crd).unwrap();
        let carried = std::fs::read_to_string(Path::new(CHART).join("files/crds").join(&name)).unwrap();
        assert_eq!(carried, generated, "{name}: make generate");
        let (_, body) = generated.split_once("\nspec:\n").unwrap();
        for keep in [true, false] {
            let rendered = render("crds", "default", &json!({"crds": {"keep": keep}})).unwrap();
            assert!(rendered.contains(body.trim_end()), "{name} is rendered as another text");
            assert_eq!(rendered.matches("helm.sh/resource-policy: keep").count(), if keep { 2 } else { 0 });
        }
    }
}

/// Under the restricted Pod Security level the pods are let in; the API server itself judges the Deployment's template.
#[tokio::test]
async fn the_pods_are_restricted() {
    let lab = Lab::new().await;
    lab.plane.kubectl(
        &[
            "label",
            "namespace",
            &lab.namespace,
            "pod-security.kubernetes.io/enforce=restricted",
            "pod-security.kubernetes.io/warn=restricted",
        ],
        "",
    );
    let rendered = render("restricted", &lab.namespace, &json!({"namespaces": [lab.namespace]})).unwrap();
    for (template, wanted) in
        [("templates/deployment.yaml", "deployment.apps/restricted"), ("templates/tests/serves.yaml", "pod/restricted-test")]
    {
        let document = rendered.split("\n---").find(|d| d.contains(&format!("# Source: fencedlock/{template}"))).unwrap();
        let said = lab.plane.kubectl(&["create", "--dry-run=server", "-f", "-"], document);
        assert!(said.contains(wanted) && !said.contains("Warning"), "{said}");
    }
    // The twin: the same pod with a writable root and privileges would be refused.
    let document = rendered.split("\n---").find(|d| d.contains("# Source: fencedlock/templates/tests/serves.yaml")).unwrap();
    let loose = document.replace("allowPrivilegeEscalation: false", "allowPrivilegeEscalation: true");
    let (accepted, said) = lab.plane.try_kubectl(&["create", "--dry-run=server", "-f", "-"], &loose);
    assert!(!accepted && said.contains("PodSecurity"), "{said}");
}

/// A namespace where the admission policies hold and people have the chart's roles.
struct Team {
    lab: Lab,
}

impl Team {
    async fn new() -> Self {
        let lab = Lab::new().await;
        let release = format!("r-{}", lab.namespace);
        let rendered = render(&release, &lab.namespace, &json!({"namespaces": [lab.namespace], "crds": {"enabled": false}})).unwrap();
        lab.plane.kubectl(&["apply", "-f", "-"], &rendered);
        let team = Self { lab };
        // The built-in role edit contains view, and admin contains both.
        for (user, roles) in
            [("viewer", &["view"][..]), ("editor", &["view", "edit"]), ("owner", &["view", "edit"]), ("admin", &["view", "edit", "admin"])]
        {
            for role in roles {
                team.bind(user, &format!("{release}-{role}"));
            }
        }
        for user in ["owner", "admin"] {
            team.may(user, "get,secrets");
            team.may(user, "update,configmaps");
        }
        // A policy holds a moment after it was created: from then on this is refused.
        let deadline = tokio::time::Instant::now() + LIMIT;
        while team.try_as("editor", &["create", "--dry-run=server", "-f", "-"], &postgres("probe", &json!({}))).0 {
            assert!(tokio::time::Instant::now() < deadline, "the policy does not hold");
            tokio::task::yield_now().await;
        }
        team
    }

    fn bind(&self, user: &str, role: &str) {
        let args = ["create", "rolebinding", &format!("{user}-{role}"), "--clusterrole", role, "--user", user, "-n", &self.lab.namespace];
        self.lab.plane.kubectl(&args, "");
    }

    fn may(&self, user: &str, right: &str) {
        let (verb, resource) = right.split_once(',').unwrap();
        let name = format!("{user}-{verb}-{resource}");
        let namespace = self.lab.namespace.as_str();
        self.lab.plane.kubectl(&["create", "role", &name, "--verb", verb, "--resource", resource, "-n", namespace], "");
        self.lab.plane.kubectl(&["create", "rolebinding", &name, "--role", &name, "--user", user, "-n", namespace], "");
    }

    fn try_as(&self, user: &str, args: &[&str], input: &str) -> (bool, String) {
        let own = [&["--as", user, "-n", self.lab.namespace.as_str()], args].concat();
        self.lab.plane.try_kubectl(&own, input)
    }

    fn create_as(&self, user: &str, object: &str) -> (bool, String) {
        self.try_as(user, &["create", "-f", "-"], object)
    }
}

fn boundary(name: &str, spec: &Value) -> String {
    json!({"apiVersion": "fencedlock.dev/v1alpha1", "kind": "WriteBoundary", "metadata": {"name": name}, "spec": spec}).to_string()
}

fn with(mut spec: Value, more: &Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    spec
}

fn postgres(name: &str, more: &Value) -> String {
    let spec = json!({"lockRef": {"name": "a"}, "type": "Postgres",
        "postgres": {"connection": {"secretKeyRef": {"name": "db", "key": "url"}}, "tables": [{"schema": "public", "name": "t"}]}});
    boundary(name, &with(spec, more))
}

fn kubernetes(name: &str, more: &Value) -> String {
    let mut kubernetes = json!({"claim": "PodIdentity", "targets": [{"group": "", "resource": "configmaps", "names": ["web"]}]});
    kubernetes = with(kubernetes, more);
    boundary(name, &json!({"lockRef": {"name": "a"}, "type": "Kubernetes", "kubernetes": kubernetes}))
}

fn external(name: &str, more: &Value) -> String {
    boundary(name, &with(json!({"lockRef": {"name": "a"}, "type": "External", "external": {"receiver": "mail"}}), more))
}

/// Nobody gets, by way of a boundary, what they may not do themselves; and nobody accepts a risk without a right to that.
#[tokio::test]
async fn who_registers_a_boundary_must_be_allowed_what_it_does() {
    let team = Team::new().await;
    let risk =
        json!({"riskAcceptance": {"covers": ["CannotEnforce"], "acceptedBy": "a", "reason": "r", "expires": "2100-01-01T00:00:00Z"}});
    let ledger = json!({"external": {"receiver": "mail",
        "ledger": {"connection": {"secretKeyRef": {"name": "ledger-db", "key": "url"}}, "schema": "public", "table": "t"}}});
    let exempt = json!({"exemptSubjects": [{"group": "platform", "reason": "break-glass"}]});
    for (user, object, refused) in [
        ("editor", postgres("db", &json!({})), Some("get secrets")),
        ("owner", postgres("db", &json!({})), None),
        ("editor", kubernetes("objects", &json!({})), Some("update configmaps")),
        ("owner", kubernetes("objects", &json!({})), None),
        ("editor", external("mail", &json!({})), None),
        ("editor", external("ledger", &ledger), Some("Secret ledger-db")),
        ("owner", external("accepted", &risk), Some("acceptrisk writeboundaries.fencedlock.dev")),
        ("admin", external("accepted", &risk), None),
        ("owner", kubernetes("exempt", &exempt), Some("acceptrisk")),
        ("owner", kubernetes("allow", &json!({"reacquire": "Allow"})), Some("acceptrisk")),
        ("admin", kubernetes("exempt", &exempt), None),
        ("viewer", external("viewed", &json!({})), Some("cannot create resource")),
    ] {
        let (accepted, said) = team.create_as(user, &object);
        match refused {
            None => assert!(accepted, "{user}: {said}"),
            Some(why) => assert!(!accepted && said.contains(why), "{user}: {said}"),
        }
    }
    // Changing a declaration needs the same; what does not change it, or takes a risk back, does not.
    for (user, name, patch, refused) in [
        ("editor", "db", json!({"spec": {"mode": "Enforce"}}), Some("get secrets")),
        ("editor", "db", json!({"metadata": {"labels": {"team": "x"}}}), None),
        ("editor", "accepted", json!({"spec": {"riskAcceptance": {"expires": "2101-01-01T00:00:00Z"}}}), Some("acceptrisk")),
        ("editor", "accepted", json!({"spec": {"external": {"receiver": "other"}}}), None),
        ("editor", "accepted", json!({"spec": {"riskAcceptance": null}}), None),
    ] {
        let (accepted, said) = team.try_as(user, &["patch", "writeboundary", name, "--type=merge", "-p", &patch.to_string()], "");
        match refused {
            None => assert!(accepted, "{user} {name}: {said}"),
            Some(why) => assert!(!accepted && said.contains(why), "{user} {name}: {said}"),
        }
    }
    // Nobody of them may write a status.
    let status = json!({"status": {"verdict": "RiskAccepted"}}).to_string();
    let (accepted, said) =
        team.try_as("admin", &["patch", "writeboundary", "db", "--subresource=status", "--type=merge", "-p", &status], "");
    assert!(!accepted && said.contains("forbidden"), "{said}");
}

/// `kubectl apply` says at once what the verdict will say later, and refuses nothing.
#[tokio::test]
async fn applying_a_critical_lock_without_a_boundary_warns() {
    let team = Team::new().await;
    let lock = |name: &str, spec: Value| {
        json!({"apiVersion": "fencedlock.dev/v1alpha1", "kind": "FencedLock", "metadata": {"name": name}, "spec": spec}).to_string()
    };
    let coordinator = json!({"lease": {"name": "a"}});
    let (accepted, said) = team.create_as("editor", &lock("bare", json!({"class": "CorrectnessCritical", "coordinator": coordinator})));
    assert!(accepted && said.contains("spec.purpose") && said.contains("spec.writeBoundaries is empty"), "{said}");
    let whole = json!({"class": "CorrectnessCritical", "purpose": "p", "coordinator": coordinator, "writeBoundaries": ["db"]});
    for spec in [whole, json!({"class": "EfficiencyOnly", "coordinator": coordinator})] {
        let (accepted, said) = team.create_as("editor", &lock("whole", spec));
        assert!(accepted && !said.contains("Warning"), "{said}");
        team.lab.plane.kubectl(&["delete", "fencedlock", "whole", "-n", &team.lab.namespace], "");
    }
}
