//! CONNECT: what the server grants, and what it tells of it.

use super::super::ack::Connack;
use super::super::connect::Connect;
use super::super::field::short;
use super::super::packet::{Packet, Qos, REMAINING_LENGTH_MAX, Version};
use super::super::property::{Properties, Property, PropertyList};
use super::super::reason::Reason;
use super::aliases::{Aliases, OwnAliases};
use super::filters::Filters;
use super::headers::read_headers;
use super::requests::Requests;
use super::session::Key;
use super::window::Window;
use super::{Fault, Machine, SILENCE_MS_A_S};
use std::fmt::Write as _;

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
    /// Whether topics keep messages.
    pub retains: bool,
    /// Whether ids of 3.1 may have more than 23 characters.
    pub long_ids: bool,
    /// The longest that a session may outlive its connection, in s; the largest number means for ever, 0 not at all.
    pub session_expiry_s_max: u32,
    /// How long it does before 5.0, where clients cannot say it, in s; no longer than the maximum.
    pub session_expiry_s_default: u32,
    /// Whether subscriptions can be shared.
    pub has_shares: bool,
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
    /// Whether its topic keeps it.
    pub retain: bool,
    /// How long after the connection's end, in s, unless the session ends before.
    pub delay_s: u32,
}

/// A connection that is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Why.
    pub fault: Fault,
    version: Version,
    packet_bytes_max: usize,
}

impl Refusal {
    /// Of who says this.
    #[must_use]
    pub fn new(connect: &Connect<'_>, fault: Fault) -> Refusal {
        let packet_bytes_max = Told::of(connect.properties).packet_bytes_max;
        Refusal { fault, version: connect.version, packet_bytes_max: packet_bytes_max as usize }
    }

    /// Appends the CONNACK that says so; nothing where the client takes no packet of its length.
    pub fn write(self, out: &mut Vec<u8>) {
        let mut why = PropertyList::default();
        why.push(Property::ReasonString(self.fault.what)).expect("its few words are no limit's");
        for properties in [why.as_properties(), Properties::default()] {
            let connack = Connack { session_present: false, reason: self.fault.reason, properties };
            if Packet::Connack(connack).write(out, self.version, self.packet_bytes_max).is_ok() {
                return;
            }
        }
    }
}

/// A connection that may begin.
pub struct Opened<K> {
    /// The connection, of a session that is new. One that is kept may be [resumed](Machine::resume) by it.
    pub machine: Machine<K>,
    /// Whether a session that is kept is to be forgotten.
    pub is_clean: bool,
    /// To be sent when its client id is its own and it is known whether its session goes on.
    pub accepted: Accepted,
}

/// A CONNACK that lacks but whether a session is present.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Accepted {
    connack: Box<[u8]>,
    /// Whether its version says that.
    says_session: bool,
}

impl Accepted {
    /// Appends it. `session_present`: a kept session goes on; 3.1 has no word for that.
    pub fn write(&self, session_present: bool, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&self.connack);
        let length = short(&self.connack[1..]).ok().flatten().expect("it was written by us");
        out[start + 1 + length.bytes] |= u8::from(session_present && self.says_session);
    }
}

/// What stands in front of a client's id in its response information.
const RESPONSE: &str = "response/";

