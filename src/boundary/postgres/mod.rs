//! Tables of a PostgreSQL database (design: boundaries.md section 3). Everything that knows PostgreSQL is in this folder.
//!
//! Start with [`Postgres`]. `guard` is what is installed, `install` puts it there from the templates beside it; `activate` moves the fence; `canary` is what a
//! proof writes to; `audit` looks for ways around, `server` for what may be forgotten. `conditional` is the application's own statement,
//! where nothing is installed.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures::{FutureExt, future::BoxFuture};

mod activate;
mod audit;
mod canary;
pub(crate) mod conditional;
mod connect;
mod guard;
mod install;
mod names;
mod others;
mod probes;
mod server;

pub use conditional::Conditional;
pub use connect::Access;
use connect::Target;
pub(crate) use connect::{Session, failed};
use names::{Names, Template};

use super::{
    Activation, Ask, Backend, BackendError, Observation, Owner,
    proof::{ClaimForm, Examination, Judges, Profile},
};
use crate::{
    api::{Contract, GuardMode, PostgresBoundary, ShortDuration, WritesPerEpoch},
    epoch::{Epoch, Holder},
};

/// How long an activation waits for an old owner's open transaction when nothing else is declared.
pub const DEFAULT_PATIENCE: Duration = Duration::from_secs(10);

/// What the operator remembers of activations that are blocked: since when, by the fence and the epoch.
pub type Patience = Arc<Mutex<HashMap<(String, Epoch), Instant>>>;

/// A boundary whose guard the operator installs.
#[derive(Clone)]
pub struct Postgres {
    access: Access,
    names: Names,
    spec: PostgresBoundary,
    mode: GuardMode,
    declaration: guard::Declaration,
    patience: Patience,
    defects: names::Defects,
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").field("boundary", &self.names.boundary).finish_non_exhaustive()
    }
}

/// Which boundary of which lock it is.
#[derive(Clone, Copy, Debug)]
pub struct Which<'a> {
    /// The namespace of both.
    pub namespace: &'a str,
    /// The WriteBoundary.
    pub boundary: &'a str,
    /// The FencedLock.
    pub lock: &'a str,
    /// The WriteBoundary's uid.
    pub uid: &'a str,
    /// Its generation.
    pub generation: i64,
}

impl Postgres {
    /// A boundary, as it is declared.
    pub fn new(access: Access, which: Which<'_>, spec: PostgresBoundary, mode: GuardMode, patience: Patience) -> Self {
        let names = Names::new(which.namespace, which.boundary, which.lock);
        let declaration = guard::Declaration { uid: which.uid.to_owned(), generation: which.generation };
        Self { access, names, spec, mode, declaration, patience, defects: Vec::new() }
    }

    /// For tests: a guard in which one text of the templates is replaced by another, so that a proof has something to find.
    #[must_use]
    pub fn with_defect(mut self, right: &str, wrong: &str) -> Self {
        self.defects.push((right.to_owned(), wrong.to_owned()));
        self
    }

    /// What a managed guard is proven for.
    const PROFILE: Profile = Profile {
        contract: Contract::AfterActivation,
        writes: WritesPerEpoch::Many,
        claim: ClaimForm::Text,
        names_holder: true,
        judges: Judges::Everything,
        stays_on_connection: true,
    };

    fn patience(&self) -> Duration {
        self.spec.patience.map_or(DEFAULT_PATIENCE, ShortDuration::get)
    }

    async fn template(&self, session: &Session) -> Result<Template, BackendError> {
        let operator = session.client.query_one("select session_user::text", &[]).await.map_err(|error| connect::failed(&error))?;
        Ok(Template { names: self.names.clone(), mode: self.mode, operator: operator.get(0), defects: self.defects.clone() })
    }

    async fn install(&self, session: &mut Session, template: &Template) -> Result<(), BackendError> {
        let installed = install::install(session, template, &self.spec.tables, &self.declaration, &self.spec.writer_roles).await;
        installed.map_err(|error| match error {
            BackendError::Refused(why) => BackendError::Refused(format!(
                "the guard cannot be installed: {why}; give the operator's role what docs/postgres.md lists, or apply what `fencedlock guard print` \
                 prints"
            )),
            other => other,
        })
    }

