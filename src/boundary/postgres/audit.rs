//! Who can go around a managed guard, from the catalogue: by a role's powers, by what runs as somebody else, by what the guard does not
//! see. What decides is pure: [`findings`].

use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::types::Oid;

use super::{
    connect::{Session, failed},
    guard::Installed,
    names::{SCHEMA, Template},
};
use crate::{
    api::PostgresBoundary,
    boundary::{BackendError, proof::Bypass},
};

/// Somebody who can do something, by a role that they are or can become.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Power {
    /// Who.
    pub(super) actor: String,
    /// The role that has the power: the actor, or one that the actor is a member of.
    pub(super) via: String,
    /// What, as a sentence without a subject.
    pub(super) what: String,
    /// Whether the actor is one of the writers.
    pub(super) is_writer: bool,
}

/// Something that runs under another role, or that writes and is not seen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Detour {
    /// What and how, with the next step.
    pub(super) text: String,
    /// The role that it runs as, if that is what makes it a way around.
    pub(super) runs_as: Option<String>,
    /// Whether one of the writers can use it.
    pub(super) by_writer: bool,
}

/// Everything that was found out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) powers: Vec<Power>,
    pub(super) detours: Vec<Detour>,
    /// Roles that are information and no finding: the bootstrap superuser and the operator's.
    pub(super) informative: BTreeSet<String>,
}

/// What is a way around and who can take it. Exempt roles are somebody else's answer; a writer is never exempt.
pub(super) fn findings(found: &Found, exempt: &BTreeSet<&str>) -> Vec<Bypass> {
    let mut by_actor: BTreeMap<(&str, bool), BTreeSet<String>> = BTreeMap::new();
    for power in &found.powers {
        let (actor, via) = (power.actor.as_str(), power.via.as_str());
        let is_answered = |role: &str| exempt.contains(role) || found.informative.contains(role);
        if !power.is_writer && (is_answered(actor) || exempt.contains(via)) {
            continue;
        }
        let through = if actor == via { String::new() } else { format!(", through role {via:?}") };
        by_actor.entry((actor, power.is_writer)).or_default().insert(format!("{}{through}", power.what));
    }
    let step = |is_writer| {
        if is_writer {
            "take that away, or let the application write with another role"
        } else {
            "take that away, or list the role in spec.postgres.exemptRoles"
        }
    };
    let mut all: Vec<_> = by_actor
        .into_iter()
        .map(|((actor, by_writer), what)| {
            let who = if by_writer { "writer role" } else { "role" };
            let first = what.first().cloned().unwrap_or_default();
            let more = crate::audit::boundary::more(what.len().saturating_sub(1));
            Bypass { by_writer, text: format!("{who} {actor:?} {first}{more}: {}", step(by_writer)) }
        })
        .collect();
    all.extend(
        found
            .detours
            .iter()
            .filter(|detour| detour.runs_as.as_deref().is_none_or(|role| !exempt.contains(role)))
            .map(|detour| Bypass { by_writer: detour.by_writer, text: detour.text.clone() }),
    );
    all
}

