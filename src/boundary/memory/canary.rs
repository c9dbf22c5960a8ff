//! A canary in memory: a guard that compares as it should, or with one [`Flaw`]. It is the reference for what each flaw of a real
//! guard looks like to a proof.

use std::collections::BTreeSet;

use futures::{FutureExt, future::BoxFuture};

use crate::{
    api::{Contract, WritesPerEpoch},
    boundary::{
        BackendError,
        proof::{
            ClaimForm, Judges, Profile,
            run::{Answer, Canary, Raced, Write},
            script::{Claim, Kind, Race, Via},
        },
    },
};

/// A way in which a guard can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Flaw {
    /// It compares with nothing.
    AcceptsStale,
    /// It refuses its rightful owner too.
    RefusesEverybody,
    /// It orders epochs as texts, `9 > 10`.
    ComparesText,
    /// It lets a write pass that claims nothing.
    AcceptsMissingClaims,
    /// It reads `07` and `7.0` as 7.
    ReadsLoosely,
    /// When nobody owns the lock, it lets everybody pass.
    AdmitsAnybodyWhenNobody,
    /// It compares at the beginning of a transaction and not at its end.
    Races,
    /// It answers with errors.
    Errors,
    /// It takes any epoch at or above the fence.
    AcceptsEnormous,
    /// It moves its fence to whatever epoch it is shown, and locks the owner out.
    FollowsAnyEpoch,
    /// It does not compare the holder.
    IgnoresHolder,
    /// It compares a beginning of the holder.
    ComparesHolderPrefix,
    /// It does not compare the lock.
    IgnoresLock,
    /// It guards what is there and not what is created.
    GuardsNoCreation,
    /// It does not guard deletions.
    GuardsNoDeletion,
    /// What a connection claimed once counts as long as it is open.
    TrustsOpenConnections,
    /// A claim stays on the connection.
    LeaksClaims,
    /// It lets the only write of an epoch be repeated, or a sequence number.
    AcceptsRepeats,
    /// It refuses the second write of an epoch.
    RefusesRepeats,
    /// It accepts and stores nothing.
    Swallows,
    /// It says that it refused, and stores.
    RefusesAndStores,
    /// It learns of a new owner only by its write.
    KnowsOwnersByWrites,
}

/// A guarded thing in memory.
#[derive(Clone, Debug)]
pub struct MemoryCanary {
    profile: Profile,
    flaws: BTreeSet<Flaw>,
    fence: Option<(u64, Option<String>)>,
    /// The highest sequence number under the present epoch; the epoch that wrote last.
    sequence: u64,
    written: Option<u64>,
    stored: Option<String>,
    open: Option<Claim>,
    last: Option<Claim>,
}

impl MemoryCanary {
    /// A canary with some flaws.
    pub fn new(profile: Profile, flaws: impl IntoIterator<Item = Flaw>) -> Self {
        let flaws = flaws.into_iter().collect();
        Self { profile, flaws, fence: None, sequence: 0, written: None, stored: None, open: None, last: None }
    }

    /// The profile of a managed guard: text claims that name epoch and holder, set on a connection.
    pub const MANAGED: Profile = Profile {
        contract: Contract::AfterActivation,
        writes: WritesPerEpoch::Many,
        claim: ClaimForm::Text,
        names_holder: true,
        judges: Judges::Everything,
        stays_on_connection: true,
    };

    fn has(&self, flaw: Flaw) -> bool {
        self.flaws.contains(&flaw)
    }

