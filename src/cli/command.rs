//! A command that runs under the claim of an epoch: starting it, telling it signals, ending it. Whether and when is not known here.

use std::{ffi::OsString, io, os::unix::process::ExitStatusExt, process::ExitStatus, time::Duration};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::{
    process::{Child, Command},
    signal::unix::{SignalKind, signal},
};

use crate::{
    client::hold::Lock,
    epoch::{Epoch, Holder, claim},
};

/// A command that is running.
pub(super) struct Running {
    process: Child,
    pid: Option<Pid>,
    /// Its process group, when it has one of its own: at a terminal it shares ours, so that it can read from it.
    group: bool,
}

/// Starts a command under the claim of an epoch. `group`: in a process group of its own. `more` sets what else there is to set.
pub(super) fn start(
    command: &[OsString],
    lock: &Lock,
    holder: &Holder,
    epoch: Epoch,
    group: bool,
    more: impl FnOnce(&mut Command),
) -> io::Result<Running> {
    let claim = claim::claim(&lock.namespace, &lock.name, epoch, holder);
    let before = std::env::var("PGOPTIONS").unwrap_or_default();
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("FENCEDLOCK_EPOCH", epoch.to_string())
        .env("FENCEDLOCK_HOLDER", holder.as_str())
        .env("PGOPTIONS", claim::pgoptions(&before, &claim))
        .env("FENCEDLOCK_CLAIM", claim)
        .kill_on_drop(true);
    if group {
        command.process_group(0);
    }
    more(&mut command);
    let process = command.spawn()?;
    let pid = process.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    Ok(Running { process, pid, group })
}

impl Running {
    /// Waits until it ends.
    pub(super) async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.process.wait().await
    }

    /// Sends a signal to it, and to its process group when that is its own.
    pub(super) fn send(&self, signal: Signal) {
        let Some(pid) = self.pid else { return };
        // It may have ended just now.
        let sent = if self.group { kill_process_group(pid, signal) } else { kill_process(pid, signal) };
        sent.ok();
    }

    /// What the command left running in its process group is told to end: its claim is obsolete as soon as the lock is given back.
    pub(super) fn leave_nobody(&self) {
        if self.group {
            self.send(Signal::TERM);
        }
    }

    /// TERM, then KILL. A stopped process is woken, so that it can obey. Returns whether it had to be killed.
    pub(super) async fn stop(&mut self, grace: Duration) -> io::Result<bool> {
        self.send(Signal::TERM);
        self.send(Signal::CONT);
        let obeyed = tokio::time::timeout(grace, self.process.wait()).await.is_ok();
        if !obeyed {
            self.send(Signal::KILL);
            self.process.wait().await?;
        }
        Ok(!obeyed)
    }
}

/// Its exit code, 128 + N when signal N ended it.
pub(super) fn code_of(status: ExitStatus) -> Option<u8> {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok())
}

/// Signals that somebody sends to us.
pub(super) struct Signals {
    all: Vec<(Signal, tokio::signal::unix::Signal)>,
}

impl Signals {
    /// Takes them in from now on.
    pub(super) fn new() -> io::Result<Self> {
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

    /// The next one.
    pub(super) async fn next(&mut self) -> Signal {
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
