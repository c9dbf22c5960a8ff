//! Ways around the guard of objects: rights by which somebody could pass for the operator or for an owner, change the policies, or have objects
//! deleted that the guard does not see being deleted (design: boundaries.md section 4, "Bypass audit"). Pure; `rbac` says who has a right.
//!
//! Start with [`find`]. What must not come in: rights that harm nobody's fence. Whoever may only write the objects is refused like everybody.

use std::collections::{BTreeMap, BTreeSet};

use super::rbac::{Access, Rbac, Subject, account};
use crate::{
    api::{ClaimKind, SubjectExemption},
    boundary::proof::Bypass,
};

/// Where things are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// Users that the policies let move fences, by name.
    pub(super) operators: Vec<String>,
    /// Users that the guard lets write, or delete, whoever owns.
    pub(super) exempt: Vec<String>,
    /// The policies and their bindings, as plural and name.
    pub(super) policies: Vec<(String, String)>,
    /// The namespace of the targets.
    pub(super) namespace: String,
    /// The namespace of the owners' pods; `None` when owners are not known by their pods.
    pub(super) pods: Option<String>,
    /// The ServiceAccount of the owner's pod, in that namespace, when it is known.
    pub(super) owner: Option<String>,
    /// The definitions of guarded custom resources.
    pub(super) definitions: Vec<String>,
    /// Objects that own targets and carry no fence: their deletion is followed by the targets'.
    pub(super) owners: Vec<OwnerObject>,
    /// Whether named targets are judged by a record, because a label of the namespace asks for it.
    pub(super) is_recorded: bool,
}

impl Place {
    /// Everybody that the guard admits without being the owner, by user name.
    fn accounts(&self) -> impl Iterator<Item = &str> {
        self.operators.iter().chain(&self.exempt).map(String::as_str)
    }

    /// The namespaces that a right may be given in.
    pub(super) fn namespaces(&self) -> BTreeSet<&str> {
        let accounts = self.accounts().filter_map(|user| Some(account(user)?.0));
        accounts.chain([self.namespace.as_str()]).chain(self.pods.as_deref()).collect()
    }
}

/// An object that others are garbage collected with.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OwnerObject {
    pub(super) group: String,
    pub(super) plural: String,
    pub(super) name: String,
    pub(super) is_namespaced: bool,
}

/// One right, in words, and what it opens.
struct Way<'a> {
    access: Access<'a>,
    what: String,
}

/// What a person may do about a finding.
const NEXT: &str = "take that right away, or list it in spec.kubernetes.exemptSubjects with a reason";
/// How many ways of one subject are told.
const TOLD: usize = 2;

