//! The manifest: what a data directory holds. It is replaced as a whole, so it is
//! either the old one or the new one; every other file is judged by it.
//!
//! What it says of hubs that no other file tells, their classes, stands once more in
//! a file of each hub ([`HubFile`]): so that a manifest that is lost can be made again.

use crate::segment;
use crate::storage::{self, Storage};
use crate::{FORMAT, LogError};
use hubsub_types::HubId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display, Formatter};
use std::io::ErrorKind;

pub(crate) const NAME: &str = "manifest.json";

/// Name of a hub's own file, in its directory.
pub(crate) const HUB_NAME: &str = "hub.json";

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the directory's format.
    pub format: u32,
    /// Of this directory, at random.
    pub identity: u64,
    /// Id of the cluster that numbers its hubs; none: its node does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The last frame, if the node stopped cleanly.
    pub clean: Option<u64>,
    /// First and last journal file in use.
    pub journals: (u64, u64),
    /// Every frame up to this one is in segments.
    pub checkpoint: u64,
    /// Under which rules every room is in the hub that they say; 0: nobody has looked.
    pub rules: u64,
    /// Journals that are put aside, since a quarantined hub needs them: those that are not yet
    /// were left by a start that was cut short.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aside: Vec<u64>,
    /// The hubs, by id.
    pub hubs: Vec<HubEntry>,
}

/// What the manifest says of a hub.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HubEntry {
    /// Its id.
    #[serde(with = "HubNumber")]
    pub hub: HubId,
    /// Name of its class.
    pub class: String,
    /// Which of the class's hubs it is.
    pub index: u16,
    /// What it keeps.
    #[serde(default)]
    pub keep: Keep,
    /// How far it is compacted, if it keeps the latest.
    #[serde(default)]
    pub compacted: Compacted,
    /// Sealed segments, oldest first, and the open one.
    pub segments: Vec<SegmentEntry>,
    /// Offset of the record behind the checkpoint.
    pub next: u64,
    /// Records below this offset were removed by retention.
    pub earliest: u64,
    /// Rooms whose last record is below this offset begin a new epoch with their next
    /// one: what was acknowledged behind it may be missing.
    pub continuous_from: u64,
    /// Why its records are not complete, if they are not.
    pub quarantined: Option<String>,
    /// Offsets whose loss an operator has accepted: between two segments, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<Lost>,
}

/// Offsets that are lost: the first and the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lost(pub u64, pub u64);

/// What of these a hub's segment ends before, when the next one begins with offset
/// `next_first`: there, or where records before that are lost.
#[must_use]
pub fn end_before(lost: &[Lost], next_first: u64) -> u64 {
    lost.iter().find(|lost| lost.1 + 1 == next_first).map_or(next_first, |lost| lost.0)
}

/// What the manifest says of a hub that cannot be told from its records.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HubFile {
    /// Version of the directory's format.
    pub format: u32,
    /// Identity of the directory.
    pub identity: u64,
    /// Id of the cluster that numbers its hubs, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The hub.
    #[serde(with = "HubNumber")]
    pub hub: HubId,
    /// Name of its class.
    pub class: String,
    /// Which of the class's hubs it is.
    pub index: u16,
    /// What it keeps.
    #[serde(default)]
    pub keep: Keep,
}

/// What a hub is called: it is these three for ever.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HubName {
    /// Its id, in the whole cluster.
    pub hub: HubId,
    /// Name of its class.
    pub class: String,
    /// Which of the class's hubs it is.
    pub index: u16,
}

impl Display for HubName {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "hub {} ({}-{})", self.hub.0, self.class, self.index)
    }
}

/// How a hub's id is written.
#[derive(Serialize, Deserialize)]
#[serde(remote = "HubId")]
struct HubNumber(u32);

/// What a hub keeps of its records.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Keep {
    /// All, as far as retention lets it.
    #[default]
    Log,
    /// The latest of each key, which is the pair of room and topic, for ever.
    Latest,
}