    async fn activate_now(&self, epoch: Epoch, holder: Option<&Holder>) -> Result<Activation, BackendError> {
        let mut session = self.access.target().await?.connect().await?;
        if guard::record(&session.client, &self.names).await?.is_none() {
            let template = self.template(&session).await?;
            self.install(&mut session, &template).await?;
        }
        let key = (self.names.plain("fence"), epoch);
        let locked = || self.patience.lock().unwrap_or_else(PoisonError::into_inner);
        let since = *locked().entry(key.clone()).or_insert_with(Instant::now);
        let answer = activate::activate(&mut session, &self.names, epoch, holder, self.patience(), since).await;
        if !matches!(answer, Ok(Activation::Blocked(_))) {
            locked().remove(&key);
        }
        answer
    }

    async fn observe_now(&self) -> Result<Observation, BackendError> {
        let session = self.access.target().await?.connect().await?;
        let record = guard::record(&session.client, &self.names).await?;
        Ok(Observation { trusted: record.is_some(), fence: record.and_then(|record| record.fence(&self.names)) })
    }

    async fn examine_now(&self, ask: &Ask) -> Result<Examination, BackendError> {
        let target = self.access.target().await?;
        let session = target.connect().await?;
        // Replicas take turns: there is one canary.
        let turn = format!("set lock_timeout = '10s'; select pg_advisory_lock(7109, {}); set lock_timeout = '2s'", self.names.key());
        session.run(&turn).await?;
        let template = self.template(&session).await?;
        let installed = guard::read(&session.client, &template, &self.spec.tables).await?;
        installed.is_not_later_than(&self.declaration)?;
        let before = installed.differences(&template, self.declaration.generation);
        let altered = self.told_altered(ask, &installed, &before);
        let mut found = Examination {
            profile: Self::PROFILE,
            server: String::new(),
            guard: installed.hash(&template).unwrap_or_default(),
            guard_altered: altered,
            shared: None,
            answers: None,
            bypasses: Vec::new(),
            not_durable: None,
            limits: Vec::new(),
            fence: installed.fence(&self.names),
            refused: None,
            last_refused: None,
            notes: Vec::new(),
            others: Vec::new(),
            unfinished: None,
        };
        match self.look_and_try(&target, session, &template, installed, before.is_incomplete, &mut found).await {
            // What was found so far counts, whatever became of the rest.
            Err(error) if found.guard_altered.is_some() || found.shared.is_some() || !found.bypasses.is_empty() => {
                found.unfinished = Some(error.to_string());
                Ok(found)
            }
            Err(error) => Err(error),
            Ok(()) => Ok(found),
        }
    }

    /// What was installed and does not stand any more, as long as it has to be told.
    fn told_altered(&self, ask: &Ask, installed: &guard::Installed, before: &guard::Differences) -> Option<String> {
        let is_gone = ask.is_known && installed.record.is_none();
        let gone = is_gone.then(|| format!("the fence of {} is gone from this database, and its guard with it", self.names.boundary));
        let first = gone.or_else(|| before.altered.first().cloned()).filter(|_| !ask.repair)?;
        let more = crate::audit::boundary::more(before.altered.len().saturating_sub(1));
        Some(format!("{first}{more}: the guard that was installed does not stand any more; it is installed again"))
    }

    /// Everything that may fail half way; what was found by then is in `found`.
    async fn look_and_try(
        &self,
        target: &Target,
        mut session: Session,
        template: &Template,
        mut installed: guard::Installed,
        is_incomplete: bool,
        found: &mut Examination,
    ) -> Result<(), BackendError> {
        // Before anything is installed: a partition that came without a trigger was open until now.
        found.bypasses = self.audit(&session, template, &installed).await?;
        found.shared = install::shared(&session.client, template, &installed.tables).await?;
        found.others = others::look(&session, &self.names).await?;
        if is_incomplete && found.guard_altered.is_none() && found.shared.is_none() {
            self.install(&mut session, template).await?;
            installed = guard::read(&session.client, template, &self.spec.tables).await?;
        }
        let server = server::look(&session, &installed).await?;
        (found.server, found.not_durable, found.limits, found.notes) = (server.identity, server.not_durable, server.limits, server.notes);
        found.guard = installed.hash(template).unwrap_or_default();
        found.fence = installed.fence(&self.names);
        found.refused = installed.record.as_ref().and_then(|record| u64::try_from(record.refused).ok());
        if self.mode == GuardMode::Observe {
            found.last_refused = last_seen(&session, template).await?;
        } else if found.guard_altered.is_none() && found.shared.is_none() {
            found.answers = Some(self.probe(target, session, template, &installed).await?);
        }
        Ok(())
    }

