//! `fencedlock operator`: what the chart runs.

use std::{io::IsTerminal, sync::Arc, time::Duration};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::Failure;
use crate::{
    boundary::BuiltIn,
    operator::{self, Scope, Settings},
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Serve only these namespaces, with rights in each of them; repeat or separate by commas. All when absent
    #[arg(long, env = "FENCEDLOCK_NAMESPACES", value_delimiter = ',', value_name = "NAME")]
    namespace: Vec<String>,
    /// How many locks are reconciled at the same time
    #[arg(long, env = "FENCEDLOCK_CONCURRENCY", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    concurrency: u16,
    /// How many seconds a write boundary may take to answer
    #[arg(long, env = "FENCEDLOCK_BACKEND_TIMEOUT", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=300), value_name = "SECONDS")]
    backend_timeout: u64,
    /// How log lines are written
    #[arg(long, env = "FENCEDLOCK_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

pub(super) fn run(args: &Args) -> Result<u8, Failure> {
    logs(args.log_format);
    // An empty variable is as good as none.
    let named: Vec<_> = args.namespace.iter().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect();
    let scope = if named.is_empty() { Scope::Cluster } else { Scope::Namespaces(named) };
    let settings = Settings {
        scope,
        concurrency: args.concurrency,
        backend_timeout: Duration::from_secs(args.backend_timeout),
        ..Settings::default()
    };
    super::runtime()?.block_on(serve(settings))
}

async fn serve(settings: Settings) -> Result<u8, Failure> {
    let client = kube::Client::try_default().await.map_err(|error| {
        Failure::Other(format!("no cluster to talk to: {error}; inside a pod the ServiceAccount is used, elsewhere KUBECONFIG"))
    })?;
    let stop = CancellationToken::new();
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let on_signal = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping: passes under way are finished");
        on_signal.cancel();
    });
    tracing::info!(version = env!("CARGO_PKG_VERSION"), scope = ?settings.scope, "the operator starts");
    operator::run(client, settings, Arc::new(BuiltIn), Arc::default(), stop).await.map_err(|error| Failure::Other(error.to_string()))?;
    Ok(0)
}

fn logs(format: LogFormat) {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info,kube=warn".into());
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    // A second subscriber in one process is refused, and then the first one serves.
    drop(match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    });
}
