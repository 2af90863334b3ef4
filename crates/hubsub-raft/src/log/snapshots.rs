//! The last snapshot, in the file `snapshot`, which is replaced atomically.
//!
//! ```text
//! the header of a small file; postcard: last log id, log id of the membership, membership; the store's image
//! ```

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use super::LogError;
use super::file::{self, Kind};
use crate::types::{LogId, Snapshot, SnapshotMeta, State, decode_meta, encode_meta};

const SNAPSHOT: Kind = Kind { magic: b"HUBRAFTS", version: 1 };

/// The snapshots of one node; only the newest is retained.
#[derive(Clone)]
pub(crate) struct Snapshots {
    path: PathBuf,
    last: Rc<RefCell<Option<LogId>>>,
}

impl Snapshots {
    /// Opens the snapshot in a directory and verifies it.
    pub fn open(directory: &Path) -> Result<Self, LogError> {
        let this = Self { path: directory.join("snapshot"), last: Rc::default() };
        let found = this.load()?.and_then(|snapshot| snapshot.meta.last_log_id);
        *this.last.borrow_mut() = found;
        Ok(this)
    }

    pub fn load(&self) -> Result<Option<Snapshot>, LogError> {
        let Some(body) = file::load(&self.path, SNAPSHOT)? else { return Ok(None) };
        let (meta, state) = decode_meta(&body).map_err(|what| LogError::damaged(&self.path, 0, what))?;
        let snapshot = Arc::new(state.to_vec());
        Ok(Some(Snapshot { meta, snapshot }))
    }

    /// Writes a snapshot, unless the present one is as new. `from` names the writer, as two may write at a
    /// time.
    pub async fn save(&self, from: &str, meta: &SnapshotMeta, state: State) -> Result<(), LogError> {
        if !self.newer(meta) {
            return Ok(());
        }
        let mut head = Vec::new();
        encode_meta(meta, &mut head);
        let aside = self.path.with_file_name(from);
        let write = move || file::write_aside(&aside, SNAPSHOT, &[&head, &state]);
        let aside = tokio::task::spawn_blocking(write)
            .await
            .map_err(|error| LogError::at(&self.path)(error.into()))??;
        if self.newer(meta) {
            file::publish(&aside, &self.path)?;
            *self.last.borrow_mut() = meta.last_log_id;
        }
        Ok(())
    }

    fn newer(&self, meta: &SnapshotMeta) -> bool {
        *self.last.borrow() < meta.last_log_id
    }
}
