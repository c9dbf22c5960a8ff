//! Which server, database and tables a proof was made on, and whether what is written there stays.

use super::{
    connect::{Session, failed},
    guard::Installed,
};
use crate::{
    api::LimitName,
    boundary::{BackendError, digest::hash, proof::NamedLimit},
};

/// What is known of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Server {
    /// Its identity together with the database's, the fence's and the tables'.
    pub(super) identity: String,
    /// Why the fence may be lost.
    pub(super) not_durable: Option<String>,
    /// What a failover may do.
    pub(super) limits: Vec<NamedLimit>,
    /// What people should know.
    pub(super) notes: Vec<String>,
}

pub(super) async fn look(session: &Session, installed: &Installed) -> Result<Server, BackendError> {
    let row = session
        .client
        .query_one(
            "select (select system_identifier from pg_control_system())::text, substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8), \
             (select oid from pg_database where datname = current_database()), current_setting('fsync'), current_setting('full_page_writes'), \
             current_setting('synchronous_commit'), current_setting('max_prepared_transactions')::int",
            &[],
        )
        .await
        .map_err(|error| failed(&error))?;
    // The control file knows of a new timeline only after the first checkpoint on it.
    let (system, timeline, database): (String, String, u32) = (row.get(0), row.get(1), row.get(2));
    let (fsync, full_page_writes, commit): (String, String, String) = (row.get(3), row.get(4), row.get(5));
    let record = installed.record.as_ref();
    let (fence, nonce) = record.map_or((0, ""), |record| (record.oid, record.nonce.as_str()));
    let tables: Vec<_> =
        installed.tables.iter().map(|table| format!("{}:{}", table.oid, table.trigger.as_ref().map_or(0, |t| t.oid))).collect();
    let tables = hash(tables.iter().map(String::as_str));
    let identity = format!("system {system}, timeline {timeline}, database {database}, fence {fence} {nonce}, tables {}", &tables[..16]);
    let off = |name: &str, value: &str| {
        (value == "off").then(|| format!("{name} is off: after a crash the database may have forgotten its fence"))
    };
    let not_durable = off("fsync", &fsync)
        .or_else(|| off("full_page_writes", &full_page_writes))
        .or_else(|| off("synchronous_commit (server, database or the operator's role)", &commit))
        .or_else(|| {
            let text = "the fence table is UNLOGGED: after a crash it is empty; ALTER TABLE … SET LOGGED";
            record.filter(|record| record.is_unlogged).map(|_| text.to_owned())
        });
    let prepared: i32 = row.get(6);
    let note = format!("max_prepared_transactions is {prepared}: a prepared transaction of an old owner can only be ended by hand");
    let notes = (prepared > 0).then_some(note).into_iter().collect();
    Ok(Server { identity, not_durable, limits: standbys(session).await?, notes })
}

/// A standby that is promoted without the last activation has forgotten it.
async fn standbys(session: &Session) -> Result<Vec<NamedLimit>, BackendError> {
    let rows = session
        .client
        .query(
            "select coalesce(application_name, '?'), sync_state from pg_stat_replication \
             where coalesce(state, 'streaming') <> 'backup' and coalesce(sync_state, 'async') <> 'sync' \
             union all select slot_name::text, 'away' from pg_replication_slots where slot_type = 'physical' and not active order by 1",
            &[],
        )
        .await
        .map_err(|error| failed(&error))?;
    let Some(first) = rows.first() else { return Ok(Vec::new()) };
    let name: String = first.get(0);
    let how = match first.get::<_, Option<String>>(1).as_deref() {
        Some("away") => "is away (its replication slot waits)",
        Some("quorum") => "is one of a quorum, which need not have it",
        Some(_) => "is asynchronous",
        None => "may be asynchronous (grant pg_read_all_stats to the operator's role to tell)",
    };
    let detail = format!("standby {name:?} {how}: promoted, it may have forgotten the last activation");
    Ok(vec![NamedLimit { name: LimitName::FailoverMayForget, detail }])
}
