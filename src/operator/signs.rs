//! Signs of life of a unit's watches. A quiet watch and a dead one look the same from outside: no event comes. But the API server
//! ends every watch after the time that was asked for, and a living one asks again. So each answer to a listing or a watch, good
//! or bad, is a sign; a connection that somebody dropped silently gives none.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use http::Request;
use k8s_openapi::jiff::Timestamp;
use kube::{Client, client::Body};

/// The resources that a unit watches.
pub(super) const WATCHED: [&str; 4] = ["fencedlocks", "writeboundaries", "leases", "pods"];

/// What one watch gave last.
#[derive(Clone, Copy, Debug)]
struct Sign {
    /// When it gave any.
    at: Instant,
    /// When the API server last answered it well, in seconds since 1970; 0 when never.
    answered: i64,
}

/// When each watch gave its last sign.
#[derive(Debug)]
pub(super) struct Signs(Mutex<[Sign; WATCHED.len()]>);

impl Signs {
    pub(super) fn new(now: Instant) -> Self {
        Self(Mutex::new([Sign { at: now, answered: 0 }; WATCHED.len()]))
    }

    fn note(&self, index: usize, now: Instant, answered: Option<i64>) {
        let mut signs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sign) = signs.get_mut(index) {
            *sign = Sign { at: now, answered: answered.unwrap_or(sign.answered) };
        }
    }

    /// The watches without a sign for longer than `limit`, and for how long.
    pub(super) fn dead(&self, now: Instant, limit: Duration) -> Vec<(&'static str, Duration)> {
        let signs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let silent = WATCHED.iter().zip(*signs).map(|(kind, sign)| (*kind, now.duration_since(sign.at)));
        silent.filter(|(_, silence)| *silence > limit).collect()
    }

    /// When the API server last answered each watch well, in seconds since 1970; 0 when never (case G13).
    pub(super) fn answered(&self) -> [(&'static str, i64); WATCHED.len()] {
        let signs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::array::from_fn(|n| (WATCHED[n], signs[n].answered))
    }
}

/// The resource that a request lists or watches: requests about one object name it after the resource.
fn listed(path: &str) -> Option<usize> {
    let last = path.rsplit('/').next()?;
    WATCHED.iter().position(|kind| *kind == last)
}

/// A client like the given one that notes the signs of its watches.
pub(super) fn noting(client: Client, signs: Arc<Signs>) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, signs) = (client.clone(), Arc::clone(&signs));
        async move {
            let watched = listed(request.uri().path());
            let answer = client.send(request).await;
            if let Some(index) = watched {
                let well = answer.as_ref().is_ok_and(|answer| answer.status().is_success());
                signs.note(index, Instant::now(), well.then(|| Timestamp::now().as_second()));
            }
            answer
        }
    });
    Client::new(service, namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_without_an_answer_is_dead_after_its_limit() {
        let (start, limit) = (Instant::now(), Duration::from_secs(10));
        let signs = Signs::new(start);
        let later = start + Duration::from_secs(11);
        assert_eq!(signs.dead(start + limit, limit), []);
        let leases = listed("/apis/coordination.k8s.io/v1/namespaces/x/leases").unwrap();
        signs.note(leases, later, Some(7));
        signs.note(leases, later, None);
        assert_eq!(signs.answered(), [("fencedlocks", 0), ("writeboundaries", 0), ("leases", 7), ("pods", 0)]);
        let dead: Vec<_> = signs.dead(later, limit).into_iter().map(|(kind, _)| kind).collect();
        assert_eq!(dead, ["fencedlocks", "writeboundaries", "pods"]);
    }

    #[test]
    fn only_listings_and_watches_are_signs() {
        assert_eq!(listed("/apis/fencedlock.dev/v1alpha1/fencedlocks"), Some(0));
        assert_eq!(listed("/api/v1/namespaces/x/pods"), Some(3));
        for other in ["/apis/fencedlock.dev/v1alpha1/namespaces/x/fencedlocks/a", "/api/v1/namespaces/x/configmaps", "/version"] {
            assert_eq!(listed(other), None, "{other}");
        }
    }
}
