//! Who a node is: its number, drawn once for its directory, and its cluster. A directory that was wiped makes another
//! node, which cannot vote a second time where the first one did.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

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

/// A file that is there while this node founds its cluster: from before it names that to after its first entry is on
/// disk. Without it a node with a cluster and no entry is one that was let in.
pub(crate) struct Founding(PathBuf);

impl Founding {
    /// That of a node's directory.
    pub fn of(directory: &Path) -> Self {
        Self(directory.join("founding"))
    }

    pub fn is_begun(&self) -> bool {
        self.0.exists()
    }

    pub fn begin(&self) -> io::Result<()> {
        File::create(&self.0)?.sync_all()?;
        self.sync_directory()
    }

    pub fn end(&self) -> io::Result<()> {
        match fs::remove_file(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            ended => ended,
        }
    }

    fn sync_directory(&self) -> io::Result<()> {
        let directory = self.0.parent().expect("it is in the node's directory");
        File::open(directory)?.sync_all()
    }
}
