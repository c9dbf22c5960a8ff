//! The CustomResourceDefinitions: generated from the Rust types, with what the derive cannot say added afterwards.
//!
//! Start with [`all`]. Each validation rule is one row of [`RULES`]; the tests on a real API server walk the same table, so
//! a rule without an accepted and a refused object fails them.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Map, Value, json};
use thiserror::Error;

use super::{FencedLock, WriteBoundary};

/// A CEL rule of a CRD's schema.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The plural of the kind.
    pub plural: &'static str,
    /// Where it stands: property names, `[]` for the items of a list; empty is the object itself.
    pub at: &'static str,
    /// The expression.
    pub rule: &'static str,
    /// What the user reads, unless the expression makes the message.
    pub message: &'static str,
}

const LOCKS: &str = "fencedlocks";
const BOUNDARIES: &str = "writeboundaries";

/// `\S` alone is ASCII's to the API server's CEL and Unicode's to the offline one; this is the same to both.
const NOT_BLANK: &str = r"self.matches('[^\\s\\p{Z}\\p{Cc}\\p{Cf}]')";
const MUST_NOT_BE_BLANK: &str = "must not be blank";
const DNS_SUBDOMAIN: &str = "!format.dns1123Subdomain().validate(self).hasValue()";
const MUST_BE_SUBDOMAIN: &str =
    "must be a DNS subdomain: at most 253 of a-z, 0-9, '-' and '.', with a letter or digit at each end of each part";
const DNS_LABEL: &str = "!format.dns1123Label().validate(self).hasValue()";
const MUST_BE_LABEL: &str = "must be a DNS label: at most 63 of a-z, 0-9 and '-', with a letter or digit at each end";
const IMMUTABLE: &str = "self == oldSelf";

