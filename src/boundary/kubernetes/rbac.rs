//! Who may do what, by the cluster's own RBAC objects. Pure but for [`read`], which lists them; what a right is good for is in `bypass`.
//!
//! Other authorizers (a webhook, ABAC) cannot be listed and are not seen.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::rbac::v1::{self as rbac, ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef};
use kube::{Api, Client, Resource, ResourceExt, api::ListParams};
use serde::de::DeserializeOwned;
use tokio::sync::Mutex;

use crate::{apiserver, boundary::BackendError};

/// For how long a listing serves the boundaries that are examined one after the other.
const SERVES: Duration = Duration::from_secs(10);

/// Whom a binding names. A ServiceAccount is the user that it authenticates as.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    User(String),
    Group(String),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) => match account(name) {
                Some((namespace, name)) => write!(f, "ServiceAccount {namespace}/{name}"),
                None => write!(f, "User {name:?}"),
            },
            Self::Group(name) => write!(f, "Group {name:?}"),
        }
    }
}

/// Namespace and name of the ServiceAccount that a user name is of.
pub(super) fn account(user: &str) -> Option<(&str, &str)> {
    user.strip_prefix("system:serviceaccount:")?.split_once(':')
}

impl Subject {
    /// In a RoleBinding a ServiceAccount without a namespace is one of the binding's.
    fn of(subject: &rbac::Subject, binding: &str) -> Self {
        match subject.kind.as_str() {
            "ServiceAccount" => {
                let namespace = subject.namespace.as_deref().filter(|namespace| !namespace.is_empty()).unwrap_or(binding);
                Self::User(format!("system:serviceaccount:{namespace}:{}", subject.name))
            }
            "Group" => Self::Group(subject.name.clone()),
            _ => Self::User(subject.name.clone()),
        }
    }

    /// Whether a ServiceAccount's requests are this subject's too.
    pub(super) fn covers(&self, namespace: &str, name: &str) -> bool {
        match self {
            Self::User(user) => account(user) == Some((namespace, name)),
            Self::Group(group) => {
                ["system:authenticated", "system:serviceaccounts"].contains(&group.as_str())
                    || group.strip_prefix("system:serviceaccounts:") == Some(namespace)
            }
        }
    }
}

/// Something that somebody may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Access<'a> {
    /// Any of them is enough.
    pub(super) verbs: &'a [&'a str],
    pub(super) group: &'a str,
    /// With its subresource, as a rule has it: `pods/exec`.
    pub(super) resource: &'a str,
    /// Where; `None` for what is in no namespace.
    pub(super) namespace: Option<&'a str>,
    /// On which; `None` when one of any name is enough.
    pub(super) name: Option<&'a str>,
}

/// One binding, with the rules that it gives.
#[derive(Clone, Debug, PartialEq)]
struct Grant {
    /// The binding's namespace; `None` gives them everywhere.
    namespace: Option<String>,
    /// The binding, as a person finds it.
    source: String,
    subjects: Vec<Subject>,
    rules: Arc<Vec<PolicyRule>>,
}

/// Everything that was listed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rbac {
    grants: Vec<Grant>,
    /// Those whom the binding `cluster-admin` names.
    pub(super) admins: BTreeSet<Subject>,
    /// The cluster's own controllers.
    pub(super) own: BTreeSet<Subject>,
}

impl Rbac {
    /// Who may do something, and by which binding.
    pub(super) fn who<'a>(&'a self, access: &'a Access<'a>) -> impl Iterator<Item = (&'a Subject, &'a str)> {
        let gives = |grant: &&Grant| match (&grant.namespace, access.namespace) {
            (None, _) => true,
            (Some(given), Some(wanted)) => given == wanted,
            (Some(_), None) => false,
        };
        let allowing = self.grants.iter().filter(gives).filter(|grant| grant.rules.iter().any(|rule| allows(rule, access)));
        allowing.flat_map(|grant| grant.subjects.iter().map(|subject| (subject, grant.source.as_str())))
    }
}

