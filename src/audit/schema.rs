//! What is wrong with an object as it stands in a manifest or in an API server whose CRD is older than this program: the
//! CRD's own schema and CEL rules, evaluated here. There is no second list of rules.
//!
//! Start with [`check`].

use std::{collections::HashMap, fmt, sync::LazyLock};

use serde_json::{Map, Value};

use crate::api::crd;

/// A field that contradicts the schema.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FieldError {
    /// Where: `spec.coordinator.lease.name`.
    pub path: String,
    /// What is wrong and what is right.
    pub message: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// A schema, and its CEL rules compiled.
struct Checked {
    schema: Value,
    rules: kube_cel::CompiledSchema,
}

static SCHEMAS: LazyLock<HashMap<String, Checked>> = LazyLock::new(|| {
    let mut schemas = HashMap::new();
    for crd in crd::all().into_iter().flatten() {
        let kind = crd.spec.names.kind.clone();
        let version = crd.spec.versions.into_iter().next();
        if let Some(Ok(schema)) = version.and_then(|v| v.schema?.open_api_v3_schema).map(serde_json::to_value) {
            let rules = kube_cel::compile_schema(&schema);
            schemas.insert(kind, Checked { schema, rules });
        }
    }
    schemas
});

/// The largest number of errors that is reported for one object.
const MAX_ERRORS: usize = 20;

/// Everything that the schema of `kind` refuses in `object`, in the order of the fields; empty when it is accepted or the
/// kind is not ours. The status is not looked at: people do not write it.
pub fn check(kind: &str, object: &Value) -> Vec<FieldError> {
    let Some(checked) = SCHEMAS.get(kind) else {
        return Vec::new();
    };
    let mut errors = Vec::new();
    let Some(spec_schema) = checked.schema.pointer("/properties/spec") else {
        return errors;
    };
    match object.get("spec") {
        Some(spec) => walk("spec", spec_schema, spec, &mut errors),
        None => errors.push(FieldError { path: "spec".into(), message: "is required".into() }),
    }
    if errors.is_empty() {
        errors = cel(checked, object);
    }
    errors.truncate(MAX_ERRORS);
    errors
}

/// The CEL rules, on an object whose structure is known to be right. Nulls are dropped and defaults filled in first, as the
/// API server does.
fn cel(checked: &Checked, object: &Value) -> Vec<FieldError> {
    let mut spec = object.get("spec").cloned().unwrap_or_default();
    if let Some(schema) = checked.schema.pointer("/properties/spec") {
        fill_defaults(schema, &mut spec);
    }
    let object = serde_json::json!({ "spec": spec });
    let outcome = kube_cel::Validator::new().validate_compiled(&checked.rules, &object, None);
    let Err(found) = outcome else {
        return Vec::new();
    };
    let mut errors: Vec<_> = found
        .into_iter()
        .map(|error| FieldError { path: error.field_path.trim_start_matches('.').to_owned(), message: error.message })
        .collect();
    errors.dedup();
    errors
}

fn fill_defaults(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
                if let (false, Some(default)) = (fields.contains_key(name), property.get("default")) {
                    fields.insert(name.clone(), default.clone());
                }
                if let Some(child) = fields.get_mut(name) {
                    fill_defaults(property, child);
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                for item in items {
                    fill_defaults(schema, item);
                }
            }
        }
        _ => {}
    }
}

/// The structure: types, required and unknown fields, enums, bounds.
fn walk(path: &str, schema: &Value, value: &Value, errors: &mut Vec<FieldError>) {
    if errors.len() >= MAX_ERRORS {
        return;
    }
    let wanted = schema.get("type").and_then(Value::as_str).unwrap_or("object");
    let mut refuse = |message: String| errors.push(FieldError { path: path.to_owned(), message });
    match (wanted, value) {
        ("object", Value::Object(fields)) => walk_object(path, schema, fields, errors),
        ("array", Value::Array(items)) => walk_array(path, schema, items, errors),
        ("string", Value::String(text)) => {
            if let Some(message) = wrong_text(schema, text) {
                refuse(message);
            }
        }
        ("integer", Value::Number(number)) => {
            if let Some(message) = wrong_number(schema, number) {
                refuse(message);
            }
        }
        ("boolean", Value::Bool(_)) => {}
        (wanted, other) => refuse(format!("must be of type {wanted}, not {}", type_of(other))),
    }
}

fn walk_object(path: &str, schema: &Value, fields: &Map<String, Value>, errors: &mut Vec<FieldError>) {
    let none = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
    for name in schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
        if fields.get(name).is_none_or(Value::is_null) {
            errors.push(FieldError { path: format!("{path}.{name}"), message: "is required".into() });
        }
    }
    for (name, value) in fields {
        let path = format!("{path}.{}", crate::api::conditions::shorten(name, 64));
        match properties.get(name) {
            // The API server drops a null that stands for an absent field.
            Some(_) if value.is_null() => {}
            Some(schema) => walk(&path, schema, value, errors),
            None => errors.push(FieldError { path, message: "is not a field of this kind".into() }),
        }
    }
}

