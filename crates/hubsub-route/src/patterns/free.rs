//! Free ids of a table. The lowest is used first, so that a table with few entries has them at its beginning
//! and can release the memory after them.

use crate::sparse::is_sparse;
use ahash::RandomState;
use hashbrown::HashMap;
use std::collections::BTreeSet;
use std::hash::Hash;

/// The free ids of a table: every id below its length is in use or here.
#[derive(Debug, Default)]
pub struct FreeIds(BTreeSet<u32>);

impl FreeIds {
    /// Takes an id, of a table of that length; the length itself if no lower id is free.
    pub fn take(&mut self, table_len: usize) -> u32 {
        self.0.pop_first().unwrap_or(table_len as u32)
    }

    /// Frees an id. The table is cut after the last id in use.
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

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// Releases memory of a map with few remaining entries.
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