    fn admits(&self, claim: &Claim, kind: Kind) -> bool {
        let unguarded = match kind {
            Kind::Upsert => self.has(Flaw::GuardsNoCreation) && self.stored.is_none(),
            Kind::Delete => self.has(Flaw::GuardsNoDeletion),
        };
        if self.has(Flaw::RefusesEverybody) {
            return false;
        }
        if self.has(Flaw::AcceptsStale) || unguarded {
            return true;
        }
        let Claim::Made { foreign, epoch, holder, sequence } = claim else { return self.has(Flaw::AcceptsMissingClaims) };
        if *foreign && !self.has(Flaw::IgnoresLock) {
            return false;
        }
        let Some(presented) = self.number(epoch) else { return self.has(Flaw::AcceptsMissingClaims) };
        match &self.fence {
            None => self.has(Flaw::AdmitsAnybodyWhenNobody) || self.learns(),
            Some((_, None)) if self.has(Flaw::AdmitsAnybodyWhenNobody) => true,
            Some((_, None)) => false,
            Some((now, Some(owner))) => {
                self.compares(presented, *now)
                    && (self.names(holder, owner) || self.learns() && presented > *now)
                    && self.may_repeat(presented, *now, *sequence)
            }
        }
    }

    /// Whether it takes a new owner's word.
    fn learns(&self) -> bool {
        self.profile.contract == Contract::AfterAcceptance
    }

    fn number(&self, epoch: &str) -> Option<u64> {
        if self.has(Flaw::ReadsLoosely) {
            let number: f64 = epoch.trim().parse().ok()?;
            return (number > 0.0 && number.fract() == 0.0).then(|| format!("{number:.0}").parse().ok())?;
        }
        let number: u64 = epoch.parse().ok()?;
        (number > 0 && number.to_string() == epoch).then_some(number)
    }

    fn compares(&self, presented: u64, now: u64) -> bool {
        if self.has(Flaw::ComparesText) {
            return presented.to_string() >= now.to_string();
        }
        let takes_later = self.has(Flaw::AcceptsEnormous) || self.has(Flaw::FollowsAnyEpoch) || self.learns();
        presented == now || (takes_later && presented > now && (!self.learns() || presented < now + (1 << 32)))
    }

    fn names(&self, holder: &str, owner: &str) -> bool {
        let is_prefix = self.has(Flaw::ComparesHolderPrefix) && owner.starts_with(holder);
        !self.profile.names_holder || holder == owner || self.has(Flaw::IgnoresHolder) || is_prefix
    }

    fn may_repeat(&self, presented: u64, now: u64, sequence: u64) -> bool {
        let is_repeat = self.written == Some(presented);
        match self.profile.writes {
            _ if self.has(Flaw::RefusesRepeats) => !is_repeat,
            WritesPerEpoch::Once => !is_repeat || self.has(Flaw::AcceptsRepeats),
            WritesPerEpoch::Many => true,
            WritesPerEpoch::Sequenced => sequence == if presented > now { 1 } else { self.sequence + 1 } || self.has(Flaw::AcceptsRepeats),
        }
    }

    fn move_to(&mut self, epoch: u64, holder: Option<&str>) {
        if self.fence.as_ref().is_none_or(|(now, _)| *now < epoch) {
            (self.fence, self.sequence) = (Some((epoch, holder.map(str::to_owned))), 0);
        }
    }

    /// A receiver that knows owners by their writes, at a higher epoch than before, has a new one.
    fn learn(&mut self, claim: &Claim) {
        if let Claim::Made { epoch, holder, sequence, .. } = claim {
            let presented = self.number(epoch).unwrap_or_default();
            let follows = self.learns() || self.has(Flaw::FollowsAnyEpoch) || self.has(Flaw::KnowsOwnersByWrites);
            if follows {
                self.move_to(presented, Some(holder));
            }
            (self.sequence, self.written) = (*sequence, Some(presented));
        }
    }

    fn apply(&mut self, kind: Kind, claim: &Claim, marker: &str) -> Answer {
        let is_admitted = self.admits(claim, kind);
        if is_admitted || self.has(Flaw::RefusesAndStores) {
            if !self.has(Flaw::Swallows) {
                self.stored = (kind == Kind::Upsert).then(|| marker.to_owned());
            }
            self.learn(claim);
        }
        if is_admitted { Answer::Accepted } else { Answer::Rejected("obsolete".to_owned()) }
    }

