//! Reads pods out of whatever makes them, and keeps what tells of an election.
//!
//! Start with [`workload`].

use std::{borrow::Cow, collections::BTreeSet, sync::Arc};

use serde_json::Value;

use super::{
    settings::{self, Setting},
    single::{self, Single},
};
use crate::audit::{
    assess::{Id, Place, read::annotations},
    rules::Finding,
    suppress::{self, Suppression},
};

/// Something that makes pods, or a volume claim.
#[derive(Clone, Debug)]
pub struct Workload {
    pub(super) id: Id,
    pub(super) place: Place,
    pub(super) account: Arc<str>,
    pub(super) containers: Vec<Container>,
    pub(super) singles: Vec<Single>,
    pub(super) suppressions: Vec<Suppression>,
    /// What is wrong with those.
    pub(super) wrong: Vec<Finding>,
    /// Whether its pods stay: a Job ends.
    pub(super) stays: bool,
    /// Whether it names its namespace. Manifests often leave that to who applies them, and name it where a role is bound.
    pub(super) is_placed: bool,
}

/// A container, as far as it may elect.
#[derive(Clone, Debug)]
pub(super) struct Container {
    pub(super) name: String,
    /// The image, without its tag.
    pub(super) image: String,
    /// Whether it runs before the others and ends.
    pub(super) is_init: bool,
    pub(super) settings: Vec<Setting>,
    /// The ConfigMaps that it reads.
    pub(super) configs: BTreeSet<String>,
}

impl Container {
    /// The image's last part.
    pub(super) fn program(&self) -> &str {
        self.image.rsplit('/').next().unwrap_or_default()
    }
}

/// What a ConfigMap may say about an election.
#[derive(Clone, Debug)]
pub struct Config {
    pub(super) namespace: Arc<str>,
    pub(super) name: Arc<str>,
    pub(super) settings: Vec<Setting>,
    /// Its keys that hold a word, a number or a duration: a variable can refer to one by any name.
    pub(super) values: Vec<(String, String)>,
}

pub(super) fn workload(value: &Value, api_version: &str, id: &Id, place: &Place) -> Option<Workload> {
    let (template, stays) = match (api_version, &*id.kind) {
        // Old versions lie in many repositories, and other controllers' kinds have the same template.
        ("apps/v1" | "apps/v1beta1" | "apps/v1beta2" | "extensions/v1beta1", "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet")
        | ("v1", "ReplicationController")
        | ("apps.openshift.io/v1", "DeploymentConfig")
        | ("argoproj.io/v1alpha1", "Rollout") => ("/spec/template/spec", true),
        ("v1", "Pod") => ("/spec", true),
        ("batch/v1", "Job") => ("/spec/template/spec", false),
        ("batch/v1" | "batch/v1beta1", "CronJob") => ("/spec/jobTemplate/spec/template/spec", false),
        ("v1", "PersistentVolumeClaim") => ("", false),
        _ => return None,
    };
    let pods = value.pointer(template).filter(|_| !template.is_empty());
    let volumes = pods.map(volumes).unwrap_or_default();
    let list = |field: &str| pods.and_then(|pods| pods.get(field)).and_then(Value::as_array).into_iter().flatten();
    let account = pods.and_then(|pods| ["serviceAccountName", "serviceAccount"].iter().find_map(|field| pods.get(*field)?.as_str()));
    let singles = single::of(value, &id.kind);
    let (suppressions, wrong) = suppress::read(annotations(value));
    let lists = [("initContainers", true), ("containers", false)].into_iter();
    let containers: Vec<_> = lists
        .flat_map(|(field, is_init)| list(field).map(move |text| (text, is_init)))
        .map(|(text, is_init)| container(text, is_init, &volumes))
        .collect();
    (!containers.is_empty() || !singles.is_empty()).then(|| Workload {
        id: id.clone(),
        place: place.clone(),
        account: account.unwrap_or("default").into(),
        containers,
        singles,
        suppressions,
        wrong,
        stays,
        is_placed: value.pointer("/metadata/namespace").is_some(),
    })
}

/// Which volume holds which ConfigMap.
fn volumes(pods: &Value) -> Vec<(&str, &str)> {
    let volumes = pods.get("volumes").and_then(Value::as_array).into_iter().flatten();
    let named = volumes.filter_map(|volume| Some((volume.get("name")?.as_str()?, volume)));
    named
        .flat_map(|(name, volume)| {
            let own = volume.pointer("/configMap/name").into_iter();
            let sources = volume.pointer("/projected/sources").and_then(Value::as_array).into_iter().flatten();
            own.chain(sources.filter_map(|source| source.pointer("/configMap/name")))
                .filter_map(move |config| Some((name, config.as_str()?)))
        })
        .collect()
}

