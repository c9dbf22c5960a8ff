//! Compares the CustomResourceDefinitions that the API server serves with the ones that this version expects. Helm does not
//! upgrade CRDs by itself, and an older one silently drops the fields that it does not know (case G02).

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use crate::api::crd;

/// How long the comparison may hold up the start.
const LIMIT: Duration = Duration::from_secs(10);

/// Compares and logs what is missing. Never an error: a namespaced install has no right to look, and says so.
pub(super) async fn compare(client: &Client) {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    for expected in crd::all().into_iter().flatten() {
        let name = expected.name_any();
        match tokio::time::timeout(LIMIT, api.get(&name)).await {
            Ok(Ok(served)) => {
                let missing = missing(&expected, &served);
                if missing.is_empty() {
                    tracing::debug!(crd = name, "the served schema has everything that this version knows");
                } else {
                    let shown = missing.iter().take(5).map(String::as_str).collect::<Vec<_>>().join(", ");
                    tracing::warn!(
                        crd = name,
                        missing = missing.len(),
                        "the served schema is older than this operator and drops fields: {shown}; apply the output of `fencedlock crds`"
                    );
                }
            }
            Ok(Err(error)) => tracing::info!(crd = name, %error, "the served schema could not be compared with the expected one"),
            Err(_) => tracing::info!(crd = name, "the served schema could not be read in time"),
        }
    }
}

/// The fields and rules that the served definition lacks, as paths.
fn missing(expected: &CustomResourceDefinition, served: &CustomResourceDefinition) -> Vec<String> {
    let schema = |crd: &CustomResourceDefinition, version: &str| {
        let version = crd.spec.versions.iter().find(|v| v.name == version && v.served)?;
        serde_json::to_value(version.schema.as_ref()?.open_api_v3_schema.as_ref()?).ok()
    };
    let version = expected.spec.versions.first().map(|v| v.name.clone()).unwrap_or_default();
    match (schema(expected, &version), schema(served, &version)) {
        (Some(expected), Some(served)) => {
            let mut paths = Vec::new();
            walk("", &expected, &served, &mut paths);
            paths
        }
        (Some(_), None) => vec![format!("version {version}")],
        (None, _) => Vec::new(),
    }
}

fn walk(path: &str, expected: &Value, served: &Value, missing: &mut Vec<String>) {
    for (name, property) in expected.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let path = format!("{path}.{name}");
        match served.pointer(&format!("/properties/{name}")) {
            Some(served) => walk(&path, property, served, missing),
            None => missing.push(path),
        }
    }
    if let (Some(expected), Some(served)) = (expected.get("items"), served.get("items")) {
        walk(&format!("{path}[]"), expected, served, missing);
    }
    for list in ["required", "x-kubernetes-validations"] {
        let items = |schema: &Value| schema.get(list).and_then(Value::as_array).cloned().unwrap_or_default();
        let served = items(served);
        let rule = |item: &Value| item.get("rule").cloned().unwrap_or_else(|| item.clone());
        let served: Vec<_> = served.iter().map(rule).collect();
        let gone = items(expected).iter().filter(|item| !served.contains(&rule(item))).count();
        if gone > 0 {
            missing.push(format!("{path} ({gone} of {list})"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_schema_is_told_from_the_expected_one() {
        for expected in crd::all().unwrap() {
            assert_eq!(missing(&expected, &expected), Vec::<String>::new());
            let mut older = serde_json::to_value(&expected).unwrap();
            let schema = older.pointer_mut("/spec/versions/0/schema/openAPIV3Schema").unwrap();
            let field = if expected.spec.names.kind == "FencedLock" { "class" } else { "lockRef" };
            schema.pointer_mut("/properties/spec/properties").unwrap().as_object_mut().unwrap().remove(field);
            schema.pointer_mut("/properties/spec").unwrap().as_object_mut().unwrap().remove("required");
            let found = missing(&expected, &serde_json::from_value(older).unwrap());
            assert!(found.contains(&format!(".spec.{field}")) && found.len() >= 2, "{found:?}");
        }
    }
}
