//! The manifest lists the contents of a data directory. It is replaced atomically, so a crash leaves the old
//! one or the new one; every other file is judged by it.
//!
//! A file per hub ([`HubFile`]) repeats the hub's class, which no other file has, so that a lost manifest can
//! be rebuilt.

use crate::error::Context;
use crate::segment;
use crate::storage::{self, Storage};
use crate::{FORMAT, LogError, Result};
use hubsub_types::HubId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display, Formatter};
use std::io::ErrorKind;

pub(crate) const NAME: &str = "manifest.json";

/// File in a hub's directory that stores its [`HubFile`].
pub(crate) const HUB_NAME: &str = "hub.json";

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Manifest {
    pub format: u32,
    pub identity: u64,
    /// Id of the cluster that assigns hub ids; none if the node assigns them itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Number of the last frame, if the node stopped cleanly.
    pub clean: Option<u64>,
    /// First and last journal file in use.
    pub journals: (u64, u64),
    /// Every frame up to this one is in segments.
    pub checkpoint: u64,
    /// Fingerprint of the class rules under which every room was verified to be in the right hub; 0 if not
    /// verified.
    pub rules: u64,
    /// Journals to put aside, since a quarantined hub needs them. Those that are still in the journal
    /// directory were left there by an interrupted start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aside: Vec<u64>,
    pub hubs: Vec<HubEntry>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HubEntry {
    #[serde(with = "HubNumber")]
    pub hub: HubId,
    pub class: String,
    /// Number of the hub within its class.
    pub index: u16,
    #[serde(default)]
    pub keep: Keep,
    /// How far the hub is compacted, if it keeps the latest of each key.
    #[serde(default)]
    pub compacted: Compacted,
    /// Sealed segments, oldest first, then the open one.
    pub segments: Vec<SegmentEntry>,
    /// Offset after the last record in the checkpoint.
    pub next: u64,
    /// Retention removed the records below this offset.
    pub earliest: u64,
    /// Rooms whose last record is below this offset begin a new epoch with their next record: acknowledged
    /// records after it may be missing.
    pub continuous_from: u64,
    pub quarantined: Option<String>,
    /// Offsets whose loss an operator has accepted: between two segments, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<Lost>,
}

/// First and last of a range of lost offsets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lost(pub u64, pub u64);

/// End of the segment before the one that begins with offset `next_first`: that offset, or the start of the
/// lost range directly before it.
#[must_use]
pub fn end_before(lost: &[Lost], next_first: u64) -> u64 {
    lost.iter().find(|lost| lost.1 + 1 == next_first).map_or(next_first, |lost| lost.0)
}

/// The part of a hub's manifest entry that its records do not show.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HubFile {
    pub format: u32,
    pub identity: u64,
    /// Id of the cluster that assigns hub ids, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    #[serde(with = "HubNumber")]
    pub hub: HubId,
    pub class: String,
    /// Number of the hub within its class.
    pub index: u16,
    #[serde(default)]
    pub keep: Keep,
}

/// Identity of a hub; none of the three fields ever changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HubName {
    /// Unique in the whole cluster.
    pub hub: HubId,
    pub class: String,
    /// Number of the hub within its class.
    pub index: u16,
}

impl Display for HubName {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "hub {} ({}-{})", self.hub.0, self.class, self.index)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "HubId")]
struct HubNumber(u32);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Keep {
    /// All records within the limits of retention.
    #[default]
    Log,
    /// The latest record of each key (pair of room and topic), for ever.
    Latest,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Compacted {
    /// Below this offset every key has at most one record.
    pub to: u64,
    /// Pairs (offset, time in µs), oldest first: since that time, no record below the offset is replaced
    /// by another one below it. So a tombstone below the offset is the first record of its key that a later
    /// read can find.
    pub settled: Vec<(u64, u64)>,
}

/// A segment in the manifest: first offset, safe bytes, generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SegmentEntry(pub u64, pub u64, #[serde(default)] pub u32);

impl SegmentEntry {
    pub fn name(&self) -> segment::Name {
        segment::Name { first: self.0, generation: self.2 }
    }
}

impl Manifest {
    pub fn new(identity: u64) -> Manifest {
        Manifest {
            format: FORMAT,
            identity,
            cluster: None,
            clean: None,
            journals: (1, 0),
            checkpoint: 0,
            rules: 0,
            aside: Vec::new(),
            hubs: Vec::new(),
        }
    }

