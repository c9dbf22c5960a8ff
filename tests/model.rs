//! A model of minting, granting and activating that calls the product's own functions, checked exhaustively within bounds.
//!
//! Two workers take, release, lose and take over one Lease by client-go's rules; a worker's pod can be replaced under its name;
//! the Lease and the FencedLock can be deleted and created again, a grant can be revoked, and the cluster restored from a backup behind its
//! boundary.
//! Two operators reconcile: read the lock, read the rest, decide, reserve, record `Pending`, activate, record `Active`. Each of
//! these is a step of its own; between any two an operator can pause for ever, start over, or crash and forget. So its copy of
//! the lock can be as old as one likes: a lagging cache, a lost answer and a paused leader are the same thing here.
//! There is no clock: expiry is a step that can always happen, because the operator never judges it. A write changes nothing in
//! the model, so the properties ask in every state about every write that may still be under way.
//! Each safety property is also checked against a model with one defect, and there the checker must find the flaw.

#![expect(clippy::unwrap_used, reason = "the model's numbers are small; a panic is a bug of the model and fails the check")]

use std::{collections::BTreeSet, time::Instant};

use fencedlock::{
    boundary::{self, Activation, Fence},
    epoch::{
        Epoch, Holder,
        grant::{Decision, Grant, GrantState, Input, LeaseRead, decide},
        mint::{BLOCK, Reservation, TrustedFence},
        revoke::{Revocation, RevocationStatus},
        term::{LeaseView, Term},
    },
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use stateright::{Checker, HasDiscoveries, Model, Property};

// --- What there is ---

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Worker {
    A,
    B,
}

const WORKERS: [Worker; 2] = [Worker::A, Worker::B];

/// The Lease in the cluster. `acquired` is a time of which only equality matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Lease {
    uid: u8,
    revision: u8,
    holder: Option<Worker>,
    transitions: u8,
    acquired: u8,
}

/// What a status says of a term: the fields of [`Term`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Seen {
    lease: u8,
    transitions: u8,
    acquired: u8,
    pod: u8,
    revision: u8,
}

/// Whose the epoch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Whose {
    /// The holder's: `status.grant`.
    Holders,
    /// Nobody's, because the holder's term was revoked: `status.revoked`. Whether that term was seen to end.
    Nobodys { ended: bool },
}

/// `status.grant` or `status.revoked`: there is never both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Granted {
    epoch: u64,
    whose: Whose,
    holder: Worker,
    active: bool,
    same_holder_steps: u8,
    term: Seen,
}

/// The FencedLock, in the cluster or as somebody read it. Epoch 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Lock {
    uid: u8,
    revision: u8,
    epoch: u64,
    grant: Option<Granted>,
    /// `spec.revoke`: the grant that it names.
    revoke: Option<Granted>,
}

/// The lock's entry in the ConfigMap. Its value never comes back, so it is its own resourceVersion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Reserved {
    last: u64,
    lock: u8,
}

/// The process behind a worker's name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Process {
    pod: u8,
    /// The term that it wrote or found under its own name: Lease uid, transitions, time; it believes in it until it releases.
    term: Option<(u8, u8, u8)>,
    /// Which ownership this really is, whatever the Lease shows.
    life: u8,
}

/// An epoch in a worker's hands: a write with it may arrive at any time from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Claim {
    epoch: u64,
    holder: Worker,
    life: u8,
}

/// Where an operator is in its reconcile, with its private copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Step {
    #[default]
    Idle,
    /// Only with [`Defect::StaleLease`]: it read the Lease before the lock.
    HasLease(Option<Lease>, u8),
    HasLock(Lock),
    Reserve {
        found: Option<Reserved>,
        wanted: Reserved,
        record: Record,
    },
    Record(Record),
    Activate(Lock),
    Finish(Lock),
}

/// A status that is to be written over `before`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Record {
    before: Lock,
    epoch: u64,
    grant: Option<Granted>,
    rolled_back: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Operator {
    /// The highest epoch that it saw, and the uid of the lock: a recreated lock is another one.
    remembered: Option<(u8, u64)>,
    step: Step,
}

/// What a backup of etcd holds. The boundary's fence, the workers and the operators' memory live elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Backup {
    lease: Option<Lease>,
    lease_revision: u8,
    lock: Lock,
    reserved: Option<Reserved>,
}

