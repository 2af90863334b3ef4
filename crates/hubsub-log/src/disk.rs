//! Storage in a directory of this machine. It holds a lock on the directory until it is dropped, so two nodes
//! cannot share one. A read-only mode changes and creates nothing. Each error names its file.

use crate::error::{of_file, unopened};
use crate::storage::{Storage, StorageFile};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const LOCK: &str = "lock";

pub struct Disk {
    root: PathBuf,
    is_read_only: bool,
    /// Open handle of the directory: its names can be synced when no file can be opened.
    directory: File,
    /// Locked while this exists; none in a directory that never had a node.
    _lock: Option<File>,
}

impl Disk {
    /// Locks a directory for exclusive use; creates it if necessary.
    ///
    /// # Errors
    /// `WouldBlock`: another process has it. Others come from the system.
    pub fn lock(root: &Path) -> io::Result<Disk> {
        fs::create_dir_all(root)?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(root.join(LOCK))?;
        take(&lock)?;
        let directory = File::open(root)?;
        Ok(Disk { root: root.to_owned(), is_read_only: false, directory, _lock: Some(lock) })
    }

    /// Opens an existing directory read-only: any change fails.
    ///
    /// # Errors
    /// As for `lock`, and if there is no such directory.
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
    type File = DiskFile;

