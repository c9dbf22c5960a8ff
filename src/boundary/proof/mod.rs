//! What a proof is: its probes, what each of them may answer, when a proof is complete, when it is void, and what it lets a
//! verdict say (design: boundaries.md section 2). Pure; [`run`] drives a backend's canary through a [`script`].
//!
//! Start with [`right`], the one table of right answers.

use std::{fmt, time::Duration};

use k8s_openapi::jiff::Timestamp;

use super::Fence;
use crate::{
    api::{self, Contract, DrillProbe, LimitName, ProbeOutcome, ProbeResult, WritesPerEpoch, conditions::shorten},
    audit::boundary::{ProofSeen, Seen},
};

pub mod run;
pub mod script;

/// One question that a proof asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Probe {
    /// A write by the active owner is accepted and read back.
    CurrentAccepted,
    /// The epoch before, with its own holder, is refused.
    StaleRefused,
    /// The same epoch again is answered as `writesPerEpoch` says.
    RepeatFollowsContract,
    /// After the fence moved on, its owner writes.
    NextAccepted,
    /// A stale write is refused also where the new owner has not written.
    UntouchedRefused,
    /// An epoch many terms old is refused.
    AncientRefused,
    /// No claim, or none that can be one, is refused.
    MissingClaimRefused,
    /// An epoch far above the fence is refused, and the owner is not locked out.
    EnormousRefused,
    /// When nobody owns the lock, every claim is refused.
    NobodyRefused,
    /// Epochs are compared as numbers: 9 before 10, 99 before 100.
    DigitBoundaryOrdered,
    /// Another lock's claim is refused, and the right epoch with the wrong holder.
    ForeignClaimRefused,
    /// A stale write is refused also after the thing was deleted.
    RecreatedRefused,
    /// A stale write that is under way while the activation commits ends before it or is refused.
    RaceRefused,
    /// A connection that was opened before the activation is refused after it.
    HeldOpenRefused,
    /// After a transaction, the same connection carries no claim.
    CleanConnection,
}

impl Probe {
    /// Every probe, in the order in which they are shown.
    pub const ALL: [Self; 15] = [
        Self::CurrentAccepted,
        Self::StaleRefused,
        Self::RepeatFollowsContract,
        Self::NextAccepted,
        Self::UntouchedRefused,
        Self::AncientRefused,
        Self::MissingClaimRefused,
        Self::EnormousRefused,
        Self::NobodyRefused,
        Self::DigitBoundaryOrdered,
        Self::ForeignClaimRefused,
        Self::RecreatedRefused,
        Self::RaceRefused,
        Self::HeldOpenRefused,
        Self::CleanConnection,
    ];
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// How a write says under which epoch it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClaimForm {
    /// As free text, which can be malformed: a setting, an annotation.
    Text,
    /// As a parameter that the receiver takes as a number.
    Number,
    /// Not at all: the receiver knows who asks.
    Identity,
}

/// Which kinds of writes a guard judges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Judges {
    /// All of them.
    Everything,
    /// All but creation: a policy that finds its objects by their labels does not see one without.
    WhatIsThere,
    /// All of them, because what is not there is known by its name.
    WhatIsNamed,
    /// Its own statement and no other: who else may write or delete is for the audit to find.
    ItsStatement,
}

/// What decides which answers of a guard are right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Profile {
    /// What is to be proven.
    pub contract: Contract,
    /// How many writes an owner may make under one epoch.
    pub writes: WritesPerEpoch,
    /// How a write carries its epoch.
    pub claim: ClaimForm,
    /// Whether a write names its holder, or the receiver knows it.
    pub names_holder: bool,
    /// Whether a claim can stay on a connection that is given to somebody else.
    pub stays_on_connection: bool,
    /// Which kinds of writes the guard judges.
    pub judges: Judges,
}

/// What a probe has to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// It has to pass.
    MustPass,
    /// It has to pass, or its failure is a limit that somebody may accept.
    PassOrLimit(LimitName),
    /// It cannot pass, by the form of the claim: a limit that somebody may accept.
    Limit(LimitName),
    /// It means nothing here: why.
    NotApplicable(&'static str),
}

