//! Durability and server identity: crash, failover, restore, a database that moved. The proof is void, and the fence shows where it is.

use std::process::Command;

use crate::support::{Db, Server, activate, claim, connect, examine, said, text, until};
use fencedlock::{
    api::{GuardMode, LimitName},
    boundary::{
        Activation, Ask, Backend,
        proof::{Proven, conclude},
    },
};
use k8s_openapi::jiff::Timestamp;

async fn proven(boundary: &fencedlock::boundary::postgres::Postgres) -> Proven {
    conclude(&examine(boundary).await, None, Some(1), Timestamp::now()).1.expect("it is proven")
}

/// The server ends as by a power failure, with asynchronous commits: an activation that returned is there, and the proof stands.
#[tokio::test]
async fn an_activation_survives_a_crash_with_asynchronous_commits() {
    let server = Server::start("crash", &["synchronous_commit=off", "wal_writer_delay=10s"]);
    let db = Db::on(&server).await;
    let boundary = db.boundary(GuardMode::Enforce);
    let before = proven_whatever_is_durable(&boundary).await;
    for epoch in 1..20 {
        assert_eq!(activate(&boundary, epoch, "a").await, Activation::Activated);
        server.command("crash");
        let fence = boundary.observe().await.unwrap().fence.unwrap();
        assert_eq!(fence.epoch.get(), epoch, "a crash forgot the activation");
        if epoch % 7 == 0 {
            let stale = connect(&db.url(&db.writer)).await;
            stale.batch_execute(&format!("set fencedlock.claim = '{}'", claim(epoch - 1, "a"))).await.unwrap();
            assert_eq!(said(&stale, "update t set v = v").await, "FL002");
        }
    }
    let after = examine(&boundary).await;
    assert_eq!(before.void(Some(1), &after.guard, &after.server), None, "the same server");
    let why = after.not_durable.expect("it is said");
    assert!(why.contains("synchronous_commit"), "{why}");
}

async fn proven_whatever_is_durable(boundary: &fencedlock::boundary::postgres::Postgres) -> Proven {
    let examined = examine(boundary).await;
    assert!(examined.not_durable.is_some());
    conclude(&examined, None, Some(1), Timestamp::now()).1.unwrap()
}

#[tokio::test]
async fn what_may_be_forgotten_is_named() {
    for (setting, word) in [("fsync=off", "fsync"), ("full_page_writes=off", "full_page_writes")] {
        let server = Server::start(setting.split('=').next().unwrap(), &[setting]);
        let db = Db::on(&server).await;
        let why = examine(&db.boundary(GuardMode::Enforce)).await.not_durable.expect("it is said");
        assert!(why.contains(word), "{why}");
    }
    let db = Db::new().await;
    let boundary = db.boundary(GuardMode::Enforce);
    assert_eq!(examine(&boundary).await.not_durable, None);
    let fence = text(
        &db.admin,
        "select format('%I.%I', 'fencedlock', relname) from pg_class where relkind = 'r' and relname like 'db\\_________\\_fence'",
    )
    .await;
    db.admin.batch_execute(&format!("alter table {fence} set unlogged")).await.unwrap();
    let why = examine(&boundary).await.not_durable.expect("it is said");
    assert!(why.contains("UNLOGGED"), "{why}");
    db.admin
        .batch_execute(&format!("alter table {fence} set logged; alter role {} set synchronous_commit = off", db.operator))
        .await
        .unwrap();
    let why = examine(&boundary).await.not_durable.expect("it is said");
    assert!(why.contains("synchronous_commit"), "{why}");
}

