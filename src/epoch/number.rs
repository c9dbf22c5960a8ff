//! The epoch as a type that cannot be wrong: never zero, never above 2^53 − 1.

use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The fencing token: a strictly increasing integer, one per term of ownership.
///
/// Ranges from 1 to 2^53 − 1, so that JSON, JavaScript and Lua keep it exact (case C05). Zero is not an epoch: a
/// column that defaults to 0 must never match a claim (case D10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Epoch(u64);

/// Why a number is not an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EpochError {
    /// Zero, which stands for "no epoch" in too many programs to be one.
    #[error("0 is not an epoch: epochs start at 1")]
    Zero,
    /// Above 2^53 − 1, where JSON numbers stop being exact.
    #[error("{0} is not an epoch: the largest is {max}", max = Epoch::MAX_VALUE)]
    TooLarge(u64),
}

impl Epoch {
    /// The largest value of an epoch, 2^53 − 1.
    pub const MAX_VALUE: u64 = (1 << 53) - 1;
    /// The first epoch that a lock can be granted.
    pub const FIRST: Self = Self(1);
    /// The last epoch that a lock can be granted; after it the lock is exhausted.
    pub const LAST: Self = Self(Self::MAX_VALUE);

    /// Makes an epoch from a number.
    ///
    /// # Errors
    /// When the number is 0 or above [`Epoch::MAX_VALUE`].
    pub const fn new(value: u64) -> Result<Self, EpochError> {
        match value {
            0 => Err(EpochError::Zero),
            1..=Self::MAX_VALUE => Ok(Self(value)),
            _ => Err(EpochError::TooLarge(value)),
        }
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl TryFrom<u64> for Epoch {
    type Error = EpochError;

    fn try_from(value: u64) -> Result<Self, EpochError> {
        Self::new(value)
    }
}

impl From<Epoch> for u64 {
    fn from(epoch: Epoch) -> Self {
        epoch.0
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl JsonSchema for Epoch {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Epoch".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "integer", "format": "int64", "minimum": 1, "maximum": Self::MAX_VALUE})
    }
}

/// A number that the next epoch must lie above, or 0 for "no such number". Said by a person, or remembered by a store.
pub type EpochFloor = u64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_and_what_json_cannot_keep_exact_are_no_epochs() {
        assert_eq!(Epoch::new(0), Err(EpochError::Zero));
        assert_eq!(Epoch::new(1 << 53), Err(EpochError::TooLarge(1 << 53)));
        assert_eq!(Epoch::new(u64::MAX), Err(EpochError::TooLarge(u64::MAX)));
        assert_eq!(Epoch::new(Epoch::MAX_VALUE), Ok(Epoch::LAST));
        assert_eq!(Epoch::new(1), Ok(Epoch::FIRST));
    }

    #[test]
    fn a_stored_epoch_out_of_range_does_not_parse() {
        for text in ["0", "-1", "9007199254740992", "1.5", "\"7\"", "null"] {
            assert!(serde_json::from_str::<Epoch>(text).is_err(), "{text}");
        }
        assert_eq!(serde_json::from_str::<Epoch>("42").map(Epoch::get).ok(), Some(42));
    }
}
