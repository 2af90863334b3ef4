//! Pending requests of a client in order of arrival: QoS 1 and 2 messages, SUBSCRIBE, UNSUBSCRIBE. Each
//! message and each filter has a number by which its result arrives, in any order; replies are written in the
//! order of the requests.

use super::seldom::Seldom;
use hubsub_wire::mqtt::{
    Ack, Carrier, Packet, PacketId, Properties, Property, PropertyList, Qos, Reason, Reasons, Suback,
    Unsuback, Version,
};
use std::collections::VecDeque;

#[derive(Debug)]
enum Request {
    /// A QoS 0 message has no id and no reply, but a place in the queue, so that a fast sender waits for it.
    Publish { id: Option<PacketId>, qos: Qos, reason: Option<Reason> },
    /// `unknown`: number of filters without a result.
    Subscribe { id: PacketId, filters: Vec<Asked>, unknown: usize },
    /// `reasons`: reason codes as bytes. `waits`: whether it waits to be recorded.
    Unsubscribe { id: PacketId, reasons: Vec<u8>, waits: bool },
}

#[derive(Debug)]
struct Asked {
    filter: Box<[u8]>,
    qos: Qos,
    retained: bool,
    /// Whether some of these cannot be read now and are sent later.
    comes_later: bool,
    reason: Option<Reason>,
}

/// Reason string for a client that gets some retained messages later.
const COMES_LATER: &str =
    "granted; some retained messages cannot be read now, and come as soon as they can be";

#[derive(Clone, Copy, Debug)]
pub(super) struct Answers {
    pub version: Version,
    pub packet_bytes_max: usize,
    pub explains: bool,
}

impl Answers {
    fn write(self, packet: Packet<'_>, out: &mut Vec<u8>) {
        let _ = packet.write(out, self.version, self.packet_bytes_max);
    }

    /// Writes SUBACK; in 5.0 with a reason string for its first failure or for delayed retained messages, if
    /// it fits. PUBACK and PUBREC have none, since some clients accept only their short form.
    fn write_suback(self, suback: Suback<'_>, words: Option<&str>, out: &mut Vec<u8>) {
        if let Some(words) = words.filter(|_| self.explains && self.version == Version::V5) {
            let mut why = PropertyList::default();
            why.push(Property::ReasonString(words)).expect("its few words are no limit's");
            let explained = Packet::Suback(Suback { properties: why.as_properties(), ..suback });
            if explained.write(out, self.version, self.packet_bytes_max).is_ok() {
                return;
            }
        }
        self.write(Packet::Suback(suback), out);
    }
}

#[derive(Debug, Default)]
pub(super) struct Requests {
    /// Each with the first number that it uses.
    queue: Seldom<VecDeque<(u32, Request)>>,
    next: u32,
    pub publishes: u32,
    pub acknowledged_once: u32,
}

impl Requests {
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    #[inline]
    pub fn number(&self) -> u32 {
        self.next
    }

    /// Sets the number of the next request; the queue must be empty.
    pub fn number_from(&mut self, next: u32) {
        debug_assert!(self.queue.is_empty());
        self.next = next;
    }

    #[inline]
    fn push(&mut self, request: Request, numbers: u32) -> u32 {
        let number = self.next;
        self.next = number.wrapping_add(numbers);
        self.queue.push_back((number, request));
        number
    }

    #[inline]
    pub fn publish(&mut self, id: Option<PacketId>, qos: Qos) -> u32 {
        self.publishes += 1;
        self.acknowledged_once += u32::from(qos == Qos::AtLeastOnce);
        self.push(Request::Publish { id, qos, reason: None }, 1)
    }