/// The roles that have a power over the guard or the tables, as `power(role, what)`; role 0 is everybody. `$1` are the guarded tables,
/// `$2` the schema, `$3` the fence's relations, `$4` the activation.
const POWERS: &str = "power(role, what) as ( \
    select oid, 'is a superuser' from pg_roles where rolsuper \
    union all select oid, 'has BYPASSRLS' from pg_roles where rolbypassrls and not rolsuper \
    union all select oid, 'has CREATEROLE, and can give itself the role of an owner' from pg_roles \
      where rolcreaterole and not rolsuper and current_setting('server_version_num')::int < 160000 \
    union all select oid, 'may write any table, also the fence (' || rolname || ')' from pg_roles where rolname = 'pg_write_all_data' \
    union all select oid, 'may act as the server itself (' || rolname || ')' from pg_roles \
      where rolname in ('pg_execute_server_program', 'pg_write_server_files') \
    union all select c.relowner, 'owns table ' || c.oid::regclass from pg_class c where c.oid = any($1) \
    union all select n.nspowner, 'owns schema ' || quote_ident(n.nspname) from pg_namespace n \
      where n.oid in (select relnamespace from pg_class where oid = any($1)) or n.nspname = $2 \
    union all select c.relowner, 'owns ' || c.oid::regclass from pg_class c join pg_namespace n on n.oid = c.relnamespace \
      where n.nspname = $2 and c.relname::text = any($3) \
    union all select a.grantee, 'may change the fence (' || lower(a.privilege_type) || ' on ' || c.oid::regclass || ')' from pg_class c \
      join pg_namespace n on n.oid = c.relnamespace cross join lateral aclexplode(c.relacl) a \
      where n.nspname = $2 and c.relname::text = any($3) and a.grantee <> c.relowner \
        and a.privilege_type in ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'TRIGGER', 'USAGE') \
    union all select a.grantee, 'may change the fence (update of a column of ' || c.oid::regclass || ')' from pg_class c \
      join pg_namespace n on n.oid = c.relnamespace join pg_attribute t on t.attrelid = c.oid cross join lateral aclexplode(t.attacl) a \
      where n.nspname = $2 and c.relname::text = any($3) and a.privilege_type in ('INSERT', 'UPDATE') \
    union all select a.grantee, 'may activate epochs (execute on ' || p.proname || ')' from pg_proc p \
      join pg_namespace n on n.oid = p.pronamespace cross join lateral aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a \
      where n.nspname = $2 and p.proname::text = any($4) and a.grantee <> p.proowner \
    union all select a.grantee, 'has TRIGGER on ' || c.oid::regclass || ', and so can change what a write does' from pg_class c \
      cross join lateral aclexplode(c.relacl) a where c.oid = any($1) and a.privilege_type = 'TRIGGER' and a.grantee <> c.relowner \
    union all select p.proowner, 'owns function ' || p.proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace \
      where n.nspname = $2 and p.proname::text = any($4)";

/// The parameter rights of PostgreSQL 15 and later.
const PARAMETER_POWERS: &str = " union all select a.grantee, 'may set session_replication_role' from pg_parameter_acl p \
    cross join lateral aclexplode(p.paracl) a where p.parname = 'session_replication_role' and a.privilege_type = 'SET'";

/// Looks everything up. `rights` names more roles whose SECURITY DEFINER functions are ways around: a common table expression
/// `rights(role, what)` with parameters as in [`POWERS`].
pub(super) async fn look(
    session: &Session,
    template: &Template,
    spec: &PostgresBoundary,
    installed: &Installed,
    rights: Option<&str>,
) -> Result<Found, BackendError> {
    let client = &session.client;
    let sql = |error: tokio_postgres::Error| failed(&error);
    let version: i32 = client.query_one("select current_setting('server_version_num')::int", &[]).await.map_err(sql)?.get(0);
    let powers = format!("{POWERS}{})", if version >= 150_000 { PARAMETER_POWERS } else { "" });
    let tables: Vec<Oid> = installed.tables.iter().map(|table| table.oid).collect();
    let names = &template.names;
    let fence: Vec<_> = ["fence", "epoch", "claim"].map(|object| names.plain(object)).to_vec();
    let functions: Vec<_> = ["activate", "guard", "judge"].map(|object| names.plain(object)).to_vec();
    let writers = &spec.writer_roles;
    missing_writer(session, writers).await?;

    // A superuser is one, and everything else follows from it.
    let actors = format!(
        "with {powers} select distinct a.rolname::text, coalesce(v.rolname::text, 'public'), p.what, a.rolname::text = any($5) \
         from pg_roles a join power p on p.role = 0 or pg_has_role(a.oid, p.role, 'MEMBER') left join pg_roles v on v.oid = p.role \
         where (a.rolcanlogin or a.rolname::text = any($5)) and (not a.rolsuper or (p.role = a.oid and p.what = 'is a superuser'))"
    );
    let rows = client.query(&actors, &[&tables, &SCHEMA, &fence, &functions, writers]).await.map_err(sql)?;
    let powers_found =
        rows.iter().map(|row| Power { actor: row.get(0), via: row.get(1), what: row.get(2), is_writer: row.get(3) }).collect();

    let powerful = match rights {
        Some(rights) => format!("{powers}, {rights}, powerful(role) as (select role from power union select role from rights)"),
        None => format!("{powers}, powerful(role) as (select role from power)"),
    };
    let mut detours = definers(session, &powerful, (&tables, &fence, &functions), writers).await?;
    detours.extend(unseen_writes(session, &tables).await?);
    detours.extend(settings(session, names.lock.as_str(), writers).await?);
    detours.extend(foreign_and_unguarded(session, installed, template, writers).await?);
    let informative = client
        .query("select rolname::text from pg_roles where oid = 10 or rolname in (session_user, current_user)", &[])
        .await
        .map_err(sql)?
        .iter()
        .map(|row| row.get(0))
        .collect();
    Ok(Found { powers: powers_found, detours, informative })
}

