//! The model of a hub that keeps the latest: the records sent, the readers' state, and what the log must
//! contain.

use crate::support::verify;
use crate::support::{OPTIONS, Publish, Sent, TestLog, read_back, read_on};
use hubsub_log::{ChainOptions, Compaction, Cursor, HubId, Keep, Kind, LogError, LogOptions};
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

/// Keeps the latest of each key.
pub const HUB: HubId = HubId(1);

/// A second hub, which keeps all records.
pub const OTHER: HubId = HubId(2);

pub const TOMBSTONE_US: u64 = 300;

pub const ROOMS: u8 = 5;

/// Segments of few records.
pub const SMALL: LogOptions =
    LogOptions { chain: ChainOptions { segment_bytes: 1200, run_bytes: 400 }, ..OPTIONS };

type Key = (Vec<u8>, Vec<u8>);

pub fn room(n: u8) -> Vec<u8> {
    format!("room:{n}").into_bytes()
}

/// Records of odd lengths have another topic than those of even ones.
pub fn publish(n: u8, len: u16) -> Publish {
    (room(n), vec![n ^ len as u8; usize::from(len)], Kind::Message)
}

pub fn tombstone(n: u8, is_odd: bool) -> Publish {
    (room(n), vec![0; usize::from(is_odd)], Kind::Tombstone)
}

/// State of a reader: for each key with a value, the offset of its record.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Latest(pub HashMap<Key, u64>);

impl Latest {
    pub fn of<'a>(records: impl IntoIterator<Item = &'a Sent>) -> Latest {
        let mut latest = Latest::default();
        records.into_iter().for_each(|sent| latest.take(sent));
        latest
    }

    fn take(&mut self, sent: &Sent) {
        let key = (sent.room.clone(), sent.topic.clone());
        match sent.kind {
            Kind::Message => _ = self.0.insert(key, sent.offset),
            Kind::Tombstone => _ = self.0.remove(&key),
            Kind::RoomDeleted => self.0.retain(|(room, _), _| *room != sent.room),
        }
    }
}

/// Reads the hub repeatedly, a few records at a time.
pub struct Reader {
    pub latest: Latest,
    pub next: u64,
    pub began_us: u64,
    pub holds: bool,
}

impl Reader {
    pub fn new(holds: bool, began_us: u64) -> Reader {
        Reader { latest: Latest::default(), next: 1, began_us, holds }
    }
}

pub struct Test {
    pub log: TestLog,
    pub readers: Vec<Reader>,
    /// The latest time passed to a compaction.
    compacted_us: u64,
}

impl Test {
    pub fn new() -> Test {
        let readers = [false, false, true].map(|holds| Reader::new(holds, 0)).into();
        Test { log: TestLog::with(&[Keep::Latest, Keep::Log], SMALL), readers, compacted_us: 0 }
    }

    pub fn now_us(&self) -> u64 {
        self.log.clock_us + 10 * (self.log.hubs[&HUB].sent.len() as u64 + 1)
    }

    pub fn say(&mut self, records: Vec<Publish>) {
        self.log.say(&[(HUB, records.clone()), (OTHER, records)]);
    }

    pub fn save(&mut self) {
        self.log.apply().unwrap();
        self.log.segments.checkpoint().unwrap();
    }

    pub fn compact(&mut self, budget_bytes: u64, keys_max: usize) -> Result<usize, LogError> {
        let now_us = self.now_us();
        self.compacted_us = now_us;
        let hold = self.readers.iter().filter(|reader| reader.holds).map(|reader| reader.next).min();
        let limits = Compaction { budget_bytes, pace: 0, tombstone_us: TOMBSTONE_US, keys_max };
        self.log.segments.compact(now_us, limits, |_| hold)
    }

    /// Removes all readers and their holds.
    pub fn let_go(&mut self) {
        self.readers.clear();
    }

    pub fn read(&mut self, reader: usize) {
        let now_us = self.now_us();
        let Some(reader) = self.readers.get_mut(reader) else { return };
        if !reader.holds && now_us > reader.began_us + TOMBSTONE_US {
            *reader = Reader::new(false, now_us);
        }
        let chain = self.log.segments.chain(HUB).unwrap();
        let mut bytes = Vec::new();
        let next = chain.read_offsets(reader.next, 300, &mut bytes).unwrap();
        assert!(next > reader.next || reader.next == chain.next());
        reader.next = next;
        let mut at = 0;
        while at < bytes.len() {
            let (record, len) = hubsub_log::record::decode(&bytes[at..]).unwrap();
            reader.latest.take(&Sent::of(&record));
            at += len;
        }
        if next == chain.next() {
            let sent = &self.log.hubs[&HUB].sent[..next as usize - 1];
            assert_eq!(reader.latest, Latest::of(sent));
            reader.began_us = now_us;
        }
    }

