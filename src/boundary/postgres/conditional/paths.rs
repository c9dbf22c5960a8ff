//! How else the tables may be changed than by the declared statement, and by whom: a conditional update guards nothing but itself.

use std::collections::BTreeSet;

use super::statement::Statement;
use crate::{
    api::PostgresBoundary,
    boundary::{
        BackendError,
        postgres::{
            audit::{Detour, Power},
            connect::{Session, failed},
            guard::Table,
        },
        proof::Bypass,
    },
};

/// Who holds a right to write to the tables, as `right(role, what)`; role 0 is everybody. `$1` are the tables. An owner is found anyway.
pub(super) const RIGHTS: &str = "granted(role, oid, privilege) as ( \
      select a.grantee, c.oid, a.privilege_type from pg_class c cross join lateral aclexplode(c.relacl) a \
        where c.oid = any($1) and a.grantee <> c.relowner \
      union select a.grantee, c.oid, a.privilege_type from pg_class c join pg_attribute t on t.attrelid = c.oid \
        cross join lateral aclexplode(t.attacl) a where c.oid = any($1) and a.grantee <> c.relowner), \
    rights(role, what) as (select role, 'may write to ' || oid::regclass || ' by statements of its own (' || string_agg(lower(privilege), ', ' order by privilege) || ')' \
      from granted where privilege in ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE') group by role, oid)";

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Paths {
    /// Rights of writers that the statement does not need.
    pub(super) excess: Vec<Bypass>,
    /// Roles besides the writers that may write.
    pub(super) others: Vec<Power>,
    /// Views and cascades, by which a write to something else ends in the tables.
    pub(super) detours: Vec<Detour>,
    /// Writers who may choose any epoch by another statement.
    pub(super) choosers: Vec<String>,
}

/// Looks everything up.
pub(super) async fn look(
    session: &Session,
    tables: &[Table],
    statement: &Statement,
    fence: &str,
    spec: &PostgresBoundary,
) -> Result<Paths, BackendError> {
    let mut paths = Paths::default();
    for writer in &spec.writer_roles {
        for table in tables {
            rights(session, table, statement, fence, writer, &mut paths).await?;
        }
    }
    let oids: Vec<u32> = tables.iter().map(|table| table.oid).collect();
    paths.others = others(session, &oids, &spec.writer_roles).await?;
    let exempt: Vec<&str> = spec.exempt_roles.iter().map(|exempt| exempt.role.as_str()).collect();
    paths.detours = views(session, &oids, &spec.writer_roles, &exempt).await?;
    paths.detours.extend(cascades(session, &oids, &spec.writer_roles, &exempt).await?);
    Ok(paths)
}

/// What a writer, or a role that it can become, may do to one table.
async fn rights(
    session: &Session,
    table: &Table,
    statement: &Statement,
    fence: &str,
    writer: &str,
    paths: &mut Paths,
) -> Result<(), BackendError> {
    let sql = "with self as (select oid from pg_roles where pg_has_role($1::name, oid, 'MEMBER')) \
               select bool_or(has_table_privilege(oid, $2::oid, 'INSERT') or has_any_column_privilege(oid, $2::oid, 'INSERT')), \
                 bool_or(has_table_privilege(oid, $2::oid, 'DELETE')), bool_or(has_table_privilege(oid, $2::oid, 'TRUNCATE')), \
                 array(select attname::text from pg_attribute a where attrelid = $2::oid and attnum > 0 and not attisdropped \
                       and exists (select from self where has_column_privilege(self.oid, $2::oid, a.attnum, 'UPDATE')) order by attnum) from self";
    let row = session.client.query_one(sql, &[&writer, &table.oid]).await.map_err(|error| failed(&error))?;
    let (insert, delete, truncate, columns): (bool, bool, bool, Vec<String>) = (row.get(0), row.get(1), row.get(2), row.get(3));
    let is_target = table.is_root && table.declared == statement.table;
    if is_target && columns.iter().any(|column| column == fence) {
        paths.choosers.push(writer.to_owned());
    }
    let needed = |column: &String| is_target && statement.columns.contains(column);
    let others: Vec<_> = columns.iter().filter(|column| !needed(column)).map(String::as_str).collect();
    let updates = if others.is_empty() { String::new() } else { format!("UPDATE ({})", others.join(", ")) };
    let inserts_itself = is_target && statement.inserts;
    let can = [("INSERT", insert && !inserts_itself), ("DELETE", delete), ("TRUNCATE", truncate), (&*updates, !others.is_empty())];
    let can: Vec<_> = can.into_iter().filter(|(_, can)| *can).map(|(what, _)| what).collect();
    if !can.is_empty() {
        let text = format!(
            "writer role {writer:?} has {} on {}, which the declared statement does not need, and so another way to change it: REVOKE it",
            can.join(", "),
            table.name
        );
        paths.excess.push(Bypass { by_writer: true, text });
    }
    Ok(())
}

