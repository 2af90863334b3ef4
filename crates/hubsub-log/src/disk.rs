//! Storage on a directory of this machine. Opening it takes the directory's
//! lock, which its end gives back: two nodes cannot share one. It may also be opened
//! to look at it only: then nothing in it is changed, not even made.

use crate::error::unopened;
use crate::storage::{Storage, StorageFile};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Name of the file that is locked.
const LOCK: &str = "lock";

/// A directory.
pub struct Disk {
    root: PathBuf,
    is_read_only: bool,
    /// The directory itself, open: its names can be made safe when no file can be opened.
    directory: File,
    /// Locked while this lives; none in a directory that never had a node.
    _lock: Option<File>,
}

impl Disk {
    /// Takes a directory, made now if need be, for itself alone.
    ///
    /// # Errors
    /// `WouldBlock`: another process has it. Others: as the system says.
    pub fn lock(root: &Path) -> io::Result<Disk> {
        fs::create_dir_all(root)?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(root.join(LOCK))?;
        take(&lock)?;
        let directory = File::open(root)?;
        Ok(Disk { root: root.to_owned(), is_read_only: false, directory, _lock: Some(lock) })
    }

    /// Takes a directory that is there, to look at it: whatever would change it fails.
    ///
    /// # Errors
    /// As for `lock`, and where there is no such directory.
    pub fn inspect(root: &Path) -> io::Result<Disk> {
        fs::read_dir(root)?;
        let lock = match File::open(root.join(LOCK)) {
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            lock => Some(lock?),
        };
        lock.as_ref().map_or(Ok(()), take)?;
        let directory = File::open(root)?;
        Ok(Disk { root: root.to_owned(), is_read_only: true, directory, _lock: lock })
    }

    fn may_write(&self) -> io::Result<()> {
        if self.is_read_only { Err(ErrorKind::ReadOnlyFilesystem.into()) } else { Ok(()) }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn names(&self, directory: &str, wanted: impl Fn(&fs::FileType) -> bool) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(self.path(directory)) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry?;
            if wanted(&entry.file_type()?)
                && let Ok(name) = entry.file_name().into_string()
            {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }
}

fn take(lock: &File) -> io::Result<()> {
    lock.try_lock().map_err(|e| match e {
        TryLockError::WouldBlock => ErrorKind::WouldBlock.into(),
        TryLockError::Error(e) => e,
    })
}

impl Storage for Disk {
    type File = File;

    fn create(&self, path: &str) -> io::Result<File> {
        self.may_write()?;
        let path = self.path(path);
        let open = || OpenOptions::new().create_new(true).read(true).write(true).open(&path);
        match open() {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                fs::create_dir_all(path.parent().expect("a file's path has a directory"))?;
                open()
            }
            file => file,
        }
        .map_err(unopened)
    }

    fn open(&self, path: &str) -> io::Result<File> {
        OpenOptions::new().read(true).write(!self.is_read_only).open(self.path(path)).map_err(unopened)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.may_write()?;
        fs::rename(self.path(from), self.path(to))
    }

