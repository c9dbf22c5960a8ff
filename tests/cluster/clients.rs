//! Clients in the wild, unmodified, get their epochs: client-go's LeaderElector, controller-runtime's manager. Each is
//! taken over, killed, and comes back under the same identity.

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

/// A client that says "leading" and nothing else.
struct Wild(Child);

impl Wild {
    fn start(command: &mut Command) -> Self {
        Self(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn manager(lab: &Lab, id: Option<&str>, release: bool) -> Self {
        let mut command = Command::new(tool("manager"));
        command.arg("--from").arg(&lab.plane.kubeconfig).args(["--namespace", &lab.namespace, "--lease", "a"]);
        command.args(id.map(|id| format!("--id={id}"))).arg(format!("--release-on-cancel={release}"));
        Self::start(&mut command)
    }

    fn until_leading(&mut self) {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("leading"), "the client ended: {line:?}");
    }

    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([&format!("-{signal}"), &self.0.id().to_string()]).status().unwrap().success());
    }
}

impl Drop for Wild {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The holder that the Lease names now.
async fn holder(lab: &Lab) -> String {
    lab.lease("a").api.get("a").await.unwrap().spec.unwrap().holder_identity.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unmodified_controller_runtime_manager_gets_its_epochs() {
    let lab = Lab::new().await;
    let _operator = lab.operator().await;
    lab.declare("a", "CorrectnessCritical").await;
    // With its own identity, <host>_<uuid>, which no two processes share.
    let mut first = Wild::manager(&lab, None, false);
    first.until_leading();
    lab.until_active("a", 1, &holder(&lab).await).await;
    first.signal("KILL");
    let mut second = Wild::manager(&lab, Some("pinned"), true);
    second.until_leading();
    lab.until_active("a", 2, "pinned").await;
    // A09: nothing is asked of a paused owner, and its successor has an epoch of its own.
    second.signal("STOP");
    let mut third = Wild::manager(&lab, None, true);
    third.until_leading();
    lab.until_active("a", 3, &holder(&lab).await).await;
    second.signal("CONT");
    // Released, and back under an identity that led before.
    third.signal("TERM");
    lab.until("a", "the release", |s| has(s, on::EPOCH_ACTIVE, "False", "Released")).await;
    let mut again = Wild::manager(&lab, Some("pinned"), true);
    again.until_leading();
    lab.until_active("a", 4, "pinned").await;
}
