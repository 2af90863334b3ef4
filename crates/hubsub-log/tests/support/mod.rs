//! A log on a simulated disk, with the records sent and acknowledged.

#![allow(dead_code)]

use hubsub_log::record::{self, Record};
use hubsub_log::rooms::Last;
use hubsub_log::sim::SimDisk;
use hubsub_log::verify::{Verified, verify_watched};
use hubsub_log::{
    Batch, Chain, ChainOptions, HubId, HubName, Journal, Keep, Kind, LogError, LogOptions, Opened, Segments,
    open,
};
use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Small files, so that tests reach all boundaries.
pub const OPTIONS: LogOptions = LogOptions {
    reserve_bytes: 0,
    chain: ChainOptions { segment_bytes: 4096, run_bytes: 1024 },
    journal_bytes: 8192,
    open_files_max: 4,
};

pub const IDENTITY: u64 = 0x1234_5678_9abc_def0;

/// Room, payload and kind of a record to send.
pub type Publish = (Vec<u8>, Vec<u8>, Kind);

/// A record as a test sent it.
#[derive(Clone, PartialEq, Eq)]
pub struct Sent {
    pub offset: u64,
    pub timestamp_us: u64,
    pub room: Vec<u8>,
    pub topic: Vec<u8>,
    pub epoch: u64,
    pub seq: u64,
    pub payload: Vec<u8>,
    pub kind: Kind,
}

impl std::fmt::Debug for Sent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Sent { room, epoch, seq, payload, .. } = self;
        write!(f, "{}/{epoch}-{seq} {} bytes", String::from_utf8_lossy(room), payload.len())
    }
}

impl Sent {
    pub fn of(record: &Record<'_>) -> Sent {
        let Record { offset, timestamp_us, epoch, seq, kind, .. } = *record;
        let [room, topic, payload] = [record.room, record.topic, record.payload].map(<[u8]>::to_vec);
        Sent { offset, timestamp_us, room, topic, epoch, seq, payload, kind }
    }
}

/// Records read of a room, the oldest first, and the outcome of the read.
pub struct Read {
    pub records: Vec<Sent>,
    pub outcome: Result<(), LogError>,
}

impl Read {
    /// The records; fails the test if the read failed.
    pub fn whole(self) -> Vec<Sent> {
        self.outcome.unwrap();
        self.records
    }
}

/// Reads a room backwards.
pub fn read_back(chain: &Chain<SimDisk>, room: &[u8]) -> Read {
    let mut records = Vec::new();
    let outcome = chain.read_back_from(room, &mut None, u64::MAX, |record| {
        records.push(Sent::of(record));
        ControlFlow::Continue(())
    });
    records.reverse();
    Read { records, outcome }
}

/// Reads a room from a seq on. `wanted` is only a hint here.
pub fn read_on(chain: &Chain<SimDisk>, room: &[u8], epoch: u64, from: u64, wanted: u64) -> Read {
    let mut records = Vec::new();
    let outcome = chain.read_on(room, epoch, from, wanted, |record| {
        records.push(Sent::of(record));
        ControlFlow::Continue(())
    });
    Read { records, outcome: outcome.map(|_| ()) }
}

/// Power fails; the advancing seed decides which unsynced data survives.
pub fn crash(disk: &SimDisk, seed: &mut u64) {
    disk.crash(|| random(seed) & 1 == 1);
}

/// Random numbers by SplitMix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Expected state of a hub.
#[derive(Clone, Default)]
pub struct Expected {
    /// Records from offset 1 on.
    pub sent: Vec<Sent>,
    /// Number of acknowledged records.
    pub acknowledged: usize,
    /// Epoch and last seq of each room.
    pub rooms: HashMap<Vec<u8>, (u64, u64)>,
}

pub struct TestLog {
    pub options: LogOptions,
    pub disk: SimDisk,
    pub journal: Journal<SimDisk>,
    pub segments: Segments<SimDisk>,
    /// Frames that are safe but not in segments yet.
    pub safe: Vec<(u64, u64, Vec<Batch>)>,
    /// The frame that is written but not synced.
    pub written: Option<(u64, u64, Vec<Batch>)>,
    pub hubs: HashMap<HubId, Expected>,
    pub epochs: u64,
    /// Time of offset 0, in µs; consecutive records are 10 µs apart.
    pub clock_us: u64,
    pub warnings: Vec<String>,
}

pub fn opened(disk: &SimDisk) -> Result<Opened<SimDisk>, LogError> {
    open_with(disk, OPTIONS)
}

fn open_with(disk: &SimDisk, options: LogOptions) -> Result<Opened<SimDisk>, LogError> {
    open(Arc::new(disk.clone()), IDENTITY, options)
}

impl TestLog {
    pub fn new(hubs: u16) -> TestLog {
        TestLog::with(&vec![Keep::Log; usize::from(hubs)], OPTIONS)
    }

