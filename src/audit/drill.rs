//! What a drill shows: a report for an incident review, from what the operator's examinations said and, with real workers, from what was seen of
//! them. The JSON form is what is defined here; it is versioned: fields are added within a version, and none changes its meaning or goes.
//!
//! Start with [`report`]. What must not come in: asking the operator, running workers, tables.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::Serialize;

use super::boundary::more;
use crate::{
    api::{
        BoundaryType, BoundaryVerdict, Drill, DrillProbe, FencedLock, LockClass, ProbeOutcome, Verdict, WriteBoundary,
        conditions::{boundary as on_boundary, find},
    },
    epoch::Epoch,
};

/// The version of the JSON form.
pub const VERSION: &str = "fencedlock.dev/drill/v1";

/// What became of asking for an examination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was made.
    Made(Box<Drill>),
    /// It was not: why, and what to do.
    None(String),
}

/// A boundary of the lock.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Its name.
    pub name: String,
    /// The boundary after the drill; `None` when the lock lists one that is not there.
    pub found: Option<WriteBoundary>,
    /// What became of asking. Of no matter where [`why_not`] says that nothing is asked.
    pub answer: Answer,
}

/// What `fencedlock drill --output json` prints.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The version of this form: `fencedlock.dev/drill/v1`.
    pub version: &'static str,
    /// When the drill was asked for.
    pub at: Time,
    /// The lock.
    pub lock: Lock,
    /// Whether every boundary that can refuse did, nothing is left open there, and with real workers the obsolete one was refused.
    pub passed: bool,
    /// The lock's boundaries.
    pub boundaries: Vec<Rehearsed>,
    /// What happened to two real workers; absent when none ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<Workers>,
    /// What this drill could not test.
    pub untested: Vec<Untested>,
}

/// The lock that a drill was about.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Lock {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its class.
    pub class: LockClass,
    /// The verdict when the drill began; absent when no operator has judged it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// Its Lease; absent when it is coordinated outside Kubernetes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<String>,
    /// The highest epoch when the drill began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
    /// Who owned it when the drill began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

/// What a boundary did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub enum Conduct {
    /// It refused every obsolete write, and took every one of the present owner.
    Refused,
    /// It took an obsolete write, or refused the present owner.
    Failed,
    /// It could not be tested, or not whole.
    NotTested,
}

/// What came of one boundary.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rehearsed {
    /// Its name.
    pub name: String,
    /// Its type; absent when it is not there.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<BoundaryType>,
    /// What it did.
    pub conduct: Conduct,
    /// Why, unless it refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The verdict after the drill.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<BoundaryVerdict>,
    /// What is open there although it refused: the verdict's reason and message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open: Option<String>,
    /// The identity of the server that the last proof was made on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// How many obsolete writes the canary refused.
    pub refused: u32,
    /// What the operator recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drill: Option<Drill>,
}

/// Something that a drill could not test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Untested {
    /// What.
    pub what: String,
    /// Why.
    pub why: String,
}

/// What happened to two real workers: the first was stopped, lost the lock to the second, and was woken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Workers {
    /// The worker that was stopped and woken.
    pub first: Worker,
    /// The worker that took over; absent when it did not come to that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub second: Option<Worker>,
    /// How long it took from the stop of the first worker until the second had its epoch, in milliseconds. The Lease has to run out in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub takeover_milliseconds: Option<u64>,
    /// How long the first worker ran after it was woken, in milliseconds; absent when it went on until it was told to end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_ended_after_milliseconds: Option<u64>,
    /// Why the drill ended early.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// What each boundary refused between the wake-up and the end.
    pub refusals: Vec<RealRefusals>,
}

/// One of two workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Worker {
    /// As whom it held the Lease.
    pub holder: String,
    /// Its epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
    /// How it ended, in words.
    pub end: String,
}

