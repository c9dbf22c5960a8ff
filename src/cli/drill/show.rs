//! The report of a drill for people. Pure.

use std::fmt::Write as _;

use crate::{
    api::{
        DrillProbe, ProbeOutcome,
        conditions::{printable, shorten},
    },
    audit::drill::{Conduct, RealRefusals, Rehearsed, Report, Worker, Workers},
    cli::table,
};

/// The whole report.
pub(super) fn text(report: &Report) -> String {
    let lock = &report.lock;
    let mut text = format!("Drill of FencedLock {}/{}, {}\n\n", lock.namespace, lock.name, report.at.0.strftime("%Y-%m-%dT%H:%M:%SZ"));
    let mut line = |label: &str, value: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{label:<10}{}", printable(value));
    };
    line("Class:", &format!("{:?}", lock.class));
    line("Verdict:", &lock.verdict.map_or_else(|| "none yet".to_owned(), |verdict| format!("{verdict:?}")));
    line("Lease:", lock.lease.as_deref().unwrap_or("none: it is coordinated outside Kubernetes"));
    let epoch = lock.epoch.map_or_else(|| "none".to_owned(), |epoch| epoch.to_string());
    line("Epoch:", &epoch);
    line("Owner:", &lock.owner.as_ref().map_or_else(|| "nobody".to_owned(), |owner| format!("{:?}", shorten(owner, 80))));
    text.push_str(&boundaries(&report.boundaries));
    for rehearsed in &report.boundaries {
        text.push_str(&one(rehearsed));
    }
    if let Some(workers) = &report.workers {
        text.push_str(&real(workers));
    }
    text.push_str(if report.untested.is_empty() { "" } else { "\nNot tested:\n" });
    for untested in &report.untested {
        let _ = writeln!(text, "- {}: {}", printable(&untested.what), printable(&untested.why));
    }
    let _ = writeln!(text, "\n{}", conclusion(report));
    text
}

fn boundaries(all: &[Rehearsed]) -> String {
    if all.is_empty() {
        return "\nNo write boundary refers to this lock: nothing can refuse an obsolete owner.\n".into();
    }
    let row = |rehearsed: &Rehearsed| {
        let result = match rehearsed.conduct {
            Conduct::Refused => format!("refused all {} wrong writes", rehearsed.refused),
            Conduct::Failed => "FAILED".to_owned(),
            Conduct::NotTested => "not tested".to_owned(),
        };
        let drill = rehearsed.drill.as_ref();
        vec![
            rehearsed.name.clone(),
            rehearsed.type_.map_or_else(|| "-".to_owned(), |type_| type_.to_string()),
            result,
            drill.map_or_else(|| "-".to_owned(), |drill| took(drill.took_microseconds)),
            drill.and_then(|drill| drill.activation_microseconds).map_or_else(|| "-".to_owned(), took),
            rehearsed.verdict.map_or_else(|| "Missing".to_owned(), |verdict| format!("{verdict:?}")),
        ]
    };
    let rows: Vec<_> = all.iter().map(row).collect();
    format!("\n{}\n", table::render(&["BOUNDARY", "TYPE", "RESULT", "TOOK", "ACTIVATION", "VERDICT"], &rows))
}

fn one(rehearsed: &Rehearsed) -> String {
    let mut text = String::new();
    if let Some(drill) = rehearsed.drill.as_ref().filter(|drill| !drill.probes.is_empty()) {
        let server = rehearsed.server.as_ref().map_or_else(String::new, |server| format!(" ({})", printable(server)));
        let _ = writeln!(text, "\nWhat {:?}{server} answered on its canary:", rehearsed.name);
        let rows: Vec<_> = drill.probes.iter().map(probe).collect();
        for line in table::render(&["PROBE", "OUTCOME", "REFUSED", "TOOK", "IN WHICH WORDS, OR WHY"], &rows).lines() {
            let _ = writeln!(text, "  {line}");
        }
        if let Some(refused) = drill.refused {
            let _ = writeln!(text, "  Writes of real workers that it refused since its guard was installed: {refused}");
        }
    }
    if rehearsed.conduct == Conduct::Failed {
        let _ = writeln!(text, "\nFAILED: {:?}: {}", rehearsed.name, printable(rehearsed.why.as_deref().unwrap_or_default()));
    }
    if let Some(open) = &rehearsed.open {
        let _ = writeln!(text, "\nOpen at {:?}: {}", rehearsed.name, printable(open));
    }
    text
}

fn probe(probe: &DrillProbe) -> Vec<String> {
    let outcome = match probe.outcome {
        ProbeOutcome::NotApplicable => "-".to_owned(),
        outcome => format!("{outcome:?}"),
    };
    let text = probe.detail.as_ref().or(probe.words.as_ref()).cloned().unwrap_or_default();
    vec![
        probe.name.clone(),
        outcome,
        probe.refused.map_or_else(|| "-".to_owned(), |refused| refused.to_string()),
        probe.took_microseconds.map_or_else(|| "-".to_owned(), took),
        text,
    ]
}

fn real(workers: &Workers) -> String {
    let mut text = String::from("\nWith real workers:\n");
    let mut line = |words: String| {
        let _ = writeln!(text, "  {}", printable(&words));
    };
    let named = |worker: &Worker| format!("{:?}", shorten(&worker.holder, 80));
    if let Some(epoch) = workers.first.epoch {
        line(format!("the first copy got epoch {epoch} as {}", named(&workers.first)));
    }
    if let (Some(second), Some(took)) = (&workers.second, workers.takeover_milliseconds) {
        let epoch = second.epoch.map_or_else(|| "no epoch".to_owned(), |epoch| format!("epoch {epoch}"));
        line(format!("it was stopped; {} later the second copy had {epoch} as {}", took_milliseconds(took), named(second)));
        let after =
            workers.first_ended_after_milliseconds.map_or_else(String::new, |after| format!(", {} later", took_milliseconds(after)));
        line(format!("the first copy was woken: it {}{after}", workers.first.end));
        line(format!("the second copy {}", second.end));
    }
    for RealRefusals { boundary, refused } in &workers.refusals {
        let refused = refused.map_or_else(|| "not counted there".to_owned(), |refused| refused.to_string());
        line(format!("writes that {boundary:?} refused meanwhile: {refused}"));
    }
    if let Some(failure) = &workers.failure {
        line(format!("NOT PLAYED TO ITS END: {failure}"));
    }
    text
}

fn took_milliseconds(milliseconds: u64) -> String {
    took(milliseconds.saturating_mul(1_000))
}

/// A time with its unit, to about three digits.
pub(super) fn took(microseconds: u64) -> String {
    match microseconds {
        0..1_000 => format!("{microseconds} µs"),
        1_000..1_000_000 => format!("{}.{} ms", microseconds / 1_000, microseconds % 1_000 / 100),
        _ => format!("{}.{:02} s", microseconds / 1_000_000, microseconds % 1_000_000 / 10_000),
    }
}

fn conclusion(report: &Report) -> &'static str {
    if report.passed {
        "Passed: every boundary that can refuse did, and nothing is open there."
    } else if report.workers.is_some() {
        "NOT PASSED: see what failed, is open, was not tested or not played to its end above."
    } else {
        "NOT PASSED: see what failed, is open or was not tested above."
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let shown = [0, 999, 1_000, 12_345, 999_999, 1_000_000, 61_234_567].map(took);
        assert_eq!(shown, ["0 µs", "999 µs", "1.0 ms", "12.3 ms", "999.9 ms", "1.00 s", "61.23 s"]);
    }
}
