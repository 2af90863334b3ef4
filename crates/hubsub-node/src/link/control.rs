//! Requests between the control planes of two nodes, always over link 0, which shard 0 of both owns, so
//! requests keep their order.
//!
//! The queues of each peer are bounded in number and bytes. A sender at its limit gets an error; a peer that
//! exceeds the receiver's limit loses its link. Receiver limits are twice the sender's, because a request
//! that timed out may still be queued.

use super::state::asks::{ASKS_BYTES_MAX, ASKS_MAX, Asked, has_room};
use super::state::conn::Role;
use super::state::events::Event;
use super::state::links::Links;
use hubsub_types::{ConnKey, ErrorCode};
use hubsub_wire::link::{Frame, Payload, Sent};

/// A peer's requests that the control plane has not taken, and their bytes; a single one may be longer.
const ASKED_MAX: usize = 2 * ASKS_MAX;
const ASKED_BYTES_MAX: usize = 2 * ASKS_BYTES_MAX;

/// Bytes of a peer's responses that the control plane has not taken; a single one may be longer. Their number
/// is that of the requests.
const ANSWERS_BYTES_MAX: usize = 64 * 1024 * 1024;

impl Links {
    pub(crate) fn ask(&mut self, ticket: u64, node: &str, body: &[u8]) {
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

    pub(crate) fn control_frame(&mut self, from: ConnKey, id: u64, is_answer: bool, body: &[u8]) {
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
