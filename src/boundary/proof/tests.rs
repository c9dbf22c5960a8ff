//! The table whole, each flaw by the probes that find it, and what folds into a verdict.

use std::collections::BTreeSet;

use futures::FutureExt;
use proptest::prelude::*;

use super::*;
use crate::boundary::memory::canary::{Flaw, MemoryCanary};

const MANAGED: Profile = MemoryCanary::MANAGED;
/// The application's own conditional update.
const STATEMENT: Profile = Profile {
    contract: Contract::AfterAcceptance,
    claim: ClaimForm::Number,
    names_holder: false,
    stays_on_connection: false,
    judges: Judges::ItsStatement,
    ..MANAGED
};

fn answers(profile: Profile, flaws: impl IntoIterator<Item = Flaw>) -> Answers {
    let mut canary = MemoryCanary::new(profile, flaws);
    run::run(&mut canary, &profile, "t").now_or_never().unwrap()
}

fn examined(profile: Profile, answers: Answers) -> Examination {
    Examination {
        profile,
        server: "s".into(),
        guard: "g".into(),
        guard_altered: None,
        shared: None,
        answers: Some(answers),
        bypasses: Vec::new(),
        not_durable: None,
        limits: Vec::new(),
        fence: None,
        refused: None,
        last_refused: None,
        notes: Vec::new(),
        others: Vec::new(),
        unfinished: None,
    }
}

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn profiles() -> Vec<Profile> {
    let mut all = Vec::new();
    for contract in [Contract::AfterActivation, Contract::AfterAcceptance] {
        for writes in [WritesPerEpoch::Once, WritesPerEpoch::Many, WritesPerEpoch::Sequenced] {
            for claim in [ClaimForm::Text, ClaimForm::Number, ClaimForm::Identity] {
                for (names_holder, stays_on_connection) in [(true, true), (true, false), (false, false)] {
                    let of_requests = Profile { contract, writes, claim, names_holder, stays_on_connection, judges: Judges::Everything };
                    all.push(of_requests);
                    all.push(Profile { judges: Judges::WhatIsThere, ..of_requests });
                    if claim == ClaimForm::Number {
                        all.push(Profile { judges: Judges::ItsStatement, ..of_requests });
                    }
                }
            }
        }
    }
    all
}

/// The table as it was meant, column by column: a change of one cell is a change of this text.
#[test]
fn the_table_of_right_answers() {
    let column = |profile: &Profile| -> Vec<String> {
        let cell = |probe| match right(probe, profile) {
            Right::MustPass => "must".to_owned(),
            Right::PassOrLimit(limit) => format!("or {limit}"),
            Right::Limit(limit) => format!("limit {limit}"),
            Right::NotApplicable(_) => "-".to_owned(),
        };
        Probe::ALL.map(cell).to_vec()
    };
    let managed = ["must"; 15];
    assert_eq!(column(&MANAGED), managed);
    let annotation = Profile { writes: WritesPerEpoch::Sequenced, stays_on_connection: false, ..MANAGED };
    let mut wanted = managed;
    wanted[14] = "-";
    assert_eq!(column(&annotation), wanted);
    let pod = Profile { claim: ClaimForm::Identity, stays_on_connection: false, judges: Judges::WhatIsThere, ..MANAGED };
    wanted = ["must"; 15];
    (wanted[7], wanted[9], wanted[11], wanted[14]) = ("-", "-", "limit CreateNotFenced", "-");
    assert_eq!(column(&pod), wanted);
    // The classic conditional update, under each contract.
    let statement = Profile { claim: ClaimForm::Number, names_holder: false, stays_on_connection: false, ..MANAGED };
    let mut wanted = managed.map(str::to_owned);
    (wanted[7], wanted[10], wanted[14]) = ("or EpochNotBounded".into(), "limit EpochNotBoundToHolder".into(), "-".into());
    assert_eq!(column(&statement), wanted);
    let accepting = Profile { contract: Contract::AfterAcceptance, ..statement };
    (wanted[4], wanted[8]) = ("-".into(), "or NobodyNotRefused".into());
    assert_eq!(column(&accepting), wanted);
}

