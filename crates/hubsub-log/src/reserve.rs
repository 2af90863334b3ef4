//! A file that reserves disk space for acknowledged records. Records that are safe in the journal must get
//! into segments even when the disk is full, or they could not be read; then the file is shortened by as
//! much. While the file is shorter than configured, the log takes no new records.
//!
//! A part of it is left for a start: a node that is killed while the disk is full writes its manifest there,
//! and reserves the space again afterwards.

use crate::error::is_full;
use crate::storage::{Storage, StorageFile};
use std::io::{self, ErrorKind};
use std::sync::Arc;

const NAME: &str = "reserve";

/// Least space to release at once: names and blocks take space, too.
const PART_BYTES: u64 = 256 << 10;

/// Space that a start needs if everything is in segments already: a manifest beside the old one.
const START_BYTES: u64 = 1 << 20;

/// Length of the file for a configured reserve of `bytes`.
pub(crate) fn len(bytes: u64) -> u64 {
    if bytes > 0 { bytes.saturating_add(START_BYTES) } else { 0 }
}

/// Releases the whole reserve for a start. No [`Reserve`] exists yet.
pub(crate) fn give_back(storage: &impl Storage) {
    let _ = storage.unlink(NAME);
}

pub struct Reserve<S: Storage> {
    storage: Arc<S>,
    file: Option<S::File>,
    bytes: u64,
    len: u64,
}

impl<S: Storage> Reserve<S> {
    /// A reserve of `bytes` plus the space for a start; `fill` allocates it.
    pub fn new(storage: Arc<S>, bytes: u64) -> Reserve<S> {
        Reserve { storage, file: None, bytes: len(bytes), len: 0 }
    }

    pub fn is_whole(&self) -> bool {
        self.len == self.bytes
    }

    pub fn missing(&self) -> u64 {
        self.bytes - self.len.min(self.bytes)
    }

    /// Allocates the missing bytes; returns whether the reserve is complete.
    ///
    /// # Errors
    /// Errors of the storage, except a full disk.
    pub fn fill(&mut self) -> io::Result<bool> {
        if self.is_whole() {
            return Ok(true);
        }
        match self.hold(self.bytes) {
            // Some file systems report this when the space would exceed any file.
            Err(e) if is_full(&e) || e.kind() == ErrorKind::FileTooLarge => Ok(false),
            held => held.map(|()| self.is_whole()),
        }
    }

    /// Allocates the space that a start needs, if available, before other files use it.
    pub fn keep_for_start(&mut self) {
        let _ = self.hold(self.bytes.min(START_BYTES));
    }

    pub fn give_back(&mut self) {
        if self.find().is_ok()
            && let Some(file) = &self.file
            && file.set_len(0).is_ok()
        {
            self.len = 0;
        }
    }

    /// Releases the space for a start while `borrower` runs, which needs space only for a moment.
    pub fn lend<T>(&mut self, borrower: impl FnOnce() -> T) -> T {
        let held = self.find().map_or(0, |()| self.len);
        let is_lent = held > 0
            && self.file.as_ref().is_some_and(|file| file.set_len(held.saturating_sub(START_BYTES)).is_ok());
        let done = borrower();
        if is_lent {
            self.len = held.saturating_sub(START_BYTES);
            let _ = self.hold(held);
        }
        done
    }

    /// Opens the file that an earlier run left, if any.
    fn find(&mut self) -> io::Result<()> {
        if self.file.is_none() {
            self.file = match self.storage.open(NAME) {
                Err(e) if e.kind() == ErrorKind::NotFound => None,
                file => Some(file?),
            };
        }
        self.len = self.file.as_ref().map_or(Ok(0), StorageFile::len)?.min(self.bytes);
        Ok(())
    }

