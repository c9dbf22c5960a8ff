//! The verdict of a lock (design: api.md, "The lock's verdict").
//!
//! Start with [`judge`]: the rows of the table, in order; the first that applies is the verdict, and within a row the first
//! reason listed wins. Total: every combination of facts has an answer, and the tests walk all of them.

use k8s_openapi::jiff::Timestamp;

use super::{
    boundary::{self, more},
    schema::FieldError,
};
use crate::api::{
    BoundaryType, BoundaryVerdict, Contract, LockClass, TokenKind, Verdict,
    conditions::{Truth, reason},
};

/// What became of a name in `writeBoundaries`, or of a boundary that refers to the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// There is no WriteBoundary of that name.
    Missing,
    /// There is one, and it belongs to another lock.
    OtherLock(String),
    /// WriteBoundaries could not be read: why.
    Unreadable(String),
    /// There is an object of that name that is no WriteBoundary by this version's rules: why.
    Malformed(String),
    /// It is there and refers back.
    Present(Present),
}

/// A boundary that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// Its type.
    pub type_: BoundaryType,
    /// What is said about it.
    pub judgement: boundary::Judgement,
    /// Whether a grant must be activated at it.
    pub needs_activation: bool,
    /// Whether it tells owners apart by their pods.
    pub by_pod: bool,
}

/// A boundary that counts for the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Required {
    /// Its name.
    pub name: String,
    /// Whether `spec.writeBoundaries` lists it. One that is not listed counts like a listed one, and is a finding.
    pub listed: bool,
    /// What became of it.
    pub found: Found,
}

/// Whether the holder is one process life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerUnique {
    /// `True`, `False` (two living processes pass as one owner), or `Unknown`.
    pub status: Truth,
    /// One of [`reason`].
    pub reason: &'static str,
    /// What is known.
    pub message: String,
}

/// Everything that a lock's verdict depends on.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// `spec.class`.
    pub class: LockClass,
    /// The token of an external coordinator; `None` for a Lease, whose epochs are ordered.
    pub external_token: Option<TokenKind>,
    /// `spec.contract`.
    pub contract: Contract,
    /// What the schema refuses in the declaration.
    pub field_errors: &'a [FieldError],
    /// The older lock on the same Lease.
    pub lease_shared_with: Option<&'a str>,
    /// The boundaries that count.
    pub boundaries: &'a [Required],
    /// Whether the holder is one process life.
    pub owner: &'a OwnerUnique,
    /// Why `EpochMonotonic=False`, if it is.
    pub went_back: Option<(&'static str, &'a str)>,
}

/// What is said about a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// The verdict.
    pub verdict: Verdict,
    /// One of [`reason`].
    pub reason: &'static str,
    /// What is wrong, where, and the next step.
    pub message: String,
    /// Whether the verdict meets the class.
    pub compliant: Truth,
    /// How many of the boundaries that count are proven or accepted, of how many.
    pub summary: (usize, usize),
    /// When the oldest of the proofs that the verdict rests on was made.
    pub proven_at: Option<Timestamp>,
    /// When the verdict changes by itself.
    pub until: Option<Timestamp>,
}

