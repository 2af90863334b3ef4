//! One client's connection as the server has it: what its packets ask for, and what it is answered.
//! See docs/protocol/mqtt-sessions.md.
//!
//! Packets go in ([`Machine::take`]), a [`Step`] comes out that the caller carries out, and answers go in
//! when they are known, perhaps much later. What is to be written is appended to a vector. It knows no
//! socket, no broker and no clock.
//!
//! - [`opening`]: CONNECT and its answer, the will
//! - [`requests`]: what the client waits for, answered in the order in which it asked
//! - [`window`]: what the client has not acknowledged
//! - [`filters`]: what it subscribes to, and how a message that matches is sent
//! - [`aliases`]: topics in two bytes
//! - [`headers`]: properties of a message as headers of a record, and back
//!
//! Invariants:
//!
//! 1. PUBACK, PUBREC, SUBACK and UNSUBACK come in the order of what they answer, none before its answer is known.
//! 2. A message of QoS 2 is given to the caller once, however often it is sent before its PUBREL.
//! 3. No more than the client's Receive Maximum of messages are unacknowledged, each under an id of its own.
//! 4. A message comes by one of the subscriptions that it matches, with the highest QoS of all of them.

mod aliases;
mod filters;
mod headers;
mod opening;
mod requests;
mod window;

pub use aliases::OwnAliases;
pub use filters::{Grant, Match};
pub use headers::{expiry_s, read_headers, write_headers};
pub use opening::{LastWill, Opened, Refusal, Terms};
pub use window::Window;

use super::ack::{Ack, Disconnect};
use super::packet::{Packet, PacketId, Qos, Version};
use super::property::{Properties, Property, PropertyList};
use super::publish::Publish;
use super::reason::Reason;
use super::subscribe::{Filters as WireFilters, Names, Subscribe, Unsubscribe};
use aliases::Aliases;
use filters::Filters;
use requests::Requests;
use std::collections::BTreeMap;
use std::rc::Rc;
use window::Acknowledged;

/// Silence that ends a connection, for each second of its keep alive.
const SILENCE_MS_A_S: u64 = 1500;

/// Why the server ends a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// As 5.0 says it.
    pub reason: Reason,
    /// What happened, for the log and for a person.
    pub what: &'static str,
}

impl Fault {
    /// A reason in its own words.
    #[must_use]
    pub fn of(reason: Reason) -> Fault {
        Fault { reason, what: reason.words() }
    }
}

/// What a packet asks the caller to do.
#[derive(Debug)]
pub enum Step<'a> {
    /// Nothing.
    Done,
    /// Publish this; [`Machine::published`] is to say what came of it. One of QoS 0 has no answer: that call is for those
    /// that were not settled at once, of which [`Machine::awaits`] is told.
    Publish(Incoming<'a>),
    /// Subscribe; [`Machine::granted`] is to say what came of each, numbered from `first` on in their
    /// order. Those that are shared are answered already.
    Subscribe {
        /// At least one.
        filters: WireFilters<'a>,
        /// Number of the first.
        first: u32,
    },
    /// End these subscriptions, which there may not be.
    Unsubscribe(Names<'a>),
    /// The client says goodbye; its will is gone, unless it wants it published.
    Goodbye,
}

/// A message of the client.
#[derive(Debug)]
pub struct Incoming<'a> {
    /// What its answer is called.
    pub number: u32,
    /// Where to.
    pub topic: Topic<'a>,
    /// How surely.
    pub qos: Qos,
    /// Of 5.0; without alias. See [`read_headers`].
    pub properties: Properties<'a>,
    /// What.
    pub payload: &'a [u8],
}

/// A topic of a packet, or one that an alias stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Topic<'a> {
    /// As the packet says it.
    Said(&'a str),
    /// As one before said it.
    Known(Rc<str>),
}

impl Topic<'_> {
    /// The topic.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Topic::Said(topic) => topic,
            Topic::Known(topic) => topic,
        }
    }
}

/// See the module.
pub struct Machine {
    version: Version,
    client_id: Box<str>,
    /// Longest silence of the client, in ms; 0 for any.
    silence_ms: u64,
    /// When it was last heard.
    heard_ms: u64,
    /// Bytes of the longest packet that it takes.
    packet_bytes_max: usize,
    /// Messages of QoS 1 and 2 that it may have unanswered.
    receive_max: usize,
    /// Whether more than that ends the connection.
    is_strict: bool,
    /// Messages above `receive_max` that were taken all the same.
    exceeded: u64,
    /// Whether its session was to end with its connection.
    expires_at_once: bool,
    requests: Requests,
    /// Ids of messages of QoS 2 that it has not released, and whether they were answered.
    unreleased: BTreeMap<PacketId, bool>,
    aliases: Aliases,
    will: Option<Box<LastWill>>,
    /// What it has not acknowledged.
    pub window: Window,
    /// What it subscribes to.
    filters: Filters,
    /// What stands for topics on the way to it.
    pub own_aliases: OwnAliases,
}