    /// Extends the file to a length, if there is space.
    fn hold(&mut self, bytes: u64) -> io::Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.find()?;
        let held = self.len.min(bytes);
        // A failing allocation first takes all free space, so that for a moment nothing else could be
        // written.
        if self.storage.free_bytes().unwrap_or(u64::MAX) < bytes - held {
            return Ok(());
        }
        if self.file.is_none() {
            self.file = Some(self.storage.create(NAME)?);
        }
        let file = self.file.as_ref().expect("made above");
        file.set_len(held)?;
        let taken = file.allocate(bytes);
        self.len = if taken.is_ok() { bytes } else { held };
        if taken.is_err() {
            // Release what it allocated before the space ran out.
            let _ = file.set_len(held);
        }
        taken
    }

    /// Releases that many bytes, or all except the space for a start; returns whether it released any.
    pub fn spend(&mut self, bytes: u64) -> bool {
        let left = self.len.saturating_sub(bytes.max(PART_BYTES)).max(START_BYTES);
        let Some(file) = self.file.as_ref().filter(|_| self.len > left) else { return false };
        let is_spent = file.set_len(left).is_ok();
        if is_spent {
            self.len = left;
        }
        is_spent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Faults, SimDisk};
    use crate::{Batch, Keep, LogError, LogOptions, Record, open, record};
    use std::ops::ControlFlow;

    fn faults(free: u64) -> Faults {
        Faults { free_bytes: Some(free), ..Faults::default() }
    }

    #[test]
    fn what_was_taken_before_the_disk_was_full_is_written_and_read() {
        let disk = Arc::new(SimDisk::default());
        let options = LogOptions { reserve_bytes: 1 << 20, journal_bytes: 64 << 10, ..LogOptions::default() };
        let mut segments = open(Arc::clone(&disk), 7, options).unwrap().segments;
        let hub = segments.add_hub("chat", 0, Keep::Log).unwrap();
        assert!(segments.keep_reserve().unwrap());
        disk.set_faults(faults(0));
        let mut say = |offset: u64| {
            let payload = vec![0; 300_000];
            let record = Record {
                hub,
                offset,
                epoch: 1,
                seq: offset,
                room: b"r",
                topic: b"r",
                payload: &payload,
                ..Record::default()
            };
            let mut bytes = Vec::new();
            record::encode(&record, &mut bytes);
            segments.apply(1, offset, vec![Batch { hub, first: offset, count: 1, bytes }]);
            let flushed = segments.flush();
            (flushed, segments.keep_reserve().unwrap())
        };
        for offset in 1..=3 {
            let (flushed, is_whole) = say(offset);
            assert!(flushed.is_ok() && !is_whole, "{flushed:?}");
        }
        assert!(matches!(say(4).0, Err(LogError::Full)), "more than the reserve does not fit");
        let mut seqs = Vec::new();
        let chain = segments.chain(hub).unwrap();
        chain
            .read_back_from(b"r", &mut None, u64::MAX, |record| {
                seqs.push(record.seq);
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(seqs, [3, 2, 1]);
        disk.set_faults(Faults::default());
        assert!(segments.flush().is_ok() && segments.keep_reserve().unwrap());
        assert_eq!(chain.info().next, 5);
    }

    #[test]
    fn what_nobody_has_room_for_is_not_kept() {
        let disk = Arc::new(SimDisk::default());
        disk.set_faults(faults(100_000));
        let mut reserve = Reserve::new(Arc::clone(&disk), 1 << 20);
        assert!(!reserve.fill().unwrap() && !reserve.spend(1));
        disk.set_faults(faults(4 << 20));
        assert!(reserve.fill().unwrap() && reserve.spend(1));
        assert!(reserve.fill().unwrap());
        // After a restart the file may be longer or shorter than configured.
        for bytes in [1 << 19, 1 << 21] {
            let mut reserve = Reserve::new(Arc::clone(&disk), bytes);
            assert!(reserve.fill().unwrap());
            assert_eq!(disk.open(NAME).unwrap().len().unwrap(), bytes + START_BYTES);
        }
    }

    #[test]
    fn what_there_is_no_room_for_is_not_tried_so_that_others_have_what_is_left() {
        let disk = Arc::new(SimDisk::default());
        disk.set_faults(Faults { fails_after: Some(0), ..faults(1 << 20) });
        let mut reserve = Reserve::new(Arc::clone(&disk), 1 << 20);
        assert!(!reserve.fill().unwrap() && disk.paths().is_empty());
        disk.set_faults(Faults::default());
        assert!(reserve.fill().unwrap());
        assert!(reserve.spend(1 << 20));
        // A part is kept while the rest is not available.
        disk.set_faults(faults(0));
        let mut found = Reserve::new(Arc::clone(&disk), 1 << 20);
        assert!(!found.fill().unwrap());
        assert_eq!(disk.open(NAME).unwrap().len().unwrap(), START_BYTES);
        assert!(!found.spend(1), "that is for a start");
    }
}
