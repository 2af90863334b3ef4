//! What a node's log tells its operator: its state, its figures, and each of its
//! hubs. No shard is asked for it. A chain tells of itself; how far a hub is stands
//! in two marks that its shard and the journal thread raise.

use super::archive::Archive;
use super::start::Started;
use super::state::{SYNC_BOUNDS_US, State};
use hubsub_log::manifest::HubEntry;
use hubsub_log::{Chain, Disk};
use hubsub_route::{Traffic, TrafficTotals};
use hubsub_types::class::ClassIndex;
use hubsub_types::names::DeviceTemplate;
use hubsub_types::{Class, Durability, HubId};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard};

/// Damages of a hub that are told one by one.
const DAMAGES_MAX: usize = 8;

/// A hub with a log.
pub struct LoggedHub {
    /// Name of its class.
    class: String,
    /// Where its class stands in the node's table.
    pub class_index: ClassIndex,
    /// Which of the class's hubs it is.
    pub index: u16,
    durability: Durability,
    /// What names the device of its records' topics.
    device: RwLock<Option<Arc<DeviceTemplate>>>,
    /// Where it lives.
    pub shard: u16,
    /// How far it is archived.
    archive: Arc<Archive>,
    /// Its records, if they are whole; else why not and what the manifest says.
    records: Result<Arc<Chain<Disk>>, Box<HubEntry>>,
    /// Offset behind the last that there was when it was opened.
    opened: u64,
    /// Whether it takes no records any more, since it is about to go.
    closes: AtomicBool,
    /// What went through it, as its shard counts.
    traffic: Arc<Traffic>,
    /// Last offset that its shard gave out.
    given: AtomicU64,
    /// Last offset that was synced.
    synced: AtomicU64,
    /// What was found damaged since the start, by the start and by those who read.
    damages: Mutex<Vec<String>>,
}

impl LoggedHub {
    /// As it was found when it was opened.
    pub fn new(
        entry: &HubEntry,
        chain: Option<Arc<Chain<Disk>>>,
        (class_index, class): (ClassIndex, &Class),
        shard: u16,
        archive: Arc<Archive>,
        traffic: Arc<Traffic>,
    ) -> LoggedHub {
        let last = chain.as_ref().map_or(entry.next, |chain| chain.next()) - 1;
        LoggedHub {
            class: entry.class.clone(),
            class_index,
            index: entry.index,
            durability: class.durability,
            device: RwLock::new(class.device.clone()),
            shard,
            archive,
            records: chain.ok_or_else(|| Box::new(entry.clone())),
            opened: last + 1,
            closes: AtomicBool::new(false),
            traffic,
            given: AtomicU64::new(last),
            synced: AtomicU64::new(last),
            damages: Mutex::default(),
        }
    }

    /// Its chain, if its records are whole.
    pub fn chain(&self) -> Option<&Arc<Chain<Disk>>> {
        self.records.as_ref().ok()
    }

    /// What names the device of its records' topics.
    pub fn device(&self) -> Option<Arc<DeviceTemplate>> {
        self.device.read().expect("nothing panics under this lock").clone()
    }

    /// Its class says so from now on.
    pub fn set_device(&self, device: Option<Arc<DeviceTemplate>>) {
        *self.device.write().expect("nothing panics under this lock") = device;
    }

    /// Whether it takes no records any more, since it is about to go.
    pub fn closes(&self) -> bool {
        self.closes.load(Ordering::Acquire)
    }

    /// It takes no more records, or does again.
    pub fn set_closes(&self, closes: bool) {
        self.closes.store(closes, Ordering::Release);
    }

    /// Its shard gave out offsets up to this one.
    pub fn gave(&self, offset: u64) {
        self.given.fetch_max(offset, Ordering::Relaxed);
    }

    /// The last offset that its shard gave out.
    pub fn given(&self) -> u64 {
        self.given.load(Ordering::Relaxed)
    }

    /// Something of it cannot be read.
    pub fn is_damaged(&self, damage: String) {
        let mut damages = self.damages.lock().expect("nothing panics under this lock");
        if damages.len() < DAMAGES_MAX && !damages.contains(&damage) {
            damages.push(damage);
        }
    }

    /// The last offset that is committed.
    pub fn committed(&self) -> u64 {
        let (given, synced) = (self.given.load(Ordering::Relaxed), self.synced.load(Ordering::Relaxed));
        match (&self.records, self.durability) {
            // The only member that there is commits what it has in memory.
            (Ok(_), Durability::Replicated) => given.max(synced),
            _ => synced,
        }
    }

