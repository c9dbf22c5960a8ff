//! The guard that somebody installs who may, for an operator's role that may not; and the way to open it for good.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use crate::support::{Db, activate, claim, connect, examine, said};
use fencedlock::{
    api::GuardMode,
    boundary::{Activation, proof::conclude},
};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

/// Runs the program: its exit code and what it printed.
fn fencedlock(args: &[&str], input: &str, url: Option<&str>) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fencedlock"));
    command.args(args).env_remove("FENCEDLOCK_DATABASE_URL").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(url) = url {
        command.env("FENCEDLOCK_DATABASE_URL", url);
    }
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.code().unwrap(), String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr))
}

#[tokio::test]
async fn a_guard_is_installed_by_hand_and_opened_again() {
    let db = Db::new().await;
    // The operator's role may neither create anything nor own the tables.
    db.admin
        .batch_execute(&format!(
            "revoke {owner} from {operator}; revoke create on database {name} from {operator}; \
             create table p (id int) partition by list (id); create table p_1 partition of p for values in (1); alter table p owner to {owner}; \
             alter table p_1 owner to {owner}; grant select, insert, update, delete on p, p_1 to {writer}",
            owner = db.owner,
            operator = db.operator,
            name = db.name,
            writer = db.writer
        ))
        .await
        .unwrap();
    for mode in [GuardMode::Enforce, GuardMode::Observe, GuardMode::Enforce] {
        let mut postgres = db.spec();
        postgres["tables"] = json!([{"schema": "public", "name": "t"}, {"schema": "public", "name": "p"}]);
        let manifest = json!({"apiVersion": "fencedlock.dev/v1alpha1", "kind": "WriteBoundary", "metadata": {"name": "db", "namespace": "team"},
            "spec": {"lockRef": {"name": "writer"}, "type": "Postgres", "mode": format!("{mode:?}"), "postgres": postgres}});
        let (code, script) = fencedlock(&["guard", "print", "--operator-role", &db.operator], &manifest.to_string(), None);
        assert_eq!(code, 0, "{script}");
        for _ in 0..2 {
            db.admin.batch_execute(&script).await.unwrap_or_else(|error| panic!("{error:?}\n{script}"));
        }
        let boundary = db.declared(postgres, mode, 4);
        let examined = examine(&boundary).await;
        assert_eq!((examined.guard_altered.as_ref(), &examined.bypasses[..]), (None, &[][..]));
        assert_eq!(conclude(&examined, None, Some(4), Timestamp::now()).1.is_some(), mode == GuardMode::Enforce, "{examined:?}");
    }
    let mut postgres = db.spec();
    postgres["tables"] = json!([{"schema": "public", "name": "t"}, {"schema": "public", "name": "p"}]);
    let boundary = db.declared(postgres, GuardMode::Enforce, 4);
    assert_eq!(activate(&boundary, 7, "a").await, Activation::Activated);
    let stale = db.claiming(&claim(6, "z")).await;
    assert_eq!(said(&stale, "insert into p_1 values (1)").await, "FL002");

    let root = db.url("postgres");
    let (code, text) = fencedlock(&["guard", "remove", "db", "-n", "team"], "", Some(&root));
    assert!(code == 1 && text.contains("--yes") && text.contains("Observe"), "{text}");
    assert_eq!(said(&stale, "update t set v = v").await, "FL002", "nothing was done");
    let (code, text) = fencedlock(&["guard", "remove", "db", "-n", "team", "--yes"], "", Some(&root));
    assert!(code == 0 && text.contains("public.t"), "{text}");
    assert_eq!(said(&connect(&db.url(&db.writer)).await, "update t set v = v; insert into p_1 values (1)").await, "ok");
    let (_, again) = fencedlock(&["guard", "remove", "db", "-n", "team", "--yes"], "", Some(&root));
    assert!(again.contains("no table of this database"), "{again}");
}

#[test]
fn what_cannot_be_printed_or_removed_is_said() {
    let secret = "hunter2";
    let url = format!("postgresql://a:{secret}@127.0.0.1:1/x");
    for (args, input, url, wanted) in [
        (&["guard", "print", "--operator-role", "o"][..], "{}", None, "there is no WriteBoundary of type Postgres"),
        (&["guard", "print"], "", None, "--operator-role"),
        (&["guard", "remove", "db", "--yes"], "", None, "FENCEDLOCK_DATABASE_URL"),
        (&["guard", "remove", "db", "--yes"], "", Some(url.as_str()), "127.0.0.1:1"),
    ] {
        let (code, text) = fencedlock(args, input, url);
        assert!(code == 2 && text.contains(wanted) && !text.contains(secret), "{code} {text}");
    }
}
