//! Records of a whole hub with a log, whatever their rooms, as far as memory has them.

use super::{RoomHandle, Rooms};
use crate::hubread::{HubRange, HubRead};
use crate::hubs::{HubLog, Hubs};
use crate::record::Record;
use hubsub_types::Seq;
use std::sync::Arc;

/// Records that are looked at for one read: a shard does other things between.
const LOOK_MAX: usize = 2_048;

/// Likewise, how often one of them is held against a pattern.
const MATCHES_MAX: usize = 65_536;

impl Rooms {
    /// What a read of a hub wants, from memory; none: the log must be asked. It sees all that the log has: what a
    /// room shows by its class is for who asks for its history.
    #[must_use]
    pub fn range_of_hub(&self, slot: u16, read: &HubRead) -> Option<HubRange> {
        let hub = self.hubs.get(slot);
        let log = hub.log.as_ref()?;
        let committed = log.committed();
        let next = read.next.clamp(1, committed + 1);
        let mut range = HubRange { next, committed, ..HubRange::default() };
        if next > committed {
            return Some(range);
        }
        if next <= log.forgotten() {
            // All that was said since may be here.
            let first = hub.ledger.from(log.forgotten() + 1).next();
            let first = first.and_then(|entry| self.record_at(entry.room, entry.seq));
            first.filter(|first| read.since_us > 0 && first.timestamp_us < read.since_us)?;
            range.next = log.forgotten() + 1;
        }
        let (mut entries, mut bytes) = (hub.ledger.from(range.next), 0);
        let looks = (MATCHES_MAX / read.filter.sources().len().max(1)).clamp(1, LOOK_MAX);
        for entry in entries.by_ref().take(looks) {
            if bytes >= read.bytes_max || range.records.len() >= read.records_max as usize {
                return Some(range);
            }
            let record = self.record_at(entry.room, entry.seq)?;
            range.next = entry.offset + 1;
            let is_wanted =
                record.timestamp_us >= read.since_us && read.filter.wants(record.namespace, record.topic());
            if is_wanted {
                bytes += record.weight();
                range.records.push(Arc::clone(record));
            }
        }
        if entries.next().is_none() {
            // What is behind the last record are deletions of rooms.
            range.next = committed + 1;
        }
        Some(range)
    }

    /// The hubs of the node.
    #[must_use]
    pub fn all_hubs(&self) -> &Hubs {
        &self.all_hubs
    }

    fn record_at(&self, room: RoomHandle, seq: Seq) -> Option<&Arc<Record>> {
        self.get(room)?.ring.as_ref()?.from(seq).next().filter(|record| record.position.seq == seq)
    }

    /// Nothing that a hub has committed is taken to be in memory: another node led it.
    pub fn forget_past_of(&mut self, slot: u16) {
        self.hubs.get_mut(slot).log.iter_mut().for_each(HubLog::forgot_all);
    }
}
