//! The rooms of a hub's log in memory: epoch, last seq, and offset of the last record, in 32 bytes each. An
//! idle room is nowhere else in memory, so this limits how many rooms a node can have.
//!
//! A room is identified by 96 bits of a keyed hash of its name. The key is specific to the directory, so that
//! nobody can search for colliding names. Reads compare the name with that in the record, so even a collision
//! does not return another room's records.
//!
//! The table is open-addressed with entries in the order of hashes, which needs no power of two: it grows by
//! a quarter and is between 0.64 and 0.8 full. It is divided into stripes with a lock each, so that the hub's
//! shard can look up a room while the segment thread adds another.

use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;
use std::sync::{Mutex, MutexGuard};

const STRIPES: usize = 64;

/// 48 bits, for seqs and offsets.
const LOW: u64 = (1 << 48) - 1;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RoomHash {
    /// Determines the entry's home.
    pub high: u64,
    /// 32 more bits of the hash.
    pub low: u32,
}

impl RoomHash {
    pub fn new(identity: u64, name: &[u8]) -> RoomHash {
        let mut hasher = SipHasher13::new_with_keys(identity, 0x6875_6273_7562_2121);
        hasher.write(name);
        let hash = hasher.finish128();
        RoomHash { high: hash.h1, low: hash.h2 as u32 }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Last {
    pub epoch: u64,
    /// Less than 2^48, see `LOW`.
    pub seq: u64,
    /// Less than 2^48, see `LOW`.
    pub offset: u64,
}

/// An entry: high bits of the hash; epoch; 16 more bits of the hash and seq; 16 more and offset. A free entry
/// is all zero, which no used entry is, since offsets begin at 1.
#[derive(Clone, Copy, Default)]
struct Entry([u64; 4]);

impl Entry {
    fn new(hash: RoomHash, last: Last) -> Entry {
        debug_assert!(last.seq <= LOW && last.offset <= LOW && last.offset > 0);
        let [a, b] = [u64::from(hash.low >> 16) << 48, u64::from(hash.low & 0xffff) << 48];
        Entry([hash.high, last.epoch, a | last.seq, b | last.offset])
    }

    fn is_free(&self) -> bool {
        self.0[3] & LOW == 0
    }

    fn hash(&self) -> RoomHash {
        RoomHash { high: self.0[0], low: ((self.0[2] >> 48) << 16 | self.0[3] >> 48) as u32 }
    }

    fn last(&self) -> Last {
        Last { epoch: self.0[1], seq: self.0[2] & LOW, offset: self.0[3] & LOW }
    }
}

pub struct RoomTable {
    stripes: Vec<Mutex<Stripe>>,
}

impl Default for RoomTable {
    fn default() -> RoomTable {
        RoomTable { stripes: (0..STRIPES).map(|_| Mutex::default()).collect() }
    }
}

impl RoomTable {
    /// The last record of a room, if the log has any.
    pub fn get(&self, hash: RoomHash) -> Option<Last> {
        self.stripe(hash).get(hash)
    }

    /// Sets a room's last record; returns the offset of the previous one.
    pub fn set(&self, hash: RoomHash, last: Last) -> Option<u64> {
        self.stripe(hash).set(Entry::new(hash, last))
    }

    pub fn remove(&self, hash: RoomHash) {
        self.stripe(hash).remove(hash);
    }

    /// Removes a room if its last record is at `offset`.
    pub fn remove_at(&self, hash: RoomHash, offset: u64) {
        let mut stripe = self.stripe(hash);
        if stripe.get(hash).is_some_and(|last| last.offset == offset) {
            stripe.remove(hash);
        }
    }

    /// Removes rooms whose last record is below an offset; returns how many.
    pub fn remove_below(&self, offset: u64) -> usize {
        self.stripes.iter().map(|stripe| locked(stripe).remove_below(offset)).sum()
    }

    pub fn len(&self) -> usize {
        self.stripes.iter().map(|stripe| locked(stripe).len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn bytes(&self) -> usize {
        let places: usize = self.stripes.iter().map(|stripe| locked(stripe).places.capacity()).sum();
        places * size_of::<Entry>() + STRIPES * size_of::<Mutex<Stripe>>()
    }

    /// Passes every room to `take`, in no particular order.
    pub fn for_each(&self, mut take: impl FnMut(RoomHash, Last)) {
        for stripe in &self.stripes {
            // A shard that looks up a room waits for this copy only, not for `take`.
            let entries = locked(stripe).places.clone();
            entries.iter().filter(|entry| !entry.is_free()).for_each(|e| take(e.hash(), e.last()));
        }
    }

    fn stripe(&self, hash: RoomHash) -> MutexGuard<'_, Stripe> {
        // The order within a stripe follows the high bits, so the stripe is chosen by low ones.
        locked(&self.stripes[hash.high as usize % STRIPES])
    }
}

fn locked(stripe: &Mutex<Stripe>) -> MutexGuard<'_, Stripe> {
    stripe.lock().expect("nothing panics under this lock")
}

/// Linear probing without wrap-around: [`OVERFLOW`] more places follow the last home.
#[derive(Default)]
struct Stripe {
    places: Vec<Entry>,
    homes: usize,
    len: usize,
}

const OVERFLOW: usize = 32;

impl Stripe {
    fn home(&self, hash: RoomHash) -> usize {
        ((u128::from(hash.high) * self.homes as u128) >> 64) as usize
    }

    /// Index of a room, or of the free place where it belongs; none if there is no free place.
    fn find(&self, hash: RoomHash) -> Option<usize> {
        let from = self.home(hash);
        let places = self.places.get(from..)?;
        places.iter().position(|e| e.is_free() || e.hash() == hash).map(|at| from + at)
    }

    fn get(&self, hash: RoomHash) -> Option<Last> {
        let entry = self.places[self.find(hash)?];
        (!entry.is_free()).then(|| entry.last())
    }

    fn set(&mut self, entry: Entry) -> Option<u64> {
        if let Some(at) = self.find(entry.hash())
            && !self.places[at].is_free()
        {
            let before = self.places[at].last().offset;
            self.places[at] = entry;
            return Some(before);
        }
        if (self.len + 1) * 5 > self.homes * 4 {
            self.resize(self.homes + (self.homes / 4).max(8));
        }
        while !self.insert(entry) {
            self.resize(self.homes + (self.homes / 4).max(8));
        }
        self.len += 1;
        None
    }

    /// Puts an entry into a free place; false if there is none from its home on.
    fn insert(&mut self, entry: Entry) -> bool {
        match self.find(entry.hash()) {
            Some(at) => {
                self.places[at] = entry;
                true
            }
            None => false,
        }
    }

    fn resize(&mut self, homes: usize) {
        let entries: Vec<Entry> = self.places.iter().filter(|e| !e.is_free()).copied().collect();
        self.homes = homes;
        loop {
            self.places = Vec::new();
            self.places.reserve_exact(self.homes + OVERFLOW);
            self.places.resize(self.homes + OVERFLOW, Entry::default());
            if entries.iter().all(|&entry| self.insert(entry)) {
                return;
            }
            self.homes += (self.homes / 8).max(8);
        }
    }

    fn remove(&mut self, hash: RoomHash) {
        let Some(mut free) = self.find(hash).filter(|&at| !self.places[at].is_free()) else { return };
        self.len -= 1;
        // Move later entries up, as far as their homes allow.
        for at in free + 1..self.places.len() {
            let entry = self.places[at];
            if entry.is_free() {
                break;
            }
            if self.home(entry.hash()) <= free {
                self.places[free] = entry;
                free = at;
            }
        }
        self.places[free] = Entry::default();
    }

    fn remove_below(&mut self, offset: u64) -> usize {
        let before = self.len;
        self.places.iter_mut().filter(|e| !e.is_free() && e.last().offset < offset).for_each(|e| {
            *e = Entry::default();
        });
        self.len = self.places.iter().filter(|e| !e.is_free()).count();
        if self.len < before {
            // This also repairs probe sequences that the removals interrupted.
            self.resize((self.len * 5 / 4).max(8));
        }
        before - self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn hash(n: u64) -> RoomHash {
        RoomHash::new(7, &n.to_le_bytes())
    }

    proptest! {
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((0..4u8, 0..400u64, 1..1000u64), 0..2000)) {
            let (table, mut model) = (RoomTable::default(), HashMap::new());
            for (what, room, offset) in steps {
                let last = Last { epoch: room, seq: offset, offset };
                match what {
                    0 => {
                        table.remove(hash(room));
                        model.remove(&room);
                    }
                    1 if offset < 100 => {
                        let before = model.len();
                        model.retain(|_, l: &mut Last| l.offset >= offset);
                        prop_assert_eq!(table.remove_below(offset), before - model.len());
                    }
                    _ => {
                        let before = model.insert(room, last).map(|l| l.offset);
                        prop_assert_eq!(table.set(hash(room), last), before);
                    }
                }
                prop_assert_eq!(table.get(hash(room)), model.get(&room).copied());
            }
            prop_assert_eq!(table.len(), model.len());
            for room in 0..400 {
                prop_assert_eq!(table.get(hash(room)), model.get(&room).copied());
            }
            let mut all = 0;
            table.for_each(|_, last| all += usize::from(model[&last.epoch] == last));
            prop_assert_eq!(all, model.len());
        }
    }

    #[test]
    fn a_room_takes_at_most_64_bytes() {
        let table = RoomTable::default();
        for room in 0..200_000 {
            table.set(hash(room), Last { epoch: 1, seq: 1, offset: 1 });
            if room % 1000 == 999 && room >= 50_000 {
                assert!(table.bytes() as u64 <= 64 * (room + 1), "{} for {room}", table.bytes());
            }
        }
        assert!((0..200_000).all(|room| table.get(hash(room)).is_some()));
    }
}