async fn missing_writer(session: &Session, writers: &[String]) -> Result<(), BackendError> {
    let sql = "select w.name, w.place, r.oid is null, pg_has_role(current_user, coalesce(r.oid, 10), 'MEMBER') \
               from unnest($1::text[]) with ordinality as w(name, place) left join pg_roles r on r.rolname = w.name";
    for row in session.client.query(sql, &[&writers]).await.map_err(|error| failed(&error))? {
        let (name, place, is_missing, is_member): (String, i64, bool, bool) = (row.get(0), row.get(1), row.get(2), row.get(3));
        let field = format!("spec.postgres.writerRoles[{}]", place - 1);
        if is_missing {
            return Err(BackendError::Refused(format!("{field}: there is no role {name:?}: create it, or correct the name")));
        }
        if !is_member {
            return Err(BackendError::Refused(format!(
                "{field}: the operator's role cannot become {name:?}, so nothing can be tried as that role: GRANT {name} TO the operator's role"
            )));
        }
    }
    Ok(())
}

/// Functions that run as a role which can go around the guard.
async fn definers(
    session: &Session,
    powers: &str,
    (tables, fence, functions): (&[Oid], &[String], &[String]),
    writers: &[String],
) -> Result<Vec<Detour>, BackendError> {
    // Whoever may call it, or write to a table whose trigger it is: a trigger function needs no EXECUTE.
    // Also by a role that they can become.
    let uses = "exists (select from pg_roles s where pg_has_role(ROLE, s.oid, 'MEMBER') and ((has_function_privilege(s.oid, p.oid, 'EXECUTE') \
                and has_schema_privilege(s.oid, n.oid, 'USAGE')) or exists (select from pg_trigger t \
                where t.tgfoid = p.oid and has_table_privilege(s.oid, t.tgrelid, 'INSERT, UPDATE, DELETE, TRUNCATE'))))";
    let sql = format!(
        "with {powers} select n.nspname || '.' || p.proname, o.rolname::text, \
           (select min(w) from unnest($5::text[]) w where {by_writer}), \
           (select min(r.rolname::text) from pg_roles r where r.rolcanlogin and not r.rolsuper and not pg_has_role(r.oid, p.proowner, 'MEMBER') \
              and ({by_other})) \
         from pg_proc p join pg_namespace n on n.oid = p.pronamespace join pg_roles o on o.oid = p.proowner \
         where p.prosecdef and n.nspname not in ('pg_catalog', 'information_schema') \
           and (n.nspname <> $2 or p.proowner not in (n.nspowner, (select oid from pg_roles where rolname = current_user))) \
           and exists (select from powerful w where w.role <> 0 and pg_has_role(p.proowner, w.role, 'MEMBER')) order by 1",
        by_writer = uses.replace("ROLE", "w::name"),
        by_other = uses.replace("ROLE", "r.oid"),
    );
    let rows = session.client.query(&sql, &[&tables, &SCHEMA, &fence, &functions, &writers]).await.map_err(|error| failed(&error))?;
    Ok(rows
        .iter()
        .map(|row| {
            let (function, owner): (String, String) = (row.get(0), row.get(1));
            let (writer, other): (Option<String>, Option<String>) = (row.get(2), row.get(3));
            let by_writer = writer.is_some();
            let who = writer.or(other).map_or_else(|| "other functions".to_owned(), |role| format!("{role:?}"));
            let text = format!(
                "SECURITY DEFINER function {function} runs as {owner:?}, who can go around the guard, and {who} may use it: give it another owner, \
                 revoke EXECUTE, or list {owner:?} in spec.postgres.exemptRoles"
            );
            Detour { text, runs_as: Some(owner), by_writer }
        })
        .collect())
}

