//! Every way around the guard is opened, and named.

use crate::support::{Db, Server, activate, claim, connect, examine, is_proven, said};
use fencedlock::{
    api::GuardMode,
    boundary::{
        Ask, Backend,
        postgres::Postgres,
        proof::{Examination, conclude},
    },
};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

async fn enforcing(db: &Db) -> Postgres {
    let boundary = db.boundary(GuardMode::Enforce);
    let examined = examine(&boundary).await;
    assert_eq!((&examined.bypasses[..], examined.guard_altered), (&[][..], None), "it begins clean");
    boundary
}

/// What is said of ways around, the writers' marked.
fn told(examined: &Examination) -> Vec<String> {
    examined.bypasses.iter().map(|bypass| format!("{}{}", if bypass.by_writer { "W " } else { "" }, bypass.text)).collect()
}

/// The guard itself is taken away or altered: it is named, told once, and mended.
#[tokio::test]
async fn an_altered_guard_is_told_and_then_mended() {
    for (sql, said) in [
        ("alter table t disable trigger TRIGGER", "is disabled"),
        ("alter table t enable trigger TRIGGER", "is not ALWAYS enabled"),
        ("alter table t enable replica trigger TRIGGER", "is not ALWAYS enabled"),
        ("drop trigger TRIGGER on t", "is gone"),
        (
            "drop trigger TRIGGER on t; create trigger TRIGGER before insert on t for each statement execute function GUARD(); alter table t enable always trigger TRIGGER",
            "was altered",
        ),
        ("alter trigger TRIGGER on t rename to other", "is gone"),
        (
            "create or replace function GUARD() returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as 'begin return null; end'",
            "function of the guard",
        ),
        ("alter function GUARD() reset search_path", "function of the guard"),
        ("alter function GUARD() security invoker", "function of the guard"),
        ("drop function GUARD() cascade", "function of the guard"),
        // A migration that writes a new table and swaps the names.
        (
            "create table t_new (like t including all); insert into t_new select * from t; alter table t rename to t_old; alter table t_new rename to t; alter table t owner to OWNER; grant select, insert, update, delete on t to APP",
            "another table",
        ),
    ] {
        let db = Db::new().await;
        let boundary = enforcing(&db).await;
        activate(&boundary, 7, "a").await;
        let trigger = crate::support::text(&db.admin, "select tgname from pg_trigger where tgrelid = 't'::regclass").await;
        let guard = format!("fencedlock.\"{}_guard\"", trigger.trim_start_matches("fencedlock_"));
        let sql = sql
            .replace("TRIGGER", &format!("\"{trigger}\""))
            .replace("GUARD", &guard)
            .replace("OWNER", &db.owner)
            .replace("APP", &db.writer);
        db.admin.batch_execute(&sql).await.unwrap();
        let found = examine(&boundary).await;
        let altered = found.guard_altered.clone().unwrap_or_else(|| panic!("{sql}: nothing is said"));
        assert!(altered.contains(said), "{sql}: {altered}");
        assert!(!is_proven(&found) && found.answers.is_none(), "{sql}");
        let (seen, _) = conclude(&found, None, Some(1), Timestamp::now());
        assert!(seen.guard_altered.is_some());
        let mended = boundary.examine(&Ask { repair: true, is_known: true, ..Ask::default() }).await.unwrap();
        assert!(mended.guard_altered.is_none() && is_proven(&mended), "{sql}: {mended:?}");
        assert_eq!(said_by_stale(&db).await, "FL002", "{sql}");
        assert_eq!(mended.fence.unwrap().epoch.get(), 7, "{sql}: the fence stays");
    }
}

async fn said_by_stale(db: &Db) -> String {
    said(&db.claiming(&claim(6, "z")).await, "update t set v = v").await
}

