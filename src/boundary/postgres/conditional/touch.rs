//! What the statement would touch, by the server's word, before it is run for the first time.

use postgres_protocol::escape::escape_identifier;
use tokio_postgres::types::ToSql;

use super::{
    Row,
    canary::{Prepared, Raw, Text, values},
    refused,
    statement::Statement,
};
use crate::{
    api::ConditionalUpdate,
    boundary::{
        BackendError,
        postgres::connect::{Session, failed},
        proof::script::Claim,
    },
};

/// Asks the server for the statement's plan: it changes one table, and touches none but these.
pub(super) async fn explain(on: &Prepared, declared: &ConditionalUpdate, row: &Row, writer: &str) -> Result<(), BackendError> {
    let sql = format!("explain (verbose, costs off, format json) {}", declared.statement);
    let claim = Claim::Made { foreign: false, epoch: "1".into(), holder: "probe-a".into(), sequence: 1 };
    // A payload of no type in particular: nothing is written.
    let values: Vec<_> = values(&declared.parameters, &row.key, &claim, String::new(), on.statement.params().len())
        .into_iter()
        .enumerate()
        .map(|(place, value)| if place + 1 == usize::from(declared.parameters.payload) { Text(None) } else { value })
        .collect();
    let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| value as &(dyn ToSql + Sync)).collect();
    on.session.run(&format!("begin; set local role {}", escape_identifier(writer))).await?;
    let said = on.session.client.query_one(&sql, &values).await;
    on.session.run("rollback").await?;
    let said = said.map_err(|error| refused(format_args!(".statement: {}", failed(&error))))?;
    let text: Raw = said.try_get(0).map_err(|error| failed(&error))?;
    let plan: serde_json::Value = serde_json::from_str(&text.0).map_err(|error| refused(format_args!(".statement: no plan: {error}")))?;
    let is_declared = |schema: &str, name: &str| row.tables.iter().chain(&row.partitions).any(|table| table.0 == schema && table.1 == name);
    let mut changes = 0;
    match strange(&plan, &is_declared, &mut changes) {
        Some(what) => {
            Err(refused(format_args!(".statement: it would touch {what}, which spec.postgres.tables does not list: it is not run")))
        }
        None if changes != 1 => Err(refused(format_args!(".statement: it changes {changes} tables: it is not run"))),
        None => Ok(()),
    }
}

/// What a plan touches besides the declared tables.
fn strange(plan: &serde_json::Value, declared: &impl Fn(&str, &str) -> bool, changes: &mut usize) -> Option<String> {
    match plan {
        serde_json::Value::Array(nodes) => nodes.iter().find_map(|node| strange(node, declared, changes)),
        serde_json::Value::Object(node) => {
            let text = |key: &str| node.get(key).and_then(serde_json::Value::as_str);
            *changes += usize::from(text("Node Type") == Some("ModifyTable"));
            if let Some(name) = text("Relation Name") {
                let schema = text("Schema").unwrap_or_default();
                if !declared(schema, name) {
                    return Some(format!("{schema}.{name}"));
                }
            }
            if let Some(function) = text("Function Name") {
                return Some(format!("function {function}"));
            }
            node.values().find_map(|value| strange(value, declared, changes))
        }
        _ => None,
    }
}

/// Built-in functions that PostgreSQL calls volatile and that change nothing, and what is written as a function and is none.
const HARMLESS: [&str; 10] = [
    "clock_timestamp",
    "gen_random_uuid",
    "random",
    "coalesce",
    "greatest",
    "least",
    "nullif",
    "current_timestamp",
    "current_date",
    "localtimestamp",
];

/// Only built-in functions that change nothing are called, and nothing stands in their place.
pub(super) async fn functions(session: &Session, statement: &Statement, schemas: &[String]) -> Result<(), BackendError> {
    for function in &statement.functions {
        let sql = "select count(*) filter (where n.nspname = 'pg_catalog') > 0 and coalesce(bool_and(provolatile <> 'v') filter (where n.nspname = 'pg_catalog'), false), \
                   count(*) filter (where n.nspname = any($2)) > 0 from pg_proc p join pg_namespace n on n.oid = p.pronamespace where p.proname = $1";
        let row = session.client.query_one(sql, &[&function, &schemas]).await.map_err(|error| failed(&error))?;
        let (is_built_in, is_replaced): (bool, bool) = (row.get(0), row.get(1));
        if is_replaced || !(is_built_in || HARMLESS.contains(&function.as_str())) {
            return Err(refused(format_args!(
                ".statement: calls {function}, which is no built-in function that only computes: what it touches cannot be told, and it is not run"
            )));
        }
    }
    Ok(())
}

/// The key tells one row: a unique index is on its column alone.
pub(super) async fn has_key(session: &Session, row: &Row, statement: &Statement) -> Result<(), BackendError> {
    let sql = "select exists (select from pg_index i join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0] \
                 where i.indrelid = $1::text::regclass and a.attname = $2 and i.indnkeyatts = 1 and i.indisunique and i.indisvalid and i.indpred is null)";
    let found = session.client.query_one(sql, &[&row.quoted(), &statement.key]).await.map_err(|error| failed(&error))?;
    if found.get(0) {
        return Ok(());
    }
    Err(refused(format_args!(
        ".statement: its key {:?} is no column of {} with a unique index of its own, so it may touch more rows than one: it is not run",
        statement.key,
        row.quoted()
    )))
}

/// Everything that the statement takes for a column is one: what is none would call a function, as `row.function` does.
pub(super) async fn names(session: &Session, row: &Row, statement: &Statement) -> Result<(), BackendError> {
    let names: Vec<&str> = statement.names.iter().map(String::as_str).collect();
    let tables: Vec<String> =
        row.tables.iter().map(|(schema, name)| format!("{}.{}", escape_identifier(schema), escape_identifier(name))).collect();
    let sql = "select n from unnest($1::text[]) n where not exists (select from pg_attribute a \
                 where a.attrelid in (select t::regclass from unnest($2::text[]) t) and a.attname = n and a.attnum > 0 and not a.attisdropped) limit 1";
    match session.client.query_opt(sql, &[&names, &tables]).await.map_err(|error| failed(&error))? {
        Some(row) => Err(refused(format_args!(
            ".statement: {:?} is no column of its tables, so it could call a function: it is not run",
            row.get::<_, String>(0)
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_plan_touches_is_the_servers_word() {
        let declared = |schema: &str, name: &str| (schema, name) == ("public", "t");
        let plan = |schema: &str| {
            serde_json::json!([{"Plan": {"Node Type": "ModifyTable", "Operation": "Update", "Relation Name": "t", "Schema": "public",
                "Plans": [{"Node Type": "Index Scan", "Relation Name": "t", "Schema": schema}]}}])
        };
        let said = |plan: &serde_json::Value| {
            let mut changes = 0;
            (strange(plan, &declared, &mut changes), changes)
        };
        assert_eq!(said(&plan("public")), (None, 1));
        assert_eq!(said(&plan("other")), (Some("other.t".to_owned()), 1));
        assert_eq!(said(&serde_json::json!([{"Function Name": "f"}])).0.unwrap(), "function f");
    }
}
