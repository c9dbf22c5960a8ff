//! From real Leases to epochs and grants: section b of the cases, and what belongs to it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::support::{
    Lab,
    lab::{condition, epoch, has},
    lease::at,
};
use fencedlock::api::{FencedLock, conditions::lock as on};
use http::{Request, Response};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    client::Body,
};
use serde_json::json;

/// A01, B01: a takeover is a new epoch; a release gets none and the same identity's return is a new one.
#[tokio::test]
async fn a_takeover_a_release_and_a_return_each_get_their_epoch() {
    let lab = Lab::new().await;
    let _operator = lab.operator().await;
    lab.declare("a", "CorrectnessCritical").await;
    let lease = lab.lease("a");
    let missing = lab.until_condition("a", on::EPOCH_ACTIVE, "False", "LeaseMissing").await;
    assert!(missing.message.contains("\"a\""), "B09: the message names the Lease: {}", missing.message);

    lease.put(Some("pg-1"), Some(0), at(0)).await;
    lab.until_active("a", 1, "pg-1").await;
    // A01: nothing is needed from pg-1, no callback and no acknowledgement.
    lease.put(Some("pg-0"), Some(1), at(20)).await;
    let lock = lab.until_active("a", 2, "pg-0").await;
    let grant = lock.status.unwrap().grant.unwrap();
    assert_eq!(
        (grant.term.lease_transitions, grant.term.acquire_time),
        (Some(1), at(20).map(|t| t.0)),
        "the term that the owner itself wrote"
    );

    lease.release().await;
    let released = lab.until("a", "a release", |s| s.grant.is_none() && has(s, on::EPOCH_ACTIVE, "False", "Released")).await;
    assert_eq!(epoch(&released), Some(2), "the epoch stays as the floor");
    lease.put(Some("pg-0"), Some(2), at(40)).await;
    lab.until_active("a", 3, "pg-0").await;
    // B01, the other way to write nobody.
    lease.put(None, Some(2), at(41)).await;
    lab.until("a", "a release", |s| s.grant.is_none()).await;
    lease.put(Some("pg-0"), Some(3), at(42)).await;
    lab.until_active("a", 4, "pg-0").await;
}

/// B05: deletion keeps the epoch as the floor; a recreated Lease is a new term, also for the same identity.
#[tokio::test]
async fn a_recreated_lease_is_a_new_term_also_for_the_same_holder() {
    let lab = Lab::new().await;
    let _operator = lab.operator().await;
    lab.declare("a", "EfficiencyOnly").await;
    let lease = lab.lease("a");
    lease.put(Some("x"), Some(7), at(0)).await;
    lab.until_active("a", 1, "x").await;
    lease.delete().await;
    let gone = lab.until("a", "a missing Lease", |s| s.grant.is_none() && has(s, on::EPOCH_ACTIVE, "False", "LeaseMissing")).await;
    assert_eq!(epoch(&gone), Some(1));
    lease.put(Some("y"), Some(0), at(1)).await;
    lab.until_active("a", 2, "y").await;
    lease.delete().await;
    lease.put(Some("y"), Some(0), at(1)).await;
    lab.until_active("a", 3, "y").await;
}

