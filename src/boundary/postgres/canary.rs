//! The canary of a managed guard: a table of fencedlock's own behind the same guard, written to as a writer's role does.

use std::time::{Duration, Instant};

use futures::{FutureExt, future::BoxFuture};
use postgres_protocol::escape::{escape_identifier, escape_literal};
use tokio_postgres::SimpleQueryMessage;

use super::{
    connect::{Session, failed},
    names::{SCHEMA, Template},
};
use crate::boundary::{
    BackendError,
    proof::{
        run::{Answer, Canary, Raced, Write},
        script::{Claim, Kind, Race, Via},
    },
};

/// How long it is waited for an activation to be seen waiting for an open transaction.
const SEEN_WAITING: Duration = Duration::from_secs(3);
/// The pause between two looks.
const LOOK: Duration = Duration::from_millis(2);

/// A canary with the connections that a proof needs.
pub(super) struct PostgresCanary<'a> {
    template: Template,
    /// The role that writes; the operator's own where none is declared.
    writer: Option<&'a str>,
    /// Activates, reads, looks.
    own: Session,
    /// Writes.
    writing: Session,
    /// Stays open, and races.
    open: Session,
}

impl<'a> PostgresCanary<'a> {
    pub(super) fn new(template: &Template, writer: Option<&'a str>, own: Session, writing: Session, open: Session) -> Self {
        let template = Template { names: template.names.canary(), ..template.clone() };
        Self { template, writer, own, writing, open }
    }

    fn claim(&self, claim: &Claim) -> Option<String> {
        match claim {
            Claim::Absent => None,
            Claim::Made { foreign, epoch, holder, .. } => {
                let foreign = if *foreign { "-other" } else { "" };
                Some(format!("{}{foreign}={epoch}@{holder}", self.template.names.lock))
            }
        }
    }

    fn role(&self) -> String {
        self.writer.map(|role| format!("set local role {};", escape_identifier(role))).unwrap_or_default()
    }

    fn statement(&self, kind: Kind, marker: &str) -> String {
        let (thing, marker) = (self.template.names.object("thing"), escape_literal(marker));
        match kind {
            Kind::Upsert => format!("insert into {thing} values (1, {marker}) on conflict (id) do update set marker = excluded.marker"),
            Kind::Delete => format!("delete from {thing} where id = 1"),
        }
    }

    fn set(claim: Option<&str>) -> String {
        claim.map(|claim| format!("set local fencedlock.claim = {};", escape_literal(claim))).unwrap_or_default()
    }

    async fn read(&self) -> Result<Option<String>, BackendError> {
        let sql = format!("select marker from {} where id = 1", self.template.names.object("thing"));
        let row = self.own.client.query_opt(&sql, &[]).await.map_err(|error| failed(&error))?;
        Ok(row.map(|row| row.get(0)))
    }

