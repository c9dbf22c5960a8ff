//! From one object, as it was parsed, to what is kept of it. Of an object that is not ours only the facts are kept that tell whether it is, or
//! uses, a lock: many thousands have to fit.
//!
//! Start with [`object`].

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{Id, Located, Place};
use crate::{
    api::{
        FencedLock, FencedLockSpec, FencedLockStatus, GROUP, LockClass, VERSION, WriteBoundary, WriteBoundarySpec, WriteBoundaryStatus,
        conditions::shorten, named_lock,
    },
    audit::{
        inventory::{self, Declarations, Fact},
        rules::{self, Finding, catalogue as rule},
        schema::{self, FieldError},
        suppress::{self, Suppression},
    },
};

/// What is kept of one object.
#[derive(Clone, Debug)]
pub enum Kept {
    /// A lock.
    Lock(Box<Declared<LockObject>>),
    /// A write boundary.
    Boundary(Box<Declared<BoundaryObject>>),
    /// Something that may be, or use, a lock that nobody declared.
    Fact(Box<Fact>),
    /// Something that is wrong with it.
    Wrong(Box<Located>),
}

/// What is judged of an object of one of our kinds. Of its metadata that is little, and tens of thousands have to fit.
#[derive(Clone, Debug)]
pub struct Object<Spec, Status> {
    /// Its declaration.
    pub spec: Spec,
    /// What the operator wrote.
    pub status: Option<Box<Status>>,
    /// `metadata.generation`.
    pub generation: Option<i64>,
}

/// A FencedLock.
pub type LockObject = Object<FencedLockSpec, FencedLockStatus>;
/// A WriteBoundary.
pub type BoundaryObject = Object<WriteBoundarySpec, WriteBoundaryStatus>;

/// An object of one of our kinds.
#[derive(Clone, Debug)]
pub struct Declared<K> {
    /// What it is called.
    pub id: Id,
    /// Where it was read.
    pub place: Place,
    /// The object; `None` when it cannot be read as its kind.
    pub object: Option<K>,
    /// What the schema refuses.
    pub errors: Vec<FieldError>,
    /// What there is to say about the document itself.
    pub findings: Vec<Finding>,
    /// The findings that somebody answers for.
    pub suppressions: Vec<Suppression>,
    /// `spec.lockRef.name`, also when the rest cannot be read.
    pub lock_ref: Option<String>,
    /// `spec.class`, likewise.
    pub class: Option<LockClass>,
    /// `spec.coordinator.lease.name`, likewise.
    pub lease: Option<String>,
    /// The workloads that the object's annotation says use the lock.
    pub workloads: Option<String>,
    /// When it was created, in a cluster.
    pub created: Option<Timestamp>,
}

/// Reads one object. `None` is one that has nothing to do with locks.
pub fn object(value: &Value, place: &Place, default_namespace: &Arc<str>) -> Option<Kept> {
    let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty());
    let api_version = text("/apiVersion").unwrap_or_default();
    let (group, version) = api_version.split_once('/').unwrap_or((api_version, ""));
    // The API server refuses another spelling, and whoever wrote it believes that the lock is declared.
    let is_ours = group.eq_ignore_ascii_case(GROUP) || text("/kind").is_some_and(is_called_ours);
    let kind = text("/kind").or_else(|| is_ours.then_some(""))?;
    let namespace = text("/metadata/namespace").map_or_else(|| default_namespace.clone(), Arc::from);
    let id = Id { kind: kind.into(), namespace, name: text("/metadata/name").unwrap_or_default().into() };
    if !is_ours {
        return inventory::fact(value, api_version, &id, place).map(|fact| Kept::Fact(Box::new(fact)));
    }
    let wrong = |message: String| {
        let finding = rule::UNREADABLE_DOCUMENT.finds("", message);
        Some(Kept::Wrong(Box::new(Located { object: id.clone(), place: place.clone(), finding, excused: None })))
    };
    let is_text = |field: &&str| value["metadata"].get(field).is_none_or(|value| value.is_string() || value.is_null());
    let not_text = ["name", "namespace"].into_iter().find(|field| !is_text(field));
    match kind {
        _ if api_version.is_empty() => wrong(format!("apiVersion: is required, must be {GROUP}/{VERSION}")),
        _ if (group, version) != (GROUP, VERSION) => wrong(format!("apiVersion: is {api_version:?}, must be {GROUP}/{VERSION}")),
        _ if let Some(field) = not_text => {
            wrong(format!("metadata.{field}: must be text; YAML reads a bare y, yes, no or number as something else: quote it"))
        }
        "FencedLock" | "WriteBoundary" if id.name.is_empty() => wrong("metadata.name: is required".into()),
        "FencedLock" => Some(Kept::Lock(Box::new(declared::<FencedLock, _>(value, id, place, rules::lock::about_field)))),
        "WriteBoundary" => Some(Kept::Boundary(Box::new(declared::<WriteBoundary, _>(value, id, place, rules::boundary::about_field)))),
        other => wrong(format!("kind: {other:?} is not a kind of {GROUP}; there are FencedLock and WriteBoundary")),
    }
}

