//! `fencedlock audit --cluster`, and what the operator says of Leases that nobody declared. The CLI runs with the chart's audit role.

use std::{
    process::{Command, Output},
    sync::Arc,
    time::Duration,
};

use crate::{
    serving::until,
    support::{
        Lab,
        lab::LIMIT,
        lease::at,
        plane::{Plane, tool},
    },
};
use fencedlock::{
    api::Verdict,
    operator::{Scope, Settings},
};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ObjectReference, Pod},
    events::v1::Event,
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
    runtime::wait::await_condition,
};
use serde_json::{Value, json};

/// An account that may audit one namespace, or with `whole` the cluster, by the chart's own ClusterRole.
fn auditor(lab: &Lab, whole: bool) -> std::path::PathBuf {
    let account = if whole { "auditor" } else { "namespace-auditor" };
    lab.kubeconfig_of(account, || {
        lab.apply_templates(&lab.namespace, &["audit-role"], &[]);
        let namespace = &lab.namespace;
        lab.plane.kubectl(&["create", "serviceaccount", account, "-n", namespace], "");
        let (role, user) = (format!("--clusterrole={namespace}-audit"), format!("--serviceaccount={namespace}:{account}"));
        let binding = format!("{namespace}-{account}");
        if whole {
            lab.plane.kubectl(&["create", "clusterrolebinding", &binding, &role, &user], "");
        } else {
            lab.plane.kubectl(&["create", "rolebinding", &binding, &role, &user, "-n", namespace], "");
        }
    })
}

fn audit(kubeconfig: &std::path::Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fencedlock")).args(["audit", "--cluster"]).args(args).env("KUBECONFIG", kubeconfig).output().unwrap()
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

fn rules<'a>(report: &'a Value, of: &str) -> Vec<&'a str> {
    let findings = report["findings"].as_array().unwrap().iter();
    findings.filter(|finding| finding["object"]["name"] == of).map(|finding| finding["rule"].as_str().unwrap()).collect()
}

/// The CLI says what the operator wrote; a status that says more than can be known from here is reported, and the worse one stands.
#[tokio::test]
async fn the_cluster_has_the_verdicts_that_the_operator_wrote() {
    let lab = Lab::new().await;
    let operator = lab.operator().await;
    lab.declare("cache", "EfficiencyOnly").await;
    lab.declare("bare", "CorrectnessCritical").await;
    let mail = json!({"lockRef": {"name": "mail"}, "type": "External", "external": {"receiver": "smtp.example"},
        "riskAcceptance": {"covers": ["CannotEnforce"], "acceptedBy": "mail-oncall", "reason": "r", "expires": "2099-01-01T00:00:00Z"}});
    lab.declare_boundary("smtp", mail).await;
    let spec = |boundary: &str| json!({"class": "CorrectnessCritical", "purpose": "p", "coordinator": {"lease": {"name": boundary}}, "replay": "Transactional", "writeBoundaries": [boundary]});
    lab.declare_spec("mail", spec("smtp")).await;
    lab.declare_spec("dangling", spec("nowhere")).await;
    let wanted = [
        ("cache", Verdict::NotRequired),
        ("bare", Verdict::Unenforced),
        ("mail", Verdict::RiskAccepted),
        ("dangling", Verdict::Unenforced),
    ];
    for (name, verdict) in wanted {
        lab.until(name, "its verdict", |s| s.verdict == Some(verdict)).await;
    }
    let kubeconfig = auditor(&lab, false);
    let output = audit(&kubeconfig, &["-n", &lab.namespace, "-o", "json"]);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let report = json_of(&output);
    let locks = report["locks"].as_array().unwrap();
    assert_eq!(locks.len(), wanted.len());
    for lock in locks {
        let status = lab.locks().get(lock["name"].as_str().unwrap()).await.unwrap().status.unwrap();
        assert_eq!((&lock["verdict"], &lock["reason"]), (&json!(status.verdict), &json!(status.reason)), "{}", lock["name"]);
    }
    assert!(!report["findings"].as_array().unwrap().iter().any(|finding| finding["rule"] == "status-differs"), "{report:#}");

    // Somebody else writes what is not true, and nobody corrects it.
    operator.stop().await;
    let lie = json!({"status": {"verdict": "Enforced", "reason": "AllProven"}});
    lab.locks().patch_status("bare", &PatchParams::default(), &Patch::Merge(lie)).await.unwrap();
    let report = json_of(&audit(&kubeconfig, &["-n", &lab.namespace, "-o", "json"]));
    assert!(rules(&report, "bare").contains(&"status-differs") && rules(&report, "bare").contains(&"critical-lock-without-boundary"));
    let bare = report["locks"].as_array().unwrap().iter().find(|lock| lock["name"] == "bare").unwrap();
    assert_eq!(bare["verdict"], "Unenforced", "the worse one stands");
}

