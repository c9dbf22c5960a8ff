//! How long `fencedlock audit` takes for 10,000 manifests, and how much memory for ten times as many. Every application of the input has ten documents: a
//! FencedLock and its WriteBoundary, a Deployment that elects a leader with its account, role and binding, a ConfigMap, a Service, a Secret and a
//! CronJob. Run by `make bench-audit`.

#![allow(missing_docs, unreachable_pub, clippy::pedantic, clippy::unwrap_used, dead_code, reason = "a measuring program")]

#[path = "../locks/memory.rs"]
mod memory;
#[path = "../locks/results.rs"]
mod results;

use std::{
    fmt::Write as _,
    fs::{self, File},
    io::{BufWriter, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use results::{Goal, Results, quantile};

const RUNS: usize = 9;

fn main() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-audit");
    fs::create_dir_all(&folder).unwrap();
    let small = input(&folder, "10k.yaml", 1_000);
    let large = input(&folder, "100k.yaml", 10_000);
    let mut seconds: Vec<f64> = (0..RUNS).map(|_| audit(&small).0.as_secs_f64()).collect();
    let mut memory: Vec<f64> = (0..3).map(|_| audit(&small).1).collect();
    let mut large_runs: Vec<(Duration, f64)> = (0..3).map(|_| audit(&large)).collect();
    let mut results = Results::default();
    results.add("audit_10k_s", quantile(&mut seconds, 0.5), "s", Goal::AtMost(1.0));
    results.add("audit_10k_rss_mib", quantile(&mut memory, 1.0), "MiB", Goal::None);
    let mut peaks: Vec<f64> = large_runs.iter().map(|(_, peak)| *peak).collect();
    results.add("audit_100k_rss_mib", quantile(&mut peaks, 1.0), "MiB", Goal::AtMost(64.0));
    large_runs.sort_by_key(|run| run.0);
    results.add("audit_100k_over_10k_time", large_runs[1].0.as_secs_f64() / quantile(&mut seconds, 0.5), "ratio", Goal::None);
    results.write();
    fs::remove_dir_all(folder).unwrap();
}

/// One run of the release program: how long it took, and the most memory that it held, in MiB.
fn audit(file: &Path) -> (Duration, f64) {
    let begun = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_fencedlock"))
        .args(["audit", "--fail-on", "never", "--as-of", "2026-12-02T00:00:00Z"])
        .arg(file)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut peak = 0.0_f64;
    while child.try_wait().unwrap().is_none() {
        // The peak never falls, so that the last reading is it, but for the last millisecond.
        peak = peak.max(memory::of(child.id(), "VmHWM").unwrap_or(0.0));
        std::thread::sleep(Duration::from_millis(1));
    }
    let took = begun.elapsed();
    assert!(child.wait().unwrap().success());
    (took, peak)
}

fn input(folder: &Path, name: &str, applications: usize) -> PathBuf {
    let path = folder.join(name);
    let mut file = BufWriter::new(File::create(&path).unwrap());
    let mut text = String::new();
    for number in 0..applications {
        text.clear();
        write!(text, "{}", APPLICATION.replace("@", &number.to_string())).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }
    file.flush().unwrap();
    path
}

const APPLICATION: &str = include_str!("application.yaml");
