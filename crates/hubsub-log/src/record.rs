//! Encoding of a record: the same in the journal, in segments and on links. `docs/log-format.md` documents
//! the layout.
//!
//! Invariant: [`decode`] returns only records that [`encode`] wrote, unless the checksum collides.

use hubsub_types::{HubId, Qos};
use thiserror::Error;

/// Bytes before the names and the payload.
pub const HEAD_BYTES: usize = 80;

/// Bytes of the length and the checksum.
pub const PREFIX_BYTES: usize = 8;

/// Longest room or topic: 65,535 bytes from a client plus the prefix of a name that the node generates. The
/// low 16 bits of the length are in the head, bit 16 is a flag.
pub const NAME_BYTES_MAX: usize = (1 << 17) - 1;

/// Longest record, including length and checksum: a payload of 256 MiB plus the other fields.
pub const RECORD_BYTES_MAX: usize = 256 * 1024 * 1024 + 4 * 1024 * 1024;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Kind {
    #[default]
    Message = 0,
    /// Deletes the room and all of its earlier records.
    RoomDeleted = 1,
    /// In a hub that keeps the latest of each key (pair of room and topic), the key has no value any more. In
    /// other hubs an ordinary record.
    Tombstone = 2,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Record<'a> {
    pub hub: HubId,
    pub kind: Kind,
    /// Whether the topic is a sharded channel (SPUBLISH).
    pub is_sharded: bool,
    /// Difference to the highest QoS ([`Qos::lack`]); 0 where QoS is not limited.
    pub qos_lack: u8,
    /// Whether it is the retained message of its topic.
    pub is_retained: bool,
    /// Term of the hub's configuration.
    pub term: u64,
    /// Place in the hub's log, from 1, without gaps unless compacted.
    pub offset: u64,
    pub epoch: u64,
    /// Place in the epoch, from 1, without gaps unless compacted.
    pub seq: u64,
    /// Producer that numbered the record before it had an offset; 0 for none.
    pub producer: u64,
    /// The producer's number for the record.
    pub producer_seq: u64,
    /// µs since 1970, never decreasing within a hub.
    pub timestamp_us: u64,
    /// At most [`NAME_BYTES_MAX`] bytes.
    pub room: &'a [u8],
    /// At most [`NAME_BYTES_MAX`] bytes.
    pub topic: &'a [u8],
    /// At most 65,535 bytes.
    pub publisher: &'a [u8],
    /// Headers as [`encode_headers`] writes them.
    pub headers: &'a [u8],
    pub payload: &'a [u8],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum NotARecord {
    /// The bytes end within the record; the total length required in bytes.
    #[error("a record that goes on behind the end")]
    Incomplete(usize),
    #[error("a length that no record has: {0}")]
    Length(u32),
    #[error("a checksum of other bytes")]
    Checksum,
    /// The checksum is right but the fields are invalid: written by a bug or by a later version.
    #[error("fields that do not fit each other")]
    Fields,
}

const ROOM_IS_TOPIC: u16 = 1;
const SHARDED: u16 = 2;
/// Shift of the two bits that store [`Record::qos_lack`].
const QOS_SHIFT: u16 = 2;
const RETAINED: u16 = 16;
/// The room is 65,536 bytes longer than its 16-bit length field.
const LONG_ROOM: u16 = 32;
/// The topic is 65,536 bytes longer than its 16-bit length field.
const LONG_TOPIC: u16 = 64;

