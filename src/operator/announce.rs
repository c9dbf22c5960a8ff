//! What people are told of as Kubernetes Events: the differences between two statuses of a lock. Pure; `events` writes them.

use crate::{
    api::{
        BoundaryVerdict, FencedLockStatus, Verdict, WriteBoundaryStatus,
        conditions::{boundary as on_boundary, find, lock as on_lock, reason, shorten},
    },
    audit::verdict::OwnerUnique,
    epoch::{
        grant::{Grant, GrantState},
        revoke::RevocationStatus,
        term::TermRule,
    },
};

/// What an examination of a boundary brought besides its verdict.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct News<'a> {
    /// From where to where the fence went back.
    pub(super) rolled_back: Option<&'a str>,
    /// Why what was proven before counts no longer.
    pub(super) void: Option<&'a str>,
    /// Writes that were refused.
    pub(super) refused: u64,
    /// What there is to say about guards in the same database whose boundary is not there.
    pub(super) orphans: &'a [String],
}

/// What is told of a boundary: that its verdict changed, that its fence was seen to have gone back, that writes were refused.
pub(super) fn boundary(before: Option<&WriteBoundaryStatus>, after: &WriteBoundaryStatus, news: &News<'_>) -> Vec<Announcement> {
    let News { rolled_back, void, refused, orphans } = *news;
    let mut all = Vec::new();
    let mut say = |reason, warning, note: String| all.push(Announcement { reason, warning, note, begins_term: false });
    let message = find(&after.conditions, on_boundary::PROVEN).map(|c| c.message.as_str()).unwrap_or_default();
    let verdict = |status: &WriteBoundaryStatus| status.verdict.map_or_else(|| "none".to_owned(), |verdict| format!("{verdict:?}"));
    let (was, is) = (before.map_or_else(|| "none".to_owned(), verdict), verdict(after));
    let reason_was = before.and_then(|status| status.reason.as_deref());
    if was != is || reason_was != after.reason.as_deref() {
        let reason = after.reason.as_deref().unwrap_or_default();
        let of_its_own = [reason::BYPASS_FOUND, reason::GUARD_ALTERED, reason::PROBE_FAILED, reason::PROOF_EXPIRED, reason::PROOF_VOID];
        let event = of_its_own.into_iter().find(|known| *known == reason).unwrap_or("VerdictChanged");
        let is_good = matches!(after.verdict, Some(BoundaryVerdict::Proven | BoundaryVerdict::RiskAccepted));
        let is_pending = matches!(reason, reason::PROOF_PENDING | reason::OBSERVING | reason::NOT_ACTIVATED);
        say(event, !is_good && !is_pending, format!("{was} → {is}: {message}"));
    }
    let ends_soon = |status: &WriteBoundaryStatus| {
        let condition = find(&status.conditions, on_boundary::ACCEPTANCE_LASTS)?;
        (condition.reason == reason::RISK_ACCEPTANCE_EXPIRES_SOON).then(|| condition.message.clone())
    };
    if let (None, Some(message)) = (before.and_then(ends_soon), ends_soon(after)) {
        say("RiskAcceptanceExpiresSoon", true, message);
    }
    let unreconciled = |status: &WriteBoundaryStatus| {
        let condition = find(&status.conditions, on_boundary::RECONCILED).filter(|condition| condition.status == "False")?;
        let known = [reason::OUTCOMES_UNKNOWN, reason::SENT_MORE_THAN_ONCE, reason::LEDGER_NOT_FENCED];
        known.into_iter().find(|reason| *reason == condition.reason).map(|reason| (reason, condition.message.clone()))
    };
    match (before.and_then(unreconciled), unreconciled(after)) {
        (was, Some((reason, message))) if was.as_ref().is_none_or(|(before, _)| *before != reason) => say(reason, true, message),
        (Some(_), None) => {
            if let Some(condition) = find(&after.conditions, on_boundary::RECONCILED).filter(|condition| condition.status == "True") {
                say(reason::RECONCILED, false, condition.message.clone());
            }
        }
        _ => {}
    }
    // Told once: the condition that carries it remembers that it was.
    let carries = |status: &WriteBoundaryStatus, text: &str| {
        find(&status.conditions, on_boundary::GUARD_INSTALLED).is_some_and(|condition| condition.message.contains(text))
    };
    for orphan in orphans.iter().filter(|orphan| carries(after, orphan) && !before.is_some_and(|before| carries(before, orphan))) {
        say("OrphanedGuard", true, orphan.clone());
    }
    if let Some(note) = void.filter(|_| after.reason.as_deref() != Some(reason::PROOF_VOID)) {
        say("ProofVoid", true, note.to_owned());
    }
    if let Some(note) = rolled_back {
        say("FenceRolledBack", true, note.to_owned());
    }
    if refused > 0 {
        let (writes, were) = if refused == 1 { ("write", "was") } else { ("writes", "were") };
        let how = if after.observed.is_some() { "seen that mode Enforce would refuse" } else { "refused" };
        say("WritesRefused", true, format!("{refused} {writes} {were} {how}: by an obsolete owner, or by a program that carries no claim"));
    }
    all
}

