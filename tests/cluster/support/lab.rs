//! A namespace of one's own, with an operator in it that has the chart's rights and no others.

use std::{
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    process::{Command, Output},
    sync::{Arc, atomic::AtomicU64, atomic::Ordering},
    time::Duration,
};

use fencedlock::{
    api::{FencedLock, FencedLockStatus, WriteBoundary},
    boundary::{Backends, BuiltIn},
    operator::{self, Metrics, Scope, Settings},
};
use k8s_openapi::{api::authentication::v1::TokenRequest, api::core::v1::ServiceAccount, apimachinery::pkg::apis::meta::v1::Condition};
use kube::{
    Api, Client, Config,
    api::PostParams,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
    runtime::wait::{Condition as WaitCondition, await_condition},
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{
    lease::LeaseClient,
    plane::{Plane, tool},
    proxy::Proxy,
};

/// How long a test waits for something that must happen. Reached only when it does not.
pub const LIMIT: Duration = Duration::from_secs(40);

/// A namespace with everything that a test needs.
pub struct Lab {
    pub plane: &'static Plane,
    pub namespace: String,
    pub admin: Client,
}

/// An operator that runs until it is stopped or dropped.
pub struct Running {
    metrics: Arc<Metrics>,
    /// Where it serves `/livez`, `/readyz` and `/metrics`.
    pub admin: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<Result<(), operator::Stopped>>,
}

impl Running {
    /// Stops gracefully and waits for it.
    pub async fn stop(mut self) {
        self.stop.cancel();
        tokio::time::timeout(LIMIT, &mut self.task).await.expect("the operator stops").unwrap().unwrap();
    }

    /// Ends it between any two steps, as a crash does.
    pub async fn crash(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
        self.task.abort();
    }
}

/// The chart.
pub const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/fencedlock");

/// Runs Helm.
pub fn helm(args: &[&str]) -> Output {
    Command::new(tool("helm")).args(args).output().unwrap()
}

/// An admin's client of a control plane.
pub async fn admin(plane: &Plane) -> Client {
    // With RUST_LOG set, a failing test shows what the operator did.
    let _ = tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).with_test_writer().try_init();
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let file = Kubeconfig::read_from(&plane.kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

impl Lab {
    /// A fresh namespace on the shared control plane, with the chart's ServiceAccount and Role in it.
    pub async fn new() -> Self {
        Self::on(Plane::shared()).await
    }

    /// The same on a control plane of one's own.
    pub async fn on(plane: &'static Plane) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let namespace = format!("lab-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let lab = Self { plane, namespace, admin: admin(plane).await };
        lab.create_namespace(&lab.namespace).await;
        lab.install_chart(&[&lab.namespace]);
        lab
    }

    pub async fn create_namespace(&self, name: &str) {
        let namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        Api::<k8s_openapi::api::core::v1::Namespace>::all(self.admin.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    }

    /// Applies some of the chart's templates, as a release of this name.
    pub fn apply_templates(&self, release: &str, templates: &[&str], more: &[&str]) {
        let files: Vec<_> = templates.iter().map(|template| format!("templates/{template}.yaml")).collect();
        let shown = files.iter().flat_map(|file| ["--show-only", file.as_str()]);
        let args = ["template", release, CHART, "--namespace", &self.namespace].into_iter().chain(shown).chain(more.iter().copied());
        let output = helm(&args.collect::<Vec<_>>());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        self.plane.kubectl(&["apply", "-f", "-"], &String::from_utf8(output.stdout).unwrap());
    }

    /// Installs the chart's ServiceAccount and roles, for the given namespaces.
    pub fn install_chart(&self, namespaces: &[&str]) {
        let namespaces = format!("namespaces={{{}}}", namespaces.join(","));
        self.apply_templates("fencedlock", &["serviceaccount", "rbac"], &["--set", &namespaces]);
    }

    /// The user name of the operator of this lab.
    pub fn operator_user(&self) -> String {
        format!("system:serviceaccount:{}:fencedlock", self.namespace)
    }

    /// A kubeconfig with the token of a ServiceAccount of this namespace, as in a pod. `create` makes the account and its rights, once.
    pub fn kubeconfig_of(&self, account: &str, create: impl FnOnce()) -> PathBuf {
        let path = self.plane.kubeconfig.with_file_name(format!("{}-{account}.kubeconfig", self.namespace));
        if !path.exists() {
            create();
            let token = self.plane.kubectl(&["create", "token", account, "--namespace", &self.namespace], "");
            let mut config = Kubeconfig::read_from(&self.plane.kubeconfig).unwrap();
            for user in &mut config.auth_infos {
                user.auth_info = Some(AuthInfo { token: Some(token.trim().to_owned().into()), ..AuthInfo::default() });
            }
            std::fs::write(&path, serde_json::to_string(&config).unwrap()).unwrap();
        }
        path
    }

    /// A client with the ServiceAccount's token.
    pub async fn operator_client(&self) -> Client {
        Client::try_from(self.operator_config().await).unwrap()
    }

    /// What such a client is made of.
    pub async fn operator_config(&self) -> Config {
        let accounts = Api::<ServiceAccount>::namespaced(self.admin.clone(), &self.namespace);
        let request: TokenRequest = serde_json::from_value(json!({"spec": {"audiences": [], "expirationSeconds": 3600}})).unwrap();
        let token = accounts.create_token_request("fencedlock", &PostParams::default(), &request).await.unwrap().status.unwrap().token;
        let mut file = Kubeconfig::read_from(&self.plane.kubeconfig).unwrap();
        for user in &mut file.auth_infos {
            let auth: AuthInfo = serde_json::from_value(json!({"token": token})).unwrap();
            user.auth_info = Some(auth);
        }
        Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap()
    }

    /// A client like that behind a proxy, which gives a connection up when nothing arrives for `read_timeout`.
    pub async fn operator_behind(&self, read_timeout: Option<Duration>) -> (Proxy, Client) {
        let mut config = self.operator_config().await;
        let target = format!("127.0.0.1:{}", config.cluster_url.port_u16().unwrap()).parse().unwrap();
        let proxy = Proxy::to(target).await;
        config.cluster_url = format!("https://{}/", proxy.address).parse().unwrap();
        config.read_timeout = read_timeout;
        (proxy, Client::try_from(config).unwrap())
    }

    /// Starts the operator in this lab's namespace.
    pub async fn operator(&self) -> Running {
        let backends = self.built_in().await;
        self.operator_with(&[&self.namespace], backends).await
    }

    /// The backends that ship, with the operator's own rights.
    pub async fn built_in(&self) -> Arc<dyn Backends> {
        Arc::new(BuiltIn::new(self.operator_client().await))
    }

    /// Starts the operator in some namespaces, with the given backends.
    pub async fn operator_with(&self, namespaces: &[&str], backends: Arc<dyn Backends>) -> Running {
        let client = self.operator_client().await;
        self.operator_as(client, namespaces, backends)
    }

    pub fn operator_as(&self, client: Client, namespaces: &[&str], backends: Arc<dyn Backends>) -> Running {
        let scope = Scope::Namespaces(namespaces.iter().map(|n| (*n).to_owned()).collect());
        let settings = Settings { scope, backend_timeout: Duration::from_millis(500), ..Settings::default() };
        self.operator_set(client, settings, backends)
    }

    /// Starts an operator with settings of its own.
    pub fn operator_set(&self, client: Client, settings: Settings, backends: Arc<dyn Backends>) -> Running {
        let (stop, metrics) = (CancellationToken::new(), Arc::new(Metrics::per_lock()));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let admin = listener.local_addr().unwrap();
        let task = tokio::spawn(operator::run(client, settings, backends, Arc::clone(&metrics), Some(listener), stop.clone()));
        Running { metrics, admin, stop, task }
    }

    pub fn locks(&self) -> Api<FencedLock> {
        Api::namespaced(self.admin.clone(), &self.namespace)
    }

    pub fn boundaries(&self) -> Api<WriteBoundary> {
        Api::namespaced(self.admin.clone(), &self.namespace)
    }

    pub fn lease(&self, name: &str) -> LeaseClient {
        LeaseClient { api: Api::namespaced(self.admin.clone(), &self.namespace), name: name.into() }
    }

    /// Declares a lock on the Lease of the same name.
    pub async fn declare(&self, name: &str, class: &str) -> FencedLock {
        self.declare_spec(name, json!({"class": class, "purpose": "a test", "coordinator": {"lease": {"name": name}}})).await
    }

    pub async fn declare_spec(&self, name: &str, spec: Value) -> FencedLock {
        let lock = json!({"apiVersion": "fencedlock.dev/v1alpha1", "kind": "FencedLock", "metadata": {"name": name}, "spec": spec});
        self.locks().create(&PostParams::default(), &serde_json::from_value(lock).unwrap()).await.unwrap()
    }

    pub async fn declare_boundary(&self, name: &str, spec: Value) -> WriteBoundary {
        let boundary = json!({"apiVersion": "fencedlock.dev/v1alpha1", "kind": "WriteBoundary", "metadata": {"name": name}, "spec": spec});
        self.boundaries().create(&PostParams::default(), &serde_json::from_value(boundary).unwrap()).await.unwrap()
    }

    /// Waits until a lock's status fulfils something; says what was seen when it does not.
    pub async fn until(&self, name: &str, what: &str, wanted: impl Fn(&FencedLockStatus) -> bool + Send) -> FencedLock {
        self.until_in(&self.namespace, name, what, wanted).await
    }

    pub async fn until_in(&self, namespace: &str, name: &str, what: &str, wanted: impl Fn(&FencedLockStatus) -> bool + Send) -> FencedLock {
        let api = Api::<FencedLock>::namespaced(self.admin.clone(), namespace);
        let condition = |lock: Option<&FencedLock>| lock.and_then(|l| l.status.as_ref()).is_some_and(&wanted);
        match tokio::time::timeout(LIMIT, await_condition(api.clone(), name, condition)).await {
            Ok(found) => found.unwrap().unwrap(),
            Err(_) => panic!("{namespace}/{name}: waited for {what}; it is {:#?}", api.get(name).await.map(|l| l.status)),
        }
    }

    /// Waits until a boundary fulfils something.
    pub async fn until_boundary(&self, name: &str, what: &str, wanted: impl WaitCondition<WriteBoundary>) -> WriteBoundary {
        match tokio::time::timeout(LIMIT, await_condition(self.boundaries(), name, wanted)).await {
            Ok(found) => found.unwrap().unwrap(),
            Err(_) => panic!("{name}: waited for {what}; it is {:#?}", self.boundaries().get(name).await.map(|b| b.status)),
        }
    }

    /// Waits until the lock has an active grant of this epoch for this holder.
    pub async fn until_active(&self, name: &str, epoch: u64, holder: &str) -> FencedLock {
        self.until(name, &format!("epoch {epoch} active for {holder}"), |s| is_active(s, epoch, holder)).await
    }

    /// Waits until the condition has this status and reason.
    pub async fn until_condition(&self, name: &str, type_: &str, status: &str, reason: &str) -> Condition {
        let lock = self.until(name, &format!("{type_}={status} {reason}"), |s| has(s, type_, status, reason)).await;
        condition(&lock, type_)
    }
}

pub fn is_active(status: &FencedLockStatus, epoch: u64, holder: &str) -> bool {
    let active = |g: &fencedlock::epoch::grant::Grant| {
        g.epoch.get() == epoch && g.holder.as_str() == holder && g.state == fencedlock::epoch::grant::GrantState::Active
    };
    status.grant.as_ref().is_some_and(active)
}

pub fn has(status: &FencedLockStatus, type_: &str, is: &str, reason: &str) -> bool {
    status.conditions.iter().any(|c| c.type_ == type_ && c.status == is && c.reason == reason)
}

/// The condition of a lock; panics when it has none of this type.
pub fn condition(lock: &FencedLock, type_: &str) -> Condition {
    condition_of(&lock.status.clone().unwrap_or_default(), type_)
}

/// The same of a status.
pub fn condition_of(status: &FencedLockStatus, type_: &str) -> Condition {
    let found = status.conditions.iter().find(|c| c.type_ == type_).cloned();
    found.unwrap_or_else(|| panic!("there is no condition {type_}: {status:#?}"))
}

pub fn epoch(lock: &FencedLock) -> Option<u64> {
    lock.status.as_ref().and_then(|s| s.epoch).map(|e| e.get())
}

impl Running {
    pub fn reconciles_of(&self, lab: &Lab, name: &str) -> u64 {
        self.metrics.reconciles_of(&lab.namespace, name)
    }
}

impl Lab {
    /// Waits until the operator has digested everything about a lock: the count of its reconciles stands still while twenty
    /// round trips to the API server go by, which is much longer than an event takes.
    pub async fn quiet(&self, operator: &Running, name: &str) {
        let accounts = Api::<ServiceAccount>::namespaced(self.admin.clone(), &self.namespace);
        let mut still = 0;
        let mut last = operator.reconciles_of(self, name);
        let deadline = tokio::time::Instant::now() + LIMIT;
        while still < 20 {
            assert!(tokio::time::Instant::now() < deadline, "{name} is reconciled without end: {last} times by now");
            accounts.get("fencedlock").await.unwrap();
            let now = operator.reconciles_of(self, name);
            still = if now == last { still + 1 } else { 0 };
            last = now;
        }
    }
}
