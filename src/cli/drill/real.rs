//! Two copies of a command at the real lock: the first is stopped, loses the lock to the second, and is woken. Everything that was begun is ended,
//! however the play ends.

use std::{
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};

use kube::{Client, ResourceExt};
use rustix::process::Signal;
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use super::{Args, ask};
use crate::{
    api::{ClaimKind, FencedLock},
    audit::drill::{Answer, Asked, Conduct, RealRefusals, Report, Worker, Workers},
    cli::{
        Failure,
        command::{Running, Signals, code_of, start},
        operator::identity,
        revoke::shown,
    },
    client::{
        acquire::Timing,
        hold::{Hold, Lock, hold},
    },
    epoch::{Epoch, Holder},
};

/// How long a copy may take to end after SIGTERM, before SIGKILL.
const GRACE: Duration = Duration::from_secs(5);

/// Whether the lock is free, as far as its status says.
pub(super) fn may_begin(lock: &FencedLock) -> Result<(), Failure> {
    let what = format!("FencedLock {}/{}", lock.namespace().unwrap_or_default(), lock.name_any());
    if lock.spec.coordinator.lease.is_none() {
        return Err(Failure::Other(format!("{what} is coordinated outside Kubernetes and has no Lease that two copies could compete for")));
    }
    let recorded = lock.status.as_ref().and_then(|status| status.grant.as_ref());
    recorded.map_or(Ok(()), |grant| {
        let (holder, epoch) = (shown(grant.holder.as_str()), grant.epoch);
        Err(Failure::Other(format!(
            "{what} is owned by {holder} with epoch {epoch}: real workers drill only while nobody works. Stop the workers first, or leave --real out"
        )))
    })
}

/// Plays it, after a rehearsal. Returns also what the boundaries answered last, when they were asked again.
pub(super) async fn play(
    args: &Args,
    client: &Client,
    lock: &FencedLock,
    asked: &[Asked],
    rehearsal: &Report,
) -> Result<(Workers, Option<Vec<Asked>>), Failure> {
    let mut play = Play { args, client, lock, first: None, second: None, workers: Workers::default(), last: None };
    let mut signals = Signals::new()?;
    let played = tokio::select! {
        played = play.act(asked, rehearsal) => played,
        _ = signals.next() => Err("it was interrupted".to_owned()),
    };
    play.workers.failure = played.err();
    play.end().await;
    Ok((play.workers, play.last))
}

struct Play<'a> {
    args: &'a Args,
    client: &'a Client,
    lock: &'a FencedLock,
    first: Option<Copy>,
    second: Option<Copy>,
    workers: Workers,
    last: Option<Vec<Asked>>,
}

/// One copy of the command, and the hold that it works under.
struct Copy {
    state: watch::Receiver<Hold>,
    give_up: CancellationToken,
    holding: JoinHandle<()>,
    lock: Lock,
    running: Option<Running>,
}