    async fn race_now(&mut self, old: &Claim, next: (u64, &'static str), race: Race, marker: &str) -> Result<Raced, BackendError> {
        let (begin, first) = match race {
            Race::HasWritten => ("begin isolation level read committed", self.statement(Kind::Upsert, marker)),
            Race::HasBegun => ("begin isolation level repeatable read", format!("select from {}", self.template.names.object("thing"))),
        };
        let set = Self::set(self.claim(old).as_deref());
        self.open.run(&format!("{begin}; {} {set} {first}", self.role())).await?;
        let activation = activation(&self.template, next.0, Some(next.1));
        let mut activating = std::pin::pin!(self.own.run(&activation));
        let returned = tokio::select! {
            done = &mut activating => Some(done),
            seen = waits(&self.writing, &self.template) => { seen?; None }
        };
        let write = self.statement(Kind::Upsert, marker);
        // What is there when the activation returns may stay; what comes later may not.
        let (landed_by_activation, answer) = if let Some(done) = returned {
            done?;
            let landed = self.read().await?.as_deref() == Some(marker);
            (landed, finish(&self.open, &write, race).await)
        } else {
            let answer = finish(&self.open, &write, race).await;
            activating.await?;
            (self.read().await?.as_deref() == Some(marker), answer)
        };
        Ok(Raced { landed_by_activation, landed: self.read().await?.as_deref() == Some(marker), answer })
    }
}

/// What is left to do for the racing transaction.
async fn finish(open: &Session, write: &str, race: Race) -> Answer {
    let rest = match race {
        Race::HasWritten => "commit".to_owned(),
        Race::HasBegun => format!("{write}; commit"),
    };
    let answer = answer(open.client.simple_query(&rest).await);
    drop(open.client.simple_query("rollback").await);
    answer
}

/// Waits until an activation of the canary is seen to wait for a lock.
async fn waits(session: &Session, template: &Template) -> Result<(), BackendError> {
    let began = Instant::now();
    while began.elapsed() < SEEN_WAITING {
        let sql = "select exists (select from pg_locks l join pg_class c on c.oid = l.relation join pg_namespace n on n.oid = c.relnamespace \
                   where not l.granted and l.mode = 'ExclusiveLock' and n.nspname = $1 and c.relname = $2)";
        let fence = template.names.plain("fence");
        if session.client.query_one(sql, &[&SCHEMA, &fence]).await.map_err(|error| failed(&error))?.get(0) {
            return Ok(());
        }
        tokio::time::sleep(LOOK).await;
    }
    Err(BackendError::TimedOut(SEEN_WAITING))
}

fn activation(template: &Template, epoch: u64, holder: Option<&str>) -> String {
    let holder = escape_literal(holder.unwrap_or_default());
    format!("begin isolation level read committed; select {}({epoch}, {holder}); commit", template.names.object("activate"))
}

/// What the server said. Only the guard's own two errors are a rejection.
fn answer(said: Result<Vec<SimpleQueryMessage>, tokio_postgres::Error>) -> Answer {
    match said {
        Ok(_) => Answer::Accepted,
        Err(error) => match error.as_db_error() {
            Some(db) if matches!(db.code().code(), "FL001" | "FL002") => Answer::Rejected(db.message().to_owned()),
            _ => Answer::Unclear(failed(&error).to_string()),
        },
    }
}

impl Canary for PostgresCanary<'_> {
    fn reset(&mut self) -> BoxFuture<'_, Result<(), BackendError>> {
        async move { self.own.run(&format!("select {}()", self.template.names.object("reset"))).await }.boxed()
    }

    fn activate(&mut self, epoch: u64, holder: Option<&'static str>) -> BoxFuture<'_, Result<(), BackendError>> {
        async move { self.own.run(&activation(&self.template, epoch, holder)).await }.boxed()
    }

    fn open<'a>(&'a mut self, claim: &'a Claim, marker: &'a str) -> BoxFuture<'a, Result<(), BackendError>> {
        async move {
            let role = self.writer.map(|role| format!("set role {};", escape_identifier(role))).unwrap_or_default();
            let claim = escape_literal(&self.claim(claim).unwrap_or_default());
            // Prepared, so that a plan that was made before the activation is used after it.
            let thing = self.template.names.object("thing");
            let prepare =
                format!("prepare held(text) as insert into {thing} values (1, $1) on conflict (id) do update set marker = excluded.marker");
            let write = format!("execute held({})", escape_literal(marker));
            self.open.run(&format!("{role} set fencedlock.claim = {claim}; {prepare}; {write}")).await
        }
        .boxed()
    }

    fn write<'a>(&'a mut self, write: Write<'a>) -> BoxFuture<'a, Result<Answer, BackendError>> {
        async move {
            if write.via == Via::AfterRemoval {
                return Ok(Answer::Unclear("a guard that judges deletions is not asked this way".to_owned()));
            }
            if write.via == Via::HeldOpen {
                let held = format!("execute held({})", escape_literal(write.marker));
                let answer = answer(self.open.client.simple_query(&held).await);
                self.open.run("deallocate all; reset fencedlock.claim; reset role").await?;
                return Ok(answer);
            }
            let set = if write.via == Via::Own { Self::set(self.claim(write.claim).as_deref()) } else { String::new() };
            let statement = self.statement(write.kind, write.marker);
            let said = self.writing.client.simple_query(&format!("begin; {} {set} {statement}; commit", self.role())).await;
            let failed = said.is_err();
            let answer = answer(said);
            if failed {
                self.writing.run("rollback").await?;
            }
            Ok(answer)
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
        async move { self.race_now(old, next, race, marker).await }.boxed()
    }
}
