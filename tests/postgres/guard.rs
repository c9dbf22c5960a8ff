//! What the guard refuses, statement by statement, and that its proof says so.

use crate::support::{Db, activate, claim, examine, said, text};
use fencedlock::{
    api::{Contract, GuardMode},
    boundary::{
        Activation, Ask, Backend,
        proof::{Outcome, Probe, conclude},
    },
};
use k8s_openapi::jiff::Timestamp;

/// A role that is no superuser installs the guard, and every probe passes.
#[tokio::test]
async fn a_guard_is_installed_and_proven_without_a_superuser() {
    let db = Db::new().await;
    let boundary = db.boundary(GuardMode::Enforce);
    let examined = examine(&boundary).await;
    let answers = examined.answers.clone().expect("it was tried");
    for probe in Probe::ALL {
        assert_eq!(answers.of(probe), Some(&Outcome::Passed), "{probe}");
    }
    assert_eq!((&examined.bypasses[..], examined.guard_altered.as_ref(), examined.not_durable.as_ref()), (&[][..], None, None));
    let (seen, proven) = conclude(&examined, None, Some(1), Timestamp::now());
    assert_eq!(seen.proof.map(|proof| proof.contract), Some(Contract::AfterActivation));
    assert_eq!(activate(&boundary, 7, "a").await, Activation::Activated);
    let again = examine(&boundary).await;
    assert_eq!(proven.unwrap().void(Some(1), &again.guard, &again.server), None, "an activation voids nothing");
    assert_eq!(again.refused, Some(0), "probes are not counted");
    assert_eq!(text(&db.admin, "select count(*) || min(v) || max(v) from t").await, "2ab", "nothing is left in anybody's data");
}

/// Every kind of write of an obsolete owner, one by one; the rightful owner's is accepted.
#[tokio::test]
async fn each_statement_kind_is_fenced() {
    let db = Db::new().await;
    let (writer, owner) = (&db.writer, &db.owner);
    db.admin
        .batch_execute(&format!(
            "create table parent (id int primary key); insert into parent values (1), (2);
             create table part (id int, v text) partition by list (id);
             create table part_1 partition of part for values in (1); create table part_rest partition of part default;
             create table base (id int, v text); create table derived (extra int) inherits (base);
             create table child (id int references parent on delete cascade);
             insert into child values (1), (2); insert into part values (1, 'a'), (2, 'b'); insert into derived values (1, 'a');
             create view seen as select * from t;
             create function by_function() returns void language sql as 'update t set v = v';
             create function by_definer() returns void language sql security definer as 'update public.t set v = v';
             grant select, insert, update, delete, truncate on parent, part, part_1, part_rest, base, derived, child, seen to {writer};
             alter table parent owner to {owner}; alter table part owner to {owner}; alter table part_1 owner to {owner};
             alter table part_rest owner to {owner}; alter table base owner to {owner}; alter table derived owner to {owner};
             alter table child owner to {owner}"
        ))
        .await
        .unwrap();
    let mut spec = db.spec();
    let table = |name: &str| serde_json::json!({"schema": "public", "name": name});
    spec["tables"] = ["t", "part", "base", "child"].map(table).into();
    let boundary = db.declared(spec, GuardMode::Enforce, 1);
    assert_eq!(activate(&boundary, 8, "b").await, Activation::Activated);
    let (stale, none, current) = (db.claiming(&claim(7, "a")).await, db.session(writer).await, db.claiming(&claim(8, "b")).await);
    for statement in [
        "insert into t values (3, 'c')",
        "update t set v = v",
        "update t set v = v where false",
        "delete from t",
        "truncate t",
        "merge into t using (values (1)) s(id) on s.id = t.id when matched then update set v = v",
        "insert into t values (1, 'x') on conflict (id) do update set v = excluded.v",
        "insert into t values (1, 'x') on conflict do nothing",
        "with w as (update t set v = v returning id) select count(*) from w",
        "with w as (delete from t returning id) select 1",
        "copy t from program 'true'",
        "update seen set v = v",
        "select by_function()",
        "select by_definer()",
        "insert into part values (1, 'x')",
        "update part set id = 3 where id = 1",
        "insert into part_1 values (1, 'x')",
        "update part_rest set v = v",
        "truncate part",
        "insert into base values (1)",
        "insert into derived values (1)",
        "update only derived set v = v",
        "delete from parent where id = 1",
        "do $$ begin execute 'update t set v = v'; end $$",
        "do $$ begin begin update t set v = v; exception when others then null; end; update t set v = v; end $$",
        "prepare p as update t set v = v; execute p; deallocate p",
    ] {
        // Who may not do it at all is not what is asked here.
        let by_server = statement.contains("program");
        let session = if by_server { &db.admin } else { &stale };
        let set = if by_server { format!("set fencedlock.claim = '{}';", claim(7, "a")) } else { String::new() };
        assert_eq!(said(session, &format!("begin; {set} {statement}")).await, "FL002", "{statement}");
        session.batch_execute("rollback").await.unwrap();
        if !by_server {
            assert_eq!(said(&none, &format!("begin; {statement}")).await, "FL001", "{statement}");
            none.batch_execute("rollback").await.unwrap();
            assert_eq!(said(&current, &format!("begin; {statement}; rollback")).await, "ok", "{statement}");
        }
    }
    let held = current.prepare("update t set v = v where id = $1").await.unwrap();
    assert_eq!(current.execute(&held, &[&1]).await.unwrap(), 1);
    assert_eq!(activate(&boundary, 9, "c").await, Activation::Activated);
    let refused = current.execute(&held, &[&1]).await.unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "FL002", "a cached plan is no way around");
    let message = refused.as_db_error().unwrap();
    assert!(message.message().contains("team/writer=8@b") && message.message().contains("epoch 9"), "{message:?}");
    assert!(message.hint().unwrap().contains("acquire the lock again"), "{message:?}");
    assert_eq!(text(&db.admin, "select count(*) from t").await, "2");
}