/// Powers of a writer: it is named, and the boundary is violated, whoever is exempt.
#[tokio::test]
async fn what_a_writer_can_go_around_with_is_named() {
    // What a role may is the whole server's: on a shared one, other tests would see it.
    let server = Server::start("bypass", &[]);
    for (sql, undo, word) in [
        ("alter table t owner to APP", "alter table t owner to OWNER", "owns table"),
        ("grant OWNER to APP", "revoke OWNER from APP", "through role"),
        ("alter role APP superuser", "alter role APP nosuperuser", "superuser"),
        ("alter role APP bypassrls", "alter role APP nobypassrls", "BYPASSRLS"),
        ("alter role APP createrole", "alter role APP nocreaterole", "CREATEROLE"),
        ("grant pg_write_all_data to APP", "revoke pg_write_all_data from APP", "pg_write_all_data"),
        ("grant pg_execute_server_program to APP", "revoke pg_execute_server_program from APP", "act as the server"),
        (
            "grant set on parameter session_replication_role to APP",
            "revoke set on parameter session_replication_role from APP",
            "session_replication_role",
        ),
        ("grant update on FENCE to APP", "revoke update on FENCE from APP", "may change the fence"),
        ("grant update (claim) on FENCE to APP", "revoke update (claim) on FENCE from APP", "may change the fence"),
        ("grant update on EPOCH to APP", "revoke update on EPOCH from APP", "may change the fence"),
        (
            "grant execute on function ACTIVATE(bigint, text) to APP",
            "revoke execute on function ACTIVATE(bigint, text) from APP",
            "may activate epochs",
        ),
        (
            "grant execute on function ACTIVATE(bigint, text) to public",
            "revoke execute on function ACTIVATE(bigint, text) from public",
            "may activate epochs",
        ),
        (
            "create schema s; alter schema s owner to APP; alter table t set schema s; alter table s.t set schema public; drop schema s; alter schema public owner to APP",
            "alter schema public owner to pg_database_owner",
            "owns schema public",
        ),
        (
            "create function public.f() returns void language sql security definer as 'select'; alter function public.f() owner to OWNER",
            "drop function public.f()",
            "SECURITY DEFINER function public.f",
        ),
        ("grant pg_write_server_files to APP", "revoke pg_write_server_files from APP", "act as the server"),
        (
            "alter schema fencedlock owner to APP",
            "alter schema fencedlock owner to OPERATOR; grant usage on schema fencedlock to APP",
            "owns schema fencedlock",
        ),
        (
            "alter role APP set session_replication_role = replica",
            "alter role APP reset session_replication_role",
            "session_replication_role set for every session",
        ),
        ("grant trigger on t to APP", "revoke trigger on t from APP", "has TRIGGER on public.t"),
        (
            "create table inbox (id int); grant insert on inbox to APP; create function public.load() returns trigger language plpgsql security \
             definer as 'begin return new; end'; alter function public.load() owner to OWNER; revoke execute on function public.load() from public; \
             create trigger load before insert on inbox for each row execute function public.load()",
            "drop table inbox; drop function public.load()",
            "SECURITY DEFINER function public.load",
        ),
        ("create rule r as on insert to t do instead nothing", "drop rule r on t", "rule r"),
        (
            "alter role APP set fencedlock.claim = 'team/writer=1@x'",
            "alter role APP reset fencedlock.claim",
            "fencedlock.claim set for every session",
        ),
        (
            "alter database DATABASE set fencedlock.claim = 'team/writer=1@x'",
            "alter database DATABASE reset fencedlock.claim",
            "fencedlock.claim set for every session",
        ),
        ("create table part (id int) partition by list (id)", "drop table part", ""),
    ] {
        let db = Db::on(&server).await;
        let boundary = enforcing(&db).await;
        activate(&boundary, 7, "a").await;
        let base =
            crate::support::text(&db.admin, "select replace(tgname, 'fencedlock_', '') from pg_trigger where tgrelid = 't'::regclass")
                .await;
        let fill = |sql: &str| {
            let object = |name: &str| format!("fencedlock.\"{base}_{name}\"");
            sql.replace("OPERATOR", &db.operator)
                .replace("APP", &db.writer)
                .replace("OWNER", &db.owner)
                .replace("DATABASE", &db.name)
                .replace("FENCE", &object("fence"))
                .replace("EPOCH", &object("epoch"))
                .replace("ACTIVATE", &object("activate"))
        };
        db.admin.batch_execute(&fill(sql)).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        let found = examine(&boundary).await;
        if word.is_empty() {
            assert!(told(&found).is_empty(), "another table is nobody's concern: {:?}", told(&found));
            continue;
        }
        let named: Vec<_> = told(&found).into_iter().filter(|text| text.starts_with("W ")).collect();
        assert!(named.iter().any(|text| text.contains(word)), "{sql}: {:?}", told(&found));
        let (seen, proven) = conclude(&found, None, Some(1), Timestamp::now());
        assert!(seen.writer_bypass.is_some() && proven.is_none(), "{sql}");
        // Nobody can answer for a writer; for what runs as an exempt role, somebody does.
        let mut exempting = db.spec();
        exempting["exemptRoles"] = json!([{"role": db.writer, "reason": "r"}]);
        let exempting = db.declared(exempting, GuardMode::Enforce, 1);
        assert!(examine(&exempting).await.bypasses.iter().any(|bypass| bypass.by_writer), "{sql}");
        db.admin.batch_execute(&fill(undo)).await.unwrap_or_else(|error| panic!("{undo}: {error:?}"));
        let clean = examine(&boundary).await;
        assert!(told(&clean).is_empty() && is_proven(&clean), "{undo}: {:?} {:?}", told(&clean), clean.guard_altered);
    }
}

