//! CONNECT (section 3.1 of each version): the packet that decides the version.
//!
//! ```text
//! | name | level | flags | keep alive | properties (5.0) | client id |
//! | will: properties (5.0), topic, payload | user name | password |
//! flags: 7 user name, 6 password, 5 will retain, 4 3 will QoS, 2 will, 1 clean, 0 reserved
//! ```

use super::error::Flaw;
use super::field::{Field, Reader, Writer};
use super::property::{Place, Properties};
use super::reason::Reason;
use super::topic::topic_name;
use super::version::Version;
use hubsub_types::Qos;

const USER_NAME: u8 = 0x80;
const PASSWORD: u8 = 0x40;
const WILL_RETAIN: u8 = 0x20;
const WILL: u8 = 0x04;
const CLEAN: u8 = 0x02;
const RESERVED: u8 = 0x01;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connect<'a> {
    pub version: Version,
    /// Whether an older session is discarded; before 5.0 also this one at its end.
    pub clean_start: bool,
    /// Longest silence of the client, in s; 0 for no limit.
    pub keep_alive_s: u16,
    /// May be empty; see [`Connect::check_client_id`].
    pub client_id: &'a str,
    /// Message to publish if the connection ends without DISCONNECT.
    pub will: Option<Will<'a>>,
    pub user_name: Option<&'a str>,
    pub password: Option<&'a [u8]>,
    pub properties: Properties<'a>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Will<'a> {
    pub topic: &'a str,
    /// At most 65,535 bytes.
    pub payload: &'a [u8],
    pub qos: Qos,
    pub retain: bool,
    /// Include the delay; empty before 5.0.
    pub properties: Properties<'a>,
}

impl<'a> Connect<'a> {
    /// The flaw comes with the version in which the peer understands a reply.
    pub(super) fn read(body: &'a [u8]) -> Result<Connect<'a>, (Flaw, Option<Version>)> {
        let mut from = Reader(body);
        let version = version(&mut from)?;
        Self::read_rest(from, version).map_err(|flaw| (flaw, Some(version)))
    }

    fn read_rest(mut from: Reader<'a>, version: Version) -> Result<Connect<'a>, Flaw> {
        let flags = u8::read(&mut from)?;
        let has = |flag| flags & flag != 0;
        let will_bits = flags >> 3 & 3;
        // The reserved flag is unused in 3.1, so it is ignored.
        let reserved = has(RESERVED) && version > Version::V31;
        let will_of_none = !has(WILL) && (has(WILL_RETAIN) || will_bits != 0);
        let password_of_none = has(PASSWORD) && !has(USER_NAME) && version < Version::V5;
        if reserved || will_of_none || password_of_none {
            return Err(Flaw::ConnectFlags(flags));
        }
        let qos = Qos::from_bits(will_bits).ok_or(Flaw::QosThree)?;
        let keep_alive_s = Field::read(&mut from)?;
        let properties = Properties::read_of(version, &mut from, Place::CONNECT)?;
        let client_id = Field::read(&mut from)?;
        let mut will = None;
        if has(WILL) {
            let properties = Properties::read_of(version, &mut from, Place::WILL)?;
            let topic = topic_name(Field::read(&mut from)?)?;
            let payload = Field::read(&mut from)?;
            will = Some(Will { topic, payload, qos, retain: has(WILL_RETAIN), properties });
        }
        // In 3.1 the length takes precedence over the flags: a missing name or password counts as none.
        let there = |flag, from: &Reader<'_>| has(flag) && !(version == Version::V31 && from.0.is_empty());
        let user_name = there(USER_NAME, &from).then(|| Field::read(&mut from)).transpose()?;
        let password = there(PASSWORD, &from).then(|| Field::read(&mut from)).transpose()?;
        from.end()?;
        let clean_start = has(CLEAN);
        Ok(Connect { version, clean_start, keep_alive_s, client_id, will, user_name, password, properties })
    }

    pub(super) fn write(&self, to: &mut Writer<'_>) {
        self.version.protocol_name().write(to);
        let will = self
            .will
            .map_or(0, |will| WILL | (will.qos as u8) << 3 | if will.retain { WILL_RETAIN } else { 0 });
        let clean = if self.clean_start { CLEAN } else { 0 };
        let user_name = if self.user_name.is_some() { USER_NAME } else { 0 };
        let password = if self.password.is_some() { PASSWORD } else { 0 };
        (self.version as u8).write(to);
        (user_name | password | will | clean).write(to);
        self.keep_alive_s.write(to);
        self.properties.write_to(self.version, to);
        self.client_id.write(to);
        if let Some(will) = self.will {
            will.properties.write_to(self.version, to);
            will.topic.write(to);
            will.payload.write(to);
        }
        self.user_name.inspect(|name| name.write(to));
        self.password.inspect(|password| password.write(to));
    }

    /// Checks the client id by the rules of its version: 3.1 allows 1 to 23 characters, or more if
    /// `long_ids`; 3.1.1 allows an empty one only with a clean session; 5.0 allows any.
    ///
    /// # Errors
    /// The reason for CONNACK.
    pub fn check_client_id(&self, long_ids: bool) -> Result<(), Reason> {
        let fits = match self.version {
            Version::V31 => !self.client_id.is_empty() && (long_ids || self.client_id.chars().count() <= 23),
            Version::V311 => !self.client_id.is_empty() || self.clean_start,
            Version::V5 => true,
        };
        if fits { Ok(()) } else { Err(Reason::ClientIdInvalid) }
    }
}

/// The protocol name and level. An unknown level is answered in the form of 5.0 if it is later, else of
/// 3.1.1. Some bridges set a level's highest bit for an extension, and connect without it after a refusal.
fn version(from: &mut Reader<'_>) -> Result<Version, (Flaw, Option<Version>)> {
    let unknown = |flaw| (flaw, None);
    let name: &[u8] = Field::read(from).map_err(unknown)?;
    if name != b"MQTT" && name != b"MQIsdp" {
        return Err(unknown(Flaw::ProtocolName));
    }
    let level = u8::read(from).map_err(unknown)?;
    match (name, level) {
        (b"MQIsdp", 3) => Ok(Version::V31),
        (b"MQTT", 4) => Ok(Version::V311),
        (b"MQTT", 5) => Ok(Version::V5),
        _ => {
            let answered = if level & 0x7F >= 5 { Version::V5 } else { Version::V311 };
            Err((Flaw::ProtocolLevel(level), Some(answered)))
        }
    }
}