/// How far a hub is compacted.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Compacted {
    /// Below this offset no key has two records.
    pub to: u64,
    /// Pairs of an offset and a time in µs: from that time on there was, below the offset,
    /// nothing that a later record replaces. Oldest first. A tombstone there is the
    /// first that a read which began later can find of its key.
    pub settled: Vec<(u64, u64)>,
}

/// What the manifest says of a segment: first offset, bytes that are safe, generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SegmentEntry(pub u64, pub u64, #[serde(default)] pub u32);

impl SegmentEntry {
    /// What its files are named by.
    #[must_use]
    pub fn name(&self) -> segment::Name {
        segment::Name { first: self.0, generation: self.2 }
    }
}

impl Manifest {
    /// Of a new directory.
    #[must_use]
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

    /// The manifest of a directory; none if it has none.
    ///
    /// # Errors
    /// It cannot be read, is damaged, or is of a newer format.
    pub fn load(storage: &impl Storage) -> Result<Option<Manifest>, LogError> {
        load(storage, NAME)
    }

    /// Puts this one in place of the one before.
    ///
    /// # Errors
    /// Those of the storage. [`LogError::Full`]: the one before stands.
    pub fn store(&self, storage: &impl Storage) -> Result<(), LogError> {
        storage::replace(storage, "", NAME, checked(self).as_bytes())
            .map_err(|e| LogError::storage("cannot write the manifest", e))
    }

    /// The entry of a hub.
    #[must_use]
    pub fn hub(&self, hub: HubId) -> Option<&HubEntry> {
        self.hubs.iter().find(|entry| entry.hub == hub)
    }

    /// The file that says the same of a hub.
    #[must_use]
    pub fn file_of(&self, entry: &HubEntry) -> HubFile {
        let HubEntry { hub, index, keep, .. } = *entry;
        let (identity, cluster) = (self.identity, self.cluster.clone());
        HubFile { format: FORMAT, identity, cluster, hub, class: entry.class.clone(), index, keep }
    }
}

impl HubEntry {
    /// Of a hub without records.
    #[must_use]
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

    /// Whether records may be gone from it that later ones replaced.
    #[must_use]
    pub fn was_compacted(&self) -> bool {
        let stands_for_others = |segment: &SegmentEntry| segment.2 > 0;
        self.keep == Keep::Latest && (self.compacted.to > 0 || self.segments.iter().any(stands_for_others))
    }

    /// Offset behind the records of one of its segments, up to the checkpoint.
    #[must_use]
    pub fn end_of(&self, segment: usize) -> u64 {
        self.segments.get(segment + 1).map_or(self.next, |next| end_before(&self.lost, next.0))
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> HubName {
        HubName { hub: self.hub, class: self.class.clone(), index: self.index }
    }
}

impl HubFile {
    /// That of a hub; none if it has none.
    ///
    /// # Errors
    /// As for a manifest.
    pub fn load(storage: &impl Storage, hub: HubId) -> Result<Option<HubFile>, LogError> {
        load(storage, &storage::join(&segment::directory(hub), HUB_NAME))
    }

    /// Puts it into the hub's directory.
    ///
    /// # Errors
    /// Those of the storage.
    pub fn store(&self, storage: &impl Storage) -> Result<(), LogError> {
        storage::replace(storage, &segment::directory(self.hub), HUB_NAME, checked(self).as_bytes())
            .map_err(|e| LogError::storage("cannot write what a hub is", e))
    }
}

/// JSON in one line, and a line with its checksum.
fn checked(value: &impl Serialize) -> String {
    let json = serde_json::to_string(value).expect("numbers and strings only");
    format!("{json}\n{:08x}\n", crc32c::crc32c(json.as_bytes()))
}

/// What `checked` wrote into a file, if there is one.
fn load<T: DeserializeOwned>(storage: &impl Storage, path: &str) -> Result<Option<T>, LogError> {
    /// Of any version.
    #[derive(Deserialize)]
    struct Version {
        format: u32,
    }
    let bytes = match storage::read(storage, path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        bytes => bytes.map_err(|e| LogError::io("cannot read a file", e))?,
    };
    let damaged = |why: &str| LogError::Damaged { path: path.to_owned(), at: 0, why: why.to_owned() };
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
