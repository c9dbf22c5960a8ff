//! Judges everything that was read, together, as the operator judges each lock and boundary. In manifests nobody has looked at the boundaries, so
//! none is proven; in a cluster the operator has, and its statuses are the evidence.
//!
//! Start with [`Look`].

use std::{
    collections::{BTreeMap, HashMap, HashSet, btree_map::Entry},
    sync::Arc,
};

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{
    Excuse, Id, Located, Place,
    read::{BoundaryObject, Declared, Kept, LockObject, Object},
};
use crate::{
    api::{
        ClaimKind, FencedLockStatus, LockClass, Verdict, WriteBoundarySpec,
        conditions::{self, Truth, find, reason},
    },
    audit::{
        baseline::Baseline,
        boundary::{self, Evidence, LockSide},
        inventory::{Declarations, FoundLock, Inventory},
        rules::{self, Finding, Severity, catalogue as rule},
        suppress::Suppression,
        verdict::{self, Found, OwnerUnique, Present, Required},
    },
    boundary::is_built_in,
};

/// How to judge.
#[derive(Clone, Debug)]
pub struct Ways {
    /// The time that everything is judged as of.
    pub now: Timestamp,
    /// How long before its end an acceptance is reported.
    pub soon: SignedDuration,
    /// Whether the statuses count: the objects are a cluster's.
    pub is_cluster: bool,
    /// What was known before.
    pub baseline: Option<Baseline>,
    /// Severities other than the rules' own, by the rules' ids; `None` switches a rule off.
    pub severities: BTreeMap<String, Option<Severity>>,
}

/// A lock with its verdict.
#[derive(Clone, Debug)]
pub struct JudgedLock {
    /// What it is called.
    pub id: Id,
    /// Where it was read.
    pub place: Place,
    /// Its class, when that can be read.
    pub class: Option<LockClass>,
    /// Its Lease, if it has one.
    pub lease: Option<String>,
    /// What is said about it.
    pub judged: verdict::Judgement,
}

/// Everything that was judged.
#[derive(Debug, Default)]
pub struct Assessment {
    /// The declared locks.
    pub locks: Vec<JudgedLock>,
    /// The findings, worst first.
    pub findings: Vec<Located>,
    /// The locks that nobody declared.
    pub unclassified: Vec<FoundLock>,
    /// How many found locks are declared.
    pub classified: usize,
    /// How many findings of the baseline are gone.
    pub gone: usize,
    /// How many findings are not here because their rules are switched off.
    pub off: usize,
}

type Name = (Arc<str>, Arc<str>);

/// Everything that was read.
#[derive(Debug, Default)]
pub struct Look {
    locks: BTreeMap<Name, Box<Declared<LockObject>>>,
    boundaries: BTreeMap<Name, Box<Declared<BoundaryObject>>>,
    inventory: Inventory,
    findings: Vec<Located>,
}

impl Look {
    /// Takes what was kept of an object. Of two locks of one name a correctness-critical one counts, of other objects the last one.
    pub fn add(&mut self, kept: Kept) {
        let is_critical = |lock: &LockObject| lock.spec.class == LockClass::CorrectnessCritical;
        match kept {
            Kept::Lock(lock) => declare(&mut self.locks, lock, is_critical, &mut self.findings),
            Kept::Boundary(boundary) => declare(&mut self.boundaries, boundary, |_| false, &mut self.findings),
            Kept::Fact(fact) => self.inventory.add(*fact),
            Kept::Wrong(found) => self.findings.push(*found),
        }
    }

    /// Judges it all.
    pub fn judge(self, ways: &Ways) -> Assessment {
        let mut result = Assessment { findings: self.findings, ..Assessment::default() };
        let known = Known::new(&self.locks, &self.boundaries, ways);
        for (name, lock) in &self.locks {
            one_lock(name, lock, &known, ways, &mut result);
        }
        for (name, boundary) in &self.boundaries {
            one_boundary(name, boundary, &known, ways, &mut result.findings);
        }
        let mut declared = Declarations::default();
        result.findings.extend(ways.baseline.iter().flat_map(|baseline| gone(baseline, &self.locks)));
        for ((namespace, _), lock) in &self.locks {
            declared.add(namespace, lock.lease.as_deref(), lock.workloads.as_deref());
        }
        let found = self.inventory.locks(&declared);
        for (object, place, suppressions, finding) in found.findings {
            say(&mut result.findings, &object, &place, &suppressions, ways.now, [finding]);
        }
        for lock in &found.unclassified {
            say(&mut result.findings, &lock.object, &lock.place, &lock.suppressions, ways.now, [lock.finding()]);
        }
        (result.unclassified, result.classified) = (found.unclassified, found.classified);
        let all = result.findings.len();
        result.findings.retain_mut(|found| weigh(found, &ways.severities));
        result.off = all - result.findings.len();
        result.gone = ways.baseline.as_ref().map_or(0, |baseline| baseline.excuse(&mut result.findings));
        result.findings.sort_by(|a, b| {
            (b.finding.severity, &a.place, &a.object, a.finding.rule.id).cmp(&(a.finding.severity, &b.place, &b.object, b.finding.rule.id))
        });
        result
    }
}

