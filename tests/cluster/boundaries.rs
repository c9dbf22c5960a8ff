//! Activation, with the in-memory backend: honest, slow, refusing, gone; what blocks and what does not.

use std::{sync::Arc, time::Duration};

use crate::support::{
    Lab,
    lab::{LIMIT, condition, condition_of, epoch, has, is_active},
    lease::at,
};
use fencedlock::{
    api::conditions::{boundary as on_boundary, lock as on},
    boundary::{
        Fence,
        memory::{Behaviour, Memories},
    },
    epoch::{Epoch, Holder, grant::GrantState},
};
use http::Request;
use kube::{
    Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
    client::Body,
};
use serde_json::{Value, json};

fn critical(boundaries: &[&str]) -> Value {
    critical_on("a", boundaries)
}

fn critical_on(lease: &str, boundaries: &[&str]) -> Value {
    json!({"class": "CorrectnessCritical", "purpose": "p", "coordinator": {"lease": {"name": lease}}, "writeBoundaries": boundaries})
}

fn guard(lock: &str, mode: &str) -> Value {
    json!({"lockRef": {"name": lock}, "type": "Postgres", "mode": mode, "postgres": {
        "connection": {"secretKeyRef": {"name": "s", "key": "url"}}, "tables": [{"schema": "public", "name": "t"}]}})
}

/// Pending → activated at the boundary → Active; the old owner is refused from then on, and the boundary's status shows it.
#[tokio::test]
async fn a_grant_is_active_only_after_the_boundary_is() {
    let lab = Lab::new().await;
    let backends = Memories::default();
    let db = backends.of(&lab.namespace, "db");
    let _operator = lab.operator_with(&[&lab.namespace], Arc::new(backends)).await;
    lab.declare_boundary("db", guard("a", "Enforce")).await;
    lab.declare_spec("a", critical(&["db"])).await;
    db.behave(Behaviour::Slow);
    let lease = lab.lease("a");
    lease.put(Some("x"), Some(0), at(0)).await;
    // Reading the fence times out first: no epoch is minted past a boundary that cannot say what it accepts.
    let unreadable = lab.until_condition("a", on::EPOCH_ACTIVE, "False", "FenceUnreadable").await;
    assert!(unreadable.message.contains("\"db\""), "{}", unreadable.message);
    db.behave(Behaviour::Honest);
    let lock = lab.until_active("a", 1, "x").await;
    assert!(db.accepts(1, "x"));
    assert_eq!(lock.status.unwrap().boundaries[0].fence.map(Epoch::get), Some(1));
    let shown = lab.until_boundary("db", "its fence", |b: Option<&fencedlock::api::WriteBoundary>| {
        b.and_then(|b| b.status.as_ref()).and_then(|s| s.fence.as_ref()).is_some_and(|f| f.epoch.get() == 1 && f.holder == "x")
    });
    shown.await;

    lease.put(Some("y"), Some(1), at(1)).await;
    lab.until_active("a", 2, "y").await;
    assert!(db.accepts(2, "y"));
    // A12: the zombie has read the new number, and the guard compares the holder too.
    for (stale, holder) in [(1, "x"), (2, "x"), (1, "y"), (3, "y"), (0, "y")] {
        assert!(!db.accepts(stale, holder), "{stale} {holder}");
    }
    assert_eq!(db.activations().len(), 2, "each grant was activated once");
}

/// A boundary that refuses, or is gone, keeps its own lock's grant Pending, says why, and holds up nobody else.
#[tokio::test]
async fn a_boundary_that_fails_delays_only_its_own_lock() {
    let lab = Lab::new().await;
    let backends = Memories::default();
    let (bad, gone) = (backends.of(&lab.namespace, "bad"), backends.of(&lab.namespace, "gone"));
    bad.behave(Behaviour::Refuses);
    let _operator = lab.operator_with(&[&lab.namespace], Arc::new(backends)).await;
    for (lock, boundary) in [("a", "bad"), ("b", "gone"), ("c", "good")] {
        lab.declare_boundary(boundary, guard(lock, "Enforce")).await;
        lab.declare_spec(lock, critical_on(lock, &[boundary])).await;
    }
    lab.until("b", "a first status", |s| s.verdict.is_some()).await;
    for lock in ["a", "b", "c"] {
        lab.lease(lock).put(Some("x"), Some(0), at(0)).await;
        if lock == "b" {
            lab.until_active("b", 1, "x").await;
            gone.behave(Behaviour::Gone);
            lab.lease("b").put(Some("y"), Some(1), at(1)).await;
        }
    }
    let failed = lab.until_condition("a", on::EPOCH_ACTIVE, "False", "ActivationFailed").await;
    assert!(failed.message.contains("\"bad\"") && failed.message.contains("permission denied"), "{}", failed.message);
    let unread = lab.until_condition("b", on::EPOCH_ACTIVE, "False", "FenceUnreadable").await;
    assert!(unread.message.contains("\"gone\"") && unread.message.contains("connection refused"), "{}", unread.message);
    lab.until_active("c", 1, "x").await;
    // The verdict stays what it was while a grant is Pending.
    let a = lab.locks().get("a").await.unwrap();
    assert_eq!(a.status.as_ref().unwrap().reason.as_deref(), Some("AllBoundariesProven"));
    assert_eq!(a.status.unwrap().grant.unwrap().state, GrantState::Pending);
    bad.behave(Behaviour::Honest);
    lab.until_active("a", 1, "x").await;
    // Deleting the WriteBoundary is the way out when a receiver is gone for good.
    lab.boundaries().delete("gone", &DeleteParams::default()).await.unwrap();
    let b =
        lab.until("b", "a grant", |s| s.grant.as_ref().is_some_and(|g| g.holder.as_str() == "y" && g.state == GrantState::Active)).await;
    assert_eq!(b.status.unwrap().reason.as_deref(), Some("BoundaryMissing"));
}