/// What happened, for the properties. Nothing in the model reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each is one thing that happened")]
struct Ghost {
    /// The epoch that was recorded last, and the Lease revision that it was minted for.
    last_issued: (u64, u8),
    was_reissued: bool,
    was_issued_to_a_former_owner: bool,
    /// The highest epoch that was ever recorded as active.
    highest_active: u64,
    claims: BTreeSet<Claim>,
    fence_fell: bool,
    /// The terms that were revoked, as the Lease shows them, and the pods behind them.
    revoked: BTreeSet<(Worker, u8, u8, u8, u8)>,
    a_revoked_term_was_granted: bool,
    pending_was_abandoned: bool,
    restore_was_suspected: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    lease: Option<Lease>,
    lease_revision: u8,
    lease_uid: u8,
    clock: u8,
    processes: [Process; 2],
    lock: Lock,
    reserved: Option<Reserved>,
    /// One boundary behind a trusted guard.
    fence: Option<(u64, Option<Worker>)>,
    operators: [Operator; 2],
    backup: Option<Backup>,
    left: Budget,
    ghost: Ghost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Acquires(Worker),
    Releases(Worker),
    PodIsReplaced(Worker),
    LeaseIsDeleted,
    LockIsRecreated,
    GrantIsRevoked,
    BackupIsMade,
    BackupIsRestored,
    Starts(usize),
    Resumes(usize),
    Proceeds(usize),
    StartsOver(usize),
    Crashes(usize),
}

/// How often things happen at most. The first acquisition, by A, is made already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Budget {
    acquisitions: u8,
    lease_deletions: u8,
    lock_recreations: u8,
    pod_replacements: u8,
    restores: u8,
    revocations: u8,
    /// How many blocks can be reserved, one for each crash at the wrong time.
    blocks: u8,
    /// Whether operators remember the highest epoch that they saw, until they crash.
    remember: bool,
}

/// One thing that is done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    Nothing,
    /// The status is written over whatever is there.
    NoCompareAndSwap,
    /// No reservation is read or written.
    NoReservation,
    /// The operator mints on a Lease that it read before it read the lock: a cache, or the wrong order of two uncached reads.
    StaleLease,
    /// `Active` is recorded before the boundary is activated.
    ActiveTooEarly,
    /// The boundary takes what was written last.
    LastWriterWins,
    /// A worker takes a grant that has its name, without comparing the term.
    TermNotCompared,
    /// A worker compares only what stands in the Lease, which its predecessor under the same name wrote.
    PodNotCompared,
    /// The boundary's fence does not count for minting.
    FenceNotRead,
    /// The epoch of nobody is recorded, and whose term it fenced is not.
    RevocationForgotten,
}

struct Protocol {
    budget: Budget,
    defect: Defect,
}

// --- The product's types ---

fn name(worker: Worker) -> &'static str {
    match worker {
        Worker::A => "a",
        Worker::B => "b",
    }
}

fn worker(holder: &Holder) -> Worker {
    if holder.as_str() == "a" { Worker::A } else { Worker::B }
}

fn holder(worker: Worker) -> Holder {
    Holder::new(name(worker)).unwrap()
}

fn time(n: u8) -> Timestamp {
    Timestamp::from_second(n.into()).unwrap()
}

fn number(text: &str) -> u8 {
    text.parse().unwrap()
}

fn view(lease: Lease) -> LeaseView {
    LeaseView {
        uid: lease.uid.to_string(),
        resource_version: lease.revision.to_string(),
        holder: Ok(lease.holder.map(holder)),
        transitions: Some(lease.transitions.into()),
        acquire_time: Some(time(lease.acquired)),
        renew_time: None,
        duration_seconds: Some(15),
    }
}

fn to_grant(granted: &Granted) -> Grant {
    Grant {
        epoch: Epoch::new(granted.epoch).unwrap(),
        holder: holder(granted.holder),
        state: if granted.active { GrantState::Active } else { GrantState::Pending },
        since: Time(time(0)),
        same_holder_steps: granted.same_holder_steps,
        term: Term {
            lease_uid: granted.term.lease.to_string(),
            lease_transitions: Some(granted.term.transitions.into()),
            acquire_time: Some(time(granted.term.acquired)),
            pod_uid: Some(granted.term.pod.to_string()),
            resource_version: granted.term.revision.to_string(),
        },
    }
}

fn from_grant(grant: &Grant) -> Granted {
    Granted {
        epoch: grant.epoch.get(),
        whose: Whose::Holders,
        holder: worker(&grant.holder),
        active: grant.state == GrantState::Active,
        same_holder_steps: grant.same_holder_steps,
        term: seen(&grant.term),
    }
}

fn seen(term: &Term) -> Seen {
    Seen {
        lease: number(&term.lease_uid),
        transitions: u8::try_from(term.lease_transitions.unwrap()).unwrap(),
        acquired: u8::try_from(term.acquire_time.unwrap().as_second()).unwrap(),
        pod: number(term.pod_uid.as_ref().unwrap()),
        revision: number(&term.resource_version),
    }
}