/// B05: the counter survives deletion and recreation of the FencedLock; D11: and it is never a count.
#[tokio::test]
async fn a_recreated_lock_continues_above_everything_that_was_issued() {
    let lab = Lab::new().await;
    let _operator = lab.operator().await;
    lab.declare("a", "CorrectnessCritical").await;
    let lease = lab.lease("a");
    lease.put(Some("x"), Some(0), at(0)).await;
    lab.until_active("a", 1, "x").await;
    lease.put(Some("y"), Some(1), at(1)).await;
    lab.until_active("a", 2, "y").await;

    lab.locks().delete("a", &DeleteParams::default()).await.unwrap();
    lab.declare("a", "CorrectnessCritical").await;
    let lock = lab.until("a", "a grant", |s| s.grant.is_some()).await;
    assert_eq!(epoch(&lock), Some(1_001), "above the block that the first one reserved");
    let map =
        Api::<k8s_openapi::api::core::v1::ConfigMap>::namespaced(lab.admin.clone(), &lab.namespace).get("fencedlock-epochs").await.unwrap();
    let uid = lock.metadata.uid.unwrap();
    assert_eq!(map.data.unwrap()["a"], format!("2000 {uid}"));

    let floor = Patch::Merge(json!({"spec": {"epochFloor": 5_000}}));
    lab.locks().patch("a", &PatchParams::default(), &floor).await.unwrap();
    lease.put(Some("x"), Some(2), at(2)).await;
    lab.until_active("a", 5_001, "x").await;
}

/// G05 and B02: A → B → A between two looks, by transitions; and a pod that came back under its name.
#[tokio::test]
async fn the_same_name_in_another_life_is_another_epoch() {
    let lab = Lab::new().await;
    lab.declare("a", "CorrectnessCritical").await;
    let lease = lab.lease("a");
    let operator = lab.operator().await;
    let pod = |uid: &str| {
        let _ = uid;
        serde_json::from_value(json!({"metadata": {"name": "db-0"}, "spec": {"containers": [{"name": "app", "image": "app"}], "automountServiceAccountToken": false}})).unwrap()
    };
    let pods = Api::<k8s_openapi::api::core::v1::Pod>::namespaced(lab.admin.clone(), &lab.namespace);
    pods.create(&PostParams::default(), &pod("1")).await.unwrap();
    lease.put(Some("db-0"), Some(4), at(0)).await;
    let first = lab.until_active("a", 1, "db-0").await;
    assert!(first.status.as_ref().unwrap().grant.as_ref().unwrap().term.pod_uid.is_some());
    lab.until_condition("a", on::OWNER_UNIQUE, "True", "OneProcess").await;

    // B02: nothing in the Lease changes but renewTime; only the pod's uid tells.
    pods.delete("db-0", &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() }).await.unwrap();
    lab.until_condition("a", on::OWNER_UNIQUE, "Unknown", "NotAPod").await;
    pods.create(&PostParams::default(), &pod("2")).await.unwrap();
    lease.renew().await;
    lab.until_active("a", 2, "db-0").await;

    // G05: nobody watched while B had it.
    operator.crash().await;
    lease.put(Some("b"), Some(5), at(50)).await;
    lease.put(Some("db-0"), Some(6), at(60)).await;
    let _operator = lab.operator().await;
    lab.until_active("a", 3, "db-0").await;
}