/// For every profile a guard that does what it should is proven, and every probe that counts was tried.
#[test]
fn an_honest_guard_passes_everything_that_counts() {
    for profile in profiles() {
        let answers = answers(profile, []);
        for probe in Probe::ALL {
            match right(probe, &profile) {
                Right::MustPass => assert_eq!(answers.of(probe), Some(&Outcome::Passed), "{probe} of {profile:?}"),
                Right::PassOrLimit(_) => assert!(answers.of(probe).is_some(), "{probe} of {profile:?}"),
                Right::NotApplicable(_) | Right::Limit(_) => assert_eq!(answers.of(probe), None, "{probe} of {profile:?}"),
            }
        }
        let (seen, proven) = conclude(&examined(profile, answers), None, Some(1), now());
        assert!(proven.is_some() && seen.inconclusive.is_none(), "{profile:?}: {seen:?}");
        assert_eq!(proven.unwrap().probes.len(), Probe::ALL.len());
    }
}

/// The probes that find a flaw, and whether it is a violation.
fn found_by(profile: Profile, flaw: Flaw) -> (BTreeSet<Probe>, Seen) {
    let answers = answers(profile, [flaw]);
    let failed = Probe::ALL.into_iter().filter(|probe| matches!(answers.of(*probe), Some(Outcome::Failed(..)))).collect();
    let (seen, proven) = conclude(&examined(profile, answers), None, Some(1), now());
    assert_eq!(proven, None, "{flaw:?} is proven");
    (failed, seen)
}

#[test]
fn each_flaw_is_found_by_the_probe_that_is_there_for_it() {
    let once = Profile { writes: WritesPerEpoch::Once, ..MANAGED };
    let sequenced = Profile { writes: WritesPerEpoch::Sequenced, ..MANAGED };
    for (flaw, profile, probe) in [
        (Flaw::GuardsNoCreation, STATEMENT, Probe::RecreatedRefused),
        (Flaw::AcceptsMissingClaims, STATEMENT, Probe::MissingClaimRefused),
        (Flaw::Races, STATEMENT, Probe::RaceRefused),
        (Flaw::AcceptsStale, MANAGED, Probe::StaleRefused),
        (Flaw::ComparesText, MANAGED, Probe::DigitBoundaryOrdered),
        (Flaw::AcceptsMissingClaims, MANAGED, Probe::MissingClaimRefused),
        (Flaw::ReadsLoosely, MANAGED, Probe::MissingClaimRefused),
        (Flaw::AdmitsAnybodyWhenNobody, MANAGED, Probe::NobodyRefused),
        (Flaw::Races, MANAGED, Probe::RaceRefused),
        (Flaw::AcceptsEnormous, MANAGED, Probe::EnormousRefused),
        (Flaw::FollowsAnyEpoch, MANAGED, Probe::EnormousRefused),
        (Flaw::IgnoresHolder, MANAGED, Probe::ForeignClaimRefused),
        (Flaw::ComparesHolderPrefix, MANAGED, Probe::ForeignClaimRefused),
        (Flaw::IgnoresLock, MANAGED, Probe::ForeignClaimRefused),
        (Flaw::GuardsNoCreation, MANAGED, Probe::RecreatedRefused),
        (Flaw::GuardsNoDeletion, MANAGED, Probe::StaleRefused),
        (Flaw::TrustsOpenConnections, MANAGED, Probe::HeldOpenRefused),
        (Flaw::LeaksClaims, MANAGED, Probe::CleanConnection),
        (Flaw::AcceptsRepeats, once, Probe::RepeatFollowsContract),
        (Flaw::AcceptsRepeats, sequenced, Probe::RepeatFollowsContract),
        (Flaw::RefusesAndStores, MANAGED, Probe::StaleRefused),
    ] {
        let (failed, seen) = found_by(profile, flaw);
        assert!(failed.contains(&probe), "{flaw:?}: {failed:?}");
        assert!(seen.stale_accepted.is_some(), "{flaw:?} lets an obsolete owner write: {seen:?}");
    }
    for (flaw, profile, probe) in [
        (Flaw::RefusesEverybody, MANAGED, Probe::CurrentAccepted),
        (Flaw::Swallows, MANAGED, Probe::CurrentAccepted),
        (Flaw::RefusesRepeats, MANAGED, Probe::RepeatFollowsContract),
    ] {
        let (failed, seen) = found_by(profile, flaw);
        assert!(failed.contains(&probe), "{flaw:?}: {failed:?}");
        assert!(seen.owner_refused.is_some() && seen.stale_accepted.is_none(), "{flaw:?}: {seen:?}");
    }
}

