//! The application's own conditional update, proven as it is written on a row that is reserved for it (design: boundaries.md section 3). The
//! operator installs nothing and activates nothing: the contract is `AfterAcceptance`.
//!
//! `statement` is what the text says, `table` what the catalogue says, `canary` what is tried.

use std::{collections::BTreeSet, fmt};

use futures::{FutureExt, future::BoxFuture};
use postgres_protocol::escape::escape_identifier;
use tokio_postgres::types::ToSql;

mod canary;
mod paths;
mod statement;
mod table;

use canary::{Prepared, Raw, RowCanary};
use statement::Statement;

use super::{
    Access, Which, audit,
    connect::{Session, failed},
    guard,
    names::{Names, Template},
    server,
};
use crate::{
    api::{ConditionalUpdate, Contract, GuardMode, LimitName, PostgresBoundary, WritesPerEpoch},
    boundary::{
        Activation, Ask, Backend, BackendError, Observation,
        proof::{Answers, Bypass, ClaimForm, Examination, NamedLimit, Profile, limit_detail, run, script::Claim},
    },
    epoch::{Epoch, Holder},
};

/// The field that almost everything here is about.
const FIELD: &str = "spec.postgres.conditionalUpdate";

/// A boundary whose guard is in the application's statement.
#[derive(Clone)]
pub struct Conditional {
    access: Access,
    names: Names,
    spec: PostgresBoundary,
    declared: ConditionalUpdate,
    writes: WritesPerEpoch,
}

impl fmt::Debug for Conditional {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conditional").field("boundary", &self.names.boundary).finish_non_exhaustive()
    }
}

fn refused(text: impl fmt::Display) -> BackendError {
    BackendError::Refused(format!("{FIELD}{text}"))
}

impl Conditional {
    /// A boundary, as it is declared.
    pub fn new(access: Access, which: Which<'_>, spec: PostgresBoundary, declared: ConditionalUpdate, writes: WritesPerEpoch) -> Self {
        Self { access, names: Names::new(which.namespace, which.boundary, which.lock), spec, declared, writes }
    }

    const fn profile(&self) -> Profile {
        Profile {
            contract: Contract::AfterAcceptance,
            writes: self.writes,
            claim: ClaimForm::Number,
            names_holder: self.declared.parameters.holder.is_some(),
            stays_on_connection: false,
            judges_deletions: false,
        }
    }

    async fn examine_now(&self) -> Result<Examination, BackendError> {
        let statement = statement::parse(&self.declared, &self.spec.tables).map_err(|why| refused(format_args!(".statement: {why}")))?;
        if self.writes == WritesPerEpoch::Sequenced {
            return Err(BackendError::Refused(
                "spec.writesPerEpoch: a conditional update with a sequence cannot be tried by this version: Once or Many can".into(),
            ));
        }
        let key = self.declared.canary_key.as_deref().ok_or_else(|| {
            refused(".canaryKey: there is no row that may be tried, and this version makes no clone of a table: insert a row that nobody uses, and name its key")
        })?;
        let writer = self.spec.writer_roles.first().ok_or_else(|| {
            BackendError::Refused("spec.postgres.writerRoles is empty: nothing can be tried as a role that applications write with".into())
        })?;
        let target = self.access.target().await?;
        let session = target.connect().await?;
        // Replicas take turns: there is one row.
        let turn = format!("set lock_timeout = '10s'; select pg_advisory_lock(7109, {}); set lock_timeout = '2s'", self.names.key());
        session.run(&turn).await?;
        let template = Template { names: self.names.clone(), mode: GuardMode::Enforce, operator: String::new(), defects: Vec::new() };
        let installed = guard::read(&session.client, &template, &self.spec.tables).await?;
        let is_target = |table: &&guard::Table| table.is_root && table.declared == statement.table;
        let table = installed.tables.iter().find(is_target).ok_or_else(|| refused(".statement: its table is not there"))?;

        let column = table::fence(&session, table, &self.declared).await?;
        let (bypasses, choosers) = self.ways_around(&session, &template, &installed, &statement).await?;
        let server = server::look(&session, &installed).await?;
        let mut limits = server.limits;
        if let Some(role) = choosers.first() {
            let detail = format!(
                "role {role:?} may itself update {:?}, by any statement and to any epoch: {}; REVOKE it and let the role call a SECURITY DEFINER function",
                self.declared.fence_column,
                limit_detail(LimitName::EpochNotBounded)
            );
            limits.push(NamedLimit { name: LimitName::EpochNotBounded, detail });
        }
        let volatile = table::volatile(&session, &installed.tables, &self.spec.writer_roles).await?;
        let mut found = Examination {
            profile: self.profile(),
            server: server.identity,
            guard: table::digest(&session, &installed.tables, &self.declared).await?,
            guard_altered: None,
            shared: None,
            answers: None,
            bypasses,
            not_durable: server.not_durable.or(volatile),
            limits,
            fence: None,
            refused: None,
            last_refused: None,
            notes: vec![
                "the guard is the application's own statement; that it takes no returned row for a refusal cannot be seen from here"
                    .to_owned(),
            ],
            unfinished: None,
        };
        match self.probe(&target, &session, &statement, &column, (key, writer)).await {
            Ok(answers) => found.answers = Some(answers),
            Err(error) => found.unfinished = Some(error.to_string()),
        }
        Ok(found)
    }