/// Other roles: a finding until somebody answers for them.
#[tokio::test]
async fn what_other_roles_can_do_is_a_finding_until_somebody_answers() {
    let db = Db::new().await;
    let boundary = enforcing(&db).await;
    let (dba, group) = (format!("dba_{}", db.name), format!("group_{}", db.name));
    // Superusers are seen by every test's audit on this server, so this one only owns things.
    db.admin
        .batch_execute(&format!("create role {group}; create role {dba} login in role {group}; grant {} to {group}", db.owner))
        .await
        .unwrap();
    let found = examine(&boundary).await;
    let texts = told(&found);
    assert!(texts.len() == 1 && texts[0].contains(&format!("role {dba:?} owns table public.t")), "{texts:?}");
    assert!(texts[0].contains("exemptRoles"), "{texts:?}");
    let (seen, proven) = conclude(&found, None, Some(1), Timestamp::now());
    assert!(seen.bypass.is_some() && seen.writer_bypass.is_none() && proven.is_none());
    for answered in [&dba, &db.owner] {
        let mut spec = db.spec();
        spec["exemptRoles"] = json!([{"role": answered, "reason": "break-glass"}]);
        let examined = examine(&db.declared(spec, GuardMode::Enforce, 1)).await;
        assert!(told(&examined).is_empty() && is_proven(&examined), "{answered}: {:?}", told(&examined));
    }
    db.admin.batch_execute(&format!("drop role {dba}; drop role {group}")).await.unwrap();
}

