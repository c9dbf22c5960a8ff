//! Puts a workload, the ConfigMaps that it reads and the rights of its account together: which of its containers elect a leader.
//!
//! Start with [`of`]. A flag that switches an election off is believed; a right to write Leases alone shows one only when no flag says otherwise.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::{
    Form, FoundLock, programs,
    rights::{Account, MayWrite},
    settings::{Setting, What, truth},
    timing,
    workload::{Config, Container, Workload},
};
use crate::audit::rules::{Finding, catalogue as rule};

/// The ConfigMaps that speak of elections.
#[derive(Debug, Default)]
pub(super) struct Configs(HashMap<(Arc<str>, String), Vec<Setting>>);

impl Configs {
    pub(super) fn add(&mut self, config: Config) {
        self.0.insert((config.namespace, config.name.to_string()), config.settings);
    }
}

/// What a container's settings say.
enum Says {
    /// It elects, and what shows it.
    Elects(String),
    /// It does not.
    Not,
    /// Nothing.
    Nothing,
}

/// The elections of a workload with what is wrong with each, and its forms of running once.
pub(super) fn of(
    workload: &Workload,
    configs: &Configs,
    accounts: &BTreeMap<Account, MayWrite>,
) -> (Vec<(FoundLock, Vec<Finding>)>, Vec<FoundLock>) {
    let found =
        |form| FoundLock { object: workload.id.clone(), place: workload.place.clone(), form, suppressions: workload.suppressions.clone() };
    let singles = workload.singles.iter().map(|single| found(Form::Single(*single))).collect();
    let read: Vec<(&Container, Vec<&Setting>)> =
        workload.containers.iter().map(|container| (container, settings(workload, container, configs))).collect();
    let said: Vec<_> = read.iter().map(|(container, settings)| says(container, settings)).collect();
    let may = may_write(workload, accounts);
    let none = MayWrite::default();
    let mut elections = Vec::new();
    for ((container, settings), says) in read.iter().zip(&said) {
        if let Says::Elects(shown_by) = says {
            let form = election(workload, container, settings, may.unwrap_or(&none), shown_by.clone());
            elections.push((found(form), wrong(container, settings)));
        }
    }
    // The account may write Leases, and nothing says that nobody elects: the program does it by default.
    let is_silent = said.iter().all(|says| matches!(says, Says::Nothing));
    if let (Some(may), true, Some(main)) = (may, is_silent, main(&read)) {
        let (container, settings) = main;
        let account = format!("ServiceAccount {} may update Leases", workload.account);
        elections.push((found(election(workload, container, settings, may, account)), wrong(container, settings)));
    }
    (elections, singles)
}

/// Everything that a container reads. What comes later wins.
fn settings<'a>(workload: &Workload, container: &'a Container, configs: &'a Configs) -> Vec<&'a Setting> {
    let files = container.configs.iter().filter_map(|name| configs.0.get(&(workload.id.namespace.clone(), name.clone()))).flatten();
    files.chain(&container.settings).collect()
}

fn says(container: &Container, settings: &[&Setting]) -> Says {
    let switch = settings.iter().rev().find(|setting| matches!(setting.what, What::Switch | What::Disable));
    if let Some(switch) = switch {
        let Some(value) = &switch.value else {
            // What it is set to is not among what was read, and most programs take that for no.
            return Says::Not;
        };
        match truth(value).map(|value| value == (switch.what == What::Switch)) {
            Some(true) => return Says::Elects(switch.place.clone()),
            Some(false) => return Says::Not,
            // "leader-election: name" of a program that takes a name there.
            None => {}
        }
    }
    let program = programs::default_of(&container.image);
    if program.is_some_and(|program| program.default == programs::Default::DoesNot) {
        return Says::Not;
    }
    let is_named = |setting: &&&Setting| setting.certain && !matches!(setting.what, What::Identity | What::Other);
    if let Some(named) = settings.iter().find(is_named) {
        return Says::Elects(named.place.clone());
    }
    match program.map(|program| program.default) {
        Some(programs::Default::Elects) => Says::Elects("this program does so unless it is told not to".into()),
        _ => Says::Nothing,
    }
}

/// What a workload's account may write. Of a workload that does not say in which namespace it is, the account's name decides.
fn may_write<'a>(workload: &Workload, accounts: &'a BTreeMap<Account, MayWrite>) -> Option<&'a MayWrite> {
    if !workload.stays {
        return None;
    }
    let own = accounts.get(&(workload.id.namespace.clone(), workload.account.clone()));
    let is_default = &*workload.account == "default";
    own.or_else(|| {
        let of_name = || accounts.iter().find(|((_, name), _)| *name == workload.account).map(|(_, may)| may);
        (!workload.is_placed && !is_default).then(of_name).flatten()
    })
}

/// The container that is meant when only the account's rights show an election: the first that is no known helper.
fn main<'a, 'b>(read: &'a [(&'b Container, Vec<&'b Setting>)]) -> Option<&'a (&'b Container, Vec<&'b Setting>)> {
    const HELPERS: &[&str] =
        &["kube-rbac-proxy", "oauth2-proxy", "envoy", "livenessprobe", "csi-node-driver-registrar", "configmap-reload"];
    read.iter().find(|(container, _)| !container.is_init && !HELPERS.contains(&container.program()))
}

fn election(workload: &Workload, container: &Container, settings: &[&Setting], may: &MayWrite, shown_by: String) -> Form {
    let last =
        |what: What| settings.iter().rev().find(|s| s.what == what && s.certain).and_then(|s| s.value.clone()).filter(|v| !v.is_empty());
    let only = (may.names.len() == 1).then(|| may.names.first().cloned()).flatten();
    let known = programs::default_of(&container.image).filter(|program| !program.lease.is_empty());
    let name = last(What::Name).or(only).or_else(|| known.map(|program| program.lease.to_owned()));
    let usual = known.filter(|program| !program.namespace.is_empty()).map(|program| program.namespace.to_owned());
    let namespace = last(What::Namespace).or(usual).map(Arc::from);
    Form::Election {
        container: container.name.clone(),
        lease: name,
        namespace: namespace.unwrap_or_else(|| workload.id.namespace.clone()),
        shown_by,
    }
}

/// What is wrong with an election, whoever declared it.
fn wrong(container: &Container, settings: &[&Setting]) -> Vec<Finding> {
    let mut findings = timing::about(&container.name, settings);
    let fixed = settings.iter().rev().find(|setting| setting.what == What::Identity);
    if let Some((fixed, value)) = fixed.and_then(|fixed| Some((fixed, fixed.value.as_deref().filter(|value| !value.is_empty())?))) {
        let message = format!(
            "container {:?} takes part in its election as {value:?} ({}), which is the same for every pod: two processes pass as one holder, and each takes the \
             lock for its own. Use the pod's name: valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}",
            container.name, fixed.place
        );
        findings.push(rule::SHARED_IDENTITY.finds(&container.name, message));
    }
    findings
}