fn walk_array(path: &str, schema: &Value, items: &[Value], errors: &mut Vec<FieldError>) {
    let count = items.len() as u64;
    if schema.get("maxItems").and_then(Value::as_u64).is_some_and(|max| count > max) {
        errors.push(FieldError { path: path.into(), message: format!("has {count} items, at most {} are accepted", schema["maxItems"]) });
        // Comparing each with each takes for ever, and nothing more has to be said.
        return;
    }
    if schema.get("minItems").and_then(Value::as_u64).is_some_and(|min| count < min) {
        errors.push(FieldError { path: path.into(), message: "must not be empty".into() });
    }
    // Items are told apart as a whole in a set, and by their keys in a map.
    let same = |a: &Value, b: &Value| match schema.get("x-kubernetes-list-type").and_then(Value::as_str) {
        Some("set") => a == b,
        Some("map") => {
            let keys = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
            keys.into_iter().flatten().filter_map(Value::as_str).all(|key| a.get(key) == b.get(key))
        }
        _ => false,
    };
    for (index, item) in items.iter().enumerate() {
        if items[..index].iter().any(|earlier| same(earlier, item)) {
            errors.push(FieldError { path: format!("{path}[{index}]"), message: "is listed twice".into() });
        }
    }
    if let Some(schema) = schema.get("items") {
        for (index, item) in items.iter().enumerate() {
            walk(&format!("{path}[{index}]"), schema, item, errors);
        }
    }
}

fn wrong_text(schema: &Value, text: &str) -> Option<String> {
    if let Some(allowed) = schema.get("enum").and_then(Value::as_array) {
        let allowed: Vec<_> = allowed.iter().filter_map(Value::as_str).collect();
        // Only what looks like a word is repeated: it may be a password in the wrong place.
        let is_word = text.len() <= 32 && text.bytes().all(|c| c.is_ascii_alphanumeric());
        let given = if is_word { format!("is {text:?}, ") } else { String::new() };
        return (!allowed.contains(&text)).then(|| format!("{given}must be one of {}", allowed.join(", ")));
    }
    let length = text.chars().count() as u64;
    if schema.get("maxLength").and_then(Value::as_u64).is_some_and(|max| length > max) {
        return Some(format!("has {length} characters, at most {} are accepted", schema["maxLength"]));
    }
    if schema.get("minLength").and_then(Value::as_u64).is_some_and(|min| length < min) {
        return Some("must not be empty".into());
    }
    if schema.get("pattern").is_some() && text.parse::<crate::api::ShortDuration>().is_err() {
        return Some("must be a duration such as 5m, 1h30m or 500ms".into());
    }
    if schema.get("format").and_then(Value::as_str) == Some("date-time") && !is_time(text) {
        return Some("must be a time such as 2027-03-31T00:00:00Z".into());
    }
    None
}

/// Whether it is a time as the API server reads it: RFC 3339 with seconds, a colon in the offset and no leap second. The
/// parser alone accepts more.
fn is_time(text: &str) -> bool {
    let Some((seconds, rest)) = text.split_at_checked("2027-03-31T00:00:00".len()) else {
        return false;
    };
    let shape = seconds.bytes().zip(*b"0000-00-00T00:00:00").all(|(is, wanted)| match wanted {
        b'0' => is.is_ascii_digit(),
        wanted => is.eq_ignore_ascii_case(&wanted),
    });
    let offset = rest.trim_start_matches(|c: char| matches!(c, '.' | ',') || c.is_ascii_digit());
    let offset_shape = offset.eq_ignore_ascii_case("z") || (offset.len() == "+02:00".len() && offset.as_bytes()[3] == b':');
    shape && offset_shape && !seconds.ends_with("60") && text.parse::<k8s_openapi::jiff::Timestamp>().is_ok()
}

