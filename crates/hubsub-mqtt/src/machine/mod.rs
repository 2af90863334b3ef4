//! State machine of one client's connection on the server: requests of its packets and replies to them. See
//! docs/protocol/mqtt-sessions.md; docs/protocol/mqtt-state.md for the state that outlives the connection.
//!
//! The caller passes packets in ([`Machine::take`]), executes the returned [`Step`], and passes results in
//! when they are known, perhaps much later. Output is appended to a vector. The machine knows no socket, no
//! broker and no clock.
//!
//! Invariants:
//!
//! 1. PUBACK, PUBREC, SUBACK and UNSUBACK are sent in the order of their requests, each after its result is
//!    known.
//! 2. A QoS 2 message is passed to the caller once, however often it is sent before its PUBREL; on a new
//!    connection it is passed again under the same number, unless it is known to be published.
//! 3. The number of unacknowledged messages never exceeds the client's Receive Maximum; each has its own id.
//! 4. A message is sent for one of its matching subscriptions, with the maximum QoS of all of them.
//! 5. Messages that a session left unacknowledged are sent again before new ones, in the order of first
//!    delivery.

mod aliases;
mod filters;
mod headers;
mod held;
mod intents;
mod opening;
mod progress;
mod publishing;
mod requests;
mod seldom;
mod session;
mod snapshot;
mod step;
mod subscribing;
mod suspend;
mod window;

pub use aliases::OwnAliases;
pub use filters::{Filters, Grant, Match};
pub use headers::{expiry_s, read_headers, write_headers};
pub use opening::{Accepted, LastWill, Opened, Refusal, Terms};
pub use progress::Progress;
pub use session::{Damaged, Event, SessionState};
pub use step::{Fault, Incoming, Step, Topic};
pub use window::Window;

use aliases::Aliases;
use held::Held;
use hubsub_wire::mqtt::{
    Ack, Disconnect, Packet, PacketId, Properties, Property, PropertyList, Publish, Qos, Reason, Version,
};
use intents::Intents;
use publishing::acknowledged;
use requests::{Answers, Requests};
use window::Awaits;

/// Silence that ends a connection, in ms per second of its keep alive.
const SILENCE_MS_A_S: u32 = 1500;

/// One client's connection; see the module.
pub struct Machine {
    version: Version,
    client_id: Box<str>,
    /// Longest silence of the client, in ms; 0 for no limit.
    silence_ms: u32,
    heard_ms: u64,
    packet_bytes_max: u32,
    receive_max: u16,
    is_strict: bool,
    retains: bool,
    /// Whether a subscription has No Local, or had.
    has_no_local: bool,
    /// Messages above `receive_max` that were accepted nevertheless.
    exceeded: u32,
    explains: bool,
    /// Session Expiry Interval in s; `u32::MAX` means no expiry.
    expiry_s: u32,
    /// Longest interval that its DISCONNECT may set; `None` if the session ends with the connection.
    expiry_s_max: Option<u32>,
    requests: Requests,
    /// Its QoS 2 messages; `None` until the first.
    intents: Option<Box<Intents>>,
    /// Replies that wait for an event to be recorded; `None` if the session is not recorded.
    held: Option<Box<Held>>,
    aliases: Aliases,
    pub will: Option<Box<LastWill>>,
    pub window: Window,
    pub filters: Filters,
    pub own_aliases: OwnAliases,
}

impl Machine {
    #[inline]
    pub fn version(&self) -> Version {
        self.version
    }

    /// The client's id, or the one assigned to it.
    #[inline]
    pub fn client_id(&self) -> &str {
        &self.client_id
    }

    #[inline]
    pub fn packet_bytes_max(&self) -> usize {
        self.packet_bytes_max as usize
    }

    /// When its keep alive expires, in ms; `None` without keep alive.
    pub fn silent_at_ms(&self) -> Option<u64> {
        (self.silence_ms > 0).then_some(self.heard_ms + u64::from(self.silence_ms))
    }

    /// The keep alive in s; 0: none.
    pub fn keep_alive_s(&self) -> u64 {
        u64::from(self.silence_ms / SILENCE_MS_A_S)
    }

    /// Restarts the keep alive after a delay that the client did not cause.
    pub fn excuse(&mut self, now_ms: u64) {
        self.heard_ms = now_ms;
    }

    #[inline]
    pub fn pending(&self) -> usize {
        self.requests.len() + self.held.as_ref().map_or(0, |held| held.len())
    }

    /// Session Expiry Interval in s; `u32::MAX` means no expiry, 0 that the session ends with the connection.
    pub fn session_expiry_s(&self) -> u32 {
        self.expiry_s
    }

    pub fn publishes(&self) -> bool {
        self.requests.publishes > 0
    }

