//! The encoding of the parts of messages: names, records, starts of subscriptions, errors.

use crate::error::Flaw;
use crate::field::{Field, Reader, read_list, write_list};
use crate::{
    Attached, Headers, HubFilter, LeadershipEnd, LogPlace, Names, Namespace, Producer, Record, Short, Start,
};
use hubsub_types::{ErrorCode, HubId, Position, ProducerId, Qos, Seq};
use std::sync::Arc;

/// A topic and its room; if they are equal they are encoded once.
impl Field<'_> for Names {
    fn write(&self, out: &mut Vec<u8>) {
        write_names(out, self.namespace, &self.room, &self.topic);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Flaw> {
        let (namespace, room, topic) = read_names(from)?;
        let shared: Arc<[u8]> = room.into();
        let topic = if topic == room { Arc::clone(&shared) } else { topic.into() };
        Ok(Names { namespace, room: shared, topic })
    }
}

/// Flags of names: it is a shard channel; the topic differs from the room.
const SHARDED: u8 = 1;
const TOPIC: u8 = 2;

fn write_names(out: &mut Vec<u8>, namespace: Namespace, room: &[u8], topic: &[u8]) {
    let differs = room != topic;
    out.push(bit(namespace == Namespace::Shard, SHARDED) | bit(differs, TOPIC));
    room.write(out);
    if differs {
        topic.write(out);
    }
}

fn read_names<'a>(from: &mut Reader<'a>) -> Result<(Namespace, &'a [u8], &'a [u8]), Flaw> {
    let flags = flags(from, SHARDED | TOPIC)?;
    let namespace = if flags & SHARDED == 0 { Namespace::Global } else { Namespace::Shard };
    let room = Field::read(from)?;
    let topic = if flags & TOPIC == 0 { room } else { Field::read(from)? };
    Ok((namespace, room, topic))
}

/// Flags of a record; the two bits of its QoS start at `QOS_SHIFT`.
const PRODUCER: u8 = 1;
const HEADERS: u8 = 2;
const QOS_SHIFT: u8 = 2;
const RETAIN: u8 = 16;

/// A record without its position and its place in a log, which are fields of their own. Its payload is the
/// rest of the frame.
impl Field<'_> for Record {
    fn write(&self, out: &mut Vec<u8>) {
        let (producer, headers) = (self.producer(), self.headers.as_deref().unwrap_or_default());
        let qos = self.qos.lack() << QOS_SHIFT;
        let has = bit(producer.is_some(), PRODUCER) | bit(!headers.is_empty(), HEADERS);
        out.push(has | qos | bit(self.retain, RETAIN));
        write_names(out, self.namespace, self.topic(), self.topic());
        self.timestamp_us.write(out);
        if let Some(Producer { id, sequence }) = producer {
            id.write(out);
            sequence.write(out);
        }
        (&*self.publisher).write(out);
        if !headers.is_empty() {
            write_list(headers, out, |(name, value), out| {
                (&**name).write(out);
                (&**value).write(out);
            });
        }
        out.extend_from_slice(self.payload());
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Flaw> {
        let flags = flags(from, PRODUCER | HEADERS | 3 << QOS_SHIFT | RETAIN)?;
        let qos = Qos::from_lack(flags >> QOS_SHIFT & 3).ok_or(Flaw::Value(u64::from(flags)))?;
        let (namespace, _, topic) = read_names(from)?;
        let timestamp_us = Field::read(from)?;
        let producer = match flags & PRODUCER {
            0 => None,
            _ => Some(Producer { id: Field::read(from)?, sequence: Field::read(from)? }),
        };
        if producer.is_some_and(|producer| producer.id == ProducerId(0)) {
            return Err(Flaw::Value(0));
        }
        let publisher = <&str>::read(from)?;
        let headers = if flags & HEADERS == 0 { None } else { read_headers(from)? };
        let mut record = Record::new(namespace, topic, from.rest(), publisher.into(), headers)
            .of_qos(qos)
            .retained(flags & RETAIN != 0)
            .from_producer(producer);
        record.timestamp_us = timestamp_us;
        Ok(record)
    }
}

fn read_headers(from: &mut Reader<'_>) -> Result<Headers, Flaw> {
    let pair = |from: &mut Reader<'_>| Ok((<&str>::read(from)?.into(), <&str>::read(from)?.into()));
    let pairs: Arc<[(Box<str>, Box<str>)]> = read_list(from, pair)?;
    Ok((!pairs.is_empty()).then_some(pairs))
}

impl Field<'_> for Arc<Record> {
    fn write(&self, out: &mut Vec<u8>) {
        (**self).write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Flaw> {
        Record::read(from).map(Arc::new)
    }
}

/// A hub without a log has no offsets.
pub(crate) fn place(hub: HubId, Short(offset): Short) -> LogPlace {
    if offset == 0 { LogPlace::default() } else { LogPlace { hub, offset } }
}

/// The stable code. An unknown code of a newer version becomes `TimedOut`, which leaves the outcome open.
impl Field<'_> for ErrorCode {
    fn write(&self, out: &mut Vec<u8>) {
        self.code().write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Flaw> {
        let code = <&str>::read(from)?;
        let known = ErrorCode::ALL.iter().copied().find(|known| known.code() == code);
        Ok(known.unwrap_or(ErrorCode::TimedOut))
    }
}

impl Field<'_> for Start {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Start::Live => 0_u8.write(out),
            Start::After(position) => {
                1_u8.write(out);
                position.write(out);
            }
            Start::Last(n) => {
                2_u8.write(out);
                n.write(out);
            }
            Start::Since(us) => {
                3_u8.write(out);
                us.write(out);
            }
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Flaw> {
        match u8::read(from)? {
            0 => Ok(Start::Live),
            1 => Field::read(from).map(Start::After),
            2 => Field::read(from).map(Start::Last),
            3 => Field::read(from).map(Start::Since),
            other => Err(Flaw::Value(u64::from(other))),
        }
    }
}

/// `replay_from` is 0 if there is none.
impl Field<'_> for Attached {
    fn write(&self, out: &mut Vec<u8>) {
        self.position.write(out);
        self.replay_from.unwrap_or_default().write(out);
        self.recovered.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Flaw> {
        let (position, replay_from) = (Position::read(from)?, Seq::read(from)?);
        let replay_from = (replay_from != Seq(0)).then_some(replay_from);
        Ok(Attached { position, replay_from, recovered: Field::read(from)? })
    }
}

impl Field<'_> for LeadershipEnd {
    fn write(&self, out: &mut Vec<u8>) {
        self.epoch.write(out);
        self.expected.write(out);
        self.committed.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Flaw> {
        Ok(LeadershipEnd {
            epoch: Field::read(from)?,
            expected: Field::read(from)?,
            committed: Field::read(from)?,
        })
    }
}

/// The patterns in their text form, with their count in front.
impl Field<'_> for Arc<HubFilter> {
    fn write(&self, out: &mut Vec<u8>) {
        write_list(self.sources(), out, Field::write);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Flaw> {
        let sources: Vec<Arc<[u8]>> = read_list(from, Field::read)?;
        Ok(Arc::new(HubFilter::new(sources)))
    }
}

fn bit(is_set: bool, flag: u8) -> u8 {
    if is_set { flag } else { 0 }
}

fn flags(from: &mut Reader<'_>, known: u8) -> Result<u8, Flaw> {
    let flags = u8::read(from)?;
    if flags & !known == 0 { Ok(flags) } else { Err(Flaw::Value(u64::from(flags))) }
}
