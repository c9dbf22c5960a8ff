//! What is done to a canary, step by step, and which answer each step must get. Pure data: made by [`script`] from a
//! [`Profile`], carried out by [`super::run`].
//!
//! A canary starts at no fence at all and is used by nobody else, so epochs here begin at 8 and cross the digit boundaries.

use std::fmt;

use super::{ClaimForm, Judges, Probe, Profile, Right, right};
use crate::{
    api::{Contract, WritesPerEpoch},
    epoch::Epoch,
};

/// What a write carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Nothing.
    Absent,
    /// The claim of an owner, or what pretends to be one.
    Made {
        /// Whether it names another lock than the canary's.
        foreign: bool,
        /// The epoch as it is written.
        epoch: String,
        /// The holder.
        holder: String,
        /// The sequence number, for `Sequenced`.
        sequence: u64,
    },
}

/// Over what a write arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// A transaction or request of its own.
    Own,
    /// A connection that was opened, and wrote, under this claim before: see [`Step::Open`].
    HeldOpen,
    /// The connection of the last [`Via::Own`] write, and the write brings nothing of its own.
    Reused,
    /// After somebody deleted the thing, in a transaction with the deletion that is undone once the answer is known.
    AfterRemoval,
}

/// What a write does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Creates the thing or changes it.
    Upsert,
    /// Deletes it.
    Delete,
}

/// Which answer is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Accepted, and read back.
    Accepted,
    /// The declared rejection, and nothing changed.
    Rejected,
}

/// When a racing writer has done what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Race {
    /// It has written and not committed when the activation begins.
    HasWritten,
    /// It has begun, and writes after the activation.
    HasBegun,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The fence is moved up; `None` is nobody.
    Activate(u64, Option<&'static str>),
    /// A connection is opened that writes under this claim and is kept.
    Open(Claim),
    /// A write.
    Write {
        /// What it is for.
        probe: Probe,
        /// What it does.
        kind: Kind,
        /// What it carries.
        claim: Claim,
        /// Over what it arrives.
        via: Via,
        /// The right answer.
        expect: Expect,
    },
    /// An old owner's write is under way while the next owner is activated.
    Race {
        /// The old owner's claim.
        old: Claim,
        /// The next owner.
        next: (u64, &'static str),
        /// How far the old owner is.
        race: Race,
    },
}

/// The steps of a proof for a profile: every probe that [`right`] lets count has its steps here, and no other.
pub fn script(profile: &Profile) -> Vec<Step> {
    let mut writer = Writer { profile, steps: Vec::new(), sequence: 0, used: false, epoch: 0, holder: "" };
    writer.nobody_yet();
    writer.turnover();
    writer.digits();
    writer.odd_claims();
    writer.recreated();
    writer.races();
    writer.revoked();
    writer.steps
}

struct Writer<'a> {
    profile: &'a Profile,
    steps: Vec<Step>,
    sequence: u64,
    /// Whether the present epoch's only write was made, under `Once`.
    used: bool,
    epoch: u64,
    holder: &'static str,
}

