//! The hubs of a node that have a log, and their status. It needs no shard: a chain has its own status, and
//! the shard and the journal thread each publish an offset per hub.

use super::archive::Archive;
use super::health::State;
use hubsub_log::manifest::HubEntry;
use hubsub_log::{Chain, Disk};
use hubsub_route::{Traffic, TrafficTotals};
use hubsub_types::class::ClassIndex;
use hubsub_types::names::DeviceTemplate;
use hubsub_types::{Class, Durability, HubId};
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard};

const DAMAGES_MAX: usize = 8;

pub struct LoggedHub {
    class: String,
    pub class_index: ClassIndex,
    pub index: u16,
    durability: Durability,
    device: RwLock<Option<Arc<DeviceTemplate>>>,
    pub shard: u16,
    archive: Arc<Archive>,
    /// Its chain, or if it is quarantined its entry in the manifest.
    records: Result<Arc<Chain<Disk>>, Box<HubEntry>>,
    /// The next offset at the time of its opening.
    opened: u64,
    closes: AtomicBool,
    /// Its traffic, counted by its shard.
    traffic: Arc<Traffic>,
    /// The last offset assigned by its shard.
    given: AtomicU64,
    synced: AtomicU64,
    /// Damages found since the start, at the start or by reads.
    damages: Mutex<Vec<String>>,
}

impl LoggedHub {
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

    /// Its chain, unless it is quarantined.
    pub fn chain(&self) -> Option<&Arc<Chain<Disk>>> {
        self.records.as_ref().ok()
    }

    pub fn device(&self) -> Option<Arc<DeviceTemplate>> {
        self.device.read().expect("nothing panics under this lock").clone()
    }

    /// Sets the device template after a change of its class.
    pub fn set_device(&self, device: Option<Arc<DeviceTemplate>>) {
        *self.device.write().expect("nothing panics under this lock") = device;
    }

    pub fn closes(&self) -> bool {
        self.closes.load(Ordering::Acquire)
    }

    pub fn set_closes(&self, closes: bool) {
        self.closes.store(closes, Ordering::Release);
    }

    pub fn gave(&self, offset: u64) {
        self.given.fetch_max(offset, Ordering::Relaxed);
    }

    pub fn given(&self) -> u64 {
        self.given.load(Ordering::Relaxed)
    }

    /// Records a damage, up to `DAMAGES_MAX`.
    pub fn is_damaged(&self, damage: String) {
        let mut damages = self.damages.lock().expect("nothing panics under this lock");
        if damages.len() < DAMAGES_MAX && !damages.contains(&damage) {
            damages.push(damage);
        }
    }

    pub fn committed(&self) -> u64 {
        let (given, synced) = (self.given.load(Ordering::Relaxed), self.synced.load(Ordering::Relaxed));
        match (&self.records, self.durability) {
            // A single member commits what it has in memory.
            (Ok(_), Durability::Replicated) => given.max(synced),
            _ => synced,
        }
    }

    pub fn reason(&self) -> Option<String> {
        self.records.as_ref().err().and_then(|entry| entry.quarantined.clone())
    }

    /// Its status; `log` is the log's state and the reason if it is not open.
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
            latest: given.max(synced),
            committed: self.committed(),
            synced,
            traffic: self.traffic.totals(),
            archived: self.archive.archived.load(Ordering::Relaxed),
            waiting_bytes: self.archive.waiting_bytes.load(Ordering::Relaxed),
            unarchived_lost: self.archive.lost.load(Ordering::Relaxed),
            damaged,
            ..HubStatus::default()
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

/// The open hubs of a node that have a log. Shards have their own references and need no lookup per record.
#[derive(Default)]
pub struct LoggedHubs(RwLock<BTreeMap<HubId, Arc<LoggedHub>>>);

impl LoggedHubs {
    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<HubId, Arc<LoggedHub>>> {
        self.0.read().expect("nothing panics under this lock")
    }

    pub fn get(&self, hub: HubId) -> Option<Arc<LoggedHub>> {
        self.read().get(&hub).cloned()
    }

    /// The chain of a hub that is not quarantined.
    pub fn chain(&self, hub: HubId) -> Option<Arc<Chain<Disk>>> {
        self.read().get(&hub)?.chain().cloned()
    }

