//! A file of the log: a sequence of entries, with marks of how far the file was synced.
//!
//! ```text
//! header  magic [u8; 8], version u16, 0 u16, CRC-32C of the rest u32, first index u64, salt u64
//! frame   tag u32, CRC-32C of salt and what follows u32, length u32, synced u32, payload
//! ```
//! Numbers are little-endian. A frame without payload is a mark; one with payload is an entry. `synced` is
//! the number of bytes of this file known to be on disk when the frame was written. It distinguishes two
//! kinds of damage: a bad frame that no later frame covers as synced is the rest of an interrupted write, and
//! is cut off; any other is damage, and refused. A mark follows each sync, unsynced itself, so after a killed
//! process no case is ambiguous. The tag is the lower half of the salt, which is random per file, so no
//! value of a client can look like a frame.

use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, Hasher};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::LogError;
use super::file::{self, Kind};
use crate::limits::ENTRY_BYTES_MAX;

const SEGMENT: Kind = Kind { magic: b"HUBRAFTL", version: 1 };
pub(super) const HEADER: usize = 32;
pub(super) const FRAME: usize = 16;

pub(super) struct Segment {
    /// Index of its first entry; also its name.
    pub first: u64,
    pub path: PathBuf,
    file: File,
    salt: u64,
    pub end: u64,
    /// Number of bytes known to be on disk.
    synced: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub offset: u64,
    pub length: u32,
}

impl Place {
    pub fn range(self) -> Range<usize> {
        let from = self.offset as usize;
        from..from + self.length as usize
    }
}

/// Places of the entries found in a file, and its bytes.
pub(super) type Found = (Vec<Place>, Vec<u8>);

impl Segment {
    /// Creates a file, and syncs it and its name.
    pub fn create(directory: &Path, first: u64) -> Result<Self, LogError> {
        let path = directory.join(format!("{first:020}.log"));
        let salt = std::hash::RandomState::new().build_hasher().finish();
        let body = [first.to_le_bytes(), salt.to_le_bytes()].concat();
        let header = [SEGMENT.header(&[&body]).as_slice(), &body].concat();
        let make = || {
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
            file.write_all_at(&header, 0)?;
            file.sync_all()?;
            Ok(file)
        };
        let file = make().map_err(LogError::at(&path))?;
        file::sync_directory(directory)?;
        Ok(Self { first, path, file, salt, end: HEADER as u64, synced: HEADER as u64 })
    }

    /// Opens a file and finds its entries. Cuts off a torn end if it is the last file of the log. None: its
    /// header was not completely written, so it has no entries.
    pub fn open(path: &Path, last: bool) -> Result<Option<(Self, Found)>, LogError> {
        let at = LogError::at(path);
        let bytes = std::fs::read(path).map_err(&at)?;
        let checked = match bytes.first_chunk::<HEADER>() {
            Some(header) => SEGMENT.check(path, &header[..file::HEADER], &header[file::HEADER..]),
            None => Err(LogError::damaged(path, 0, "its header is not complete")),
        };
        match checked {
            // The header is synced before anything is written after it.
            Err(LogError::Damaged { .. }) if last && bytes.len() <= HEADER => return Ok(None),
            checked => checked?,
        }
        let number = |from: usize| u64::from_le_bytes(bytes[from..from + 8].try_into().expect("eight bytes"));
        let (first, salt) = (number(16), number(24));
        let scan = scan(&bytes, salt, path)?;
        if scan.end < bytes.len() && !last {
            return Err(LogError::damaged(path, scan.end as u64, "it ends in the middle of the log"));
        }
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(&at)?;
        if scan.end < bytes.len() {
            file.set_len(scan.end as u64).map_err(&at)?;
        }
        // The bytes read may not have reached the disk yet.
        file.sync_all().map_err(&at)?;
        let end = scan.end as u64;
        Ok(Some((Self { first, path: path.into(), file, salt, end, synced: end }, (scan.places, bytes))))
    }