/// COPY over the wire, which `simple_query` cannot speak.
#[tokio::test]
async fn copy_from_a_client_is_fenced() {
    let db = Db::new().await;
    let boundary = db.fenced(8, "b").await;
    let copy = |claim: String| {
        let db = &db;
        async move {
            let client = db.claiming(&claim).await;
            match client.copy_in::<_, &[u8]>("copy t from stdin").await {
                Ok(sink) => {
                    let mut sink = Box::pin(sink);
                    futures::SinkExt::send(&mut sink, b"9\tx\n".as_slice()).await.unwrap();
                    sink.as_mut().finish().await.map_err(|error| error.code().unwrap().code().to_owned())
                }
                Err(error) => Err(error.code().unwrap().code().to_owned()),
            }
        }
    };
    assert_eq!(copy(claim(7, "a")).await, Err("FL002".to_owned()));
    assert_eq!(copy(claim(8, "b")).await, Ok(1));
    assert_eq!(examine(&boundary).await.refused, Some(1));
}

/// Everything that is not the claim of the owner, also when it is nearly that.
#[tokio::test]
async fn only_the_owners_own_claim_is_admitted() {
    let db = Db::new().await;
    let boundary = db.boundary(GuardMode::Enforce);
    examine(&boundary).await;
    let client = db.session(&db.writer).await;
    let tried = async |text: &str| {
        client.execute("select set_config('fencedlock.claim', $1, false)", &[&text]).await.unwrap();
        said(&client, "update t set v = v where id = 1").await
    };
    assert_eq!(tried(&claim(0, "")).await, "FL002", "nobody owns it yet");
    activate(&boundary, 8, "b=c@d").await;
    assert_eq!(tried(&claim(8, "b=c@d")).await, "ok");
    let right = claim(8, "b=c@d");
    for wrong in [
        format!("{right} "),
        format!(" {right}"),
        format!("{right}x"),
        right[..right.len() - 1].to_owned(),
        claim(8, "b"),
        claim(8, ""),
        claim(7, "b=c@d"),
        claim(9, "b=c@d"),
        claim(88, "b=c@d"),
        "team/writer=08@b=c@d".into(),
        "team/writer=+8@b=c@d".into(),
        "team/writer=8.0@b=c@d".into(),
        "team/write=8@b=c@d".into(),
        "other/writer=8@b=c@d".into(),
        "8@b=c@d".into(),
        String::new(),
        "team/writer=@b=c@d".into(),
        "team/writer=9007199254740993@b=c@d".into(),
        "TEAM/writer=8@b=c@d".into(),
    ] {
        assert!(matches!(tried(&wrong).await.as_str(), "FL001" | "FL002"), "{wrong:?}");
    }
    // Several locks: one line each, in any order; a stale line beside the current one takes nothing away.
    for several in [format!("other/x=1@y\n{right}"), format!("{right}\nother/x=1@y"), format!("{}\n{right}", claim(7, "a"))] {
        assert_eq!(tried(&several).await, "ok", "{several:?}");
    }
    assert_eq!(tried(&format!("other/x=1@y\n{}", claim(7, "a"))).await, "FL002");
}