impl Machine {
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
        self.packet_bytes_max
    }

    /// When it has been silent for too long, in ms; none if it may be.
    #[must_use]
    pub fn silent_at_ms(&self) -> Option<u64> {
        (self.silence_ms > 0).then_some(self.heard_ms + self.silence_ms)
    }

    /// What the client said of how long it is silent at most, in s; 0: it did not.
    #[must_use]
    pub fn keep_alive_s(&self) -> u64 {
        self.silence_ms / SILENCE_MS_A_S
    }

    /// It is not its fault that it was not heard until now.
    pub fn excuse(&mut self, now_ms: u64) {
        self.heard_ms = now_ms;
    }

    /// Answers that it waits for.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.requests.len()
    }

    /// Whether some of them are of messages.
    #[must_use]
    pub fn publishes(&self) -> bool {
        self.requests.publishes > 0
    }

    /// Messages above the Receive Maximum that were taken since the last call.
    pub fn take_exceeded(&mut self) -> u64 {
        std::mem::take(&mut self.exceeded)
    }

    /// What is to be published as the connection has ended; once.
    pub fn take_will(&mut self) -> Option<Box<LastWill>> {
        self.will.take()
    }

    /// How a message that comes by this subscription is sent; none if it comes by another one, or not at all.
    /// `is_own`: this client published it.
    #[must_use]
    #[inline]
    pub fn grant(&self, by: Match<'_>, topic: &[u8], is_own: bool) -> Option<Grant> {
        self.filters.grant(by, topic, is_own)
    }

    /// The highest QoS of its subscriptions, if these are few topics and no options change what comes by them.
    #[must_use]
    pub fn plain_qos(&self) -> Option<Qos> {
        self.filters.plain_qos()
    }

    /// Whether its own messages stay away from one of its subscriptions, or did: they are to bear its name.
    #[must_use]
    pub fn has_no_local(&self) -> bool {
        self.filters.has_no_local
    }

    /// Its subscriptions.
    #[must_use]
    pub fn subscriptions(&self) -> usize {
        self.filters.len()
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
    ) -> Result<Step<'a>, Fault> {
        self.heard_ms = now_ms;
        match packet {
            Packet::Publish(publish) => return self.publish(&publish, out),
            Packet::Puback(ack) => check(self.window.puback(ack.id))?,
            Packet::Pubrec(ack) => self.received(ack, out)?,
            Packet::Pubcomp(ack) => check(self.window.pubcomp(ack.id))?,
            Packet::Pubrel(ack) => self.released(ack.id, out),
            Packet::Subscribe(subscribe) => return self.subscribe(subscribe, out),
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
        Some(Incoming { number, topic: Topic::Said(topic), qos, properties, payload })
    }

    fn publish<'a>(&mut self, publish: &Publish<'a>, out: &mut Vec<u8>) -> Result<Step<'a>, Fault> {
        if publish.retain {
            let what = "retained messages are not supported";
            return Err(Fault { reason: Reason::RetainNotSupported, what });
        }
        let topic = self.aliases.topic(publish)?;
        let number = match (publish.qos, publish.id) {
            (Qos::AtLeastOnce, Some(id)) => {
                self.check_receive_max()?;
                self.requests.publish(Some(id), Qos::AtLeastOnce)
            }
            (Qos::ExactlyOnce, Some(id)) => {
                if let Some(&is_answered) = self.unreleased.get(&id) {
                    // It came before. Where its answer is not known yet, that follows all the same.
                    if is_answered {
                        let number = self.requests.publish(Some(id), Qos::ExactlyOnce);
                        self.requests.published(number, Reason::Success);
                        self.pump(out);
                    }
                    return Ok(Step::Done);
                }
                self.check_receive_max()?;
                self.unreleased.insert(id, false);
                self.requests.publish(Some(id), Qos::ExactlyOnce)
            }
            _ => self.requests.number(),
        };
        let Publish { qos, properties, payload, .. } = *publish;
        Ok(Step::Publish(Incoming { number, topic, qos, properties, payload }))
    }

    /// What comes of a message of QoS 0 is not known at once: it is waited for under its number. Before anything else
    /// is taken.
    pub fn awaits(&mut self, incoming: u32) {
        let number = self.requests.publish(None, Qos::AtMostOnce);
        debug_assert_eq!(number, incoming, "nothing was taken since");
    }

    fn check_receive_max(&mut self) -> Result<(), Fault> {
        let unanswered = self.requests.acknowledged_once + self.unreleased.len();
        if unanswered < self.receive_max || self.version < Version::V5 {
            return Ok(());
        }
        if self.is_strict {
            return Err(Fault::of(Reason::ReceiveMaximumExceeded));
        }
        self.exceeded += 1;
        Ok(())
    }

    /// What came of a message: success, nobody subscribes, or a failure.
    ///
    /// Before 5.0 there is no word for a failure. Who may not publish to a topic is answered as if it had been done:
    /// asked again, the answer would be the same.
    ///
    /// # Errors
    /// A message of QoS 1 or 2 failed for another reason, and its version has no word for that: the connection is to
    /// be closed.
    pub fn published(&mut self, number: u32, reason: Reason, out: &mut Vec<u8>) -> Result<(), Fault> {
        let Some((id, qos)) = self.requests.published(number, reason) else { return Ok(()) };
        let is_untold = reason.is_failure() && self.version < Version::V5 && id.is_some();
        if is_untold && reason != Reason::NotAuthorized {
            return Err(Fault::of(reason));
        }
        if let Some(id) = id.filter(|_| qos == Qos::ExactlyOnce) {
            if reason.is_failure() && !is_untold {
                self.unreleased.remove(&id);
            } else if let Some(is_answered) = self.unreleased.get_mut(&id) {
                *is_answered = true;
            }
        }
        self.pump(out);
        Ok(())
    }

    /// What came of a subscription.
    pub fn granted(&mut self, number: u32, granted: Result<(), Reason>, out: &mut Vec<u8>) {
        let Some(filter) = self.requests.filter(number) else { return };
        match granted {
            Ok(()) => self.filters.confirm(filter, number),
            Err(_) => self.filters.refuse(filter, number),
        }
        self.requests.granted(number, granted);
        self.pump(out);
    }

    fn pump(&mut self, out: &mut Vec<u8>) {
        self.requests.pump(self.version, self.packet_bytes_max, out);
    }

    fn received(&mut self, ack: Ack<'_>, out: &mut Vec<u8>) -> Result<(), Fault> {
        let acknowledged = self.window.pubrec(ack.id, ack.reason.is_failure());
        check(acknowledged)?;
        if !ack.reason.is_failure() {
            let is_known = acknowledged == Acknowledged::Known;
            let reason = if is_known { Reason::Success } else { Reason::PacketIdNotFound };
            self.write(&Packet::Pubrel(self.ack(ack.id, reason)), out);
        }
        Ok(())
    }

    fn released(&mut self, id: PacketId, out: &mut Vec<u8>) {
        let is_known = self.unreleased.get(&id) == Some(&true);
        if is_known {
            self.unreleased.remove(&id);
        }
        let reason = if is_known { Reason::Success } else { Reason::PacketIdNotFound };
        self.write(&Packet::Pubcomp(self.ack(id, reason)), out);
    }

    fn subscribe<'a>(&mut self, subscribe: Subscribe<'a>, out: &mut Vec<u8>) -> Result<Step<'a>, Fault> {
        let Subscribe { id, properties, filters } = subscribe;
        let by_id = properties.iter().find_map(|property| match property {
            Property::SubscriptionId(id) => Some(id),
            _ => None,
        });
        let first =
            self.requests.subscribe(id, filters.iter().map(|(filter, options)| (filter, options.qos)));
        for (number, (filter, options)) in (0..).map(|i| first.wrapping_add(i)).zip(filters.iter()) {
            if super::topic::shared(filter).is_some() {
                self.requests.granted(number, Err(Reason::SharedSubscriptionsNotSupported));
            } else {
                self.filters.ask(filter, options, by_id, number);
            }
        }
        self.pump(out);
        Ok(Step::Subscribe { filters, first })
    }

    fn unsubscribe<'a>(&mut self, unsubscribe: Unsubscribe<'a>, out: &mut Vec<u8>) -> Step<'a> {
        let Unsubscribe { id, filters, .. } = unsubscribe;
        let reason = |was_there| if was_there { Reason::Success } else { Reason::NoSubscriptionExisted };
        let reasons: Vec<u8> =
            filters.iter().map(|filter| reason(self.filters.remove(filter)).number()).collect();
        self.requests.unsubscribe(id, reasons);
        self.pump(out);
        Step::Unsubscribe(filters)
    }

    fn goodbye<'a>(&mut self, disconnect: Disconnect<'_>) -> Result<Step<'a>, Fault> {
        let outlives = |property| matches!(property, Property::SessionExpiry(1..));
        if self.expires_at_once && disconnect.properties.iter().any(outlives) {
            let what = "DISCONNECT lets a session outlive its connection that was to end with it";
            return Err(Fault { reason: Reason::ProtocolError, what });
        }
        if disconnect.reason != Reason::DisconnectWithWill {
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
        let said = packet(why.as_properties()).write(out, self.version, self.packet_bytes_max);
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
        let _ = packet.write(out, self.version, self.packet_bytes_max);
    }
}

/// One of an id that is not in use may be of a message that was given up.
fn check(acknowledged: Acknowledged) -> Result<(), Fault> {
    let what = "an acknowledgement of another QoS than the message's";
    let is_wrong = acknowledged == Acknowledged::OtherQos;
    if is_wrong { Err(Fault { reason: Reason::ProtocolError, what }) } else { Ok(()) }
}
