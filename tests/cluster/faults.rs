//! An API server that answers with errors, answers late, or whose answers get lost. No epoch is lost or repeated, and one lock's
//! trouble is no other's.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    serving::until,
    support::{
        Lab,
        lab::{Running, is_active},
        lease::at,
    },
};
use fencedlock::operator::{Scope, Settings};
use http::{Request, Response, StatusCode};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::sync::watch::Sender;
use tower::BoxError;

/// A client like the given one, with something that happens to each request.
fn with<F, O>(inner: Client, fate: F) -> Client
where
    F: Fn(Request<Body>, Client) -> O + Clone + Send + Sync + 'static,
    O: Future<Output = Result<Response<Body>, BoxError>> + Send + 'static,
{
    Client::new(tower::service_fn(move |request: Request<Body>| fate(request, inner.clone())), "default")
}

/// A client like the given one, whose requests for such a path wait as long as `holds` says so.
fn held(inner: Client, holds: &Sender<bool>, path: fn(&str) -> bool) -> Client {
    let gate = holds.subscribe();
    with(inner, move |request, inner| {
        let mut gate = gate.clone();
        async move {
            if path(request.uri().path()) {
                gate.wait_for(|holds| !holds).await?;
            }
            Ok(inner.send(request).await?)
        }
    })
}

/// What the API server says when it has too much to do, or a load balancer when it finds none.
fn refusal(code: StatusCode) -> Response<Body> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code.as_u16(), "reason": "Injected", "message": "injected"});
    let body = if code == StatusCode::BAD_GATEWAY { "<html>no upstream</html>".into() } else { status.to_string() };
    Response::builder().status(code).header("retry-after", "1").body(Body::from(body.into_bytes())).unwrap()
}

/// One request in sixteen is refused before it arrives; one in sixteen arrives, and its answer is lost. That holds for watches too.
/// Which ones is spread by multiplication, so that no pass meets the same fate each time.
fn unreliable(inner: Client) -> Client {
    let count = Arc::new(AtomicU64::new(0));
    with(inner, move |request, inner| {
        let n = count.fetch_add(1, Ordering::Relaxed);
        async move {
            let codes =
                [StatusCode::TOO_MANY_REQUESTS, StatusCode::INTERNAL_SERVER_ERROR, StatusCode::BAD_GATEWAY, StatusCode::GATEWAY_TIMEOUT];
            let code = codes[n as usize % codes.len()];
            let fate = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
            if fate == 0 {
                return Ok(refusal(code));
            }
            let answer = inner.send(request).await?;
            Ok(if fate == 8 { refusal(code) } else { answer })
        }
    })
}

#[tokio::test]
async fn errors_and_lost_answers_cost_no_epoch() {
    let lab = Lab::new().await;
    let client = unreliable(lab.operator_client().await);
    let _operator = lab.operator_as(client, &[&lab.namespace], lab.built_in().await);
    lab.declare("a", "CorrectnessCritical").await;
    let lease = lab.lease("a");
    for term in 1..=4_i32 {
        let holder = format!("worker-{term}");
        lease.put(Some(&holder), Some(term), at(i64::from(term))).await;
        lab.until_active("a", u64::try_from(term).unwrap(), &holder).await;
    }
    let maps = kube::Api::<k8s_openapi::api::core::v1::ConfigMap>::namespaced(lab.admin.clone(), &lab.namespace);
    let reserved = maps.get("fencedlock-epochs").await.unwrap().data.unwrap();
    assert!(reserved["a"].starts_with("1000 "), "one block, though some answers to writing it were lost: {reserved:?}");
}

/// Nothing of one lock is answered for as long as it takes; the others have their epochs, and it has its own afterwards.
#[tokio::test]
async fn requests_that_hang_hold_up_their_own_lock_only() {
    let lab = Lab::new().await;
    let hangs = Sender::new(true);
    let is_about_it = |path: &str| path.contains("/leases/stuck") || path.contains("/fencedlocks/stuck");
    let client = held(lab.operator_client().await, &hangs, is_about_it);
    let settings = Settings {
        scope: Scope::Namespaces(vec![lab.namespace.clone()]),
        reconcile_timeout: Duration::from_secs(1),
        // Fewer than there are locks that hang would be the wrong test: passes are bounded, so even one at a time goes on.
        concurrency: 1,
        ..Settings::default()
    };
    let _operator = lab.operator_set(client, settings, lab.built_in().await);
    lab.declare("stuck", "CorrectnessCritical").await;
    lab.lease("stuck").put(Some("x"), Some(0), at(0)).await;
    lab.declare("a", "CorrectnessCritical").await;
    lab.lease("a").put(Some("x"), Some(0), at(0)).await;
    lab.until_active("a", 1, "x").await;
    let stuck = lab.locks().get("stuck").await.unwrap();
    assert!(!stuck.status.is_some_and(|s| is_active(&s, 1, "x")), "the twin: its requests do hang");
    hangs.send_replace(false);
    lab.until_active("stuck", 1, "x").await;
}

/// What is slow delays and breaks nothing: each answer takes longer than a request should.
#[tokio::test]
async fn slow_answers_are_waited_for() {
    let lab = Lab::new().await;
    let client = with(lab.operator_client().await, |request, inner| async move {
        let answer = inner.send(request).await?;
        tokio::time::sleep(Duration::from_millis(700)).await;
        Ok(answer)
    });
    let _operator = lab.operator_as(client, &[&lab.namespace], lab.built_in().await);
    lab.declare("a", "CorrectnessCritical").await;
    let lease = lab.lease("a");
    lease.put(Some("x"), Some(0), at(0)).await;
    lab.until_active("a", 1, "x").await;
    lease.put(Some("y"), Some(1), at(1)).await;
    lab.until_active("a", 2, "y").await;
}