/// Whether a rule allows something, as the API server's own evaluation has it. Of constrained impersonation every verb counts.
fn allows(rule: &PolicyRule, access: &Access<'_>) -> bool {
    let any = |list: Option<&Vec<String>>, is: &dyn Fn(&str) -> bool| list.into_iter().flatten().any(|item| is(item));
    let subresource = access.resource.split_once('/').map(|(_, sub)| format!("*/{sub}"));
    let is_verb = |verb: &str| {
        verb == "*" || access.verbs.iter().any(|wanted| verb == *wanted || (*wanted == "impersonate" && verb.starts_with("impersonate:")))
    };
    let is_resource = |resource: &str| resource == "*" || resource == access.resource || subresource.as_deref() == Some(resource);
    let is_named = match (rule.resource_names.as_ref().filter(|names| !names.is_empty()), access.name) {
        (None, _) | (Some(_), None) => true,
        (Some(names), Some(name)) => names.iter().any(|given| given == name),
    };
    any(Some(&rule.verbs), &is_verb)
        && any(rule.api_groups.as_ref(), &|group| group == "*" || group == access.group)
        && any(rule.resources.as_ref(), &is_resource)
        && is_named
}

/// The bindings of one scope, and the roles that they may refer to.
#[derive(Clone, Debug, Default)]
struct Scope {
    grants: Vec<Grant>,
    roles: BTreeMap<String, Arc<Vec<PolicyRule>>>,
}

/// What was listed, and when. The key is a namespace; `None` is the cluster.
type Known = HashMap<Option<String>, (Instant, Arc<Scope>)>;

/// Listings that several boundaries share.
#[derive(Default)]
pub(super) struct Cache(Mutex<Known>);

/// Lists what concerns some namespaces.
///
/// # Errors
/// When the operator may not, or the API server cannot be reached.
pub(super) async fn read(client: &Client, cache: &Cache, namespaces: &BTreeSet<&str>) -> Result<Rbac, BackendError> {
    let mut known = cache.0.lock().await;
    let mut grants = Vec::new();
    let cluster = fresh(&mut known, client, None, None).await?;
    grants.extend(cluster.grants.iter().cloned());
    for namespace in namespaces {
        let scope = fresh(&mut known, client, Some(namespace), Some(&cluster)).await?;
        grants.extend(scope.grants.iter().cloned());
    }
    known.retain(|_, (listed, _)| listed.elapsed() < SERVES);
    drop(known);
    Ok(of(grants))
}

async fn fresh(known: &mut Known, client: &Client, namespace: Option<&str>, cluster: Option<&Scope>) -> Result<Arc<Scope>, BackendError> {
    let key = namespace.map(str::to_owned);
    if let Some((listed, scope)) = known.get(&key)
        && listed.elapsed() < SERVES
    {
        return Ok(Arc::clone(scope));
    }
    let began = Instant::now();
    let scope = Arc::new(match namespace {
        None => cluster_scope(list(Api::all(client.clone())).await?, list(Api::all(client.clone())).await?),
        Some(namespace) => {
            let (roles, bindings) = futures::try_join!(
                list::<Role>(Api::namespaced(client.clone(), namespace)),
                list::<RoleBinding>(Api::namespaced(client.clone(), namespace))
            )?;
            namespace_scope(namespace, roles, bindings, cluster)
        }
    });
    known.insert(key, (began, Arc::clone(&scope)));
    Ok(scope)
}

/// Kinds of RBAC, named as the API server does.
trait Listed: Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug {}
impl Listed for ClusterRole {}
impl Listed for ClusterRoleBinding {}
impl Listed for Role {}
impl Listed for RoleBinding {}

async fn list<K: Listed>(api: Api<K>) -> Result<Vec<K>, BackendError> {
    apiserver::all(&api, ListParams::default()).await.map_err(|error| match error {
        kube::Error::Api(status) if status.code == 403 => BackendError::Refused(format!(
            "the operator may not list {}.rbac.authorization.k8s.io, so who can go around the guard is not known: install the chart with \
             guard.enabled, which gives it that right",
            K::plural(&())
        )),
        error => super::failed(format_args!("list {}", K::plural(&())), &error),
    })
}

fn subjects(listed: Option<&Vec<rbac::Subject>>, binding: &str) -> Vec<Subject> {
    listed.into_iter().flatten().map(|subject| Subject::of(subject, binding)).collect()
}

