//! The verdict of one write boundary (design: api.md, "The boundary's verdict").
//!
//! Start with [`judge`]: the rows of the table, in order, each returning when it applies.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::schema::FieldError;
use crate::{
    api::{
        BoundaryType, BoundaryVerdict, Contract, LimitName, ProofSchedule, RiskAcceptance, WriteBoundarySpec, WriteBoundaryStatus,
        conditions::{boundary as on_boundary, find, reason},
    },
    epoch::{Epoch, recorded::Recorded},
};

/// What is known about how a boundary behaves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Evidence {
    /// Nobody looked: a manifest, or a boundary that was just created.
    #[default]
    Unseen,
    /// This version has no backend that could look.
    NotImplemented,
    /// The backend's findings.
    Seen(Box<Seen>),
}

/// What a backend found. Each text says what, where and what to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Whether this comes from an examination, and not only from what a status remembers.
    pub examined: bool,
    /// Why the examination ended early.
    pub unfinished: Option<String>,
    /// The guard of another lock that stands on the same thing.
    pub shared: Option<String>,
    /// A write that must be refused was accepted.
    pub stale_accepted: Option<String>,
    /// The installed guard is missing, disabled or altered.
    pub guard_altered: Option<String>,
    /// A way around the guard that one of the writers, or an old owner, can take.
    pub writer_bypass: Option<String>,
    /// A write that must be accepted was refused.
    pub owner_refused: Option<String>,
    /// An applicable probe could not tell, and no fresh complete proof covers it.
    pub inconclusive: Option<String>,
    /// The last complete proof.
    pub proof: Option<ProofSeen>,
    /// The fence may be lost.
    pub not_durable: Option<String>,
    /// Another way around the guard.
    pub bypass: Option<String>,
    /// Limits that block unless they are accepted.
    pub limits: Vec<LimitName>,
    /// The fence: epoch and holder, empty for nobody.
    pub fence: Option<(Epoch, String)>,
}

/// A complete proof, as far as the verdict needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProofSeen {
    /// When it was made.
    pub at: Timestamp,
    /// The contract that was proven.
    pub contract: Contract,
    /// Why it no longer counts: boundary, guard or server changed.
    pub void: Option<String>,
}

/// The lock that a boundary names, as far as the boundary's verdict needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockSide {
    /// There is no such lock.
    NotFound,
    /// The lock is there, with its active grant if it has one.
    Found {
        /// Epoch and holder of the active grant. After a revocation the holder is empty: the fence has to be nobody's.
        active: Option<(Epoch, String)>,
    },
}

impl LockSide {
    /// The lock as its boundaries see it, by what its status records. What is pending binds nobody yet.
    pub fn of(recorded: Option<Recorded<'_>>) -> Self {
        let active = recorded.filter(|recorded| recorded.is_active());
        Self::Found { active: active.map(|active| (active.epoch(), active.holder().to_owned())) }
    }
}

/// Everything that a boundary's verdict depends on.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The declaration.
    pub spec: &'a WriteBoundarySpec,
    /// What the schema refuses in it.
    pub field_errors: &'a [FieldError],
    /// The older boundary of another lock that guards the same table or object.
    pub target_shared: Option<&'a str>,
    /// The lock.
    pub lock: &'a LockSide,
    /// How the boundary behaves.
    pub evidence: &'a Evidence,
    /// The time that the verdict is about.
    pub now: Timestamp,
}

/// What is said about a boundary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// The verdict.
    pub verdict: BoundaryVerdict,
    /// One of [`reason`].
    pub reason: &'static str,
    /// What is wrong and the next step.
    pub message: String,
    /// The contract that was proven.
    pub contract: Option<Contract>,
    /// When the proof that the verdict rests on was made.
    pub proven_at: Option<Timestamp>,
    /// When the verdict changes by itself: a proof or an acceptance expires.
    pub until: Option<Timestamp>,
}

impl Judgement {
    fn new(verdict: BoundaryVerdict, reason: &'static str, message: impl Into<String>) -> Self {
        Self { verdict, reason, message: message.into(), contract: None, proven_at: None, until: None }
    }
}