fn to_revoked(granted: &Granted) -> Option<RevocationStatus> {
    let Whose::Nobodys { ended } = granted.whose else { return None };
    let Grant { epoch, holder, state, same_holder_steps, term, .. } = to_grant(granted);
    Some(RevocationStatus { epoch, state, holder, term, same_holder_steps, ended, reason: "it runs away".into() })
}

fn from_revoked(revoked: &RevocationStatus) -> Granted {
    Granted {
        epoch: revoked.epoch.get(),
        whose: Whose::Nobodys { ended: revoked.ended },
        holder: worker(&revoked.holder),
        active: revoked.state == GrantState::Active,
        same_holder_steps: revoked.same_holder_steps,
        term: seen(&revoked.term),
    }
}

fn to_fence((epoch, worker): (u64, Option<Worker>)) -> Fence {
    Fence { epoch: Epoch::new(epoch).unwrap(), holder: worker.map(holder) }
}

fn to_reservation(reserved: Reserved) -> Reservation {
    Reservation { last: reserved.last, uid: reserved.lock.to_string() }
}

// --- What workers do ---

impl State {
    /// Every write of the Lease has its own revision and its own time.
    fn write_lease(&mut self, lease: Lease) {
        (self.lease_revision, self.clock) = (self.lease_revision + 1, self.clock + 1);
        self.lease = Some(Lease { revision: self.lease_revision, acquired: self.clock, ..lease });
    }

    /// The process behind this name believes from now on in what stands in the Lease, if that is its own.
    fn begin_life(&mut self, worker: Worker, pod: u8) {
        let term = self.lease.filter(|l| l.holder == Some(worker)).map(|l| (l.uid, l.transitions, l.acquired));
        let life = 1 + self.processes.iter().map(|p| p.life).max().unwrap_or(0);
        self.processes[worker as usize] = Process { pod, term, life };
    }

    /// Creates the Lease, takes a released one, or takes one over that has expired by the worker's own clock.
    fn acquire(&mut self, worker: Worker) {
        if let Some(old) = self.lease {
            self.write_lease(Lease { holder: Some(worker), transitions: old.transitions + 1, ..old });
        } else {
            self.lease_uid += 1;
            self.write_lease(Lease { uid: self.lease_uid, revision: 0, holder: Some(worker), transitions: 0, acquired: 0 });
        }
        self.begin_life(worker, self.processes[worker as usize].pod);
    }

    /// `ReleaseOnCancel`: the counter stays, the time is the release's.
    fn release(&mut self, worker: Worker) {
        if let Some(lease) = self.lease {
            self.write_lease(Lease { holder: None, ..lease });
        }
        self.processes[worker as usize].term = None;
    }

    /// client-go takes a Lease with its own name for its own and goes on with what stands there.
    fn replace_pod(&mut self, worker: Worker) {
        self.begin_life(worker, self.processes[worker as usize].pod + 1);
    }

    /// The grant that this worker may take now, by the rule of protocol section 3.
    fn grant_for(&self, worker: Worker, defect: Defect) -> Option<Granted> {
        let process = self.processes[worker as usize];
        let grant = self.lock.grant.filter(|g| g.active && g.whose == Whose::Holders && g.holder == worker)?;
        let (seen, own) = ((grant.term.lease, grant.term.transitions, grant.term.acquired), process.term?);
        let is_mine = match defect {
            Defect::TermNotCompared => true,
            Defect::PodNotCompared => seen == own,
            _ => seen == own && grant.term.pod == process.pod,
        };
        is_mine.then_some(grant)
    }

    /// Whoever can take a grant does it at once: that leaves the most writes under way, and they may be as late as one likes.
    fn take_grants(&mut self, defect: Defect) {
        for worker in WORKERS {
            if let Some(grant) = self.grant_for(worker, defect) {
                let life = self.processes[worker as usize].life;
                self.ghost.claims.insert(Claim { epoch: grant.epoch, holder: worker, life });
            }
        }
    }

    fn admits(&self, claim: &Claim) -> bool {
        boundary::admits(self.fence.map(to_fence).as_ref(), claim.epoch, name(claim.holder))
    }
}

// --- What operators do ---

impl Operator {
    fn sees(&mut self, lock: &Lock) {
        let known = self.remembered.filter(|(uid, _)| *uid == lock.uid).map_or(0, |(_, epoch)| epoch);
        self.remembered = (lock.epoch > 0 || known > 0).then(|| (lock.uid, known.max(lock.epoch)));
    }
}

