//! The cluster that a command talks to: a kubeconfig's context, or what the surroundings say.

use kube::{
    Api, Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use super::Failure;
use crate::api::FencedLock;

/// Where the lock is that a command is about.
#[derive(Debug, clap::Args)]
pub(super) struct Place {
    /// Its namespace; the context's when absent
    #[arg(long, short, value_name = "NAME")]
    namespace: Option<String>,
    /// The kubeconfig's context
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

impl Place {
    /// See [`connect`].
    pub(super) async fn connect(&self) -> Result<(Client, String), Failure> {
        connect(self.context.as_ref(), self.namespace.as_ref()).await
    }
}

/// A client, and the namespace that is meant: the given one, else the context's.
pub(super) async fn connect(context: Option<&String>, namespace: Option<&String>) -> Result<(Client, String), Failure> {
    let other = |what: &str, error: &dyn std::fmt::Display| Failure::Other(format!("{what}: {error}"));
    let config = match context {
        Some(_) => {
            let options = KubeConfigOptions { context: context.cloned(), ..KubeConfigOptions::default() };
            let file = Kubeconfig::read().map_err(|e| other("the kubeconfig cannot be read", &e))?;
            Config::from_custom_kubeconfig(file, &options).await.map_err(|e| other("the kubeconfig cannot be used", &e))?
        }
        None => Config::infer().await.map_err(|e| other("no cluster to talk to", &e))?,
    };
    let namespace = namespace.cloned().unwrap_or_else(|| config.default_namespace.clone());
    Ok((Client::try_from(config).map_err(|e| other("no cluster to talk to", &e))?, namespace))
}

/// A lock by its name.
pub(super) async fn lock(client: &Client, namespace: &str, name: &str) -> Result<FencedLock, Failure> {
    let what = format!("FencedLock {namespace}/{name}");
    Err(Failure::Other(match Api::<FencedLock>::namespaced(client.clone(), namespace).get_opt(name).await {
        Ok(Some(lock)) => return Ok(lock),
        Ok(None) => format!("{what} is not there: kubectl get fencedlocks -n {namespace}"),
        Err(error) => format!("{what}: {}", told(&error)),
    }))
}

/// What went wrong, in the API server's words where it answered.
pub(super) fn told(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        error => error.to_string(),
    }
}
