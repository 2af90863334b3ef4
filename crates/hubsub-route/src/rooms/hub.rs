//! Records of a whole hub with a log, of all rooms, as far as they are in memory.

use super::{RoomHandle, Rooms};
use crate::hubread::{HubRange, HubRead};
use crate::hubs::{Hub, HubLog, Hubs};
use hubsub_message::Record;
use hubsub_types::class::ClassIndex;
use hubsub_types::{HubId, Seq};
use std::sync::Arc;

/// Records that one read examines: the shard does other work in between.
const LOOK_MAX: usize = 2_048;

/// Comparisons of records with patterns in one read.
const MATCHES_MAX: usize = 65_536;

impl Rooms {
    /// The records for a read of a hub, from memory; none: the log must be read. It includes all records of
    /// the log: limits of a class on its history apply to history requests only.
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
            // All records since then may be in memory.
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
            // After the last record there are only deletions of rooms.
            range.next = committed + 1;
        }
        Some(range)
    }

    pub fn all_hubs(&self) -> &Hubs {
        &self.all_hubs
    }

    /// The ids and classes of this shard's hubs, by slot; a hub of a node that is alone has no id.
    pub fn hub_ids(&self) -> impl Iterator<Item = (HubId, ClassIndex)> {
        let id_of = |hub: &Hub| self.all_hubs.placement.id(hub.class, hub.index).unwrap_or_default();
        self.hubs.iter().map(move |hub| (id_of(hub), hub.class))
    }

    fn record_at(&self, room: RoomHandle, seq: Seq) -> Option<&Arc<Record>> {
        self.get(room)?.ring.as_ref()?.from(seq).next().filter(|record| record.position.seq == seq)
    }

    /// Treats all committed records of a hub as missing from memory, because another node led it.
    pub fn forget_past_of(&mut self, slot: u16) {
        self.hubs.get_mut(slot).log.iter_mut().for_each(HubLog::forgot_all);
    }
}
