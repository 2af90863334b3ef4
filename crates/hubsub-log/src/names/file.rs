//! Encoding of the file of names: a head, then entries.
//!
//! Invariant: [`walk`] returns only names that [`encode`] wrote, unless the checksum collides.

use crate::FORMAT;
use crate::record::{NAME_BYTES_MAX, end_head, put_u32, put_u64, u32_at};
use crate::storage::StorageFile;
use hubsub_types::HubId;
use std::io;

const MAGIC: &[u8; 8] = b"HSNAMES2";

pub const HEAD: u64 = 64;

/// Bytes of an entry before its name: a checksum of the rest, and the length of the name.
const PREFIX: usize = 8;

pub const READ_BYTES: usize = 256 * 1024;

#[must_use]
pub fn head(hub: HubId, identity: u64) -> Vec<u8> {
    let mut head = Vec::with_capacity(HEAD as usize);
    head.extend_from_slice(MAGIC);
    put_u32(&mut head, &[FORMAT, hub.0]);
    put_u64(&mut head, &[identity]);
    end_head(&mut head, HEAD as usize);
    head
}

pub fn is_head(file: &impl StorageFile, hub: HubId, identity: u64) -> io::Result<bool> {
    let mut bytes = [0; HEAD as usize];
    Ok(file.read_full_at(&mut bytes, 0)? == bytes.len() && bytes[..] == head(hub, identity))
}

pub fn encode(name: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    put_u32(out, &[0, name.len() as u32]);
    out.extend_from_slice(name);
    let checksum = crc32c::crc32c(&out[start + 4..]);
    out[start..start + 4].copy_from_slice(&checksum.to_le_bytes());
}

/// Decodes the name that begins here; returns it and the bytes of its entry, or none if there is no whole
/// entry.
pub fn decode(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let len = u32_at(bytes.get(..PREFIX)?, 4) as usize;
    let len = PREFIX + Some(len).filter(|&len| len <= NAME_BYTES_MAX)?;
    let entry = bytes.get(..len)?;
    (crc32c::crc32c(&entry[4..]) == u32_at(entry, 0)).then_some((&entry[PREFIX..], len))
}

/// Passes the names between two positions of a file to `take`, up to the first that cannot be read. Returns
/// the position after the last and the number of names.
pub fn walk(
    file: &impl StorageFile,
    from: u64,
    to: u64,
    mut take: impl FnMut(&[u8]),
) -> io::Result<(u64, u64)> {
    let mut buffer = vec![0; READ_BYTES.min((to - from) as usize)];
    let (mut at, mut entries) = (from, 0);
    while at < to {
        let n = buffer.len().min((to - at) as usize);
        let n = file.read_full_at(&mut buffer[..n], at)?;
        let mut used = 0;
        while let Some((name, len)) = decode(&buffer[used..n]) {
            take(name);
            used += len;
            entries += 1;
        }
        if used == 0 {
            break;
        }
        at += used as u64;
    }
    Ok((at, entries))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::SimDisk;
    use crate::storage::Storage;
    use proptest::prelude::*;

    fn file_of(names: &[Vec<u8>]) -> (SimDisk, u64) {
        let (disk, mut bytes) = (SimDisk::default(), head(HubId(1), 7));
        names.iter().for_each(|name| encode(name, &mut bytes));
        disk.create("f").unwrap().write_all_at(&bytes, 0).unwrap();
        (disk, bytes.len() as u64)
    }

    fn read(disk: &SimDisk, end: u64) -> (Vec<Vec<u8>>, u64) {
        let mut names = Vec::new();
        let (at, entries) =
            walk(&disk.open("f").unwrap(), HEAD, end, |name| names.push(name.to_vec())).unwrap();
        assert_eq!(entries, names.len() as u64);
        (names, at)
    }

    proptest! {
        #[test]
        fn names_of_any_length_and_bytes_are_read_back(
            names in prop::collection::vec(prop_oneof![
                prop::collection::vec(any::<u8>(), 0..40),
                (any::<u8>(), 0..=NAME_BYTES_MAX).prop_map(|(byte, len)| vec![byte; len]),
            ], 0..60),
            cut in 0..100_000u64,
        ) {
            let (disk, end) = file_of(&names);
            prop_assert_eq!(read(&disk, end), (names.clone(), end));
            // A truncated file is read up to its last whole entry.
            let (left, at) = read(&disk, end.saturating_sub(cut).max(HEAD));
            prop_assert_eq!(&left[..], &names[..left.len()]);
            prop_assert_eq!(file_of(&left).1, at);
        }
    }

    #[test]
    fn nothing_is_an_entry_that_was_not_written() {
        assert_eq!(decode(&[0; 4096]), None);
        assert_eq!(decode(&[0xff; 140_000]), None);
        let mut entry = Vec::new();
        encode(b"lobby", &mut entry);
        assert_eq!(decode(&entry), Some((&b"lobby"[..], 13)));
        for bit in 0..entry.len() * 8 {
            let mut bytes = entry.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            bytes.resize(140_000, 0);
            assert_eq!(decode(&bytes), None, "bit {bit}");
        }
    }
}