/// The reason of a change of owner.
const OWNERSHIP_CHANGED: &str = "OwnershipChanged";

/// Something that changed and that people are told of, as a Kubernetes Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The Event's reason.
    pub reason: &'static str,
    /// Whether it asks for somebody's attention.
    pub warning: bool,
    /// What happened.
    pub note: String,
    /// Whether another term began: a lock where that happens too often is not well.
    pub begins_term: bool,
}

/// The differences, in the order in which they are told.
pub(super) fn announce(
    before: &FencedLockStatus,
    after: &FencedLockStatus,
    owner: &OwnerUnique,
    began: Option<TermRule>,
) -> Vec<Announcement> {
    let mut all = Vec::new();
    let short = |grant: &Grant| shorten(grant.holder.as_str(), 80);
    let short_of = |revoked: &RevocationStatus| shorten(revoked.holder.as_str(), 80);
    let mut say = |reason, warning, note: String| {
        let begins_term = reason == OWNERSHIP_CHANGED && after.grant.is_some();
        all.push(Announcement { reason, warning, note, begins_term });
    };
    let was_critical = find(&before.conditions, on_lock::BOUNDARY_REGISTERED)
        .is_some_and(|c| c.reason != reason::NOT_REQUIRED && c.reason != reason::MALFORMED);
    let is_efficiency_only = find(&after.conditions, on_lock::BOUNDARY_REGISTERED).is_some_and(|c| c.reason == reason::NOT_REQUIRED);
    if was_critical && is_efficiency_only {
        say("ClassDowngraded", true, "the class was changed to EfficiencyOnly: nothing has to refuse an obsolete owner any more".into());
    }
    if before.verdict != after.verdict {
        let compliant = find(&after.conditions, on_lock::COMPLIANT);
        let bad = compliant.is_some_and(|c| c.status == "False");
        let verdict = |v: Option<Verdict>| v.map_or_else(|| "none".to_owned(), |v| format!("{v:?}"));
        let message = compliant.map(|c| c.message.as_str()).unwrap_or_default();
        say("VerdictChanged", bad, format!("{} → {}: {message}", verdict(before.verdict), verdict(after.verdict)));
    }
    let epoch = |grant: &Option<Grant>| grant.as_ref().map(|g| g.epoch);
    match (&before.grant, &after.grant) {
        (old, Some(new)) if epoch(&before.grant) != Some(new.epoch) => {
            let from = old.as_ref().map_or_else(|| "nobody".to_owned(), |g| format!("{:?} (epoch {})", short(g), g.epoch));
            let rule = began.map(|rule| format!(" ({rule:?})")).unwrap_or_default();
            let doubt = if owner.reason == reason::CONTAINER_RESTARTED { "; its container was restarted" } else { "" };
            let note = format!("{from} → {:?}, epoch {}{rule}{doubt}", short(new), new.epoch);
            say(OWNERSHIP_CHANGED, false, note);
        }
        (Some(old), None) => say(OWNERSHIP_CHANGED, false, format!("{:?} (epoch {}) → nobody", short(old), old.epoch)),
        _ => {}
    }
    if let Some(new) = after.grant.as_ref().filter(|g| g.state == GrantState::Active)
        && before.grant.as_ref().is_none_or(|g| g.epoch != new.epoch || g.state == GrantState::Pending)
    {
        say("EpochActivated", false, format!("epoch {} is active for {:?}", new.epoch, short(new)));
    }
    match (&before.revoked, &after.revoked) {
        (old, Some(new)) if old.as_ref().is_none_or(|old| old.epoch != new.epoch) => {
            let note = format!(
                "the term of {:?} is revoked by epoch {}, which is nobody's: {}",
                short_of(new),
                new.epoch,
                shorten(&new.reason, 240)
            );
            say("OwnerRevoked", true, note);
        }
        _ => {}
    }
    if let Some(new) = after.revoked.as_ref().filter(|new| new.state == GrantState::Active)
        && before.revoked.as_ref().is_none_or(|old| old.epoch != new.epoch || old.state == GrantState::Pending)
    {
        say(
            "RevocationActive",
            false,
            format!("no write boundary that is waited for admits {:?} any more: each is at epoch {}", short_of(new), new.epoch),
        );
    }
    let held_back = |status: &FencedLockStatus| {
        let condition = find(&status.conditions, on_lock::EPOCH_ACTIVE)?;
        matches!(condition.reason.as_str(), reason::PROCESS_REUSED | reason::HOLDER_POD_UNKNOWN).then(|| condition.message.clone())
    };
    let was = held_back(before).filter(|_| epoch(&before.grant) == epoch(&after.grant));
    if let (None, Some(message)) = (was, held_back(after)) {
        say("GrantHeldBack", true, message);
    }
    all
}
