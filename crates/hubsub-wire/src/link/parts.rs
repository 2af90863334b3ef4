//! Field types shared by several frames: names, records, starts of subscriptions, node status.

use super::error::Flaw;
use super::field::{Field, Reader, write_length, write_short};
use hubsub_types::{Position, ProducerId, Qos};

/// A topic and its room; if they are equal they are encoded once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Names<'a> {
    /// Whether the topic is a Redis shard channel.
    pub sharded: bool,
    pub room: &'a [u8],
    pub topic: &'a [u8],
}

impl<'a> Names<'a> {
    const SHARDED: u8 = 1;
    const TOPIC: u8 = 2;

    /// Names for a topic that is its own room.
    #[must_use]
    pub fn alone(topic: &'a [u8]) -> Names<'a> {
        Names { sharded: false, room: topic, topic }
    }
}

impl<'a> Field<'a> for Names<'a> {
    fn write(&self, out: &mut Vec<u8>) {
        let differs = self.room != self.topic;
        out.push(bit(self.sharded, Self::SHARDED) | bit(differs, Self::TOPIC));
        self.room.write(out);
        if differs {
            self.topic.write(out);
        }
    }

    fn read(from: &mut Reader<'a>) -> Result<Self, Flaw> {
        let flags = flags(from, Self::SHARDED | Self::TOPIC)?;
        let room = Field::read(from)?;
        let topic = if flags & Self::TOPIC == 0 { room } else { Field::read(from)? };
        Ok(Names { sharded: flags & Self::SHARDED != 0, room, topic })
    }
}

/// A record. Its position, if it has one, is a separate field.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Record<'a> {
    /// Topic and room of the record.
    pub names: Names<'a>,
    /// Set by the hub, in µs since 1970; 0 before.
    pub timestamp_us: u64,
    /// The producer that numbered it; 0 is none.
    pub producer: ProducerId,
    /// The producer's sequence number; 0 without a producer.
    pub sequence: u64,
    /// How far it is below the highest QoS ([`Qos::lack`]); 0 if it is not limited.
    pub qos_lack: u8,
    /// Whether it is a retained message.
    pub retain: bool,
    /// Name of the publisher.
    pub publisher: &'a str,
    pub headers: Headers<'a>,
    /// The rest of the frame.
    pub payload: &'a [u8],
}

impl Record<'_> {
    const PRODUCER: u8 = 1;
    const HEADERS: u8 = 2;
    /// The two bits of `qos_lack` start here.
    const QOS_SHIFT: u8 = 2;
    const RETAIN: u8 = 16;
}

impl<'a> Field<'a> for Record<'a> {
    fn write(&self, out: &mut Vec<u8>) {
        let (producer, headers) = (self.producer.0 != 0, !self.headers.is_empty());
        let qos = self.qos_lack << Self::QOS_SHIFT;
        let retain = bit(self.retain, Self::RETAIN);
        out.push(bit(producer, Self::PRODUCER) | bit(headers, Self::HEADERS) | qos | retain);
        self.names.write(out);
        self.timestamp_us.write(out);
        if producer {
            self.producer.write(out);
            self.sequence.write(out);
        }
        self.publisher.write(out);
        if headers {
            self.headers.write(out);
        }
        out.extend_from_slice(self.payload);
    }

    fn read(from: &mut Reader<'a>) -> Result<Self, Flaw> {
        let flags = flags(from, Self::PRODUCER | Self::HEADERS | 3 << Self::QOS_SHIFT | Self::RETAIN)?;
        let qos_lack = flags >> Self::QOS_SHIFT & 3;
        Qos::from_lack(qos_lack).ok_or(Flaw::Value(u64::from(flags)))?;
        let (names, timestamp_us) = (Field::read(from)?, Field::read(from)?);
        let (producer, sequence) = match flags & Self::PRODUCER {
            0 => Default::default(),
            _ => (Field::read(from)?, Field::read(from)?),
        };
        if flags & Self::PRODUCER != 0 && producer == ProducerId(0) {
            return Err(Flaw::Value(0));
        }
        let publisher = Field::read(from)?;
        let headers = match flags & Self::HEADERS {
            0 => Headers::default(),
            _ => Field::read(from)?,
        };
        Ok(Record {
            names,
            timestamp_us,
            producer,
            sequence,
            qos_lack,
            retain: flags & Self::RETAIN != 0,
            publisher,
            headers,
            payload: from.rest(),
        })
    }
}