    /// Appends payloads with one write and one sync; they are on disk when this returns.
    pub fn append<'a>(&mut self, payloads: impl Iterator<Item = &'a [u8]>) -> Result<Vec<Place>, LogError> {
        let (mut out, mut places) = (Vec::new(), Vec::new());
        for payload in payloads {
            let offset = self.end + (out.len() + FRAME) as u64;
            places.push(Place { offset, length: payload.len() as u32 });
            self.frame(payload, &mut out);
        }
        let write = || {
            self.file.write_all_at(&out, self.end)?;
            self.file.sync_data()
        };
        write().map_err(LogError::at(&self.path))?;
        self.end += out.len() as u64;
        self.synced = self.end;
        self.mark()?;
        Ok(places)
    }

    /// Cuts off the entry at `place` and everything after it.
    pub fn cut(&mut self, place: Place) -> Result<(), LogError> {
        self.end = place.offset - FRAME as u64;
        let cut = || {
            self.file.set_len(self.end)?;
            self.file.sync_all()
        };
        cut().map_err(LogError::at(&self.path))?;
        self.synced = self.end;
        self.mark()
    }

    pub fn read(&self, place: Place) -> Result<Vec<u8>, LogError> {
        let mut bytes = vec![0; FRAME + place.length as usize];
        let from = place.offset - FRAME as u64;
        self.file.read_exact_at(&mut bytes, from).map_err(LogError::at(&self.path))?;
        match read_frame(&bytes, 0, self.salt) {
            Some(frame) if frame.length == place.length => Ok(bytes.split_off(FRAME)),
            _ => Err(LogError::damaged(&self.path, from, "an entry that was good is no more")),
        }
    }

    fn mark(&mut self) -> Result<(), LogError> {
        let mut out = Vec::with_capacity(FRAME);
        self.frame(&[], &mut out);
        self.file.write_all_at(&out, self.end).map_err(LogError::at(&self.path))?;
        self.end += FRAME as u64;
        Ok(())
    }

    fn frame(&self, payload: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&(self.salt as u32).to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        out.extend_from_slice(&(self.synced as u32).to_le_bytes());
        out.extend_from_slice(payload);
        let crc = checksum(self.salt, &out[start + 8..]);
        out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
    }
}

struct Frame {
    length: u32,
    synced: u32,
}

#[derive(Debug)]
struct Scan {
    places: Vec<Place>,
    end: usize,
}

/// Finds the frames of a file, up to its torn end if it has one.
fn scan(bytes: &[u8], salt: u64, path: &Path) -> Result<Scan, LogError> {
    let (mut places, mut at) = (Vec::new(), HEADER);
    while let Some(frame) = read_frame(bytes, at, salt) {
        if frame.length > 0 {
            places.push(Place { offset: (at + FRAME) as u64, length: frame.length });
        }
        at += FRAME + frame.length as usize;
    }
    let later = (at + 1..bytes.len()).filter_map(|from| read_frame(bytes, from, salt));
    if later.into_iter().any(|frame| frame.synced as usize > at) {
        return Err(LogError::damaged(path, at as u64, "an entry that was on disk is damaged"));
    }
    Ok(Scan { places, end: at })
}

fn read_frame(bytes: &[u8], at: usize, salt: u64) -> Option<Frame> {
    let header = bytes.get(at..at + FRAME)?;
    let number = |from: usize| u32::from_le_bytes(header[from..from + 4].try_into().expect("four bytes"));
    let (tag, crc, length, synced) = (number(0), number(4), number(8), number(12));
    if tag != salt as u32 || length as usize > ENTRY_BYTES_MAX {
        return None;
    }
    let rest = bytes.get(at + 8..at + FRAME + length as usize)?;
    (crc == checksum(salt, rest)).then_some(Frame { length, synced })
}

fn checksum(salt: u64, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&salt.to_le_bytes()), bytes)
}
