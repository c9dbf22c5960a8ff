//! What people are told of as Kubernetes Events: the differences between two statuses of a lock. Pure; `events` writes them.

use crate::{
    api::{
        FencedLockStatus, Verdict,
        conditions::{find, lock as on_lock, reason, shorten},
    },
    audit::verdict::OwnerUnique,
    epoch::{
        grant::{Grant, GrantState},
        term::TermRule,
    },
};

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
    all
}