/// Pairs of texts: a record's own to write, or a checked range of the input after reading.
#[derive(Clone, Copy, Debug)]
pub struct Headers<'a>(Pairs<'a>);

#[derive(Clone, Copy, Debug)]
enum Pairs<'a> {
    Own(&'a [(Box<str>, Box<str>)]),
    Read(usize, Reader<'a>),
}

impl<'a> Headers<'a> {
    #[must_use]
    pub fn new(pairs: &'a [(Box<str>, Box<str>)]) -> Headers<'a> {
        Headers(Pairs::Own(pairs))
    }

    #[must_use]
    pub fn len(&self) -> usize {
        match self.0 {
            Pairs::Own(pairs) => pairs.len(),
            Pairs::Read(count, _) => count,
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let (own, count, mut read) = match self.0 {
            Pairs::Own(pairs) => (pairs, 0, Reader(&[])),
            Pairs::Read(count, read) => (&[][..], count, read),
        };
        let read = (0..count).map_while(move |_| pair(&mut read).ok());
        own.iter().map(|(name, value)| (&**name, &**value)).chain(read)
    }
}

impl Default for Headers<'_> {
    fn default() -> Self {
        Headers::new(&[])
    }
}

impl PartialEq for Headers<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl<'a> Field<'a> for Headers<'a> {
    fn write(&self, out: &mut Vec<u8>) {
        write_length(self.len(), out);
        for (name, value) in self.iter() {
            name.write(out);
            value.write(out);
        }
    }

    fn read(from: &mut Reader<'a>) -> Result<Self, Flaw> {
        // A pair has at least two bytes, so the count is at most the remaining length.
        let count = from.length()?;
        let start = from.0;
        for _ in 0..count {
            pair(from)?;
        }
        Ok(Headers(Pairs::Read(count, Reader(&start[..start.len() - from.0.len()]))))
    }
}

fn pair<'a>(from: &mut Reader<'a>) -> Result<(&'a str, &'a str), Flaw> {
    Ok((Field::read(from)?, Field::read(from)?))
}

/// Where a new subscription starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// With the next record.
    Live,
    /// With the record after this position.
    After(Position),
    /// With the last `n` records of the topic.
    Last(u64),
    /// With the first record that is not older than this, in µs since 1970.
    Since(u64),
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

/// A node's status in each ping and pong. Numbers are encoded like lengths, since they are small.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Status {
    /// Version of the room classes that it has.
    pub classes: u64,
    /// The controller term that it acts under, until that expires; 0: it is no controller.
    pub mandate: u64,
    /// Controller term of the controller that it acknowledges; 0: it hears none.
    pub heeds: u64,
    /// Acknowledgement number; it changes each time that the node starts to acknowledge a controller.
    pub heed: u64,
    /// Whether it has the patterns of all registered nodes, so that it may lead hubs and serve clients.
    pub is_ready: bool,
}

impl Field<'_> for Status {
    fn write(&self, out: &mut Vec<u8>) {
        [self.classes, self.mandate, self.heeds, self.heed]
            .iter()
            .for_each(|&number| write_short(number, out));
        out.push(u8::from(self.is_ready));
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Flaw> {
        let mut next = || from.short(10);
        let (classes, mandate, heeds, heed) = (next()?, next()?, next()?, next()?);
        let is_ready = match u8::read(from)? {
            0 => false,
            1 => true,
            other => return Err(Flaw::Value(u64::from(other))),
        };
        Ok(Status { classes, mandate, heeds, heed, is_ready })
    }
}

/// The rest of the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Payload<'a>(pub &'a [u8]);

impl<'a> Field<'a> for Payload<'a> {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.0);
    }

    fn read(from: &mut Reader<'a>) -> Result<Self, Flaw> {
        Ok(Payload(from.rest()))
    }
}

fn bit(is_set: bool, flag: u8) -> u8 {
    if is_set { flag } else { 0 }
}

fn flags(from: &mut Reader<'_>, known: u8) -> Result<u8, Flaw> {
    let flags = u8::read(from)?;
    if flags & !known == 0 { Ok(flags) } else { Err(Flaw::Value(u64::from(flags))) }
}