/// The table of right answers (boundaries.md sections 2 and 3). Total: every profile has an answer to every probe.
pub const fn right(probe: Probe, profile: &Profile) -> Right {
    let after_acceptance = matches!(profile.contract, Contract::AfterAcceptance);
    match (probe, profile.claim) {
        (Probe::UntouchedRefused, _) if after_acceptance => {
            Right::NotApplicable("under AfterAcceptance a receiver knows of a new owner by its first write")
        }
        (Probe::NobodyRefused, _) if after_acceptance => Right::PassOrLimit(LimitName::NobodyNotRefused),
        (Probe::EnormousRefused, ClaimForm::Number) => Right::PassOrLimit(LimitName::EpochNotBounded),
        (Probe::EnormousRefused | Probe::DigitBoundaryOrdered, ClaimForm::Identity) => {
            Right::NotApplicable("a request carries no epoch that could be wrong")
        }
        (Probe::RecreatedRefused, _) if matches!(profile.judges, Judges::WhatIsThere) => Right::Limit(LimitName::CreateNotFenced),
        (Probe::ForeignClaimRefused, _) if !profile.names_holder => Right::Limit(LimitName::EpochNotBoundToHolder),
        (Probe::CleanConnection, _) if !profile.stays_on_connection => Right::NotApplicable("a claim belongs to one request"),
        _ => Right::MustPass,
    }
}

/// In which way a probe failed. It decides between `Violated` and `Unproven`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Failure {
    /// What has to be refused was accepted.
    Accepted,
    /// What has to be accepted was refused, or was lost.
    Refused,
}

/// What came of one probe. Ordered: of several results, the last one counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// It means nothing here: why.
    NotApplicable(String),
    /// Every answer was the right one.
    Passed,
    /// It could not run, or an answer was neither an acceptance nor the declared rejection.
    Inconclusive(String),
    /// A must-accept was refused, or a must-refuse accepted.
    Failed(Failure, String),
}

impl Outcome {
    fn result(&self, probe: Probe) -> ProbeResult {
        let (outcome, detail) = match self {
            Self::NotApplicable(why) => (ProbeOutcome::NotApplicable, Some(why)),
            Self::Passed => (ProbeOutcome::Passed, None),
            Self::Inconclusive(why) => (ProbeOutcome::Inconclusive, Some(why)),
            Self::Failed(_, why) => (ProbeOutcome::Failed, Some(why)),
        };
        ProbeResult { name: probe.to_string(), outcome, detail: detail.map(|why| shorten(why, MAX_DETAIL)) }
    }
}

/// The longest detail of a probe in a status, in bytes: a status stays under 8 KiB.
const MAX_DETAIL: usize = 160;

/// The longest text of a probe in what a status tells of a drill, in bytes.
const MAX_WORDS: usize = 96;

/// What the probes of one run said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    said: Vec<(Probe, Outcome)>,
    refusals: Vec<Refusal>,
    activation: Duration,
}

/// Writes that a receiver refused, as it had to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What they were made for.
    pub probe: Probe,
    /// In which words the first of them was refused.
    pub words: String,
    /// How many there were.
    pub count: u32,
    /// The longest time that one took; a race's includes the activation.
    pub took: Duration,
}

impl Answers {
    /// Takes note of an answer. Of several to one probe the worst one stands.
    pub fn add(&mut self, probe: Probe, outcome: Outcome) {
        match self.said.iter_mut().find(|(known, _)| *known == probe) {
            Some((_, known)) if *known < outcome => *known = outcome,
            Some(_) => {}
            None => self.said.push((probe, outcome)),
        }
    }

    /// Takes note of writes that were refused.
    pub fn refused(&mut self, refusal: Refusal) {
        match self.refusals.iter_mut().find(|known| known.probe == refusal.probe) {
            Some(known) => (known.count, known.took) = (known.count.saturating_add(refusal.count), known.took.max(refusal.took)),
            None => self.refusals.push(refusal),
        }
    }

    /// Takes note of how long an activation of the canary took.
    pub fn activated(&mut self, took: Duration) {
        self.activation = self.activation.max(took);
    }

    /// Takes note of other answers.
    pub fn extend(&mut self, others: Self) {
        for (probe, outcome) in others.said {
            self.add(probe, outcome);
        }
        for refusal in others.refusals {
            self.refused(refusal);
        }
        self.activated(others.activation);
    }

    /// Puts a name in front of what failed, where there is one.
    pub fn name_failures(&mut self, name: impl Fn(Probe, Failure) -> Option<&'static str>) {
        for (probe, outcome) in &mut self.said {
            if let Outcome::Failed(failure, why) = outcome
                && let Some(name) = name(*probe, *failure)
            {
                *why = format!("{name}: {why}");
            }
        }
    }

    /// What was said to a probe.
    pub fn of(&self, probe: Probe) -> Option<&Outcome> {
        self.said.iter().find(|(known, _)| *known == probe).map(|(_, outcome)| outcome)
    }

    /// What was refused for a probe.
    pub fn refusal(&self, probe: Probe) -> Option<&Refusal> {
        self.refusals.iter().find(|refusal| refusal.probe == probe)
    }

    /// The longest time that an activation of the canary took; zero when there was none.
    pub const fn activation(&self) -> Duration {
        self.activation
    }
}

