//! The manifest: what a data directory holds. It is replaced as a whole, so it is
//! either the old one or the new one; every other file is judged by it.

use crate::storage::{self, Storage};
use crate::{FORMAT, LogError};
use hubsub_types::HubId;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;

const NAME: &str = "manifest.json";

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the directory's format.
    pub format: u32,
    /// Of this directory, at random.
    pub identity: u64,
    /// The last frame, if the node stopped cleanly.
    pub clean: Option<u64>,
    /// First and last journal file in use.
    pub journals: (u64, u64),
    /// Every frame up to this one is in segments.
    pub checkpoint: u64,
    /// Under which rules every room is in the hub that they say; 0: nobody has looked.
    pub rules: u64,
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
}

/// How a hub's id is written.
#[derive(Serialize, Deserialize)]
#[serde(remote = "HubId")]
struct HubNumber(u32);

/// What the manifest says of a segment: first offset, and bytes that are safe.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SegmentEntry(pub u64, pub u64);

impl Manifest {
    /// Of a new directory.
    #[must_use]
    pub fn new(identity: u64) -> Manifest {
        Manifest {
            format: FORMAT,
            identity,
            clean: None,
            journals: (1, 0),
            checkpoint: 0,
            rules: 0,
            hubs: Vec::new(),
        }
    }

    /// The manifest of a directory; none if it has none.
    ///
    /// # Errors
    /// It cannot be read, is damaged, or is of a newer format.
    pub fn load(storage: &impl Storage) -> Result<Option<Manifest>, LogError> {
        let bytes = match storage::read(storage, NAME) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            bytes => bytes.map_err(|e| LogError::io("cannot read the manifest", e))?,
        };
        let damaged = |why: &str| LogError::Damaged { path: NAME.to_owned(), at: 0, why: why.to_owned() };
        let text = std::str::from_utf8(&bytes).map_err(|_| damaged("it is not text"))?;
        let (json, checksum) = text.split_once('\n').ok_or_else(|| damaged("it has no checksum"))?;
        if checksum.strip_suffix('\n') != Some(format!("{:08x}", crc32c::crc32c(json.as_bytes())).as_str()) {
            return Err(damaged("its checksum is of other bytes"));
        }
        /// Of any version.
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let version: Version = serde_json::from_str(json).map_err(|e| damaged(&e.to_string()))?;
        if version.format > FORMAT {
            return Err(LogError::NewerFormat {
                path: NAME.to_owned(),
                found: version.format,
                known: FORMAT,
            });
        }
        serde_json::from_str(json).map(Some).map_err(|e| damaged(&e.to_string()))
    }

    /// Puts this one in place of the one before.
    ///
    /// # Errors
    /// Those of the storage; the one before stands.
    pub fn store(&self, storage: &impl Storage) -> Result<(), LogError> {
        let json = serde_json::to_string(self).expect("numbers and strings only");
        let text = format!("{json}\n{:08x}\n", crc32c::crc32c(json.as_bytes()));
        storage::replace(storage, "", NAME, text.as_bytes())
            .map_err(|e| LogError::storage("cannot write the manifest", e))
    }

    /// The entry of a hub.
    #[must_use]
    pub fn hub(&self, hub: HubId) -> Option<&HubEntry> {
        self.hubs.iter().find(|entry| entry.hub == hub)
    }
}

impl HubEntry {
    /// Of a hub without records.
    #[must_use]
    pub fn new(hub: HubId, class: &str, index: u16) -> HubEntry {
        HubEntry {
            hub,
            class: class.to_owned(),
            index,
            segments: Vec::new(),
            next: 1,
            earliest: 1,
            continuous_from: 1,
            quarantined: None,
        }
    }
}
