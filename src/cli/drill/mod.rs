//! `fencedlock drill LOCK`: rehearses the stale owner on a real lock. The operator is asked to examine each boundary now, on its canary; with `--real`,
//! two copies of a command compete for the lock itself. [`crate::audit::drill`] judges what came of it; `ask` asks, `show` prints.

mod ask;
mod real;
mod show;

use std::{
    ffi::OsString,
    io::{self, Write},
};

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
    /// Also let two copies of a command compete for the lock, while nobody owns it: the first is stopped, loses the lock to the second, and is woken
    #[arg(long, requires = "command")]
    real: bool,
    /// With --real: how long the copies work at each step
    #[arg(long, value_name = "DURATION", default_value = "5s")]
    work: ShortDuration,
    /// With --real: how long the second copy waits for a renewal before it takes over
    #[arg(long, value_name = "DURATION", default_value = "15s")]
    lease_duration: ShortDuration,
    /// With --real: the command and its arguments, after --
    #[arg(last = true, requires = "real", value_name = "COMMAND")]
    command: Vec<OsString>,
}

const AFTER: &str = "\
The operator examines each write boundary of the lock now: on a canary that is guarded in the same
way, an obsolete owner writes before, during and after a change of owner. The lock, its owner and
what is guarded are left alone, so it can be run at any time. The report says what was refused, in
which words and how soon, what is open, and what could not be tested.

With --real, two copies of a command are let at the real thing, so give it work that may be done
twice. They get the same surroundings as from fencedlock run. The first is stopped (SIGSTOP) while
it works, its Lease runs out, the second takes over, and the first is woken. What the copies print
goes to standard error.

Exit codes:
  0  every boundary that can refuse did, and nothing is open there; with --real, the first copy was
     refused at least once after it was woken
  1  something was not refused, could not be tested, or is open
  2  usage or tool error";

pub(super) fn run(args: &Args) -> Result<u8, Failure> {
    super::runtime()?.block_on(rehearse(args))
}

async fn rehearse(args: &Args) -> Result<u8, Failure> {
    let at = Timestamp::now();
    let (client, namespace) = args.place.connect().await?;
    let lock = cluster::lock(&client, &namespace, &args.lock).await?;
    if args.real {
        real::may_begin(&lock)?;
    }
    let mut asked = ask::boundaries(&client, &namespace, &lock, args.timeout.get()).await?;
    let mut workers = None;
    if args.real {
        let report = drill::report(&lock, &asked, None, Time(at));
        let (played, last) = real::play(args, &client, &lock, &asked, &report).await?;
        workers = Some(played);
        asked = last.unwrap_or(asked);
    }
    let report = drill::report(&lock, &asked, workers, Time(at));
    let text = if args.output == "json" {
        serde_json::to_string_pretty(&report).map_err(|error| Failure::Other(error.to_string()))? + "\n"
    } else {
        show::text(&report)
    };
    write!(io::stdout(), "{text}")?;
    Ok(if report.passed { 0 } else { FOUND })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        audit::drill::{Answer, Asked, RealRefusals, Report, Worker, Workers},
        cli::schemas::{complaints, published},
    };

    /// A report in which everything is there that can be.
    fn report() -> Report {
        let lock = json!({"apiVersion": "fencedlock.dev/v1alpha1", "kind": "FencedLock", "metadata": {"name": "a", "namespace": "n"},
            "spec": {"class": "CorrectnessCritical", "coordinator": {"lease": {"name": "a"}}},
            "status": {"epoch": 7, "verdict": "Enforced", "grant": {"epoch": 7, "holder": "x", "state": "Active",
                "since": "2026-12-04T00:00:00Z", "term": {"leaseUid": "u"}}}});
        let boundary = json!({"apiVersion": "fencedlock.dev/v1alpha1", "kind": "WriteBoundary", "metadata": {"name": "b"},
            "spec": {"lockRef": {"name": "a"}, "type": "Postgres", "mode": "Enforce"},
            "status": {"verdict": "Violated", "reason": "BypassFound", "proof": {"provenAt": "2026-12-04T00:00:00Z", "server": "s", "guard": "g"}}});
        let drill = json!({"request": "r", "generation": 1, "beganAt": "2026-12-04T00:00:00Z", "tookMicroseconds": 7, "activationMicroseconds": 3,
            "probes": [{"name": "StaleRefused", "outcome": "Passed", "refused": 2, "words": "no\u{1b}[2K", "tookMicroseconds": 1_500},
                {"name": "RaceRefused", "outcome": "Failed", "detail": "it was accepted"}], "refused": 3, "lastRefused": "x"});
        let answer = Answer::Made(serde_json::from_value(drill).unwrap());
        let found = Asked { name: "b".into(), found: Some(serde_json::from_value(boundary).unwrap()), answer };
        let missing = Asked { name: "c".into(), found: None, answer: Answer::None(String::new()) };
        let worker = |holder: &str| Worker { holder: holder.into(), epoch: None, end: "went on until it was told to end".into() };
        let workers = Workers {
            first: worker("first"),
            second: Some(worker("second")),
            takeover_milliseconds: Some(3_000),
            first_ended_after_milliseconds: Some(20),
            failure: Some("it was interrupted".into()),
            refusals: vec![RealRefusals { boundary: "b".into(), refused: None }],
        };
        let at = Time("2026-12-04T00:00:00Z".parse().unwrap());
        drill::report(&serde_json::from_value(lock).unwrap(), &[found, missing], Some(workers), at)
    }

    /// `GENERATE=1` renews it.
    #[test]
    fn the_published_schema_of_our_json_is_current_and_fits() {
        let generator = schemars::generate::SchemaSettings::default().for_serialize().into_generator();
        let schema = published("drill.schema.json", &generator.into_root_schema_for::<Report>());
        let mut report: Value = serde_json::to_value(report()).unwrap();
        assert_eq!(complaints(&schema, &report), Vec::<String>::new());
        report["boundaries"][0]["conduct"] = "Perfect".into();
        assert_eq!(complaints(&schema, &report).len(), 1);
    }

    #[test]
    fn the_text_says_everything_and_nothing_deceives() {
        let text = show::text(&report());
        for words in [
            "Owner:    \"x\"",
            "FAILED",
            "Missing",
            "1.5 ms",
            "FAILED: \"b\": RaceRefused: it was accepted",
            "Open at \"b\": BypassFound",
            "3.00 s later the second copy",
            "20.0 ms later",
            "refused meanwhile: not counted there",
            "NOT PLAYED TO ITS END: it was interrupted",
            "- write boundary \"c\": spec.writeBoundaries lists it",
            "NOT PASSED",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(!text.contains('\u{1b}'), "{text}");
    }
}
