//! SUBSCRIBE and UNSUBSCRIBE (sections 3.8 and 3.10 of 5.0) and their replies. Filters and reasons stay
//! encoded and are iterated over.
//!
//! ```text
//! | id | properties (5.0) | filter, options, filter, options …   SUBSCRIBE
//! | id | properties (5.0) | filter, filter …                     UNSUBSCRIBE
//! | id | properties (5.0) | reason, reason …                     SUBACK, UNSUBACK (none before 5.0)
//! options: 7 6 reserved, 5 4 retain handling, 3 retain as published, 2 no local, 1 0 QoS
//! ```

use super::ack::{packet_id, reason};
use super::error::{EncodeError, Flaw};
use super::field::{Field, PacketId, Reader, Writer};
use super::property::{Place, Properties};
use super::reason::{Carrier, Reason};
use super::topic::{shared, topic_filter};
use super::version::Version;
use hubsub_types::Qos;

/// Whether a subscription gets retained messages at its start.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum RetainHandling {
    #[default]
    Send = 0,
    /// All, if the subscription is new.
    SendIfNew = 1,
    DoNotSend = 2,
}

/// Subscription options. Before 5.0 there is only the QoS.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Options {
    pub qos: Qos,
    pub no_local: bool,
    /// Whether messages keep their retain flag.
    pub retain_as_published: bool,
    pub retain_handling: RetainHandling,
}

impl Options {
    fn from_byte(byte: u8, version: Version) -> Result<Options, Flaw> {
        let reserved = if version == Version::V5 { 0xC0 } else { 0xFC };
        if byte & reserved != 0 {
            return Err(Flaw::SubscribeOptions(byte));
        }
        let retain_handling = match byte >> 4 & 3 {
            0 => RetainHandling::Send,
            1 => RetainHandling::SendIfNew,
            2 => RetainHandling::DoNotSend,
            _ => return Err(Flaw::RetainHandling),
        };
        Ok(Options {
            qos: Qos::from_bits(byte & 3).ok_or(Flaw::QosThree)?,
            no_local: byte & 4 != 0,
            retain_as_published: byte & 8 != 0,
            retain_handling,
        })
    }

    /// Decodes the output of [`Options::byte`]; `None` if it is invalid.
    #[must_use]
    pub fn of_byte(byte: u8) -> Option<Options> {
        Options::from_byte(byte, Version::V5).ok()
    }

    /// Encodes them as SUBSCRIBE of 5.0 does.
    #[must_use]
    pub fn byte(self) -> u8 {
        let handling = (self.retain_handling as u8) << 4;
        handling | u8::from(self.retain_as_published) << 3 | u8::from(self.no_local) << 2 | self.qos as u8
    }
}