/// A streaming standby that never got the last activation is promoted: the limit was named before, the proof is void, the fence shows
/// that it went back, and the next activation puts it above.
#[tokio::test]
async fn a_failover_that_forgot_the_last_activation_is_seen() {
    let server = Server::start("failover", &["wal_level=replica", "max_wal_senders=4"]);
    let db = Db::on(&server).await;
    let boundary = db.fenced(7, "a").await;
    let before = proven(&boundary).await;
    let standby = server.dir.join("standby");
    let ready = server.command(&format!("standby {}", standby.display()));
    let port: u16 = ready.strip_prefix("ready ").unwrap().parse().unwrap();
    let limits = examine(&boundary).await.limits;
    assert_eq!(limits[0].name, LimitName::FailoverMayForget);
    assert!(limits[0].detail.contains("asynchronous"), "{limits:?}");
    db.admin.batch_execute("select pg_create_physical_replication_slot('far')").await.unwrap();
    let both: Vec<_> = examine(&boundary).await.limits.iter().map(|limit| limit.detail.clone()).collect();
    assert!(both[0].contains("\"far\" is away"), "one that is away has forgotten the most: {both:?}");
    db.admin.batch_execute("select pg_drop_replication_slot('far')").await.unwrap();
    let to_standby = Db { port, admin: connect(&db.url("postgres").replace(&db.port.to_string(), &port.to_string())).await, ..db };
    let on_standby = to_standby.boundary(GuardMode::Enforce);
    let refused = on_standby.examine(&Ask::default()).await.unwrap_err().to_string();
    assert!(refused.contains("standby") && refused.contains("primary"), "{refused}");
    to_standby.admin.batch_execute("alter system set primary_conninfo = ''").await.unwrap();
    to_standby.admin.batch_execute("select pg_reload_conf()").await.unwrap();
    until(&to_standby.admin, "select count(*) from pg_stat_wal_receiver", "0").await;
    assert_eq!(activate(&boundary, 8, "b").await, Activation::Activated);
    server.command("promote");
    let promoted = Db { admin: connect(&to_standby.url("postgres")).await, ..to_standby };
    let after = examine(&on_standby).await;
    assert!(before.void(Some(1), &after.guard, &after.server).is_some(), "{} and {}", before.server, after.server);
    assert_eq!(after.fence.unwrap().epoch.get(), 7, "the fence went back");
    assert_eq!(said(&promoted.claiming(&claim(7, "a")).await, "update t set v = v").await, "ok", "which is why this is a limit");
    assert_eq!(activate(&on_standby, 8, "b").await, Activation::Activated);
    assert_eq!(said(&promoted.claiming(&claim(7, "a")).await, "update t set v = v").await, "FL002");
}

/// Last night's dump is restored into the same database: the server is the same, the fence is another.
#[tokio::test]
async fn a_restored_dump_is_another_fence() {
    let db = Db::new().await;
    let boundary = db.fenced(7, "a").await;
    let before = proven(&boundary).await;
    let dump = Server::shared().dir.join(format!("{}.dump", db.name));
    let tool = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).arg("--dbname").arg(db.url("postgres")).output().unwrap();
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let dumped = tool("pg_dump", &["--format=custom"]);
    let dump_here = std::env::temp_dir().join(dump.file_name().unwrap());
    std::fs::write(&dump_here, dumped).unwrap();
    assert_eq!(activate(&boundary, 9, "b").await, Activation::Activated);
    tool("pg_restore", &["--clean", "--if-exists", dump_here.to_str().unwrap()]);
    std::fs::remove_file(&dump_here).unwrap();
    let found = examine(&boundary).await;
    assert!(before.void(Some(1), &found.guard, &found.server).is_some());
    assert_eq!(found.fence.unwrap().epoch.get(), 7);
    // pg_restore keeps ALWAYS since 15 or not: whatever it did, the guard stands again in the end.
    let mended = boundary.examine(&Ask { repair: true, is_known: true, ..Ask::default() }).await.unwrap();
    assert!(conclude(&mended, None, Some(1), Timestamp::now()).1.is_some(), "{:?}", mended.guard_altered);
    assert_eq!(activate(&boundary, 9, "b").await, Activation::Activated);
    assert_eq!(said(&db.claiming(&claim(7, "a")).await, "update t set v = v").await, "FL002");
}

/// F10: the fence was forgotten. The schema was dropped, or the database moved without it: a new fence, at nobody, that refuses everybody until it is activated.
#[tokio::test]
async fn a_lost_fence_refuses_everybody_until_it_is_activated() {
    let db = Db::new().await;
    let boundary = db.fenced(7, "a").await;
    let before = proven(&boundary).await;
    db.admin.batch_execute("drop schema fencedlock cascade").await.unwrap();
    assert_eq!(boundary.observe().await.unwrap().fence, None);
    // Who knows that it was installed says that it is gone, and mends it the next time.
    let known = boundary.examine(&Ask { is_known: true, ..Ask::default() }).await.unwrap();
    assert!(known.guard_altered.is_some_and(|text| text.contains("is gone from this database")));
    let found = boundary.examine(&Ask { is_known: true, repair: true, ..Ask::default() }).await.unwrap();
    assert!(before.void(Some(1), &found.guard, &found.server).is_some());
    assert_eq!(found.fence, None);
    assert_ne!(said(&db.claiming(&claim(7, "a")).await, "update t set v = v").await, "ok");
    assert_eq!(activate(&boundary, 7, "a").await, Activation::Activated, "the present owner goes on");
    assert_eq!(said(&db.claiming(&claim(7, "a")).await, "update t set v = v").await, "ok");
}
