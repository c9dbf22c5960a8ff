//! The fence on a guarded object: the labels and annotations that the chart's policies compare (`charts/fencedlock/files/guard.yaml`). Pure:
//! no API server is asked.

use std::collections::BTreeMap;

use kube::api::ObjectMeta;
use serde_json::{Map, Value, json};

use crate::{
    api::{ClaimKind, GuardMode, KubernetesBoundary, RequestExemption},
    epoch::Epoch,
};

/// What all of our labels and annotations begin with.
pub(super) const PREFIX: &str = "fencedlock.dev/";
/// The label by which the policies find what is guarded.
pub(super) const BOUNDARY: &str = "fencedlock.dev/boundary";
const MODE: &str = "fencedlock.dev/mode";
const CLAIM_KIND: &str = "fencedlock.dev/claim-kind";
const EPOCH: &str = "fencedlock.dev/epoch";
const HOLDER: &str = "fencedlock.dev/holder";
const HOLDER_UID: &str = "fencedlock.dev/holder-uid";
const EXEMPT: &str = "fencedlock.dev/exempt";
const STATUS_WRITERS: &str = "fencedlock.dev/status-writers";
/// What a worker writes itself, with `claim: Annotation`.
pub(super) const CLAIM: &str = "fencedlock.dev/claim";

/// The longest name of a boundary that a label can carry, in bytes.
pub(super) const MAX_NAME: usize = 63;

/// Everything that a guarded object carries of ours, but the worker's own claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    labels: [(&'static str, String); 3],
    annotations: [(&'static str, String); 5],
}

/// The fence that an object carries.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Seen {
    pub(super) epoch: Epoch,
    /// Empty is nobody.
    pub(super) holder: String,
    pub(super) uid: String,
}

/// Mode and kind of claim, as the policies compare them.
pub(super) const fn words(mode: GuardMode, claim: ClaimKind) -> (&'static str, &'static str) {
    let mode = match mode {
        GuardMode::Observe => "Observe",
        GuardMode::Enforce => "Enforce",
    };
    let claim = match claim {
        ClaimKind::PodIdentity => "PodIdentity",
        ClaimKind::Annotation => "Annotation",
    };
    (mode, claim)
}

impl Stamp {
    /// The stamp for an owner; an empty holder is nobody.
    pub(super) fn new(boundary: &str, mode: GuardMode, spec: &KubernetesBoundary, owner: &Seen, defaults: &[String]) -> Self {
        let users = |listed: &[RequestExemption], more: &[String]| {
            let mut users: Vec<_> = listed.iter().map(|exemption| exemption.user.as_str()).chain(more.iter().map(String::as_str)).collect();
            users.sort_unstable();
            users.dedup();
            users.join("\n")
        };
        let (mode, claim) = words(mode, spec.claim);
        let uid = if spec.claim == ClaimKind::PodIdentity { owner.uid.clone() } else { String::new() };
        Self {
            labels: [(BOUNDARY, boundary.to_owned()), (MODE, mode.to_owned()), (CLAIM_KIND, claim.to_owned())],
            annotations: [
                (EPOCH, owner.epoch.to_string()),
                (HOLDER, owner.holder.clone()),
                (HOLDER_UID, uid),
                (EXEMPT, users(&spec.exemptions, defaults)),
                (STATUS_WRITERS, users(&spec.status_writers, &[])),
            ],
        }
    }

    /// Whether an object carries it, and nothing else of ours but a claim.
    pub(super) fn is_on(&self, object: &ObjectMeta) -> bool {
        self.differs(object).is_empty()
    }