/// Gives a finding the severity that the configuration wants; `false` when its rule is off.
fn weigh(found: &mut Located, severities: &BTreeMap<String, Option<Severity>>) -> bool {
    match severities.get(found.finding.rule.id) {
        None => true,
        Some(None) => false,
        Some(Some(severity)) => {
            found.finding.severity = *severity;
            true
        }
    }
}

fn declare<Spec: PartialEq, Status>(
    all: &mut BTreeMap<Name, Box<Declared<Object<Spec, Status>>>>,
    declared: Box<Declared<Object<Spec, Status>>>,
    stands: impl Fn(&Object<Spec, Status>) -> bool,
    findings: &mut Vec<Located>,
) {
    let (id, place) = (declared.id.clone(), declared.place.clone());
    match all.entry((id.namespace.clone(), id.name.clone())) {
        Entry::Vacant(vacant) => drop(vacant.insert(declared)),
        Entry::Occupied(mut first) => {
            let (was, is) = (first.get().object.as_ref(), declared.object.as_ref());
            let is_same = was.zip(is).is_some_and(|(was, is)| was.spec == is.spec);
            let first_stands = was.is_some_and(&stands) && is.is_some_and(|is| !stands(is));
            let counts = match (is_same, first_stands) {
                (true, _) => "both say the same",
                (false, true) => "the correctness-critical one is judged here",
                (false, false) => "the last one is judged here",
            };
            let at = &first.get().place;
            let message = format!("{id} is declared twice, first at {}:{}: {counts}", at.file, at.line);
            let finding = rule::DECLARED_TWICE.finds(&*place.file, message);
            let finding = if is_same { finding.at_most(Severity::Warning) } else { finding };
            findings.push(Located { object: id, place, finding, excused: None });
            if !first_stands {
                first.insert(declared);
            }
        }
    }
}

/// The critical locks of a baseline that are not there any more, under their name or on their Lease.
fn gone(baseline: &Baseline, locks: &BTreeMap<Name, Box<Declared<LockObject>>>) -> Vec<Located> {
    let leases: HashSet<_> = locks.iter().filter_map(|((namespace, _), lock)| Some((&**namespace, lock.lease.as_deref()?))).collect();
    let is_gone = |(namespace, name, lease): &(&str, &str, Option<&str>)| {
        !locks.contains_key(&((*namespace).into(), (*name).into())) && lease.is_none_or(|lease| !leases.contains(&(*namespace, lease)))
    };
    let gone = baseline.critical().filter(is_gone);
    gone.map(|(namespace, name, _)| {
        let message = "the lock is CorrectnessCritical in the baseline and is not declared here. If its work is gone, write the baseline again in the same \
                       change; if it was renamed or moved, look whether its new declaration has the class and the boundaries of the old one";
        Located {
            object: Id { kind: "FencedLock".into(), namespace: namespace.into(), name: name.into() },
            place: Place { file: baseline.file.clone(), line: u32::from(!baseline.file.is_empty()) },
            finding: rule::CRITICAL_LOCK_GONE.finds("", message),
            excused: None,
        }
    })
    .collect()
}