/// Two locks in one transaction: both have to be owned. Two locks on one table: the second one is refused by name.
#[tokio::test]
async fn two_locks_in_one_transaction_and_none_on_one_table() {
    let db = Db::new().await;
    db.admin
        .batch_execute(&format!(
            "create table u (id int); grant select, insert, update, delete, truncate on u to {}; alter table u owner to {}",
            db.writer, db.owner
        ))
        .await
        .unwrap();
    let mut other = db.spec();
    other["tables"][0]["name"] = "u".into();
    let first = db.fenced(8, "b").await;
    let second = db.called("db-2", "other", other, GuardMode::Enforce, 1);
    activate(&second, 3, "z").await;
    let client = db.session(&db.writer).await;
    let both = "begin; update t set v = v; insert into u values (1); commit";
    for (claim, answer) in [
        ("team/writer=8@b\nteam/other=3@z", "ok"),
        ("team/other=3@z\nteam/writer=8@b", "ok"),
        ("team/writer=8@b", "FL001"),
        ("team/writer=8@b\nteam/other=2@z", "FL002"),
        ("team/other=3@z", "FL001"),
    ] {
        client.batch_execute(&format!("set fencedlock.claim = e'{}'", claim.replace('\n', "\\n"))).await.unwrap();
        assert_eq!(said(&client, both).await, answer, "{claim:?}");
        client.batch_execute("rollback").await.unwrap();
    }
    assert_eq!(text(&db.admin, "select count(*) from u").await, "2");
    let third = db.called("db-3", "third", db.spec(), GuardMode::Enforce, 1);
    let shared = examine(&third).await.shared.expect("it says whose the table is");
    assert!(shared.contains("\"team/db\"") && shared.contains("\"team/writer\"") && shared.contains("public.t"), "{shared}");
    let mine_too = db.called("db-4", "writer", db.spec(), GuardMode::Enforce, 1);
    assert_eq!(examine(&mine_too).await.shared, None, "another boundary of the same lock");
    assert_eq!(examine(&first).await.shared, None);
}

/// Mode Observe refuses nothing, stops nothing, and counts who would have been refused; the way to Enforce leaves no window.
#[tokio::test]
async fn observing_counts_and_enforcing_leaves_no_window() {
    let db = Db::new().await;
    let observing = db.boundary(GuardMode::Observe);
    activate(&observing, 8, "b").await;
    let (none, stale) = (db.session(&db.writer).await, db.claiming(&claim(7, "a")).await);
    for _ in 0..3 {
        none.batch_execute("update t set v = v").await.unwrap();
    }
    stale.batch_execute("set application_name = 'report'").await.unwrap();
    stale.batch_execute("begin; update t set v = v; rollback; update t set v = v").await.unwrap();
    none.batch_execute("begin isolation level serializable; update t set v = v; commit").await.unwrap();
    db.claiming(&claim(8, "b")).await.batch_execute("update t set v = v").await.unwrap();
    let seen = examine(&observing).await;
    assert_eq!((seen.refused, seen.answers.as_ref()), (Some(6), None), "a rollback takes nothing back");
    let last = seen.last_refused.clone().unwrap();
    assert_eq!(last, format!("role {} (report), claim team/writer=7@a", db.writer));
    assert!(conclude(&seen, None, Some(1), Timestamp::now()).1.is_none(), "never proven");

    // A transaction that passed the observing guard is open: the enforcing one is installed only after it ended.
    stale.batch_execute("begin; update t set v = 'stale' where id = 1").await.unwrap();
    let enforcing = db.declared(db.spec(), GuardMode::Enforce, 2);
    let waits = enforcing.examine(&Ask::default()).await.unwrap_err().to_string();
    assert!(waits.contains("cannot be installed") && waits.contains("lock timeout"), "{waits}");
    stale.batch_execute("commit").await.unwrap();
    let proven = examine(&enforcing).await;
    assert_eq!(proven.guard_altered, None, "another mode is no alteration");
    assert!(conclude(&proven, None, Some(2), Timestamp::now()).1.is_some());
    assert_eq!(said(&stale, "update t set v = v").await, "FL002");
    assert_eq!(proven.fence.unwrap().epoch.get(), 8, "the fence stays");
}

/// Two at once, and twice: the same guard.
#[tokio::test]
async fn installing_is_idempotent_and_two_may_do_it_at_once() {
    let db = Db::new().await;
    let (one, two) = (db.boundary(GuardMode::Enforce), db.boundary(GuardMode::Enforce));
    let (first, second) = futures::join!(examine(&one), activate(&two, 3, "x"));
    assert_eq!(second, Activation::Activated);
    let again = examine(&one).await;
    assert_eq!((&first.guard, &first.server), (&again.guard, &again.server));
    assert_eq!(text(&db.admin, "select count(*) from pg_trigger where tgrelid = 't'::regclass").await, "1");
}

/// The operator gets another login: the guard is upgraded, and nobody is accused of having altered it.
#[tokio::test]
async fn another_login_of_the_operator_is_an_upgrade() {
    let db = Db::new().await;
    db.fenced(7, "a").await;
    let next = format!("{}_next", db.operator);
    db.admin
        .batch_execute(&format!(
            "create role {next} login password '{next}' in role {}; grant create on database {} to {next}",
            db.operator, db.name
        ))
        .await
        .unwrap();
    let other = Db { operator: next, ..db };
    let boundary = other.boundary(GuardMode::Enforce);
    let examined = examine(&boundary).await;
    assert_eq!(examined.guard_altered, None);
    assert_eq!(examined.refused, Some(0), "what the new one tries is not counted either");
    assert_eq!(examined.fence.unwrap().epoch.get(), 7);
}
