//! A holder's pod, as far as epochs and verdicts depend on it. Pure: who reads pods is the operator's business.

use k8s_openapi::{
    api::core::v1::{ContainerStatus, Pod},
    jiff::Timestamp,
};

/// A pod, as far as it matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodView {
    /// Its uid.
    pub uid: String,
    /// When it was created, by the API server's clock.
    pub created: Option<Timestamp>,
    /// Its containers, sidecars too. Containers that a person adds to look around (`kubectl debug`) do not hold locks and are left out.
    pub containers: Vec<Container>,
    /// Whether it mounts a token that is bound to it. Without one its requests do not tell the API server which pod sends them.
    pub has_bound_token: bool,
}

/// One container of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Its name.
    pub name: String,
    /// Whether a process lives in it, and since when.
    pub life: Life,
}

/// What the kubelet says about the process in a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It runs since then, by the node's clock, in whole seconds.
    Since(Timestamp),
    /// There is none: the container waits to be started, or ended.
    None,
    /// Nothing was said about it yet.
    Unknown,
}

impl From<Pod> for PodView {
    fn from(pod: Pod) -> Self {
        let (spec, status) = (pod.spec.unwrap_or_default(), pod.status.unwrap_or_default());
        let said: Vec<ContainerStatus> =
            [status.container_statuses, status.init_container_statuses].into_iter().flatten().flatten().collect();
        let life = |name: &str| {
            let state = said.iter().find(|status| status.name == name).and_then(|status| status.state.as_ref());
            match state.map(|state| state.running.as_ref()) {
                None => Life::Unknown,
                Some(None) => Life::None,
                Some(Some(running)) => running.started_at.as_ref().map_or(Life::Unknown, |at| Life::Since(at.0)),
            }
        };
        let is_sidecar = |container: &k8s_openapi::api::core::v1::Container| container.restart_policy.as_deref() == Some("Always");
        let sidecars = spec.init_containers.iter().flatten().filter(|container| is_sidecar(container));
        let containers = spec.containers.iter().chain(sidecars);
        let sources = spec.volumes.iter().flatten().filter_map(|volume| volume.projected.as_ref()?.sources.as_ref());
        Self {
            uid: pod.metadata.uid.unwrap_or_default(),
            created: pod.metadata.creation_timestamp.map(|at| at.0),
            // One for another audience is not for the API server.
            has_bound_token: sources
                .flatten()
                .filter_map(|source| source.service_account_token.as_ref())
                .any(|token| token.audience.is_none()),
            containers: containers.map(|c| Container { life: life(&c.name), name: c.name.clone() }).collect(),
        }
    }
}

impl PodView {
    /// The containers that can hold the lock: those that are named, or all when none is, or none of the names is one of the pod's.
    pub fn holders<'a>(&'a self, named: &'a [String]) -> impl Iterator<Item = &'a Container> {
        let is_named = |container: &&Container| named.contains(&container.name);
        let counts_all = !self.containers.iter().any(|container| is_named(&container));
        self.containers.iter().filter(move |container| counts_all || is_named(container))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_is_its_containers_and_what_the_kubelet_says_of_them() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"containers": [{"name": "app"}, {"name": "new"}, {"name": "crashed"}],
                "initContainers": [{"name": "setup"}, {"name": "proxy", "restartPolicy": "Always"}],
                "volumes": [{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}]},
            "status": {"containerStatuses": [
                {"name": "app", "image": "", "imageID": "", "ready": true, "restartCount": 1, "state": {"running": {"startedAt": "2026-01-01T00:00:07Z"}}},
                {"name": "crashed", "image": "", "imageID": "", "ready": false, "restartCount": 1, "state": {"waiting": {}}}],
              "initContainerStatuses": [
                {"name": "proxy", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {"startedAt": "2026-01-01T00:00:03Z"}}}]},
        }))
        .unwrap();
        let view = PodView::from(pod);
        let at = |text: &str| Life::Since(text.parse().unwrap());
        let lives: Vec<_> = view.containers.iter().map(|c| (c.name.as_str(), c.life)).collect();
        assert_eq!(
            lives,
            [("app", at("2026-01-01T00:00:07Z")), ("new", Life::Unknown), ("crashed", Life::None), ("proxy", at("2026-01-01T00:00:03Z"))]
        );
        assert!(view.has_bound_token && !PodView::from(Pod::default()).has_bound_token);
        let named = |names: &[&str]| view.holders(&names.iter().map(ToString::to_string).collect::<Vec<_>>()).count();
        assert_eq!((named(&[]), named(&["app"]), named(&["app", "x"]), named(&["x"])), (4, 1, 2 - 1, 4), "a wrong name leaves nothing out");
    }
}
