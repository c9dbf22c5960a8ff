//! Puts a workload, the ConfigMaps that it reads and the rights of its account together: which of its containers elect a leader.
//!
//! Start with [`of`]. A flag that switches an election off is believed; a right to write Leases alone shows one only when no flag says otherwise.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use super::{
    Form, FoundLock, programs,
    rights::{MayWrite, Resolved},
    settings::{Setting, What, truth},
    timing,
    workload::{Config, Container, Workload},
};
use crate::audit::rules::{Finding, catalogue as rule};

/// The ConfigMaps.
#[derive(Debug, Default)]
pub(super) struct Configs(HashMap<(Arc<str>, Arc<str>), Config>);

impl Configs {
    pub(super) fn add(&mut self, config: Config) {
        self.0.insert((config.namespace.clone(), config.name.clone()), config);
    }

    fn settings(&self, namespace: &Arc<str>, name: &str) -> &[Setting] {
        self.0.get(&(namespace.clone(), name.into())).map_or(&[], |config| config.settings.as_slice())
    }

    /// What a key holds; empty when the ConfigMap is here and has no such key, `None` when the ConfigMap is not here.
    fn value(&self, namespace: &Arc<str>, (name, key): &(String, String)) -> Option<String> {
        let config = self.0.get(&(namespace.clone(), name.as_str().into()))?;
        Some(config.values.iter().find(|(known, _)| known == key).map(|(_, value)| value.clone()).unwrap_or_default())
    }
}

/// What a container's settings say.
enum Says {
    /// It elects, and what shows it.
    Elects(String),
    /// It does not.
    Not,
    /// There is a switch, and how it stands is not among what was read: where.
    Unknown(String),
    /// Nothing.
    Nothing,
}

