//! The conditions of a lock and of a boundary, with their messages (design: api.md, "Conditions").
//!
//! Start with [`lock`]. A finding is never `Ready=False`: tools that wait for `Ready` would block on it. Only
//! `rollout: Block` asks for that.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Condition,
    jiff::{SignedDuration, Timestamp},
};

use super::{
    boundary::{self, Evidence, LockSide},
    verdict::{self, Found, OwnerUnique, Required},
};
use crate::{
    api::{
        BoundaryType, BoundaryVerdict, LockClass, RiskAcceptance, Rollout, Verdict,
        conditions::{self, Finding, Truth, boundary as on_boundary, find, lock as on_lock, reason, shorten},
    },
    epoch::{
        Epoch,
        grant::{Grant, GrantState, Standing},
        mint::{MintError, ReservationError},
        revoke::RevocationStatus,
    },
};

/// The longest cause that a message repeats, in bytes: the next step comes after it and must fit.
const MAX_WHY: usize = 240;

/// How long a finding has to hold before `rollout: Block` calls the rollout failed.
pub const STALL_AFTER: SignedDuration = SignedDuration::from_secs(60);

/// What became of activating the present grant at one boundary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Activation {
    /// The boundary is at the grant.
    Done,
    /// It was not tried yet, or is under way.
    Waiting,
    /// Its fence is at this epoch already, which is later, or the same with another holder.
    Superseded(Epoch),
    /// It failed: why, and what to do.
    Failed(String),
    /// It must not be tried: the reason, why, and what to do.
    HeldBack(&'static str, String),
}

/// Everything that a lock's conditions depend on.
#[derive(Clone, Copy, Debug)]
pub struct LockFacts<'a> {
    /// The verdict.
    pub judgement: &'a verdict::Judgement,
    /// `spec.class`.
    pub class: LockClass,
    /// `spec.rollout`.
    pub rollout: Rollout,
    /// The boundaries that count.
    pub boundaries: &'a [Required],
    /// The Lease's name, or the external system's.
    pub coordinator: &'a str,
    /// Why the present holder has a grant or none.
    pub standing: &'a Standing,
    /// The grant.
    pub grant: Option<&'a Grant>,
    /// The last revocation, until another term begins.
    pub revoked: Option<&'a RevocationStatus>,
    /// Boundaries that the grant, or the revocation, waits for, and what became of each.
    pub activations: &'a [(String, Activation)],
    /// Why it is not known which boundaries refer to the lock, when it is not.
    pub boundaries_unread: Option<&'a str>,
    /// Whether the holder is one process life.
    pub owner: &'a OwnerUnique,
    /// Why `EpochMonotonic=False`, if it is.
    pub went_back: Option<(&'static str, &'a str)>,
    /// A declaration that is not carried out, said in `Ready`'s message.
    pub not_carried_out: Option<&'a str>,
    /// The object's generation.
    pub generation: Option<i64>,
}

/// The conditions of a lock, on top of those of before, and when they change by themselves.
pub fn lock(facts: &LockFacts<'_>, before: &[Condition], now: Timestamp) -> (Vec<Condition>, Option<Timestamp>) {
    let (stalled, until) = stalled(facts, before, now);
    let mut findings = vec![ready(facts, stalled.as_ref())];
    findings.push(Finding::new(on_lock::COMPLIANT, facts.judgement.compliant, facts.judgement.reason, &facts.judgement.message));
    findings.extend([registered(facts), enforced(facts), epoch_active(facts), epoch_monotonic(facts)]);
    findings.push(Finding::new(on_lock::OWNER_UNIQUE, facts.owner.status, facts.owner.reason, &facts.owner.message));
    // A finding of an earlier generation starts to count anew: what was true of the old declaration stalls no new rollout.
    let outdated = |c: &Condition| c.type_ == on_lock::STALLED && c.observed_generation != facts.generation;
    let kept: Vec<_> = before.iter().filter(|c| !outdated(c)).cloned().collect();
    findings.extend(stalled);
    (conditions::merge(&kept, findings, facts.generation, now), until)
}

