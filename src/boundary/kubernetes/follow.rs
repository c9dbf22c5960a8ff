//! What the cluster tells by itself: that the policies changed, or that an object which is a target carries no fence. Only hints come from here;
//! what is true is read when they come.
//!
//! Start with [`follow`].

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::{StreamExt, future::join_all, stream::select_all};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, PartialObjectMeta},
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watch_object, watcher},
    },
};
use tokio::sync::watch;

use super::{policies, record, stamp, targets};
use crate::{
    api::KubernetesTarget,
    apiserver,
    boundary::{Change, Tell},
};

/// How long to wait until what could not be watched is tried again: a kind may be installed, or a right given, at any time.
const AGAIN: Duration = Duration::from_secs(30);
/// How long the API server lets a watch last, in seconds (architecture.md section 5).
const LASTS: u32 = 180;
/// How long the watch of the policies may take to show all of them.
const BEGINS: Duration = Duration::from_secs(5);
/// How many objects that carry no fence are remembered, so that each is told once.
const REMEMBERED: usize = 10_000;

type Metadata = PartialObjectMeta<DynamicObject>;

/// Why the targets of boundaries cannot be watched, by the boundary's namespace and name.
#[derive(Default)]
pub(super) struct Unwatched(Mutex<BTreeMap<(String, String), String>>);

impl Unwatched {
    fn note(&self, namespace: &str, name: &str, why: Option<String>) {
        let (mut all, key) = (self.0.lock().unwrap_or_else(PoisonError::into_inner), (namespace.to_owned(), name.to_owned()));
        match why {
            Some(why) => drop(all.insert(key, why)),
            None => drop(all.remove(&key)),
        }
    }

    pub(super) fn why(&self, namespace: &str, name: &str) -> Option<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }
}

/// The policies' watch, which all boundaries share. It runs as long as somebody listens.
#[derive(Default)]
pub(super) struct PolicyWatch(Mutex<Option<watch::Sender<u64>>>);

impl PolicyWatch {
    /// Counts the changes of the policies and their bindings.
    fn subscribe(&self, client: &Client) -> watch::Receiver<u64> {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = running.as_ref().filter(|sender| !sender.is_closed()) {
            return sender.subscribe();
        }
        let (sender, receiver) = watch::channel(0);
        *running = Some(sender.clone());
        drop(running);
        tokio::spawn(watch_policies(client.clone(), sender));
        receiver
    }
}

async fn watch_policies(client: Client, changes: watch::Sender<u64>) {
    let streams = policies::resources().into_iter().map(|(resource, name)| {
        let api: Api<Metadata> = Api::all_with(client.clone(), &resource);
        // One that is not served (MutatingAdmissionPolicy before 1.36), or may not be read, is asked for again, ever more seldom.
        let seen = watch_object(api, name).default_backoff().filter_map(async |seen| seen.ok());
        let which = format!("{}/{name}", resource.plural);
        seen.map(move |object| (which.clone(), object.map(|object| (object.uid(), object.resource_version())))).boxed()
    });
    let mut events = select_all(streams);
    let mut known = BTreeMap::new();
    // What changed before the watch began is told by nothing, so everything is looked at once when it has: when all were seen, or soon, because one
    // that is not served is never.
    let mut begins = std::pin::pin!(tokio::time::sleep(BEGINS));
    let mut has_begun = false;
    loop {
        let event = tokio::select! {
            () = changes.closed() => return,
            () = &mut begins, if !has_begun => None,
            event = events.next() => match event {
                Some(event) => Some(event),
                None => return,
            },
        };
        let is_change = match event {
            Some((which, version)) => known.insert(which, version.clone()).is_some_and(|before| before != version),
            None => true,
        };
        let begins_now = !has_begun && (is_change || known.len() == policies::resources().len());
        has_begun |= begins_now;
        if is_change || begins_now {
            changes.send_modify(|count| *count += 1);
        }
    }
}

/// The boundary whose world is followed.
pub(super) struct Followed {
    pub(super) client: Client,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) targets: Vec<KubernetesTarget>,
}