    pub fn with(keeps: &[Keep], options: LogOptions) -> TestLog {
        let disk = SimDisk::default();
        let Opened { journal, mut segments, warnings, .. } = open_with(&disk, options).unwrap();
        let mut add = |(i, &keep)| (segments.add_hub("chat", i, keep).unwrap(), Expected::default());
        let hubs = (0u16..).zip(keeps).map(&mut add).collect();
        let (safe, written, epochs, clock_us) = (Vec::new(), None, 1, 0);
        TestLog { options, disk, journal, segments, safe, written, hubs, epochs, clock_us, warnings }
    }

    /// Reopens the disk without a clean shutdown.
    pub fn reopen(&mut self) -> Result<(), LogError> {
        let Opened { journal, segments, warnings, .. } = open_with(&self.disk, self.options)?;
        (self.journal, self.segments, self.warnings) = (journal, segments, warnings);
        (self.safe, self.written) = (Vec::new(), None);
        Ok(())
    }

    /// Opens a hub of the class `chat`; returns whether the test did not know it yet.
    pub fn open_hub(&mut self, hub: HubId, index: u16) -> Result<bool, LogError> {
        let name = HubName { hub, class: "chat".to_owned(), index };
        let Some(opening) = self.segments.opening(&name, Keep::Log)? else { return Ok(false) };
        let ready = opening.run()?;
        self.segments.admit(vec![ready])?;
        Ok(self.hubs.insert(hub, self.hubs.get(&hub).cloned().unwrap_or_default()).is_none())
    }

    /// Shuts down cleanly; `reopen` starts again.
    pub fn close(&mut self) {
        let segments = std::mem::replace(&mut self.segments, TestLog::new(0).segments);
        segments.close().unwrap();
    }

    /// Writes and syncs one frame.
    pub fn say(&mut self, what: &[(HubId, Vec<Publish>)]) {
        self.append(what).unwrap();
        self.sync().unwrap();
    }

    /// Writes one frame without a sync: for each hub its rooms and payloads.
    pub fn append(&mut self, what: &[(HubId, Vec<Publish>)]) -> Result<(), LogError> {
        assert!(self.written.is_none());
        let mut batches: Vec<Batch> = Vec::new();
        let mut before = Vec::new();
        for (hub, records) in what {
            let expected = self.hubs.get_mut(hub).unwrap();
            before.push((*hub, expected.sent.len(), expected.rooms.clone()));
            let mut batch =
                Batch { hub: *hub, first: expected.sent.len() as u64 + 1, count: 0, bytes: Vec::new() };
            for (room, payload, kind) in records {
                let (epoch, seq) = expected.rooms.get(room).copied().unwrap_or_else(|| {
                    self.epochs += 1;
                    (self.epochs, 0)
                });
                let seq = seq + u64::from(*kind != Kind::RoomDeleted);
                let offset = expected.sent.len() as u64 + 1;
                let topic = if payload.len() % 2 == 0 { room.clone() } else { [room, &b"/t"[..]].concat() };
                let sent = Record {
                    hub: *hub,
                    kind: *kind,
                    term: 1,
                    offset,
                    epoch,
                    seq,
                    timestamp_us: self.clock_us + offset * 10,
                    room,
                    topic: &topic,
                    publisher: b"me",
                    payload,
                    ..Record::default()
                };
                record::encode(&sent, &mut batch.bytes);
                batch.count += 1;
                expected.sent.push(Sent::of(&sent));
                match kind {
                    Kind::Message | Kind::Tombstone => {
                        expected.rooms.insert(room.clone(), (epoch, seq));
                    }
                    Kind::RoomDeleted => _ = expected.rooms.remove(room),
                }
            }
            batches.push(batch);
        }
        let bytes = batches.iter().map(|b| b.bytes.len()).sum();
        if !self.journal.has_room(bytes) || self.journal.wants_next() {
            match self.segments.prepare_next() {
                Ok(next) => self.journal.give_next(next),
                Err(e) => {
                    for (hub, sent, rooms) in before.into_iter().rev() {
                        let expected = self.hubs.get_mut(&hub).unwrap();
                        expected.sent.truncate(sent);
                        expected.rooms = rooms;
                    }
                    return Err(e);
                }
            }
        }
        // Even if this fails, the records may be on the disk.
        let frame = self.journal.append(&batches)?;
        self.written = Some((self.journal.file(), frame, batches));
        Ok(())
    }

    /// Syncs the frame: now its records are acknowledged.
    pub fn sync(&mut self) -> Result<(), LogError> {
        self.journal.sync()?;
        if let Some(frame) = self.written.take() {
            self.safe.push(frame);
        }
        self.hubs.values_mut().for_each(|hub| hub.acknowledged = hub.sent.len());
        Ok(())
    }