    /// Why it is quarantined, if it is.
    pub fn reason(&self) -> Option<String> {
        self.records.as_ref().err().and_then(|entry| entry.quarantined.clone())
    }

    /// What is told of it; `log` is the log's state and why it is not open.
    pub fn status(&self, id: HubId, log: (State, Option<&str>)) -> HubStatus {
        let (given, synced) = (self.given.load(Ordering::Relaxed), self.synced.load(Ordering::Relaxed));
        let damages = self.damages.lock().expect("nothing panics under this lock");
        let damaged = (!damages.is_empty()).then(|| damages.join("; "));
        drop(damages);
        let mut status = HubStatus {
            id,
            class: self.class.clone(),
            index: self.index,
            durability: self.durability,
            shard: self.shard,
            state: log.0.name(),
            reason: log.1.map(str::to_owned),
            opened: self.opened,
            earliest: 0,
            latest: given.max(synced),
            committed: self.committed(),
            synced,
            bytes: 0,
            segments: 0,
            rooms: 0,
            index_bytes: 0,
            index_rebuilds: 0,
            first_us: 0,
            last_us: 0,
            traffic: self.traffic.totals(),
            archived: self.archive.archived.load(Ordering::Relaxed),
            waiting_bytes: self.archive.waiting_bytes.load(Ordering::Relaxed),
            unarchived_lost: self.archive.lost.load(Ordering::Relaxed),
            damaged,
        };
        match &self.records {
            Ok(chain) => {
                if log.0 == State::Open && status.damaged.is_some() {
                    status.state = "damaged";
                    status.reason.clone_from(&status.damaged);
                }
                let info = chain.info();
                status.earliest = info.earliest;
                (status.bytes, status.segments) = (info.bytes, info.segments as u64);
                (status.rooms, status.index_bytes) = (info.rooms as u64, info.index_bytes as u64);
                status.index_rebuilds = info.index_rebuilds;
                if info.earliest < info.next {
                    (status.first_us, status.last_us) = (info.first_us, info.last_us);
                }
            }
            Err(entry) => {
                status.state = "quarantined";
                status.reason = self.reason();
                status.earliest = entry.earliest;
                status.bytes = entry.segments.iter().map(|segment| segment.1).sum();
                status.segments = entry.segments.len() as u64;
            }
        }
        status
    }
}

/// The hubs of a node that have a log and are open. Shards have their own in hand and do not
/// look here for each record.
#[derive(Default)]
pub struct LoggedHubs(RwLock<BTreeMap<HubId, Arc<LoggedHub>>>);

impl LoggedHubs {
    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<HubId, Arc<LoggedHub>>> {
        self.0.read().expect("nothing panics under this lock")
    }

    /// One of them.
    pub fn get(&self, hub: HubId) -> Option<Arc<LoggedHub>> {
        self.read().get(&hub).cloned()
    }

    /// The chain of one that is whole.
    pub fn chain(&self, hub: HubId) -> Option<Arc<Chain<Disk>>> {
        self.read().get(&hub)?.chain().cloned()
    }

    /// All of them, by id.
    pub fn all(&self) -> Vec<(HubId, Arc<LoggedHub>)> {
        self.read().iter().map(|(&id, hub)| (id, Arc::clone(hub))).collect()
    }

    /// The hub of a class that has this index.
    pub fn find(&self, class: ClassIndex, index: u16) -> Option<HubId> {
        let hubs = self.read();
        hubs.iter().find(|(_, hub)| (hub.class_index, hub.index) == (class, index)).map(|(&id, _)| id)
    }

    /// One more.
    pub fn insert(&self, id: HubId, hub: Arc<LoggedHub>) {
        self.0.write().expect("nothing panics under this lock").insert(id, hub);
    }

    /// One less.
    pub fn remove(&self, id: HubId) {
        self.0.write().expect("nothing panics under this lock").remove(&id);
    }

    /// Hubs' records up to these are synced; the shard of each.
    pub fn synced(&self, synced: &[(HubId, u64)]) -> Vec<u16> {
        let hubs = self.read();
        let hub = |&(hub, offset): &(HubId, u64)| {
            // It goes only when all that it was given is in segments.
            let hub = &hubs[&hub];
            hub.synced.fetch_max(offset, Ordering::Relaxed);
            hub.shard
        };
        synced.iter().map(hub).collect()
    }

    /// A hub is archived up to this offset, which is not.
    pub fn archived(&self, hub: HubId, offset: u64) {
        if let Some(hub) = self.get(hub) {
            hub.archive.archived.store(offset, Ordering::Relaxed);
        }
    }