/// Adds findings about an object, those that somebody answers for with the reason. A suppression that has ended is a finding itself.
fn say(
    all: &mut Vec<Located>,
    object: &Id,
    place: &Place,
    suppressions: &[Suppression],
    now: Timestamp,
    findings: impl IntoIterator<Item = Finding>,
) {
    let located = |finding, excused| Located { object: object.clone(), place: place.clone(), finding, excused };
    for finding in findings {
        let suppression = suppressions.iter().find(|suppression| *suppression.rule == *finding.rule);
        let ended = suppression.filter(|suppression| suppression.until <= now);
        let excused = suppression
            .filter(|_| ended.is_none())
            .map(|suppression| Excuse::Suppressed { reason: suppression.reason.clone(), until: suppression.until });
        if let Some(ended) = ended {
            let message = format!(
                "the suppression of {} ended on {} ({}): look whether its reason still holds, and renew it or mend the finding",
                ended.rule.id, ended.until, ended.reason
            );
            all.push(located(rule::SUPPRESSION_EXPIRED.finds(ended.rule.id, message), None));
        }
        all.push(located(finding, excused));
    }
}

/// What is looked up again and again.
struct Known<'a> {
    locks: &'a BTreeMap<Name, Box<Declared<LockObject>>>,
    boundaries: &'a BTreeMap<Name, Box<Declared<BoundaryObject>>>,
    by_lock: HashMap<(&'a str, &'a str), Vec<&'a Name>>,
    /// The lock that was there first on each Lease.
    first_on_lease: HashMap<(&'a str, &'a str), (Option<Timestamp>, &'a str)>,
    /// What was correctness-critical in the baseline: a namespace with a name, and with a Lease.
    critical: HashSet<(&'a str, Option<&'a str>, Option<&'a str>)>,
    /// The boundary that was there first on each table or object, by name.
    first_on_target: HashMap<Target<'a>, &'a Name>,
}

/// What one lock's boundaries guard, and no other lock's may.
type Target<'a> = (&'a str, &'a str, &'a str, &'a str, &'a str);

/// The tables and named objects of a boundary.
fn targets<'a>(namespace: &'a str, spec: &'a WriteBoundarySpec) -> Vec<Target<'a>> {
    let postgres = spec.postgres.iter().flat_map(|postgres| {
        let key = &postgres.connection.secret_key_ref;
        postgres
            .tables
            .iter()
            .map(move |table| (namespace, key.name.as_str(), key.key.as_str(), table.schema.as_str(), table.name.as_str()))
    });
    let objects = spec.kubernetes.iter().flat_map(|objects| &objects.targets).flat_map(move |target| {
        target.names.iter().map(move |name| (namespace, "", target.group.as_str(), target.resource.as_str(), name.as_str()))
    });
    postgres.chain(objects).collect()
}

impl<'a> Known<'a> {
    fn new(
        locks: &'a BTreeMap<Name, Box<Declared<LockObject>>>,
        boundaries: &'a BTreeMap<Name, Box<Declared<BoundaryObject>>>,
        ways: &'a Ways,
    ) -> Self {
        let mut by_lock: HashMap<_, Vec<_>> = HashMap::new();
        for (name, boundary) in boundaries {
            if let Some(lock) = &boundary.lock_ref {
                by_lock.entry((&*name.0, lock.as_str())).or_default().push(name);
            }
        }
        let mut first_on_lease: HashMap<(&str, &str), (Option<Timestamp>, &str)> = HashMap::new();
        for ((namespace, name), lock) in locks.iter().filter(|(_, lock)| lock.object.is_some()) {
            let Some(lease) = &lock.lease else { continue };
            let this = (lock.created, &**name);
            first_on_lease.entry((&**namespace, lease.as_str())).and_modify(|first| *first = this.min(*first)).or_insert(this);
        }
        let mut critical = HashSet::new();
        for (namespace, name, lease) in ways.baseline.iter().flat_map(Baseline::critical) {
            critical.insert((namespace, Some(name), None));
            critical.extend(lease.map(|lease| (namespace, None, Some(lease))));
        }
        let mut first_on_target = HashMap::new();
        // In a cluster the operator has looked who was there first.
        for (name, boundary) in boundaries.iter().filter(|_| !ways.is_cluster) {
            for target in boundary.object.iter().flat_map(|object| targets(&name.0, &object.spec)) {
                first_on_target.entry(target).or_insert(name);
            }
        }
        Self { locks, boundaries, by_lock, first_on_lease, critical, first_on_target }
    }