/// Tells of changes for as long as it is polled.
pub(super) async fn follow(followed: Followed, policies: Arc<PolicyWatch>, unwatched: Arc<Unwatched>, tell: Tell) {
    let mut changes = policies.subscribe(&followed.client);
    let of_policies = async {
        while changes.changed().await.is_ok() {
            tell(Change::Guard);
        }
    };
    // The label by which a namespace asks for a record.
    let of_namespace = async {
        let mut before = None;
        let mut seen =
            watch_object(Api::<PartialObjectMeta<Namespace>>::all(followed.client.clone()), &followed.namespace).default_backoff().boxed();
        while let Some(seen) = seen.next().await {
            let Ok(found) = seen else { continue };
            let asked = found.and_then(|namespace| namespace.labels().get(record::ASKED).cloned());
            if before.replace(asked.clone()).is_some_and(|before| before != asked) {
                tell(Change::Guard);
            }
        }
    };
    let of_targets = join_all(followed.targets.iter().enumerate().map(|(place, _)| target(&followed, place, &unwatched, &tell)));
    futures::join!(of_policies, of_namespace, of_targets);
}

/// Watches one entry of `targets`.
async fn target(followed: &Followed, place: usize, unwatched: &Unwatched, tell: &Tell) {
    let wanted = &followed.targets[place];
    // Each is told once, until it carries the fence or is gone.
    let mut told = BTreeSet::new();
    loop {
        let why = match targets::kind(&followed.client, wanted, &format!("spec.kubernetes.targets[{place}]")).await {
            Ok((kind, _)) => {
                let api: Api<Metadata> = Api::namespaced_with(followed.client.clone(), &followed.namespace, &kind);
                watch_target(followed, wanted, &api, &mut told, unwatched, tell).await
            }
            Err(error) => error.to_string(),
        };
        unwatched.note(&followed.namespace, &followed.name, Some(why));
        tokio::time::sleep(AGAIN).await;
    }
}

/// Watches until it is refused; why.
async fn watch_target(
    followed: &Followed,
    wanted: &KubernetesTarget,
    api: &Api<Metadata>,
    told: &mut BTreeSet<String>,
    unwatched: &Unwatched,
    tell: &Tell,
) -> String {
    let config = watcher::Config::default().timeout(LASTS);
    let config = match (&wanted.selector, wanted.names.as_slice()) {
        (Some(selector), _) => config.labels(selector),
        (None, [name]) => config.fields(&format!("metadata.name={name}")),
        (None, _) => config,
    };
    let is_wanted = |name: &str| wanted.selector.is_some() || wanted.names.iter().any(|wanted| wanted == name);
    let mut events = watcher(api.clone(), config).default_backoff().boxed();
    while let Some(event) = events.next().await {
        let object = match event {
            Ok(Event::Apply(object) | Event::InitApply(object)) => object,
            Ok(Event::Delete(object)) => {
                told.remove(&object.uid().unwrap_or_default());
                continue;
            }
            Ok(Event::InitDone) => {
                unwatched.note(&followed.namespace, &followed.name, None);
                continue;
            }
            Ok(Event::Init) => continue,
            Err(error) => {
                if let Some(why) = refused(&error, &wanted.resource, &followed.namespace) {
                    return why;
                }
                continue;
            }
        };
        let (name, uid) = (object.name_any(), object.uid().unwrap_or_default());
        if !is_wanted(&name) {
            continue;
        }
        if stamp::boundary_of(&object.metadata).is_some() {
            told.remove(&uid);
        } else if told.len() < REMEMBERED && !told.contains(&uid) && lacks_fence(api, &name, &uid).await {
            told.insert(uid);
            tell(Change::Unfenced);
        }
    }
    "the watch ended".to_owned()
}

/// Whether an object is there and carries no fence: what a watch delivers may be older than its stamp.
async fn lacks_fence(api: &Api<Metadata>, name: &str, uid: &str) -> bool {
    match api.get_opt(name).await {
        Ok(Some(now)) => now.uid().as_deref() == Some(uid) && stamp::boundary_of(&now.metadata).is_none(),
        Ok(None) => false,
        // It is looked at when it can be.
        Err(_) => true,
    }
}

/// What a person has to do when a watch is refused; `None` when it may pass by itself.
fn refused(error: &watcher::Error, resource: &str, namespace: &str) -> Option<String> {
    let (code, verb) = apiserver::answered(error)?;
    (code == 403).then(|| format!("the operator may not {verb} {resource} in namespace {namespace}"))
}