/// A way around a guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bypass {
    /// Whether one of the writers, or an old owner, can take it.
    pub by_writer: bool,
    /// Who or what, how, and the next step.
    pub text: String,
}

/// Something that a proof cannot cover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedLimit {
    /// Which.
    pub name: LimitName,
    /// What it means here.
    pub detail: String,
}

/// What one look at a boundary found: its guard, its server, its probes, the ways around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examination {
    /// What the probes had to answer.
    pub profile: Profile,
    /// The identity of the server: when it changes, a proof is void.
    pub server: String,
    /// The hash of the guard: when it changes, a proof is void.
    pub guard: String,
    /// What is wrong with the installed guard.
    pub guard_altered: Option<String>,
    /// The guard of another lock that stands on the same thing: who has it and what to do.
    pub shared: Option<String>,
    /// The probes; `None` when none was tried because the guard only counts.
    pub answers: Option<Answers>,
    /// Ways around the guard.
    pub bypasses: Vec<Bypass>,
    /// Why the fence may be lost.
    pub not_durable: Option<String>,
    /// What the probes cannot cover, by what was found out otherwise.
    pub limits: Vec<NamedLimit>,
    /// The fence.
    pub fence: Option<Fence>,
    /// Writes that were refused, or in mode Observe would have been, since the guard was installed; probes do not count.
    pub refused: Option<u64>,
    /// The last of them, in words.
    pub last_refused: Option<String>,
    /// What people should know and that is no finding.
    pub notes: Vec<String>,
    /// The guards of other boundaries that the same place has.
    pub others: Vec<OtherGuard>,
    /// Why the examination ended early. What was found by then counts all the same.
    pub unfinished: Option<String>,
}

/// The guard of another boundary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherGuard {
    /// `namespace/name` of the boundary that it was installed for.
    pub boundary: String,
    /// What it stands on.
    pub tables: Vec<String>,
}

/// A complete proof, as it is remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proven {
    /// When it was made.
    pub at: Timestamp,
    /// What it proves.
    pub contract: Contract,
    /// The generation of the declaration.
    pub generation: Option<i64>,
    /// The guard.
    pub guard: String,
    /// The server.
    pub server: String,
    /// The probes.
    pub probes: Vec<ProbeResult>,
}

impl Proven {
    /// The proof that a status remembers.
    pub fn recorded(proof: &api::Proof) -> Self {
        Self {
            at: proof.proven_at.0,
            contract: proof.contract.unwrap_or(Contract::AfterAcceptance),
            generation: proof.generation,
            guard: proof.guard.clone(),
            server: proof.server.clone(),
            probes: proof.probes.clone(),
        }
    }

    /// Why it counts no longer, if one of what it is bound to is another one now (boundaries.md section 2).
    pub fn void(&self, generation: Option<i64>, guard: &str, server: &str) -> Option<String> {
        let again = "nothing that was proven before counts, and it is proven again";
        if self.generation != generation {
            return Some(format!("the declaration was changed after the last proof: {again}"));
        }
        if self.server != server {
            return Some(format!(
                "the server, the database or a table is another one than at the last proof ({} before): {again}",
                self.server
            ));
        }
        (self.guard != guard).then(|| format!("the guard is another one than at the last proof: {again}"))
    }
}

/// What an examination lets a verdict say, given the last complete proof. Returns the proof that stands afterwards: the new one when
/// every applicable probe passed; none when one failed or a way around was found; else the one before (boundaries.md section 2).
pub fn conclude(examined: &Examination, before: Option<&Proven>, generation: Option<i64>, now: Timestamp) -> (Seen, Option<Proven>) {
    let mut seen = Seen {
        examined: true,
        unfinished: examined.unfinished.clone(),
        inconclusive: examined.unfinished.clone(),
        shared: examined.shared.clone(),
        guard_altered: examined.guard_altered.clone(),
        writer_bypass: told(examined, true),
        bypass: told(examined, false),
        not_durable: examined.not_durable.clone(),
        fence: examined.fence.as_ref().map(Fence::owner),
        limits: examined.limits.iter().map(|limit| limit.name).collect(),
        ..Seen::default()
    };
    let mut complete = is_whole(examined);
    let outcomes = outcomes(examined);
    for (probe, outcome, limit) in &outcomes {
        seen.limits.extend(limit.filter(|limit| !seen.limits.contains(limit)));
        match outcome {
            Outcome::Passed | Outcome::NotApplicable(_) => {}
            Outcome::Inconclusive(why) => {
                complete = false;
                seen.inconclusive.get_or_insert_with(|| format!("{probe} could not tell: {why}"));
            }
            Outcome::Failed(failure, why) => {
                complete = false;
                let place = if *failure == Failure::Accepted { &mut seen.stale_accepted } else { &mut seen.owner_refused };
                place.get_or_insert_with(|| format!("{probe} failed: {why}"));
            }
        }
    }
    let is_over = seen.stale_accepted.is_some()
        || seen.owner_refused.is_some()
        || seen.guard_altered.is_some()
        || seen.writer_bypass.is_some()
        || seen.bypass.is_some();
    let proven = if is_over {
        None
    } else if complete {
        let proven = Proven {
            at: now,
            contract: examined.profile.contract,
            generation,
            guard: examined.guard.clone(),
            server: examined.server.clone(),
            probes: results(&outcomes),
        };
        Some(proven)
    } else {
        before.cloned()
    };
    seen.proof = proven.as_ref().map(|proven| ProofSeen {
        at: proven.at,
        contract: proven.contract,
        void: proven.void(generation, &examined.guard, &examined.server),
    });
    (seen, proven)
}

