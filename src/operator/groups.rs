//! Names by what they have in common: locks by their Lease, boundaries by their lock. Kept from watch events.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, PoisonError},
};

use super::{few::Few, follow::Key};

/// Members of groups; each member is in at most one.
#[derive(Debug, Default)]
pub(super) struct Groups(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    members: HashMap<Key, Few<Key, ()>>,
    group_of: HashMap<Key, Key>,
    /// Members that a listing under way has named so far.
    listed: Option<BTreeSet<Key>>,
}

impl Inner {
    fn put(&mut self, member: &Key, group: Option<&Key>) -> Option<Key> {
        let old = self.group_of.remove(member);
        if let Some(old) = &old
            && let Some(members) = self.members.get_mut(old)
        {
            members.remove(member);
            if members.is_empty() {
                self.members.remove(old);
            }
        }
        if let Some(group) = group {
            self.group_of.insert(member.clone(), group.clone());
            self.members.entry(group.clone()).or_default().insert(member, ());
        }
        old.filter(|old| Some(old) != group)
    }
}

impl Groups {
    fn locked<R>(&self, work: impl FnOnce(&mut Inner) -> R) -> R {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts a member into a group, or into none. Returns the group that it left.
    pub(super) fn put(&self, member: &Key, group: Option<&Key>) -> Option<Key> {
        self.locked(|inner| {
            if let Some(listed) = &mut inner.listed {
                listed.insert(member.clone());
            }
            inner.put(member, group)
        })
    }

    /// Whether a group has members.
    pub(super) fn has(&self, group: &Key) -> bool {
        self.locked(|inner| inner.members.contains_key(group))
    }

    /// The members of a group, in the order of their names.
    pub(super) fn members(&self, group: &Key) -> Vec<Key> {
        self.locked(|inner| inner.members.get(group).map_or_else(Vec::new, |members| members.keys().cloned().collect()))
    }

    /// A listing begins.
    pub(super) fn listing_begins(&self) {
        self.locked(|inner| inner.listed = Some(BTreeSet::new()));
    }

    /// A listing ended: members that it did not name are gone. Returns them with the groups that they left.
    pub(super) fn listing_ended(&self) -> Vec<(Key, Key)> {
        self.locked(|inner| {
            let listed = inner.listed.take().unwrap_or_default();
            let gone: Vec<_> = inner.group_of.keys().filter(|member| !listed.contains(*member)).cloned().collect();
            gone.into_iter().filter_map(|member| inner.put(&member, None).map(|group| (member, group))).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        ("ns".into(), name.into())
    }

    #[test]
    fn a_member_is_in_one_group_and_leaves_it_when_it_moves_or_goes() {
        let groups = Groups::default();
        groups.put(&key("a"), Some(&key("x")));
        groups.put(&key("b"), Some(&key("x")));
        assert_eq!(groups.members(&key("x")), [key("a"), key("b")]);
        assert_eq!(groups.put(&key("a"), Some(&key("x"))), None, "it stays");
        assert_eq!(groups.put(&key("a"), Some(&key("y"))), Some(key("x")));
        assert_eq!(groups.members(&key("x")), [key("b")]);
        assert!(groups.has(&key("x")) && !groups.has(&key("z")));
        groups.listing_begins();
        groups.put(&key("a"), Some(&key("y")));
        assert_eq!(groups.listing_ended(), [(key("b"), key("x"))]);
        assert_eq!(groups.members(&key("x")), []);
        assert!(!groups.has(&key("x")));
    }
}