    /// Another lock's boundary that was there first, by name, on something that this one guards.
    fn shares(&self, (namespace, _): &Name, boundary: &BoundaryObject) -> Option<String> {
        targets(namespace, &boundary.spec).into_iter().find_map(|target| {
            let first = self.first_on_target.get(&target)?;
            let other = self.boundaries.get(*first)?.object.as_ref()?;
            (other.spec.lock_ref != boundary.spec.lock_ref).then(|| format!("{}/{}", first.0, first.1))
        })
    }

    /// Another lock on the same Lease that came first: by creation, then by name. Manifests have no creation.
    fn older(&self, (namespace, name): &Name, lock: &Declared<LockObject>) -> Option<&'a str> {
        let first = self.first_on_lease.get(&(&**namespace, lock.lease.as_deref()?))?;
        (first.1 != &**name).then_some(first.1)
    }

    /// The boundaries that count: those that the lock lists, then those that refer to it and are not listed.
    fn required(&self, name: &Name, lock: &LockObject, ways: &Ways) -> Vec<Required> {
        let listed = &lock.spec.write_boundaries;
        let referring = self.by_lock.get(&(&*name.0, &*name.1)).into_iter().flatten();
        let unlisted = referring.filter(|boundary| !listed.iter().any(|listed| **listed == *boundary.1));
        let names = listed.iter().map(|listed| (listed.as_str(), true)).chain(unlisted.map(|boundary| (&*boundary.1, false)));
        names
            .map(|(boundary, listed)| {
                let found = self.boundaries.get(&(name.0.clone(), boundary.into()));
                Required {
                    name: boundary.to_owned(),
                    listed,
                    found: found.map_or(Found::Missing, |read| found_for(name, lock, read, self, ways)),
                }
            })
            .collect()
    }
}

fn first_error<K>(read: &Declared<K>) -> String {
    let first = read.errors.first().map(ToString::to_string).or_else(|| read.findings.first().map(|finding| finding.message.clone()));
    first.unwrap_or_else(|| format!("cannot be read as a {}", read.id.kind))
}

fn found_for(name: &Name, lock: &LockObject, read: &Declared<BoundaryObject>, known: &Known<'_>, ways: &Ways) -> Found {
    if let Some(other) = read.lock_ref.as_ref().filter(|other| ***other != *name.1) {
        return Found::OtherLock(other.clone());
    }
    let Some(boundary) = &read.object else { return Found::Malformed(first_error(read)) };
    Found::Present(Present {
        type_: boundary.spec.type_,
        judgement: judge_boundary(boundary, known.shares(name, boundary).as_deref(), &side(Some(lock), ways), ways),
        needs_activation: boundary.spec.needs_activation(lock.spec.contract),
        by_pod: boundary.spec.kubernetes.as_ref().is_some_and(|k| k.claim == ClaimKind::PodIdentity),
    })
}

/// A lock that is there, also when it cannot be read.
fn side(lock: Option<&LockObject>, ways: &Ways) -> LockSide {
    LockSide::of(lock.filter(|_| ways.is_cluster).and_then(|lock| lock.status.as_deref()?.recorded()))
}

fn judge_boundary(boundary: &BoundaryObject, target_shared: Option<&str>, lock: &LockSide, ways: &Ways) -> boundary::Judgement {
    let status = boundary.status.as_deref().filter(|_| ways.is_cluster);
    let current = status.filter(|status| status.verdict.is_some() && status.observed_generation == boundary.generation);
    let evidence = match current {
        Some(status) => {
            // What the operator wrote, it wrote after a look.
            let seen = boundary::Seen { examined: true, ..boundary::remembered(status).0 };
            Evidence::Seen(Box::new(seen))
        }
        // Nobody looks from here; only a type that this version cannot drive at all is told apart.
        None if is_built_in(&boundary.spec) => Evidence::Unseen,
        None => Evidence::NotImplemented,
    };
    boundary::judge(&boundary::Facts { spec: &boundary.spec, field_errors: &[], target_shared, lock, evidence: &evidence, now: ways.now })
}

