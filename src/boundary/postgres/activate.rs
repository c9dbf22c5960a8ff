//! Moving the fence of a managed guard up. In a transaction of its own, at READ COMMITTED, and durable before it is believed.

use std::time::{Duration, Instant};

use tokio_postgres::error::SqlState;

use super::{
    connect::{Session, failed},
    guard,
    names::{Names, SCHEMA},
};
use crate::{
    boundary::{Activation, BackendError},
    epoch::{Epoch, Holder},
};

/// How long one attempt waits for the writers that are under way. While it waits, guarded writers wait behind it; between two
/// attempts they get through.
const ATTEMPT: Duration = Duration::from_secs(1);

/// Moves the fence. `Blocked` names who keeps it from moving; after `patience`, counted from `since`, they are ended, which undoes what
/// they did.
pub(super) async fn activate(
    session: &mut Session,
    names: &Names,
    epoch: Epoch,
    holder: Option<&Holder>,
    patience: Duration,
    since: Instant,
) -> Result<Activation, BackendError> {
    if let Some(answer) = attempt(session, names, epoch, holder, ATTEMPT.min(patience.max(Duration::from_millis(50)))).await? {
        return Ok(answer);
    }
    let blocking = blockers(session, names).await?;
    if since.elapsed() < patience {
        return Ok(Activation::Blocked(told(&blocking, patience)));
    }
    end(session, &blocking).await?;
    match attempt(session, names, epoch, holder, ATTEMPT).await? {
        Some(answer) => Ok(answer),
        None => Ok(Activation::Blocked(told(&blockers(session, names).await?, Duration::ZERO))),
    }
}

/// One attempt; `None` when writers under way kept it from the fence for all of `wait`.
async fn attempt(
    session: &mut Session,
    names: &Names,
    epoch: Epoch,
    holder: Option<&Holder>,
    wait: Duration,
) -> Result<Option<Activation>, BackendError> {
    let sql = |error: tokio_postgres::Error| failed(&error);
    let level = tokio_postgres::IsolationLevel::ReadCommitted;
    let transaction = session.client.build_transaction().isolation_level(level).start().await.map_err(sql)?;
    let settings = format!("set local synchronous_commit = on; set local lock_timeout = '{}ms'", wait.as_millis().max(1));
    transaction.batch_execute(&settings).await.map_err(sql)?;
    let call = format!("select {}($1, $2)", names.object("activate"));
    let number = i64::try_from(epoch.get()).unwrap_or(i64::MAX);
    let answer: String = match transaction.query_one(&call, &[&number, &holder.map_or("", Holder::as_str)]).await {
        Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => return Ok(None),
        answer => answer.map_err(sql)?.get(0),
    };
    transaction.commit().await.map_err(sql)?;
    Ok(Some(match answer.as_str() {
        "activated" => Activation::Activated,
        "unchanged" => Activation::Unchanged,
        _ => {
            let at = guard::record(&session.client, names).await?.and_then(|record| record.fence(names));
            Activation::Superseded(at.ok_or_else(|| BackendError::Refused("the fence says superseded and is empty".into()))?)
        }
    }))
}

/// Somebody whose transaction passed the guard and is open.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Blocker {
    /// The server process; `None` for a prepared transaction.
    pid: Option<i32>,
    text: String,
}

/// Only holders of ROW SHARE count: they passed the guard. An activation of another replica holds another lock.
async fn blockers(session: &Session, names: &Names) -> Result<Vec<Blocker>, BackendError> {
    let rows = session
        .client
        .query(
            "select l.pid, coalesce(a.usename::text, '?'), coalesce(a.application_name, ''), \
               coalesce(to_char(a.xact_start at time zone 'UTC', 'HH24:MI:SS') || ' UTC', '?'), p.gid \
             from pg_locks l left join pg_stat_activity a on a.pid = l.pid \
             left join pg_locks x on l.pid is null and x.pid is null and x.locktype = 'transactionid' and x.granted \
               and x.virtualtransaction = l.virtualtransaction \
             left join pg_prepared_xacts p on p.transaction = x.transactionid \
             where l.locktype = 'relation' and l.granted and l.mode = 'RowShareLock' and l.pid is distinct from pg_backend_pid() \
               and l.database = (select oid from pg_database where datname = current_database()) \
               and l.relation = (select c.oid from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = $1 and c.relname = $2) \
             order by a.xact_start",
            &[&SCHEMA, &names.plain("fence")],
        )
        .await
        .map_err(|error| failed(&error))?;
    Ok(rows
        .iter()
        .map(|row| {
            let (pid, role, application, since): (Option<i32>, String, String, String) = (row.get(0), row.get(1), row.get(2), row.get(3));
            let text = match (pid, row.get::<_, Option<String>>(4)) {
                (_, Some(gid)) => format!("prepared transaction {gid:?}, which only ROLLBACK PREPARED or COMMIT PREPARED ends"),
                (Some(pid), None) => {
                    let application = if application.is_empty() { String::new() } else { format!(", {application:?}") };
                    format!("the open transaction of role {role:?} (pid {pid}{application}, begun at {since})")
                }
                (None, None) => "a prepared transaction: see pg_prepared_xacts".to_owned(),
            };
            Blocker { pid, text }
        })
        .collect())
}

fn told(blockers: &[Blocker], patience: Duration) -> String {
    let Some(first) = blockers.first() else { return "transactions that have just ended".to_owned() };
    let more = crate::audit::boundary::more(blockers.len() - 1);
    let ends = blockers.iter().any(|blocker| blocker.pid.is_some()) && !patience.is_zero();
    let next = if ends { format!("; it is ended after spec.postgres.patience ({patience:?})") } else { String::new() };
    format!("{}{more}{next}", first.text)
}

/// Ends the transactions of old owners: what they had not committed is undone.
async fn end(session: &Session, blockers: &[Blocker]) -> Result<(), BackendError> {
    for blocker in blockers {
        let Some(pid) = blocker.pid else { continue };
        let ended = session.client.query_one("select pg_terminate_backend($1)", &[&pid]).await.map_err(|error| {
            let BackendError::Refused(why) = failed(&error) else { return failed(&error) };
            BackendError::Refused(format!("{} cannot be ended: {why}: grant pg_signal_backend to the operator's role", blocker.text))
        })?;
        tracing::warn!(
            blocker = blocker.text,
            ended = ended.get::<_, bool>(0),
            "an old owner's open transaction was ended for an activation"
        );
    }
    Ok(())
}
