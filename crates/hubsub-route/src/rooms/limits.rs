//! Limits of the table of rooms, and its memory.

use super::{Rooms, Slot, name_at};
use crate::Now;
use crate::hubs::HubLog;
use crate::sparse::is_sparse;
use hubsub_types::ErrorCode;

/// Memory of a name beyond its bytes, approximately: reference counts and rounding.
const NAME_BYTES: usize = 20;

/// The sweep keeps one in this many of `rooms_max` and of `room_names_bytes_max` free of unused rooms.
const CROWDED: u64 = 16;

impl Rooms {
    /// The limits of rooms and of the bytes of their names, on this shard.
    fn shares(&self) -> (u64, u64) {
        let of_shard = |max: u64| max.div_ceil(u64::from(self.shards));
        (of_shard(self.limits.rooms_max), of_shard(self.limits.room_names_bytes_max))
    }

    /// Rooms that count against their limits, and bytes of their names.
    pub(super) fn counted(&self) -> (u64, u64) {
        ((self.len() - self.row_rooms) as u64, (self.name_bytes - self.row_name_bytes) as u64)
    }

    pub(super) fn has_place(&self, name: &[u8]) -> Result<(), ErrorCode> {
        let ((rooms, name_bytes), (rooms_max, bytes_max)) = (self.counted(), self.shares());
        let has_place = rooms < rooms_max && name_bytes + name.len() as u64 <= bytes_max;
        if has_place { Ok(()) } else { Err(ErrorCode::TooManyRooms) }
    }

    /// Whether rooms that are also in a log should be removed to make space for others.
    pub(super) fn is_crowded(&self) -> bool {
        let ((rooms, name_bytes), (rooms_max, bytes_max)) = (self.counted(), self.shares());
        rooms >= rooms_max - rooms_max / CROWDED || name_bytes >= bytes_max - bytes_max / CROWDED
    }

    pub(super) fn may_create(&mut self, name: &[u8], now: Now) -> Result<(), ErrorCode> {
        self.has_place(name)?;
        let second = now.mono_ms / 1000;
        if self.created.0 != second {
            self.created = (second, 0);
        }
        let max = self.limits.room_creations_per_second_max;
        if max > 0 && self.created.1 >= max {
            return Err(ErrorCode::RoomCreationRate);
        }
        self.created.1 += 1;
        Ok(())
    }

    /// Releases memory of unused slots at the end, if that is half of all, and of the table of names.
    pub fn shrink(&mut self) {
        for slot in 0..self.hubs.iter().count() as u16 {
            self.hubs.get_mut(slot).log.iter_mut().for_each(HubLog::shrink);
        }
        let (rooms, places) = (self.names.len(), self.slots.len());
        if is_sparse(rooms, places) && !self.is_late(self.last_place) {
            let behind = self.slots.iter().rev().take_while(|(_, room)| room.is_none()).count();
            let left = places - behind;
            // Shrinking copies all slots that are left.
            if left <= places / 2 {
                let generations = self.slots[left..].iter().map(|(generation, _)| *generation);
                self.first_generation = generations.fold(self.first_generation, u32::max);
                self.slots.truncate(left);
                self.slots.shrink_to_fit();
                self.free.retain(|index| (*index as usize) < left);
                self.free.shrink_to_fit();
            } else {
                self.last_place = left - 1;
            }
        }
        if is_sparse(rooms, self.names.capacity()) {
            let (hasher, slots) = (&self.hasher, &self.slots);
            self.names.shrink_to(2 * rooms, |&i| hasher.hash_one(name_at(slots, i)));
        }
        if is_sparse(self.revisions.len(), self.revisions.capacity()) {
            self.revisions.shrink_to(2 * self.revisions.len());
        }
    }

    /// Whether a slot is in the upper half of all and has a room.
    pub(super) fn is_late(&self, place: usize) -> bool {
        place >= self.slots.len() / 2 && self.slots.get(place).is_some_and(|(_, room)| room.is_some())
    }

    /// Memory of the tables and the names, in bytes, approximately; without the rooms' histories and interest.
    pub fn table_bytes(&self) -> usize {
        self.slots.len() * size_of::<Slot>()
            + (self.free.len() + self.revisions.capacity() * 4) * size_of::<u32>()
            + self.names.allocation_size()
            + self.ordered.bytes()
            + self.names.len() * NAME_BYTES
            + self.name_bytes
    }
}
