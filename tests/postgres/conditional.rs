//! The application's own conditional update: the honest forms are proven as they are written, and each defect is told by its name.

use crate::support::{Db, Server, said, text};
use fencedlock::{
    api::{LimitName, PostgresBoundary, WritesPerEpoch},
    boundary::{
        Ask, Backend,
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

fn is_proven(examined: &Examination) -> bool {
    conclude(examined, None, Some(1), Timestamp::now()).1.is_some()
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