impl Writer<'_> {
    fn counts(&self, probe: Probe) -> bool {
        matches!(right(probe, self.profile), Right::MustPass | Right::PassOrLimit(_))
    }

    /// Another owner, who has not written.
    fn is_next(&mut self, epoch: u64, holder: &'static str) {
        (self.epoch, self.holder, self.used, self.sequence) = (epoch, holder, false, 0);
    }

    fn activate(&mut self, epoch: u64, holder: &'static str) {
        self.is_next(epoch, holder);
        self.steps.push(Step::Activate(epoch, Some(holder)));
        // A receiver that is told of nothing learns of the new owner by its first write.
        if self.profile.contract == Contract::AfterAcceptance {
            self.owner(Probe::NextAccepted);
        }
    }

    fn write(&mut self, probe: Probe, kind: Kind, claim: Claim, via: Via, expect: Expect) {
        if self.counts(probe) {
            self.steps.push(Step::Write { probe, kind, claim, via, expect });
        }
    }

    fn refused(&mut self, probe: Probe, claim: Claim) {
        self.write(probe, Kind::Upsert, claim, Via::Own, Expect::Rejected);
    }

    fn claim(&self, epoch: impl fmt::Display, holder: &str) -> Claim {
        Claim::Made { foreign: false, epoch: format!("{epoch}"), holder: holder.to_owned(), sequence: self.sequence + 1 }
    }

    /// A write that the present owner may make.
    fn owner(&mut self, probe: Probe) {
        self.owner_does(probe, Kind::Upsert);
    }

    fn owner_does(&mut self, probe: Probe, kind: Kind) {
        if !self.counts(probe) {
            return;
        }
        if self.profile.writes == WritesPerEpoch::Once && self.used {
            let holder = self.holder;
            (self.epoch, self.used) = (self.epoch + 1, false);
            self.steps.push(Step::Activate(self.epoch, Some(holder)));
        }
        let claim = self.claim(self.epoch, self.holder);
        self.write(probe, kind, claim, Via::Own, Expect::Accepted);
        (self.used, self.sequence) = (true, self.sequence + 1);
    }

    /// Nobody ever owned it: nobody may write.
    fn nobody_yet(&mut self) {
        if self.profile.contract == Contract::AfterActivation {
            self.refused(Probe::NobodyRefused, self.claim(0, ""));
            self.refused(Probe::NobodyRefused, self.claim(1, "probe-a"));
        }
        if self.profile.claim == ClaimForm::Number {
            // A thing that nobody has written to yet may hold an epoch that is no epoch.
            for none in ["0", "-1"] {
                self.refused(Probe::MissingClaimRefused, self.claim(none, "probe-a"));
            }
            self.refused(Probe::MissingClaimRefused, Claim::Absent);
        }
    }

    fn turnover(&mut self) {
        self.activate(8, "probe-a");
        self.owner(Probe::CurrentAccepted);
        let old = self.claim(self.epoch, "probe-a");
        if self.counts(Probe::HeldOpenRefused) && self.profile.writes != WritesPerEpoch::Once {
            self.steps.push(Step::Open(old.clone()));
            self.sequence += 1;
        }
        let old_again = self.claim(self.epoch, "probe-a");
        let next = self.epoch + 1;
        self.activate(next, "probe-b");
        self.refused(Probe::UntouchedRefused, old.clone());
        self.owner(Probe::NextAccepted);
        self.refused(Probe::StaleRefused, old.clone());
        if self.profile.judges != Judges::ItsStatement {
            self.write(Probe::StaleRefused, Kind::Delete, old, Via::Own, Expect::Rejected);
        }
        if self.counts(Probe::HeldOpenRefused) {
            let via = if self.profile.writes == WritesPerEpoch::Once { Via::Own } else { Via::HeldOpen };
            self.write(Probe::HeldOpenRefused, Kind::Upsert, old_again, via, Expect::Rejected);
        }
        self.repeat();
        if self.counts(Probe::CleanConnection) {
            self.owner(Probe::CleanConnection);
            self.write(Probe::CleanConnection, Kind::Upsert, Claim::Absent, Via::Reused, Expect::Rejected);
        }
    }

    fn repeat(&mut self) {
        let probe = Probe::RepeatFollowsContract;
        match self.profile.writes {
            WritesPerEpoch::Many => self.owner(probe),
            WritesPerEpoch::Once => self.refused(probe, self.claim(self.epoch, self.holder)),
            WritesPerEpoch::Sequenced => {
                self.sequence -= 1;
                self.refused(probe, self.claim(self.epoch, self.holder));
                self.sequence += 2;
                self.refused(probe, self.claim(self.epoch, self.holder));
                self.sequence -= 1;
                self.owner(probe);
            }
        }
    }

    /// 9 → 10 and 99 → 100, where the order of texts is not the order of numbers. The same holder has both terms, so that nothing
    /// but the number tells them apart.
    fn digits(&mut self) {
        for low in [9, 99] {
            if low > self.epoch {
                self.activate(low, self.holder);
                self.owner(Probe::DigitBoundaryOrdered);
            }
            let old = self.claim(low, self.holder);
            let next = (low + 1).max(self.epoch + 1);
            self.activate(next, self.holder);
            self.owner(Probe::DigitBoundaryOrdered);
            self.refused(Probe::DigitBoundaryOrdered, old);
        }
        self.refused(Probe::AncientRefused, self.claim(8, "probe-a"));
    }

    fn odd_claims(&mut self) {
        let (now, holder) = (self.epoch, self.holder);
        self.refused(Probe::MissingClaimRefused, Claim::Absent);
        let numbers = ["0", "-1"].map(str::to_owned);
        let texts = [String::new(), "x".into(), format!("0{now}"), format!("+{now}"), format!("{now}.0"), "1e2".into(), format!(" {now}")];
        let beyond = "9007199254740993".to_owned();
        let odd: Vec<_> = match self.profile.claim {
            ClaimForm::Text => numbers.into_iter().chain(texts).chain([beyond.clone()]).collect(),
            ClaimForm::Number => numbers.to_vec(),
            ClaimForm::Identity => Vec::new(),
        };
        for epoch in odd {
            self.refused(Probe::MissingClaimRefused, self.claim(epoch, holder));
        }
        self.refused(Probe::ForeignClaimRefused, self.claim(now, "probe-z"));
        self.refused(Probe::ForeignClaimRefused, self.claim(now, ""));
        self.refused(Probe::ForeignClaimRefused, self.claim(now, "probe-"));
        if self.profile.claim == ClaimForm::Text {
            let foreign = Claim::Made { foreign: true, epoch: now.to_string(), holder: holder.to_owned(), sequence: self.sequence + 1 };
            self.refused(Probe::ForeignClaimRefused, foreign);
        }
        self.refused(Probe::EnormousRefused, self.claim(Epoch::MAX_VALUE, holder));
        if self.profile.claim == ClaimForm::Number {
            self.refused(Probe::EnormousRefused, self.claim(beyond, holder));
        }
        self.owner(Probe::EnormousRefused);
    }

    fn recreated(&mut self) {
        if !self.counts(Probe::RecreatedRefused) {
            return;
        }
        let old = self.claim(9, "probe-b");
        if self.profile.judges == Judges::ItsStatement {
            self.write(Probe::RecreatedRefused, Kind::Upsert, old, Via::AfterRemoval, Expect::Rejected);
            return;
        }
        self.owner_does(Probe::RecreatedRefused, Kind::Delete);
        self.refused(Probe::RecreatedRefused, old);
        self.owner(Probe::RecreatedRefused);
    }

    fn races(&mut self) {
        if !self.counts(Probe::RaceRefused) {
            return;
        }
        for race in [Race::HasWritten, Race::HasBegun] {
            // The old owner has not written with its epoch: nothing but the new owner can refuse it.
            self.is_next(self.epoch + 1, "probe-e");
            self.steps.push(Step::Activate(self.epoch, Some("probe-e")));
            let old = self.claim(self.epoch, "probe-e");
            self.is_next(self.epoch + 1, "probe-f");
            self.steps.push(Step::Race { old: old.clone(), next: (self.epoch, "probe-f"), race });
            if self.profile.contract == Contract::AfterAcceptance {
                // What activates is the next owner's first write.
                (self.used, self.sequence) = (true, 1);
            }
            self.refused(Probe::RaceRefused, old);
            self.owner(Probe::RaceRefused);
        }
    }

    /// The fence belongs to nobody: the last owner is refused, and whoever names nobody.
    fn revoked(&mut self) {
        let last = self.claim(self.epoch, self.holder);
        let nobody = self.epoch + 1;
        self.steps.push(Step::Activate(nobody, None));
        self.refused(Probe::NobodyRefused, last);
        self.refused(Probe::NobodyRefused, self.claim(nobody, ""));
        self.refused(Probe::NobodyRefused, self.claim(nobody, "probe-f"));
        if self.profile.claim != ClaimForm::Identity {
            self.refused(Probe::NobodyRefused, Claim::Absent);
        }
    }
}