/// What a boundary refused while the obsolete worker was awake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RealRefusals {
    /// The boundary.
    pub boundary: String,
    /// How many writes; absent where they are not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<u64>,
}

/// Why a boundary is not asked for an examination; `None` when it is.
pub fn why_not(boundary: Option<&WriteBoundary>) -> Option<String> {
    let Some(boundary) = boundary else {
        return Some("spec.writeBoundaries lists it and it is not there: create it, or take it off the list".into());
    };
    if boundary.spec.type_ == BoundaryType::External {
        let receiver = boundary.spec.external.as_ref().map_or("its receiver", |external| external.receiver.as_str());
        return Some(format!("{receiver} cannot compare epochs and refuses nobody: what an obsolete owner sends takes effect"));
    }
    let is_invalid = boundary.status.as_ref().is_some_and(|status| status.verdict == Some(BoundaryVerdict::Invalid));
    is_invalid.then(|| format!("the declaration is invalid: {}", said(boundary)))
}

/// The verdict's message.
fn said(boundary: &WriteBoundary) -> String {
    let status = boundary.status.as_ref();
    let proven = status.and_then(|status| find(&status.conditions, on_boundary::PROVEN));
    proven.map_or_else(|| "no operator has judged it".to_owned(), |condition| condition.message.clone())
}

/// The report. `workers`: what two real ones did, where they were let.
pub fn report(lock: &FencedLock, asked: &[Asked], workers: Option<Workers>, at: Time) -> Report {
    let boundaries: Vec<_> = asked.iter().map(rehearsed).collect();
    let mut untested: Vec<_> = asked.iter().zip(&boundaries).flat_map(|(asked, rehearsed)| left_out(asked, rehearsed)).collect();
    match &workers {
        None => untested.push(Untested {
            what: "the workers".into(),
            why: "no worker took part: what one does when it is refused, and whether it ends when it has lost the lock, is not known"
                .into(),
        }),
        Some(workers) => untested.extend(workers.refusals.iter().filter_map(unseen)),
    }
    let status = lock.status.as_ref();
    let is_good = |rehearsed: &Rehearsed| {
        let can_refuse = rehearsed.type_ != Some(BoundaryType::External);
        (!can_refuse || rehearsed.conduct == Conduct::Refused) && rehearsed.open.is_none()
    };
    let refused = boundaries.iter().any(|rehearsed| rehearsed.conduct == Conduct::Refused);
    Report {
        version: VERSION,
        at,
        lock: Lock {
            namespace: lock.metadata.namespace.clone().unwrap_or_default(),
            name: lock.metadata.name.clone().unwrap_or_default(),
            class: lock.spec.class,
            verdict: status.and_then(|status| status.verdict),
            lease: lock.spec.coordinator.lease.as_ref().map(|lease| lease.name.clone()),
            epoch: status.and_then(|status| status.epoch),
            owner: status.and_then(|status| status.grant.as_ref()).map(|grant| grant.holder.as_str().to_owned()),
        },
        passed: refused && boundaries.iter().all(is_good) && workers.as_ref().is_none_or(Workers::were_fenced),
        boundaries,
        workers,
        untested,
    }
}

fn rehearsed(asked: &Asked) -> Rehearsed {
    let status = asked.found.as_ref().and_then(|boundary| boundary.status.as_ref());
    let verdict = status.and_then(|status| status.verdict);
    let drill = match &asked.answer {
        Answer::Made(drill) if why_not(asked.found.as_ref()).is_none() => Some(drill.as_ref()),
        _ => None,
    };
    let (conduct, why) = conduct(asked, drill);
    let declared = asked.found.as_ref().and_then(|boundary| boundary.metadata.generation);
    let is_judged = status.is_none_or(|status| status.observed_generation == declared);
    let is_open = !is_judged || !matches!(verdict, Some(BoundaryVerdict::Proven | BoundaryVerdict::RiskAccepted));
    let open = asked.found.as_ref().filter(|_| is_open).map(|boundary| {
        if !is_judged {
            return "NotJudged: its declaration was changed since the operator judged it".to_owned();
        }
        let reason = status.and_then(|status| status.reason.as_deref()).unwrap_or("NotJudged");
        format!("{reason}: {}", said(boundary))
    });
    Rehearsed {
        name: asked.name.clone(),
        type_: asked.found.as_ref().map(|boundary| boundary.spec.type_),
        conduct,
        why,
        verdict,
        open,
        server: status.and_then(|status| status.proof.as_ref()).map(|proof| proof.server.clone()),
        refused: drill.map_or(0, |drill| drill.probes.iter().filter_map(|probe| probe.refused).sum()),
        drill: drill.cloned(),
    }
}

