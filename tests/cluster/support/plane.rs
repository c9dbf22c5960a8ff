//! One real control plane for the whole test binary. The launcher ends with our end of its standard input, so nothing is left
//! behind however the tests end.

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Mutex, OnceLock},
};

use serde_json::Value;

/// A running control plane.
pub struct Plane {
    pub kubeconfig: PathBuf,
    pub audit_log: PathBuf,
    dir: PathBuf,
    apiserver: u64,
    launcher: Mutex<(Child, ChildStdin, BufReader<ChildStdout>)>,
}

/// Copies a directory with its rights: etcd refuses one that others can read.
fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

/// A binary of `hack/build-tools.sh`.
pub fn tool(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/tools/bin").join(name);
    assert!(path.exists(), "{} is not there: run `make tools` (or `make test`, which does)", path.display());
    path
}

impl Plane {
    /// The control plane that all tests share.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Plane> = OnceLock::new();
        SHARED.get_or_init(|| {
            let plane = Self::start("shared");
            plane.install_crds();
            plane
        })
    }

    /// Starts a control plane of one's own, without our CRDs.
    pub fn start(name: &str) -> Self {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("plane-{name}-{}", std::process::id()));
        let tools = tool("kube-apiserver");
        let mut child = Command::new(tool("controlplane"))
            .arg("--dir")
            .arg(&dir)
            .arg("--audit")
            .env("KUBEBUILDER_ASSETS", tools.parent().unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("the launcher starts");
        let (stdin, mut stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("the launcher answers");
        let ready: Value = serde_json::from_str(&line)
            .unwrap_or_else(|e| panic!("the control plane did not start: {e}: {line:?}; logs are in {}", dir.display()));
        let text = |key: &str| ready[key].as_str().unwrap_or_else(|| panic!("{key} in {line}")).to_owned();
        Self {
            kubeconfig: text("kubeconfig").into(),
            audit_log: text("auditLog").into(),
            dir,
            apiserver: ready["pids"]["apiserver"].as_u64().unwrap(),
            launcher: Mutex::new((child, stdin, stdout)),
        }
    }

    /// `stop-apiserver`, `start-apiserver`, `stop` or `start`.
    pub fn command(&self, command: &str) {
        let mut launcher = self.launcher.lock().unwrap();
        writeln!(launcher.1, "{command}").unwrap();
        let mut line = String::new();
        launcher.2.read_line(&mut line).unwrap();
        assert!(line.contains("\"ok\""), "{command}: {line}");
    }

    /// Stops the cluster, copies what etcd holds, and starts it again: a backup.
    pub fn back_up(&self, name: &str) -> PathBuf {
        let backup = self.dir.join(format!("backup-{name}"));
        self.command("stop");
        copy(&self.dir.join("etcd"), &backup);
        self.command("start");
        backup
    }

    /// Puts a backup of etcd in the place of what it holds now.
    pub fn restore(&self, backup: &Path) {
        self.command("stop");
        let data = self.dir.join("etcd");
        std::fs::remove_dir_all(&data).unwrap();
        copy(backup, &data);
        self.command("start");
    }

    /// Another API server beside the first one, on the same etcd and with the same certificates. It ends when it is dropped, and with the thread
    /// that starts it.
    pub fn another_apiserver(&self, arguments: &[&str]) -> AnotherApiServer {
        let first = std::fs::read_to_string(format!("/proc/{}/cmdline", self.apiserver)).unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let own = [format!("--secure-port={port}"), format!("--audit-log-path={}", self.dir.join(format!("audit-{port}.log")).display())];
        let replaced = |argument: &&str| ["--secure-port=", "--audit-log-path="].iter().any(|start| argument.starts_with(start));
        let log = std::fs::File::create(self.dir.join(format!("kube-apiserver-{port}.log"))).unwrap();
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(tool("kube-apiserver"))
            .args(first.split('\0').skip(1).filter(|argument| !argument.is_empty() && !replaced(argument)))
            .args(own)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("setpriv of util-linux starts it");
        AnotherApiServer { port, child }
    }

    /// kubectl as admin; panics when it fails.
    pub fn kubectl(&self, args: &[&str], input: &str) -> String {
        let (ok, output) = self.try_kubectl(args, input);
        assert!(ok, "kubectl {}: {output}", args.join(" "));
        output
    }

    /// kubectl as admin: whether it succeeded, and what it printed.
    pub fn try_kubectl(&self, args: &[&str], input: &str) -> (bool, String) {
        let mut child = Command::new(tool("kubectl"))
            .args(args)
            .env("KUBECONFIG", &self.kubeconfig)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr))
    }

    /// Applies the committed CRDs and waits until they are served.
    pub fn install_crds(&self) {
        let crds = Path::new(env!("CARGO_MANIFEST_DIR")).join("crds");
        self.kubectl(&["apply", "-f", crds.to_str().unwrap()], "");
        self.kubectl(
            &[
                "wait",
                "--for=condition=Established",
                "--timeout=30s",
                "crd/fencedlocks.fencedlock.dev",
                "crd/writeboundaries.fencedlock.dev",
            ],
            "",
        );
    }

    /// The requests that the audit log has of a user, once complete.
    pub fn requests_of(&self, user: &str) -> Vec<Value> {
        let log = std::fs::read_to_string(&self.audit_log).unwrap();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|e| e["stage"] == "ResponseComplete" && e["user"]["username"] == user).collect()
    }
}

impl Drop for Plane {
    /// Only planes of one's own are dropped; the shared one ends with the process.
    fn drop(&mut self) {
        if let Ok(launcher) = self.launcher.get_mut() {
            let _ = launcher.0.kill();
            let _ = launcher.0.wait();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// An API server that a test started beside the plane's own.
pub struct AnotherApiServer {
    pub port: u16,
    child: Child,
}

impl Drop for AnotherApiServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
