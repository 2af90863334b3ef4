//! Packets that reply or end: a reason, in 5.0 with properties, and usually the id of the packet that they
//! answer. 5.0 omits empty properties, and then also a reason that is success; 3.1 and 3.1.1 have neither.

use super::error::Flaw;
use super::field::{Field, PacketId, Reader, Writer};
use super::property::{Place, Properties, Property};
use super::reason::{Carrier, Reason};
use super::version::{Peer, Version};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connack<'a> {
    /// Whether an older session resumes; false if the connection is refused. 3.1 does not have it.
    pub session_present: bool,
    pub reason: Reason,
    pub properties: Properties<'a>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ack<'a> {
    pub id: PacketId,
    /// Reason of 5.0; success before.
    pub reason: Reason,
    pub properties: Properties<'a>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Disconnect<'a> {
    /// Success (a normal end) before 5.0.
    pub reason: Reason,
    pub properties: Properties<'a>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Auth<'a> {
    pub reason: Reason,
    /// They include the method, unless the packet only reports success.
    pub properties: Properties<'a>,
}

/// The reason with this number, if its packet may carry it.
pub(super) fn reason(number: u8, carrier: Carrier) -> Result<Reason, Flaw> {
    let reason = Reason::from_number(number).ok_or(Flaw::UnknownReason(number))?;
    if reason.fits(carrier) { Ok(reason) } else { Err(Flaw::ReasonMisplaced(number)) }
}

pub(super) fn packet_id(from: &mut Reader<'_>) -> Result<PacketId, Flaw> {
    PacketId::new(u16::read(from)?).ok_or(Flaw::PacketIdZero)
}

/// The optional end of a packet: the reason, then the properties.
fn tail<'a>(from: &mut Reader<'a>, carrier: Carrier, place: Place) -> Result<(Reason, Properties<'a>), Flaw> {
    if from.0.is_empty() {
        return Ok((Reason::Success, Properties::default()));
    }
    let reason = reason(u8::read(from)?, carrier)?;
    let properties = if from.0.is_empty() { Properties::default() } else { Properties::read(from, place)? };
    from.end()?;
    Ok((reason, properties))
}

fn write_tail(reason: Reason, properties: Properties<'_>, to: &mut Writer<'_>) {
    if reason != Reason::Success || !properties.is_empty() {
        reason.number().write(to);
    }
    if !properties.is_empty() {
        properties.write(to);
    }
}

impl<'a> Connack<'a> {
    pub(super) fn read(body: &'a [u8], version: Version) -> Result<Connack<'a>, Flaw> {
        let mut from = Reader(body);
        let (flags, code) = (u8::read(&mut from)?, u8::read(&mut from)?);
        // The first byte is unused in 3.1.
        let flags = if version == Version::V31 { 0 } else { flags };
        if flags > 1 {
            return Err(Flaw::ConnackFlags(flags));
        }
        let (reason, properties) = match version {
            Version::V5 => (reason(code, Carrier::CONNACK)?, Properties::read(&mut from, Place::CONNACK)?),
            _ => (Reason::from_connect_return(code).ok_or(Flaw::UnknownReason(code))?, Properties::default()),
        };
        from.end()?;
        let session_present = flags == 1;
        if session_present && reason != Reason::Success {
            return Err(Flaw::SessionOfRefused);
        }
        Ok(Connack { session_present, reason, properties })
    }

    pub(super) fn write(&self, version: Version, to: &mut Writer<'_>) {
        let session_present = self.session_present && !self.reason.is_failure() && version > Version::V31;
        session_present.write(to);
        if version == Version::V5 {
            self.reason.number().write(to);
            self.properties.write(to);
        } else {
            self.reason.connect_return().write(to);
        }
    }
}

impl<'a> Ack<'a> {
    pub(super) fn read(body: &'a [u8], version: Version, carrier: Carrier) -> Result<Ack<'a>, Flaw> {
        let mut from = Reader(body);
        let id = packet_id(&mut from)?;
        if version < Version::V5 {
            from.end()?;
        }
        let (reason, properties) = tail(&mut from, carrier, Place::ACK)?;
        Ok(Ack { id, reason, properties })
    }

    pub(super) fn write(&self, version: Version, to: &mut Writer<'_>) {
        self.id.get().write(to);
        if version == Version::V5 {
            write_tail(self.reason, self.properties, to);
        }
    }
}

impl<'a> Disconnect<'a> {
    pub(super) fn read(body: &'a [u8], version: Version, from: Peer) -> Result<Disconnect<'a>, Flaw> {
        let (carrier, place) = match from {
            Peer::Client => (Carrier::CLIENT_DISCONNECT, Place::CLIENT_DISCONNECT),
            Peer::Server => (Carrier::SERVER_DISCONNECT, Place::SERVER_DISCONNECT),
        };
        let mut from = Reader(body);
        if version < Version::V5 {
            from.end()?;
        }
        let (reason, properties) = tail(&mut from, carrier, place)?;
        Ok(Disconnect { reason, properties })
    }

    pub(super) fn write(&self, version: Version, to: &mut Writer<'_>) {
        if version == Version::V5 {
            write_tail(self.reason, self.properties, to);
        }
    }
}

impl<'a> Auth<'a> {
    pub(super) fn read(body: &'a [u8], from: Peer) -> Result<Auth<'a>, Flaw> {
        let carrier = if from == Peer::Client { Carrier::CLIENT_AUTH } else { Carrier::SERVER_AUTH };
        if body.is_empty() && !Reason::Success.fits(carrier) {
            return Err(Flaw::ReasonMisplaced(0));
        }
        let (reason, properties) = tail(&mut Reader(body), carrier, Place::AUTH)?;
        let method = |property| matches!(property, Property::AuthMethod(_));
        if !body.is_empty() && !properties.iter().any(method) {
            return Err(Flaw::NoAuthMethod);
        }
        Ok(Auth { reason, properties })
    }

    pub(super) fn write(&self, to: &mut Writer<'_>) {
        write_tail(self.reason, self.properties, to);
    }
}
