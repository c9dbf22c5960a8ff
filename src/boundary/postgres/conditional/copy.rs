//! A copy of the tables for a statement that has no row of its own in the real ones, where a copy shows what the real table would do: it
//! has no trigger, rule, policy or partition, so the real one may have none either. It lives for one look.

use postgres_protocol::escape::{escape_identifier, escape_literal};

use super::{Row, canary::Text, refused, statement::Statement, table::Column};
use crate::{
    api::PostgresBoundary,
    boundary::{
        BackendError,
        postgres::{
            connect::{Session, failed},
            guard::{Installed, Table},
            names::Names,
        },
    },
};

/// The copies, in a schema of their own.
#[derive(Debug)]
pub(super) struct Copy {
    /// The row in them that is tried.
    pub(super) row: Row,
    schema: String,
}

/// Makes the copies, with a row in the one that is written.
///
/// # Errors
/// Says why a copy would not be faithful, or could not be made; both end in what to do instead.
pub(super) async fn make(
    session: &Session,
    names: &Names,
    spec: &PostgresBoundary,
    installed: &Installed,
    statement: &Statement,
    column: &Column,
    writer: &str,
) -> Result<Copy, BackendError> {
    if let Some(name) = &statement.qualified {
        return Err(unfaithful(format_args!("the statement writes {name} with its schema, and would leave the copy for the real table")));
    }
    let mut roots: Vec<_> = installed.tables.iter().filter(|table| table.is_root).collect();
    roots.sort_by_key(|table| table.declared);
    if let Some(why) = difference(session, &roots).await? {
        return Err(unfaithful(format_args!("{why}, and a copy would have none")));
    }
    let schema = format!("fencedlock_copy_{}", names.plain("tables"));
    let mut sql = vec![format!("drop schema if exists {0} cascade; create schema {0}", escape_identifier(&schema))];
    sql.push(format!("grant usage on schema {} to {}", escape_identifier(&schema), escape_identifier(writer)));
    for table in &roots {
        let copy = format!("{}.{}", escape_identifier(&schema), escape_identifier(&spec.tables[table.declared].name));
        sql.push(format!("create table {copy} (like {} including all)", table.name));
        sql.extend(sequences(session, table, &schema, &copy, writer).await?);
        sql.extend(grants(session, table, &copy, writer).await?);
    }
    session.run(&sql.join(";\n")).await.map_err(|error| unfaithful(format_args!("it could not be made ({error})")))?;
    let tables: Vec<_> = spec.tables.iter().map(|table| (schema.clone(), table.name.clone())).collect();
    let mut copy = Copy { row: Row { tables, partitions: Vec::new(), table: statement.table, key: String::new() }, schema };
    match seed(session, &copy.row, statement, column).await {
        Ok(key) => {
            copy.row.key = key;
            Ok(copy)
        }
        Err(error) => {
            copy.drop(session).await?;
            Err(error)
        }
    }
}

impl Copy {
    /// Takes the copies away.
    pub(super) async fn drop(&self, session: &Session) -> Result<(), BackendError> {
        session.run(&format!("drop schema if exists {} cascade", escape_identifier(&self.schema))).await
    }
}

fn unfaithful(why: std::fmt::Arguments<'_>) -> BackendError {
    refused(format_args!(
        ".canaryKey is absent, so a copy of the tables would have to be tried, and {why}: insert a row that nobody else uses into the real table, and name its key"
    ))
}

/// What the real tables have and a copy would not.
async fn difference(session: &Session, tables: &[&Table]) -> Result<Option<String>, BackendError> {
    let sql = "select t.text from ( \
         select 1, c.oid::regclass || ' is no ordinary table' from pg_class c where c.oid = any($1) and c.relkind <> 'r' \
         union all select 2, oid::regclass || ' is part of an inheritance or a partition' from pg_class c where oid = any($1) \
           and (relispartition or exists (select from pg_inherits where oid in (inhrelid, inhparent))) \
         union all select 3, tgrelid::regclass || ' has trigger ' || quote_ident(tgname) from pg_trigger where tgrelid = any($1) and not tgisinternal \
         union all select 4, ev_class::regclass || ' has rule ' || quote_ident(rulename) from pg_rewrite where ev_class = any($1) \
         union all select 5, oid::regclass || ' has row level security' from pg_class where oid = any($1) \
           and (relrowsecurity or exists (select from pg_policy where polrelid = pg_class.oid)) \
         union all select 6, coalesce(k.conrelid, f.adrelid, i.indrelid)::regclass || ' calls function ' || d.refobjid::regproc from pg_depend d \
           left join pg_constraint k on d.classid = 'pg_constraint'::regclass and k.oid = d.objid \
           left join pg_attrdef f on d.classid = 'pg_attrdef'::regclass and f.oid = d.objid \
           left join pg_index i on d.classid = 'pg_class'::regclass and i.indexrelid = d.objid \
           where d.refclassid = 'pg_proc'::regclass and coalesce(k.conrelid, f.adrelid, i.indrelid) = any($1) \
         union all select 7, attrelid::regclass || ' has column ' || quote_ident(attname) || ' of type ' || format_type(a.atttypid, a.atttypmod) \
           from pg_attribute a join pg_type y on y.oid = a.atttypid left join pg_type e on e.oid = y.typelem and y.typlen = -1 \
           where attrelid = any($1) and attnum > 0 and not attisdropped and y.oid >= 16384 and coalesce(e.typtype, y.typtype) <> 'e' \
       ) t(place, text) order by place, text limit 1";
    let oids: Vec<u32> = tables.iter().map(|table| table.oid).collect();
    let row = session.client.query_opt(sql, &[&oids]).await.map_err(|error| failed(&error))?;
    Ok(row.map(|row| row.get(0)))
}