    /// Everything that may change the tables besides the statement, and the writers who may choose an epoch.
    async fn ways_around(
        &self,
        session: &Session,
        template: &Template,
        installed: &guard::Installed,
        statement: &Statement,
    ) -> Result<(Vec<Bypass>, Vec<String>), BackendError> {
        // A partition's trigger is a managed guard's, which nobody asked for here.
        let mut looked = installed.clone();
        looked.tables.retain(|table| table.is_root || table.kind == 'f');
        let mut found = audit::look(session, template, &self.spec, &looked, Some(paths::RIGHTS)).await?;
        let paths = paths::look(session, &installed.tables, statement, &self.declared.fence_column, &self.spec).await?;
        found.powers.extend(paths.others);
        found.detours.extend(paths.detours);
        let exempt: BTreeSet<&str> = self.spec.exempt_roles.iter().map(|exempt| exempt.role.as_str()).collect();
        let mut bypasses = paths.excess;
        bypasses.extend(audit::findings(&found, &exempt));
        Ok((bypasses, paths.choosers))
    }

    async fn probe(
        &self,
        target: &super::Target,
        session: &Session,
        statement: &Statement,
        column: &table::Column,
        (key, writer): (&str, &str),
    ) -> Result<Answers, BackendError> {
        let path = self.path();
        functions(session, statement, &self.schemas()).await?;
        has_key(session, &self.spec.tables[statement.table], statement).await?;
        let (writing, open) = futures::try_join!(target.connect(), target.connect())?;
        let prepare = |session| Prepared::new(session, &self.declared.statement, &path);
        let (writing, open) =
            futures::try_join!(prepare(writing), prepare(open)).map_err(|error| refused(format_args!(".statement: {error}")))?;
        self.explain(&writing, writer, key).await?;
        let epoch = &writing.statement.params()[usize::from(self.declared.parameters.epoch) - 1];
        let epoch = session.client.query_one("select format_type($1, null)", &[&epoch.oid()]).await.map_err(|error| failed(&error))?;
        let wrong = table::wrong_types(column, epoch.get(0));
        let table = table::quoted(&self.spec.tables[statement.table]);
        let mut canary = RowCanary::new(statement, &self.declared, key, (table, column), writer, session, (writing, open));
        let run_id = format!("{:x}", std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos());
        let mut answers = run::run(&mut canary, &self.profile(), &run_id).await;
        answers.name_failures(|probe, failure| table::named(statement, self.writes, probe, failure));
        answers.extend(wrong);
        Ok(answers)
    }