/// Reading a fence takes longer than the owner's renewals are apart: its epoch comes all the same.
#[tokio::test]
async fn a_boundary_that_answers_late_is_waited_for_though_the_lease_is_renewed() {
    let lab = Lab::new().await;
    let backends = Memories::default();
    let db = backends.of(&lab.namespace, "db");
    // Longer than a pass waits, shorter than the time-out of 500 ms.
    db.behave(Behaviour::Late(Duration::from_millis(400)));
    let _operator = lab.operator_with(&[&lab.namespace], Arc::new(backends)).await;
    lab.declare_boundary("db", guard("a", "Enforce")).await;
    lab.declare_spec("a", critical(&["db"])).await;
    let lease = lab.lease("a");
    lease.put(Some("x"), Some(0), at(0)).await;
    let renewing = async {
        loop {
            lease.renew().await;
        }
    };
    tokio::select! {
        () = renewing => {}
        _ = lab.until_active("a", 1, "x") => {}
    }
    assert!(db.accepts(1, "x"));
}

/// A cache that fell behind, because its watch shows nothing any more, does not know a boundary that must be activated first. The
/// grant becomes active only on what the API server says itself.
#[tokio::test]
async fn a_grant_is_not_made_active_on_a_cache_that_lags() {
    let lab = Lab::new().await;
    let client = hanging_watches(lab.operator_client().await, "/writeboundaries");
    let _operator = lab.operator_as(client, &[&lab.namespace], lab.built_in().await);
    lab.declare_spec("a", critical(&["db"])).await;
    let unknown = lab.until("a", "a first verdict", |s| s.verdict.is_some()).await;
    assert_eq!(unknown.status.unwrap().reason.as_deref(), Some("BoundaryMissing"));
    lab.declare_boundary("db", guard("a", "Enforce")).await;
    lab.lease("a").put(Some("x"), Some(0), at(0)).await;
    let held = lab.until_condition("a", on::EPOCH_ACTIVE, "False", "ActivationFailed").await;
    assert!(held.message.contains("\"db\""), "{}", held.message);
}

/// The same of one that nobody listed.
#[tokio::test]
async fn an_unlisted_boundary_that_no_cache_knows_holds_the_grant() {
    let lab = Lab::new().await;
    let client = hanging_watches(lab.operator_client().await, "/writeboundaries");
    let _operator = lab.operator_as(client, &[&lab.namespace], lab.built_in().await);
    lab.declare_spec("a", critical(&[])).await;
    lab.until("a", "a first verdict", |s| s.verdict.is_some()).await;
    lab.declare_boundary("db", guard("a", "Enforce")).await;
    lab.lease("a").put(Some("x"), Some(0), at(0)).await;
    let held = lab.until_condition("a", on::EPOCH_ACTIVE, "False", "ActivationFailed").await;
    assert!(held.message.contains("\"db\""), "{}", held.message);
}

/// A client like the given one, whose watches of a resource are never answered.
fn hanging_watches(inner: Client, resource: &'static str) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let inner = inner.clone();
        async move {
            let is_watch = request.uri().query().unwrap_or_default().contains("watch=true");
            if is_watch && request.uri().path().ends_with(resource) {
                std::future::pending::<()>().await;
            }
            inner.send(request).await
        }
    });
    Client::new(service, "default")
}

