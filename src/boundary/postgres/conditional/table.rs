//! The tables of a conditional update, from the catalogue: what the fence column is, and what would change a proof.

use super::statement::Statement;
use crate::{
    api::{ConditionalUpdate, WritesPerEpoch},
    boundary::{
        BackendError,
        digest::hash,
        postgres::{
            connect::{Session, failed},
            guard::{Installed, Table},
        },
        proof::{Answers, Failure, Outcome, Probe},
    },
};

/// The fence column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) type_: String,
    pub(super) is_nullable: bool,
    has_default: bool,
    /// What the holder's column holds that nobody wrote.
    pub(super) no_holder: &'static str,
}

impl Column {
    /// What a row holds that nobody has written to: the default, or 0 where the application has to say it.
    pub(super) const fn initial(&self) -> &'static str {
        if self.has_default || self.is_nullable { "default" } else { "0" }
    }
}

/// Reads the fence column.
pub(super) async fn fence(session: &Session, table: &Table, declared: &ConditionalUpdate) -> Result<Column, BackendError> {
    // A domain is what it is made of.
    let sql = "with recursive base(oid, of) as (select oid, oid from pg_type union select t.typbasetype, b.of from base b join pg_type t on t.oid = b.oid and t.typtype = 'd') \
               select format_type(b.oid, null), not attnotnull, atthasdef, \
                 exists (select from pg_attribute h where h.attrelid = $1 and h.attname = $3 and h.attnotnull and not h.atthasdef) from pg_attribute join base b on b.of = atttypid \
                 join pg_type t on t.oid = b.oid and t.typtype <> 'd' where attrelid = $1 and attname = $2 and attnum > 0 and not attisdropped";
    let row = session
        .client
        .query_opt(sql, &[&table.oid, &declared.fence_column, &declared.holder_column])
        .await
        .map_err(|error| failed(&error))?;
    let row = row.ok_or_else(|| {
        BackendError::Refused(format!(
            "spec.postgres.conditionalUpdate.fenceColumn: FenceInAnotherRow: {} has no column {:?}: a fence that is stored in another row is not \
             read again when the statement waited for this one; keep it in the row that is written",
            table.name, declared.fence_column
        ))
    })?;
    Ok(Column {
        name: declared.fence_column.clone(),
        type_: row.get(0),
        is_nullable: row.get(1),
        has_default: row.get(2),
        no_holder: if row.get(3) { "''" } else { "default" },
    })
}

/// What the type of the fence column, or of the epoch's parameter, makes wrong whatever the statement says. Pure.
pub(super) fn wrong_types(column: &Column, parameter: &str) -> Answers {
    let mut answers = Answers::default();
    for (what, type_) in [("the fence column", column.type_.as_str()), ("the epoch's parameter", parameter)] {
        let (probe, failure, name, why) = match type_ {
            "bigint" | "numeric" => continue,
            "integer" | "smallint" => {
                (Probe::NextAccepted, Failure::Refused, "FenceColumn32Bit", "the owner is refused once epochs outgrow it")
            }
            "real" | "double precision" => {
                (Probe::StaleRefused, Failure::Accepted, "FenceColumnFloat", "above 2^53 different epochs are equal")
            }
            _ => (Probe::StaleRefused, Failure::Accepted, "FenceColumnText", "it does not order as numbers do: \"9\" is after \"10\""),
        };
        answers.add(probe, Outcome::Failed(failure, format!("{name}: {what} is {type_}, and {why}; make it bigint")));
    }
    if column.is_nullable {
        let why = "FenceColumnNullable: the fence column may be NULL, and a comparison with NULL refuses everybody or, with coalesce, nobody; make it NOT NULL";
        answers.add(Probe::CurrentAccepted, Outcome::Failed(Failure::Refused, why.to_owned()));
    }
    answers
}

/// The name of what is wrong, by what the statement says and which probe failed. Pure.
pub(super) fn named(statement: &Statement, writes: WritesPerEpoch, probe: Probe, failure: Failure) -> Option<&'static str> {
    use super::statement::Compares;
    Some(match (statement.compares, writes, probe, failure) {
        (_, _, Probe::RecreatedRefused, Failure::Accepted) if statement.inserts => "InsertAfterDelete",
        (Compares::Not, _, _, Failure::Accepted) => "UnconditionalUpdate",
        (Compares::Elsewhere, _, _, Failure::Accepted) => "FenceInAnotherRow",
        (_, _, Probe::MissingClaimRefused, Failure::Accepted) => "EpochZeroAccepted",
        (_, _, Probe::EnormousRefused, Failure::Accepted) => return None,
        (_, _, _, Failure::Accepted) if !statement.stores => "FenceNotStored",
        (Compares::LessOrEqual, WritesPerEpoch::Once, _, Failure::Accepted) => "EqualEpochsAccepted",
        (Compares::Less, WritesPerEpoch::Many, _, Failure::Refused) => "EqualEpochsRefused",
        (_, _, _, Failure::Refused) => "OwnerRefused",
        (_, _, _, Failure::Accepted) => return None,
    })
}