fn source(kind: &str, namespace: Option<&str>, name: &str) -> String {
    namespace.map_or_else(|| format!("{kind} {name:?}"), |namespace| format!("{kind} {name:?} in {namespace}"))
}

fn cluster_scope(roles: Vec<ClusterRole>, bindings: Vec<ClusterRoleBinding>) -> Scope {
    let roles: BTreeMap<_, _> = roles.into_iter().map(|role| (role.name_any(), Arc::new(role.rules.unwrap_or_default()))).collect();
    let grant = |binding: ClusterRoleBinding| {
        let given = roles.get(&binding.role_ref.name)?;
        let source = source("ClusterRoleBinding", None, &binding.name_any());
        Some(Grant { namespace: None, source, subjects: subjects(binding.subjects.as_ref(), ""), rules: Arc::clone(given) })
    };
    Scope { grants: bindings.into_iter().filter_map(grant).collect(), roles }
}

fn namespace_scope(namespace: &str, roles: Vec<Role>, bindings: Vec<RoleBinding>, cluster: Option<&Scope>) -> Scope {
    let roles: BTreeMap<_, _> = roles.into_iter().map(|role| (role.name_any(), Arc::new(role.rules.unwrap_or_default()))).collect();
    let given = |role: &RoleRef| match role.kind.as_str() {
        "ClusterRole" => cluster?.roles.get(&role.name).cloned(),
        _ => roles.get(&role.name).cloned(),
    };
    let grant = |binding: RoleBinding| {
        let source = source("RoleBinding", Some(namespace), &binding.name_any());
        let subjects = subjects(binding.subjects.as_ref(), namespace);
        Some(Grant { namespace: Some(namespace.to_owned()), source, subjects, rules: given(&binding.role_ref)? })
    };
    Scope { grants: bindings.into_iter().filter_map(grant).collect(), roles }
}

fn of(grants: Vec<Grant>) -> Rbac {
    let named = |is: &dyn Fn(&str) -> bool| -> BTreeSet<Subject> {
        grants.iter().filter(|grant| grant.namespace.is_none() && is(&grant.source)).flat_map(|grant| grant.subjects.clone()).collect()
    };
    let admins = named(&|source| source == "ClusterRoleBinding \"cluster-admin\"");
    let controllers = named(&|source| source.starts_with("ClusterRoleBinding \"system:controller:"));
    // Such a binding is the cluster's only as long as it names the cluster's own accounts.
    let is_own = |subject: &Subject| matches!(subject, Subject::User(user) if account(user).is_some_and(|(ns, _)| ns == "kube-system"));
    let own = controllers.into_iter().filter(is_own).collect();
    Rbac { grants, admins, own }
}