/// Every CEL rule of both kinds (design: api.md). Most were tried by hand on a real API server first.
pub const RULES: &[Rule] = &[
    // --- FencedLock: the transitions of epoch and grant (protocol section 6, invariants 1 and 2)
    Rule {
        plural: LOCKS,
        at: "",
        rule: "!has(oldSelf.status) || !has(oldSelf.status.epoch) || (has(self.status) && has(self.status.epoch) && self.status.epoch >= oldSelf.status.epoch)",
        message: "status.epoch never decreases",
    },
    Rule {
        plural: LOCKS,
        at: "",
        rule: "!has(self.status) || !has(self.status.grant) || (has(self.status.epoch) && self.status.grant.epoch == self.status.epoch)",
        message: "a grant carries the newest epoch",
    },
    Rule {
        plural: LOCKS,
        at: "",
        rule: "!has(self.status) || !has(self.status.grant) || !has(oldSelf.status) || !has(oldSelf.status.epoch) \
               || self.status.grant.epoch > oldSelf.status.epoch || (has(oldSelf.status.grant) \
               && oldSelf.status.grant.epoch == self.status.grant.epoch && oldSelf.status.grant.holder == self.status.grant.holder \
               && !(oldSelf.status.grant.state == 'Active' && self.status.grant.state == 'Pending'))",
        message: "an epoch is granted once, to one holder, and Active does not go back",
    },
    Rule {
        plural: LOCKS,
        at: "",
        rule: "!has(self.status) || !has(self.status.revoked) || (!has(self.status.grant) && has(self.status.epoch) \
               && self.status.revoked.epoch == self.status.epoch)",
        message: "a revocation carries the newest epoch, and there is no grant beside it",
    },
    Rule {
        plural: LOCKS,
        at: "",
        rule: "!has(self.status) || !has(self.status.revoked) || !has(oldSelf.status) || !has(oldSelf.status.epoch) \
               || self.status.revoked.epoch > oldSelf.status.epoch || (has(oldSelf.status.revoked) \
               && oldSelf.status.revoked.epoch == self.status.revoked.epoch \
               && !(oldSelf.status.revoked.state == 'Active' && self.status.revoked.state == 'Pending'))",
        message: "an epoch of nobody was nobody's before, and Active does not go back",
    },
    Rule {
        plural: LOCKS,
        at: "",
        rule: "!has(self.status) || !has(self.status.epoch) || self.status.epoch == self.spec.epochFloor + 1 \
               || self.status.epoch <= (has(oldSelf.status) && has(oldSelf.status.epoch) ? oldSelf.status.epoch : 0) + 1099511627776",
        message: "an epoch does not jump by more than 2^40, except to spec.epochFloor + 1",
    },
    // --- FencedLock: the declaration
    Rule { plural: LOCKS, at: "spec.purpose", rule: NOT_BLANK, message: MUST_NOT_BE_BLANK },
    Rule {
        plural: LOCKS,
        at: "spec.coordinator",
        rule: "has(self.lease) != has(self.external)",
        message: "exactly one of lease and external must be set",
    },
    Rule { plural: LOCKS, at: "spec.coordinator.lease.name", rule: DNS_SUBDOMAIN, message: MUST_BE_SUBDOMAIN },
    Rule { plural: LOCKS, at: "spec.coordinator.lease.podNamespace", rule: DNS_LABEL, message: MUST_BE_LABEL },
    Rule { plural: LOCKS, at: "spec.coordinator.external.system", rule: NOT_BLANK, message: MUST_NOT_BE_BLANK },
    Rule { plural: LOCKS, at: "spec.writeBoundaries.[]", rule: DNS_SUBDOMAIN, message: MUST_BE_SUBDOMAIN },
    Rule { plural: LOCKS, at: "spec.revoke.reason", rule: NOT_BLANK, message: MUST_NOT_BE_BLANK },
    // --- WriteBoundary: which fields go together
    Rule {
        plural: BOUNDARIES,
        at: "spec",
        rule: "has(self.postgres) == (self.type == 'Postgres') && has(self.kubernetes) == (self.type == 'Kubernetes') \
               && has(self.external) == (self.type == 'External')",
        message: "exactly the member that type names must be set: postgres, kubernetes or external",
    },
    Rule {
        plural: BOUNDARIES,
        at: "spec",
        rule: "!has(self.mode) || !(self.type == 'External' || (has(self.postgres) && has(self.postgres.conditionalUpdate)))",
        message: "mode must be absent for External and for conditionalUpdate: there is no guard of ours to switch",
    },
    Rule {
        plural: BOUNDARIES,
        at: "spec",
        rule: "has(self.writesPerEpoch) || !(has(self.postgres) && has(self.postgres.conditionalUpdate))",
        message: "writesPerEpoch is required with conditionalUpdate: Once for a strict comparison, Many for one that lets equal epochs through, Sequenced",
    },
    Rule {
        plural: BOUNDARIES,
        at: "spec",
        rule: "!has(self.writesPerEpoch) || (has(self.postgres) && (has(self.postgres.conditionalUpdate) || self.writesPerEpoch == 'Many')) \
               || (has(self.kubernetes) && self.writesPerEpoch == (self.kubernetes.claim == 'Annotation' ? 'Sequenced' : 'Many'))",
        message: "writesPerEpoch must be what the backend gives: managed PostgreSQL and PodIdentity give Many, Annotation gives Sequenced, External has none",
    },
    Rule {
        plural: BOUNDARIES,
        at: "spec",
        rule: "!has(self.riskAcceptance) || (self.type == 'External' ? self.riskAcceptance.covers.all(c, c == 'CannotEnforce') \
               : self.type == 'Postgres' ? self.riskAcceptance.covers.all(c, c in ['FailoverMayForget', 'EpochNotBounded', 'EpochNotBoundToHolder', 'NobodyNotRefused']) \
               : self.riskAcceptance.covers.all(c, c in ['CreateNotFenced', 'ScaleNotFenced', 'WholeObjectWritersRefused']))",
        message: "riskAcceptance.covers names what cannot happen with this type: External has CannotEnforce; Postgres FailoverMayForget, EpochNotBounded, \
                  EpochNotBoundToHolder and NobodyNotRefused; Kubernetes CreateNotFenced, ScaleNotFenced and WholeObjectWritersRefused",
    },
    Rule { plural: BOUNDARIES, at: "spec.lockRef", rule: IMMUTABLE, message: "lockRef is immutable: create another WriteBoundary" },
    Rule { plural: BOUNDARIES, at: "spec.lockRef.name", rule: DNS_SUBDOMAIN, message: MUST_BE_SUBDOMAIN },
    Rule { plural: BOUNDARIES, at: "spec.type", rule: IMMUTABLE, message: "type is immutable: create another WriteBoundary" },
    Rule {
        plural: BOUNDARIES,
        at: "spec.proof",
        rule: "!has(self.interval) || !self.interval.matches('^([0-9]{1,5}(h|m|s|ms)){1,4}$') || duration(self.interval) >= duration('10s')",
        message: "interval must be at least 10s",
    },
    Rule {
        plural: BOUNDARIES,
        at: "spec.proof",
        rule: "!has(self.maxAge) || duration(self.maxAge) >= (has(self.interval) ? duration(self.interval) : duration('5m'))",
        message: "maxAge must not be shorter than interval (5m when absent): a proof would expire before it is repeated",
    },
    Rule { plural: BOUNDARIES, at: "spec.riskAcceptance.acceptedBy", rule: NOT_BLANK, message: MUST_NOT_BE_BLANK },
    Rule { plural: BOUNDARIES, at: "spec.riskAcceptance.reason", rule: NOT_BLANK, message: MUST_NOT_BE_BLANK },
    Rule {
        plural: BOUNDARIES,
        at: "spec.riskAcceptance.expires",
        rule: "self < timestamp('9999-01-01T00:00:00Z')",
        message: "must be before the year 9999: an acceptance ends",
    },
    Rule { plural: BOUNDARIES, at: "spec.riskAcceptance.compensation", rule: NOT_BLANK, message: MUST_NOT_BE_BLANK },
    // --- WriteBoundary: PostgreSQL
    Rule { plural: BOUNDARIES, at: "spec.postgres.connection.secretKeyRef.name", rule: DNS_SUBDOMAIN, message: MUST_BE_SUBDOMAIN },
    Rule {
        plural: BOUNDARIES,
        at: "spec.postgres.connection.secretKeyRef.key",
        rule: "self.matches('^[-._a-zA-Z0-9]+$')",
        message: "must be a Secret's key: letters, digits, '-', '_' and '.'",
    },
    Rule {
        plural: BOUNDARIES,
        at: "spec.postgres.conditionalUpdate",
        rule: "has(self.holderColumn) == has(self.parameters.holder)",
        message: "holderColumn and parameters.holder go together",
    },
    Rule {
        plural: BOUNDARIES,
        at: "spec.postgres.conditionalUpdate.parameters",
        rule: "self.key != self.payload && self.key != self.epoch && self.payload != self.epoch \
               && (!has(self.holder) || !(self.holder in [self.key, self.payload, self.epoch]))",
        message: "each parameter has a number of its own",
    },
    Rule { plural: BOUNDARIES, at: "spec.postgres.conditionalUpdate.statement", rule: NOT_BLANK, message: MUST_NOT_BE_BLANK },
    Rule { plural: BOUNDARIES, at: "spec.postgres.exemptRoles.[].reason", rule: NOT_BLANK, message: MUST_NOT_BE_BLANK },
    // --- WriteBoundary: Kubernetes
    Rule {
        plural: BOUNDARIES,
        at: "spec.kubernetes.targets.[]",
        rule: "has(self.names) != has(self.selector)",
        message: "exactly one of names and selector must be set",
    },
    Rule {
        plural: BOUNDARIES,
        at: "spec.kubernetes.targets.[]",
        rule: "!(has(self.group) && self.group == 'coordination.k8s.io')",
        message: "Leases cannot be targets: fencing them could stop elections",
    },
    Rule {
        plural: BOUNDARIES,
        at: "spec.kubernetes.targets.[].selector",
        // One requirement that is not a negation: a key alone, a value of it, or several. What stands in brackets is no requirement.
        rule: r"self.matches('^([^(),]*(\\([^()]*\\))?,)*\\s*[A-Za-z0-9][-A-Za-z0-9_./]*(\\s*(,|=|$)|\\s+in\\s*\\()')",
        message: "must name a label that the targets carry: one that only excludes matches everything else in the namespace",
    },
    Rule {
        plural: BOUNDARIES,
        at: "spec.kubernetes.targets.[].group",
        rule: "self == '' || !format.dns1123Subdomain().validate(self).hasValue()",
        message: "must be empty, for the core group, or a DNS subdomain",
    },
    Rule { plural: BOUNDARIES, at: "spec.kubernetes.targets.[].resource", rule: DNS_SUBDOMAIN, message: MUST_BE_SUBDOMAIN },
    Rule { plural: BOUNDARIES, at: "spec.kubernetes.targets.[].names.[]", rule: NOT_BLANK, message: MUST_NOT_BE_BLANK },
    Rule { plural: BOUNDARIES, at: "spec.kubernetes.statusWriters.[].reason", rule: NOT_BLANK, message: MUST_NOT_BE_BLANK },
    Rule {
        plural: BOUNDARIES,
        at: "spec.kubernetes.exemptSubjects.[]",
        rule: "has(self.user) != has(self.group)",
        message: "exactly one of user and group must be set",
    },
    Rule { plural: BOUNDARIES, at: "spec.kubernetes.exemptSubjects.[].reason", rule: NOT_BLANK, message: MUST_NOT_BE_BLANK },
    Rule { plural: BOUNDARIES, at: "spec.kubernetes.exemptions.[].reason", rule: NOT_BLANK, message: MUST_NOT_BE_BLANK },
    // --- WriteBoundary: external receivers
    Rule { plural: BOUNDARIES, at: "spec.external.receiver", rule: NOT_BLANK, message: MUST_NOT_BE_BLANK },
    Rule {
        plural: BOUNDARIES,
        at: "spec.external.idempotencyKey.template",
        rule: "self.contains('{workItem}')",
        message: "must name the work item: put {workItem} in it",
    },
    Rule {
        plural: BOUNDARIES,
        at: "spec.external.idempotencyKey.template",
        rule: r"self.matches('^([^{}]|\\{(workItem|lock|namespace)\\})*$')",
        message: "placeholders are {workItem}, {lock} and {namespace}; not the epoch: a new owner that repeats the work would get a new key",
    },
    Rule { plural: BOUNDARIES, at: "spec.external.ledger.connection.secretKeyRef.name", rule: DNS_SUBDOMAIN, message: MUST_BE_SUBDOMAIN },
];