fn conduct(asked: &Asked, drill: Option<&Drill>) -> (Conduct, Option<String>) {
    let not = |why: String| (Conduct::NotTested, Some(why));
    let Some(drill) = drill else {
        let why = why_not(asked.found.as_ref());
        return match &asked.answer {
            Answer::None(no_answer) => not(why.unwrap_or_else(|| no_answer.clone())),
            Answer::Made(_) => not(why.unwrap_or_default()),
        };
    };
    if let Some(why) = of(drill, ProbeOutcome::Failed) {
        return (Conduct::Failed, Some(why));
    }
    let declared = asked.found.as_ref().and_then(|boundary| boundary.metadata.generation);
    if drill.generation != declared {
        return not("its declaration was changed since it was examined: drill again".into());
    }
    if let Some(why) = &drill.failure {
        return not(why.clone());
    }
    if let Some(why) = of(drill, ProbeOutcome::Inconclusive) {
        return not(why);
    }
    let is_refused = drill.probes.iter().any(|probe| probe.refused.is_some());
    if asked.found.as_ref().is_some_and(|boundary| boundary.spec.observes()) {
        return not("its guard only observes (mode: Observe): it refuses nobody".into());
    }
    if is_refused { (Conduct::Refused, None) } else { not(asked.found.as_ref().map_or_else(String::new, said)) }
}

/// The probes that came out so, as one text.
fn of(drill: &Drill, outcome: ProbeOutcome) -> Option<String> {
    let mut probes = drill.probes.iter().filter(|probe| probe.outcome == outcome);
    let DrillProbe { name, detail, .. } = probes.next()?;
    let detail = detail.as_deref().unwrap_or("it is not known why");
    Some(format!("{name}: {detail}{}", more(probes.count())))
}

/// What of a boundary could not be tested.
fn left_out(asked: &Asked, rehearsed: &Rehearsed) -> Vec<Untested> {
    let named = |why: &String| Untested { what: format!("write boundary {:?}", asked.name), why: why.clone() };
    let whole = rehearsed.why.iter().filter(|_| rehearsed.conduct == Conduct::NotTested).map(named);
    let limits = asked.found.iter().filter_map(|boundary| boundary.status.as_ref()).flat_map(|status| &status.limits);
    let limits =
        limits.map(|limit| Untested { what: format!("write boundary {:?}, {}", asked.name, limit.name), why: limit.detail.clone() });
    whole.chain(limits).collect()
}

fn unseen(refusals: &RealRefusals) -> Option<Untested> {
    let why = match refusals.refused {
        None => "refused writes are not counted there: what the first worker was told is in its own output",
        Some(0) => "it refused nothing while the first worker was awake: that one may not have written there",
        Some(_) => return None,
    };
    Some(Untested { what: format!("write boundary {:?}, with real workers", refusals.boundary), why: why.into() })
}

