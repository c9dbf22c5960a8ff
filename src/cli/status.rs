//! `fencedlock status LOCK`: the whole story of a lock on one screen.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
};

use k8s_openapi::{
    api::{coordination::v1::Lease, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::Condition,
    jiff::Timestamp,
};
use kube::{Api, ResourceExt, api::ListParams, core::ObjectList};

use super::{Failure, cluster, table};
use crate::{
    api::{
        FencedLock, FencedLockStatus, WriteBoundary,
        conditions::{printable, shorten},
    },
    epoch::term::LeaseView,
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The FencedLock
    lock: String,
    /// Its namespace; the context's when absent
    #[arg(long, short)]
    namespace: Option<String>,
    /// The kubeconfig's context
    #[arg(long)]
    context: Option<String>,
}

/// Everything about one lock that is shown.
struct Story {
    lock: FencedLock,
    boundaries: Vec<WriteBoundary>,
    lease: Result<Option<LeaseView>, String>,
    events: Vec<Event>,
    /// What could not be read, and so is missing here.
    unread: Vec<String>,
}

pub(super) fn run(args: &Args) -> Result<u8, Failure> {
    let story = super::runtime()?.block_on(gather(args))?;
    write!(io::stdout(), "{}", render(&story, Timestamp::now()))?;
    Ok(0)
}

async fn gather(args: &Args) -> Result<Story, Failure> {
    let (client, namespace) = cluster::connect(args.context.as_ref(), args.namespace.as_ref()).await?;
    let lock = cluster::lock(&client, &namespace, &args.lock).await?;
    // Boundaries and Events are a courtesy: without the right to read them the rest is still worth showing.
    let mut unread = Vec::new();
    let boundaries = Api::<WriteBoundary>::namespaced(client.clone(), &namespace).list(&ListParams::default()).await;
    let mut boundaries = listed("WriteBoundaries", boundaries, &mut unread);
    boundaries.retain(|b| b.spec.lock_ref.name == args.lock || lock.spec.write_boundaries.contains(&b.name_any()));
    let lease = match &lock.spec.coordinator.lease {
        None => Ok(None),
        Some(lease) => {
            let read = Api::<Lease>::namespaced(client.clone(), &namespace).get_opt(&lease.name).await;
            read.map(|lease| lease.map(LeaseView::from)).map_err(|error| cluster::told(&error))
        }
    };
    let about = ListParams::default().fields(&format!("regarding.name={},regarding.kind=FencedLock", args.lock));
    let mut events = listed("Events", Api::<Event>::namespaced(client, &namespace).list(&about).await, &mut unread);
    events.sort_by_key(|e| e.event_time.as_ref().map(|t| t.0));
    Ok(Story { lock, boundaries, lease, events, unread })
}

/// What a listing shows; what it may not show is noted.
fn listed<K: Clone>(what: &str, listing: kube::Result<ObjectList<K>>, unread: &mut Vec<String>) -> Vec<K> {
    match listing {
        Ok(list) => return list.items,
        Err(error) => unread.push(format!("{what} could not be listed: {}", cluster::told(&error))),
    }
    Vec::new()
}

/// The screen. Pure, so that it can be tested without a cluster.
fn render(story: &Story, now: Timestamp) -> String {
    let mut text = String::new();
    let spec = &story.lock.spec;
    let status = story.lock.status.clone().unwrap_or_default();
    let mut line = |label: &str, value: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{label:<14}{}", printable(value));
    };
    line("Lock:", &format!("{}/{}", story.lock.namespace().unwrap_or_default(), story.lock.name_any()));
    line("Class:", &format!("{:?}", spec.class));
    line("Purpose:", spec.purpose.as_deref().unwrap_or("(none declared)"));
    line("Verdict:", &verdict(&status, story.lock.metadata.generation, now));
    line("Coordinator:", &coordinator(story, now));
    line("Epoch:", &status.epoch.map_or_else(|| "none was minted yet".into(), |e| e.to_string()));
    line("Grant:", &grant(&status, now));
    text.push_str(&boundaries(story, &status, now));
    text.push_str(&conditions(&status.conditions, now));
    text.push_str(&events(&story.events, now));
    for why in &story.unread {
        let _ = writeln!(text, "\nNote: {}", printable(why));
    }
    text
}