/// What a status lets a process know that has not looked itself yet, and whether everything was in order. A finding stands until somebody
/// looks again; so does a proof, until it expires.
pub fn remembered(status: &WriteBoundaryStatus) -> (Seen, bool) {
    let proven = find(&status.conditions, on_boundary::PROVEN);
    let text = proven.map(|condition| condition.message.clone());
    let mut seen = Seen {
        limits: status.limits.iter().map(|limit| limit.name).collect(),
        fence: status.fence.as_ref().map(|fence| (fence.epoch, fence.holder.clone())),
        proof: status.proof.as_ref().map(|proof| ProofSeen {
            at: proof.proven_at.0,
            contract: proof.contract.unwrap_or(Contract::AfterAcceptance),
            void: None,
        }),
        ..Seen::default()
    };
    let (verdict, reason) = (status.verdict, status.reason.as_deref().unwrap_or_default());
    match (verdict, reason) {
        (Some(BoundaryVerdict::Proven | BoundaryVerdict::RiskAccepted), _) => return (seen, true),
        (Some(BoundaryVerdict::Violated), reason::PROBE_FAILED) => seen.stale_accepted = text,
        (Some(BoundaryVerdict::Violated), reason::BYPASS_FOUND) => seen.writer_bypass = text,
        (_, reason::GUARD_ALTERED) => seen.guard_altered = text,
        (_, reason::PROBE_FAILED) => seen.owner_refused = text,
        (_, reason::BYPASS_FOUND) => seen.bypass = text,
        (_, reason::FENCE_NOT_DURABLE) => seen.not_durable = text,
        (_, reason::TARGET_SHARED) => seen.shared = text,
        (_, reason::PROOF_VOID) => {
            if let (Some(proof), Some(text)) = (&mut seen.proof, text) {
                proof.void = Some(text);
            }
        }
        (_, reason::INCONCLUSIVE) => seen.inconclusive = text,
        _ => {}
    }
    (seen, false)
}

/// Whether somebody answers for a limit now.
pub fn is_accepted(spec: &WriteBoundarySpec, limit: LimitName, now: Timestamp) -> bool {
    matches!(acceptance(spec, limit, now), Acceptance::Valid(_))
}

/// How long before its end an acceptance is said to end soon.
pub const SOON: SignedDuration = SignedDuration::from_hours(30 * 24);

/// How far an acceptance is from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Term {
    /// Far.
    Lasts,
    /// It ends within the time that was asked for: somebody should renew it, or remove its cause.
    EndsSoon,
    /// It has ended, and covers nothing.
    Ended,
}

/// How far an acceptance is from its end, and when that changes by itself.
pub fn term(accepted: &RiskAcceptance, now: Timestamp, soon: SignedDuration) -> (Term, Option<Timestamp>) {
    let ends = accepted.expires.0;
    let warned = ends.checked_sub(soon).unwrap_or(Timestamp::MIN);
    match now {
        now if ends <= now => (Term::Ended, None),
        now if warned <= now => (Term::EndsSoon, Some(ends)),
        _ => (Term::Lasts, Some(warned)),
    }
}

/// The state of an acceptance for one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Acceptance<'a> {
    None,
    Expired(&'a RiskAcceptance),
    Valid(&'a RiskAcceptance),
}

fn acceptance(spec: &WriteBoundarySpec, limit: LimitName, now: Timestamp) -> Acceptance<'_> {
    match spec.risk_acceptance.as_ref().filter(|a| a.covers.contains(&limit)) {
        None => Acceptance::None,
        Some(a) if a.expires.0 <= now => Acceptance::Expired(a),
        Some(a) => Acceptance::Valid(a),
    }
}

