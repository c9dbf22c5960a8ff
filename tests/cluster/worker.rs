//! `fencedlock run`: real processes that hold a lock, with the rights of examples/clients/rbac.yaml; and the race that all of this is
//! about, with a real database.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, ChildStdout, Command, Stdio},
};

use crate::{
    pg::{Db, said, text, until},
    postgres::guarded,
    support::{Lab, lab::has, lease::at, proxy::Proxy},
};
use fencedlock::api::{Verdict, conditions::lock as on};

/// The kubeconfig of a worker with exactly the rights that the documentation gives it.
pub fn worker(lab: &Lab) -> PathBuf {
    lab.kubeconfig_of("a", || {
        let rbac = include_str!("../../examples/clients/rbac.yaml").replace("report-writer", "a");
        lab.plane.kubectl(&["apply", "--namespace", &lab.namespace, "-f", "-"], &rbac);
    })
}

/// A running `fencedlock run`.
pub struct Run {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Run {
    /// Runs a shell script while holding lock `a`.
    pub fn start(lab: &Lab, identity: &str, options: &[&str], script: &str, env: &[(&str, &str)]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_fencedlock"))
            .args(["run", "--lock", "a", "--namespace", &lab.namespace, "--identity", identity])
            .args(["--lease-duration", "3s", "--renew-deadline", "2s", "--retry-period", "500ms"])
            .args(options)
            .args(["--", "sh", "-c", script])
            .env("KUBECONFIG", worker(lab))
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// The next line that the command prints.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.lines.read_line(&mut line).unwrap() > 0, "it ended before it printed");
        line.trim_end().to_owned()
    }

    /// Signals the process itself.
    pub fn signal(&self, signal: &str) {
        kill(signal, &self.child.id().to_string());
    }

