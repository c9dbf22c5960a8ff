//! The ledger as a worker in Rust uses it: each step in a transaction of its own, under the claim of the worker's epoch, committed before the
//! next one begins.
//!
//! Start with [`Ledger::perform`]. Everybody else calls the functions that it calls; docs/operation-ledger.md has them.

use std::{str::FromStr, time::Duration};

use serde_json::Value;
use thiserror::Error;
use tokio_postgres::{Client, Row, types::ToSql};

use super::Place;

/// A key by which a receiver drops a repeated request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// The key. It names the work item, and never the epoch: a new owner that repeats the work has to use the same.
    pub value: String,
    /// How long the receiver remembers it; `None` is for ever. Afterwards an operation of unknown outcome is not repeated any more.
    pub ttl: Option<Duration>,
}

/// What is to be done once.
#[derive(Clone, Debug)]
pub struct WorkItem<'a> {
    /// Which one it is, at most 512 bytes. Two operations with the same name are the same work.
    pub name: &'a str,
    /// The receiver's key for it, where it has one.
    pub key: Option<Key>,
    /// What is asked, for whoever has to find out later what became of it. No secret belongs here.
    pub request: Option<&'a Value>,
}

/// One attempt at a work item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The work item.
    pub work_item: String,
    /// Which attempt it is, from 1 on.
    pub number: i32,
    /// The key that it has to be sent under.
    pub key: Option<String>,
}

/// What may be done about a work item now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// The intent is on record: say that it is sent, then send it.
    Send(Attempt),
    /// It took effect, with this answer.
    Done(Option<String>),
    /// It was sent and whether it took effect is not known: repeat it under its key, or find out and settle it.
    Unsettled(Attempt),
}

/// What a receiver made of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It took effect.
    Confirmed(String),
    /// The receiver said that it did not take effect.
    Failed(String),
    /// There was no answer, or none that says it: a time-out, a broken connection, a 500.
    Unknown(String),
}

/// What is known of an effect that was found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It took effect.
    Happened,
    /// It did not: the work item may be sent again.
    Absent,
    /// It did, and was made good: a refund. The work item may be sent again.
    Compensated,
}

impl Effect {
    /// As the table spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Happened => "happened",
            Self::Absent => "absent",
            Self::Compensated => "compensated",
        }
    }

    /// Every one.
    pub const ALL: [Self; 3] = [Self::Happened, Self::Absent, Self::Compensated];
}

impl FromStr for Effect {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|effect| effect.as_str() == text)
            .ok_or_else(|| format!("{text:?} is none of happened, absent, compensated"))
    }
}

/// What became of a work item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Performed {
    /// It was sent now.
    Now(Outcome),
    /// It had taken effect before, with this answer.
    Before(Option<String>),
    /// It was sent before, its outcome is not known, and it cannot be repeated safely: nothing was sent.
    Unsettled(Attempt),
}

/// Why a step was not made. Nothing was recorded.
#[derive(Debug, Error)]
pub enum LedgerError {
    /// The claim is not the present owner's (`FL001`, `FL002`): stop, and send nothing.
    #[error("{0}")]
    NotOwner(String),
    /// The operation is not in the state for it (`FL003`): another thread or owner was faster, or its key was forgotten.
    #[error("{0}")]
    NotNow(String),
    /// The ledger's table has no guard (`FL004`).
    #[error("{0}")]
    NotGuarded(String),
    /// The database failed. After a step that was to be committed it is not known whether it was: ask again before anything is sent.
    #[error("the ledger's database: {0}")]
    Database(#[source] tokio_postgres::Error),
}

impl From<tokio_postgres::Error> for LedgerError {
    fn from(error: tokio_postgres::Error) -> Self {
        match error.as_db_error().map(|db| (db.code().code(), db.message().to_owned())) {
            Some(("FL001" | "FL002", message)) => Self::NotOwner(message),
            Some(("FL003", message)) => Self::NotNow(message),
            Some(("FL004", message)) => Self::NotGuarded(message),
            _ => Self::Database(error),
        }
    }
}

/// A ledger in the hands of a lock's owner.
#[derive(Clone, Debug)]
pub struct Ledger {
    place: Place,
    claim: String,
}

impl Ledger {
    /// The ledger under a claim ([`crate::epoch::claim::claim`]), which carries the epoch of this acquisition and is never renewed.
    pub fn new(place: Place, claim: impl Into<String>) -> Self {
        Self { place, claim: claim.into() }
    }

