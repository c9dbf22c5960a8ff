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

use super::announce::Announcement;
use crate::api::conditions::{printable, shorten};

/// The longest note that the API server accepts, in bytes.
const MAX_NOTE: usize = 1_024;
/// How many Events one object may get in [`WINDOW`].
const BURST: usize = 12;
/// The time that [`BURST`] is about.
const WINDOW: Duration = Duration::from_mins(1);

/// Writes Events.
#[derive(Clone)]
pub(super) struct Announcer {
    client: Client,
    instance: String,
    recent: Arc<Mutex<HashMap<String, Vec<Instant>>>>,
}

impl Announcer {
    pub(super) fn new(client: Client) -> Self {
        let instance = std::env::var("POD_NAME").or_else(|_| std::env::var("HOSTNAME")).unwrap_or_else(|_| "fencedlock-operator".into());
        Self { client, instance, recent: Arc::default() }
    }

    /// Writes Events about an object, in the background. What fails is logged: an Event is a courtesy, the status is the record.
    pub(super) fn announce<K: Resource<DynamicType = ()> + ResourceExt>(&self, object: &K, announcements: Vec<Announcement>) {
        let regarding = object.object_ref(&());
        let namespace = object.namespace().unwrap_or_default();
        let uid = object.uid().unwrap_or_default();
        for announcement in announcements {
            tracing::info!(object = %format_args!("{namespace}/{}", object.name_any()), reason = announcement.reason, "{}", printable(&announcement.note));
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

    /// Whether another Event about the object is not one too many.
    fn may(&self, uid: &str) -> bool {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        recent.retain(|_, times| times.iter().any(|t| now.duration_since(*t) < WINDOW));
        let times = recent.entry(uid.to_owned()).or_default();
        times.retain(|t| now.duration_since(*t) < WINDOW);
        let may = times.len() < BURST;
        if may {
            times.push(now);
        }
        may
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
