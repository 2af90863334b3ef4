//! Who a node is: its number, drawn once for its directory, and its cluster. A directory that was wiped makes another
//! node, which cannot vote a second time where the first one did.

use std::path::Path;

use openraft::AsyncRuntime;
use rand::Rng;

use crate::log::LogError;
use crate::log::file::{self, Kind};
use crate::runtime::Runtime;
use crate::types::{NodeId, put};

const IDENTITY: Kind = Kind { magic: b"HUBRAFTI", version: 1 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub node: NodeId,
    /// 0: none yet.
    pub cluster: u128,
}

impl Identity {
    /// The identity in a directory; a new one if there is none.
    pub fn open(directory: &Path) -> Result<Self, LogError> {
        let path = directory.join("identity");
        if let Some(body) = file::load(&path, IDENTITY)? {
            let (node, cluster) =
                postcard::from_bytes(&body).map_err(|error| LogError::damaged(&path, 0, error))?;
            return Ok(Self { node, cluster });
        }
        let new = Self { node: Self::draw() as NodeId, cluster: 0 };
        new.save(directory)?;
        Ok(new)
    }

    pub fn save(&self, directory: &Path) -> Result<(), LogError> {
        let mut body = Vec::new();
        put(&(self.node, self.cluster), &mut body);
        file::replace(&directory.join("identity"), IDENTITY, &body)
    }

    /// A number that nobody else has, and not 0 in either half.
    pub fn draw() -> u128 {
        let half = || u128::from(Runtime::thread_rng().next_u64().max(1));
        half() << 64 | half()
    }
}
