//! `fencedlock drill LOCK`: rehearses the stale owner on a real lock. The operator is asked to examine each boundary now, on its canary; with `--real`,
//! two copies of a command compete for the lock itself. [`crate::audit::drill`] judges what came of it; `ask` asks, `show` prints.

mod ask;
mod show;

use std::io::{self, Write};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use super::{FOUND, Failure, cluster};
use crate::{api::ShortDuration, audit::drill};

#[derive(Debug, clap::Args)]
#[command(after_long_help = AFTER)]
pub(super) struct Args {
    /// The FencedLock
    lock: String,
    #[command(flatten)]
    place: cluster::Place,
    /// How long to wait for the operator's examination of a boundary
    #[arg(long, value_name = "DURATION", default_value = "1m")]
    timeout: ShortDuration,
    /// How to print the report
    #[arg(long, short, value_name = "FORMAT", default_value = "text", value_parser = ["text", "json"])]
    output: String,
}

const AFTER: &str = "\
The operator examines each write boundary of the lock now: on a canary that is guarded in the same
way, an obsolete owner writes before, during and after a change of owner. The lock, its owner and
what is guarded are left alone, so it can be run at any time. The report says what was refused, in
which words and how soon, what is open, and what could not be tested.

Exit codes:
  0  every boundary that can refuse did, and nothing is open there
  1  something was not refused, could not be tested, or is open
  2  usage or tool error";

pub(super) fn run(args: &Args) -> Result<u8, Failure> {
    super::runtime()?.block_on(rehearse(args))
}

async fn rehearse(args: &Args) -> Result<u8, Failure> {
    let at = Timestamp::now();
    let (client, namespace) = args.place.connect().await?;
    let lock = cluster::lock(&client, &namespace, &args.lock).await?;
    let asked = ask::boundaries(&client, &namespace, &lock, args.timeout.get()).await?;
    let report = drill::report(&lock, &asked, None, Time(at));
    let text = if args.output == "json" {
        serde_json::to_string_pretty(&report).map_err(|error| Failure::Other(error.to_string()))? + "\n"
    } else {
        show::text(&report)
    };
    write!(io::stdout(), "{text}")?;
    Ok(if report.passed { 0 } else { FOUND })
}
