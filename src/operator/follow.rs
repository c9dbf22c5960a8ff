//! Which objects of others (Leases, pods) matter, to which locks, and what was last seen of them. Everything else that a watch
//! delivers is dropped at once, so that memory and work depend on the locks and not on the cluster (cases G01, G04).
//!
//! Start with [`Followed`]. Nothing here talks to the cluster.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::few::Few;

/// Namespace and name.
pub(super) type Key = (String, String);

/// What a follower wants to know about an object.
pub(super) trait Followable: Clone {
    /// Whether `self` was delivered late: the same object, at an older state than `known`.
    fn is_late(&self, known: &Self) -> bool;
    /// Whether a reconcile that used `used` could come to another answer now.
    fn matters_after(&self, used: &Self) -> bool;
    /// How long the state lasts unless it is renewed; `None` for ever. Only counted, never acted upon.
    fn lasts(&self) -> Option<Duration> {
        None
    }
}

#[derive(Debug)]
struct Entry<T> {
    /// The locks that follow it, each with what its last reconcile used: later states are compared with that.
    followers: Few<Key, Option<Seen<T>>>,
    /// The newest state known; `None` when nobody read it yet.
    latest: Option<Seen<T>>,
    /// Named in the listing that is under way.
    listed: bool,
    /// How many events there were, so that a read knows whether one overtook it.
    events: u64,
    /// When this process saw the newest state.
    since: Instant,
    /// It was counted that the newest state ran out.
    lapsed: bool,
}

impl<T: Followable> Entry<T> {
    /// Whether the newest state could lead a follower to another answer than the one that it used.
    fn matters(&self, used: Option<&Seen<T>>) -> bool {
        match (&self.latest, used) {
            (Some(Seen::There(latest)), Some(Seen::There(used))) => latest.matters_after(used),
            (Some(Seen::Missing), Some(Seen::Missing)) => false,
            _ => true,
        }
    }

    /// Whether the newest state has run out and that was not counted yet. Counts it.
    fn lapses(&mut self, now: Instant) -> bool {
        let lasts = match &self.latest {
            Some(Seen::There(state)) => state.lasts(),
            _ => None,
        };
        let lapses = !self.lapsed && lasts.is_some_and(|lasts| now.duration_since(self.since) > lasts);
        self.lapsed |= lapses;
        lapses
    }

    /// There is another state. Says whether the one before had run out.
    fn replace(&mut self, latest: Option<Seen<T>>) -> bool {
        let now = Instant::now();
        let lapsed = self.lapses(now);
        (self.latest, self.since, self.lapsed) = (latest, now, false);
        lapsed
    }

    fn uses(&mut self, lock: &Key, seen: &Seen<T>, baseline: impl FnOnce(&T) -> T) {
        let used = match seen {
            Seen::There(state) => Seen::There(baseline(state)),
            Seen::Missing => Seen::Missing,
        };
        if let Some(follower) = self.followers.get_mut(lock) {
            *follower = Some(used);
        }
    }

    /// The followers that have to look at the newest state.
    fn wake(&self) -> Vec<Key> {
        self.followers.iter().filter(|(_, used)| self.matters(used.as_ref())).map(|(lock, _)| lock.clone()).collect()
    }
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
    /// States that ran out, since somebody asked last.
    lapses: u64,
}

