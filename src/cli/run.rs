//! `fencedlock run`: a command that runs only while this process holds a lock, and that carries the claim of its epoch.

use std::{
    ffi::OsString,
    io::{self, IsTerminal},
    time::Duration,
};

use kube::{Api, Client};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    Failure, cluster,
    command::{Signals, code_of, start},
};
use crate::{
    api::{FencedLock, ShortDuration},
    client::{
        acquire::Timing,
        hold::{Hold, Lock, hold},
    },
    epoch::{Epoch, Holder},
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
    // At a terminal the command shares our process group, so that it can read from it.
    let mut child = match start(&args.command, lock, holder, epoch, !io::stdin().is_terminal(), |_| {}) {
        Ok(child) => child,
        Err(error) => {
            say(&format!("{}: {error}", args.command[0].display()));
            return Ok(if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_STARTED });
        }
    };
    loop {
        tokio::select! {
            status = child.wait() => {
                child.leave_nobody();
                return Ok(code_of(status?).unwrap_or(BROKEN));
            }
            why = lost(state) => {
                say(&format!("{why}: the command is stopped"));
                if child.stop(args.grace.get()).await? {
                    say("the command does not end: it was killed");
                }
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

async fn lease_of(client: &Client, namespace: &str, name: &str) -> Result<String, Failure> {
    let found = Api::<FencedLock>::namespaced(client.clone(), namespace).get_opt(name).await;
    let lock = found.map_err(|error| Failure::Other(format!("FencedLock {name:?} in namespace {namespace:?} cannot be read: {error}")))?;
    let lock =
        lock.ok_or_else(|| Failure::Other(format!("there is no FencedLock {name:?} in namespace {namespace:?}: declare it first")))?;
    let lease = lock.spec.coordinator.lease.map(|lease| lease.name);
    lease
        .ok_or_else(|| Failure::Other(format!("FencedLock {name:?} is coordinated outside Kubernetes and has no Lease that could be held")))
}