fn wrong_number(schema: &Value, number: &serde_json::Number) -> Option<String> {
    let Some(value) = number.as_i64() else {
        return Some("must be an integer".into());
    };
    let bound = |name: &str| schema.get(name).and_then(Value::as_f64);
    // Every bound of ours is below 2^53, where f64 is exact.
    #[expect(clippy::cast_precision_loss, reason = "the comparison is with a bound below 2^53")]
    let as_float = value as f64;
    match (bound("minimum"), bound("maximum")) {
        (Some(min), _) if as_float < min => Some(format!("is {value}, must be at least {min}")),
        (_, Some(max)) if as_float > max => Some(format!("is {value}, must be at most {max}")),
        _ => None,
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn lock(spec: &Value) -> Vec<String> {
        check("FencedLock", &json!({"kind": "FencedLock", "spec": spec})).iter().map(ToString::to_string).collect()
    }

    fn boundary(spec: &Value) -> Vec<String> {
        check("WriteBoundary", &json!({"kind": "WriteBoundary", "spec": spec})).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_shortest_lock_is_accepted() {
        let spec = json!({"class": "CorrectnessCritical", "purpose": "x", "coordinator": {"lease": {"name": "a.b"}}});
        assert_eq!(lock(&spec), Vec::<String>::new());
    }

    /// G02: absent class is an error, never efficiency-only. G03: each error names the field.
    #[test]
    fn an_error_names_the_field_and_what_is_right() {
        for (spec, wanted) in [
            (json!({}), vec!["spec.class: is required", "spec.coordinator: is required"]),
            (
                json!({"class": "Important", "coordinator": {"lease": {"name": "a"}}}),
                vec!["spec.class: is \"Important\", must be one of CorrectnessCritical, EfficiencyOnly"],
            ),
            (
                json!({"class": "EfficiencyOnly", "coordinator": {}}),
                vec!["spec.coordinator: exactly one of lease and external must be set"],
            ),
            (
                json!({"class": "EfficiencyOnly", "coordinator": {"lease": null}}),
                vec!["spec.coordinator: exactly one of lease and external must be set"],
            ),
            (
                json!({"class": "EfficiencyOnly", "coordinator": {"lease": []}}),
                vec!["spec.coordinator.lease: must be of type object, not array"],
            ),
            (
                json!({"class": "EfficiencyOnly", "coordinator": {"lease": {"name": "a", "nmae": 1}}}),
                vec!["spec.coordinator.lease.nmae: is not a field of this kind"],
            ),
            (
                json!({"class": "EfficiencyOnly", "coordinator": {"lease": {"name": "a"}}, "epochFloor": -1}),
                vec!["spec.epochFloor: is -1, must be at least 0"],
            ),
            (
                json!({"class": "EfficiencyOnly", "coordinator": {"lease": {"name": "a"}}, "writeBoundaries": ["x", "x"]}),
                vec!["spec.writeBoundaries[1]: is listed twice"],
            ),
        ] {
            assert_eq!(lock(&spec), wanted, "{spec}");
        }
    }

    /// B07: a Lease's name is what the API server accepts: 253 characters, dots yes.
    #[test]
    fn a_lease_name_is_any_dns_subdomain() {
        let name = |name: &str| lock(&json!({"class": "EfficiencyOnly", "coordinator": {"lease": {"name": name}}}));
        let long = ["a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(61)].join(".");
        assert_eq!(long.len(), 253);
        for good in ["a", "a.b", "0", &long] {
            assert_eq!(name(good), Vec::<String>::new(), "{good}");
        }
        for bad in ["", "a.", ".a", "A", "a_b", "-a", "a..b", &format!("{long}x")] {
            assert_eq!(name(bad).len(), 1, "{bad}: {:?}", name(bad));
        }
    }

    #[test]
    fn a_boundary_has_exactly_the_member_that_its_type_names() {
        let member = "spec: exactly the member that type names must be set: postgres, kubernetes or external";
        for spec in [
            json!({"lockRef": {"name": "a"}, "type": "External"}),
            json!({"lockRef": {"name": "a"}, "type": "Postgres", "external": {"receiver": "mail"}}),
            json!({"lockRef": {"name": "a"}, "type": "Kubernetes", "external": {"receiver": "mail"},
                   "kubernetes": {"claim": "PodIdentity", "targets": [{"resource": "configmaps", "names": ["x"]}]}}),
        ] {
            assert!(boundary(&spec).iter().any(|e| e == member), "{spec}: {:?}", boundary(&spec));
        }
        let key = |template: &str| {
            boundary(
                &json!({"lockRef": {"name": "a"}, "type": "External", "external": {"receiver": "mail", "idempotencyKey": {"template": template}}}),
            )
        };
        assert_eq!(key("{workItem}"), Vec::<String>::new());
        assert_eq!(key("{namespace}/{lock}/{workItem}"), Vec::<String>::new());
        assert!(key("{workItem}-{epoch}")[0].contains("not the epoch"), "{:?}", key("{workItem}-{epoch}"));
        assert!(key("fixed")[0].contains("{workItem}"));
    }

    #[test]
    fn durations_and_times_are_checked() {
        let spec = |proof: Value, expires: &str| {
            boundary(&json!({"lockRef": {"name": "a"}, "type": "External", "external": {"receiver": "mail"}, "proof": proof,
                "riskAcceptance": {"covers": ["CannotEnforce"], "acceptedBy": "x", "reason": "y", "expires": expires}}))
        };
        let good = "2027-03-31T00:00:00Z";
        assert_eq!(spec(json!({"interval": "1h30m", "maxAge": "2h"}), good), Vec::<String>::new());
        assert_eq!(spec(json!({"interval": "5s"}), good), ["spec.proof: interval must be at least 10s"]);
        assert_eq!(spec(json!({"interval": "1h", "maxAge": "30m"}), good).len(), 1);
        assert_eq!(spec(json!({"interval": "often"}), good), ["spec.proof.interval: must be a duration such as 5m, 1h30m or 500ms"]);
        assert_eq!(spec(json!({}), "soon"), ["spec.riskAcceptance.expires: must be a time such as 2027-03-31T00:00:00Z"]);
    }
}
