//! Missing rights in one namespace (case G09): its lock says which verb on what is missing, the others go on.

use std::time::Duration;

use crate::support::{Lab, lab::has, lease::at};
use fencedlock::{
    api::{FencedLock, conditions::lock as on},
    epoch::grant::GrantState,
    operator::{Scope, Settings, check},
};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, api::PostParams};
use serde_json::json;

async fn lock_in(lab: &Lab, namespace: &str) {
    let lock = json!({"apiVersion": "fencedlock.dev/v1alpha1", "kind": "FencedLock", "metadata": {"name": "a"},
        "spec": {"class": "CorrectnessCritical", "purpose": "p", "coordinator": {"lease": {"name": "a"}}}});
    Api::<FencedLock>::namespaced(lab.admin.clone(), namespace)
        .create(&PostParams::default(), &serde_json::from_value(lock).unwrap())
        .await
        .unwrap();
    let lease = json!({"metadata": {"name": "a"}, "spec": {"holderIdentity": "x", "leaseTransitions": 0, "acquireTime": at(0)}});
    Api::<Lease>::namespaced(lab.admin.clone(), namespace)
        .create(&PostParams::default(), &serde_json::from_value(lease).unwrap())
        .await
        .unwrap();
}

/// Removes what the operator's Role says about `resource`, and returns the rules to give it back with.
fn take_away(lab: &Lab, namespace: &str, resource: &str) -> serde_json::Value {
    let role: serde_json::Value =
        serde_json::from_str(&lab.plane.kubectl(&["get", "role", "fencedlock", "-n", namespace, "-o", "json"], "")).unwrap();
    let mut rules = role["rules"].as_array().unwrap().clone();
    for rule in &mut rules {
        rule["resources"].as_array_mut().unwrap().retain(|r| r != resource);
    }
    assert_ne!(json!(rules), role["rules"], "{resource} is in no rule");
    rules.retain(|rule| rule["resources"] != json!([]));
    set_rules(lab, namespace, &json!(rules));
    role["rules"].clone()
}

fn set_rules(lab: &Lab, namespace: &str, rules: &serde_json::Value) {
    lab.plane.kubectl(&["patch", "role", "fencedlock", "-n", namespace, "--type=merge", "-p", &json!({"rules": rules}).to_string()], "");
}

#[tokio::test]
async fn a_right_that_is_missing_in_one_namespace_stops_nobody_else() {
    let lab = Lab::new().await;
    let names: Vec<_> = (0..6).map(|n| format!("{}-{n}", lab.namespace)).collect();
    for name in &names {
        lab.create_namespace(name).await;
    }
    let namespaces: Vec<_> = names.iter().map(String::as_str).collect();
    lab.install_chart(&namespaces);
    let leases = take_away(&lab, &names[1], "leases");
    let pods = take_away(&lab, &names[2], "pods");
    // What the chart grants is what `fencedlock operator --check` asks for, and it names what is gone.
    let everywhere = Scope::Namespaces(names.iter().take(3).cloned().collect());
    let missing = check(&lab.operator_client().await, &everywhere, None).await.unwrap();
    let wanted = |namespace: &str, what: &str| {
        ["get", "list", "watch"].map(|verb| format!("the operator may not {verb} {what} in namespace {namespace:?}: grant it that right"))
    };
    assert_eq!(missing, [wanted(&names[1], "leases.coordination.k8s.io"), wanted(&names[2], "pods")].concat());
    take_away(&lab, &names[3], "fencedlocks/status");
    let reservations = take_away(&lab, &names[4], "configmaps");
    let boundaries = take_away(&lab, &names[5], "writeboundaries");
    let _operator = lab.operator_with(&namespaces, lab.built_in().await).await;
    for name in &names {
        lock_in(&lab, name).await;
    }
    lab.until_in(&names[0], "a", "an epoch", |s| s.grant.is_some()).await;

    let blind = lab.until_in(&names[1], "a", "Forbidden", |s| has(s, on::EPOCH_ACTIVE, "Unknown", "Forbidden")).await;
    let message = crate::support::lab::condition(&blind, on::EPOCH_ACTIVE).message;
    assert!(message.contains("leases.coordination.k8s.io") && message.contains(&names[1]) && message.contains("list"), "{message}");
    assert_eq!(blind.status.as_ref().unwrap().epoch, None, "the epoch is frozen, not guessed");

    let no_pods = lab.until_in(&names[2], "a", "an epoch", |s| s.grant.is_some()).await;
    let owner = crate::support::lab::condition(&no_pods, on::OWNER_UNIQUE);
    assert_eq!((owner.status.as_str(), owner.reason.as_str()), ("Unknown", "Forbidden"), "{}", owner.message);

    let silent = Api::<FencedLock>::namespaced(lab.admin.clone(), &names[3]).get("a").await.unwrap();
    assert_eq!(silent.status.unwrap().verdict, None, "without the right to write a status nothing can be said there");

    // No epoch is issued that could not be reserved, and it is said why.
    let unreserved = lab.until_in(&names[4], "a", "Forbidden", |s| has(s, on::EPOCH_ACTIVE, "False", "Forbidden")).await;
    let message = crate::support::lab::condition(&unreserved, on::EPOCH_ACTIVE).message;
    assert!(message.contains("configmaps") && message.contains(&names[4]), "{message}");
    assert_eq!(unreserved.status.as_ref().unwrap().epoch, None);

    // A boundary that nobody may see could refer to the lock: the grant waits.
    let unseen = lab.until_in(&names[5], "a", "Forbidden", |s| has(s, on::EPOCH_ACTIVE, "False", "Forbidden")).await;
    let message = crate::support::lab::condition(&unseen, on::EPOCH_ACTIVE).message;
    assert!(message.contains("writeboundaries.fencedlock.dev") && message.contains(&names[5]), "{message}");
    assert_eq!(unseen.status.unwrap().grant.unwrap().state, GrantState::Pending);

    // Given back, they catch up by themselves.
    set_rules(&lab, &names[5], &boundaries);
    let is_active = |s: &fencedlock::api::FencedLockStatus| s.grant.as_ref().is_some_and(|g| g.state == GrantState::Active);
    lab.until_in(&names[5], "a", "an active grant", is_active).await;
    set_rules(&lab, &names[4], &reservations);
    lab.until_in(&names[4], "a", "an epoch", |s| s.grant.is_some()).await;
    set_rules(&lab, &names[1], &leases);
    lab.until_in(&names[1], "a", "an epoch", |s| s.grant.is_some()).await;
    set_rules(&lab, &names[2], &pods);
    lab.until_in(&names[2], "a", "the pod sought", |s| has(s, on::OWNER_UNIQUE, "Unknown", "NotAPod")).await;
}