fn ready(facts: &LockFacts<'_>, stalled: Option<&Finding>) -> Finding {
    let waits = facts.rollout == Rollout::Block && facts.judgement.compliant != Truth::True;
    if waits || stalled.is_some() {
        let message = format!("rollout: Block waits for the lock to be compliant: {}", facts.judgement.message);
        return Finding::new(on_lock::READY, false, reason::PROVING, message);
    }
    let message = facts.not_carried_out.unwrap_or("this generation has been evaluated; the verdict is in Compliant");
    Finding::new(on_lock::READY, true, reason::EVALUATED, message)
}

/// `Stalled`, only with `rollout: Block`: False from the moment that a finding appears, True once it has held for
/// [`STALL_AFTER`]. Returns when that will be.
fn stalled(facts: &LockFacts<'_>, before: &[Condition], now: Timestamp) -> (Option<Finding>, Option<Timestamp>) {
    let finding = matches!(facts.judgement.verdict, Verdict::Violated | Verdict::Invalid | Verdict::Unenforced);
    if facts.rollout != Rollout::Block || !finding {
        return (None, None);
    }
    let since = find(before, on_lock::STALLED).filter(|c| c.observed_generation == facts.generation);
    let already = since.is_some_and(|c| c.status == Truth::True.as_str());
    let since = since.map_or_else(|| conditions::truncate(now), |c| c.last_transition_time.0);
    let due = since.checked_add(STALL_AFTER).unwrap_or(since);
    if already || due <= now {
        return (Some(Finding::new(on_lock::STALLED, true, facts.judgement.reason, &facts.judgement.message)), None);
    }
    let message = format!("the rollout fails at {due} unless this changes: {}", facts.judgement.message);
    (Some(Finding::new(on_lock::STALLED, false, reason::WAITING, message)), Some(due))
}

fn registered(facts: &LockFacts<'_>) -> Finding {
    let say = |holds: bool, reason, message: String| Finding::new(on_lock::BOUNDARY_REGISTERED, holds, reason, message);
    if facts.class == LockClass::EfficiencyOnly {
        return say(true, reason::NOT_REQUIRED, "an efficiency-only lock needs no write boundary".into());
    }
    let listed = facts.boundaries.iter().filter(|r| r.listed).count();
    if listed == 0 {
        return say(
            false,
            reason::NO_BOUNDARY_REGISTERED,
            "spec.writeBoundaries is empty: list a WriteBoundary for each place that the lock's writes land".into(),
        );
    }
    if let Some(message) = verdict::missing(facts.boundaries) {
        return say(false, reason::BOUNDARY_MISSING, message);
    }
    if let Some(why) = facts.boundaries_unread {
        let message = format!("the write boundaries could not be read: {why}");
        return Finding::new(on_lock::BOUNDARY_REGISTERED, Truth::Unknown, reason::FORBIDDEN, message);
    }
    match facts.boundaries.iter().find(|r| !r.listed) {
        Some(extra) => say(
            true,
            reason::BOUNDARY_NOT_LISTED,
            format!(
                "WriteBoundary {:?} refers to this lock and spec.writeBoundaries does not list it: list it, so that deleting it cannot go unnoticed",
                extra.name
            ),
        ),
        None => say(true, reason::REGISTERED, format!("{listed} listed, each exists and refers back")),
    }
}

fn enforced(facts: &LockFacts<'_>) -> Finding {
    let say = |status: Truth, reason, message: &str| Finding::new(on_lock::BOUNDARY_ENFORCED, status, reason, message);
    let required: Vec<_> = facts.boundaries.iter().collect();
    let judgements = || {
        required.iter().filter_map(|r| match &r.found {
            Found::Present(present) => Some(&present.judgement),
            _ => None,
        })
    };
    if facts.class == LockClass::EfficiencyOnly {
        return say(Truth::True, reason::NOT_REQUIRED, "an efficiency-only lock needs no write boundary");
    }
    if required.is_empty() {
        return say(Truth::False, reason::NO_BOUNDARY_REGISTERED, "no write boundary is registered");
    }
    let all_there = judgements().count() == required.len();
    if all_there && judgements().all(|j| j.verdict == BoundaryVerdict::Proven) {
        return say(Truth::True, reason::ALL_BOUNDARIES_PROVEN, "every write boundary was seen to refuse an obsolete owner");
    }
    let untold = |j: &boundary::Judgement| matches!(j.reason, reason::PROOF_PENDING | reason::INCONCLUSIVE);
    let only_untold = all_there && judgements().all(|j| j.verdict == BoundaryVerdict::Proven || untold(j));
    let status = if only_untold { Truth::Unknown } else { Truth::False };
    say(status, facts.judgement.reason, &facts.judgement.message)
}