type Row = (Verdict, &'static str, String);

/// Judges a lock.
pub fn judge(facts: &Facts<'_>) -> Judgement {
    let (verdict, reason, message) = invalid(facts)
        .or_else(|| not_required(facts))
        .or_else(|| violated(facts))
        .or_else(|| unenforced(facts))
        .or_else(|| unproven(facts))
        .unwrap_or_else(|| accepted_or_enforced(facts));
    let present = || facts.boundaries.iter().filter_map(present);
    let good = present().filter(|b| is_good(b)).count();
    let proofs = || present().filter(|b| is_good(b)).filter_map(|b| b.judgement.proven_at);
    Judgement {
        verdict,
        reason,
        message,
        compliant: match verdict {
            Verdict::NotRequired | Verdict::RiskAccepted | Verdict::Enforced => Truth::True,
            Verdict::Unproven if reason == reason::PROOF_PENDING => Truth::Unknown,
            _ => Truth::False,
        },
        summary: (good, facts.boundaries.len()),
        proven_at: proofs().min(),
        until: present().filter_map(|b| b.judgement.until).min(),
    }
}

fn present(required: &Required) -> Option<&Present> {
    match &required.found {
        Found::Present(present) => Some(present),
        _ => None,
    }
}

fn is_good(boundary: &Present) -> bool {
    matches!(boundary.judgement.verdict, BoundaryVerdict::Proven | BoundaryVerdict::RiskAccepted)
}

/// The boundaries with a verdict, in the order of their names' appearance.
fn having<'a>(facts: &'a Facts<'_>, verdict: BoundaryVerdict) -> Vec<(&'a str, &'a Present)> {
    let boundaries = facts.boundaries.iter();
    boundaries.filter_map(|r| present(r).filter(|p| p.judgement.verdict == verdict).map(|p| (r.name.as_str(), p))).collect()
}

/// `write boundary "a": …`, for the first of several, with the number of others.
fn about(boundaries: &[(&str, &Present)]) -> String {
    boundaries
        .first()
        .map_or_else(String::new, |(name, b)| format!("write boundary {name:?}: {}{}", b.judgement.message, more(boundaries.len() - 1)))
}

fn invalid(facts: &Facts<'_>) -> Option<Row> {
    let row = |reason, message| Some((Verdict::Invalid, reason, message));
    if let Some(error) = facts.field_errors.first() {
        return row(reason::FIELD_INVALID, format!("{error}{}", more(facts.field_errors.len() - 1)));
    }
    if facts.external_token.is_some() {
        let needs = facts.boundaries.iter().find(|r| present(r).is_some_and(|p| p.needs_activation));
        if let Some(boundary) = needs {
            let message = format!(
                "an external coordinator gets no epochs from the operator, so write boundary {:?} can never be activated: move the lock to a Lease \
                 (spec.coordinator.lease)",
                boundary.name
            );
            return row(reason::COORDINATOR_GETS_NO_GRANTS, message);
        }
    }
    if let Some(older) = facts.lease_shared_with {
        let message = format!(
            "FencedLock {older:?} is declared on the same Lease and came first (by creation, then by name), so this one gets no epochs: give each lock a Lease of its own, or delete one"
        );
        return row(reason::LEASE_SHARED, message);
    }
    let malformed = facts.boundaries.iter().find_map(|r| match &r.found {
        Found::Malformed(why) => Some(format!("write boundary {:?}: {why}", r.name)),
        _ => None,
    });
    if let Some(message) = malformed {
        return row(reason::BOUNDARY_INVALID, message);
    }
    let invalid = having(facts, BoundaryVerdict::Invalid);
    (!invalid.is_empty()).then(|| (Verdict::Invalid, reason::BOUNDARY_INVALID, about(&invalid)))
}

fn not_required(facts: &Facts<'_>) -> Option<Row> {
    let message = "efficiency-only: two holders waste work and nothing else, so nothing has to refuse an obsolete owner";
    (facts.class == LockClass::EfficiencyOnly).then(|| (Verdict::NotRequired, reason::NOT_REQUIRED, message.to_owned()))
}

fn violated(facts: &Facts<'_>) -> Option<Row> {
    let violated = having(facts, BoundaryVerdict::Violated);
    if !violated.is_empty() {
        return Some((Verdict::Violated, reason::BOUNDARY_VIOLATED, about(&violated)));
    }
    (facts.owner.status == Truth::False).then(|| (Verdict::Violated, reason::IDENTITY_REUSED, facts.owner.message.clone()))
}

