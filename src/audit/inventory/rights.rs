//! Who may write Leases: what shows an election that a program holds by default, without any flag.
//!
//! Start with [`Accounts`].

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::Value;

use super::leases::NODE_LEASES;
use crate::audit::assess::Id;

/// A role, by whether it is a ClusterRole, its namespace and its name.
type RoleKey = (bool, Arc<str>, Arc<str>);
/// A service account.
pub(super) type Account = (Arc<str>, Arc<str>);

/// A role that allows to write Leases.
#[derive(Clone, Debug)]
pub struct Rights {
    role: RoleKey,
    /// The Leases that it is restricted to, empty for any; `None` when it allows to write none.
    leases: Option<BTreeSet<String>>,
    labels: Labels,
    /// The roles that it is put together of: each set of labels chooses some.
    aggregates: Vec<Labels>,
}

type Labels = BTreeMap<String, String>;

fn labels(value: Option<&Value>) -> Labels {
    let labels = value.and_then(Value::as_object).into_iter().flatten();
    labels.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
}

/// Who has a role.
#[derive(Clone, Debug)]
pub struct Binding {
    role: RoleKey,
    /// The namespace in which it gives the right; `None` for all.
    namespace: Option<Arc<str>>,
    accounts: Vec<Account>,
}

pub(super) fn rights(value: &Value, id: &Id) -> Option<Rights> {
    let mut names = BTreeSet::new();
    let (mut writes, mut any) = (false, false);
    for rule in value.get("rules").and_then(Value::as_array).into_iter().flatten() {
        let has = |field: &str, wanted: &[&str]| texts(rule, field).any(|text| wanted.contains(&text));
        // A right on everything says nothing about elections.
        if !has("apiGroups", &["coordination.k8s.io"])
            || !has("resources", &["leases"])
            || !has("verbs", &["update", "patch", "create", "*"])
        {
            continue;
        }
        // Whoever may only create something cannot renew it.
        let renews = has("verbs", &["update", "patch", "*"]);
        writes |= renews;
        if renews {
            let before = names.len();
            names.extend(texts(rule, "resourceNames").map(str::to_owned));
            any |= names.len() == before;
        }
    }
    if any {
        names.clear();
    }
    let selectors = value.pointer("/aggregationRule/clusterRoleSelectors").and_then(Value::as_array).into_iter().flatten();
    let aggregates: Vec<_> = selectors.map(|selector| labels(selector.get("matchLabels"))).filter(|labels| !labels.is_empty()).collect();
    (writes || !aggregates.is_empty()).then(|| Rights {
        role: role_key(id),
        leases: writes.then_some(names),
        labels: labels(value.pointer("/metadata/labels")),
        aggregates,
    })
}

fn role_key(id: &Id) -> RoleKey {
    let is_cluster = &*id.kind == "ClusterRole";
    (is_cluster, if is_cluster { "".into() } else { id.namespace.clone() }, id.name.clone())
}

fn texts<'a>(rule: &'a Value, field: &str) -> impl Iterator<Item = &'a str> {
    rule.get(field).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

pub(super) fn binding(value: &Value, id: &Id) -> Option<Binding> {
    let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str);
    let namespace = (&*id.kind == "RoleBinding").then(|| id.namespace.clone());
    let is_cluster = text("/roleRef/kind")? == "ClusterRole";
    let role_namespace = if is_cluster { "".into() } else { id.namespace.clone() };
    let subjects = value.get("subjects").and_then(Value::as_array).into_iter().flatten();
    let accounts = subjects.filter_map(|subject| {
        let text = |field: &str| subject.get(field).and_then(Value::as_str);
        let own = || namespace.clone().unwrap_or_else(|| id.namespace.clone());
        (text("kind")? == "ServiceAccount").then(|| Some((text("namespace").map_or_else(own, Arc::from), text("name")?.into())))?
    });
    let binding = Binding { role: (is_cluster, role_namespace, text("/roleRef/name")?.into()), accounts: accounts.collect(), namespace };
    (!binding.accounts.is_empty()).then_some(binding)
}

/// The roles and bindings that were seen.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    roles: BTreeMap<RoleKey, Rights>,
    bindings: Vec<Binding>,
}

/// How many names are kept: one tells the Lease, and two tell that it cannot be told.
const ENOUGH: usize = 2;

/// What an account may write: the namespace, when it is one, and the names, when they are limited; no more than [`ENOUGH`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MayWrite {
    pub(super) namespaces: BTreeSet<Arc<str>>,
    pub(super) names: BTreeSet<String>,
}

/// What every account may write.
#[derive(Debug, Default)]
pub(super) struct Resolved {
    pub(super) of: BTreeMap<Account, MayWrite>,
    /// The first account of each name, whatever its namespace.
    pub(super) by_name: BTreeMap<Arc<str>, Account>,
}

impl Accounts {
    pub(super) fn add_rights(&mut self, rights: Rights) {
        self.roles.insert(rights.role.clone(), rights);
    }

    pub(super) fn add_binding(&mut self, binding: Binding) {
        self.bindings.push(binding);
    }

    /// What a role allows, with what it is put together of.
    fn leases(&self, role: &Rights) -> Option<BTreeSet<String>> {
        let chosen =
            |other: &&Rights| role.aggregates.iter().any(|wanted| wanted.iter().all(|(name, value)| other.labels.get(name) == Some(value)));
        let parts = self.roles.values().filter(|_| !role.aggregates.is_empty()).filter(chosen);
        let mut names = None;
        for leases in role.leases.iter().chain(parts.filter_map(|other| other.leases.as_ref())) {
            if leases.is_empty() {
                return Some(BTreeSet::new());
            }
            let names: &mut BTreeSet<String> = names.get_or_insert_default();
            let room = ENOUGH.saturating_sub(names.len());
            names.extend(leases.iter().filter(|name| !names.contains(*name)).take(room).cloned().collect::<Vec<_>>());
        }
        names
    }

    /// The accounts that may write Leases other than the nodes' heartbeats.
    pub(super) fn resolve(&self) -> Resolved {
        let mut accounts: BTreeMap<Account, MayWrite> = BTreeMap::new();
        // Many bindings give one role.
        let mut known: BTreeMap<&RoleKey, Option<BTreeSet<String>>> = BTreeMap::new();
        for binding in &self.bindings {
            let names = known.entry(&binding.role).or_insert_with(|| self.leases(self.roles.get(&binding.role)?));
            let Some(names) = names else { continue };
            if binding.namespace.as_deref() == Some(NODE_LEASES) {
                continue;
            }
            for account in &binding.accounts {
                let may = accounts.entry(account.clone()).or_default();
                may.namespaces.extend(binding.namespace.clone());
                may.names.extend(names.iter().cloned());
            }
        }
        let mut by_name = BTreeMap::new();
        for account in accounts.keys() {
            by_name.entry(account.1.clone()).or_insert_with(|| account.clone());
        }
        Resolved { of: accounts, by_name }
    }
}
