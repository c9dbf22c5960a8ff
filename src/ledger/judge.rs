//! What a ledger's state means for its boundary: the condition `Reconciled`. Pure.

use std::time::Duration;

use super::read::Counts;
use crate::api::{
    Ledger, ShortDuration,
    conditions::{Finding, Truth, boundary as on_boundary, reason, shorten},
};

/// The age at which an operation of unknown outcome is reported when nothing else is declared.
pub const UNKNOWN_AFTER: Duration = Duration::from_mins(15);

/// What is known of a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Nothing yet.
    NotYet,
    /// It could not be read.
    Unreadable(String),
    /// What it shows.
    Counts(Counts),
}

/// Everything that the condition rests on.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// `spec.external.ledger`.
    pub ledger: &'a Ledger,
    /// The triggers of the enforcing guards that the lock's other boundaries declare on the table.
    pub guards: &'a [String],
    /// What was seen.
    pub seen: &'a Seen,
}

/// How long an outcome may be unknown.
pub fn patience(ledger: &Ledger) -> Duration {
    ledger.unknown_after.map_or(UNKNOWN_AFTER, ShortDuration::get)
}

/// The condition.
pub fn reconciled(facts: &Facts<'_>) -> Finding {
    let Facts { ledger, guards, seen } = *facts;
    let table = format!("{}.{}", ledger.schema, ledger.table);
    let say = |truth, reason, text: String| Finding::new(on_boundary::RECONCILED, truth, reason, text);
    let counts = match seen {
        Seen::NotYet => return say(Truth::Unknown, reason::LEDGER_UNREAD, format!("ledger {table} was not read yet")),
        Seen::Unreadable(why) => {
            return say(Truth::Unknown, reason::LEDGER_UNREAD, format!("ledger {table} cannot be read: {why}"));
        }
        Seen::Counts(counts) => counts,
    };
    if !counts.triggers.iter().any(|trigger| guards.contains(trigger)) {
        let text = format!(
            "ledger {table} is not behind an enforcing guard of this lock, so an obsolete owner can write to it: list it in spec.postgres.tables of a \
             WriteBoundary of the lock, mode Enforce, in the ledger's database"
        );
        return say(Truth::False, reason::LEDGER_NOT_FENCED, text);
    }
    let after = ledger.unknown_after.map_or_else(|| "15m".to_owned(), |after| after.to_string());
    if counts.overdue > 0 {
        let example = counts.example.as_deref().map(|item| format!(", {:?} for the longest time", shorten(item, 80))).unwrap_or_default();
        let (operations, have) = if counts.overdue == 1 { ("operation", "has") } else { ("operations", "have") };
        let text = format!(
            "{} {operations} in ledger {table} {have} an unknown outcome for longer than {after}{example}: ask the receiver, and settle them (fencedlock \
             ledger)",
            counts.overdue
        );
        return say(Truth::False, reason::OUTCOMES_UNKNOWN, text);
    }
    if counts.repeated > 0 {
        let (items, were) = if counts.repeated == 1 { ("work item", "was") } else { ("work items", "were") };
        let text = format!(
            "{} {items} in ledger {table} {were} sent more than once and may have taken effect more than once: look at each with the receiver, make it \
             good, and settle it (fencedlock ledger)",
            counts.repeated
        );
        return say(Truth::False, reason::SENT_MORE_THAN_ONCE, text);
    }
    say(Truth::True, reason::RECONCILED, format!("no operation in ledger {table} has an unknown outcome for longer than {after}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_ledger_shows_has_one_meaning() {
        let ledger: Ledger = serde_json::from_value(
            json!({"connection": {"secretKeyRef": {"name": "s", "key": "url"}}, "schema": "public", "table": "charges"}),
        )
        .unwrap();
        let guards = ["fencedlock_a".to_owned()];
        let fine = Counts { triggers: guards.to_vec(), next: Some(Duration::from_secs(1)), ..Counts::default() };
        let overdue = Counts { overdue: 1, example: Some("invoice-7".into()), ..fine.clone() };
        let repeated = Counts { repeated: 2, ..fine.clone() };
        let stray = Counts { triggers: vec!["fencedlock_b".into()], ..overdue.clone() };
        let both = Counts { repeated: 1, ..overdue.clone() };
        for (seen, wanted) in [
            (Seen::NotYet, (Truth::Unknown, reason::LEDGER_UNREAD)),
            (Seen::Unreadable("gone".into()), (Truth::Unknown, reason::LEDGER_UNREAD)),
            (Seen::Counts(fine.clone()), (Truth::True, reason::RECONCILED)),
            (Seen::Counts(overdue.clone()), (Truth::False, reason::OUTCOMES_UNKNOWN)),
            (Seen::Counts(repeated), (Truth::False, reason::SENT_MORE_THAN_ONCE)),
            (Seen::Counts(both), (Truth::False, reason::OUTCOMES_UNKNOWN)),
            (Seen::Counts(stray), (Truth::False, reason::LEDGER_NOT_FENCED)),
        ] {
            let finding = reconciled(&Facts { ledger: &ledger, guards: &guards, seen: &seen });
            assert_eq!((finding.status, finding.reason), wanted, "{seen:?}");
        }
    }
}