/// Appends an encoded record.
///
/// # Panics
/// A name is longer than [`NAME_BYTES_MAX`], the publisher longer than 65,535 bytes, or the record longer
/// than [`RECORD_BYTES_MAX`]. The broker limits a topic to `topic_bytes_max` plus the prefix of a node's own
/// name (`hubsub_types::names::OWN_BYTES_MAX`), a room is a part of its topic, and a publisher is truncated.
pub fn encode(record: &Record<'_>, out: &mut Vec<u8>) {
    let room_is_topic = record.room == record.topic;
    let room: &[u8] = if room_is_topic { &[] } else { record.room };
    assert!(record.room.len().max(record.topic.len()) <= NAME_BYTES_MAX, "a name that is too long");
    let low = |name: &[u8]| name.len() as u16;
    let publisher = u16::try_from(record.publisher.len()).expect("a publisher is cut to 65,535 bytes");
    let bytes = len_of(record);
    assert!(bytes <= RECORD_BYTES_MAX, "a record of {bytes} bytes");
    let mut flags = (record.kind as u16) << 8;
    flags |= if room_is_topic { ROOM_IS_TOPIC } else { 0 };
    flags |= if record.is_sharded { SHARDED } else { 0 };
    flags |= u16::from(record.qos_lack) << QOS_SHIFT;
    flags |= if record.is_retained { RETAINED } else { 0 };
    flags |= if room.len() > usize::from(u16::MAX) { LONG_ROOM } else { 0 };
    flags |= if record.topic.len() > usize::from(u16::MAX) { LONG_TOPIC } else { 0 };

    let start = out.len();
    out.reserve(bytes);
    out.extend_from_slice(&((bytes - PREFIX_BYTES) as u32).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    put_u32(out, &[record.hub.0]);
    for field in [flags, low(room), low(record.topic), publisher] {
        out.extend_from_slice(&field.to_le_bytes());
    }
    put_u32(out, &[record.headers.len() as u32]);
    let Record { term, offset, epoch, seq, producer, producer_seq, timestamp_us, .. } = *record;
    put_u64(out, &[term, offset, epoch, seq, producer, producer_seq, timestamp_us]);
    for part in [room, record.topic, record.publisher, record.headers, record.payload] {
        out.extend_from_slice(part);
    }
    let checksum = crc32c::crc32c(&out[start + PREFIX_BYTES..]);
    out[start + 4..start + PREFIX_BYTES].copy_from_slice(&checksum.to_le_bytes());
}

/// Length in bytes of the record that begins here, read from its length field only.
///
/// # Errors
/// Fewer than four bytes, or no record has that length.
pub fn len(bytes: &[u8]) -> Result<usize, NotARecord> {
    let Some(prefix) = bytes.first_chunk::<4>() else { return Err(NotARecord::Incomplete(PREFIX_BYTES)) };
    let rest = u32::from_le_bytes(*prefix);
    let all = rest as usize + PREFIX_BYTES;
    if (HEAD_BYTES..=RECORD_BYTES_MAX).contains(&all) { Ok(all) } else { Err(NotARecord::Length(rest)) }
}

#[must_use]
pub fn len_of(record: &Record<'_>) -> usize {
    let room = if record.room == record.topic { 0 } else { record.room.len() };
    let names = room + record.topic.len() + record.publisher.len();
    HEAD_BYTES + names + record.headers.len() + record.payload.len()
}

/// Decodes the record that begins here; returns it and its length in bytes.
///
/// # Errors
/// See [`NotARecord`].
pub fn decode(bytes: &[u8]) -> Result<(Record<'_>, usize), NotARecord> {
    let all = len(bytes)?;
    let Some(whole) = bytes.get(..all) else { return Err(NotARecord::Incomplete(all)) };
    if u32_at(whole, 4) != crc32c::crc32c(&whole[PREFIX_BYTES..]) {
        return Err(NotARecord::Checksum);
    }
    parse(whole)
}

/// As [`decode`], without checking the checksum: for bytes that this process wrote.
///
/// # Errors
/// See [`NotARecord`].
pub fn parse(bytes: &[u8]) -> Result<(Record<'_>, usize), NotARecord> {
    let all = len(bytes)?;
    let Some(bytes) = bytes.get(..all) else { return Err(NotARecord::Incomplete(all)) };
    let flags = u16_at(bytes, 12);
    let kind = match flags >> 8 {
        0 => Kind::Message,
        1 => Kind::RoomDeleted,
        2 => Kind::Tombstone,
        _ => return Err(NotARecord::Fields),
    };
    let qos_lack = (flags >> QOS_SHIFT & 3) as u8;
    Qos::from_lack(qos_lack).ok_or(NotARecord::Fields)?;
    let long = |flag| if flags & flag == 0 { 0 } else { 1 << 16 };
    let lengths = [
        usize::from(u16_at(bytes, 14)) + long(LONG_ROOM),
        usize::from(u16_at(bytes, 16)) + long(LONG_TOPIC),
        usize::from(u16_at(bytes, 18)),
    ];
    let mut rest = &bytes[HEAD_BYTES..];
    let mut take = |n: usize| {
        let part = rest.split_off(..n);
        part.ok_or(NotARecord::Fields)
    };
    let [room, topic, publisher] = [take(lengths[0])?, take(lengths[1])?, take(lengths[2])?];
    let headers = take(u32_at(bytes, 20) as usize)?;
    let record = Record {
        hub: HubId(u32_at(bytes, 8)),
        kind,
        is_sharded: flags & SHARDED != 0,
        qos_lack,
        is_retained: flags & RETAINED != 0,
        term: u64_at(bytes, 24),
        offset: u64_at(bytes, 32),
        epoch: u64_at(bytes, 40),
        seq: u64_at(bytes, 48),
        producer: u64_at(bytes, 56),
        producer_seq: u64_at(bytes, 64),
        timestamp_us: u64_at(bytes, 72),
        room: if flags & ROOM_IS_TOPIC != 0 { topic } else { room },
        topic,
        publisher,
        headers,
        payload: rest,
    };
    Ok((record, all))
}

/// The records that these bytes consist of, each with its bytes; checks no checksum.
///
/// # Panics
/// The bytes are not whole records.
pub(crate) fn all(mut rest: &[u8]) -> impl Iterator<Item = (Record<'_>, &[u8])> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (record, len) = parse(rest).expect("these bytes are whole records");
        Some((record, rest.split_off(..len)?))
    })
}