/// Calls the product with what an operator has read.
fn decide_on(state: &State, lock: &Lock, lease: Option<Lease>, pod: u8, remembered: Option<(u8, u64)>, defect: Defect) -> (Decision, bool) {
    let read = lease.map_or(LeaseRead::Missing, |l| LeaseRead::Found(view(l)));
    let grant = lock.grant.as_ref().filter(|g| g.whose == Whose::Holders).map(to_grant);
    let revoked = lock.grant.as_ref().and_then(to_revoked);
    let revoke = lock.revoke.as_ref().map(|named| Revocation::of(&to_grant(named), "it runs away"));
    let reservation = Ok(state.reserved.filter(|_| defect != Defect::NoReservation).map(to_reservation));
    let fence =
        |(epoch, holder): (u64, Option<Worker>)| TrustedFence { boundary: "db".into(), epoch, holder: holder.map_or("", name).into() };
    let fences: Vec<_> = state.fence.into_iter().filter(|_| defect != Defect::FenceNotRead).map(fence).collect();
    let input = Input {
        lock_uid: &lock.uid.to_string(),
        epoch: Epoch::new(lock.epoch).ok(),
        grant: grant.as_ref(),
        revoke: revoke.as_ref(),
        revoked: revoked.as_ref(),
        lease: &read,
        shared_with: None,
        pod_uid: Some(&pod.to_string()),
        floor: 0,
        reservation: &reservation,
        remembered: remembered.filter(|(uid, _)| *uid == lock.uid).and_then(|(_, epoch)| Epoch::new(epoch).ok()),
        fences: &fences,
        unreadable_fence: None,
    };
    let decision = decide(&input, &Time(time(0)));
    let changes = decision.changes(&input);
    (decision, changes)
}

impl State {
    fn make_backup(&mut self) {
        let Self { lease, lease_revision, lock, reserved, .. } = *self;
        self.backup = Some(Backup { lease, lease_revision, lock, reserved });
    }

    /// Revisions go back as well, so the operators are stopped over it: a paused one could not tell its old revision from a new one.
    fn restore(&mut self) {
        let Some(backup) = self.backup.take() else { return };
        (self.lease, self.lease_revision) = (backup.lease, backup.lease_revision);
        (self.lock, self.reserved) = (backup.lock, backup.reserved);
        self.operators.iter_mut().for_each(|operator| operator.step = Step::Idle);
    }

    fn pod_behind(&self, lease: Option<Lease>) -> u8 {
        lease.and_then(|l| l.holder).map_or(0, |holder| self.processes[holder as usize].pod)
    }

    /// From the reads to the first write, or to none.
    fn decided(&self, operator: &Operator, lock: Lock, lease: Option<Lease>, pod: u8, defect: Defect) -> Step {
        let (decision, changes) = decide_on(self, &lock, lease, pod, operator.remembered, defect);
        if !changes {
            return if lock.grant.is_some_and(|g| !g.active) { Step::Activate(lock) } else { Step::Idle };
        }
        let nobody = decision.revoked.as_ref().filter(|_| defect != Defect::RevocationForgotten).map(from_revoked);
        let mut grant = decision.grant.as_ref().map(from_grant).or(nobody);
        if defect == Defect::ActiveTooEarly {
            grant = grant.map(|g| Granted { active: true, ..g });
        }
        if (decision.epoch, &grant) == (Epoch::new(lock.epoch).ok(), &lock.grant) {
            // Nobody is there to be put above a fence that is ahead: nothing to write.
            return Step::Idle;
        }
        let record = Record { before: lock, epoch: decision.epoch.map_or(0, Epoch::get), grant, rolled_back: decision.rolled_back };
        match decision.reserve.filter(|_| defect != Defect::NoReservation) {
            Some(r) => Step::Reserve { found: self.reserved, wanted: Reserved { last: r.last, lock: number(&r.uid) }, record },
            None => Step::Record(record),
        }
    }

    /// PUT of the status. `None` is a conflict.
    fn write_status(&mut self, before: &Lock, epoch: u64, grant: Option<Granted>, defect: Defect) -> Option<Lock> {
        let is_current = (before.uid, before.revision) == (self.lock.uid, self.lock.revision);
        (is_current || defect == Defect::NoCompareAndSwap).then(|| {
            self.lock = Lock { revision: self.lock.revision + 1, epoch, grant, ..self.lock };
            for new in grant.iter().filter(|new| before.grant.is_none_or(|old| old.epoch != new.epoch)) {
                let term = (new.holder, new.term.lease, new.term.transitions, new.term.acquired, new.term.pod);
                self.ghost.a_revoked_term_was_granted |= new.whose == Whose::Holders && self.ghost.revoked.contains(&term);
            }
            if let Some(active) = grant.filter(|g| g.active) {
                self.ghost.highest_active = self.ghost.highest_active.max(active.epoch);
            }
            self.lock
        })
    }

