//! `fencedlock revoke LOCK`: fences the present owner although it still renews its Lease. Writes `spec.revoke` and waits for the operator, which
//! carries it out.

use std::{
    io::{self, Write},
    time::Instant,
};

use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    runtime::wait::{Condition, await_condition},
};
use serde_json::{Value, json};

use super::{Failure, as_reason, cluster, table};
use crate::{
    api::{
        BoundaryStatus, BoundaryVerdict, FencedLock, FencedLockStatus, ShortDuration,
        conditions::{find, lock as on_lock, printable, reason, shorten},
    },
    epoch::{
        Epoch,
        grant::{Grant, GrantState},
        revoke::{Revocation, RevocationStatus},
    },
};

/// How often the request is written again after somebody else changed the lock at the same time.
const TRIES: usize = 8;

#[derive(Debug, clap::Args)]
#[command(after_long_help = AFTER)]
pub(super) struct Args {
    /// The FencedLock
    lock: String,
    /// Why, for whoever reads the status and the Events
    #[arg(long, value_name = "TEXT", value_parser = as_reason)]
    reason: String,
    #[command(flatten)]
    place: cluster::Place,
    /// How long to wait until no boundary admits the owner any more. The request stands also after that
    #[arg(long, value_name = "DURATION", default_value = "1m")]
    timeout: ShortDuration,
}

const AFTER: &str = "\
The owner's epoch is fenced by a new one that is nobody's, at every write boundary that can refuse.
Its Lease is left alone: the owner may go on renewing it, and gets no epoch any more. Only a new
term gets one: stop the process, or let it give the Lease up and acquire it anew.

Exit codes:
  0  no write boundary that can refuse admits the owner any more
  2  usage or tool error, nothing to revoke, or not finished in time";

pub(super) fn run(args: &Args) -> Result<u8, Failure> {
    super::runtime()?.block_on(revoke(args))
}

async fn revoke(args: &Args) -> Result<u8, Failure> {
    let (client, namespace) = args.place.connect().await?;
    let what = format!("FencedLock {namespace}/{}", args.lock);
    let target = Target { what, name: &args.lock, api: Api::namespaced(client.clone(), &namespace), client, namespace: &namespace };
    let began = Instant::now();
    let mut out = io::stdout();
    let asked = match target.ask(&args.reason).await? {
        Asked::Written(grant) => {
            writeln!(out, "{}: epoch {} of {} is to be revoked", target.what, grant.epoch, shown(grant.holder.as_str()))?;
            Revocation::of(&grant, args.reason.as_str())
        }
        Asked::Before(revoked) => {
            writeln!(
                out,
                "{}: the term of {} is revoked already: {}",
                target.what,
                shown(revoked.holder.as_str()),
                printable(&revoked.reason)
            )?;
            Revocation { term: revoked.term, holder: revoked.holder.as_str().to_owned(), reason: revoked.reason }
        }
    };
    let waits = await_condition(target.api.clone(), target.name, is_over(asked.clone()));
    let lock = match tokio::time::timeout(args.timeout.get(), waits).await {
        Ok(Ok(Some(lock))) => lock,
        Ok(Ok(None)) => return Err(Failure::Other(format!("{} was deleted meanwhile", target.what))),
        Ok(Err(error)) => return Err(Failure::Other(format!("{} cannot be watched: {error}. The request stands", target.what))),
        Err(_) => return Err(target.late(args).await),
    };
    let status = lock.status.unwrap_or_default();
    match (&status.revoked, &status.grant) {
        (Some(revoked), _) => {
            let took = began.elapsed().as_secs_f64();
            writeln!(out, "fenced after {took:.2} s: epoch {} is nobody's, and no other epoch is valid", revoked.epoch)?;
            write!(out, "{}", render(&status, revoked, &lock.spec.coordinator.lease.map(|lease| lease.name).unwrap_or_default()))?;
        }
        (None, None) => {
            return Err(Failure::Other(format!(
                "{}: the owner has given the lock up before its term was revoked. What it still has under way is admitted until another owner begins",
                target.what
            )));
        }
        (None, Some(grant)) if grant.holder.as_str() == asked.holder => {
            return Err(Failure::Other(format!(
                "{}: {} has got epoch {} meanwhile, in another term or because the lock was created anew: revoke again",
                target.what,
                shown(&asked.holder),
                grant.epoch
            )));
        }
        (None, Some(_)) => {
            let epoch = status.epoch.map_or_else(|| "-".to_owned(), |epoch| epoch.to_string());
            writeln!(out, "the term is over without it: another one began, and epoch {epoch} fences it")?;
        }
    }
    Ok(0)
}

/// A holder, cut where it is long.
pub(super) fn shown(holder: &str) -> String {
    format!("{:?}", shorten(holder, 80))
}

/// The lock that is meant.
struct Target<'a> {
    what: String,
    namespace: &'a str,
    name: &'a str,
    client: Client,
    api: Api<FencedLock>,
}

/// What became of the request.
enum Asked {
    /// It was written, about this grant.
    Written(Box<Grant>),
    /// The present term is revoked already.
    Before(Box<RevocationStatus>),
}