    /// Messages above the Receive Maximum that were accepted since the last call.
    pub fn take_exceeded(&mut self) -> u64 {
        std::mem::take(&mut self.exceeded).into()
    }

    /// Takes the will, to be published because the connection has ended.
    pub fn take_will(&mut self) -> Option<Box<LastWill>> {
        self.will.take()
    }

    /// Handles a packet; replies that are known go to `out`.
    ///
    /// # Errors
    /// The connection must be closed.
    #[inline]
    pub fn take<'a>(
        &mut self,
        packet: Packet<'a>,
        now_ms: u64,
        out: &mut Vec<u8>,
    ) -> Result<Step<'a>, Fault> {
        self.heard_ms = now_ms;
        match packet {
            Packet::Publish(publish) => return self.publish(&publish, out),
            Packet::Puback(ack) => {
                return acknowledged(ack.id, self.window.last_word(ack.id, Awaits::Puback));
            }
            Packet::Pubrec(ack) => return self.received(ack, out),
            Packet::Pubcomp(ack) => {
                return acknowledged(ack.id, self.window.last_word(ack.id, Awaits::Pubcomp));
            }
            Packet::Pubrel(ack) => return Ok(self.released(ack.id, out)),
            Packet::Subscribe(subscribe) => return Ok(self.subscribe(subscribe)),
            Packet::Unsubscribe(unsubscribe) => return Ok(self.unsubscribe(unsubscribe, out)),
            Packet::Pingreq => self.write(&Packet::Pingresp, out),
            Packet::Disconnect(disconnect) => return self.goodbye(disconnect),
            Packet::Auth(_) => {
                let what = "AUTH without an authentication method in CONNECT";
                return Err(Fault { reason: Reason::ProtocolError, what });
            }
            // The decoder yields no other packets on a server.
            _ => return Err(Fault::of(Reason::ProtocolError)),
        }
        Ok(Step::Done)
    }

    /// Fast path for a PUBLISH of QoS 0 with only topic and payload: returns the message to publish. `None`
    /// for any other, which [`Machine::take`] handles.
    #[inline]
    pub fn take_plain<'a>(&mut self, publish: &Publish<'a>, now_ms: u64) -> Option<Incoming<'a>> {
        let Publish { qos, retain, topic, properties, payload, .. } = *publish;
        if qos > Qos::AtMostOnce || retain || !properties.is_empty() {
            return None;
        }
        self.heard_ms = now_ms;
        let number = self.requests.number();
        let topic = Topic::Said(topic);
        Some(Incoming { number, topic, qos, retain, id: None, intent: None, properties, payload })
    }

    fn pump(&mut self, out: &mut Vec<u8>) {
        let answers = Answers {
            version: self.version,
            packet_bytes_max: self.packet_bytes_max(),
            explains: self.explains,
        };
        self.requests.pump(answers, out);
    }

    fn goodbye<'a>(&mut self, disconnect: Disconnect<'_>) -> Result<Step<'a>, Fault> {
        let expiry_s = disconnect.properties.iter().find_map(|property| match property {
            Property::SessionExpiry(seconds) => Some(seconds),
            _ => None,
        });
        match (expiry_s, self.expiry_s_max) {
            (Some(1..), None) => {
                let what = "DISCONNECT lets a session outlive its connection that was to end with it";
                return Err(Fault { reason: Reason::ProtocolError, what });
            }
            (Some(wanted), Some(max)) => self.expiry_s = wanted.min(max),
            _ => {}
        }
        // Any other reason means that something went wrong ([MQTT-3.14.4-3]); only 5.0 has others.
        if disconnect.reason == Reason::Success {
            self.will = None;
        }
        Ok(Step::Goodbye)
    }

    /// Appends DISCONNECT with the reason; nothing before 5.0.
    pub fn write_fault(&self, fault: Fault, out: &mut Vec<u8>) {
        if self.version < Version::V5 {
            return;
        }
        let mut why = PropertyList::default();
        why.push(Property::ReasonString(fault.what)).expect("its few words are no limit's");
        let packet = |properties| Packet::Disconnect(Disconnect { reason: fault.reason, properties });
        let said = packet(why.as_properties()).write(out, self.version, self.packet_bytes_max());
        if said.is_err() {
            self.write(&packet(Properties::default()), out);
        }
    }

    fn ack(&self, id: PacketId, reason: Reason) -> Ack<'static> {
        Ack { id, reason, properties: Properties::default() }
    }

    /// Appends a reply, unless it is longer than the client accepts.
    fn write(&self, packet: &Packet<'_>, out: &mut Vec<u8>) {
        // A client that does not even accept a few bytes gets no reply.
        let _ = packet.write(out, self.version, self.packet_bytes_max());
    }
}
