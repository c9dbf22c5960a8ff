//! Two operators at once, each crashed again and again, while the Lease changes hands: no epoch is lost, repeated or granted to
//! two, and at the end the present holder has its grant.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use crate::support::{Lab, lease::at, plane::Plane};
use fencedlock::{
    api::FencedLock,
    boundary::memory::Memories,
    epoch::grant::{Grant, GrantState},
};
use futures::StreamExt;
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;

/// Collects every grant that anybody could ever have seen, and checks the invariants on the way.
#[derive(Default)]
struct History {
    granted: BTreeMap<u64, Grant>,
    highest: u64,
    active: u64,
}

impl History {
    fn see(&mut self, lock: &FencedLock) {
        let status = lock.status.clone().unwrap_or_default();
        let epoch = status.epoch.map_or(0, |e| e.get());
        assert!(epoch >= self.highest, "status.epoch went from {} to {epoch}", self.highest);
        self.highest = epoch;
        let Some(grant) = status.grant else { return };
        let known = self.granted.entry(grant.epoch.get()).or_insert_with(|| grant.clone());
        assert_eq!((&known.holder, &known.term.lease_uid), (&grant.holder, &grant.term.lease_uid), "an epoch was granted twice");
        if grant.state == GrantState::Active {
            assert!(grant.epoch.get() >= self.active, "an older grant became active again");
            self.active = grant.epoch.get();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_operators_that_crash_at_any_moment_issue_each_epoch_once() {
    let lab = Lab::new().await;
    let backends = Memories::default();
    let db = backends.of(&lab.namespace, "db");
    lab.declare_boundary(
        "db",
        json!({"lockRef": {"name": "a"}, "type": "Postgres", "mode": "Enforce", "postgres": {
            "connection": {"secretKeyRef": {"name": "s", "key": "url"}}, "tables": [{"schema": "public", "name": "t"}]}}),
    )
    .await;
    lab.declare_spec(
        "a",
        json!({"class": "CorrectnessCritical", "purpose": "p", "coordinator": {"lease": {"name": "a"}}, "writeBoundaries": ["db"]}),
    )
    .await;

    let events = watcher(lab.locks(), watcher::Config::default()).default_backoff().touched_objects();
    let (done, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let watching = tokio::spawn(async move {
        let (mut history, mut events) = (History::default(), std::pin::pin!(events));
        loop {
            tokio::select! {
                biased;
                Some(event) = events.next() => if let Ok(lock) = event { history.see(&lock) },
                _ = &mut stopped => return history,
            }
        }
    });

    let client = lab.operator_client().await;
    let start = || lab.operator_as(client.clone(), &[&lab.namespace], Arc::new(backends.clone()));
    let (mut one, mut two) = (start(), start());
    let lease = lab.lease("a");
    for turn in 0..24 {
        let holder = format!("worker-{}", turn % 3);
        lease.put(Some(&holder), Some(turn), at(turn.into())).await;
        // Crash one of them at a moment that depends on nothing but the scheduler: as soon as this turn has its grant, active
        // or not, or, every fourth time, before that.
        if turn % 4 != 3 {
            lab.until("a", "this turn's grant", |s| s.grant.as_ref().is_some_and(|g| g.term.lease_transitions == Some(turn))).await;
        }
        if turn % 3 == 0 {
            std::mem::replace(&mut one, start()).crash().await;
        } else {
            std::mem::replace(&mut two, start()).crash().await;
        }
    }
    let last = "worker-2";
    let lock = lab
        .until("a", "the last holder's grant", |s| {
            s.grant.as_ref().is_some_and(|g| g.holder.as_str() == last && g.state == GrantState::Active)
        })
        .await;
    let grant = lock.status.unwrap().grant.unwrap();
    assert!(db.accepts(grant.epoch.get(), last));
    for stale in 0..grant.epoch.get() {
        assert!((0..3).all(|n| !db.accepts(stale, &format!("worker-{n}"))), "epoch {stale} is still accepted");
    }
    one.stop().await;
    two.stop().await;
    done.send(()).unwrap();
    let history = watching.await.unwrap();
    assert!(history.granted.len() >= 18 && history.active <= grant.epoch.get(), "{:?}", history.granted.keys());
    let fences: Vec<_> = db.activations().iter().map(|(epoch, _)| epoch.get()).collect();
    assert!(fences.is_sorted(), "a fence went down: {fences:?}");
}

/// G05: watches break off, the API server is away, and the operator goes on where the Lease stands then.
#[tokio::test]
async fn an_api_server_that_restarts_costs_no_epoch() {
    static PLANE: LazyLock<Plane> = LazyLock::new(|| {
        let plane = Plane::start("restart");
        plane.install_crds();
        plane
    });
    let lab = Lab::on(&PLANE).await;
    let _operator = lab.operator().await;
    lab.declare("a", "CorrectnessCritical").await;
    lab.lease("a").put(Some("x"), Some(0), at(0)).await;
    lab.until_active("a", 1, "x").await;
    PLANE.command("stop-apiserver");
    PLANE.command("start-apiserver");
    lab.lease("a").put(Some("y"), Some(1), at(1)).await;
    lab.lease("a").put(Some("x"), Some(2), at(2)).await;
    let lock = lab
        .until("a", "a grant for the third term", |s| {
            s.grant.as_ref().is_some_and(|g| g.term.lease_transitions == Some(2) && g.state == GrantState::Active)
        })
        .await;
    let epoch = lock.status.unwrap().epoch.unwrap().get();
    assert!((2..=3).contains(&epoch), "{epoch}: the watch may or may not have shown the term in between");
}