/// Lists whose items are told apart by keys, for server-side apply.
const LIST_MAPS: &[(&str, &str, &[&str])] = &[
    (LOCKS, "status.conditions", &["type"]),
    (LOCKS, "status.boundaries", &["name"]),
    (LOCKS, "status.recentOwners", &["podUid"]),
    (BOUNDARIES, "status.conditions", &["type"]),
    (BOUNDARIES, "status.limits", &["name"]),
    (BOUNDARIES, "status.proof.probes", &["name"]),
    (BOUNDARIES, "spec.postgres.tables", &["schema", "name"]),
    (BOUNDARIES, "spec.postgres.exemptRoles", &["role"]),
    (BOUNDARIES, "spec.kubernetes.statusWriters", &["user"]),
    (BOUNDARIES, "spec.kubernetes.exemptions", &["user"]),
];

/// Lists that are sets.
const LIST_SETS: &[(&str, &str)] = &[
    (LOCKS, "spec.writeBoundaries"),
    (BOUNDARIES, "spec.riskAcceptance.covers"),
    (BOUNDARIES, "spec.postgres.writerRoles"),
    (BOUNDARIES, "spec.kubernetes.containers"),
    (BOUNDARIES, "spec.kubernetes.targets.[].names"),
];

/// Why the CRDs could not be made: the types and the tables above contradict each other. A test rules it out.
#[derive(Debug, Error)]
pub enum CrdError {
    /// A table names a place that the schema does not have.
    #[error("the schema of {plural} has no {at:?}")]
    NoSuchPlace {
        /// The kind.
        plural: &'static str,
        /// The place.
        at: String,
    },
    /// The result is no CustomResourceDefinition.
    #[error("not a CustomResourceDefinition: {0}")]
    Json(#[from] serde_json::Error),
    /// The result could not be written as YAML.
    #[error("not YAML: {0}")]
    Yaml(#[from] serde_saphyr::ser::Error),
}

/// Both CustomResourceDefinitions, complete.
///
/// # Errors
/// When the types and this module's tables contradict each other.
pub fn all() -> Result<Vec<CustomResourceDefinition>, CrdError> {
    [(LOCKS, FencedLock::crd()), (BOUNDARIES, WriteBoundary::crd())].into_iter().map(|(plural, crd)| complete(plural, &crd)).collect()
}

/// A CustomResourceDefinition as the committed file has it.
///
/// # Errors
/// When it cannot be written as YAML.
pub fn to_yaml(crd: &CustomResourceDefinition) -> Result<String, CrdError> {
    let mut value = serde_json::to_value(crd)?;
    whole_numbers(&mut value);
    let text = serde_saphyr::to_string(&value)?;
    Ok(format!("# Generated by `fencedlock crds` from the Rust types; do not edit.\n{text}"))
}

/// The name of the committed file of a CustomResourceDefinition.
pub fn file_name(crd: &CustomResourceDefinition) -> String {
    format!("{}_{}.yaml", crd.spec.group, crd.spec.names.plural)
}

/// Kubernetes' schema type keeps bounds as floats; people read `minimum: 1`, not `1.0`.
fn whole_numbers(value: &mut Value) {
    match value {
        Value::Object(map) => map.values_mut().for_each(whole_numbers),
        Value::Array(items) => items.iter_mut().for_each(whole_numbers),
        Value::Number(number) =>
        {
            #[expect(clippy::cast_possible_truncation, reason = "bounds are integers below 2^53")]
            if let Some(float) = number.as_f64().filter(|f| number.is_f64() && f.fract() == 0.0) {
                *number = (float as i64).into();
            }
        }
        _ => {}
    }
}

/// Adds to a derived CRD what the derive cannot say.
fn complete(plural: &'static str, crd: &CustomResourceDefinition) -> Result<CustomResourceDefinition, CrdError> {
    let mut value = serde_json::to_value(crd)?;
    let schema = value
        .pointer_mut("/spec/versions/0/schema/openAPIV3Schema")
        .ok_or_else(|| CrdError::NoSuchPlace { plural, at: "openAPIV3Schema".into() })?;
    tidy(schema);
    bound_conditions(plural, schema)?;
    let place = |at: &str| CrdError::NoSuchPlace { plural, at: at.into() };
    for rule in RULES.iter().filter(|rule| rule.plural == plural) {
        let node = find(schema, rule.at).ok_or_else(|| place(rule.at))?;
        let rules = node.entry("x-kubernetes-validations").or_insert_with(|| json!([]));
        if let Value::Array(rules) = rules {
            rules.push(json!({"rule": rule.rule, "message": rule.message}));
        }
    }
    for (_, at, keys) in LIST_MAPS.iter().filter(|(of, ..)| *of == plural) {
        let node = find(schema, at).ok_or_else(|| place(at))?;
        node.insert("x-kubernetes-list-type".into(), json!("map"));
        node.insert("x-kubernetes-list-map-keys".into(), json!(keys));
    }
    for (_, at) in LIST_SETS.iter().filter(|(of, _)| *of == plural) {
        find(schema, at).ok_or_else(|| place(at))?.insert("x-kubernetes-list-type".into(), json!("set"));
    }
    // Schema default of a status nobody has written yet: a tool that waits for Ready waits.
    find(schema, "status").ok_or_else(|| place("status"))?.insert(
        "default".into(),
        json!({"conditions": [{
            "type": super::conditions::lock::READY,
            "status": "Unknown",
            "reason": super::conditions::reason::PENDING,
            "message": "Waiting for the operator: is it installed and running?",
            "lastTransitionTime": "1970-01-01T00:00:00Z",
        }]}),
    );
    Ok(serde_json::from_value(value)?)
}

/// The schema node at a place such as `spec.tables.[].name`.
fn find<'a>(schema: &'a mut Value, at: &str) -> Option<&'a mut Map<String, Value>> {
    let mut node = schema;
    for step in at.split('.').filter(|step| !step.is_empty()) {
        node = match step {
            "[]" => node.get_mut("items")?,
            name => node.get_mut("properties")?.get_mut(name)?,
        };
    }
    node.as_object_mut()
}