impl<K: Key> Machine<K> {
    /// Takes a client in. `new_id` makes an id for one that brings none.
    ///
    /// # Errors
    /// It is refused.
    pub fn open(
        connect: &Connect<'_>,
        terms: &Terms,
        now_ms: u64,
        new_id: impl FnOnce() -> String,
    ) -> Result<Opened<K>, Refusal> {
        let version = connect.version;
        let refuse = |reason, what| Err(Refusal::new(connect, Fault { reason, what }));
        if let Err(reason) = connect.check_client_id(terms.long_ids) {
            return Err(Refusal::new(connect, Fault::of(reason)));
        }
        let told = Told::of(connect.properties);
        if told.has_method {
            return refuse(Reason::BadAuthenticationMethod, "no method of enhanced authentication is known");
        }
        // Before 5.0 a session is clean at both its ends or at none.
        let asked_expiry_s = match version {
            Version::V5 => told.expiry_s,
            _ if connect.clean_start => 0,
            _ => terms.session_expiry_s_default,
        };
        let expiry_s = asked_expiry_s.min(terms.session_expiry_s_max);
        if !connect.clean_start && expiry_s == 0 && version < Version::V5 {
            return refuse(
                Reason::ServerUnavailable,
                "sessions do not outlive connections: clean session is needed",
            );
        }
        if !terms.retains && connect.will.is_some_and(|will| will.retain) {
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
            if expiry_s != told.expiry_s {
                tell(Property::SessionExpiry(expiry_s));
            }
            tell(Property::ReceiveMaximum(terms.receive_max.max(1)));
            if !terms.retains {
                tell(Property::RetainAvailable(false));
            }
            tell(Property::MaximumPacketSize(terms.packet_bytes_max));
            if is_assigned {
                tell(Property::AssignedClientId(&client_id));
            }
            if terms.aliases_max > 0 {
                tell(Property::TopicAliasMaximum(terms.aliases_max));
            }
            if !terms.has_shares {
                tell(Property::SharedAvailable(false));
            }
            if keep_alive_s != connect.keep_alive_s {
                tell(Property::ServerKeepAlive(keep_alive_s));
            }
            if told.wants_response {
                // An id may be as long as a property: then there is no such information, as there need not be.
                let _ = properties.push(Property::ResponseInfo(&response_topic(&client_id)));
            }
        }
        let connack = Connack {
            session_present: false,
            reason: Reason::Success,
            properties: properties.as_properties(),
        };
        let mut bytes = Vec::new();
        if Packet::Connack(connack).write(&mut bytes, version, told.packet_bytes_max as usize).is_err() {
            return refuse(Reason::PacketTooLarge, "CONNACK is longer than the client takes");
        }
        let will = connect.will.map(|will| {
            let (topic, payload, headers) =
                (will.topic.into(), will.payload.into(), read_headers(will.properties));
            let delay_s = will.properties.iter().find_map(|property| match property {
                Property::WillDelay(seconds) => Some(seconds),
                _ => None,
            });
            let (qos, retain, delay_s) = (will.qos, will.retain, delay_s.unwrap_or(0));
            Box::new(LastWill { topic, payload, headers, qos, retain, delay_s })
        });
        let inflight_max = terms.inflight_max.min(told.receive_max);
        let machine = Machine {
            version,
            client_id: client_id.into(),
            silence_ms: u32::from(keep_alive_s) * SILENCE_MS_A_S,
            heard_ms: now_ms,
            packet_bytes_max: told.packet_bytes_max,
            receive_max: terms.receive_max.max(1),
            is_strict: terms.is_strict,
            retains: terms.retains,
            has_no_local: false,
            explains: !told.wants_no_problems,
            exceeded: 0,
            expiry_s,
            expiry_s_max: (asked_expiry_s > 0).then_some(terms.session_expiry_s_max),
            requests: Requests::default(),
            intents: None,
            held: None,
            aliases: Aliases::new(terms.aliases_max),
            will,
            window: Window::new(inflight_max),
            filters: Filters::default(),
            own_aliases: OwnAliases::new(terms.aliases_max.min(told.aliases_max)),
        };
        let accepted = Accepted { connack: bytes.into(), says_session: version > Version::V31 };
        Ok(Opened { machine, is_clean: connect.clean_start, accepted })
    }
}

impl<K> Machine<K> {
    /// It is refused after all: its CONNACK was not sent.
    #[must_use]
    pub fn refuse(&self, fault: Fault) -> Refusal {
        let packet_bytes_max = self.packet_bytes_max as usize;
        Refusal { fault, version: self.version, packet_bytes_max }
    }
}

/// A topic that only this client has: no level of it is another one's, or a wildcard.
fn response_topic(client_id: &str) -> String {
    let mut topic = RESPONSE.to_owned();
    for letter in client_id.chars() {
        match letter {
            '%' | '/' | '+' | '#' => write!(topic, "%{:02X}", letter as u32).expect("a string takes all"),
            letter => topic.push(letter),
        }
    }
    topic
}

/// What CONNECT says in its properties.
struct Told {
    expiry_s: u32,
    receive_max: u16,
    packet_bytes_max: u32,
    aliases_max: u16,
    has_method: bool,
    wants_response: bool,
    wants_no_problems: bool,
}

impl Told {
    fn of(properties: Properties<'_>) -> Told {
        let mut told = Told {
            expiry_s: 0,
            receive_max: u16::MAX,
            packet_bytes_max: REMAINING_LENGTH_MAX as u32 + 5,
            aliases_max: 0,
            has_method: false,
            wants_response: false,
            wants_no_problems: false,
        };
        for property in properties.iter() {
            match property {
                Property::SessionExpiry(seconds) => told.expiry_s = seconds,
                Property::ReceiveMaximum(max) => told.receive_max = max,
                Property::MaximumPacketSize(max) => told.packet_bytes_max = max,
                Property::TopicAliasMaximum(max) => told.aliases_max = max,
                Property::AuthMethod(_) => told.has_method = true,
                Property::RequestResponseInfo(wants) => told.wants_response = wants,
                Property::RequestProblemInfo(wants) => told.wants_no_problems = !wants,
                _ => {}
            }
        }
        told
    }
}