    /// Restarts. The rooms' state is reloaded from the log.
    pub fn reopen(&mut self) {
        self.log.reopen().unwrap();
        assert_eq!(self.log.warnings, [] as [String; 0]);
        self.check();
        self.log.check(OTHER);
        self.recall();
        let began_us = self.now_us();
        self.readers.iter_mut().for_each(|reader| *reader = Reader::new(reader.holds, began_us));
    }

    /// Reloads the rooms' state from the log.
    pub fn recall(&mut self) {
        let chain = self.log.segments.chain(HUB).unwrap();
        let rooms = &mut self.log.hubs.get_mut(&HUB).unwrap().rooms;
        rooms.clear();
        for room in (0..ROOMS).map(room) {
            rooms.extend(chain.rooms.get(chain.hash(&room)).map(|last| (room, (last.epoch, last.seq))));
        }
    }

    pub fn held(&self) -> Vec<Sent> {
        let mut held: Vec<Sent> = Vec::new();
        let chain = self.log.segments.chain(HUB).unwrap();
        chain.replay(1, |record| held.push(Sent::of(record))).unwrap();
        let (mut cursor, mut through) = (Cursor::at(1), Vec::new());
        chain
            .read_through(&mut cursor, u64::MAX, |record| {
                through.push(Sent::of(record));
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!((&through, cursor.next()), (&held, chain.next()));
        held
    }

    pub fn check(&mut self) {
        let chain = self.log.segments.chain(HUB).unwrap();
        let expected = self.log.hubs.get_mut(&HUB).unwrap();
        let next = chain.next();
        let written: usize = self
            .log
            .safe
            .iter()
            .flat_map(|(.., batches)| batches)
            .fold(0, |n, batch| n + usize::from(batch.hub == HUB) * batch.count as usize);
        assert!(next as usize > expected.acknowledged - written, "acknowledged records are missing");
        if written == 0 {
            expected.sent.truncate(next as usize - 1);
            expected.acknowledged = expected.sent.len();
        }
        let sent = expected.sent[..next as usize - 1].to_vec();
        let held = self.held();
        assert!(held.is_sorted_by_key(|sent| sent.offset));
        assert!(
            held.iter().all(|held| *held == sent[held.offset as usize - 1]),
            "it holds what was not sent"
        );
        assert_eq!(Latest::of(&held), Latest::of(&sent));
        let offsets: HashSet<u64> = held.iter().map(|sent| sent.offset).collect();
        for room in (0..ROOMS).map(room) {
            self.check_room(&room, &sent, &held);
        }
        // The last record of a key is visible for its retention time, even a tombstone.
        let mut later: HashSet<Key> = HashSet::new();
        let mut ended: HashSet<&[u8]> = HashSet::new();
        for sent in sent.iter().rev() {
            let is_young = sent.timestamp_us + TOMBSTONE_US >= self.compacted_us;
            let is_last = match sent.kind {
                Kind::RoomDeleted => ended.insert(&sent.room),
                _ => later.insert((sent.room.clone(), sent.topic.clone())) && !ended.contains(&sent.room[..]),
            };
            assert!(!(is_last && is_young) || offsets.contains(&sent.offset), "{sent:?} went too early");
        }
    }

    fn check_room(&self, room: &[u8], sent: &[Sent], held: &[Sent]) {
        let chain = self.log.segments.chain(HUB).unwrap();
        let of_room = |sent: &&Sent| sent.room == room;
        let end = sent.iter().filter(of_room).rfind(|sent| sent.kind == Kind::RoomDeleted);
        let end = end.map_or(0, |sent| sent.offset);
        let in_life = |sent: &&Sent| sent.room == room && sent.offset > end;
        let held: Vec<Sent> = held.iter().filter(in_life).cloned().collect();
        let all: Vec<&Sent> = sent.iter().filter(in_life).collect();
        let positions: HashSet<(u64, u64)> = all.iter().map(|sent| (sent.epoch, sent.seq)).collect();
        assert_eq!(positions.len(), all.len(), "two records have one position");

        let known = chain.rooms.get(chain.hash(room));
        match (known, all.last()) {
            (Some(known), Some(last)) => {
                assert_eq!((known.epoch, known.seq, known.offset), (last.epoch, last.seq, last.offset));
            }
            (None, Some(last)) => assert!(held.is_empty() && last.kind == Kind::Tombstone),
            (None, None) => {}
            (Some(_), None) => panic!("a room that was deleted is known"),
        }
        assert_eq!(read_back(&chain, room).whole(), held);
        let Some(last) = held.last() else { return };
        let some = (1..=last.seq).step_by(1 + last.seq as usize / 5).chain([last.seq, last.seq + 1]);
        for from in some {
            for wanted in [1, 3, u64::MAX] {
                let on = read_on(&chain, room, last.epoch, from, wanted).whole();
                let is_wanted = |sent: &&Sent| sent.epoch == last.epoch && sent.seq >= from;
                assert_eq!(on, held.iter().filter(is_wanted).cloned().collect::<Vec<_>>());
            }
        }
    }

    pub fn verify(&self) {
        let found = verify(&self.log.disk).unwrap();
        assert_eq!(found.problems, [] as [String; 0]);
    }
}
