//! The guards of other boundaries in the same database. What must not come in: which of them are orphans; the operator knows what is declared.

use std::collections::HashMap;

use postgres_protocol::escape::{escape_identifier, escape_literal};

use super::{
    connect::{Session, failed},
    names::{Names, SCHEMA, TRIGGER, fence_of},
};
use crate::boundary::{BackendError, proof::OtherGuard};

/// How many guards are looked at: a catalogue of any size is no reason to be slow.
const AT_MOST: i64 = 256;

/// The guards of other boundaries whose fence this role may read.
pub(super) async fn look(session: &Session, own: &Names) -> Result<Vec<OtherGuard>, BackendError> {
    let triggers = format!(
        "select t.tgname::text, array_agg(t.tgrelid::regclass::text order by t.tgrelid) \
           from pg_trigger t join pg_class c on c.oid = t.tgrelid join pg_namespace n on n.oid = c.relnamespace \
           join pg_namespace s on s.nspname = '{SCHEMA}' \
           join pg_class f on f.relnamespace = s.oid and f.relname = substr(t.tgname, length('{TRIGGER}') + 1) || '_fence' \
          where starts_with(t.tgname::text, '{TRIGGER}') and t.tgname <> $1 and not t.tgisinternal and n.nspname <> '{SCHEMA}' \
            and t.tgparentid = 0 and t.tgenabled <> 'D' and has_table_privilege(f.oid, 'select') \
          group by t.tgname order by t.tgname limit {AT_MOST}"
    );
    let rows = session.client.query(&triggers, &[&own.trigger()]).await.map_err(|error| failed(&error))?;
    let guards: Vec<(String, Vec<String>)> = rows.iter().map(|row| (fence_of(row.get(0)), row.get(1))).collect();
    if guards.is_empty() {
        return Ok(Vec::new());
    }
    let one = |(fence, _): &(String, Vec<String>)| {
        format!("select {}::text, boundary from {SCHEMA}.{}", escape_literal(fence), escape_identifier(fence))
    };
    let fences = guards.iter().map(one).collect::<Vec<_>>().join(" union all ");
    let fences = session.client.query(&fences, &[]).await.map_err(|error| failed(&error))?;
    let mut boundaries: HashMap<String, String> = fences.iter().map(|row| (row.get(0), row.get(1))).collect();
    let guard = |(fence, tables)| Some(OtherGuard { boundary: boundaries.remove(&fence)?, tables });
    Ok(guards.into_iter().filter_map(guard).collect())
}
