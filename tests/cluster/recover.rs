//! `fencedlock recover`: after a restore the next epoch lies above everything, and clients from before are refused. The command runs with the rights
//! that docs/recover.md gives it.

use std::process::{Command, Output};

use crate::{
    pg::{Db, said},
    postgres::{critical, enforced},
    support::{Lab, lease::at},
};
use fencedlock::api::{FencedLock, WriteBoundary};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, api::DeleteParams};

/// Exit code and everything that was printed.
pub fn recover(lab: &Lab, more: &[&str]) -> (i32, String) {
    let kubeconfig = lab.kubeconfig_of("on-call", || {
        let namespace = &lab.namespace;
        lab.plane.kubectl(&["create", "serviceaccount", "on-call", "-n", namespace], "");
        let rules = r#"[{"apiGroups": ["fencedlock.dev"], "resources": ["fencedlocks"], "verbs": ["get", "list", "watch", "patch"]},
            {"apiGroups": ["fencedlock.dev"], "resources": ["writeboundaries"], "verbs": ["list"]},
            {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["fencedlock-epochs"], "verbs": ["get"]},
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]}]"#;
        let role = format!(
            r#"{{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {{"name": "recovers", "namespace": "{namespace}"}}, "rules": {rules}}}"#
        );
        lab.plane.kubectl(&["apply", "-f", "-"], &role);
        let user = format!("--serviceaccount={namespace}:on-call");
        lab.plane.kubectl(&["create", "rolebinding", "recovers", "--role=recovers", &user, "-n", namespace], "");
    });
    let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_fencedlock"))
        .args(["recover", "a", "--namespace", &lab.namespace])
        .args(more)
        .env("KUBECONFIG", kubeconfig)
        .output()
        .unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap())
}

