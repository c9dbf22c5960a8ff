//! Moving the fence: up, once, past open transactions, and never by halves.

use std::time::{Duration, Instant};

use crate::support::{Db, activate, claim, examine, said, text, until};
use fencedlock::{
    api::GuardMode,
    boundary::{Activation, Backend, Fence},
    epoch::{Epoch, Holder},
};

fn fence(epoch: u64, holder: &str) -> Fence {
    Fence { epoch: Epoch::new(epoch).unwrap(), holder: Holder::new(holder).ok() }
}

#[tokio::test]
async fn a_fence_goes_up_and_stays_there() {
    let db = Db::new().await;
    let boundary = db.boundary(GuardMode::Enforce);
    assert_eq!(boundary.observe().await.unwrap().fence, None);
    assert_eq!(activate(&boundary, 7, "a").await, Activation::Activated);
    assert_eq!(activate(&boundary, 7, "a").await, Activation::Unchanged);
    assert_eq!(activate(&boundary, 7, "b").await, Activation::Superseded(fence(7, "a")));
    assert_eq!(activate(&boundary, 6, "a").await, Activation::Superseded(fence(7, "a")));
    assert_eq!(activate(&boundary, 9, "b").await, Activation::Activated);
    let seen = boundary.observe().await.unwrap();
    assert_eq!((seen.fence, seen.trusted), (Some(fence(9, "b")), true));
    let (one, two) = (db.boundary(GuardMode::Enforce), db.boundary(GuardMode::Enforce));
    let (first, second) = futures::join!(activate(&one, 10, "c"), activate(&two, 10, "c"));
    let both = [first, second];
    assert!(both.contains(&Activation::Activated) && both.contains(&Activation::Unchanged), "{both:?}");
}

/// The race of the prototype, in the guard that ships: an old owner's transaction is open, at each isolation level, having written or
/// not, while the next owner is activated.
#[tokio::test]
async fn nothing_of_an_old_owner_lands_after_the_activation_returned() {
    let db = Db::new().await;
    let boundary = db.boundary(GuardMode::Enforce);
    let mut epoch = 10;
    for level in ["read committed", "repeatable read", "serializable"] {
        for first in ["select from t", "update t set v = 'early' where id = 2"] {
            activate(&boundary, epoch, "a").await;
            let old = db.claiming(&claim(epoch, "a")).await;
            old.batch_execute(&format!("begin isolation level {level}; {first}")).await.unwrap();
            let marker = format!("stale-{epoch}");
            let landed = format!("select count(*) from t where v = '{marker}'");
            let activation = activate(&boundary, epoch + 1, "b");
            let late = async {
                if first.starts_with("update") {
                    let waiting = "select count(*) > 0 from pg_locks where not granted and mode = 'ExclusiveLock'";
                    until(&db.admin, waiting, "t").await;
                } else {
                    until(&db.admin, &format!("select last_value from fencedlock.{}", fence_sequence(&db).await), &(epoch + 1).to_string())
                        .await;
                }
                said(&old, &format!("update t set v = '{marker}' where id = 1; commit")).await
            };
            let at_activation = async {
                assert_eq!(activation.await, Activation::Activated);
                text(&db.admin, &landed).await
            };
            let (then, answer) = futures::join!(at_activation, late);
            assert_eq!(text(&db.admin, &landed).await, then, "{level}, {first}: it landed later");
            let expected = if first.starts_with("update") { "ok" } else { "FL002" };
            assert_eq!(answer, expected, "{level}, {first}");
            epoch += 2;
        }
    }
}

async fn fence_sequence(db: &Db) -> String {
    let sql =
        "select relname from pg_class where relkind = 'S' and relname like '%\\_epoch' and relname not like '%canary%' order by 1 limit 1";
    text(&db.admin, sql).await
}

/// D03: a worker that was taken for dead still has its long transaction open. It is named, left alone for a while, and ended: what it had not
/// committed is gone.
#[tokio::test]
async fn an_open_transaction_is_named_and_then_ended() {
    let db = Db::new().await;
    let boundary = db.fenced(7, "a").await;
    let old = db.claiming(&claim(7, "a")).await;
    old.batch_execute("set application_name = 'nightly'; begin; update t set v = 'stale'").await.unwrap();
    let began = Instant::now();
    let Activation::Blocked(by) = activate(&boundary, 8, "b").await else { panic!("it is not blocked") };
    assert!(by.contains(&format!("role {:?}", db.writer)) && by.contains("nightly") && by.contains("pid"), "{by}");
    assert!(began.elapsed() < Duration::from_secs(3), "an attempt is bounded");
    assert_eq!(activate(&boundary, 8, "b").await, Activation::Activated, "patience is 2 s here");
    assert!(old.batch_execute("commit").await.is_err());
    assert_eq!(text(&db.admin, "select count(*) from t where v = 'stale'").await, "0");
}

/// E04, F06: an old owner that goes on for as long as it likes, asks nobody, and polls nothing: each of its writes is refused when it is made, the first
/// one too, on every connection.
#[tokio::test]
async fn every_write_of_an_old_owner_is_refused_from_the_first_to_the_last() {
    let db = Db::new().await;
    let boundary = db.fenced(7, "a").await;
    let (old, idle) = (db.claiming(&claim(7, "a")).await, db.claiming(&claim(7, "a")).await);
    assert_eq!(said(&old, "update t set v = 'mine'").await, "ok");
    assert_eq!(activate(&boundary, 8, "b").await, Activation::Activated);
    for n in 0..100 {
        assert_eq!(said(&old, &format!("update t set v = 'late-{n}'")).await, "FL002", "write {n}");
    }
    assert_eq!(said(&idle, "delete from t").await, "FL002", "a connection that was not used before");
    assert_eq!(said(&db.claiming(&claim(7, "a")).await, "insert into t values (9, 'late')").await, "FL002", "a new one");
    assert_eq!(text(&db.admin, "select string_agg(distinct v, ' ') || count(*) from t").await, "mine2");
}