/// A watch is so far behind that the API server has forgotten where it stood. What happened in the gap is found by a new listing.
#[tokio::test]
async fn a_watch_that_is_gone_loses_no_term() {
    let lab = Lab::new().await;
    let lease = lab.lease("a");
    lease.put(Some("x"), Some(0), at(0)).await;
    lab.declare("a", "CorrectnessCritical").await;
    let behind = Sender::new(true);
    let gate = behind.clone();
    let client = with(lab.operator_client().await, move |request: Request<Body>, inner: Client| {
        let mut gate = gate.subscribe();
        async move {
            let is_watch = request.uri().query().unwrap_or_default().contains("watch=true");
            if is_watch && request.uri().path().ends_with("/leases") && *gate.borrow_and_update() {
                gate.wait_for(|behind| !behind).await?;
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "reason": "Expired",
                    "message": "too old resource version: 1 (2)"});
                let event = json!({"type": "ERROR", "object": status}).to_string() + "\n";
                return Ok(Response::new(Body::from(event.into_bytes())));
            }
            Ok(inner.send(request).await?)
        }
    });
    let operator = lab.operator_as(client, &[&lab.namespace], lab.built_in().await);
    lab.until_active("a", 1, "x").await;
    // A pass that is still under way could read the Lease itself.
    lab.quiet(&operator, "a").await;
    lease.put(Some("y"), Some(1), at(1)).await;
    lab.quiet(&operator, "a").await;
    lab.until_active("a", 1, "x").await;
    behind.send_replace(false);
    lab.until_active("a", 2, "y").await;
}

/// A right that is taken away and given back while a watch goes on: the watch notices neither. The grant that could not become active
/// meanwhile becomes so, although nothing happens any more.
#[tokio::test]
async fn a_right_that_comes_back_is_noticed_without_an_event() {
    let lab = Lab::new().await;
    let refuses = Sender::new(false);
    let gate = refuses.subscribe();
    let client = with(lab.operator_client().await, move |request: Request<Body>, inner: Client| {
        let is_listing =
            request.uri().path().ends_with("/writeboundaries") && !request.uri().query().unwrap_or_default().contains("watch=");
        let refused = is_listing && *gate.borrow();
        async move {
            if refused {
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "reason": "Forbidden",
                    "message": "User \"x\" cannot list resource \"writeboundaries\""});
                return Ok(Response::builder().status(403).body(Body::from(status.to_string().into_bytes())).unwrap());
            }
            Ok(inner.send(request).await?)
        }
    });
    let operator = lab.operator_as(client, &[&lab.namespace], lab.built_in().await);
    lab.declare("a", "CorrectnessCritical").await;
    let lease = lab.lease("a");
    lease.put(Some("x"), Some(0), at(0)).await;
    lab.until_active("a", 1, "x").await;
    refuses.send_replace(true);
    lease.put(Some("y"), Some(1), at(1)).await;
    lab.until("a", "a pending grant", |s| s.grant.as_ref().is_some_and(|g| g.epoch.get() == 2)).await;
    lab.quiet(&operator, "a").await;
    assert!(!is_active(&lab.locks().get("a").await.unwrap().status.unwrap(), 2, "y"));
    refuses.send_replace(false);
    lab.until_active("a", 2, "y").await;
}

/// Waits until a pass over an object of a kind has begun.
async fn until_reconciled(operator: &Running, kind: &str) {
    let zero = format!("fencedlock_reconciles_total{{kind=\"{kind}\"}} 0\n");
    until(operator, "/metrics", |status, text| status == 200 && text.contains("# EOF") && !text.contains(&zero)).await;
}

/// At a start the boundaries may be listed before the locks are. They do not say that their lock is missing, which would be written
/// at each start, and be wrong.
#[tokio::test]
async fn a_boundary_is_not_judged_before_the_locks_are_known() {
    let lab = Lab::new().await;
    let first = lab.operator().await;
    lab.declare_spec(
        "a",
        json!({"class": "CorrectnessCritical", "purpose": "p", "coordinator": {"lease": {"name": "a"}}, "writeBoundaries": ["mail"]}),
    )
    .await;
    let spec: Value = json!({"lockRef": {"name": "a"}, "type": "External", "external": {"receiver": "mail"}});
    lab.declare_boundary("mail", spec).await;
    lab.lease("a").put(Some("x"), Some(0), at(0)).await;
    lab.until_active("a", 1, "x").await;
    lab.quiet(&first, "a").await;
    first.stop().await;
    let version = || async { lab.boundaries().get("mail").await.unwrap().metadata.resource_version };
    let before = version().await;

    let hangs = Sender::new(true);
    let client = held(lab.operator_client().await, &hangs, |path| path.ends_with("/fencedlocks"));
    let second = lab.operator_as(client, &[&lab.namespace], lab.built_in().await);
    until_reconciled(&second, "WriteBoundary").await;
    hangs.send_replace(false);
    until_reconciled(&second, "FencedLock").await;
    lab.quiet(&second, "a").await;
    assert_eq!(version().await, before, "{:#?}", lab.boundaries().get("mail").await.unwrap().status);
}