/// Roles that can log in and write to the tables by statements that nobody declared. Owners and superusers are found by the general audit.
async fn others(session: &Session, tables: &[u32], writers: &[String]) -> Result<Vec<Power>, BackendError> {
    let sql = format!(
        "with {RIGHTS} select a.rolname::text, coalesce(v.rolname::text, 'public'), p.what from pg_roles a \
         join rights p on p.role = 0 or pg_has_role(a.oid, p.role, 'MEMBER') left join pg_roles v on v.oid = p.role \
         where a.rolcanlogin and not a.rolsuper and a.rolname <> all($2) order by 1, 2, 3"
    );
    let rows = session.client.query(&sql, &[&tables, &writers]).await.map_err(|error| failed(&error))?;
    Ok(rows.iter().map(|row| Power { actor: row.get(0), via: row.get(1), what: row.get(2), is_writer: false }).collect())
}

/// Views and rules that write to the tables as their owner does, and who may write to those.
async fn views(session: &Session, tables: &[u32], writers: &[String], exempt: &[&str]) -> Result<Vec<Detour>, BackendError> {
    let sql = "with recursive above(oid) as ( \
                 select w.ev_class from pg_rewrite w join pg_depend d on d.classid = 'pg_rewrite'::regclass and d.objid = w.oid \
                   where d.refclassid = 'pg_class'::regclass and d.refobjid = any($1) and w.ev_class <> all($1) \
                 union select w.ev_class from above a join pg_depend d on d.refclassid = 'pg_class'::regclass and d.refobjid = a.oid \
                   join pg_rewrite w on d.classid = 'pg_rewrite'::regclass and d.objid = w.oid and w.ev_class <> a.oid) \
               select a.oid::regclass::text, r.rolname::text, r.rolname::text = any($2) from above a join pg_class c on c.oid = a.oid \
               join pg_roles r on (r.rolcanlogin or r.rolname::text = any($2)) and not r.rolsuper and (r.rolname::text = any($2) or r.rolname::text <> all($3)) \
                 and not pg_has_role(r.oid, c.relowner, 'MEMBER') \
                 and exists (select from pg_roles s where pg_has_role(r.oid, s.oid, 'MEMBER') \
                   and (has_table_privilege(s.oid, a.oid, 'INSERT, UPDATE, DELETE') or has_any_column_privilege(s.oid, a.oid, 'INSERT, UPDATE'))) \
               where pg_relation_is_updatable(a.oid, true) & 28 <> 0 order by 1, 3 desc, 2";
    let rows = session.client.query(sql, &[&tables, &writers, &exempt]).await.map_err(|error| failed(&error))?;
    Ok(first_of_each(rows.iter().map(|row| {
        let (view, role, by_writer): (String, String, bool) = (row.get(0), row.get(1), row.get(2));
        let text = format!("{view} ends in the tables as its owner, and role {role:?} may write to it: REVOKE that, or drop it");
        (view, Detour { text, runs_as: None, by_writer })
    })))
}

/// Foreign keys that delete or change rows of the tables when another table's row goes: they run as the owner, without the statement.
async fn cascades(session: &Session, tables: &[u32], writers: &[String], exempt: &[&str]) -> Result<Vec<Detour>, BackendError> {
    let sql = "with recursive cascade(child, parent, oid) as ( \
                 select conrelid, confrelid, oid from pg_constraint where contype = 'f' and conrelid = any($1) and (confdeltype in ('c', 'n', 'd') or confupdtype in ('c', 'n', 'd')) \
                 union select k.conrelid, k.confrelid, k.oid from cascade c join pg_constraint k on k.contype = 'f' and k.conrelid = c.parent \
                   and (k.confdeltype in ('c', 'n', 'd') or k.confupdtype in ('c', 'n', 'd'))) \
               select k.conrelid::regclass || ' by ' || quote_ident(k.conname), k.confrelid::regclass::text, r.rolname::text, r.rolname::text = any($2) \
               from cascade c join pg_constraint k on k.oid = c.oid \
               join pg_roles r on (r.rolcanlogin or r.rolname::text = any($2)) and not r.rolsuper and r.rolname <> current_user \
                 and (r.rolname::text = any($2) or r.rolname::text <> all($3)) and exists (select from pg_roles s where pg_has_role(r.oid, s.oid, 'MEMBER') \
                   and ((k.confdeltype in ('c', 'n', 'd') and has_table_privilege(s.oid, k.confrelid, 'DELETE')) \
                     or (k.confupdtype in ('c', 'n', 'd') and has_any_column_privilege(s.oid, k.confrelid, 'UPDATE')))) \
               order by 1, 4 desc, 3";
    let rows = session.client.query(sql, &[&tables, &writers, &exempt]).await.map_err(|error| failed(&error))?;
    Ok(first_of_each(rows.iter().map(|row| {
        let (key, parent, role, by_writer): (String, String, String, bool) = (row.get(0), row.get(1), row.get(2), row.get(3));
        let text = format!(
            "a row of {parent} that goes changes rows of {key}, and role {role:?} may do that: make the foreign key NO ACTION, or REVOKE the right"
        );
        (key, Detour { text, runs_as: None, by_writer })
    })))
}

/// One finding for each thing, about its first role.
fn first_of_each(found: impl Iterator<Item = (String, Detour)>) -> Vec<Detour> {
    let mut seen = BTreeSet::new();
    found.filter(|(thing, _)| seen.insert(thing.clone())).map(|(_, detour)| detour).collect()
}