/// E08, D09: a guard that refuses everybody looks fenced to whoever only tries stale writes; one that races, to whoever tries one
/// write after the other.
#[test]
fn a_negative_probe_alone_proves_nothing() {
    let (failed, _) = found_by(MANAGED, Flaw::RefusesEverybody);
    assert!(!failed.contains(&Probe::StaleRefused) && !failed.contains(&Probe::MissingClaimRefused));
    let (failed, _) = found_by(MANAGED, Flaw::Races);
    assert_eq!(failed, BTreeSet::from([Probe::RaceRefused]), "every other probe is fooled");
}

/// A guard that knows an owner only by its writes gives no more than AfterAcceptance.
#[test]
fn a_conditional_write_alone_does_not_give_after_activation() {
    let number = Profile { claim: ClaimForm::Number, names_holder: false, stays_on_connection: false, ..MANAGED };
    let accepting = Profile { contract: Contract::AfterAcceptance, ..number };
    let mut canary = MemoryCanary::new(accepting, []);
    let answers = run::run(&mut canary, &number, "t").now_or_never().unwrap();
    assert!(matches!(answers.of(Probe::UntouchedRefused), Some(Outcome::Failed(Failure::Accepted, _))), "{answers:?}");
}

/// An answer that is neither proves nothing, renews nothing and ends nothing.
#[test]
fn errors_are_inconclusive_and_the_last_proof_stands() {
    let (_, good) = conclude(&examined(MANAGED, answers(MANAGED, [])), None, Some(1), now());
    let errors = examined(MANAGED, answers(MANAGED, [Flaw::Errors]));
    let later = now() + std::time::Duration::from_mins(1);
    let (seen, proven) = conclude(&errors, good.as_ref(), Some(1), later);
    assert_eq!(proven, good);
    assert!(seen.inconclusive.is_some() && seen.stale_accepted.is_none() && seen.owner_refused.is_none());
    assert_eq!(seen.proof.unwrap().at, now(), "it is not renewed");
    let (seen, proven) = conclude(&errors, None, Some(1), later);
    assert!(proven.is_none() && seen.proof.is_none());
}

#[test]
fn a_proof_is_bound_to_declaration_guard_and_server() {
    let good = examined(MANAGED, answers(MANAGED, []));
    let (_, proven) = conclude(&good, None, Some(1), now());
    let proven = proven.unwrap();
    assert_eq!(proven.void(Some(1), "g", "s"), None);
    for (generation, guard, server) in [(Some(2), "g", "s"), (Some(1), "other", "s"), (Some(1), "g", "other")] {
        assert!(proven.void(generation, guard, server).is_some());
        // What could not be proven again is void, not merely old.
        let unclear = Examination { answers: Some(Answers::default()), guard: guard.into(), server: server.into(), ..good.clone() };
        let (seen, kept) = conclude(&unclear, Some(&proven), generation, now());
        assert_eq!(kept.as_ref(), Some(&proven));
        assert!(seen.proof.unwrap().void.is_some());
    }
}

/// A Failed probe, a found bypass and an altered guard end a proof at once; a fence that may be lost does not un-prove the guard.
#[test]
fn findings_end_a_proof() {
    let good = examined(MANAGED, answers(MANAGED, []));
    let (_, proven) = conclude(&good, None, Some(1), now());
    let bypass = |by_writer| vec![Bypass { by_writer, text: "role x".into() }, Bypass { by_writer, text: "role y".into() }];
    for (bad, of_writer) in [(true, true), (false, false)] {
        let (seen, kept) = conclude(&Examination { bypasses: bypass(bad), ..good.clone() }, proven.as_ref(), Some(1), now());
        assert_eq!((seen.writer_bypass.is_some(), seen.bypass.is_some(), kept), (of_writer, !of_writer, None));
        let text = seen.writer_bypass.or(seen.bypass).unwrap();
        assert_eq!(text, "role x (and 1 more)");
    }
    let altered = Examination { guard_altered: Some("trigger gone".into()), ..good.clone() };
    assert_eq!(conclude(&altered, proven.as_ref(), Some(1), now()).1, None);
    let volatile = Examination { not_durable: Some("fsync is off".into()), ..good.clone() };
    let (seen, kept) = conclude(&volatile, None, Some(1), now());
    assert!(kept.is_some() && seen.not_durable.is_some());
    let observing = Examination { answers: None, ..good };
    assert_eq!(conclude(&observing, None, Some(1), now()).1, None, "a guard that only counts is never proven");
}