/// Sequences of the copy's own in the place of the real ones. Identity columns bring theirs.
async fn sequences(session: &Session, table: &Table, schema: &str, copy: &str, writer: &str) -> Result<Vec<String>, BackendError> {
    let sql = "select distinct a.attname::text from pg_attrdef f join pg_attribute a on a.attrelid = f.adrelid and a.attnum = f.adnum \
               join pg_depend d on d.classid = 'pg_attrdef'::regclass and d.objid = f.oid and d.refclassid = 'pg_class'::regclass \
               join pg_class s on s.oid = d.refobjid and s.relkind = 'S' where f.adrelid = $1 order by 1";
    let rows = session.client.query(sql, &[&table.oid]).await.map_err(|error| failed(&error))?;
    let own = |row: &tokio_postgres::Row| {
        let column: String = row.get(0);
        let sequence = format!("{}.{}", escape_identifier(schema), escape_identifier(&format!("{}_{column}", table.oid)));
        let column = escape_identifier(&column);
        format!(
            "create sequence {sequence}; grant usage on sequence {sequence} to {}; alter table {copy} alter column {column} set default nextval({})",
            escape_identifier(writer),
            escape_literal(&sequence)
        )
    };
    Ok(rows.iter().map(own).collect())
}

/// What the writer may do to the real table it may do to the copy.
async fn grants(session: &Session, table: &Table, copy: &str, writer: &str) -> Result<Vec<String>, BackendError> {
    let sql = "select p, array_agg(attname::text order by attnum) from pg_attribute cross join unnest('{SELECT,INSERT,UPDATE}'::text[]) p \
               where attrelid = $1 and attnum > 0 and not attisdropped and has_column_privilege($2::name, attrelid, attnum, p) group by p";
    let rows = session.client.query(sql, &[&table.oid, &writer]).await.map_err(|error| failed(&error))?;
    let grant = |row: &tokio_postgres::Row| {
        let (privilege, columns): (String, Vec<String>) = (row.get(0), row.get(1));
        let columns: Vec<_> = columns.iter().map(|column| escape_identifier(column)).collect();
        format!("grant {privilege} ({}) on {copy} to {}", columns.join(", "), escape_identifier(writer))
    };
    Ok(rows.iter().map(grant).collect())
}

/// Inserts the row that is tried; its key.
async fn seed(session: &Session, row: &Row, statement: &Statement, column: &Column) -> Result<String, BackendError> {
    let copy = row.quoted();
    let sql = "select attname::text, format_type(atttypid, null) = 'uuid' from pg_attribute where attrelid = $1::text::regclass and attname = any($2)";
    let columns = [&statement.key, &statement.payload];
    let rows = session.client.query(sql, &[&copy, &columns.as_slice()]).await.map_err(|error| failed(&error))?;
    // One is a text, a number and a JSON document.
    let example = |column: &str| {
        let is_uuid = rows.iter().any(|row| row.get::<_, String>(0) == column && row.get(1));
        Text(Some(if is_uuid { "00000000-0000-0000-0000-000000000001" } else { "1" }.to_owned()))
    };
    let (key, payload) = (example(&statement.key), example(&statement.payload));
    let quoted = columns.map(|column| escape_identifier(column));
    let insert =
        format!("insert into {copy} ({}, {}) values ($1, $2, {})", quoted.join(", "), escape_identifier(&column.name), column.initial());
    session
        .client
        .execute(&insert, &[&key, &payload])
        .await
        .map_err(|error| unfaithful(format_args!("no row could be inserted into it ({})", failed(&error))))?;
    Ok(key.0.unwrap_or_default())
}
