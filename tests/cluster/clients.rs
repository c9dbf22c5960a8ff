//! Clients in the wild, unmodified, get their epochs: client-go's LeaderElector, controller-runtime's manager, Python's
//! `kubernetes`, Java's fabric8. Each is taken over, killed, and comes back under the same identity.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
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

/// What `hack/build-clients.sh` made.
fn client(path: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/clients").join(path);
    assert!(path.exists(), "{} is not there: run hack/build-clients.sh (or `make test`, which does)", path.display());
    path
}

/// The kubeconfig of a ServiceAccount that may hold Leases: a token, as in a pod. fabric8 cannot read the admin's key.
fn token(lab: &Lab) -> PathBuf {
    let kubectl = |args: &str| lab.plane.kubectl(&args.split(' ').chain(["--namespace", &lab.namespace]).collect::<Vec<_>>(), "");
    lab.kubeconfig_of("worker", || {
        kubectl("create serviceaccount worker");
        kubectl("create role worker --verb=get,create,update,patch --resource=leases.coordination.k8s.io");
        kubectl(&format!("create rolebinding worker --role=worker --serviceaccount={}:worker", lab.namespace));
    })
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

    fn python(lab: &Lab, id: &str) -> Self {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/hack/clients/python/elector.py");
        Self::start(
            Command::new(client("python/bin/python")).args([program, &lab.namespace, "a", id]).env("KUBECONFIG", &lab.plane.kubeconfig),
        )
    }

    fn java(lab: &Lab, id: &str) -> Self {
        let classes = client("java/classes").display().to_string() + ":" + &client("java/lib").join("*").display().to_string();
        let mut command = Command::new("java");
        Self::start(command.args(["-cp", &classes, "Elector", &lab.namespace, "a", id]).env("KUBECONFIG", token(lab)))
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

/// A worker leads and is killed, another one takes over and stalls, and the first one is back under its identity: three terms, three
/// epochs. Returns the worker that leads then.
async fn taken_over_and_back(lab: &Lab, start: impl Fn(&str) -> Wild) -> Wild {
    lab.declare("a", "CorrectnessCritical").await;
    let leads = async |id: &str, epoch: u64| {
        let mut worker = start(id);
        worker.until_leading();
        lab.until_active("a", epoch, id).await;
        worker
    };
    leads("worker-a", 1).await.signal("KILL");
    let second = leads("worker-b", 2).await;
    second.signal("STOP");
    let again = leads("worker-a", 3).await;
    second.signal("CONT");
    again
}

/// Another process under the same identity, which the Lease cannot tell from the one before it. That is why the lock says that it does
/// not know whether its owner is one process.
async fn the_same_to_everybody(lab: &Lab, mut twin: Wild) {
    twin.until_leading();
    lab.until_active("a", 3, "worker-a").await;
    lab.until_condition("a", on::OWNER_UNIQUE, "Unknown", "NotAPod").await;
}

/// It never releases, and never writes leaseTransitions: only the holder tells its terms apart.
#[tokio::test(flavor = "multi_thread")]
async fn an_unmodified_python_client_gets_its_epochs() {
    let lab = Lab::new().await;
    let _operator = lab.operator().await;
    let again = taken_over_and_back(&lab, |id| Wild::python(&lab, id)).await;
    assert_eq!(lab.lease("a").api.get("a").await.unwrap().spec.unwrap().lease_transitions, None);
    // Inside the Lease's duration.
    again.signal("KILL");
    the_same_to_everybody(&lab, Wild::python(&lab, "worker-a")).await;
}

/// Its release leaves its name in the Lease, with a new acquireTime and the old leaseTransitions.
#[tokio::test(flavor = "multi_thread")]
async fn an_unmodified_fabric8_client_gets_its_epochs() {
    let lab = Lab::new().await;
    let _operator = lab.operator().await;
    let mut again = taken_over_and_back(&lab, |id| Wild::java(&lab, id)).await;
    again.signal("TERM");
    again.0.wait().unwrap();
    the_same_to_everybody(&lab, Wild::java(&lab, "worker-a")).await;
}