    /// Queues a SUBSCRIBE; returns the number of its first filter.
    pub fn subscribe<'a>(&mut self, id: PacketId, filters: impl Iterator<Item = (&'a str, Qos)>) -> u32 {
        let asked = |(filter, qos): (&str, Qos)| Asked {
            filter: filter.as_bytes().into(),
            qos,
            retained: false,
            comes_later: false,
            reason: None,
        };
        let filters: Vec<Asked> = filters.map(asked).collect();
        let unknown = filters.len();
        self.push(Request::Subscribe { id, filters, unknown }, unknown as u32)
    }

    /// Queues an UNSUBSCRIBE; returns its number, if it waits to be recorded.
    pub fn unsubscribe(&mut self, id: PacketId, reasons: Vec<u8>, waits: bool) -> Option<u32> {
        let number = self.push(Request::Unsubscribe { id, reasons, waits }, u32::from(waits));
        waits.then_some(number)
    }

    pub fn unsubscribed(&mut self, number: u32) {
        if let Some((Request::Unsubscribe { waits, .. }, 0)) = self.find(number) {
            *waits = false;
        }
    }

    /// The request with this number, and the index within it.
    #[inline]
    fn find(&mut self, number: u32) -> Option<(&mut Request, usize)> {
        let base = self.queue.front()?.0;
        let wanted = number.wrapping_sub(base);
        let place = self.queue.partition_point(|(first, _)| first.wrapping_sub(base) <= wanted);
        // An UNSUBSCRIBE may use no number: then the next request has the same one.
        let (first, request) = self.queue.get_mut(place.checked_sub(1)?)?;
        Some((request, number.wrapping_sub(*first) as usize))
    }

    /// Sets the outcome of a publish; returns its id and QoS, or `None` if it is not pending.
    #[inline]
    pub fn published(&mut self, number: u32, came: Reason) -> Option<(Option<PacketId>, Qos)> {
        match self.find(number)? {
            (Request::Publish { id, qos, reason: reason @ None }, 0) => {
                *reason = Some(came);
                Some((*id, *qos))
            }
            _ => None,
        }
    }

    /// A filter of a SUBSCRIBE, and how many of its filters have no result.
    fn asked(&mut self, number: u32) -> Option<(&mut Asked, &mut usize)> {
        match self.find(number)? {
            (Request::Subscribe { filters, unknown, .. }, at) => Some((filters.get_mut(at)?, unknown)),
            _ => None,
        }
    }

    pub fn filter(&mut self, number: u32) -> Option<&[u8]> {
        let (asked, _) = self.asked(number)?;
        asked.reason.is_none().then_some(&*asked.filter)
    }

    pub fn set_retained(&mut self, number: u32, retained: bool) {
        if let Some((asked, _)) = self.asked(number) {
            asked.retained = retained;
        }
    }

    /// Marks that some retained messages of a filter are sent later; returns whether the filter includes any.
    pub fn retained_comes_later(&mut self, number: u32) -> bool {
        let Some((asked, _)) = self.asked(number).filter(|(asked, _)| asked.retained) else { return false };
        asked.comes_later = true;
        true
    }

    pub fn is_due_retained(&mut self, number: u32) -> bool {
        self.asked(number).is_some_and(|(asked, _)| asked.retained)
    }

    pub fn granted(&mut self, number: u32, granted: Result<(), Reason>) {
        if let Some((Asked { qos, reason: reason @ None, .. }, unknown)) = self.asked(number) {
            let as_asked = match qos {
                Qos::AtMostOnce => Reason::Success,
                Qos::AtLeastOnce => Reason::GrantedQos1,
                Qos::ExactlyOnce => Reason::GrantedQos2,
            };
            *reason = Some(granted.map_or_else(|refused| refused, |()| as_asked));
            *unknown -= 1;
        }
    }

    /// Writes the replies at the front that are complete, unless they are longer than the client accepts.
    #[inline]
    pub fn pump(&mut self, answers: Answers, out: &mut Vec<u8>) {
        let properties = Properties::default();
        // A publisher keeps publishing, but a subscriber is usually idle from here on.
        let mut frees = self.queue.capacity() > 64;
        while let Some((_, request)) = self.queue.front() {
            match request {
                Request::Publish { reason: None, .. }
                | Request::Subscribe { unknown: 1.., .. }
                | Request::Unsubscribe { waits: true, .. } => return,
                Request::Publish { id, qos, reason: Some(reason) } => {
                    let is_once = *qos == Qos::AtLeastOnce;
                    if let Some(id) = *id {
                        let ack = Ack { id, reason: *reason, properties };
                        let packet = if is_once { Packet::Puback(ack) } else { Packet::Pubrec(ack) };
                        answers.write(packet, out);
                    }
                    self.publishes -= 1;
                    self.acknowledged_once -= u32::from(is_once);
                }
                Request::Subscribe { id, filters, .. } => {
                    let known = || filters.iter().filter_map(|asked| asked.reason);
                    let reasons: Vec<u8> = known().map(Reason::number).collect();
                    let reasons = Reasons::new(&reasons, Carrier::SUBACK).expect("they are of SUBACK");
                    let suback = Suback { id: *id, properties, reasons };
                    let failure = known().find(|reason| reason.is_failure()).map(Reason::words);
                    let is_later = |asked: &Asked| {
                        asked.comes_later && asked.reason.is_some_and(|reason| !reason.is_failure())
                    };
                    let later = || filters.iter().any(is_later).then_some(COMES_LATER);
                    answers.write_suback(suback, failure.or_else(later), out);
                }
                Request::Unsubscribe { id, reasons, .. } => {
                    let reasons = Reasons::new(reasons, Carrier::UNSUBACK).expect("they are of UNSUBACK");
                    let packet = Packet::Unsuback(Unsuback { id: *id, properties, reasons });
                    answers.write(packet, out);
                }
            }
            frees |= !matches!(request, Request::Publish { .. });
            self.queue.pop_front();
        }
        if frees {
            self.queue = Seldom::default();
        }
    }
}