/// Whether a kind is spelled like one of ours, by whoever meant one: in another group, in the plural, in another case.
fn is_called_ours(kind: &str) -> bool {
    ["FencedLock", "FencedLocks", "WriteBoundary", "WriteBoundaries"].iter().any(|ours| kind.eq_ignore_ascii_case(ours))
}

/// Where an object of our kinds lies within another one, which an API server would not take for one: a Template, a List whose items are no list.
pub fn buried(value: &Value) -> Option<String> {
    let parts: Vec<(String, &Value)> = match value {
        Value::Object(fields) => {
            let is_kind = |(key, value): (&String, &Value)| key.eq_ignore_ascii_case("kind") && value.as_str().is_some_and(is_called_ours);
            // A reference has a kind too, and nothing to declare.
            if fields.contains_key("spec") && fields.iter().any(is_kind) {
                return Some(String::new());
            }
            fields.iter().map(|(key, value)| (format!(".{key}"), value)).collect()
        }
        Value::Array(items) => items.iter().enumerate().map(|(index, item)| (format!("[{index}]"), item)).collect(),
        _ => return None,
    };
    parts.into_iter().find_map(|(name, part)| Some(name + &buried(part)?))
}

/// The annotations of an object.
pub(crate) fn annotations(value: &Value) -> Option<&Map<String, Value>> {
    value.pointer("/metadata/annotations").and_then(Value::as_object)
}

impl From<FencedLock> for LockObject {
    fn from(lock: FencedLock) -> Self {
        Self { spec: lock.spec, status: lock.status.map(Box::new), generation: lock.metadata.generation }
    }
}

impl From<WriteBoundary> for BoundaryObject {
    fn from(boundary: WriteBoundary) -> Self {
        Self { spec: boundary.spec, status: boundary.status.map(Box::new), generation: boundary.metadata.generation }
    }
}

fn declared<K: DeserializeOwned, O: From<K>>(
    value: &Value,
    id: Id,
    place: &Place,
    about: fn(&FieldError, &Value) -> Finding,
) -> Declared<O> {
    let errors = schema::check(&id.kind, value);
    let (suppressions, mut findings) = suppress::read(annotations(value));
    let object = errors.is_empty().then(|| K::deserialize(value));
    if let Some(Err(error)) = &object {
        findings.push(rule::FIELD_INVALID.finds("", error.to_string()));
    }
    findings.extend(errors.iter().map(|error| about(error, value)));
    let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str);
    let workloads = annotations(value).and_then(|all| all.get(Declarations::ANNOTATION)?.as_str());
    if let Some(wrong) = workloads.and_then(Declarations::wrong) {
        let message = format!(
            "annotation {}: {:?} names no workload: write KIND/NAME or NAMESPACE/KIND/NAME, several with commas between them",
            Declarations::ANNOTATION,
            shorten(wrong.trim(), 64)
        );
        findings.push(rule::FIELD_INVALID.finds(Declarations::ANNOTATION, message));
    }
    Declared {
        id,
        place: place.clone(),
        object: object.and_then(Result::ok).map(O::from),
        errors,
        findings,
        suppressions,
        lock_ref: named_lock(value).map(str::to_owned),
        class: value.pointer("/spec/class").and_then(|class| <LockClass as serde::Deserialize>::deserialize(class).ok()),
        lease: text("/spec/coordinator/lease/name").map(str::to_owned),
        workloads: workloads.map(str::to_owned),
        created: text("/metadata/creationTimestamp").and_then(|time| time.parse().ok()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What the API server refuses, and what is easily overlooked, is never taken for something else.
    #[test]
    fn what_means_to_be_ours_is_a_finding_when_it_is_not() {
        let spec = json!({"class": "EfficiencyOnly", "coordinator": {"lease": {"name": "a"}}});
        let of = |value: &Value| object(value, &Place::default(), &"default".into());
        let with = |field: &str, wrong: Value| {
            let mut value = json!({"apiVersion": "fencedlock.dev/v1alpha1", "kind": "FencedLock", "metadata": {"name": "a"}, "spec": spec});
            *value.pointer_mut(field).unwrap() = wrong;
            value
        };
        assert!(matches!(of(&with("/kind", json!("FencedLock"))), Some(Kept::Lock(_))));
        let two = json!({"name": "a", "namespace": true});
        for value in [
            with("/apiVersion", json!("fencedlock.dev/v1")),
            with("/apiVersion", json!("fencedlock.dev")),
            with("/apiVersion", json!("FencedLock.dev/v1alpha1")),
            with("/apiVersion", json!("v1")),
            with("/apiVersion", json!("fenced-lock.dev/v1alpha1")),
            with("/kind", json!("FencedLocks")),
            with("/apiVersion", json!(null)),
            with("/kind", json!("fencedlock")),
            with("/kind", json!(null)),
            with("/metadata/name", json!(7)),
            with("/metadata/name", json!("")),
            with("/metadata", two),
        ] {
            assert!(matches!(of(&value), Some(Kept::Wrong(_))), "{value}");
        }
        assert!(of(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}})).is_none());
    }
}