    async fn audit(
        &self,
        session: &Session,
        template: &Template,
        installed: &guard::Installed,
    ) -> Result<Vec<super::proof::Bypass>, BackendError> {
        let found = audit::look(session, template, &self.spec, installed, None).await?;
        let exempt: BTreeSet<&str> = self.spec.exempt_roles.iter().map(|exempt| exempt.role.as_str()).collect();
        Ok(audit::findings(&found, &exempt))
    }

    async fn probe(
        &self,
        target: &Target,
        session: Session,
        template: &Template,
        installed: &guard::Installed,
    ) -> Result<super::proof::Answers, BackendError> {
        let writer = self.spec.writer_roles.first().map(String::as_str);
        let on_tables = probes::on_tables(&session, template, installed, &self.spec.writer_roles).await?;
        let (writing, open) = futures::try_join!(target.connect(), target.connect())?;
        let mut canary = canary::PostgresCanary::new(template, writer, session, writing, open);
        let run_id = super::proof::run::id();
        let mut answers = super::proof::run::run(&mut canary, &Self::PROFILE, &run_id).await;
        answers.extend(on_tables);
        if writer.is_none() {
            let why = "spec.postgres.writerRoles is empty: nothing can be tried as a role that applications write with";
            answers.add(super::proof::Probe::CurrentAccepted, super::proof::Outcome::Inconclusive(why.to_owned()));
        }
        Ok(answers)
    }
}

/// Takes a guard away for good: everybody may write from then on. Returns the tables that are open now.
///
/// # Errors
/// When the database cannot be reached or refuses; then nothing was changed.
pub async fn remove(access: &Access, namespace: &str, boundary: &str) -> Result<Vec<String>, BackendError> {
    let mut session = access.target().await?.connect().await?;
    install::remove(&mut session, &Names::new(namespace, boundary, "")).await
}

/// The name of the trigger by which the guard of a boundary is known on its tables.
pub fn trigger(namespace: &str, boundary: &str, lock: &str) -> String {
    Names::new(namespace, boundary, lock).trigger()
}

/// The script that installs the guard by hand, for an operator's role that may not. Applied again, it changes nothing.
pub fn script(which: Which<'_>, spec: &PostgresBoundary, mode: GuardMode, operator: &str) -> String {
    let names = Names::new(which.namespace, which.boundary, which.lock);
    let template = Template { names, mode, operator: operator.to_owned(), defects: Vec::new() };
    install::script(&template, &spec.tables, &spec.writer_roles)
}

/// Who would have been refused last, in words.
async fn last_seen(session: &Session, template: &Template) -> Result<Option<String>, BackendError> {
    let sql = format!("select role, application, claim from {} order by at desc limit 1", template.names.object("seen"));
    let row = session.client.query_opt(&sql, &[]).await.map_err(|error| connect::failed(&error))?;
    Ok(row.map(|row| {
        let (role, application, claim): (String, String, Option<String>) = (row.get(0), row.get(1), row.get(2));
        let application = if application.is_empty() { String::new() } else { format!(" ({application})") };
        let claim = claim.map_or_else(|| "no claim".to_owned(), |claim| format!("claim {claim}"));
        format!("role {role}{application}, {claim}")
    }))
}

impl Backend for Postgres {
    fn observe(&self) -> BoxFuture<'_, Result<Observation, BackendError>> {
        self.observe_now().boxed()
    }

    fn activate<'a>(&'a self, owner: &'a Owner) -> BoxFuture<'a, Result<Activation, BackendError>> {
        self.activate_now(owner.epoch, owner.holder.as_ref()).boxed()
    }

    fn examine<'a>(&'a self, ask: &'a Ask) -> BoxFuture<'a, Result<Examination, BackendError>> {
        self.examine_now(ask).boxed()
    }
}
