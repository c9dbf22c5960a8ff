//! `fencedlock audit`: the verdicts for manifests, without a cluster.
//!
//! [`load`] reads, [`judge`] calls the pure rules, [`report`] prints.

mod judge;
mod report;

use std::io::{self, Write};

use k8s_openapi::jiff::Timestamp;

use super::{FOUND, Failure, load};
use crate::audit::rules::Severity;

#[derive(Debug, clap::Args)]
#[command(after_help = "Exit codes: 0 nothing at or above --fail-on was found, 1 something was, 2 usage or tool error.")]
pub(super) struct Args {
    /// Files and folders with manifests (.yaml, .yml, .json), or - for standard input
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// How the result is printed
    #[arg(long, short, default_value = "table")]
    output: Output,
    /// The least severity of a finding that makes the exit code 1
    #[arg(long, default_value = "error", value_name = "SEVERITY")]
    fail_on: FailOn,
    /// Judge as of this time, such as 2029-01-01T00:00:00Z, instead of now: shows what will have expired by then
    #[arg(long, value_name = "TIME")]
    as_of: Option<Timestamp>,
    /// The namespace of objects that name none
    #[arg(long, short, default_value = "default", value_name = "NAME")]
    namespace: String,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Output {
    /// For people
    Table,
    /// For programs
    Json,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum FailOn {
    /// Any finding
    Info,
    /// Warnings and errors
    Warning,
    /// Errors
    Error,
    /// Nothing: always report, never fail
    Never,
}

impl FailOn {
    fn fails(self, severity: Severity) -> bool {
        match self {
            Self::Info => true,
            Self::Warning => severity >= Severity::Warning,
            Self::Error => severity >= Severity::Error,
            Self::Never => false,
        }
    }
}

pub(super) fn run(args: &Args) -> Result<u8, Failure> {
    let documents = load::all(&args.paths, &args.namespace)?;
    let result = judge::judge(documents, args.as_of.unwrap_or_else(Timestamp::now));
    let text = match args.output {
        Output::Table => report::table(&result),
        Output::Json => report::json(&result)?,
    };
    writeln!(io::stdout(), "{text}")?;
    let fails = result.findings.iter().any(|found| args.fail_on.fails(found.finding.severity));
    Ok(if fails { FOUND } else { 0 })
}
