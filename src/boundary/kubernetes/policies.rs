//! The chart's policies as they are in the cluster, against what this version of fencedlock ships. The operator has no right to change them.

use std::sync::LazyLock;

use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject},
    core::GroupVersionKind,
};
use serde_json::Value;

use crate::boundary::{BackendError, digest::hash};

const GUARD: &str = include_str!("../../../charts/fencedlock/files/guard.yaml");
const NAMED: &str = include_str!("../../../charts/fencedlock/files/named.yaml");
const CARRY: &str = include_str!("../../../charts/fencedlock/files/carry.yaml");
/// What the chart replaces by the operators' user names.
const OPERATORS: &str = "[OPERATORS]";

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Policies {
    /// What is missing or changed, and what to do.
    pub(super) wrong: Option<String>,
    /// Whether none of the guard is there at all.
    pub(super) is_absent: bool,
    /// Whether owners that write whole objects are carried.
    pub(super) carries: bool,
    /// Whether what carries no fence is judged by its name.
    pub(super) names: bool,
    /// Who may move fences, by user name.
    pub(super) operators: Vec<String>,
    /// A hash of everything that is in force.
    pub(super) hash: String,
    /// The uids of the objects: another cluster has others.
    pub(super) uids: String,
}

/// One object that the chart installs.
struct Expected {
    resource: ApiResource,
    name: String,
    spec: Value,
    part: Part,
}

/// What an object belongs to. The guard has to be there; the others can be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Guard,
    Carry,
    Named,
}

/// An object that there should be, and the one that there is.
type There<'a> = (&'a Expected, Option<DynamicObject>);

/// What the chart ships, taken apart once.
static EXPECTED: LazyLock<Vec<Expected>> = LazyLock::new(expected);

fn expected() -> Vec<Expected> {
    let of = |text: &str, part: Part| -> Vec<Expected> {
        text.split("\n---\n")
            .filter_map(|document| serde_saphyr::from_str::<Value>(document).ok())
            .filter_map(|mut value| {
                let kind = value["kind"].as_str()?.to_owned();
                let plural = if kind.ends_with("Binding") {
                    format!("{}s", kind.to_lowercase())
                } else {
                    kind.to_lowercase().replace("policy", "policies")
                };
                let gvk = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", &kind);
                let name = value["metadata"]["name"].as_str()?.to_owned();
                Some(Expected { resource: ApiResource::from_gvk_with_plural(&gvk, &plural), name, spec: value["spec"].take(), part })
            })
            .collect()
    };
    [of(GUARD, Part::Guard), of(NAMED, Part::Named), of(CARRY, Part::Carry)].into_iter().flatten().collect()
}

/// Kind and name of everything that the chart ships.
pub(super) fn resources() -> Vec<(ApiResource, &'static str)> {
    EXPECTED.iter().map(|expected| (expected.resource.clone(), expected.name.as_str())).collect()
}

/// Reads everything.
///
/// # Errors
/// When the operator may not, or the API server cannot be reached.
pub(super) async fn look(client: &Client, user: &str) -> Result<Policies, BackendError> {
    let there = futures::future::try_join_all(EXPECTED.iter().map(|expected| get(client, expected))).await?;
    let mut policies = compare(&there, user);
    if policies.is_absent
        && let Some(version) = unserved(client).await?
    {
        policies.wrong = Some(format!(
            "this cluster ({version}) serves no ValidatingAdmissionPolicy v1, so nothing can refuse a write to an object: Kubernetes 1.30 or later is \
             needed, or another place for the writes that can"
        ));
    }
    Ok(policies)
}

/// The version of a cluster that does not know policies; `None` when it does.
async fn unserved(client: &Client) -> Result<Option<String>, BackendError> {
    let served = super::targets::served(client, "admissionregistration.k8s.io", "v1").await?.unwrap_or_default();
    if served.iter().any(|resource| resource.name == "validatingadmissionpolicies") {
        return Ok(None);
    }
    let version = client.apiserver_version().await.map_err(|error| BackendError::Unreachable(error.to_string()))?;
    Ok(Some(format!("Kubernetes {}", version.git_version)))
}

async fn get<'a>(client: &Client, expected: &'a Expected) -> Result<There<'a>, BackendError> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &expected.resource);
    match api.get(&expected.name).await {
        Ok(found) => Ok((expected, Some(found))),
        // Not there; or a kind that is not served, which the API server says in words of its own.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok((expected, None)),
        Err(kube::Error::Api(status)) if status.code == 403 => Err(BackendError::Refused(format!(
            "the operator may not get {} {:?}: install the chart with guard.enabled, which also gives it that right",
            expected.resource.plural, expected.name
        ))),
        Err(error) => Err(BackendError::Unreachable(error.to_string())),
    }
}

