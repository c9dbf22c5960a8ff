//! `fencedlock recover LOCK`: after a restore, makes sure that the next epoch lies above everything that was ever issued, and that no claim from
//! before is admitted anywhere.

use std::{
    io::{self, BufRead, IsTerminal, Write},
    time::{Duration, Instant},
};

use k8s_openapi::{api::core::v1::ConfigMap, jiff::Timestamp};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
    runtime::wait::await_condition,
};
use serde_json::json;
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use super::{Failure, cluster, revoke, status::age, table};
use crate::{
    api::{BoundaryType, FencedLock, ShortDuration, WriteBoundary},
    client::{
        acquire::Timing,
        hold::{Hold, Lock, hold},
    },
    epoch::{
        Epoch, EpochFloor,
        grant::Grant,
        mint::{RESERVATIONS, Reservation},
        recover::{self, Facts, MARGIN, Plan, Seen},
    },
};

#[derive(Debug, clap::Args)]
#[command(after_long_help = AFTER)]
pub(super) struct Args {
    /// The FencedLock
    lock: String,
    /// Do it without asking
    #[arg(long)]
    yes: bool,
    /// An epoch that was used, known from elsewhere: a log, a row, another cluster
    #[arg(long, value_name = "EPOCH", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=recover::MAX_FLOOR))]
    above: u64,
    /// How many epochs to leave out for those that nothing remembers
    #[arg(long, value_name = "N", default_value_t = MARGIN, value_parser = clap::value_parser!(u64).range(1..=recover::MAX_FLOOR))]
    margin: u64,
    #[command(flatten)]
    place: cluster::Place,
    /// How long to wait until every boundary is above. What was asked for stands also after that
    #[arg(long, value_name = "DURATION", default_value = "1m")]
    timeout: ShortDuration,
}

const AFTER: &str = "\
Run it after every restore of the cluster or of a database behind a boundary, while the writers are
stopped and the operator runs. It raises spec.epochFloor. When somebody owns the lock, that term is
revoked: an epoch of nobody is activated everywhere. When nobody does, the Lease is taken for a
moment and given back. Either way each boundary that can refuse is above every claim from before.
Nothing is ever lowered, and running it again does no harm.

Exit codes:
  0  an epoch above everything is active at every boundary that can refuse
  1  it was not done: nobody said yes
  2  usage or tool error, or not finished in time";

/// What is recorded as the reason of the revocation.
const REASON: &str = "recovery after a restore (fencedlock recover)";

/// How often it is written again after somebody else changed the lock at the same time.
const TRIES: usize = 8;

pub(super) fn run(args: &Args) -> Result<u8, Failure> {
    super::runtime()?.block_on(recover(args))
}

struct Gathered {
    lock: FencedLock,
    reservation: Option<Reservation>,
    boundaries: Vec<Seen>,
    /// When each of them was last proven, in the same order: what the operator saw there is no older.
    proven: Vec<Option<Timestamp>>,
}

async fn gather(client: &Client, namespace: &str, name: &str) -> Result<Gathered, Failure> {
    let failed = |what: &str, error: &kube::Error| Failure::Other(format!("{what} in namespace {namespace:?}: {}", cluster::told(error)));
    let lock = cluster::lock(client, namespace, name).await?;
    let map = Api::<ConfigMap>::namespaced(client.clone(), namespace).get_opt(RESERVATIONS).await;
    let map = map.map_err(|error| failed(&format!("ConfigMap {RESERVATIONS:?}"), &error))?;
    let text = map.and_then(|map| map.data).and_then(|data| data.get(name).cloned());
    let reservation = text.map(|text| Reservation::parse(&text)).transpose().map_err(|error| {
        Failure::Other(format!(
            "ConfigMap {namespace}/{RESERVATIONS}, key {name:?}: {error}: set it right, with a number above every epoch that was used"
        ))
    })?;
    let all = Api::<WriteBoundary>::namespaced(client.clone(), namespace).list(&ListParams::default()).await;
    let all = all.map_err(|error| failed("WriteBoundaries", &error))?;
    let seen = |boundary: &WriteBoundary| {
        let fence = boundary.status.as_ref().and_then(|status| status.fence.as_ref());
        Seen {
            name: boundary.name_any(),
            fence: fence.map(|fence| (fence.epoch, fence.holder.clone())),
            has_fence: boundary.spec.type_ != BoundaryType::External && !boundary.spec.is_conditional(),
        }
    };
    let proven = |boundary: &WriteBoundary| boundary.status.as_ref()?.proof.as_ref().map(|proof| proof.proven_at.0);
    let of_lock = all.iter().filter(|boundary| boundary.spec.lock_ref.name == name);
    let (boundaries, proven) = of_lock.map(|boundary| (seen(boundary), proven(boundary))).unzip();
    Ok(Gathered { lock, reservation, boundaries, proven })
}