fn one_lock(name: &Name, read: &Declared<LockObject>, known: &Known<'_>, ways: &Ways, result: &mut Assessment) {
    let Some(lock) = &read.object else {
        let findings = read.findings.iter().cloned().chain(downgraded(name, read, known));
        say(&mut result.findings, &read.id, &read.place, &read.suppressions, ways.now, findings);
        result.locks.push(JudgedLock {
            id: read.id.clone(),
            place: read.place.clone(),
            class: None,
            lease: read.lease.clone(),
            judged: invalid(read),
        });
        return;
    };
    let spec = &lock.spec;
    let required = known.required(name, lock, ways);
    let status = lock.status.as_deref().filter(|_| ways.is_cluster);
    let owner = owner(status);
    let went_back = status.and_then(went_back);
    let mut judged = verdict::judge(&verdict::Facts {
        class: spec.class,
        external_token: spec.coordinator.external.as_ref().map(|e| e.token),
        contract: spec.contract,
        field_errors: &read.errors,
        lease_shared_with: known.older(name, read),
        boundaries: &required,
        owner: &owner,
        went_back: went_back.as_ref().map(|(reason, message)| (*reason, message.as_str())),
    });
    let mut findings = read.findings.clone();
    if ways.is_cluster {
        findings.extend(compare(lock, &mut judged));
    }
    let specs: Vec<_> = required
        .iter()
        .filter_map(|required| {
            let read = known.boundaries.get(&(name.0.clone(), required.name.as_str().into()))?;
            Some((required.name.as_str(), &read.object.as_ref()?.spec))
        })
        .collect();
    findings.extend(rules::lock::about(&rules::lock::Judged {
        name: &name.1,
        spec,
        judged: &judged,
        boundaries: &required,
        specs: &specs,
        is_cluster: ways.is_cluster,
    }));
    findings.extend(downgraded(name, read, known));
    say(&mut result.findings, &read.id, &read.place, &read.suppressions, ways.now, findings);
    result.locks.push(JudgedLock {
        id: read.id.clone(),
        place: read.place.clone(),
        class: Some(spec.class),
        lease: read.lease.clone(),
        judged,
    });
}

/// That a lock was correctness-critical and is not, also when the rest of it cannot be read.
fn downgraded(name: &Name, read: &Declared<LockObject>, known: &Known<'_>) -> Option<Finding> {
    let was_critical = || {
        let on_lease = read.lease.as_deref().is_some_and(|lease| known.critical.contains(&(&*name.0, None, Some(lease))));
        on_lease || known.critical.contains(&(&*name.0, Some(&*name.1), None))
    };
    (read.class == Some(LockClass::EfficiencyOnly) && was_critical()).then(|| {
        let message = "the lock is CorrectnessCritical in the baseline and EfficiencyOnly here: two holders at once corrupt what they corrupted before. If the \
                       old class was wrong, write the baseline again in the same change, so that a reviewer sees both";
        rule::CLASS_DOWNGRADED.finds("", message)
    })
}

fn invalid(read: &Declared<LockObject>) -> verdict::Judgement {
    verdict::Judgement {
        verdict: Verdict::Invalid,
        reason: reason::FIELD_INVALID,
        message: first_error(read),
        compliant: Truth::False,
        summary: (0, 0),
        proven_at: None,
        until: None,
    }
}

/// Whether the holder is one process life, as the operator saw it.
fn owner(status: Option<&FencedLockStatus>) -> OwnerUnique {
    let condition = status.and_then(|status| find(&status.conditions, conditions::lock::OWNER_UNIQUE));
    let known = condition.and_then(|condition| Some((condition, reason::known(&condition.reason)?)));
    known.map_or_else(
        || OwnerUnique { status: Truth::Unknown, reason: reason::NOBODY, message: "not known from a manifest".into() },
        |(condition, reason)| OwnerUnique { status: Truth::of(&condition.status), reason, message: condition.message.clone() },
    )
}

/// Why the epochs went back, as the operator saw it.
fn went_back(status: &FencedLockStatus) -> Option<(&'static str, String)> {
    let condition = find(&status.conditions, conditions::lock::EPOCH_MONOTONIC)?;
    (Truth::of(&condition.status) == Truth::False).then(|| Some((reason::known(&condition.reason)?, condition.message.clone())))?
}