fn verdict(status: &FencedLockStatus, generation: Option<i64>, now: Timestamp) -> String {
    let Some(verdict) = status.verdict else { return "none yet: is the operator running?".into() };
    let mut text = format!("{verdict:?} ({})", status.reason.as_deref().unwrap_or_default());
    if let Some(proven) = &status.proven_at {
        let _ = write!(text, ", proven {} ago", age(proven.0, now));
    }
    if status.observed_generation != generation {
        text.push_str(", of an earlier version of the declaration");
    }
    text
}

fn coordinator(story: &Story, now: Timestamp) -> String {
    let spec = &story.lock.spec.coordinator;
    if let Some(external) = &spec.external {
        return format!("{} (outside Kubernetes), token {:?}", external.system, external.token);
    }
    let name = spec.lease.as_ref().map(|l| l.name.as_str()).unwrap_or_default();
    match &story.lease {
        Err(why) => format!("Lease {name}, which cannot be read: {why}"),
        Ok(None) => format!("Lease {name}, which is not there"),
        Ok(Some(lease)) => {
            let holder = match &lease.holder {
                Ok(Some(holder)) => format!("held by {:?}", shorten(holder.as_str(), 80)),
                Ok(None) => "held by nobody".into(),
                Err(error) => format!("held by an identity that cannot be carried: {error}"),
            };
            let renewed = lease.renew_time.map(|t| format!(", renewed {} ago", age(t, now))).unwrap_or_default();
            let lasts = lease.duration_seconds.map(|s| format!(", lasts {s}s")).unwrap_or_default();
            format!("Lease {name}, {holder}{renewed}{lasts}")
        }
    }
}

fn grant(status: &FencedLockStatus, now: Timestamp) -> String {
    if let Some(revoked) = &status.revoked {
        let (holder, reason) = (shorten(revoked.holder.as_str(), 80), printable(&revoked.reason));
        return format!("none: the term of {holder:?} is revoked by epoch {} of nobody, {:?}: {reason}", revoked.epoch, revoked.state);
    }
    status.grant.as_ref().map_or_else(
        || "none".into(),
        |g| format!("epoch {} for {:?}, {:?} for {}", g.epoch, shorten(g.holder.as_str(), 80), g.state, age(g.since.0, now)),
    )
}

fn boundaries(story: &Story, status: &FencedLockStatus, now: Timestamp) -> String {
    if status.boundaries.is_empty() {
        return "\nWrite boundaries: none\n".into();
    }
    let listed = &story.lock.spec.write_boundaries;
    let rows: Vec<_> = status
        .boundaries
        .iter()
        .map(|b| {
            let object = story.boundaries.iter().find(|o| o.name_any() == b.name);
            let state = object.and_then(|o| o.status.as_ref());
            vec![
                b.name.clone(),
                b.type_.map_or_else(|| "-".into(), |t| t.to_string()),
                b.verdict.map_or_else(|| "Missing".into(), |v| format!("{v:?}")),
                state.and_then(|s| s.reason.clone()).unwrap_or_else(|| "-".into()),
                b.fence.map_or_else(|| "-".into(), |f| f.to_string()),
                state.and_then(|s| s.proof.as_ref()).map_or_else(|| "never".into(), |p| format!("{} ago", age(p.proven_at.0, now))),
                if listed.contains(&b.name) { "yes" } else { "no" }.into(),
            ]
        })
        .collect();
    let table = table::render(&["NAME", "TYPE", "VERDICT", "REASON", "FENCE", "PROVEN", "LISTED"], &rows);
    format!("\nWrite boundaries:\n{}\n", indent(&table))
}

