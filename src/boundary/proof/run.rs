//! Carries a [`super::script`] out on a canary and judges each answer. What decides is pure: [`judge`], [`judge_race`].

use std::time::{Duration, Instant};

use futures::future::BoxFuture;

use super::{
    Answers, Failure, Outcome, Probe, Profile, Refusal,
    script::{Claim, Expect, Kind, Race, Step, Via, script},
};
use crate::boundary::BackendError;

/// What a receiver answered to a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It took it.
    Accepted,
    /// The declared rejection: in which words.
    Rejected(String),
    /// Neither: an error, a time-out, a lost connection.
    Unclear(String),
}

/// A write to a canary.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// What it does.
    pub kind: Kind,
    /// What it carries.
    pub claim: &'a Claim,
    /// Over what it arrives.
    pub via: Via,
    /// What it writes, different each time.
    pub marker: &'a str,
}

/// What came of a race.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raced {
    /// Whether the old owner's write was there when the activation returned.
    pub landed_by_activation: bool,
    /// Whether it was there in the end.
    pub landed: bool,
    /// What the old owner was told.
    pub answer: Answer,
}

/// Something that is guarded as the real thing is, and that nobody else uses. An error is a failure of the canary itself, after which
/// nothing more can be tried; what a receiver says to a write is an [`Answer`].
pub trait Canary: Send {
    /// Brings it to the state in which it has never had an owner, and holds nothing.
    fn reset(&mut self) -> BoxFuture<'_, Result<(), BackendError>>;
    /// Moves its fence up; `None` is nobody. A receiver that learns of an owner by its write does nothing.
    fn activate(&mut self, epoch: u64, holder: Option<&'static str>) -> BoxFuture<'_, Result<(), BackendError>>;
    /// Opens a connection that writes under a claim and stays open.
    fn open<'a>(&'a mut self, claim: &'a Claim, marker: &'a str) -> BoxFuture<'a, Result<(), BackendError>>;
    /// Writes.
    fn write<'a>(&'a mut self, write: Write<'a>) -> BoxFuture<'a, Result<Answer, BackendError>>;
    /// What it holds now: the marker of the last write, `None` when there is nothing.
    fn stored(&mut self) -> BoxFuture<'_, Result<Option<String>, BackendError>>;
    /// Lets an old owner's write be under way while the next owner is activated, or first writes.
    fn race<'a>(
        &'a mut self,
        old: &'a Claim,
        next: (u64, &'static str),
        race: Race,
        marker: &'a str,
    ) -> BoxFuture<'a, Result<Raced, BackendError>>;
}

/// What an answer to a write shows, given what was stored before and after it.
pub fn judge(expect: Expect, write: &Write<'_>, answer: &Answer, before: Option<&str>, after: Option<&str>) -> Outcome {
    let has_happened = match write.kind {
        Kind::Upsert => after == Some(write.marker),
        Kind::Delete => before.is_some() && after.is_none(),
    };
    let what = describe(write);
    let failed = |failure, how: &str| Outcome::Failed(failure, format!("{what} {how}"));
    match (expect, answer) {
        (Expect::Rejected, _) if has_happened || before != after => failed(Failure::Accepted, "took effect"),
        (Expect::Rejected, Answer::Accepted) => failed(Failure::Accepted, "was accepted"),
        (Expect::Rejected, Answer::Rejected(_)) => Outcome::Passed,
        (Expect::Accepted, Answer::Accepted) if has_happened => Outcome::Passed,
        (Expect::Accepted, Answer::Accepted) => failed(Failure::Refused, "was accepted and is not there"),
        (Expect::Accepted, Answer::Rejected(why)) => failed(Failure::Refused, &format!("was refused: {why}")),
        (_, Answer::Unclear(why)) => Outcome::Inconclusive(format!("{what}: {why}")),
    }
}

/// What a race shows: an old owner's write must not land after the activation returned.
pub fn judge_race(raced: &Raced, race: Race) -> Outcome {
    let what = match race {
        Race::HasWritten => "a write of the old owner that was not committed when the next one was activated",
        Race::HasBegun => "a transaction of the old owner that began before the next one was activated",
    };
    match (&raced.answer, raced.landed_by_activation, raced.landed) {
        (_, false, true) => Outcome::Failed(Failure::Accepted, format!("{what} took effect afterwards")),
        (Answer::Accepted, false, false) => Outcome::Failed(Failure::Accepted, format!("{what} was accepted")),
        (Answer::Unclear(why), _, false) => Outcome::Inconclusive(format!("{what}: {why}")),
        (Answer::Rejected(_), _, false) | (_, true, true) => Outcome::Passed,
        (Answer::Accepted, true, false) => Outcome::Inconclusive(format!("{what} was there and is not any more")),
    }
}