#[test]
fn what_cannot_pass_by_its_form_is_a_limit_with_a_name() {
    let mut all = answers(STATEMENT, []);
    all.add(Probe::EnormousRefused, Outcome::Failed(Failure::Accepted, "2^53 - 1 was accepted".into()));
    all.add(Probe::NobodyRefused, Outcome::Failed(Failure::Accepted, "it still writes".into()));
    let (seen, proven) = conclude(&examined(STATEMENT, all), None, Some(1), now());
    assert_eq!(seen.limits, [LimitName::EpochNotBounded, LimitName::NobodyNotRefused, LimitName::EpochNotBoundToHolder]);
    assert!(proven.is_some() && seen.stale_accepted.is_none());
    // That the rightful owner is refused is never a limit.
    let mut locked_out = answers(STATEMENT, []);
    locked_out.add(Probe::EnormousRefused, Outcome::Failed(Failure::Refused, "the owner is locked out".into()));
    let (seen, proven) = conclude(&examined(STATEMENT, locked_out), None, Some(1), now());
    assert!(proven.is_none() && seen.owner_refused.is_some());
}

fn outcome() -> impl Strategy<Value = Option<Outcome>> {
    prop_oneof![
        4 => Just(Some(Outcome::Passed)),
        1 => Just(Some(Outcome::Inconclusive("i".into()))),
        1 => Just(Some(Outcome::Failed(Failure::Accepted, "a".into()))),
        1 => Just(Some(Outcome::Failed(Failure::Refused, "r".into()))),
        1 => Just(None),
    ]
}

proptest! {
    /// Invariant 6, the part of the proof: whatever was answered, a new proof needs every probe that must pass to have passed.
    #[test]
    fn nothing_is_proven_unless_every_probe_that_counts_passed(outcomes in prop::collection::vec(outcome(), 15), which in 0usize..54) {
        let profile = profiles()[which];
        let mut answers = Answers::default();
        for (probe, outcome) in Probe::ALL.into_iter().zip(outcomes) {
            if let Some(outcome) = outcome {
                answers.add(probe, outcome);
            }
        }
        let (seen, proven) = conclude(&examined(profile, answers.clone()), None, Some(1), now());
        let passed = |probe| answers.of(probe) == Some(&Outcome::Passed);
        let complete = Probe::ALL.into_iter().all(|probe| match right(probe, &profile) {
            Right::MustPass => passed(probe),
            Right::PassOrLimit(_) => passed(probe) || matches!(answers.of(probe), Some(Outcome::Failed(Failure::Accepted, _))),
            Right::Limit(_) | Right::NotApplicable(_) => true,
        });
        prop_assert_eq!(proven.is_some(), complete);
        prop_assert_eq!(seen.proof.is_some(), complete);
    }

    /// However many flaws there are, they never cancel out.
    #[test]
    fn no_mixture_of_flaws_is_proven(picks in prop::collection::btree_set(0usize..19, 1..4)) {
        const FLAWS: [Flaw; 19] = [
            Flaw::AcceptsStale, Flaw::RefusesEverybody, Flaw::ComparesText, Flaw::AcceptsMissingClaims, Flaw::ReadsLoosely,
            Flaw::AdmitsAnybodyWhenNobody, Flaw::Races, Flaw::Errors, Flaw::AcceptsEnormous, Flaw::FollowsAnyEpoch, Flaw::IgnoresHolder,
            Flaw::ComparesHolderPrefix, Flaw::IgnoresLock, Flaw::GuardsNoCreation, Flaw::GuardsNoDeletion, Flaw::LeaksClaims,
            Flaw::RefusesRepeats, Flaw::Swallows, Flaw::RefusesAndStores,
        ];
        let answers = answers(MANAGED, picks.into_iter().map(|pick| FLAWS[pick]));
        prop_assert_eq!(conclude(&examined(MANAGED, answers), None, Some(1), now()).1, None);
    }
}