fn container(value: &Value, is_init: bool, volumes: &[(&str, &str)]) -> Container {
    let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let list = |field: &str| value.get(field).and_then(Value::as_array).into_iter().flatten();
    let variables: Vec<(&str, &str)> =
        list("env").filter_map(|variable| Some((variable.get("name")?.as_str()?, variable.get("value")?.as_str()?))).collect();
    let arguments: Vec<_> = list("command").chain(list("args")).filter_map(Value::as_str).map(|text| expand(text, &variables)).collect();
    let mut settings = settings::of_arguments(arguments.iter().map(|argument| &**argument));
    let (mut configs, mut references) = (BTreeSet::new(), Vec::new());
    for variable in list("env") {
        let Some(name) = variable.get("name").and_then(Value::as_str) else { continue };
        let given = variable.get("value").map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        // A variable without a value is an empty one.
        let given = given.or_else(|| variable.get("valueFrom").is_none().then(String::new));
        let given = given.map(|text| expand(&text, &variables).into_owned());
        if ["OPTS", "ARGS", "FLAGS", "OPTIONS"].iter().any(|end| name.ends_with(end)) {
            settings.extend(settings::of_arguments(given.iter().flat_map(|text| text.split_whitespace())));
        }
        let reference = |field: &str| Some(variable.pointer("/valueFrom/configMapKeyRef")?.get(field)?.as_str()?.to_owned());
        let setting = settings::of_name(name, given.as_deref().filter(|text| !text.contains('$')), || format!("variable {name}"));
        let reference = reference("name").zip(reference("key"));
        configs.extend(reference.as_ref().map(|(config, _)| config.clone()));
        settings.extend(setting.map(|setting| Setting { reference: reference.clone(), ..setting }));
        references.extend(reference.map(|reference| (name, reference)));
    }
    // "--leader-elect=$(HA)" says what the variable says.
    for setting in settings.iter_mut().filter(|setting| setting.reference.as_ref().is_some_and(|(config, _)| config.is_empty())) {
        let variable = setting.reference.take().map(|(_, variable)| variable);
        setting.reference = references.iter().find(|(name, _)| variable.as_deref() == Some(*name)).map(|(_, reference)| reference.clone());
    }
    configs.extend(list("envFrom").filter_map(|source| source.pointer("/configMapRef/name")?.as_str()).map(str::to_owned));
    let mounted: BTreeSet<_> = list("volumeMounts").filter_map(|mount| mount.get("name")?.as_str()).collect();
    configs.extend(volumes.iter().filter(|(volume, _)| mounted.contains(volume)).map(|(_, config)| (*config).to_owned()));
    let image = text("/image").split('@').next().unwrap_or_default();
    // A colon before a slash belongs to a port.
    let image = image.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')).map_or(image, |(name, _)| name);
    Container { name: text("/name").to_owned(), image: image.to_owned(), is_init, settings, configs }
}

/// The longest text that is made by putting variables in.
const LONGEST: usize = 64 << 10;

/// With the container's own variables in place of `$(NAME)`, once and from left to right: what is put in is not looked at again.
fn expand<'a>(text: &'a str, variables: &[(&str, &str)]) -> Cow<'a, str> {
    let mut rest = text;
    let mut expanded = String::new();
    while let Some((before, after)) = rest.split_once("$(")
        && expanded.len() < LONGEST
    {
        let name = after.split_once(')').map_or(after, |(name, _)| name);
        // The last one of a name counts.
        let value = variables.iter().rev().find(|(known, _)| *known == name).map(|(_, value)| *value);
        expanded.push_str(before);
        if let Some(value) = value {
            expanded.push_str(value);
            rest = &after[name.len() + 1..];
        } else {
            expanded.push_str("$(");
            rest = after;
        }
    }
    if expanded.is_empty() { text.into() } else { (expanded + rest).into() }
}

/// The longest value of a ConfigMap that is kept: a name, a number, a duration.
const LONGEST_VALUE: usize = 63;

/// What a ConfigMap says about an election: in its keys, or in a file that one of them holds.
pub(super) fn config(value: &Value, id: &Id) -> Config {
    let (mut found, mut values) = (Vec::new(), Vec::new());
    for (key, value) in value.get("data").and_then(Value::as_object).into_iter().flatten() {
        let Some(text) = value.as_str() else { continue };
        if text.len() <= LONGEST_VALUE {
            values.push((key.clone(), text.to_owned()));
        }
        let place = || format!("ConfigMap {}, key {key}", id.name);
        found.extend(settings::of_name(key, Some(text), place));
        let lower = text.to_ascii_lowercase();
        if !["leaderelect", "leader-elect", "leader_elect", "leader.elect"].iter().any(|word| lower.contains(word)) {
            continue;
        }
        if let Ok(file @ Value::Object(_)) = serde_saphyr::from_str::<Value>(text) {
            in_file("", &file, &place, &mut found);
        } else {
            // Properties: one key and value on each line.
            let lines = text.lines().filter_map(|line| line.split_once('='));
            found.extend(lines.filter_map(|(name, value)| settings::of_name(name.trim(), Some(value.trim()), place)));
        }
    }
    Config { namespace: id.namespace.clone(), name: id.name.clone(), settings: found, values }
}

/// Keys below each other are read as one name: `leaderElection.resourceName`.
fn in_file(path: &str, value: &Value, place: &impl Fn() -> String, found: &mut Vec<Setting>) {
    for (key, value) in value.as_object().into_iter().flatten() {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        match value {
            Value::Object(_) => in_file(&path, value, place, found),
            Value::String(text) => found.extend(settings::of_name(&path, Some(text), place)),
            Value::Bool(_) | Value::Number(_) => found.extend(settings::of_name(&path, Some(&value.to_string()), place)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A variable that holds two others, and so on: what is put in is not looked at again.
    #[test]
    fn variables_are_put_in_once() {
        let names: Vec<_> = (0..64).map(|number| (format!("A{number}"), format!("$(A{0})$(A{0})", number + 1))).collect();
        let variables: Vec<_> = names.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(expand("x$(A0)y", &variables), "x$(A1)$(A1)y");
        assert_eq!(expand("$(B) $(A63)$(", &variables), "$(B) $(A64)$(A64)$(");
        assert_eq!(expand("plain", &variables), "plain");
        let long = "$(A0)".repeat(LONGEST);
        assert!(expand(&long, &variables).len() < 2 * long.len() + LONGEST);
    }
}
