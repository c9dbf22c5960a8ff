//! `fencedlock revoke`: an owner that goes on renewing its Lease is fenced all the same, everywhere that can refuse, and gets in again by a new
//! term only. The command runs with the rights that docs/revoke.md gives it.

use std::{
    path::PathBuf,
    process::{Command, Output},
    sync::Arc,
};

use crate::{
    objects::{Objects, data, spec},
    pg::{Db, said},
    postgres::{critical, guarded},
    support::{Lab, lab::has, lease::at},
    worker::Run,
};
use fencedlock::{
    api::{FencedLockStatus, Verdict, conditions::lock as on},
    boundary::memory::{Behaviour, Memories},
    epoch::{Epoch, grant::GrantState},
};
use serde_json::json;

/// Whoever is on call, with what the documentation says is needed.
fn on_call(lab: &Lab) -> PathBuf {
    lab.kubeconfig_of("on-call", || {
        let namespace = &lab.namespace;
        lab.plane.kubectl(&["create", "serviceaccount", "on-call", "-n", namespace], "");
        let rule = ["--verb=get,list,watch,patch", "--resource=fencedlocks.fencedlock.dev"];
        lab.plane.kubectl(&[&["create", "role", "revokes", "-n", namespace][..], &rule].concat(), "");
        let user = format!("--serviceaccount={namespace}:on-call");
        lab.plane.kubectl(&["create", "rolebinding", "revokes", "--role=revokes", &user, "-n", namespace], "");
    })
}