    /// Something of a hub cannot be read.
    pub fn damaged(&self, hub: HubId, damage: String) {
        if let Some(hub) = self.get(hub) {
            hub.is_damaged(damage);
        }
    }
}

/// What is told of a hub.
#[derive(Clone, Debug)]
pub struct HubStatus {
    /// Its id: the number of its directory.
    pub id: HubId,
    /// Name of its class.
    pub class: String,
    /// Which of the class's hubs it is.
    pub index: u16,
    /// When it may commit.
    pub durability: Durability,
    /// Where it lives.
    pub shard: u16,
    /// `open`, `damaged`, `full`, `failed` or `quarantined`.
    pub state: &'static str,
    /// Why it is not open.
    pub reason: Option<String>,
    /// Offset behind the last record that there was when it was opened.
    pub opened: u64,
    /// Offset of the oldest record kept, or of the next one.
    pub earliest: u64,
    /// Last offset given out.
    pub latest: u64,
    /// Last one that is delivered and acknowledged.
    pub committed: u64,
    /// Last one on disk.
    pub synced: u64,
    /// Bytes of its segments.
    pub bytes: u64,
    /// How many there are.
    pub segments: u64,
    /// Rooms that have records; 0 where that is not known.
    pub rooms: u64,
    /// Memory that finds them.
    pub index_bytes: u64,
    /// Indexes that were made again since the start.
    pub index_rebuilds: u64,
    /// Timestamp of its oldest record in a segment, in µs; 0 without one.
    pub first_us: u64,
    /// Likewise of its last one.
    pub last_us: u64,
    /// What went through it since the start.
    pub traffic: TrafficTotals,
    /// First offset that is not archived; 0 where nothing was told of an archive.
    pub archived: u64,
    /// Bytes that are kept for the archive alone.
    pub waiting_bytes: u64,
    /// Records that were removed since the start and were not archived, where that is waited for.
    pub unarchived_lost: u64,
    /// What of it was found damaged since the start, while the rest is served.
    pub damaged: Option<String>,
}

/// What is told of a log.
#[derive(Clone, Debug)]
pub struct LogStatus {
    /// `open`, `full` or `failed`.
    pub state: &'static str,
    /// Of its directory, at random.
    pub identity: u64,
    /// Why it takes no records.
    pub reason: Option<String>,
    /// Counters (their names end in `_total`) and gauges.
    pub figures: Vec<(&'static str, u64)>,
    /// Syncs by their time: upper bounds in µs and how many took so long at most and
    /// longer than the bound before; none for the last bound.
    pub syncs: Vec<(Option<u64>, u64)>,
    /// By id.
    pub hubs: Vec<HubStatus>,
}

impl Started {
    /// What the log and its hubs tell now.
    #[must_use]
    pub fn status(&self) -> LogStatus {
        let (state, reason) = (self.log.state(), self.log.reason());
        let reason = reason.filter(|_| state != State::Open);
        let hubs: Vec<HubStatus> =
            self.hubs.all().iter().map(|(id, hub)| hub.status(*id, (state, reason.as_deref()))).collect();
        let counters = self.log.counters();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (waiting, running) = self.readers.load();
        let figures = vec![
            ("records_total", load(&counters.records)),
            ("bytes_total", load(&counters.bytes)),
            ("syncs_total", load(&counters.syncs)),
            ("sync_us_total", load(&counters.sync_us)),
            ("checkpoints_total", load(&counters.checkpoints)),
            ("segments_retired_total", load(&counters.retired)),
            ("journal_waits_total", load(&counters.journal_waits)),
            ("opens_failed_total", load(&counters.opens_failed)),
            ("reads_total", load(&counters.reads)),
            ("reads_failed_total", load(&counters.reads_failed)),
            ("index_rebuilds_total", hubs.iter().map(|hub| hub.index_rebuilds).sum()),
            ("stream_rows_total", load(&counters.stream_rows)),
            ("stream_bytes_total", load(&counters.stream_bytes)),
            ("streams_failed_total", load(&counters.streams_failed)),
            ("streams_refused_total", load(&counters.streams_refused)),
            ("streams_idle_total", load(&counters.streams_idle)),
            ("streams_open", self.streams.count() as u64),
            ("pending_bytes", self.log.pending_bytes() as u64),
            ("reads_waiting", waiting as u64),
            ("reads_running", running as u64),
        ];
        let bounds = SYNC_BOUNDS_US.iter().copied().map(Some).chain([None]);
        let syncs = bounds.zip(counters.syncs_by_time.iter().map(load)).collect();
        LogStatus { state: state.name(), identity: self.identity, reason, figures, syncs, hubs }
    }
}
