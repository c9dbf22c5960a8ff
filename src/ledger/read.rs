//! What a ledger shows to whoever may look at it: counts for the operator, operations for the command line; and a person's word about one.

use std::time::Duration;

use serde::Serialize;
use tokio_postgres::types::ToSql;

use super::{Place, client::Effect};
use crate::boundary::{
    BackendError,
    postgres::{Access, Session, failed},
};

/// What the operator sees of a ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations that were sent and whose outcome is unknown for too long.
    pub overdue: u64,
    /// The work item of the oldest of them, for the message.
    pub example: Option<String>,
    /// When the next one will be, from now on, unless it ends before.
    pub next: Option<Duration>,
    /// Work items that may have taken effect more than once.
    pub repeated: u64,
    /// The triggers on the table that are always enabled.
    pub triggers: Vec<String>,
}

/// One operation, as it is known now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Operation {
    /// The work item.
    pub work_item: String,
    /// Which attempt at it.
    pub attempt: i32,
    /// `intent`, `sent`, `confirmed`, `failed`, `unknown`, or `reconciled` once it was settled.
    pub state: String,
    /// What was found out about it: `happened`, `absent`, `compensated`.
    pub effect: Option<String>,
    /// The epoch of the owner that moved it last.
    pub epoch: i64,
    /// That owner.
    pub holder: String,
    /// How often it was sent under its key.
    pub sends: i32,
    /// When it was sent last.
    pub sent_at: Option<String>,
    /// What the receiver said, or why that is not known.
    pub answer: Option<String>,
    /// Who settled it.
    pub settled_by: Option<String>,
    /// Why.
    pub why: Option<String>,
    /// Whether it was sent and its outcome is not known.
    pub unsettled: bool,
    /// Whether what was said of it and what is known of it differ.
    pub contradicted: bool,
    /// Whether its work item may have taken effect more than once.
    pub repeated: bool,
}

/// Which operations are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Those that somebody has to look at: of unknown outcome, sent more than once, contradicted.
    Open,
    /// All.
    All,
}

/// A session with a ledger's database.
pub struct Reader {
    session: Session,
    place: Place,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("place", &self.place).finish_non_exhaustive()
    }
}

/// How many operations are read at once, so that a ledger of any size can be looked at.
const AT_MOST: i64 = 1_000;

impl Reader {
    /// Connects.
    ///
    /// # Errors
    /// When the database cannot be reached or refuses.
    pub async fn connect(access: &Access, place: Place) -> Result<Self, BackendError> {
        Ok(Self { session: access.target().await?.connect().await?, place })
    }

    /// Counts what is open, by the database's clock: an outcome may be unknown for as long as `patience`.
    ///
    /// # Errors
    /// When the ledger is not there or may not be read.
    pub async fn counts(&self, patience: Duration) -> Result<Counts, BackendError> {
        let sql = format!(
            "with open as (select work_item, first_sent_at, first_sent_at + make_interval(secs => $2) as due from {} where unsettled) \
             select count(*) filter (where due <= now()), (array_agg(work_item order by first_sent_at) filter (where due <= now()))[1], \
               extract(epoch from min(due) filter (where due > now()) - now())::float8, (select count(*) from {}), \
               (select coalesce(array_agg(tgname::text order by tgname), '{{}}') from pg_trigger where tgrelid = to_regclass($1) and not tgisinternal \
                  and tgenabled = 'A') \
             from open",
            self.place.object("_operations"),
            self.place.object("_repeated")
        );
        let given: [&(dyn ToSql + Sync); 2] = [&self.place.object(""), &patience.as_secs_f64()];
        let row = self.session.client.query_one(&sql, &given).await.map_err(|error| failed(&error))?;
        let number = |place| u64::try_from(row.get::<_, i64>(place)).unwrap_or_default();
        let next = row.get::<_, Option<f64>>(2).and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        Ok(Counts { overdue: number(0), example: row.get(1), next, repeated: number(3), triggers: row.get(4) })
    }

    /// Lists operations, at most a thousand, the oldest first. Says whether there are more.
    ///
    /// # Errors
    /// When the ledger is not there or may not be read.
    pub async fn operations(&self, which: Which) -> Result<(Vec<Operation>, bool), BackendError> {
        let sql = format!(
            "select o.work_item, o.attempt, o.state, o.effect, o.epoch, o.holder, o.sends, \
               to_char(o.sent_at at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), o.answer, \
               case when o.settled_by is not null then o.settled_by || ' (' || o.settled_role || ')' end, o.why, o.unsettled, o.contradicted, r.work_item is not null \
             from {} o left join {} r using (work_item) \
             where $1 or o.unsettled or o.contradicted or r.work_item is not null \
             order by o.intended_at, o.work_item, o.attempt limit {}",
            self.place.object("_operations"),
            self.place.object("_repeated"),
            AT_MOST + 1
        );
        let rows = self.session.client.query(&sql, &[&(which == Which::All)]).await.map_err(|error| failed(&error))?;
        let mut all: Vec<_> = rows
            .iter()
            .map(|row| Operation {
                work_item: row.get(0),
                attempt: row.get(1),
                state: row.get(2),
                effect: row.get(3),
                epoch: row.get(4),
                holder: row.get(5),
                sends: row.get(6),
                sent_at: row.get(7),
                answer: row.get(8),
                settled_by: row.get(9),
                why: row.get(10),
                unsettled: row.get(11),
                contradicted: row.get(12),
                repeated: row.get(13),
            })
            .collect();
        let limit = usize::try_from(AT_MOST).unwrap_or(usize::MAX);
        let has_more = all.len() > limit;
        all.truncate(limit);
        Ok((all, has_more))
    }

    /// One attempt at a work item, when it is there.
    ///
    /// # Errors
    /// When the ledger is not there or may not be read.
    pub async fn state_of(&self, work_item: &str, attempt: i32) -> Result<Option<(String, i64)>, BackendError> {
        let sql = format!("select state, epoch from {} where work_item = $1 and attempt = $2", self.place.object("_operations"));
        let row = self.session.client.query_opt(&sql, &[&work_item, &attempt]).await.map_err(|error| failed(&error))?;
        Ok(row.map(|row| (row.get(0), row.get(1))))
    }

    /// Records a person's word about an attempt. The last word counts; the earlier ones stay on record.
    ///
    /// # Errors
    /// When there is no such attempt, it was never sent, or the role may not settle.
    pub async fn settle(&self, work_item: &str, attempt: i32, effect: Effect, who: &str, why: &str) -> Result<(), BackendError> {
        let sql = format!("select {}($1, $2, $3, $4, $5)::text", self.place.function("settle"));
        let said = self.session.client.query_one(&sql, &[&work_item, &attempt, &effect.as_str(), &who, &why]).await;
        said.map(|_| ()).map_err(|error| failed(&error))
    }
}
