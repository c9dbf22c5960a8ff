//! An ordinary controller on kube-rs that knows nothing of fencing: it competes for a Lease, and while it leads it applies its host's name and a
//! growing number to a ConfigMap (server-side apply). With a `WriteBoundary` of type `Kubernetes` the API server refuses it when it has lost the lock.
//!
//! It takes its namespace, the Lease, the ConfigMap and the milliseconds between its read and its write as arguments, and prints one JSON object per
//! line: `leading`, `read`, `wrote`, `refused`.

use std::{env, process::ExitCode, time::Duration};

use fencedlock::client::{
    acquire::Timing,
    elect::{self, Elector},
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    rustls::crypto::aws_lc_rs::default_provider().install_default().map_err(|_| "a TLS provider is installed already")?;
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [namespace, lease, object, think] = arguments.as_slice() else {
        return Err("usage: NAMESPACE LEASE CONFIGMAP MILLISECONDS".into());
    };
    let (client, think) = (Client::try_default().await?, Duration::from_millis(think.parse()?));
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")?.trim().to_owned();
    let start = std::fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    // As client-go has it: the pod, and what tells this start of it from another.
    let identity = format!("{host}_{}", start.trim());
    let timing = Timing::new(Duration::from_secs(6), Duration::from_secs(4), Duration::from_secs(1))?;
    let (leads, mut leading) = watch::channel(false);
    let elector = Elector::new(Api::namespaced(client.clone(), namespace), lease, identity, timing);
    tokio::spawn(elect::run(elector, leads, CancellationToken::new()));
    leading.wait_for(|leads| *leads).await?;
    println!("{}", json!({"event": "leading"}));
    let objects: Api<ConfigMap> = Api::namespaced(client, namespace);
    // What was begun is finished; then it is asked whether this process still leads.
    while *leading.borrow() {
        write(&objects, object, &host, think).await?;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(ExitCode::from(1))
}

async fn write(objects: &Api<ConfigMap>, name: &str, host: &str, think: Duration) -> Result<(), kube::Error> {
    let object = objects.get(name).await?;
    let n: u64 = object.data.and_then(|data| data.get("n")?.parse().ok()).unwrap_or_default();
    println!("{}", json!({"event": "read", "n": n}));
    tokio::time::sleep(think).await;
    let desired =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"owner": host, "n": (n + 1).to_string()}});
    match objects.patch(name, &PatchParams::apply("controller").force(), &Patch::Apply(desired)).await {
        Ok(_) => println!("{}", json!({"event": "wrote", "n": n + 1})),
        Err(kube::Error::Api(status)) if status.code == 403 => println!("{}", json!({"event": "refused", "message": status.message})),
        Err(error) => return Err(error),
    }
    Ok(())
}
