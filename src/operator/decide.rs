//! Everything about one lock put together: from what was gathered to the next status, what is to be activated and what is to
//! be announced. Pure: no client, no clock; the rules themselves are in [`crate::epoch`] and [`crate::audit`].
//!
//! Start with [`decide`].

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::ResourceExt;

use super::announce::{Announcement, announce};
use crate::{
    api::{
        BoundaryStatus, ClaimKind, Fence, FencedLock, FencedLockStatus, KubernetesBoundary, LockClass, MAX_BOUNDARIES, Reacquire,
        WriteBoundary,
        conditions::{Truth, find, lock as on_lock, reason, truncate},
    },
    audit::{
        boundary::{self, Evidence, LockSide},
        conditions::{self, Activation, LockFacts},
        owner::{self, ByPod, PodRead},
        schema::FieldError,
        verdict::{self, Found, OwnerUnique, Present, Required},
    },
    boundary::{BackendError, Owner},
    epoch::{
        Epoch, Holder,
        grant::{self, Grant, LeaseRead, Standing},
        mint::{self, MintError, Reservation, ReservationError, TrustedFence},
        recent::{self, RecentOwner},
        recorded::Recorded,
    },
};

/// A boundary that counts for the lock, as it was gathered.
#[derive(Clone, Debug)]
pub struct Counted {
    /// Its name.
    pub name: String,
    /// Whether `spec.writeBoundaries` lists it.
    pub listed: bool,
    /// What is there.
    pub state: CountedState,
}

/// What is there under a boundary's name.
#[derive(Clone, Debug)]
pub enum CountedState {
    /// Nothing.
    Missing,
    /// A boundary of another lock.
    OtherLock(String),
    /// It could not be read: why.
    Unreadable(String),
    /// It is no WriteBoundary by this version's rules: why.
    Malformed(String),
    /// The boundary.
    Present {
        /// The object.
        object: Arc<WriteBoundary>,
        /// What the schema refuses in it.
        field_errors: Vec<FieldError>,
        /// What is known of its behaviour.
        evidence: Evidence,
        /// Whether a backend can activate it.
        has_backend: bool,
    },
}

/// Why a boundary's fence is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnreadFence {
    /// The read is under way.
    UnderWay,
    /// It failed: why.
    Failed(String),
}

impl UnreadFence {
    fn why(&self) -> &str {
        match self {
            Self::UnderWay => "it has not answered yet",
            Self::Failed(why) => why,
        }
    }
}

/// Everything that was gathered about one lock.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The lock.
    pub lock: Arc<FencedLock>,
    /// What the schema refuses in it.
    pub field_errors: Vec<FieldError>,
    /// The older lock on the same Lease.
    pub older: Option<String>,
    /// The Lease.
    pub lease: LeaseRead,
    /// The holder's pod.
    pub pod: PodRead,
    /// The uids of the pods that exist where holders run, when they were listed.
    pub living: Option<BTreeSet<String>>,
    /// The boundaries that count, listed ones first.
    pub boundaries: Vec<Counted>,
    /// Why it is not known which boundaries refer to the lock, when it is not.
    pub boundaries_unread: Option<String>,
    /// The reservation.
    pub reservation: Result<Option<Reservation>, ReservationError>,
    /// The highest epoch that this process saw for the lock.
    pub remembered: Option<Epoch>,
    /// Fences behind trusted guards.
    pub fences: Vec<TrustedFence>,
    /// Boundaries whose fences are not known, by their names.
    pub unreadable_fences: BTreeMap<String, UnreadFence>,
    /// What became of activating the grant that the lock's status records, by the boundary's name.
    pub activations: BTreeMap<String, Activation>,
    /// Where lock, Lease and reservation come from.
    pub freshness: Freshness,
    /// Whether the boundaries do.
    pub boundaries_fresh: bool,
    /// Whether the fences were read.
    pub fences_read: bool,
    /// The time that this is about.
    pub now: Timestamp,
}

/// Where what a decision rests on comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Freshness {
    /// All of it is what the watches delivered.
    Cached,
    /// Lease and reservation come straight from the API server, and the lock is a copy of any age. That is enough to mint: what is
    /// decided is recorded only where that copy is still what the API server has, so it was so when the Lease was read.
    LeaseRead,
    /// The lock comes from there too, read before the Lease.
    AllRead,
}

impl Observed {
    /// Whether an activation of the recorded grant met a later fence.
    pub fn is_superseded(&self) -> bool {
        self.activations.values().any(|a| matches!(a, Activation::Superseded(_)))
    }
}

/// What is to be done about one lock.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The next status.
    pub status: FencedLockStatus,
    /// About epoch and grant.
    pub grant: grant::Decision,
    /// A reservation that has to be written before the status is.
    pub reserve: Option<Reservation>,
    /// Boundaries that have to be activated once the status, with its grant, is recorded.
    pub activate: Vec<String>,
    /// What people are told once the status is recorded.
    pub announcements: Vec<Announcement>,
    /// When the answer changes by itself.
    pub until: Option<Timestamp>,
    /// What has to be read before this may be carried out.
    pub needs: Option<Needs>,
}

/// What a decision must rest on before it is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Uncached reads of the Lease and the reservation: epoch or grant would change (protocol section 1).
    FreshReads,
    /// An uncached read of the lock, and then of the others: epochs would be reserved, before anything is recorded. On an old copy
    /// they would be reserved in vain, and skipped.
    FreshLock,
    /// The fences: an epoch would be minted, or an activation met a fence that is ahead.
    Fences,
    /// An uncached listing of the boundaries: a grant would become active, and a cache may not know one that must be activated
    /// before (invariant 3).
    FreshBoundaries,
}

