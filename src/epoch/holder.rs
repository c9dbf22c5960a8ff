//! The identity in a Lease, parsed once at the edge.

use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The identity text of an owner, as it stands in `spec.holderIdentity`, compared byte for byte (case B17).
///
/// Never empty (that is nobody), never longer than [`Holder::MAX_BYTES`], free of control characters. It is never
/// truncated or normalised: both would merge two owners into one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Holder(String);

/// Why a holder's identity cannot be carried to a boundary.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Error)]
pub enum HolderError {
    /// The empty text is nobody, not a holder.
    #[error("the empty identity is nobody")]
    Empty,
    /// Too long to be carried in a claim.
    #[error("the holder identity has {0} bytes, at most {max} can be carried", max = Holder::MAX_BYTES)]
    TooLong(usize),
    /// A control character, which would break a claim's line or a log's.
    #[error("the holder identity has a control character (U+{code:04X}) at byte {at}")]
    ControlCharacter {
        /// The character's code point.
        code: u32,
        /// Its offset in bytes.
        at: usize,
    },
}

impl Holder {
    /// The longest identity, in bytes, that the operator grants an epoch to.
    pub const MAX_BYTES: usize = 512;

    /// Parses an identity that is known not to be nobody.
    ///
    /// # Errors
    /// When it is empty, longer than [`Holder::MAX_BYTES`], or has control characters.
    pub fn new(text: impl Into<String>) -> Result<Self, HolderError> {
        let text = text.into();
        if text.is_empty() {
            return Err(HolderError::Empty);
        }
        if text.len() > Self::MAX_BYTES {
            return Err(HolderError::TooLong(text.len()));
        }
        match text.char_indices().find(|(_, c)| c.is_control()) {
            Some((at, c)) => Err(HolderError::ControlCharacter { code: c.into(), at }),
            None => Ok(Self(text)),
        }
    }

    /// The identity text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The only pod name that this identity can stand for when `identity: Auto`: the whole text, or the part before
    /// the first `_`, as client-go's default identity is written (`<host name>_<uuid>`). A pod name has no `_`, so
    /// there is never a choice. `None` when that part is no DNS subdomain.
    pub fn pod_name(&self) -> Option<&str> {
        let name = self.0.split_once('_').map_or(self.0.as_str(), |(pod, _)| pod);
        let is_label = |label: &str| {
            !label.is_empty()
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        };
        (name.len() <= 253 && name.split('.').all(is_label)).then_some(name)
    }

    /// The uuid after the first `_`, as client-go writes its identities: it is made anew at each start, so another one is another process.
    /// `None` when what stands there is no uuid in its usual, lower-case form.
    pub fn process(&self) -> Option<&str> {
        let (_, rest) = self.0.split_once('_')?;
        let parts: Vec<_> = rest.split('-').collect();
        let is_hex = |part: &str| part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        (parts.iter().map(|part| part.len()).eq([8, 4, 4, 4, 12]) && parts.iter().all(|part| is_hex(part))).then_some(rest)
    }
}

impl TryFrom<String> for Holder {
    type Error = HolderError;

    fn try_from(text: String) -> Result<Self, HolderError> {
        Self::new(text)
    }
}

impl From<Holder> for String {
    fn from(holder: Holder) -> Self {
        holder.0
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl JsonSchema for Holder {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Holder".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "minLength": 1, "maxLength": Self::MAX_BYTES})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B15: holder text is free in the API server; what cannot be carried is refused, the rest is kept byte for byte.
    #[test]
    fn what_cannot_be_carried_is_refused_and_never_shortened() {
        assert_eq!(Holder::new(""), Err(HolderError::Empty));
        assert_eq!(Holder::new("x".repeat(200_000)), Err(HolderError::TooLong(200_000)));
        assert_eq!(Holder::new("a\nb"), Err(HolderError::ControlCharacter { code: 0x0A, at: 1 }));
        assert_eq!(Holder::new("a\u{7f}"), Err(HolderError::ControlCharacter { code: 0x7F, at: 1 }));
        assert!(Holder::new("ü".repeat(256)).is_ok(), "512 bytes fit");
        assert_eq!(Holder::new("ü".repeat(257)), Err(HolderError::TooLong(514)));
        for text in ["a/b#c_ü💥", " leading", "trailing ", "with \"quotes\" and 'more'", "A", "a"] {
            assert_eq!(Holder::new(text).unwrap().as_str(), text);
        }
    }

    #[test]
    fn a_process_is_told_by_the_uuid_of_its_start() {
        let uuid = "5f2c0c1e-7d0a-4a53-9a3c-0a5d5f6b7c8d";
        assert_eq!(Holder::new(format!("web-0_{uuid}")).unwrap().process(), Some(uuid));
        let others = ["web-0", "web-0_x", "web-0_", uuid, "web-0_5F2c0c1e-7d0a-4a53-9a3c-0a5d5f6b7c8d"].map(str::to_owned);
        for text in others.into_iter().chain([format!("web-0_x_{uuid}"), format!("web-0_{uuid}0"), format!("web-0_{uuid}-0")]) {
            assert_eq!(Holder::new(text.clone()).unwrap().process(), None, "{text}");
        }
    }

    #[test]
    fn a_pod_name_is_the_text_or_what_stands_before_the_first_underscore() {
        let pod = |text: &str| Holder::new(text).unwrap().pod_name().map(str::to_owned);
        assert_eq!(pod("db-0").as_deref(), Some("db-0"));
        assert_eq!(pod("web-7f9c_0a1b-22").as_deref(), Some("web-7f9c"));
        assert_eq!(pod("web.example_x_y").as_deref(), Some("web.example"));
        assert_eq!(pod("A-1"), None);
        assert_eq!(pod("a/b#c_ü💥"), None);
        assert_eq!(pod("_x"), None);
    }
}
