//! `fencedlock ledger`: the operations that were sent to a receiver that cannot refuse. `print` is the SQL that makes a ledger; `list` shows what
//! somebody has to look at, and `settle` records what they found out.

use std::io::{self, Write};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use kube::{Api, ResourceExt, api::ListParams};

use super::{Failure, as_reason, cluster, database::Database, declared::Wanted, table};
use crate::{
    api::{Ledger, WriteBoundary, WriteBoundarySpec, conditions::printable, conditions::shorten},
    boundary::BackendError,
    ledger::{
        Place, Roles,
        client::Effect,
        read::{Operation, Reader, Which},
    },
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Print the SQL that makes the ledger of a WriteBoundary, to be applied by the owner of the table
    Print(Print),
    /// List the operations that somebody has to look at. The URL comes from FENCEDLOCK_DATABASE_URL
    List(List),
    /// Record what a person found out about an operation. The URL comes from FENCEDLOCK_DATABASE_URL
    Settle(Settle),
}

#[derive(Debug, clap::Args)]
struct Print {
    /// A role that workers connect with; may be repeated
    #[arg(long, value_name = "ROLE", required = true)]
    writer_role: Vec<String>,
    /// A role of people who settle what is not known; may be repeated
    #[arg(long, value_name = "ROLE")]
    settler_role: Vec<String>,
    /// The role with which the operator connects: it only looks
    #[arg(long, value_name = "ROLE")]
    operator_role: Vec<String>,
    #[command(flatten)]
    wanted: Wanted,
}

/// Which ledger.
#[derive(Debug, clap::Args)]
struct Target {
    /// The FencedLock
    lock: String,
    /// Which of its WriteBoundaries, when several have a ledger
    #[arg(long, value_name = "NAME")]
    boundary: Option<String>,
    #[command(flatten)]
    place: cluster::Place,
    #[command(flatten)]
    database: Database,
}

#[derive(Debug, clap::Args)]
#[command(after_long_help = LIST)]
struct List {
    #[command(flatten)]
    target: Target,
    /// All operations, also those that nobody has to look at
    #[arg(long)]
    all: bool,
    /// How to print them
    #[arg(long, short, value_name = "FORMAT", default_value = "table", value_parser = ["table", "json"])]
    output: String,
}

const LIST: &str = "\
An operation is listed while its outcome is not known (sent, unknown), while its work item was sent
in more than one attempt and a person has not looked at each of them, and when what was settled
contradicts what the worker recorded.

Exit codes:
  0  nothing is listed
  1  something is
  2  usage or tool error";

#[derive(Debug, clap::Args)]
struct Settle {
    #[command(flatten)]
    target: Target,
    /// The work item
    work_item: String,
    /// Which attempt at it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=10_000))]
    attempt: i32,
    /// What is known now: absent and compensated let it be sent again
    #[arg(long, value_name = "EFFECT", value_parser = effects())]
    effect: Effect,
    /// How that was found out, for the record
    #[arg(long, value_name = "TEXT", value_parser = as_reason)]
    reason: String,
    /// Who says so, for the record; the database's role is recorded beside it
    #[arg(long, value_name = "NAME", env = "USER", hide_env = true)]
    by: String,
    /// Also while the present owner may be at it
    #[arg(long)]
    under_way: bool,
}

fn effects() -> impl TypedValueParser<Value = Effect> {
    PossibleValuesParser::new(Effect::ALL.map(Effect::as_str)).try_map(|text| text.parse::<Effect>())
}

pub(super) fn run(args: &Args) -> Result<u8, Failure> {
    match &args.command {
        Command::Print(print) => self::print(print),
        Command::List(list) => super::runtime()?.block_on(self::list(list)),
        Command::Settle(settle) => super::runtime()?.block_on(self::settle(settle)),
    }
}

fn declared(spec: &WriteBoundarySpec) -> Option<&Ledger> {
    spec.external.as_ref()?.ledger.as_ref()
}

fn print(args: &Print) -> Result<u8, Failure> {
    let (namespace, name, spec) = args.wanted.one(|spec| declared(spec).is_some(), "with spec.external.ledger in it")?;
    let Some(ledger) = declared(&spec) else { return Ok(0) };
    let place = place(ledger, &namespace, &spec.lock_ref.name)?;
    let roles = Roles { writers: &args.writer_role, settlers: &args.settler_role, readers: &args.operator_role };
    writeln!(
        io::stdout(),
        "-- The operation ledger of WriteBoundary {namespace}/{name}, by fencedlock {}. Apply it as the owner of the table, and list the table in\n\
         -- spec.postgres.tables of a WriteBoundary of the same lock: without that guard nothing can be recorded.\n",
        env!("CARGO_PKG_VERSION")
    )?;
    write!(io::stdout(), "{}", place.script(&roles))?;
    Ok(0)
}

fn place(ledger: &Ledger, namespace: &str, lock: &str) -> Result<Place, Failure> {
    Place::new(&ledger.schema, &ledger.table, namespace, lock).map_err(|error| Failure::Other(error.to_string()))
}