/// A10: a restarted operator that is shown an older view first must not mint from it: it reads the Lease itself.
#[tokio::test]
async fn a_restart_on_a_lagging_view_mints_nothing() {
    let lab = Lab::new().await;
    lab.declare("a", "CorrectnessCritical").await;
    let lease = lab.lease("a");
    let operator = lab.operator().await;
    lease.put(Some("a-1"), Some(3), at(0)).await;
    lab.until_active("a", 1, "a-1").await;
    let older = lab.plane.kubectl(&["get", "--raw", &format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", lab.namespace)], "");
    lease.put(Some("b-1"), Some(4), at(9)).await;
    let before = lab.until_active("a", 2, "b-1").await;
    operator.crash().await;
    let (client, answered) = answering_once(lab.operator_client().await, "/leases", older);
    let operator = lab.operator_as(client, &[&lab.namespace], lab.built_in().await);
    // The positive control: what the restarted operator does after it has looked at everything.
    lab.declare("z", "EfficiencyOnly").await;
    lab.lease("z").put(Some("z"), Some(0), at(0)).await;
    lab.until_active("z", 1, "z").await;
    lease.renew().await;
    assert!(operator.reconciles_of(&lab, "a") > 0 && answered.load(Ordering::Relaxed));
    let after = lab.locks().get("a").await.unwrap();
    assert_eq!(after.status, before.status, "not even a condition moved");
    assert_eq!(after.metadata.resource_version, before.metadata.resource_version, "nothing was written");
}

/// A client like the given one, whose first listing of a resource is answered with an older state of it. Says whether that was
/// asked for.
fn answering_once(inner: Client, resource: &'static str, older: String) -> (Client, Arc<AtomicBool>) {
    let answered = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&answered);
    let service = tower::service_fn(move |request: Request<Body>| {
        let uri = request.uri();
        let is_listing = uri.path().ends_with(resource) && !uri.query().unwrap_or_default().contains("watch=true");
        let older = (is_listing && !asked.swap(true, Ordering::Relaxed)).then(|| Body::from(older.clone().into_bytes()));
        let inner = inner.clone();
        async move {
            match older {
                Some(older) => Ok(Response::new(older)),
                None => inner.send(request).await,
            }
        }
    });
    (Client::new(service, "default"), answered)
}

/// A13: only the identity in the Lease gets an epoch, whatever anybody writes into the status; A12: the grant says whose.
#[tokio::test]
async fn a_zombie_cannot_get_the_next_epoch() {
    let lab = Lab::new().await;
    let _operator = lab.operator().await;
    lab.declare("a", "CorrectnessCritical").await;
    lab.lease("a").put(Some("b"), Some(1), at(0)).await;
    let lock = lab.until_active("a", 1, "b").await;
    // The zombie claims the present epoch for itself: the API server refuses it, because the epoch is b's.
    let claim =
        Patch::Merge(json!({"status": {"grant": {"epoch": 1, "holder": "zombie", "state": "Active", "since": "2026-12-01T00:00:00Z",
        "term": {"leaseUid": "x"}}}}));
    let refused = lab.locks().patch_status("a", &PatchParams::default(), &claim).await.unwrap_err().to_string();
    assert!(refused.contains("an epoch is granted once, to one holder"), "{refused}");
    // It writes the next epoch for itself, as somebody with rights on the status can: the operator replaces it at once, above.
    let claim = Patch::Merge(
        json!({"status": {"epoch": 2, "grant": {"epoch": 2, "holder": "zombie", "state": "Active", "since": "2026-12-01T00:00:00Z",
        "term": {"leaseUid": lock.status.unwrap().grant.unwrap().term.lease_uid}}}}),
    );
    lab.locks().patch_status("a", &PatchParams::default(), &claim).await.unwrap();
    lab.until_active("a", 3, "b").await;
}

/// A02: times that lie in the past or the future are data; the operator never decides that a Lease has expired.
#[tokio::test]
async fn no_time_in_a_lease_ends_a_term() {
    let lab = Lab::new().await;
    let _operator = lab.operator().await;
    lab.declare("a", "CorrectnessCritical").await;
    let lease = lab.lease("a");
    lease.put(Some("a-1"), Some(0), at(0)).await;
    lab.until_active("a", 1, "a-1").await;
    for renewed in ["1970-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"] {
        let patch = Patch::Merge(json!({"spec": {"renewTime": renewed}}));
        lease.api.patch("a", &PatchParams::default(), &patch).await.unwrap();
    }
    lease.put(Some("b-1"), Some(1), at(3_600)).await;
    lab.until_active("a", 2, "b-1").await;
}

/// B14: two clients that steal from each other: each change is an epoch of its own, in order, and nothing is left out that
/// was seen.
#[tokio::test]
async fn alternating_holders_get_strictly_rising_epochs() {
    let lab = Lab::new().await;
    let _operator = lab.operator().await;
    lab.declare("a", "EfficiencyOnly").await;
    let lease = lab.lease("a");
    for turn in 0..12 {
        let holder = ["a", "b"][turn as usize % 2];
        lease.put(Some(holder), Some(turn), at(turn.into())).await;
        lab.until_active("a", u64::try_from(turn).unwrap() + 1, holder).await;
    }
}

/// F08: at the last epoch everything but minting still works.
#[tokio::test]
async fn an_exhausted_lock_says_so_and_still_releases() {
    let lab = Lab::new().await;
    let _operator = lab.operator().await;
    let lock = lab.declare("a", "CorrectnessCritical").await;
    lab.until("a", "a first status", |s| s.verdict.is_some()).await;
    // A reservation at the end, as the lock's earlier life would have left it; the CRD bounds the floor at 2^52.
    let uid = lock.metadata.uid.clone().unwrap();
    let map = serde_json::from_value(json!({"metadata": {"name": "fencedlock-epochs"}, "data": {"a": format!("9007199254740991 {uid}")}}))
        .unwrap();
    let maps = Api::<k8s_openapi::api::core::v1::ConfigMap>::namespaced(lab.admin.clone(), &lab.namespace);
    maps.create(&PostParams::default(), &map).await.unwrap();
    let lease = lab.lease("a");
    lease.put(Some("x"), Some(0), at(0)).await;
    let exhausted = lab.until_condition("a", on::EPOCH_ACTIVE, "False", "EpochExhausted").await;
    assert!(exhausted.message.contains("another name"), "the next step: {}", exhausted.message);
    lease.release().await;
    lab.until_condition("a", on::EPOCH_ACTIVE, "False", "Released").await;
}

/// A reservation that somebody damaged stops minting instead of starting again at 1.
#[tokio::test]
async fn a_damaged_reservation_stops_minting_until_it_is_mended() {
    let lab = Lab::new().await;
    let _operator = lab.operator().await;
    lab.declare("a", "CorrectnessCritical").await;
    let maps = Api::<k8s_openapi::api::core::v1::ConfigMap>::namespaced(lab.admin.clone(), &lab.namespace);
    let map = serde_json::from_value(json!({"metadata": {"name": "fencedlock-epochs"}, "data": {"a": "lots"}})).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
    let lease = lab.lease("a");
    lease.put(Some("x"), Some(0), at(0)).await;
    let damaged = lab.until_condition("a", on::EPOCH_ACTIVE, "False", "ReservationUnreadable").await;
    assert!(damaged.message.contains("fencedlock-epochs") && damaged.message.contains("lots"), "{}", damaged.message);
    maps.patch("fencedlock-epochs", &PatchParams::default(), &Patch::Merge(json!({"data": {"a": "700 restored"}}))).await.unwrap();
    // Nobody tells the operator; it looks again by itself.
    lab.until_active("a", 701, "x").await;
}

/// The younger of two locks on one Lease gets nothing; when the older one goes, it does.
#[tokio::test]
async fn of_two_locks_on_one_lease_the_older_one_goes_on() {
    let lab = Lab::new().await;
    let _operator = lab.operator().await;
    let spec = |class: &str| json!({"class": class, "purpose": "p", "coordinator": {"lease": {"name": "shared"}}});
    lab.declare_spec("a-first", spec("CorrectnessCritical")).await;
    lab.declare_spec("b-second", spec("EfficiencyOnly")).await;
    lab.lease("shared").put(Some("x"), Some(0), at(0)).await;
    lab.until_active("a-first", 1, "x").await;
    let second = lab.until("b-second", "Invalid", |s| has(s, on::EPOCH_ACTIVE, "False", "LeaseShared")).await;
    let status = second.status.clone().unwrap();
    assert_eq!((format!("{:?}", status.verdict.unwrap()), status.reason.unwrap()), ("Invalid".into(), "LeaseShared".into()));
    assert!(condition(&second, on::COMPLIANT).message.contains("a-first"), "it names the other lock");
    lab.locks().delete("a-first", &DeleteParams::default()).await.unwrap();
    let second: FencedLock = lab.until_active("b-second", 1, "x").await;
    assert_eq!(condition(&second, on::READY).status, "True");
}