/// A fence that is ahead behind a guard that is not known to be ours cannot raise the epochs: anybody could have written it.
#[tokio::test]
async fn a_fence_that_is_not_trusted_holds_the_grant_and_moves_no_epoch() {
    let lab = Lab::new().await;
    let backends = Memories::default();
    let db = backends.of(&lab.namespace, "db");
    db.behave(Behaviour::Untrusted);
    db.restore(Some(Fence { epoch: Epoch::new(900).unwrap(), holder: Holder::new("later").ok() }));
    let operator = lab.operator_with(&[&lab.namespace], Arc::new(backends)).await;
    lab.declare_boundary("db", guard("a", "Enforce")).await;
    lab.declare_spec("a", critical(&["db"])).await;
    lab.lease("a").put(Some("x"), Some(0), at(0)).await;
    let held = lab.until_condition("a", on::EPOCH_ACTIVE, "False", "ActivationFailed").await;
    assert!(held.message.contains("epoch 900") && held.message.contains("spec.epochFloor to 900"), "{}", held.message);
    let lock = lab.locks().get("a").await.unwrap();
    assert_eq!(epoch(&lock), Some(1));
    lab.quiet(&operator, "a").await;
    // What the message says.
    lab.locks().patch("a", &PatchParams::default(), &Patch::Merge(json!({"spec": {"epochFloor": 900}}))).await.unwrap();
    lab.lease("a").put(Some("x"), Some(1), at(1)).await;
    lab.until_active("a", 901, "x").await;
}

/// Another declaration is another boundary to activate, also under the same grant.
#[tokio::test]
async fn a_boundary_that_is_declared_anew_is_activated_anew() {
    let lab = Lab::new().await;
    let backends = Memories::default();
    let db = backends.of(&lab.namespace, "db");
    let _operator = lab.operator_with(&[&lab.namespace], Arc::new(backends)).await;
    lab.declare_boundary("db", guard("a", "Enforce")).await;
    lab.declare_spec("a", critical(&["db"])).await;
    lab.lease("a").put(Some("x"), Some(0), at(0)).await;
    lab.until_active("a", 1, "x").await;
    db.restore(None);
    let tables = json!({"spec": {"postgres": {"tables": [{"schema": "public", "name": "other"}]}}});
    lab.boundaries().patch("db", &PatchParams::default(), &Patch::Merge(tables)).await.unwrap();
    lab.until_boundary("db", "its fence under the new declaration", |b: Option<&fencedlock::api::WriteBoundary>| {
        b.and_then(|b| b.status.as_ref()).and_then(|s| s.fence.as_ref()).is_some_and(|f| f.generation == Some(2))
    })
    .await;
    assert!(db.accepts(1, "x"));
}

/// Two replicas that see one failure differently say it once each, and do not overwrite each other for ever.
#[tokio::test]
async fn replicas_that_disagree_about_a_failure_do_not_fight() {
    let lab = Lab::new().await;
    let (mine, theirs) = (Memories::default(), Memories::default());
    mine.of(&lab.namespace, "db").behave(Behaviour::Refuses);
    let db = theirs.of(&lab.namespace, "db");
    let client = lab.operator_client().await;
    let one = lab.operator_as(client.clone(), &[&lab.namespace], Arc::new(mine));
    lab.declare_boundary("db", guard("a", "Enforce")).await;
    lab.declare_spec("a", critical(&["db"])).await;
    lab.lease("a").put(Some("x"), Some(0), at(0)).await;
    let refused = lab.until_condition("a", on::EPOCH_ACTIVE, "False", "ActivationFailed").await;
    assert!(refused.message.contains("permission denied"), "{}", refused.message);
    db.behave(Behaviour::Gone);
    let two = lab.operator_as(client, &[&lab.namespace], Arc::new(theirs));
    lab.until("a", "the other's words", |s| condition_of(s, on::EPOCH_ACTIVE).message.contains("connection refused")).await;
    let version = || async { lab.locks().get("a").await.unwrap().resource_version() };
    let before = version().await;
    // Both look again and again, by themselves, and leave the words alone.
    let looked = (one.reconciles_of(&lab, "a") + 2, two.reconciles_of(&lab, "a") + 2);
    let deadline = tokio::time::Instant::now() + LIMIT;
    while one.reconciles_of(&lab, "a") < looked.0 || two.reconciles_of(&lab, "a") < looked.1 {
        assert!(tokio::time::Instant::now() < deadline, "they look too seldom");
        tokio::task::yield_now().await;
    }
    assert_eq!(version().await, before);
}

