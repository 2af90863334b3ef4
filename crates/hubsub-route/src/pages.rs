//! Reads a whole room in order, for the node itself: one page of history at a time, on any shard, wherever
//! the room is led.
//!
//! The first request finds the room's epoch; each later one reads the records after the last one. Records
//! that a log has compacted, or that retention removed, are skipped. If the epoch ends meanwhile, the next
//! one is read.

use crate::requests::{HistoryPart, HistoryQuery};
use hubsub_message::Record;
use hubsub_types::{Epoch, Position, Seq};
use std::sync::Arc;

/// A reader of a room. Call `next` and `take` alternately, until there is no next request.
#[derive(Clone, Debug)]
pub struct Pages {
    room: Vec<u8>,
    count: u64,
    /// The record after which it continues; none while the room's epoch is not known.
    after: Option<Position>,
    is_over: bool,
}

impl Pages {
    /// A reader from the oldest record on, or after a position; 1 to 16,384 records per page.
    pub fn new(room: &[u8], after: Option<Position>, count: u64) -> Pages {
        Pages { room: room.to_vec(), count: count.max(1), after, is_over: false }
    }

    /// The next request, for [`crate::Broker::history`]; none when all was read.
    pub fn next(&self) -> Option<HistoryQuery> {
        let count = if self.after.is_some() { self.count } else { 1 };
        let query = HistoryQuery { room: self.room.clone(), count, after: self.after, topic: None };
        (!self.is_over).then_some(query)
    }

    /// Takes the response: returns the next records of the room, in order of positions; possibly none.
    pub fn take(&mut self, part: HistoryPart) -> Vec<Arc<Record>> {
        let HistoryPart { recovered, start, records } = part;
        match self.after {
            Some(after) if recovered => {
                debug_assert!(records.iter().all(|record| record.position.epoch == after.epoch));
                self.is_over = records.is_empty();
                self.after = Some(records.last().map_or(after, |record| record.position));
                records
            }
            Some(after) if start.epoch == after.epoch && start.seq > after.seq => {
                self.after = Some(start);
                Vec::new()
            }
            before => {
                // The room has no epoch, or only the one that was read, which has fewer records than before.
                self.is_over = start.epoch == Epoch(0) || before.is_some_and(|it| it.epoch == start.epoch);
                self.after = Some(Position { epoch: start.epoch, seq: Seq(0) });
                Vec::new()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hubsub_message::Namespace;

    fn at(epoch: u64, seq: u64) -> Position {
        Position { epoch: Epoch(epoch), seq: Seq(seq) }
    }

    fn part(recovered: bool, start: Position, seqs: &[u64]) -> HistoryPart {
        let record = |&seq: &u64| {
            let mut record = Record::new(Namespace::Global, b"r", b"", "".into(), None);
            record.position = at(start.epoch.0, seq);
            Arc::new(record)
        };
        HistoryPart { recovered, start, records: seqs.iter().map(record).collect() }
    }

    fn take(pages: &mut Pages, part: HistoryPart) -> Vec<u64> {
        pages.take(part).iter().map(|record| record.position.seq.0).collect()
    }

    #[test]
    fn pages_begin_at_the_oldest_record_and_pass_over_what_is_gone() {
        let mut pages = Pages::new(b"r", None, 2);
        let first = pages.next().unwrap();
        assert_eq!((first.after, first.count), (None, 1));
        assert_eq!(take(&mut pages, part(true, at(3, 8), &[9])), [], "the last one, which has its turn");
        assert_eq!(pages.next().unwrap().after, Some(at(3, 0)));
        assert_eq!(take(&mut pages, part(false, at(3, 4), &[])), []);
        assert_eq!(pages.next().unwrap().after, Some(at(3, 4)));
        assert_eq!(take(&mut pages, part(true, at(3, 4), &[5, 6])), [5, 6]);
        assert_eq!(pages.next().map(|query| (query.after, query.count)), Some((Some(at(3, 6)), 2)));
        assert_eq!(take(&mut pages, part(false, at(3, 8), &[])), [], "7 and 8 were compacted away");
        assert_eq!(take(&mut pages, part(true, at(3, 8), &[9])), [9]);
        assert_eq!(take(&mut pages, part(true, at(3, 9), &[])), []);
        assert!(pages.next().is_none());
    }

    #[test]
    fn a_life_that_ends_is_left_and_a_room_without_one_is_over() {
        let mut pages = Pages::new(b"r", Some(at(3, 6)), 2);
        assert_eq!(take(&mut pages, part(false, at(4, 0), &[])), []);
        assert_eq!(pages.next().unwrap().after, Some(at(4, 0)));
        assert_eq!(take(&mut pages, part(true, at(4, 0), &[1])), [1]);
        assert_eq!(take(&mut pages, part(false, at(4, 0), &[])), []);
        assert!(pages.next().is_none(), "it has less than it had");
        let mut pages = Pages::new(b"r", None, 2);
        assert_eq!(take(&mut pages, part(true, Position::default(), &[])), []);
        assert!(pages.next().is_none());
    }
}