    /// All hubs, sorted by id.
    pub fn all(&self) -> Vec<(HubId, Arc<LoggedHub>)> {
        self.read().iter().map(|(&id, hub)| (id, Arc::clone(hub))).collect()
    }

    /// The hub of a class with this index.
    pub fn find(&self, class: ClassIndex, index: u16) -> Option<HubId> {
        let hubs = self.read();
        hubs.iter().find(|(_, hub)| (hub.class_index, hub.index) == (class, index)).map(|(&id, _)| id)
    }

    pub fn insert(&self, id: HubId, hub: Arc<LoggedHub>) {
        self.0.write().expect("nothing panics under this lock").insert(id, hub);
    }

    pub fn remove(&self, id: HubId) {
        self.0.write().expect("nothing panics under this lock").remove(&id);
    }

    /// Records the synced offset of hubs; returns the shard of each.
    pub fn synced(&self, synced: &[(HubId, u64)]) -> Vec<u16> {
        let hubs = self.read();
        let hub = |&(hub, offset): &(HubId, u64)| {
            // It is removed only when all its records are in segments.
            let hub = &hubs[&hub];
            hub.synced.fetch_max(offset, Ordering::Relaxed);
            hub.shard
        };
        synced.iter().map(hub).collect()
    }

    /// Records that a hub is archived up to this offset, exclusively.
    pub fn archived(&self, hub: HubId, offset: u64) {
        if let Some(hub) = self.get(hub) {
            hub.archive.archived.store(offset, Ordering::Relaxed);
        }
    }

    pub fn damaged(&self, hub: HubId, damage: String) {
        if let Some(hub) = self.get(hub) {
            hub.is_damaged(damage);
        }
    }
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct HubStatus {
    /// Its id, which is the name of its directory.
    pub id: HubId,
    pub class: String,
    pub index: u16,
    /// Determines when records are committed.
    pub durability: Durability,
    pub shard: u16,
    /// `open`, `damaged`, `full`, `failed` or `quarantined`.
    pub state: &'static str,
    /// Why it is not `open`.
    pub reason: Option<String>,
    /// The next offset at the time of its opening.
    pub opened: u64,
    /// The offset of the oldest record, or the next offset without one.
    pub earliest: u64,
    /// The last offset assigned.
    pub latest: u64,
    /// The last offset delivered and acknowledged.
    pub committed: u64,
    /// The last offset on disk.
    pub synced: u64,
    /// Bytes of its segments.
    pub bytes: u64,
    pub segments: u64,
    pub rooms: u64,
    pub index_bytes: u64,
    #[serde(skip)]
    pub index_rebuilds: u64,
    /// Timestamp of its oldest record in a segment, in µs; 0 without one.
    #[serde(rename = "first_timestamp_us", serialize_with = "unless_zero")]
    pub first_us: u64,
    /// Timestamp of its last record in a segment, in µs; 0 without one.
    #[serde(rename = "last_timestamp_us", serialize_with = "unless_zero")]
    pub last_us: u64,
    #[serde(flatten, serialize_with = "traffic")]
    pub traffic: TrafficTotals,
    /// The first offset not archived; 0 without an archive.
    #[serde(serialize_with = "unless_zero")]
    pub archived: u64,
    /// Bytes kept only because they are not archived.
    #[serde(rename = "archive_waiting_bytes")]
    pub waiting_bytes: u64,
    /// Records removed since the start that the archive lacks, if retention waits for one.
    #[serde(rename = "archive_lost")]
    pub unarchived_lost: u64,
    /// Damages found since the start; the rest of the hub is served.
    pub damaged: Option<String>,
}

fn unless_zero<S: Serializer>(value: &u64, to: S) -> Result<S::Ok, S::Error> {
    (*value != 0).then_some(*value).serialize(to)
}

fn traffic<S: Serializer>(totals: &TrafficTotals, to: S) -> Result<S::Ok, S::Error> {
    let TrafficTotals { deliveries, bytes_in, bytes_out } = totals;
    to.collect_map([("deliveries", deliveries), ("bytes_in", bytes_in), ("bytes_out", bytes_out)])
}
