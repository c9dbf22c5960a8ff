//! Locks that nobody declared, found in what a team already has: workloads that elect a leader, and workloads that rely on running once. Pure:
//! it sees one object at a time (`fact`), keeps little of each, and puts the facts together at the end ([`Inventory::locks`]).
//!
//! `settings` knows the spellings of flags and variables, `programs` the defaults of well-known programs, `workload` reads pods, `rights` reads roles, `elections` puts both together, `single` knows
//! the forms of running once, `timing` judges durations, `scaffold` writes a FencedLock for what was found. What must not come in: judging
//! declared locks, which is [`super::assess`]'s.

mod elections;
pub mod leases;
mod programs;
mod rights;
pub mod scaffold;
mod settings;
mod single;
mod timing;
mod workload;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fmt,
    sync::Arc,
};

use serde_json::Value;

use super::{
    assess::{Id, Place},
    rules::{Finding, Rule, catalogue as rule},
    suppress::Suppression,
};

pub use leases::LeaseSeen;

/// What one object says about locks.
#[derive(Clone, Debug)]
pub enum Fact {
    /// Pods, and how many of them.
    Workload(workload::Workload),
    /// A role that allows to write Leases.
    Rights(rights::Rights),
    /// Who has a role.
    Binding(rights::Binding),
    /// What a ConfigMap may say about an election.
    Config(workload::Config),
    /// A Lease of a cluster.
    Lease(LeaseSeen),
}

/// What an object says about locks, if it says something.
pub(super) fn fact(value: &Value, api_version: &str, id: &Id, place: &Place) -> Option<Fact> {
    match (api_version, &*id.kind) {
        ("rbac.authorization.k8s.io/v1", "Role" | "ClusterRole") => rights::rights(value, id).map(Fact::Rights),
        ("rbac.authorization.k8s.io/v1", "RoleBinding" | "ClusterRoleBinding") => rights::binding(value, id).map(Fact::Binding),
        ("v1", "ConfigMap") => Some(Fact::Config(workload::config(value, id))),
        ("coordination.k8s.io/v1", "Lease") => leases::lease(value, id, place).map(Fact::Lease),
        _ => workload::workload(value, api_version, id, place).map(Fact::Workload),
    }
}

/// How something is a lock.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// A container elects a leader.
    Election {
        /// The container, when it can be told.
        container: String,
        /// The Lease's name, when it can be told.
        lease: Option<String>,
        /// The Lease's namespace.
        namespace: Arc<str>,
        /// What shows it: `flag --leader-elect`.
        shown_by: String,
    },
    /// A Lease in a cluster.
    Lease {
        /// Who holds it, since when, and what it belongs to.
        seen: String,
    },
    /// It relies on running once.
    Single(single::Single),
}

/// A lock that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundLock {
    /// The object that shows it.
    pub object: Id,
    /// Where it was read.
    pub place: Place,
    /// How it is a lock.
    pub form: Form,
    /// The findings that somebody answers for.
    pub suppressions: Vec<Suppression>,
}

impl FoundLock {
    fn rule(&self) -> &'static Rule {
        match self.form {
            Form::Election { .. } => &rule::UNCLASSIFIED_LEADER_ELECTION,
            Form::Lease { .. } => &rule::UNCLASSIFIED_LEASE,
            Form::Single(_) => &rule::UNFENCED_SINGLETON,
        }
    }

    /// The finding that nobody classified it.
    pub fn finding(&self) -> Finding {
        let (about, message) = match &self.form {
            Form::Election { container, lease, shown_by, .. } => {
                let on = lease
                    .as_ref()
                    .map_or_else(|| ", on a Lease whose name cannot be told from here".into(), |name| format!(" on Lease {name:?}"));
                let who = if container.is_empty() { "it".to_owned() } else { format!("container {container:?}") };
                let message = format!(
                    "{who} elects a leader{on} ({shown_by}), and no FencedLock says what two leaders at once would do. Kubernetes' leader election stops \
                     no process: declare the lock (--scaffold writes the manifest) and decide its class"
                );
                (container.clone(), message)
            }
            Form::Lease { seen } => (
                String::new(),
                format!(
                    "{seen}; no FencedLock says what two holders at once would do: declare it (--scaffold writes the manifest) and decide its class"
                ),
            ),
            Form::Single(single) => (single.key().to_owned(), single.message()),
        };
        self.rule().finds(about, message)
    }
}

/// Which found locks are declared.
#[derive(Debug, Default)]
pub struct Declarations {
    leases: BTreeSet<(Arc<str>, String)>,
    /// The Leases of the locks that name a workload.
    workloads: BTreeMap<(String, String, String), BTreeSet<String>>,
}

impl Declarations {
    /// The annotation of a FencedLock that names the workloads which use it: `Deployment/web, other-namespace/Deployment/web`.
    pub const ANNOTATION: &'static str = "fencedlock.dev/workloads";

