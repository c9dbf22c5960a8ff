//! The canary of a conditional update: the row of the real table that is reserved for probes, changed by nothing but the declared statement,
//! as a writer's role, in transactions of its own.

use std::{
    collections::HashMap,
    error::Error,
    time::{Duration, Instant},
};

use futures::{FutureExt, future::BoxFuture};
use postgres_protocol::escape::escape_identifier;
use tokio_postgres::types::{Format, FromSql, IsNull, ToSql, Type, private::BytesMut, to_sql_checked};

use super::{Row, statement::Statement, table::Column};
use crate::{
    api::{ConditionalUpdate, Parameters},
    boundary::{
        BackendError,
        postgres::connect::{Session, failed},
        proof::{
            run::{Answer, Canary, Raced, Write},
            script::{Claim, Race, Via},
        },
    },
};

/// How long it is waited for a statement to be seen waiting for the row.
const SEEN_WAITING: Duration = Duration::from_secs(3);
/// The pause between two looks.
const LOOK: Duration = Duration::from_millis(2);
/// Above every epoch that a proof uses for owners: a write that is accepted with more would lock the owners out, and is undone.
const ENORMOUS: u64 = 1_000_000;

/// A parameter as the application could write it, in text, whatever its type.
#[derive(Debug)]
pub(super) struct Text(pub(super) Option<String>);

impl ToSql for Text {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        let Some(text) = &self.0 else { return Ok(IsNull::Yes) };
        out.extend_from_slice(text.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}

/// A value of a type that is sent as its text.
pub(super) struct Raw(pub(super) String);

impl<'a> FromSql<'a> for Raw {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(std::str::from_utf8(raw)?.to_owned()))
    }

    fn accepts(type_: &Type) -> bool {
        matches!(*type_, Type::JSON | Type::TEXT)
    }
}

/// A statement as a session prepared it, with the process that serves the session.
pub(super) struct Prepared {
    pub(super) session: Session,
    pub(super) statement: tokio_postgres::Statement,
    pid: i32,
}

impl Prepared {
    /// Prepares the statement as the writer would find it.
    pub(super) async fn new(session: Session, sql: &str, path: &str) -> Result<Self, BackendError> {
        session.run(path).await?;
        let pid = session.client.query_one("select pg_backend_pid()", &[]).await.map_err(|error| failed(&error))?.get(0);
        let statement = session.client.prepare(sql).await.map_err(|error| failed(&error))?;
        Ok(Self { session, statement, pid })
    }
}

/// The row with the connections that a proof needs.
pub(super) struct RowCanary<'a> {
    pub(super) statement: &'a Statement,
    pub(super) declared: &'a ConditionalUpdate,
    pub(super) key: &'a str,
    /// The table, quoted.
    pub(super) table: String,
    pub(super) writer: &'a str,
    /// What sets the row to the state in which nobody has written to it, as the end of an UPDATE's SET.
    initial: String,
    /// Resets, reads, looks.
    pub(super) own: &'a Session,
    pub(super) writing: Prepared,
    pub(super) open: Prepared,
    written: HashMap<String, String>,
    count: u32,
}

/// What an execution came to, before its transaction ended.
enum Done {
    Rows(u64),
    Error(String),
}

impl<'a> RowCanary<'a> {
    pub(super) fn new(
        statement: &'a Statement,
        declared: &'a ConditionalUpdate,
        row: &'a Row,
        column: &Column,
        writer: &'a str,
        own: &'a Session,
        (writing, open): (Prepared, Prepared),
    ) -> Self {
        // Different from what an earlier run left in the row.
        let count = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().subsec_nanos();
        let fence = format!("{} = {}", escape_identifier(&declared.fence_column), column.initial());
        let holder = declared.holder_column.iter().map(|holder| format!(", {} = {}", escape_identifier(holder), column.no_holder));
        let initial = std::iter::once(fence).chain(holder).collect();
        Self {
            statement,
            declared,
            key: &row.key,
            table: row.quoted(),
            initial,
            writer,
            own,
            writing,
            open,
            written: HashMap::new(),
            count,
        }
    }

    /// The marker in a form that the payload's type can hold.
    fn payload(&mut self, marker: &str) -> Result<String, BackendError> {
        let place = usize::from(self.declared.parameters.payload) - 1;
        self.count = (self.count + 1) % 1_000_000;
        let type_ = self.writing.statement.params()[place].clone();
        let text = match type_ {
            Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME => marker.to_owned(),
            Type::JSON | Type::JSONB => format!("\"{marker}\""),
            Type::INT4 | Type::INT8 | Type::NUMERIC => self.count.to_string(),
            Type::UUID => format!("00000000-0000-0000-0000-{:012x}", self.count),
            other => {
                return Err(BackendError::Refused(format!(
                    "spec.postgres.conditionalUpdate.parameters.payload: a parameter of type {other} cannot be tried: text, json, jsonb, integer, bigint, numeric and uuid can"
                )));
            }
        };
        self.written.insert(text.clone(), marker.to_owned());
        Ok(text)
    }

