//! The byte format of a persisted session: the head of its snapshot, and the entries with
//! changes since (docs/protocol/mqtt-state.md).
//!
//! ```text
//! snapshot: | version | born | epoch | last key | last entry | through | before | queued from | cursors |
//!           | state |
//! entry:    | born | epoch | number | parts |
//! event:    1 | number, kind, id, ... (hubsub-wire)
//! message:  2 | 1 if queued, +2 if a topic's cursor counts it, +4 if a hub's | key | if a hub's: hub, offset
//!           | QoS, +4 for RETAIN | number of identifiers, identifiers | the message
//! ```
//!
//! Numbers are little-endian, 8 bytes unless stated. Texts, bytes and cursors (empty if the session has none)
//! are preceded by their length in 4 bytes. *born* distinguishes sessions of one client id: entries of an
//! earlier session are skipped. *epoch* distinguishes holders of one session: a holder that takes it over
//! first appends an entry without number and parts, its *fence*. Entries that an older holder appended after
//! the fence are skipped, also once retention has removed the fence: the snapshot states up to which entry
//! its writer had read those of older holders (*before*).

use super::cursors::Cursors;
use super::message::{Content, CountedBy, Message};
use crate::machine::{Damaged, Event, Grant};
use crate::reader::{Reader, utf8};
use hubsub_route::LogPlace;
use hubsub_types::{Epoch, HubId, Position, Qos, Seq};
use hubsub_wire::mqtt::SubscriptionId;

const VERSION: u8 = 4;

const EVENT: u8 = 1;
const MESSAGE: u8 = 2;
const RETAIN: u8 = 4;

const WAITS: u8 = 1;
const OF_TOPIC: u8 = 2;
const OF_HUB: u8 = 4;

/// The highest accepted value of a counter, so that it cannot overflow.
const NUMBER_MAX: u64 = 1 << 62;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Head {
    /// Identifies the session among those of its client id; unique. Producer id of its QoS 2 messages.
    pub born: u64,
    /// Identifies the holder that wrote it, from 1.
    pub epoch: u64,
    pub last_key: u64,
    pub last_entry: u64,
    /// Entries up to this number are obsolete.
    pub through: u64,
    /// The last valid entry of older holders: their later ones came after the fence.
    pub before: u64,
    /// Queued messages have this key or a higher one.
    pub queued_from: u64,
}

/// The first bytes of every snapshot of a session, and of no other one.
pub fn beginning_of(born: u64) -> Vec<u8> {
    let mut beginning = vec![VERSION];
    put(&mut beginning, born);
    beginning
}

impl Head {
    pub fn write(&self, cursors: Option<&Cursors>, out: &mut Vec<u8>) {
        let Head { born, epoch, last_key, last_entry, through, before, queued_from } = *self;
        out.push(VERSION);
        let numbers = [born, epoch, last_key, last_entry, through, before, queued_from];
        numbers.iter().for_each(|number| put(out, *number));
        let mut bytes = Vec::new();
        cursors.into_iter().for_each(|cursors| cursors.encode(&mut bytes));
        put_bytes(out, &bytes);
    }

    /// Returns the head of a snapshot, the bytes of its cursors, and the state after them.
    ///
    /// # Errors
    /// If the bytes are no snapshot.
    pub fn read(snapshot: &[u8]) -> Result<(Head, &[u8], &[u8]), Damaged> {
        let mut left = Reader(snapshot);
        if left.byte()? != VERSION {
            return Err(Damaged("a row of another version"));
        }
        let (born, epoch) = (left.fixed()?, left.count()?);
        let (last_key, last_entry) = (left.count()?, left.count()?);
        let (through, before, queued_from) = (left.count()?, left.count()?, left.count()?);
        let cursors = left.long_bytes()?;
        Ok((Head { born, epoch, last_key, last_entry, through, before, queued_from }, cursors, left.0))
    }
}