    /// Applies the safe frames to the segments.
    pub fn apply(&mut self) -> Result<(), LogError> {
        for (file, frame, batches) in self.safe.drain(..) {
            self.segments.apply(file, frame, batches);
        }
        self.segments.flush()
    }

    /// Records in a hub's log.
    pub fn held(&self, hub: HubId) -> Result<Vec<Sent>, LogError> {
        let chain = self.segments.chain(hub).expect("it is whole");
        let mut all = Vec::new();
        let mut next = chain.info().earliest;
        while next < chain.info().next {
            let mut bytes = Vec::new();
            let behind = chain.read_offsets(next, 300, &mut bytes)?;
            let mut at = 0;
            while at < bytes.len() {
                let (record, len) = record::decode(&bytes[at..]).unwrap();
                assert_eq!(record.offset, next);
                all.push(Sent::of(&record));
                (at, next) = (at + len, next + 1);
            }
            assert_eq!(next, behind);
        }
        Ok(all)
    }

    /// Checks a hub against the records sent and acknowledged, and drops from the expectation unacknowledged
    /// records that it lost.
    pub fn check(&mut self, hub: HubId) {
        let held = self.held(hub).unwrap();
        let expected = self.hubs.get_mut(&hub).unwrap();
        let chain = self.segments.chain(hub).unwrap();
        let earliest = chain.info().earliest as usize - 1;
        assert!(earliest + held.len() >= expected.acknowledged, "acknowledged records are missing");
        assert_eq!(held, expected.sent[earliest..earliest + held.len()], "it holds what was not sent");
        expected.sent.truncate(earliest + held.len());
        expected.acknowledged = expected.sent.len();
        let mut rooms: HashMap<Vec<u8>, Vec<Sent>> = HashMap::new();
        expected.rooms.clear();
        for sent in &expected.sent {
            match sent.kind {
                Kind::Message | Kind::Tombstone => {
                    rooms.entry(sent.room.clone()).or_default().push(sent.clone());
                    expected.rooms.insert(sent.room.clone(), (sent.epoch, sent.seq));
                }
                Kind::RoomDeleted => {
                    rooms.insert(sent.room.clone(), Vec::new());
                    expected.rooms.remove(&sent.room);
                }
            }
        }
        let kept = &expected.sent[earliest..];
        let mut named = BTreeMap::new();
        for (offset, sent) in (1..).zip(&expected.sent) {
            let Sent { room, epoch, seq, .. } = sent;
            match sent.kind {
                Kind::Message | Kind::Tombstone if offset > earliest as u64 => {
                    _ = named.insert(room.clone(), Last { epoch: *epoch, seq: *seq, offset });
                }
                Kind::Message | Kind::Tombstone => {}
                Kind::RoomDeleted => _ = named.remove(room),
            }
        }
        let listed = chain.rooms_page(None, usize::MAX, |_| true).unwrap();
        assert_eq!(listed, named.into_iter().collect::<Vec<_>>(), "names of rooms");
        for (room, all) in rooms {
            let mut all: Vec<Sent> = all.into_iter().filter(|sent| kept.contains(sent)).collect();
            assert_eq!(read_back(&chain, &room).whole(), all, "room {room:?}");
            // A few at a time, each time from the last mark.
            let (mut mark, mut back) = (None, Vec::new());
            loop {
                let (before, wanted) = (back.len(), 1 + back.len() % 4);
                let take = |record: &Record<'_>| {
                    back.push(Sent::of(record));
                    if back.len() - before < wanted {
                        ControlFlow::Continue(())
                    } else {
                        ControlFlow::Break(())
                    }
                };
                chain.read_back_from(&room, &mut mark, wanted as u64, take).unwrap();
                if back.len() < before + wanted {
                    break;
                }
            }
            back.reverse();
            assert_eq!(back, all, "room {room:?} in parts");
            let Some(last) = all.last().cloned() else { continue };
            all.retain(|sent| sent.epoch == last.epoch);
            // From each seq of a small room, and from varying ones of a large room.
            let step = 1 + all.len() / 32;
            for at in (all.len() % step..all.len()).step_by(step) {
                let (from, wanted) = (all[at].seq, [1, 3, u64::MAX][at % 3]);
                let on = read_on(&chain, &room, last.epoch, from, wanted).whole();
                assert_eq!(on, all[at..], "room {room:?} from {from}, {wanted} wanted");
            }
        }
    }

    pub fn check_all(&mut self) {
        let hubs: Vec<HubId> = self.hubs.keys().copied().collect();
        hubs.into_iter().for_each(|hub| self.check(hub));
    }
}

/// Reads every record of a directory.
pub fn verify(disk: &SimDisk) -> Result<Verified, LogError> {
    verify_watched(disk, &mut |_| ControlFlow::Continue(()))
}
