//! A map that mostly has one entry, and there are thousands of it: a Lease and its lock, a lock and its boundary. A tree would
//! allocate a node for eleven. In the order of the keys.

/// The map. Each entry takes the space of an entry.
#[derive(Clone, Debug)]
pub(super) struct Few<K, V>(Vec<(K, V)>);

impl<K, V> Default for Few<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Clone + Ord, V> Few<K, V> {
    fn find(&self, key: &K) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| known.cmp(key))
    }

    /// Puts a value in, over the one that is there.
    pub(super) fn insert(&mut self, key: &K, value: V) {
        match self.find(key) {
            Ok(at) => self.0[at].1 = value,
            Err(at) => {
                // One more, and no room for growth unless there are many.
                if self.0.len() < 8 {
                    self.0.reserve_exact(1);
                }
                self.0.insert(at, (key.clone(), value));
            }
        }
    }

    pub(super) fn remove(&mut self, key: &K) {
        if let Ok(at) = self.find(key) {
            self.0.remove(at);
        }
    }

    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let at = self.find(key).ok()?;
        Some(&mut self.0[at].1)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &K> {
        self.0.iter().map(|(key, _)| key)
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.iter_mut().map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((0u8..12, any::<Option<u8>>()), 0..60)) {
            let (mut few, mut tree) = (Few::default(), BTreeMap::new());
            for (key, value) in steps {
                if let Some(value) = value {
                    few.insert(&key, value);
                    tree.insert(key, value);
                } else {
                    few.remove(&key);
                    tree.remove(&key);
                }
                prop_assert!(few.iter().eq(tree.iter()));
                prop_assert!(few.keys().eq(tree.keys()));
                prop_assert_eq!(few.get_mut(&key), tree.get_mut(&key));
                prop_assert_eq!(few.is_empty(), tree.is_empty());
                for value in few.values_mut().chain(tree.values_mut()) {
                    *value = value.wrapping_add(1);
                }
            }
        }
    }
}