/// A partition that came later: a way around only for whom may write to it directly, and guarded from then on.
#[tokio::test]
async fn a_partition_that_came_later_is_guarded() {
    let db = Db::new().await;
    db.admin
        .batch_execute(&format!(
            "create table p (id int) partition by list (id); create table p_1 partition of p for values in (1); grant select, insert, update, delete on p to {}; \
             alter table p owner to {owner}; alter table p_1 owner to {owner}",
            db.writer,
            owner = db.owner
        ))
        .await
        .unwrap();
    let mut spec = db.spec();
    spec["tables"][0]["name"] = "p".into();
    let boundary = db.declared(spec, GuardMode::Enforce, 1);
    activate(&boundary, 7, "a").await;
    db.admin
        .batch_execute(&format!("create table p_2 partition of p for values in (2); alter table p_2 owner to {}", db.owner))
        .await
        .unwrap();
    let quiet = examine(&boundary).await;
    assert!(quiet.guard_altered.is_none() && told(&quiet).is_empty() && is_proven(&quiet), "{:?}", told(&quiet));
    assert_eq!(said(&db.admin, "insert into p_2 values (2)").await, "FL001", "it got its trigger");
    db.admin
        .batch_execute(&format!(
            "create table p_3 partition of p for values in (3); alter table p_3 owner to {}; grant select, insert, update, delete on p_3 to {}",
            db.owner, db.writer
        ))
        .await
        .unwrap();
    let open = examine(&boundary).await;
    assert!(told(&open)[0].starts_with("W public.p_3 came after the guard"), "{:?}", told(&open));
    assert!(is_proven(&examine(&boundary).await), "guarded from then on");
}

/// Logical replication fires no statement trigger; a foreign partition is somebody else's server.
#[tokio::test]
async fn what_fires_no_trigger_is_named() {
    let db = Db::new().await;
    let boundary = enforcing(&db).await;
    let subscription = format!("sub_{}", db.name);
    db.admin
        .batch_execute(&format!(
            "create subscription {subscription} connection 'host=127.0.0.1 dbname=nowhere' publication p with (connect = false)"
        ))
        .await
        .unwrap();
    db.admin
        .batch_execute("insert into pg_subscription_rel values ((select max(oid) from pg_subscription), 't'::regclass, 'i', null)")
        .await
        .unwrap();
    let found = examine(&boundary).await;
    assert!(told(&found).iter().any(|text| text.contains("subscription") && text.contains("writes to public.t")), "{:?}", told(&found));
    db.admin.batch_execute("delete from pg_subscription_rel").await.unwrap();
    db.admin
        .batch_execute(&format!("alter subscription {subscription} set (slot_name = none); drop subscription {subscription}"))
        .await
        .unwrap();
    db.admin
        .batch_execute(&format!(
            "create foreign data wrapper w; create server s foreign data wrapper w; create table p (id int) partition by list (id); \
             create foreign table p_far partition of p for values in (1) server s; alter table p owner to {owner}; alter foreign table p_far owner to {owner}; \
             grant select, insert, update, delete on p to {}",
            db.writer,
            owner = db.owner
        ))
        .await
        .unwrap();
    let mut spec = db.spec();
    spec["tables"][0]["name"] = "p".into();
    let foreign = examine(&db.called("db-2", "writer", spec, GuardMode::Enforce, 1)).await;
    assert!(told(&foreign).iter().any(|text| text.contains("p_far is a foreign table")), "{:?}", told(&foreign));
}

/// A claim set on a pooled connection stays there for the next client: the guard cannot know, and its own probe shows that a claim set
/// in a transaction does not.
#[tokio::test]
async fn a_claim_in_a_transaction_leaves_the_connection_clean() {
    let db = Db::new().await;
    let _boundary = db.fenced(7, "a").await;
    let pooled = connect(&db.url(&db.writer)).await;
    pooled.batch_execute(&format!("begin; set local fencedlock.claim = '{}'; update t set v = v; commit", claim(7, "a"))).await.unwrap();
    assert_eq!(said(&pooled, "update t set v = v").await, "FL001");
}