    /// Its exit code.
    pub fn code(&mut self) -> i32 {
        self.child.wait().unwrap().code().unwrap()
    }
}

pub fn kill(signal: &str, pid: &str) {
    assert!(Command::new("kill").args([&format!("-{signal}"), "--", pid]).status().unwrap().success());
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The command has its epoch and its claim, its own exit code comes through, and the lock is free at once afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_runs_under_its_epoch_and_gives_the_lock_back() {
    let lab = Lab::new().await;
    let _operator = lab.operator().await;
    lab.declare("a", "CorrectnessCritical").await;
    let show = "echo \"$FENCEDLOCK_EPOCH|$FENCEDLOCK_HOLDER|$FENCEDLOCK_CLAIM|$PGOPTIONS\"; exit 7";
    let mut first = Run::start(&lab, "w 1", &[], show, &[("PGOPTIONS", "-c x.y=z")]);
    assert_eq!(first.line(), format!("1|w 1|{ns}/a=1@w 1|-c x.y=z -c fencedlock.claim={ns}/a=1@w\\ 1", ns = lab.namespace));
    assert_eq!(first.code(), 7);
    lab.until("a", "the release", |s| has(s, on::EPOCH_ACTIVE, "False", "Released")).await;
    let mut second = Run::start(&lab, "w2", &[], "echo $FENCEDLOCK_EPOCH; kill -9 $$", &[]);
    assert_eq!((second.line().as_str(), second.code()), ("2", 128 + 9));
}

/// Its exit codes tell apart what happened.
#[tokio::test(flavor = "multi_thread")]
async fn each_end_has_its_exit_code() {
    let lab = Lab::new().await;
    let operator = lab.operator().await;
    lab.declare("a", "CorrectnessCritical").await;
    let run = |lock: &str, options: &[&str], command: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_fencedlock"))
            .args(["run", "--lock", lock, "--namespace", &lab.namespace])
            .args(options)
            .args(["--", command])
            .env("KUBECONFIG", worker(&lab))
            .output()
            .unwrap();
        (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text) = run("a", &[], "no-such-command-anywhere");
    assert!(code == 127 && text.contains("no-such-command-anywhere"), "{code} {text}");
    assert_eq!(run("a", &[], "/etc/passwd").0, 126);
    let (code, text) = run("nothing", &[], "true");
    assert!(code == 125 && text.contains("\"nothing\""), "{code} {text}");
    let (code, text) = run("a", &["--lease-duration", "5s", "--renew-deadline", "9s"], "true");
    assert!(code == 125 && text.contains("renew deadline"), "{code} {text}");
    assert_eq!(run("a", &["--nonsense"], "true").0, 2);
    // TERM reaches the command, and what it makes of it is the answer.
    let mut obeys = Run::start(&lab, "w1", &[], "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done", &[]);
    obeys.line();
    obeys.signal("TERM");
    assert_eq!(obeys.code(), 9);
    // What it leaves behind is told to end as well.
    let mut leaves = Run::start(&lab, "w2", &[], "sleep 600 > /dev/null & echo $!", &[]);
    let left = leaves.line();
    assert_eq!(leaves.code(), 0);
    let deadline = std::time::Instant::now() + crate::support::lab::LIMIT;
    while std::fs::read_to_string(format!("/proc/{left}/stat")).is_ok_and(|stat| !stat.contains(") Z ")) {
        assert!(std::time::Instant::now() < deadline, "{left} still runs");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    // Without an operator nobody gets an epoch, and it is said.
    operator.stop().await;
    let (code, text) = run("a", &["--wait", "1s"], "true");
    assert!(code == 124 && text.contains("not granted within 1s"), "{code} {text}");
}

/// The Lease is taken away by somebody who follows no rules: the command is told to end, and killed when it does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_stopped_when_the_lock_is_lost() {
    let lab = Lab::new().await;
    let _operator = lab.operator().await;
    lab.declare("a", "CorrectnessCritical").await;
    let mut worker = Run::start(&lab, "w1", &["--grace", "200ms"], "trap 'echo told' TERM; echo ready; while :; do sleep 0.05; done", &[]);
    worker.line();
    lab.lease("a").put(Some("thief"), Some(9), at(9)).await;
    assert_eq!(worker.line(), "told");
    assert_eq!(worker.code(), 123);
    lab.until_active("a", 2, "thief").await;
}

/// A worker that is stopped before its write, past its Lease, while another takes over: woken, it is refused by the database, the
/// other's value stands. All processes are real, and all of the first one's are stopped.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_slept_through_its_lease_is_refused_by_the_database() {
    let (lab, db) = (Lab::new().await, Db::new().await);
    let _operator = guarded(&lab, &db, "Enforce").await;
    lab.until("a", "a proof", |s| s.verdict == Some(Verdict::Enforced)).await;
    let url = db.url(&db.writer);
    // It writes once, says so, waits, and writes again: with psql, which knows nothing of fencing.
    let script = "psql -XAtq \"$URL\" -c \"update t set v = 'a1'\" && echo $$ && while ! [ -e \"$GO\" ]; do sleep 0.05; done; \
                  psql -XAtq -v VERBOSITY=verbose \"$URL\" -c \"update t set v = 'a2'\" 2>&1 | grep -o FL002";
    let go = std::env::temp_dir().join(format!("go-{}-{}", lab.namespace, std::process::id()));
    let env = [("URL", url.as_str()), ("GO", go.to_str().unwrap())];
    let mut a = Run::start(&lab, "worker-a", &["--grace", "20s"], script, &env);
    let group = a.line();
    assert_eq!(text(&db.admin, "select string_agg(distinct v, ',') from t").await, "a1");
    a.signal("STOP");
    kill("STOP", &format!("-{group}"));
    let mut b =
        Run::start(&lab, "worker-b", &[], "psql -XAtq \"$URL\" -c \"update t set v = 'b'\" && echo $FENCEDLOCK_EPOCH && sleep 60", &env);
    assert_eq!(b.line(), "2");
    // Its command wakes first, and is quicker than whoever would stop it.
    std::fs::write(&go, "").unwrap();
    kill("CONT", &format!("-{group}"));
    assert_eq!(a.line(), "FL002");
    std::fs::remove_file(&go).unwrap();
    a.signal("CONT");
    assert!([0, 123].contains(&a.code()), "it ended by itself, or was stopped");
    assert_eq!(text(&db.admin, "select string_agg(distinct v, ',') from t").await, "b");
    let told = lab.until_event("WritesRefused", "db").await;
    assert!(told.starts_with("1 write was refused"), "{told}");
    assert_eq!(said(&db.claiming(&lab.claim(1, "worker-a")).await, "update t set v = v").await, "FL002");
    until(&db.admin, "select string_agg(distinct v, ',') from t", "b").await;
}

/// The network delivers late: what the old owner sent in time arrives after the next one was activated.
#[tokio::test]
async fn a_write_that_is_delivered_late_is_refused() {
    let (lab, db) = (Lab::new().await, Db::new().await);
    let _operator = crate::postgres::enforced(&lab, &db).await;
    let network = Proxy::to(format!("127.0.0.1:{}", db.port).parse().unwrap()).await;
    let url = db.url(&db.writer).replace(&db.port.to_string(), &network.address.port().to_string());
    let old = crate::pg::connect(&url).await;
    old.batch_execute(&format!("set fencedlock.claim = '{}'", lab.claim(1, "x"))).await.unwrap();
    assert_eq!(said(&old, "update t set v = 'in time'").await, "ok");
    network.hold(true);
    let late = said(&old, "update t set v = 'late'");
    let takeover = async {
        lab.lease("a").put(Some("y"), Some(1), at(1)).await;
        lab.until_active("a", 2, "y").await;
        assert_eq!(said(&db.claiming(&lab.claim(2, "y")).await, "update t set v = 'y'").await, "ok");
        network.hold(false);
    };
    let (late, ()) = futures::join!(late, takeover);
    assert_eq!(late, "FL002");
    assert_eq!(text(&db.admin, "select string_agg(distinct v, ',') from t").await, "y");
}

/// No operator runs during the whole takeover: the new holder is not granted anything and starts nothing; on its return the operator
/// catches up in order.
#[tokio::test(flavor = "multi_thread")]
async fn while_no_operator_runs_nothing_unfenced_starts() {
    let (lab, db) = (Lab::new().await, Db::new().await);
    let operator = crate::postgres::enforced(&lab, &db).await;
    operator.crash().await;
    lab.lease("a").put(None, Some(1), at(1)).await;
    let mut waits = Run::start(&lab, "y", &["--wait", "3s"], "echo started", &[]);
    assert_eq!(waits.code(), 124);
    assert_eq!(said(&db.claiming(&lab.claim(1, "x")).await, "update t set v = v").await, "ok", "the last owner that was granted, still");
    let mut next = Run::start(&lab, "z", &[], "echo $FENCEDLOCK_EPOCH", &[]);
    let _again = lab.operator_slow().await;
    assert_eq!((next.line().as_str(), next.code()), ("2", 0));
    assert_eq!(said(&db.claiming(&lab.claim(1, "x")).await, "update t set v = v").await, "FL002");
}

/// The operator dies between minting and activation, which an open transaction holds up: the next one activates the same epoch.
#[tokio::test]
async fn an_operator_that_dies_between_minting_and_activation_wastes_no_epoch() {
    let (lab, db) = (Lab::new().await, Db::new().await);
    let operator = crate::postgres::enforced(&lab, &db).await;
    let old = db.claiming(&lab.claim(1, "x")).await;
    old.batch_execute("begin; update t set v = 'before'").await.unwrap();
    lab.lease("a").put(Some("y"), Some(1), at(1)).await;
    lab.until_condition("a", on::EPOCH_ACTIVE, "False", "ActivationFailed").await;
    operator.crash().await;
    old.batch_execute("commit").await.unwrap();
    assert_eq!(said(&old, "update t set v = v").await, "ok", "nobody else may write yet");
    let _again = lab.operator_slow().await;
    lab.until_active("a", 2, "y").await;
    assert_eq!(said(&old, "update t set v = v").await, "FL002");
    assert_eq!(said(&db.claiming(&lab.claim(2, "y")).await, "update t set v = v").await, "ok");
}
