//! Whether the holder of a lock is one process life, as far as the cluster can show it (condition `OwnerUnique`).
//!
//! Start with [`judge`]. The Lease alone cannot tell two processes that share an identity (case B02), so what is not known
//! is said to be unknown.

use super::verdict::OwnerUnique;
use crate::{
    api::{
        Identity,
        conditions::{Truth, reason, shorten, truncate},
    },
    epoch::{
        Holder,
        grant::Grant,
        pod::{Life, PodView},
        recent::Reused,
        term::{LeaseView, MAX_SAME_HOLDER_STEPS},
    },
};

/// What is known of the pod behind a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodRead {
    /// Nobody looked: there is no holder, or its identity is opaque or no pod's name.
    NotSought,
    /// There is no pod of that name.
    Missing,
    /// It may not be read: verb, resource and namespace.
    Forbidden(String),
    /// It could not be read.
    Unreadable(String),
    /// It is there.
    Found(PodView),
}

impl PodRead {
    /// The pod, when it is known.
    pub const fn view(&self) -> Option<&PodView> {
        match self {
            Self::Found(pod) => Some(pod),
            _ => None,
        }
    }

    /// The pod's uid, when it is known.
    pub fn uid(&self) -> Option<&str> {
        self.view().map(|pod| pod.uid.as_str())
    }
}

/// What boundaries that recognise the owner by its pod need of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ByPod {
    /// Whether there is one.
    pub is_needed: bool,
    /// The containers that can hold the lock, over all of them; all of the pod's when there is none.
    pub containers: Vec<String>,
}

/// Says whether the holder is one process life.
///
/// A container that was started after the lock was acquired may be the owner's next life or a sidecar: that is reported and
/// starts no term (protocol section 1). The times come from one node's clock, so that they can be compared.
pub fn judge(
    holder: Option<&Holder>,
    identity: Identity,
    lease: Option<&LeaseView>,
    grant: Option<&Grant>,
    pod: &PodRead,
    by_pod: &ByPod,
) -> OwnerUnique {
    let unknown = |reason, message: String| OwnerUnique { status: Truth::Unknown, reason, message };
    let Some(holder) = holder else {
        return unknown(reason::NOBODY, "nobody holds the lock".into());
    };
    let name = shorten(holder.as_str(), 80);
    if grant.is_some_and(|grant| grant.same_holder_steps >= MAX_SAME_HOLDER_STEPS) {
        return unknown(
            reason::COUNTER_UNRELIABLE,
            format!(
                "the client of {name:?} rewrites leaseTransitions and acquireTime while it holds the Lease, so another owner in between cannot be seen: use a client that keeps both at renewals"
            ),
        );
    }
    match pod {
        _ if identity == Identity::Opaque => {
            unknown(reason::OPAQUE, format!("{name:?} is declared opaque, so two processes that use this identity cannot be told apart"))
        }
        PodRead::NotSought => unknown(
            reason::NOT_A_POD,
            format!(
                "{name:?} is no pod's name and does not start with one followed by `_`: use the pod's name, so that two processes can be told apart"
            ),
        ),
        PodRead::Missing => unknown(
            reason::NOT_A_POD,
            format!(
                "there is no pod {:?}: if the holders' pods run elsewhere, set spec.coordinator.lease.podNamespace",
                holder.pod_name().unwrap_or_default()
            ),
        ),
        PodRead::Forbidden(what) => {
            unknown(reason::FORBIDDEN, format!("the operator may not {what}, so two processes with this identity cannot be told apart"))
        }
        PodRead::Unreadable(why) => unknown(reason::NOT_A_POD, format!("the pod of {name:?} could not be read: {why}")),
        PodRead::Found(_) if grant.is_some_and(|grant| grant.term.pod_uid.is_none()) => unknown(
            reason::POD_NOT_RECORDED,
            format!(
                "the pod of {name:?} was not known when its epoch was granted, so it could be a successor under the same name; the next term is told apart"
            ),
        ),
        PodRead::Found(pod) if by_pod.is_needed && !pod.has_bound_token => unknown(
            reason::TOKEN_NOT_BOUND,
            format!(
                "the pod of {name:?} mounts no token that is bound to it, so its requests carry no pod and are refused: let it use the token that the \
                 kubelet projects (automountServiceAccountToken), not one from a Secret, or use claim: Annotation"
            ),
        ),
        PodRead::Found(pod) => found(&name, pod, lease, grant, &by_pod.containers),
    }
}

/// What is said when a boundary would have to recognise an owner whose pod is not known.
pub fn without_pod(holder: &Holder) -> String {
    format!(
        "it recognises the owner by its pod, and no single pod is known to be {:?} (OwnerUnique says why): let the identity be the pod's name or \
         <pod>_<suffix>, and set podNamespace of the coordinator where pods run elsewhere; or use claim: Annotation",
        shorten(holder.as_str(), 80)
    )
}

/// Why a grant is held back from a boundary that recognises its owner by the pod.
pub fn held_back(holder: &Holder, reused: &Reused) -> String {
    let name = shorten(holder.as_str(), 80);
    let before = reused.epoch.map_or_else(
        || "its pod is older than all earlier owners that are remembered, so it may have held the lock".to_owned(),
        |epoch| format!("its pod held the lock under epoch {epoch}, and others have owned it since"),
    );
    format!(
        "{name:?} may be an earlier owner's process: {before}, and container {:?} was not started since, so a late write of then would pass for one of now: \
         restart it (kubectl delete pod), or let another pod take over",
        reused.container
    )
}