    fn record(&mut self, record: &Record, defect: Defect) -> Step {
        let Some(lock) = self.write_status(&record.before, record.epoch, record.grant, defect) else { return Step::Idle };
        let abandons = record.before.grant.is_some_and(|g| !g.active && record.grant.is_none_or(|next| next.epoch != g.epoch));
        self.ghost.pending_was_abandoned |= abandons;
        self.ghost.restore_was_suspected |= record.rolled_back;
        match record.grant {
            Some(grant) => {
                if record.before.grant.is_none_or(|before| before.epoch != grant.epoch) {
                    let (epoch, revision) = self.ghost.last_issued;
                    self.ghost.was_reissued |= grant.epoch <= epoch;
                    self.ghost.was_issued_to_a_former_owner |= grant.term.revision < revision;
                    self.ghost.last_issued = (grant.epoch, grant.term.revision);
                }
                Step::Activate(lock)
            }
            None => Step::Idle,
        }
    }

    fn activate(&mut self, lock: Lock, grant: &Granted, defect: Defect) -> Step {
        let before = self.fence.map_or(0, |(epoch, _)| epoch);
        let owner = (grant.whose == Whose::Holders).then(|| holder(grant.holder));
        let (answer, after) = if defect == Defect::LastWriterWins {
            (Activation::Activated, to_fence((grant.epoch, Some(grant.holder))))
        } else {
            boundary::step(self.fence.map(to_fence).as_ref(), Epoch::new(grant.epoch).unwrap(), owner.as_ref())
        };
        self.fence = Some((after.epoch.get(), after.holder.as_ref().map(worker)));
        self.ghost.fence_fell |= after.epoch.get() < before;
        match answer {
            Activation::Activated | Activation::Unchanged if !grant.active => Step::Finish(lock),
            _ => Step::Idle,
        }
    }

    fn finish(&mut self, lock: &Lock, grant: &Granted, defect: Defect) -> Step {
        let nobody = to_revoked(grant).map(|revoked| from_revoked(&revoked.activated()));
        let active = nobody.unwrap_or_else(|| from_grant(&to_grant(grant).activated(Time(time(0)))));
        self.write_status(lock, lock.epoch, Some(active), defect);
        Step::Idle
    }

    /// The operator's next step.
    fn proceed(&mut self, mut operator: Operator, defect: Defect) -> Operator {
        let now = self.lock;
        operator.step = match operator.step {
            Step::HasLease(lease, pod) => {
                operator.sees(&now);
                self.decided(&operator, now, lease, pod, defect)
            }
            Step::HasLock(lock) => self.decided(&operator, lock, self.lease, self.pod_behind(self.lease), defect),
            Step::Reserve { found, wanted, record } if found == self.reserved => {
                self.reserved = Some(wanted);
                Step::Record(record)
            }
            // Somebody else has written the reservation.
            Step::Reserve { .. } | Step::Idle => Step::Idle,
            Step::Record(record) => self.record(&record, defect),
            Step::Activate(lock) => lock.grant.map_or(Step::Idle, |grant| self.activate(lock, &grant, defect)),
            Step::Finish(lock) => lock.grant.map_or(Step::Idle, |grant| self.finish(&lock, &grant, defect)),
        };
        if let Step::Activate(lock) = operator.step {
            operator.sees(&lock);
        }
        operator
    }
}

impl Protocol {
    /// Begins a reconcile: everything that leads to a write of the epoch is read from now on, the lock first.
    fn start(&self, state: &State, mut operator: Operator) -> Operator {
        if self.defect == Defect::StaleLease {
            operator.step = Step::HasLease(state.lease, state.pod_behind(state.lease));
        } else {
            operator.sees(&state.lock);
            operator.step = Step::HasLock(state.lock);
        }
        operator
    }

    /// Merges states with the same future. Without a defect, an operator that can only meet a conflict or do nothing might as
    /// well start over, and the two operators are interchangeable.
    fn forget_what_does_not_matter(&self, state: &mut State) {
        let (lock, reserved, fence) = (state.lock, state.reserved, state.fence.map_or(0, |(epoch, _)| epoch));
        let is_past = |copy: &Lock| (copy.uid, copy.revision) != (lock.uid, lock.revision);
        for operator in &mut state.operators {
            let in_vain = match &operator.step {
                Step::Reserve { found, .. } => *found != reserved,
                Step::Record(record) => is_past(&record.before),
                Step::Finish(copy) => is_past(copy),
                Step::Activate(copy) => copy.grant.is_none_or(|g| g.epoch <= fence && (g.active || is_past(copy))),
                Step::Idle | Step::HasLease(..) | Step::HasLock(_) => false,
            };
            if in_vain && self.defect == Defect::Nothing {
                operator.step = Step::Idle;
            }
            if !self.budget.remember {
                operator.remembered = None;
            }
        }
        state.operators.sort();
    }

