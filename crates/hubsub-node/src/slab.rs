//! A table of records in pages, with generations: a place that is given out
//! again has another key, so that an answer that comes late finds nobody.
//! Pages are never moved, and an empty table owns none.

use hubsub_types::ConnKey;

const PAGE: usize = 256;

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// See the module.
pub struct Slab<T> {
    pages: Vec<Box<[Slot<T>]>>,
    free: Vec<u32>,
    len: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { pages: Vec::new(), free: Vec::new(), len: 0 }
    }
}

impl<T> Slab<T> {
    /// How many records there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Puts a record in the lowest place that was freed last, or a new one.
    pub fn insert(&mut self, value: T) -> ConnKey {
        let index = self.take_place();
        let slot = self.slot_mut(index).expect("free places are in pages");
        slot.value = Some(value);
        let generation = slot.generation;
        self.len += 1;
        ConnKey { index, generation }
    }

    /// Keeps a place that has no record, until it is given back.
    pub fn reserve(&mut self) -> ConnKey {
        let index = self.take_place();
        let generation = self.slot(index).expect("free places are in pages").generation;
        ConnKey { index, generation }
    }

    /// Puts a record in a place that was kept.
    pub fn put(&mut self, key: ConnKey, value: T) {
        let slot = self.slot_mut(key.index).expect("kept places are in pages");
        debug_assert!(slot.value.is_none() && slot.generation == key.generation);
        slot.value = Some(value);
        self.len += 1;
    }

    /// A record by its whole key.
    pub fn get(&self, key: ConnKey) -> Option<&T> {
        let slot = self.slot(key.index)?;
        slot.value.as_ref().filter(|_| slot.generation == key.generation)
    }

    /// As `get`.
    pub fn get_mut(&mut self, key: ConnKey) -> Option<&mut T> {
        let slot = self.slot_mut(key.index)?;
        slot.value.as_mut().filter(|_| slot.generation == key.generation)
    }

    /// Whoever is in a place now.
    pub fn at(&self, index: u32) -> Option<&T> {
        self.slot(index)?.value.as_ref()
    }

    /// As `at`.
    pub fn at_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slot_mut(index)?.value.as_mut()
    }

    /// The key of whoever is in a place now.
    pub fn key_at(&self, index: u32) -> Option<ConnKey> {
        let slot = self.slot(index).filter(|s| s.value.is_some())?;
        Some(ConnKey { index, generation: slot.generation })
    }

    /// Takes a record out; its key is never given out again.
    pub fn remove(&mut self, key: ConnKey) -> Option<T> {
        let value = self.vacate(key)?;
        self.give_back(key);
        Some(value)
    }

    /// Takes a record out and keeps its place.
    pub fn vacate(&mut self, key: ConnKey) -> Option<T> {
        let slot = self.slot_mut(key.index).filter(|s| s.generation == key.generation)?;
        let value = slot.value.take()?;
        self.len -= 1;
        Some(value)
    }

    /// A place that was kept may be given out again, under another key.
    pub fn give_back(&mut self, key: ConnKey) {
        let slot = self.slot_mut(key.index).expect("kept places are in pages");
        debug_assert!(slot.value.is_none() && slot.generation == key.generation);
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key.index);
    }

    /// All records with their keys.
    pub fn iter(&self) -> impl Iterator<Item = (ConnKey, &T)> {
        let slots = self.pages.iter().flat_map(|page| page.iter());
        (0u32..).zip(slots).filter_map(|(index, slot)| {
            let key = ConnKey { index, generation: slot.generation };
            slot.value.as_ref().map(|value| (key, value))
        })
    }

    fn take_place(&mut self) -> u32 {
        if self.free.is_empty() {
            let first = (self.pages.len() * PAGE) as u32;
            self.pages.push((0..PAGE).map(|_| Slot { generation: 0, value: None }).collect());
            self.free.extend((first..first + PAGE as u32).rev());
        }
        self.free.pop().expect("filled above")
    }

    fn slot(&self, index: u32) -> Option<&Slot<T>> {
        self.pages.get(index as usize / PAGE).map(|page| &page[index as usize % PAGE])
    }

    fn slot_mut(&mut self, index: u32) -> Option<&mut Slot<T>> {
        self.pages.get_mut(index as usize / PAGE).map(|page| &mut page[index as usize % PAGE])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_a_former_tenant_finds_nobody() {
        let mut slab = Slab::default();
        let first = slab.insert("a");
        assert_eq!(slab.remove(first), Some("a"));
        let second = slab.insert("b");
        assert_eq!(second.index, first.index);
        assert_eq!((slab.get(first), slab.get(second)), (None, Some(&"b")));
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.len(), 1);
    }

    #[test]
    fn a_place_that_is_kept_is_nobodys_and_not_given_out() {
        let mut slab = Slab::default();
        let kept = slab.reserve();
        let key = slab.insert("a");
        assert_ne!(key.index, kept.index);
        assert_eq!((slab.get(kept), slab.key_at(kept.index), slab.len()), (None, None, 1));
    }

    #[test]
    fn iteration_finds_every_record_once() {
        let mut slab = Slab::default();
        let keys: Vec<_> = (0..1000).map(|i| slab.insert(i)).collect();
        keys.iter().step_by(3).for_each(|&key| _ = slab.remove(key));
        let left: Vec<i32> = slab.iter().map(|(_, &v)| v).collect();
        assert_eq!(left, (0..1000).filter(|i| i % 3 != 0).collect::<Vec<_>>());
    }
}