/// A session with the ledger's database, and the epoch of the grant that the lock has now.
async fn open(target: &Target) -> Result<(Reader, Option<u64>), Failure> {
    let access = target.database.access("the ledger's database")?;
    let (client, namespace) = target.place.connect().await?;
    let lock = cluster::lock(&client, &namespace, &target.lock).await?;
    let all = Api::<WriteBoundary>::namespaced(client, &namespace).list(&ListParams::default()).await;
    let all = all.map_err(|error| Failure::Other(format!("WriteBoundaries in namespace {namespace:?}: {}", cluster::told(&error))))?;
    let is_meant = |boundary: &&WriteBoundary| {
        let is_named = target.boundary.as_ref().is_none_or(|wanted| *wanted == boundary.name_any());
        boundary.spec.lock_ref.name == target.lock && is_named && declared(&boundary.spec).is_some()
    };
    let found: Vec<_> = all.iter().filter(is_meant).collect();
    let ledger = match found.as_slice() {
        [one] => declared(&one.spec),
        [] => None,
        several => {
            let names: Vec<_> = several.iter().map(|boundary| boundary.name_any()).collect();
            return Err(Failure::Other(format!("several have a ledger ({}): name one with --boundary", names.join(", "))));
        }
    };
    let what = format!("FencedLock {namespace}/{}", target.lock);
    let ledger = ledger.ok_or_else(|| Failure::Other(format!("{what} has no such WriteBoundary with spec.external.ledger")))?;
    let place = place(ledger, &namespace, &target.lock)?;
    let reader = Reader::connect(&access, place).await.map_err(|error| failed(&error))?;
    Ok((reader, lock.status.and_then(|status| status.grant).map(|grant| grant.epoch.get())))
}

fn failed(error: &BackendError) -> Failure {
    Failure::Other(format!("the ledger: {error}"))
}

async fn list(args: &List) -> Result<u8, Failure> {
    let (reader, _) = open(&args.target).await?;
    let which = if args.all { Which::All } else { Which::Open };
    let (operations, has_more) = reader.operations(which).await.map_err(|error| failed(&error))?;
    let is_open = operations.iter().any(|operation| !open_for(operation).is_empty());
    if args.output == "json" {
        let shown = serde_json::json!({"operations": operations, "truncated": has_more});
        writeln!(io::stdout(), "{shown:#}")?;
    } else {
        write!(io::stdout(), "{}", render(&operations, has_more))?;
    }
    Ok(if is_open { super::FOUND } else { 0 })
}

/// Why somebody has to look at an operation.
fn open_for(operation: &Operation) -> Vec<&'static str> {
    let reasons =
        [(operation.unsettled, "outcome unknown"), (operation.repeated, "sent more than once"), (operation.contradicted, "contradicted")];
    reasons.into_iter().filter(|(is, _)| *is).map(|(_, why)| why).collect()
}

fn render(operations: &[Operation], has_more: bool) -> String {
    if operations.is_empty() {
        return "nothing to look at\n".into();
    }
    let text = |text: Option<&str>| text.map_or_else(|| "-".to_owned(), |text| printable(&shorten(text, 60)));
    let rows: Vec<_> = operations
        .iter()
        .map(|operation| {
            let state =
                operation.effect.as_ref().map_or_else(|| operation.state.clone(), |effect| format!("{} ({effect})", operation.state));
            let open = open_for(operation).join(", ");
            vec![
                text(Some(&operation.work_item)),
                operation.attempt.to_string(),
                state,
                if open.is_empty() { "-".to_owned() } else { open },
                format!("{} {}", operation.epoch, text(Some(&operation.holder))),
                text(operation.sent_at.as_deref()),
                text(operation.answer.as_deref()),
                operation
                    .settled_by
                    .as_ref()
                    .map_or_else(|| "-".to_owned(), |by| format!("{}: {}", text(Some(by)), text(operation.why.as_deref()))),
            ]
        })
        .collect();
    let more = if has_more { "\nThere are more: these are the oldest thousand.\n" } else { "" };
    format!("{}\n{more}", table::render(&["WORK ITEM", "ATTEMPT", "STATE", "LOOK AT IT", "OWNER", "SENT", "ANSWER", "SETTLED BY"], &rows))
}

async fn settle(args: &Settle) -> Result<u8, Failure> {
    let (reader, granted) = open(&args.target).await?;
    let what = format!("attempt {} at {}", args.attempt, printable(&args.work_item));
    let state = reader.state_of(&args.work_item, args.attempt).await.map_err(|error| failed(&error))?;
    let Some((state, epoch)) = state else {
        return Err(Failure::Other(format!("there is no {what}: fencedlock ledger list {} --all", args.target.lock)));
    };
    if state == "sent" && u64::try_from(epoch).ok() == granted && !args.under_way {
        return Err(Failure::Other(format!(
            "{what} is the present owner's, which may be at it: wait until it says what came of it, revoke the owner (fencedlock revoke), or say \
             --under-way"
        )));
    }
    let said = reader.settle(&args.work_item, args.attempt, args.effect, &args.by, &args.reason).await;
    said.map_err(|error| failed(&error))?;
    writeln!(io::stdout(), "{what}: {}, says {}: {}", args.effect.as_str(), printable(&args.by), printable(&args.reason))?;
    Ok(0)
}
