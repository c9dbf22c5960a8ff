//! The command line: one file per subcommand. Parses, calls, prints; judges nothing itself.
//!
//! Start with [`run`].

mod audit;
mod cluster;
mod command;
mod completions;
mod crds;
mod database;
mod declared;
mod drill;
mod guard;
mod ledger;
mod manifests;
mod operator;
mod recover;
mod revoke;
mod run;
#[cfg(test)]
mod schemas;
mod status;
mod table;

use std::{
    ffi::OsString,
    io::{self, Write},
    process::ExitCode,
};

use clap::{Parser, Subcommand};

/// Audits how locks are classified and says which critical ones have no write boundary that refuses obsolete owners.
#[derive(Debug, Parser)]
#[command(name = "fencedlock", version, arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Judge every lock in manifests or in a cluster, and find those that nobody declared
    Audit(audit::Args),
    /// Show the whole story of a lock on one screen
    Status(status::Args),
    /// Fence the present owner of a lock, also while it still renews its Lease
    Revoke(revoke::Args),
    /// After a restore: make sure that the next epoch lies above everything that was ever issued
    Recover(recover::Args),
    /// Rehearse the stale owner on a lock, and print a report for an incident review
    Drill(drill::Args),
    /// Run a command while holding a lock, under the claim of its epoch
    Run(run::Args),
    /// The operations that were sent to a receiver that cannot refuse an obsolete owner
    Ledger(ledger::Args),
    /// Install the guard of a PostgreSQL boundary by hand, or open it for good
    Guard(guard::Args),
    /// Print the CustomResourceDefinitions
    Crds(crds::Args),
    /// Run the operator (what the chart runs)
    Operator(operator::Args),
    /// Print a completion script for a shell
    Completions(completions::Args),
}

/// The exit code of a run that found something.
const FOUND: u8 = 1;
/// The exit code of a usage or tool error.
const FAILED: u8 = 2;

/// Runs the command line with the given arguments, the program's name first.
///
/// Exit codes: 0 when it went well and nothing was found, 1 when an audit found something at or above `--fail-on`, 2 for a
/// usage or tool error.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // clap's own codes: 0 for --help and --version, 2 for usage.
            let code = u8::try_from(error.exit_code()).unwrap_or(FAILED);
            drop(error.print());
            return ExitCode::from(code);
        }
    };
    let outcome = match cli.command {
        Command::Audit(args) => audit::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Revoke(args) => revoke::run(&args),
        Command::Recover(args) => recover::run(&args),
        Command::Drill(args) => drill::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Ledger(args) => ledger::run(&args),
        Command::Guard(args) => guard::run(&args),
        Command::Crds(args) => crds::run(&args),
        Command::Operator(args) => operator::run(&args),
        Command::Completions(args) => completions::run(&args),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        // The reader went away, as `head` does: no error of ours.
        Err(Failure::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            drop(writeln!(io::stderr(), "fencedlock: {failure}"));
            ExitCode::from(FAILED)
        }
    }
}

/// Why a command could not do its work.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// Output or input failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Anything else, as a sentence with its next step.
    #[error("{0}")]
    Other(String),
}

/// A runtime for the commands that talk to a cluster. One thread: they wait for answers, and waking another thread for each costs
/// more than the work.
fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    // The one TLS provider of the program.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// A reason that somebody gives for the record.
fn as_reason(text: &str) -> Result<String, String> {
    let text = text.trim();
    match text.chars().count() {
        0 => Err("must not be blank".into()),
        1..=1024 => Ok(text.to_owned()),
        count => Err(format!("has {count} characters, at most 1024 are accepted")),
    }
}
