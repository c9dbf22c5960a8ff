//! An object of ours as the watch delivers it, also when it is malformed: one such object must not poison the stream (case
//! G03), and a boundary that cannot be read still counts for the lock that it names.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Deserializer, de::DeserializeOwned, de::Error as _};
use serde_json::{Value, value::RawValue};

use crate::api::{WriteBoundary, named_lock};

/// An object, or what can be said of one that is malformed.
#[derive(Clone, Debug)]
pub(super) struct Guarded<K>(pub(super) Result<K, Malformed>);

/// An object that does not fit its kind's type.
#[derive(Clone, Debug)]
pub(super) struct Malformed {
    /// What does not fit.
    pub(super) error: String,
    /// Its metadata.
    pub(super) metadata: ObjectMeta,
    /// `spec.lockRef.name`, when it is there and a text.
    pub(super) lock_ref: Option<String>,
}

impl Guarded<WriteBoundary> {
    /// The lock that a boundary names, when it names one.
    pub(super) fn lock(&self) -> Option<&str> {
        self.0.as_ref().map_or_else(|malformed| malformed.lock_ref.as_deref(), |boundary| Some(&boundary.spec.lock_ref.name))
    }
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The text is parsed once for a good object. A tree of it costs ten times its size, and a listing is made of hundreds.
        let text = Box::<RawValue>::deserialize(deserializer)?;
        if let Ok(object) = serde_json::from_str(text.get()) {
            return Ok(Self(Ok(object)));
        }
        let value: Value = serde_json::from_str(text.get()).map_err(D::Error::custom)?;
        // Said of the tree and not of the text, whose lines and columns move with every annotation.
        let error = match K::deserialize(&value) {
            Ok(object) => return Ok(Self(Ok(object))),
            Err(error) => error,
        };
        let metadata = value.get("metadata").cloned().unwrap_or_default();
        Ok(Self(Err(Malformed {
            error: error.to_string(),
            metadata: serde_json::from_value(metadata).map_err(D::Error::custom)?,
            lock_ref: named_lock(&value).map(str::to_owned),
        })))
    }
}

impl<K: Resource> Resource for Guarded<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &K::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &K::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &K::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &K::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.as_ref().map_or_else(|malformed| &malformed.metadata, K::meta)
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.as_mut().map_or_else(|malformed| &mut malformed.metadata, K::meta_mut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_malformed_boundary_still_names_its_lock() {
        let object = json!({"metadata": {"name": "b"}, "spec": {"lockRef": {"name": "a"}, "type": "Teapot"}});
        let guarded: Guarded<WriteBoundary> = serde_json::from_value(object).unwrap();
        let malformed = guarded.0.unwrap_err();
        assert_eq!((malformed.lock_ref.as_deref(), malformed.metadata.name.as_deref()), (Some("a"), Some("b")));
        assert!(malformed.error.contains("Teapot") && !malformed.error.contains("column"), "{}", malformed.error);
        let nothing: Guarded<WriteBoundary> = serde_json::from_value(json!({"metadata": {"name": "b"}, "spec": []})).unwrap();
        assert_eq!(nothing.0.unwrap_err().lock_ref, None);
    }
}