    fn start_again(state: &State) -> State {
        let lock = Lock { uid: state.lock.uid + 1, revision: state.lock.revision + 1, epoch: 0, grant: None, revoke: None };
        State { lock, ..state.clone() }
    }
}

// --- The model ---

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut state = State {
            lease: None,
            lease_revision: 0,
            lease_uid: 0,
            clock: 0,
            processes: [Process::default(); 2],
            lock: Lock { uid: 1, revision: 1, epoch: 0, grant: None, revoke: None },
            reserved: None,
            fence: None,
            operators: [Operator::default(); 2],
            backup: None,
            left: self.budget,
            ghost: Ghost::default(),
        };
        state.acquire(Worker::A);
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let owner = state.lease.and_then(|l| l.holder);
        for worker in WORKERS {
            if owner == Some(worker) && state.processes[worker as usize].term.is_some() {
                actions.push(Action::Releases(worker));
            } else if state.left.acquisitions > 0 {
                actions.push(Action::Acquires(worker));
            }
            if state.left.pod_replacements > 0 {
                actions.push(Action::PodIsReplaced(worker));
            }
        }
        if state.left.lease_deletions > 0 && state.lease.is_some() {
            actions.push(Action::LeaseIsDeleted);
        }
        if state.left.lock_recreations > 0 {
            actions.push(Action::LockIsRecreated);
        }
        if state.left.revocations > 0 && state.lock.grant.is_some_and(|g| g.whose == Whose::Holders) {
            actions.push(Action::GrantIsRevoked);
        }
        if state.left.restores > 0 {
            actions.push(if state.backup.is_none() { Action::BackupIsMade } else { Action::BackupIsRestored });
        }
        for (i, operator) in state.operators.iter().enumerate() {
            if operator.step == Step::Idle {
                actions.push(Action::Starts(i));
                if state.lock.grant.is_some() {
                    actions.push(Action::Resumes(i));
                }
            } else {
                actions.extend([Action::Proceeds(i), Action::StartsOver(i)]);
            }
            if operator.remembered.is_some() {
                actions.push(Action::Crashes(i));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Acquires(worker) => {
                state.left.acquisitions -= 1;
                state.acquire(worker);
            }
            Action::Releases(worker) => state.release(worker),
            Action::PodIsReplaced(worker) => {
                state.left.pod_replacements -= 1;
                state.replace_pod(worker);
            }
            Action::LeaseIsDeleted => {
                state.left.lease_deletions -= 1;
                state.lease_revision += 1;
                state.lease = None;
            }
            Action::LockIsRecreated => {
                state.left.lock_recreations -= 1;
                state = Self::start_again(&state);
            }
            Action::GrantIsRevoked => {
                state.left.revocations -= 1;
                state.lock = Lock { revision: state.lock.revision + 1, revoke: state.lock.grant, ..state.lock };
                let term = state.lock.grant.map(|g| (g.holder, g.term.lease, g.term.transitions, g.term.acquired, g.term.pod));
                state.ghost.revoked.extend(term);
            }
            Action::BackupIsMade => state.make_backup(),
            Action::BackupIsRestored => {
                state.left.restores -= 1;
                state.restore();
            }
            Action::Starts(i) => state.operators[i] = self.start(&state, state.operators[i]),
            // A grant in a cached lock is activated without reading anything again.
            Action::Resumes(i) => state.operators[i].step = Step::Activate(state.lock),
            Action::Proceeds(i) => state.operators[i] = state.proceed(last.operators[i], self.defect),
            Action::StartsOver(i) => state.operators[i].step = Step::Idle,
            Action::Crashes(i) => state.operators[i] = Operator::default(),
        }
        state.take_grants(self.defect);
        self.forget_what_does_not_matter(&mut state);
        (state != *last).then_some(state)
    }

    fn within_boundary(&self, state: &State) -> bool {
        let blocks = state.reserved.map_or(0, |r| r.last) / BLOCK;
        blocks <= u64::from(self.budget.blocks) && (self.defect == Defect::Nothing || state.lock.revision <= 12)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = vec![
            Property::always(NEVER_FALLS, |_, s: &State| !s.ghost.fence_fell),
            Property::always(STALE_REFUSED, |_, s: &State| stale(s).all(|claim| !s.admits(claim))),
            Property::always(ONE_TERM, |_, s: &State| {
                s.ghost.claims.iter().all(|a| s.ghost.claims.iter().all(|b| a.epoch != b.epoch || a == b))
            }),
            Property::sometimes("the owner's write is accepted", |_, s: &State| s.ghost.claims.iter().any(|c| s.admits(c))),
            Property::sometimes("an old owner's write is under way when a new grant is active", |_, s: &State| stale(s).next().is_some()),
            Property::sometimes("a pending grant is abandoned", |_, s: &State| s.ghost.pending_was_abandoned),
        ];
        if self.budget.restores == 0 {
            all.extend([
                Property::always(RISES, |_, s: &State| !s.ghost.was_reissued),
                Property::always(NEWEST, |_, s: &State| s.lock.epoch == 0 || s.lock.epoch == s.ghost.last_issued.0),
                Property::always(PRESENT_OWNER, |_, s: &State| !s.ghost.was_issued_to_a_former_owner),
                Property::always(NO_FALSE_ALARM, |_, s: &State| !s.ghost.restore_was_suspected),
                Property::always(FENCED, |_, s: &State| {
                    let owner = |g: Granted| (g.whose == Whose::Holders).then_some(g.holder);
                    active(s).is_none_or(|g| s.fence == Some((g.epoch, owner(g))))
                }),
                Property::always(STAYS_REVOKED, |_, s: &State| !s.ghost.a_revoked_term_was_granted),
            ]);
        } else {
            all.push(Property::sometimes("after a restore the present owner works above every earlier epoch", |_, s: &State| {
                s.ghost.restore_was_suspected && stale(s).next().is_some() && WORKERS.iter().any(|w| owner_works(s, *w))
            }));
        }
        if self.budget.revocations > 0 {
            all.push(Property::sometimes("nobody may write although the Lease is held", |_, s: &State| {
                let is_nobodys = active(s).is_some_and(|g| g.whose == Whose::Nobodys { ended: false });
                is_nobodys && stale(s).next().is_some() && s.lease.is_some_and(|l| l.holder.is_some())
            }));
        }
        if self.budget.acquisitions > 0 {
            all.push(Property::sometimes("a second owner works", |_, s: &State| owner_works(s, Worker::B)));
        }
        if self.budget.lock_recreations > 0 {
            all.push(Property::sometimes("a recreated lock goes on above its predecessor", |_, s: &State| {
                s.lock.uid > 1 && active(s).is_some_and(|g| g.epoch > BLOCK)
            }));
        }
        if self.budget.lease_deletions > 0 {
            all.push(Property::sometimes("the owner of a recreated Lease works", |_, s: &State| {
                active(s).is_some_and(|g| g.term.lease > 1) && (owner_works(s, Worker::A) || owner_works(s, Worker::B))
            }));
        }
        if self.budget.pod_replacements > 0 {
            all.push(Property::sometimes("a replaced pod works", |_, s: &State| {
                active(s).is_some_and(|g| g.term.pod > 0) && stale(s).next().is_some()
            }));
        }
        all
    }
}