pub enum Part {
    Event(u64, Event),
    Message { is_queued: bool, key: u64, counted: CountedBy, message: Message, grant: Grant },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryHead {
    pub born: u64,
    pub epoch: u64,
    /// Its number; 0 for a fence.
    pub number: u64,
}

pub fn begin(EntryHead { born, epoch, number }: EntryHead) -> Vec<u8> {
    [born.to_le_bytes(), epoch.to_le_bytes(), number.to_le_bytes()].concat()
}

pub fn put_event(number: u64, event: &Event, out: &mut Vec<u8>) {
    out.push(EVENT);
    event.encode(number, out);
}

/// Appends a message; `counted` is the cursor that counts it.
pub fn put_message(
    is_queued: bool,
    key: u64,
    counted: CountedBy,
    content: &Content<'_>,
    grant: &Grant,
    out: &mut Vec<u8>,
) {
    let of_cursor = match counted {
        CountedBy::None => 0,
        CountedBy::Topic => OF_TOPIC,
        CountedBy::Hub => OF_HUB,
    };
    let waits = if is_queued { WAITS } else { 0 };
    out.extend([MESSAGE, waits | of_cursor]);
    put(out, key);
    if counted == CountedBy::Hub {
        put(out, content.place.hub.0.into());
        put(out, content.place.offset);
    }
    out.push(grant.qos as u8 | if grant.retain { RETAIN } else { 0 });
    put(out, grant.ids.len() as u64);
    grant.ids.iter().for_each(|id| put(out, u64::from(id.get())));
    let Content { topic, payload, headers, timestamp_us, position, qos, retain, .. } = *content;
    out.push(qos as u8 | if retain { RETAIN } else { 0 });
    [timestamp_us, position.epoch.0, position.seq.0].iter().for_each(|number| put(out, *number));
    put_bytes(out, topic.as_bytes());
    put_bytes(out, payload);
    put(out, headers.len() as u64);
    for (name, value) in headers {
        put_bytes(out, name.as_bytes());
        put_bytes(out, value.as_bytes());
    }
}

/// Returns the head of an entry and the bytes of its parts.
///
/// # Errors
/// If the entry is too short.
pub fn head_of(entry: &[u8]) -> Result<(EntryHead, &[u8]), Damaged> {
    let mut left = Reader(entry);
    let head = EntryHead { born: left.fixed()?, epoch: left.count()?, number: left.count()? };
    Ok((head, left.0))
}

/// Removes a part from the front of the bytes.
///
/// # Errors
/// If the bytes begin with no valid part.
pub fn take_part(from: &mut &[u8]) -> Result<Part, Damaged> {
    let mut left = Reader(from);
    let part = match left.byte()? {
        EVENT => {
            let (number, event) = Event::decode(&mut left.0)?;
            Part::Event(number, event)
        }
        MESSAGE => {
            let (flags, key) = (left.byte()?, left.count()?);
            let (is_queued, counted) = match flags {
                0 | WAITS => (flags == WAITS, CountedBy::None),
                OF_TOPIC => (false, CountedBy::Topic),
                OF_HUB => (false, CountedBy::Hub),
                _ => return Err(Damaged("flags of a message that are not known")),
            };
            let place = if counted == CountedBy::Hub { left.place()? } else { LogPlace::default() };
            let (granted, retained) = left.qos()?;
            let mut ids = Vec::new();
            for _ in 0..left.fixed()? {
                let id = u32::try_from(left.fixed()?).ok().and_then(SubscriptionId::new);
                ids.push(id.ok_or(Damaged("a subscription identifier out of range"))?);
            }
            let (qos, retain) = left.qos()?;
            let (timestamp_us, epoch, seq) = (left.fixed()?, left.fixed()?, left.fixed()?);
            let (topic, payload) = (utf8(left.long_bytes()?)?, left.long_bytes()?);
            let mut headers = Vec::new();
            for _ in 0..left.fixed()? {
                headers.push((utf8(left.long_bytes()?)?.into(), utf8(left.long_bytes()?)?.into()));
            }
            let position = Position { epoch: Epoch(epoch), seq: Seq(seq) };
            let content =
                Content { topic, payload, headers: &headers, timestamp_us, position, place, qos, retain };
            let grant = Grant { qos: granted, ids, retain: retained };
            Part::Message { is_queued, key, counted, message: content.keep(), grant }
        }
        _ => return Err(Damaged("a part of no kind")),
    };
    *from = left.0;
    Ok(part)
}

fn put(out: &mut Vec<u8>, number: u64) {
    out.extend(number.to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    let length = u32::try_from(bytes.len()).expect("no packet is that long");
    out.extend(length.to_le_bytes());
    out.extend_from_slice(bytes);
}

impl<'a> Reader<'a> {
    fn fixed(&mut self) -> Result<u64, Damaged> {
        self.chunk().map(u64::from_le_bytes)
    }

    /// A number that will be incremented.
    fn count(&mut self) -> Result<u64, Damaged> {
        Some(self.fixed()?).filter(|&number| number <= NUMBER_MAX).ok_or(Damaged("a number out of range"))
    }

    fn place(&mut self) -> Result<LogPlace, Damaged> {
        let hub = u32::try_from(self.fixed()?).map_err(|_| Damaged("a hub out of range"))?;
        Ok(LogPlace { hub: HubId(hub), offset: self.fixed()? })
    }

    fn qos(&mut self) -> Result<(Qos, bool), Damaged> {
        let byte = self.byte()?;
        let qos = Qos::from_bits(byte & !RETAIN).ok_or(Damaged("a QoS"))?;
        Ok((qos, byte & RETAIN != 0))
    }

    fn long_bytes(&mut self) -> Result<&'a [u8], Damaged> {
        let length = self.chunk().map(u32::from_le_bytes)?;
        self.take(length as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hubsub_wire::mqtt::PacketId;

    #[test]
    fn what_was_written_is_read_and_nothing_shorter() {
        let head =
            Head { born: 7, epoch: 2, last_key: 6, last_entry: 5, through: 4, before: 2, queued_from: 3 };
        let mut snapshot = Vec::new();
        let mut cursors = Cursors::default();
        cursors.start("a/ö", Position { epoch: Epoch(9), seq: Seq(7) });
        head.write(Some(&cursors), &mut snapshot);
        snapshot.extend(b"state");
        let mut bytes = Vec::new();
        cursors.encode(&mut bytes);
        assert_eq!(Head::read(&snapshot), Ok((head, &bytes[..], &b"state"[..])));

        let headers: [(Box<str>, Box<str>); 1] = [("name".into(), "välue".into())];
        let position = Position { epoch: Epoch(9), seq: Seq(8) };
        let (qos, payload) = (Qos::ExactlyOnce, &b"\x00payload"[..]);
        let (topic, headers, place) = ("a/ö", &headers[..], LogPlace { hub: HubId(6), offset: 5 });
        let content =
            Content { topic, payload, headers, timestamp_us: 1, position, place, qos, retain: true };
        let ids = vec![SubscriptionId::new(268_435_455).unwrap()];
        let grant = Grant { qos: Qos::AtLeastOnce, ids, retain: true };
        let of = EntryHead { born: 1, epoch: 7, number: 2 };
        let mut entry = begin(of);
        put_event(3, &Event::Received(PacketId::new(4).unwrap()), &mut entry);
        put_message(true, 5, CountedBy::None, &content, &grant, &mut entry);
        put_message(false, 6, CountedBy::Topic, &content, &grant, &mut entry);
        put_message(false, 7, CountedBy::Hub, &content, &grant, &mut entry);

        let (head, mut parts) = head_of(&entry).unwrap();
        assert_eq!(head, of);
        assert!(matches!(take_part(&mut parts), Ok(Part::Event(3, Event::Received(_)))));
        let whole = parts;
        let rows = [(true, 5, CountedBy::None), (false, 6, CountedBy::Topic), (false, 7, CountedBy::Hub)];
        for (at, expected) in rows.into_iter().enumerate() {
            let Ok(Part::Message { is_queued, key, counted, message, grant: read }) = take_part(&mut parts)
            else {
                panic!("it is a message")
            };
            assert_eq!(((is_queued, key, counted), &read), (expected, &grant));
            let read = message.content();
            assert_eq!((read.topic, read.payload, read.headers), (topic, payload, headers));
            assert_eq!((read.timestamp_us, read.position, read.qos, read.retain), (1, position, qos, true));
            let of_hub = if counted == CountedBy::Hub { place } else { LogPlace::default() };
            assert_eq!(read.place, of_hub, "message {at}");
        }
        assert_eq!(parts, b"");
        for end in 0..whole.len() {
            let mut left = &whole[..end];
            assert!(rows.iter().any(|_| take_part(&mut left).is_err()), "of {end} bytes");
        }
    }

    #[test]
    fn numbers_that_no_other_one_follows_are_refused() {
        let head = Head { born: u64::MAX, epoch: NUMBER_MAX, ..Head::default() };
        let read = |head: Head| {
            let mut snapshot = Vec::new();
            head.write(None, &mut snapshot);
            Head::read(&snapshot).map(|(head, ..)| head)
        };
        assert_eq!(read(head), Ok(head));
        let far = u64::MAX;
        for head in [
            Head { epoch: far, ..head },
            Head { last_key: far, ..head },
            Head { last_entry: far, ..head },
            Head { through: far, ..head },
            Head { before: far, ..head },
            Head { queued_from: far, ..head },
        ] {
            assert!(read(head).is_err(), "{head:?}");
        }
        assert!(head_of(&begin(EntryHead { born: 1, epoch: far, number: 1 })).is_err());
        assert!(head_of(&begin(EntryHead { born: 1, epoch: 1, number: far })).is_err());
    }

    #[test]
    fn any_bytes_are_read_or_refused() {
        let mut seed = 1_u64;
        for length in (0..100).cycle().take(20_000) {
            let bytes: Vec<u8> = (0..length)
                .map(|_| {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (seed >> 33) as u8 & if length % 2 == 0 { 0xFF } else { 3 }
                })
                .collect();
            let _ = Head::read(&bytes);
            for mut parts in [bytes.clone(), [&[MESSAGE], &bytes[..]].concat()].iter().map(|b| &b[..]) {
                while !parts.is_empty() && take_part(&mut parts).is_ok() {}
            }
        }
    }
}