/// The records that these bytes begin with, each with its bytes, up to the first that [`decode`] rejects.
pub(crate) fn readable(mut rest: &[u8]) -> impl Iterator<Item = (Record<'_>, &[u8])> {
    std::iter::from_fn(move || {
        let (record, len) = decode(rest).ok()?;
        Some((record, rest.split_off(..len)?))
    })
}

/// Encodes headers: for each, the key (2-byte length, bytes) and the value (4-byte length, bytes).
#[must_use]
pub fn encode_headers<'a>(headers: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
    let mut out = Vec::new();
    for (key, value) in headers {
        let key = &key.as_bytes()[..key.len().min(usize::from(u16::MAX))];
        out.extend_from_slice(&(key.len() as u16).to_le_bytes());
        out.extend_from_slice(key);
        out.extend_from_slice(&(value.len() as u32).to_le_bytes());
        out.extend_from_slice(value.as_bytes());
    }
    out
}

/// Decodes the headers of a record; stops at the first that cannot be read.
pub fn decode_headers(mut bytes: &[u8]) -> impl Iterator<Item = (&str, &str)> {
    std::iter::from_fn(move || {
        let key_len = u16::from_le_bytes(*bytes.split_off(..2)?.first_chunk()?);
        let key = bytes.split_off(..usize::from(key_len))?;
        let value_len = u32::from_le_bytes(*bytes.split_off(..4)?.first_chunk()?);
        let value = bytes.split_off(..value_len as usize)?;
        Some((std::str::from_utf8(key).ok()?, std::str::from_utf8(value).ok()?))
    })
}

pub(crate) fn put_u32(out: &mut Vec<u8>, fields: &[u32]) {
    fields.iter().for_each(|field| out.extend_from_slice(&field.to_le_bytes()));
}