/// Leases are found with their holder and its workload, page by page; heartbeats and identities are none; the rights are what the chart says.
#[tokio::test]
async fn leases_that_nobody_declared_are_found_in_the_cluster() {
    let lab = Lab::new().await;
    lab.declare("declared", "EfficiencyOnly").await;
    lab.lease("declared").put(Some("x"), Some(0), at(0)).await;
    lab.lease("deploy").put(Some("web-5d8-x2x_1b2c"), Some(3), at(0)).await;
    let pods = Api::<Pod>::namespaced(lab.admin.clone(), &lab.namespace);
    let pod = json!({"metadata": {"name": "web-5d8-x2x", "labels": {"pod-template-hash": "5d8"},
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d8", "uid": "1"}]},
        "spec": {"containers": [{"name": "web", "image": "web"}]}});
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let leases = Api::<Lease>::namespaced(lab.admin.clone(), &lab.namespace);
    let identity =
        json!({"metadata": {"name": "apiserver-x", "labels": {"apiserver.kubernetes.io/identity": "kube-apiserver"}}, "spec": {}});
    leases.create(&PostParams::default(), &serde_json::from_value(identity).unwrap()).await.unwrap();
    // More than one page of them.
    let many: String = (0..600)
        .map(|number| {
            format!("apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {{name: worker-{number:03}}}\nspec: {{holderIdentity: w}}\n---\n")
        })
        .collect();
    lab.plane.kubectl(&["create", "-n", &lab.namespace, "-f", "-"], &many);

    let kubeconfig = auditor(&lab, false);
    let output = audit(&kubeconfig, &["-n", &lab.namespace, "-o", "json", "--fail-on", "warning"]);
    assert_eq!(output.status.code(), Some(1));
    let report = json_of(&output);
    assert_eq!((&report["summary"]["unclassified"], &report["summary"]["classified"]), (&json!(601), &json!(1)));
    let found = report["findings"].as_array().unwrap().iter().find(|finding| finding["object"]["name"] == "deploy").unwrap();
    let message = found["message"].as_str().unwrap();
    for wanted in ["web-5d8-x2x_1b2c", "(Deployment web)", "changed hands 3 times", "exists since "] {
        assert!(message.contains(wanted), "{wanted:?} is missing in {message}");
    }
    // What is scaffolded can be decided and applied.
    let scaffold = audit(&kubeconfig, &["-n", &lab.namespace, "--scaffold"]);
    let decided = String::from_utf8(scaffold.stdout).unwrap().replace("class: \"\"", "class: EfficiencyOnly");
    lab.plane.kubectl(&["apply", "-f", "-"], &decided);
    let report = json_of(&audit(&kubeconfig, &["-n", &lab.namespace, "-o", "json"]));
    assert_eq!(report["summary"]["unclassified"], 0);

    // Not the rest of the cluster.
    let refused = audit(&kubeconfig, &["-A"]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        said.contains("fencedlocks cannot be listed in all namespaces") && said.contains("The right \"list\" on fencedlocks is needed"),
        "{said}"
    );
    let whole = audit(&auditor(&lab, true), &["-A", "-o", "json", "--fail-on", "never"]);
    assert_eq!(whole.status.code(), Some(0), "{}", String::from_utf8_lossy(&whole.stderr));
    // A wrong name is no empty namespace. Who may not look at namespaces is refused their Leases.
    let nowhere = audit(&auditor(&lab, true), &["-n", "nowhere"]);
    let said = String::from_utf8(nowhere.stderr).unwrap();
    assert_eq!((nowhere.status.code(), &*said), (Some(2), "fencedlock: there is no namespace \"nowhere\" in this cluster\n"));
    assert_eq!(audit(&kubeconfig, &["-n", "nowhere"]).status.code(), Some(2));
    let elsewhere = audit(&kubeconfig, &["--context", "nowhere"]);
    assert_eq!(elsewhere.status.code(), Some(2));
    assert!(String::from_utf8(elsewhere.stderr).unwrap().contains("nowhere"));
}

/// The first day: nothing is installed, and the Leases are found all the same. It runs as kubectl's plugin.
#[tokio::test]
async fn a_cluster_that_knows_no_fencedlocks_is_audited_all_the_same() {
    let plane: &'static Plane = Box::leak(Box::new(Plane::start("bare")));
    plane.kubectl(
        &["create", "-f", "-"],
        "apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {name: deploy}\nspec: {holderIdentity: web-0}\n",
    );
    let folder = plane.kubeconfig.with_file_name("plugins");
    std::fs::create_dir(&folder).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_fencedlock"), folder.join("kubectl-fencedlock")).unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let output = Command::new(tool("kubectl"))
        .args(["fencedlock", "audit", "--cluster", "-n", "default"])
        .env("KUBECONFIG", &plane.kubeconfig)
        .env("PATH", path)
        .output()
        .unwrap();
    let (said, warned) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(0), "{said}{warned}");
    assert!(said.contains("warning[unclassified-lease]: Lease default/deploy"), "{said}");
    assert!(warned.contains("note: this cluster knows no fencedlocks: none is declared"), "{warned}");
}