/// Decides what to do about one lock.
pub fn decide(observed: &Observed) -> Decision {
    let before = observed.lock.status.clone().unwrap_or_default();
    let spec = &observed.lock.spec;
    let now = Time(truncate(observed.now));
    let retired = retired_fences(observed, &before);
    let uid = observed.lock.uid().unwrap_or_default();
    let fences: Vec<_> = observed.fences.iter().chain(&retired).cloned().collect();
    let unreadable = unreadable_fence(observed);
    let input = grant_input(observed, &before, &uid, &fences, unreadable.as_ref().map(|(name, unread)| (*name, unread.why())));
    let mut epochs = grant::decide(&input, &now);
    let changes = epochs.changes(&input);

    let side = LockSide::of(epochs.recorded());
    let required: Vec<Required> = observed.boundaries.iter().map(|counted| judge(counted, observed, &side)).collect();
    let recent_owners = recent_owners(observed, &before, epochs.grant.as_ref(), &now);
    let activations = activations(observed, &epochs, &recent_owners);
    let is_blocking = |name: &str| observed.boundaries.iter().any(|b| b.name == name && blocks(observed, b));
    let blocking: Vec<_> = activations.iter().filter(|(name, _)| is_blocking(name)).cloned().collect();
    let boundaries_unread = observed.boundaries_unread.as_deref().filter(|_| spec.class == LockClass::CorrectnessCritical);
    let may_be_active = boundaries_unread.is_none() && blocking.iter().all(|(_, a)| *a == Activation::Done);
    if may_be_active {
        epochs.grant = epochs.grant.map(|grant| grant.activated(now));
        epochs.revoked = epochs.revoked.map(|revoked| revoked.activated());
    }

    let holder = holder(&observed.lease);
    let identity = spec.coordinator.lease.as_ref().map(|l| l.identity).unwrap_or_default();
    let lease = match &observed.lease {
        LeaseRead::Found(lease) => Some(lease),
        _ => None,
    };
    let owner = match &epochs.standing {
        Standing::HolderUnusable(error) => {
            OwnerUnique { status: Truth::Unknown, reason: reason::HOLDER_UNUSABLE, message: error.to_string() }
        }
        _ => owner::judge(holder, identity, lease, epochs.grant.as_ref(), &observed.pod, &by_pod(observed)),
    };
    let went_back = went_back(&epochs, &before);
    let went_back = went_back.as_ref().map(|(reason, message)| (*reason, message.as_str()));
    let judgement = verdict::judge(&verdict::Facts {
        class: spec.class,
        external_token: spec.coordinator.external.as_ref().map(|e| e.token),
        contract: spec.contract,
        field_errors: &observed.field_errors,
        lease_shared_with: observed.older.as_deref(),
        boundaries: &required,
        owner: &owner,
        went_back,
    });
    let facts = LockFacts {
        judgement: &judgement,
        class: spec.class,
        rollout: spec.rollout,
        boundaries: &required,
        coordinator: coordinator(&observed.lock),
        standing: &epochs.standing,
        grant: epochs.grant.as_ref(),
        revoked: epochs.revoked.as_ref(),
        activations: &blocking,
        boundaries_unread,
        owner: &owner,
        went_back,
        not_carried_out: not_carried_out(observed, &epochs),
        generation: observed.lock.metadata.generation,
    };
    let (mut conditions, stalls_at) = conditions::lock(&facts, &before.conditions, observed.now);
    if before.epoch == epochs.epoch && before.grant.is_some() == epochs.grant.is_some() {
        let under_way = unreadable.as_ref().is_some_and(|(_, unread)| *unread == UnreadFence::UnderWay);
        conditions::keep_failure(&before.conditions, &mut conditions, under_way);
    }

    let status = FencedLockStatus {
        observed_generation: observed.lock.metadata.generation,
        verdict: Some(judgement.verdict),
        reason: Some(judgement.reason.to_owned()),
        epoch: epochs.epoch,
        grant: epochs.grant.clone(),
        revoked: epochs.revoked.clone(),
        recent_owners,
        boundary_summary: summary(spec.class, judgement.summary),
        boundaries: boundary_statuses(observed, &required, &activations, epochs.recorded().map(Recorded::epoch), &before),
        proven_at: judgement.proven_at.map(|at| Time(truncate(at))),
        conditions,
    };
    let retire = retired.iter().filter_map(|fence| match &observed.reservation {
        Ok(reservation) => mint::retire(fence.epoch, &uid, epochs.epoch, reservation.as_ref()),
        Err(_) => None,
    });
    let reserve = epochs.reserve.clone().or_else(|| retire.max_by_key(|r| r.last));
    Decision {
        announcements: announce(&before, &status, &owner, epochs.began),
        activate: activations
            .into_iter()
            .filter(|(_, a)| !matches!(a, Activation::Done | Activation::HeldBack(..)))
            .map(|(name, _)| name)
            .collect(),
        until: [judgement.until, stalls_at].into_iter().flatten().min(),
        needs: needs(observed, &before, &epochs, changes || !retired.is_empty(), reserve.is_some()),
        reserve,
        grant: epochs,
        status,
    }
}

fn needs(observed: &Observed, before: &FencedLockStatus, epochs: &grant::Decision, changes: bool, reserves: bool) -> Option<Needs> {
    let active = |recorded: Option<Recorded<'_>>| recorded.filter(|recorded| recorded.is_active()).map(Recorded::epoch);
    let becomes = active(epochs.recorded());
    let activates = becomes.is_some() && becomes != active(before.recorded());
    let mints = epochs.epoch != before.epoch;
    let is_critical = observed.lock.spec.class == LockClass::CorrectnessCritical;
    if changes && observed.freshness == Freshness::Cached {
        Some(Needs::FreshReads)
    } else if reserves && observed.freshness != Freshness::AllRead {
        Some(Needs::FreshLock)
    } else if (mints || observed.is_superseded()) && !observed.fences_read {
        Some(Needs::Fences)
    } else if activates && is_critical && !observed.boundaries_fresh {
        Some(Needs::FreshBoundaries)
    } else {
        None
    }
}

