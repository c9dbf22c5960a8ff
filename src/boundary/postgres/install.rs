//! Installing and upgrading a managed guard, by the operator or by hand, and taking it away. What is there already is read by `guard`.

use tokio_postgres::{GenericClient, types::Oid};

use super::{
    connect::{Session, failed},
    guard::{BY_HAND, Declaration, Table, read, record},
    names::{self, Names, SCHEMA, Template},
};
use crate::{
    api::{GuardMode, PostgresTable},
    boundary::BackendError,
};

/// How long an installation waits for writers that are under way. While it waits, later ones wait behind it.
const PATIENCE: &str = "2s";

/// Brings everything to what it should be, in one transaction: there is no moment without the guard that was there before. Nothing
/// that was begun under another guard, or none, is still open afterwards.
pub(super) async fn install(
    session: &mut Session,
    template: &Template,
    tables: &[PostgresTable],
    declaration: &Declaration,
    writers: &[String],
) -> Result<(), BackendError> {
    let sql = |error: tokio_postgres::Error| failed(&error);
    let transaction = session.client.transaction().await.map_err(sql)?;
    transaction.batch_execute(&format!("set local lock_timeout = '{PATIENCE}'; set local synchronous_commit = on")).await.map_err(sql)?;
    // One after the other: two that create the same schema at the same time would disturb each other.
    transaction.execute("select pg_advisory_xact_lock(7108, 1)", &[]).await.map_err(sql)?;
    let schema = transaction.query_opt("select from pg_namespace where nspname = $1", &[&SCHEMA]).await.map_err(sql)?;
    if schema.is_none() {
        transaction.batch_execute(&format!("create schema {SCHEMA}")).await.map_err(sql)?;
    }
    let before = read(&transaction, template, tables).await?;
    before.is_not_later_than(declaration)?;
    if let Some(other) = shared(&transaction, template, &before.tables).await? {
        return Err(BackendError::Refused(other));
    }
    transaction.batch_execute(&template.objects()).await.map_err(sql)?;
    for table in before.tables.iter().filter(|table| table.kind != 'f') {
        // Whoever writes to the table now does so under the old guard: it ends first.
        transaction.batch_execute(&format!("lock table only {} in share row exclusive mode", table.name)).await.map_err(sql)?;
    }
    transaction.batch_execute(&template.functions()).await.map_err(sql)?;
    let mut guarded: Vec<Oid> = Vec::new();
    for table in before.tables.iter().filter(|table| table.kind != 'f') {
        if table.trigger.as_ref().is_none_or(|trigger| trigger.wrong().is_some()) {
            transaction.batch_execute(&template.trigger(&table.name)).await.map_err(sql)?;
        }
        guarded.push(table.oid);
    }
    let names = &template.names;
    let record = format!("update {} set lock = $1, declared = $2, generation = $3, guard = $4, guarded = $5", names.object("fence"));
    let guard = template.expected_hash();
    transaction.execute(&record, &[&names.lock, &declaration.uid, &declaration.generation, &guard, &guarded]).await.map_err(sql)?;
    if template.mode == GuardMode::Enforce {
        transaction.batch_execute(&canary(template, writers)).await.map_err(sql)?;
    }
    transaction.commit().await.map_err(sql)
}

/// Everything that [`install`] does, as a script that somebody applies who may, for an operator's role that may not.
pub(super) fn script(template: &Template, tables: &[PostgresTable], writers: &[String]) -> String {
    use postgres_protocol::escape::{escape_identifier, escape_literal};
    let names = &template.names;
    let quoted = |table: &PostgresTable| format!("{}.{}", escape_identifier(&table.schema), escape_identifier(&table.name));
    let declared: Vec<_> = tables.iter().map(quoted).collect();
    let (operator, fence) = (escape_identifier(&template.operator), names.object("fence"));
    let canary = Template { names: names.canary(), ..template.clone() };
    let list = declared.iter().map(|table| format!("{}::regclass::oid", escape_literal(table))).collect::<Vec<_>>().join(", ");
    let trigger = template.trigger("%s").replace('\'', "''");
    let mut lines = vec![
        "begin;".to_owned(),
        format!("create schema if not exists {SCHEMA};"),
        template.objects(),
        format!("-- Whoever writes to the tables now ends first.\nlock table {} in share row exclusive mode;", declared.join(", ")),
        template.functions(),
        format!(
            "-- The trigger, also on every partition and child. It is ALWAYS enabled, so that session_replication_role does not go around it.\n\
             do $do$\ndeclare one oid; done oid[] := '{{}}';\nbegin\n  for one in with recursive t(oid) as (select unnest(array[{list}]) union \
             select i.inhrelid from t join pg_inherits i on i.inhparent = t.oid) select oid from t order by oid loop\n    \
             execute replace('{trigger}', '%s', one::regclass::text);\n    done := done || one;\n  end loop;\n  \
             update {fence} set lock = {lock}, generation = {BY_HAND}, guard = {guard}, guarded = done;\nend $do$;",
            lock = escape_literal(&names.lock),
            guard = escape_literal(&template.expected_hash()),
        ),
        format!("-- What the operator's role needs to activate, to look and to prove.\ngrant usage on schema {SCHEMA} to {operator};"),
    ];
    if template.mode == GuardMode::Enforce {
        lines.insert(6, self::canary(template, writers));
    }
    for names in [Some(names), (template.mode == GuardMode::Enforce).then_some(&canary.names)].into_iter().flatten() {
        lines.push(format!("grant select on {}, {} to {operator};", names.object("fence"), names.object("seen")));
        lines.push(format!(
            "grant select on sequence {}, {}, {} to {operator};",
            names.object("epoch"),
            names.object("claim"),
            names.object("refused")
        ));
        lines.push(format!("grant execute on function {}(bigint, text) to {operator};", names.object("activate")));
    }
    if template.mode == GuardMode::Enforce {
        lines.push(format!("grant execute on function {}() to {operator};", canary.names.object("reset")));
        lines.push(format!("grant select, insert, update, delete on {} to {operator};", canary.names.object("thing")));
    }
    lines.push("commit;".to_owned());
    lines.join("\n\n") + "\n"
}