/// How each probe came out, and the limit that it turned out to be. Empty when none was tried.
pub fn outcomes(examined: &Examination) -> Vec<(Probe, Outcome, Option<LimitName>)> {
    let limited = |limit: LimitName, why: &str| (Outcome::NotApplicable(format!("limit {limit}: {why}")), Some(limit));
    let outcome = |answers: &Answers, probe| {
        let answered = answers.of(probe).cloned();
        match (right(probe, &examined.profile), answered) {
            (Right::NotApplicable(why), _) => (Outcome::NotApplicable(why.to_owned()), None),
            (Right::Limit(limit), _) => limited(limit, "the guard's form rules it out"),
            (Right::PassOrLimit(limit), Some(Outcome::Failed(Failure::Accepted, why))) => limited(limit, &why),
            (Right::PassOrLimit(_) | Right::MustPass, Some(answered)) => (answered, None),
            (Right::PassOrLimit(_) | Right::MustPass, None) => (Outcome::Inconclusive("it was not tried".to_owned()), None),
        }
    };
    let all = |answers: &Answers| {
        Probe::ALL.map(|probe| {
            let (outcome, limit) = outcome(answers, probe);
            (probe, outcome, limit)
        })
    };
    examined.answers.iter().flat_map(all).collect()
}

/// The outcomes as a status shows them.
pub fn results(outcomes: &[(Probe, Outcome, Option<LimitName>)]) -> Vec<ProbeResult> {
    outcomes.iter().map(|(probe, outcome, _)| outcome.result(*probe)).collect()
}

/// What each probe was answered, as a status tells of a drill: also how often something was refused, in which words and how soon.
pub fn drilled(examined: &Examination) -> Vec<DrillProbe> {
    let probe = |(probe, outcome, _): &(Probe, Outcome, Option<LimitName>)| {
        let ProbeResult { name, outcome, detail } = outcome.result(*probe);
        let refusal = examined.answers.as_ref().and_then(|answers| answers.refusal(*probe));
        DrillProbe {
            name,
            outcome,
            detail: detail.map(|why| shorten(&why, MAX_WORDS)),
            refused: refusal.map(|refusal| refusal.count),
            words: refusal.map(|refusal| shorten(&refusal.words, MAX_WORDS)),
            took_microseconds: refusal.map(|refusal| micros(refusal.took)),
        }
    };
    outcomes(examined).iter().map(probe).collect()
}

/// Whole microseconds, of any duration that an examination can take.
pub fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// What a limit means where nothing more is known.
pub const fn limit_detail(limit: LimitName) -> &'static str {
    match limit {
        LimitName::CannotEnforce => "the receiver cannot compare epochs",
        LimitName::FailoverMayForget => "a failover may forget the fence",
        LimitName::EpochNotBounded => "a writer may choose an enormous epoch, which locks the owner out",
        LimitName::EpochNotBoundToHolder => "the guard compares the epoch and not the holder",
        LimitName::NobodyNotRefused => "the last owner is admitted although nobody owns the lock",
        LimitName::CreateNotFenced => "creating the object is not fenced",
        LimitName::ScaleNotFenced => "/scale is not fenced",
        LimitName::WholeObjectWritersRefused => "an owner that writes objects built from scratch is refused",
    }
}

/// Whether everything was looked at that a proof needs.
fn is_whole(examined: &Examination) -> bool {
    examined.answers.is_some() && examined.guard_altered.is_none() && examined.shared.is_none() && examined.unfinished.is_none()
}

/// The ways around the guard that writers can take, or that only others can, in one text.
fn told(examined: &Examination, by_writer: bool) -> Option<String> {
    let mut texts = examined.bypasses.iter().filter(|bypass| bypass.by_writer == by_writer).map(|bypass| bypass.text.as_str());
    let first = texts.next()?;
    Some(format!("{first}{}", crate::audit::boundary::more(texts.count())))
}

#[cfg(test)]
mod tests;
