//! One write boundary, one pass: judge it and report. Activation belongs to its lock's reconcile; this only shows the result.

use std::{sync::Arc, time::Duration};

use futures::FutureExt;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::runtime::controller::Action;
use serde_json::json;

use super::{
    announce,
    decide::is_at,
    error::Error,
    follow::Key,
    gather::evidence,
    guarded::Malformed,
    jobs::Progress,
    ledgers,
    metrics::Kind,
    orphans,
    prove::{FenceKnown, Work, limits, went_back},
    reconcile::{LOOK_AGAIN, wait_until},
    status,
    unit::{Guarded, Unit, declared, key_of, owner, settled, ticket},
};
use crate::{
    api::{
        BoundaryType, BoundaryVerdict, Fence, FencedLock, FencedLockStatus, RiskAcceptance, WriteBoundary, WriteBoundaryStatus,
        conditions::{self, Finding, Truth, boundary as on_boundary, reason, truncate},
    },
    audit::{
        boundary as judging,
        boundary::{Evidence, LockSide},
        conditions as texts, schema,
    },
    boundary::{Activation, Owner},
};

/// Reconciles one boundary, in bounded time.
pub(super) async fn reconcile(object: Arc<Guarded<WriteBoundary>>, unit: Arc<Unit>) -> Result<Action, Error> {
    let key = key_of(&*object);
    let pass = async {
        match &object.0 {
            Ok(boundary) => one_boundary(&unit, &key, boundary).await,
            Err(invalid) => malformed(&unit, &key, invalid).await,
        }
    };
    unit.pass(Kind::Boundary, &key, pass).await
}

async fn one_boundary(unit: &Arc<Unit>, key: &Key, boundary: &WriteBoundary) -> Result<Action, Error> {
    // Before the locks are listed, none is there: to say so would be wrong, and would be written at each start.
    // Once they were, what is known of them serves, also when their watch shows nothing any more.
    let is_listed = || unit.locks.wait_until_ready().now_or_never().is_some();
    if settled(&unit.watches.locks).await.is_err() && !is_listed() {
        return Ok(Action::requeue(LOOK_AGAIN));
    }
    let now = Timestamp::now();
    let lock = unit.lock(&(key.0.clone(), boundary.spec.lock_ref.name.clone()));
    let is_there = lock.is_some();
    let lock = lock.as_ref().and_then(|l| l.0.as_ref().ok());
    // A lock that cannot be read is there all the same: its own status says what is wrong with it.
    let recorded = lock.and_then(|l| l.status.as_ref()).and_then(FencedLockStatus::recorded);
    let side = if is_there { LockSide::of(recorded) } else { LockSide::NotFound };
    let field_errors = unit.checked_boundaries.errors(key, &boundary.spec);
    let next = prove(unit, key, boundary, field_errors.is_empty(), lock, now);
    if is_ahead(unit, key, &side) {
        // This process has activated a grant whose status its cache does not show yet.
        return Ok(Action::requeue(CATCH_UP));
    }
    let ledger = if field_errors.is_empty() { ledgers::look(unit, key, boundary) } else { None };
    let evidence = evidence(unit, boundary, now);
    let judged = judging::judge(&judging::Facts {
        spec: &boundary.spec,
        field_errors: &field_errors,
        target_shared: None,
        lock: &side,
        evidence: &evidence,
        now,
    });
    if !unit.proofs.may_record(boundary, judged.verdict) {
        // It is looked at now; this boundary is woken when that ends.
        let next = prove(unit, key, boundary, true, lock, now);
        return Ok(next.map_or_else(Action::await_change, Action::requeue));
    }
    let news = unit.proofs.news(key);
    let rolled_back = fence_rolled_back(boundary, &side, news.fence.as_ref());
    if let Some(seen) = &news.fence
        && matches!(&side, LockSide::Found { active: Some(active) } if seen.as_ref() != Some(active))
    {
        // What was activated does not stand any more: the lock's next pass activates it again.
        unit.activations.forget(key);
    }
    let orphans = unit.proofs.last(boundary).map_or_else(Vec::new, |examined| orphans::sentences(unit, &examined.others));
    let reconciled = ledger.as_ref().and_then(|(said, _)| said.as_ref());
    let by = Judged { verdict: &judged, evidence: &evidence, side: &side, orphans: &orphans, reconciled };
    let status = next_status(unit, boundary, lock, &by, now);
    let told = announce::News { rolled_back: rolled_back.as_deref(), void: news.void.as_deref(), refused: news.refused, orphans: &orphans };
    let announcements = announce::boundary(boundary.status.as_ref(), &status, &told);
    if boundary.status.as_ref() != Some(&status) {
        status::record_boundary(unit, boundary, status).await?;
    }
    unit.announcer.announce(boundary, announcements);
    unit.proofs.told(key);
    let changes = accepted(boundary, now).and_then(|(_, _, until)| until);
    let by_rule = [judged.until, changes].into_iter().flatten().min().map(wait_until);
    let reads = ledger.map(|(_, wait)| wait);
    Ok([by_rule, next, reads].into_iter().flatten().min().map_or_else(Action::await_change, Action::requeue))
}

