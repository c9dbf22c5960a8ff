//! What the schema refuses in an object, worked out once for each declaration and not at each pass: the rules cost more than all
//! else that a pass computes.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde::Serialize;
use serde_json::Value;

use super::follow::Key;
use crate::audit::schema::{self, FieldError};

/// The last answer for each object of one kind, with the declaration that it is about: as text, which takes a third of the space.
#[derive(Debug)]
pub(super) struct Checked {
    kind: &'static str,
    answers: Mutex<Answers>,
}

type Answers = HashMap<Key, (Box<str>, Vec<FieldError>)>;

impl Checked {
    pub(super) fn new(kind: &'static str) -> Self {
        Self { kind, answers: Mutex::default() }
    }

    /// Everything that the schema refuses in a declaration.
    pub(super) fn errors(&self, key: &Key, spec: &impl Serialize) -> Vec<FieldError> {
        let Ok(text) = serde_json::to_string(spec) else { return Vec::new() };
        if let Some((_, errors)) = self.locked().get(key).filter(|(of, _)| **of == text) {
            return errors.clone();
        }
        let value = serde_json::from_str(&text).unwrap_or(Value::Null);
        let errors = schema::check(self.kind, &serde_json::json!({ "spec": value }));
        self.locked().insert(key.clone(), (text.into(), errors.clone()));
        errors
    }

    /// Forgets an object that is gone.
    pub(super) fn forget(&self, key: &Key) {
        self.locked().remove(key);
    }

    fn locked(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::FencedLockSpec;
    use serde_json::json;

    /// The answer is about the declaration as it stands, whatever the object's name, uid or generation.
    #[test]
    fn another_declaration_has_another_answer() {
        let checked = Checked::new("FencedLock");
        let key = ("n".to_owned(), "a".to_owned());
        let spec = |lease: &str| -> FencedLockSpec {
            serde_json::from_value(json!({"class": "EfficiencyOnly", "coordinator": {"lease": {"name": lease}}})).unwrap()
        };
        assert_eq!(checked.errors(&key, &spec("a")), []);
        let refused = checked.errors(&key, &spec("NOT A NAME"));
        assert_eq!(refused.len(), 1, "{refused:?}");
        assert_eq!(checked.errors(&key, &spec("NOT A NAME")), refused);
        assert_eq!(checked.errors(&key, &spec("a")), []);
        checked.forget(&key);
        assert!(checked.answers.lock().unwrap().is_empty());
    }
}
