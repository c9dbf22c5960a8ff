//! Terms: one uninterrupted ownership by one holder, told apart by what stands in the Lease (protocol section 1).
//!
//! Start with [`step`]. No arithmetic about expiry may come in here: Lease times are compared for equality, never
//! against a clock.

use k8s_openapi::{api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::MicroTime, jiff::Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Holder, HolderError};

/// After this many consecutive terms that only `leaseTransitions` and `acquireTime` told apart, the client is taken for
/// one that rewrites both at each renewal, and they stop starting terms for this holder (protocol section 1).
pub const MAX_SAME_HOLDER_STEPS: u8 = 3;

/// The term of ownership that a grant was minted for, as the Lease showed it.
///
/// A client may use the grant only when `leaseUid`, `acquireTime` and `leaseTransitions` equal what it wrote into the Lease
/// itself, and `podUid`, where present, its own pod's: a successor under the same name finds the first three unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Term {
    /// The uid of the Lease: a recreated Lease is another one.
    #[schemars(length(min = 1, max = 64))]
    pub lease_uid: String,
    /// `spec.leaseTransitions` of the Lease when the term was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_transitions: Option<i32>,
    /// `spec.acquireTime` of the Lease when the term was seen, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "micro_time")]
    #[schemars(with = "Option<MicroTime>")]
    pub acquire_time: Option<Timestamp>,
    /// The uid of the holder's pod, when exactly one pod fits the identity. Absent is never compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub pod_uid: Option<String>,
    /// The Lease's resourceVersion at which the term was seen.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub resource_version: String,
}

impl Term {
    /// Whether this is the term that a Lease shows and that its holder wrote there itself. Unlike [`step`], this compares every field.
    pub(crate) fn is_written(&self, holder: &str, lease: &LeaseView) -> bool {
        self.lease_uid == lease.uid
            && matches!(&lease.holder, Ok(Some(now)) if now.as_str() == holder)
            && self.lease_transitions == lease.transitions
            && self.acquire_time == lease.acquire_time
    }
}

/// Whether two pods are known to be two. One that is not known is never compared.
pub(super) fn are_two_pods(a: Option<&str>, b: Option<&str>) -> bool {
    matches!((a, b), (Some(a), Some(b)) if a != b)
}

/// A Lease as the protocol sees it. Everything but these fields is data to show.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseView {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// Who holds it: `Ok(None)` is nobody (absent or `""`); an error is a holder that cannot be carried.
    pub holder: Result<Option<Holder>, HolderError>,
    /// `spec.leaseTransitions`.
    pub transitions: Option<i32>,
    /// `spec.acquireTime`.
    pub acquire_time: Option<Timestamp>,
    /// `spec.renewTime`; shown to people, never compared.
    pub renew_time: Option<Timestamp>,
    /// `spec.leaseDurationSeconds`; shown to people, never compared.
    pub duration_seconds: Option<i32>,
}

impl From<Lease> for LeaseView {
    fn from(lease: Lease) -> Self {
        let spec = lease.spec.unwrap_or_default();
        Self {
            uid: lease.metadata.uid.unwrap_or_default(),
            resource_version: lease.metadata.resource_version.unwrap_or_default(),
            holder: match spec.holder_identity {
                None => Ok(None),
                Some(text) if text.is_empty() => Ok(None),
                Some(text) => Holder::new(text).map(Some),
            },
            transitions: spec.lease_transitions,
            acquire_time: spec.acquire_time.map(|t| t.0),
            renew_time: spec.renew_time.map(|t| t.0),
            duration_seconds: spec.lease_duration_seconds,
        }
    }
}

impl LeaseView {
    /// The term that this Lease shows, for a holder whose pod has the given uid.
    pub fn term(&self, pod_uid: Option<&str>) -> Term {
        Term {
            lease_uid: self.uid.clone(),
            lease_transitions: self.transitions,
            acquire_time: self.acquire_time,
            pod_uid: pod_uid.map(str::to_owned),
            resource_version: self.resource_version.clone(),
        }
    }