    fn unlink(&self, path: &str) -> io::Result<()> {
        self.may_write()?;
        fs::remove_file(self.path(path))
    }

    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        self.names(directory, fs::FileType::is_file)
    }

    fn list_directories(&self, directory: &str) -> io::Result<Vec<String>> {
        self.names(directory, fs::FileType::is_dir)
    }

    fn sync_directory(&self, directory: &str) -> io::Result<()> {
        let mut path = self.path(directory);
        // A directory that was just made has a name in the one above it, up to the root.
        while path != self.root && path.starts_with(&self.root) {
            File::open(&path).map_err(unopened)?.sync_all()?;
            if !path.pop() {
                break;
            }
        }
        self.directory.sync_all()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(&self.root)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

impl StorageFile for File {
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<usize> {
        FileExt::write_at(self, bytes, at)
    }

    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<usize> {
        FileExt::read_at(self, bytes, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    #[cfg(target_os = "linux")]
    fn begin_sync(&self, from: u64, to: u64) {
        // Linux begins to write what is dirty there, and lets go only of what is not.
        if let Some(len) = std::num::NonZeroU64::new(to - from) {
            let _ = rustix::fs::fadvise(self, from, Some(len), rustix::fs::Advice::DontNeed);
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        File::set_len(self, len)
    }

    #[cfg(target_os = "linux")]
    fn allocate(&self, len: u64) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate};
        use rustix::io::{Errno, retry_on_intr};
        match retry_on_intr(|| fallocate(self, FallocateFlags::empty(), 0, len)) {
            // The file system or the kernel has no word for it.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.fill(len),
            done => Ok(done?),
        }
    }

    #[cfg(target_os = "linux")]
    fn read_cached_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        use rustix::io::{Errno, ReadWriteFlags, preadv2};
        match preadv2(self, &mut [io::IoSliceMut::new(into)], at, ReadWriteFlags::NOWAIT) {
            Ok(read) => Ok(read),
            // It is not in memory, or the file system cannot tell.
            Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::INTR | Errno::NOSYS) => Ok(0),
            Err(e) => Err(e.into()),
        }
    }

    fn advise(&self, at: u64, len: u64) {
        #[cfg(target_os = "linux")]
        if let Some(len) = std::num::NonZeroU64::new(len) {
            let _ = rustix::fs::fadvise(self, at, Some(len), rustix::fs::Advice::WillNeed);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (at, len);
    }

    #[cfg(target_os = "linux")]
    fn expect_pieces(&self) {
        // Linux reads nothing ahead of what it takes to be read at random, and the pieces asked for whole.
        let _ = rustix::fs::fadvise(self, 0, None, rustix::fs::Advice::Random);
    }

    #[cfg(target_os = "linux")]
    fn forget(&self, at: u64, len: u64) {
        if let Some(len) = std::num::NonZeroU64::new(len) {
            let _ = rustix::fs::fadvise(self, at, Some(len), rustix::fs::Advice::DontNeed);
        }
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LogOptions, open};
    use std::sync::Arc;

    #[test]
    fn who_only_looks_changes_nothing_and_meets_the_owner() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        assert_eq!(Disk::inspect(&root.join("none")).err().map(|e| e.kind()), Some(ErrorKind::NotFound));
        let looks = Disk::inspect(root).unwrap();
        assert!(looks.create("a").is_err() && looks.list("").unwrap().is_empty());
        let owner = Disk::lock(root).unwrap();
        FileExt::write_all_at(&owner.create("a").unwrap(), b"a", 0).unwrap();
        assert_eq!(Disk::inspect(root).err().map(|e| e.kind()), Some(ErrorKind::WouldBlock));
        drop(owner);
        let looks = Disk::inspect(root).unwrap();
        assert!(looks.unlink("a").is_err() && looks.rename("a", "b").is_err());
        assert!(FileExt::write_all_at(&looks.open("a").unwrap(), b"b", 0).is_err());
        assert_eq!(crate::storage::read(&looks, "a").unwrap(), b"a");
        assert_eq!(Disk::lock(root).err().map(|e| e.kind()), Some(ErrorKind::WouldBlock));
    }

    #[test]
    fn a_directory_has_one_owner_and_keeps_what_it_was_given() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("made/now");
        let disk = Disk::lock(&root).unwrap();
        assert_eq!(Disk::lock(&root).err().map(|e| e.kind()), Some(ErrorKind::WouldBlock));
        let options = LogOptions { journal_bytes: 10_000, ..LogOptions::default() };
        let mut log = open(Arc::new(disk), 7, options).unwrap();
        let hub = log.segments.add_hub("chat", 0, crate::Keep::Log).unwrap();
        log.segments.close().unwrap();
        drop(log.journal);

        let disk = Disk::lock(&root).unwrap();
        assert_eq!(disk.list_directories("").unwrap(), ["hubs", "journal"]);
        let log = open(Arc::new(disk), 8, options).unwrap();
        assert!(log.was_clean && log.warnings.is_empty());
        assert_eq!((log.segments.manifest().identity, log.segments.manifest().hubs[0].hub), (7, hub));
    }
}
