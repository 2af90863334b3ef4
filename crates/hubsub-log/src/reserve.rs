//! Space that is kept for what was acknowledged: a file takes it, so that nobody else
//! can. What is safe in the journal must get into segments even when the disk is full,
//! or it could not be read; then the file is made shorter by as much. While it has not
//! its length, the owner takes no more.

use crate::error::is_full;
use crate::storage::{Storage, StorageFile};
use std::io::{self, ErrorKind};
use std::sync::Arc;

const NAME: &str = "reserve";

/// Least that is given back at once: names and blocks take space too.
const PART_BYTES: u64 = 256 << 10;

/// Gives all of it back, where a start needs it: who recovers holds none yet.
pub(crate) fn give_back(storage: &impl Storage) {
    let _ = storage.unlink(NAME);
}

/// See the module.
pub struct Reserve<S: Storage> {
    storage: Arc<S>,
    file: Option<S::File>,
    /// Length that it should have.
    bytes: u64,
    /// Length that it has.
    len: u64,
}

impl<S: Storage> Reserve<S> {
    /// One of so many bytes; `fill` takes them.
    #[must_use]
    pub fn new(storage: Arc<S>, bytes: u64) -> Reserve<S> {
        Reserve { storage, file: None, bytes, len: 0 }
    }

    /// Whether it has its length.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.len == self.bytes
    }

    /// Takes what is missing of it; whether it is whole.
    ///
    /// # Errors
    /// Those of the storage, but for a full one.
    pub fn fill(&mut self) -> io::Result<bool> {
        if self.is_whole() {
            return Ok(true);
        }
        match self.take() {
            Ok(()) => self.len = self.bytes,
            // A file system may call so much too large for any file.
            Err(e) if is_full(&e) || e.kind() == ErrorKind::FileTooLarge => {
                // What it got before there was no more is for others.
                _ = self.file.as_ref().map(|file| file.set_len(self.len));
            }
            Err(e) => return Err(e),
        }
        Ok(self.is_whole())
    }

    fn take(&mut self) -> io::Result<()> {
        if self.file.is_none() {
            self.file = Some(match self.storage.create(NAME) {
                Err(e) if e.kind() == ErrorKind::AlreadyExists => self.storage.open(NAME)?,
                file => file?,
            });
        }
        let file = self.file.as_ref().expect("opened above");
        // A start finds it as it was left.
        file.set_len(self.len)?;
        file.allocate(self.bytes)
    }

    /// Gives so much of it back, or what is left; whether there was any.
    pub fn spend(&mut self, bytes: u64) -> bool {
        let left = self.len.saturating_sub(bytes.max(PART_BYTES));
        let Some(file) = self.file.as_ref().filter(|_| self.len > 0) else { return false };
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
            segments.apply(1, offset, &[Batch { hub, first: offset, count: 1, bytes }]);
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
            .read_back(b"r", |record| {
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
        disk.set_faults(faults(2 << 20));
        assert!(reserve.fill().unwrap() && reserve.spend(1));
        assert!(reserve.fill().unwrap());
        // A start finds the file, longer or shorter than it should be.
        for bytes in [1 << 19, 1 << 21] {
            let mut reserve = Reserve::new(Arc::clone(&disk), bytes);
            assert!(reserve.fill().unwrap());
            assert_eq!(disk.open(NAME).unwrap().len().unwrap(), bytes);
        }
    }
}