/// A statement fires the triggers of the table that it names: a parent that is not declared is a way around.
#[tokio::test]
async fn what_is_written_by_way_of_a_parent_is_a_way_around() {
    let db = Db::new().await;
    db.admin
        .batch_execute(&format!(
            "create table top (id int) partition by list (id); create table leaf partition of top for values in (1); \
             grant select, insert, update, delete on top, leaf to {}; alter table top owner to {owner}; alter table leaf owner to {owner}",
            db.writer,
            owner = db.owner
        ))
        .await
        .unwrap();
    let mut spec = db.spec();
    spec["tables"][0]["name"] = "leaf".into();
    let boundary = db.declared(spec.clone(), GuardMode::Enforce, 1);
    activate(&boundary, 7, "a").await;
    assert_eq!(said(&db.claiming(&claim(6, "z")).await, "insert into top values (1)").await, "ok", "this is the hole");
    let found = examine(&boundary).await;
    assert!(told(&found)[0].starts_with("W public.top is above a guarded table"), "{:?}", told(&found));
    assert!(!is_proven(&found));
    spec["tables"][0]["name"] = "top".into();
    let whole = db.declared(spec, GuardMode::Enforce, 2);
    let examined = examine(&whole).await;
    assert!(told(&examined).is_empty(), "{:?}", told(&examined));
    assert_eq!(said(&db.claiming(&claim(6, "z")).await, "insert into top values (1)").await, "FL002");
}

/// What was found counts although the rest could not be looked at: a way around never hides behind an error.
#[tokio::test]
async fn a_finding_is_not_lost_in_an_error() {
    let db = Db::new().await;
    db.admin
        .batch_execute(&format!(
            "create table p (id int) partition by list (id); grant select, insert, update, delete on p to {}; alter table p owner to {}",
            db.writer, db.owner
        ))
        .await
        .unwrap();
    let mut spec = db.spec();
    spec["tables"][0]["name"] = "p".into();
    let boundary = db.declared(spec, GuardMode::Enforce, 1);
    activate(&boundary, 7, "a").await;
    db.admin
        .batch_execute(&format!(
            "create table p_1 partition of p for values in (1); alter table p_1 owner to {}; grant insert on p_1 to {}",
            db.owner, db.writer
        ))
        .await
        .unwrap();
    // Somebody writes to it without end, so that no trigger can be put on it.
    let busy = connect(&db.url(&db.writer)).await;
    busy.batch_execute("begin; insert into p_1 values (1)").await.unwrap();
    let found = examine(&boundary).await;
    assert!(told(&found)[0].starts_with("W public.p_1 came after the guard"), "{:?}", told(&found));
    assert!(found.unfinished.as_ref().is_some_and(|why| why.contains("cannot be installed")), "{:?}", found.unfinished);
    busy.batch_execute("rollback").await.unwrap();
    let trigger = crate::support::text(&db.admin, "select tgname from pg_trigger where tgrelid = 'p'::regclass limit 1").await;
    db.admin
        .batch_execute(&format!("alter table p disable trigger \"{trigger}\"; revoke {} from {}", db.writer, db.operator))
        .await
        .unwrap();
    let found = examine(&boundary).await;
    assert!(found.guard_altered.is_some_and(|text| text.contains("is disabled")));
}

/// Who may only insert, or only change one column, is tried with what it may do.
#[tokio::test]
async fn a_writer_with_few_rights_is_tried_with_those() {
    use fencedlock::boundary::proof::{Outcome, Probe};
    let db = Db::new().await;
    for rights in ["insert (id)", "update (v)", "delete", "insert"] {
        db.admin.batch_execute(&format!("revoke all on t from {w}; grant {rights} on t to {w}", w = db.writer)).await.unwrap();
        let boundary = enforcing(&db).await;
        let examined = examine(&boundary).await;
        assert_eq!(examined.answers.as_ref().unwrap().of(Probe::StaleRefused), Some(&Outcome::Passed), "{rights}");
        assert!(is_proven(&examined), "{rights}");
    }
    let mut spec = db.spec();
    spec["writerRoles"] = json!([]);
    let unknown = examine(&db.declared(spec, GuardMode::Enforce, 1)).await;
    assert!(!is_proven(&unknown), "nobody knows who writes");
}
