//! client-go's LeaderElector, unmodified, takes, renews, loses and releases a Lease and gets its epochs.

use std::{
    io::{BufRead, BufReader},
    process::{Child, ChildStdout, Command, Stdio},
};

use crate::support::{Lab, lab::has, plane::tool};
use fencedlock::api::conditions::lock as on;
use serde_json::Value;

struct Elector {
    child: Child,
    events: BufReader<ChildStdout>,
}

impl Elector {
    fn start(lab: &Lab, id: &str, release: bool) -> Self {
        let mut child = Command::new(tool("elector"))
            .arg("--kubeconfig")
            .arg(&lab.plane.kubeconfig)
            .args(["--namespace", &lab.namespace, "--lease", "a", "--lock", "a", "--id", id])
            .args(["--lease-duration", "3s", "--renew-deadline", "2s", "--retry-period", "500ms"])
            .arg(format!("--release-on-cancel={release}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let events = BufReader::new(child.stdout.take().unwrap());
        Self { child, events }
    }

    /// The next event of a kind; others are passed over. The end of the output is a failure.
    fn next(&mut self, kind: &str) -> Value {
        loop {
            let mut line = String::new();
            assert!(self.events.read_line(&mut line).unwrap() > 0, "the elector ended before {kind:?}");
            let event: Value = serde_json::from_str(&line).unwrap();
            if event["event"] == kind {
                return event;
            }
        }
    }

    fn signal(&self, signal: &str) {
        let killed = Command::new("kill").args([&format!("-{signal}"), &self.child.id().to_string()]).status().unwrap();
        assert!(killed.success());
    }
}

impl Drop for Elector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Takes, renews, is killed, is taken over, pauses, is superseded, releases: every term has its epoch, and the worker itself
/// reads it from the grant that carries its own term.
#[tokio::test(flavor = "multi_thread")]
async fn an_unmodified_client_go_elector_gets_its_epochs() {
    let lab = Lab::new().await;
    let _operator = lab.operator().await;
    lab.declare("a", "CorrectnessCritical").await;
    let mut first = Elector::start(&lab, "worker-a", false);
    assert_eq!(first.next("epoch")["epoch"], 1);
    lab.until_active("a", 1, "worker-a").await;

    // Killed, it renews no more; the next one waits for the Lease to end and takes over.
    first.signal("KILL");
    let mut second = Elector::start(&lab, "worker-b", true);
    assert_eq!(second.next("epoch")["epoch"], 2);

    // Paused past its Lease, it is superseded, and told so when it wakes.
    second.signal("STOP");
    let mut third = Elector::start(&lab, "worker-c", true);
    assert_eq!(third.next("epoch")["epoch"], 3);
    second.signal("CONT");
    let lost = second.next("superseded");
    assert_eq!((&lost["epoch"], &lost["by"]), (&Value::from(2), &Value::from(3)));

    // Asked to stop, it releases; the same identity's return is a term of its own (case B01).
    third.signal("TERM");
    third.next("stopped");
    lab.until("a", "the release", |s| has(s, on::EPOCH_ACTIVE, "False", "Released")).await;
    let mut again = Elector::start(&lab, "worker-c", true);
    assert_eq!(again.next("epoch")["epoch"], 4);
}