/// Compares with what the operator wrote. The worse of the two verdicts stands: the operator has seen more, and may be of yesterday.
fn compare(lock: &LockObject, judged: &mut verdict::Judgement) -> Option<Finding> {
    let differs = |message: String| Some(rule::STATUS_DIFFERS.finds("", message));
    let Some((status, wrote)) = lock.status.as_deref().and_then(|status| Some((status, status.verdict?))) else {
        return differs(format!(
            "the operator has written no verdict (here it is {:?}): is it running, and does it watch this namespace?",
            judged.verdict
        ));
    };
    if status.observed_generation != lock.generation {
        return differs(format!(
            "the operator's verdict {wrote:?} is about an earlier version of the declaration (here it is {:?}): is the operator running?",
            judged.verdict
        ));
    }
    let wrote_reason = status.reason.as_deref().unwrap_or_default();
    if (wrote, wrote_reason) == (judged.verdict, judged.reason) {
        return None;
    }
    let message = format!(
        "the operator wrote {wrote:?} ({wrote_reason}), and from the same objects this program says {:?} ({}): a proof may have expired since, or the two \
         are of different versions",
        judged.verdict, judged.reason
    );
    if let Some(reason) = reason::known(wrote_reason).filter(|_| wrote < judged.verdict && wrote != Verdict::NotRequired) {
        let condition = find(&status.conditions, conditions::lock::COMPLIANT);
        (judged.verdict, judged.reason, judged.compliant) = (wrote, reason, Truth::False);
        judged.message = condition.map(|condition| condition.message.clone()).unwrap_or_default();
    }
    differs(message)
}