fn compare(there: &[There<'_>], user: &str) -> Policies {
    let mut policies = Policies {
        is_absent: there.iter().all(|(expected, found)| expected.part != Part::Guard || found.is_none()),
        ..Policies::default()
    };
    let found: Vec<&DynamicObject> = there.iter().filter_map(|(_, found)| found.as_ref()).collect();
    let specs: Vec<String> = found.iter().map(|found| found.data["spec"].to_string()).collect();
    policies.hash = format!("sha256:{}", hash(specs.iter().map(String::as_str)));
    hash(found.iter().map(|found| found.metadata.uid.as_deref().unwrap_or_default()))[..16].clone_into(&mut policies.uids);
    let list = there.iter().find_map(|(_, found)| operators(found.as_ref()?));
    policies.operators = list
        .iter()
        .flat_map(|list| list.trim_matches(['[', ']']).split(','))
        .map(|name| name.trim().trim_matches('\'').to_owned())
        .collect();
    let has_all = |part: Part| there.iter().filter(|(expected, _)| expected.part == part).all(|(_, found)| found.is_some());
    (policies.carries, policies.names) = (has_all(Part::Carry), has_all(Part::Named));
    let again = "upgrade the chart, or apply its policies again";
    policies.wrong = there.iter().find_map(|(expected, found)| {
        let what = format!("{} {:?}", expected.resource.kind, expected.name);
        match found {
            None if expected.part != Part::Guard => None,
            None => Some(format!("{what} is not there: {again}")),
            Some(found) => {
                let wanted = substituted(&expected.spec, list.as_deref().unwrap_or(OPERATORS));
                let part = differs(&wanted, &found.data["spec"])?;
                Some(format!("{what} is not as this version makes it ({part}): {again}"))
            }
        }
    });
    if policies.wrong.is_none() && !policies.operators.iter().any(|operator| operator == user) {
        policies.wrong =
            Some(format!("the policies name {} as operators, and not {user}, who this is: {again}", policies.operators.join(", ")));
    }
    policies
}

/// The list of operators in a guard policy, as it is written.
fn operators(policy: &DynamicObject) -> Option<String> {
    let variables = policy.data["spec"]["variables"].as_array()?;
    let expression = variables.iter().find(|variable| variable["name"] == "operator")?["expression"].as_str()?;
    expression.strip_prefix("request.userInfo.username in ").filter(|list| is_list(list)).map(str::to_owned)
}

/// Whether a text is a list of user names and nothing else: what follows one would be part of the expression.
fn is_list(text: &str) -> bool {
    let inner = text.strip_prefix("['").and_then(|rest| rest.strip_suffix("']"));
    let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || ":._@-".contains(c));
    inner.is_some_and(|inner| inner.split("', '").all(is_name))
}

fn substituted(spec: &Value, list: &str) -> Value {
    match spec {
        Value::String(text) => Value::String(text.replace(OPERATORS, list)),
        Value::Array(items) => items.iter().map(|item| substituted(item, list)).collect(),
        Value::Object(fields) => fields.iter().map(|(key, value)| (key.clone(), substituted(value, list))).collect(),
        other => other.clone(),
    }
}

