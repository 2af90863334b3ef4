//! CONNECT: what the server grants, and what it tells of it.

use super::super::ack::Connack;
use super::super::connect::Connect;
use super::super::packet::{Packet, Qos, REMAINING_LENGTH_MAX, Version};
use super::super::property::{Properties, Property, PropertyList};
use super::super::reason::Reason;
use super::aliases::{Aliases, OwnAliases};
use super::filters::Filters;
use super::headers::read_headers;
use super::requests::Requests;
use super::window::Window;
use super::{Fault, Machine, SILENCE_MS_A_S};
use std::collections::BTreeMap;

/// What a server grants to each client.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Bytes of the longest packet that it takes.
    pub packet_bytes_max: u32,
    /// Messages of QoS 1 and 2 that a client may have unanswered, at least one.
    pub receive_max: u16,
    /// Whether more than that ends the connection.
    pub is_strict: bool,
    /// Messages of QoS 1 and 2 to a client that may be unacknowledged, at least one; fewer where it takes fewer.
    pub inflight_max: u16,
    /// Topic aliases each way; 0 for none.
    pub aliases_max: u16,
    /// The longest keep alive, in s; 0 leaves it to the client.
    pub keep_alive_s_max: u16,
    /// Whether ids of 3.1 may have more than 23 characters.
    pub long_ids: bool,
}

/// What a client has published as its connection ends without a goodbye.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LastWill {
    /// Where to.
    pub topic: Box<str>,
    /// What.
    pub payload: Box<[u8]>,
    /// Beside it.
    pub headers: Vec<(Box<str>, Box<str>)>,
    /// How surely.
    pub qos: Qos,
}

/// A connection that is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Why.
    pub fault: Fault,
    version: Version,
}

impl Refusal {
    /// Of a client that speaks this version.
    #[must_use]
    pub fn new(version: Version, fault: Fault) -> Refusal {
        Refusal { fault, version }
    }

    /// Appends the CONNACK that says so.
    pub fn write(self, out: &mut Vec<u8>) {
        let mut why = PropertyList::default();
        why.push(Property::ReasonString(self.fault.what)).expect("its few words are no limit's");
        let (reason, properties) = (self.fault.reason, why.as_properties());
        let connack = Connack { session_present: false, reason, properties };
        Packet::Connack(connack).write(out, self.version, usize::MAX).expect("its few bytes are no limit's");
    }
}

/// A connection that may begin, and the CONNACK that says so.
pub struct Opened {
    /// The connection.
    pub machine: Machine,
    /// To be sent when its client id is its own.
    pub connack: Vec<u8>,
}

impl Machine {
    /// Takes a client in. `new_id` makes an id for one that brings none.
    ///
    /// # Errors
    /// It is refused.
    pub fn open(
        connect: &Connect<'_>,
        terms: &Terms,
        now_ms: u64,
        new_id: impl FnOnce() -> String,
    ) -> Result<Opened, Refusal> {
        let version = connect.version;
        let refuse = |reason, what| Err(Refusal::new(version, Fault { reason, what }));
        if let Err(reason) = connect.check_client_id(terms.long_ids) {
            return Err(Refusal::new(version, Fault::of(reason)));
        }
        let told = Told::of(connect.properties);
        if told.has_method {
            return refuse(Reason::BadAuthenticationMethod, "no method of enhanced authentication is known");
        }
        if !connect.clean_start && version < Version::V5 {
            return refuse(
                Reason::ServerUnavailable,
                "sessions do not outlive connections: clean session is needed",
            );
        }
        if connect.will.is_some_and(|will| will.retain) {
            return refuse(Reason::RetainNotSupported, "retained messages are not supported");
        }
        let keep_alive_s = match (connect.keep_alive_s, terms.keep_alive_s_max) {
            (wanted, 0) => wanted,
            (0, max) => max,
            (wanted, max) => wanted.min(max),
        };
        let is_assigned = connect.client_id.is_empty();
        let client_id = if is_assigned { new_id() } else { connect.client_id.to_owned() };
        let mut properties = PropertyList::default();
        if version == Version::V5 {
            let mut tell = |property| properties.push(property).expect("ids of our own are short");
            if told.expiry_s > 0 {
                tell(Property::SessionExpiry(0));
            }
            tell(Property::ReceiveMaximum(terms.receive_max.max(1)));
            tell(Property::RetainAvailable(false));
            tell(Property::MaximumPacketSize(terms.packet_bytes_max));
            if is_assigned {
                tell(Property::AssignedClientId(&client_id));
            }
            if terms.aliases_max > 0 {
                tell(Property::TopicAliasMaximum(terms.aliases_max));
            }
            tell(Property::SharedAvailable(false));
            if keep_alive_s != connect.keep_alive_s {
                tell(Property::ServerKeepAlive(keep_alive_s));
            }
        }
        let packet_bytes_max = told.packet_bytes_max.map_or(REMAINING_LENGTH_MAX + 5, |max| max as usize);
        let connack = Connack {
            session_present: false,
            reason: Reason::Success,
            properties: properties.as_properties(),
        };
        let mut bytes = Vec::new();
        if Packet::Connack(connack).write(&mut bytes, version, packet_bytes_max).is_err() {
            return refuse(Reason::PacketTooLarge, "CONNACK is longer than the client takes");
        }
        let will = connect.will.map(|will| {
            let (topic, payload, headers) =
                (will.topic.into(), will.payload.into(), read_headers(will.properties));
            Box::new(LastWill { topic, payload, headers, qos: will.qos })
        });
        let inflight_max = terms.inflight_max.min(told.receive_max);
        let machine = Machine {
            version,
            client_id: client_id.into(),
            silence_ms: u64::from(keep_alive_s) * SILENCE_MS_A_S,
            heard_ms: now_ms,
            packet_bytes_max,
            receive_max: usize::from(terms.receive_max.max(1)),
            is_strict: terms.is_strict,
            exceeded: 0,
            expires_at_once: told.expiry_s == 0,
            requests: Requests::default(),
            unreleased: BTreeMap::new(),
            aliases: Aliases::new(terms.aliases_max),
            will,
            window: Window::new(inflight_max),
            filters: Filters::default(),
            own_aliases: OwnAliases::new(terms.aliases_max.min(told.aliases_max)),
        };
        Ok(Opened { machine, connack: bytes })
    }
}

/// What CONNECT says in its properties.
struct Told {
    expiry_s: u32,
    receive_max: u16,
    packet_bytes_max: Option<u32>,
    aliases_max: u16,
    has_method: bool,
}

impl Told {
    fn of(properties: Properties<'_>) -> Told {
        let mut told = Told {
            expiry_s: 0,
            receive_max: u16::MAX,
            packet_bytes_max: None,
            aliases_max: 0,
            has_method: false,
        };
        for property in properties.iter() {
            match property {
                Property::SessionExpiry(seconds) => told.expiry_s = seconds,
                Property::ReceiveMaximum(max) => told.receive_max = max,
                Property::MaximumPacketSize(max) => told.packet_bytes_max = Some(max),
                Property::TopicAliasMaximum(max) => told.aliases_max = max,
                Property::AuthMethod(_) => told.has_method = true,
                _ => {}
            }
        }
        told
    }
}