/// What was written.
struct Asked {
    /// Of the lock that was meant.
    uid: String,
    /// The name of its Lease.
    lease: String,
    /// The new `spec.epochFloor`.
    floor: EpochFloor,
    /// Whether somebody owned the lock. That term is to be revoked.
    owned: bool,
}

/// Says what is found and what will be done, asks, and writes it. The operator writes the same object, so the write may come too late: then it is
/// done again where the same is to be done, else said and asked anew. `None`: a person did not say yes.
async fn ask(args: &Args, what: &str, client: &Client, namespace: &str) -> Result<Option<Asked>, Failure> {
    let api = Api::<FencedLock>::namespaced(client.clone(), namespace);
    let mut agreed = None;
    for _ in 0..TRIES {
        let gathered = gather(client, namespace, &args.lock).await?;
        let lock = &gathered.lock;
        let Some(lease) = &lock.spec.coordinator.lease else {
            return Err(Failure::Other(format!("{what} has an external coordinator and gets no epochs: there is nothing to recover")));
        };
        let status = lock.status.clone().unwrap_or_default();
        let uid = lock.uid().unwrap_or_default();
        let plan = recover::plan(&Facts {
            lock_uid: &uid,
            epoch: status.epoch,
            floor: lock.spec.epoch_floor,
            reservation: gathered.reservation.as_ref(),
            recorded: status.recorded(),
            boundaries: &gathered.boundaries,
            above: args.above,
            margin: args.margin,
        })
        .map_err(|error| Failure::Other(format!("{what}: {error}")))?;
        let grant = status.grant.as_ref();
        let mut spec = json!({"epochFloor": plan.floor});
        if let Some(grant) = grant {
            spec["revoke"] = revoke::request(grant, REASON);
        }
        let meant = (uid.clone(), lease.name.clone(), spec.clone(), plan.signs.clone());
        if agreed.as_ref() != Some(&meant) {
            if agreed.is_some() {
                writeln!(io::stdout(), "It was changed meanwhile.\n")?;
            }
            write!(io::stdout(), "{}", render(what, &gathered, &plan, grant, Timestamp::now()))?;
            if !args.yes && !says_yes()? {
                return Ok(None);
            }
            agreed = Some(meant);
        }
        let patch = json!({"metadata": {"resourceVersion": lock.resource_version()}, "spec": spec});
        match api.patch(&args.lock, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => return Ok(Some(Asked { uid, lease: lease.name.clone(), floor: plan.floor, owned: grant.is_some() })),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(Failure::Other(format!("{what}: {}", cluster::told(&error)))),
        }
    }
    Err(Failure::Other(format!("{what} was changed at the same time {TRIES} times, and nothing was done: run it again")))
}