/// Exit code, standard output, standard error.
fn revoke(lab: &Lab, more: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_fencedlock"))
        .args(["revoke", "a", "--namespace", &lab.namespace, "--reason", "it loops on a stale plan"])
        .args(more)
        .env("KUBECONFIG", on_call(lab))
        .output()
        .unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// Whether nobody may write, by this epoch.
fn is_nobodys(status: &FencedLockStatus, epoch: u64) -> bool {
    let is_this = |r: &fencedlock::epoch::revoke::RevocationStatus| r.epoch.get() == epoch && r.state == GrantState::Active;
    status.grant.is_none() && status.revoked.as_ref().is_some_and(is_this)
}

fn memory(name: &str) -> serde_json::Value {
    json!({"lockRef": {"name": "a"}, "type": "Postgres", "mode": "Enforce", "postgres": {
        "connection": {"secretKeyRef": {"name": name, "key": "url"}}, "tables": [{"schema": "public", "name": name}]}})
}

/// The runaway renews, and stays out; a new term gets in; everything is told.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_renews_is_fenced_and_only_a_new_term_gets_in() {
    let lab = Lab::new().await;
    let backends = Memories::default();
    let db = backends.of(&lab.namespace, "db");
    let operator = lab.operator_with(&[&lab.namespace], Arc::new(backends)).await;
    lab.declare_boundary("db", memory("db")).await;
    lab.declare_spec("a", critical()).await;
    let lease = lab.lease("a");
    // Nothing to revoke is an error with its reason.
    lab.until("a", "a first status", |s| s.verdict.is_some()).await;
    let (code, _, told) = revoke(&lab, &[]);
    assert!(code == 2 && told.contains("nobody has an epoch") && told.contains("there is no Lease \"a\""), "{code} {told}");

    lease.put(Some("x"), Some(0), at(0)).await;
    lab.until_active("a", 1, "x").await;
    assert!(db.accepts(1, "x"));
    let (code, told, error) = revoke(&lab, &[]);
    assert_eq!(code, 0, "{told}{error}");
    assert!(told.contains("epoch 1 of \"x\"") && told.contains("epoch 2 is nobody's") && told.contains("yes, proven"), "{told}");
    assert!(!db.accepts(1, "x") && !db.accepts(2, "x") && !db.accepts(2, ""));
    let lock = lab.until("a", "the revocation", |s| is_nobodys(s, 2) && has(s, on::EPOCH_ACTIVE, "False", "Revoked")).await;
    let status = lock.status.unwrap();
    assert_eq!((status.epoch.map(Epoch::get), status.verdict), (Some(2), Some(Verdict::Enforced)), "the verdict is about the boundaries");
    assert_eq!(status.boundaries[0].fence.map(Epoch::get), Some(2));
    assert!(lab.until_event("OwnerRevoked", "a").await.contains("it loops on a stale plan"));
    lab.until_event("RevocationActive", "a").await;

    // It renews for as long as it likes; taking the request back changes nothing; asking again finds it done.
    lease.renew().await;
    lab.plane.kubectl(
        &["patch", "fencedlock", "a", "-n", &lab.namespace, "--type=json", "-p", r#"[{"op": "remove", "path": "/spec/revoke"}]"#],
        "",
    );
    lease.renew().await;
    lab.quiet(&operator, "a").await;
    assert!(is_nobodys(&lab.locks().get("a").await.unwrap().status.unwrap(), 2));
    let (code, told, _) = revoke(&lab, &[]);
    assert!(code == 0 && told.contains("is revoked already"), "{told}");
    // The way back in: the same owner, by a new term.
    lease.release().await;
    lab.until("a", "the release", |s| has(s, on::EPOCH_ACTIVE, "False", "Released")).await;
    lease.put(Some("x"), Some(1), at(9)).await;
    let lock = lab.until_active("a", 3, "x").await;
    assert!(lock.status.unwrap().revoked.is_none() && db.accepts(3, "x"));
}

/// A boundary that cannot be reached is named, the request stands, and is carried out as soon as it can be.
#[tokio::test(flavor = "multi_thread")]
async fn a_revocation_that_cannot_be_finished_says_where_and_goes_on() {
    let lab = Lab::new().await;
    let backends = Memories::default();
    let (good, bad) = (backends.of(&lab.namespace, "good"), backends.of(&lab.namespace, "bad"));
    let operator = lab.operator_with(&[&lab.namespace], Arc::new(backends)).await;
    for name in ["good", "bad"] {
        lab.declare_boundary(name, memory(name)).await;
    }
    let both = json!({"class": "CorrectnessCritical", "purpose": "p", "coordinator": {"lease": {"name": "a"}}, "writeBoundaries": ["good", "bad"]});
    lab.declare_spec("a", both).await;
    lab.lease("a").put(Some("x"), Some(0), at(0)).await;
    lab.until_active("a", 1, "x").await;
    bad.behave(Behaviour::Refuses);
    let (code, _, told) = revoke(&lab, &["--timeout", "2s"]);
    assert!(
        code == 2 && told.contains("\"bad\"") && told.contains("permission denied") && told.contains("The request stands"),
        "{code} {told}"
    );
    assert!(!good.accepts(1, "x") && bad.accepts(1, "x"), "what can refuse does");
    bad.behave(Behaviour::Honest);
    lab.until("a", "the revocation", |s| is_nobodys(s, 2)).await;
    assert!(!bad.accepts(1, "x"));
    // Without an operator it is written down, and carried out by the next one.
    lab.lease("a").put(Some("y"), Some(1), at(1)).await;
    lab.until_active("a", 3, "y").await;
    operator.stop().await;
    let (code, _, told) = revoke(&lab, &["--timeout", "1s"]);
    assert!(code == 2 && told.contains("is the operator running"), "{code} {told}");
    let backends = Memories::default();
    backends.of(&lab.namespace, "good");
    let _operator = lab.operator_with(&[&lab.namespace], Arc::new(backends)).await;
    lab.until("a", "the revocation", |s| is_nobodys(s, 4)).await;
}

/// Real boundaries: the database refuses what the runaway still sends, and the operator's own client ends its process.
#[tokio::test(flavor = "multi_thread")]
async fn the_database_refuses_a_revoked_owner() {
    let (lab, db) = (Lab::new().await, Db::new().await);
    let _operator = guarded(&lab, &db, "Enforce").await;
    lab.until("a", "a proof", |s| s.verdict == Some(Verdict::Enforced)).await;
    let mut owner = Run::start(&lab, "worker-a", &["--grace", "200ms"], "echo $FENCEDLOCK_EPOCH; while :; do sleep 0.05; done", &[]);
    assert_eq!(owner.line(), "1");
    let sends = db.claiming(&lab.claim(1, "worker-a")).await;
    assert_eq!(said(&sends, "update t set v = 'mine'").await, "ok");
    let (code, told, error) = revoke(&lab, &[]);
    assert_eq!(code, 0, "{told}{error}");
    assert_eq!(said(&sends, "update t set v = 'late'").await, "FL002");
    assert_eq!(owner.code(), 123, "it is stopped as if the Lease were lost");
    let mut again = Run::start(&lab, "worker-a", &[], "echo $FENCEDLOCK_EPOCH", &[]);
    assert_eq!((again.line().as_str(), again.code()), ("3", 0));
}

/// So does the API server, for objects: also the pod that holds the Lease still.
#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_refuses_a_revoked_owner() {
    let objects = Objects::new().await;
    let (a, web) = (objects.worker("worker-a").await, objects.web());
    let _operator = objects.run();
    objects.declare(spec("PodIdentity")).await;
    let lease = objects.lab.lease("a");
    lease.put(Some("worker-a"), Some(0), at(0)).await;
    objects.lab.until_active("a", 1, "worker-a").await;
    assert_eq!(a.merge(&web, data("a")).await.status, 200);
    let (code, told, error) = revoke(&objects.lab, &[]);
    assert_eq!(code, 0, "{told}{error}");
    lease.renew().await;
    let refused = a.merge(&web, data("late")).await;
    assert!(refused.status == 403 && refused.message.contains("epoch 2 of write boundary objects"), "{refused:?}");
    objects.lab.until("a", "the revocation", |s| is_nobodys(s, 2)).await;
}
