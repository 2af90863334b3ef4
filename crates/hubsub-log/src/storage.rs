//! The file operations that the log needs, no more, so that the same log runs on a disk ([`crate::disk`]) and
//! on one that loses unsynced data (`tests/support/sim.rs`).
//!
//! Paths are relative, with `/`. A directory exists once a file was created in it. Guaranteed after a crash:
//! bytes written before a `sync` that returned; names created, renamed or unlinked before a `sync_directory`
//! that returned. Anything else may exist, in part or not at all; a renamed file exists under its old name,
//! its new one, or both.

use crate::error::is_full;
pub use crate::error::unopened;
use std::io::{self, ErrorKind};

/// Zeros per write in [`StorageFile::zero`].
const FILL_BYTES: u64 = 1 << 20;

pub trait Storage: Send + Sync + 'static {
    type File: StorageFile;

    /// Creates an empty file. Fails if one of that name exists.
    fn create(&self, path: &str) -> io::Result<Self::File>;

    fn open(&self, path: &str) -> io::Result<Self::File>;

    /// Renames a file and replaces a file that has the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    fn unlink(&self, path: &str) -> io::Result<()>;

    /// Sorted names of the files in a directory; none if there is no such directory.
    fn list(&self, directory: &str) -> io::Result<Vec<String>>;

    /// Sorted names of the directories in a directory.
    fn list_directories(&self, directory: &str) -> io::Result<Vec<String>>;

    /// Makes the names in a directory, and its own name, safe.
    fn sync_directory(&self, directory: &str) -> io::Result<()>;

    /// Free bytes of the storage; `u64::MAX` if unknown.
    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }
}

pub trait StorageFile: Send + Sync + 'static {
    /// Writes at least one byte of `bytes` at a position; returns how many.
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<usize>;

    /// Reads some bytes at a position; returns how many, 0 at the end.
    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<usize>;

    /// Makes all bytes written so far safe.
    fn sync(&self) -> io::Result<()>;

    /// Starts to write back a range, so that a later `sync` has less to do.
    fn begin_sync(&self, _from: u64, _to: u64) {}

    /// Truncates or extends (with zeros) to a length.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Extends to a length and allocates the space.
    fn allocate(&self, len: u64) -> io::Result<()> {
        self.fill(len)
    }

    /// Reads the part of a range that is in memory, from its start on; 0 if none is or this is unknown.
    fn read_cached_at(&self, _into: &mut [u8], _at: u64) -> io::Result<usize> {
        Ok(0)
    }

    /// Announces a read, so that several ranges can be read ahead at once. Affects speed only.
    fn advise(&self, _at: u64, _len: u64) {}

    /// The file will be read in large ranges, each announced with `advise`, so the system need not read
    /// ahead.
    fn expect_pieces(&self) {}

    /// The bytes were read and will not be needed soon, so the page cache can drop them.
    fn forget(&self, _at: u64, _len: u64) {}

    fn len(&self) -> io::Result<u64>;

    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

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

    /// Extends to a length by writing zeros.
    fn fill(&self, len: u64) -> io::Result<()> {
        self.zero(self.len()?, len)
    }

    fn zero(&self, mut at: u64, end: u64) -> io::Result<()> {
        let zeros = vec![0; FILL_BYTES.min(end.saturating_sub(at)) as usize];
        while at < end {
            let n = (end - at).min(FILL_BYTES);
            self.write_all_at(&zeros[..n as usize], at)?;
            at += n;
        }
        Ok(())
    }

    /// Reads until `bytes` is full or the file ends; returns how many bytes.
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

/// Replaces a whole small file: after a crash the old one or the new one exists.
///
/// # Errors
/// Errors of the storage. If it is full, the old file is still in place.
pub fn replace(storage: &impl Storage, directory: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
    let path = join(directory, name);
    let new = format!("{path}.new");
    match storage.unlink(&new) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let file = storage.create(&new)?;
    if let Err(e) = file.write_all_at(bytes, 0).and_then(|()| file.sync()) {
        // On a full disk the new file would use the little space that is left.
        let _ = storage.unlink(&new);
        return Err(e);
    }
    storage.rename(&new, &path)?;
    // It is unknown which of the two a crash would leave, so this must not look like a retryable full disk.
    storage.sync_directory(directory).map_err(|e| if is_full(&e) { io::Error::other(e) } else { e })
}

/// Reads a whole file.
///
/// # Errors
/// Errors of the storage.
pub fn read(storage: &impl Storage, path: &str) -> io::Result<Vec<u8>> {
    let file = storage.open(path)?;
    let mut bytes = vec![0; usize::try_from(file.len()?).map_err(|_| ErrorKind::FileTooLarge)?];
    let n = file.read_full_at(&mut bytes, 0)?;
    bytes.truncate(n);
    Ok(bytes)
}

/// A path in a directory; the empty string is the root.
#[must_use]
pub fn join(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}