fn one_boundary(name: &Name, read: &Declared<BoundaryObject>, known: &Known<'_>, ways: &Ways, findings: &mut Vec<Located>) {
    let mut about = read.findings.clone();
    if let Some(boundary) = &read.object {
        let lock = known.locks.get(&(name.0.clone(), boundary.spec.lock_ref.name.as_str().into()));
        let side = lock.map_or(LockSide::NotFound, |lock| side(lock.object.as_ref(), ways));
        let judged = judge_boundary(boundary, known.shares(name, boundary).as_deref(), &side, ways);
        about.extend(rules::boundary::about(&rules::boundary::Judged {
            spec: &boundary.spec,
            judged: &judged,
            lock_is_there: lock.is_some(),
            now: ways.now,
            soon: ways.soon,
        }));
    }
    say(findings, &read.id, &read.place, &read.suppressions, ways.now, about);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::{assess::read, baseline::KnownLock};
    use serde_json::{Value, json};

    fn rules(objects: &[Value]) -> (Verdict, Vec<&'static str>) {
        let result = judged(objects, None);
        (result.locks[0].judged.verdict, result.findings.iter().map(|found| found.finding.rule.id).collect())
    }

    fn lock(coordinator: &Value, boundaries: &[&str]) -> Value {
        json!({"apiVersion": "fencedlock.dev/v1alpha1", "kind": "FencedLock", "metadata": {"name": "a"}, "spec": {
            "class": "CorrectnessCritical", "purpose": "p", "replay": "Ledger", "coordinator": coordinator, "writeBoundaries": boundaries}})
    }

    fn boundary(spec: &Value) -> Value {
        let mut boundary =
            json!({"apiVersion": "fencedlock.dev/v1alpha1", "kind": "WriteBoundary", "metadata": {"name": "b"}, "spec": spec});
        boundary["spec"]["lockRef"] = json!({"name": "a"});
        boundary
    }

    /// Public bug reports as they would be declared, and what an audit has to say of each.
    #[test]
    fn public_bug_reports_are_told() {
        let external = |system: &str, token: &str| json!({"external": {"system": system, "token": token}});
        let (lease, redis) = (json!({"lease": {"name": "a"}}), external("Redis", "None"));
        let receiver = |receiver: &str| boundary(&json!({"type": "External", "external": {"receiver": receiver}}));
        let alone = |coordinator: &Value| vec![lock(coordinator, &[])];
        let with = |coordinator: &Value, receiver: Value| vec![lock(coordinator, &["b"]), receiver];
        for (case, objects, rule) in [
            ("C01", alone(&redis), "critical-lock-without-boundary"),
            ("C01", alone(&redis), "unordered-coordinator"),
            ("C02", with(&redis, receiver("subscription in memory")), "receiver-cannot-enforce"),
            ("C08", alone(&external("Redis", "ClientTimestamp")), "client-timestamp-as-token"),
            ("D01", alone(&external("table with lock_until", "ClientTimestamp")), "critical-lock-without-boundary"),
            ("D04", with(&lease, receiver("file that is appended to")), "receiver-cannot-enforce"),
            ("D12", with(&lease, boundary(&json!({"type": "MySQL"}))), "field-invalid"),
            ("E09", alone(&external("DynamoDB", "RandomOwnerId")), "random-id-as-token"),
            ("F04", with(&lease, receiver("S3, with the fence in DynamoDB")), "receiver-cannot-enforce"),
            ("H03", with(&lease, receiver("smtp.example")), "receiver-cannot-enforce"),
        ] {
            let (verdict, rules) = rules(&objects);
            assert!(rules.contains(&rule), "{case}: {rule} is not among {rules:?}");
            assert!(!matches!(verdict, Verdict::Enforced | Verdict::RiskAccepted | Verdict::NotRequired), "{case}: {verdict:?}");
        }
    }

    fn ways(baseline: Option<Baseline>) -> Ways {
        let now = "2026-12-01T00:00:00Z".parse().unwrap();
        Ways { now, soon: SignedDuration::from_hours(720), is_cluster: false, baseline, severities: BTreeMap::new() }
    }

    fn judged(objects: &[Value], baseline: Option<Baseline>) -> Assessment {
        let mut look = Look::default();
        for object in objects {
            look.add(read::object(object, &Place::default(), &"default".into()).unwrap());
        }
        look.judge(&ways(baseline))
    }

    fn with(mut object: Value, pointer: &str, value: impl Into<Value>) -> Value {
        *object.pointer_mut(pointer).unwrap() = value.into();
        object
    }

    /// Whichever comes last: a second declaration does not make a critical lock harmless.
    #[test]
    fn of_two_declarations_the_critical_one_stands() {
        let critical = lock(&json!({"lease": {"name": "a"}}), &[]);
        let harmless = with(critical.clone(), "/spec/class", "EfficiencyOnly");
        for objects in [[critical.clone(), harmless.clone()], [harmless.clone(), critical.clone()]] {
            let (verdict, rules) = rules(&objects);
            assert_eq!((verdict, rules), (Verdict::Unenforced, vec!["critical-lock-without-boundary", "declared-twice"]));
        }
        let twice = judged(&[harmless.clone(), harmless], None);
        assert_eq!(twice.findings.iter().map(|found| found.finding.severity).collect::<Vec<_>>(), [Severity::Warning]);
    }

    /// A table belongs to one lock: the boundary that comes second, by name, is refused, and its lock with it.
    #[test]
    fn two_locks_that_guard_one_table_are_told() {
        let named = |object: Value, name: &str| with(object, "/metadata/name", name);
        let db = |name: &str, lock: &str, table: &str| {
            let connection = json!({"secretKeyRef": {"name": "db", "key": "url"}});
            let spec = json!({"type": "Postgres", "mode": "Enforce",
                "postgres": {"connection": connection, "tables": [{"schema": "public", "name": table}], "writerRoles": ["app"]}});
            with(named(boundary(&spec), name), "/spec/lockRef/name", lock)
        };
        let one = |name: &str, boundary: &str| named(lock(&json!({"lease": {"name": name}}), &[boundary]), name);
        let of = |table: &str| {
            let result = judged(&[one("a", "a-db"), one("b", "b-db"), db("a-db", "a", "t"), db("b-db", "b", table)], None);
            result.locks.iter().map(|lock| lock.judged.verdict).collect::<Vec<_>>()
        };
        assert_eq!(of("t"), [Verdict::Unproven, Verdict::Invalid]);
        assert_eq!(of("other"), [Verdict::Unproven, Verdict::Unproven]);
    }

    /// What the operator knows to be open is an error; what it has not looked at yet, or only counts, is a warning.
    #[test]
    fn a_boundary_that_is_known_to_be_open_is_an_error() {
        for (reason, severity) in [
            ("BypassFound", Severity::Error),
            ("ProbeFailed", Severity::Error),
            ("Observing", Severity::Warning),
            ("ProofPending", Severity::Warning),
        ] {
            let mut open = boundary(&json!({"type": "Kubernetes", "mode": if reason == "Observing" { "Observe" } else { "Enforce" },
                "kubernetes": {"claim": "PodIdentity", "targets": [{"resource": "configmaps", "names": ["web"]}]}}));
            open["status"] = json!({"verdict": "Unproven", "reason": reason, "conditions": [
                {"type": "Proven", "status": "False", "reason": reason, "message": "m", "lastTransitionTime": "2026-12-01T00:00:00Z"}]});
            let mut look = Look::default();
            for object in [lock(&json!({"lease": {"name": "a"}}), &["b"]), open] {
                look.add(read::object(&object, &Place::default(), &"default".into()).unwrap());
            }
            let result = look.judge(&Ways { is_cluster: true, ..ways(None) });
            let found = result.findings.iter().find(|found| found.finding.rule.id == "boundary-not-proven");
            assert_eq!(found.map(|found| found.finding.severity), Some(severity), "{reason}: {:?}", result.findings);
        }
    }

    fn baseline_of(result: &Assessment) -> Baseline {
        let known = |lock: &JudgedLock| KnownLock { class: lock.class.unwrap(), lease: lock.lease.clone() };
        let locks = result.locks.iter().map(|lock| (format!("{}/{}", lock.id.namespace, lock.id.name), known(lock)));
        Baseline::new(locks, result.findings.iter())
    }

    /// What counts, as rule and what it is about.
    fn counted(result: &Assessment) -> Vec<(&str, &str)> {
        let counted = result.findings.iter().filter(|found| found.excused.is_none());
        counted.map(|found| (found.finding.rule.id, &*found.finding.about)).collect()
    }

    #[test]
    fn a_baseline_excuses_what_it_knows_and_nothing_like_it() {
        let lease = json!({"lease": {"name": "a"}});
        let receiver = |name: &str| {
            let receiver = boundary(&json!({"type": "External", "external": {"receiver": "smtp.example"}}));
            with(receiver, "/metadata/name", name)
        };
        let before = judged(&[lock(&lease, &["b"]), receiver("b")], None);
        let known = baseline_of(&before);
        let same = judged(&[lock(&lease, &["b"]), receiver("b")], Some(known.clone()));
        assert_eq!(counted(&same), []);
        let another = judged(&[lock(&lease, &["b", "c"]), receiver("b"), receiver("c")], Some(known.clone()));
        assert_eq!(counted(&another), [("receiver-cannot-enforce", "c")]);
        let missing = judged(&[lock(&lease, &["b", "c"]), receiver("b")], Some(known));
        assert_eq!(counted(&missing), [("boundary-missing", "c")]);
    }

    #[test]
    fn a_critical_lock_of_the_baseline_is_known_by_its_name_and_its_lease() {
        let critical = lock(&json!({"lease": {"name": "a"}}), &[]);
        let known = baseline_of(&judged(std::slice::from_ref(&critical), None));
        let harmless = with(critical.clone(), "/spec/class", "EfficiencyOnly");
        let renamed = with(harmless.clone(), "/metadata/name", "z");
        let elsewhere = with(renamed.clone(), "/spec/coordinator/lease/name", "z");
        let of = |object: &Value| judged(std::slice::from_ref(object), Some(known.clone()));
        assert_eq!(counted(&of(&harmless)), [("class-downgraded", "")]);
        assert_eq!(counted(&of(&renamed)), [("class-downgraded", "")]);
        assert_eq!(counted(&of(&elsewhere)), [("critical-lock-gone", "")]);
        assert_eq!(counted(&of(&critical)), []);
        // What the API server refuses is downgraded all the same, and no annotation answers for either.
        let mut refused = harmless;
        refused["spec"]["nots"] = json!("x");
        refused["metadata"]["annotations"] = json!({"fencedlock.dev/suppress.field-invalid": "until 2027-03-31: why"});
        let found = of(&refused);
        let rules: Vec<_> = counted(&found).into_iter().map(|(rule, _)| rule).collect();
        assert_eq!(rules, ["class-downgraded", "field-invalid", "suppression-invalid"]);
    }

    /// H04: who answers for repeated mails answers for a risk. Nothing is enforced, and once it has ended the finding is back.
    #[test]
    fn an_accepted_risk_is_never_called_enforced() {
        let accepted = |expires: &str| {
            boundary(&json!({"type": "External", "external": {"receiver": "smtp.example"}, "riskAcceptance": {
                "covers": ["CannotEnforce"], "acceptedBy": "mail-oncall", "reason": "a mail twice", "expires": expires}}))
        };
        let lock = lock(&json!({"lease": {"name": "a"}}), &["b"]);
        assert_eq!(rules(&[lock.clone(), accepted("2027-06-01T00:00:00Z")]), (Verdict::RiskAccepted, vec![]));
        let (verdict, rules) = rules(&[lock, accepted("2026-11-30T00:00:00Z")]);
        assert_eq!((verdict, rules), (Verdict::Unenforced, vec!["risk-acceptance-expired"]));
    }
}
