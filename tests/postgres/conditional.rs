//! The application's own conditional update: the honest forms are proven as they are written, and each defect is told by its name.

use crate::support::{Db, Server, is_proven, said, text};
use fencedlock::{
    api::{LimitName, PostgresBoundary, WritesPerEpoch},
    boundary::{
        Ask, Backend, Owner,
        postgres::{Access, Conditional, Which},
        proof::{Examination, Failure, Outcome, Probe, conclude},
    },
    epoch::{Epoch, Holder},
};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

const ONCE: &str = "UPDATE report SET payload = $2, last_fence = $3 WHERE id = $1 AND last_fence < $3 RETURNING id";
const MANY: &str = "UPDATE report SET payload = $2, last_fence = $3 WHERE id = $1 AND last_fence <= $3 AND $3 > 0 RETURNING id";
const HELD: &str = "UPDATE report SET payload = $2, last_fence = $3, holder = $4 WHERE id = $1 \
                    AND (last_fence < $3 OR last_fence = $3 AND holder = $4) RETURNING id";
const CANARY: &str = "canary";

/// A database with a table as an application has it, and the rights that the statement needs.
struct App {
    db: Db,
}

impl App {
    async fn new() -> Self {
        Self::with("last_fence bigint not null default 0").await
    }

    async fn with(fence: &str) -> Self {
        Self::on(Server::shared(), fence).await
    }

    async fn on(server: &Server, fence: &str) -> Self {
        let db = Db::on(server).await;
        db.admin
            .batch_execute(&format!(
                "drop table t; create table report (id text primary key, payload text, holder text, is_draft bool not null default false, {fence});
                 insert into report (id) values ('real'), ('{CANARY}'); alter table report owner to {owner};
                 grant select, update (payload, last_fence) on report to {writer}",
                owner = db.owner,
                writer = db.writer
            ))
            .await
            .unwrap();
        Self { db }
    }

    /// What the form that names the holder needs besides.
    async fn with_holder() -> Self {
        let app = Self::new().await;
        app.db.admin.batch_execute(&format!("grant update (holder) on report to {}", app.db.writer)).await.unwrap();
        app
    }

    fn spec(&self, statement: &str) -> Value {
        let mut parameters = json!({"key": 1, "payload": 2, "epoch": 3});
        let mut update = json!({"statement": statement, "fenceColumn": "last_fence", "canaryKey": CANARY});
        if statement.contains("$4") {
            parameters["holder"] = 4.into();
            update["holderColumn"] = "holder".into();
        }
        update["parameters"] = parameters;
        json!({"connection": {"secretKeyRef": {"name": "s", "key": "url"}}, "tables": [{"schema": "public", "name": "report"}],
               "writerRoles": [self.db.writer], "conditionalUpdate": update})
    }

    fn declared(&self, spec: Value, writes: WritesPerEpoch) -> Conditional {
        let spec: PostgresBoundary = serde_json::from_value(spec).unwrap();
        let access = Access::Given { url: self.db.url(&self.db.operator), authorities: None };
        let which = Which { namespace: "team", boundary: "db", lock: "writer", uid: "uid", generation: 1 };
        let update = spec.conditional_update.clone().unwrap();
        Conditional::new(access, which, spec, update, writes)
    }

    fn boundary(&self, statement: &str, writes: WritesPerEpoch) -> Conditional {
        self.declared(self.spec(statement), writes)
    }

    async fn examine(&self, statement: &str, writes: WritesPerEpoch) -> Examination {
        self.boundary(statement, writes).examine(&Ask::default()).await.unwrap()
    }

    async fn real_row(&self) -> String {
        text(&self.db.admin, "select concat_ws(' ', id, payload, holder, last_fence) from report where id <> 'canary'").await
    }
}

fn failures(examined: &Examination) -> Vec<(Probe, Failure, String)> {
    let answers = examined.answers.as_ref().unwrap_or_else(|| panic!("nothing was tried: {:?}", examined.unfinished));
    let failed = |probe| match answers.of(probe) {
        Some(Outcome::Failed(how, why)) => Some((probe, *how, why.clone())),
        _ => None,
    };
    Probe::ALL.into_iter().filter_map(failed).collect()
}

