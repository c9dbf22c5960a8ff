//! The guards of other boundaries in the same database. What must not come in: which of them are orphans; the operator knows what is declared.

use postgres_protocol::escape::{escape_identifier, escape_literal};

use super::{
    connect::{Session, failed},
    names::{Names, SCHEMA},
};
use crate::boundary::{BackendError, proof::OtherGuard};

/// How many tables with a guard are looked at: a catalogue of any size is no reason to be slow.
const AT_MOST: i64 = 256;
/// What the names of triggers begin with.
const PREFIX: &str = "fencedlock_";

/// The guards of other boundaries whose fence this role may read.
pub(super) async fn look(session: &Session, own: &Names) -> Result<Vec<OtherGuard>, BackendError> {
    let triggers = format!(
        "select t.tgname::text, t.tgrelid::regclass::text, f.relname::text \
           from pg_trigger t join pg_class c on c.oid = t.tgrelid join pg_namespace n on n.oid = c.relnamespace \
           join pg_namespace s on s.nspname = '{SCHEMA}' join pg_class f on f.relnamespace = s.oid and f.relname = substr(t.tgname, length('{PREFIX}') + 1) || '_fence' \
          where starts_with(t.tgname::text, '{PREFIX}') and t.tgname <> $1 and not t.tgisinternal and n.nspname <> '{SCHEMA}' \
            and t.tgparentid = 0 and t.tgenabled <> 'D' and has_table_privilege(f.oid, 'select') \
          order by t.tgname, t.tgrelid limit {AT_MOST}"
    );
    let rows = session.client.query(&triggers, &[&own.trigger()]).await.map_err(|error| failed(&error))?;
    let mut guards: Vec<(String, OtherGuard)> = Vec::new();
    for row in rows {
        let (table, fence): (String, String) = (row.get(1), row.get(2));
        match guards.last_mut() {
            Some((last, guard)) if *last == fence => guard.tables.push(table),
            _ => guards.push((fence, OtherGuard { boundary: String::new(), tables: vec![table] })),
        }
    }
    if guards.is_empty() {
        return Ok(Vec::new());
    }
    let one = |(fence, _): &(String, OtherGuard)| {
        format!("select {}::text, boundary from {SCHEMA}.{}", escape_literal(fence), escape_identifier(fence))
    };
    let owners = guards.iter().map(one).collect::<Vec<_>>().join(" union all ");
    for row in session.client.query(&owners, &[]).await.map_err(|error| failed(&error))? {
        let (fence, boundary): (String, String) = (row.get(0), row.get(1));
        for (_, guard) in guards.iter_mut().filter(|(of, _)| *of == fence) {
            guard.boundary.clone_from(&boundary);
        }
    }
    Ok(guards.into_iter().map(|(_, guard)| guard).filter(|guard| !guard.boundary.is_empty()).collect())
}
