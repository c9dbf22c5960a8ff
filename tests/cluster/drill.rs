//! `fencedlock drill`: the stale owner, rehearsed on request and reported. The command runs with the rights that docs/drill.md gives it.

use std::{
    path::PathBuf,
    process::{Command, Output},
    sync::Arc,
};

use crate::{
    objects::{Objects, spec},
    pg::{Db, said},
    postgres::{enforced, guarded},
    support::{Lab, lease::at},
};
use fencedlock::boundary::memory::{Behaviour, Memories};
use serde_json::{Value, json};

/// Whoever is on call, with what the documentation says is needed.
fn on_call(lab: &Lab) -> PathBuf {
    lab.kubeconfig_of("on-call", || {
        let namespace = &lab.namespace;
        lab.plane.kubectl(&["create", "serviceaccount", "on-call", "-n", namespace], "");
        let rules = r#"[{"apiGroups": ["fencedlock.dev"], "resources": ["fencedlocks"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": ["fencedlock.dev"], "resources": ["writeboundaries"], "verbs": ["get", "list", "watch", "patch"]},
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]}]"#;
        let role = format!(
            r#"{{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {{"name": "drills", "namespace": "{namespace}"}}, "rules": {rules}}}"#
        );
        lab.plane.kubectl(&["apply", "-f", "-"], &role);
        let user = format!("--serviceaccount={namespace}:on-call");
        lab.plane.kubectl(&["create", "rolebinding", "drills", "--role=drills", &user, "-n", namespace], "");
    })
}

/// Exit code, standard output, standard error.
fn drill(lab: &Lab, more: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_fencedlock"))
        .args(["drill", "a", "--namespace", &lab.namespace])
        .args(more)
        .env("KUBECONFIG", on_call(lab))
        .output()
        .unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn report(lab: &Lab, more: &[&str]) -> (i32, Value) {
    let (code, told, error) = drill(lab, &[&["--output", "json"], more].concat());
    (code, serde_json::from_str(&told).unwrap_or_else(|e| panic!("{e}: {told}{error}")))
}

/// While somebody works: the report names what was refused and in which words, and the owner notices nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_drill_beside_the_owners_work_tells_what_was_refused_and_by_whom() {
    let (lab, db) = (Lab::new().await, Db::new().await);
    let _operator = enforced(&lab, &db).await;
    let owner = db.claiming(&lab.claim(1, "x")).await;
    let before = lab.locks().get("a").await.unwrap().status.unwrap();
    let (code, told, error) = drill(&lab, &[]);
    assert_eq!(code, 0, "{told}{error}");
    for words in [
        "Verdict:  Enforced",
        "Owner:    \"x\"",
        "refused all ",
        "StaleRefused",
        "RaceRefused",
        "does not own the lock",
        "system ",
        "Not tested:",
        "Passed: every",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    assert_eq!(said(&owner, "update t set v = 'x'").await, "ok");
    let after = lab.locks().get("a").await.unwrap().status.unwrap();
    assert_eq!((after.epoch, &after.grant), (before.epoch, &before.grant));
    // Each drill is an examination of its own, and a status stays small.
    let first = lab.boundaries().get("db").await.unwrap().status.unwrap();
    let (code, report) = report(&lab, &[]);
    assert!(code == 0 && report["passed"] == true && report["boundaries"][0]["conduct"] == "Refused", "{report:#}");
    let second = lab.boundaries().get("db").await.unwrap().status.unwrap();
    let (first_drill, second_drill) = (first.drill.unwrap(), second.drill.clone().unwrap());
    assert!(first_drill.request != second_drill.request && second_drill.began_at >= first_drill.began_at);
    assert_eq!(report["boundaries"][0]["drill"], json!(second_drill));
    assert!(serde_json::to_vec(&second).unwrap().len() < 8_192, "{second:?}");
    let stale = second_drill.probes.iter().find(|probe| probe.name == "StaleRefused").unwrap();
    assert!(stale.refused.is_some() && stale.took_microseconds.is_some(), "{stale:?}");
    assert!(second_drill.activation_microseconds.is_some());
}

/// The twins: with the defect on, the drill does not pass, and says what is wrong.
#[tokio::test(flavor = "multi_thread")]
async fn a_drill_finds_what_would_let_an_obsolete_owner_in() {
    let (lab, db) = (Lab::new().await, Db::new().await);
    let operator = enforced(&lab, &db).await;
    // A way around the guard: a writer that owns the table can take it off.
    db.admin.batch_execute(&format!("alter table t owner to {}", db.writer)).await.unwrap();
    let (code, told) = report(&lab, &[]);
    let found = &told["boundaries"][0];
    assert!(code == 1 && told["passed"] == false && found["verdict"] == "Violated", "{told:#}");
    assert!(found["open"].as_str().is_some_and(|open| open.starts_with("BypassFound: ")), "{told:#}");
    let back = format!("alter table t owner to {}; grant select, insert, update, delete on t to {}", db.owner, db.writer);
    db.admin.batch_execute(&back).await.unwrap();
    let (code, told) = report(&lab, &[]);
    assert!(code == 0, "the finding is gone at the next one: {told:#}");
    // Nobody answers.
    operator.stop().await;
    let (code, told) = report(&lab, &["--timeout", "1s"]);
    let why = told["boundaries"][0]["why"].as_str().unwrap();
    assert!(code == 1 && why.contains("does the operator run"), "{told:#}");
}

/// What cannot refuse, or cannot be reached, is said to be untested; the others are tested all the same.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_tested_is_named() {
    let lab = Lab::new().await;
    let backends = Memories::default();
    backends.of(&lab.namespace, "good");
    let bad = backends.of(&lab.namespace, "bad");
    let _operator = lab.operator_with(&[&lab.namespace], Arc::new(backends)).await;
    let memory = |name: &str, mode: &str| {
        json!({"lockRef": {"name": "a"}, "type": "Postgres", "mode": mode, "postgres": {
            "connection": {"secretKeyRef": {"name": name, "key": "url"}}, "tables": [{"schema": "public", "name": name}]}})
    };
    lab.declare_boundary("good", memory("good", "Enforce")).await;
    lab.declare_boundary("bad", memory("bad", "Enforce")).await;
    lab.declare_boundary("mail", json!({"lockRef": {"name": "a"}, "type": "External", "external": {"receiver": "the mail relay"}})).await;
    let spec = json!({"class": "CorrectnessCritical", "purpose": "p", "coordinator": {"lease": {"name": "a"}},
        "writeBoundaries": ["good", "bad", "mail", "gone"]});
    lab.declare_spec("a", spec).await;
    lab.until("a", "a verdict", |s| s.verdict.is_some()).await;
    bad.behave(Behaviour::Gone);
    let (code, told) = report(&lab, &[]);
    let conduct = |name: &str| {
        let found = told["boundaries"].as_array().unwrap().iter().find(|b| b["name"] == name).unwrap();
        (found["conduct"].as_str().unwrap().to_owned(), found["why"].as_str().unwrap_or_default().to_owned())
    };
    assert!(code == 1 && conduct("good").0 == "Refused", "{told:#}");
    for (name, why) in [("bad", "not reachable"), ("mail", "the mail relay cannot compare epochs"), ("gone", "is not there")] {
        assert!(conduct(name).0 == "NotTested" && conduct(name).1.contains(why), "{name}: {told:#}");
        assert!(told["untested"].as_array().unwrap().iter().any(|u| u["what"].as_str().unwrap().contains(name)), "{name}: {told:#}");
    }
    // It comes back: whoever asks does not wait until the operator would have tried again by itself.
    bad.behave(Behaviour::Honest);
    let (_, told) = report(&lab, &[]);
    let found = told["boundaries"].as_array().unwrap().iter().find(|b| b["name"] == "bad").unwrap();
    assert_eq!(found["conduct"], "Refused", "{told:#}");
}

