//! A paged table of records with generations: a reused slot has another key, so a late response finds no
//! record. Records never move, and an empty table owns no page. A page without records is reduced to its
//! generations, because its slots may stay reserved for long.

use hubsub_types::ConnKey;

const PAGE: usize = 64;

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

enum Page<T> {
    /// The slots, and the number of records in them.
    Open(Box<[Slot<T>; PAGE]>, usize),
    /// The generations of a page without records.
    Folded(Box<[u32; PAGE]>),
}

impl<T> Page<T> {
    fn slot(&self, place: usize) -> Option<&Slot<T>> {
        match self {
            Page::Open(slots, _) => Some(&slots[place]),
            Page::Folded(_) => None,
        }
    }

    fn generation(&mut self, place: usize) -> &mut u32 {
        match self {
            Page::Open(slots, _) => &mut slots[place].generation,
            Page::Folded(generations) => &mut generations[place],
        }
    }

    /// Puts a record into an empty slot.
    fn put(&mut self, place: usize, value: T) {
        if let Page::Folded(generations) = self {
            let slot = |place: usize| Slot { generation: generations[place], value: None };
            *self = Page::Open(Box::new(std::array::from_fn(slot)), 0);
        }
        let Page::Open(slots, records) = self else { unreachable!("it was opened") };
        debug_assert!(slots[place].value.is_none());
        slots[place].value = Some(value);
        *records += 1;
    }

    /// Removes a record. Also returns whether it was the page's last.
    fn take(&mut self, place: usize) -> Option<(T, bool)> {
        let Page::Open(slots, records) = self else { return None };
        let value = slots[place].value.take()?;
        *records -= 1;
        Some((value, *records == 0))
    }

    fn fold(&mut self) {
        if let Page::Open(slots, 0) = self {
            let generation = |place: usize| slots[place].generation;
            *self = Page::Folded(Box::new(std::array::from_fn(generation)));
        }
    }
}

pub struct Slab<T> {
    pages: Vec<Page<T>>,
    free: Vec<u32>,
    len: usize,
    /// The page that became empty most recently. It stays open until another one becomes empty, for clients
    /// that reconnect often.
    emptied: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { pages: Vec::new(), free: Vec::new(), len: 0, emptied: 0 }
    }
}

impl<T> Slab<T> {
    pub fn len(&self) -> usize {
        self.len
    }

    /// Memory of the table, in bytes.
    pub fn bytes(&self) -> usize {
        // A page that became empty just now counts as folded.
        let open = self.len.div_ceil(PAGE) * size_of::<[Slot<T>; PAGE]>();
        open + self.pages.len() * size_of::<[u32; PAGE]>() + self.free.capacity() * size_of::<u32>()
    }

    /// Puts a record into the slot that was freed last, or a new one.
    pub fn insert(&mut self, value: T) -> ConnKey {
        let key = self.reserve();
        self.put(key, value);
        key
    }

    /// Reserves an empty slot until `give_back`.
    pub fn reserve(&mut self) -> ConnKey {
        let index = self.take_place();
        let (page, place) = split(index);
        let generation = *self.pages[page].generation(place);
        ConnKey { index, generation }
    }

    /// Puts a record into a reserved slot.
    pub fn put(&mut self, key: ConnKey, value: T) {
        let (page, place) = split(key.index);
        debug_assert!(*self.pages[page].generation(place) == key.generation);
        self.pages[page].put(place, value);
        self.len += 1;
    }

    /// The record of this key, including its generation.
    pub fn get(&self, key: ConnKey) -> Option<&T> {
        let slot = self.slot(key.index)?;
        slot.value.as_ref().filter(|_| slot.generation == key.generation)
    }

    pub fn get_mut(&mut self, key: ConnKey) -> Option<&mut T> {
        let slot = self.slot_mut(key.index)?;
        slot.value.as_mut().filter(|_| slot.generation == key.generation)
    }

    /// The record that is in a slot now.
    pub fn at(&self, index: u32) -> Option<&T> {
        self.slot(index)?.value.as_ref()
    }

