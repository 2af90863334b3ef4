//! One client's connection as the server has it: what its packets ask for, and what it is answered.
//! See docs/protocol/mqtt-sessions.md.
//!
//! Packets go in ([`Machine::take`]), a [`Step`] comes out that the caller carries out, and answers go in
//! when they are known, perhaps much later. What is to be written is appended to a vector. It knows no
//! socket, no broker and no clock.
//!
//! - [`opening`]: CONNECT and its answer, the will
//! - [`step`]: what the caller is to do
//! - [`publishing`]: its messages
//! - [`subscribing`]: its subscriptions
//! - [`requests`]: what the client waits for, answered in the order in which it asked
//! - [`intents`]: messages of QoS 2 of the client
//! - [`window`]: what the client has not acknowledged
//! - [`filters`]: what it subscribes to, and how a message that matches is sent
//! - [`aliases`]: topics in two bytes
//! - [`headers`]: properties of a message as headers of a record, and back
//!
//! What outlives the connection (docs/protocol/mqtt-state.md):
//!
//! - [`suspend`]: how a machine leaves a session and goes on with one
//! - [`session`]: what it leaves
//! - [`snapshot`]: that in bytes
//! - [`held`]: answers that wait until what happened is recorded
//! - [`progress`]: how far a row of messages is acknowledged
//!
//! Invariants:
//!
//! 1. PUBACK, PUBREC, SUBACK and UNSUBACK come in the order of what they answer, none before its answer is known.
//! 2. A message of QoS 2 is given to the caller once, however often it is sent before its PUBREL; over a new connection
//!    again under the same number, unless it is known to be published.
//! 3. No more than the client's Receive Maximum of messages are unacknowledged, each under an id of its own.
//! 4. A message comes by one of the subscriptions that it matches, with the highest QoS of all of them.
//! 5. What a session left unacknowledged is sent again before anything new, in the order of its first delivery.

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
pub use filters::{Grant, Match};
pub use headers::{expiry_s, read_headers, write_headers};
pub use opening::{Accepted, LastWill, Opened, Refusal, Terms};
pub use progress::Progress;
pub use session::{Damaged, Event, Key, SessionState};
pub use step::{Fault, Incoming, Step, Topic};
pub use window::Window;

use super::ack::{Ack, Disconnect};
use super::packet::{Packet, PacketId, Qos, Version};
use super::property::{Properties, Property, PropertyList};
use super::publish::Publish;
use super::reason::Reason;
use aliases::Aliases;
use filters::Filters;
use held::Held;
use intents::Intents;
use publishing::acknowledged;
use requests::{Answers, Requests};

/// Silence that ends a connection, for each second of its keep alive.
const SILENCE_MS_A_S: u32 = 1500;

/// See the module. `K` says which message to the client it is.
pub struct Machine<K> {
    version: Version,
    client_id: Box<str>,
    /// Longest silence of the client, in ms; 0 for any.
    silence_ms: u32,
    /// When it was last heard.
    heard_ms: u64,
    /// Bytes of the longest packet that it takes.
    packet_bytes_max: u32,
    /// Messages of QoS 1 and 2 that it may have unanswered.
    receive_max: u16,
    /// Whether more than that ends the connection.
    is_strict: bool,
    /// Whether topics keep messages.
    retains: bool,
    /// Whether its own messages stay away from one of its subscriptions, or did.
    has_no_local: bool,
    /// Messages above `receive_max` that were taken all the same.
    exceeded: u32,
    /// Whether it wants reasons in words in every packet.
    explains: bool,
    /// How long its session outlives the connection, in s; the largest number means for ever.
    expiry_s: u32,
    /// The longest that its goodbye can ask for; none if the session was to end with the connection.
    expiry_s_max: Option<u32>,
    requests: Requests,
    /// Its messages of QoS 2; none until the first.
    intents: Option<Box<Intents>>,
    /// What waits to be recorded; none if nothing is.
    held: Option<Box<Held>>,
    aliases: Aliases,
    will: Option<Box<LastWill>>,
    /// What it has not acknowledged.
    pub window: Window<K>,
    /// What it subscribes to.
    filters: Filters,
    /// What stands for topics on the way to it.
    pub own_aliases: OwnAliases,
}