    fn schemas(&self) -> Vec<&str> {
        let schemas: BTreeSet<&str> = self.spec.tables.iter().map(|table| table.schema.as_str()).collect();
        schemas.into_iter().collect()
    }

    /// The declared tables, and nothing that somebody put in front of them.
    fn path(&self) -> String {
        let schemas: Vec<_> = self.schemas().into_iter().map(escape_identifier).collect();
        format!("set search_path = pg_catalog, {}, pg_temp", schemas.join(", "))
    }

    /// Asks the server what the statement would touch, before it is run for the first time.
    async fn explain(&self, on: &Prepared, writer: &str, key: &str) -> Result<(), BackendError> {
        let sql = format!("explain (verbose, costs off, format json) {}", self.declared.statement);
        let claim = Claim::Made { foreign: false, epoch: "1".into(), holder: "probe-a".into(), sequence: 1 };
        // A payload of no type in particular: nothing is written.
        let values: Vec<_> = canary::values(&self.declared.parameters, key, &claim, String::new(), on.statement.params().len())
            .into_iter()
            .enumerate()
            .map(|(place, value)| if place + 1 == usize::from(self.declared.parameters.payload) { canary::Text(None) } else { value })
            .collect();
        let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| value as &(dyn ToSql + Sync)).collect();
        on.session.run(&format!("begin; set local role {}", escape_identifier(writer))).await?;
        let said = on.session.client.query_one(&sql, &values).await;
        on.session.run("rollback").await?;
        let said = said.map_err(|error| refused(format_args!(".statement: {}", failed(&error))))?;
        let text: Raw = said.try_get(0).map_err(|error| failed(&error))?;
        let plan: serde_json::Value =
            serde_json::from_str(&text.0).map_err(|error| refused(format_args!(".statement: no plan: {error}")))?;
        let declared = |schema: &str, name: &str| self.spec.tables.iter().any(|table| table.schema == schema && table.name == name);
        let mut changes = 0;
        match strange(&plan, &declared, &mut changes) {
            Some(what) => {
                Err(refused(format_args!(".statement: it would touch {what}, which spec.postgres.tables does not list: it is not run")))
            }
            None if changes != 1 => Err(refused(format_args!(".statement: it changes {changes} tables: it is not run"))),
            None => Ok(()),
        }
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
async fn functions(session: &Session, statement: &Statement, schemas: &[&str]) -> Result<(), BackendError> {
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

/// The key's column belongs to the table that is written, and to no other that the statement reads.
async fn has_key(session: &Session, table: &crate::api::PostgresTable, statement: &Statement) -> Result<(), BackendError> {
    let sql = "select exists (select from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace \
               where n.nspname = $1 and c.relname = $2 and a.attname = $3 and a.attnum > 0 and not a.attisdropped)";
    let row = session.client.query_one(sql, &[&table.schema, &table.name, &statement.key]).await.map_err(|error| failed(&error))?;
    if row.get(0) {
        Ok(())
    } else {
        Err(refused(format_args!(".statement: its key {:?} is no column of the table that it writes: it is not run", statement.key)))
    }
}

impl Backend for Conditional {
    /// The fences are in the rows of the application, and are not read: whoever may write them may write anything.
    fn observe(&self) -> BoxFuture<'_, Result<Observation, BackendError>> {
        futures::future::ready(Ok(Observation::default())).boxed()
    }

    fn activate<'a>(&'a self, _: Epoch, _: &'a Holder) -> BoxFuture<'a, Result<Activation, BackendError>> {
        let why = "a conditional update learns of a new owner by its first write, and cannot be activated before it: set spec.contract of the \
                   FencedLock to AfterAcceptance, or use the managed guard";
        futures::future::ready(Err(BackendError::Refused(why.to_owned()))).boxed()
    }

    fn examine<'a>(&'a self, _: &'a Ask) -> BoxFuture<'a, Result<Examination, BackendError>> {
        self.examine_now().boxed()
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