/// Runs a program of the system that has to succeed.
pub fn tool(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Everything that remembers went back together: last night's dump of the database, and a FencedLock from Git in a namespace without its
/// reservation. The twin, without `recover`, is what issues an epoch twice.
#[tokio::test(flavor = "multi_thread")]
async fn after_everything_was_restored_no_epoch_is_issued_twice() {
    for recovers in [false, true] {
        let (lab, db) = (Lab::new().await, Db::new().await);
        let _operator = enforced(&lab, &db).await;
        let dump = std::env::temp_dir().join(format!("fencedlock-recover-{}-{}.dump", std::process::id(), lab.namespace));
        let (file, url) = (dump.to_str().unwrap().to_owned(), db.url("postgres"));
        tool("pg_dump", &["--format=custom", "--file", &file, "--dbname", &url]);
        lab.lease("a").put(Some("y"), Some(1), at(1)).await;
        lab.until_active("a", 2, "y").await;
        // The writers stop; everything is restored to the moment of the dump.
        lab.lease("a").put(None, Some(1), at(1)).await;
        lab.until("a", "released", |s| s.grant.is_none()).await;
        Api::<FencedLock>::namespaced(lab.admin.clone(), &lab.namespace).delete("a", &DeleteParams::default()).await.unwrap();
        let boundaries = Api::<WriteBoundary>::namespaced(lab.admin.clone(), &lab.namespace);
        boundaries.delete("db", &DeleteParams::default()).await.unwrap();
        let maps = Api::<ConfigMap>::namespaced(lab.admin.clone(), &lab.namespace);
        drop(maps.delete("fencedlock-epochs", &DeleteParams::default()).await);
        tool("pg_restore", &["--clean", "--if-exists", "--dbname", &url, &file]);
        std::fs::remove_file(&dump).unwrap();
        lab.declare_boundary("db", crate::postgres::boundary(&db, "Enforce")).await;
        lab.declare_spec("a", critical()).await;
        lab.until_boundary("db", "a fence", |b: Option<&WriteBoundary>| {
            b.and_then(|b| b.status.as_ref()).is_some_and(|s| s.fence.as_ref().is_some_and(|fence| fence.epoch.get() == 1))
        })
        .await;
        // The operator, or who deleted the boundary, may have kept the fence in a reservation: that went back too.
        drop(maps.delete("fencedlock-epochs", &DeleteParams::default()).await);
        let mut next = 2;
        if recovers {
            let (code, told) = recover(&lab, &[]);
            assert!(code == 1 && told.contains("Nothing was changed. Say --yes to do it."), "{told}");
            assert!(told.contains("spec.epochFloor is raised to 1000001: 1000000 above"), "{told}");
            let (code, told) = recover(&lab, &["--yes"]);
            assert!(code == 0 && told.contains("epoch 1000002 is the newest") && told.contains("yes, proven"), "{told}");
            // Before anybody else begins, nobody from before is admitted.
            for old in [lab.claim(1, "x"), lab.claim(2, "y")] {
                assert_eq!(said(&db.claiming(&old).await, "update t set v = 'old'").await, "FL002", "{old}");
            }
            next = 1_000_003;
        }
        lab.lease("a").put(Some("z"), Some(2), at(2)).await;
        lab.until_active("a", next, "z").await;
        assert_eq!(said(&db.claiming(&lab.claim(next, "z")).await, "update t set v = 'z'").await, "ok");
        for old in [lab.claim(1, "x"), lab.claim(2, "y")] {
            assert_eq!(said(&db.claiming(&old).await, "update t set v = 'old'").await, "FL002", "{old}");
        }
    }
}

/// Somebody owns the lock and goes on renewing: its claim from before is refused, and so is a copy of it; only a new term gets in.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_from_before_has_to_begin_anew() {
    let (lab, db) = (Lab::new().await, Db::new().await);
    let _operator = enforced(&lab, &db).await;
    let owner = db.claiming(&lab.claim(1, "x")).await;
    assert_eq!(said(&owner, "update t set v = 'x'").await, "ok");
    let (code, told) = recover(&lab, &["--yes", "--above", "41", "--margin", "1000"]);
    assert!(code == 0, "{told}");
    for words in [
        "All of them agree, as the operator saw them last",
        "admits \"x\"; proven ",
        "spec.epochFloor is raised to 2000: 1000 above the highest epoch that anything remembers",
        "the term of \"x\" (epoch 1) is revoked",
        "epoch 2001 is the newest, and no other epoch is valid",
        "yes, proven",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    assert_eq!(said(&owner, "update t set v = 'late'").await, "FL002");
    lab.lease("a").put(Some("x"), Some(1), at(1)).await;
    lab.until_active("a", 2_002, "x").await;
    assert_eq!(said(&owner, "update t set v = 'late'").await, "FL002", "the old life of the same holder");
    // Again: nothing is lowered, and it does no harm.
    let (code, told) = recover(&lab, &["--yes"]);
    assert!(code == 0 && told.contains("epoch 1003001 is the newest"), "{told}");
}

/// A namespace that was created anew beside the old database, and nobody has looked at the fence yet: that it is not known is no reason to believe
/// that it admits nobody.
#[tokio::test(flavor = "multi_thread")]
async fn a_fence_that_nobody_has_read_is_not_taken_for_a_safe_one() {
    let (lab, db) = (Lab::new().await, Db::new().await);
    let operator = enforced(&lab, &db).await;
    lab.lease("a").put(None, Some(0), at(0)).await;
    lab.until("a", "released", |s| s.grant.is_none()).await;
    operator.stop().await;
    lab.locks().delete("a", &DeleteParams::default()).await.unwrap();
    lab.boundaries().delete("db", &DeleteParams::default()).await.unwrap();
    let maps = Api::<ConfigMap>::namespaced(lab.admin.clone(), &lab.namespace);
    maps.delete("fencedlock-epochs", &DeleteParams::default()).await.unwrap();
    lab.declare_boundary("db", crate::postgres::boundary(&db, "Enforce")).await;
    lab.declare_spec("a", critical()).await;
    assert_eq!(said(&db.claiming(&lab.claim(1, "x")).await, "update t set v = 'old'").await, "ok", "which is what has to end");
    let (code, told) = recover(&lab, &["--yes", "--timeout", "2s"]);
    assert!(code == 2 && told.contains("claims from before may still be admitted"), "no operator runs: {told}");
    let _operator = lab.operator_slow().await;
    let (code, told) = recover(&lab, &["--yes"]);
    assert!(code == 0, "{told}");
    assert_eq!(said(&db.claiming(&lab.claim(1, "x")).await, "update t set v = 'old'").await, "FL002");
}

/// A boundary that cannot be brought there: run again, it is still not said to be done.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_finished_is_not_finished_by_asking_again() {
    let (lab, db) = (Lab::new().await, Db::new().await);
    let _operator = enforced(&lab, &db).await;
    let function = "select oid::regprocedure from pg_proc where proname like 'db\\_%\\_activate' and proname not like '%canary%'";
    let function = crate::pg::text(&db.admin, function).await;
    db.admin.batch_execute(&format!("alter function {function} owner to postgres")).await.unwrap();
    let owner = db.claiming(&lab.claim(1, "x")).await;
    for _ in 0..2 {
        let (code, told) = recover(&lab, &["--yes", "--timeout", "3s"]);
        assert!(code == 2 && told.contains("claims from before may still be admitted"), "{told}");
        assert_eq!(said(&owner, "update t set v = 'x'").await, "ok", "and they are");
    }
    assert!(lab.locks().get("a").await.unwrap().status.unwrap().revoked.is_some(), "the second one met a revocation that is under way");
    db.admin.batch_execute(&format!("alter function {function} owner to {}", db.operator)).await.unwrap();
    lab.lease("a").put(None, Some(0), at(0)).await;
    let (code, told) = recover(&lab, &["--yes"]);
    assert!(code == 0, "{told}");
    assert_eq!(said(&owner, "update t set v = 'late'").await, "FL002");
}