impl<K: Key> Machine<K> {
    /// What the connection speaks.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Its own id, or one that it was given.
    #[must_use]
    pub fn client_id(&self) -> &str {
        &self.client_id
    }

    /// Bytes of the longest packet that it takes.
    #[must_use]
    pub fn packet_bytes_max(&self) -> usize {
        self.packet_bytes_max as usize
    }

    /// When it has been silent for too long, in ms; none if it may be.
    #[must_use]
    pub fn silent_at_ms(&self) -> Option<u64> {
        (self.silence_ms > 0).then_some(self.heard_ms + u64::from(self.silence_ms))
    }

    /// What the client said of how long it is silent at most, in s; 0: it did not.
    #[must_use]
    pub fn keep_alive_s(&self) -> u64 {
        u64::from(self.silence_ms / SILENCE_MS_A_S)
    }

    /// It is not its fault that it was not heard until now.
    pub fn excuse(&mut self, now_ms: u64) {
        self.heard_ms = now_ms;
    }

    /// Answers that it waits for.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.requests.len() + self.held.as_ref().map_or(0, |held| held.len())
    }

    /// How long its session outlives the connection, in s; the largest number means for ever, 0 not at all.
    #[must_use]
    pub fn session_expiry_s(&self) -> u32 {
        self.expiry_s
    }

    /// Whether some of them are of messages.
    #[must_use]
    pub fn publishes(&self) -> bool {
        self.requests.publishes > 0
    }

    /// Messages above the Receive Maximum that were taken since the last call.
    pub fn take_exceeded(&mut self) -> u64 {
        std::mem::take(&mut self.exceeded).into()
    }

    /// What is to be published as the connection has ended; once.
    pub fn take_will(&mut self) -> Option<Box<LastWill>> {
        self.will.take()
    }

    /// Acts on a packet; answers that are known go to `out`.
    ///
    /// # Errors
    /// The connection is to be closed.
    pub fn take<'a>(
        &mut self,
        packet: Packet<'a>,
        now_ms: u64,
        out: &mut Vec<u8>,
    ) -> Result<Step<'a, K>, Fault> {
        self.heard_ms = now_ms;
        match packet {
            Packet::Publish(publish) => return self.publish(&publish, out),
            Packet::Puback(ack) => return acknowledged(ack.id, self.window.puback(ack.id)),
            Packet::Pubrec(ack) => return self.received(ack, out),
            Packet::Pubcomp(ack) => return acknowledged(ack.id, self.window.pubcomp(ack.id)),
            Packet::Pubrel(ack) => return Ok(self.released(ack.id, out)),
            Packet::Subscribe(subscribe) => return Ok(self.subscribe(subscribe)),
            Packet::Unsubscribe(unsubscribe) => return Ok(self.unsubscribe(unsubscribe, out)),
            Packet::Pingreq => self.write(&Packet::Pingresp, out),
            Packet::Disconnect(disconnect) => return self.goodbye(disconnect),
            Packet::Auth(_) => {
                let what = "AUTH without an authentication method in CONNECT";
                return Err(Fault { reason: Reason::ProtocolError, what });
            }
            // The decoder gives a server nothing else.
            _ => return Err(Fault::of(Reason::ProtocolError)),
        }
        Ok(Step::Done)
    }

    /// Acts on a PUBLISH of QoS 0 that nothing but its topic and payload is to be known of: what is to be published. None
    /// of another one, which [`Machine::take`] acts on.
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

    fn goodbye<'a>(&mut self, disconnect: Disconnect<'_>) -> Result<Step<'a, K>, Fault> {
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
        // Any other reason says that something went wrong ([MQTT-3.14.4-3]); before 5.0 there is but this one.
        if disconnect.reason == Reason::Success {
            self.will = None;
        }
        Ok(Step::Goodbye)
    }

    /// Appends what the client is told as the server closes; nothing before 5.0.
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

    /// Appends an answer, unless the client takes no packet of its length.
    fn write(&self, packet: &Packet<'_>, out: &mut Vec<u8>) {
        // Nothing else can be said to who takes no packet of a few bytes.
        let _ = packet.write(out, self.version, self.packet_bytes_max());
    }
}