    fn write_now(&mut self, write: Write<'_>) -> Answer {
        if self.has(Flaw::Errors) {
            return Answer::Unclear("internal error".to_owned());
        }
        let nothing = Claim::Absent;
        let (claim, trusted) = match write.via {
            Via::Own | Via::AfterRemoval => (write.claim.clone(), false),
            Via::HeldOpen => (write.claim.clone(), self.has(Flaw::TrustsOpenConnections) && self.open.is_some()),
            Via::Reused if self.has(Flaw::LeaksClaims) => (self.last.clone().unwrap_or(nothing), false),
            Via::Reused => (nothing, false),
        };
        if write.via == Via::Own {
            self.last = Some(claim.clone());
        }
        if trusted {
            self.stored = Some(write.marker.to_owned());
            return Answer::Accepted;
        }
        if write.via == Via::AfterRemoval {
            let mut removed = Self { stored: None, ..self.clone() };
            return removed.apply(write.kind, &claim, write.marker);
        }
        self.apply(write.kind, &claim, write.marker)
    }

    fn race_now(&mut self, old: &Claim, (epoch, holder): (u64, &'static str), race: Race, marker: &str) -> Raced {
        let was_admitted = self.admits(old, Kind::Upsert);
        let activate = |canary: &mut Self| {
            if canary.learns() {
                let claim = Claim::Made { foreign: false, epoch: epoch.to_string(), holder: holder.to_owned(), sequence: 1 };
                drop(canary.apply(Kind::Upsert, &claim, "next"));
            } else if !canary.has(Flaw::KnowsOwnersByWrites) {
                canary.move_to(epoch, Some(holder));
            }
        };
        if race == Race::HasWritten && was_admitted && !self.has(Flaw::Races) {
            // The activation waits for the open write.
            let answer = self.apply(Kind::Upsert, old, marker);
            let landed = self.stored.as_deref() == Some(marker);
            activate(self);
            return Raced { landed_by_activation: landed, landed, answer };
        }
        activate(self);
        let answer = if self.has(Flaw::Races) && was_admitted {
            self.stored = Some(marker.to_owned());
            Answer::Accepted
        } else {
            self.apply(Kind::Upsert, old, marker)
        };
        Raced { landed_by_activation: false, landed: self.stored.as_deref() == Some(marker), answer }
    }
}

impl Canary for MemoryCanary {
    fn reset(&mut self) -> BoxFuture<'_, Result<(), BackendError>> {
        *self = Self::new(self.profile, self.flaws.clone());
        futures::future::ready(Ok(())).boxed()
    }

    fn activate(&mut self, epoch: u64, holder: Option<&'static str>) -> BoxFuture<'_, Result<(), BackendError>> {
        if !self.learns() && !self.has(Flaw::KnowsOwnersByWrites) {
            self.move_to(epoch, holder);
        }
        futures::future::ready(Ok(())).boxed()
    }

    fn open<'a>(&'a mut self, claim: &'a Claim, marker: &'a str) -> BoxFuture<'a, Result<(), BackendError>> {
        self.open = Some(claim.clone());
        drop(self.apply(Kind::Upsert, claim, marker));
        futures::future::ready(Ok(())).boxed()
    }

    fn write<'a>(&'a mut self, write: Write<'a>) -> BoxFuture<'a, Result<Answer, BackendError>> {
        futures::future::ready(Ok(self.write_now(write))).boxed()
    }

    fn stored(&mut self) -> BoxFuture<'_, Result<Option<String>, BackendError>> {
        futures::future::ready(Ok(self.stored.clone())).boxed()
    }

    fn race<'a>(
        &'a mut self,
        old: &'a Claim,
        next: (u64, &'static str),
        race: Race,
        marker: &'a str,
    ) -> BoxFuture<'a, Result<Raced, BackendError>> {
        futures::future::ready(Ok(self.race_now(old, next, race, marker))).boxed()
    }
}