impl Play<'_> {
    async fn act(&mut self, asked: &[Asked], rehearsal: &Report) -> Result<(), String> {
        let of_pods = |asked: &&Asked| {
            let kubernetes = asked.found.as_ref().and_then(|boundary| boundary.spec.kubernetes.as_ref());
            kubernetes.is_some_and(|kubernetes| kubernetes.claim == ClaimKind::PodIdentity)
        };
        if let Some(asked) = asked.iter().find(of_pods) {
            return Err(format!(
                "it was not begun, because write boundary {:?} takes pods for owners (claim: PodIdentity), and a command is none",
                asked.name
            ));
        }
        let refusing = rehearsal.boundaries.iter().any(|boundary| boundary.conduct == Conduct::Refused);
        if let Some(boundary) = rehearsal.boundaries.iter().find(|boundary| boundary.conduct == Conduct::Failed) {
            return Err(format!("it was not begun, because write boundary {:?} would let an obsolete owner in", boundary.name));
        }
        if !refusing {
            return Err("it was not begun, because no write boundary was seen to refuse".into());
        }
        let work = self.args.work.get();
        let first = self.first.insert(Copy::begin(self.args, self.client, self.lock, "first")?);
        self.workers.first = Worker { holder: first.lock.identity.clone(), epoch: None, end: String::new() };
        let epoch = first.granted(self.args).await?;
        self.workers.first.epoch = Some(epoch);
        first.run(self.args, epoch)?;
        if let Some(status) = first.ends_within(work).await? {
            return Err(format!(
                "the first copy {} before anybody took over: give it work for longer than --work {}",
                ended(status),
                self.args.work
            ));
        }
        first.send(Signal::STOP);
        // Not given back: as if the machine had stalled, the Lease has to run out.
        first.holding.abort();
        let stopped = Instant::now();

        let second = self.second.insert(Copy::begin(self.args, self.client, self.lock, "second")?);
        let epoch = second.granted(self.args).await?;
        self.workers.takeover_milliseconds = Some(millis(stopped.elapsed()));
        self.workers.second = Some(Worker { holder: second.lock.identity.clone(), epoch: Some(epoch), end: String::new() });
        second.run(self.args, epoch)?;
        // Also a receiver that learns of a new owner by its first write has seen it by then.
        let second_ended = second.ends_within(work).await?;
        if let Some(status) = second_ended.filter(|status| !status.success()) {
            return Err(format!("the second copy {} although it owns the lock", ended(status)));
        }

        let before = self.count().await?;
        if let Some(RealRefusals { boundary, refused: Some(refused) }) = refusals(asked, &before).into_iter().find(|r| r.refused > Some(0))
        {
            return Err(format!(
                "{boundary:?} refused {refused} writes while the copies owned the lock: what it refuses later says nothing"
            ));
        }
        let first = self.first.as_mut().ok_or("the first copy is gone")?;
        let woken = Instant::now();
        first.send(Signal::CONT);
        if let Some(status) = first.ends_within(work).await? {
            self.workers.first_ended_after_milliseconds = Some(millis(woken.elapsed()));
            self.workers.first.end = ended(status);
        }
        let second = self.second.as_ref().ok_or("the second copy is gone")?;
        if *second.state.borrow() != Hold::Granted(epoch) {
            return Err("the second copy lost the lock meanwhile: what was refused may have been its own".into());
        }
        self.end().await;
        let after = self.count().await?;
        self.workers.refusals = refusals(&before, &after);
        self.last = Some(after);
        Ok(())
    }

    async fn count(&self) -> Result<Vec<Asked>, String> {
        let namespace = self.lock.namespace().unwrap_or_default();
        ask::boundaries(self.client, &namespace, self.lock, self.args.timeout.get()).await.map_err(|error| error.to_string())
    }

    /// Ends what runs, and gives the Lease back. A copy that has ended keeps what was said of it.
    async fn end(&mut self) {
        let ends = [(self.first.take(), Some(&mut self.workers.first)), (self.second.take(), self.workers.second.as_mut())];
        for (copy, worker) in ends {
            let Some(copy) = copy else { continue };
            let end = copy.end().await;
            if let Some(worker) = worker.filter(|worker| worker.end.is_empty()) {
                worker.end = end;
            }
        }
    }
}

impl Copy {
    fn begin(args: &Args, client: &Client, lock: &FencedLock, which: &str) -> Result<Self, String> {
        let lease = lock.spec.coordinator.lease.as_ref().map(|lease| lease.name.clone()).unwrap_or_default();
        let identity = identity(&format!("fencedlock-drill-{which}")).map_err(|error| error.to_string())?;
        let lasts = args.lease_duration.get();
        let timing = Timing::new(lasts, lasts.mul_f64(0.7), lasts.mul_f64(0.1)).map_err(|error| format!("--lease-duration: {error}"))?;
        let lock = Lock { namespace: lock.namespace().unwrap_or_default(), name: lock.name_any(), lease, identity, timing };
        let (state, give_up) = (watch::Sender::new(Hold::Contending), CancellationToken::new());
        let seen = state.subscribe();
        let holding = tokio::spawn(hold(client.clone(), lock.clone(), state, give_up.clone()));
        Ok(Self { state: seen, give_up, holding, lock, running: None })
    }