/// Optionals are absent, never null; integers are int64 or int32; schemars' own notes go.
fn tidy(schema: &mut Value) {
    match schema {
        Value::Object(node) => {
            node.remove("nullable");
            if let Some(Value::String(format)) = node.get_mut("format") {
                match format.as_str() {
                    "uint64" | "uint" | "int" => *format = "int64".into(),
                    "uint8" | "uint16" | "uint32" | "int8" | "int16" => *format = "int32".into(),
                    _ => {}
                }
            }
            node.values_mut().for_each(tidy);
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}

/// Conditions are Kubernetes' own type, so their bounds are added here.
fn bound_conditions(plural: &'static str, schema: &mut Value) -> Result<(), CrdError> {
    for (field, bounds) in [
        ("type", json!({"maxLength": 316, "minLength": 1})),
        ("status", json!({"enum": ["True", "False", "Unknown"]})),
        ("reason", json!({"maxLength": 1024, "minLength": 1, "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"})),
        ("message", json!({"maxLength": 8192})),
    ] {
        let at = format!("status.conditions.[].{field}");
        let node = find(schema, &at).ok_or(CrdError::NoSuchPlace { plural, at })?;
        if let Value::Object(bounds) = bounds {
            node.extend(bounds);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schemas() -> Vec<(String, Value)> {
        all()
            .unwrap()
            .iter()
            .map(|crd| {
                let schema = serde_json::to_value(&crd.spec.versions[0].schema).unwrap()["openAPIV3Schema"].clone();
                (crd.spec.names.plural.clone(), schema)
            })
            .collect()
    }

    fn walk(at: &str, node: &Value, visit: &mut impl FnMut(&str, &Map<String, Value>)) {
        let Some(map) = node.as_object() else { return };
        visit(at, map);
        for (name, child) in map.get("properties").and_then(Value::as_object).into_iter().flatten() {
            walk(&format!("{at}.{name}"), child, visit);
        }
        if let Some(items) = map.get("items") {
            walk(&format!("{at}.[]"), items, visit);
        }
    }

    #[test]
    fn every_string_list_and_number_is_bounded_and_nothing_is_nullable() {
        for (plural, schema) in schemas() {
            walk(&plural, &schema, &mut |at, node| {
                if at.ends_with(".metadata") || at == format!("{plural}.apiVersion") || at == format!("{plural}.kind") {
                    return;
                }
                let bounded = match node.get("type").and_then(Value::as_str) {
                    Some("string") => {
                        ["maxLength", "enum"].iter().any(|k| node.contains_key(*k)) || node.get("format") == Some(&json!("date-time"))
                    }
                    Some("array") => node.contains_key("maxItems"),
                    Some("integer") => {
                        matches!(node.get("format").and_then(Value::as_str), Some("int32" | "int64"))
                    }
                    Some("object" | "boolean") => true,
                    other => panic!("{at}: type {other:?}"),
                };
                assert!(bounded, "{at} is not bounded: {node:?}");
                assert!(!node.contains_key("nullable"), "{at}");
                assert!(
                    node.contains_key("description") || at.contains("[]") || !at.contains('.'),
                    "{at} has no description for kubectl explain"
                );
            });
        }
    }

    #[test]
    fn the_committed_files_are_what_the_types_say() {
        for crd in all().unwrap() {
            let path = format!("{}/crds/{}", env!("CARGO_MANIFEST_DIR"), file_name(&crd));
            let committed = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(committed == to_yaml(&crd).unwrap(), "{path} is not current: run `make generate`");
        }
    }
}