/// The limits that the verdict names.
fn limits(examined: &Examination) -> Vec<LimitName> {
    let mut names: Vec<_> = examined.limits.iter().map(|limit| limit.name).collect();
    let outcomes = fencedlock::boundary::proof::outcomes(examined);
    names.extend(outcomes.into_iter().filter_map(|(_, _, limit)| limit));
    names.sort_unstable();
    names.dedup();
    names
}

#[tokio::test]
async fn the_honest_forms_are_proven_as_they_are_written() {
    use LimitName::{EpochNotBoundToHolder, EpochNotBounded, NobodyNotRefused};
    let upsert = "INSERT INTO report (id, payload, last_fence) VALUES ($1, $2, $3) ON CONFLICT (id) DO UPDATE \
                  SET payload = excluded.payload, last_fence = excluded.last_fence WHERE report.last_fence < excluded.last_fence RETURNING id";
    for (statement, writes, wanted) in [
        (ONCE, WritesPerEpoch::Once, &[EpochNotBounded, EpochNotBoundToHolder, NobodyNotRefused][..]),
        (MANY, WritesPerEpoch::Many, &[EpochNotBounded, EpochNotBoundToHolder, NobodyNotRefused]),
        (HELD, WritesPerEpoch::Many, &[EpochNotBounded, NobodyNotRefused]),
    ] {
        let app = if statement == HELD { App::with_holder().await } else { App::new().await };
        let examined = app.examine(statement, writes).await;
        assert_eq!(
            failures(&examined)
                .iter()
                .filter(|(probe, ..)| *probe != Probe::EnormousRefused && *probe != Probe::NobodyRefused)
                .collect::<Vec<_>>(),
            Vec::<&_>::new()
        );
        assert_eq!((examined.bypasses.as_slice(), examined.not_durable.as_deref()), (&[][..], None), "{statement}");
        assert!(is_proven(&examined), "{statement}: {examined:?}");
        assert_eq!(limits(&examined), wanted, "{statement}");
        assert_eq!(app.real_row().await, "real 0", "no other row was touched");
    }
    let app = App::new().await;
    app.db.admin.batch_execute(&format!("grant insert on report to {}", app.db.writer)).await.unwrap();
    let examined = app.examine(upsert, WritesPerEpoch::Once).await;
    let found = failures(&examined);
    assert!(found.iter().any(|(probe, how, why)| (*probe, *how) == (Probe::RecreatedRefused, Failure::Accepted) && why.starts_with("InsertAfterDelete")), "{found:?}");
    assert!(!is_proven(&examined));
    assert_eq!(text(&app.db.admin, "select count(*) from report").await, "2", "the deletion was undone");
}

/// Proven twice in a row, with what the first run left in the row.
#[tokio::test]
async fn a_proof_can_be_repeated_and_costs_no_row() {
    let app = App::with_holder().await;
    let boundary = app.boundary(HELD, WritesPerEpoch::Many);
    for _ in 0..2 {
        let examined = boundary.examine(&Ask::default()).await.unwrap();
        assert!(is_proven(&examined), "{examined:?}");
    }
    let both = futures::future::join(boundary.examine(&Ask::default()), boundary.examine(&Ask::default())).await;
    assert!(is_proven(&both.0.unwrap()) && is_proven(&both.1.unwrap()), "two replicas take turns");
    assert_eq!(text(&app.db.admin, "select count(*) from report").await, "2");
}