    /// Notes a declared lock: its Lease, and the workloads that its annotation names.
    pub fn add(&mut self, namespace: &Arc<str>, lease: Option<&str>, workloads: Option<&str>) {
        self.leases.extend(lease.map(|lease| (namespace.clone(), lease.to_owned())));
        for named in workloads.into_iter().flat_map(|text| text.split(',')) {
            let Some((other, kind, name)) = workload_of(named) else { continue };
            let key = (other.unwrap_or(namespace).to_owned(), kind.to_ascii_lowercase(), name.to_owned());
            self.workloads.entry(key).or_default().extend(lease.map(str::to_owned));
        }
    }

    /// The first part of the annotation that names no workload.
    pub fn wrong(workloads: &str) -> Option<&str> {
        workloads.split(',').find(|named| workload_of(named).is_none())
    }

    /// Whether a FencedLock is on this Lease.
    pub fn has_lease(&self, namespace: &Arc<str>, lease: &str) -> bool {
        self.leases.contains(&(namespace.clone(), lease.to_owned()))
    }

    fn has(&self, found: &FoundLock) -> bool {
        let Id { kind, namespace, name } = &found.object;
        let on_lease = match &found.form {
            Form::Election { lease: Some(lease), namespace, .. } => self.has_lease(namespace, lease),
            Form::Lease { .. } => self.has_lease(namespace, name),
            _ => false,
        };
        let named = self.workloads.get(&(namespace.to_string(), kind.to_ascii_lowercase(), name.to_string()));
        // A workload can elect on several Leases, and a lock that names it is about its own.
        let is_about = |leases: &BTreeSet<String>| match &found.form {
            Form::Election { lease: Some(lease), .. } => leases.contains(lease),
            _ => true,
        };
        on_lease || named.is_some_and(is_about)
    }
}

/// Namespace, kind and name of a part of the annotation.
fn workload_of(named: &str) -> Option<(Option<&str>, &str, &str)> {
    let parts: Vec<_> = named.trim().split('/').collect();
    match parts.as_slice() {
        _ if parts.iter().any(|part| part.is_empty()) => None,
        [kind, name] => Some((None, kind, name)),
        [namespace, kind, name] => Some((Some(namespace), kind, name)),
        _ => None,
    }
}

/// Everything that was seen, until it is put together.
#[derive(Debug, Default)]
pub struct Inventory {
    workloads: Vec<workload::Workload>,
    configs: elections::Configs,
    rights: rights::Accounts,
    leases: Vec<LeaseSeen>,
}

/// What the inventory has to say.
#[derive(Debug, Default)]
pub struct Inventoried {
    /// The locks that nobody declared.
    pub unclassified: Vec<FoundLock>,
    /// How many locks were found that are declared.
    pub classified: usize,
    /// What is wrong with elections and suppressions, declared or not: the object, its place, the findings that somebody answers for.
    pub findings: Vec<(Id, Place, Vec<Suppression>, Finding)>,
}

impl Inventory {
    /// Takes a fact.
    pub fn add(&mut self, fact: Fact) {
        match fact {
            Fact::Workload(workload) => self.workloads.push(workload),
            Fact::Rights(rights) => self.rights.add_rights(rights),
            Fact::Binding(binding) => self.rights.add_binding(binding),
            Fact::Config(config) => self.configs.add(config),
            Fact::Lease(lease) => self.leases.push(lease),
        }
    }

    /// Puts the facts together.
    pub fn locks(self, declared: &Declarations) -> Inventoried {
        let mut result = Inventoried::default();
        let rights = self.rights.resolve();
        for workload in self.workloads {
            let (elections, singles) = elections::of(&workload, &self.configs, &rights);
            for (found, findings) in elections {
                let about = |finding| (found.object.clone(), found.place.clone(), found.suppressions.clone(), finding);
                result.findings.extend(findings.into_iter().map(about));
                result.sort(found, declared);
            }
            for found in singles {
                result.sort(found, declared);
            }
            result
                .findings
                .extend(workload.wrong.into_iter().map(|finding| (workload.id.clone(), workload.place.clone(), Vec::new(), finding)));
        }
        let elections = result.unclassified.iter().filter_map(|found| match &found.form {
            Form::Election { lease: Some(name), namespace, .. } => Some((namespace.clone(), name.clone())),
            _ => None,
        });
        let elected: HashSet<(Arc<str>, String)> = elections.collect();
        for mut lease in self.leases {
            let id = lease.id().clone();
            let wrong = std::mem::take(&mut lease.wrong).into_iter();
            result.findings.extend(wrong.map(|finding| (id.clone(), lease.place.clone(), Vec::new(), finding)));
            // A Lease among manifests whose election was found already.
            if !elected.contains(&(id.namespace, id.name.to_string())) {
                result.sort(lease.found(), declared);
            }
        }
        result
    }
}

impl Inventoried {
    fn sort(&mut self, found: FoundLock, declared: &Declarations) {
        if declared.has(&found) {
            self.classified += 1;
        } else {
            self.unclassified.push(found);
        }
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Election { .. } => "leader election",
            Self::Lease { .. } => "Lease",
            Self::Single(single) => single.name(),
        })
    }
}