/// While an activation waits, writers of the present owner get through between two attempts.
#[tokio::test]
async fn a_long_reader_of_the_fence_does_not_block() {
    let db = Db::new().await;
    let boundary = db.fenced(7, "a").await;
    // pg_dump takes ACCESS SHARE on everything.
    db.admin.batch_execute("begin isolation level repeatable read; select * from t").await.unwrap();
    let tables = text(
        &db.admin,
        "select string_agg(format('fencedlock.%I', relname), ', ') from pg_class where relname like '%fence' and relkind = 'r'",
    )
    .await;
    db.admin.batch_execute(&format!("lock table {tables} in access share mode")).await.unwrap();
    assert_eq!(activate(&boundary, 8, "b").await, Activation::Activated);
    assert_eq!(said(&db.claiming(&claim(8, "b")).await, "update t set v = v").await, "ok");
    db.admin.batch_execute("commit").await.unwrap();
}

/// A prepared transaction has no process that could be ended: its name is said, and what to type.
#[tokio::test]
async fn a_prepared_transaction_blocks_by_name() {
    let db = Db::new().await;
    let boundary = db.fenced(7, "a").await;
    let old = db.claiming(&claim(7, "a")).await;
    let gid = format!("stale-{}", db.name);
    old.batch_execute(&format!("begin; update t set v = 'prepared' where id = 1; prepare transaction '{gid}'")).await.unwrap();
    for _ in 0..2 {
        let Activation::Blocked(by) = activate(&boundary, 8, "b").await else { panic!("it is not blocked") };
        assert!(by.contains(&format!("{gid:?}")) && by.contains("ROLLBACK PREPARED"), "{by}");
    }
    assert!(examine(&boundary).await.notes.iter().any(|note| note.contains("max_prepared_transactions")));
    db.admin.batch_execute(&format!("rollback prepared '{gid}'")).await.unwrap();
    assert_eq!(activate(&boundary, 8, "b").await, Activation::Activated);
}

/// A crash between the sequences and the commit leaves them ahead of the row: nobody is admitted, the same grant completes, an older one
/// does not, and what is read of the fence is the higher number, without an owner.
#[tokio::test]
async fn an_activation_that_stopped_half_way_is_completed() {
    let db = Db::new().await;
    let boundary = db.fenced(7, "a").await;
    let sequence = fence_sequence(&db).await;
    db.admin.batch_execute(&format!("select setval('fencedlock.{sequence}', 8)")).await.unwrap();
    let seen = boundary.observe().await.unwrap().fence.unwrap();
    assert_eq!((seen.epoch.get(), seen.holder), (8, None));
    for (epoch, holder) in [(7, "a"), (8, "b"), (8, "a")] {
        assert_ne!(said(&db.claiming(&claim(epoch, holder)).await, "update t set v = v").await, "ok", "{epoch} {holder}");
    }
    assert!(matches!(activate(&boundary, 7, "a").await, Activation::Superseded(f) if f.epoch.get() == 8));
    assert_eq!(activate(&boundary, 8, "b").await, Activation::Activated);
    assert_eq!(said(&db.claiming(&claim(8, "b")).await, "update t set v = v").await, "ok");
}

/// A transaction that was open when its own epoch was activated writes under it: it owns the lock now.
#[tokio::test]
async fn a_claim_is_compared_with_the_fence_of_now() {
    let db = Db::new().await;
    let boundary = db.fenced(7, "a").await;
    for (epoch, level) in [(8, "read committed"), (9, "repeatable read"), (10, "serializable")] {
        let next = db.claiming(&claim(epoch, "b")).await;
        next.batch_execute(&format!("begin isolation level {level}; select from t")).await.unwrap();
        assert_eq!(said(&next, "savepoint s; update t set v = v").await, "FL002", "{level}");
        activate(&boundary, epoch, "b").await;
        assert_eq!(said(&next, "rollback to s; update t set v = v; commit").await, "ok", "{level}");
    }
}

/// What is there already is not activated again: the rightful owner's own open transaction is neither waited for nor ended.
#[tokio::test]
async fn the_present_owner_is_left_alone() {
    let db = Db::new().await;
    let boundary = db.fenced(7, "a").await;
    let owner = db.claiming(&claim(7, "a")).await;
    owner.batch_execute("begin; update t set v = 'mine'").await.unwrap();
    let began = Instant::now();
    assert_eq!(activate(&boundary, 7, "a").await, Activation::Unchanged);
    assert!(began.elapsed() < Duration::from_secs(1), "it waited");
    owner.batch_execute("commit").await.unwrap();
}

/// A replica that lags behind does not bring an earlier declaration back.
#[tokio::test]
async fn an_earlier_declaration_never_replaces_a_later_one() {
    let db = Db::new().await;
    let (observing, enforcing) = (db.declared(db.spec(), GuardMode::Observe, 1), db.declared(db.spec(), GuardMode::Enforce, 2));
    examine(&observing).await;
    examine(&enforcing).await;
    activate(&enforcing, 7, "a").await;
    let late = observing.examine(&fencedlock::boundary::Ask::default()).await.unwrap_err().to_string();
    assert!(late.contains("generation 2") && late.contains("generation 1"), "{late}");
    assert_eq!(said(&db.claiming(&claim(6, "z")).await, "update t set v = v").await, "FL002");
}
