//! What the objects of one boundary are called in its database, and how their definitions are made from the templates beside this
//! file. Identifiers and literals are quoted by the driver's library.

use postgres_protocol::escape::{escape_identifier, escape_literal};
use sha2::Digest;

use crate::{api::GuardMode, boundary::digest::hash, epoch::claim};

/// The schema of everything that fencedlock installs.
pub(super) const SCHEMA: &str = "fencedlock";

/// The objects of a boundary, or of its canary, which is made from the same templates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Names {
    /// `namespace/name` of the boundary.
    pub(super) boundary: String,
    /// `namespace/name` of the lock, as claims spell it.
    pub(super) lock: String,
    /// What all names begin with.
    base: String,
}

/// What the name of every guard's trigger begins with.
pub(super) const TRIGGER: &str = "fencedlock_";

/// The plain name of the fence that a trigger belongs to.
pub(super) fn fence_of(trigger: &str) -> String {
    format!("{}_fence", trigger.strip_prefix(TRIGGER).unwrap_or(trigger))
}

/// The functions of a guard, by the end of their names.
pub(super) const FUNCTIONS: [&str; 3] = ["guard", "judge", "activate"];
const RELATIONS: [&str; 5] = ["fence", "epoch", "claim", "refused", "seen"];

/// The longest readable part of a name, in bytes. A name has at most 63.
const MAX_SLUG: usize = 24;

impl Names {
    /// The names of a boundary's objects: readable, and told apart by a hash of its namespace and name.
    pub(super) fn new(namespace: &str, boundary: &str, lock: &str) -> Self {
        let slug: String = boundary.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(MAX_SLUG).collect();
        let full = format!("{namespace}/{boundary}");
        let base = format!("{slug}_{}", &hash([full.as_str()])[..8]);
        Self { boundary: full, lock: format!("{namespace}/{lock}"), base }
    }

    /// The names of its canary.
    pub(super) fn canary(&self) -> Self {
        Self {
            boundary: self.boundary.clone(),
            lock: format!("fencedlock.dev/canary/{}", self.base),
            base: format!("{}_canary", self.base),
        }
    }

    /// The plain name of an object.
    pub(super) fn plain(&self, object: &str) -> String {
        format!("{}_{object}", self.base)
    }

    /// The quoted, qualified name of an object.
    pub(super) fn object(&self, object: &str) -> String {
        format!("{SCHEMA}.{}", escape_identifier(&self.plain(object)))
    }

    /// The name of the trigger on guarded tables.
    pub(super) fn trigger(&self) -> String {
        format!("{TRIGGER}{}", self.base)
    }

    /// What a claim for this lock begins with.
    pub(super) fn prefix(&self) -> String {
        claim::prefix(&self.lock)
    }

    /// A number for advisory locks about this boundary.
    pub(super) fn key(&self) -> i32 {
        let digest = sha2::Sha256::digest(self.base.as_bytes());
        i32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
    }
}

/// Everything that the templates are filled with.
#[derive(Clone, Debug)]
pub(super) struct Template {
    pub(super) names: Names,
    pub(super) mode: GuardMode,
    /// The operator's role: what it tries is not counted.
    pub(super) operator: String,
    /// Defects that a test switches on: what is replaced by what in every function.
    pub(super) defects: Defects,
}

/// Texts of the templates and what stands in their place.
pub(super) type Defects = Vec<(String, String)>;

impl Template {
    /// What stands for which text, the longest first so that no placeholder is part of another.
    fn pairs(&self) -> Vec<(String, String)> {
        let names = &self.names;
        let mut pairs = Vec::new();
        for object in RELATIONS {
            let literal = escape_literal(&names.object(object));
            pairs.push((format!("@{object}_oid@"), format!("{literal}::regclass")));
        }
        for object in RELATIONS.into_iter().chain(FUNCTIONS).chain(["reset", "thing"]) {
            pairs.push((format!("@schema@.@{object}@"), names.object(object)));
        }
        pairs.push(("@prefix@".into(), escape_literal(&names.prefix())));
        pairs.push(("@boundary@".into(), escape_literal(&names.boundary)));
        pairs.push(("@lock@".into(), escape_literal(&names.lock)));
        pairs
    }

    fn fill(&self, template: &str) -> String {
        let named = self.pairs().iter().fold(template.to_owned(), |text, (placeholder, value)| text.replace(placeholder, value));
        named.replace("@operator@", &escape_literal(&self.operator))
    }

    /// A text with the names taken out again, so that what was made from one template is equal. The operator's role stays in it: a guard
    /// that was installed by another role is another version, and was not altered.
    fn normalise(&self, text: &str) -> String {
        self.pairs().iter().fold(text.to_owned(), |text, (placeholder, value)| text.replace(value, placeholder))
    }

