//! What the operator needs of a cluster before it can work: its rights, and its kinds. `fencedlock operator --check` and the chart's
//! test ask; the operator itself finds out while it works, lock by lock.

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};

use super::{
    error::Step,
    reservation,
    settings::{Election, Scope},
};
use crate::api::{FencedLock, WriteBoundary};

/// A right: verb, API group, resource, subresource, and the one object that it is about.
type Right<'a> = (&'static str, &'a str, &'a str, &'a str, &'a str);

/// Every right that the operator uses in each scope, as the chart grants them.
const RIGHTS: [Right<'static>; 18] = [
    ("get", "fencedlock.dev", "fencedlocks", "", ""),
    ("list", "fencedlock.dev", "fencedlocks", "", ""),
    ("watch", "fencedlock.dev", "fencedlocks", "", ""),
    ("get", "fencedlock.dev", "writeboundaries", "", ""),
    ("list", "fencedlock.dev", "writeboundaries", "", ""),
    ("watch", "fencedlock.dev", "writeboundaries", "", ""),
    ("update", "fencedlock.dev", "fencedlocks", "status", ""),
    ("update", "fencedlock.dev", "writeboundaries", "status", ""),
    ("get", "coordination.k8s.io", "leases", "", ""),
    ("list", "coordination.k8s.io", "leases", "", ""),
    ("watch", "coordination.k8s.io", "leases", "", ""),
    ("get", "", "pods", "", ""),
    ("list", "", "pods", "", ""),
    ("watch", "", "pods", "", ""),
    ("get", "", "configmaps", "", reservation::NAME),
    ("update", "", "configmaps", "", reservation::NAME),
    ("create", "", "configmaps", "", ""),
    ("create", "events.k8s.io", "events", "", ""),
];

/// What is missing, as sentences; empty when the operator can work.
///
/// # Errors
/// When the API server cannot be asked.
pub async fn check(client: &Client, scope: &Scope, election: Option<&Election>) -> Result<Vec<String>, kube::Error> {
    let mut missing = Vec::new();
    for (kind, listed) in [
        ("fencedlocks", is_served(Api::<FencedLock>::all(client.clone()).list(&ListParams::default().limit(1)).await)?),
        ("writeboundaries", is_served(Api::<WriteBoundary>::all(client.clone()).list(&ListParams::default().limit(1)).await)?),
    ] {
        if !listed {
            missing.push(format!("{kind}.fencedlock.dev is not served: install the CustomResourceDefinitions (fencedlock crds)"));
        }
    }
    let everywhere = [String::new()];
    let namespaces = match scope {
        Scope::Cluster => &everywhere[..],
        Scope::Namespaces(names) => names,
    };
    let mut needed: Vec<(&str, Right<'_>)> = namespaces.iter().flat_map(|n| RIGHTS.map(|right| (n.as_str(), right))).collect();
    if let Some(Election { namespace, name, .. }) = election {
        // Without these every replica stands by for ever.
        let rights = [("create", ""), ("get", name.as_str()), ("update", name.as_str())];
        needed.extend(rights.map(|(verb, name)| (namespace.as_str(), (verb, "coordination.k8s.io", "leases", "", name))));
    }
    for (namespace, right) in needed {
        if !may(client, namespace, &right).await? {
            missing.push(format!("the operator may not {}: grant it that right", describe(namespace, &right)));
        }
    }
    Ok(missing)
}

/// Whether the API server knows the kind. A refusal does not say that it does not.
fn is_served<T>(listing: kube::Result<T>) -> Result<bool, kube::Error> {
    match listing {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(true),
        // An object that cannot be read as the kind is served all the same.
        Ok(_) | Err(kube::Error::SerdeError(_)) => Ok(true),
        Err(error) => Err(error),
    }
}

async fn may(client: &Client, namespace: &str, (verb, group, resource, subresource, name): &Right<'_>) -> Result<bool, kube::Error> {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let attributes = ResourceAttributes {
        verb: text(verb),
        group: text(group),
        resource: text(resource),
        subresource: text(subresource),
        name: text(name),
        namespace: text(namespace),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..SelfSubjectAccessReviewSpec::default() };
    let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let answer = Api::<SelfSubjectAccessReview>::all(client.clone()).create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

fn describe(namespace: &str, (verb, group, resource, subresource, name): &Right<'_>) -> String {
    let mut what = (*resource).to_owned();
    if !group.is_empty() {
        what = format!("{what}.{group}");
    }
    if !subresource.is_empty() {
        what = format!("{what}/{subresource}");
    }
    if !name.is_empty() {
        what = format!("{what} {name:?}");
    }
    Step { verb, resource: &what, namespace, name: "" }.right()
}