#[tokio::test]
async fn each_defect_of_a_statement_is_told_by_its_name() {
    use WritesPerEpoch::{Many, Once};
    let accepted = Failure::Accepted;
    for (statement, writes, probe, failure, name) in [
        ("update report set payload = $2, last_fence = $3 where id = $1", Once, Probe::StaleRefused, accepted, "UnconditionalUpdate"),
        (
            "update report set payload = $2, last_fence = $3 where id = $1 and last_fence <= $3",
            Many,
            Probe::MissingClaimRefused,
            accepted,
            "EpochZeroAccepted",
        ),
        (MANY, Once, Probe::RepeatFollowsContract, accepted, "EqualEpochsAccepted"),
        (ONCE, Many, Probe::RepeatFollowsContract, Failure::Refused, "EqualEpochsRefused"),
        ("update report set payload = $2 where id = $1 and last_fence < $3", Once, Probe::StaleRefused, accepted, "FenceNotStored"),
        (
            "update report set payload = $2, last_fence = $3 where id = $1 and last_fence < $3 and last_fence > 5",
            Once,
            Probe::CurrentAccepted,
            Failure::Refused,
            "OwnerRefused",
        ),
        (
            "update report set payload = $2, last_fence = $3 where id = $1 and coalesce((select max(r.last_fence) from report r where r.id = $1), 0) < $3",
            Once,
            Probe::RaceRefused,
            accepted,
            "FenceInAnotherRow",
        ),
    ] {
        let app = App::new().await;
        let examined = app.examine(statement, writes).await;
        let found = failures(&examined);
        assert!(
            found.iter().any(|(at, how, why)| *at == probe && *how == failure && why.starts_with(name)),
            "{statement}: {name} of {probe} is not in {found:?}"
        );
        let (seen, proven) = conclude(&examined, None, Some(1), Timestamp::now());
        assert!(proven.is_none(), "{statement}");
        assert_eq!(seen.stale_accepted.is_some(), failure == accepted, "{statement}: {seen:?}");
        assert_eq!(app.real_row().await, "real 0", "{statement}");
    }
}

#[tokio::test]
async fn each_defect_of_the_fence_column_is_told_by_its_name() {
    for (column, statement, name) in [
        (
            "last_fence text not null default ''",
            "update report set payload = $2, last_fence = $3 where id = $1 and last_fence < $3",
            "FenceColumnText",
        ),
        ("last_fence double precision not null default 0", ONCE, "FenceColumnFloat"),
        ("last_fence integer not null default 0", ONCE, "FenceColumn32Bit"),
        ("last_fence bigint default 0", ONCE, "FenceColumnNullable"),
        (
            "last_fence bigint",
            "update report set payload = $2, last_fence = $3 where id = $1 and coalesce(last_fence, -1) < $3",
            "FenceColumnNullable",
        ),
        ("last_fence bigint not null default -5", ONCE, "EpochZeroAccepted"),
        (
            "last_fence numeric not null default 0",
            "update report set payload = $2, last_fence = $3::int where id = $1 and last_fence < $3::int",
            "FenceColumn32Bit",
        ),
    ] {
        let app = App::with(column).await;
        let examined = app.examine(statement, WritesPerEpoch::Once).await;
        let found = failures(&examined);
        assert!(found.iter().any(|(_, _, why)| why.contains(name)), "{column}: {name} is not in {found:?}");
        assert!(!is_proven(&examined), "{column}");
    }
    let app = App::new().await;
    app.db.admin.batch_execute("alter table report alter last_fence drop default").await.unwrap();
    let why = app.examine(ONCE, WritesPerEpoch::Once).await;
    assert!(is_proven(&why), "a column without a default begins at 0: {why:?}");
}