pub(crate) fn put_u64(out: &mut Vec<u8>, fields: &[u64]) {
    fields.iter().for_each(|field| out.extend_from_slice(&field.to_le_bytes()));
}

/// Ends the head of a file or run: zeros up to `len`, of which the last four bytes are a checksum.
pub(crate) fn end_head(head: &mut Vec<u8>, len: usize) {
    head.resize(len - 4, 0);
    let checksum = crc32c::crc32c(head);
    put_u32(head, &[checksum]);
}

/// Whether a head begins with `magic` and ends with its checksum.
pub(crate) fn is_head(head: &[u8], magic: &[u8]) -> bool {
    let (fields, checksum) = head.split_at(head.len() - 4);
    fields.starts_with(magic) && crc32c::crc32c(fields).to_le_bytes() == checksum
}

/// Reads a little-endian integer. Panics if the bytes end before.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn some_bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), 0..max)
    }

    proptest! {
        #[test]
        fn a_record_reads_back_what_was_written_and_any_flipped_bit_is_seen(
            (room, topic, publisher, payload) in (some_bytes(40), some_bytes(40), some_bytes(20), some_bytes(300)),
            numbers in any::<[u64; 7]>(),
            (hub, is_sharded, same, kind) in any::<(u32, bool, bool, prop::sample::Index)>(),
            qos_lack in 0..3u8,
            is_retained in any::<bool>(),
            headers in prop::collection::vec(("[a-z]{0,9}", ".{0,9}"), 0..4),
            (flip, bit) in (any::<prop::sample::Index>(), 0..8u8),
        ) {
            let headers = encode_headers(headers.iter().map(|(k, v)| (k.as_str(), v.as_str())));
            let [term, offset, epoch, seq, producer, producer_seq, timestamp_us] = numbers;
            let record = Record {
                hub: HubId(hub),
                kind: *kind.get(&[Kind::Message, Kind::RoomDeleted, Kind::Tombstone]),
                is_sharded, qos_lack, is_retained, term, offset, epoch, seq, producer, producer_seq, timestamp_us,
                room: if same { &topic } else { &room },
                topic: &topic, publisher: &publisher, headers: &headers, payload: &payload,
            };
            let mut bytes = b"before".to_vec();
            encode(&record, &mut bytes);
            bytes.extend_from_slice(b"behind");
            let whole = &bytes[6..];
            prop_assert_eq!(decode(whole), Ok((record, whole.len() - 6)));
            for cut in [0, 3, 4, 79, whole.len() - 7] {
                prop_assert!(matches!(decode(&whole[..cut]), Err(NotARecord::Incomplete(n)) if n > cut));
            }
            let mut bytes = whole[..whole.len() - 6].to_vec();
            let at = flip.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert!(decode(&bytes).is_err());
        }
    }

    #[test]
    fn names_of_every_length_read_back() {
        let bytes = vec![b'x'; NAME_BYTES_MAX];
        let lengths = [0, 1, 65_534, 65_535, 65_536, 65_535 + 64, NAME_BYTES_MAX];
        for (room, topic) in lengths.iter().flat_map(|room| lengths.map(|topic| (*room, topic))) {
            let record =
                Record { room: &bytes[..room], topic: &bytes[..topic], payload: b"p", ..Record::default() };
            let mut out = Vec::new();
            encode(&record, &mut out);
            assert_eq!(
                (out.len(), decode(&out)),
                (len_of(&record), Ok((record, out.len()))),
                "{room} {topic}"
            );
        }
    }

    #[test]
    fn headers_read_back() {
        let headers = [("event", "message"), ("", "é"), ("k", "")];
        assert_eq!(decode_headers(&encode_headers(headers)).collect::<Vec<_>>(), headers);
        assert_eq!(decode_headers(&[9, 0, 1]).count(), 0);
    }
}
