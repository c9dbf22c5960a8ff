//! Which objects of others (Leases, pods) matter, to which locks, and what was last seen of them. Everything else that a watch
//! delivers is dropped at once, so that memory and work depend on the locks and not on the cluster (cases G01, G04).
//!
//! Start with [`Followed`]. Nothing here talks to the cluster.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, PoisonError},
};

/// Namespace and name.
pub(super) type Key = (String, String);

/// What a follower wants to know about an object.
pub(super) trait Followable: Clone {
    /// Whether `self` was delivered late: the same object, at an older state than `known`.
    fn is_late(&self, known: &Self) -> bool;
    /// Whether a reconcile that saw `reconciled` could come to another answer now.
    fn matters_after(&self, reconciled: &Self) -> bool;
}

#[derive(Debug)]
struct Entry<T> {
    followers: BTreeSet<Key>,
    /// The newest state known; `None` when nobody read it yet.
    latest: Option<Seen<T>>,
    /// The state that the last reconcile used.
    reconciled: Option<Seen<T>>,
    /// Named in the listing that is under way.
    listed: bool,
}

/// An object that was looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Seen<T> {
    /// It is not there.
    Missing,
    /// It is there.
    There(T),
}

/// Objects that locks follow.
#[derive(Debug)]
pub(super) struct Followed<T>(Mutex<Inner<T>>);

#[derive(Debug)]
struct Inner<T> {
    entries: HashMap<Key, Entry<T>>,
    of: HashMap<Key, Key>,
}

impl<T> Default for Followed<T> {
    fn default() -> Self {
        Self(Mutex::new(Inner { entries: HashMap::new(), of: HashMap::new() }))
    }
}