/// If the holder changes while its grant is Pending, the grant is abandoned and its epoch stays consumed.
#[tokio::test]
async fn an_abandoned_grant_consumes_its_epoch() {
    let lab = Lab::new().await;
    let backends = Memories::default();
    let db = backends.of(&lab.namespace, "db");
    db.behave(Behaviour::Refuses);
    let _operator = lab.operator_with(&[&lab.namespace], Arc::new(backends)).await;
    lab.declare_boundary("db", guard("a", "Enforce")).await;
    lab.declare_spec("a", critical(&["db"])).await;
    let lease = lab.lease("a");
    lease.put(Some("x"), Some(0), at(0)).await;
    lab.until("a", "a pending grant", |s| s.grant.as_ref().is_some_and(|g| g.epoch.get() == 1 && g.state == GrantState::Pending)).await;
    lease.put(Some("y"), Some(1), at(1)).await;
    lab.until("a", "the next", |s| s.grant.as_ref().is_some_and(|g| g.epoch.get() == 2)).await;
    db.behave(Behaviour::Honest);
    lab.until_active("a", 2, "y").await;
    assert!(db.accepts(2, "y") && !db.accepts(1, "x"));
}

/// What does not block: an observing boundary, any boundary of an efficiency-only lock; both are activated all the same.
#[tokio::test]
async fn an_observing_boundary_is_activated_and_never_blocks() {
    let lab = Lab::new().await;
    let backends = Memories::default();
    let (observing, enforcing) = (backends.of(&lab.namespace, "observing"), backends.of(&lab.namespace, "enforcing"));
    let _operator = lab.operator_with(&[&lab.namespace], Arc::new(backends)).await;
    lab.declare_boundary("observing", guard("a", "Observe")).await;
    lab.declare_spec("a", critical(&["observing"])).await;
    lab.declare_boundary("enforcing", guard("b", "Enforce")).await;
    let mut efficiency = critical_on("b", &["enforcing"]);
    efficiency["class"] = json!("EfficiencyOnly");
    lab.declare_spec("b", efficiency).await;
    for (lock, db) in [("a", &observing), ("b", &enforcing)] {
        db.behave(Behaviour::Refuses);
        lab.lease(lock).put(Some("x"), Some(0), at(0)).await;
        lab.until_active(lock, 1, "x").await;
        db.behave(Behaviour::Honest);
        lab.until(lock, "the fence", |s| s.boundaries.iter().any(|b| b.fence.is_some_and(|f| f.get() == 1))).await;
        assert!(db.accepts(1, "x"));
    }
    let a = lab.locks().get("a").await.unwrap().status.unwrap();
    assert_eq!(a.reason.as_deref(), Some("Observing"));
}

/// A boundary added under an active grant is activated with it; one that is not listed counts, and is a finding.
#[tokio::test]
async fn a_boundary_added_later_is_activated_with_the_active_grant() {
    let lab = Lab::new().await;
    let backends = Memories::default();
    let db = backends.of(&lab.namespace, "db");
    let _operator = lab.operator_with(&[&lab.namespace], Arc::new(backends)).await;
    lab.declare_spec("a", critical(&[])).await;
    lab.lease("a").put(Some("x"), Some(0), at(0)).await;
    let before = lab.until_active("a", 1, "x").await;
    assert_eq!(before.status.unwrap().reason.as_deref(), Some("NoBoundaryRegistered"));
    lab.declare_boundary("db", guard("a", "Enforce")).await;
    let unlisted = lab.until("a", "the fence", |s| s.boundaries.iter().any(|b| b.fence.is_some_and(|f| f.get() == 1))).await;
    assert!(db.accepts(1, "x") && is_active(unlisted.status.as_ref().unwrap(), 1, "x"));
    assert!(condition(&unlisted, on::COMPLIANT).message.contains("\"db\""), "it says that the boundary is not listed");
    lab.locks().patch("a", &PatchParams::default(), &Patch::Merge(json!({"spec": {"writeBoundaries": ["db"]}}))).await.unwrap();
    lab.until_condition("a", on::BOUNDARY_REGISTERED, "True", "Registered").await;
}

