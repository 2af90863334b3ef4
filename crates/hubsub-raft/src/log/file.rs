//! Small files that are replaced atomically: written under another name, synced, renamed, the directory
//! synced. A reader gets the old or the new file, or an error that names it.
//!
//! ```text
//! magic [u8; 8], version u16, 0 u16, CRC-32C of all that follows u32, body
//! ```
//! Numbers are little-endian.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::LogError;

pub(super) const HEADER: usize = 16;

/// Magic of a file, and its newest known version.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub magic: &'static [u8; 8],
    pub version: u16,
}

impl Kind {
    pub(super) fn header(self, body: &[&[u8]]) -> [u8; HEADER] {
        let crc = body.iter().fold(0, |crc, part| crc32c::crc32c_append(crc, part));
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(self.magic);
        header[8..10].copy_from_slice(&self.version.to_le_bytes());
        header[12..].copy_from_slice(&crc.to_le_bytes());
        header
    }

    pub(super) fn check(self, path: &Path, header: &[u8], body: &[u8]) -> Result<(), LogError> {
        if header.len() < HEADER || header[..8] != *self.magic {
            return Err(LogError::damaged(path, 0, "it does not begin as such a file does"));
        }
        if header[10..] != self.header(&[body])[10..] {
            return Err(LogError::damaged(path, HEADER as u64, "its checksum does not match"));
        }
        match u16::from_le_bytes([header[8], header[9]]) {
            found if found == 0 || found > self.version => {
                Err(LogError::Newer { path: path.into(), found, known: self.version })
            }
            _ => Ok(()),
        }
    }
}

/// Writes a file under a temporary name and syncs it; [`publish`] renames it.
pub(crate) fn write_aside(path: &Path, kind: Kind, parts: &[&[u8]]) -> Result<PathBuf, LogError> {
    let aside = path.with_extension("new");
    let write = || {
        let mut file = File::create(&aside)?;
        file.write_all(&kind.header(parts))?;
        parts.iter().try_for_each(|part| file.write_all(part))?;
        file.sync_all()
    };
    write().map_err(LogError::at(&aside))?;
    Ok(aside)
}

/// Renames a file from its temporary name, and syncs the directory.
pub(crate) fn publish(aside: &Path, path: &Path) -> Result<(), LogError> {
    fs::rename(aside, path).map_err(LogError::at(path))?;
    sync_directory(path.parent().expect("a file lies in a directory"))
}

pub(crate) fn replace(path: &Path, kind: Kind, body: &[u8]) -> Result<(), LogError> {
    publish(&write_aside(path, kind, &[body])?, path)
}

/// Reads the body of a file; none if it does not exist.
pub(crate) fn load(path: &Path, kind: Kind) -> Result<Option<Vec<u8>>, LogError> {
    let mut bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(LogError::at(path)(error)),
    };
    let (header, body) = bytes.split_at(HEADER.min(bytes.len()));
    kind.check(path, header, body)?;
    bytes.drain(..HEADER);
    Ok(Some(bytes))
}

pub(crate) fn sync_directory(path: &Path) -> Result<(), LogError> {
    File::open(path).and_then(|directory| directory.sync_all()).map_err(LogError::at(path))
}