/// Checks encoded filters; `check` reads what follows each.
fn each_filter(raw: &[u8], check: impl Fn(&str, &mut Reader<'_>) -> Result<(), Flaw>) -> Result<(), Flaw> {
    let mut left = Reader(raw);
    if raw.is_empty() {
        return Err(Flaw::NoFilter);
    }
    while !left.0.is_empty() {
        check(topic_filter(Field::read(&mut left)?)?, &mut left)?;
    }
    Ok(())
}

/// Filters with their options; at least one, all valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Filters<'a>(&'a [u8]);

impl<'a> Filters<'a> {
    /// Checks encoded filters of a packet of that version.
    ///
    /// # Errors
    /// There is none, or one is invalid.
    pub fn new(raw: &'a [u8], version: Version) -> Result<Filters<'a>, Flaw> {
        each_filter(raw, |filter, left| {
            let options = Options::from_byte(u8::read(left)?, version)?;
            let is_flawed = options.no_local && shared(filter).is_some();
            if is_flawed { Err(Flaw::ShareNoLocal) } else { Ok(()) }
        })?;
        Ok(Filters(raw))
    }

    pub fn iter(self) -> impl Iterator<Item = (&'a str, Options)> {
        let mut left = Reader(self.0);
        std::iter::from_fn(move || {
            let filter = Field::read(&mut left).ok()?;
            let byte = u8::read(&mut left).expect("it was checked");
            Some((filter, Options::from_byte(byte, Version::V5).expect("it was checked")))
        })
    }

    /// Encodes a filter and its options, for [`Filters::new`].
    ///
    /// # Errors
    /// The filter is longer than 65,535 bytes.
    pub fn push(raw: &mut Vec<u8>, filter: &str, options: Options) -> Result<(), EncodeError> {
        Names::push(raw, filter)?;
        raw.push(options.byte());
        Ok(())
    }
}

/// Filters without options; at least one, all valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Names<'a>(&'a [u8]);

impl<'a> Names<'a> {
    /// Checks encoded filters of a packet.
    ///
    /// # Errors
    /// There is none, or one is invalid.
    pub fn new(raw: &'a [u8]) -> Result<Names<'a>, Flaw> {
        each_filter(raw, |_, _| Ok(()))?;
        Ok(Names(raw))
    }

    pub fn iter(self) -> impl Iterator<Item = &'a str> {
        let mut left = Reader(self.0);
        std::iter::from_fn(move || Field::read(&mut left).ok())
    }

    /// Encodes a filter, for [`Names::new`].
    ///
    /// # Errors
    /// The filter is longer than 65,535 bytes.
    pub fn push(raw: &mut Vec<u8>, filter: &str) -> Result<(), EncodeError> {
        let mut writer = Writer { out: raw, error: None };
        filter.write(&mut writer);
        writer.error.map_or(Ok(()), Err)
    }
}

/// One reason per filter, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reasons<'a>(&'a [u8]);

impl<'a> Reasons<'a> {
    /// Checks encoded reasons of a packet of 5.0.
    ///
    /// # Errors
    /// One is unknown, or not allowed in that packet.
    pub fn new(raw: &'a [u8], carrier: Carrier) -> Result<Reasons<'a>, Flaw> {
        raw.iter().try_for_each(|&number| reason(number, carrier).map(drop))?;
        Ok(Reasons(raw))
    }

    pub fn iter(self) -> impl ExactSizeIterator<Item = Reason> + 'a {
        self.0.iter().map(|&number| Reason::from_number(number).expect("it was checked"))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Subscribe<'a> {
    pub id: PacketId,
    pub properties: Properties<'a>,
    pub filters: Filters<'a>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Suback<'a> {
    pub id: PacketId,
    pub properties: Properties<'a>,
    /// At least one; see [`Reason::suback_number`] for older versions.
    pub reasons: Reasons<'a>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unsubscribe<'a> {
    pub id: PacketId,
    pub properties: Properties<'a>,
    pub filters: Names<'a>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unsuback<'a> {
    pub id: PacketId,
    pub properties: Properties<'a>,
    /// At least one in 5.0; none before.
    pub reasons: Reasons<'a>,
}

fn begin<'a>(
    body: &'a [u8],
    version: Version,
    place: Place,
) -> Result<(PacketId, Properties<'a>, &'a [u8]), Flaw> {
    let mut from = Reader(body);
    let id = packet_id(&mut from)?;
    Ok((id, Properties::read_of(version, &mut from, place)?, from.rest()))
}

fn write(id: PacketId, properties: Properties<'_>, rest: &[u8], version: Version, to: &mut Writer<'_>) {
    id.get().write(to);
    properties.write_to(version, to);
    to.out.extend_from_slice(rest);
}

impl<'a> Subscribe<'a> {
    pub(super) fn read(body: &'a [u8], version: Version) -> Result<Subscribe<'a>, Flaw> {
        let (id, properties, rest) = begin(body, version, Place::SUBSCRIBE)?;
        Ok(Subscribe { id, properties, filters: Filters::new(rest, version)? })
    }

    pub(super) fn write(&self, version: Version, to: &mut Writer<'_>) {
        write(self.id, self.properties, &[], version, to);
        for (filter, options) in self.filters.iter() {
            filter.write(to);
            // Before 5.0 the other bits are reserved.
            to.out.push(if version == Version::V5 { options.byte() } else { options.qos as u8 });
        }
    }
}

impl<'a> Unsubscribe<'a> {
    pub(super) fn read(body: &'a [u8], version: Version) -> Result<Unsubscribe<'a>, Flaw> {
        let (id, properties, rest) = begin(body, version, Place::UNSUBSCRIBE)?;
        Ok(Unsubscribe { id, properties, filters: Names::new(rest)? })
    }

    pub(super) fn write(&self, version: Version, to: &mut Writer<'_>) {
        write(self.id, self.properties, self.filters.0, version, to);
    }
}

impl<'a> Suback<'a> {
    pub(super) fn read(body: &'a [u8], version: Version) -> Result<Suback<'a>, Flaw> {
        let (id, properties, rest) = begin(body, version, Place::ACK)?;
        if rest.is_empty() {
            return Err(Flaw::Short);
        }
        let highest = if version == Version::V31 { 2 } else { 0x80 };
        let of_other_version = |&number: &u8| !matches!(number, 0..=2 | 0x80) || number > highest;
        if version < Version::V5
            && let Some(&number) = rest.iter().find(|number| of_other_version(number))
        {
            return Err(Flaw::UnknownReason(number));
        }
        Ok(Suback { id, properties, reasons: Reasons::new(rest, Carrier::SUBACK)? })
    }

    pub(super) fn write(&self, version: Version, to: &mut Writer<'_>) {
        write(self.id, self.properties, &[], version, to);
        to.out.extend(self.reasons.iter().map(|reason| reason.suback_number(version)));
    }
}

impl<'a> Unsuback<'a> {
    pub(super) fn read(body: &'a [u8], version: Version) -> Result<Unsuback<'a>, Flaw> {
        let (id, properties, rest) = begin(body, version, Place::ACK)?;
        match version {
            Version::V5 if rest.is_empty() => return Err(Flaw::Short),
            Version::V5 => {}
            _ => Reader(rest).end()?,
        }
        Ok(Unsuback { id, properties, reasons: Reasons::new(rest, Carrier::UNSUBACK)? })
    }

    pub(super) fn write(&self, version: Version, to: &mut Writer<'_>) {
        let reasons = if version == Version::V5 { self.reasons.0 } else { &[] };
        write(self.id, self.properties, reasons, version, to);
    }
}