fn epoch_active(facts: &LockFacts<'_>) -> Finding {
    let (status, reason, message) = match (facts.standing, facts.grant) {
        (Standing::Granted, Some(grant)) => granted(facts, grant),
        (standing, None)
            if let Some(revoked) = facts.revoked.filter(|r| *standing == Standing::Revoked || r.state == GrantState::Pending) =>
        {
            self::revoked(facts, revoked)
        }
        (standing, _) => ungranted(facts.coordinator, standing),
    };
    Finding::new(on_lock::EPOCH_ACTIVE, status, reason, message)
}

fn granted(facts: &LockFacts<'_>, grant: &Grant) -> (Truth, &'static str, String) {
    let holder = shorten(grant.holder.as_str(), 80);
    let held_back = facts.activations.iter().find_map(|(name, a)| match a {
        Activation::HeldBack(reason, why) => Some((name, *reason, why)),
        _ => None,
    });
    if grant.state == GrantState::Active {
        // A boundary that came, or was changed, under an active grant may not be able to admit its owner.
        let but = held_back.map_or_else(String::new, |(name, _, why)| format!("; but write boundary {name:?} does not admit it: {why}"));
        return (Truth::True, reason::ACTIVE, format!("epoch {} is granted to {holder:?}{but}", grant.epoch));
    }
    if let Some(why) = facts.boundaries_unread {
        let message = format!("epoch {} waits, because it is not known which write boundaries have to be activated: {why}", grant.epoch);
        return (Truth::False, reason::FORBIDDEN, message);
    }
    if let Some((name, reason, why)) = held_back {
        return (Truth::False, reason, format!("epoch {} waits and is not given to write boundary {name:?}: {why}", grant.epoch));
    }
    if let Some((name, why)) = failed(facts) {
        let message =
            format!("epoch {} waits for write boundary {name:?}, which could not be activated: {why}; it is tried again", grant.epoch);
        return (Truth::False, reason::ACTIVATION_FAILED, message);
    }
    let message = format!("epoch {} is being activated for {holder:?} at {}", grant.epoch, waiting(facts));
    (Truth::False, reason::ACTIVATION_PENDING, message)
}

/// A boundary that could not be activated, and why.
fn failed<'a>(facts: &LockFacts<'a>) -> Option<(&'a str, String)> {
    facts.activations.iter().find_map(|(name, a)| match a {
        Activation::Failed(why) => Some((name.as_str(), shorten(why, MAX_WHY))),
        Activation::Superseded(fence) => {
            let way_out = format!("set spec.epochFloor to {fence} and let the owner acquire the lock anew");
            let why = format!("its fence is at epoch {fence} already, and its guard is not known to be the operator's: {way_out}");
            Some((name.as_str(), why))
        }
        Activation::Done | Activation::Waiting | Activation::HeldBack(..) => None,
    })
}