fn unenforced(facts: &Facts<'_>) -> Option<Row> {
    let row = |reason, message| Some((Verdict::Unenforced, reason, message));
    if !facts.boundaries.iter().any(|r| r.listed) {
        let unlisted =
            facts.boundaries.first().map(|r| format!(" (WriteBoundary {:?} refers to this lock: list it)", r.name)).unwrap_or_default();
        let message = "two holders corrupt data, and nothing that receives the writes is registered to refuse an obsolete one: create a WriteBoundary \
                       for each place that the writes land, and list it in spec.writeBoundaries";
        return row(reason::NO_BOUNDARY_REGISTERED, format!("{message}{unlisted}"));
    }
    if let Some(message) = missing(facts.boundaries) {
        return row(reason::BOUNDARY_MISSING, message);
    }
    let cannot = having(facts, BoundaryVerdict::CannotEnforce);
    let (expired, never): (Vec<_>, Vec<_>) = cannot.into_iter().partition(|(_, b)| b.judgement.reason == reason::RISK_ACCEPTANCE_EXPIRED);
    if !never.is_empty() {
        return row(reason::CANNOT_ENFORCE, about(&never));
    }
    if let Some(message) = unordered(facts.external_token) {
        return row(reason::TOKEN_NOT_ORDERED, message);
    }
    let weak = facts.boundaries.iter().find_map(|r| {
        let contract = present(r).filter(|p| is_good(p))?.judgement.contract?;
        (!contract.satisfies(facts.contract)).then_some((r.name.as_str(), contract))
    });
    if let Some((name, contract)) = weak {
        let message = format!(
            "write boundary {name:?} was proven to give {contract:?} and the lock needs {:?}: use a guard that can be activated, or lower spec.contract \
             if an old owner's write before the new owner's first one does no harm",
            facts.contract
        );
        return row(reason::CONTRACT_TOO_WEAK, message);
    }
    (!expired.is_empty()).then(|| (Verdict::Unenforced, reason::RISK_ACCEPTANCE_EXPIRED, about(&expired)))
}

/// Why an external coordinator's token cannot fence, if it cannot.
pub(super) fn unordered(token: Option<TokenKind>) -> Option<String> {
    let token = token.filter(|token| *token != TokenKind::Ordered)?;
    Some(format!(
        "the coordinator's token ({token:?}) has no order, so no boundary can tell an obsolete owner by it: use a Lease (spec.coordinator.lease), whose \
         epochs are ordered"
    ))
}

/// What is wrong with the first listed boundary that is not there or refers to another lock.
pub(super) fn missing(boundaries: &[Required]) -> Option<String> {
    let wrong: Vec<_> = boundaries.iter().filter(|r| matches!(r.found, Found::Missing | Found::OtherLock(_))).collect();
    let first = wrong.first()?;
    let others = more(wrong.len() - 1);
    Some(match &first.found {
        Found::OtherLock(lock) => {
            format!(
                "write boundary {:?} belongs to lock {lock:?}, not to this one: create another with spec.lockRef.name set to this lock{others}",
                first.name
            )
        }
        _ => {
            format!(
                "there is no WriteBoundary {:?} in this namespace: create it, or remove it from spec.writeBoundaries{others}",
                first.name
            )
        }
    })
}

/// The order in which reasons of unproven boundaries win.
const UNPROVEN_ORDER: &[&str] = &[
    reason::BACKEND_NOT_IMPLEMENTED,
    reason::PROOF_PENDING,
    reason::OBSERVING,
    reason::PROOF_EXPIRED,
    reason::PROOF_VOID,
    reason::PROBE_FAILED,
    reason::INCONCLUSIVE,
    reason::NOT_ACTIVATED,
    reason::BYPASS_FOUND,
    reason::FENCE_NOT_DURABLE,
    reason::LIMIT_NOT_ACCEPTED,
];

