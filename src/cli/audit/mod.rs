//! `fencedlock audit`: the verdicts for manifests without a cluster, or for a cluster, and the locks that nobody declared.
//!
//! `gather` reads manifests and `cluster` a cluster; [`crate::audit::assess`] judges; `output` prints. `config` is a repository's own file, `explain`
//! prints the pages of the rules. Nothing is judged here.

mod cluster;
mod config;
mod explain;
mod gather;
mod output;

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;

use self::{config::Config, output::Output};
use super::{FOUND, Failure, manifests::Exclude};
use crate::audit::{
    assess::judge::{Assessment, Ways},
    baseline::{self, Baseline, KnownLock},
    inventory::scaffold,
    rules::Severity,
};

#[derive(Debug, clap::Args)]
#[command(after_long_help = AFTER)]
pub(super) struct Args {
    /// Files and folders with manifests (.yaml, .yml, .json), or - for standard input
    #[arg(required_unless_present_any = ["cluster", "explain"], value_name = "PATH")]
    paths: Vec<String>,
    /// Audit the cluster of the kubeconfig instead of manifests. Reads only
    #[arg(long, conflicts_with = "paths")]
    cluster: bool,
    /// The kubeconfig's context
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// All namespaces of the cluster
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Of a cluster: the namespace that is audited (default: the context's). Of manifests: the namespace of objects that name none (default: default)
    #[arg(long, short, value_name = "NAME")]
    namespace: Option<String>,
    /// How the result is printed, and into which file: table, json, sarif or junit. Can be given several times; without a file it goes to standard output
    #[arg(long, short, value_name = "FORMAT[=FILE]")]
    output: Vec<Output>,
    /// The least severity of a finding that makes the exit code 1 (default: error)
    #[arg(long, value_name = "SEVERITY")]
    fail_on: Option<FailOn>,
    /// Judge as of this time, such as 2029-01-01T00:00:00Z, instead of now: shows what will have expired by then
    #[arg(long, value_name = "TIME")]
    as_of: Option<Timestamp>,
    /// Leave out files and folders by a pattern, such as '**/testdata/**'. Can be given several times
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<String>,
    /// What was known when the audit was adopted: findings in it do not count
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Write what is found now as the baseline, and exit with 0
    #[arg(long, value_name = "FILE", conflicts_with = "scaffold")]
    write_baseline: Option<PathBuf>,
    /// Settings for a repository
    #[arg(long, value_name = "FILE", help = "Settings for a repository (default: .fencedlock.yaml in this folder, when it is there)")]
    config: Option<PathBuf>,
    /// Print FencedLock manifests for the locks that nobody declared, their class left to be decided
    #[arg(long, conflicts_with_all = ["output", "fail_on"])]
    scaffold: bool,
    /// Explain a rule: why, a wrong and a right manifest, how to accept the risk. Without a rule, list them
    #[arg(long, value_name = "RULE", num_args = 0..=1, default_missing_value = "", conflicts_with_all = ["paths", "cluster"])]
    explain: Option<String>,
}

const AFTER: &str = "\
Exit codes:
  0  nothing at or above --fail-on was found
  1  something was
  2  usage or tool error

Examples:
  fencedlock audit deploy/                                  every manifest below a folder
  helm template web ./chart | fencedlock audit -            what a chart renders
  kustomize build overlays/prod | fencedlock audit -        what a kustomization builds
  fencedlock audit --cluster -A                             the cluster of the kubeconfig
  fencedlock audit deploy/ -o table -o sarif=audit.sarif    for people, and for a code scanner
  fencedlock audit deploy/ --write-baseline known.json      adopt it: what is there now does not count
  fencedlock audit --cluster --scaffold > locks.yaml        a FencedLock for each lock that nobody declared
  fencedlock audit --explain shared-lease                   what a rule means

A finding is answered for in the object itself, until a date:
  metadata:
    annotations:
      fencedlock.dev/suppress.RULE: \"until 2027-03-31: why\"";

#[derive(Clone, Copy, Debug, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FailOn {
    /// Any finding
    Info,
    /// Warnings and errors
    Warning,
    /// Errors
    Error,
    /// Nothing: always report, never fail
    Never,
}