    /// The labels and annotations of ours that are not as the stamp has them, in words.
    pub(super) fn differs(&self, object: &ObjectMeta) -> Vec<String> {
        let compare = |wanted: &[(&'static str, String)], has: Option<&BTreeMap<String, String>>| {
            let ours = has.into_iter().flatten().filter(|(key, _)| key.starts_with(PREFIX) && *key != CLAIM);
            let mut has: BTreeMap<&str, &str> = ours.map(|(key, value)| (key.as_str(), value.as_str())).collect();
            let mut differs = Vec::new();
            for (key, wanted) in wanted {
                let found = has.remove(key);
                if found != Some(wanted.as_str()) {
                    differs.push(found.map_or_else(|| format!("{key} is missing"), |found| format!("{key} is {found:?}")));
                }
            }
            differs.extend(has.into_iter().map(|(key, value)| format!("{key} is {value:?}")));
            differs
        };
        [compare(&self.labels, object.labels.as_ref()), compare(&self.annotations, object.annotations.as_ref())].concat()
    }

    /// Puts it on an object that is written whole.
    pub(super) fn put_on(&self, object: &mut ObjectMeta) {
        let own =
            |pairs: &[(&'static str, String)]| pairs.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect::<Vec<_>>();
        object.labels.get_or_insert_default().extend(own(&self.labels));
        object.annotations.get_or_insert_default().extend(own(&self.annotations));
    }

    /// The merge patch that puts it on an object as it was read, and takes everything else of ours away. A claim stays as long as the fence
    /// does not move.
    pub(super) fn patch(&self, object: &ObjectMeta) -> Value {
        let moves = annotation(object, EPOCH) != Some(self.annotations[0].1.as_str());
        let place = |wanted: &[(&'static str, String)], has: Option<&BTreeMap<String, String>>| {
            let stays = |key: &str| key == CLAIM && !moves;
            let old = has.into_iter().flatten().filter(|(key, _)| key.starts_with(PREFIX) && !stays(key));
            let mut values: Map<String, Value> = old.map(|(key, _)| (key.clone(), Value::Null)).collect();
            values.extend(wanted.iter().map(|(key, value)| ((*key).to_owned(), Value::from(value.as_str()))));
            values
        };
        let labels = place(&self.labels, object.labels.as_ref());
        let annotations = place(&self.annotations, object.annotations.as_ref());
        let mut metadata = json!({"labels": labels, "annotations": annotations});
        if let Some(version) = &object.resource_version {
            metadata["resourceVersion"] = Value::from(version.as_str());
        }
        json!({ "metadata": metadata })
    }
}

/// The merge patch that takes everything of ours off an object.
pub(super) fn removal(object: &ObjectMeta) -> Value {
    let none = |has: Option<&BTreeMap<String, String>>| -> Map<String, Value> {
        let ours = has.into_iter().flatten().filter(|(key, _)| key.starts_with(PREFIX));
        ours.map(|(key, _)| (key.clone(), Value::Null)).collect()
    };
    let (labels, annotations) = (none(object.labels.as_ref()), none(object.annotations.as_ref()));
    json!({"metadata": {"labels": labels, "annotations": annotations, "resourceVersion": object.resource_version}})
}

fn annotation<'a>(object: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    object.annotations.as_ref()?.get(key).map(String::as_str)
}

/// The boundary that an object says guards it.
pub(super) fn boundary_of(object: &ObjectMeta) -> Option<&str> {
    object.labels.as_ref()?.get(BOUNDARY).map(String::as_str)
}

/// Whether an object is free of our labels, or its guard refuses.
pub(super) fn is_enforced(object: &ObjectMeta) -> bool {
    boundary_of(object).is_none() || object.labels.as_ref().is_some_and(|labels| labels.get(MODE).is_some_and(|mode| mode == "Enforce"))
}

/// The fence on an object of this boundary; `None` when it carries none.
///
/// # Errors
/// When another boundary guards it, or what it carries is no fence: who changed it went around the guard.
pub(super) fn read(object: &ObjectMeta, boundary: &str) -> Result<Option<Seen>, String> {
    let name = object.name.as_deref().unwrap_or_default();
    let Some(by) = boundary_of(object) else { return Ok(None) };
    if by != boundary {
        return Err(format!("object {name:?} is fenced by write boundary {by:?}: one object belongs to one lock"));
    }
    let epoch = annotation(object, EPOCH).unwrap_or_default();
    // Canonical text: another form of the same number is not what an activation writes.
    let number = epoch.parse::<u64>().ok().filter(|number| number.to_string() == epoch).and_then(|number| Epoch::new(number).ok());
    let number = number.ok_or_else(|| {
        format!("object {name:?} carries epoch {epoch:?}, which is none: take its labels and annotations under {PREFIX} off")
    })?;
    let text = |key| annotation(object, key).unwrap_or_default().to_owned();
    Ok(Some(Seen { epoch: number, holder: text(HOLDER), uid: text(HOLDER_UID) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(claim: &str) -> KubernetesBoundary {
        serde_json::from_value(json!({"claim": claim, "targets": [{"resource": "configmaps", "names": ["web"]}],
            "exemptions": [{"user": "helm", "reason": "r"}], "statusWriters": [{"user": "s", "reason": "r"}]}))
        .unwrap()
    }

    fn owner(epoch: u64) -> Seen {
        Seen { epoch: Epoch::new(epoch).unwrap(), holder: "a".into(), uid: "u".into() }
    }

    /// Applies a merge patch as the API server does.
    fn merged(object: &ObjectMeta, patch: &Value) -> ObjectMeta {
        let mut value = serde_json::to_value(object).unwrap();
        for place in ["labels", "annotations"] {
            for (key, new) in patch["metadata"][place].as_object().unwrap() {
                if new.is_null() {
                    value[place].as_object_mut().map(|map| map.remove(key));
                } else {
                    value[place][key] = new.clone();
                }
            }
        }
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_stamp_is_what_is_read_and_leaves_what_is_not_ours() {
        let stamp = Stamp::new("db", GuardMode::Enforce, &spec("PodIdentity"), &owner(7), &["deployer".to_owned(), "helm".to_owned()]);
        let object: ObjectMeta = serde_json::from_value(json!({"name": "web", "resourceVersion": "5", "labels": {"app": "web"},
            "annotations": {"fencedlock.dev/forged": "1", "fencedlock.dev/claim": "6.1.z", "note": "x"}}))
        .unwrap();
        assert!(!stamp.is_on(&object) && read(&object, "db") == Ok(None));
        let patch = stamp.patch(&object);
        assert_eq!(patch["metadata"]["resourceVersion"], "5");
        let stamped = merged(&object, &patch);
        assert!(stamp.is_on(&stamped));
        assert_eq!(read(&stamped, "db"), Ok(Some(owner(7))));
        assert!(read(&stamped, "other").unwrap_err().contains("fenced by write boundary \"db\""));
        let annotations = stamped.annotations.as_ref().unwrap();
        assert_eq!((annotations["note"].as_str(), annotations[EXEMPT].as_str()), ("x", "deployer\nhelm"));
        assert!(!annotations.contains_key("fencedlock.dev/forged") && !annotations.contains_key(CLAIM));
        assert_eq!(merged(&stamped, &removal(&stamped)).labels, object.labels);
        let next = Stamp::new("db", GuardMode::Observe, &spec("PodIdentity"), &owner(7), &[]);
        assert_eq!(next.differs(&stamped), ["fencedlock.dev/mode is \"Enforce\"", "fencedlock.dev/exempt is \"deployer\\nhelm\""]);
    }

    /// Under the same epoch the worker's count goes on; a new epoch begins a new one.
    #[test]
    fn a_claim_stays_while_the_fence_does() {
        let stamp = |epoch| Stamp::new("db", GuardMode::Enforce, &spec("Annotation"), &owner(epoch), &[]);
        let object: ObjectMeta = serde_json::from_value(json!({"name": "web"})).unwrap();
        let mut stamped = merged(&object, &stamp(7).patch(&object));
        assert_eq!(read(&stamped, "db").unwrap().unwrap().uid, "", "who claims by text is known by no pod");
        stamped.annotations.as_mut().unwrap().insert(CLAIM.into(), "7.1.a".into());
        assert!(stamp(7).is_on(&stamped));
        assert!(merged(&stamped, &stamp(7).patch(&stamped)).annotations.unwrap().contains_key(CLAIM));
        assert!(!merged(&stamped, &stamp(8).patch(&stamped)).annotations.unwrap().contains_key(CLAIM));
    }

    #[test]
    fn what_is_no_fence_is_said() {
        for epoch in ["", "0", "07", "+7", "7.0", "9007199254740992", "x"] {
            let object: ObjectMeta =
                serde_json::from_value(json!({"name": "web", "labels": {BOUNDARY: "db"}, "annotations": {EPOCH: epoch}})).unwrap();
            assert!(read(&object, "db").unwrap_err().contains("which is none"), "{epoch}");
        }
    }
}
