//! CONNECT: limits that the server grants, and the CONNACK that announces them.

use super::aliases::{Aliases, OwnAliases};
use super::filters::Filters;
use super::headers::read_headers;
use super::requests::Requests;
use super::window::Window;
use super::{Fault, Machine, SILENCE_MS_A_S};
use hubsub_wire::mqtt::{
    Connack, Connect, Packet, Properties, Property, PropertyList, Qos, REMAINING_LENGTH_MAX, Reason, Version,
};
use std::fmt::Write as _;

#[derive(Clone, Debug)]
pub struct Terms {
    pub packet_bytes_max: u32,
    /// Receive Maximum of the server, at least 1.
    pub receive_max: u16,
    /// Whether exceeding `receive_max` ends the connection.
    pub is_strict: bool,
    /// Most unacknowledged messages to a client, at least 1; fewer if its Receive Maximum is lower.
    pub inflight_max: u16,
    /// Topic aliases in each direction; 0 for none.
    pub aliases_max: u16,
    /// Longest keep alive in s; 0 leaves it to the client.
    pub keep_alive_s_max: u16,
    pub retains: bool,
    /// Whether ids of MQTT 3.1 may have more than 23 characters.
    pub long_ids: bool,
    /// Longest session expiry in s; `u32::MAX` means no expiry, 0 that sessions end with their connections.
    pub session_expiry_s_max: u32,
    /// Session expiry of clients before 5.0, which cannot set one, in s; at most the maximum.
    pub session_expiry_s_default: u32,
    pub has_shares: bool,
}

/// The message that is published when a client's connection ends without DISCONNECT.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LastWill {
    pub topic: Box<str>,
    pub payload: Box<[u8]>,
    pub headers: Vec<(Box<str>, Box<str>)>,
    pub qos: Qos,
    pub retain: bool,
    /// Delay after the connection's end, in s; it is published earlier if the session ends earlier.
    pub delay_s: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    pub fault: Fault,
    version: Version,
    packet_bytes_max: usize,
}

impl Refusal {
    pub fn new(connect: &Connect<'_>, fault: Fault) -> Refusal {
        let packet_bytes_max = Told::of(connect.properties).packet_bytes_max;
        Refusal { fault, version: connect.version, packet_bytes_max: packet_bytes_max as usize }
    }

    /// Appends the CONNACK with the reason; nothing if it is longer than the client accepts.
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

/// An accepted connection, before its CONNACK.
pub struct Opened {
    /// The connection, with a new session. It may [resume](Machine::resume) a stored one.
    pub machine: Machine,
    /// Whether a stored session must be discarded.
    pub is_clean: bool,
    /// Sent once the client id belongs to this connection and it is known whether a session resumes.
    pub accepted: Accepted,
}

/// A CONNACK without its Session Present flag.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Accepted {
    connack: Box<[u8]>,
    says_session: bool,
}

impl Accepted {
    /// Appends it. `session_present`: a stored session resumes; MQTT 3.1 has no flag for that.
    pub fn write(&self, session_present: bool, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&self.connack);
        let length_bytes = 1 + self.connack[1..].iter().take_while(|&&byte| byte >= 0x80).count();
        out[start + 1 + length_bytes] |= u8::from(session_present && self.says_session);
    }
}

/// Prefix of a client's id in its Response Information.
const RESPONSE: &str = "response/";

impl Machine {
    /// Accepts a client. `new_id` generates an id for a client without one.
    ///
    /// # Errors
    /// The client is refused.
    pub fn open(
        connect: &Connect<'_>,
        terms: &Terms,
        now_ms: u64,
        new_id: impl FnOnce() -> String,
    ) -> Result<Opened, Refusal> {
        let version = connect.version;
        let refuse = |reason, what| Err(Refusal::new(connect, Fault { reason, what }));
        if let Err(reason) = connect.check_client_id(terms.long_ids) {
            return Err(Refusal::new(connect, Fault::of(reason)));
        }
        let told = Told::of(connect.properties);
        if told.has_method {
            return refuse(Reason::BadAuthenticationMethod, "no method of enhanced authentication is known");
        }
        // Before 5.0 a session is clean at its start and its end, or at neither.
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
                // If the id makes it longer than a property, this optional property is omitted.
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

impl Machine {
    /// Refuses the client after all, before CONNACK was sent.
    pub fn refuse(&self, fault: Fault) -> Refusal {
        let packet_bytes_max = self.packet_bytes_max as usize;
        Refusal { fault, version: self.version, packet_bytes_max }
    }
}

/// A topic unique to this client: the id becomes one level without wildcards.
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