impl<T> Default for Followed<T> {
    fn default() -> Self {
        Self(Mutex::new(Inner { entries: HashMap::new(), of: HashMap::new(), lapses: 0 }))
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
                let new =
                    || Entry { followers: Few::default(), latest: None, listed: true, events: 0, since: Instant::now(), lapsed: false };
                inner.entries.entry(object.clone()).or_insert_with(new).followers.insert(lock, None);
            }
        });
    }

    /// The newest state known, without asking the cluster. The reconcile of `lock` uses it; later states are compared with
    /// what `baseline` makes of it.
    pub(super) fn cached(&self, lock: &Key, object: &Key, baseline: impl FnOnce(&T) -> T) -> Option<Seen<T>> {
        self.locked(|inner| {
            let entry = inner.entries.get_mut(object)?;
            let latest = entry.latest.clone()?;
            entry.uses(lock, &latest, baseline);
            Some(latest)
        })
    }

    /// Begins an uncached read: the number to give to [`Followed::read`].
    pub(super) fn begin_read(&self, object: &Key) -> u64 {
        self.locked(|inner| inner.entries.get(object).map_or(0, |entry| entry.events))
    }

    /// Ends an uncached read, whose result the reconcile of `lock` uses. Returns the locks that have to look again, because an
    /// event that matters overtook the read.
    pub(super) fn read(&self, lock: &Key, object: &Key, begun: u64, seen: &Seen<T>, baseline: impl FnOnce(&T) -> T) -> Vec<Key> {
        self.locked(|inner| {
            let Some(entry) = inner.entries.get_mut(object) else { return Vec::new() };
            let newer_event = match (seen, &entry.latest) {
                (Seen::There(read), Some(Seen::There(event))) if read.is_late(event) => true,
                (Seen::There(read), Some(Seen::There(event))) if event.is_late(read) => false,
                _ => entry.events != begun,
            };
            if !newer_event {
                inner.lapses += u64::from(entry.replace(Some(seen.clone())));
            }
            entry.uses(lock, seen, baseline);
            if newer_event { entry.wake() } else { Vec::new() }
        })
    }

    /// An object was delivered by the watch. Returns the locks that have to be reconciled: none for a renewal.
    pub(super) fn delivered(&self, object: &Key, state: T, by_listing: bool) -> Vec<Key> {
        self.locked(|inner| {
            let Some(entry) = inner.entries.get_mut(object) else { return Vec::new() };
            (entry.listed, entry.events) = (true, entry.events + 1);
            let late = matches!(&entry.latest, Some(Seen::There(known)) if state.is_late(known));
            // A listing is one consistent view, also when the cluster was restored and all of it is older.
            if late && !by_listing {
                return Vec::new();
            }
            let lapsed = entry.replace(Some(Seen::There(state)));
            let wake = entry.wake();
            inner.lapses += u64::from(lapsed);
            wake
        })
    }

    /// How many states ran out without being renewed, as this process saw them, since it was asked last.
    pub(super) fn lapsed(&self, now: Instant) -> u64 {
        self.locked(|inner| {
            let running_out = inner.entries.values_mut().map(|entry| u64::from(entry.lapses(now))).sum::<u64>();
            std::mem::take(&mut inner.lapses) + running_out
        })
    }

    /// An object was delivered that cannot be understood: nothing is known of it now, and its followers have to look.
    pub(super) fn unreadable(&self, object: &Key) -> Vec<Key> {
        self.locked(|inner| {
            let Some(entry) = inner.entries.get_mut(object) else { return Vec::new() };
            (entry.latest, entry.listed, entry.events) = (None, true, entry.events + 1);
            entry.wake()
        })
    }

    /// An object was deleted. Returns the locks that have to be reconciled.
    pub(super) fn deleted(&self, object: &Key, last: &T) -> Vec<Key> {
        self.locked(|inner| {
            let Some(entry) = inner.entries.get_mut(object) else { return Vec::new() };
            if matches!(&entry.latest, Some(Seen::There(known)) if last.is_late(known)) {
                return Vec::new();
            }
            (entry.latest, entry.events) = (Some(Seen::Missing), entry.events + 1);
            entry.wake()
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
                    gone.extend(entry.followers.keys().cloned());
                    entry.followers.values_mut().for_each(|used| *used = None);
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

    /// Long enough to be over only when a test says so.
    const LASTS: Duration = Duration::from_hours(1);

    impl Followable for Thing {
        fn is_late(&self, known: &Self) -> bool {
            self.version < known.version
        }

        fn matters_after(&self, used: &Self) -> bool {
            self.owner != used.owner
        }

        fn lasts(&self) -> Option<Duration> {
            (self.owner != "nobody").then_some(LASTS)
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

    fn read(followed: &Followed<Thing>, seen: &Seen<Thing>) -> Vec<Key> {
        let begun = followed.begin_read(&key("lease"));
        followed.read(&key("lock"), &key("lease"), begun, seen, Clone::clone)
    }

    #[test]
    fn what_nobody_follows_is_dropped() {
        let followed = followed();
        assert_eq!(followed.delivered(&key("other"), thing(1, "a"), false), []);
        assert_eq!(followed.cached(&key("lock"), &key("other"), Clone::clone), None);
        followed.follow(&key("lock"), None);
        assert_eq!(followed.delivered(&key("lease"), thing(1, "a"), false), []);
        assert_eq!(followed.cached(&key("lock"), &key("lease"), Clone::clone), None, "nothing is kept");
    }

    #[test]
    fn a_renewal_wakes_nobody_and_a_takeover_does() {
        let followed = followed();
        assert_eq!(followed.delivered(&key("lease"), thing(1, "a"), false), [key("lock")], "never reconciled");
        assert_eq!(followed.cached(&key("lock"), &key("lease"), Clone::clone), Some(Seen::There(thing(1, "a"))));
        for version in 2..900 {
            assert_eq!(followed.delivered(&key("lease"), thing(version, "a"), false), []);
        }
        assert_eq!(followed.delivered(&key("lease"), thing(900, "b"), false), [key("lock")]);
        assert_eq!(followed.cached(&key("lock"), &key("lease"), Clone::clone), Some(Seen::There(thing(900, "b"))));
    }

    #[test]
    fn an_event_that_overtakes_an_uncached_read_is_not_lost() {
        let followed = followed();
        let begun = followed.begin_read(&key("lease"));
        assert_eq!(followed.delivered(&key("lease"), thing(101, "b"), false), [key("lock")]);
        assert_eq!(
            followed.read(&key("lock"), &key("lease"), begun, &Seen::There(thing(100, "a")), Clone::clone),
            [key("lock")],
            "older by version"
        );
        assert_eq!(followed.cached(&key("lock"), &key("lease"), Clone::clone), Some(Seen::There(thing(101, "b"))));
        let begun = followed.begin_read(&key("lease"));
        followed.deleted(&key("lease"), &thing(102, "b"));
        followed.delivered(&key("lease"), thing(103, "c"), false);
        assert_eq!(
            followed.read(&key("lock"), &key("lease"), begun, &Seen::Missing, Clone::clone),
            [key("lock")],
            "created while it was read as missing"
        );
        assert_eq!(followed.cached(&key("lock"), &key("lease"), Clone::clone), Some(Seen::There(thing(103, "c"))));
    }

    /// A → B → A by a client that keeps no counter, where the second change arrives while the first is being reconciled.
    #[test]
    fn an_event_during_a_reconcile_is_compared_with_what_that_reconcile_uses() {
        let followed = followed();
        read(&followed, &Seen::There(thing(1, "a")));
        assert_eq!(followed.delivered(&key("lease"), thing(2, "b"), false), [key("lock")]);
        assert_eq!(followed.cached(&key("lock"), &key("lease"), Clone::clone), Some(Seen::There(thing(2, "b"))), "the reconcile begins");
        assert_eq!(followed.delivered(&key("lease"), thing(3, "a"), false), [key("lock")]);
    }

    #[test]
    fn a_read_that_is_newer_than_the_events_is_kept() {
        let followed = followed();
        let begun = followed.begin_read(&key("lease"));
        followed.delivered(&key("lease"), thing(4, "a"), false);
        assert_eq!(followed.read(&key("lock"), &key("lease"), begun, &Seen::There(thing(5, "b")), Clone::clone), []);
        assert_eq!(followed.delivered(&key("lease"), thing(5, "b"), false), [], "its own event changes nothing");
    }

    /// A10: an older view delivered late changes nothing; a listing does, because it is a view of its own.
    #[test]
    fn late_deliveries_are_dropped_and_listings_are_not() {
        let followed = followed();
        read(&followed, &Seen::There(thing(500, "b")));
        assert_eq!(followed.delivered(&key("lease"), thing(420, "a"), false), []);
        assert_eq!(followed.deleted(&key("lease"), &thing(420, "a")), []);
        assert_eq!(followed.delivered(&key("lease"), thing(420, "a"), true), [key("lock")]);
    }

    #[test]
    fn what_a_listing_does_not_name_is_read_again() {
        let followed = followed();
        read(&followed, &Seen::There(thing(5, "a")));
        followed.listing_begins();
        assert_eq!(followed.listing_ended(), [key("lock")]);
        assert_eq!(followed.cached(&key("lock"), &key("lease"), Clone::clone), None);
        followed.listing_begins();
        assert_eq!(followed.delivered(&key("lease"), thing(6, "a"), true), [key("lock")]);
        assert_eq!(followed.listing_ended(), []);
    }

    #[test]
    fn a_state_that_runs_out_is_counted_once() {
        let followed = followed();
        let later = || Instant::now() + LASTS + LASTS;
        assert_eq!(followed.lapsed(later()), 0, "nothing was seen yet");
        followed.delivered(&key("lease"), thing(1, "a"), false);
        assert_eq!(followed.lapsed(Instant::now()), 0);
        assert_eq!((followed.lapsed(later()), followed.lapsed(later())), (1, 0));
        followed.delivered(&key("lease"), thing(2, "a"), false);
        assert_eq!(followed.lapsed(later()), 1, "renewed, and ran out again");
        followed.delivered(&key("lease"), thing(3, "nobody"), false);
        assert_eq!(followed.lapsed(later()), 0);
    }

    /// Two locks on one Lease: what one of them reconciled says nothing about the other.
    #[test]
    fn each_follower_is_compared_with_what_it_used_itself() {
        let followed = followed();
        followed.follow(&key("other"), Some(&key("lease")));
        followed.delivered(&key("lease"), thing(1, "a"), false);
        followed.cached(&key("lock"), &key("lease"), Clone::clone);
        assert_eq!(followed.delivered(&key("lease"), thing(2, "a"), false), [key("other")], "which has not looked yet");
    }

    /// The baseline may be older than the state that was reconciled: a grant's term, not its last renewal.
    #[test]
    fn a_later_state_is_compared_with_the_baseline() {
        let followed = followed();
        followed.delivered(&key("lease"), thing(5, "renewed"), false);
        followed.cached(&key("lock"), &key("lease"), |_| thing(1, "granted"));
        assert_eq!(followed.delivered(&key("lease"), thing(6, "granted"), false), []);
        assert_eq!(followed.delivered(&key("lease"), thing(7, "renewed"), false), [key("lock")]);
    }
}