/// Kubernetes objects: the API server's own words.
#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_is_tried_too() {
    let objects = Objects::new().await;
    let lab = &objects.lab;
    let _operator = objects.run();
    objects.declare(spec("Annotation")).await;
    lab.lease("a").put(Some("worker-a"), Some(0), at(0)).await;
    lab.until_active("a", 1, "worker-a").await;
    let (code, told) = report(lab, &[]);
    let found = &told["boundaries"][0];
    assert!(code == 0 && found["conduct"] == "Refused" && found["verdict"] == "RiskAccepted", "{told:#}");
    assert!(told["untested"][0]["what"].as_str().unwrap().contains("CreateNotFenced"), "{told:#}");
    let stale = found["drill"]["probes"].as_array().unwrap().iter().find(|p| p["name"] == "StaleRefused").unwrap().clone();
    assert!(stale["words"].as_str().unwrap().contains("fencedlock"), "{stale}");
}

/// An observing guard refuses nobody, and a lock without a boundary has nothing that could.
#[tokio::test(flavor = "multi_thread")]
async fn where_nothing_refuses_a_drill_does_not_pass() {
    let (lab, db) = (Lab::new().await, Db::new().await);
    let _operator = guarded(&lab, &db, "Observe").await;
    lab.lease("a").put(Some("x"), Some(0), at(0)).await;
    lab.until_active("a", 1, "x").await;
    let (code, told) = report(&lab, &[]);
    assert!(code == 1 && told["boundaries"][0]["why"].as_str().unwrap().contains("only observes"), "{told:#}");
    lab.boundaries().delete("db", &kube::api::DeleteParams::default()).await.unwrap();
    lab.plane
        .kubectl(&["patch", "fencedlock", "a", "-n", &lab.namespace, "--type=merge", "-p", r#"{"spec": {"writeBoundaries": []}}"#], "");
    let (code, told, _) = drill(&lab, &[]);
    assert!(code == 1 && told.contains("nothing can refuse an obsolete owner"), "{told}");
}

/// A worker that writes again and again with psql, which knows nothing of fencing, and ends with 7 when it is refused.
const WRITES: &str = "while psql -XAtq \"$URL\" -c \"update t set v = '$FENCEDLOCK_EPOCH'\"; do sleep 0.02; done; exit 7";

/// A drill with two real workers.
fn with_workers(lab: &Lab, db: &Db, script: &str) -> (i32, Value, String) {
    let url = db.url(&db.writer);
    let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_fencedlock"))
        .args(["drill", "a", "--namespace", &lab.namespace, "--output", "json"])
        .args(["--real", "--work", "3s", "--lease-duration", "3s", "--", "sh", "-c", script])
        .env("KUBECONFIG", on_call(lab))
        .env("URL", url)
        .output()
        .unwrap();
    let (told, error) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    (status.code().unwrap(), serde_json::from_str(&told).unwrap_or_default(), error)
}

/// The race that all of this is about: a worker stalls, another takes over, it wakes up and writes, and the database refuses it.
#[tokio::test(flavor = "multi_thread")]
async fn two_real_workers_race_and_the_obsolete_one_is_refused() {
    let (lab, db) = (Lab::new().await, Db::new().await);
    let _operator = enforced(&lab, &db).await;
    let (code, told, error) = with_workers(&lab, &db, WRITES);
    assert!(code == 2 && told.is_null() && error.contains("is owned by \"x\" with epoch 1"), "{error}{told:#}");
    lab.lease("a").put(None, Some(0), at(0)).await;
    lab.until("a", "released", |s| s.grant.is_none()).await;
    let (code, told, error) = with_workers(&lab, &db, WRITES);
    let workers = &told["workers"];
    assert!(code == 0 && told["passed"] == true && workers["failure"].is_null(), "{told:#}{error}");
    assert_eq!((&workers["first"]["epoch"], &workers["second"]["epoch"]), (&json!(2), &json!(3)), "{workers:#}");
    assert!(workers["first"]["end"] == "ended by itself with code 7" && workers["firstEndedAfterMilliseconds"].is_u64(), "{workers:#}");
    assert_eq!(workers["second"]["end"], "went on until it was told to end", "{workers:#}");
    assert!(
        workers["refusals"][0]["refused"].as_u64().unwrap() > 0 && workers["takeoverMilliseconds"].as_u64().unwrap() > 1_000,
        "{workers:#}"
    );
    assert!(error.contains("does not own the lock"), "the copies' own words: {error}");
    let stored = crate::pg::text(&db.admin, "select v from t limit 1").await;
    assert_eq!(stored, "3", "the new owner's write stands");
    lab.until("a", "the Lease is given back", |s| s.grant.is_none()).await;
}

/// The twins: a worker that never writes to the boundary is fenced by nothing that could be seen, one that is done at once cannot be obsolete, and
/// where the guard can be gone around nobody real is let at it.
#[tokio::test(flavor = "multi_thread")]
async fn real_workers_that_show_nothing_do_not_pass() {
    let (lab, db) = (Lab::new().await, Db::new().await);
    let _operator = enforced(&lab, &db).await;
    lab.lease("a").put(None, Some(0), at(0)).await;
    lab.until("a", "released", |s| s.grant.is_none()).await;
    let (code, told, _) = with_workers(&lab, &db, "while :; do sleep 0.1; done");
    assert!(code == 1 && told["workers"]["failure"].is_null(), "{told:#}");
    assert_eq!(told["workers"]["refusals"], json!([{"boundary": "db", "refused": 0}]), "{told:#}");
    assert!(told["untested"][0]["why"].as_str().unwrap().contains("refused nothing"), "{told:#}");
    // Refused all along: that it is refused at the end, too, shows nothing.
    let (code, told, _) = with_workers(&lab, &db, "while :; do PGOPTIONS= psql -XAtqc \"update t set v = 'x'\" \"$URL\"; sleep 0.02; done");
    let failure = told["workers"]["failure"].as_str().unwrap();
    assert!(code == 1 && failure.contains("while the copies owned the lock"), "{told:#}");
    let (code, told, _) = with_workers(&lab, &db, "exit 0");
    let failure = told["workers"]["failure"].as_str().unwrap();
    assert!(code == 1 && failure.contains("ended by itself with code 0 before anybody took over"), "{told:#}");
    lab.until("a", "the Lease is given back", |s| s.grant.is_none()).await;
    db.admin
        .batch_execute(&format!(
            "drop trigger \"{}\" on t",
            crate::pg::text(&db.admin, "select tgname from pg_trigger where tgrelid = 't'::regclass").await
        ))
        .await
        .unwrap();
    let (code, told, _) = with_workers(&lab, &db, WRITES);
    let failure = told["workers"]["failure"].as_str().unwrap();
    assert!(
        code == 1 && failure.contains("no write boundary was seen to refuse") && told["workers"]["first"]["epoch"].is_null(),
        "{told:#}"
    );
}
