//! Calls the pure rules for the objects of manifests. Nobody has looked at the boundaries, so none is proven; everything else is
//! judged as the operator judges it.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;

use crate::cli::load::{Document, Object, Place};
use crate::{
    api::{
        ClaimKind, FencedLock, LockClass, Verdict, WriteBoundary,
        conditions::{Truth, reason},
        named_lock,
    },
    audit::{
        boundary::{self, Evidence, LockSide},
        rules::{self, Finding, Severity},
        schema::{self, FieldError},
        verdict::{self, Found, OwnerUnique, Present, Required},
    },
    boundary::is_built_in,
};

/// A lock with its verdict.
#[derive(Debug)]
pub(super) struct JudgedLock {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) place: Place,
    pub(super) class: Option<LockClass>,
    pub(super) judged: verdict::Judgement,
    pub(super) boundaries: usize,
}

/// A finding with the object that it is about.
#[derive(Debug)]
pub(super) struct Located {
    pub(super) object: String,
    pub(super) place: Place,
    pub(super) finding: Finding,
}

/// Everything that was judged.
#[derive(Debug, Default)]
pub(super) struct Judged {
    pub(super) locks: Vec<JudgedLock>,
    pub(super) findings: Vec<Located>,
}

type Name = (String, String);

struct Read<T> {
    place: Place,
    object: Option<T>,
    errors: Vec<FieldError>,
    /// `spec.lockRef.name`, also when the rest cannot be read.
    lock_ref: Option<String>,
}

/// Judges documents as of a time.
pub(super) fn judge(documents: Vec<Document>, now: Timestamp) -> Judged {
    let mut result = Judged::default();
    let (mut locks, mut boundaries) = (BTreeMap::new(), BTreeMap::new());
    for document in documents {
        let place = document.place;
        match document.content {
            Ok(object) if object.kind == "FencedLock" => add(&mut locks, place, object, &mut result),
            Ok(object) => add(&mut boundaries, place, object, &mut result),
            Err(why) => result.findings.push(Located {
                object: String::new(),
                place,
                finding: Finding::new(rules::UNREADABLE_DOCUMENT, Severity::Error, why),
            }),
        }
    }
    for (name, lock) in &locks {
        one_lock(name, lock, &locks, &boundaries, now, &mut result);
    }
    for (name, boundary) in &boundaries {
        one_boundary(name, boundary, &locks, now, &mut result);
    }
    result.findings.sort_by(|a, b| (b.finding.severity, &a.place, &a.object).cmp(&(a.finding.severity, &b.place, &b.object)));
    result
}

fn add<T: serde::de::DeserializeOwned>(all: &mut BTreeMap<Name, Read<T>>, place: Place, object: Object, result: &mut Judged) {
    let name = (object.namespace, object.name);
    let errors = schema::check(&object.kind, &object.value);
    let lock_ref = named_lock(&object.value).map(str::to_owned);
    let read =
        Read { place: place.clone(), object: serde_json::from_value(object.value).ok().filter(|_| errors.is_empty()), errors, lock_ref };
    if let Some(first) = all.insert(name.clone(), read) {
        let message = format!(
            "{} {}/{} is declared twice, first at {}:{}: the last one counts",
            object.kind, name.0, name.1, first.place.file, first.place.line
        );
        result.findings.push(Located {
            object: format!("{}/{}", name.0, name.1),
            place,
            finding: Finding::new("declared-twice", Severity::Warning, message),
        });
    }
}

fn one_lock(
    name: &Name,
    read: &Read<FencedLock>,
    locks: &BTreeMap<Name, Read<FencedLock>>,
    boundaries: &BTreeMap<Name, Read<WriteBoundary>>,
    now: Timestamp,
    result: &mut Judged,
) {
    let object = format!("FencedLock {}/{}", name.0, name.1);
    let say = |finding| Located { object: object.clone(), place: read.place.clone(), finding };
    let Some(lock) = &read.object else {
        result.findings.extend(read.errors.iter().map(|e| say(Finding::new(rules::FIELD_INVALID, Severity::Error, e.to_string()))));
        result.locks.push(invalid(name, read));
        return;
    };
    let spec = &lock.spec;
    let required = required(name, lock, boundaries, now);
    let nobody = OwnerUnique { status: Truth::Unknown, reason: reason::NOBODY, message: "not known from a manifest".into() };
    let judged = verdict::judge(&verdict::Facts {
        class: spec.class,
        external_token: spec.coordinator.external.as_ref().map(|e| e.token),
        contract: spec.contract,
        field_errors: &read.errors,
        lease_shared_with: first_on_lease(name, lock, locks),
        boundaries: &required,
        owner: &nobody,
        went_back: None,
    });
    result.findings.extend(rules::about_lock(spec, &judged, &required).into_iter().map(say));
    result.locks.push(JudgedLock {
        namespace: name.0.clone(),
        name: name.1.clone(),
        place: read.place.clone(),
        class: Some(spec.class),
        boundaries: required.len(),
        judged,
    });
}

