//! Requests between the control planes of two nodes, always over link 0, which shard 0 of both owns, so
//! requests keep their order.
//!
//! Request numbers start at a random value, so a response to a request of a previous process matches none.
//!
//! The queues of each peer are bounded in number and bytes. A sender at its limit gets an error; a peer that
//! exceeds the receiver's limit loses its link. Receiver limits are twice the sender's, because a request
//! that timed out may still be queued.

use super::Event;
use super::conn::Role;
use super::links::Links;
use crate::io::report::Report;
use hubsub_types::{ConnKey, ErrorCode};
use hubsub_wire::link::{Frame, Payload, Sent};
use std::collections::{BTreeMap, HashMap};

/// The time after which an unanswered request fails, in µs; callers time out earlier.
const ASK_US: u64 = 60_000_000;

/// Outstanding requests to one peer, and their bytes; a single one may be longer.
const ASKS_MAX: usize = 1_024;
const ASKS_BYTES_MAX: usize = 16 * 1024 * 1024;

/// A peer's requests that the control plane has not taken, and their bytes; a single one may be longer.
const ASKED_MAX: usize = 2 * ASKS_MAX;
const ASKED_BYTES_MAX: usize = 2 * ASKS_BYTES_MAX;

/// Bytes of a peer's responses that the control plane has not taken; a single one may be longer. Their number
/// is that of the requests.
const ANSWERS_BYTES_MAX: usize = 64 * 1024 * 1024;

/// True if one more item of `more` bytes fits.
fn has_room((count, bytes): (usize, usize), more: usize, (count_max, bytes_max): (usize, usize)) -> bool {
    count < count_max && (bytes == 0 || bytes + more <= bytes_max)
}

/// A request that was sent and is unanswered.
struct Asked {
    link: ConnKey,
    /// The control plane's ticket.
    ticket: u64,
    at_us: u64,
    bytes: usize,
}

/// All outstanding requests to peers.
pub struct Asks {
    next: u64,
    waiting: BTreeMap<u64, Asked>,
    /// Per link: their number and bytes.
    of_link: HashMap<ConnKey, (usize, usize)>,
}

impl Default for Asks {
    fn default() -> Asks {
        let random = crate::io::sys::random();
        // The upper half of the numbers is left for increments.
        let next = u64::from_le_bytes(*random.first_chunk().expect("it is longer")) >> 1;
        Asks { next, waiting: BTreeMap::new(), of_link: HashMap::new() }
    }
}

impl Asks {
    /// A link has ended: its outstanding requests may have been executed or not.
    pub fn lost(&mut self, key: ConnKey, control: &dyn Report<Event>) {
        if self.of_link.remove(&key).is_none() {
            return;
        }
        self.waiting.retain(|_, asked| {
            if asked.link == key {
                control.tell(Event::Answered(asked.ticket, Err(ErrorCode::LinkLost)));
            }
            asked.link != key
        });
    }

    /// The number of the next request.
    #[cfg(test)]
    pub fn next(&self) -> u64 {
        self.next
    }

    fn has_room(&self, link: ConnKey, bytes: usize) -> bool {
        let waiting = self.of_link.get(&link).copied().unwrap_or_default();
        has_room(waiting, bytes, (ASKS_MAX, ASKS_BYTES_MAX))
    }

    fn add(&mut self, asked: Asked) {
        let waiting = self.of_link.entry(asked.link).or_default();
        *waiting = (waiting.0 + 1, waiting.1 + asked.bytes);
        self.waiting.insert(self.next, asked);
        self.next += 1;
    }

    /// The outstanding request of this number on this link.
    fn take_of(&mut self, id: u64, link: ConnKey) -> Option<Asked> {
        self.waiting.get(&id).filter(|asked| asked.link == link)?;
        self.take(id)
    }

    fn take(&mut self, id: u64) -> Option<Asked> {
        let asked = self.waiting.remove(&id)?;
        let waiting = self.of_link.get_mut(&asked.link).expect("it was counted");
        *waiting = (waiting.0 - 1, waiting.1 - asked.bytes);
        if waiting.0 == 0 {
            self.of_link.remove(&asked.link);
        }
        Some(asked)
    }

    fn give_up(&mut self, now_us: u64, control: &dyn Report<Event>) {
        while let Some((&first, asked)) = self.waiting.first_key_value()
            && asked.at_us + ASK_US <= now_us
        {
            let asked = self.take(first).expect("it is the first");
            control.tell(Event::Answered(asked.ticket, Err(ErrorCode::TimedOut)));
        }
    }
}