fn unproven(facts: &Facts<'_>) -> Option<Row> {
    let unreadable = facts.boundaries.iter().find_map(|r| match &r.found {
        Found::Unreadable(why) => Some(why),
        _ => None,
    });
    if let Some(why) = unreadable {
        return Some((Verdict::Unproven, reason::FORBIDDEN, format!("the write boundaries could not be read: {why}")));
    }
    let rank = |reason: &str| UNPROVEN_ORDER.iter().position(|r| *r == reason).unwrap_or(UNPROVEN_ORDER.len());
    let mut unproven = having(facts, BoundaryVerdict::Unproven);
    unproven.sort_by_key(|(_, b)| rank(b.judgement.reason));
    if let Some((_, first)) = unproven.first() {
        // "Pending" is said only when nothing worse is known: else a lock that fails elsewhere would wait for ever.
        let worse = unproven.iter().find(|(_, b)| b.judgement.reason != reason::PROOF_PENDING);
        let reason = worse.map_or(first.judgement.reason, |(_, b)| b.judgement.reason);
        unproven.sort_by_key(|(_, b)| b.judgement.reason != reason);
        return Some((Verdict::Unproven, reason, about(&unproven)));
    }
    if let Some((reason, message)) = facts.went_back {
        return Some((Verdict::Unproven, reason, message.to_owned()));
    }
    let by_pod = facts.boundaries.iter().any(|r| present(r).is_some_and(|p| p.by_pod));
    (by_pod && facts.owner.status == Truth::Unknown).then(|| {
        let message = format!(
            "a boundary tells owners apart by their pods, and it is not known which process holds the lock: {}",
            facts.owner.message
        );
        (Verdict::Unproven, facts.owner.reason, message)
    })
}

