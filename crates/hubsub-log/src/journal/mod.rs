//! The journal: one for all hubs of a disk. Each turn writes the records that shards sent since the last turn
//! as one frame: one write, one sync, then they are safe.
//!
//! It owns its open file and the next one, which another thread prepares in advance at its full size. So a
//! sync writes data and no file sizes. `docs/log-format.md` documents the layout.
//!
//! Invariants: frame n + 1 is written only after frame n was synced; after a failed write or sync nothing
//! more is written.

mod replay;

pub use replay::{Replayed, Tail};
pub(crate) use replay::{all_files, records};

use crate::error::is_full;
use crate::record::{end_head, is_head, put_u32, put_u64, u32_at, u64_at};
use crate::storage::{Storage, StorageFile, join};
use crate::{FORMAT, LogError, Result};
use hubsub_types::HubId;
use std::io::{self, ErrorKind};
use std::sync::Arc;

pub const DIRECTORY: &str = "journal";

const FILE_MAGIC: &[u8; 8] = b"HSJOURN1";
const FILE_HEAD: usize = 64;
const FRAME_MAGIC: &[u8; 4] = b"HSJF";
const FRAME_HEAD: usize = 40;

const FILL_BYTES: usize = 1024 * 1024;

/// A frame with a batch longer than this is written in pieces.
const LONG_BYTES: usize = 4 * FILL_BYTES;

/// Encoded records of one hub on their way to disk, in order of offset.
#[derive(Clone, Debug)]
pub struct Batch {
    pub hub: HubId,
    pub first: u64,
    pub count: u32,
    /// Records as [`crate::record::encode`] writes them.
    pub bytes: Vec<u8>,
}

pub struct Prepared<F> {
    file: F,
    number: u64,
    bytes: u64,
}

pub struct Journal<S: Storage> {
    identity: u64,
    file: Prepared<S::File>,
    /// Position of the next frame in the file.
    at: u64,
    next: Option<Prepared<S::File>>,
    /// Last written frame, last synced frame, the last frame that a later mark covers, and the last frame
    /// with records.
    written: u64,
    synced: u64,
    marked: u64,
    loaded: u64,
    buffer: Vec<u8>,
    is_broken: bool,
}

#[must_use]
pub fn path(number: u64) -> String {
    join(DIRECTORY, &format!("{number:08}.journal"))
}

/// Prepares a journal file: reuses an old file of the same size that is no longer needed, or creates one.
///
/// # Errors
/// Errors of the storage. The file remains, and the next try uses it.
pub fn prepare<S: Storage>(
    storage: &S,
    identity: u64,
    number: u64,
    bytes: u64,
    recycled: Option<u64>,
) -> io::Result<Prepared<S::File>> {
    let path = path(number);
    let file = match recycled {
        Some(old) => {
            storage.rename(&self::path(old), &path)?;
            storage.open(&path)?
        }
        None => match storage.create(&path) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => storage.open(&path)?,
            file => file?,
        },
    };
    // So that a sync writes bytes and no file sizes.
    if let Err(e) = file.fill(bytes) {
        // Release what it allocated before the disk was full.
        let _ = file.set_len(0);
        return Err(e);
    }
    let mut head = Vec::with_capacity(FILE_HEAD);
    head.extend_from_slice(FILE_MAGIC);
    put_u32(&mut head, &[FORMAT, 0]);
    put_u64(&mut head, &[number, identity, bytes]);
    end_head(&mut head, FILE_HEAD);
    file.write_all_at(&head, 0)?;
    file.sync()?;
    storage.sync_directory(DIRECTORY)?;
    Ok(Prepared { file, number, bytes })
}

impl<S: Storage> Journal<S> {
    /// A journal that continues after frame `last` in a file of its own.
    pub fn new(identity: u64, last: u64, file: Prepared<S::File>) -> Journal<S> {
        Journal {
            identity,
            file,
            at: FILE_HEAD as u64,
            next: None,
            written: last,
            synced: last,
            marked: last,
            loaded: last,
            buffer: Vec::new(),
            is_broken: false,
        }
    }

    pub fn file(&self) -> u64 {
        self.file.number
    }

    pub fn wants_next(&self) -> bool {
        self.next.is_none()
    }

    /// Sets the file to continue in when the current one is full.
    pub fn give_next(&mut self, file: Prepared<S::File>) {
        debug_assert_eq!(file.number, self.file.number + 1);
        self.next = Some(file);
    }

    /// Whether a frame of these records fits into this file or the next one.
    pub fn has_room(&self, records_bytes: usize) -> bool {
        self.next.is_some() || self.fits(records_bytes)
    }

    /// The only frame of a file may exceed the file's size.
    fn fits(&self, records_bytes: usize) -> bool {
        let end = self.at + (FRAME_HEAD + records_bytes) as u64;
        end <= self.file.bytes || self.at == FILE_HEAD as u64
    }