/// Counted while nobody declares it, and told of once; a lock that is declared in time is neither.
#[tokio::test]
async fn the_operator_counts_leases_that_nobody_declared_and_tells_of_each_once() {
    let lab = Lab::new().await;
    let scope = Scope::Namespaces(vec![lab.namespace.clone()]);
    let settings = Settings { scope, undeclared_round: Duration::from_millis(200), ..Settings::default() };
    lab.declare("declared", "EfficiencyOnly").await;
    for name in ["declared", "deploy", "excused"] {
        lab.lease(name).put(Some("web-0"), Some(0), at(0)).await;
    }
    let leases = Api::<Lease>::namespaced(lab.admin.clone(), &lab.namespace);
    let excuse =
        json!({"metadata": {"annotations": {"fencedlock.dev/suppress.unclassified-lease": "until 2099-12-31: goes with the old cluster"}}});
    leases.patch("excused", &PatchParams::default(), &Patch::Merge(excuse)).await.unwrap();
    let backends = lab.built_in().await;
    let first = lab.operator_set(lab.operator_client().await, settings.clone(), Arc::clone(&backends));
    let second = lab.operator_set(lab.operator_client().await, settings, backends);

    let events = Api::<Event>::namespaced(lab.admin.clone(), &lab.namespace);
    let uid = leases.get("deploy").await.unwrap().metadata.uid.unwrap();
    let name = format!("unclassifiedlease.{uid}");
    let there = |event: Option<&Event>| event.is_some();
    let event = tokio::time::timeout(LIMIT, await_condition(events.clone(), &name, there)).await.unwrap().unwrap().unwrap();
    let ObjectReference { kind, name: regarding, .. } = event.regarding.unwrap();
    assert_eq!((kind.as_deref(), regarding.as_deref()), (Some("Lease"), Some("deploy")));
    assert!(event.note.unwrap().starts_with("is held by \"web-0\""));
    for operator in [&first, &second] {
        until(operator, "/metrics", |_, text| text.contains("fencedlock_unclassified_leases 1\n")).await;
    }
    // Another one is told of by rounds that come later, and until then nothing else was.
    lab.lease("later").put(Some("web-1"), Some(0), at(0)).await;
    let uid = leases.get("later").await.unwrap().metadata.uid.unwrap();
    tokio::time::timeout(LIMIT, await_condition(events.clone(), &format!("unclassifiedlease.{uid}"), there)).await.unwrap().unwrap();
    until(&first, "/metrics", |_, text| text.contains("fencedlock_unclassified_leases 2\n")).await;
    let told = events.list(&ListParams::default()).await.unwrap();
    let mut told: Vec<_> = told.iter().filter(|event| event.reason.as_deref() == Some("UnclassifiedLease")).collect();
    told.sort_by_key(|event| event.regarding.as_ref().and_then(|regarding| regarding.name.clone()));
    let names: Vec<_> = told.iter().map(|event| event.regarding.as_ref().unwrap().name.as_deref().unwrap()).collect();
    assert_eq!(names, ["deploy", "later"]);

    lab.declare("deploy", "EfficiencyOnly").await;
    leases.delete("later", &kube::api::DeleteParams::default()).await.unwrap();
    for operator in [&first, &second] {
        until(operator, "/metrics", |_, text| text.contains("fencedlock_unclassified_leases 0\n")).await;
    }
}