/// A right that is lost while the operator runs, and comes back without any object being touched: locks say so and recover.
#[tokio::test]
async fn a_right_that_is_lost_and_given_back_leaves_no_trace() {
    let lab = Lab::new().await;
    let settings = Settings {
        scope: Scope::Namespaces(vec![lab.namespace.clone()]),
        // The API server lets a watch go on without its right, until it ends.
        watch_timeout: Duration::from_secs(2),
        ..Settings::default()
    };
    let _operator = lab.operator_set(lab.operator_client().await, settings, lab.built_in().await);
    let spec =
        json!({"class": "CorrectnessCritical", "purpose": "p", "coordinator": {"lease": {"name": "a"}}, "writeBoundaries": ["mail"]});
    lab.declare_spec("a", spec).await;
    lab.declare_boundary("mail", json!({"lockRef": {"name": "a"}, "type": "External", "external": {"receiver": "mail"}})).await;
    lab.until("a", "a verdict", |s| s.reason.as_deref() == Some("CannotEnforce")).await;
    let rules = take_away(&lab, &lab.namespace, "writeboundaries");
    let blind = lab.until("a", "Forbidden", |s| s.reason.as_deref() == Some("Forbidden")).await;
    let message = crate::support::lab::condition(&blind, on::BOUNDARY_REGISTERED).message;
    assert!(message.contains("writeboundaries.fencedlock.dev") && message.contains("grant it that right"), "{message}");
    set_rules(&lab, &lab.namespace, &rules);
    lab.until("a", "its verdict", |s| s.reason.as_deref() == Some("CannotEnforce")).await;
}

/// An operator without any right waits for them, and stops when it is asked to.
#[tokio::test]
async fn an_operator_without_rights_still_stops() {
    let lab = Lab::new().await;
    for resource in ["fencedlocks", "leases", "pods"] {
        take_away(&lab, &lab.namespace, resource);
    }
    let operator = lab.operator().await;
    lab.declare("a", "CorrectnessCritical").await;
    // The refusal of its first listing is in the audit log before it is asked to stop.
    let deadline = tokio::time::Instant::now() + crate::support::lab::LIMIT;
    while !lab.plane.requests_of(&lab.operator_user()).iter().any(|e| e["responseStatus"]["code"] == 403) {
        assert!(tokio::time::Instant::now() < deadline, "it never asked");
        tokio::task::yield_now().await;
    }
    operator.stop().await;
}
