//! Durations as Gateway API writes them (GEP-2257): `5m`, `1h30m`, `500ms`. No signs, fractions or bare numbers.

use std::{borrow::Cow, fmt, str::FromStr, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A duration of at most four parts in `h`, `m`, `s` and `ms`, as GEP-2257 defines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ShortDuration(Duration);

/// Why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not a duration such as 5m, 1h30m or 500ms")]
pub struct DurationError(String);

impl ShortDuration {
    /// The pattern that the CRD carries.
    pub const PATTERN: &str = "^([0-9]{1,5}(h|m|s|ms)){1,4}$";

    /// The length of time.
    pub const fn get(self) -> Duration {
        self.0
    }

    /// A duration of whole seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }
}

impl FromStr for ShortDuration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        let error = || DurationError(text.chars().take(40).collect());
        let (mut rest, mut total, mut parts) = (text, Duration::ZERO, 0);
        while !rest.is_empty() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let (number, tail) = rest.split_at(digits);
            let unit = tail.bytes().take_while(u8::is_ascii_alphabetic).count();
            let (unit, tail) = tail.split_at(unit);
            let milliseconds = match unit {
                "h" => 3_600_000,
                "m" => 60_000,
                "s" => 1_000,
                "ms" => 1,
                _ => return Err(error()),
            };
            parts += 1;
            if digits == 0 || digits > 5 || parts > 4 {
                return Err(error());
            }
            let number: u64 = number.parse().map_err(|_| error())?;
            total += Duration::from_millis(number * milliseconds);
            rest = tail;
        }
        if parts == 0 { Err(error()) } else { Ok(Self(total)) }
    }
}

impl TryFrom<String> for ShortDuration {
    type Error = DurationError;

    fn try_from(text: String) -> Result<Self, DurationError> {
        text.parse()
    }
}

impl From<ShortDuration> for String {
    fn from(duration: ShortDuration) -> Self {
        duration.to_string()
    }
}

impl fmt::Display for ShortDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, milliseconds) = (self.0.as_secs(), self.0.subsec_millis());
        let parts = [(seconds / 3600, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s"), (milliseconds.into(), "ms")];
        if self.0.is_zero() {
            return f.write_str("0s");
        }
        parts.iter().filter(|(n, _)| *n > 0).try_for_each(|(n, unit)| write!(f, "{n}{unit}"))
    }
}

impl JsonSchema for ShortDuration {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "pattern": Self::PATTERN, "maxLength": 32})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_parse_as_gateway_api_defines_them() {
        for (text, milliseconds) in
            [("5m", 300_000), ("1h30m", 5_400_000), ("10s", 10_000), ("500ms", 500), ("1h1m1s1ms", 3_661_001), ("0s", 0)]
        {
            let duration: ShortDuration = text.parse().unwrap();
            assert_eq!(duration.get(), Duration::from_millis(milliseconds), "{text}");
            assert_eq!(duration.to_string(), text);
        }
        for text in ["", "5", "m", "-5m", "1.5h", "5 m", "5d", "100000s", "1h1m1s1ms1s", "5M", "1µs"] {
            assert!(text.parse::<ShortDuration>().is_err(), "{text:?}");
        }
    }
}