    /// Begins a transaction of the writer and executes the statement in it.
    async fn execute(&self, on: &Prepared, claim: &Claim, payload: String) -> Result<Done, BackendError> {
        on.session.run(&format!("set local role {}", escape_identifier(self.writer))).await?;
        let values = values(&self.declared.parameters, self.key, claim, payload, on.statement.params().len());
        let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| value as &(dyn ToSql + Sync)).collect();
        match on.session.client.execute(&on.statement, &values).await {
            Ok(rows) if rows > 1 => {
                on.session.run("rollback").await?;
                let field = "spec.postgres.conditionalUpdate.statement";
                Err(BackendError::Refused(format!("{field}: it touches {rows} rows for one key; what it did was undone")))
            }
            Ok(rows) => Ok(Done::Rows(rows)),
            Err(error) => Ok(Done::Error(failed(&error).to_string())),
        }
    }

    /// Ends the transaction: no row is the rejection.
    async fn end(on: &Prepared, done: Done, is_kept: bool) -> Result<Answer, BackendError> {
        let answer = match done {
            Done::Rows(0) => Answer::Rejected("it returned no row".to_owned()),
            Done::Rows(_) if is_kept => {
                let committed = on.session.client.batch_execute("commit").await;
                return Ok(committed.map_or_else(|error| Answer::Unclear(failed(&error).to_string()), |()| Answer::Accepted));
            }
            Done::Rows(_) => Answer::Accepted,
            Done::Error(why) => Answer::Unclear(why),
        };
        on.session.run("rollback").await?;
        Ok(answer)
    }

    async fn whole(&self, on: &Prepared, claim: &Claim, payload: String) -> Result<Answer, BackendError> {
        on.session.run("begin isolation level read committed").await?;
        let done = self.execute(on, claim, payload).await?;
        Self::end(on, done, !is_enormous(claim)).await
    }

    /// The statement in a transaction in which the row was deleted first, all of which is undone.
    async fn after_removal(&self, claim: &Claim, payload: String) -> Result<Answer, BackendError> {
        self.writing.session.run("begin isolation level read committed").await?;
        let sql = format!("delete from {} where {} = $1", self.table, escape_identifier(&self.statement.key));
        let deleted = self.writing.session.client.execute(&sql, &[&Text(Some(self.key.to_owned()))]).await;
        if let Err(error) = deleted {
            self.writing.session.run("rollback").await?;
            return Err(failed(&error));
        }
        let done = self.execute(&self.writing, claim, payload).await?;
        Self::end(&self.writing, done, false).await
    }

    async fn reset_now(&self) -> Result<(), BackendError> {
        let sql = format!("update {} set {} where {} = $1", self.table, self.initial, escape_identifier(&self.statement.key));
        self.own.run("begin").await?;
        let rows = self.own.client.execute(&sql, &[&Text(Some(self.key.to_owned()))]).await;
        self.own.run(if matches!(rows, Ok(1)) { "commit" } else { "rollback" }).await?;
        let rows = rows.map_err(|error| failed(&error))?;
        if rows == 1 {
            return Ok(());
        }
        Err(BackendError::Refused(format!(
            "spec.postgres.conditionalUpdate.canaryKey: {rows} rows of {} have key {:?}, and there has to be one, which nobody else uses: insert it",
            self.table, self.key
        )))
    }

    async fn read(&self) -> Result<Option<String>, BackendError> {
        let (payload, key) = (escape_identifier(&self.statement.payload), escape_identifier(&self.statement.key));
        let is_numeric =
            *self.writing.statement.params().get(usize::from(self.declared.parameters.payload) - 1).unwrap_or(&Type::TEXT) == Type::NUMERIC;
        let shown = if is_numeric { format!("trim_scale({payload})") } else { payload };
        let sql = format!("select {shown}::text from {} where {key} = $1", self.table);
        let row = self.own.client.query_opt(&sql, &[&Text(Some(self.key.to_owned()))]).await.map_err(|error| failed(&error))?;
        Ok(row.map(|row| {
            let text = row.get::<_, Option<String>>(0).unwrap_or_default();
            self.written.get(&text).cloned().unwrap_or(text)
        }))
    }

    /// Waits until a session is seen to wait for another one.
    async fn waits(&self, pid: i32) -> Result<(), BackendError> {
        let began = Instant::now();
        while began.elapsed() < SEEN_WAITING {
            let row =
                self.own.client.query_one("select cardinality(pg_blocking_pids($1)) > 0", &[&pid]).await.map_err(|error| failed(&error))?;
            if row.get(0) {
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
        Err(BackendError::TimedOut(SEEN_WAITING))
    }

    /// The old owner wrote and has not committed when the next one writes.
    async fn race_written(&mut self, old: &Claim, next: &Claim, marker: &str) -> Result<Raced, BackendError> {
        let (payload, next_payload) = (self.payload(marker)?, self.payload(&format!("{marker}-next"))?);
        self.open.session.run("begin isolation level read committed").await?;
        let done = self.execute(&self.open, old, payload).await?;
        if !matches!(done, Done::Rows(1)) {
            return Ok(Raced { landed_by_activation: false, landed: false, answer: Self::end(&self.open, done, true).await? });
        }
        let mut nexts = std::pin::pin!(self.whole(&self.writing, next, next_payload));
        let early = tokio::select! {
            answer = &mut nexts => Some(answer?),
            seen = self.waits(self.writing.pid) => { seen?; None }
        };
        let answer = Self::end(&self.open, done, true).await?;
        let was_early = early.is_some();
        let next_answer = match early {
            Some(answer) => answer,
            None => nexts.await?,
        };
        accepted(&next_answer)?;
        // What was there before the next owner's write was accepted may have been there; it may not stand after it.
        let is_there = self.read().await?.as_deref() == Some(marker);
        Ok(Raced { landed_by_activation: !is_there && !was_early, landed: is_there || !was_early, answer })
    }

    /// The old owner's statement waits for the row that the next one wrote and has not committed.
    async fn race_begun(&mut self, old: &Claim, next: &Claim, marker: &str) -> Result<Raced, BackendError> {
        let (payload, next_payload) = (self.payload(marker)?, self.payload(&format!("{marker}-next"))?);
        self.writing.session.run("begin isolation level read committed").await?;
        let done = self.execute(&self.writing, next, next_payload).await?;
        let answer = {
            let mut olds = std::pin::pin!(self.whole(&self.open, old, payload));
            let early = tokio::select! {
                answer = &mut olds => Some(answer?),
                seen = self.waits(self.open.pid) => { seen?; None }
            };
            accepted(&Self::end(&self.writing, done, true).await?)?;
            match early {
                Some(answer) => answer,
                None => olds.await?,
            }
        };
        Ok(Raced { landed_by_activation: false, landed: self.read().await?.as_deref() == Some(marker), answer })
    }
}

/// A race in which the next owner could not write shows nothing.
fn accepted(next: &Answer) -> Result<(), BackendError> {
    match next {
        Answer::Accepted => Ok(()),
        other => Err(BackendError::Refused(format!("the next owner's write was not accepted in a race: {other:?}"))),
    }
}

fn is_enormous(claim: &Claim) -> bool {
    matches!(claim, Claim::Made { epoch, .. } if epoch.parse::<u64>().is_ok_and(|epoch| epoch > ENORMOUS))
}

/// The parameters, each at its place.
pub(super) fn values(parameters: &Parameters, key: &str, claim: &Claim, payload: String, count: usize) -> Vec<Text> {
    let (epoch, holder) = match claim {
        Claim::Absent => (None, None),
        Claim::Made { epoch, holder, .. } => (Some(epoch.clone()), Some(holder.clone())),
    };
    let mut values: Vec<_> = (0..count).map(|_| Text(None)).collect();
    let mut set = |place: u8, value| {
        if let Some(at) = values.get_mut(usize::from(place).wrapping_sub(1)) {
            *at = Text(value);
        }
    };
    set(parameters.key, Some(key.to_owned()));
    set(parameters.payload, Some(payload));
    set(parameters.epoch, epoch);
    if let Some(place) = parameters.holder {
        set(place, holder);
    }
    values
}

impl Canary for RowCanary<'_> {
    fn reset(&mut self) -> BoxFuture<'_, Result<(), BackendError>> {
        async move { self.reset_now().await }.boxed()
    }

    fn activate(&mut self, _: u64, _: Option<&'static str>) -> BoxFuture<'_, Result<(), BackendError>> {
        // The row learns of an owner by its write.
        futures::future::ready(Ok(())).boxed()
    }

    fn open<'a>(&'a mut self, claim: &'a Claim, marker: &'a str) -> BoxFuture<'a, Result<(), BackendError>> {
        async move {
            let payload = self.payload(marker)?;
            self.whole(&self.open, claim, payload).await.map(drop)
        }
        .boxed()
    }

    fn write<'a>(&'a mut self, write: Write<'a>) -> BoxFuture<'a, Result<Answer, BackendError>> {
        async move {
            let payload = self.payload(write.marker)?;
            match write.via {
                Via::AfterRemoval => self.after_removal(write.claim, payload).await,
                Via::HeldOpen => self.whole(&self.open, write.claim, payload).await,
                Via::Own | Via::Reused => self.whole(&self.writing, write.claim, payload).await,
            }
        }
        .boxed()
    }

    fn stored(&mut self) -> BoxFuture<'_, Result<Option<String>, BackendError>> {
        async move { self.read().await }.boxed()
    }

    fn race<'a>(
        &'a mut self,
        old: &'a Claim,
        next: (u64, &'static str),
        race: Race,
        marker: &'a str,
    ) -> BoxFuture<'a, Result<Raced, BackendError>> {
        async move {
            let next = Claim::Made { foreign: false, epoch: next.0.to_string(), holder: next.1.to_owned(), sequence: 1 };
            match race {
                Race::HasWritten => self.race_written(old, &next, marker).await,
                Race::HasBegun => self.race_begun(old, &next, marker).await,
            }
        }
        .boxed()
    }
}