impl<T: Followable> Followed<T> {
    fn locked<R>(&self, work: impl FnOnce(&mut Inner<T>) -> R) -> R {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes `lock` follow exactly this object, or none. From now on no event about it is lost.
    pub(super) fn follow(&self, lock: &Key, object: Option<&Key>) {
        self.locked(|inner| {
            if inner.of.get(lock) == object {
                return;
            }
            if let Some(old) = inner.of.remove(lock)
                && let Some(entry) = inner.entries.get_mut(&old)
            {
                entry.followers.remove(lock);
                if entry.followers.is_empty() {
                    inner.entries.remove(&old);
                }
            }
            if let Some(object) = object {
                inner.of.insert(lock.clone(), object.clone());
                let new = || Entry { followers: BTreeSet::new(), latest: None, reconciled: None, listed: true };
                inner.entries.entry(object.clone()).or_insert_with(new).followers.insert(lock.clone());
            }
        });
    }

    /// The newest state known, without asking the cluster.
    pub(super) fn latest(&self, object: &Key) -> Option<Seen<T>> {
        self.locked(|inner| inner.entries.get(object)?.latest.clone())
    }

    /// An uncached read. It wins over what is known, unless an event has overtaken it.
    pub(super) fn read(&self, object: &Key, seen: Seen<T>) {
        self.locked(|inner| {
            let Some(entry) = inner.entries.get_mut(object) else { return };
            let overtaken = matches!((&seen, &entry.latest), (Seen::There(read), Some(Seen::There(known))) if read.is_late(known));
            if !overtaken {
                entry.latest = Some(seen);
            }
        });
    }

    /// What a reconcile used. Later events are compared with it.
    pub(super) fn reconciled(&self, object: &Key, seen: Seen<T>) {
        self.locked(|inner| {
            if let Some(entry) = inner.entries.get_mut(object) {
                entry.reconciled = Some(seen);
            }
        });
    }

    /// An object was delivered by the watch. Returns the locks that have to be reconciled: none for a renewal.
    pub(super) fn delivered(&self, object: &Key, state: T, by_listing: bool) -> Vec<Key> {
        self.locked(|inner| {
            let Some(entry) = inner.entries.get_mut(object) else { return Vec::new() };
            entry.listed = true;
            let late = matches!(&entry.latest, Some(Seen::There(known)) if state.is_late(known));
            // A listing is one consistent view, also when the cluster was restored and all of it is older.
            if late && !by_listing {
                return Vec::new();
            }
            let matters = match &entry.reconciled {
                Some(Seen::There(reconciled)) => state.matters_after(reconciled),
                Some(Seen::Missing) | None => true,
            };
            entry.latest = Some(Seen::There(state));
            if matters { entry.followers.iter().cloned().collect() } else { Vec::new() }
        })
    }

    /// An object was delivered that cannot be understood: nothing is known of it now, and its followers have to look.
    pub(super) fn unreadable(&self, object: &Key) -> Vec<Key> {
        self.locked(|inner| {
            let Some(entry) = inner.entries.get_mut(object) else { return Vec::new() };
            (entry.latest, entry.listed) = (None, true);
            entry.followers.iter().cloned().collect()
        })
    }

    /// An object was deleted. Returns the locks that have to be reconciled.
    pub(super) fn deleted(&self, object: &Key, last: &T) -> Vec<Key> {
        self.locked(|inner| {
            let Some(entry) = inner.entries.get_mut(object) else { return Vec::new() };
            if matches!(&entry.latest, Some(Seen::There(known)) if last.is_late(known)) {
                return Vec::new();
            }
            entry.latest = Some(Seen::Missing);
            entry.followers.iter().cloned().collect()
        })
    }

    /// A listing begins: what it does not name is gone.
    pub(super) fn listing_begins(&self) {
        self.locked(|inner| inner.entries.values_mut().for_each(|entry| entry.listed = false));
    }

    /// A listing ended. What it did not name has to be read again by the locks that follow it.
    pub(super) fn listing_ended(&self) -> Vec<Key> {
        self.locked(|inner| {
            let mut gone = BTreeSet::new();
            for entry in inner.entries.values_mut().filter(|entry| !entry.listed) {
                if matches!(entry.latest, Some(Seen::There(_))) {
                    entry.latest = None;
                    gone.extend(entry.followers.iter().cloned());
                }
            }
            gone.into_iter().collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Thing {
        version: u64,
        owner: &'static str,
    }

    impl Followable for Thing {
        fn is_late(&self, known: &Self) -> bool {
            self.version < known.version
        }

        fn matters_after(&self, reconciled: &Self) -> bool {
            self.owner != reconciled.owner
        }
    }

    fn key(name: &str) -> Key {
        ("ns".into(), name.into())
    }

    fn thing(version: u64, owner: &'static str) -> Thing {
        Thing { version, owner }
    }

    fn followed() -> Followed<Thing> {
        let followed = Followed::default();
        followed.follow(&key("lock"), Some(&key("lease")));
        followed
    }

    #[test]
    fn what_nobody_follows_is_dropped() {
        let followed = followed();
        assert_eq!(followed.delivered(&key("other"), thing(1, "a"), false), []);
        assert_eq!(followed.latest(&key("other")), None);
        followed.follow(&key("lock"), None);
        assert_eq!(followed.delivered(&key("lease"), thing(1, "a"), false), []);
        assert_eq!(followed.latest(&key("lease")), None, "nothing is kept");
    }

    #[test]
    fn a_renewal_wakes_nobody_and_a_takeover_does() {
        let followed = followed();
        assert_eq!(followed.delivered(&key("lease"), thing(1, "a"), false), [key("lock")], "never reconciled");
        followed.reconciled(&key("lease"), Seen::There(thing(1, "a")));
        for version in 2..900 {
            assert_eq!(followed.delivered(&key("lease"), thing(version, "a"), false), []);
        }
        assert_eq!(followed.delivered(&key("lease"), thing(900, "b"), false), [key("lock")]);
        assert_eq!(followed.latest(&key("lease")), Some(Seen::There(thing(900, "b"))));
    }

    #[test]
    fn an_event_that_overtakes_an_uncached_read_is_not_lost() {
        let followed = followed();
        assert_eq!(followed.delivered(&key("lease"), thing(101, "b"), false), [key("lock")]);
        followed.read(&key("lease"), Seen::There(thing(100, "a")));
        assert_eq!(followed.latest(&key("lease")), Some(Seen::There(thing(101, "b"))));
    }

    /// A10: an older view delivered late changes nothing; a listing does, because it is a view of its own.
    #[test]
    fn late_deliveries_are_dropped_and_listings_are_not() {
        let followed = followed();
        followed.read(&key("lease"), Seen::There(thing(500, "b")));
        followed.reconciled(&key("lease"), Seen::There(thing(500, "b")));
        assert_eq!(followed.delivered(&key("lease"), thing(420, "a"), false), []);
        assert_eq!(followed.deleted(&key("lease"), &thing(420, "a")), []);
        assert_eq!(followed.delivered(&key("lease"), thing(420, "a"), true), [key("lock")]);
    }

    #[test]
    fn what_a_listing_does_not_name_is_read_again() {
        let followed = followed();
        followed.read(&key("lease"), Seen::There(thing(5, "a")));
        followed.listing_begins();
        assert_eq!(followed.listing_ended(), [key("lock")]);
        assert_eq!(followed.latest(&key("lease")), None);
        followed.listing_begins();
        assert_eq!(followed.delivered(&key("lease"), thing(6, "a"), true), [key("lock")]);
        assert_eq!(followed.listing_ended(), []);
    }
}