/// What cannot be shown to touch one row of the declared tables and nothing else is never run: inconclusive, with the next step.
#[tokio::test]
async fn what_would_touch_anything_else_is_never_run() {
    let app = App::new().await;
    app.db
        .admin
        .batch_execute(&format!(
            "create table log (id text); create function noted(id text) returns bool language sql as 'insert into log values (id); select true';
             create schema other; create table other.report (id text primary key, payload text, last_fence bigint not null default 0);
             insert into other.report values ('{CANARY}'); grant usage on schema other to {writer}; grant all on other.report to {writer};
             create function lower(bigint) returns bigint language sql as 'insert into log values (''x''); select 1::bigint';
             create table pairs (id text, payload text, last_fence bigint not null default 0); insert into pairs (id, last_fence) values ('{CANARY}', 100), ('{CANARY}', 100);
             create function \"Lower\"(text) returns text language sql as 'insert into log values (''x''); select $1';
             create function noted(report) returns bool language sql as 'insert into log values (''x''); select true';
             alter table pairs owner to {owner}; grant select, update (payload, last_fence) on pairs to {writer}",
            writer = app.db.writer,
            owner = app.db.owner
        ))
        .await
        .unwrap();
    let statement = "spec.postgres.conditionalUpdate.statement";
    for (sql, wanted) in [
        (format!("select last_fence from report where id = $1; {ONCE}"), "SelectThenUpdate"),
        // H09: a unique key makes a repetition harmless and refuses nobody by epoch.
        (
            "insert into report (id, payload, last_fence) values ($1, $2, $3) on conflict do nothing".into(),
            "the epoch of a new owner is never stored",
        ),
        ("update report set payload = $2,, last_fence = $3".into(), "does not parse"),
        (ONCE.replace("id = $1", "id <> $1"), "more rows than one"),
        (ONCE.replace(" report", " other.report"), "other.report"),
        (ONCE.replace("RETURNING", "and noted($1) RETURNING"), "noted"),
        (ONCE.replace("RETURNING", "and lower(last_fence) = 1 RETURNING"), "lower"),
        (ONCE.replace("RETURNING", "and \"Lower\"(id) is not null RETURNING"), "Lower"),
        (ONCE.replace("report SET", "report r SET").replace("RETURNING", "and r.noted RETURNING"), "noted"),
        (ONCE.replace("payload = $2", "nothing = $2"), "nothing"),
        (ONCE.replace("id = $1", "nothing = $1"), "nothing"),
        (ONCE.replace("last_fence < $3", "last_fence < $3 and $5"), "$5"),
    ] {
        let said = match app.boundary(&sql, WritesPerEpoch::Once).examine(&Ask::default()).await {
            Ok(examined) => {
                assert!(!is_proven(&examined) && failures_or_none(&examined).is_empty(), "{sql}: {examined:?}");
                examined.unfinished.unwrap_or_else(|| panic!("{sql}: {:?}", examined.answers))
            }
            Err(error) => error.to_string(),
        };
        assert!(said.contains(wanted) && said.contains(statement), "{sql}: {said}");
        assert_eq!(text(&app.db.admin, "select count(*) from log").await, "0", "{sql}");
        assert_eq!(
            text(&app.db.admin, "select sum(last_fence) + (select sum(last_fence) from other.report) from report").await,
            "0",
            "{sql}"
        );
    }
    // A search_path of the writer's or of the database leads nowhere else.
    app.db
        .admin
        .batch_execute(&format!(
            "alter role {} set search_path = other; alter role {} set search_path = other; alter database {} set search_path = other",
            app.db.writer, app.db.operator, app.db.name
        ))
        .await
        .unwrap();
    assert!(is_proven(&app.examine(ONCE, WritesPerEpoch::Once).await));
    assert_eq!(text(&app.db.admin, "select sum(last_fence) from other.report").await, "0");
    // Two rows have the key, which is not unique.
    let mut spec = app.spec(&ONCE.replace("report", "pairs"));
    spec["tables"][0]["name"] = "pairs".into();
    let examined = app.declared(spec, WritesPerEpoch::Once).examine(&Ask::default()).await.unwrap();
    assert!(!is_proven(&examined));
    let why = examined.unfinished.unwrap();
    assert!(why.contains("unique index"), "{why}");
    assert_eq!(text(&app.db.admin, "select sum(last_fence) from pairs").await, "200", "no fence of a real row went down");
}

fn failures_or_none(examined: &Examination) -> Vec<(Probe, Failure, String)> {
    examined.answers.as_ref().map(|_| failures(examined)).unwrap_or_default()
}