/// What goes around the guard, and what is worth knowing and is no finding.
pub(super) fn find(rbac: &Rbac, place: &Place, claim: ClaimKind, exempt: &[SubjectExemption]) -> (Vec<Bypass>, Vec<String>) {
    let mut found: BTreeMap<&Subject, Vec<String>> = BTreeMap::new();
    let ways = ways(place, claim);
    for way in &ways {
        for (subject, source) in rbac.who(&way.access) {
            let texts = found.entry(subject).or_default();
            let text = format!("{} ({source})", way.what);
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
    }
    let is_owner = |subject: &Subject| match (&place.pods, &place.owner) {
        (Some(namespace), Some(name)) => subject.covers(namespace, name),
        _ => false,
    };
    let (mut bypasses, mut answered) = (Vec::new(), Vec::new());
    for (subject, texts) in found {
        if exempt.iter().any(|exemption| is_named(exemption, subject)) {
            answered.push(subject.to_string());
            continue;
        }
        let by_writer = is_owner(subject);
        // Not even that everybody knows of it makes a way around that owners can use harmless.
        if is_information(rbac, place, subject) && !by_writer {
            continue;
        }
        let who = if by_writer { format!("{subject}, as which the owners run,") } else { subject.to_string() };
        let more = crate::audit::boundary::more(texts.len().saturating_sub(TOLD));
        let text = format!("{who} may {}{more}: {NEXT}", texts.iter().take(TOLD).cloned().collect::<Vec<_>>().join(", and "));
        bypasses.push(Bypass { by_writer, text });
    }
    // What an owner can use comes first.
    bypasses.sort_by_key(|bypass| !bypass.by_writer);
    (bypasses, notes(rbac, &answered))
}

fn notes(rbac: &Rbac, answered: &[String]) -> Vec<String> {
    let mut notes = Vec::new();
    let list = |subjects: &mut dyn Iterator<Item = String>| subjects.collect::<Vec<_>>().join(", ");
    let admins = list(&mut rbac.admins.iter().map(ToString::to_string));
    if !admins.is_empty() {
        notes.push(format!("{admins} may do everything, by the binding cluster-admin"));
    }
    if !answered.is_empty() {
        notes.push(format!("could go around the guard, and somebody answers for it: {}", answered.join(", ")));
    }
    notes
}

fn is_named(exemption: &SubjectExemption, subject: &Subject) -> bool {
    match subject {
        Subject::User(name) => exemption.user.as_ref() == Some(name),
        Subject::Group(name) => exemption.group.as_ref() == Some(name),
    }
}

/// Those of whom everybody knows that they can do everything, and who therefore are no finding.
fn is_information(rbac: &Rbac, place: &Place, subject: &Subject) -> bool {
    let is_of_the_cluster = match subject {
        Subject::Group(name) => matches!(name.as_str(), "system:masters" | "system:nodes"),
        Subject::User(name) => {
            matches!(name.as_str(), "system:kube-controller-manager" | "system:kube-scheduler" | "system:apiserver")
                || place.operators.contains(name)
        }
    };
    is_of_the_cluster || rbac.admins.contains(subject) || rbac.own.contains(subject)
}

/// Kinds whose objects run pods with a ServiceAccount of their namespace.
const WORKLOADS: [(&str, &str); 9] = [
    ("", "pods"),
    ("", "replicationcontrollers"),
    ("apps", "deployments"),
    ("apps", "replicasets"),
    ("apps", "statefulsets"),
    ("apps", "daemonsets"),
    ("batch", "jobs"),
    ("batch", "cronjobs"),
    ("", "secrets"),
];
/// Subresources by which one gets into a running pod.
const INTO_PODS: [(&str, &[&str]); 3] =
    [("pods/exec", &["create", "get"]), ("pods/attach", &["create", "get"]), ("pods/ephemeralcontainers", &["update", "patch"])];
/// Where the rights of impersonation are: in the core group, and in the other one since they can be constrained.
const IMPERSONATION: [&str; 2] = ["", "authentication.k8s.io"];
/// The signer of certificates that the API server takes for anybody's.
const SIGNER: &str = "kubernetes.io/kube-apiserver-client";
const POD_UID: &str = "userextras/authentication.kubernetes.io/pod-uid";

fn ways(place: &Place, claim: ClaimKind) -> Vec<Way<'_>> {
    let mut ways = Vec::new();
    let mut add = |what: String, verbs: &'static [&'static str], group, resource, namespace, name| {
        ways.push(Way { access: Access { verbs, group, resource, namespace, name }, what });
    };
    for (plural, name) in &place.policies {
        let what = format!("change {plural} {name:?}");
        add(what.clone(), &["update", "patch", "delete"], "admissionregistration.k8s.io", plural, None, Some(name));
        add(what, &["deletecollection"], "admissionregistration.k8s.io", plural, None, Some(""));
    }
    for resource in ["clusterroles", "roles"] {
        let namespaces = place.accounts().filter_map(|user| Some(account(user)?.0)).chain(place.pods.as_deref());
        for namespace in namespaces.map(Some).chain([None]) {
            add(
                "give itself any right (escalate, bind)".into(),
                &["escalate", "bind"],
                "rbac.authorization.k8s.io",
                resource,
                namespace,
                None,
            );
        }
    }
    add("sign certificates for anybody (approve)".into(), &["approve"], "certificates.k8s.io", "signers", None, Some(SIGNER));
    for group in IMPERSONATION {
        add("impersonate system:masters".into(), &["impersonate"], group, "groups", None, Some("system:masters"));
    }
    for user in place.accounts() {
        let who = if place.operators.iter().any(|operator| operator == user) { "the operator" } else { "an exempt user" };
        for group in IMPERSONATION {
            add(format!("impersonate {who}"), &["impersonate"], group, "users", None, Some(user));
        }
        let Some((namespace, name)) = account(user) else { continue };
        let within = Some(namespace);
        for group in IMPERSONATION {
            add(format!("impersonate {who}"), &["impersonate"], group, "serviceaccounts", within, Some(name));
        }
        add(format!("mint tokens of {who}"), &["create"], "", "serviceaccounts/token", within, Some(name));
        for (resource, verbs) in INTO_PODS {
            add(format!("enter the pods of {who} ({resource} in {namespace})"), verbs, "", resource, within, None);
        }
        for (group, plural) in WORKLOADS {
            let what = if plural == "secrets" { "make a token of" } else { "run pods as" };
            add(format!("{what} {who} ({plural} in {namespace})"), &["create", "update", "patch"], group, plural, within, None);
        }
    }
    add("enter any pod by its kubelet (nodes/proxy)".into(), &["create", "get"], "", "nodes/proxy", None, None);
    if let (ClaimKind::PodIdentity, Some(namespace)) = (claim, &place.pods) {
        let within = Some(namespace.as_str());
        add("pass for any pod by impersonation".into(), &["impersonate"], "authentication.k8s.io", POD_UID, None, None);
        add(
            format!("mint tokens of owners' pods (serviceaccounts/token in {namespace})"),
            &["create"],
            "",
            "serviceaccounts/token",
            within,
            None,
        );
        for (resource, verbs) in INTO_PODS {
            add(format!("enter owners' pods ({resource} in {namespace})"), verbs, "", resource, within, None);
        }
    }
    for name in &place.definitions {
        let what = format!("delete the definition {name:?} with all objects of the kind");
        add(what.clone(), &["delete"], "apiextensions.k8s.io", "customresourcedefinitions", None, Some(name));
        add(what, &["deletecollection"], "apiextensions.k8s.io", "customresourcedefinitions", None, Some(""));
    }
    // The API server takes a namespace to be in itself, so that a RoleBinding there is enough.
    let itself = Some(place.namespace.as_str());
    add(format!("delete the namespace {}", place.namespace), &["delete"], "", "namespaces", itself, itself);
    if place.is_recorded {
        let what = format!("take the label {} off the namespace {}", super::record::ASKED, place.namespace);
        for resource in ["namespaces", "namespaces/status", "namespaces/finalize"] {
            add(what.clone(), &["update", "patch"], "", resource, itself, itself);
        }
    }
    for owner in &place.owners {
        let within = owner.is_namespaced.then_some(place.namespace.as_str());
        let what = format!("delete {} {:?}, which owns a target and carries no fence", owner.plural, owner.name);
        add(what.clone(), &["delete"], &owner.group, &owner.plural, within, Some(&owner.name));
        add(what, &["deletecollection"], &owner.group, &owner.plural, within, Some(""));
    }
    ways
}