fn found(name: &str, pod: &PodView, lease: Option<&LeaseView>, grant: Option<&Grant>, containers: &[String]) -> OwnerUnique {
    let acquired = grant.map_or_else(|| lease.and_then(|l| l.acquire_time), |g| g.term.acquire_time.or(Some(g.since.0)));
    let started = pod.holders(containers).filter_map(|container| match container.life {
        Life::Since(started) => Some((&container.name, started)),
        Life::None | Life::Unknown => None,
    });
    let restarted = started.into_iter().find(|(_, started)| acquired.is_some_and(|acquired| *started > truncate(acquired)));
    match restarted {
        Some((container, at)) => OwnerUnique {
            status: Truth::Unknown,
            reason: reason::CONTAINER_RESTARTED,
            message: format!(
                "container {container:?} of the holder's pod was started at {at}, after the lock was acquired: if it is the owner, its earlier life may \
                 still have writes under way; use an identity that changes with each start, as client-go's <pod>_<uuid>"
            ),
        },
        None => OwnerUnique {
            status: Truth::True,
            reason: reason::ONE_PROCESS,
            message: format!("{name:?} is one pod, and no container of it was started since"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoch::{Epoch, grant::GrantState, pod::Container, term::Term};
    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn grant(acquired: Option<i64>, steps: u8) -> Grant {
        Grant {
            epoch: Epoch::FIRST,
            holder: Holder::new("db-0").unwrap(),
            state: GrantState::Active,
            since: Time(at(100)),
            same_holder_steps: steps,
            term: Term {
                lease_uid: "u".into(),
                lease_transitions: None,
                acquire_time: acquired.map(at),
                pod_uid: Some("p".into()),
                resource_version: "1".into(),
            },
        }
    }

    fn pod(started: i64) -> PodRead {
        let app = Container { name: "app".into(), life: Life::Since(at(started)) };
        PodRead::Found(PodView { uid: "p".into(), containers: vec![app], ..PodView::default() })
    }

    /// B02, A04: what the cluster cannot show is unknown, and a restart in place is said.
    #[test]
    fn what_is_not_known_is_said_to_be_unknown() {
        let holder = Holder::new("db-0").unwrap();
        let judge = |identity, grant: &Grant, pod: &PodRead| {
            let owner = super::judge(Some(&holder), identity, None, Some(grant), pod, &ByPod::default());
            (owner.status, owner.reason)
        };
        let usual = grant(Some(90), 0);
        for (what, answer, wanted) in [
            ("one pod", judge(Identity::Auto, &usual, &pod(80)), (Truth::True, reason::ONE_PROCESS)),
            ("started in the second of acquisition", judge(Identity::Auto, &usual, &pod(90)), (Truth::True, reason::ONE_PROCESS)),
            ("restarted", judge(Identity::Auto, &usual, &pod(91)), (Truth::Unknown, reason::CONTAINER_RESTARTED)),
            ("B11: no acquireTime", judge(Identity::Auto, &grant(None, 0), &pod(101)), (Truth::Unknown, reason::CONTAINER_RESTARTED)),
            ("opaque", judge(Identity::Opaque, &usual, &PodRead::NotSought), (Truth::Unknown, reason::OPAQUE)),
            ("free text", judge(Identity::Auto, &usual, &PodRead::NotSought), (Truth::Unknown, reason::NOT_A_POD)),
            ("no pod", judge(Identity::Auto, &usual, &PodRead::Missing), (Truth::Unknown, reason::NOT_A_POD)),
            ("forbidden", judge(Identity::Auto, &usual, &PodRead::Forbidden("get pods".into())), (Truth::Unknown, reason::FORBIDDEN)),
            ("counter", judge(Identity::Auto, &grant(Some(90), 3), &pod(80)), (Truth::Unknown, reason::COUNTER_UNRELIABLE)),
        ] {
            assert_eq!(answer, wanted, "{what}");
        }
        assert_eq!(super::judge(None, Identity::Auto, None, None, &PodRead::NotSought, &ByPod::default()).reason, reason::NOBODY);
    }

    /// Where the owner is recognised by its pod, its token has to be bound to it, and only containers that can hold the lock count.
    #[test]
    fn a_boundary_that_recognises_pods_asks_for_more() {
        let holder = Holder::new("db-0").unwrap();
        let PodRead::Found(view) = pod(91) else { unreachable!() };
        let sidecar = Container { name: "proxy".into(), life: Life::Since(at(80)) };
        let view = PodView { containers: [view.containers, vec![sidecar]].concat(), ..view };
        let judge = |bound: bool, is_needed: bool, containers: &[&str]| {
            let by_pod = ByPod { is_needed, containers: containers.iter().map(ToString::to_string).collect() };
            let pod = PodRead::Found(PodView { has_bound_token: bound, ..view.clone() });
            super::judge(Some(&holder), Identity::Auto, None, Some(&grant(Some(90), 0)), &pod, &by_pod).reason
        };
        assert_eq!(judge(false, true, &[]), reason::TOKEN_NOT_BOUND);
        assert_eq!(judge(false, false, &[]), reason::CONTAINER_RESTARTED);
        assert_eq!(judge(true, true, &[]), reason::CONTAINER_RESTARTED);
        assert_eq!(judge(true, true, &["proxy"]), reason::ONE_PROCESS);
    }
}