/// What is wrong with a declaration is said by its field.
#[tokio::test]
async fn a_wrong_declaration_is_named_by_its_field() {
    let app = App::new().await;
    let field = "spec.postgres.conditionalUpdate";
    type Change = fn(&mut Value);
    let changes: [(Change, &str, &str); 6] = [
        (|spec| spec["conditionalUpdate"]["canaryKey"] = "missing".into(), ".canaryKey", "0 rows"),
        (|spec| spec["conditionalUpdate"]["fenceColumn"] = "fence".into(), ".fenceColumn", "FenceInAnotherRow"),
        (|spec| spec["conditionalUpdate"]["parameters"]["epoch"] = 9.into(), ".parameters", "$3"),
        (|spec| spec["tables"][0]["name"] = "nowhere".into(), ".statement", "report"),
        (|spec| spec["writerRoles"] = json!([]), "", "spec.postgres.writerRoles"),
        (|spec| spec["conditionalUpdate"]["statement"] = ONCE.replace("$2", "$2::point").into(), "", "point"),
    ];
    for (change, at, wanted) in changes {
        let mut spec = app.spec(ONCE);
        change(&mut spec);
        let said = match app.declared(spec, WritesPerEpoch::Once).examine(&Ask::default()).await {
            Ok(examined) => {
                assert!(!is_proven(&examined), "{wanted}");
                let (seen, _) = conclude(&examined, None, Some(1), Timestamp::now());
                seen.unfinished.or(seen.inconclusive).unwrap()
            }
            Err(error) => error.to_string(),
        };
        assert!(said.contains(wanted) && (at.is_empty() || said.contains(&format!("{field}{at}"))), "{wanted}: {said}");
    }
    let owner = Owner { epoch: Epoch::new(7).unwrap(), holder: Some(Holder::new("a").unwrap()), pod_uid: None };
    let refused = app.boundary(ONCE, WritesPerEpoch::Once).activate(&owner).await.unwrap_err();
    assert!(refused.to_string().contains("AfterAcceptance"), "{refused}");
}

/// Another way to change the table is named, whoever has it.
#[tokio::test]
async fn every_other_write_path_is_named() {
    // What a role may is the whole server's: on a shared one, other tests would see it.
    let server = Server::start("paths", &[]);
    for (sql, undo, by_writer, words) in [
        ("grant insert on report to APP", "revoke insert on report from APP", true, &["INSERT on public.report"][..]),
        ("grant delete on report to APP", "revoke delete on report from APP", true, &["DELETE on public.report"]),
        ("grant truncate on report to APP", "revoke truncate on report from APP", true, &["TRUNCATE on public.report"]),
        (
            "grant update on report to APP",
            "revoke update on report from APP; grant update (payload, last_fence) on report to APP",
            true,
            &["UPDATE (id, holder, is_draft)"],
        ),
        (
            "create role group_role noinherit; grant group_role to APP; grant delete on report to group_role",
            "drop owned by group_role; drop role group_role",
            true,
            &["DELETE on public.report"],
        ),
        ("grant OWNER to APP", "revoke OWNER from APP", true, &["owns table"]),
        (
            "grant update (payload) on report to OTHER",
            "revoke update (payload) on report from OTHER",
            false,
            &["may write to public.report by statements of its own (update)", "OTHER"],
        ),
        ("grant APP to OTHER", "revoke APP from OTHER", false, &["through role", "OTHER"]),
        ("grant insert on report to public", "revoke insert on report from public", true, &["INSERT on public.report"]),
        ("grant trigger on report to OTHER", "revoke trigger on report from OTHER", false, &["has TRIGGER"]),
        (
            "create view v as select * from report; alter view v owner to OWNER; grant update on v to APP",
            "drop view v",
            true,
            &["v ends in the tables as its owner"],
        ),
        (
            "create view v as select * from report; create view w as select * from v; alter view v owner to OWNER; alter view w owner to OWNER; grant update on w to OTHER",
            "drop view w; drop view v",
            false,
            &["w ends in the tables as its owner"],
        ),
        (
            "create function f() returns void language sql security definer as 'update report set payload = null'; alter function f() owner to OWNER",
            "drop function f()",
            true,
            &["SECURITY DEFINER function public.f"],
        ),
        (
            "create role clerk; grant update on report to clerk; grant create on schema public to clerk; set role clerk; create function f() returns void language sql security definer as 'update report set payload = null'; reset role",
            "drop function f(); drop owned by clerk; drop role clerk",
            true,
            &["SECURITY DEFINER function public.f"],
        ),
        (
            "create table parent (id text primary key); alter table report add parent text references parent on delete cascade; grant delete on parent to APP",
            "alter table report drop column parent; drop table parent",
            true,
            &["a row of public.parent that goes changes rows of public.report"],
        ),
        ("create rule r as on update to report do also notify x", "drop rule r on report", true, &["rule r"]),
    ] {
        let app = App::on(&server, "last_fence bigint not null default 0").await;
        let other = format!("other_{}", app.db.writer);
        app.db.admin.batch_execute(&format!("create role {other} login password '{other}'")).await.unwrap();
        let named = |sql: &str| sql.replace("OTHER", &other).replace("APP", &app.db.writer).replace("OWNER", &app.db.owner);
        let before = app.examine(ONCE, WritesPerEpoch::Once).await;
        assert!(before.bypasses.is_empty() && is_proven(&before), "{sql}: {:?}", before.bypasses);
        app.db.admin.batch_execute(&named(sql)).await.unwrap();
        let found = app.examine(ONCE, WritesPerEpoch::Once).await;
        let is_told = |bypass: &fencedlock::boundary::proof::Bypass| {
            bypass.by_writer == by_writer && words.iter().all(|word| bypass.text.contains(&named(word)))
        };
        assert!(found.bypasses.iter().any(is_told), "{sql}: {:?}", found.bypasses);
        let (seen, _) = conclude(&found, None, Some(1), Timestamp::now());
        assert_eq!(seen.writer_bypass.is_some(), by_writer, "{sql}: {seen:?}");
        assert!(seen.writer_bypass.or(seen.bypass).is_some(), "{sql}");
        app.db.admin.batch_execute(&named(undo)).await.unwrap();
        let after = app.examine(ONCE, WritesPerEpoch::Once).await;
        assert!(after.bypasses.is_empty(), "{undo}: {:?}", after.bypasses);
        app.db.admin.batch_execute(&format!("drop owned by {other}; drop role {other}")).await.unwrap();
    }
}