    /// Writes one frame and returns its number. Without records, the frame contains only the mark.
    ///
    /// # Errors
    /// [`LogError::Full`]: nothing was written, and a retry is possible. After any other error nothing more
    /// can be written.
    ///
    /// # Panics
    /// The previous frame was not synced, there is no room, or the frame has 4 GiB.
    pub fn append(&mut self, batches: &[Batch]) -> Result<u64> {
        assert_eq!(self.synced, self.written, "a frame is synced before the next is written");
        if self.is_broken {
            return Err(LogError::Broken);
        }
        let bytes = batches.iter().map(|b| b.bytes.len()).sum::<usize>();
        if !self.fits(bytes) {
            self.file = self.next.take().expect("the caller has asked whether there is room");
            self.at = FILE_HEAD as u64;
        }
        let length = u32::try_from(bytes).expect("who calls keeps frames below 4 GiB");
        let number = self.written + 1;
        let count: u32 = batches.iter().map(|b| b.count).sum();
        let frame = &mut self.buffer;
        frame.clear();
        frame.extend_from_slice(FRAME_MAGIC);
        frame.extend_from_slice(&[0; 4]);
        put_u64(frame, &[number, self.synced, self.identity]);
        put_u32(frame, &[length, count]);
        // A long frame is not copied, but written in pieces.
        let is_long = batches.iter().any(|batch| batch.bytes.len() > LONG_BYTES);
        let mut checksum = crc32c::crc32c(&frame[8..]);
        for batch in batches {
            checksum = crc32c::crc32c_append(checksum, &batch.bytes);
            if !is_long {
                frame.extend_from_slice(&batch.bytes);
            }
        }
        frame[4..8].copy_from_slice(&checksum.to_le_bytes());
        let rest = if is_long { batches } else { &[] };
        let pieces = std::iter::once(&**frame).chain(rest.iter().map(|batch| &*batch.bytes));
        let mut at = self.at;
        for piece in pieces {
            match self.file.file.write_all_at(piece, at) {
                Ok(()) => at += piece.len() as u64,
                Err(e) if is_full(&e) => return Err(LogError::Full),
                Err(e) => {
                    self.is_broken = true;
                    return Err(LogError::io("cannot write the journal", e));
                }
            }
        }
        self.at = at;
        self.written = number;
        if count > 0 {
            self.loaded = number;
        }
        if self.buffer.capacity() > 4 * FILL_BYTES {
            self.buffer = Vec::new();
        }
        Ok(number)
    }

    /// Makes all written frames safe; returns the last one.
    ///
    /// # Errors
    /// The bytes written since the last sync may be lost, and nothing more can be written: a retry could
    /// succeed without the bytes of the first try.
    pub fn sync(&mut self) -> Result<u64> {
        if self.is_broken {
            return Err(LogError::Broken);
        }
        if let Err(e) = self.file.file.sync() {
            self.is_broken = true;
            return Err(LogError::io("cannot sync the journal", e));
        }
        self.marked = self.synced;
        self.synced = self.written;
        Ok(self.synced)
    }

    pub fn synced(&self) -> u64 {
        self.synced
    }

    /// Whether no later frame marks the last frame with records, so that, if damaged, it would look torn.
    pub fn wants_mark(&self) -> bool {
        self.marked < self.loaded && !self.is_broken
    }

    pub fn is_broken(&self) -> bool {
        self.is_broken
    }
}

struct Frame<'a> {
    number: u64,
    mark: u64,
    records: &'a [u8],
}

impl Frame<'_> {
    fn len(&self) -> usize {
        FRAME_HEAD + self.records.len()
    }
}

/// Decodes the frame that begins here, if it is whole and its number is at least `least`.
fn frame_at(bytes: &[u8], identity: u64, least: u64) -> Option<Frame<'_>> {
    let head = bytes.get(..FRAME_HEAD)?;
    let number = u64_at(head, 8);
    if head[..4] != *FRAME_MAGIC || u64_at(head, 24) != identity || number < least {
        return None;
    }
    let records = bytes.get(FRAME_HEAD..)?.get(..u32_at(head, 32) as usize)?;
    let checksum = crc32c::crc32c(&bytes[8..FRAME_HEAD + records.len()]);
    (checksum == u32_at(head, 4)).then_some(Frame { number, mark: u64_at(head, 16), records })
}

fn check_head(bytes: &[u8], number: u64, identity: u64) -> Result<()> {
    let path = path(number);
    let damaged = |why: &str| LogError::damaged(&path, 0, why);
    let Some(head) = bytes.get(..FILE_HEAD) else { return Err(damaged("shorter than its head")) };
    if !is_head(head, FILE_MAGIC) {
        return Err(damaged("its head cannot be read"));
    }
    let format = u32_at(head, 8);
    if format > FORMAT {
        return Err(LogError::NewerFormat { path, found: format, known: FORMAT });
    }
    if (u64_at(head, 16), u64_at(head, 24)) != (number, identity) {
        return Err(damaged("it is of another place or directory"));
    }
    if u64_at(head, 32) > bytes.len() as u64 {
        return Err(damaged("it was cut"));
    }
    Ok(())
}

/// Overwrites an unneeded journal with zeros, when there is no space for another.
pub(crate) fn clear(storage: &impl Storage, number: u64) -> io::Result<()> {
    let file = storage.open(&path(number))?;
    file.zero(0, file.len()?)
}

/// Whether a journal has only zeros after its head, so that no frame was ever written to it.
pub(crate) fn is_unwritten(storage: &impl Storage, number: u64) -> io::Result<bool> {
    let file = storage.open(&path(number))?;
    let mut bytes = vec![0; FILL_BYTES];
    let mut at = FILE_HEAD as u64;
    loop {
        let n = file.read_full_at(&mut bytes, at)?;
        if n == 0 {
            return Ok(true);
        }
        if bytes[..n].iter().any(|&byte| byte != 0) {
            return Ok(false);
        }
        at += n as u64;
    }
}

pub(crate) fn files(storage: &impl Storage) -> io::Result<Vec<u64>> {
    let names = storage.list(DIRECTORY)?;
    Ok(names.iter().filter_map(|name| name.strip_suffix(".journal")?.parse().ok()).collect())
}

/// Removes journal files; the next start removes those that cannot be removed now.
pub(crate) fn unlink(storage: &Arc<impl Storage>, numbers: impl Iterator<Item = u64>) {
    numbers.for_each(|number| _ = storage.unlink(&path(number)));
}
