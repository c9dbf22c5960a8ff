//! The application's own conditional update, proven as it is written on a row that is reserved for it (design: boundaries.md section 3). The
//! operator installs nothing and activates nothing: the contract is `AfterAcceptance`.
//!
//! `statement` is what the text says, `text` what is wrong with it before anybody has a database, `table` what the catalogue says, `canary` what
//! is tried.

use std::{collections::BTreeSet, fmt};

use futures::{FutureExt, future::BoxFuture};
use postgres_protocol::escape::escape_identifier;

mod canary;
mod copy;
mod decides;
mod paths;
mod statement;
mod table;
pub(crate) mod text;
mod touch;

use canary::{Prepared, RowCanary};
use statement::Statement;

use super::{
    Access, Target, Which, audit,
    connect::{Session, failed},
    guard,
    names::{Names, Template},
    others, server,
};
use crate::{
    api::{ConditionalUpdate, Contract, GuardMode, LimitName, PostgresBoundary, WritesPerEpoch},
    boundary::{
        Activation, Ask, Backend, BackendError, Observation, Owner,
        proof::{Answers, Bypass, ClaimForm, Examination, Judges, NamedLimit, Profile, limit_detail, run},
    },
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
            judges: Judges::ItsStatement,
        }
    }

    async fn examine_now(&self) -> Result<Examination, BackendError> {
        let statement =
            statement::parse(&self.declared, &self.spec.tables, self.writes).map_err(|why| refused(format_args!(".statement: {why}")))?;
        if self.writes == WritesPerEpoch::Sequenced {
            return Err(BackendError::Refused(
                "spec.writesPerEpoch: a conditional update with a sequence cannot be tried by this version: Once or Many can".into(),
            ));
        }
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
                "role {role:?} may itself update {:?}, by any statement and to any epoch: {}; accept it, or use the managed guard",
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
            notes: vec!["that the application takes no returned row for a refusal cannot be seen from here".to_owned()],
            others: others::look(&session, &self.names).await?,
            unfinished: None,
        };
        match self.probe(&target, &session, &installed, &statement, &column, writer).await {
            Ok((answers, tried)) => {
                found.answers = Some(answers);
                found.notes.push(format!("tried on {tried}, as role {writer:?} (by SET ROLE, not by a login)"));
            }
            Err(error) => found.unfinished = Some(error.to_string()),
        }
        // What passed on the one row need not hold for the others.
        let trigger = table::meddling(&session, table, &self.declared).await?;
        let undecided = statement.undecided.as_ref().map(|why| refused(format_args!(".statement {why}")).to_string());
        found.unfinished = found.unfinished.or(trigger).or(undecided);
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
        target: &Target,
        session: &Session,
        installed: &guard::Installed,
        statement: &Statement,
        column: &table::Column,
        writer: &str,
    ) -> Result<(Answers, String), BackendError> {
        let Some(key) = self.declared.canary_key.clone() else {
            let copy = copy::make(session, &self.names, &self.spec, installed, statement, column, writer).await?;
            let tried = self.try_row(target, session, statement, column, (&copy.row, writer)).await;
            let answers = copy.drop(session).await.and(tried)?;
            return Ok((answers, "a copy of the table, made for it and dropped".to_owned()));
        };
        let tables: Vec<_> = self.spec.tables.iter().map(|table| (table.schema.clone(), table.name.clone())).collect();
        let row = Row { tables, partitions: table::partitions(session, installed).await?, table: statement.table, key };
        let answers = self.try_row(target, session, statement, column, (&row, writer)).await?;
        Ok((answers, format!("the row of key {:?}", row.key)))
    }

    async fn try_row(
        &self,
        target: &Target,
        session: &Session,
        statement: &Statement,
        column: &table::Column,
        (row, writer): (&Row, &str),
    ) -> Result<Answers, BackendError> {
        touch::functions(session, statement, &row.schemas()).await?;
        touch::has_key(session, row, statement).await?;
        touch::names(session, row, statement).await?;
        let (writing, open) = futures::try_join!(target.connect(), target.connect())?;
        let path = row.path();
        let prepare = |session| Prepared::new(session, &self.declared.statement, &path);
        let (writing, open) =
            futures::try_join!(prepare(writing), prepare(open)).map_err(|error| refused(format_args!(".statement: {error}")))?;
        touch::explain(&writing, &self.declared, row, writer).await?;
        let epoch = &writing.statement.params()[usize::from(self.declared.parameters.epoch) - 1];
        let epoch = session.client.query_one("select format_type($1, null)", &[&epoch.oid()]).await.map_err(|error| failed(&error))?;
        let wrong = table::wrong_types(column, epoch.get(0));
        let mut canary = RowCanary::new(statement, &self.declared, row, column, writer, session, (writing, open));
        let run_id = run::id();
        let mut answers = run::run(&mut canary, &self.profile(), &run_id).await;
        answers.name_failures(|probe, failure| table::named(statement, self.writes, probe, failure));
        answers.extend(wrong);
        Ok(answers)
    }
}

/// The row that is tried, and the tables that the statement may touch with it.
#[derive(Debug)]
struct Row {
    /// Schema and name of each declared table, or of its copy.
    tables: Vec<(String, String)>,
    /// Partitions of the declared tables, which a plan names in their place.
    partitions: Vec<(String, String)>,
    /// The place of the table that is written.
    table: usize,
    key: String,
}

impl Row {
    /// The table, as it is written in SQL.
    fn quoted(&self) -> String {
        let (schema, name) = &self.tables[self.table];
        format!("{}.{}", escape_identifier(schema), escape_identifier(name))
    }

    fn schemas(&self) -> Vec<String> {
        let schemas: BTreeSet<&String> = self.tables.iter().map(|(schema, _)| schema).collect();
        schemas.into_iter().cloned().collect()
    }

    /// These tables, and nothing that somebody put in front of them.
    fn path(&self) -> String {
        let schemas: Vec<_> = self.schemas().iter().map(|schema| escape_identifier(schema)).collect();
        format!("set search_path = pg_catalog, {}, pg_temp", schemas.join(", "))
    }
}

impl Backend for Conditional {
    /// The fences are in the rows of the application, and are not read: whoever may write them may write anything.
    fn observe(&self) -> BoxFuture<'_, Result<Observation, BackendError>> {
        futures::future::ready(Ok(Observation::default())).boxed()
    }

    fn activate<'a>(&'a self, _: &'a Owner) -> BoxFuture<'a, Result<Activation, BackendError>> {
        let why = "a conditional update learns of a new owner by its first write, and cannot be activated before it: set spec.contract of the \
                   FencedLock to AfterAcceptance, or use the managed guard";
        futures::future::ready(Err(BackendError::Refused(why.to_owned()))).boxed()
    }

    fn examine<'a>(&'a self, _: &'a Ask) -> BoxFuture<'a, Result<Examination, BackendError>> {
        self.examine_now().boxed()
    }
}
