//! The files under the log, as little as it needs of them: so that the same log
//! runs on a disk ([`crate::disk`]) and on one that loses what was not synced
//! ([`crate::sim`]).
//!
//! Paths are relative, with `/`. A directory is there once a file was made in it.
//! What is promised after a crash: bytes written before a `sync` that returned;
//! names made, renamed or unlinked before a `sync_directory` that returned.
//! Everything else may be there, in part, or not at all; a file that was renamed is
//! there under its old name, its new one, or both.

use crate::error::is_full;
use std::io::{self, ErrorKind};

/// Bytes of zeros that are written at once.
const FILL_BYTES: u64 = 1 << 20;

/// A directory of files.
pub trait Storage: Send + Sync + 'static {
    /// An open file.
    type File: StorageFile;

    /// Makes a new, empty file. Fails if there is one of that name.
    fn create(&self, path: &str) -> io::Result<Self::File>;

    /// Opens a file for reading and writing.
    fn open(&self, path: &str) -> io::Result<Self::File>;

    /// Gives a file another name, in place of what had that name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Takes a file away.
    fn unlink(&self, path: &str) -> io::Result<()>;

    /// Names of the files in a directory, in order; none if there is no such directory.
    fn list(&self, directory: &str) -> io::Result<Vec<String>>;

    /// Names of the directories in a directory, in order.
    fn list_directories(&self, directory: &str) -> io::Result<Vec<String>>;

    /// Makes the names in a directory, and its own, safe.
    fn sync_directory(&self, directory: &str) -> io::Result<()>;

    /// Bytes that may still be stored, as far as it can tell.
    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }
}

/// An open file; used by several threads.
pub trait StorageFile: Send + Sync + 'static {
    /// Writes some of `bytes` at a place, at least one; how many.
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<usize>;

    /// Reads some bytes from a place; how many, 0 at the end.
    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<usize>;

    /// Makes all bytes written before safe.
    fn sync(&self) -> io::Result<()>;

    /// What stands in a range may go to the disk, so that a `sync` later has less to do.
    fn begin_sync(&self, _from: u64, _to: u64) {}

    /// Cuts or extends (with zeros) to a length.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Extends to a length, and has the space for it.
    fn allocate(&self, len: u64) -> io::Result<()> {
        self.fill(len)
    }

    /// Reads what of a range is in memory from its begin on; 0 if nothing is, or nobody knows.
    fn read_cached_at(&self, _into: &mut [u8], _at: u64) -> io::Result<usize> {
        Ok(0)
    }

    /// Some bytes will be read soon, so that who wants many has them read at once. It
    /// need not be so, and nothing comes of it but speed.
    fn advise(&self, _at: u64, _len: u64) {}

    /// This file will be read in large pieces, each advised beforehand: the system need not guess what comes.
    fn expect_pieces(&self) {}

    /// Some bytes were read and will not be wanted soon: they need not be kept in memory.
    fn forget(&self, _at: u64, _len: u64) {}

    /// Its length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Whether it is empty.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Writes all of `bytes` at a place.
    fn write_all_at(&self, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.write_at(bytes, at) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => {
                    bytes = &bytes[n..];
                    at += n as u64;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Extends to a length with zeros that are written.
    fn fill(&self, len: u64) -> io::Result<()> {
        let mut at = self.len()?;
        let zeros = vec![0; FILL_BYTES.min(len.saturating_sub(at)) as usize];
        while at < len {
            let n = (len - at).min(FILL_BYTES);
            self.write_all_at(&zeros[..n as usize], at)?;
            at += n;
        }
        Ok(())
    }

    /// Reads until `bytes` is full or the file ends; how many.
    fn read_full_at(&self, bytes: &mut [u8], at: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < bytes.len() {
            match self.read_at(&mut bytes[done..], at + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }
}

/// Puts a whole small file in place of another of its name: after a crash there
/// is the old one or the new one.
///
/// # Errors
/// Those of the storage. One that is full: the old file stands.
pub fn replace(storage: &impl Storage, directory: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
    let path = join(directory, name);
    let new = format!("{path}.new");
    match storage.unlink(&new) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let file = storage.create(&new)?;
    if let Err(e) = file.write_all_at(bytes, 0).and_then(|()| file.sync()) {
        // On a full disk it would take what little there is.
        let _ = storage.unlink(&new);
        return Err(e);
    }
    storage.rename(&new, &path)?;
    // Which of the two a crash would leave is not known now: no reason to try again.
    storage.sync_directory(directory).map_err(|e| if is_full(&e) { io::Error::other(e) } else { e })
}

/// All bytes of a file.
///
/// # Errors
/// Those of the storage.
pub fn read(storage: &impl Storage, path: &str) -> io::Result<Vec<u8>> {
    let file = storage.open(path)?;
    let mut bytes = vec![0; usize::try_from(file.len()?).map_err(|_| ErrorKind::FileTooLarge)?];
    let n = file.read_full_at(&mut bytes, 0)?;
    bytes.truncate(n);
    Ok(bytes)
}

/// A path in a directory; the root is the empty one.
#[must_use]
pub fn join(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}
