//! How a machine leaves a session and goes on with one, and how what happens to it is recorded meanwhile.

use super::super::packet::{Packet, PacketId, Qos};
use super::super::reason::Reason;
use super::Machine;
use super::held::Answer;
use super::session::{Key, SessionState, since_1970};
use super::window::Again;

impl<K: Key> Machine<K> {
    /// What happens to its session is to be recorded: PUBREL and PUBCOMP wait for [`Machine::recorded`]. Before anything
    /// happens on this connection.
    pub fn record(&mut self) {
        self.held.get_or_insert_default();
    }

    /// It is not recorded after all, and nothing has happened yet.
    pub fn forgo_record(&mut self) {
        self.held = None;
    }

    /// Whether it has a will that is not published.
    #[must_use]
    pub fn has_will(&self) -> bool {
        self.will.is_some()
    }

    /// The number of an [event](Event) that has just happened to a session that is recorded; from 1 on.
    pub fn next_event(&mut self) -> u64 {
        let held = self.held.get_or_insert_default();
        held.events += 1;
        held.events
    }

    /// Writes an answer; its number where it waits, if it is of news, until they are recorded.
    pub(super) fn answer(
        &mut self,
        answer: Answer,
        id: PacketId,
        is_news: bool,
        out: &mut Vec<u8>,
    ) -> Option<u32> {
        match &mut self.held {
            Some(held) => {
                let number = held.push(answer, id, !is_news);
                self.pump_held(out);
                Some(number)
            }
            None => {
                self.write_answer(answer, id, out);
                None
            }
        }
    }

    /// What [`Step::Received`] or [`Step::Released`] told is recorded: its answer goes to `out` as soon as those before
    /// it have.
    pub fn recorded(&mut self, number: u32, out: &mut Vec<u8>) {
        if let Some(held) = &mut self.held {
            held.safe(number);
        }
        self.pump_held(out);
    }

    fn pump_held(&mut self, out: &mut Vec<u8>) {
        while let Some((answer, id)) = self.held.as_mut().and_then(|held| held.next()) {
            self.write_answer(answer, id, out);
        }
    }

    fn write_answer(&self, answer: Answer, id: PacketId, out: &mut Vec<u8>) {
        let ack = self.ack(id, Reason::Success);
        let packet = match answer {
            Answer::Pubrel => Packet::Pubrel(ack),
            Answer::Pubcomp => Packet::Pubcomp(ack),
        };
        self.write(&packet, out);
    }

    /// What is to be sent again next, before anything new: the id, QoS and key of a message that goes out with DUP. PUBREL
    /// goes to `out` by itself. None if nothing is, or the window has no room: to be asked again when it has.
    pub fn send_again(&mut self, out: &mut Vec<u8>) -> Option<(PacketId, Qos, K)> {
        loop {
            match self.window.next_again()? {
                Again::Message(id, qos, key) => return Some((id, qos, key.clone())),
                Again::Release(id) => self.write_answer(Answer::Pubrel, id, out),
            }
        }
    }

    /// The connection has ended at this wall time, in ms; what of it outlives it. Subscriptions that are not confirmed do
    /// not: the caller ends them.
    #[must_use]
    pub fn suspend(mut self, now_ms: u64) -> SessionState<K> {
        self.filters.settle();
        self.intents.iter_mut().for_each(|intents| intents.carry());
        let Machine { filters, intents, window, will, expiry_s, held, .. } = self;
        let events = held.map_or(0, |held| held.events);
        let left_at_ms = Some(since_1970(now_ms));
        SessionState { filters, intents, window, will, expiry_s, left_at_ms, events }
    }

    /// A snapshot's state of a connection that goes on: what [`Machine::suspend`] would leave if it ended now.
    #[must_use]
    pub fn state(&self) -> SessionState<K> {
        let mut filters = self.filters.clone();
        filters.settle();
        let mut intents = self.intents.clone();
        intents.iter_mut().for_each(|intents| intents.carry());
        let (window, will) = (self.window.clone(), self.will.clone());
        let events = self.held.as_ref().map_or(0, |held| held.events);
        SessionState { filters, intents, window, will, expiry_s: self.expiry_s, left_at_ms: None, events }
    }

    /// What came late of a message of QoS 2 that an older connection of its session asked to publish: it was published.
    pub fn published_before(&mut self, intent: u64) {
        if let Some(intents) = &mut self.intents {
            intents.settle_carried(intent);
        }
    }

    /// The number of the next request.
    #[must_use]
    pub fn next_request(&self) -> u32 {
        self.requests.number()
    }

    /// Numbers requests from there on, before the first: those of an older connection of its session have other numbers, so
    /// what comes of them late is taken for nothing else.
    pub fn number_requests_from(&mut self, next: u32) {
        self.requests.number_from(next);
    }

    /// Goes on with a kept session, before anything else happens on this connection, and once all its events are recorded: else
    /// PUBREL would go out again for a PUBREC that may be forgotten. Will and expiry are those of this connection.
    pub fn resume(&mut self, session: SessionState<K>) {
        let SessionState { filters, mut intents, window, events, .. } = session;
        if let Some(held) = &mut self.held {
            held.events = events;
        }
        intents.iter_mut().for_each(|intents| intents.carry());
        self.has_no_local = filters.iter().any(|(_, options, _)| options.no_local);
        (self.filters, self.intents) = (filters, intents);
        self.window.go_on(window);
    }
}
