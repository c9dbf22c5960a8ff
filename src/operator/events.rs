//! Kubernetes Events for what changed: one per change, never on the way of a reconcile, and never a storm (case B14).

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ObjectMeta, PostParams},
};

use super::{announce::Announcement, settings::replica_name};
use crate::api::conditions::{printable, shorten};

/// The longest note that the API server accepts, in bytes.
const MAX_NOTE: usize = 1_024;
/// How many Events one object may get in [`WINDOW`].
const BURST: usize = 12;
/// The time that [`BURST`] is about.
const WINDOW: Duration = Duration::from_mins(1);

/// How many changes of owner in [`UNREST`] are too many.
const CHANGES: usize = 6;
/// The time that [`CHANGES`] is about, and that passes before it is said again.
const UNREST: Duration = Duration::from_mins(5);

/// What happened to one object lately.
#[derive(Debug, Default)]
struct Recent {
    events: Vec<Instant>,
    changes: Vec<Instant>,
    warned: Option<Instant>,
}

impl Recent {
    /// Whether another Event is not one too many.
    fn may(&mut self, now: Instant) -> bool {
        self.events.retain(|t| now.duration_since(*t) < WINDOW);
        let may = self.events.len() < BURST;
        if may {
            self.events.push(now);
        }
        may
    }

    /// Takes note of a change of owner. Says how many there were when that is news.
    fn changed(&mut self, now: Instant) -> Option<usize> {
        self.changes.retain(|t| now.duration_since(*t) < UNREST);
        self.changes.push(now);
        let is_news = self.changes.len() >= CHANGES && self.warned.is_none_or(|at| now.duration_since(at) >= UNREST);
        is_news.then(|| {
            self.warned = Some(now);
            self.changes.len()
        })
    }

    fn is_over(&self, now: Instant) -> bool {
        let last = self.events.iter().chain(&self.changes).max();
        last.is_none_or(|t| now.duration_since(*t) >= UNREST)
    }
}

/// Writes Events.
#[derive(Clone)]
pub(super) struct Announcer {
    client: Client,
    instance: String,
    recent: Arc<Mutex<HashMap<String, Recent>>>,
}

impl Announcer {
    pub(super) fn new(client: Client) -> Self {
        Self { client, instance: replica_name(), recent: Arc::default() }
    }

    /// Writes Events about an object, in the background. What fails is logged: an Event is a courtesy, the status is the record.
    pub(super) fn announce<K: Resource<DynamicType = ()> + ResourceExt>(&self, object: &K, announcements: Vec<Announcement>) {
        let regarding = object.object_ref(&());
        let namespace = object.namespace().unwrap_or_default();
        let uid = object.uid().unwrap_or_default();
        for announcement in announcements.into_iter().flat_map(|a| [self.unrest(&uid, &a), Some(a)]).flatten() {
            log(object, &announcement);
            if !self.may(&uid) {
                tracing::info!(object = %format_args!("{namespace}/{}", object.name_any()), "more than {BURST} Events a minute: this one is only logged");
                continue;
            }
            let api = Api::<Event>::namespaced(self.client.clone(), &namespace);
            let event = self.event(&namespace, &regarding, &announcement);
            tokio::spawn(async move {
                if let Err(error) = api.create(&PostParams::default(), &event).await {
                    tracing::warn!(%error, reason = announcement.reason, "an Event could not be written");
                }
            });
        }
    }

    /// Writes an Event about an object unless the same one is there already, whoever wrote it.
    pub(super) async fn announce_once<K: Resource<DynamicType = ()> + ResourceExt>(
        &self,
        object: &K,
        announcement: &Announcement,
    ) -> kube::Result<()> {
        let (namespace, uid) = (object.namespace().unwrap_or_default(), object.uid().unwrap_or_default());
        let mut event = self.event(&namespace, &object.object_ref(&()), announcement);
        event.metadata.name = Some(format!("{}.{}", announcement.reason.to_ascii_lowercase(), uid));
        event.metadata.generate_name = None;
        match Api::<Event>::namespaced(self.client.clone(), &namespace).create(&PostParams::default(), &event).await {
            Ok(_) => {
                log(object, announcement);
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn recent<R>(&self, uid: &str, work: impl FnOnce(&mut Recent, Instant) -> R) -> R {
        let mut all = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        all.retain(|_, recent| !recent.is_over(now));
        work(all.entry(uid.to_owned()).or_default(), now)
    }

    /// Whether another Event about the object is not one too many.
    fn may(&self, uid: &str) -> bool {
        self.recent(uid, Recent::may)
    }

    /// A lock that changes hands again and again is said to, before the change that makes it one time too many (case B14).
    fn unrest(&self, uid: &str, announcement: &Announcement) -> Option<Announcement> {
        if !announcement.begins_term {
            return None;
        }
        let changes = self.recent(uid, Recent::changed)?;
        let minutes = UNREST.as_secs() / 60;
        Some(Announcement {
            reason: "FrequentTransitions",
            warning: true,
            note: format!(
                "the lock changed hands {changes} times in {minutes} minutes: owners die, or take it from each other; each time an obsolete owner may \
                 still be writing"
            ),
            begins_term: false,
        })
    }

    fn event(&self, namespace: &str, regarding: &ObjectReference, announcement: &Announcement) -> Event {
        let name = shorten(regarding.name.as_deref().unwrap_or("fencedlock"), 200);
        Event {
            metadata: ObjectMeta {
                generate_name: Some(format!("{}-", name.trim_end_matches('…').trim_end_matches(['-', '.']))),
                namespace: Some(namespace.to_owned()),
                ..Default::default()
            },
            event_time: Some(MicroTime(Timestamp::now())),
            reporting_controller: Some("fencedlock.dev/operator".into()),
            reporting_instance: Some(shorten(&self.instance, 120)),
            action: Some("Reconcile".into()),
            reason: Some(announcement.reason.into()),
            type_: Some(if announcement.warning { "Warning" } else { "Normal" }.into()),
            note: Some(shorten(&printable(&announcement.note), MAX_NOTE)),
            regarding: Some(regarding.clone()),
            ..Default::default()
        }
    }
}

fn log<K: ResourceExt>(object: &K, announcement: &Announcement) {
    let namespace = object.namespace().unwrap_or_default();
    tracing::info!(object = %format_args!("{namespace}/{}", object.name_any()), reason = announcement.reason, "{}", printable(&announcement.note));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B14: said once, and again only after a while.
    #[test]
    fn a_lock_that_changes_hands_too_often_is_said_to_once() {
        let (mut recent, start) = (Recent::default(), Instant::now());
        let said: Vec<_> = (0..20).filter_map(|n| recent.changed(start + Duration::from_secs(2 * n))).collect();
        assert_eq!(said, [CHANGES]);
        assert!(recent.changed(start + UNREST + Duration::from_secs(12)).is_some(), "it goes on");
        let mut calm = Recent::default();
        assert!((0..50).all(|n| calm.changed(start + UNREST * n / 5).is_none()), "five in that time are no unrest");
    }

    #[test]
    fn events_about_one_object_are_bounded() {
        let (mut recent, start) = (Recent::default(), Instant::now());
        assert_eq!((0..100).filter(|_| recent.may(start)).count(), BURST);
        assert!(recent.may(start + WINDOW) && !recent.is_over(start + WINDOW) && recent.is_over(start + WINDOW + UNREST));
    }
}