    pub fn at_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slot_mut(index)?.value.as_mut()
    }

    /// The key of the record that is in a slot now.
    pub fn key_at(&self, index: u32) -> Option<ConnKey> {
        let slot = self.slot(index).filter(|s| s.value.is_some())?;
        Some(ConnKey { index, generation: slot.generation })
    }

    /// Removes a record; its key is not reused.
    pub fn remove(&mut self, key: ConnKey) -> Option<T> {
        let value = self.vacate(key)?;
        self.give_back(key);
        Some(value)
    }

    /// Removes a record but keeps its slot reserved.
    pub fn vacate(&mut self, key: ConnKey) -> Option<T> {
        self.get(key)?;
        let (page, place) = split(key.index);
        let (value, was_last) = self.pages[page].take(place)?;
        self.len -= 1;
        if was_last && self.emptied != page {
            self.pages[std::mem::replace(&mut self.emptied, page)].fold();
        }
        Some(value)
    }

    /// Frees a reserved slot for reuse under another key.
    pub fn give_back(&mut self, key: ConnKey) {
        debug_assert!(self.at(key.index).is_none());
        let (page, place) = split(key.index);
        let generation = self.pages[page].generation(place);
        debug_assert!(*generation == key.generation);
        *generation = generation.wrapping_add(1);
        self.free.push(key.index);
    }

    pub fn iter(&self) -> impl Iterator<Item = (ConnKey, &T)> {
        let open = (0u32..).zip(&self.pages).filter_map(|(page, slots)| match slots {
            Page::Open(slots, _) => Some((page * PAGE as u32, slots)),
            Page::Folded(_) => None,
        });
        let slots = open.flat_map(|(first, slots)| (first..).zip(slots.iter()));
        slots.filter_map(|(index, slot)| {
            let key = ConnKey { index, generation: slot.generation };
            slot.value.as_ref().map(|value| (key, value))
        })
    }

    fn take_place(&mut self) -> u32 {
        if self.free.is_empty() {
            let first = (self.pages.len() * PAGE) as u32;
            self.pages.push(Page::Folded(Box::new([0; PAGE])));
            self.free.extend((first..first + PAGE as u32).rev());
        }
        self.free.pop().expect("filled above")
    }

    fn slot(&self, index: u32) -> Option<&Slot<T>> {
        let (page, place) = split(index);
        self.pages.get(page)?.slot(place)
    }

    fn slot_mut(&mut self, index: u32) -> Option<&mut Slot<T>> {
        let (page, place) = split(index);
        match self.pages.get_mut(page)? {
            Page::Open(slots, _) => Some(&mut slots[place]),
            Page::Folded(_) => None,
        }
    }
}

/// Splits an index into page and slot.
fn split(index: u32) -> (usize, usize) {
    (index as usize / PAGE, index as usize % PAGE)
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
    fn pages_without_records_keep_their_generations_alone() {
        let mut slab = Slab::default();
        let keys: Vec<_> = (0..4 * PAGE).map(|i| slab.insert(i)).collect();
        let (kept, given_back) = keys.split_at(2 * PAGE);
        kept.iter().for_each(|&key| _ = slab.vacate(key));
        given_back.iter().for_each(|&key| _ = slab.remove(key));
        let open = slab.pages.iter().filter(|page| matches!(page, Page::Open(..))).count();
        assert_eq!(
            (open, slab.len(), slab.iter().count()),
            (1, 0, 0),
            "the one that was emptied last is open"
        );
        assert!(keys.iter().all(|&key| slab.get(key).is_none() && slab.at(key.index).is_none()));
        slab.put(kept[1], 7);
        assert_eq!((slab.get(kept[1]), slab.key_at(kept[1].index)), (Some(&7), Some(kept[1])));
        let again: Vec<_> = given_back.iter().map(|_| slab.insert(0)).collect();
        assert!(again.iter().all(|key| key.generation == 1 && key.index >= 2 * PAGE as u32));
        assert_eq!(slab.iter().count(), 1 + given_back.len());
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
