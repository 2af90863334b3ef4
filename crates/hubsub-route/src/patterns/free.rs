//! Ids of a table that are free. The lowest is used first, so that a table with few entries left has them at its beginning, and
//! gives back the memory behind them.

use crate::sparse::is_sparse;
use ahash::RandomState;
use hashbrown::HashMap;
use std::collections::BTreeSet;
use std::hash::Hash;

/// See the module. Every id below the length of the table is in use or here.
#[derive(Debug, Default)]
pub struct FreeIds(BTreeSet<u32>);

impl FreeIds {
    /// An id to use, of a table of that length; its length itself where none below is free.
    pub fn take(&mut self, table_len: usize) -> u32 {
        self.0.pop_first().unwrap_or(table_len as u32)
    }

    /// An id is not in use any more. The table ends behind the last one that is.
    pub fn give<T>(&mut self, id: u32, table: &mut Vec<T>) {
        self.0.insert(id);
        while self.0.last().is_some_and(|&last| last as usize + 1 == table.len()) {
            self.0.pop_last();
            table.pop();
        }
        if is_sparse(table.len(), table.capacity()) {
            table.shrink_to(table.len() * 2);
        }
    }

    /// How many.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// Gives back the memory of a map that has few entries left.
pub fn shrink<K: Eq + Hash, V>(map: &mut HashMap<K, V, RandomState>) {
    if is_sparse(map.len(), map.capacity()) {
        map.shrink_to(map.len() * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_ends_behind_its_last_entry_and_gives_back_its_memory() {
        let (mut free, mut table) = (FreeIds::default(), Vec::new());
        for id in 0..10_000 {
            assert_eq!(free.take(table.len()), id);
            table.push(id);
        }
        (1..9_999).for_each(|id| free.give(id, &mut table));
        assert_eq!((table.len(), free.len()), (10_000, 9_998), "the last one is in use");
        assert_eq!(free.take(table.len()), 1, "the lowest first");
        free.give(9_999, &mut table);
        assert_eq!((table.len(), free.len()), (2, 0));
        assert!(table.capacity() <= 4, "{}", table.capacity());
        assert_eq!(free.take(table.len()), 2);
    }
}