/// Judges a boundary: the first row of the table that applies. Total: every combination of facts has an answer.
pub fn judge(facts: &Facts<'_>) -> Judgement {
    if let Some(invalid) = invalid(facts) {
        return invalid;
    }
    if facts.spec.type_ == BoundaryType::External {
        return external(facts);
    }
    if let Some(text) = orphaned(facts).filter(|_| !matches!(facts.evidence, Evidence::Seen(_))) {
        return Judgement::new(BoundaryVerdict::Unproven, reason::LOCK_NOT_FOUND, text);
    }
    let seen = match facts.evidence {
        Evidence::Seen(seen) => seen.as_ref(),
        Evidence::NotImplemented => {
            let message = format!(
                "this version of fencedlock cannot prove {} boundaries yet, so nothing says that an obsolete owner is refused here",
                facts.spec.type_
            );
            return Judgement::new(BoundaryVerdict::Unproven, reason::BACKEND_NOT_IMPLEMENTED, message);
        }
        Evidence::Unseen => &Seen::default(),
    };
    violated(seen).or_else(|| unproven(facts, seen)).unwrap_or_else(|| proven(facts, seen))
}

fn invalid(facts: &Facts<'_>) -> Option<Judgement> {
    if let Some(error) = facts.field_errors.first() {
        let more = more(facts.field_errors.len() - 1);
        return Some(Judgement::new(BoundaryVerdict::Invalid, reason::FIELD_INVALID, format!("{error}{more}")));
    }
    if let Evidence::Seen(seen) = facts.evidence
        && let Some(text) = &seen.shared
    {
        return Some(Judgement::new(BoundaryVerdict::Invalid, reason::TARGET_SHARED, text));
    }
    facts.target_shared.map(|other| {
        let message = format!("another lock's boundary {other} guards the same table or object: one of the two locks has to own it");
        Judgement::new(BoundaryVerdict::Invalid, reason::TARGET_SHARED, message)
    })
}

/// What there is to say when the lock is not there.
fn orphaned(facts: &Facts<'_>) -> Option<String> {
    let name = &facts.spec.lock_ref.name;
    let text = || format!("there is no FencedLock {name:?} in this namespace: create it, or delete this boundary");
    (*facts.lock == LockSide::NotFound).then(text)
}

fn external(facts: &Facts<'_>) -> Judgement {
    let judged = external_with_lock(facts);
    let message = orphaned(facts).map_or_else(|| judged.message.clone(), |orphaned| format!("{}; {orphaned}", judged.message));
    Judgement { message, ..judged }
}

fn external_with_lock(facts: &Facts<'_>) -> Judgement {
    let receiver = facts.spec.external.as_ref().map_or("the receiver", |e| e.receiver.as_str());
    match acceptance(facts.spec, LimitName::CannotEnforce, facts.now) {
        Acceptance::Valid(accepted) => Judgement {
            until: Some(accepted.expires.0),
            ..Judgement::new(
                BoundaryVerdict::RiskAccepted,
                reason::RISK_ACCEPTED,
                format!(
                    "{receiver} cannot refuse an obsolete owner; {} accepted that until {}: {}",
                    accepted.accepted_by, accepted.expires.0, accepted.reason
                ),
            )
        },
        Acceptance::Expired(accepted) => Judgement::new(
            BoundaryVerdict::CannotEnforce,
            reason::RISK_ACCEPTANCE_EXPIRED,
            format!(
                "{receiver} cannot refuse an obsolete owner, and the acceptance by {} ended on {}: renew spec.riskAcceptance or move the effect \
                 behind a boundary that can refuse",
                accepted.accepted_by, accepted.expires.0
            ),
        ),
        Acceptance::None => Judgement::new(
            BoundaryVerdict::CannotEnforce,
            reason::CANNOT_ENFORCE,
            format!(
                "{receiver} cannot refuse an obsolete owner: make repeated requests harmless (spec.external.idempotencyKey, ledger) and have \
                 somebody answer for the rest in spec.riskAcceptance (covers: [CannotEnforce], until a date)"
            ),
        ),
    }
}