/// A hash of everything in the tables that a proof rests on: columns, defaults, constraints, triggers, rules, policies.
pub(super) async fn digest(session: &Session, tables: &[Table], declared: &ConditionalUpdate) -> Result<String, BackendError> {
    let sql = "select concat_ws(' ', a.attrelid, a.attname, a.atttypid, a.atttypmod, a.attnotnull, pg_get_expr(d.adbin, d.adrelid)) \
                 from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum \
                 where a.attrelid = any($1) and a.attnum > 0 and not a.attisdropped \
               union all select pg_get_constraintdef(oid) from pg_constraint where conrelid = any($1) \
               union all select pg_get_indexdef(indexrelid) from pg_index where indrelid = any($1) \
               union all select concat_ws(' ', tgenabled::text, pg_get_triggerdef(t.oid), p.prosrc) from pg_trigger t join pg_proc p on p.oid = t.tgfoid \
                 where tgrelid = any($1) and not tgisinternal \
               union all select pg_get_ruledef(oid) from pg_rewrite where ev_class = any($1) \
               union all select concat_ws(' ', polname, polcmd::text, polroles, pg_get_expr(polqual, polrelid), pg_get_expr(polwithcheck, polrelid)) \
                 from pg_policy where polrelid = any($1) \
               union all select concat_ws(' ', oid, relrowsecurity, relforcerowsecurity) from pg_class where oid = any($1) order by 1";
    let oids: Vec<u32> = tables.iter().map(|table| table.oid).collect();
    let rows = session.client.query(sql, &[&oids]).await.map_err(|error| failed(&error))?;
    let mut texts: Vec<String> = rows.iter().map(|row| row.get::<_, Option<String>>(0).unwrap_or_default()).collect();
    texts.push(serde_json::to_string(declared).unwrap_or_default());
    Ok(format!("sha256:{}", hash(texts.iter().map(String::as_str))))
}

/// Why what was accepted may be lost: an UNLOGGED table, or writers that do not wait for the disk.
pub(super) async fn volatile(session: &Session, tables: &[Table], writers: &[String]) -> Result<Option<String>, BackendError> {
    let sql = "select oid::regclass || ' is UNLOGGED: after a crash it is empty; ALTER TABLE … SET LOGGED' from pg_class where oid = any($1) and relpersistence = 'u' \
               union all select 'writer role ' || quote_ident(r.rolname) || ' has synchronous_commit off: after a crash the database may have forgotten its fence' \
                 from pg_db_role_setting s join pg_roles r on r.oid = s.setrole cross join lateral unnest(s.setconfig) t \
                 where r.rolname::text = any($2) and t like 'synchronous_commit=%' \
                   and lower(t) not in ('synchronous_commit=on', 'synchronous_commit=local', 'synchronous_commit=remote_write', \
                     'synchronous_commit=remote_apply', 'synchronous_commit=true', 'synchronous_commit=yes', 'synchronous_commit=1') limit 1";
    let oids: Vec<u32> = tables.iter().map(|table| table.oid).collect();
    let row = session.client.query_opt(sql, &[&oids, &writers]).await.map_err(|error| failed(&error))?;
    Ok(row.map(|row| row.get(0)))
}

/// The partitions of the declared tables, as schema and name.
pub(super) async fn partitions(session: &Session, installed: &Installed) -> Result<Vec<(String, String)>, BackendError> {
    let oids: Vec<u32> = installed.tables.iter().filter(|table| !table.is_root).map(|table| table.oid).collect();
    let sql = "select n.nspname::text, c.relname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = any($1)";
    let rows = session.client.query(sql, &[&oids]).await.map_err(|error| failed(&error))?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// A trigger that may change the fence of some rows: what the reserved row shows need not hold for the others.
pub(super) async fn meddling(session: &Session, table: &Table, declared: &ConditionalUpdate) -> Result<Option<String>, BackendError> {
    // A body that never names the fence column and never replaces the row as a whole leaves the fence alone.
    let sql = r"select quote_ident(t.tgname) from pg_trigger t join pg_proc p on p.oid = t.tgfoid join pg_language l on l.oid = p.prolang
                where t.tgrelid = $1 and not t.tgisinternal and t.tgenabled <> 'D' and (l.lanname <> 'plpgsql' or strpos(lower(p.prosrc), lower($2)) > 0
                  or p.prosrc ~* '\mexecute\M' or ((t.tgtype & 1) = 1 and (p.prosrc ~* '\mnew\s*(:=|=|#=)' or p.prosrc ~* '\minto\s+(strict\s+)?new\M')))
                order by 1 limit 1";
    let row = session.client.query_opt(sql, &[&table.oid, &declared.fence_column]).await.map_err(|error| failed(&error))?;
    Ok(row.map(|row| {
        format!(
            "trigger {} of {} may change {:?} of some rows, so what one row shows need not hold for the others: let it leave that column alone",
            row.get::<_, String>(0),
            table.name,
            declared.fence_column
        )
    }))
}