async fn recover(args: &Args) -> Result<u8, Failure> {
    let (client, namespace) = args.place.connect().await?;
    let what = format!("FencedLock {namespace}/{}", args.lock);
    let api = Api::<FencedLock>::namespaced(client.clone(), &namespace);
    let Some(asked) = ask(args, &what, &client, &namespace).await? else {
        writeln!(io::stdout(), "Nothing was changed. Say --yes to do it.")?;
        return Ok(super::FOUND);
    };
    let Asked { uid, lease, floor, owned } = asked;
    let began = Instant::now();
    writeln!(io::stdout(), "spec.epochFloor is {floor}")?;
    let own = if owned { None } else { Some(Term::begin(client, namespace, &args.lock, &lease)?) };
    let is_done = |lock: Option<&FencedLock>| lock.is_none_or(|lock| lock.uid().as_deref() != Some(&uid) || is_above(lock, floor));
    let done = tokio::time::timeout(args.timeout.get(), await_condition(api, &args.lock, is_done)).await;
    let waited_for = match own {
        Some(own) => own.end().await,
        None => None,
    };
    let lock = match done {
        Ok(Ok(Some(lock))) if lock.uid().as_deref() == Some(&uid) => lock,
        Ok(Ok(_)) => return Err(Failure::Other(format!("{what} was deleted, or created anew, meanwhile: run it again"))),
        Ok(Err(error)) => return Err(Failure::Other(format!("{what} cannot be watched: {error}. What was asked for stands"))),
        Err(_) => {
            let why = waited_for.unwrap_or_else(|| "is the operator running, does every boundary answer?".to_owned());
            return Err(Failure::Other(format!(
                "{what}: claims from before may still be admitted somewhere after {}: {why}. What was asked for stands: fencedlock status {} shows what \
                 becomes of it; then run this again",
                args.timeout, args.lock
            )));
        }
    };
    let status = lock.status.unwrap_or_default();
    let epoch = status.epoch.unwrap_or(Epoch::FIRST);
    writeln!(io::stdout(), "done after {:.2} s: epoch {epoch} is the newest, and no other epoch is valid", began.elapsed().as_secs_f64())?;
    write!(io::stdout(), "{}", revoke::refusing(&status, epoch, "REFUSES CLAIMS FROM BEFORE", "an owner from before"))?;
    writeln!(io::stdout(), "\nStart the writers again: a new term begins, with the next epoch.")?;
    Ok(0)
}

/// Whether an epoch above the floor is active, everywhere: then no claim from before is admitted.
fn is_above(lock: &FencedLock, floor: EpochFloor) -> bool {
    let Some(status) = &lock.status else { return false };
    status.recorded().is_some_and(|recorded| recorded.epoch().get() > floor) && revoke::is_everywhere(status)
}

/// A term of this process's own. Where nobody owns the lock nobody can be revoked, and the boundaries go on admitting whom they did; a new owner's
/// activation is what changes that.
struct Term {
    state: watch::Receiver<Hold>,
    stop: CancellationToken,
    holding: JoinHandle<()>,
}

impl Term {
    fn begin(client: Client, namespace: String, lock: &str, lease: &str) -> Result<Self, Failure> {
        let identity = super::operator::identity("fencedlock-recover")?;
        let timing = Timing::new(Duration::from_secs(15), Duration::from_secs(10), Duration::from_secs(1))
            .map_err(|error| Failure::Other(error.to_string()))?;
        let (state, stop) = (watch::Sender::new(Hold::Contending), CancellationToken::new());
        let seen = state.subscribe();
        let lock = Lock { namespace, name: lock.to_owned(), lease: lease.to_owned(), identity, timing };
        let holding = tokio::spawn(hold(client, lock, state, stop.clone()));
        Ok(Self { state: seen, stop, holding })
    }

    /// Gives the Lease back. Says what it waited for last.
    async fn end(self) -> Option<String> {
        let last = match &*self.state.borrow() {
            Hold::Contending => Some("somebody holds the Lease and has no epoch, or it may not be written: stop the writers".to_owned()),
            Hold::Waiting(why) | Hold::Lost(why) => Some(why.clone()),
            Hold::Granted(_) => None,
        };
        self.stop.cancel();
        drop(self.holding.await);
        last
    }
}