/// The acceptance of what a boundary cannot do, how far it is from its end, and when that changes by itself.
fn accepted(boundary: &WriteBoundary, now: Timestamp) -> Option<(&RiskAcceptance, judging::Term, Option<Timestamp>)> {
    let accepted = boundary.spec.risk_acceptance.as_ref()?;
    let (term, until) = judging::term(accepted, now, judging::SOON);
    Some((accepted, term, until))
}

/// How soon a cache is looked at again that lags behind what this process did.
const CATCH_UP: Duration = Duration::from_millis(200);

/// Takes in what an examination found, and begins one that is due. Returns when to come again.
fn prove(
    unit: &Arc<Unit>,
    key: &Key,
    boundary: &WriteBoundary,
    is_valid: bool,
    lock: Option<&FencedLock>,
    now: Timestamp,
) -> Option<Duration> {
    let backend = unit.backends.backend(boundary).filter(|_| is_valid)?;
    let (queue, own) = (unit.boundary_queue.clone(), key.clone());
    unit.followers.follow(unit, key, declared(boundary), &*backend);
    let lease = lock.and_then(|lock| lock.spec.coordinator.lease.as_ref());
    let status = lock.and_then(|lock| lock.status.as_ref());
    let work = Work {
        owner: status.and_then(FencedLockStatus::recorded).filter(|recorded| recorded.is_active()).map(Owner::from),
        revoked: status.and_then(|status| status.revoked.as_ref()).map(|revoked| Owner {
            epoch: revoked.epoch,
            holder: Some(revoked.holder.clone()),
            pod_uid: revoked.term.pod_uid.clone(),
        }),
        backend,
        pods_in: lease.and_then(|lease| lease.pod_namespace.clone()),
        limit: unit.settings.proof_timeout,
    };
    let (tally, next) = unit.proofs.drive(boundary, work, now, move || queue.push(&own));
    if let Some(tally) = tally {
        unit.metrics.examined(boundary.spec.type_, &tally);
    }
    // A little later, so that the moment has come.
    Some(next.saturating_add(Duration::from_millis(10)))
}

/// Whether this process moved the fence beyond the lock's active grant as its cache shows it. One that was only seen to be there is
/// somebody else's doing, and judged.
fn is_ahead(unit: &Unit, key: &Key, side: &LockSide) -> bool {
    let LockSide::Found { active: Some((active, _)) } = side else { return false };
    matches!(unit.proofs.moved_to(key), Some(Some((epoch, _))) if epoch > *active)
}

/// What there is to tell when a fence was seen below where it was.
fn fence_rolled_back(boundary: &WriteBoundary, side: &LockSide, seen: Option<&FenceKnown>) -> Option<String> {
    let before = boundary.status.as_ref()?.fence.as_ref()?;
    let now = seen?.as_ref().map(|(epoch, _)| *epoch);
    let there = now.map_or_else(|| "gone".to_owned(), |epoch| format!("at epoch {epoch}"));
    let what =
        if boundary.spec.type_ == BoundaryType::Kubernetes { "cluster was restored" } else { "database was restored or failed over" };
    let then = match side {
        LockSide::Found { active: Some(_) } => "it is activated again",
        _ => "nobody owns the lock, so it admits whom it names until somebody does: fencedlock recover ends that",
    };
    let text = format!("the fence was at epoch {} and is {there}: the {what}; {then}", before.epoch);
    went_back(boundary, now).then_some(text)
}