/// The boundary whose unknown fence stops minting (protocol section 2). One for which no grant waits (section 3) stops nothing:
/// a fence of it that is ahead shows when it is activated.
fn unreadable_fence(observed: &Observed) -> Option<(&str, UnreadFence)> {
    observed.boundaries.iter().filter(|b| blocks(observed, b)).find_map(|b| {
        let unread = match &b.state {
            CountedState::Unreadable(why) | CountedState::Malformed(why) => UnreadFence::Failed(why.clone()),
            _ => observed.unreadable_fences.get(&b.name)?.clone(),
        };
        Some((b.name.as_str(), unread))
    })
}

fn grant_input<'a>(
    observed: &'a Observed,
    before: &'a FencedLockStatus,
    uid: &'a str,
    fences: &'a [TrustedFence],
    unreadable_fence: Option<(&'a str, &'a str)>,
) -> grant::Input<'a> {
    grant::Input {
        lock_uid: uid,
        epoch: before.epoch,
        grant: before.grant.as_ref(),
        revoke: observed.lock.spec.revoke.as_ref(),
        revoked: before.revoked.as_ref(),
        lease: &observed.lease,
        shared_with: observed.older.as_deref(),
        pod_uid: observed.pod.uid(),
        floor: observed.lock.spec.epoch_floor,
        reservation: &observed.reservation,
        remembered: observed.remembered,
        fences,
        unreadable_fence,
    }
}

/// The holder that the Lease names, when it can be carried.
pub fn holder(lease: &LeaseRead) -> Option<&Holder> {
    match lease {
        LeaseRead::Found(lease) => lease.holder.as_ref().ok().and_then(Option::as_ref),
        _ => None,
    }
}

/// What the coordinator is called in messages.
fn coordinator(lock: &FencedLock) -> &str {
    let spec = &lock.spec.coordinator;
    let lease = spec.lease.as_ref().map(|l| l.name.as_str());
    lease.or_else(|| spec.external.as_ref().map(|e| e.system.as_str())).unwrap_or_default()
}

/// Fences of boundaries that were there when the status was last written and are not any more. They came from guards that
/// the operator had activated, so they count.
fn retired_fences(observed: &Observed, before: &FencedLockStatus) -> Vec<TrustedFence> {
    let is_there = |name: &str| {
        observed.boundaries.iter().any(|b| {
            b.name == name && matches!(b.state, CountedState::Present { .. } | CountedState::Unreadable(_) | CountedState::Malformed(_))
        })
    };
    let holder = |epoch: Epoch| before.grant.as_ref().filter(|g| g.epoch == epoch).map(|g| g.holder.as_str().to_owned());
    let fence = |b: &BoundaryStatus| {
        let epoch = b.fence?;
        Some(TrustedFence { boundary: b.name.clone(), epoch: epoch.get(), holder: holder(epoch).unwrap_or_default() })
    };
    before.boundaries.iter().filter(|b| !is_there(&b.name)).filter_map(fence).collect()
}

fn judge(counted: &Counted, observed: &Observed, lock: &LockSide) -> Required {
    let found = match &counted.state {
        CountedState::Missing => Found::Missing,
        CountedState::OtherLock(lock) => Found::OtherLock(lock.clone()),
        CountedState::Unreadable(why) => Found::Unreadable(why.clone()),
        CountedState::Malformed(why) => Found::Malformed(why.clone()),
        CountedState::Present { object, field_errors, evidence, .. } => {
            let spec = &object.spec;
            let facts = boundary::Facts { spec, field_errors, target_shared: None, lock, evidence, now: observed.now };
            Found::Present(Present {
                type_: spec.type_,
                judgement: boundary::judge(&facts),
                needs_activation: spec.needs_activation(observed.lock.spec.contract),
                by_pod: spec.kubernetes.as_ref().is_some_and(|k| k.claim == ClaimKind::PodIdentity),
            })
        }
    };
    Required { name: counted.name.clone(), listed: counted.listed, found }
}

/// The boundary's declaration, when it recognises owners by their pods.
fn pod_identity(counted: &Counted) -> Option<&KubernetesBoundary> {
    match &counted.state {
        CountedState::Present { object, .. } => object.spec.kubernetes.as_ref().filter(|k| k.claim == ClaimKind::PodIdentity),
        _ => None,
    }
}

fn by_pod(observed: &Observed) -> ByPod {
    let declared: Vec<_> = observed.boundaries.iter().filter_map(pod_identity).collect();
    // One that names no containers counts all.
    let named =
        if declared.iter().any(|k| k.containers.is_empty()) { Vec::new() } else { declared.iter().map(|k| &k.containers).collect() };
    ByPod { is_needed: !declared.is_empty(), containers: named.into_iter().flatten().cloned().collect() }
}

/// The pods that had epochs before, as they are remembered beside the next grant.
fn recent_owners(observed: &Observed, before: &FencedLockStatus, grant: Option<&Grant>, now: &Time) -> Vec<RecentOwner> {
    let last = before.grant.as_ref().filter(|last| grant.is_none_or(|grant| grant.epoch != last.epoch));
    let recent = match last {
        Some(last) => recent::ended(&before.recent_owners, last, observed.living.as_ref(), now),
        None => before.recent_owners.clone(),
    };
    match (grant, observed.pod.view()) {
        (Some(grant), Some(pod)) => recent::settled(&recent, grant, pod, &by_pod(observed).containers),
        _ => recent,
    }
}