fn says_yes() -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        return Ok(false);
    }
    write!(io::stdout(), "Are the writers stopped, and shall it be done? [y/N] ")?;
    io::stdout().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn render(what: &str, gathered: &Gathered, plan: &Plan, grant: Option<&Grant>, now: Timestamp) -> String {
    let status = gathered.lock.status.clone().unwrap_or_default();
    let epoch = |epoch: Option<u64>| epoch.map_or_else(|| "-".to_owned(), |epoch| epoch.to_string());
    let mut rows = vec![
        vec!["status.epoch".to_owned(), epoch(status.epoch.map(Epoch::get)), "the highest that was minted".to_owned()],
        vec![
            "reservation".to_owned(),
            epoch(gathered.reservation.as_ref().map(|r| r.last)),
            "the last of the block that is reserved".to_owned(),
        ],
        vec!["spec.epochFloor".to_owned(), gathered.lock.spec.epoch_floor.to_string(), "a person's word".to_owned()],
    ];
    for (boundary, proven) in gathered.boundaries.iter().zip(&gathered.proven) {
        let mut says = match &boundary.fence {
            Some((_, holder)) if holder.is_empty() => "admits nobody".to_owned(),
            Some((_, holder)) => format!("admits {}", revoke::shown(holder)),
            None if boundary.has_fence => "has no fence".to_owned(),
            None => "remembers none".to_owned(),
        };
        if boundary.has_fence {
            let proven = proven.map_or_else(|| "never proven".to_owned(), |proven| format!("proven {} ago", age(proven, now)));
            says = format!("{says}; {proven}");
        }
        rows.push(vec![format!("fence of {:?}", boundary.name), epoch(boundary.fence.as_ref().map(|(epoch, _)| epoch.get())), says]);
    }
    let signs = if plan.signs.is_empty() {
        "All of them agree, as the operator saw them last: nothing was restored, or everything was, to one moment,\nor it has not looked at a boundary since. What is done below holds in each case.\n".to_owned()
    } else {
        plan.signs.iter().map(|sign| format!("- {sign}")).collect::<Vec<_>>().join("\n") + "\n"
    };
    let fences = match grant {
        Some(grant) => format!(
            "- the term of {} (epoch {}) is revoked: it gets no epoch any more, only a new term does\n",
            revoke::shown(grant.holder.as_str()),
            grant.epoch
        ),
        None => "- nobody has an epoch: the Lease is taken and given back, so that each boundary is activated above it\n".to_owned(),
    };
    format!(
        "{what}: what remembers its epochs\n\n{}\n\n{signs}\nThis will be done, and nothing is lowered:\n- spec.epochFloor is raised to {}: {} above the highest epoch that anything remembers\n{fences}\n",
        table::render(&["SOURCE", "EPOCH", "WHAT IT SAYS"], &rows),
        plan.floor,
        plan.floor - plan.known,
    )
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    };

    use clap::Parser;
    use http::{Method, Request, Response};
    use kube::client::Body;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    /// An API server with one lock, whose writes come too late for `late` times. `moves`: its floor is another one each time.
    fn server(late: u64, moves: bool, patches: &Arc<AtomicU64>) -> Client {
        let patches = Arc::clone(patches);
        let answer = move |request: &Request<Body>| {
            let seen = patches.load(Ordering::SeqCst);
            let floor = if moves { seen } else { 0 };
            let lock = json!({
                "apiVersion": "fencedlock.dev/v1alpha1", "kind": "FencedLock",
                "metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": seen.to_string()},
                "spec": {"class": "CorrectnessCritical", "epochFloor": floor, "coordinator": {"type": "Lease", "lease": {"name": "a"}}},
            });
            let path = request.uri().path();
            if request.method() == Method::PATCH {
                patches.fetch_add(1, Ordering::SeqCst);
                return if seen < late {
                    (409, json!({"kind": "Status", "status": "Failure", "code": 409, "message": "late"}))
                } else {
                    (200, lock)
                };
            }
            if path.ends_with("/fencedlocks/a") {
                (200, lock)
            } else if path.ends_with("/writeboundaries") {
                (200, json!({"kind": "WriteBoundaryList", "apiVersion": "fencedlock.dev/v1alpha1", "metadata": {}, "items": []}))
            } else {
                (404, json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "none"}))
            }
        };
        let service = tower::service_fn(move |request: Request<Body>| {
            let (code, body) = answer(&request);
            let answer = Response::builder().status(code).body(Body::from(serde_json::to_vec(&body).unwrap_or_default()));
            async move { answer }
        });
        Client::new(service, "n")
    }

    async fn asks(late: u64, moves: bool, words: &[&str]) -> (Result<Option<Asked>, Failure>, u64) {
        let patches = Arc::new(AtomicU64::new(0));
        let args = Command::parse_from(["recover", "a"].iter().chain(words)).args;
        let asked = ask(&args, "FencedLock n/a", &server(late, moves, &patches), "n").await;
        (asked, patches.load(Ordering::SeqCst))
    }

    #[tokio::test]
    async fn what_came_too_late_is_done_again() {
        for moves in [false, true] {
            let (asked, patches) = asks(3, moves, &["--yes"]).await;
            let floor = asked.unwrap().unwrap().floor;
            assert_eq!((patches, floor), (4, MARGIN + if moves { 3 } else { 0 }), "with what was seen last");
        }
    }

    #[tokio::test]
    async fn it_gives_up_where_it_always_comes_too_late() {
        let (asked, patches) = asks(u64::MAX, false, &["--yes"]).await;
        assert!(asked.err().unwrap().to_string().contains("nothing was done"));
        assert_eq!(patches, u64::try_from(TRIES).unwrap());
    }
}
