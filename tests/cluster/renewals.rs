//! A steady state costs nothing (cases G01, B03, B12): counted by the API server's own audit log, with a takeover as the
//! positive control.

use crate::support::{Lab, lab::is_active, lease::at};
use fencedlock::api::conditions::lock as on;

/// The operator's requests that wrote something about an object named so.
fn writes(lab: &Lab, name: &str) -> usize {
    let requests = lab.plane.requests_of(&lab.operator_user());
    let about = |e: &&serde_json::Value| e["objectRef"]["name"] == name && e["objectRef"]["namespace"] == lab.namespace.as_str();
    requests.iter().filter(about).filter(|e| !["get", "list", "watch"].contains(&e["verb"].as_str().unwrap())).count()
}

/// 900 renewals back to back cause zero reconciles and zero requests. A marker on the same watch stream, written after them,
/// shows that they were all delivered.
#[tokio::test]
async fn nine_hundred_renewals_cause_no_reconcile_and_no_write() {
    let lab = Lab::new().await;
    let operator = lab.operator().await;
    lab.declare("a", "CorrectnessCritical").await;
    lab.declare("marker", "EfficiencyOnly").await;
    let (lease, marker) = (lab.lease("a"), lab.lease("marker"));
    lease.put(Some("x"), Some(0), at(0)).await;
    lab.until_active("a", 1, "x").await;
    // The lock's own status write comes back as an event; the marker's grant is behind it on the same stream of locks.
    marker.put(Some("m"), Some(0), at(0)).await;
    lab.until_active("marker", 1, "m").await;
    lab.quiet(&operator, "a").await;
    let (reconciles, written) = (operator.reconciles_of(&lab, "a"), writes(&lab, "a"));

    for _ in 0..900 {
        lease.renew().await;
    }
    marker.put(Some("m2"), Some(1), at(1)).await;
    lab.until_active("marker", 2, "m2").await;
    assert_eq!(operator.reconciles_of(&lab, "a"), reconciles, "renewals caused reconciles");
    assert_eq!(writes(&lab, "a"), written, "renewals caused writes");

    lease.put(Some("y"), Some(1), at(1)).await;
    lab.until_active("a", 2, "y").await;
    assert!(operator.reconciles_of(&lab, "a") > reconciles, "a takeover does");
    assert_eq!(writes(&lab, "a"), written + 1, "and it costs one write");
}

/// B03, B12: clients that count transitions or rewrite acquireTime at each renewal keep their epoch and wake nobody; one that
/// does both is found out after three epochs, said to be so, and then wakes nobody either.
#[tokio::test]
async fn odd_clients_keep_their_epoch() {
    let lab = Lab::new().await;
    let operator = lab.operator().await;
    for name in ["counts", "rewrites", "both", "marker"] {
        lab.declare(name, "CorrectnessCritical").await;
        lab.lease(name).put(Some("x"), Some(1), at(0)).await;
        lab.until_active(name, 1, "x").await;
    }
    for name in ["counts", "rewrites"] {
        lab.quiet(&operator, name).await;
    }
    let before: Vec<_> = ["counts", "rewrites"].iter().map(|name| operator.reconciles_of(&lab, name)).collect();
    for turn in 2..40 {
        lab.lease("counts").put(Some("x"), Some(turn), at(0)).await;
        lab.lease("rewrites").put(Some("x"), Some(1), at(turn.into())).await;
    }
    for turn in 2..=4 {
        lab.lease("both").put(Some("x"), Some(turn), at(turn.into())).await;
        lab.until("both", "an epoch by rule 4", |s| is_active(s, u64::try_from(turn).unwrap(), "x")).await;
    }
    lab.until_condition("both", on::OWNER_UNIQUE, "Unknown", "CounterUnreliable").await;
    lab.quiet(&operator, "both").await;
    let both = operator.reconciles_of(&lab, "both");
    for turn in 5..40 {
        lab.lease("both").put(Some("x"), Some(turn), at(turn.into())).await;
    }
    lab.lease("marker").put(Some("y"), Some(2), at(1)).await;
    lab.until_active("marker", 2, "y").await;
    for (name, epoch) in [("counts", 1), ("rewrites", 1), ("both", 4)] {
        let status = lab.locks().get(name).await.unwrap().status.unwrap();
        assert!(is_active(&status, epoch, "x"), "{name}: {status:#?}");
    }
    let after: Vec<_> = ["counts", "rewrites"].iter().map(|name| operator.reconciles_of(&lab, name)).collect();
    assert_eq!(after, before, "renewals by odd clients caused reconciles");
    assert_eq!(operator.reconciles_of(&lab, "both"), both, "also by the one that was found out");

    // Another holder is seen at once, and the odd client's return is a term again.
    lab.lease("both").put(Some("z"), Some(40), at(40)).await;
    lab.until_active("both", 5, "z").await;
    lab.lease("both").put(Some("x"), Some(41), at(41)).await;
    lab.until_active("both", 6, "x").await;
}

/// B03 and G05 together: behind a client that counts its renewals, a takeover that resets the counter is seen although the
/// counter stands lower than at the last renewal.
#[tokio::test]
async fn a_takeover_behind_a_counting_client_is_not_taken_for_a_renewal() {
    let lab = Lab::new().await;
    let operator = lab.operator().await;
    lab.declare("a", "CorrectnessCritical").await;
    let lease = lab.lease("a");
    lease.put(Some("x"), Some(1), at(0)).await;
    lab.until_active("a", 1, "x").await;
    lease.put(Some("x"), Some(9), at(0)).await;
    // Any reconcile that sees the renewed Lease: the declaration changes.
    let purpose = kube::api::Patch::Merge(serde_json::json!({"spec": {"purpose": "another"}}));
    let edited = lab.locks().patch("a", &kube::api::PatchParams::default(), &purpose).await.unwrap();
    lab.until("a", "the edit", |s| s.observed_generation == edited.metadata.generation).await;
    lab.quiet(&operator, "a").await;
    lease.put(Some("x"), Some(2), at(30)).await;
    lab.until_active("a", 2, "x").await;
}