impl FailOn {
    fn fails(self, severity: Severity) -> bool {
        match self {
            Self::Info => true,
            Self::Warning => severity >= Severity::Warning,
            Self::Error => severity >= Severity::Error,
            Self::Never => false,
        }
    }
}

pub(super) fn run(args: &Args) -> Result<u8, Failure> {
    if let Some(rule) = &args.explain {
        return explain::run(rule);
    }
    if !args.cluster && (args.all_namespaces || args.context.is_some()) {
        return Err(Failure::Other("--all-namespaces and --context are about a cluster: add --cluster, or leave them out".into()));
    }
    output::check(&args.output)?;
    let config = Config::read(args.config.as_deref())?;
    let baseline = args.baseline.clone().or_else(|| config.baseline.as_ref().map(PathBuf::from));
    let ways = Ways {
        now: args.as_of.unwrap_or_else(Timestamp::now),
        soon: config.soon(),
        is_cluster: args.cluster,
        // What is written as the new baseline is not excused by the old one.
        baseline: baseline.filter(|_| args.write_baseline.is_none()).map(|path| read_baseline(&path)).transpose()?,
        severities: config.severities(),
    };
    let look = if args.cluster {
        cluster::gather(args.context.as_ref(), args.namespace.as_ref(), args.all_namespaces)?
    } else {
        let exclude = Exclude::new(&[args.exclude.as_slice(), config.exclude.as_slice()].concat())?;
        let namespace = args.namespace.as_deref().or(config.namespace.as_deref()).unwrap_or("default");
        gather::manifests(&args.paths, &exclude, namespace)?
    };
    let result = look.judge(&ways);
    if args.scaffold {
        write!(io::stdout(), "{}", scaffold::manifests(&result.unclassified))?;
        return Ok(0);
    }
    if let Some(path) = &args.write_baseline {
        write_baseline(path, &result)?;
        return Ok(0);
    }
    output::all(&args.output, &result, &ways)?;
    let fail_on = args.fail_on.or(config.fail_on).unwrap_or(FailOn::Error);
    let fails = result.findings.iter().any(|found| found.excused.is_none() && fail_on.fails(found.finding.severity));
    Ok(if fails { FOUND } else { 0 })
}

fn read_baseline(path: &Path) -> Result<Baseline, Failure> {
    let failed = |why: &dyn std::fmt::Display| Failure::Other(format!("the baseline {}: {why}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| failed(&error))?;
    let mut read: Baseline = serde_json::from_str(&text).map_err(|error| failed(&error))?;
    read.file = path.display().to_string().into();
    if read.version != baseline::VERSION {
        let why = format!("is of version {}, and this program reads version {}: write it again", read.version, baseline::VERSION);
        return Err(failed(&why));
    }
    Ok(read)
}

fn write_baseline(path: &Path, result: &Assessment) -> Result<(), Failure> {
    let locks = result.locks.iter().filter_map(|lock| {
        let known = KnownLock { class: lock.class?, lease: lock.lease.clone() };
        Some((format!("{}/{}", lock.id.namespace, lock.id.name), known))
    });
    let baseline = Baseline::new(locks, result.findings.iter());
    let text = serde_json::to_string_pretty(&baseline).map_err(|error| Failure::Other(error.to_string()))?;
    fs::write(path, text + "\n").map_err(|error| Failure::Other(format!("the baseline {}: {error}", path.display())))?;
    writeln!(
        io::stdout(),
        "{} and {} are in {}: commit it, and pass it with --baseline",
        output::plural(baseline.locks.len(), "lock"),
        output::plural(baseline.findings.len(), "finding"),
        path.display()
    )?;
    Ok(())
}
