//! Guards whose WriteBoundary is not there any more: they go on refusing everybody but their last owner, and nobody activates the next one
//! (protocol section 5). Seen where another boundary reaches the same database.

use std::collections::BTreeSet;

use futures::FutureExt;

use super::{
    follow::Key,
    unit::{Unit, WatchState},
};
use crate::boundary::proof::OtherGuard;

/// The boundary's namespace and name.
fn key(guard: &OtherGuard) -> Option<Key> {
    guard.boundary.split_once('/').map(|(namespace, name)| (namespace.to_owned(), name.to_owned()))
}

/// Whether it is known that a guard's boundary is not there: its namespace is watched, and was listed.
fn is_orphan(unit: &Unit, guard: &OtherGuard) -> bool {
    let is_listed = *unit.watches.boundaries.borrow() == WatchState::Running && unit.boundaries.wait_until_ready().now_or_never().is_some();
    key(guard).is_some_and(|key| is_listed && unit.covers(&key.0) && unit.boundary(&key).is_none())
}

/// What there is to say about the orphans among some guards, one sentence each.
pub(super) fn sentences(unit: &Unit, guards: &[OtherGuard]) -> Vec<String> {
    guards.iter().filter(|guard| is_orphan(unit, guard)).filter_map(sentence).collect()
}

fn sentence(guard: &OtherGuard) -> Option<String> {
    let (namespace, name) = key(guard)?;
    let (first, more) = guard.tables.split_first()?;
    let more = crate::audit::boundary::more(more.len());
    Some(format!(
        "the guard of WriteBoundary {namespace}/{name}, which is not in this cluster, stands on {first}{more} in the same database: unless it only counts, \
         it refuses everybody but its last owner. If no other cluster has that WriteBoundary, create it again here, or open it: fencedlock guard remove \
         {name} -n {namespace}"
    ))
}

/// The boundaries of all orphans that a unit knows of.
pub(super) fn all(unit: &Unit) -> BTreeSet<String> {
    unit.proofs.others().into_iter().filter(|guard| is_orphan(unit, guard)).map(|guard| guard.boundary).collect()
}