/// A migration voids the proof, and a lossy table is said.
#[tokio::test]
async fn a_migration_voids_the_proof() {
    let mut guards = std::collections::BTreeSet::new();
    let app = App::new().await;
    let declared = app.examine(ONCE, WritesPerEpoch::Once).await;
    let (_, proof) = conclude(&declared, None, Some(1), Timestamp::now());
    guards.insert(declared.guard.clone());
    for sql in [
        "alter table report alter last_fence set default 1",
        "alter table report add column note text",
        "alter table report add constraint positive check (last_fence >= 0)",
        "create function keep() returns trigger language plpgsql as 'begin return new; end'; create trigger keep before update on report for each row execute function keep()",
        "create or replace function keep() returns trigger language plpgsql as 'begin new.last_fence := old.last_fence; return new; end'",
        "alter table report disable trigger keep",
        "create policy p on report using (true)",
        "alter table report enable row level security",
        "create index on report (payload)",
    ] {
        app.db.admin.batch_execute(sql).await.unwrap();
        let found = app.examine(ONCE, WritesPerEpoch::Once).await;
        assert!(guards.insert(found.guard.clone()), "{sql}: nothing is seen of it");
        let (seen, _) = conclude(&Examination { answers: None, ..found }, proof.as_ref(), Some(1), Timestamp::now());
        assert!(seen.proof.is_some_and(|proof| proof.void.is_some()), "{sql}: the proof stands");
    }
    app.db.admin.batch_execute("alter table report set unlogged").await.unwrap();
    let found = app.examine(ONCE, WritesPerEpoch::Once).await;
    assert!(found.not_durable.as_ref().is_some_and(|why| why.contains("UNLOGGED")), "{found:?}");
    app.db
        .admin
        .batch_execute(&format!("alter table report set logged; alter role {} set synchronous_commit = 'NO'", app.db.writer))
        .await
        .unwrap();
    let found = app.examine(ONCE, WritesPerEpoch::Once).await;
    assert!(found.not_durable.as_ref().is_some_and(|why| why.contains("synchronous_commit")), "{found:?}");
}