    /// Tables and sequences.
    pub(super) fn objects(&self) -> String {
        self.fill(include_str!("guard.sql"))
    }

    /// The body of a function.
    pub(super) fn body(&self, function: &str) -> String {
        let template = match (function, self.mode) {
            ("guard", GuardMode::Enforce) => include_str!("guard_enforce.plpgsql"),
            ("guard", GuardMode::Observe) => include_str!("guard_observe.plpgsql"),
            ("judge", GuardMode::Enforce) => include_str!("judge_enforce.plpgsql"),
            ("judge", GuardMode::Observe) => include_str!("judge_observe.plpgsql"),
            _ => include_str!("activate.plpgsql"),
        };
        self.fill(&self.defects.iter().fold(template.to_owned(), |text, (right, wrong)| text.replace(right, wrong)))
    }

    /// The functions.
    pub(super) fn functions(&self) -> String {
        FUNCTIONS.into_iter().fold(self.fill(include_str!("functions.sql")), |text, function| {
            text.replace(&format!("@{function}_body@"), &escape_literal(&self.body(function)))
        })
    }

    /// What only a canary has: something to write to, and the way back to the beginning.
    pub(super) fn canary(&self, trigger: &str) -> String {
        let body = self.fill(include_str!("reset.plpgsql"));
        self.fill(include_str!("canary.sql")).replace("@reset_body@", &escape_literal(&body)).replace("@trigger@", trigger)
    }

    /// The trigger on a table, in place of the one that may be there.
    pub(super) fn trigger(&self, table: &str) -> String {
        let (name, guard) = (escape_identifier(&self.names.trigger()), self.names.object("guard"));
        format!(
            "create or replace trigger {name} before insert or update or delete or truncate on {table} for each statement execute function \
             {guard}();\nalter table {table} enable always trigger {name};"
        )
    }

    /// The hash of a guard whose functions have these bodies.
    pub(super) fn hash<'a>(&self, bodies: impl IntoIterator<Item = &'a str>) -> String {
        let bodies: Vec<_> = bodies.into_iter().map(|body| self.normalise(body)).collect();
        format!("sha256:{}", hash(bodies.iter().map(String::as_str)))
    }

    /// The hash that it has when it is as it should be.
    pub(super) fn expected_hash(&self) -> String {
        let bodies = FUNCTIONS.map(|function| self.body(function));
        self.hash(bodies.iter().map(String::as_str))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(names: Names, mode: GuardMode) -> Template {
        Template { names, mode, operator: "o'perator".into(), defects: Vec::new() }
    }

    #[test]
    fn no_placeholder_is_left_and_names_fit() {
        let names = Names::new("team'a", &"report-db.".repeat(20), "lock\"x");
        for mode in [GuardMode::Observe, GuardMode::Enforce] {
            for names in [names.clone(), names.canary()] {
                let template = template(names.clone(), mode);
                for text in [template.objects(), template.functions(), template.canary("t"), template.trigger("a.b")] {
                    let code = text.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n");
                    let is_word = |word: &&str| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
                    assert_eq!(code.split('@').skip(1).find(is_word), None, "{code}");
                }
                for object in RELATIONS.into_iter().chain(FUNCTIONS).chain(["reset", "thing"]) {
                    assert!(names.plain(object).len() <= 63 && names.trigger().len() <= 63);
                }
            }
        }
    }

    /// The canary's guard is the boundary's guard: made from one template, and the same once the names are taken out.
    #[test]
    fn guard_and_canary_have_one_hash_and_any_change_another() {
        let names = Names::new("team", "report-db", "report-writer");
        let (real, canary) = (template(names.clone(), GuardMode::Enforce), template(names.canary(), GuardMode::Enforce));
        assert_eq!(real.expected_hash(), canary.expected_hash());
        assert_ne!(real.expected_hash(), template(names, GuardMode::Observe).expected_hash());
        let other = Template { operator: "other".into(), ..real.clone() };
        let bodies = FUNCTIONS.map(|f| real.body(f));
        assert_eq!(other.hash(bodies.iter().map(String::as_str)), real.expected_hash(), "as it was installed");
        assert_ne!(other.expected_hash(), real.expected_hash(), "and not as it would be now");
        let changed = FUNCTIONS.map(|f| real.body(f).replace("return null", "return  null"));
        assert_ne!(real.hash(changed.iter().map(String::as_str)), real.expected_hash());
    }

    #[test]
    fn boundaries_that_look_alike_have_names_of_their_own() {
        let one = Names::new("team", "report-db", "w");
        assert_ne!(one.plain("fence"), Names::new("team", "report_db", "w").plain("fence"));
        assert_ne!(one.plain("fence"), Names::new("team2", "report-db", "w").plain("fence"));
        assert_eq!(one.prefix(), "team/w=");
    }
}
