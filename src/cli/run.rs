//! `fencedlock run`: a command that runs only while this process holds a lock, and that carries the claim of its epoch.

use std::{
    ffi::OsString,
    io::{self, IsTerminal},
    os::unix::process::ExitStatusExt,
    process::ExitStatus,
    time::Duration,
};

use kube::{Api, Client};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::{
    process::{Child, Command},
    signal::unix::{SignalKind, signal},
    sync::watch,
};
use tokio_util::sync::CancellationToken;

use super::{Failure, cluster};
use crate::{
    api::{FencedLock, ShortDuration},
    client::{
        acquire::Timing,
        hold::{Hold, Lock, hold},
    },
    epoch::{Epoch, Holder, claim},
};

/// The lock was lost, and the command was stopped.
const LOST: u8 = 123;
/// The lock was not granted within `--wait`.
const NOT_GRANTED: u8 = 124;
/// fencedlock could not do its work.
const BROKEN: u8 = 125;
/// The command could not be started.
const NOT_STARTED: u8 = 126;
/// There is no such command.
const NOT_FOUND: u8 = 127;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The command gets FENCEDLOCK_EPOCH, FENCEDLOCK_HOLDER, FENCEDLOCK_CLAIM, and PGOPTIONS, with which psql and every other \
                        program that uses libpq carries the claim.\n\n\
                        Exit codes: the command's own (128 + N when signal N ended it); 123 the lock was lost and the command was stopped; \
                        124 the lock was not granted within --wait; 125 fencedlock could not do its work; 126 the command could not be \
                        started; 127 there is no such command."
)]
pub(super) struct Args {
    /// The FencedLock
    #[arg(long, value_name = "NAME")]
    lock: String,
    #[command(flatten)]
    place: cluster::Place,
    /// Who this process is in the Lease. Must differ at each start; made from the pod's or host's name when absent
    #[arg(long, value_name = "TEXT")]
    identity: Option<String>,
    /// How long others wait for a renewal before they take over
    #[arg(long, default_value = "15s", value_name = "DURATION")]
    lease_duration: ShortDuration,
    /// For how long a renewal is tried before the command is stopped; less than the lease duration
    #[arg(long, default_value = "10s", value_name = "DURATION")]
    renew_deadline: ShortDuration,
    /// The pause between two attempts
    #[arg(long, default_value = "2s", value_name = "DURATION")]
    retry_period: ShortDuration,
    /// How long the command may take to end after SIGTERM, before SIGKILL
    #[arg(long, default_value = "10s", value_name = "DURATION")]
    grace: ShortDuration,
    /// Give up when the lock is not granted within this time; for ever when absent
    #[arg(long, value_name = "DURATION")]
    wait: Option<ShortDuration>,
    /// The command and its arguments, after --
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(super) fn run(args: &Args) -> Result<u8, Failure> {
    super::operator::logs(super::operator::LogFormat::Text, "warn");
    let runtime = super::runtime()?;
    match runtime.block_on(hold_and_run(args)) {
        Ok(code) => Ok(code),
        Err(failure) => {
            say(&failure.to_string());
            Ok(BROKEN)
        }
    }
}

/// What the process is called that has no other name: its pod's, else its host's.
fn host() -> String {
    let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    std::env::var("POD_NAME").ok().filter(|name| !name.is_empty()).unwrap_or_else(host)
}

fn say(text: &str) {
    use std::io::Write;
    drop(writeln!(io::stderr(), "fencedlock run: {text}"));
}

async fn hold_and_run(args: &Args) -> Result<u8, Failure> {
    let timing = Timing::new(args.lease_duration.get(), args.renew_deadline.get(), args.retry_period.get())
        .map_err(|error| Failure::Other(error.to_string()))?;
    let (client, namespace) = args.place.connect().await?;
    let lease = lease_of(&client, &namespace, &args.lock).await?;
    let identity = args.identity.clone().map_or_else(|| super::operator::identity(&host()), Ok)?;
    let holder = Holder::new(&identity).map_err(|error| Failure::Other(format!("--identity: {error}")))?;
    let lock = Lock { namespace, name: args.lock.clone(), lease, identity, timing };
    let (state, stop) = (watch::Sender::new(Hold::Contending), CancellationToken::new());
    let mut watched = state.subscribe();
    let holding = tokio::spawn(hold(client, lock.clone(), state, stop.clone()));
    let code = with_grant(args, &lock, &holder, &mut watched).await;
    stop.cancel();
    drop(holding.await);
    code
}

async fn with_grant(args: &Args, lock: &Lock, holder: &Holder, state: &mut watch::Receiver<Hold>) -> Result<u8, Failure> {
    let mut signals = Signals::new()?;
    let limit = async {
        match args.wait {
            Some(wait) => tokio::time::sleep(wait.get()).await,
            None => std::future::pending().await,
        }
    };
    let epoch = tokio::select! {
        granted = granted(state) => granted?,
        () = limit => {
            let why = match &*state.borrow() {
                Hold::Waiting(why) => why.clone(),
                _ => "somebody else holds the Lease".to_owned(),
            };
            say(&format!("the lock was not granted within {}: {why}", args.wait.map_or_else(String::new, |wait| wait.to_string())));
            return Ok(NOT_GRANTED);
        }
        signal = signals.next() => return Ok(128 + u8::try_from(signal.as_raw()).unwrap_or_default()),
    };
    let mut child = match start(args, lock, holder, epoch) {
        Ok(child) => child,
        Err(error) => {
            say(&format!("{}: {error}", args.command[0].display()));
            return Ok(if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_STARTED });
        }
    };
    loop {
        tokio::select! {
            status = child.process.wait() => {
                child.leave_nobody();
                return Ok(code_of(status?));
            }
            why = lost(state) => {
                say(&format!("{why}: the command is stopped"));
                child.stop(args.grace.get()).await?;
                return Ok(LOST);
            }
            signal = signals.next() => child.send(signal),
        }
    }
}