    /// Does a work item unless it was done: records the intent, that it is sent, calls, and records what came of it.
    ///
    /// What was sent before and has no outcome is sent again only under its key, while the receiver remembers it.
    ///
    /// # Errors
    /// See [`LedgerError`]. When the last step fails the call was made: the row says `sent`, and the outcome is not known.
    pub async fn perform<F>(&self, client: &mut Client, item: &WorkItem<'_>, call: F) -> Result<Performed, LedgerError>
    where
        F: AsyncFnOnce(&Attempt) -> Outcome,
    {
        let attempt = match self.begin(client, item).await? {
            Begun::Done(answer) => return Ok(Performed::Before(answer)),
            Begun::Send(attempt) => {
                self.sent(client, &attempt).await?;
                attempt
            }
            Begun::Unsettled(attempt) => match self.resent(client, &attempt).await {
                Ok(()) => attempt,
                Err(LedgerError::NotNow(_)) => return Ok(Performed::Unsettled(attempt)),
                Err(error) => return Err(error),
            },
        };
        let outcome = call(&attempt).await;
        self.ended(client, &attempt, &outcome).await?;
        Ok(Performed::Now(outcome))
    }

    /// Says what may be done about a work item, and records the intent where it may be sent.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub async fn begin(&self, client: &mut Client, item: &WorkItem<'_>) -> Result<Begun, LedgerError> {
        let (key, ttl) = item.key.as_ref().map_or((None, None), |key| (Some(key.value.as_str()), key.ttl.map(|ttl| ttl.as_secs_f64())));
        let request = item.request.map(Value::to_string);
        let sql = format!(
            "select verdict, attempt, idempotency_key, answer from {}($1, $2, make_interval(secs => $3), $4::text::jsonb)",
            self.place.function("begin")
        );
        let row = self.step(client, &sql, &[&item.name, &key, &ttl, &request]).await?;
        let attempt = || Attempt { work_item: item.name.to_owned(), number: row.get(1), key: row.get(2) };
        Ok(match row.get(0) {
            "send" => Begun::Send(attempt()),
            "done" => Begun::Done(row.get(3)),
            _ => Begun::Unsettled(attempt()),
        })
    }

    /// Records that an attempt is about to be sent. Only after this returned may it be.
    ///
    /// # Errors
    /// [`LedgerError::NotNow`] when somebody else sends it.
    pub async fn sent(&self, client: &mut Client, attempt: &Attempt) -> Result<(), LedgerError> {
        self.about(client, "sent", attempt, &[]).await
    }

    /// Records that an attempt of unknown outcome is about to be repeated under its key. Only after this returned may it be.
    ///
    /// # Errors
    /// [`LedgerError::NotNow`] when it has no key, the receiver has forgotten it, or the outcome is known by now.
    pub async fn resent(&self, client: &mut Client, attempt: &Attempt) -> Result<(), LedgerError> {
        self.about(client, "resent", attempt, &[]).await
    }

    /// Records what the receiver made of an attempt.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub async fn ended(&self, client: &mut Client, attempt: &Attempt, outcome: &Outcome) -> Result<(), LedgerError> {
        let (state, said) = match outcome {
            Outcome::Confirmed(answer) => ("confirmed", answer),
            Outcome::Failed(answer) => ("failed", answer),
            Outcome::Unknown(why) => ("unknown", why),
        };
        self.about(client, "ended", attempt, &[&state, said]).await
    }

    /// Records what asking the receiver brought to light about an attempt of unknown outcome.
    ///
    /// # Errors
    /// [`LedgerError::NotNow`] when its outcome is on record.
    pub async fn reconciled(&self, client: &mut Client, attempt: &Attempt, effect: Effect, why: &str) -> Result<(), LedgerError> {
        self.about(client, "reconciled", attempt, &[&effect.as_str(), &why]).await
    }

    /// The operations of unknown outcome, whoever's they were, the oldest first. A new owner looks at them before it begins.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn unsettled(&self, client: &Client) -> Result<Vec<Attempt>, LedgerError> {
        let sql = format!(
            "select work_item, attempt, idempotency_key from {} where unsettled order by first_sent_at, work_item",
            self.place.object("_operations")
        );
        let attempt = |row: Row| Attempt { work_item: row.get(0), number: row.get(1), key: row.get(2) };
        Ok(client.query(&sql, &[]).await?.into_iter().map(attempt).collect())
    }

    async fn about(&self, client: &mut Client, function: &str, attempt: &Attempt, more: &[&(dyn ToSql + Sync)]) -> Result<(), LedgerError> {
        let mut given: Vec<&(dyn ToSql + Sync)> = vec![&attempt.work_item, &attempt.number];
        given.extend_from_slice(more);
        let places = (1..=given.len()).map(|n| format!("${n}")).collect::<Vec<_>>().join(", ");
        let sql = format!("select {}({places})::text", self.place.function(function));
        self.step(client, &sql, &given).await.map(|_| ())
    }

    /// One statement under the claim, committed.
    async fn step(&self, client: &mut Client, sql: &str, given: &[&(dyn ToSql + Sync)]) -> Result<Row, LedgerError> {
        let transaction = client.transaction().await?;
        transaction.query_one("select set_config('fencedlock.claim', $1, true)", &[&self.claim]).await?;
        let row = transaction.query_one(sql, given).await?;
        transaction.commit().await?;
        Ok(row)
    }
}