impl Links {
    /// Sends a request to a peer's control plane.
    pub(in crate::link) fn ask(&mut self, ticket: u64, node: &str, body: &[u8]) {
        self.asks.give_up(self.now.mono_us, &*self.control);
        let link = self.peers.get(node).and_then(|peer| peer.link);
        let outcome = if link.is_some_and(|link| !self.asks.has_room(link, body.len())) {
            Err(ErrorCode::LinkFull)
        } else {
            match self.send_control(node, self.asks.next, false, body) {
                None => Err(ErrorCode::NotLinked),
                Some((_, Sent::Refused)) => Err(ErrorCode::LinkFull),
                Some((link, _)) => Ok(link),
            }
        };
        match outcome {
            Ok(link) => {
                self.asks.add(Asked { link, ticket, at_us: self.now.mono_us, bytes: body.len() });
            }
            Err(code) => self.control.tell(Event::Answered(ticket, Err(code))),
        }
    }

    /// Sends a response to a peer's control plane, if its link is still up.
    pub(super) fn answer(&mut self, node: &str, id: u64, body: &[u8]) {
        if matches!(self.send_control(node, id, true, body), Some((_, Sent::Refused))) {
            self.metrics.links_control_dropped_total.add(1);
        }
    }

    fn send_control(&mut self, node: &str, id: u64, is_answer: bool, body: &[u8]) -> Option<(ConnKey, Sent)> {
        let key = self.peers.get(node)?.link?;
        let conn = self.conns.get_mut(key).filter(|conn| matches!(conn.role, Role::Up(_)))?;
        let sent = conn.link.send(&Frame::Control { id, is_answer, body: Payload(body) });
        self.soil(key);
        Some((key, sent))
    }

    /// A request or response of a peer's control plane.
    pub(in crate::link) fn control_frame(&mut self, from: ConnKey, id: u64, is_answer: bool, body: &[u8]) {
        let Some(Role::Up(peer)) = self.conns.get(from).map(|conn| &conn.role) else { return };
        let Some(known) = self.peers.get(&peer.node) else { return };
        if is_answer {
            let Some(Asked { ticket, .. }) = self.asks.take_of(id, from) else { return };
            let waiting = (0, known.answers.waiting().1);
            let (event, bytes) = if has_room(waiting, body.len(), (1, ANSWERS_BYTES_MAX)) {
                (Ok(body.into()), body.len())
            } else {
                self.metrics.links_control_dropped_total.add(1);
                (Err(ErrorCode::LinkFull), 0)
            };
            return self.control.tell_of(Event::Answered(ticket, event), &known.answers, bytes);
        }
        if !has_room(known.questions.waiting(), body.len(), (ASKED_MAX, ASKED_BYTES_MAX)) {
            // A correct peer never has this many outstanding.
            return self.end_crowding(from, "questions of its control plane that wait");
        }
        let event = Event::Asked(peer.node.clone(), id, body.into());
        // A lagging control plane does not answer; the requester's timeout reports that.
        if !self.control.offer_of(event, &known.questions, body.len()) {
            self.metrics.links_control_dropped_total.add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Control;

    #[test]
    fn a_question_is_answered_by_the_link_that_was_asked_and_by_no_other() {
        let mut asks = Asks::default();
        let link = |index| ConnKey { index, generation: 1 };
        let first = asks.next;
        for (ticket, index) in [(1, 1), (2, 1), (3, 2)] {
            asks.add(Asked { link: link(index), ticket, at_us: 0, bytes: 10 });
        }
        assert!(asks.take_of(first, link(2)).is_none() && asks.take_of(first + 9, link(1)).is_none());
        assert_eq!(asks.take_of(first, link(1)).map(|asked| asked.ticket), Some(1));
        assert!(asks.take_of(first, link(1)).is_none(), "once");
        assert_eq!((asks.of_link[&link(1)], asks.of_link[&link(2)]), ((1, 10), (1, 10)));
        let control = Control::new(9).unwrap();
        asks.lost(link(1), &control);
        asks.give_up(ASK_US, &control);
        let ends = control.drain(9).into_iter().map(|event| format!("{event:?}")).collect::<Vec<_>>();
        assert_eq!(ends, ["Answered(2, Err(LinkLost))", "Answered(3, Err(TimedOut))"]);
        assert!(asks.of_link.is_empty() && asks.waiting.is_empty(), "nothing is kept");
    }
}