const RISES: &str = "an epoch is never issued twice and never below an earlier one, also when the lock is recreated";
const NEWEST: &str = "status.epoch is the newest epoch";
const PRESENT_OWNER: &str = "an epoch is never issued for a term that an earlier record had left behind";
const NO_FALSE_ALARM: &str = "nothing is taken for a restore where nothing was restored";
const FENCED: &str = "an active grant is what the fence accepts";
const STAYS_REVOKED: &str = "a term that was revoked gets no other epoch";
const NEVER_FALLS: &str = "the fence never falls";
const STALE_REFUSED: &str = "once a grant is active, no write of an earlier one is accepted";
const ONE_TERM: &str = "an epoch is used in one term, by one process";

fn active(state: &State) -> Option<Granted> {
    state.lock.grant.filter(|g| g.active)
}

/// Writes of grants before the newest that was ever active, and not of that one.
fn stale(state: &State) -> impl Iterator<Item = &Claim> {
    state.ghost.claims.iter().filter(|claim| claim.epoch < state.ghost.highest_active)
}

fn owner_works(state: &State, worker: Worker) -> bool {
    active(state).is_some_and(|g| state.ghost.claims.iter().any(|c| c.epoch == g.epoch && c.holder == worker && state.admits(c)))
}

// --- The checks ---

fn holds_within(budget: Budget) {
    let start = Instant::now();
    let checker = Protocol { budget, defect: Defect::Nothing }.checker().threads(2).spawn_bfs().join();
    println!("{} states, depth {}, {:?}: {budget:?}", checker.unique_state_count(), checker.max_depth(), start.elapsed());
    checker.assert_properties();
}

/// A model with one defect must violate what the defect is about: a checker that finds nothing here would find nothing anywhere.
fn is_found(defect: Defect, budget: Budget, broken: &'static [&'static str]) {
    let start = Instant::now();
    let finish = HasDiscoveries::AllOf(broken.iter().copied().collect());
    let checker = Protocol { budget, defect }.checker().finish_when(finish).spawn_bfs().join();
    println!("{defect:?}: {} states, {:?}", checker.unique_state_count(), start.elapsed());
    for property in broken {
        let path = checker.assert_any_discovery(property);
        println!("  {property}: {:?}", path.into_actions());
    }
}