/// Waits for the grant. When it takes a while, the operator's words are passed on.
async fn granted(state: &mut watch::Receiver<Hold>) -> Result<Epoch, Failure> {
    let over = || Failure::Other("the lock cannot be held any more".into());
    let mut said = String::new();
    loop {
        let now = state.borrow_and_update().clone();
        match &now {
            Hold::Granted(epoch) => return Ok(*epoch),
            Hold::Lost(why) => return Err(Failure::Other(why.clone())),
            Hold::Waiting(_) | Hold::Contending => {}
        }
        match tokio::time::timeout(A_WHILE, state.changed()).await {
            Ok(changed) => changed.map_err(|_| over())?,
            Err(_) => {
                if let Hold::Waiting(why) = now
                    && why != said
                {
                    say(&format!("the Lease is held; waiting for its epoch: {why}"));
                    said = why;
                }
            }
        }
    }
}

/// After how long without news it is said what is waited for.
const A_WHILE: Duration = Duration::from_secs(3);

/// Waits until the lock is lost, and says why.
async fn lost(state: &mut watch::Receiver<Hold>) -> String {
    match state.wait_for(|hold| matches!(hold, Hold::Lost(_))).await.map(|hold| hold.clone()) {
        Ok(Hold::Lost(why)) => why,
        _ => "the lock cannot be held any more".to_owned(),
    }
}

struct Running {
    process: Child,
    pid: Option<Pid>,
    /// Its process group, when it has one of its own: at a terminal it shares ours, so that it can read from it.
    group: bool,
}

fn start(args: &Args, lock: &Lock, holder: &Holder, epoch: Epoch) -> io::Result<Running> {
    let claim = claim::claim(&lock.namespace, &lock.name, epoch, holder);
    let group = !io::stdin().is_terminal();
    let before = std::env::var("PGOPTIONS").unwrap_or_default();
    let mut command = Command::new(&args.command[0]);
    command
        .args(&args.command[1..])
        .env("FENCEDLOCK_EPOCH", epoch.to_string())
        .env("FENCEDLOCK_HOLDER", holder.as_str())
        .env("PGOPTIONS", claim::pgoptions(&before, &claim))
        .env("FENCEDLOCK_CLAIM", claim)
        .kill_on_drop(true);
    if group {
        command.process_group(0);
    }
    let process = command.spawn()?;
    let pid = process.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    Ok(Running { process, pid, group })
}

impl Running {
    fn send(&self, signal: Signal) {
        let Some(pid) = self.pid else { return };
        // It may have ended just now.
        let sent = if self.group { kill_process_group(pid, signal) } else { kill_process(pid, signal) };
        sent.ok();
    }

    /// What the command left running in its process group is told to end: its claim is obsolete as soon as the lock is given back.
    fn leave_nobody(&self) {
        if self.group {
            self.send(Signal::TERM);
        }
    }

    /// TERM, then KILL. A stopped process is woken, so that it can obey.
    async fn stop(&mut self, grace: Duration) -> io::Result<()> {
        self.send(Signal::TERM);
        self.send(Signal::CONT);
        if tokio::time::timeout(grace, self.process.wait()).await.is_err() {
            say("the command does not end: it is killed");
            self.send(Signal::KILL);
            self.process.wait().await?;
        }
        Ok(())
    }
}

fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(BROKEN)
}

/// Signals that are passed on.
struct Signals {
    all: Vec<(Signal, tokio::signal::unix::Signal)>,
}

impl Signals {
    fn new() -> io::Result<Self> {
        let known = [
            (Signal::TERM, SignalKind::terminate()),
            (Signal::INT, SignalKind::interrupt()),
            (Signal::HUP, SignalKind::hangup()),
            (Signal::QUIT, SignalKind::quit()),
            (Signal::USR1, SignalKind::user_defined1()),
            (Signal::USR2, SignalKind::user_defined2()),
        ];
        let all = known.into_iter().map(|(number, kind)| Ok((number, signal(kind)?))).collect::<io::Result<_>>()?;
        Ok(Self { all })
    }

    async fn next(&mut self) -> Signal {
        let waits = self.all.iter_mut().map(|(number, signal)| {
            let number = *number;
            Box::pin(async move {
                signal.recv().await;
                number
            })
        });
        futures::future::select_all(waits).await.0
    }
}

async fn lease_of(client: &Client, namespace: &str, name: &str) -> Result<String, Failure> {
    let found = Api::<FencedLock>::namespaced(client.clone(), namespace).get_opt(name).await;
    let lock = found.map_err(|error| Failure::Other(format!("FencedLock {name:?} in namespace {namespace:?} cannot be read: {error}")))?;
    let lock =
        lock.ok_or_else(|| Failure::Other(format!("there is no FencedLock {name:?} in namespace {namespace:?}: declare it first")))?;
    let lease = lock.spec.coordinator.lease.map(|lease| lease.name);
    lease
        .ok_or_else(|| Failure::Other(format!("FencedLock {name:?} is coordinated outside Kubernetes and has no Lease that could be held")))
}