/// The boundaries that are being activated.
fn waiting(facts: &LockFacts<'_>) -> String {
    let waiting = facts.activations.iter().filter(|(_, a)| *a == Activation::Waiting);
    waiting.map(|(name, _)| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

fn revoked(facts: &LockFacts<'_>, revoked: &RevocationStatus) -> (Truth, &'static str, String) {
    let what = format!("the term of {:?} is revoked ({})", shorten(revoked.holder.as_str(), 80), shorten(&revoked.reason, MAX_WHY));
    let epoch = revoked.epoch;
    let message = if revoked.state == GrantState::Active && failed(facts).is_none() {
        let lease = facts.coordinator;
        format!(
            "{what}: epoch {epoch} admits nobody. Only a new term gets a grant: stop the owner, or let it give Lease {lease:?} up and acquire it anew"
        )
    } else if let Some((name, why)) = failed(facts) {
        format!(
            "{what}, but write boundary {name:?} may still admit it, because it could not be brought to epoch {epoch}: {why}; it is tried again"
        )
    } else if let Some(why) = facts.boundaries_unread {
        format!("{what}, but it is not known which write boundaries have to be brought to epoch {epoch}: {why}")
    } else {
        format!("{what}, and is being fenced by epoch {epoch} at {}", waiting(facts))
    };
    (Truth::False, reason::REVOKED, message)
}

fn ungranted(coordinator: &str, standing: &Standing) -> (Truth, &'static str, String) {
    let no = |reason, message| (Truth::False, reason, message);
    match standing {
        Standing::Granted => no(reason::RELEASED, "there is no grant".into()),
        // Said by the revocation itself.
        Standing::Revoked => no(reason::REVOKED, "the holder's term was revoked".into()),
        Standing::Released => no(reason::RELEASED, format!("nobody holds Lease {coordinator:?}")),
        Standing::LeaseMissing => no(
            reason::LEASE_MISSING,
            format!(
                "there is no Lease {coordinator:?} in this namespace: it appears when a client first acquires the lock; if one runs, check the name it uses \
                 and whether it may create Leases"
            ),
        ),
        Standing::Forbidden(what) => (
            Truth::Unknown,
            reason::FORBIDDEN,
            format!("the operator may not {what}: grant it that right; until then the epoch stays as it is"),
        ),
        Standing::LeaseUnreadable(why) => (
            Truth::Unknown,
            reason::LEASE_UNREADABLE,
            format!("Lease {coordinator:?} could not be read: {}; until then the epoch stays as it is", shorten(why, MAX_WHY)),
        ),
        Standing::NoCoordinator => no(
            reason::NO_COORDINATOR,
            format!("{coordinator} is outside Kubernetes and gets no epochs: move the lock to a Lease (spec.coordinator.lease)"),
        ),
        Standing::LeaseShared(older) => no(
            reason::LEASE_SHARED,
            format!(
                "FencedLock {older:?} is declared on Lease {coordinator:?} too and came first (by creation, then by name): only that one gets epochs"
            ),
        ),
        Standing::HolderUnusable(error) => {
            no(reason::HOLDER_UNUSABLE, format!("Lease {coordinator:?}: {error}: let the client use a shorter, printable identity"))
        }
        Standing::FenceUnreadable { boundary, why } => no(
            reason::FENCE_UNREADABLE,
            format!(
                "no epoch is minted while the fence of write boundary {boundary:?} cannot be read: {}; if it is gone for good, delete the WriteBoundary",
                shorten(why, MAX_WHY)
            ),
        ),
        Standing::ReservationUnreadable(error) => unreserved(error),
        Standing::NotMinted(error) => {
            let reason = match error {
                MintError::Exhausted => reason::EPOCH_EXHAUSTED,
                MintError::FenceImplausible { .. } | MintError::JumpTooLarge { .. } => reason::FENCE_IMPLAUSIBLE,
            };
            no(reason, format!("no epoch is minted: {error}"))
        }
    }
}

fn unreserved(error: &ReservationError) -> (Truth, &'static str, String) {
    let (reason, message) = match error {
        ReservationError::Malformed(_) => (
            reason::RESERVATION_UNREADABLE,
            format!(
                "no epoch is minted: ConfigMap fencedlock-epochs, key of this lock: {error}: set it to a number above every epoch that was used, a blank and `restored`"
            ),
        ),
        ReservationError::Forbidden(_) => (
            reason::FORBIDDEN,
            format!("no epoch is minted, because it cannot be reserved in ConfigMap fencedlock-epochs: {error}: grant it that right"),
        ),
        ReservationError::Refused(why) => (
            reason::RESERVATION_UNREADABLE,
            format!(
                "no epoch is minted, because it cannot be reserved in ConfigMap fencedlock-epochs: {}: make room, or let it be changed",
                shorten(why, MAX_WHY)
            ),
        ),
        ReservationError::Unavailable(why) => (
            reason::RESERVATION_UNREADABLE,
            format!(
                "no epoch is minted, because it cannot be reserved in ConfigMap fencedlock-epochs: {}; it is tried again",
                shorten(why, MAX_WHY)
            ),
        ),
    };
    (Truth::False, reason, message)
}

fn epoch_monotonic(facts: &LockFacts<'_>) -> Finding {
    match facts.went_back {
        Some((reason, message)) => Finding::new(on_lock::EPOCH_MONOTONIC, false, reason, message),
        None => {
            Finding::new(on_lock::EPOCH_MONOTONIC, true, reason::NEVER_WENT_BACK, "nothing remembers a later epoch than the lock's status")
        }
    }
}

/// Keeps what stands recorded in `EpochActive` about a failure of the same grant, while this process does not know yet how its own
/// attempt ends: that it is under way is no news after another replica, or this one before it was restarted, said what failed.
pub fn keep_failure(before: &[Condition], after: &mut [Condition], under_way: bool) {
    let Some(old) = find(before, on_lock::EPOCH_ACTIVE) else { return };
    let Some(new) = after.iter_mut().find(|c| c.type_ == on_lock::EPOCH_ACTIVE) else { return };
    let is_same = old.status == new.status && old.observed_generation == new.observed_generation;
    let activating = new.reason == reason::ACTIVATION_PENDING && old.reason == reason::ACTIVATION_FAILED;
    let reading = under_way && new.reason == reason::FENCE_UNREADABLE && old.reason == reason::FENCE_UNREADABLE;
    if is_same && (activating || reading) {
        new.reason.clone_from(&old.reason);
        new.message.clone_from(&old.message);
    }
}

/// The conditions of a lock whose object cannot be read as one.
pub fn malformed_lock(message: &str, before: &[Condition], generation: Option<i64>, now: Timestamp) -> Vec<Condition> {
    let say = |type_, status: Truth| Finding::new(type_, status, reason::MALFORMED, message);
    let findings = vec![
        say(on_lock::READY, Truth::False),
        say(on_lock::COMPLIANT, Truth::False),
        say(on_lock::BOUNDARY_REGISTERED, Truth::Unknown),
        say(on_lock::BOUNDARY_ENFORCED, Truth::Unknown),
        say(on_lock::EPOCH_ACTIVE, Truth::Unknown),
        say(on_lock::EPOCH_MONOTONIC, Truth::Unknown),
        say(on_lock::OWNER_UNIQUE, Truth::Unknown),
    ];
    conditions::merge(before, findings, generation, now)
}

/// Everything that a boundary's conditions depend on.
#[derive(Clone, Copy, Debug)]
pub struct BoundaryFacts<'a> {
    /// `spec.type`.
    pub type_: BoundaryType,
    /// The verdict.
    pub judged: &'a boundary::Judgement,
    /// What it rests on.
    pub evidence: &'a Evidence,
    /// Whether the guard only counts.
    pub observes: bool,
    /// Whether the application's own statement is the guard.
    pub is_conditional: bool,
    /// The lock.
    pub lock: &'a LockSide,
    /// What people should know and that is no finding.
    pub notes: &'a [String],
    /// `spec.riskAcceptance`, and how far it is from its end.
    pub accepted: Option<(&'a RiskAcceptance, boundary::Term)>,
    /// What is said of the ledger of an external receiver. Without it, what was said of this generation stands.
    pub reconciled: Option<&'a Finding>,
    /// The object's generation.
    pub generation: Option<i64>,
}

/// The conditions of a boundary.
pub fn boundary(facts: &BoundaryFacts<'_>, before: &[Condition], now: Timestamp) -> Vec<Condition> {
    let judged = facts.judged;
    let mut findings =
        vec![Finding::new(on_boundary::READY, true, reason::EVALUATED, "this generation has been evaluated; the verdict is in Proven")];
    let proven = match judged.verdict {
        BoundaryVerdict::Proven => Truth::True,
        _ if judged.reason == reason::PROOF_PENDING => Truth::Unknown,
        _ => Truth::False,
    };
    findings.push(Finding::new(on_boundary::PROVEN, proven, judged.reason, &judged.message));
    let accepted = facts.accepted.map(|(accepted, term)| acceptance_lasts(accepted, term));
    // An external receiver has nothing to install, activate or keep: it has no conditions about that.
    if facts.type_ == BoundaryType::External {
        findings.extend(accepted);
        findings.extend(facts.reconciled.cloned());
        let mut all = conditions::merge(before, findings, facts.generation, now);
        if facts.reconciled.is_none() {
            all.extend(find(before, on_boundary::RECONCILED).filter(|c| c.observed_generation == facts.generation).cloned());
        }
        return all;
    }
    findings.extend(guard_conditions(facts, before));
    findings.extend(accepted);
    let mut all = conditions::merge(before, findings, facts.generation, now);
    // What this process says nothing about was said before it looked, and stands.
    let said: Vec<_> = all.iter().map(|c| c.type_.clone()).collect();
    all.extend(before.iter().filter(|c| GUARD_KINDS.contains(&c.type_.as_str()) && !said.contains(&c.type_)).cloned());
    let place = |c: &Condition| match GUARD_KINDS.iter().position(|kind| *kind == c.type_) {
        Some(place) => place + 1,
        None if c.type_ == on_boundary::ACCEPTANCE_LASTS => GUARD_KINDS.len() + 1,
        None => 0,
    };
    all.sort_by_key(place);
    all
}

fn acceptance_lasts(accepted: &RiskAcceptance, term: boundary::Term) -> Finding {
    let (who, ends) = (shorten(&accepted.accepted_by, 80), accepted.expires.0);
    let (lasts, reason, message) = match term {
        boundary::Term::Lasts => (true, reason::RISK_ACCEPTED, format!("{who} answers for what is not enforced until {ends}")),
        boundary::Term::EndsSoon => (
            false,
            reason::RISK_ACCEPTANCE_EXPIRES_SOON,
            format!(
                "the acceptance by {who} ends on {ends}: renew spec.riskAcceptance, or move the effect behind a boundary that can refuse"
            ),
        ),
        boundary::Term::Ended => (
            false,
            reason::RISK_ACCEPTANCE_EXPIRED,
            format!("the acceptance by {who} ended on {ends}, and nobody answers for what is not enforced: renew spec.riskAcceptance"),
        ),
    };
    Finding::new(on_boundary::ACCEPTANCE_LASTS, lasts, reason, message)
}

/// The conditions about the guard itself, in the order in which they are shown.
const GUARD_KINDS: [&str; 4] = [on_boundary::GUARD_INSTALLED, on_boundary::ACTIVATED, on_boundary::BYPASS_FREE, on_boundary::FENCE_DURABLE];

/// What is known of the guard itself. Before this process looked, what was said about this generation stands.
fn guard_conditions(facts: &BoundaryFacts<'_>, before: &[Condition]) -> Vec<Finding> {
    let kinds = GUARD_KINDS;
    let untold = |kind| Finding::new(kind, Truth::Unknown, facts.judged.reason, &facts.judged.message);
    let seen = match facts.evidence {
        Evidence::Seen(seen) if seen.examined => seen,
        unseen => {
            let stands =
                |kind: &&str| find(before, kind).is_some_and(|c| c.observed_generation == facts.generation && c.status != "Unknown");
            let mut findings: Vec<_> = kinds.into_iter().filter(|kind| !stands(kind)).map(untold).collect();
            if let Evidence::Seen(seen) = unseen
                && let Some(why) = &seen.inconclusive
            {
                findings.retain(|finding| finding.type_ != on_boundary::GUARD_INSTALLED);
                findings.push(Finding::new(on_boundary::GUARD_INSTALLED, Truth::Unknown, reason::INCONCLUSIVE, why));
            }
            return findings;
        }
    };
    let said = |kind, wrong: Option<(&'static str, &String)>, good: (&'static str, &str)| match wrong {
        Some((reason, text)) => Finding::new(kind, false, reason, text),
        None => Finding::new(kind, true, good.0, good.1),
    };
    let altered = seen.guard_altered.as_ref().map(|text| (reason::GUARD_ALTERED, text));
    let shared = seen.shared.as_ref().map(|text| (reason::TARGET_SHARED, text));
    let mut installed = match (facts.is_conditional, facts.observes) {
        (true, _) => "nothing is installed: the declared statement is the guard".to_owned(),
        (false, true) => "the guard is installed and only counts".to_owned(),
        (false, false) => "the guard is installed and as this version makes it".to_owned(),
    };
    for note in facts.notes {
        installed = format!("{installed}; {note}");
    }
    let bypass = seen.writer_bypass.as_ref().or(seen.bypass.as_ref()).map(|text| (reason::BYPASS_FOUND, text));
    let volatile = seen.not_durable.as_ref().map(|text| (reason::FENCE_NOT_DURABLE, text));
    let durable = if facts.is_conditional {
        "a write is on disk before its fence is believed"
    } else {
        "an activation is on disk before it is believed"
    };
    vec![
        match &seen.unfinished {
            Some(why) if altered.or(shared).is_none() => Finding::new(kinds[0], Truth::Unknown, reason::INCONCLUSIVE, why),
            _ => said(kinds[0], altered.or(shared), (reason::INSTALLED, &installed)),
        },
        activated(facts, seen),
        said(
            kinds[2],
            bypass,
            (reason::NO_WAY_AROUND, "no role and no object was found that can go around the guard and nobody answers for"),
        ),
        match &seen.unfinished {
            Some(why) => Finding::new(kinds[3], Truth::Unknown, reason::INCONCLUSIVE, why),
            None => said(kinds[3], volatile, (reason::DURABLE, durable)),
        },
    ]
}

fn activated(facts: &BoundaryFacts<'_>, seen: &boundary::Seen) -> Finding {
    let say = |status: Truth, reason, message: String| Finding::new(on_boundary::ACTIVATED, status, reason, message);
    match facts.lock {
        LockSide::Found { .. } if facts.is_conditional => say(
            Truth::True,
            reason::NOT_REQUIRED,
            "a conditional update has nothing to activate: it learns of a new owner by its first write".to_owned(),
        ),
        LockSide::Found { active: Some((epoch, holder)) } if seen.fence.as_ref() == Some(&(*epoch, holder.clone())) => {
            let whose = if holder.is_empty() { "of nobody: the last owner's term was revoked" } else { "of the lock's owner" };
            say(Truth::True, reason::ACTIVE, format!("the fence is at epoch {epoch} {whose}"))
        }
        LockSide::Found { active: Some((epoch, _)) } => {
            let there = seen.fence.as_ref().map_or_else(|| "at no epoch".to_owned(), |(fence, _)| format!("at epoch {fence}"));
            say(Truth::False, reason::NOT_ACTIVATED, format!("the lock's owner has epoch {epoch}, and the fence is {there}"))
        }
        LockSide::Found { active: None } | LockSide::NotFound => {
            say(Truth::Unknown, reason::NO_ACTIVE_GRANT, "the lock has no active grant that the fence could be at".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::conditions::MAX_MESSAGE;
    use crate::epoch::HolderError;
    use crate::epoch::mint::{Reservation, TrustedFence};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn judgement(verdict: Verdict) -> verdict::Judgement {
        let compliant = if verdict == Verdict::Enforced { Truth::True } else { Truth::False };
        verdict::Judgement {
            verdict,
            reason: reason::OBSERVING,
            message: "m".into(),
            compliant,
            summary: (0, 0),
            proven_at: None,
            until: None,
        }
    }

    fn owner() -> OwnerUnique {
        OwnerUnique { status: Truth::Unknown, reason: reason::NOBODY, message: "nobody".into() }
    }

    fn facts<'a>(judgement: &'a verdict::Judgement, rollout: Rollout, owner: &'a OwnerUnique, generation: i64) -> LockFacts<'a> {
        LockFacts {
            judgement,
            class: LockClass::CorrectnessCritical,
            rollout,
            boundaries: &[],
            coordinator: "a",
            standing: &Standing::Released,
            grant: None,
            revoked: None,
            activations: &[],
            boundaries_unread: None,
            owner,
            went_back: None,
            not_carried_out: None,
            generation: Some(generation),
        }
    }

    fn status<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a str> {
        find(conditions, type_).map(|c| c.status.as_str())
    }

    #[test]
    fn a_finding_never_blocks_unless_it_is_asked_to() {
        for verdict in [Verdict::Invalid, Verdict::Violated, Verdict::Unenforced, Verdict::Unproven] {
            let (judgement, owner) = (judgement(verdict), owner());
            let (first, until) = lock(&facts(&judgement, Rollout::Report, &owner, 1), &[], at(0));
            assert_eq!(status(&first, on_lock::READY), Some("True"), "{verdict:?}");
            assert_eq!(status(&first, on_lock::STALLED), None);
            assert_eq!(first.len(), 7, "all but Stalled are set on the first visit");
            assert_eq!(until, None);
        }
    }

    #[test]
    fn a_blocking_rollout_fails_after_sixty_seconds_and_each_generation_has_its_own() {
        let (judgement_, owner) = (judgement(Verdict::Unenforced), owner());
        let block = facts(&judgement_, Rollout::Block, &owner, 1);
        let (first, until) = lock(&block, &[], at(1_000));
        assert_eq!(
            (status(&first, on_lock::READY), status(&first, on_lock::STALLED), until),
            (Some("False"), Some("False"), Some(at(1_060)))
        );
        let (soon, until) = lock(&block, &first, at(1_059));
        assert_eq!((status(&soon, on_lock::STALLED), until), (Some("False"), Some(at(1_060))));
        let (late, until) = lock(&block, &soon, at(1_060));
        assert_eq!((status(&late, on_lock::STALLED), until), (Some("True"), None));
        let (later, _) = lock(&block, &late, at(5_000));
        assert_eq!(later, late);
        let (edited, until) = lock(&LockFacts { generation: Some(2), ..block }, &later, at(5_000));
        assert_eq!((status(&edited, on_lock::STALLED), until), (Some("False"), Some(at(5_060))), "a new declaration has its 60 s");
        let good = judgement(Verdict::Enforced);
        let (proven, _) = lock(&LockFacts { judgement: &good, ..block }, &edited, at(5_001));
        assert_eq!((status(&proven, on_lock::READY), status(&proven, on_lock::STALLED)), (Some("True"), None));
        let waiting = judgement(Verdict::Unproven);
        let (unproven, until) = lock(&LockFacts { judgement: &waiting, ..block }, &[], at(1_000));
        assert_eq!((status(&unproven, on_lock::READY), status(&unproven, on_lock::STALLED), until), (Some("False"), None, None));
    }

    /// Each way to have no grant has its reason and a message that says what to do; absurd holders keep it short (B15).
    #[test]
    fn every_standing_has_a_reason_and_a_message() {
        let (judgement, owner) = (judgement(Verdict::Unenforced), owner());
        let fence = TrustedFence { boundary: "db".into(), epoch: 9, holder: String::new() };
        let standings = [
            (Standing::Released, "False", reason::RELEASED),
            (Standing::LeaseMissing, "False", reason::LEASE_MISSING),
            (Standing::Forbidden("get leases in namespace \"x\"".into()), "Unknown", reason::FORBIDDEN),
            (Standing::LeaseUnreadable("x".repeat(100_000)), "Unknown", reason::LEASE_UNREADABLE),
            (Standing::NoCoordinator, "False", reason::NO_COORDINATOR),
            (Standing::LeaseShared("older".into()), "False", reason::LEASE_SHARED),
            (Standing::HolderUnusable(HolderError::TooLong(200_000)), "False", reason::HOLDER_UNUSABLE),
            (Standing::FenceUnreadable { boundary: fence.boundary, why: "down".into() }, "False", reason::FENCE_UNREADABLE),
            (Standing::ReservationUnreadable(Reservation::parse("junk").unwrap_err()), "False", reason::RESERVATION_UNREADABLE),
            (Standing::ReservationUnreadable(ReservationError::Forbidden("get configmaps".into())), "False", reason::FORBIDDEN),
            (Standing::ReservationUnreadable(ReservationError::Refused("it is immutable".into())), "False", reason::RESERVATION_UNREADABLE),
            (Standing::NotMinted(MintError::Exhausted), "False", reason::EPOCH_EXHAUSTED),
            (Standing::NotMinted(MintError::JumpTooLarge { next: 9 }), "False", reason::FENCE_IMPLAUSIBLE),
        ];
        for (standing, wanted, reason) in &standings {
            let (conditions, _) = lock(&LockFacts { standing, ..facts(&judgement, Rollout::Report, &owner, 1) }, &[], at(0));
            let active = find(&conditions, on_lock::EPOCH_ACTIVE).unwrap();
            assert_eq!((active.status.as_str(), active.reason.as_str()), (*wanted, *reason));
            assert!(active.message.len() <= MAX_MESSAGE && active.message.len() > 20, "{}", active.message);
        }
    }
}