fn accepted_or_enforced(facts: &Facts<'_>) -> Row {
    let accepted = having(facts, BoundaryVerdict::RiskAccepted);
    if accepted.is_empty() {
        let message = "every write boundary of this lock was seen to refuse an obsolete owner".to_owned();
        return (Verdict::Enforced, reason::ALL_BOUNDARIES_PROVEN, message);
    }
    // Which part is which: one that is proven does not make another one enforced.
    let names = |boundaries: &[(&str, &Present)]| boundaries.iter().map(|(name, _)| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    let listed = |what: &str, boundaries: &[(&str, &Present)]| match boundaries {
        [] => String::new(),
        some => format!("; {what}: {}", names(some)),
    };
    let (others, proven) = (listed("accepted as well", &accepted[1..]), listed("proven", &having(facts, BoundaryVerdict::Proven)));
    (Verdict::RiskAccepted, reason::RISK_ACCEPTED, format!("{}{others}{proven}", about(&accepted[..1])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn owner(status: Truth) -> OwnerUnique {
        OwnerUnique { status, reason: reason::NOT_A_POD, message: "the holder".into() }
    }

    fn boundary(verdict: BoundaryVerdict, why: &'static str) -> Required {
        let proven = matches!(verdict, BoundaryVerdict::Proven | BoundaryVerdict::RiskAccepted);
        let judgement = boundary::Judgement {
            verdict,
            reason: why,
            message: "boundary".into(),
            contract: proven.then_some(Contract::AfterActivation),
            proven_at: proven.then(|| Timestamp::from_second(100).unwrap()),
            until: None,
        };
        let present = Present { type_: BoundaryType::Kubernetes, judgement, needs_activation: true, by_pod: false };
        Required { name: "b".into(), listed: true, found: Found::Present(present) }
    }

    fn proven() -> Required {
        boundary(BoundaryVerdict::Proven, reason::ALL_PROBES_PASSED)
    }

    fn change(mut required: Required, change: impl FnOnce(&mut Present)) -> Required {
        if let Found::Present(present) = &mut required.found {
            change(present);
        }
        required
    }

    struct Given {
        class: LockClass,
        token: Option<TokenKind>,
        contract: Contract,
        errors: Vec<FieldError>,
        shared: Option<&'static str>,
        boundaries: Vec<Required>,
        owner: OwnerUnique,
        went_back: Option<(&'static str, &'static str)>,
    }

    /// A critical lock whose only boundary is proven: each row below changes one thing.
    fn enforced() -> Given {
        Given {
            class: LockClass::CorrectnessCritical,
            token: None,
            contract: Contract::AfterActivation,
            errors: vec![],
            shared: None,
            boundaries: vec![proven()],
            owner: owner(Truth::True),
            went_back: None,
        }
    }

    fn judged(given: &Given) -> Judgement {
        judge(&Facts {
            class: given.class,
            external_token: given.token,
            contract: given.contract,
            field_errors: &given.errors,
            lease_shared_with: given.shared,
            boundaries: &given.boundaries,
            owner: &given.owner,
            went_back: given.went_back,
        })
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "one line per row of the table")]
    fn each_row_of_the_table() {
        use BoundaryVerdict as B;
        use Verdict::{Enforced, Invalid, NotRequired, RiskAccepted, Unenforced, Unproven, Violated};
        type Case = (&'static str, fn(&mut Given), Verdict, &'static str);
        let rows: &[Case] = &[
            ("all proven", |_| {}, Enforced, reason::ALL_BOUNDARIES_PROVEN),
            (
                "a field is wrong",
                |g| g.errors.push(FieldError { path: "spec".into(), message: "odd".into() }),
                Invalid,
                reason::FIELD_INVALID,
            ),
            ("external with a guard", |g| g.token = Some(TokenKind::Ordered), Invalid, reason::COORDINATOR_GETS_NO_GRANTS),
            ("shared Lease", |g| g.shared = Some("older"), Invalid, reason::LEASE_SHARED),
            (
                "shared Lease, efficiency-only",
                |g| {
                    g.shared = Some("older");
                    g.class = LockClass::EfficiencyOnly;
                },
                Invalid,
                reason::LEASE_SHARED,
            ),
            ("boundary invalid", |g| g.boundaries.push(boundary(B::Invalid, reason::FIELD_INVALID)), Invalid, reason::BOUNDARY_INVALID),
            (
                "efficiency-only",
                |g| {
                    g.class = LockClass::EfficiencyOnly;
                    g.boundaries.clear();
                },
                NotRequired,
                reason::NOT_REQUIRED,
            ),
            (
                "efficiency-only with a violated boundary",
                |g| {
                    g.class = LockClass::EfficiencyOnly;
                    g.boundaries = vec![boundary(B::Violated, reason::PROBE_FAILED)];
                },
                NotRequired,
                reason::NOT_REQUIRED,
            ),
            ("violated", |g| g.boundaries.push(boundary(B::Violated, reason::PROBE_FAILED)), Violated, reason::BOUNDARY_VIOLATED),
            ("two processes pass as one", |g| g.owner = owner(Truth::False), Violated, reason::IDENTITY_REUSED),
            ("no boundary", |g| g.boundaries.clear(), Unenforced, reason::NO_BOUNDARY_REGISTERED),
            ("only one that is not listed", |g| g.boundaries[0].listed = false, Unenforced, reason::NO_BOUNDARY_REGISTERED),
            (
                "missing",
                |g| g.boundaries.push(Required { name: "m".into(), listed: true, found: Found::Missing }),
                Unenforced,
                reason::BOUNDARY_MISSING,
            ),
            ("another lock's", |g| g.boundaries[0].found = Found::OtherLock("x".into()), Unenforced, reason::BOUNDARY_MISSING),
            (
                "cannot enforce",
                |g| g.boundaries.push(boundary(B::CannotEnforce, reason::CANNOT_ENFORCE)),
                Unenforced,
                reason::CANNOT_ENFORCE,
            ),
            (
                "acceptance expired",
                |g| g.boundaries.push(boundary(B::CannotEnforce, reason::RISK_ACCEPTANCE_EXPIRED)),
                Unenforced,
                reason::RISK_ACCEPTANCE_EXPIRED,
            ),
            (
                "one expired, one never accepted",
                |g| {
                    g.boundaries = vec![
                        boundary(B::CannotEnforce, reason::RISK_ACCEPTANCE_EXPIRED),
                        boundary(B::CannotEnforce, reason::CANNOT_ENFORCE),
                    ];
                },
                Unenforced,
                reason::CANNOT_ENFORCE,
            ),
            (
                "a random id as token",
                |g| {
                    g.token = Some(TokenKind::RandomOwnerId);
                    g.boundaries = vec![change(proven(), |p| p.needs_activation = false)];
                },
                Unenforced,
                reason::TOKEN_NOT_ORDERED,
            ),
            (
                "an ordered token outside",
                |g| {
                    g.token = Some(TokenKind::Ordered);
                    g.boundaries = vec![change(proven(), |p| p.needs_activation = false)];
                },
                Enforced,
                reason::ALL_BOUNDARIES_PROVEN,
            ),
            (
                "contract too weak",
                |g| g.boundaries = vec![change(proven(), |p| p.judgement.contract = Some(Contract::AfterAcceptance))],
                Unenforced,
                reason::CONTRACT_TOO_WEAK,
            ),
            (
                "weak, and asked for no more",
                |g| {
                    g.contract = Contract::AfterAcceptance;
                    g.boundaries = vec![change(proven(), |p| p.judgement.contract = Some(Contract::AfterAcceptance))];
                },
                Enforced,
                reason::ALL_BOUNDARIES_PROVEN,
            ),
            ("boundary malformed", |g| g.boundaries[0].found = Found::Malformed("odd".into()), Invalid, reason::BOUNDARY_INVALID),
            ("boundaries may not be read", |g| g.boundaries[0].found = Found::Unreadable("no right".into()), Unproven, reason::FORBIDDEN),
            ("proof pending", |g| g.boundaries.push(boundary(B::Unproven, reason::PROOF_PENDING)), Unproven, reason::PROOF_PENDING),
            (
                "one that is not listed counts",
                |g| {
                    let mut b = boundary(B::Unproven, reason::OBSERVING);
                    b.listed = false;
                    g.boundaries.push(b);
                },
                Unproven,
                reason::OBSERVING,
            ),
            (
                "pending hides nothing worse",
                |g| g.boundaries = vec![boundary(B::Unproven, reason::PROOF_PENDING), boundary(B::Unproven, reason::PROOF_EXPIRED)],
                Unproven,
                reason::PROOF_EXPIRED,
            ),
            ("rolled back", |g| g.went_back = Some((reason::STATE_ROLLED_BACK, "x")), Unproven, reason::STATE_ROLLED_BACK),
            (
                "nobody knows the process",
                |g| {
                    g.owner = owner(Truth::Unknown);
                    g.boundaries = vec![change(proven(), |p| p.by_pod = true)];
                },
                Unproven,
                reason::NOT_A_POD,
            ),
            ("nobody needs to know the process", |g| g.owner = owner(Truth::Unknown), Enforced, reason::ALL_BOUNDARIES_PROVEN),
            ("accepted", |g| g.boundaries.push(boundary(B::RiskAccepted, reason::RISK_ACCEPTED)), RiskAccepted, reason::RISK_ACCEPTED),
        ];
        for (name, change, verdict, reason) in rows {
            let mut given = enforced();
            change(&mut given);
            let judged = judged(&given);
            assert_eq!((judged.verdict, judged.reason), (*verdict, *reason), "{name}: {}", judged.message);
            let compliant = match verdict {
                NotRequired | RiskAccepted | Enforced => Truth::True,
                Unproven if *reason == reason::PROOF_PENDING => Truth::Unknown,
                _ => Truth::False,
            };
            assert_eq!(judged.compliant, compliant, "{name}");
        }
    }

    #[test]
    fn the_message_says_which_part_is_which() {
        let mut given = enforced();
        given.boundaries[0].name = "ledger-db".into();
        for name in ["mail", "fax"] {
            let accepted = boundary(BoundaryVerdict::RiskAccepted, reason::RISK_ACCEPTED);
            given.boundaries.push(Required { name: name.into(), ..accepted });
        }
        let judged = judged(&given);
        assert_eq!(judged.message, "write boundary \"mail\": boundary; accepted as well: \"fax\"; proven: \"ledger-db\"");
        assert_eq!(judged.summary, (3, 3));
    }

    fn any_verdict() -> impl Strategy<Value = BoundaryVerdict> {
        use BoundaryVerdict::{CannotEnforce, Invalid, Proven, RiskAccepted, Unproven, Violated};
        prop::sample::select(vec![Invalid, CannotEnforce, Violated, Unproven, RiskAccepted, Proven])
    }

    fn any_boundary() -> impl Strategy<Value = Required> {
        let found = prop_oneof![
            1 => Just(None), 1 => Just(Some(Found::Missing)), 1 => Just(Some(Found::OtherLock("x".into()))), 1 => Just(Some(Found::Unreadable("x".into()))), 1 => Just(Some(Found::Malformed("x".into())))
        ];
        (any_verdict(), found, any::<[bool; 4]>(), 0..UNPROVEN_ORDER.len()).prop_map(|(verdict, found, [listed, needs, pod, weak], why)| {
            let mut required = boundary(verdict, UNPROVEN_ORDER[why]);
            required.listed = listed;
            required = change(required, |p| {
                p.needs_activation = needs;
                p.by_pod = pod;
                if weak && p.judgement.contract.is_some() {
                    p.judgement.contract = Some(Contract::AfterAcceptance);
                }
            });
            Required { found: found.unwrap_or_else(|| required.found.clone()), ..required }
        })
    }

    proptest! {
        /// Invariant 6 and totality: whatever is known, there is an answer, and `Enforced` means that a listed boundary is
        /// there and every one that counts is proven, at the needed contract, with nothing known against it.
        #[test]
        fn enforced_is_said_only_when_everything_is_proven(
            critical in any::<bool>(), token in prop::option::of(prop::sample::select(vec![TokenKind::Ordered, TokenKind::RandomOwnerId, TokenKind::ClientTimestamp, TokenKind::None])),
            needs_activation in any::<bool>(), shared in any::<bool>(), wrong in any::<bool>(), back in any::<bool>(), owner_is in 0..3usize,
            boundaries in prop::collection::vec(any_boundary(), 0..4),
        ) {
            let given = Given {
                class: if critical { LockClass::CorrectnessCritical } else { LockClass::EfficiencyOnly },
                token,
                contract: if needs_activation { Contract::AfterActivation } else { Contract::AfterAcceptance },
                errors: if wrong { vec![FieldError { path: "spec".into(), message: "odd".into() }] } else { vec![] },
                shared: shared.then_some("older"),
                boundaries,
                owner: owner([Truth::True, Truth::False, Truth::Unknown][owner_is]),
                went_back: back.then_some((reason::STATE_ROLLED_BACK, "x")),
            };
            let judged = judged(&given);
            prop_assert!(!judged.message.is_empty() && !judged.reason.is_empty());
            let all = |wanted: &[BoundaryVerdict]| given.boundaries.iter().all(|r| present(r).is_some_and(|p| wanted.contains(&p.judgement.verdict)));
            if matches!(judged.verdict, Verdict::Enforced | Verdict::RiskAccepted) {
                prop_assert!(critical && !wrong && !shared && !back && owner_is != 1);
                prop_assert!(given.boundaries.iter().any(|r| r.listed));
                prop_assert!(all(&[BoundaryVerdict::Proven, BoundaryVerdict::RiskAccepted]));
                prop_assert!(matches!(token, None | Some(TokenKind::Ordered)));
                prop_assert!(given.boundaries.iter().filter_map(present).all(|p| p.judgement.contract.is_none_or(|c| c.satisfies(given.contract))));
            }
            if judged.verdict == Verdict::Enforced {
                prop_assert!(all(&[BoundaryVerdict::Proven]));
            }
            if judged.verdict == Verdict::NotRequired {
                prop_assert!(!critical);
            }
        }
    }
}