/// Takes the guard away for good: from then on everybody may write. The fence stays, so that a guard that is installed again goes on
/// above it. Returns the tables that are open now.
pub(super) async fn remove(session: &mut Session, names: &Names) -> Result<Vec<String>, BackendError> {
    let sql = |error: tokio_postgres::Error| failed(&error);
    let trigger = names.trigger();
    let transaction = session.client.transaction().await.map_err(sql)?;
    transaction.batch_execute(&format!("set local lock_timeout = '{PATIENCE}'")).await.map_err(sql)?;
    let guarded = "select t.tgrelid::regclass::text from pg_trigger t where t.tgname = $1 and not t.tgisinternal order by 1";
    let mut open = Vec::new();
    for row in transaction.query(guarded, &[&trigger]).await.map_err(sql)? {
        let table: String = row.get(0);
        let drop = format!("drop trigger {} on {table}", postgres_protocol::escape::escape_identifier(&trigger));
        transaction.batch_execute(&drop).await.map_err(sql)?;
        open.push(table);
    }
    let canary = names.canary();
    transaction.batch_execute(&format!("drop table if exists {}", canary.object("thing"))).await.map_err(sql)?;
    for names in [names, &canary] {
        let functions = format!(
            "drop function if exists {}(), {}(text, text), {}(bigint, text), {}()",
            names.object("guard"),
            names.object("judge"),
            names.object("activate"),
            names.object("reset")
        );
        transaction.batch_execute(&functions).await.map_err(sql)?;
    }
    if record(&transaction, names).await?.is_some() {
        let forget = format!("update {} set guard = '', guarded = '{{}}'", names.object("fence"));
        transaction.batch_execute(&forget).await.map_err(sql)?;
    }
    transaction.commit().await.map_err(sql)?;
    Ok(open)
}

/// The statements that make the canary, which writers may write to.
fn canary(template: &Template, writers: &[String]) -> String {
    let canary = Template { names: template.names.canary(), ..template.clone() };
    let thing = canary.names.object("thing");
    let mut sql = format!("{}\n{}\n{}", canary.objects(), canary.functions(), canary.canary(&canary.trigger(&thing)));
    for writer in writers {
        let writer = postgres_protocol::escape::escape_identifier(writer);
        sql = format!("{sql}\ngrant usage on schema {SCHEMA} to {writer};\ngrant select, insert, update, delete on {thing} to {writer};");
    }
    sql
}

/// The guard of another lock on one of the tables: a write would have to be both owners' at once.
pub(super) async fn shared(client: &impl GenericClient, template: &Template, tables: &[Table]) -> Result<Option<String>, BackendError> {
    for table in tables {
        for trigger in &table.others {
            let fence = names::fence_of(trigger);
            let there = format!("select boundary, lock from {SCHEMA}.{}", postgres_protocol::escape::escape_identifier(&fence));
            let other = client.query_opt(&there, &[]).await.ok().flatten();
            let (boundary, lock): (String, String) = other.map_or_else(Default::default, |row| (row.get(0), row.get(1)));
            if lock != template.names.lock {
                let (place, name) = (table.declared, &table.name);
                return Ok(Some(format!(
                    "spec.postgres.tables[{place}]: {name} is guarded by write boundary {boundary:?} of lock {lock:?} already: one of the two locks has \
                     to own the table"
                )));
            }
        }
    }
    Ok(None)
}