fn invalid(name: &Name, read: &Read<FencedLock>) -> JudgedLock {
    let message = read.errors.first().map_or_else(|| "cannot be read as a FencedLock".to_owned(), ToString::to_string);
    JudgedLock {
        namespace: name.0.clone(),
        name: name.1.clone(),
        place: read.place.clone(),
        class: None,
        boundaries: 0,
        judged: verdict::Judgement {
            verdict: Verdict::Invalid,
            reason: reason::FIELD_INVALID,
            message,
            compliant: Truth::False,
            summary: (0, 0),
            proven_at: None,
            until: None,
        },
    }
}

/// Another lock on the same Lease. Manifests have no creation time, so the first name is taken for the older one.
fn first_on_lease<'a>(name: &Name, lock: &FencedLock, locks: &'a BTreeMap<Name, Read<FencedLock>>) -> Option<&'a str> {
    let lease = &lock.spec.coordinator.lease.as_ref()?.name;
    let shares = |other: &FencedLock| other.spec.coordinator.lease.as_ref().is_some_and(|l| l.name == *lease);
    let first = locks.iter().find(|((namespace, _), read)| *namespace == name.0 && read.object.as_ref().is_some_and(shares));
    first.map(|((_, other), _)| other.as_str()).filter(|other| *other != name.1)
}

fn required(name: &Name, lock: &FencedLock, boundaries: &BTreeMap<Name, Read<WriteBoundary>>, now: Timestamp) -> Vec<Required> {
    let listed = &lock.spec.write_boundaries;
    let refers = |read: &Read<WriteBoundary>| read.lock_ref.as_ref() == Some(&name.1);
    let unlisted = boundaries.iter().filter(|((namespace, other), read)| *namespace == name.0 && !listed.contains(other) && refers(read));
    let names = listed.iter().map(|n| (n.clone(), true)).chain(unlisted.map(|((_, n), _)| (n.clone(), false)));
    names
        .map(|(boundary, is_listed)| {
            let found = boundaries.get(&(name.0.clone(), boundary.clone())).map_or(Found::Missing, |read| found(name, lock, read, now));
            Required { name: boundary, listed: is_listed, found }
        })
        .collect()
}

fn found(name: &Name, lock: &FencedLock, read: &Read<WriteBoundary>, now: Timestamp) -> Found {
    if let Some(other) = read.lock_ref.as_ref().filter(|other| **other != name.1) {
        return Found::OtherLock(other.clone());
    }
    let Some(boundary) = &read.object else {
        return Found::Malformed(read.errors.first().map_or_else(|| "cannot be read".to_owned(), ToString::to_string));
    };
    Found::Present(Present {
        type_: boundary.spec.type_,
        judgement: judge_boundary(boundary, true, now),
        needs_activation: boundary.spec.needs_activation(lock.spec.contract),
        by_pod: boundary.spec.kubernetes.as_ref().is_some_and(|k| k.claim == ClaimKind::PodIdentity),
    })
}

fn judge_boundary(boundary: &WriteBoundary, lock_is_there: bool, now: Timestamp) -> boundary::Judgement {
    let lock = if lock_is_there { LockSide::Found { active: None } } else { LockSide::NotFound };
    let facts = boundary::Facts {
        spec: &boundary.spec,
        field_errors: &[],
        target_shared: None,
        lock: &lock,
        // Nobody looks from here; only a type that this version cannot drive at all is told apart.
        evidence: &if is_built_in(&boundary.spec) { Evidence::Unseen } else { Evidence::NotImplemented },
        now,
    };
    boundary::judge(&facts)
}

fn one_boundary(name: &Name, read: &Read<WriteBoundary>, locks: &BTreeMap<Name, Read<FencedLock>>, now: Timestamp, result: &mut Judged) {
    let object = format!("WriteBoundary {}/{}", name.0, name.1);
    let say = |finding| Located { object: object.clone(), place: read.place.clone(), finding };
    match &read.object {
        Some(boundary) => {
            let lock = &boundary.spec.lock_ref.name;
            let is_there = locks.contains_key(&(name.0.clone(), lock.clone()));
            let judged = judge_boundary(boundary, is_there, now);
            result.findings.extend(rules::about_boundary(&judged, is_there, lock).into_iter().map(say));
        }
        None => result.findings.extend(read.errors.iter().map(|e| say(Finding::new(rules::FIELD_INVALID, Severity::Error, e.to_string())))),
    }
}