fn violated(seen: &Seen) -> Option<Judgement> {
    let say = |reason, text: &String| Judgement::new(BoundaryVerdict::Violated, reason, text);
    let stale = seen.stale_accepted.as_ref().map(|t| say(reason::PROBE_FAILED, t));
    stale
        .or_else(|| seen.guard_altered.as_ref().map(|t| say(reason::GUARD_ALTERED, t)))
        .or_else(|| seen.writer_bypass.as_ref().map(|t| say(reason::BYPASS_FOUND, t)))
}

fn unproven(facts: &Facts<'_>, seen: &Seen) -> Option<Judgement> {
    let say = |reason, text: String| Some(Judgement::new(BoundaryVerdict::Unproven, reason, text));
    if facts.spec.observes() {
        return say(
            reason::OBSERVING,
            "the guard only counts what it would refuse: set spec.mode to Enforce once nothing rightful is counted".into(),
        );
    }
    if let Some(text) = &seen.owner_refused {
        return say(reason::PROBE_FAILED, text.clone());
    }
    if let Some(text) = &seen.bypass {
        // It ended the proof: that there is none says less.
        return say(reason::BYPASS_FOUND, text.clone());
    }
    let fresh = freshness(facts, seen);
    if let (Some(text), Err(_)) = (&seen.inconclusive, &fresh) {
        return say(reason::INCONCLUSIVE, text.clone());
    }
    if let Err((reason, text)) = fresh {
        return say(reason, text);
    }
    if let Some(text) = &seen.not_durable {
        return say(reason::FENCE_NOT_DURABLE, text.clone());
    }
    let open = |limit: &LimitName| !matches!(acceptance(facts.spec, *limit, facts.now), Acceptance::Valid(_));
    let open: Vec<_> = blocking_limits(seen).filter(open).map(|limit| limit.to_string()).collect();
    if !open.is_empty() {
        let text = format!("the proof cannot cover {}: name it in spec.riskAcceptance.covers, or remove the cause", open.join(", "));
        return say(reason::LIMIT_NOT_ACCEPTED, text);
    }
    match facts.lock {
        LockSide::NotFound => say(reason::LOCK_NOT_FOUND, orphaned(facts).unwrap_or_default()),
        // Its rows learn of an owner by its first write: nothing was activated, and the contract says so.
        LockSide::Found { .. } if facts.spec.is_conditional() => None,
        LockSide::Found { active: Some((epoch, holder)) } if seen.fence.as_ref() != Some(&(*epoch, holder.clone())) => say(
            reason::NOT_ACTIVATED,
            format!("the fence is not at epoch {epoch}, which the lock's owner has: the operator activates it again"),
        ),
        // An object that carries no fence is open to everybody, whoever owned the lock before.
        LockSide::Found { active: None } if facts.spec.type_ == BoundaryType::Kubernetes && seen.examined && seen.fence.is_none() => say(
            reason::NOT_ACTIVATED,
            "a target carries no fence, and the lock has no owner to stamp it for: anybody may write it until there is one".to_owned(),
        ),
        LockSide::Found { .. } => None,
    }
}

fn proven(facts: &Facts<'_>, seen: &Seen) -> Judgement {
    let proof = seen.proof.as_ref();
    let max_age = SignedDuration::try_from(max_age(facts.spec)).unwrap_or(SignedDuration::MAX);
    let proof_ends = proof.and_then(|p| p.at.checked_add(max_age).ok());
    let accepted = blocking_limits(seen).next().is_some();
    let acceptance_ends = facts.spec.risk_acceptance.as_ref().filter(|_| accepted).map(|a| a.expires.0);
    let (verdict, reason, message) = if accepted {
        let limits: Vec<_> = blocking_limits(seen).map(|l| l.to_string()).collect();
        let message = format!("every probe passed; accepted until {}: {}", acceptance_ends.unwrap_or(facts.now), limits.join(", "));
        (BoundaryVerdict::RiskAccepted, reason::RISK_ACCEPTED, message)
    } else {
        (
            BoundaryVerdict::Proven,
            reason::ALL_PROBES_PASSED,
            "an obsolete owner was seen to be refused, and the present one to be accepted".to_owned(),
        )
    };
    Judgement {
        contract: proof.map(|p| p.contract),
        proven_at: proof.map(|p| p.at),
        until: [proof_ends, acceptance_ends].into_iter().flatten().min(),
        ..Judgement::new(verdict, reason, message)
    }
}