/// The path of the first difference. What the API server adds as a default is written out in the files.
fn differs(wanted: &Value, found: &Value) -> Option<String> {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => {
            let missing = wanted.keys().find(|key| !found.contains_key(*key)).cloned();
            let added = found.keys().find(|key| !wanted.contains_key(*key)).cloned();
            missing.or(added).or_else(|| {
                wanted.iter().find_map(|(key, value)| {
                    differs(value, &found[key]).map(|part| if part.is_empty() { key.clone() } else { format!("{key}.{part}") })
                })
            })
        }
        (Value::Array(wanted), Value::Array(found)) if wanted.len() == found.len() => {
            wanted.iter().zip(found).enumerate().find_map(|(place, (wanted, found))| {
                let name = wanted["name"].as_str().map_or_else(|| place.to_string(), str::to_owned);
                differs(wanted, found).map(|part| if part.is_empty() { name.clone() } else { format!("{name}.{part}") })
            })
        }
        _ => (wanted != found).then(String::new),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn installed(change: impl Fn(&str, &mut Value)) -> Vec<There<'static>> {
        let found = |expected: &Expected| {
            let mut spec = substituted(&expected.spec, "['system:serviceaccount:fencedlock:fencedlock', 'other']");
            change(&expected.name, &mut spec);
            let object = DynamicObject::new(&expected.name, &expected.resource).data(serde_json::json!({ "spec": spec }));
            (!spec.is_null()).then_some(object)
        };
        EXPECTED.iter().map(|expected| (expected, found(expected))).collect()
    }

    /// With another text in the place of the list.
    fn substituted_in(spec: &Value, list: &str) -> Value {
        let text = spec.to_string().replace("['system:serviceaccount:fencedlock:fencedlock', 'other']", list);
        serde_json::from_str(&text).unwrap()
    }

    const USER: &str = "system:serviceaccount:fencedlock:fencedlock";

    #[test]
    fn what_the_chart_ships_is_in_order() {
        let kinds: Vec<_> = EXPECTED.iter().map(|e| (e.resource.plural.clone(), e.name.clone())).collect();
        let wanted = [
            ("validatingadmissionpolicies", "fencedlock-guard"),
            ("validatingadmissionpolicybindings", "fencedlock-guard"),
            ("validatingadmissionpolicybindings", "fencedlock-create"),
            ("validatingadmissionpolicybindings", "fencedlock-observe"),
            ("validatingadmissionpolicies", "fencedlock-named"),
            ("validatingadmissionpolicybindings", "fencedlock-named"),
            ("mutatingadmissionpolicies", "fencedlock-carry"),
            ("mutatingadmissionpolicybindings", "fencedlock-carry"),
        ];
        assert_eq!(kinds, wanted.map(|(plural, name)| (plural.to_owned(), name.to_owned())));
        let policies = compare(&installed(|_, _| {}), USER);
        assert_eq!((policies.wrong, policies.is_absent, policies.carries, policies.names), (None, false, true, true));
        assert_eq!(policies.operators, [USER, "other"]);
    }

    #[test]
    fn every_change_is_named() {
        type Change = fn(&str, &mut Value);
        let changes: [(Change, &str); 8] = [
            (
                |name, spec| {
                    if name == "fencedlock-guard" && !spec["validationActions"].is_null() {
                        spec["validationActions"] = serde_json::json!(["Audit"]);
                    }
                },
                "validationActions.0",
            ),
            (
                |name, spec| {
                    if name == "fencedlock-guard" && !spec["failurePolicy"].is_null() {
                        spec["failurePolicy"] = "Ignore".into();
                    }
                },
                "failurePolicy",
            ),
            (
                |name, spec| {
                    if name == "fencedlock-guard" && !spec["validations"].is_null() {
                        spec["validations"][1]["expression"] = "true".into();
                    }
                },
                "validations.1.expression",
            ),
            (
                |_, spec| {
                    if !spec["variables"].is_null() {
                        spec["variables"][0]["expression"] = "{}".into();
                    }
                },
                "variables.oldL.expression",
            ),
            (
                |_, spec| {
                    if !spec["validations"].is_null() {
                        spec["matchConditions"] = serde_json::json!([{"name": "x", "expression": "false"}]);
                    }
                },
                "matchConditions",
            ),
            (
                |name, spec| {
                    if name == "fencedlock-observe" {
                        *spec = Value::Null;
                    }
                },
                "\"fencedlock-observe\" is not there",
            ),
            (
                |name, spec| {
                    if name == "fencedlock-named" && !spec["paramRef"].is_null() {
                        spec["paramRef"]["parameterNotFoundAction"] = "Deny".into();
                    }
                },
                "paramRef.parameterNotFoundAction",
            ),
            (
                |_, spec| {
                    if !spec["mutations"].is_null() {
                        spec["failurePolicy"] = "Ignore".into();
                    }
                },
                "MutatingAdmissionPolicy \"fencedlock-carry\"",
            ),
        ];
        for (change, wanted) in changes {
            let said = compare(&installed(change), USER).wrong.unwrap_or_else(|| panic!("{wanted}: nothing is said"));
            assert!(said.contains(wanted), "{wanted}: {said}");
        }
        let everybody = compare(
            &installed(|_, spec| {
                *spec = substituted_in(spec, "['system:serviceaccount:fencedlock:fencedlock', 'b'] || true || '' in ['c']");
            }),
            USER,
        );
        assert!(everybody.wrong.is_some() && everybody.operators.is_empty(), "{everybody:?}");
        assert!(compare(&installed(|_, _| {}), "somebody").wrong.unwrap().contains("and not somebody"));
        let none = compare(&installed(|_, spec| *spec = Value::Null), USER);
        assert!(none.is_absent && !none.carries && none.wrong.is_some());
        let older = compare(
            &installed(|name, spec| {
                if name == "fencedlock-carry" {
                    *spec = Value::Null;
                }
            }),
            USER,
        );
        assert_eq!((older.wrong, older.carries, older.names), (None, false, true));
        let unnamed = compare(
            &installed(|name, spec| {
                if name == "fencedlock-named" && !spec["paramRef"].is_null() {
                    *spec = Value::Null;
                }
            }),
            USER,
        );
        assert_eq!((unnamed.wrong, unnamed.carries, unnamed.names), (None, true, false));
    }
}