/// What is ordinary in a table is no finding.
#[tokio::test]
async fn ordinary_tables_are_proven() {
    type Change = fn(&mut Value);
    let nothing: Change = |_| {};
    let payload: Change = |spec| spec["conditionalUpdate"]["statement"] = ONCE.replace("payload", "amount").into();
    for (sql, change) in [
        ("alter table report add amount numeric(12,2); grant update (amount) on report to APP; revoke update (payload) on report from APP", payload),
        ("alter table report add amount jsonb; grant update (amount) on report to APP; revoke update (payload) on report from APP", payload),
        ("alter table report add amount int; grant update (amount) on report to APP; revoke update (payload) on report from APP", payload),
        ("create domain epoch as bigint check (value >= 0); alter table report alter last_fence type epoch", nothing),
        ("create view stats as select count(*) from report; grant all on stats to APP", nothing),
        (
            "alter table report add updated_at timestamptz; create function touched() returns trigger language plpgsql as 'begin new.updated_at := now(); return new; end';
             create trigger touched before update on report for each row execute function touched()",
            nothing,
        ),
        (
            "drop table report; create table report (id text primary key, payload text, last_fence bigint not null default 0) partition by hash (id);
             create table part_0 partition of report for values with (modulus 2, remainder 0); create table part_1 partition of report for values with (modulus 2, remainder 1);
             insert into report (id) values ('real'), ('canary'); alter table report owner to OWNER; alter table part_0 owner to OWNER; alter table part_1 owner to OWNER;
             grant select, update (payload, last_fence) on report to APP",
            nothing,
        ),
    ] {
        let app = App::new().await;
        app.db.admin.batch_execute(&sql.replace("APP", &app.db.writer).replace("OWNER", &app.db.owner)).await.unwrap();
        let mut spec = app.spec(ONCE);
        change(&mut spec);
        let examined = app.declared(spec, WritesPerEpoch::Once).examine(&Ask::default()).await.unwrap();
        assert!(is_proven(&examined), "{sql}: {examined:?}");
    }
    let app = App::with_holder().await;
    app.db.admin.batch_execute("update report set holder = ''; alter table report alter holder set not null").await.unwrap();
    assert!(is_proven(&app.examine(HELD, WritesPerEpoch::Many).await));
}

/// A statement that admits obsolete owners on other rows than the reserved one passes every probe there, and is not proven.
#[tokio::test]
async fn what_one_row_cannot_show_is_not_proven() {
    let app = App::new().await;
    let examined = app.examine(&ONCE.replace("last_fence < $3", "(last_fence < $3 OR is_draft)"), WritesPerEpoch::Once).await;
    assert!(
        !is_proven(&examined)
            && failures(&examined).iter().all(|(probe, ..)| *probe == Probe::EnormousRefused || *probe == Probe::NobodyRefused)
    );
    let why = examined.unfinished.unwrap();
    assert!(why.contains("AND last_fence < $3") && why.contains("spec.postgres.conditionalUpdate.statement"), "{why}");
    for body in ["new.last_fence := old.last_fence; return new;", "new := old; return new;", "execute 'select 1'; return new;"] {
        let app = App::new().await;
        app.db
            .admin
            .batch_execute(&format!(
                "create function forget() returns trigger language plpgsql as $$begin {body} end$$;
                 create trigger forget before update on report for each row when (old.is_draft) execute function forget()"
            ))
            .await
            .unwrap();
        let examined = app.examine(ONCE, WritesPerEpoch::Once).await;
        assert!(!is_proven(&examined), "{body}");
        assert!(examined.unfinished.unwrap().contains("trigger forget"), "{body}");
    }
}

/// A trigger of the real table that undoes the fence is found where a copy of the table would have had none.
#[tokio::test]
async fn what_a_trigger_does_to_the_fence_is_seen() {
    let app = App::new().await;
    app.db
        .admin
        .batch_execute(
            "create function forget() returns trigger language plpgsql as 'begin new.last_fence := old.last_fence; return new; end';
             create trigger forget before update on report for each row execute function forget()",
        )
        .await
        .unwrap();
    let examined = app.examine(ONCE, WritesPerEpoch::Once).await;
    let found = failures(&examined);
    assert!(found.iter().any(|(probe, how, _)| (*probe, *how) == (Probe::StaleRefused, Failure::Accepted)), "{found:?}");
    assert_eq!(
        said(&app.db.session(&app.db.writer).await, "update report set payload = 'x', last_fence = 1 where id = 'real' and last_fence < 1")
            .await,
        "ok"
    );
}

