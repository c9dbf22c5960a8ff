//! `fencedlock guard`: the guard of a PostgreSQL boundary by hand. `print` is for whoever does not give the operator's role the right to
//! install it; `remove` opens a boundary for good.

use std::io::{self, Write};

use super::{Failure, database::Database, declared::Wanted};
use crate::{
    api::{BoundaryType, GuardMode, WriteBoundarySpec},
    boundary::{
        is_built_in,
        postgres::{self, Which},
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
    /// The role with which the operator connects
    #[arg(long, value_name = "ROLE")]
    operator_role: String,
    #[command(flatten)]
    wanted: Wanted,
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
    #[command(flatten)]
    database: Database,
}

pub(super) fn run(args: &Args) -> Result<u8, Failure> {
    match &args.command {
        Command::Print(print) => self::print(print),
        Command::Remove(remove) => super::runtime()?.block_on(self::remove(remove)),
    }
}

fn print(args: &Print) -> Result<u8, Failure> {
    let is_meant = |spec: &WriteBoundarySpec| spec.type_ == BoundaryType::Postgres && is_built_in(spec) && !spec.is_conditional();
    let (namespace, name, spec) = &args.wanted.one(is_meant, "of type Postgres in it whose guard fencedlock installs")?;
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
    let access = args.database.access("a role that owns the tables")?;
    let name = format!("{}/{}", args.namespace, args.boundary);
    if !args.yes {
        writeln!(
            io::stdout(),
            "This would take away the guard of {name}: everybody may write to its tables from then on. First delete the WriteBoundary or set its \
             spec.mode to Observe, else the operator installs the guard again. Say --yes to do it."
        )?;
        return Ok(super::FOUND);
    }
    let removed = postgres::remove(&access, &args.namespace, &args.boundary).await;
    let open = removed.map_err(|error| Failure::Other(error.to_string()))?;
    if open.is_empty() {
        writeln!(io::stdout(), "no table of this database has a guard of {name}")?;
    } else {
        writeln!(io::stdout(), "{name} is open: {} may be written by everybody who is granted it", open.join(", "))?;
    }
    Ok(0)
}