/// The elections of a workload with what is wrong with each, and its forms of running once.
pub(super) fn of(workload: &Workload, configs: &Configs, accounts: &Resolved) -> (Vec<(FoundLock, Vec<Finding>)>, Vec<FoundLock>) {
    let found =
        |form| FoundLock { object: workload.id.clone(), place: workload.place.clone(), form, suppressions: workload.suppressions.clone() };
    let singles = workload.singles.iter().map(|single| found(Form::Single(*single))).collect();
    let read: Vec<(&Container, Vec<Cow<'_, Setting>>)> =
        workload.containers.iter().map(|container| (container, settings(workload, container, configs))).collect();
    let said: Vec<_> = read.iter().map(|(container, settings)| says(container, settings)).collect();
    let may = may_write(workload, accounts);
    let none = MayWrite::default();
    let mut elections = Vec::new();
    for ((container, settings), says) in read.iter().zip(&said) {
        let shown_by = match says {
            Says::Elects(place) => place.clone(),
            // Who was given the right to write Leases can be switched to it.
            Says::Unknown(place) if may.is_some() => {
                format!("ServiceAccount {} may update Leases, and the value of {place} is not known here", workload.account)
            }
            Says::Unknown(_) | Says::Not | Says::Nothing => continue,
        };
        let form = election(workload, container, settings, may.unwrap_or(&none), shown_by);
        elections.push((found(form), wrong(container, settings)));
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
fn settings<'a>(workload: &Workload, container: &'a Container, configs: &'a Configs) -> Vec<Cow<'a, Setting>> {
    let namespace = &workload.id.namespace;
    let files = container.configs.iter().flat_map(|name| configs.settings(namespace, name)).map(Cow::Borrowed);
    let own = container.settings.iter().map(|setting| {
        let referred = || configs.value(namespace, setting.reference.as_ref().filter(|_| setting.value.is_none())?);
        referred().map_or(Cow::Borrowed(setting), |value| Cow::Owned(Setting { value: Some(value), ..setting.clone() }))
    });
    files.chain(own).collect()
}

fn says(container: &Container, settings: &[Cow<'_, Setting>]) -> Says {
    let switch = settings.iter().rev().find(|setting| matches!(setting.what, What::Switch | What::Disable));
    if let Some(switch) = switch {
        let Some(value) = &switch.value else {
            return Says::Unknown(switch.place.clone());
        };
        // A key that is not there sets nothing, and most programs take that for no.
        let is_unset = value.is_empty() && switch.reference.is_some();
        let value = if is_unset { (switch.what == What::Switch).then_some(false) } else { truth(value) };
        match value.map(|value| value == (switch.what == What::Switch)) {
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
    let is_named = |setting: &&Cow<'_, Setting>| setting.certain && !matches!(setting.what, What::Identity | What::Other);
    if let Some(named) = settings.iter().find(is_named) {
        return Says::Elects(named.place.clone());
    }
    match program.map(|program| program.default) {
        Some(programs::Default::Elects) => Says::Elects("this program does so unless it is told not to".into()),
        _ => Says::Nothing,
    }
}

/// What a workload's account may write. Of a workload that does not say in which namespace it is, the account's name decides.
fn may_write<'a>(workload: &Workload, accounts: &'a Resolved) -> Option<&'a MayWrite> {
    if !workload.stays {
        return None;
    }
    let own = accounts.of.get(&(workload.id.namespace.clone(), workload.account.clone()));
    let is_default = &*workload.account == "default";
    own.or_else(|| {
        let of_name = || accounts.of.get(accounts.by_name.get(&workload.account)?);
        (!workload.is_placed && !is_default).then(of_name).flatten()
    })
}

/// The container that is meant when only the account's rights show an election: the first that is no known helper.
fn main<'a, 'b>(read: &'a [(&'b Container, Vec<Cow<'b, Setting>>)]) -> Option<&'a (&'b Container, Vec<Cow<'b, Setting>>)> {
    const HELPERS: &[&str] =
        &["kube-rbac-proxy", "oauth2-proxy", "envoy", "livenessprobe", "csi-node-driver-registrar", "configmap-reload"];
    read.iter().find(|(container, _)| !container.is_init && !HELPERS.contains(&container.program()))
}

fn election(workload: &Workload, container: &Container, settings: &[Cow<'_, Setting>], may: &MayWrite, shown_by: String) -> Form {
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
fn wrong(container: &Container, settings: &[Cow<'_, Setting>]) -> Vec<Finding> {
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::jiff::{SignedDuration, Timestamp};
    use serde_json::{Value, json};

    use crate::audit::{
        assess::{
            Place,
            judge::{Assessment, Look, Ways},
            read,
        },
        inventory::Form,
    };

    fn rules(container: &Value, more: &[Value]) -> Vec<&'static str> {
        judged(container, false, more).findings.iter().map(|found| found.finding.rule.id).collect()
    }

    /// What shows the elections of a Deployment, whose account may write Leases or not.
    fn elections(container: &Value, may: bool, more: &[Value]) -> Vec<String> {
        let found = judged(container, may, more).unclassified.into_iter();
        found
            .filter_map(|lock| match lock.form {
                Form::Election { shown_by, .. } => Some(shown_by),
                _ => None,
            })
            .collect()
    }

    fn judged(container: &Value, may: bool, more: &[Value]) -> Assessment {
        let meta = json!({"name": "web", "namespace": "shop"});
        let mut objects = vec![json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta,
            "spec": {"template": {"spec": {"serviceAccountName": "web", "containers": [container]}}}})];
        if may {
            let rule = json!({"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["update"]});
            objects.push(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": meta, "rules": [rule]}));
            objects.push(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": meta,
                "roleRef": {"kind": "Role", "name": "web"}, "subjects": [{"kind": "ServiceAccount", "name": "web"}]}));
        }
        let mut look = Look::default();
        for object in objects.iter().chain(more) {
            if let Some(kept) = read::object(object, &Place::default(), &"default".into()) {
                look.add(kept);
            }
        }
        let ways =
            Ways { now: Timestamp::UNIX_EPOCH, soon: SignedDuration::ZERO, is_cluster: false, baseline: None, severities: BTreeMap::new() };
        look.judge(&ways)
    }

    /// Durations that a ConfigMap holds are read, and sums that no clock could hold are no obstacle.
    #[test]
    fn the_timing_of_an_election_is_read_wherever_it_stands() {
        let refers = |name: &str, key: &str| json!({"name": name, "valueFrom": {"configMapKeyRef": {"name": "web", "key": key}}});
        let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web", "namespace": "shop"},
            "data": {"lasts": "10s", "gives-up": "30s"}});
        let variables = json!({"name": "m", "image": "x", "args": ["--leader-elect"],
            "env": [refers("LEADER_ELECTION_LEASE_DURATION", "lasts"), refers("LEADER_ELECTION_RENEW_DEADLINE", "gives-up")]});
        let flags = json!({"name": "m", "image": "x", "env": [refers("A", "lasts"), refers("B", "gives-up")],
            "args": ["--leader-elect", "--leader-elect-lease-duration=$(A)", "--leader-elect-renew-deadline=$(B)"]});
        let endless = "18446744073709549568";
        let enormous = json!({"name": "m", "image": "x", "args": ["--leader-elect", format!("--leader-elect-renew-deadline={endless}"),
            format!("--leader-elect-retry-period={endless}")]});
        for container in [variables, flags, enormous] {
            let found = rules(&container, std::slice::from_ref(&config));
            assert!(found.contains(&"lease-timing-without-margin"), "{container}: {found:?}");
        }
    }

    /// A lock that names a workload is about the Lease that it declares, and about no other one that the workload takes.
    #[test]
    fn a_lock_that_names_a_workload_declares_its_own_lease() {
        let container = json!({"name": "m", "image": "x", "args": ["--leader-elect", "--leader-election-id=web"]});
        let lock = |lease: &str| {
            json!({"apiVersion": "fencedlock.dev/v1alpha1", "kind": "FencedLock",
                "metadata": {"name": "web", "annotations": {"fencedlock.dev/workloads": "shop/Deployment/web"}},
                "spec": {"class": "EfficiencyOnly", "coordinator": {"lease": {"name": lease}}}})
        };
        assert_eq!(elections(&container, false, &[lock("web")]), [""; 0]);
        assert_eq!(elections(&container, false, &[lock("other")]), ["flag --leader-elect"]);
        let unknown = json!({"name": "m", "image": "x", "args": ["--leader-elect"]});
        assert_eq!(elections(&unknown, false, &[lock("other")]), [""; 0]);
    }

    #[test]
    fn a_switch_whose_value_is_not_here_is_no_proof_that_nobody_elects() {
        let given = |env: Value, args: Value| json!({"name": "m", "image": "x", "env": env, "args": args});
        let refers = json!([{"name": "LEADER_ELECT", "valueFrom": {"configMapKeyRef": {"name": "web", "key": "LEADER_ELECT"}}}]);
        let by_reference = given(refers, json!([]));
        assert_eq!(elections(&by_reference, false, &[]), [""; 0]);
        assert!(elections(&by_reference, true, &[])[0].contains("variable LEADER_ELECT is not known here"));
        let says = |value: &str| {
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web", "namespace": "shop"},
            "data": {"LEADER_ELECT": value}})
        };
        assert_eq!(elections(&by_reference, false, &[says("true")]), ["variable LEADER_ELECT"]);
        assert_eq!(elections(&by_reference, true, &[says("false")]), [""; 0]);
        let mut without = says("true");
        without["data"] = json!({});
        assert_eq!(elections(&by_reference, true, &[without]), [""; 0], "a key that is not there is off");
        // The kubelet puts the container's variables into its arguments.
        let by_variable = |value: &str| given(json!([{"name": "HA", "value": value}]), json!(["--leader-elect=$(HA)"]));
        assert_eq!(elections(&by_variable("true"), false, &[]), ["flag --leader-elect"]);
        assert_eq!(elections(&by_variable("false"), true, &[]), [""; 0]);
        let options = given(json!([{"name": "JAVA_OPTS", "value": "-Xmx1g -Dleader.election.enabled=true"}]), json!([]));
        assert_eq!(elections(&options, false, &[]), ["flag -Dleader.election.enabled"]);
    }
}
