//! A program under measurement, in a process of its own: the operator as users run it, or the Go peer.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::{memory, plane::Plane};

/// Which program.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Which {
    Operator,
    Peer,
}

impl Which {
    /// The counter of its reconciles.
    const fn reconciles(self) -> &'static str {
        match self {
            Self::Operator => "fencedlock_reconciles_total",
            Self::Peer => "controller_runtime_reconcile_total",
        }
    }
}

/// A program that runs until it is stopped or dropped.
pub struct Program {
    which: Which,
    child: Child,
    port: u16,
    started: Instant,
}

impl Program {
    pub fn start(which: Which, plane: &Plane) -> Self {
        // Free a moment ago; nobody else binds ports here.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let listen = format!("127.0.0.1:{port}");
        let (mut command, log) = match which {
            Which::Operator => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_fencedlock"));
                command.args(["operator", "--listen", &listen]).env("KUBECONFIG", &plane.kubeconfig).env("RUST_LOG", "warn");
                (command, "bench-operator.log")
            }
            Which::Peer => {
                let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/bench/peer"));
                command.args(["--listen", &listen, "--from"]).arg(&plane.kubeconfig);
                (command, "bench-peer.log")
            }
        };
        let log = fs::File::create(Path::new(env!("CARGO_TARGET_TMPDIR")).join(log)).unwrap();
        let started = Instant::now();
        let child = command.stdout(Stdio::null()).stderr(log).spawn().expect("`make bench` builds what is measured");
        Self { which, child, port, started }
    }

    pub fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: x\r\n\r\n").as_bytes()).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        text.lines().next()?.contains(" 200 ").then_some(text)
    }

    /// The sum of a metric's samples whose line contains all of `labels`.
    pub fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let text = self.get("/metrics").unwrap_or_default();
        let lines = text.lines().filter(|l| l.starts_with(name) && labels.iter().all(|label| l.contains(label)));
        lines.filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    pub fn reconciles(&self) -> f64 {
        self.metric(self.which.reconciles(), &[])
    }

    /// How long after its start something was so.
    pub async fn until(&self, what: &str, wanted: impl Fn(&Self) -> bool) -> Duration {
        let began = Instant::now();
        while !wanted(self) {
            assert!(began.elapsed() < Duration::from_mins(8), "waited for {what}; {}", self.get("/metrics").unwrap_or_default());
            // Each look costs the program a walk over everything.
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        self.started.elapsed()
    }

    /// Waits until nothing is reconciled for two seconds.
    pub async fn quiet(&self) {
        let mut last = -1.0;
        loop {
            let now = self.reconciles();
            if now == last {
                return;
            }
            last = now;
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    }

    /// A line of /proc/PID/status, in MiB.
    pub fn memory(&self, field: &str) -> f64 {
        memory::of(self.child.id(), field).unwrap()
    }

    /// CPU time used so far, user and system, in seconds.
    pub fn cpu(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        // USER_HZ is 100 on every Linux that Rust runs on.
        ticks as f64 / 100.0
    }

    pub fn stop(mut self) {
        Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
