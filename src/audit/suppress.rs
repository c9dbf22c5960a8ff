//! Findings that somebody answers for, in the object that they are about: an annotation per rule, whose value says until when and why.
//!
//! ```yaml
//! metadata:
//!   annotations:
//!     fencedlock.dev/suppress.unfenced-singleton: "until 2027-03-31: the volume is ReadWriteOncePod and the node is fenced by hand"
//! ```
//!
//! Start with [`read`]. A suppression hides a finding and changes no verdict. One that has ended hides nothing.

use std::str::FromStr;

use k8s_openapi::jiff::{Timestamp, civil::Date, tz::TimeZone};
use serde_json::{Map, Value};

use super::rules::{Finding, Rule, catalogue};
use crate::api::conditions::shorten;

/// The annotation's name, before the rule's id.
pub const PREFIX: &str = "fencedlock.dev/suppress.";

/// A finding that somebody answers for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suppression {
    /// Which rule.
    pub rule: &'static Rule,
    /// When it ends: the end of the day, in UTC.
    pub until: Timestamp,
    /// Why.
    pub reason: String,
}

/// The suppressions in an object's annotations, and what is wrong with those that cannot be read.
pub fn read(annotations: Option<&Map<String, Value>>) -> (Vec<Suppression>, Vec<Finding>) {
    let (mut suppressions, mut findings) = (Vec::new(), Vec::new());
    for (name, value) in annotations.into_iter().flatten() {
        let Some(id) = name.strip_prefix(PREFIX) else { continue };
        match one(id, value) {
            Ok(suppression) => suppressions.push(suppression),
            Err(why) => findings.push(catalogue::SUPPRESSION_INVALID.finds(name, format!("annotation {name}: {why}"))),
        }
    }
    (suppressions, findings)
}

fn one(id: &str, value: &Value) -> Result<Suppression, String> {
    let rule = catalogue::by_id(id).ok_or_else(|| format!("there is no rule {id:?}: fencedlock audit --explain lists them"))?;
    if catalogue::needs_a_decision(rule) {
        return Err(format!("no annotation answers for {id}: fencedlock audit --explain {id}"));
    }
    let wanted = "write \"until 2027-03-31: why\"; a suppression has a reason and an end";
    let text = value.as_str().ok_or(wanted)?;
    let (date, reason) = text.trim().strip_prefix("until ").and_then(|rest| rest.split_once(':')).ok_or(wanted)?;
    let date = date.trim();
    // A time of day would be cut off, and a number without dashes is easily a typing error.
    let written = Date::from_str(date).ok().filter(|read| read.to_string() == date);
    let date = written.ok_or_else(|| format!("{:?} is no date: {wanted}", shorten(date, 64)))?;
    let reason = reason.trim();
    if reason.is_empty() {
        return Err(wanted.into());
    }
    let ends = date.tomorrow().and_then(|next| next.to_zoned(TimeZone::UTC)).map_err(|_| format!("{date} is too far away: {wanted}"))?;
    Ok(Suppression { rule, until: ends.timestamp(), reason: reason.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(name: &str, value: &str) -> (Vec<Suppression>, Vec<Finding>) {
        read(json!({name: value, "other": "x"}).as_object())
    }

    #[test]
    fn a_suppression_has_a_rule_a_reason_and_an_end() {
        let (read, wrong) = of("fencedlock.dev/suppress.unfenced-singleton", "until 2027-03-31: fenced by hand: see the runbook");
        assert_eq!(wrong, []);
        assert_eq!(read[0].reason, "fenced by hand: see the runbook");
        assert_eq!(read[0].until.to_string(), "2027-04-01T00:00:00Z");
        for (name, value) in [
            ("fencedlock.dev/suppress.unfenced-singleton", "because"),
            ("fencedlock.dev/suppress.unfenced-singleton", "until 2027-03-31:"),
            ("fencedlock.dev/suppress.unfenced-singleton", "until 2027-02-30: why"),
            ("fencedlock.dev/suppress.unfenced-singleton", "until 9999-12-31: why"),
            ("fencedlock.dev/suppress.unfenced-singleton", "until 20270331: why"),
            ("fencedlock.dev/suppress.unfenced-singleton", "until 2027-03-31T10: why"),
            ("fencedlock.dev/suppress.unfenced-singelton", "until 2027-03-31: why"),
            ("fencedlock.dev/suppress.class-downgraded", "until 2027-03-31: why"),
            ("fencedlock.dev/suppress.unclassified-lock", "until 2027-03-31: why"),
        ] {
            let (read, wrong) = of(name, value);
            assert!(read.is_empty() && wrong.len() == 1, "{value}");
        }
    }
}