impl Target<'_> {
    async fn get(&self) -> Result<FencedLock, Failure> {
        cluster::lock(&self.client, self.namespace, self.name).await
    }

    /// Writes the request down where the lock still has the grant that it names.
    async fn ask(&self, reason: &str) -> Result<Asked, Failure> {
        for _ in 0..TRIES {
            let lock = self.get().await?;
            let status = lock.status.as_ref();
            if let Some(revoked) = status.and_then(|status| status.revoked.clone()).filter(|revoked| !revoked.ended) {
                return Ok(Asked::Before(Box::new(revoked)));
            }
            let Some(grant) = status.and_then(|status| status.grant.clone()) else {
                let why =
                    status.map(why).filter(|why| !why.is_empty()).unwrap_or_else(|| "no operator has looked at the lock yet".to_owned());
                return Err(Failure::Other(format!("{}: nobody has an epoch, so there is nothing to revoke: {why}", self.what)));
            };
            let patch = json!({"metadata": {"resourceVersion": lock.resource_version()}, "spec": {"revoke": request(&grant, reason)}});
            match self.api.patch(self.name, &PatchParams::default(), &Patch::Merge(patch)).await {
                Ok(_) => return Ok(Asked::Written(Box::new(grant))),
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(Failure::Other(format!("{}: {}", self.what, cluster::told(&error)))),
            }
        }
        Err(Failure::Other(format!("{}: it is written so often that the request could not be: try again", self.what)))
    }

    /// What to say when it is not finished in time.
    async fn late(&self, args: &Args) -> Failure {
        let read = self.get().await.ok().and_then(|lock| lock.status);
        let why = match read {
            Some(status) if status.revoked.is_some() || has(&status, reason::FENCE_UNREADABLE) => why(&status),
            Some(status) => format!("{} (is the operator running, and does it watch this namespace?)", why(&status)),
            None => "the lock cannot be read".to_owned(),
        };
        Failure::Other(format!(
            "{}: not fenced everywhere after {}: {why}. The request stands: fencedlock status {} shows what becomes of it",
            self.what, args.timeout, self.name
        ))
    }
}

/// The request to revoke a grant, as a merge patch has it.
pub(super) fn request(grant: &Grant, reason: &str) -> Value {
    let mut asked = json!(Revocation::of(grant, reason));
    // What is absent now must not stay from an earlier request.
    for optional in ["leaseTransitions", "acquireTime", "podUid"] {
        asked["term"].as_object_mut().map(|term| term.entry(optional).or_insert(Value::Null));
    }
    asked
}

/// Whether the recorded owner, or nobody after a revocation, is active and every boundary that has a fence is at that epoch. An efficiency-only lock
/// waits for no boundary, and an observing one is waited for by none; here they are.
pub(super) fn is_everywhere(status: &FencedLockStatus) -> bool {
    let is_elsewhere = |boundary: &BoundaryStatus, epoch| boundary.fence.is_some_and(|fence| fence != epoch);
    status
        .recorded()
        .is_some_and(|recorded| recorded.is_active() && !status.boundaries.iter().any(|boundary| is_elsewhere(boundary, recorded.epoch())))
}

/// Why there is no active grant, in the operator's words.
fn why(status: &FencedLockStatus) -> String {
    find(&status.conditions, on_lock::EPOCH_ACTIVE).map(|condition| printable(&condition.message)).unwrap_or_default()
}

fn has(status: &FencedLockStatus, reason: &str) -> bool {
    find(&status.conditions, on_lock::EPOCH_ACTIVE).is_some_and(|condition| condition.reason == reason)
}

/// Whether every boundary that had the owner's fence is at the epoch of nobody, or the term is over by itself and another owner's epoch is active.
fn is_over(asked: Revocation) -> impl Condition<FencedLock> {
    move |lock: Option<&FencedLock>| {
        let Some(status) = lock.and_then(|lock| lock.status.as_ref()) else { return lock.is_none() };
        match (&status.revoked, &status.grant) {
            (Some(_), _) => is_everywhere(status),
            (None, Some(grant)) => !asked.names(grant) && grant.state == GrantState::Active,
            (None, None) => true,
        }
    }
}

/// Each boundary and whether it refuses everybody from before an epoch, as a table whose last column is called so; and the sentence about those that do
/// not, if there are any.
pub(super) fn refusing(status: &FencedLockStatus, epoch: Epoch, column: &str, whose: &str) -> String {
    let is_at = |boundary: &BoundaryStatus| boundary.fence == Some(epoch);
    let rows: Vec<_> = status
        .boundaries
        .iter()
        .map(|boundary| {
            let fence = boundary.fence.map_or_else(|| "-".to_owned(), |fence| fence.to_string());
            let refuses = match boundary.verdict {
                Some(BoundaryVerdict::Proven) if is_at(boundary) => "yes, proven",
                Some(BoundaryVerdict::RiskAccepted) if is_at(boundary) => "yes, but for limits that are accepted",
                _ if is_at(boundary) => "not proven",
                _ => "no",
            };
            let type_ = boundary.type_.map_or_else(|| "-".to_owned(), |type_| type_.to_string());
            vec![boundary.name.clone(), type_, fence, refuses.to_owned()]
        })
        .collect();
    let table = if rows.is_empty() {
        "no write boundary refuses anything: none is registered".to_owned()
    } else {
        table::render(&["BOUNDARY", "TYPE", "FENCE", column], &rows)
    };
    let left =
        status.boundaries.iter().filter(|boundary| !is_at(boundary)).map(|boundary| format!("{:?}", boundary.name)).collect::<Vec<_>>();
    let left =
        if left.is_empty() { String::new() } else { format!("\nWhat {whose} does at {} is not stopped by this.\n", left.join(", ")) };
    format!("\n{table}\n{left}")
}

fn render(status: &FencedLockStatus, revoked: &RevocationStatus, lease: &str) -> String {
    let refusing = refusing(status, revoked.epoch, "REFUSES THE OWNER", "the owner");
    format!(
        "{refusing}\nTo let somebody work again, a new term has to begin: stop the owner, or let it give Lease {lease:?} up and acquire it anew.\n"
    )
}
