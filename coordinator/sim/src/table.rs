//! A sorted map of keys that are mostly consecutive numbers.

use longhaul_common::id::WorkerId;
use longhaul_run::ConnectionId;

/// A key that is a number.
pub trait Number: Copy + Ord {
    /// The number.
    fn number(self) -> u64;
}

impl Number for WorkerId {
    fn number(self) -> u64 {
        self.0.into()
    }
}

impl Number for ConnectionId {
    fn number(self) -> u64 {
        self.0
    }
}

/// Entries by key. Where keys are consecutive, as those of a world are, one is found in one step: a world of ten thousand workers looks up several for each
/// message.
pub struct Table<K, T>(Vec<(K, T)>);

impl<K, T> Default for Table<K, T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Number, T> Table<K, T> {
    fn place(&self, key: K) -> Result<usize, usize> {
        let first = self.0.first().map_or(0, |(first, _)| first.number());
        let guess = key.number().wrapping_sub(first) as usize;
        if self.0.get(guess).is_some_and(|(there, _)| *there == key) {
            return Ok(guess);
        }
        self.0.binary_search_by_key(&key, |(there, _)| *there)
    }

    pub fn get(&self, key: &K) -> Option<&T> {
        self.place(*key).ok().map(|place| &self.0[place].1)
    }

    pub fn get_mut(&mut self, key: &K) -> Option<&mut T> {
        self.place(*key).ok().map(|place| &mut self.0[place].1)
    }

    /// Adds or replaces an entry. Fast at the end.
    pub fn insert(&mut self, key: K, entry: T) {
        match self.place(key) {
            Ok(place) => self.0[place].1 = entry,
            Err(place) => self.0.insert(place, (key, entry)),
        }
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn keys(&self) -> impl Iterator<Item = &K> + Clone {
        self.0.iter().map(|(key, _)| key)
    }

    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|(_, entry)| entry)
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().map(|(_, entry)| entry)
    }

    pub fn iter(&self) -> impl Iterator<Item = (K, &T)> {
        self.0.iter().map(|(key, entry)| (*key, entry))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (K, &mut T)> {
        self.0.iter_mut().map(|(key, entry)| (*key, entry))
    }
}

impl<K: Number, T> FromIterator<(K, T)> for Table<K, T> {
    fn from_iter<I: IntoIterator<Item = (K, T)>>(entries: I) -> Self {
        let mut table = Self::default();
        entries.into_iter().for_each(|(key, entry)| table.insert(key, entry));
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_whether_or_not_they_are_consecutive() {
        for keys in [vec![1, 2, 3], vec![7, 3, 20, 4]] {
            let mut table: Table<WorkerId, u32> = keys.iter().map(|key| (WorkerId(*key), *key)).collect();
            let found: Vec<bool> = (0..25).map(|key| table.get(&WorkerId(key)) == Some(&key)).collect();
            assert_eq!(found, (0..25).map(|key| keys.contains(&key)).collect::<Vec<_>>());
            assert!(table.keys().is_sorted());
            table.insert(WorkerId(3), 9);
            assert_eq!((table.get_mut(&WorkerId(3)).copied(), table.len()), (Some(9), keys.len()));
        }
    }
}
