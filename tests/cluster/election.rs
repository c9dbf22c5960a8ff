//! The operator's own election: one replica works at a time, the next one takes over, and a leader that lost touch has stopped
//! before. Nothing depends on it: `crash.rs` runs two replicas without any.

use std::time::Duration;

use crate::support::{Lab, lab::Running, lease::at};
use fencedlock::{
    client::acquire::Timing,
    operator::{Election, Scope, Settings},
};

fn settings(lab: &Lab, identity: &str) -> Settings {
    let second = Duration::from_secs(1);
    Settings {
        scope: Scope::Namespaces(vec![lab.namespace.clone()]),
        election: Some(Election {
            namespace: lab.namespace.clone(),
            name: "fencedlock-operator".into(),
            identity: identity.into(),
            timing: Timing::new(3 * second, 2 * second, second / 4).unwrap(),
        }),
        ..Settings::default()
    }
}

async fn replica(lab: &Lab, identity: &str) -> Running {
    lab.operator_set(lab.operator_client().await, settings(lab, identity), lab.built_in().await)
}

/// Waits until the election's Lease has this holder.
async fn until_leads(lab: &Lab, identity: &str) {
    let leases = lab.lease("fencedlock-operator").api;
    let wanted = |lease: Option<&k8s_openapi::api::coordination::v1::Lease>| {
        lease.and_then(|l| l.spec.as_ref()).and_then(|s| s.holder_identity.as_deref()) == Some(identity)
    };
    let waiting = kube::runtime::wait::await_condition(leases, "fencedlock-operator", wanted);
    tokio::time::timeout(crate::support::lab::LIMIT, waiting).await.expect("it leads").unwrap();
}

#[tokio::test]
async fn one_replica_works_and_the_next_one_takes_over() {
    let lab = Lab::new().await;
    let one = replica(&lab, "one").await;
    until_leads(&lab, "one").await;
    let two = replica(&lab, "two").await;
    lab.declare("a", "CorrectnessCritical").await;
    let lease = lab.lease("a");
    lease.put(Some("x"), Some(0), at(0)).await;
    lab.until_active("a", 1, "x").await;
    assert!(one.reconciles_of(&lab, "a") > 0);
    assert_eq!(two.reconciles_of(&lab, "a"), 0, "it stands by");

    // Gracefully: the Lease is given back.
    one.stop().await;
    lease.put(Some("y"), Some(1), at(1)).await;
    lab.until_active("a", 2, "y").await;
    until_leads(&lab, "two").await;

    // Killed: the Lease expires.
    two.crash().await;
    let _three = replica(&lab, "three").await;
    lease.put(Some("z"), Some(2), at(2)).await;
    lab.until_active("a", 3, "z").await;
}

/// The leader loses touch with the API server, which accepted its renewal and never answers (case A04), and another one takes over; when
/// it is back it stands by.
#[tokio::test]
async fn a_leader_that_lost_touch_has_stopped() {
    let lab = Lab::new().await;
    let (proxy, client) = lab.operator_behind(Some(Duration::from_secs(4))).await;
    let one = lab.operator_set(client, settings(&lab, "one"), lab.built_in().await);
    until_leads(&lab, "one").await;
    let two = replica(&lab, "two").await;
    lab.declare("a", "CorrectnessCritical").await;
    let lease = lab.lease("a");
    lease.put(Some("x"), Some(0), at(0)).await;
    lab.until_active("a", 1, "x").await;
    proxy.refuse(true);
    until_leads(&lab, "two").await;
    lease.put(Some("y"), Some(1), at(1)).await;
    lab.until_active("a", 2, "y").await;
    assert!(two.reconciles_of(&lab, "a") > 0);
    proxy.refuse(false);
    let before = one.reconciles_of(&lab, "a");
    lease.put(Some("x"), Some(2), at(2)).await;
    lab.until_active("a", 3, "x").await;
    assert_eq!(one.reconciles_of(&lab, "a"), before, "the old leader stands by");
}