    /// Whether a reconcile could come to another answer for `self` than for `earlier`, the last view of this Lease that
    /// was reconciled. A renewal — also one by a client that rewrites `acquireTime` or counts `leaseTransitions` each
    /// time (cases B03, B12) — makes no difference and must cause no reconcile.
    pub fn differs_from(&self, earlier: &Self) -> bool {
        if self.uid != earlier.uid || self.holder != earlier.holder {
            return true;
        }
        match &self.holder {
            Ok(Some(_)) => reacquired(earlier.transitions, earlier.acquire_time, self),
            _ => false,
        }
    }
}

/// What the last record says of the present owner.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Who held the lock.
    pub holder: &'a Holder,
    /// The term that it held it in.
    pub term: &'a Term,
    /// How many terms in a row only rule 4 told apart.
    pub same_holder_steps: u8,
}

impl Record<'_> {
    /// Whether the Lease is the one of this record, by its uid, and names its holder.
    pub(super) fn is_of(&self, lease: &LeaseView) -> bool {
        self.term.lease_uid == lease.uid && matches!(&lease.holder, Ok(Some(holder)) if holder == self.holder)
    }

    /// The view that later ones have to be compared with once `reconciled` was reconciled and left this record: see
    /// [`super::grant::Grant::baseline`].
    pub(super) fn baseline(&self, reconciled: &LeaseView) -> LeaseView {
        if !self.is_of(reconciled) {
            return reconciled.clone();
        }
        let rule_4_is_off = self.same_holder_steps >= MAX_SAME_HOLDER_STEPS;
        LeaseView {
            // Nothing grows above the largest counter, so such a client's renewals wake nobody either.
            transitions: if rule_4_is_off { Some(i32::MAX) } else { self.term.lease_transitions },
            acquire_time: self.term.acquire_time,
            ..reconciled.clone()
        }
    }
}

/// The rule of protocol section 1 by which a new term began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TermRule {
    /// Nobody held the lock in the last record: the first acquisition, or one after a release (rule 3).
    Acquired,
    /// The Lease was deleted and recreated (rule 1, case B05).
    LeaseRecreated,
    /// Another identity holds it (rule 2).
    HolderChanged,
    /// The same identity, but somebody held it in between (rule 4, case G05).
    Reacquired,
    /// The same identity, but another pod is behind it (rule 5, case B02).
    PodReplaced,
    /// The record or a fence is from a future that was undone: the cluster or a store was restored.
    RolledBack,
}

/// How the present view of a Lease relates to the last record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The same ownership goes on.
    Continues,
    /// A new term began.
    Begins(TermRule),
}

/// Compares the present holder and Lease with the last record (protocol section 1). `record` is `None` when nobody held
/// the lock. Byte-exact: no prefix rules, no case folding (case B17).
pub fn step(record: Option<Record<'_>>, holder: &Holder, lease: &LeaseView, pod_uid: Option<&str>) -> Step {
    let Some(Record { holder: last_holder, term, same_holder_steps }) = record else {
        return Step::Begins(TermRule::Acquired);
    };
    if term.lease_uid != lease.uid {
        return Step::Begins(TermRule::LeaseRecreated);
    }
    if last_holder != holder {
        return Step::Begins(TermRule::HolderChanged);
    }
    if are_two_pods(term.pod_uid.as_deref(), pod_uid) {
        return Step::Begins(TermRule::PodReplaced);
    }
    if same_holder_steps < MAX_SAME_HOLDER_STEPS && reacquired(term.lease_transitions, term.acquire_time, lease) {
        return Step::Begins(TermRule::Reacquired);
    }
    Step::Continues
}

/// Rule 4: the counter grew **and** the time of acquisition changed. One of the two alone is a client's habit: some count
/// renewals, some rewrite the time, some reset the counter (cases B03, B04, B12).
fn reacquired(transitions: Option<i32>, acquire_time: Option<Timestamp>, now: &LeaseView) -> bool {
    now.transitions.unwrap_or(0) > transitions.unwrap_or(0) && now.acquire_time != acquire_time
}