/// What is written down in a test, as if it had been listed.
#[cfg(test)]
pub(super) fn written(objects: &[serde_json::Value]) -> Rbac {
    fn all<K: DeserializeOwned>(objects: &[serde_json::Value], kind: &str) -> Vec<K> {
        let of_kind = objects.iter().filter(|object| object["kind"] == kind);
        of_kind.map(|object| serde_json::from_value(object.clone()).unwrap()).collect()
    }
    let cluster = cluster_scope(all(objects, "ClusterRole"), all(objects, "ClusterRoleBinding"));
    let namespaces: BTreeSet<_> = objects.iter().filter_map(|object| object["metadata"]["namespace"].as_str()).collect();
    let mut grants = cluster.grants.clone();
    for namespace in namespaces {
        let here: Vec<_> = objects.iter().filter(|object| object["metadata"]["namespace"] == namespace).cloned().collect();
        grants.extend(namespace_scope(namespace, all(&here, "Role"), all(&here, "RoleBinding"), Some(&cluster)).grants);
    }
    of(grants)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn rule(rule: Value) -> PolicyRule {
        serde_json::from_value(rule).unwrap()
    }

    /// The API server's evaluation: wildcards, subresources, names.
    #[test]
    fn a_rule_allows_what_the_api_server_lets_pass() {
        let exec = Access { verbs: &["create"], group: "", resource: "pods/exec", namespace: Some("n"), name: Some("web-0") };
        for (given, wanted) in [
            (json!({"verbs": ["create"], "apiGroups": [""], "resources": ["pods/exec"]}), true),
            (json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}), true),
            (json!({"verbs": ["create"], "apiGroups": [""], "resources": ["*/exec"]}), true),
            (json!({"verbs": ["create"], "apiGroups": [""], "resources": ["pods/exec"], "resourceNames": ["web-0"]}), true),
            (json!({"verbs": ["create"], "apiGroups": [""], "resources": ["pods/exec"], "resourceNames": ["web-1"]}), false),
            (json!({"verbs": ["create"], "apiGroups": [""], "resources": ["pods"]}), false),
            (json!({"verbs": ["create"], "apiGroups": [""], "resources": ["pods/*"]}), false),
            (json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods/exec"]}), false),
            (json!({"verbs": ["create"], "apiGroups": ["apps"], "resources": ["pods/exec"]}), false),
            (json!({"verbs": ["create"], "nonResourceURLs": ["*"]}), false),
        ] {
            assert_eq!(allows(&rule(given.clone()), &exec), wanted, "{given}");
        }
        let any = Access { name: None, ..exec };
        assert!(allows(
            &rule(json!({"verbs": ["create"], "apiGroups": [""], "resources": ["pods/exec"], "resourceNames": ["web-1"]})),
            &any
        ));
        let users = Access { verbs: &["impersonate"], group: "", resource: "users", namespace: None, name: Some("u") };
        assert!(allows(&rule(json!({"verbs": ["impersonate:user-info"], "apiGroups": [""], "resources": ["users"]})), &users));
    }

    #[test]
    fn a_binding_gives_its_role_where_it_stands() {
        let role = |kind: &str, name: &str, ns: Option<&str>| json!({"kind": kind, "metadata": {"name": name, "namespace": ns}, "rules": [{"verbs": ["create"], "apiGroups": [""], "resources": ["pods/exec"]}]});
        let binding = |kind: &str, name: &str, ns: Option<&str>, role: (&str, &str), subject: Value| {
            json!({"kind": kind, "metadata": {"name": name, "namespace": ns}, "subjects": [subject],
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role.0, "name": role.1}})
        };
        let user = |name: &str| json!({"kind": "User", "name": name});
        let rbac = written(&[
            role("ClusterRole", "exec", None),
            role("Role", "exec", Some("n")),
            binding("ClusterRoleBinding", "a", None, ("ClusterRole", "exec"), user("everywhere")),
            binding("RoleBinding", "b", Some("n"), ("ClusterRole", "exec"), user("in-n-by-cluster-role")),
            binding("RoleBinding", "c", Some("n"), ("Role", "exec"), json!({"kind": "ServiceAccount", "namespace": "x", "name": "s"})),
            binding("RoleBinding", "own", Some("n"), ("Role", "exec"), json!({"kind": "ServiceAccount", "name": "s"})),
            binding("RoleBinding", "d", Some("m"), ("Role", "exec"), user("no-such-role")),
            binding("ClusterRoleBinding", "cluster-admin", None, ("ClusterRole", "exec"), json!({"kind": "Group", "name": "admins"})),
            binding(
                "ClusterRoleBinding",
                "system:controller:gc",
                None,
                ("ClusterRole", "exec"),
                json!({"kind": "ServiceAccount", "namespace": "kube-system", "name": "gc"}),
            ),
            binding("ClusterRoleBinding", "system:controller:mine", None, ("ClusterRole", "exec"), user("mine")),
        ]);
        let who = |namespace| {
            let access = Access { verbs: &["create"], group: "", resource: "pods/exec", namespace, name: None };
            rbac.who(&access).map(|(subject, source)| format!("{subject} by {source}")).collect::<Vec<_>>()
        };
        assert_eq!(who(Some("m")).len(), 4);
        assert_eq!(
            who(Some("n"))[4..],
            [
                "User \"in-n-by-cluster-role\" by RoleBinding \"b\" in n",
                "ServiceAccount x/s by RoleBinding \"c\" in n",
                "ServiceAccount n/s by RoleBinding \"own\" in n"
            ]
        );
        assert_eq!(rbac.admins, BTreeSet::from([Subject::Group("admins".into())]));
        assert_eq!(rbac.own, BTreeSet::from([Subject::User("system:serviceaccount:kube-system:gc".into())]));
        assert_eq!(who(None).len(), 4, "a RoleBinding gives nothing outside its namespace");
    }
}