fn conditions(conditions: &[Condition], now: Timestamp) -> String {
    let mut text = String::from("\nConditions:\n");
    for c in conditions {
        let set = c.last_transition_time.0 != Timestamp::UNIX_EPOCH;
        let since = if set { format!("{} for {}", c.status, age(c.last_transition_time.0, now)) } else { c.status.clone() };
        let _ = writeln!(text, "  {:<20}{since:<18}{}", printable(&c.type_), printable(&c.reason));
        let _ = writeln!(text, "      {}", printable(&c.message));
    }
    text
}

/// How many Events are shown.
const SHOWN_EVENTS: usize = 8;

fn events(events: &[Event], now: Timestamp) -> String {
    if events.is_empty() {
        return String::new();
    }
    let mut text = String::from("\nEvents:\n");
    for e in events.iter().skip(events.len().saturating_sub(SHOWN_EVENTS)) {
        let when = e.event_time.as_ref().map_or_else(|| "?".into(), |t| format!("{} ago", age(t.0, now)));
        let shown = |text: &Option<String>| printable(text.as_deref().unwrap_or_default());
        let _ = writeln!(text, "  {when:<9}{:<18}{}", shown(&e.reason), shown(&e.note));
    }
    text
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

/// An age as kubectl writes it: `42s`, `5m`, `3h`, `8d`. A time in the future is `0s`.
pub(super) fn age(then: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(then).as_secs().max(0);
    match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7_199 => format!("{}m", seconds / 60),
        7_200..=172_799 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_screen_tells_the_whole_story() {
        let now: Timestamp = "2026-12-01T12:00:00Z".parse().unwrap();
        let lock = serde_json::from_value(json!({
            "apiVersion": "fencedlock.dev/v1alpha1", "kind": "FencedLock", "metadata": {"name": "report", "namespace": "demo", "generation": 2},
            "spec": {"class": "CorrectnessCritical", "purpose": "Two writers would corrupt the report.",
                     "coordinator": {"lease": {"name": "report"}}, "writeBoundaries": ["db"]},
            "status": {"observedGeneration": 2, "verdict": "Unproven", "reason": "BackendNotImplemented", "epoch": 42,
                "grant": {"epoch": 42, "holder": "worker-b", "state": "Active", "since": "2026-12-01T11:59:20Z", "term": {"leaseUid": "u"}},
                "boundaries": [{"name": "db", "type": "Postgres", "verdict": "Unproven"}],
                "conditions": [{"type": "Compliant", "status": "False", "reason": "BackendNotImplemented", "message": "cannot be proven yet",
                    "lastTransitionTime": "2026-12-01T11:00:00Z"}]}
        }))
        .unwrap();
        let lease: Lease = serde_json::from_value(json!({"metadata": {"uid": "u"}, "spec": {"holderIdentity": "worker-b",
            "renewTime": "2026-12-01T11:59:58.000000Z", "leaseDurationSeconds": 15}}))
        .unwrap();
        let screen = render(
            &Story {
                lock,
                boundaries: vec![],
                lease: Ok(Some(lease.into())),
                events: vec![],
                unread: vec!["Events could not be listed: forbidden".into()],
            },
            now,
        );
        for wanted in [
            "demo/report",
            "Two writers would corrupt the report.",
            "Unproven (BackendNotImplemented)",
            "Lease report, held by \"worker-b\", renewed 2s ago, lasts 15s",
            "epoch 42 for \"worker-b\", Active for 40s",
            "cannot be proven yet",
            "False for 60m",
            "Note: Events could not be listed: forbidden",
        ] {
            assert!(screen.contains(wanted), "{wanted:?} is missing in\n{screen}");
        }
        assert!(screen.lines().count() <= 30, "one screen");
    }
}