    /// Waits for the epoch; a Lease that has to run out first is waited for as well.
    async fn granted(&mut self, args: &Args) -> Result<Epoch, String> {
        let limit = args.timeout.get() + args.lease_duration.get();
        let is_decided = |hold: &Hold| matches!(hold, Hold::Granted(_) | Hold::Lost(_));
        let decided = tokio::time::timeout(limit, self.state.wait_for(is_decided)).await.map(|hold| hold.map(|hold| hold.clone()));
        let last = match decided {
            Ok(Ok(Hold::Granted(epoch))) => return Ok(epoch),
            Ok(Ok(other)) => other,
            Ok(Err(_)) => Hold::Lost("the lock cannot be held any more".into()),
            Err(_) => self.state.borrow().clone(),
        };
        let why = match last {
            Hold::Waiting(why) | Hold::Lost(why) => why,
            Hold::Contending | Hold::Granted(_) => "somebody else holds the Lease, or it may not be written".to_owned(),
        };
        Err(format!("{:?} got no epoch: {why}", self.lock.identity))
    }

    fn run(&mut self, args: &Args, epoch: Epoch) -> Result<(), String> {
        let holder = Holder::new(&self.lock.identity).map_err(|error| error.to_string())?;
        let apart = |command: &mut tokio::process::Command| {
            command.stdin(Stdio::null()).stdout(std::io::stderr());
        };
        let running = start(&args.command, &self.lock, &holder, epoch, true, apart);
        let program = args.command.first().map(|program| program.display().to_string()).unwrap_or_default();
        self.running = Some(running.map_err(|error| format!("{program}: {error}"))?);
        Ok(())
    }

    fn send(&self, signal: Signal) {
        if let Some(running) = &self.running {
            running.send(signal);
        }
    }

    /// How it ended, if it did within some time.
    async fn ends_within(&mut self, time: Duration) -> Result<Option<ExitStatus>, String> {
        let Some(running) = &mut self.running else { return Ok(None) };
        match tokio::time::timeout(time, running.wait()).await {
            Ok(status) => status.map(Some).map_err(|error| error.to_string()),
            Err(_) => Ok(None),
        }
    }

    /// Ends the command, then the hold. Says how the command ended.
    async fn end(mut self) -> String {
        let end = match self.ends_within(Duration::ZERO).await {
            Ok(Some(status)) => ended(status),
            _ => match &mut self.running {
                None => "was not started".to_owned(),
                Some(running) => match running.stop(GRACE).await {
                    Ok(true) => "went on until it was killed".to_owned(),
                    _ => "went on until it was told to end".to_owned(),
                },
            },
        };
        if let Some(running) = &self.running {
            running.leave_nobody();
        }
        self.give_up.cancel();
        drop(self.holding.await);
        end
    }
}

fn ended(status: ExitStatus) -> String {
    code_of(status).map_or_else(|| "ended".to_owned(), |code| format!("ended by itself with code {code}"))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// What was refused between two looks, at each boundary that answered both.
fn refusals(before: &[Asked], after: &[Asked]) -> Vec<RealRefusals> {
    let count = |asked: &Asked| match &asked.answer {
        Answer::Made(drill) => drill.refused,
        Answer::None(_) => None,
    };
    let at = |now: &Asked| {
        let then = before.iter().find(|asked| asked.name == now.name)?;
        let refused = count(then).zip(count(now)).map(|(then, now)| now.saturating_sub(then));
        matches!(now.answer, Answer::Made(_)).then(|| RealRefusals { boundary: now.name.clone(), refused })
    };
    after.iter().filter_map(at).collect()
}