fn describe(write: &Write<'_>) -> String {
    let what = match write.kind {
        Kind::Upsert => "a write",
        Kind::Delete => "a deletion",
    };
    let via = match write.via {
        Via::Own => "",
        Via::HeldOpen => " over a connection that was open before",
        Via::Reused => " over a connection that had carried a claim",
        Via::AfterRemoval => " after the thing was deleted",
    };
    match write.claim {
        Claim::Absent => format!("{what} without a claim{via}"),
        Claim::Made { foreign, epoch, holder, .. } => {
            let foreign = if *foreign { " of another lock" } else { "" };
            format!("{what} under epoch {epoch:?} of holder {holder:?}{foreign}{via}")
        }
    }
}

/// What tells the markers of one run from those of another.
pub fn id() -> String {
    format!("{:x}", std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos())
}

/// Carries out the whole script. When the canary fails, everything that was not answered yet could not be told.
pub async fn run(canary: &mut (dyn Canary + '_), profile: &Profile, run_id: &str) -> Answers {
    let (mut answers, mut done) = (Answers::default(), Done::default());
    let steps = script(profile);
    for (number, step) in steps.iter().enumerate() {
        let marker = format!("{run_id}-{number}");
        if let Err(error) = carry_out(canary, step, number == 0, &marker, &mut done, &mut answers).await {
            let why = format!("the canary could not be used: {error}");
            for probe in steps[number..].iter().filter_map(probe_of) {
                answers.add(probe, Outcome::Inconclusive(why.clone()));
            }
            break;
        }
    }
    answers
}

fn probe_of(step: &Step) -> Option<Probe> {
    match step {
        Step::Write { probe, .. } => Some(*probe),
        Step::Race { .. } => Some(Probe::RaceRefused),
        Step::Activate(..) | Step::Open(_) => None,
    }
}

/// What is stored, as far as it was read.
#[derive(Default)]
struct Done {
    stored: Option<String>,
}

async fn carry_out(
    canary: &mut (dyn Canary + '_),
    step: &Step,
    is_first: bool,
    marker: &str,
    done: &mut Done,
    answers: &mut Answers,
) -> Result<(), BackendError> {
    if is_first {
        canary.reset().await?;
        done.stored = canary.stored().await?;
    }
    match step {
        Step::Activate(epoch, holder) => {
            let began = Instant::now();
            canary.activate(*epoch, *holder).await?;
            answers.activated(began.elapsed());
            Ok(())
        }
        Step::Open(claim) => {
            canary.open(claim, marker).await?;
            done.stored = canary.stored().await?;
            Ok(())
        }
        Step::Write { probe, kind, claim, via, expect } => {
            let write = Write { kind: *kind, claim, via: *via, marker };
            let began = Instant::now();
            let answer = canary.write(write).await?;
            let took = began.elapsed();
            let after = canary.stored().await?;
            let outcome = judge(*expect, &write, &answer, done.stored.as_deref(), after.as_deref());
            note_refusal(answers, *probe, &outcome, answer, took);
            answers.add(*probe, outcome);
            done.stored = after;
            Ok(())
        }
        Step::Race { old, next, race } => {
            let began = Instant::now();
            let raced = canary.race(old, *next, *race, marker).await?;
            let outcome = judge_race(&raced, *race);
            note_refusal(answers, Probe::RaceRefused, &outcome, raced.answer, began.elapsed());
            answers.add(Probe::RaceRefused, outcome);
            done.stored = canary.stored().await?;
            Ok(())
        }
    }
}

/// Keeps the words of a refusal that was the right answer.
fn note_refusal(answers: &mut Answers, probe: Probe, outcome: &Outcome, answer: Answer, took: Duration) {
    if let (Outcome::Passed, Answer::Rejected(words)) = (outcome, answer) {
        answers.refused(Refusal { probe, words, count: 1, took });
    }
}