#[cfg(test)]
mod tests {
    use super::{super::rbac::written, *};
    use serde_json::{Value, json};

    const OPERATOR: &str = "system:serviceaccount:fencedlock:fencedlock";

    fn place() -> Place {
        Place {
            operators: vec![OPERATOR.into()],
            exempt: vec!["system:serviceaccount:kube-system:generic-garbage-collector".into(), "deployer".into()],
            policies: vec![("validatingadmissionpolicybindings".into(), "fencedlock-guard".into())],
            namespace: "shop".into(),
            pods: Some("shop".into()),
            owner: Some("worker".into()),
            definitions: vec!["widgets.example.com".into()],
            owners: vec![OwnerObject { group: "apps".into(), plural: "deployments".into(), name: "web".into(), is_namespaced: true }],
            is_recorded: true,
        }
    }

    /// A cluster in which one subject has one rule, in a namespace or everywhere.
    fn with(namespace: Option<&str>, rule: &Value, subject: &Value) -> Rbac {
        let kind = if namespace.is_some() { "Role" } else { "ClusterRole" };
        written(&[
            json!({"kind": kind, "metadata": {"name": "r", "namespace": namespace}, "rules": [rule]}),
            json!({"kind": format!("{kind}Binding"), "metadata": {"name": "b", "namespace": namespace}, "subjects": [subject],
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "r"}}),
        ])
    }

    fn right(verb: &str, group: &str, resource: &str, name: Option<&str>) -> Value {
        json!({"verbs": [verb], "apiGroups": [group], "resources": [resource], "resourceNames": name.map(|name| vec![name])})
    }

    /// Every way is named, by each right that opens it, and by no other.
    #[test]
    fn every_way_around_is_named() {
        let (reg, rbac, ext) = ("admissionregistration.k8s.io", "rbac.authorization.k8s.io", "apiextensions.k8s.io");
        let bindings = "validatingadmissionpolicybindings";
        let everywhere = [
            (right("patch", reg, bindings, Some("fencedlock-guard")), "change validatingadmissionpolicybindings"),
            (right("deletecollection", reg, bindings, None), "change validatingadmissionpolicybindings"),
            (right("bind", rbac, "clusterroles", None), "give itself any right"),
            (right("impersonate", "", "groups", None), "impersonate system:masters"),
            (right("impersonate", "", "users", Some("deployer")), "impersonate an exempt user"),
            (right("approve", "certificates.k8s.io", "signers", Some("kubernetes.io/kube-apiserver-client")), "sign certificates"),
            (right("impersonate", "", "users", Some(OPERATOR)), "impersonate the operator"),
            (right("impersonate", "authentication.k8s.io", POD_UID, None), "pass for any pod"),
            (right("get", "", "nodes/proxy", None), "by its kubelet"),
            (right("delete", ext, "customresourcedefinitions", Some("widgets.example.com")), "delete the definition"),
            (right("delete", "", "namespaces", Some("shop")), "delete the namespace shop"),
            (right("patch", "", "namespaces", Some("shop")), "take the label fencedlock.dev/named off the namespace shop"),
            (right("delete", "apps", "deployments", None), "which owns a target and carries no fence"),
        ];
        let within = [
            ("fencedlock", right("impersonate", "", "serviceaccounts", Some("fencedlock")), "impersonate the operator"),
            ("fencedlock", right("create", "", "serviceaccounts/token", Some("fencedlock")), "mint tokens of the operator"),
            ("fencedlock", right("create", "", "pods", None), "run pods as the operator"),
            ("fencedlock", right("patch", "apps", "deployments", None), "run pods as the operator"),
            ("fencedlock", right("create", "", "secrets", None), "make a token of the operator"),
            ("fencedlock", right("create", "", "pods/exec", None), "enter the pods of the operator"),
            ("kube-system", right("create", "", "pods", None), "run pods as an exempt user"),
            ("fencedlock", right("bind", rbac, "clusterroles", None), "give itself any right"),
            ("shop", right("escalate", rbac, "roles", None), "give itself any right"),
            ("shop", right("delete", "", "namespaces", None), "delete the namespace shop"),
            ("shop", right("update", "", "namespaces/finalize", None), "take the label"),
            ("shop", right("create", "", "serviceaccounts/token", None), "mint tokens of owners' pods"),
            ("shop", right("get", "", "pods/exec", None), "enter owners' pods"),
            ("shop", right("create", "", "pods/attach", None), "enter owners' pods"),
            ("shop", right("patch", "", "pods/ephemeralcontainers", None), "enter owners' pods"),
            ("shop", right("deletecollection", "apps", "deployments", None), "which owns a target"),
        ];
        let ways = everywhere.into_iter().map(|(rule, wanted)| (None, rule, wanted));
        let ways = ways.chain(within.into_iter().map(|(namespace, rule, wanted)| (Some(namespace), rule, wanted)));
        let somebody = json!({"kind": "Group", "name": "devs"});
        for (namespace, rule, wanted) in ways {
            let (found, _) = find(&with(namespace, &rule, &somebody), &place(), ClaimKind::PodIdentity, &[]);
            let [bypass] = found.as_slice() else { panic!("{rule}: {found:?}") };
            assert!(bypass.text.starts_with("Group \"devs\" may ") && bypass.text.contains(wanted), "{rule}: {}", bypass.text);
            assert!(!bypass.by_writer && bypass.text.contains("exemptSubjects"));
        }
        let harmless = [
            (None, right("update", reg, bindings, Some("another"))),
            (None, right("get", reg, bindings, None)),
            (None, right("delete", "", "namespaces", Some("other"))),
            (None, right("delete", ext, "customresourcedefinitions", Some("others.example.com"))),
            (None, right("impersonate", "", "groups", Some("devs"))),
            (Some("shop"), json!({"verbs": ["*"], "apiGroups": [""], "resources": ["configmaps", "pods"]})),
            (Some("shop"), right("delete", "apps", "deployments", Some("other"))),
            (Some("elsewhere"), json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]})),
        ];
        for (namespace, rule) in harmless {
            assert_eq!(find(&with(namespace, &rule, &somebody), &place(), ClaimKind::PodIdentity, &[]).0, [], "{rule}");
        }
    }

    /// Who runs as an owner and can go around is a violation; who is known to be able to do everything is information; who is answered for too.
    #[test]
    fn it_matters_who_can() {
        let everything = json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]});
        let account = |namespace: &str, name: &str| json!({"kind": "ServiceAccount", "namespace": namespace, "name": name});
        let (user, group) = (|name: &str| json!({"kind": "User", "name": name}), |name: &str| json!({"kind": "Group", "name": name}));
        for (subject, wanted) in [
            (account("shop", "worker"), Some(true)),
            (group("system:serviceaccounts:shop"), Some(true)),
            (group("system:authenticated"), Some(true)),
            (account("shop", "other"), Some(false)),
            (group("system:serviceaccounts:other"), Some(false)),
            (user("alice"), Some(false)),
            (group("system:masters"), None),
            (user("system:kube-controller-manager"), None),
            (account("fencedlock", "fencedlock"), None),
        ] {
            let (found, _) = find(&with(None, &everything, &subject), &place(), ClaimKind::PodIdentity, &[]);
            assert_eq!(found.first().map(|bypass| bypass.by_writer), wanted, "{subject}: {found:?}");
        }
        let exempt: Vec<SubjectExemption> =
            serde_json::from_value(json!([{"group": "devs", "reason": "r"}, {"user": "alice", "reason": "r"}])).unwrap();
        for (subject, is_answered) in [(group("devs"), true), (user("devs"), false), (user("alice"), true)] {
            let (found, notes) = find(&with(None, &everything, &subject), &place(), ClaimKind::PodIdentity, &exempt);
            assert_eq!((found.is_empty(), notes.len() == 1), (is_answered, is_answered), "{subject}");
        }
    }

    /// Owners that claim by text are known by no pod, so that entering one gives nothing.
    #[test]
    fn what_gives_a_pod_matters_only_where_pods_are_known() {
        let exec = with(Some("shop"), &right("create", "", "pods/exec", None), &json!({"kind": "User", "name": "alice"}));
        assert_eq!(find(&exec, &place(), ClaimKind::PodIdentity, &[]).0.len(), 1);
        assert_eq!(find(&exec, &place(), ClaimKind::Annotation, &[]).0, []);
    }
}