    fn create(&self, path: &str) -> io::Result<DiskFile> {
        self.may_write()?;
        let full = self.path(path);
        let open = || OpenOptions::new().create_new(true).read(true).write(true).open(&full);
        let file = match open() {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                fs::create_dir_all(full.parent().unwrap_or(&self.root)).and_then(|()| open())
            }
            file => file,
        };
        opened(path, file)
    }

    fn open(&self, path: &str) -> io::Result<DiskFile> {
        let file = OpenOptions::new().read(true).write(!self.is_read_only).open(self.path(path));
        opened(path, file)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.may_write()?;
        fs::rename(self.path(from), self.path(to)).map_err(|e| of_file(from, e))
    }

    fn unlink(&self, path: &str) -> io::Result<()> {
        self.may_write()?;
        fs::remove_file(self.path(path)).map_err(|e| of_file(path, e))
    }

    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        self.names(directory, fs::FileType::is_file).map_err(|e| of_file(directory, e))
    }

    fn list_directories(&self, directory: &str) -> io::Result<Vec<String>> {
        self.names(directory, fs::FileType::is_dir).map_err(|e| of_file(directory, e))
    }

    fn sync_directory(&self, directory: &str) -> io::Result<()> {
        let named = |e| of_file(directory, e);
        let mut path = self.path(directory);
        // A new directory has a name in its parent, so sync the parents up to the root.
        while path != self.root && path.starts_with(&self.root) {
            File::open(&path).map_err(|e| unopened(named(e)))?.sync_all().map_err(named)?;
            if !path.pop() {
                break;
            }
        }
        self.directory.sync_all().map_err(named)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(&self.root)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

pub struct DiskFile {
    file: File,
    /// Relative to the directory of the storage.
    path: Box<str>,
}

fn opened(path: &str, file: io::Result<File>) -> io::Result<DiskFile> {
    let file = file.map_err(|e| unopened(of_file(path, e)))?;
    Ok(DiskFile { file, path: path.into() })
}

impl DiskFile {
    fn named<T>(&self, done: io::Result<T>) -> io::Result<T> {
        done.map_err(|e| of_file(&self.path, e))
    }
}

impl StorageFile for DiskFile {
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<usize> {
        self.named(self.file.write_at(bytes, at))
    }

    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<usize> {
        self.named(self.file.read_at(bytes, at))
    }

    fn sync(&self) -> io::Result<()> {
        self.named(self.file.sync_data())
    }

    #[cfg(target_os = "linux")]
    fn begin_sync(&self, from: u64, to: u64) {
        // Linux starts to write back dirty pages of the range and drops only clean ones.
        if let Some(len) = std::num::NonZeroU64::new(to.saturating_sub(from)) {
            let _ = rustix::fs::fadvise(&self.file, from, Some(len), rustix::fs::Advice::DontNeed);
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.named(self.file.set_len(len))
    }

    #[cfg(target_os = "linux")]
    fn allocate(&self, len: u64) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate};
        use rustix::io::{Errno, retry_on_intr};
        match retry_on_intr(|| fallocate(&self.file, FallocateFlags::empty(), 0, len)) {
            // The file system or the kernel does not support it.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.fill(len),
            done => self.named(done.map_err(io::Error::from)),
        }
    }

    #[cfg(target_os = "linux")]
    fn read_cached_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        use rustix::io::{Errno, ReadWriteFlags, preadv2};
        match preadv2(&self.file, &mut [io::IoSliceMut::new(into)], at, ReadWriteFlags::NOWAIT) {
            Ok(read) => Ok(read),
            // The bytes are not in memory, or the file system does not report it.
            Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::INTR | Errno::NOSYS) => Ok(0),
            Err(e) => self.named(Err(e.into())),
        }
    }

    fn advise(&self, at: u64, len: u64) {
        #[cfg(target_os = "linux")]
        if let Some(len) = std::num::NonZeroU64::new(len) {
            let _ = rustix::fs::fadvise(&self.file, at, Some(len), rustix::fs::Advice::WillNeed);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (at, len);
    }

    #[cfg(target_os = "linux")]
    fn expect_pieces(&self) {
        // With random access, Linux reads nothing ahead and reads the requested ranges whole.
        let _ = rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::Random);
    }

    #[cfg(target_os = "linux")]
    fn forget(&self, at: u64, len: u64) {
        if let Some(len) = std::num::NonZeroU64::new(len) {
            let _ = rustix::fs::fadvise(&self.file, at, Some(len), rustix::fs::Advice::DontNeed);
        }
    }

    fn len(&self) -> io::Result<u64> {
        self.named(self.file.metadata().map(|data| data.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LogError, LogOptions, open};
    use std::sync::Arc;

    #[test]
    fn who_only_looks_changes_nothing_and_meets_the_owner() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        assert_eq!(Disk::inspect(&root.join("none")).err().map(|e| e.kind()), Some(ErrorKind::NotFound));
        let looks = Disk::inspect(root).unwrap();
        assert!(looks.create("a").is_err() && looks.list("").unwrap().is_empty());
        let owner = Disk::lock(root).unwrap();
        owner.create("a").unwrap().write_all_at(b"a", 0).unwrap();
        assert_eq!(Disk::inspect(root).err().map(|e| e.kind()), Some(ErrorKind::WouldBlock));
        drop(owner);
        let looks = Disk::inspect(root).unwrap();
        assert!(looks.unlink("a").is_err() && looks.rename("a", "b").is_err());
        assert!(looks.open("a").unwrap().write_all_at(b"b", 0).is_err());
        assert_eq!(crate::storage::read(&looks, "a").unwrap(), b"a");
        assert_eq!(Disk::lock(root).err().map(|e| e.kind()), Some(ErrorKind::WouldBlock));
    }

    #[test]
    fn an_error_names_the_file_that_it_is_of() {
        let directory = tempfile::tempdir().unwrap();
        let owner = Disk::lock(directory.path()).unwrap();
        owner.create("hubs/1/a").unwrap().write_all_at(b"a", 0).unwrap();
        let told = |e: io::Error| LogError::storage("cannot do it", e).to_string();
        let begins = |e: io::Error, path: &str| {
            let told = told(e);
            assert!(told.starts_with(&format!("cannot do it: {path}: ")), "{told}");
        };
        begins(owner.open("hubs/1/b").err().unwrap(), "hubs/1/b");
        begins(owner.create("hubs/1/a").err().unwrap(), "hubs/1/a");
        begins(owner.create("hubs/1/a/under").err().unwrap(), "hubs/1/a/under");
        begins(owner.rename("hubs/2", "x").unwrap_err(), "hubs/2");
        begins(owner.unlink("hubs/1/b").unwrap_err(), "hubs/1/b");
        begins(owner.list("hubs/1/a").unwrap_err(), "hubs/1/a");
        begins(owner.sync_directory("gone").unwrap_err(), "gone");
        drop(owner);
        let file = Disk::inspect(directory.path()).unwrap().open("hubs/1/a").unwrap();
        begins(file.write_all_at(b"b", 0).unwrap_err(), "hubs/1/a");
        begins(file.set_len(9).unwrap_err(), "hubs/1/a");
        begins(file.allocate(9).unwrap_err(), "hubs/1/a");
        let kind = Disk::inspect(directory.path()).unwrap().open("none").err().map(|e| e.kind());
        assert_eq!(kind, Some(ErrorKind::NotFound));
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