/// Without a row in the real table, a copy is tried, which leaves nothing behind and touches nothing.
#[tokio::test]
async fn a_copy_is_tried_where_it_is_faithful() {
    let app = App::new().await;
    app.db
        .admin
        .batch_execute("alter table report add number bigserial; alter table report add other int generated by default as identity")
        .await
        .unwrap();
    let without = |statement: &str| {
        let mut spec = app.spec(statement);
        spec["conditionalUpdate"].as_object_mut().unwrap().remove("canaryKey");
        spec
    };
    let examine = async |statement: &str| app.declared(without(statement), WritesPerEpoch::Once).examine(&Ask::default()).await.unwrap();
    let state = "select string_agg(r::text, ';' order by id) || (select last_value from report_number_seq) || (select last_value from report_other_seq) from report r";
    let before = text(&app.db.admin, state).await;
    let examined = examine(ONCE).await;
    assert!(is_proven(&examined), "{examined:?}");
    assert!(examined.notes.iter().any(|note| note.contains("a copy of the table")), "{:?}", examined.notes);
    let found = failures(&examine(&ONCE.replace(", last_fence = $3", "")).await);
    assert!(found.iter().any(|(_, _, why)| why.starts_with("FenceNotStored")), "{found:?}");
    let upsert = "insert into report (id, payload, last_fence) values ($1, $2, $3) on conflict (id) do update set payload = $2, last_fence = $3 \
                  where report.last_fence < $3";
    app.db.admin.batch_execute(&format!("grant insert on report to {}", app.db.writer)).await.unwrap();
    let found = failures(&examine(upsert).await);
    assert!(found.iter().any(|(_, _, why)| why.starts_with("InsertAfterDelete")), "{found:?}");
    app.db.admin.batch_execute(&format!("revoke insert on report from {}", app.db.writer)).await.unwrap();
    assert_eq!(text(&app.db.admin, state).await, before, "the real table and its sequences are as they were");
    let left = "select count(*) from pg_namespace where nspname like 'fencedlock%'";
    assert_eq!(text(&app.db.admin, left).await, "0");

    // What would leave the copy, or what it would not have.
    let said = examine(&ONCE.replace(" report", " public.report")).await.unfinished.unwrap();
    assert!(said.contains("canaryKey") && said.contains("would leave the copy"), "{said}");
    assert_eq!(text(&app.db.admin, state).await, before);
    for (sql, undo, wanted) in [
        (
            "create function keep() returns trigger language plpgsql as 'begin return new; end'; create trigger keep before update on report for each row execute function keep()",
            "drop function keep() cascade",
            "has trigger keep",
        ),
        ("create rule r as on delete to report do also notify x", "drop rule r on report", "has rule r"),
        ("alter table report enable row level security", "alter table report disable row level security", "row level security"),
        ("create policy p on report using (true)", "drop policy p on report", "row level security"),
        ("create table child () inherits (report)", "drop table child", "inheritance"),
        (
            "create function fine(bigint) returns bool language sql immutable as 'select true'; alter table report add constraint c check (fine(last_fence))",
            "drop function fine(bigint) cascade",
            "calls function",
        ),
        (
            "create function mine(text) returns text language sql immutable as 'select $1'; create index i on report (mine(payload))",
            "drop function mine(text) cascade",
            "calls function",
        ),
        ("create domain word as text; alter table report add w word", "alter table report drop w; drop domain word", "column w of type"),
        (
            "alter table report add needed timestamptz not null default now(); alter table report alter needed drop default",
            "alter table report drop needed",
            "needed",
        ),
    ] {
        app.db.admin.batch_execute(sql).await.unwrap();
        let said = examine(ONCE).await.unfinished.unwrap_or_else(|| panic!("{sql}: it was tried"));
        assert!(said.contains(wanted) && said.contains("canaryKey"), "{sql}: {said}");
        assert_eq!(text(&app.db.admin, left).await, "0", "{sql}");
        app.db.admin.batch_execute(undo).await.unwrap();
    }
    assert!(is_proven(&examine(ONCE).await));
}