/// Why a boundary that recognises owners by their pods must not admit the holder of a grant.
fn held_back(counted: &Counted, observed: &Observed, grant: &Grant, recent: &[RecentOwner]) -> Option<Activation> {
    let declared = pod_identity(counted)?;
    let counts_only = matches!(&counted.state, CountedState::Present { object, .. } if object.spec.observes());
    if counts_only && grant.term.pod_uid.is_some() {
        // It refuses nobody, and counts the present owner as what it is.
        return None;
    }
    if grant.term.pod_uid.is_none() {
        return Some(Activation::HeldBack(reason::HOLDER_POD_UNKNOWN, owner::without_pod(&grant.holder)));
    }
    let reused =
        recent::reused(recent, grant, observed.pod.view(), &declared.containers).filter(|_| declared.reacquire == Reacquire::NewProcess)?;
    Some(Activation::HeldBack(reason::PROCESS_REUSED, owner::held_back(&grant.holder, &reused)))
}

/// Where the grant, or the epoch of nobody, has to be activated, and what became of it. Empty without both.
fn activations(observed: &Observed, epochs: &grant::Decision, recent: &[RecentOwner]) -> Vec<(String, Activation)> {
    let Some(owner) = epochs.recorded().map(Owner::from) else { return Vec::new() };
    let contract = observed.lock.spec.contract;
    let recorded = observed.lock.status.as_ref().and_then(super::unit::owner);
    // What is known of activations is about the recorded owner. Another one was activated nowhere yet.
    let is_recorded = recorded.is_some_and(|r| r.epoch == owner.epoch && r.holder == owner.holder);
    let known = |name: &str| observed.activations.get(name).filter(|_| is_recorded).cloned();
    let activation = |counted: &Counted| match &counted.state {
        CountedState::Missing | CountedState::OtherLock(_) => None,
        CountedState::Unreadable(why) | CountedState::Malformed(why) => {
            blocks(observed, counted).then(|| Activation::Failed(format!("it cannot be read: {why}")))
        }
        CountedState::Present { object, .. } if !object.spec.needs_activation(contract) => None,
        CountedState::Present { object, has_backend: false, .. } => {
            let way_out =
                if object.spec.mode.is_some() { "its spec.mode to Observe" } else { "this lock's spec.contract to AfterAcceptance" };
            let why = format!("{}; until it can, set {way_out}", BackendError::NotImplemented(object.spec.type_));
            blocks(observed, counted).then_some(Activation::Failed(why))
        }
        CountedState::Present { object, .. } if is_at(object, &owner) => Some(Activation::Done),
        CountedState::Present { .. } => {
            let held_back = epochs.grant.as_ref().and_then(|grant| held_back(counted, observed, grant, recent));
            Some(held_back.or_else(|| known(&counted.name)).unwrap_or(Activation::Waiting))
        }
    };
    observed.boundaries.iter().filter_map(|b| Some((b.name.clone(), activation(b)?))).collect()
}

/// Whether the boundary's own status says that its fence is at this owner, as the boundary is declared now. It dies with the
/// boundary.
pub(super) fn is_at(boundary: &WriteBoundary, owner: &Owner) -> bool {
    let fence = boundary.status.as_ref().and_then(|s| s.fence.as_ref());
    let is_this = |f: &Fence| f.epoch == owner.epoch && f.holder == owner.holder() && f.generation == boundary.metadata.generation;
    fence.is_some_and(is_this)
}

/// Whether a grant waits for this boundary: not when the lock is efficiency-only, not when the boundary only observes. One that
/// cannot be read may be one that enforces.
fn blocks(observed: &Observed, boundary: &Counted) -> bool {
    let may_enforce = match &boundary.state {
        CountedState::Missing | CountedState::OtherLock(_) => false,
        CountedState::Unreadable(_) | CountedState::Malformed(_) => true,
        CountedState::Present { object, .. } => !object.spec.observes(),
    };
    observed.lock.spec.class == LockClass::CorrectnessCritical && may_enforce
}

/// Why `EpochMonotonic=False`: seen now, or seen before and no grant has become active since.
fn went_back(epochs: &grant::Decision, before: &FencedLockStatus) -> Option<(&'static str, String)> {
    if let Standing::NotMinted(error @ (MintError::FenceImplausible { .. } | MintError::JumpTooLarge { .. })) = &epochs.standing {
        return Some((reason::FENCE_IMPLAUSIBLE, error.to_string()));
    }
    let was = find(&before.conditions, on_lock::EPOCH_MONOTONIC).is_some_and(|c| c.status == "False");
    let active = epochs.recorded().is_some_and(Recorded::is_active);
    (epochs.rolled_back || (was && !active)).then(|| {
        let message = "something remembers a later epoch than this lock's status, so the cluster or a store was restored: the next grant lies above it; \
                       keep writers stopped until every boundary shows that grant as its fence";
        (reason::STATE_ROLLED_BACK, message.to_owned())
    })
}

/// What `Ready` says of a `spec.revoke` that means no term which is known here: somebody may wait for it.
fn not_carried_out(observed: &Observed, epochs: &grant::Decision) -> Option<&'static str> {
    let asked = observed.lock.spec.revoke.as_ref()?;
    let is_known = epochs.grant.as_ref().is_some_and(|grant| asked.names(grant)) || epochs.revoked.is_some();
    (!is_known).then_some(
        "evaluated; spec.revoke is about a term that is over, and revokes nothing: fencedlock revoke writes one about the present term",
    )
}

