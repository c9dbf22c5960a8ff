//! The ledger of what was asked of a receiver that cannot refuse an obsolete owner (design: boundaries.md section 5): a table in PostgreSQL,
//! guarded like every table of the lock, that says of each operation what is known of its outcome.
//!
//! Start with `ledger.sql`, which is the whole of the rules; [`Place::script`] fills it in. [`client`] is for workers in Rust, others call the
//! functions; [`read`] is what the operator and the command line see, and [`judge`] what it means. What must not come in: what a verdict says,
//! because a ledger refuses nobody.

use postgres_protocol::escape::{escape_identifier, escape_literal};
use thiserror::Error;

use crate::epoch::claim;

pub mod client;
pub mod judge;
pub mod read;

/// The longest name of a ledger's table, in bytes: what is made beside it is called after it, and PostgreSQL cuts names at 63.
pub const MAX_TABLE: usize = 50;

/// What is called after the table, with the end of its name.
const RELATIONS: [(&str, &str); 7] = [
    ("table", ""),
    ("settlements", "_settlements"),
    ("operations", "_operations"),
    ("repeated", "_repeated"),
    ("open_index", "_open_idx"),
    ("again_index", "_again_idx"),
    ("settlements_index", "_settled_idx"),
];
/// The functions, with their arguments and whose they are.
const FUNCTIONS: [(&str, &str, For); 7] = [
    ("owner", "text", For::Writers),
    ("begin", "text, text, interval, jsonb", For::Writers),
    ("sent", "text, int", For::Writers),
    ("resent", "text, int", For::Writers),
    ("ended", "text, int, text, text", For::Writers),
    ("reconciled", "text, int, text, text", For::Writers),
    ("settle", "text, int, text, text, text", For::Settlers),
];

/// Who may call a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum For {
    /// The workers, under their claim.
    Writers,
    /// People who find out what became of an operation.
    Settlers,
    /// Whoever only looks.
    Readers,
}

/// Where a ledger is, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    schema: String,
    table: String,
    /// `namespace/name`, as claims spell it.
    lock: String,
}

/// Why a table cannot be a ledger.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlaceError {
    /// Its name is too long.
    #[error(
        "spec.external.ledger.table: {0:?} has {1} bytes; at most {MAX_TABLE} are accepted, because views and functions are called after it"
    )]
    TooLong(String, usize),
}

/// The roles that a ledger is installed for.
#[derive(Clone, Debug, Default)]
pub struct Roles<'a> {
    /// Those that workers connect with.
    pub writers: &'a [String],
    /// Those of people who settle what is not known.
    pub settlers: &'a [String],
    /// Those that only look: the operator's.
    pub readers: &'a [String],
}

impl Place {
    /// The ledger in a table, of a lock.
    ///
    /// # Errors
    /// When the table's name leaves no room for what is called after it.
    pub fn new(schema: &str, table: &str, namespace: &str, lock: &str) -> Result<Self, PlaceError> {
        if table.len() > MAX_TABLE {
            return Err(PlaceError::TooLong(table.to_owned(), table.len()));
        }
        Ok(Self { schema: schema.to_owned(), table: table.to_owned(), lock: format!("{namespace}/{lock}") })
    }

    /// The quoted, qualified name of something that is called after the table.
    fn object(&self, end: &str) -> String {
        format!("{}.{}", escape_identifier(&self.schema), escape_identifier(&format!("{}{end}", self.table)))
    }

    fn function(&self, name: &str) -> String {
        self.object(&format!("_{name}"))
    }

    /// The SQL that makes the ledger, to be run by the owner of the table. Run again, it changes nothing but the functions.
    pub fn script(&self, roles: &Roles<'_>) -> String {
        let mut sql = include_str!("ledger.sql").to_owned();
        for (name, end) in RELATIONS {
            let object = if name.ends_with("index") { escape_identifier(&format!("{}{end}", self.table)) } else { self.object(end) };
            sql = sql.replace(&format!("@{name}@"), &object);
        }
        for (name, ..) in FUNCTIONS {
            sql = sql.replace(&format!("@{name}@"), &self.function(name));
        }
        let oid = format!("{}::regclass", escape_literal(&self.object("")));
        sql = sql.replace("@table_oid@", &oid).replace("@lock@", &escape_literal(&self.lock));
        sql = sql.replace("@prefix@", &escape_literal(&claim::prefix(&self.lock)));
        let (schema, views) = (escape_identifier(&self.schema), format!("{}, {}", self.object("_operations"), self.object("_repeated")));
        let granted = [(roles.writers, For::Writers), (roles.settlers, For::Settlers), (roles.readers, For::Readers)];
        let mut grants = Vec::new();
        for (role, whose) in granted.iter().flat_map(|(roles, whose)| roles.iter().map(move |role| (escape_identifier(role), *whose))) {
            grants.push(format!("grant usage on schema {schema} to {role};\ngrant select on {views} to {role};"));
            match whose {
                For::Writers => {
                    grants.push(format!("grant select, insert, update on {} to {role};", self.object("")));
                    grants.push(format!("grant select on {} to {role};", self.object("_settlements")));
                }
                // Who it was and when is the server's word.
                For::Settlers => {
                    grants.push(format!(
                        "grant insert (work_item, attempt, effect, settled_by, why) on {} to {role};",
                        self.object("_settlements")
                    ));
                }
                For::Readers => {}
            }
            for (name, arguments, _) in FUNCTIONS.iter().filter(|(.., of)| *of == whose) {
                grants.push(format!("grant execute on function {}({arguments}) to {role};", self.function(name)));
            }
        }
        format!("begin;\n\n{sql}\n{}\ncommit;\n", grants.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_in_the_script_has_its_name_and_nothing_is_left_open() {
        let place = Place::new("public", "charges", "team", "writer").unwrap();
        let (writers, settlers) = (["ap\"p".to_owned()], ["people".to_owned()]);
        let script = place.script(&Roles { writers: &writers, settlers: &settlers, readers: &[] });
        let placeholder = |line: &&str| {
            line.split('@').nth(1).is_some_and(|word| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
        };
        assert_eq!(script.lines().find(placeholder), None);
        for wanted in [
            "create or replace function \"public\".\"charges_begin\"(item text",
            "grant execute on function \"public\".\"charges_sent\"(text, int) to \"ap\"\"p\";",
            "grant execute on function \"public\".\"charges_settle\"(text, int, text, text, text) to \"people\";",
            "starts_with(c, 'team/writer=')",
        ] {
            assert!(script.contains(wanted), "{wanted}\n{script}");
        }
        assert!(!script.contains("\"charges_settle\"(text, int, text, text, text) to \"ap"), "workers settle under their claim only");
    }

    #[test]
    fn a_name_that_leaves_no_room_is_refused() {
        assert!(Place::new("public", &"t".repeat(MAX_TABLE), "team", "writer").is_ok());
        let error = Place::new("public", &"t".repeat(MAX_TABLE + 1), "team", "writer").unwrap_err().to_string();
        assert!(error.contains("spec.external.ledger.table") && error.contains("51 bytes"), "{error}");
        assert!(RELATIONS.iter().all(|(_, end)| MAX_TABLE + end.len() <= 63));
    }
}
