//! Asks the operator to examine the boundaries of a lock now, and waits for what it says.

use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
    runtime::wait::await_condition,
};
use serde_json::json;

use crate::{
    api::{DRILL_ANNOTATION, Drill, FencedLock, WriteBoundary, conditions::printable},
    audit::drill::{Answer, Asked, why_not},
    cli::{Failure, cluster},
};

/// Has every boundary of the lock examined that can be, all at the same time, each for no longer than `limit`.
pub(super) async fn boundaries(client: &Client, namespace: &str, lock: &FencedLock, limit: Duration) -> Result<Vec<Asked>, Failure> {
    let api = Api::<WriteBoundary>::namespaced(client.clone(), namespace);
    let all = api.list(&ListParams::default()).await;
    let all = all.map_err(|error| Failure::Other(format!("WriteBoundaries in namespace {namespace:?}: {}", cluster::told(&error))))?;
    let name = lock.name_any();
    let mut wanted: Vec<_> = all.items.into_iter().filter(|b| b.spec.lock_ref.name == name).map(|b| (b.name_any(), Some(b))).collect();
    let is_missing = |listed: &&String| !wanted.iter().any(|(name, _)| name == *listed);
    let missing: Vec<_> = lock.spec.write_boundaries.iter().filter(is_missing).map(|name| (name.clone(), None)).collect();
    wanted.extend(missing);
    wanted.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(join_all(wanted.into_iter().map(|(name, found)| one(&api, name, found, limit))).await)
}

async fn one(api: &Api<WriteBoundary>, name: String, found: Option<WriteBoundary>, limit: Duration) -> Asked {
    if why_not(found.as_ref()).is_some() {
        return Asked { name, found, answer: Answer::None(String::new()) };
    }
    // Different for each drill, and a person who finds it knows what it is.
    let request = Timestamp::now().to_string();
    let before = found.as_ref().and_then(WriteBoundary::asked_drill).map(str::to_owned);
    let made = |boundary: &WriteBoundary| made(boundary, &request, before.as_deref()).cloned();
    let patch = json!({"metadata": {"annotations": {DRILL_ANNOTATION: request}}});
    if let Err(error) = api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
        return Asked { name, found, answer: Answer::None(format!("the operator could not be asked: {}", cluster::told(&error))) };
    }
    let is_made = |boundary: Option<&WriteBoundary>| boundary.is_none_or(|boundary| made(boundary).is_some());
    let answer = tokio::time::timeout(limit, await_condition(api.clone(), &name, is_made)).await;
    let (found, answer) = match answer {
        Ok(Ok(Some(boundary))) => match made(&boundary) {
            Some(drill) => (Some(boundary), Answer::Made(Box::new(drill))),
            None => (Some(boundary), Answer::None("it was taken back".into())),
        },
        Ok(Ok(None)) => (None, Answer::None("it was deleted meanwhile".into())),
        Ok(Err(error)) => (found, Answer::None(format!("the operator's answer could not be followed: {error}"))),
        Err(_) => {
            let late =
                format!("there was no answer within {} s: does the operator run, and does it watch this namespace?", limit.as_secs_f32());
            (found, Answer::None(printable(&late)))
        }
    };
    Asked { name, found, answer }
}

/// The drill that a request brought about: its own, or that of a request that came after it, which is neither ours nor the one that was there before.
fn made<'a>(boundary: &'a WriteBoundary, request: &str, before: Option<&str>) -> Option<&'a Drill> {
    let drill = boundary.status.as_ref()?.drill.as_ref()?;
    let is_new = |asked: &&str| *asked != request && Some(*asked) != before;
    let is_later = boundary.asked_drill().filter(is_new).is_some_and(|asked| asked == drill.request);
    (drill.request == request || is_later).then_some(drill)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Somebody else asks after us: that one's examination began after our request too. What was made before does not count.
    #[test]
    fn an_examination_counts_that_began_after_the_request() {
        let boundary = |asked: &str, made: &str| -> WriteBoundary {
            let drill = json!({"request": made, "beganAt": "2026-12-04T00:00:00Z", "tookMicroseconds": 1});
            serde_json::from_value(json!({"apiVersion": "fencedlock.dev/v1alpha1", "kind": "WriteBoundary",
                "metadata": {"name": "b", "annotations": {DRILL_ANNOTATION: asked}},
                "spec": {"lockRef": {"name": "a"}, "type": "Postgres"}, "status": {"drill": drill}}))
            .unwrap()
        };
        let cases = [
            ("ours", "ours", true),
            ("ours", "before", false),
            ("later", "later", true),
            ("later", "before", false),
            ("before", "before", false),
        ];
        for (asked, by, counts) in cases {
            assert_eq!(made(&boundary(asked, by), "ours", Some("before")).is_some(), counts, "{asked} {by}");
        }
    }
}