    /// Reads the manifest of a directory; none if there is none.
    ///
    /// # Errors
    /// It cannot be read, is damaged, or has a newer format.
    pub fn load(storage: &impl Storage) -> Result<Option<Manifest>> {
        load(storage, NAME)
    }

    /// Replaces the stored manifest with this one.
    ///
    /// # Errors
    /// Errors of the storage. After [`LogError::Full`], the previous manifest is still in place.
    pub fn store(&self, storage: &impl Storage) -> Result<()> {
        storage::replace(storage, "", NAME, checked(self).as_bytes()).storage("cannot write the manifest")
    }

    pub fn hub(&self, hub: HubId) -> Option<&HubEntry> {
        self.hubs.iter().find(|entry| entry.hub == hub)
    }

    pub(crate) fn hub_mut(&mut self, hub: HubId) -> Option<&mut HubEntry> {
        self.hubs.iter_mut().find(|entry| entry.hub == hub)
    }

    pub fn file_of(&self, entry: &HubEntry) -> HubFile {
        let HubEntry { hub, index, keep, .. } = *entry;
        let (identity, cluster) = (self.identity, self.cluster.clone());
        HubFile { format: FORMAT, identity, cluster, hub, class: entry.class.clone(), index, keep }
    }
}

impl HubEntry {
    pub fn new(hub: HubId, class: &str, index: u16, keep: Keep) -> HubEntry {
        HubEntry {
            hub,
            class: class.to_owned(),
            index,
            keep,
            compacted: Compacted::default(),
            segments: Vec::new(),
            next: 1,
            earliest: 1,
            continuous_from: 1,
            quarantined: None,
            lost: Vec::new(),
        }
    }

    /// Whether compaction may have removed replaced records from the hub.
    pub fn was_compacted(&self) -> bool {
        let stands_for_others = |segment: &SegmentEntry| segment.2 > 0;
        self.keep == Keep::Latest && (self.compacted.to > 0 || self.segments.iter().any(stands_for_others))
    }

    /// Offset after the records of one of its segments, up to the checkpoint.
    pub fn end_of(&self, segment: usize) -> u64 {
        self.segments.get(segment + 1).map_or(self.next, |next| end_before(&self.lost, next.0))
    }

    pub fn name(&self) -> HubName {
        HubName { hub: self.hub, class: self.class.clone(), index: self.index }
    }
}

impl HubFile {
    /// Reads the file of a hub; none if there is none.
    ///
    /// # Errors
    /// As for [`Manifest::load`].
    pub fn load(storage: &impl Storage, hub: HubId) -> Result<Option<HubFile>> {
        load(storage, &storage::join(&segment::directory(hub), HUB_NAME))
    }

    /// Writes it to the hub's directory.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn store(&self, storage: &impl Storage) -> Result<()> {
        storage::replace(storage, &segment::directory(self.hub), HUB_NAME, checked(self).as_bytes())
            .storage("cannot write what a hub is")
    }
}

/// One line of JSON, then a line with its checksum.
fn checked(value: &impl Serialize) -> String {
    let json = serde_json::to_string(value).expect("numbers and strings only");
    format!("{json}\n{:08x}\n", crc32c::crc32c(json.as_bytes()))
}

/// Reads a value that [`checked`] wrote to a file, if there is one.
fn load<T: DeserializeOwned>(storage: &impl Storage, path: &str) -> Result<Option<T>> {
    /// The only field that every version has.
    #[derive(Deserialize)]
    struct Version {
        format: u32,
    }
    let bytes = match storage::read(storage, path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        bytes => bytes.io("cannot read a file")?,
    };
    let damaged = |why: &str| LogError::damaged(path, 0, why);
    let text = std::str::from_utf8(&bytes).map_err(|_| damaged("it is not text"))?;
    let (json, checksum) = text.split_once('\n').ok_or_else(|| damaged("it has no checksum"))?;
    if checksum.strip_suffix('\n') != Some(format!("{:08x}", crc32c::crc32c(json.as_bytes())).as_str()) {
        return Err(damaged("its checksum is of other bytes"));
    }
    let version: Version = serde_json::from_str(json).map_err(|e| damaged(&e.to_string()))?;
    if version.format > FORMAT {
        return Err(LogError::NewerFormat { path: path.to_owned(), found: version.format, known: FORMAT });
    }
    serde_json::from_str(json).map(Some).map_err(|e| damaged(&e.to_string()))
}
