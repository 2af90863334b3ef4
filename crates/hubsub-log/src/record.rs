//! A record as bytes: the same in the journal, in segments and on links. The
//! layout stands in `docs/log-format.md`.
//!
//! Invariant: what [`decode`] accepts is what [`encode`] was given, or the
//! checksum is wrong about it.

use hubsub_types::{HubId, Qos};
use thiserror::Error;

/// Bytes before the names and the payload.
pub const HEAD_BYTES: usize = 80;

/// Bytes that length and checksum take.
pub const PREFIX_BYTES: usize = 8;

/// Longest room or topic: a client's of 65,535 bytes, and what the node puts before it where it makes a name of its own.
/// The lowest bits are in the head, the highest is a flag.
pub const NAME_BYTES_MAX: usize = (1 << 17) - 1;

/// Longest record, length and checksum included: a payload of 256 MiB and what stands beside it.
pub const RECORD_BYTES_MAX: usize = 256 * 1024 * 1024 + 4 * 1024 * 1024;

/// What a record is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Kind {
    /// Somebody published it.
    #[default]
    Message = 0,
    /// The room and everything in it before this is gone.
    RoomDeleted = 1,
    /// In a hub that keeps the latest of each key: its key, which is the pair of room and
    /// topic, has no value any more. Elsewhere a record like others.
    Tombstone = 2,
}

/// One record, borrowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Record<'a> {
    /// The hub whose log it is in.
    pub hub: HubId,
    /// What it is.
    pub kind: Kind,
    /// Whether its topic is one of SPUBLISH.
    pub is_sharded: bool,
    /// What it lacks of the highest QoS ([`Qos::lack`]); 0 where nobody bounds it.
    pub qos_lack: u8,
    /// Whether its topic keeps it.
    pub is_retained: bool,
    /// Of the hub's configuration.
    pub term: u64,
    /// Place in the hub's log, from 1, without gaps where nothing was compacted.
    pub offset: u64,
    /// Life of the room.
    pub epoch: u64,
    /// Place in it, from 1, without gaps where nothing was compacted.
    pub seq: u64,
    /// Who numbered it before it had an offset; 0 nobody.
    pub producer: u64,
    /// That number.
    pub producer_seq: u64,
    /// µs since 1970, never falling within a hub.
    pub timestamp_us: u64,
    /// At most [`NAME_BYTES_MAX`].
    pub room: &'a [u8],
    /// At most [`NAME_BYTES_MAX`].
    pub topic: &'a [u8],
    /// At most 65,535 bytes.
    pub publisher: &'a [u8],
    /// As [`encode_headers`] wrote them.
    pub headers: &'a [u8],
    /// What was published.
    pub payload: &'a [u8],
}

/// Why bytes are not a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum NotARecord {
    /// It goes on behind the end: so many bytes are needed in all.
    #[error("a record that goes on behind the end")]
    Incomplete(usize),
    /// No record has this length.
    #[error("a length that no record has: {0}")]
    Length(u32),
    /// The checksum is of other bytes.
    #[error("a checksum of other bytes")]
    Checksum,
    /// The checksum is right and the fields are not: written by a fault, or by a later version.
    #[error("fields that do not fit each other")]
    Fields,
}

const ROOM_IS_TOPIC: u16 = 1;
const SHARDED: u16 = 2;
/// What a record lacks of the highest QoS, in two bits from here.
const QOS_SHIFT: u16 = 2;
const RETAINED: u16 = 16;
/// The room is longer than two bytes tell, by 65,536.
const LONG_ROOM: u16 = 32;
/// Likewise the topic.
const LONG_TOPIC: u16 = 64;

/// Appends a record.
///
/// # Panics
/// A name is longer than [`NAME_BYTES_MAX`], the publisher than 65,535 bytes, or the whole than [`RECORD_BYTES_MAX`]. The
/// broker takes no topic that is longer than `topic_bytes_max` and what a name of the node's own may add
/// (`hubsub_types::names::OWN_BYTES_MAX`), a room is a part of its topic, and a publisher is cut.
pub fn encode(record: &Record<'_>, out: &mut Vec<u8>) {
    let room_is_topic = record.room == record.topic;
    let room: &[u8] = if room_is_topic { &[] } else { record.room };
    assert!(record.room.len().max(record.topic.len()) <= NAME_BYTES_MAX, "a name that is too long");
    let low = |name: &[u8]| name.len() as u16;
    let publisher = u16::try_from(record.publisher.len()).expect("a publisher is cut to 65,535 bytes");
    let variable = room.len() + record.topic.len() + record.publisher.len();
    let bytes = HEAD_BYTES + variable + record.headers.len() + record.payload.len();
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
    out.extend_from_slice(&record.hub.0.to_le_bytes());
    for field in [flags, low(room), low(record.topic), publisher] {
        out.extend_from_slice(&field.to_le_bytes());
    }
    out.extend_from_slice(&(record.headers.len() as u32).to_le_bytes());
    let Record { term, offset, epoch, seq, producer, producer_seq, timestamp_us, .. } = *record;
    for field in [term, offset, epoch, seq, producer, producer_seq, timestamp_us] {
        out.extend_from_slice(&field.to_le_bytes());
    }
    for part in [room, record.topic, record.publisher, record.headers, record.payload] {
        out.extend_from_slice(part);
    }
    let checksum = crc32c::crc32c(&out[start + PREFIX_BYTES..]);
    out[start + 4..start + PREFIX_BYTES].copy_from_slice(&checksum.to_le_bytes());
}

/// Bytes of the record that begins here, by its length alone.
///
/// # Errors
/// Fewer than four bytes, or no record has that length.
pub fn len(bytes: &[u8]) -> Result<usize, NotARecord> {
    let Some(prefix) = bytes.first_chunk::<4>() else { return Err(NotARecord::Incomplete(PREFIX_BYTES)) };
    let rest = u32::from_le_bytes(*prefix);
    let all = rest as usize + PREFIX_BYTES;
    if (HEAD_BYTES..=RECORD_BYTES_MAX).contains(&all) { Ok(all) } else { Err(NotARecord::Length(rest)) }
}

/// Bytes that a record takes.
#[must_use]
pub fn len_of(record: &Record<'_>) -> usize {
    let room = if record.room == record.topic { 0 } else { record.room.len() };
    let names = room + record.topic.len() + record.publisher.len();
    HEAD_BYTES + names + record.headers.len() + record.payload.len()
}

/// The record that begins here, and how many bytes it takes.
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

/// As [`decode`], of bytes that this process wrote: the checksum is not looked at.
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

/// Headers as a record keeps them: for each, length and bytes of the key (2) and of the value (4).
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

/// The headers of a record; none of those behind one that cannot be read.
pub fn decode_headers(mut bytes: &[u8]) -> impl Iterator<Item = (&str, &str)> {
    std::iter::from_fn(move || {
        let key_len = u16::from_le_bytes(*bytes.split_off(..2)?.first_chunk()?);
        let key = bytes.split_off(..usize::from(key_len))?;
        let value_len = u32::from_le_bytes(*bytes.split_off(..4)?.first_chunk()?);
        let value = bytes.split_off(..value_len as usize)?;
        Some((std::str::from_utf8(key).ok()?, std::str::from_utf8(value).ok()?))
    })
}

/// Two bytes at a place that the caller knows to be there.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

/// Four bytes, likewise.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Eight bytes, likewise.
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