fn summary(class: LockClass, (good, all): (usize, usize)) -> Option<String> {
    (class == LockClass::CorrectnessCritical || all > 0).then(|| format!("{good}/{all}"))
}

fn boundary_statuses(
    observed: &Observed,
    required: &[Required],
    activations: &[(String, Activation)],
    epoch: Option<Epoch>,
    before: &FencedLockStatus,
) -> Vec<BoundaryStatus> {
    let recorded = |name: &str| before.boundaries.iter().find(|b| b.name == name);
    let status = |(counted, required): (&Counted, &Required)| {
        let mut status = BoundaryStatus {
            name: counted.name.clone(),
            type_: None,
            verdict: None,
            fence: None,
            contract: None,
            observed_generation: None,
        };
        if let (CountedState::Present { object, .. }, Found::Present(present)) = (&counted.state, &required.found) {
            let done = activations.iter().any(|(name, a)| *name == counted.name && *a == Activation::Done);
            let earlier = recorded(&counted.name).and_then(|b| b.fence);
            status.type_ = Some(present.type_);
            status.verdict = Some(present.judgement.verdict);
            status.fence = epoch.filter(|_| done).or(earlier);
            status.contract = present.judgement.contract;
            status.observed_generation = object.metadata.generation;
        } else if let CountedState::Unreadable(_) | CountedState::Malformed(_) = counted.state {
            return recorded(&counted.name).cloned().unwrap_or(status);
        } else if observed.reservation.is_err() {
            status.fence = recorded(&counted.name).and_then(|b| b.fence);
        }
        status
    };
    let counted = observed.boundaries.iter().zip(required).map(status);
    // A fence that could not be put into the reservation must not be forgotten: it stays until that succeeds.
    let is_gone = |b: &&BoundaryStatus| b.fence.is_some() && observed.boundaries.iter().all(|c| c.name != b.name);
    let unkept = before.boundaries.iter().filter(|_| observed.reservation.is_err()).filter(is_gone).cloned();
    unkept.chain(counted).take(MAX_BOUNDARIES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::conditions::lock as on,
        epoch::{
            grant::GrantState,
            pod::{Container, Life, PodView},
            revoke::Revocation,
            term::LeaseView,
        },
    };
    use serde_json::json;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn lease(holder: &str, transitions: i32) -> LeaseRead {
        LeaseRead::Found(LeaseView {
            uid: "u".into(),
            resource_version: "9".into(),
            holder: Holder::new(holder).map(Some),
            transitions: Some(transitions),
            acquire_time: Some(at(transitions.into())),
            renew_time: None,
            duration_seconds: None,
        })
    }

    fn guard(mode: &str) -> Counted {
        let object = json!({"metadata": {"name": "db", "uid": "b"}, "spec": {"lockRef": {"name": "a"}, "type": "Postgres", "mode": mode,
            "postgres": {"connection": {"secretKeyRef": {"name": "s", "key": "k"}}, "tables": [{"schema": "p", "name": "t"}]}}});
        let object = Arc::new(serde_json::from_value(object).unwrap());
        Counted {
            name: "db".into(),
            listed: true,
            state: CountedState::Present { object, field_errors: vec![], evidence: Evidence::Unseen, has_backend: true },
        }
    }

    fn observed(class: &str, boundary: Counted) -> Observed {
        let lock = json!({"metadata": {"name": "a", "namespace": "n", "uid": "l", "generation": 1},
            "spec": {"class": class, "coordinator": {"lease": {"name": "a"}}, "writeBoundaries": ["db"]}});
        Observed {
            lock: Arc::new(serde_json::from_value(lock).unwrap()),
            field_errors: vec![],
            older: None,
            lease: lease("x", 0),
            pod: PodRead::Missing,
            living: None,
            boundaries: vec![boundary],
            boundaries_unread: None,
            reservation: Ok(None),
            remembered: None,
            fences: vec![],
            unreadable_fences: BTreeMap::new(),
            activations: BTreeMap::new(),
            freshness: Freshness::Cached,
            boundaries_fresh: false,
            fences_read: false,
            now: at(0),
        }
    }

    /// The observation after the decision was recorded.
    fn recorded(mut observed: Observed, decision: &Decision) -> Observed {
        let lock = FencedLock { status: Some(decision.status.clone()), ..(*observed.lock).clone() };
        observed.lock = Arc::new(lock);
        observed
    }

    /// A lock whose holder has an active grant, as it is recorded.
    fn active() -> Observed {
        let observed = observed("CorrectnessCritical", guard("Enforce"));
        let mut observed = recorded(observed.clone(), &decide(&observed));
        observed.activations.insert("db".into(), Activation::Done);
        recorded(observed.clone(), &decide(&observed))
    }

    fn state(decision: &Decision) -> Option<(u64, GrantState)> {
        decision.status.grant.as_ref().map(|g| (g.epoch.get(), g.state))
    }

    /// Invariant 3: that the last grant was activated says nothing about the next one.
    #[test]
    fn a_new_grant_is_not_active_because_the_last_one_was() {
        let observed = observed("CorrectnessCritical", guard("Enforce"));
        let first = decide(&observed);
        assert_eq!(state(&first), Some((1, GrantState::Pending)));
        let mut observed = recorded(observed, &first);
        observed.activations.insert("db".into(), Activation::Done);
        let active = decide(&observed);
        assert_eq!(state(&active), Some((1, GrantState::Active)));
        let mut observed = recorded(observed, &active);
        observed.lease = lease("y", 1);
        let next = decide(&observed);
        assert_eq!(state(&next), Some((2, GrantState::Pending)), "the job of epoch 1 is done, and this is epoch 2");
        assert_eq!(next.activate, ["db"]);
    }

    /// A revocation goes through the boundaries as a grant does, and says so until another term begins.
    #[test]
    fn a_revoked_owner_is_fenced_before_that_is_said() {
        let mut observed = active();
        let mut lock = (*observed.lock).clone();
        lock.spec.revoke = lock.status.as_ref().and_then(|s| s.grant.as_ref()).map(|grant| Revocation::of(grant, "it loops"));
        observed.lock = Arc::new(lock);
        let pending = decide(&observed);
        let nobody = |decision: &Decision| decision.status.revoked.as_ref().map(|r| (r.epoch.get(), r.state));
        assert_eq!(
            (state(&pending), nobody(&pending)),
            (None, Some((2, GrantState::Pending))),
            "the job of epoch 1 is done, and this is epoch 2"
        );
        assert_eq!((pending.activate.as_slice(), pending.needs), (&["db".to_owned()][..], Some(Needs::FreshReads)));
        let told: Vec<_> = pending.announcements.iter().map(|a| a.reason).collect();
        assert_eq!(told, ["OwnershipChanged", "OwnerRevoked"]);
        let mut observed = recorded(observed, &pending);
        observed.activations = [("db".into(), Activation::Failed("down".into()))].into();
        let message = |decision: &Decision| {
            find(&decision.status.conditions, on::EPOCH_ACTIVE).map(|c| (c.reason.clone(), c.message.clone())).unwrap()
        };
        let failed = decide(&observed);
        let (why, text) = message(&failed);
        assert!(why == reason::REVOKED && text.contains("\"db\" may still admit it") && text.contains("down"), "{text}");
        observed.activations = [("db".into(), Activation::Done)].into();
        let active = decide(&observed);
        assert_eq!(nobody(&active), Some((2, GrantState::Active)));
        assert!(message(&active).1.contains("it loops") && message(&active).1.contains("admits nobody"), "{}", message(&active).1);
        assert_eq!(active.announcements.iter().map(|a| a.reason).collect::<Vec<_>>(), ["RevocationActive"]);
        let again = decide(&recorded(observed, &active));
        assert_eq!((&again.status, again.needs), (&active.status, None));
    }

    #[test]
    fn a_decision_on_its_own_result_changes_nothing() {
        for (class, mode, activation) in [
            ("CorrectnessCritical", "Enforce", Activation::Waiting),
            ("CorrectnessCritical", "Enforce", Activation::Failed("down".into())),
            ("CorrectnessCritical", "Enforce", Activation::Done),
            ("CorrectnessCritical", "Observe", Activation::Waiting),
            ("EfficiencyOnly", "Enforce", Activation::Failed("down".into())),
        ] {
            let observed = observed(class, guard(mode));
            let mut observed = recorded(observed.clone(), &decide(&observed));
            observed.activations.insert("db".into(), activation.clone());
            let settled = decide(&observed);
            let mut later = recorded(observed, &settled);
            later.now = at(5_000);
            let again = decide(&later);
            assert_eq!(again.status, settled.status, "G01: {class} {mode} {activation:?}");
            assert_eq!(again.announcements, []);
            assert_eq!(again.needs, None, "nothing has to be read again");
        }
    }

    #[test]
    fn only_an_enforcing_boundary_of_a_critical_lock_holds_a_grant() {
        for (class, mode, wanted) in [
            ("CorrectnessCritical", "Enforce", GrantState::Pending),
            ("CorrectnessCritical", "Observe", GrantState::Active),
            ("EfficiencyOnly", "Enforce", GrantState::Active),
        ] {
            let decision = decide(&observed(class, guard(mode)));
            assert_eq!(state(&decision), Some((1, wanted)), "{class} {mode}");
            assert_eq!(decision.activate, ["db"], "activated in each case");
        }
    }

    /// Recovery: said until a grant above the fence is active.
    #[test]
    fn a_roll_back_is_said_until_the_next_grant_is_active() {
        let mut observed = observed("CorrectnessCritical", guard("Enforce"));
        observed.remembered = Epoch::new(41).ok();
        let first = decide(&observed);
        assert_eq!(state(&first), Some((42, GrantState::Pending)));
        let monotonic = |d: &Decision| find(&d.status.conditions, on::EPOCH_MONOTONIC).unwrap().reason.clone();
        assert_eq!(monotonic(&first), reason::STATE_ROLLED_BACK);
        let mut observed = recorded(observed, &first);
        observed.remembered = Epoch::new(42).ok();
        assert_eq!(monotonic(&decide(&observed)), reason::STATE_ROLLED_BACK, "the grant is still pending");
        observed.activations.insert("db".into(), Activation::Done);
        assert_eq!(monotonic(&decide(&observed)), reason::NEVER_WENT_BACK);
    }

    /// What cannot be read may enforce: wrongly active would be worse than late.
    #[test]
    fn a_boundary_that_cannot_be_read_holds_a_grant_and_minting() {
        let unreadable = [CountedState::Unreadable("no right".into()), CountedState::Malformed("spec.type is \"Teapot\"".into())];
        for state in unreadable {
            let pending = observed("CorrectnessCritical", guard("Enforce"));
            let mut pending = recorded(pending.clone(), &decide(&pending));
            pending.boundaries[0].state = state.clone();
            let waits = decide(&pending);
            assert_eq!(self::state(&waits), Some((1, GrantState::Pending)), "{state:?}");
            assert_eq!(find(&waits.status.conditions, on::EPOCH_ACTIVE).unwrap().reason, reason::ACTIVATION_FAILED);

            let mut active = observed("CorrectnessCritical", guard("Enforce"));
            active = recorded(active.clone(), &decide(&active));
            active.activations.insert("db".into(), Activation::Done);
            active = recorded(active.clone(), &decide(&active));
            active.boundaries[0].state = state.clone();
            assert_eq!(self::state(&decide(&active)), Some((1, GrantState::Active)), "{state:?}: what is active stays so");
            active.lease = lease("y", 1);
            let next = decide(&active);
            assert_eq!(self::state(&next), None, "{state:?}");
            assert_eq!(find(&next.status.conditions, on::EPOCH_ACTIVE).unwrap().reason, reason::FENCE_UNREADABLE);
            assert_eq!(next.status.boundaries[0].fence, Some(Epoch::FIRST), "its last fence stays known");

            let mut efficiency = observed("EfficiencyOnly", guard("Enforce"));
            efficiency.boundaries[0].state = state;
            assert_eq!(self::state(&decide(&efficiency)), Some((1, GrantState::Active)), "there nothing blocks");
        }
    }

    /// No right to list boundaries: one that nobody listed may refer to the lock.
    #[test]
    fn a_grant_waits_while_it_is_not_known_which_boundaries_there_are() {
        let mut observed = observed("CorrectnessCritical", guard("Observe"));
        (observed.boundaries, observed.boundaries_unread) = (vec![], Some("no right".into()));
        let waits = decide(&observed);
        assert_eq!(state(&waits), Some((1, GrantState::Pending)));
        let condition = find(&waits.status.conditions, on::EPOCH_ACTIVE).unwrap();
        assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", reason::FORBIDDEN), "{}", condition.message);
        let mut observed = recorded(observed, &waits);
        observed.boundaries_unread = None;
        assert_eq!(state(&decide(&observed)), Some((1, GrantState::Active)));
    }

    /// A fence for which no grant waits stops no epoch either (protocol section 3).
    #[test]
    fn only_the_fence_of_a_boundary_that_blocks_stops_minting() {
        for (class, mode, wanted) in [
            ("CorrectnessCritical", "Enforce", None),
            ("CorrectnessCritical", "Observe", Some((1, GrantState::Active))),
            ("EfficiencyOnly", "Enforce", Some((1, GrantState::Active))),
        ] {
            let mut observed = observed(class, guard(mode));
            observed.unreadable_fences.insert("db".into(), UnreadFence::Failed("down".into()));
            assert_eq!(state(&decide(&observed)), wanted, "{class} {mode}");
        }
    }

    /// Another declaration of a boundary, other tables for instance, was activated nowhere yet.
    #[test]
    fn an_activation_does_not_outlive_its_declaration() {
        let declared = |generation: i64, fence_of: i64| {
            let object = json!({"metadata": {"name": "db", "uid": "b", "generation": generation}, "spec": {"lockRef": {"name": "a"},
                "type": "Postgres", "mode": "Enforce", "postgres": {"connection": {"secretKeyRef": {"name": "s", "key": "k"}},
                "tables": [{"schema": "p", "name": "t"}]}}, "status": {"fence": {"epoch": 1, "holder": "x", "generation": fence_of}}});
            let object = Arc::new(serde_json::from_value(object).unwrap());
            let state = CountedState::Present { object, field_errors: vec![], evidence: Evidence::Unseen, has_backend: true };
            Counted { name: "db".into(), listed: true, state }
        };
        let mut observed = observed("CorrectnessCritical", declared(1, 1));
        let active = decide(&observed);
        assert_eq!(state(&active), Some((1, GrantState::Active)), "the boundary says that it is there already");
        observed = recorded(observed, &active);
        observed.boundaries = vec![declared(2, 1)];
        let changed = decide(&observed);
        assert_eq!(changed.activate, ["db"]);
        assert_eq!(state(&changed), Some((1, GrantState::Active)));
    }

    /// What a decision rests on is read step by step, and each step once.
    #[test]
    fn an_epoch_is_minted_and_made_active_on_fresh_reads_only() {
        let mut observed = observed("CorrectnessCritical", guard("Observe"));
        let mut steps = Vec::new();
        while let Some(needs) = decide(&observed).needs {
            steps.push(needs);
            match needs {
                Needs::FreshReads => observed.freshness = Freshness::LeaseRead,
                Needs::FreshLock => observed.freshness = Freshness::AllRead,
                Needs::Fences => observed.fences_read = true,
                Needs::FreshBoundaries => observed.boundaries_fresh = true,
            }
        }
        assert_eq!(steps, [Needs::FreshReads, Needs::FreshLock, Needs::Fences, Needs::FreshBoundaries]);
        // The cache did not know that the boundary enforces by now.
        observed.boundaries = vec![guard("Enforce")];
        assert_eq!(state(&decide(&observed)), Some((1, GrantState::Pending)));
    }

    /// That a retry is under way is no news after a failure was said.
    #[test]
    fn a_failure_stays_said_while_the_next_attempt_is_under_way() {
        let observed = observed("CorrectnessCritical", guard("Enforce"));
        let mut observed = recorded(observed.clone(), &decide(&observed));
        observed.activations.insert("db".into(), Activation::Failed("connection refused".into()));
        let theirs = decide(&observed);
        let mut observed = recorded(observed, &theirs);
        let words = |observed: &Observed| find(&decide(observed).status.conditions, on::EPOCH_ACTIVE).unwrap().message.clone();
        observed.activations.clear();
        assert!(words(&observed).contains("connection refused"));
        observed.activations.insert("db".into(), Activation::Failed("permission denied".into()));
        assert!(words(&observed).contains("permission denied"), "what this process sees now");
        observed.lease = lease("y", 1);
        assert!(words(&observed).contains("epoch 2"), "another grant is another matter");
    }

    /// The only memory of a deleted boundary's fence is kept until the reservation holds it.
    #[test]
    fn the_fence_of_a_vanished_boundary_stays_while_it_cannot_be_reserved() {
        for listed in [true, false] {
            let observed = observed("CorrectnessCritical", guard("Enforce"));
            let mut observed = recorded(observed.clone(), &decide(&observed));
            observed.activations.insert("db".into(), Activation::Done);
            let mut observed = recorded(observed.clone(), &decide(&observed));
            if listed {
                observed.boundaries[0].state = CountedState::Missing;
            } else {
                observed.boundaries.clear();
            }
            observed.reservation = Err(ReservationError::Forbidden("update configmaps".into()));
            let gone = decide(&observed);
            assert_eq!(gone.status.boundaries.iter().map(|b| b.fence).collect::<Vec<_>>(), [Some(Epoch::FIRST)]);
            observed.reservation = Ok(None);
            assert!(decide(&recorded(observed, &gone)).status.boundaries.iter().all(|b| b.fence.is_none()));
        }
    }

    #[test]
    fn a_boundary_that_vanished_leaves_its_fence_behind() {
        let mut observed = active();
        assert_eq!(observed.lock.status.as_ref().unwrap().boundaries[0].fence, Some(Epoch::FIRST));
        observed.boundaries[0].state = CountedState::Missing;
        let gone = decide(&observed);
        assert_eq!(gone.needs, Some(Needs::FreshReads), "the reservation has to be read");
        assert_eq!(gone.status.boundaries[0].fence, None);
        assert_eq!(gone.reserve, None, "the status keeps an epoch that is no higher than its own");
    }

    /// A boundary of objects that recognises owners by their pods.
    fn objects(reacquire: &str) -> Counted {
        let object = json!({"metadata": {"name": "db", "uid": "b"}, "spec": {"lockRef": {"name": "a"}, "type": "Kubernetes", "mode": "Enforce",
            "kubernetes": {"claim": "PodIdentity", "targets": [{"resource": "configmaps", "names": ["web"]}], "reacquire": reacquire}}});
        let object = Arc::new(serde_json::from_value(object).unwrap());
        let Counted { name, listed, .. } = guard("Enforce");
        Counted {
            name,
            listed,
            state: CountedState::Present { object, field_errors: vec![], evidence: Evidence::Unseen, has_backend: true },
        }
    }

    fn pod(uid: &str, started: i64) -> PodRead {
        let container = Container { name: "app".into(), life: Life::Since(at(started)) };
        PodRead::Found(PodView { uid: uid.into(), containers: vec![container], has_bound_token: true, ..PodView::default() })
    }

    /// Protocol section 4: a pod cannot be told from itself, so its process has to be another one when others owned the lock in between.
    #[test]
    fn the_same_process_gets_no_second_term_from_a_guard_that_knows_pods_only() {
        let reason = |decision: &Decision| find(&decision.status.conditions, on::EPOCH_ACTIVE).unwrap().reason.clone();
        let turn = |mut observed: Observed, now: i64, holder: &str, read: PodRead| {
            (observed.now, observed.lease, observed.pod) = (at(now), lease(holder, i32::try_from(now).unwrap()), read);
            observed.activations.clear();
            let decision = decide(&observed);
            (recorded(observed, &decision), decision)
        };
        for (reacquire, is_held_back) in [("NewProcess", true), ("Allow", false)] {
            let mut observed = observed("CorrectnessCritical", objects(reacquire));
            for (now, holder) in [(10, "x"), (20, "y")] {
                let decision;
                (observed, decision) = turn(observed, now, holder, pod(holder, 1));
                assert_eq!((decision.activate.len(), reason(&decision).as_str()), (1, reason::ACTIVATION_PENDING));
            }
            let (observed, again) = turn(observed, 30, "x", pod("x", 1));
            let recent: Vec<_> = again.status.recent_owners.iter().map(|owner| (owner.pod_uid.as_str(), owner.epoch.get())).collect();
            assert_eq!((recent.as_slice(), state(&again)), ([("x", 1), ("y", 2)].as_slice(), Some((3, GrantState::Pending))));
            if !is_held_back {
                assert_eq!(again.activate, ["db"]);
                continue;
            }
            assert!(again.activate.is_empty(), "it must not be stamped");
            assert_eq!(reason(&again), reason::PROCESS_REUSED);
            assert!(again.announcements.iter().any(|told| told.reason == "GrantHeldBack"), "{:?}", again.announcements);
            // The way back: the container is started anew.
            let next = decide(&Observed { pod: pod("x", 31), ..observed.clone() });
            assert_eq!((next.activate.as_slice(), reason(&next).as_str()), (["db".to_owned()].as_slice(), reason::ACTIVATION_PENDING));
            assert_eq!(next.status.recent_owners.len(), 1, "what is over is forgotten");
        }
    }

    /// A holder that no pod is known for is said so, is not stamped, and gets in when its pod is known.
    #[test]
    fn a_holder_whose_pod_is_not_known_waits_for_it() {
        let observed = observed("CorrectnessCritical", objects("NewProcess"));
        let first = decide(&observed);
        let said = find(&first.status.conditions, on::EPOCH_ACTIVE).unwrap();
        assert_eq!((said.reason.as_str(), first.activate.len()), (reason::HOLDER_POD_UNKNOWN, 0), "{}", said.message);
        let known = Observed { pod: pod("x", 1), ..recorded(observed, &first) };
        assert_eq!(decide(&known).activate, ["db"]);
    }
}
