//! What the control planes of two nodes ask each other: always over link 0,
//! which shard 0 of both holds, so that questions keep their order.
//!
//! Numbers of questions begin anywhere: an answer to what a process asked before
//! it was started again finds nobody.

use super::conn::Role;
use super::links::Links;
use crate::control::{Control, Event};
use hubsub_types::{ConnKey, ErrorCode};
use hubsub_wire::link::{Frame, Payload, Sent};
use std::collections::BTreeMap;

/// What has no answer after this time is given up, in µs: whoever asked has given up before.
const ASK_US: u64 = 60_000_000;

/// Questions that peers have not answered.
pub struct Asks {
    next: u64,
    /// By number: the link, the control plane's ticket, and when it was asked.
    waiting: BTreeMap<u64, (ConnKey, u64, u64)>,
}

impl Default for Asks {
    fn default() -> Asks {
        let random = crate::sys::random();
        // Half of the numbers are left to count on.
        let next = u64::from_le_bytes(*random.first_chunk().expect("it is longer")) >> 1;
        Asks { next, waiting: BTreeMap::new() }
    }
}

impl Asks {
    /// A link has ended: what was asked over it may have been done or not.
    pub fn lost(&mut self, key: ConnKey, control: &Control) {
        self.waiting.retain(|_, &mut (asked, ticket, _)| {
            if asked == key {
                control.tell(Event::Answered(ticket, Err(ErrorCode::LinkLost)));
            }
            asked != key
        });
    }

    fn give_up(&mut self, now_us: u64, control: &Control) {
        while let Some(first) = self.waiting.first_entry()
            && first.get().2 + ASK_US <= now_us
        {
            let (_, ticket, _) = first.remove();
            control.tell(Event::Answered(ticket, Err(ErrorCode::TimedOut)));
        }
    }
}

impl Links {
    /// Asks a peer's control plane.
    pub(super) fn ask(&mut self, ticket: u64, node: &str, body: &[u8]) {
        self.asks.give_up(self.now.mono_us, &self.control);
        let id = self.asks.next;
        let outcome = match self.send_control(node, id, false, body) {
            None => Err(ErrorCode::NotLinked),
            Some((_, Sent::Refused)) => Err(ErrorCode::LinkFull),
            Some((key, _)) => Ok(key),
        };
        match outcome {
            Ok(key) => {
                self.asks.next += 1;
                self.asks.waiting.insert(id, (key, ticket, self.now.mono_us));
            }
            Err(code) => self.control.tell(Event::Answered(ticket, Err(code))),
        }
    }

    /// Answers a peer's control plane, if its link still stands.
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

    /// A peer's control plane asks, or answers.
    pub(super) fn control_frame(&mut self, from: ConnKey, id: u64, is_answer: bool, body: &[u8]) {
        let event = if is_answer {
            match self.asks.waiting.remove(&id) {
                Some((_, ticket, _)) => Event::Answered(ticket, Ok(body.into())),
                None => return,
            }
        } else {
            let Some(Role::Up(peer)) = self.conns.get(from).map(|conn| &conn.role) else { return };
            Event::Asked(peer.node.clone(), id, body.into())
        };
        // A control plane that is behind does not answer, and who asked is told so by the time.
        if !self.control.offer(event) {
            self.metrics.links_control_dropped_total.add(1);
        }
    }
}
