//! The cluster that a command talks to: a kubeconfig's context, or what the surroundings say.

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use super::Failure;

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
