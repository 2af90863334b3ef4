//! A node's log of a hub: its records, and how many of them are safe.

use hubsub_route::{Found, HubLogRead, HubRange, LogRead, Namespace, Recalled, Record, Want};
use hubsub_types::{Position, Seq};
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct Entry {
    pub room: Vec<u8>,
    pub record: Record,
}

#[derive(Clone, Debug, Default)]
pub struct Log {
    /// By offset, from 1.
    pub entries: Vec<Entry>,
    pub safe: usize,
}

impl Log {
    fn of_room<'a>(&'a self, room: &'a [u8]) -> impl Iterator<Item = (u64, &'a Record)> {
        let all = (1..).zip(&self.entries[..self.safe]).filter(move |(_, entry)| entry.room == room);
        all.map(|(offset, entry)| (offset, &entry.record))
    }

    /// The last safe record of a room.
    pub fn recall(&self, room: &[u8]) -> Option<Recalled> {
        self.of_room(room).last().map(|(offset, last)| Recalled { position: last.position, offset })
    }

    pub fn knows(&self, read: &LogRead) -> bool {
        read.through as usize <= self.safe
    }

    pub fn knows_of_hub(&self, asked: &HubLogRead) -> bool {
        asked.read.next as usize <= self.safe
    }

    /// Answers a request for a whole hub: few records at a time.
    pub fn find_of_hub(&self, asked: &HubLogRead) -> HubRange {
        let HubLogRead { read, through } = asked;
        let until = (self.safe as u64).min(*through);
        let mut range = HubRange { next: read.next, ..HubRange::default() };
        while range.next <= until && range.records.len() < 3 {
            let record = &self.entries[range.next as usize - 1].record;
            if read.filter.wants(record.namespace, record.topic()) {
                range.records.push(Arc::new(record.clone()));
            }
            range.next += 1;
        }
        range
    }

    pub fn find(&self, read: &LogRead) -> Found {
        let fits = |record: &Record| {
            let Position { epoch, seq } = record.position;
            epoch == read.epoch && (read.seq_min..=read.seq_max).contains(&seq)
        };
        let shown = |record: &Record| {
            read.topic.as_ref().is_none_or(|topic| *topic == record.topic())
                && read.namespace.is_none_or(|namespace| namespace == record.namespace)
        };
        let of_room: Vec<&Record> = self.of_room(&read.room).map(|(_, record)| record).collect();
        let mut records: Vec<Arc<Record>> = of_room
            .iter()
            .filter(|record| fits(record) && shown(record))
            .map(|record| Arc::new((*record).clone()))
            .collect();
        let mut first: Option<Seq> = None;
        match read.want {
            Want::Back => _ = records.drain(..records.len().saturating_sub(read.count as usize)),
            Want::On(seq) => {
                let from = of_room.iter().filter(|record| fits(record) && record.position.seq >= seq);
                first = from.map(|record| record.position.seq).next();
                records.retain(|record| record.position.seq >= seq);
                records.truncate((read.count as usize).min(3));
            }
            Want::Since(us) => {
                records.retain(|record| record.timestamp_us >= us);
                records.truncate((read.count as usize).min(3));
            }
        }
        debug_assert!(records.iter().all(|record| record.namespace == Namespace::Global));
        Found { records, first }
    }
}