/// A verdict and what it rests on.
struct Judged<'a> {
    verdict: &'a judging::Judgement,
    evidence: &'a Evidence,
    side: &'a LockSide,
    /// What there is to say about guards in the same database whose boundary is not there.
    orphans: &'a [String],
    reconciled: Option<&'a Finding>,
}

fn next_status(unit: &Unit, boundary: &WriteBoundary, lock: Option<&FencedLock>, by: &Judged<'_>, now: Timestamp) -> WriteBoundaryStatus {
    let before = boundary.status.clone().unwrap_or_default();
    let (generation, judged) = (boundary.metadata.generation, by.verdict);
    let has_backend = unit.backends.backend(boundary).is_some();
    let last = unit.proofs.last(boundary);
    let limits = match (by.evidence, &last) {
        (Evidence::Seen(seen), Some(examined)) => limits(examined, seen, |limit| judging::is_accepted(&boundary.spec, limit, now)),
        _ => before.limits.clone(),
    };
    let mut notes = last.as_ref().map_or_else(Vec::new, |examined| examined.notes.clone());
    notes.extend_from_slice(by.orphans);
    let facts = texts::BoundaryFacts {
        type_: boundary.spec.type_,
        judged,
        evidence: by.evidence,
        observes: boundary.spec.observes(),
        is_conditional: boundary.spec.is_conditional(),
        lock: by.side,
        notes: &notes,
        accepted: accepted(boundary, now).map(|(accepted, term, _)| (accepted, term)),
        reconciled: by.reconciled,
        generation,
    };
    WriteBoundaryStatus {
        observed_generation: generation,
        verdict: Some(judged.verdict),
        reason: Some(judged.reason.to_owned()),
        contract: judged.contract,
        fence: fence(unit, boundary, lock, now),
        observed: unit.proofs.observed(boundary),
        limits,
        proof: if has_backend && last.is_some() { unit.proofs.proof(boundary, now) } else { before.proof.clone() },
        drill: unit.proofs.drill(boundary),
        conditions: texts::boundary(&facts, &before.conditions, now),
    }
}

/// The fence as a status shows it: where it was seen or moved last, and when it was first there.
fn fence(unit: &Unit, boundary: &WriteBoundary, lock: Option<&FencedLock>, now: Timestamp) -> Option<Fence> {
    let before = boundary.status.as_ref().and_then(|status| status.fence.clone());
    if let Some(activated) = activated_fence(unit, boundary, lock, now) {
        return Some(activated);
    }
    let Some(known) = unit.proofs.fence(&key_of(boundary)) else { return before };
    let (epoch, holder) = known?;
    let is_same = |fence: &Fence| fence.epoch == epoch && fence.holder == holder;
    // One that was only seen was not activated under any declaration.
    before.filter(is_same).or(Some(Fence { epoch, holder, activated_at: None, generation: None }))
}

/// The fence that the lock's recorded owner was just activated to, if it was.
fn activated_fence(unit: &Unit, boundary: &WriteBoundary, lock: Option<&FencedLock>, now: Timestamp) -> Option<Fence> {
    let owner = owner(lock?.status.as_ref()?)?;
    if is_at(boundary, &owner) {
        return None;
    }
    let progress = unit.activations.peek(&key_of(boundary), &ticket(&owner, boundary))?;
    // Under another declaration it may be there since before.
    let known = boundary.status.as_ref().and_then(|s| s.fence.as_ref());
    let known = known.filter(|fence| fence.epoch == owner.epoch && fence.holder == owner.holder());
    let since = known.and_then(|fence| fence.activated_at.clone()).unwrap_or_else(|| Time(truncate(now)));
    matches!(progress, Progress::Done(Activation::Activated | Activation::Unchanged)).then(|| Fence {
        epoch: owner.epoch,
        holder: owner.holder().to_owned(),
        activated_at: Some(since),
        generation: boundary.metadata.generation,
    })
}