/// Writes that fire no statement trigger, or that end somewhere else.
async fn unseen_writes(session: &Session, tables: &[Oid]) -> Result<Vec<Detour>, BackendError> {
    let sql = "select 'subscription ' || quote_ident(s.subname) || ' writes to ' || r.srrelid::regclass || ' and fires no statement trigger: \
                 drop it, or let it write to another table' \
               from pg_subscription_rel r join pg_subscription s on s.oid = r.srsubid where r.srrelid = any($1) \
               union all select 'rule ' || quote_ident(w.rulename) || ' on ' || w.ev_class::regclass || ' makes writes end somewhere else: drop it' \
               from pg_rewrite w where w.ev_class = any($1) and w.rulename <> '_RETURN' order by 1";
    let rows = session.client.query(sql, &[&tables]).await.map_err(|error| failed(&error))?;
    Ok(rows.iter().map(|row| Detour { text: row.get(0), runs_as: None, by_writer: true }).collect())
}

/// Settings that go around the guard by themselves: a claim that every session of a role has, a replication role.
async fn settings(session: &Session, lock: &str, writers: &[String]) -> Result<Vec<Detour>, BackendError> {
    let sql = "with setting(place, role, text) as ( \
                 select case when s.setrole = 0 then 'every role' else 'role ' || quote_ident(r.rolname) end \
                   || case when s.setdatabase = 0 then '' else ' in database ' || quote_ident(d.datname) end, r.rolname::text, t \
                 from pg_db_role_setting s left join pg_roles r on r.oid = s.setrole left join pg_database d on d.oid = s.setdatabase \
                 cross join lateral unnest(s.setconfig) t where s.setdatabase = 0 or d.datname = current_database() \
                 union all select 'function ' || p.oid::regprocedure, null, t from pg_proc p cross join lateral unnest(p.proconfig) t) \
               select place, role, text from setting \
               where (text like 'session_replication_role=%' and text <> 'session_replication_role=origin') \
                 or (text like 'fencedlock.claim=%' and strpos(text, $1) > 0) order by 1";
    let prefix = format!("{lock}=");
    let rows = session.client.query(sql, &[&prefix]).await.map_err(|error| failed(&error))?;
    Ok(rows
        .iter()
        .map(|row| {
            let (place, role, text): (String, Option<String>, String) = (row.get(0), row.get(1), row.get(2));
            let name = text.split('=').next().unwrap_or_default();
            let by_writer = role.is_none_or(|role| writers.contains(&role));
            Detour { text: format!("{place} has {name} set for every session, whoever owns the lock: reset it"), runs_as: None, by_writer }
        })
        .collect())
}