/// Whether an uncached read of a Lease is older than the record of it: only a restore does that.
///
/// Resource versions are compared as numbers (Kubernetes has defined their order since 1.35); texts that are no numbers
/// have no order, and then this says no.
pub fn is_older(read: &LeaseView, record: &Term) -> bool {
    read.uid == record.lease_uid && precedes(&read.resource_version, &record.resource_version)
}

/// Whether resourceVersion `a` comes before `b`; false when either is no number.
pub fn precedes(a: &str, b: &str) -> bool {
    matches!((a.parse::<u64>(), b.parse::<u64>()), (Ok(a), Ok(b)) if a < b)
}

/// `Option<Timestamp>` as Kubernetes' MicroTime: always six digits (case B09).
mod micro_time {
    use super::{MicroTime, Timestamp};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[expect(clippy::ref_option, reason = "the signature that serde's `with` calls")]
    pub(super) fn serialize<S: Serializer>(time: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
        time.map(MicroTime).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
        Ok(Option::<MicroTime>::deserialize(deserializer)?.map(|t| t.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// `L(holder, tr, acq, uid)` of the cases; `-` is written as `None`.
    fn lease(holder: Option<&str>, transitions: Option<i32>, acquired: Option<i64>, uid: &str) -> LeaseView {
        LeaseView {
            uid: uid.into(),
            resource_version: "100".into(),
            holder: match holder {
                None | Some("") => Ok(None),
                Some(text) => Holder::new(text).map(Some),
            },
            transitions,
            acquire_time: acquired.map(|s| Timestamp::from_second(s).unwrap()),
            renew_time: None,
            duration_seconds: Some(15),
        }
    }

    struct Tenure(Holder, Term, u8);

    impl Tenure {
        fn of(lease: &LeaseView, pod: Option<&str>, steps: u8) -> Self {
            Self(lease.holder.clone().unwrap().unwrap(), lease.term(pod), steps)
        }

        fn then(&self, lease: &LeaseView, pod: Option<&str>) -> Step {
            let holder = lease.holder.clone().unwrap().unwrap();
            step(Some(Record { holder: &self.0, term: &self.1, same_holder_steps: self.2 }), &holder, lease, pod)
        }
    }

    #[test]
    fn nothing_that_a_renewing_client_does_begins_a_term() {
        let first = lease(Some("a"), Some(3), Some(10), "u1");
        let tenure = Tenure::of(&first, Some("pod-1"), 0);
        for (what, later) in [
            ("a plain renewal", lease(Some("a"), Some(3), Some(10), "u1")),
            ("B12: acquireTime rewritten at each renewal", lease(Some("a"), Some(3), Some(11), "u1")),
            ("B03: transitions counted at each renewal", lease(Some("a"), Some(9), Some(10), "u1")),
            ("B04: transitions reset by the first renewal", lease(Some("a"), Some(0), Some(10), "u1")),
            ("B03: reset, and the time rewritten", lease(Some("a"), Some(0), Some(99), "u1")),
            ("B11: the time is lost", lease(Some("a"), Some(3), None, "u1")),
            ("the counter is lost", lease(Some("a"), None, Some(10), "u1")),
        ] {
            assert_eq!(tenure.then(&later, Some("pod-1")), Step::Continues, "{what}");
            assert!(!later.differs_from(&first), "{what} must cause no reconcile");
        }
        assert_eq!(tenure.then(&first, None), Step::Continues, "an unresolved pod is never compared");
    }

    #[test]
    fn each_rule_begins_a_term() {
        let tenure = Tenure::of(&lease(Some("a"), Some(4), Some(10), "u1"), Some("pod-1"), 0);
        for (what, later, pod, rule) in [
            ("B05", lease(Some("a"), Some(0), Some(10), "u2"), Some("pod-1"), TermRule::LeaseRecreated),
            ("B05, another holder", lease(Some("b"), Some(0), Some(20), "u2"), None, TermRule::LeaseRecreated),
            ("rule 2", lease(Some("b"), Some(5), Some(20), "u1"), None, TermRule::HolderChanged),
            ("B03: takeover resets the counter", lease(Some("b"), Some(0), Some(20), "u1"), None, TermRule::HolderChanged),
            ("B11: takeover without times", lease(Some("b"), Some(4), None, "u1"), None, TermRule::HolderChanged),
            ("G05: A, B, A in a watch gap", lease(Some("a"), Some(6), Some(30), "u1"), Some("pod-1"), TermRule::Reacquired),
            ("B02: a StatefulSet name came back", lease(Some("a"), Some(4), Some(10), "u1"), Some("pod-2"), TermRule::PodReplaced),
        ] {
            assert_eq!(tenure.then(&later, pod), Step::Begins(rule), "{what}");
        }
        let b = lease(Some("b"), Some(5), Some(20), "u1");
        let holder = b.holder.clone().unwrap().unwrap();
        assert_eq!(step(None, &holder, &b, None), Step::Begins(TermRule::Acquired), "B01: after a release");
    }

    /// B17: identities are free text and compared byte for byte.
    #[test]
    fn holders_are_compared_byte_for_byte() {
        for (a, b) in [("host-1_x", "host-10_y"), ("a", "A"), ("a", "a "), (" a", "a"), ("é", "e\u{301}")] {
            let tenure = Tenure::of(&lease(Some(a), Some(1), Some(1), "u"), None, 0);
            assert_eq!(tenure.then(&lease(Some(b), Some(1), Some(1), "u"), None), Step::Begins(TermRule::HolderChanged), "{a:?} {b:?}");
        }
    }

    #[test]
    fn a_client_that_rewrites_both_fields_runs_out_of_terms() {
        let again = lease(Some("a"), Some(8), Some(80), "u1");
        for steps in 0..MAX_SAME_HOLDER_STEPS {
            let tenure = Tenure::of(&lease(Some("a"), Some(7), Some(70), "u1"), None, steps);
            assert_eq!(tenure.then(&again, None), Step::Begins(TermRule::Reacquired), "{steps}");
        }
        let worn_out = Tenure::of(&lease(Some("a"), Some(7), Some(70), "u1"), None, MAX_SAME_HOLDER_STEPS);
        assert_eq!(worn_out.then(&again, None), Step::Continues);
    }

    #[test]
    fn only_numbers_have_an_order() {
        assert!(precedes("9", "10"), "numeric, not text (case C06)");
        assert!(!precedes("10", "9") && !precedes("10", "10") && !precedes("x", "10") && !precedes("", "1"));
    }

    /// B09, B11: every number of fractional digits is read, six are written, absent stays absent.
    #[test]
    fn times_are_read_with_any_fraction_and_written_with_six_digits() {
        for text in ["2026-12-01T10:00:00Z", "2026-12-01T10:00:00.5Z", "2026-12-01T10:00:00.500000Z", "2026-12-01T10:00:00.500000000Z"] {
            let term: Term = serde_json::from_value(json!({"leaseUid": "u", "acquireTime": text})).unwrap();
            let written = serde_json::to_value(&term).unwrap();
            let written = written["acquireTime"].as_str().unwrap().to_owned();
            assert!(written == "2026-12-01T10:00:00.000000Z" || written == "2026-12-01T10:00:00.500000Z", "{written}");
        }
        let term: Term = serde_json::from_value(json!({"leaseUid": "u"})).unwrap();
        assert_eq!(term.acquire_time, None);
        assert!(serde_json::from_value::<Term>(json!({"leaseUid": "u", "acquireTime": "yesterday"})).is_err());
    }

    /// B15: `spec: {}` is no owner, and so is a Lease without a spec.
    #[test]
    fn an_empty_lease_has_no_owner() {
        for object in
            [json!({"metadata": {"uid": "u"}}), json!({"metadata": {"uid": "u"}, "spec": {}}), json!({"spec": {"holderIdentity": ""}})]
        {
            let lease: Lease = serde_json::from_value(object).unwrap();
            assert_eq!(LeaseView::from(lease).holder, Ok(None));
        }
    }
}
