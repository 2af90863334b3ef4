//! Suspending a machine to a session and resuming from one, and recording of events meanwhile.

use super::Machine;
use super::held::Answer;
use super::session::{SessionState, since_1970};
use super::window::Again;
use hubsub_wire::mqtt::{Packet, PacketId, Qos, Reason};

impl Machine {
    /// Records events of this session: PUBREL and PUBCOMP wait for [`Machine::recorded`]. Must be called
    /// before the first event of this connection.
    pub fn record(&mut self) {
        self.held.get_or_insert_default();
    }

    /// Undoes `record`, before the first event.
    pub fn forgo_record(&mut self) {
        self.held = None;
    }

    /// Assigns the number of an [event](super::Event) that has just happened to a recorded session; from 1.
    pub fn next_event(&mut self) -> u64 {
        let held = self.held.get_or_insert_default();
        held.events += 1;
        held.events
    }

    /// Writes a reply. In a recorded session the reply is queued and its number returned; if it reports a new
    /// event (`is_news`), it waits until that is recorded.
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

    /// The event of a received or released step is recorded: the reply follows those before it.
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

    /// The next message to send again, with DUP before new ones: id, QoS, key. PUBREL goes to `out` directly.
    /// `None` if there is none, or until an acknowledgement makes room in the window.
    pub fn send_again(&mut self, out: &mut Vec<u8>) -> Option<(PacketId, Qos, u64)> {
        loop {
            match self.window.next_again()? {
                Again::Message(id, qos, key) => return Some((id, qos, key)),
                Again::Release(id) => self.write_answer(Answer::Pubrel, id, out),
            }
        }
    }

    /// Ends the connection at this wall time, in ms, and returns the state that outlives it. Unconfirmed
    /// subscriptions do not; the caller ends them.
    #[must_use]
    pub fn suspend(mut self, now_ms: u64) -> SessionState {
        self.filters.settle();
        self.intents.iter_mut().for_each(|intents| intents.carry());
        let Machine { filters, intents, window, will, expiry_s, held, .. } = self;
        let events = held.map_or(0, |held| held.events);
        let left_at_ms = Some(since_1970(now_ms));
        SessionState { filters, intents, window, will, expiry_s, left_at_ms, events }
    }

    /// The state for a snapshot of a live connection: the result of [`Machine::suspend`] if it ended now.
    pub fn state(&self) -> SessionState {
        let mut filters = self.filters.clone();
        filters.settle();
        let mut intents = self.intents.clone();
        intents.iter_mut().for_each(|intents| intents.carry());
        let (window, will) = (self.window.clone(), self.will.clone());
        let events = self.held.as_ref().map_or(0, |held| held.events);
        SessionState { filters, intents, window, will, expiry_s: self.expiry_s, left_at_ms: None, events }
    }

    /// A QoS 2 message that an older connection of this session sent was published; the result came late.
    pub fn published_before(&mut self, intent: u64) {
        if let Some(intents) = &mut self.intents {
            intents.settle_carried(intent);
        }
    }

    pub fn next_request(&self) -> u32 {
        self.requests.number()
    }

    /// Sets the number of the first request. It must differ from the numbers of older connections of the
    /// session, so that a late result of theirs is not mistaken for one of this connection.
    pub fn number_requests_from(&mut self, next: u32) {
        self.requests.number_from(next);
    }

    /// Resumes a stored session, first and after all its events are recorded: else PUBREL would be sent again
    /// for a PUBREC whose event may be lost. Will and expiry are those of this connection.
    pub fn resume(&mut self, session: SessionState) {
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