/// Partitions on other servers, and partitions that came after the guard and that somebody can write to directly.
async fn foreign_and_unguarded(
    session: &Session,
    installed: &Installed,
    template: &Template,
    writers: &[String],
) -> Result<Vec<Detour>, BackendError> {
    let mut detours = parents(session, installed, writers).await?;
    for table in installed.tables.iter().filter(|table| table.kind == 'f') {
        let text = format!("{} is a foreign table: its server takes writes that come another way; keep it out of the table", table.name);
        detours.push(Detour { text, runs_as: None, by_writer: false });
    }
    let unguarded: Vec<Oid> =
        installed.tables.iter().filter(|t| t.kind != 'f' && !t.is_root && t.trigger.is_none()).map(|t| t.oid).collect();
    if unguarded.is_empty() {
        return Ok(detours);
    }
    let sql = "select t.oid::regclass::text, r.rolname::text = any($2), r.rolname::text from unnest($1::oid[]) t(oid) join pg_roles r on \
               (r.rolcanlogin or r.rolname::text = any($2)) and not r.rolsuper and r.rolname <> $3 \
               and exists (select from pg_roles s where pg_has_role(r.oid, s.oid, 'MEMBER') \
                 and has_table_privilege(s.oid, t.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')) order by 2 desc, 1, 3";
    let rows = session.client.query(sql, &[&unguarded, &writers, &template.operator]).await.map_err(|error| failed(&error))?;
    detours.extend(rows.iter().map(|row| {
        let (table, by_writer, role): (String, bool, String) = (row.get(0), row.get(1), row.get(2));
        let text = format!("{table} came after the guard, has no trigger yet, and role {role:?} may write to it directly");
        Detour { text, runs_as: None, by_writer }
    }));
    Ok(detours)
}

/// Parents of guarded tables that are not guarded themselves: a statement fires the triggers of the table that it names.
async fn parents(session: &Session, installed: &Installed, writers: &[String]) -> Result<Vec<Detour>, BackendError> {
    let guarded: Vec<Oid> = installed.tables.iter().map(|table| table.oid).collect();
    let sql = "with recursive above(oid) as (select inhparent from pg_inherits where inhrelid = any($1) \
                 union select i.inhparent from above a join pg_inherits i on i.inhrelid = a.oid) \
               select a.oid::regclass::text, exists (select from unnest($2::text[]) w \
                 join pg_roles s on pg_has_role(w::name, s.oid, 'MEMBER') \
                 where has_table_privilege(s.oid, a.oid, 'INSERT, UPDATE, DELETE, TRUNCATE') or has_any_column_privilege(s.oid, a.oid, 'INSERT, UPDATE')) \
               from above a where a.oid <> all($1) order by 1";
    let rows = session.client.query(sql, &[&guarded, &writers]).await.map_err(|error| failed(&error))?;
    Ok(rows
        .iter()
        .map(|row| {
            let (parent, by_writer): (String, bool) = (row.get(0), row.get(1));
            let text = format!("{parent} is above a guarded table, and what is written by way of it fires no trigger: name {parent} in spec.postgres.tables");
            Detour { text, runs_as: None, by_writer }
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn power(actor: &str, via: &str, is_writer: bool) -> Power {
        Power { actor: actor.into(), via: via.into(), what: "owns table t".into(), is_writer }
    }

    #[test]
    fn a_writer_is_never_exempt_and_others_are_when_somebody_answers() {
        let found = Found {
            powers: vec![
                power("app", "owner", true),
                power("dba", "dba", false),
                power("eve", "dba", false),
                power("postgres", "postgres", false),
            ],
            detours: vec![Detour { text: "function f".into(), runs_as: Some("dba".into()), by_writer: true }],
            informative: ["postgres".to_owned()].into(),
        };
        let said = |exempt: &[&str]| {
            let exempt = exempt.iter().copied().collect();
            findings(&found, &exempt).into_iter().map(|b| (b.by_writer, b.text.split(':').next().unwrap().to_owned())).collect::<Vec<_>>()
        };
        let app = (true, "writer role \"app\" owns table t, through role \"owner\"".to_owned());
        assert_eq!(said(&["app", "owner", "dba"]), std::slice::from_ref(&app));
        let all = said(&[]);
        assert_eq!(all.len(), 4, "{all:?}");
        assert!(all.contains(&(false, "role \"eve\" owns table t, through role \"dba\"".into())) && all.contains(&app));
        assert!(all.contains(&(true, "function f".into())));
    }
}
