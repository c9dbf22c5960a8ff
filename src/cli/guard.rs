//! `fencedlock guard`: the guard of a PostgreSQL boundary by hand. `print` is for whoever does not give the operator's role the right to
//! install it; `remove` opens a boundary for good.

use std::io::{self, Write};

use super::{
    Failure,
    manifests::{self, Exclude, Parsed, Problem, Text},
};
use crate::{
    api::{BoundaryType, GROUP, GuardMode, WriteBoundary},
    audit::schema,
    boundary::{
        is_built_in,
        postgres::{self, Access, Which},
    },
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Print the SQL that installs the guard of a WriteBoundary, to be applied by the owner of the tables
    Print(Print),
    /// Take the guard away for good: everybody may write from then on. The URL comes from FENCEDLOCK_DATABASE_URL
    Remove(Remove),
}

#[derive(Debug, clap::Args)]
struct Print {
    /// The file with the WriteBoundary, or - for standard input
    #[arg(default_value = "-", value_name = "PATH")]
    path: String,
    /// The role with which the operator connects
    #[arg(long, value_name = "ROLE")]
    operator_role: String,
    /// Which WriteBoundary, when the file has several
    #[arg(long, value_name = "NAME")]
    boundary: Option<String>,
    /// The namespace of objects that name none
    #[arg(long, short, default_value = "default", value_name = "NAME")]
    namespace: String,
}

#[derive(Debug, clap::Args)]
struct Remove {
    /// The WriteBoundary whose guard it is
    boundary: String,
    /// Its namespace
    #[arg(long, short, default_value = "default", value_name = "NAME")]
    namespace: String,
    /// Do it, and do not only say what would be done
    #[arg(long)]
    yes: bool,
    /// A URL of a role that owns the tables
    #[arg(long, env = "FENCEDLOCK_DATABASE_URL", hide_env_values = true, hide = true)]
    url: Option<String>,
}

pub(super) fn run(args: &Args) -> Result<u8, Failure> {
    match &args.command {
        Command::Print(print) => self::print(print),
        Command::Remove(remove) => super::runtime()?.block_on(self::remove(remove)),
    }
}

fn print(args: &Print) -> Result<u8, Failure> {
    let mut read = Vec::new();
    manifests::read(
        std::slice::from_ref(&args.path),
        &Exclude::default(),
        |chunk| match chunk.text {
            Text::Document(text) => (chunk.file, manifests::parse(&text, chunk.line)),
            _ => (chunk.file, Vec::new()),
        },
        |parsed| read.push(parsed),
    )?;
    let mut found = Vec::new();
    for (file, parsed) in read.into_iter().flat_map(|(file, all)| all.into_iter().map(move |parsed| (file.clone(), parsed))) {
        let (line, object) = match parsed {
            Parsed::Object(line, object) => (line, object),
            Parsed::Problem(line, Problem::Unreadable(why) | Problem::Duplicate(why)) => {
                return Err(Failure::Other(format!("{file}:{line}: is not YAML: {why}")));
            }
        };
        let text = |pointer: &str| object.pointer(pointer).and_then(serde_json::Value::as_str).map(str::to_owned);
        let name = text("/metadata/name").unwrap_or_default();
        let is_ours = text("/apiVersion").is_some_and(|version| version.split('/').next() == Some(GROUP));
        if !is_ours || text("/kind").as_deref() != Some("WriteBoundary") || args.boundary.as_ref().is_some_and(|wanted| *wanted != name) {
            continue;
        }
        let failed = |error: &dyn std::fmt::Display| Failure::Other(format!("{file}:{line}: WriteBoundary {name:?}: {error}"));
        if let Some(error) = schema::check("WriteBoundary", &object).first() {
            return Err(failed(error));
        }
        let namespace = text("/metadata/namespace").unwrap_or_else(|| args.namespace.clone());
        let boundary: WriteBoundary = serde_json::from_value(object).map_err(|error| failed(&error))?;
        if boundary.spec.type_ == BoundaryType::Postgres && is_built_in(&boundary.spec) && !boundary.spec.is_conditional() {
            found.push((namespace, name, boundary.spec));
        }
    }
    let [(namespace, name, spec)] = found.as_slice() else {
        let names: Vec<_> = found.iter().map(|(_, name, _)| name.as_str()).collect();
        return Err(Failure::Other(if names.is_empty() {
            format!("{}: there is no WriteBoundary of type Postgres in it whose guard fencedlock installs", args.path)
        } else {
            format!("{}: there are several ({}): name one with --boundary", args.path, names.join(", "))
        }));
    };
    let Some(declared) = &spec.postgres else { return Ok(0) };
    let mode = spec.mode.unwrap_or(GuardMode::Observe);
    let which = Which { namespace, boundary: name, lock: &spec.lock_ref.name, uid: "", generation: 0 };
    writeln!(
        io::stdout(),
        "-- The guard of WriteBoundary {namespace}/{name}, mode {mode:?}, by fencedlock {}. Apply it as the owner of the tables.\n",
        env!("CARGO_PKG_VERSION")
    )?;
    write!(io::stdout(), "{}", postgres::script(which, declared, mode, &args.operator_role))?;
    Ok(0)
}

async fn remove(args: &Remove) -> Result<u8, Failure> {
    let url = args.url.clone().ok_or_else(|| {
        Failure::Other(
            "set FENCEDLOCK_DATABASE_URL to a URL of a role that owns the tables; on the command line others could read it".into(),
        )
    })?;
    let name = format!("{}/{}", args.namespace, args.boundary);
    if !args.yes {
        writeln!(
            io::stdout(),
            "This would take away the guard of {name}: everybody may write to its tables from then on. First delete the WriteBoundary or set its \
             spec.mode to Observe, else the operator installs the guard again. Say --yes to do it."
        )?;
        return Ok(super::FOUND);
    }
    let access = Access::Given { url, authorities: None };
    let removed = postgres::remove(&access, &args.namespace, &args.boundary).await;
    let open = removed.map_err(|error| Failure::Other(error.to_string()))?;
    if open.is_empty() {
        writeln!(io::stdout(), "no table of this database has a guard of {name}")?;
    } else {
        writeln!(io::stdout(), "{name} is open: {} may be written by everybody who is granted it", open.join(", "))?;
    }
    Ok(0)
}