fn max_age(spec: &WriteBoundarySpec) -> Duration {
    ProofSchedule::max_age_of(spec.proof.as_ref())
}

fn freshness(facts: &Facts<'_>, seen: &Seen) -> Result<(), (&'static str, String)> {
    let Some(proof) = &seen.proof else {
        return Err((reason::PROOF_PENDING, "no obsolete owner was seen to be refused here yet: the first proof is pending".into()));
    };
    if let Some(why) = &proof.void {
        return Err((reason::PROOF_VOID, why.clone()));
    }
    let age = facts.now.duration_since(proof.at);
    let max_age = max_age(facts.spec);
    if age > SignedDuration::try_from(max_age).unwrap_or(SignedDuration::MAX) {
        let text = format!("the last complete proof was made at {}, longer ago than spec.proof.maxAge ({max_age:?})", proof.at);
        return Err((reason::PROOF_EXPIRED, text));
    }
    Ok(())
}

/// `WholeObjectWritersRefused` only informs.
fn blocking_limits(seen: &Seen) -> impl Iterator<Item = LimitName> + '_ {
    seen.limits.iter().copied().filter(|limit| *limit != LimitName::WholeObjectWritersRefused)
}

/// ` (and 2 more)`, or nothing.
pub(crate) fn more(count: usize) -> String {
    if count == 0 { String::new() } else { format!(" (and {count} more)") }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::{Value, json};

    pub(crate) const NOW: i64 = 1_800_000_000;

    fn now() -> Timestamp {
        Timestamp::from_second(NOW).unwrap()
    }

    pub(crate) fn spec(value: &Value) -> WriteBoundarySpec {
        serde_json::from_value(value.clone()).unwrap()
    }

    fn external_spec(expires: Option<i64>) -> WriteBoundarySpec {
        let mut value = json!({"lockRef": {"name": "a"}, "type": "External", "external": {"receiver": "mail.example"}});
        if let Some(expires) = expires {
            value["riskAcceptance"] = json!({"covers": ["CannotEnforce"], "acceptedBy": "mail-oncall", "reason": "no fencing",
                "expires": Timestamp::from_second(expires).unwrap().to_string()});
        }
        spec(&value)
    }

    fn kubernetes(mode: &str, covers: &[&str]) -> WriteBoundarySpec {
        let mut value = json!({"lockRef": {"name": "a"}, "type": "Kubernetes", "mode": mode,
            "kubernetes": {"claim": "PodIdentity", "targets": [{"resource": "configmaps", "names": ["x"]}]}});
        if !covers.is_empty() {
            value["riskAcceptance"] = json!({"covers": covers, "acceptedBy": "x", "reason": "y",
                "expires": Timestamp::from_second(NOW + 60).unwrap().to_string()});
        }
        spec(&value)
    }

    fn good() -> Seen {
        let proof = ProofSeen { at: Timestamp::from_second(NOW - 10).unwrap(), contract: Contract::AfterActivation, void: None };
        Seen { proof: Some(proof), fence: Some((Epoch::FIRST, "a".into())), ..Seen::default() }
    }

    /// After a revocation the fence has to be nobody's: one that went back to the owner's admits him again.
    #[test]
    fn a_fence_that_is_not_nobodys_after_a_revocation_is_not_proven() {
        let lock = LockSide::Found { active: Some((Epoch::new(2).unwrap(), String::new())) };
        let at = |epoch: u64, holder: &str| {
            let seen = Seen { fence: Some((Epoch::new(epoch).unwrap(), holder.into())), ..good() };
            with(&kubernetes("Enforce", &[]), &Evidence::Seen(Box::new(seen)), &lock)
        };
        assert_eq!(at(2, ""), (BoundaryVerdict::Proven, reason::ALL_PROBES_PASSED));
        for (epoch, holder) in [(1, "a"), (2, "a"), (1, "")] {
            assert_eq!(at(epoch, holder), (BoundaryVerdict::Unproven, reason::NOT_ACTIVATED), "{epoch} {holder}");
        }
    }

    #[test]
    fn an_acceptance_warns_before_it_ends_and_ends_by_itself() {
        let accepted = external_spec(Some(NOW)).risk_acceptance.unwrap();
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let day = SignedDuration::from_hours(24);
        assert_eq!(term(&accepted, at(NOW - 86_401), day), (Term::Lasts, Some(at(NOW - 86_400))));
        assert_eq!(term(&accepted, at(NOW - 86_400), day), (Term::EndsSoon, Some(at(NOW))));
        assert_eq!(term(&accepted, at(NOW - 1), day), (Term::EndsSoon, Some(at(NOW))));
        assert_eq!(term(&accepted, at(NOW), day), (Term::Ended, None));
        assert_eq!(term(&accepted, at(0), SignedDuration::MAX), (Term::EndsSoon, Some(at(NOW))));
    }

    fn with(spec: &WriteBoundarySpec, evidence: &Evidence, lock: &LockSide) -> (BoundaryVerdict, &'static str) {
        let judged = judge(&Facts { spec, field_errors: &[], target_shared: None, lock, evidence, now: now() });
        assert!(!judged.message.is_empty());
        (judged.verdict, judged.reason)
    }

    fn owned() -> LockSide {
        LockSide::Found { active: Some((Epoch::FIRST, "a".into())) }
    }

    /// H01, H06: a receiver that ignores what it is told is not found out by sending something to it: nothing is ever sent, and so nothing is claimed.
    #[test]
    fn an_external_receiver_is_never_proven() {
        assert!(!crate::boundary::is_built_in(&external_spec(None)), "there is nothing that could send a probe");
        for (expires, wanted) in [
            (None, (BoundaryVerdict::CannotEnforce, reason::CANNOT_ENFORCE)),
            (Some(NOW - 1), (BoundaryVerdict::CannotEnforce, reason::RISK_ACCEPTANCE_EXPIRED)),
            (Some(NOW), (BoundaryVerdict::CannotEnforce, reason::RISK_ACCEPTANCE_EXPIRED)),
            (Some(NOW + 1), (BoundaryVerdict::RiskAccepted, reason::RISK_ACCEPTED)),
        ] {
            for evidence in [Evidence::Unseen, Evidence::NotImplemented, Evidence::Seen(Box::new(good()))] {
                assert_eq!(with(&external_spec(expires), &evidence, &owned()), wanted, "{expires:?} {evidence:?}");
            }
        }
    }

    #[test]
    fn an_acceptance_says_when_the_verdict_changes_by_itself() {
        let spec = external_spec(Some(NOW + 60));
        let judged =
            judge(&Facts { spec: &spec, field_errors: &[], target_shared: None, lock: &owned(), evidence: &Evidence::Unseen, now: now() });
        assert_eq!(judged.until, Timestamp::from_second(NOW + 60).ok());
        assert!(judged.message.contains("mail-oncall") && judged.message.contains("mail.example"));
    }

    #[test]
    fn a_backend_that_does_not_exist_proves_nothing_and_says_so() {
        for mode in ["Observe", "Enforce"] {
            let judged = with(&kubernetes(mode, &[]), &Evidence::NotImplemented, &owned());
            assert_eq!(judged, (BoundaryVerdict::Unproven, reason::BACKEND_NOT_IMPLEMENTED));
        }
    }

    /// The table of api.md, row by row: each finding alone, on top of a boundary that would else be proven.
    #[test]
    fn each_row_of_the_table() {
        use BoundaryVerdict::{Proven, RiskAccepted, Unproven, Violated};
        type Row = (&'static str, fn(&mut Seen), BoundaryVerdict, &'static str);
        let rows: &[Row] = &[
            ("nothing wrong", |_| {}, Proven, reason::ALL_PROBES_PASSED),
            ("stale accepted", |s| s.stale_accepted = Some("x".into()), Violated, reason::PROBE_FAILED),
            ("guard altered", |s| s.guard_altered = Some("x".into()), Violated, reason::GUARD_ALTERED),
            ("writer bypass", |s| s.writer_bypass = Some("x".into()), Violated, reason::BYPASS_FOUND),
            ("owner refused", |s| s.owner_refused = Some("x".into()), Unproven, reason::PROBE_FAILED),
            ("inconclusive, but a fresh proof stands", |s| s.inconclusive = Some("x".into()), Proven, reason::ALL_PROBES_PASSED),
            (
                "inconclusive without a proof",
                |s| {
                    s.inconclusive = Some("x".into());
                    s.proof = None;
                },
                Unproven,
                reason::INCONCLUSIVE,
            ),
            ("no proof", |s| s.proof = None, Unproven, reason::PROOF_PENDING),
            ("void", |s| s.proof.as_mut().unwrap().void = Some("x".into()), Unproven, reason::PROOF_VOID),
            ("expired", |s| s.proof.as_mut().unwrap().at = Timestamp::from_second(NOW - 901).unwrap(), Unproven, reason::PROOF_EXPIRED),
            (
                "just fresh",
                |s| s.proof.as_mut().unwrap().at = Timestamp::from_second(NOW - 900).unwrap(),
                Proven,
                reason::ALL_PROBES_PASSED,
            ),
            ("not durable", |s| s.not_durable = Some("x".into()), Unproven, reason::FENCE_NOT_DURABLE),
            ("bypass", |s| s.bypass = Some("x".into()), Unproven, reason::BYPASS_FOUND),
            ("limit", |s| s.limits = vec![LimitName::CreateNotFenced], Unproven, reason::LIMIT_NOT_ACCEPTED),
            ("a limit that informs", |s| s.limits = vec![LimitName::WholeObjectWritersRefused], Proven, reason::ALL_PROBES_PASSED),
            ("an accepted limit", |s| s.limits = vec![LimitName::ScaleNotFenced], RiskAccepted, reason::RISK_ACCEPTED),
            ("fence behind", |s| s.fence = None, Unproven, reason::NOT_ACTIVATED),
            ("fence of another holder", |s| s.fence = Some((Epoch::FIRST, "b".into())), Unproven, reason::NOT_ACTIVATED),
        ];
        let spec = kubernetes("Enforce", &["ScaleNotFenced"]);
        for (name, change, verdict, reason) in rows {
            let mut seen = good();
            change(&mut seen);
            assert_eq!(with(&spec, &Evidence::Seen(Box::new(seen)), &owned()), (*verdict, *reason), "{name}");
        }
        assert_eq!(with(&kubernetes("Observe", &[]), &Evidence::Seen(Box::new(good())), &owned()), (Unproven, reason::OBSERVING));
        assert_eq!(with(&spec, &Evidence::Seen(Box::new(good())), &LockSide::NotFound), (Unproven, reason::LOCK_NOT_FOUND));
        assert_eq!(with(&spec, &Evidence::Unseen, &owned()), (Unproven, reason::PROOF_PENDING));
    }

    #[test]
    fn what_the_schema_refuses_is_invalid_whatever_else_is_true() {
        let spec = external_spec(Some(NOW + 60));
        let errors = [FieldError { path: "spec.type".into(), message: "is odd".into() }];
        let facts =
            Facts { spec: &spec, field_errors: &errors, target_shared: None, lock: &owned(), evidence: &Evidence::Unseen, now: now() };
        let judged = judge(&facts);
        assert_eq!(
            (judged.verdict, judged.reason, judged.message.as_str()),
            (BoundaryVerdict::Invalid, reason::FIELD_INVALID, "spec.type: is odd")
        );
        let judged = judge(&Facts { field_errors: &[], target_shared: Some("other/db"), ..facts });
        assert_eq!((judged.verdict, judged.reason), (BoundaryVerdict::Invalid, reason::TARGET_SHARED));
    }
}
