//! Identity of a node: its id, drawn once for its directory, and its cluster. A wiped directory gets a new
//! id, so that node cannot vote a second time in the name of the first.

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
    /// 0 if the node is in no cluster yet.
    pub cluster: u128,
}

impl Identity {
    /// Reads the identity in a directory; creates one if there is none.
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

    /// A random number that is unique in practice, with neither half 0.
    pub fn draw() -> u128 {
        let half = || u128::from(Runtime::thread_rng().next_u64().max(1));
        half() << 64 | half()
    }
}

/// A file that exists while this node bootstraps its cluster: created before the cluster's id is stored,
/// removed after its first entry is on disk. If a node has a cluster but neither an entry nor this file, it
/// has joined the cluster.
pub(crate) struct Bootstrap(PathBuf);

impl Bootstrap {
    /// The file in a node's directory.
    pub fn of(directory: &Path) -> Self {
        Self(directory.join("bootstrap"))
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
