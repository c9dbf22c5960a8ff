//! Writes a FencedLock for each lock that nobody declared. The class is left to be decided: the API server refuses an empty one, and the audit
//! calls it unclassified, so that nobody decides by accident.
//!
//! Start with [`manifests`].

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    sync::Arc,
};

use serde_json::json;

use super::{Declarations, Form, FoundLock};

/// Manifests for what was found, one document each.
pub fn manifests(found: &[FoundLock]) -> String {
    let mut text = String::new();
    let mut names = BTreeMap::new();
    let mut leases = BTreeSet::new();
    let mut singles = BTreeSet::new();
    for lock in found {
        let (namespace, lease) = match &lock.form {
            Form::Election { lease, namespace, .. } => (namespace.clone(), lease.clone()),
            Form::Lease { .. } => (lock.object.namespace.clone(), Some(lock.object.name.to_string())),
            Form::Single(_) => (lock.object.namespace.clone(), None),
        };
        // Several containers, or a workload and its Lease, are one lock; so are two forms of one object's running once.
        let is_known = match (&lease, &lock.form) {
            (Some(lease), _) => !leases.insert((namespace.clone(), lease.clone())),
            (None, Form::Single(_)) => !singles.insert(&lock.object),
            (None, _) => false,
        };
        if is_known {
            continue;
        }
        let name = unused(&mut names, &namespace, lease.as_deref().unwrap_or(&lock.object.name));
        one(&mut text, lock, &name, &namespace, lease.as_deref());
    }
    text
}

/// The wanted name, with a number behind it when it is taken. The numbers of a name go on where they ended.
fn unused(names: &mut BTreeMap<(Arc<str>, String), u32>, namespace: &Arc<str>, wanted: &str) -> String {
    let first = names.get(&(namespace.clone(), wanted.to_owned())).map_or(1, |last| last + 1);
    let numbered = |number: u32| if number == 1 { wanted.to_owned() } else { format!("{wanted}-{number}") };
    let free = (first..=u32::MAX).find(|number| !names.contains_key(&(namespace.clone(), numbered(*number)))).unwrap_or(first);
    let name = numbered(free);
    names.insert((namespace.clone(), wanted.to_owned()), free);
    names.entry((namespace.clone(), name.clone())).or_insert(1);
    name
}

fn one(text: &mut String, lock: &FoundLock, name: &str, namespace: &str, lease: Option<&str>) {
    let object = &lock.object;
    let mut note = format!("{} {}/{}: {}", object.kind, object.namespace, object.name, lock.form);
    if let Form::Election { container, shown_by, .. } = &lock.form {
        let _ = write!(note, " of container {container}, {shown_by}");
    }
    // A JSON string is a YAML scalar, whatever is in it.
    let quoted = |value: &str| json!(value).to_string();
    let workload = format!("{}/{}/{}", object.namespace, object.kind, object.name);
    let lines = |text: &mut String| -> std::fmt::Result {
        writeln!(text, "---\n# {}", crate::api::conditions::printable(&note))?;
        writeln!(text, "apiVersion: fencedlock.dev/v1alpha1\nkind: FencedLock\nmetadata:")?;
        writeln!(text, "  name: {}\n  namespace: {}", quoted(name), quoted(namespace))?;
        if !matches!(lock.form, Form::Lease { .. }) {
            writeln!(text, "  annotations:\n    {}: {}", Declarations::ANNOTATION, quoted(&workload))?;
        }
        writeln!(text, "spec:")?;
        writeln!(
            text,
            "  # Decide: CorrectnessCritical when two holders at once would corrupt data, EfficiencyOnly when they would only waste work."
        )?;
        writeln!(text, "  class: \"\"")?;
        writeln!(text, "  # What would happen, in a sentence for whoever is on call.\n  # purpose:")?;
        match (lease, &lock.form) {
            (Some(lease), _) => writeln!(text, "  coordinator:\n    lease:\n      name: {}", quoted(lease)),
            (None, Form::Single(single)) => writeln!(
                text,
                "  # Nothing here hands out an ordered token. To be fenced, the workload has to take a Lease.\n  coordinator:\n    external:\n      system: {}\n      token: None",
                quoted(single.name())
            ),
            (None, _) => writeln!(
                text,
                "  coordinator:\n    lease:\n      # The name could not be told from the manifest: kubectl get leases -n {namespace}\n      name: \"\""
            ),
        }
    };
    // Writing to a String cannot fail.
    let _ = lines(text);
}