/// D06, E01: a fence that is ahead of the lock, because the cluster was restored, is respected: the next grant lies above it.
#[tokio::test]
async fn a_fence_ahead_of_the_status_is_never_passed_below() {
    let lab = Lab::new().await;
    let backends = Memories::default();
    let db = backends.of(&lab.namespace, "db");
    let _operator = lab.operator_with(&[&lab.namespace], Arc::new(backends)).await;
    lab.declare_boundary("db", guard("a", "Enforce")).await;
    lab.declare_spec("a", critical(&["db"])).await;
    let lease = lab.lease("a");
    lease.put(Some("x"), Some(0), at(0)).await;
    lab.until_active("a", 1, "x").await;
    db.restore(Some(Fence { epoch: Epoch::new(57).unwrap(), holder: Holder::new("later").ok() }));
    lease.put(Some("y"), Some(1), at(1)).await;
    let lock = lab.until_active("a", 58, "y").await;
    assert!(db.accepts(58, "y") && !db.accepts(57, "later"));
    assert_eq!(condition(&lock, on::EPOCH_MONOTONIC).status, "True", "the grant above the fence is active");
    // An implausible one stops minting and says what a person has to do.
    db.restore(Some(Fence { epoch: Epoch::new(1 << 40).unwrap(), holder: None }));
    lease.put(Some("z"), Some(2), at(2)).await;
    let stopped = lab.until("a", "no minting", |s| has(s, on::EPOCH_ACTIVE, "False", "FenceImplausible")).await;
    assert!(condition(&stopped, on::EPOCH_ACTIVE).message.contains("spec.epochFloor"));
    assert_eq!(condition(&stopped, on::EPOCH_MONOTONIC).reason, "FenceImplausible");
    lab.locks().patch("a", &PatchParams::default(), &Patch::Merge(json!({"spec": {"epochFloor": 1u64 << 40}}))).await.unwrap();
    lab.until_active("a", (1 << 40) + 1, "z").await;
}

/// A boundary that goes away leaves its fence in the reservation: a lock recreated afterwards continues above it.
#[tokio::test]
async fn the_fence_of_a_deleted_boundary_is_kept() {
    let lab = Lab::new().await;
    let backends = Memories::default();
    let _operator = lab.operator_with(&[&lab.namespace], Arc::new(backends)).await;
    lab.declare_boundary("db", guard("a", "Enforce")).await;
    lab.declare_spec("a", critical(&["db"])).await;
    lab.locks().patch("a", &PatchParams::default(), &Patch::Merge(json!({"spec": {"epochFloor": 3_000}}))).await.unwrap();
    lab.lease("a").put(Some("x"), Some(0), at(0)).await;
    lab.until_active("a", 3_001, "x").await;
    lab.boundaries().delete("db", &DeleteParams::default()).await.unwrap();
    lab.until("a", "the boundary missing", |s| s.reason.as_deref() == Some("BoundaryMissing")).await;
    lab.locks().delete("a", &DeleteParams::default()).await.unwrap();
    lab.declare_spec("a", critical(&[])).await;
    let lock = lab.until("a", "a grant", |s| s.grant.is_some()).await;
    assert!(epoch(&lock) > Some(3_001), "{:?}", epoch(&lock));
}

/// An operator that can drive nothing, as an older one beside newer definitions.
#[derive(Debug)]
struct Nothing;

impl fencedlock::boundary::Backends for Nothing {
    fn backend(&self, _: &fencedlock::api::WriteBoundary) -> Option<std::sync::Arc<dyn fencedlock::boundary::Backend>> {
        None
    }
}

/// A type without a backend is said to be unproven for that reason, and one that must enforce holds its grant, because nothing can
/// activate it.
#[tokio::test]
async fn a_backend_that_is_not_implemented_proves_and_activates_nothing() {
    let lab = Lab::new().await;
    let _operator = lab.operator_with(&[&lab.namespace], std::sync::Arc::new(Nothing)).await;
    let objects = json!({"claim": "Annotation", "targets": [{"group": "", "resource": "configmaps", "names": ["web"]}]});
    lab.declare_boundary("db", json!({"lockRef": {"name": "a"}, "type": "Kubernetes", "mode": "Enforce", "kubernetes": objects})).await;
    lab.declare_spec("a", critical(&["db"])).await;
    lab.lease("a").put(Some("x"), Some(0), at(0)).await;
    let failed = lab.until_condition("a", on::EPOCH_ACTIVE, "False", "ActivationFailed").await;
    assert!(failed.message.contains("Observe"), "the next step: {}", failed.message);
    let boundary = lab.until_boundary("db", "a verdict", |b: Option<&fencedlock::api::WriteBoundary>| {
        b.and_then(|b| b.status.as_ref()).is_some_and(|s| s.verdict.is_some())
    });
    let status = boundary.await.status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("BackendNotImplemented"));
    assert!(status.conditions.iter().any(|c| c.type_ == on_boundary::PROVEN && c.status == "False"));
    lab.boundaries().patch("db", &PatchParams::default(), &Patch::Merge(json!({"spec": {"mode": "Observe"}}))).await.unwrap();
    let lock = lab.until_active("a", 1, "x").await;
    assert_eq!(lock.status.unwrap().reason.as_deref(), Some("BackendNotImplemented"));
}