/// Says what is wrong with a boundary that cannot be read as one.
async fn malformed(unit: &Unit, key: &Key, invalid: &Malformed) -> Result<Action, Error> {
    let Some(object) = status::raw::<WriteBoundary>(unit, key).await? else { return Ok(Action::await_change()) };
    let errors = schema::check("WriteBoundary", &object.data);
    let message = errors.first().map_or_else(|| invalid.error.clone(), ToString::to_string);
    let generation = object.metadata.generation;
    let before = object.data.pointer("/status/conditions").cloned().unwrap_or_default();
    let before: Vec<_> = serde_json::from_value(before).unwrap_or_default();
    let findings = vec![
        Finding::new(on_boundary::READY, Truth::False, reason::MALFORMED, &message),
        Finding::new(on_boundary::PROVEN, Truth::False, reason::MALFORMED, &message),
    ];
    let fields = json!({
        "observedGeneration": generation,
        "verdict": BoundaryVerdict::Invalid,
        "reason": reason::MALFORMED,
        "conditions": conditions::merge(&before, findings, generation, Timestamp::now()),
    });
    status::record_raw::<WriteBoundary>(unit, object, fields).await?;
    Ok(Action::await_change())
}

/// What to do after a pass failed.
pub(super) fn after_error(object: &Guarded<WriteBoundary>, error: &Error, unit: &Unit) -> Action {
    let (namespace, name) = key_of(object);
    unit.metrics.pass_failed(Kind::Boundary, error.category());
    if !matches!(error, Error::Conflict(_)) {
        tracing::warn!(object = %format_args!("{namespace}/{name}"), category = error.category(), %error, "a write boundary could not be reconciled");
    }
    // A conflict means that the cache lags behind a write; the event that brings it up to date asks for the next pass too.
    Action::requeue(if error.is_retryable() { Duration::from_secs(2) } else { Duration::from_secs(30) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoch::Epoch;

    fn boundary(type_: &str) -> WriteBoundary {
        let (spec, status) = (json!({"lockRef": {"name": "a"}, "type": type_}), json!({"fence": {"epoch": 7, "holder": "x"}}));
        let object = json!({"apiVersion": "fencedlock.dev/v1alpha1", "kind": "WriteBoundary", "metadata": {"name": "b"}, "spec": spec, "status": status});
        serde_json::from_value(object).unwrap()
    }

    fn at(epoch: u64) -> (Epoch, String) {
        (Epoch::new(epoch).unwrap(), "x".to_owned())
    }

    /// Where nobody owns the lock, nothing raises the fence again: it is not said that something does, and what does is named.
    #[test]
    fn a_fence_that_went_back_is_told_with_what_happens_then() {
        let (owned, free) = (LockSide::Found { active: Some(at(7)) }, LockSide::Found { active: None });
        let told = |type_: &str, side: &LockSide, seen: FenceKnown| fence_rolled_back(&boundary(type_), side, Some(&seen));
        let said = told("Postgres", &owned, Some(at(3))).unwrap();
        assert!(said.contains("at epoch 3: the database") && said.ends_with("it is activated again"), "{said}");
        let said = told("Postgres", &free, Some(at(3))).unwrap();
        assert!(said.ends_with("it admits whom it names until somebody does: fencedlock recover ends that"), "{said}");
        assert!(told("Kubernetes", &free, Some(at(3))).unwrap().contains("the cluster was restored"));
        // The database is gone with its fence; an object that carries none is a new one.
        assert!(told("Postgres", &owned, None).unwrap().contains("is gone"));
        assert_eq!(told("Kubernetes", &owned, None), None);
        assert_eq!(told("Postgres", &owned, Some(at(7))), None);
        assert_eq!(fence_rolled_back(&boundary("Postgres"), &owned, None), None, "nobody looked");
    }
}