impl Workers {
    /// Whether the whole play was acted, and the obsolete worker was refused somewhere.
    fn were_fenced(&self) -> bool {
        self.failure.is_none() && self.second.is_some() && self.refusals.iter().any(|r| r.refused.is_some_and(|refused| refused > 0))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn lock() -> FencedLock {
        serde_json::from_value(
            json!({"apiVersion": "fencedlock.dev/v1alpha1", "kind": "FencedLock", "metadata": {"name": "a", "namespace": "n"},
            "spec": {"class": "CorrectnessCritical", "coordinator": {"lease": {"name": "a"}}}}),
        )
        .unwrap()
    }

    fn boundary(type_: &str, verdict: &str, more: Value) -> WriteBoundary {
        let mut object = json!({"apiVersion": "fencedlock.dev/v1alpha1", "kind": "WriteBoundary", "metadata": {"name": "b"},
            "spec": {"lockRef": {"name": "a"}, "type": type_}, "status": {"verdict": verdict, "reason": "R",
            "conditions": [{"type": "Proven", "status": "False", "reason": "R", "message": "why", "lastTransitionTime": "2026-12-04T00:00:00Z"}]}});
        if let Value::Object(more) = more {
            object["spec"].as_object_mut().unwrap().extend(more);
        }
        serde_json::from_value(object).unwrap()
    }

    fn drill(probes: &Value, failure: Option<&str>) -> Answer {
        let drill = json!({"request": "r", "beganAt": "2026-12-04T00:00:00Z", "tookMicroseconds": 7, "probes": probes, "failure": failure});
        Answer::Made(serde_json::from_value(drill).unwrap())
    }

    fn of(found: Option<WriteBoundary>, answer: Answer) -> Report {
        report(&lock(), &[Asked { name: "b".into(), found, answer }], None, Time("2026-12-04T00:00:00Z".parse().unwrap()))
    }

    fn refused() -> Value {
        json!([{"name": "StaleRefused", "outcome": "Passed", "refused": 2, "words": "no"},
               {"name": "CleanConnection", "outcome": "NotApplicable", "detail": "one request"}])
    }

    #[test]
    fn only_what_was_refused_and_leaves_nothing_open_passes() {
        let proven = || Some(boundary("Postgres", "Proven", json!({"mode": "Enforce"})));
        let good = of(proven(), drill(&refused(), None));
        assert!(good.passed && good.boundaries[0].refused == 2 && good.boundaries[0].open.is_none(), "{good:?}");
        // The twins: each lacks one thing.
        let failed = json!([{"name": "StaleRefused", "outcome": "Failed", "detail": "was accepted"}, {"name": "X", "outcome": "Passed", "refused": 1}]);
        let unclear = json!([{"name": "StaleRefused", "outcome": "Inconclusive", "detail": "a time-out"}, {"name": "X", "outcome": "Passed", "refused": 1}]);
        let accepted = json!([{"name": "CurrentAccepted", "outcome": "Passed"}]);
        let cases = [
            (proven(), drill(&failed, Some("it broke off")), Conduct::Failed, "StaleRefused: was accepted"),
            (proven(), drill(&unclear, None), Conduct::NotTested, "StaleRefused: a time-out"),
            (proven(), drill(&refused(), Some("the database is gone")), Conduct::NotTested, "the database is gone"),
            (proven(), drill(&accepted, None), Conduct::NotTested, "why"),
            (proven(), Answer::None("no answer".into()), Conduct::NotTested, "no answer"),
            (
                Some(boundary("Postgres", "Proven", json!({"mode": "Observe"}))),
                drill(&json!([]), None),
                Conduct::NotTested,
                "only observes",
            ),
            (Some(boundary("Postgres", "Invalid", json!({}))), drill(&refused(), None), Conduct::NotTested, "is invalid: why"),
            (None, Answer::None(String::new()), Conduct::NotTested, "is not there"),
        ];
        for (found, answer, conduct, why) in cases {
            let report = of(found, answer);
            let rehearsed = &report.boundaries[0];
            assert!(!report.passed && rehearsed.conduct == conduct, "{why}: {report:?}");
            assert!(rehearsed.why.as_ref().is_some_and(|text| text.contains(why)), "{why}: {report:?}");
            assert_eq!(report.untested.len(), if conduct == Conduct::NotTested { 2 } else { 1 }, "{report:?}");
        }
        // It refused, and a way around it is known.
        let around = of(Some(boundary("Postgres", "Violated", json!({"mode": "Enforce"}))), drill(&refused(), None));
        assert!(!around.passed && around.boundaries[0].conduct == Conduct::Refused, "{around:?}");
        assert_eq!(around.boundaries[0].open.as_deref(), Some("R: why"));
        // What was examined, or judged, was another declaration than the one that stands now.
        let stands = |judged: i64| {
            let mut found = boundary("Postgres", "Proven", json!({"mode": "Enforce"}));
            found.metadata.generation = Some(2);
            found.status.as_mut().unwrap().observed_generation = Some(judged);
            Some(found)
        };
        let examined = |generation: i64| {
            let Answer::Made(mut drill) = drill(&refused(), None) else { unreachable!() };
            drill.generation = Some(generation);
            Answer::Made(drill)
        };
        assert!(of(stands(2), examined(2)).passed);
        let changed = of(stands(2), examined(1));
        assert!(!changed.passed && changed.boundaries[0].conduct == Conduct::NotTested, "{changed:?}");
        assert!(changed.boundaries[0].why.as_ref().is_some_and(|why| why.contains("drill again")), "{changed:?}");
        let unjudged = of(stands(1), examined(2));
        assert!(!unjudged.passed && unjudged.boundaries[0].open.as_ref().is_some_and(|open| open.starts_with("NotJudged")), "{unjudged:?}");
        assert!(!report(&lock(), &[], None, around.at).passed, "nothing was tested");
    }

    /// A receiver that cannot refuse is never tested, and only fails a drill while nobody has accepted that.
    #[test]
    fn an_external_receiver_is_told_of_and_never_passes_for_one_that_refused() {
        let db = || Asked {
            name: "db".into(),
            found: Some(boundary("Postgres", "Proven", json!({"mode": "Enforce"}))),
            answer: drill(&refused(), None),
        };
        for (verdict, passed) in [("RiskAccepted", true), ("CannotEnforce", false)] {
            let mail = boundary("External", verdict, json!({"external": {"receiver": "the mail relay"}}));
            let mail = Asked { name: "mail".into(), found: Some(mail), answer: drill(&refused(), None) };
            let both = report(&lock(), &[db(), mail.clone()], None, Time("2026-12-04T00:00:00Z".parse().unwrap()));
            assert_eq!(both.passed, passed, "{both:?}");
            assert!(
                both.untested.iter().any(|u| u.what.contains("mail") && u.why.contains("the mail relay cannot compare epochs")),
                "{both:?}"
            );
            assert!(!report(&lock(), &[mail], None, both.at).passed, "nothing refused");
        }
    }

    #[test]
    fn real_workers_pass_only_when_the_obsolete_one_was_refused() {
        let asked = [Asked {
            name: "b".into(),
            found: Some(boundary("Postgres", "Proven", json!({"mode": "Enforce"}))),
            answer: drill(&refused(), None),
        }];
        let acted = |refused: Option<u64>| Workers {
            second: Some(Worker::default()),
            refusals: vec![RealRefusals { boundary: "b".into(), refused }],
            ..Workers::default()
        };
        let at = Time("2026-12-04T00:00:00Z".parse().unwrap());
        let of = |workers: Workers| report(&lock(), &asked, Some(workers), at.clone());
        assert!(of(acted(Some(3))).passed && of(acted(Some(3))).untested.is_empty());
        for workers in [
            acted(Some(0)),
            acted(None),
            Workers { failure: Some("x".into()), ..acted(Some(3)) },
            Workers { second: None, ..acted(Some(3)) },
        ] {
            assert!(!of(workers.clone()).passed, "{workers:?}");
        }
        assert!(of(acted(None)).untested[0].why.contains("not counted"));
    }
}
