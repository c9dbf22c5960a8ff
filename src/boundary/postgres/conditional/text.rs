//! What the text of a declared statement already shows to be wrong, for the audit of manifests. Pure, and of the same parser that decides what is
//! run: no database is asked, so that what the catalogue shows (types, rights, triggers) is not here.

use super::statement::{Compares, Refused, parsed, take_a_lock, take_apart};
use crate::api::{ConditionalUpdate, PostgresTable, WritesPerEpoch};

/// A mistake that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// An advisory lock is no boundary.
    Lock,
    /// A SELECT decides, in a statement of its own or in a sub-query.
    SelectDecides,
    /// Nothing is compared, or what was compared is not stored.
    Unconditional,
    /// An equal epoch passes, and one write per epoch is declared.
    EqualPasses,
    /// An equal epoch does not pass, and many writes are declared.
    EqualRefused,
    /// A form that is never proven.
    NotProvable,
}

/// The first mistake in a statement, with the end of a sentence that names its field.
pub(crate) fn mistake(declared: &ConditionalUpdate, tables: &[PostgresTable], writes: WritesPerEpoch) -> Option<(Mistake, String)> {
    let say = |mistake, why: String| Some((mistake, why));
    let statements = match parsed(&declared.statement) {
        Ok(statements) => statements,
        Err(why) => return say(Mistake::NotProvable, why),
    };
    if take_a_lock(&statements) {
        let why = "takes an advisory lock: a lock tells who may write and refuses no write; declare the statement that writes, with the comparison in it";
        return say(Mistake::Lock, why.into());
    }
    let statement = match take_apart(statements, declared, tables, writes) {
        Ok(statement) => statement,
        Err(why @ Refused::SelectThenUpdate) => {
            let why = why.to_string();
            return say(Mistake::SelectDecides, why.split_once(": ").map_or(why.as_str(), |(_, why)| why).to_owned());
        }
        Err(why) => return say(Mistake::NotProvable, why.to_string()),
    };
    let (fence, epoch) = (&declared.fence_column, declared.parameters.epoch);
    match (statement.compares, writes) {
        (Compares::Not, _) => say(Mistake::Unconditional, format!("compares nothing with the epoch: add AND {fence} < ${epoch}")),
        (Compares::Elsewhere, _) => say(
            Mistake::SelectDecides,
            "reads the fence by a sub-query, which is not read again when the statement had to wait for its row: keep the fence in the row that is written"
                .into(),
        ),
        _ if !statement.stores => {
            say(Mistake::Unconditional, format!("compares with {fence} and never stores the epoch there: add SET {fence} = ${epoch}"))
        }
        (Compares::LessOrEqual, WritesPerEpoch::Once) => say(
            Mistake::EqualPasses,
            format!("compares with <=, so an equal epoch passes, and spec.writesPerEpoch says Once: write {fence} < ${epoch}, or declare Many"),
        ),
        (Compares::Less, WritesPerEpoch::Many) => say(
            Mistake::EqualRefused,
            format!(
                "compares with <, so the owner's second write is refused, and spec.writesPerEpoch says Many: write {fence} <= ${epoch} AND ${epoch} > 0, or declare Once"
            ),
        ),
        _ => statement.undecided.map(|why| (Mistake::NotProvable, why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(statement: &str, writes: WritesPerEpoch) -> Option<Mistake> {
        let declared = json!({"statement": statement, "parameters": {"key": 1, "payload": 2, "epoch": 3}, "fenceColumn": "last_fence"});
        let tables = [PostgresTable { schema: "public".into(), name: "report".into() }];
        mistake(&serde_json::from_value(declared).unwrap(), &tables, writes).map(|(mistake, _)| mistake)
    }

    /// Cases C06 (a text comparison), C07 (two steps), D05 (an advisory lock), D08 (a version of its own), E08 (equality).
    #[test]
    fn each_mistake_is_told_from_the_text() {
        use WritesPerEpoch::{Many, Once};
        let upsert = |fence: &str, stored: &str, compares: &str| {
            format!(
                "INSERT INTO report (id, payload, last_fence) VALUES ($1, $2, {fence}) ON CONFLICT (id) DO UPDATE \
                 SET payload = excluded.payload, last_fence = {stored} WHERE {compares}"
            )
        };
        let set = "UPDATE report SET payload = $2, last_fence = $3 WHERE id = $1";
        for (statement, writes, expected) in [
            (format!("{set} AND last_fence < $3 RETURNING id"), Once, None),
            (format!("{set} AND last_fence <= $3 AND $3 > 0 RETURNING id"), Many, None),
            (format!("{set} AND last_fence <= $3 RETURNING id"), Once, Some(Mistake::EqualPasses)),
            (format!("{set} AND last_fence < $3 RETURNING id"), Many, Some(Mistake::EqualRefused)),
            (format!("{set} RETURNING id"), Once, Some(Mistake::Unconditional)),
            ("UPDATE report SET payload = $2 WHERE id = $1 AND last_fence < $3".into(), Once, Some(Mistake::Unconditional)),
            (
                "UPDATE report SET payload = $2, last_fence = last_fence + 1 WHERE id = $1 AND last_fence < $3".into(),
                Once,
                Some(Mistake::Unconditional),
            ),
            (
                "SELECT last_fence FROM report WHERE id = $1; UPDATE report SET payload = $2, last_fence = $3 WHERE id = $1".into(),
                Once,
                Some(Mistake::SelectDecides),
            ),
            (format!("{set} AND (SELECT last_fence FROM report WHERE id = $1) < $3"), Once, Some(Mistake::SelectDecides)),
            (format!("{set} AND last_fence = $3"), Once, Some(Mistake::NotProvable)),
            (format!("{set} AND last_fence::text < $3::text"), Once, Some(Mistake::NotProvable)),
            ("SELECT pg_advisory_xact_lock($1)".into(), Once, Some(Mistake::Lock)),
            (format!("{set} AND last_fence < $3 AND pg_catalog.PG_TRY_advisory_lock(7)"), Once, Some(Mistake::Lock)),
            (format!("{set} AND last_fence < $3 AND payload <> 'pg_advisory_lock'"), Once, None),
            (format!("{set} AND last_fence < $3 OR true"), Once, Some(Mistake::NotProvable)),
            (format!("{set} AND last_fence BETWEEN 0 AND $3"), Once, Some(Mistake::NotProvable)),
            (format!("{set} AND last_fence < $3 + 1"), Once, Some(Mistake::NotProvable)),
            (format!("{set} AND last_fence > $3"), Once, Some(Mistake::NotProvable)),
            (format!("{set} AND last_fence < $3; UPDATE report SET payload = $2"), Once, Some(Mistake::NotProvable)),
            ("DELETE FROM report WHERE id = $1".into(), Once, Some(Mistake::NotProvable)),
            (format!("{set} AND last_fence < $3{}", " AND true".repeat(480)), Once, None),
            (upsert("$3", "$3", "report.last_fence < excluded.last_fence"), Once, None),
            (upsert("$3::bigint", "excluded.last_fence", "report.last_fence < $3"), Once, None),
            (upsert("9223372036854775807", "$3", "report.last_fence < excluded.last_fence"), Once, Some(Mistake::NotProvable)),
            (upsert("0", "excluded.last_fence", "report.last_fence < $3"), Once, Some(Mistake::NotProvable)),
            (upsert("0", "$3", "report.last_fence < $3"), Once, Some(Mistake::NotProvable)),
            (upsert("CASE WHEN $2 = 'x' THEN 9 ELSE $3 END", "$3", "report.last_fence < excluded.last_fence"), Once, Some(Mistake::NotProvable)),
            (
                "INSERT INTO report (id, payload) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET payload = $2, last_fence = $3 WHERE report.last_fence < $3".into(),
                Once,
                Some(Mistake::NotProvable),
            ),
            (format!("{set} AND last_fence < $3{}", " AND true".repeat(600)), Once, Some(Mistake::NotProvable)),
            ("UPDAT report".into(), Once, Some(Mistake::NotProvable)),
        ] {
            assert_eq!(of(&statement, writes), expected, "{statement}");
        }
    }
}
