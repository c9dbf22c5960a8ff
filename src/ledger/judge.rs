//! What a ledger's state means for its boundary: the condition `Reconciled`. Pure.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::read::Counts;
use crate::api::{
    Ledger, ShortDuration,
    conditions::{Finding, Truth, boundary as on_boundary, reason, shorten},
};

/// The age at which an operation of unknown outcome is reported when nothing else is declared.
pub const UNKNOWN_AFTER: Duration = Duration::from_mins(15);

/// What is known of a ledger.
#[derive(Clone, Copy, Debug)]
pub enum Seen<'a> {
    /// Nothing yet.
    NotYet,
    /// It could not be read.
    Unreadable(&'a str),
    /// What it shows.
    Counts(&'a Counts),
}

/// Everything that the condition rests on.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// `spec.external.ledger`.
    pub ledger: &'a Ledger,
    /// The triggers of the enforcing guards that the lock's other boundaries declare on the table.
    pub guards: &'a [String],
    /// What was seen.
    pub seen: Seen<'a>,
    /// The time.
    pub now: Timestamp,
}

/// The condition, and when it changes by itself.
pub fn reconciled(facts: &Facts<'_>) -> (Finding, Option<Timestamp>) {
    let Facts { ledger, guards, seen, now } = *facts;
    let table = format!("{}.{}", ledger.schema, ledger.table);
    let say = |truth, reason, text: String| Finding::new(on_boundary::RECONCILED, truth, reason, text);
    let counts = match seen {
        Seen::NotYet => return (say(Truth::Unknown, reason::LEDGER_UNREAD, format!("ledger {table} was not read yet")), None),
        Seen::Unreadable(why) => {
            return (say(Truth::Unknown, reason::LEDGER_UNREAD, format!("ledger {table} cannot be read: {why}")), None);
        }
        Seen::Counts(counts) => counts,
    };
    if !counts.triggers.iter().any(|trigger| guards.contains(trigger)) {
        let text = format!(
            "ledger {table} is not behind an enforcing guard of this lock, so an obsolete owner can write to it: list it in spec.postgres.tables of a \
             WriteBoundary of the lock, mode Enforce, in the ledger's database"
        );
        return (say(Truth::False, reason::LEDGER_NOT_FENCED, text), None);
    }
    let patience = SignedDuration::try_from(ledger.unknown_after.map_or(UNKNOWN_AFTER, ShortDuration::get)).unwrap_or(SignedDuration::MAX);
    let due = counts.oldest.and_then(|oldest| oldest.checked_add(patience).ok());
    if due.is_some_and(|due| due <= now) {
        let example = counts.example.as_deref().map(|item| format!(", the oldest {:?}", shorten(item, 80))).unwrap_or_default();
        let (operations, are) = if counts.unsettled == 1 { ("operation", "is") } else { ("operations", "are") };
        let text = format!(
            "{} {operations} of unknown outcome {are} in ledger {table}{example}, some for longer than {}: ask the receiver, and settle them \
             (fencedlock ledger)",
            counts.unsettled,
            ledger.unknown_after.map_or_else(|| "15m".to_owned(), |after| after.to_string())
        );
        return (say(Truth::False, reason::OUTCOMES_UNKNOWN, text), None);
    }
    if counts.repeated > 0 {
        let (items, were) = if counts.repeated == 1 { ("work item", "was") } else { ("work items", "were") };
        let text = format!(
            "{} {items} in ledger {table} {were} sent more than once and may have taken effect more than once: look at each with the receiver, make it \
             good, and settle it (fencedlock ledger)",
            counts.repeated
        );
        return (say(Truth::False, reason::SENT_MORE_THAN_ONCE, text), None);
    }
    let open = match counts.unsettled {
        0 => "no operation has an unknown outcome".to_owned(),
        1 => "1 operation is under way".to_owned(),
        more => format!("{more} operations are under way"),
    };
    (say(Truth::True, reason::RECONCILED, format!("{open} in ledger {table}")), due)
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
        let at = |second| Timestamp::from_second(second).unwrap();
        let guards = ["fencedlock_a".to_owned()];
        let fine = Counts { triggers: guards.to_vec(), ..Counts::default() };
        let unknown = |since| Counts { unsettled: 1, oldest: Some(at(since)), example: Some("invoice-7".into()), ..fine.clone() };
        let repeated = Counts { repeated: 2, ..fine.clone() };
        let stray = Counts { triggers: vec!["fencedlock_b".into()], ..unknown(0) };
        let both = Counts { repeated: 1, ..unknown(99) };
        for (seen, wanted, until) in [
            (Seen::NotYet, (Truth::Unknown, reason::LEDGER_UNREAD), None),
            (Seen::Unreadable("gone"), (Truth::Unknown, reason::LEDGER_UNREAD), None),
            (Seen::Counts(&fine), (Truth::True, reason::RECONCILED), None),
            (Seen::Counts(&unknown(101)), (Truth::True, reason::RECONCILED), Some(at(1_001))),
            (Seen::Counts(&unknown(100)), (Truth::False, reason::OUTCOMES_UNKNOWN), None),
            (Seen::Counts(&repeated), (Truth::False, reason::SENT_MORE_THAN_ONCE), None),
            (Seen::Counts(&both), (Truth::False, reason::OUTCOMES_UNKNOWN), None),
            (Seen::Counts(&stray), (Truth::False, reason::LEDGER_NOT_FENCED), None),
        ] {
            let (finding, changes) = reconciled(&Facts { ledger: &ledger, guards: &guards, seen, now: at(1_000) });
            assert_eq!(((finding.status, finding.reason), changes), (wanted, until), "{seen:?}");
        }
    }
}