const QUIET: Budget = Budget {
    acquisitions: 0,
    lease_deletions: 0,
    lock_recreations: 0,
    pod_replacements: 0,
    restores: 0,
    revocations: 0,
    blocks: 2,
    remember: false,
};

#[test]
fn the_protocol_holds_while_owners_change() {
    holds_within(Budget { acquisitions: 2, ..QUIET });
}

#[test]
fn the_protocol_holds_when_the_lock_is_recreated() {
    holds_within(Budget { acquisitions: 1, lock_recreations: 1, ..QUIET });
}

#[test]
fn the_protocol_holds_when_the_lease_is_recreated() {
    holds_within(Budget { acquisitions: 1, lease_deletions: 1, ..QUIET });
}

#[test]
fn the_protocol_holds_when_another_pod_takes_the_name() {
    holds_within(Budget { acquisitions: 1, pod_replacements: 1, ..QUIET });
}

#[test]
fn the_protocol_holds_when_lease_and_lock_are_recreated() {
    holds_within(Budget { acquisitions: 1, lease_deletions: 1, lock_recreations: 1, ..QUIET });
}

#[test]
fn the_protocol_holds_when_operators_remember_and_crash() {
    holds_within(Budget { acquisitions: 1, lock_recreations: 1, remember: true, ..QUIET });
}

#[test]
fn the_protocol_holds_when_the_cluster_is_restored_behind_its_boundary() {
    holds_within(Budget { acquisitions: 1, restores: 1, ..QUIET });
}

#[test]
fn the_protocol_holds_when_a_grant_is_revoked() {
    holds_within(Budget { acquisitions: 1, revocations: 1, ..QUIET });
    holds_within(Budget { acquisitions: 0, revocations: 1, pod_replacements: 1, ..QUIET });
    holds_within(Budget { acquisitions: 1, revocations: 1, lease_deletions: 1, ..QUIET });
}

#[test]
fn a_revocation_that_is_forgotten_is_found() {
    is_found(Defect::RevocationForgotten, Budget { revocations: 1, ..QUIET }, &[STAYS_REVOKED]);
}

#[test]
fn a_status_written_without_compare_and_swap_is_found() {
    is_found(Defect::NoCompareAndSwap, Budget { acquisitions: 1, ..QUIET }, &[RISES, NEWEST, FENCED]);
}

#[test]
fn a_lock_without_a_reservation_is_found() {
    is_found(Defect::NoReservation, Budget { acquisitions: 1, lock_recreations: 1, ..QUIET }, &[RISES]);
}

/// With a lock that is as stale as the Lease, compare-and-swap refuses the record; so only the Lease is.
#[test]
fn minting_on_a_stale_lease_is_found() {
    is_found(Defect::StaleLease, Budget { acquisitions: 1, ..QUIET }, &[PRESENT_OWNER, NO_FALSE_ALARM]);
}

#[test]
fn a_grant_that_is_active_before_its_boundary_is_found() {
    is_found(Defect::ActiveTooEarly, Budget { acquisitions: 1, ..QUIET }, &[FENCED, STALE_REFUSED]);
}

#[test]
fn a_fence_that_can_be_lowered_is_found() {
    is_found(Defect::LastWriterWins, Budget { acquisitions: 1, ..QUIET }, &[NEVER_FALLS, FENCED, STALE_REFUSED]);
}

#[test]
fn a_worker_that_does_not_compare_the_term_is_found() {
    is_found(Defect::TermNotCompared, Budget { acquisitions: 1, ..QUIET }, &[ONE_TERM]);
}

#[test]
fn a_worker_that_does_not_compare_the_pod_is_found() {
    is_found(Defect::PodNotCompared, Budget { pod_replacements: 1, ..QUIET }, &[ONE_TERM]);
}

/// The epoch of before the restore is issued once more, to the same name in another life.
#[test]
fn a_restore_without_reading_the_fence_is_found() {
    is_found(Defect::FenceNotRead, Budget { acquisitions: 1, restores: 1, ..QUIET }, &[ONE_TERM]);
}

#[test]
#[ignore = "takes minutes: cargo test --test model -- --ignored --nocapture"]
fn the_protocol_holds_in_deeper_histories() {
    holds_within(Budget { acquisitions: 3, ..QUIET });
    holds_within(Budget { acquisitions: 2, lease_deletions: 1, ..QUIET });
    holds_within(Budget { acquisitions: 1, restores: 1, remember: true, ..QUIET });
    holds_within(Budget { acquisitions: 1, lease_deletions: 1, lock_recreations: 1, pod_replacements: 1, ..QUIET });
}
