//! What a guard costs the database, on a real PostgreSQL server: guarded against unguarded one-row updates beside an empty trigger, in one
//! run, alternating; activation while others write; one proof; a grant that waits for an activation; a revocation. Run by `make bench`; with
//! the argument `latency`, only the last two.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::pedantic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    dead_code,
    reason = "a measuring program"
)]

mod latency;
#[path = "../locks/memory.rs"]
mod memory;
#[path = "../../tests/cluster/support/plane.rs"]
mod plane;
#[path = "../locks/program.rs"]
mod program;
#[path = "../locks/results.rs"]
mod results;
#[path = "../../tests/postgres/support/mod.rs"]
mod support;
#[path = "../locks/world.rs"]
mod world;

use std::{
    path::PathBuf,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use fencedlock::api::GuardMode;
use results::{Goal, Results, quantile};
use support::{Db, Server, activate, claim, connect, examine, text};

/// How often each table is measured in each setting.
const ROUNDS: usize = 5;
/// How long one measurement takes.
const SECONDS: &str = "4";

#[tokio::main]
async fn main() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let server = Server::start("bench", &["max_connections=100", "shared_buffers=256MB", "max_wal_size=4GB"]);
    let mut results = Results::default();
    if std::env::args().any(|argument| argument == "latency") {
        latency::measure(&Db::on(&server).await, &mut results).await;
        return results.write();
    }
    let db = Db::on(&server).await;
    let tables = ["t", "plain", "empty"];
    let (writer, owner) = (&db.writer, &db.owner);
    db.admin
        .batch_execute(&format!(
            "create function nothing() returns trigger language plpgsql as 'begin return null; end'; drop table t; \
             create table t (id int primary key, n bigint not null default 0); insert into t select g from generate_series(1, 10000) g; \
             create table plain (like t including all); create table empty (like t including all); insert into plain table t; \
             insert into empty table t; \
             create trigger nothing before insert or update or delete or truncate on empty for each statement execute function nothing(); \
             grant select, insert, update, delete on t, plain, empty to {writer}; alter table t owner to {owner}"
        ))
        .await
        .unwrap();
    db.admin.batch_execute("vacuum analyze").await.unwrap();
    let boundary = db.fenced(1, "bench").await;
    let scripts: Vec<PathBuf> = tables
        .iter()
        .map(|table| {
            let path = std::env::temp_dir().join(format!("fencedlock-bench-{table}-{}.sql", std::process::id()));
            std::fs::write(&path, format!("\\set id random(1, 10000)\nupdate {table} set n = n + 1 where id = :id;\n")).unwrap();
            path
        })
        .collect();
    for (name, clients, setting, goal) in [
        ("durable_c1", "1", "", Goal::AtLeast(0.9)),
        ("durable_c8", "8", "", Goal::AtLeast(0.9)),
        ("async_c8", "8", "-c synchronous_commit=off", Goal::None),
    ] {
        let mut sums = [0.0; 3];
        for _ in 0..ROUNDS {
            for (sum, script) in sums.iter_mut().zip(&scripts) {
                *sum += transactions_per_second(&db, script, clients, setting);
            }
        }
        results.add(&format!("pg_guarded_over_unguarded_{name}"), sums[0] / sums[1], "ratio", goal);
        results.add(&format!("pg_guard_over_empty_trigger_{name}"), sums[0] / sums[2], "ratio", Goal::AtLeast(0.93));
    }
    for script in scripts {
        std::fs::remove_file(script).unwrap();
    }
    activation_under_load(&db, &boundary, &mut results).await;
    one_proof(&db, &mut results).await;
    latency::measure(&Db::on(&server).await, &mut results).await;
    results.write();
}

fn transactions_per_second(db: &Db, script: &std::path::Path, clients: &str, setting: &str) -> f64 {
    let output = Command::new("pgbench")
        .args(["--no-vacuum", "--protocol=prepared", "--client", clients, "--jobs", clients, "--time", SECONDS, "--file"])
        .arg(script)
        .arg(db.url(&db.writer))
        .env("PGOPTIONS", format!("-c fencedlock.claim={} {setting}", claim(1, "bench")))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let rate = said.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
    rate.unwrap_or_else(|| panic!("pgbench: {said}"))
}

/// Eight clients write as fast as they can under the present claim while epochs are activated one after the other.
async fn activation_under_load(db: &Db, boundary: &fencedlock::boundary::postgres::Postgres, results: &mut Results) {
    let (epoch, stop) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicBool::new(false)));
    let mut writers = tokio::task::JoinSet::new();
    for n in 0..8 {
        let (epoch, stop, url) = (Arc::clone(&epoch), Arc::clone(&stop), db.url(&db.writer));
        writers.spawn(async move {
            let client = connect(&url).await;
            while !stop.load(Ordering::Relaxed) {
                let claim = claim(epoch.load(Ordering::Relaxed), "bench");
                let write = format!("begin; set local fencedlock.claim = '{claim}'; update t set n = n + 1 where id = {}; commit", n + 1);
                if client.simple_query(&write).await.is_err() {
                    client.batch_execute("rollback").await.unwrap();
                }
            }
        });
    }
    let mut took = Vec::new();
    for next in 2..202 {
        let began = Instant::now();
        activate(boundary, next, "bench").await;
        took.push(began.elapsed().as_secs_f64() * 1000.0);
        epoch.store(next, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    stop.store(true, Ordering::Relaxed);
    while writers.join_next().await.is_some() {}
    results.add("activation_under_load_p50_ms", quantile(&mut took, 0.5), "ms", Goal::None);
    results.add("activation_under_load_p99_ms", quantile(&mut took, 0.99), "ms", Goal::None);
}

/// One examination of a boundary with one table that is in order: how long it takes, and how many transactions the database sees.
async fn one_proof(db: &Db, results: &mut Results) {
    let boundary = db.boundary(GuardMode::Enforce);
    examine(&boundary).await;
    let count = "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()";
    let transactions = async || {
        // Counts of other sessions arrive when those sessions end, or a second later.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        db.admin.batch_execute("select pg_stat_clear_snapshot()").await.unwrap();
        text(&db.admin, count).await.parse::<f64>().unwrap()
    };
    let before = transactions().await;
    let mut took = Vec::new();
    for _ in 0..20 {
        let began = Instant::now();
        examine(&boundary).await;
        took.push(began.elapsed().as_secs_f64() * 1000.0);
    }
    let after = transactions().await;
    results.add("pg_proof_p50_ms", quantile(&mut took, 0.5), "ms", Goal::None);
    results.add("pg_proof_transactions", (after - before) / 20.0, "transactions", Goal::None);
}
