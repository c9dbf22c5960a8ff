//! `fencedlock operator`: what the chart runs.

use std::{
    io::{IsTerminal, Write},
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{FOUND, Failure};
use crate::{
    boundary::{BuiltIn, kubernetes::ApiServers},
    client::acquire::Timing,
    operator::{self, Election, Scope, Settings},
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
    /// Where /livez, /readyz and /metrics are served, such as [::]:8080; nowhere when absent
    #[arg(long, env = "FENCEDLOCK_LISTEN", value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Let only one replica work at a time, by a Lease in this namespace. Saves work; any number may work at once
    #[arg(long, env = "FENCEDLOCK_ELECTION_NAMESPACE", value_name = "NAMESPACE", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    election_namespace: Option<String>,
    /// The Lease of that election: one for all replicas that serve the same scope, and another one for others in the same namespace
    #[arg(long, env = "FENCEDLOCK_ELECTION_LEASE", value_name = "NAME", default_value = "fencedlock-operator")]
    election_lease: String,
    /// Say whether the kinds are served and every right is there, and end: 0 when they are, 1 when something is missing
    #[arg(long)]
    check: bool,
    /// How log lines are written
    #[arg(long, env = "FENCEDLOCK_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

pub(super) fn run(args: &Args) -> Result<u8, Failure> {
    logs(args.log_format, "info,kube=warn");
    // An empty variable is as good as none.
    let named: Vec<_> = args.namespace.iter().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect();
    let scope = if named.is_empty() { Scope::Cluster } else { Scope::Namespaces(named) };
    let settings = Settings {
        scope,
        concurrency: args.concurrency,
        backend_timeout: Duration::from_secs(args.backend_timeout),
        election: args.election_namespace.clone().map(|namespace| election(namespace, args.election_lease.clone())).transpose()?,
        ..Settings::default()
    };
    if args.check {
        return super::runtime()?.block_on(check(settings));
    }
    let listener = args.listen.map(bind).transpose()?;
    super::runtime()?.block_on(serve(settings, listener))
}

async fn check(settings: Settings) -> Result<u8, Failure> {
    let (client, _) = connect(&settings).await?;
    let missing =
        operator::check(&client, &settings.scope, settings.election.as_ref()).await.map_err(|error| Failure::Other(error.to_string()))?;
    let mut out = std::io::stdout();
    if missing.is_empty() {
        writeln!(out, "the kinds are served, and every right that the operator needs is there")?;
        return Ok(0);
    }
    for what in missing {
        writeln!(out, "{what}")?;
    }
    Ok(FOUND)
}

fn election(namespace: String, name: String) -> Result<Election, Failure> {
    let identity = identity(&operator::replica_name())?;
    Ok(Election { namespace, name, identity, timing: Timing::default() })
}

/// No two starts may have the same identity, so it does not come from the pod's name alone.
pub(super) fn identity(name: &str) -> Result<String, Failure> {
    let mut random = [0; 16];
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.secure_random.fill(&mut random).map_err(|_| Failure::Other("this machine gives no random numbers".into()))?;
    let random = u128::from_be_bytes(random);
    Ok(format!("{name}_{random:032x}"))
}

/// Binds, also where there is no IPv6 and any address is meant.
fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    let any_v4 = SocketAddr::from(([0, 0, 0, 0], address.port()));
    let bound = TcpListener::bind(address).or_else(|error| {
        let no_ipv6 = address.is_ipv6() && address.ip().is_unspecified() && error.kind() != std::io::ErrorKind::AddrInUse;
        if no_ipv6 { TcpListener::bind(any_v4) } else { Err(error) }
    });
    bound.map_err(|error| Failure::Other(format!("--listen {address}: {error}")))
}

/// A little longer than a watch lasts: a connection on which nothing arrives for so long is dead, and is given up (a load
/// balancer may drop an idle one without a word).
fn read_timeout(settings: &Settings) -> Duration {
    settings.watch_timeout + Duration::from_secs(20)
}

/// A client, and how the single API servers are reached.
async fn connect(settings: &Settings) -> Result<(kube::Client, ApiServers), Failure> {
    let no_cluster = |error: &dyn std::fmt::Display| {
        Failure::Other(format!("no cluster to talk to: {error}; inside a pod the ServiceAccount is used, elsewhere KUBECONFIG"))
    };
    let mut config = kube::Config::infer().await.map_err(|error| no_cluster(&error))?;
    config.read_timeout = Some(read_timeout(settings));
    // A kubeconfig comes before the pod's own configuration, and may be of another cluster.
    let is_inside = kube::Config::incluster().is_ok_and(|inside| inside.cluster_url == config.cluster_url);
    let servers = if is_inside { ApiServers::Discovered(Box::new(config.clone())) } else { ApiServers::Configured };
    Ok((kube::Client::try_from(config).map_err(|error| no_cluster(&error))?, servers))
}

async fn serve(settings: Settings, listener: Option<TcpListener>) -> Result<u8, Failure> {
    let (client, servers) = connect(&settings).await?;
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
    operator::run(client.clone(), settings, Arc::new(BuiltIn::new(client).with_servers(servers)), Arc::default(), listener, stop)
        .await
        .map_err(|error| Failure::Other(error.to_string()))?;
    Ok(0)
}

/// Writes log lines to standard error; `RUST_LOG` wins over the filter.
pub(super) fn logs(format: LogFormat, filter: &str) {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| filter.into());
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    // A second subscriber in one process is refused, and then the first one serves.
    drop(match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    });
}
