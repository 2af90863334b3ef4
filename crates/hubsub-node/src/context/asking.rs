//! Requests to shards and to the control plane: the responses are collected and handed on together.

use super::Ctx;
use super::events::Event;
use super::io::Io;
use super::scatter_gather::{Batch, GatherMail, Incomplete, Then, To, Write};
use crate::io::access::Action;
use crate::io::log_lines::Level;
use crate::io::output::Pending;
use crate::io::questions::{Call, Item, Part, Question, Request};
use hubsub_route::rooms::HistoryPart;
use hubsub_route::{Answer, Ask, Asker, Draft, Namespace, Outcome, Publisher, Ticket};
use hubsub_types::names::is_reserved;
use hubsub_types::{ConnKey, ErrorCode, PrincipalId, Qos, ShardId};
use hubsub_wire::resp;
use std::sync::Arc;

/// The error for a list that is longer than `reply_bytes_max`.
pub const LISTING_TOO_LONG: &str =
    "ERR the list is longer than reply_bytes_max; ask for a part of it, or the HTTP API for pages";

/// Weight of a request whose response may be as long as a client's unread replies may be: no further request
/// of the client starts before it is answered.
const LISTING: u32 = 32;

impl Ctx {
    /// Sends a request to one shard or to all of them, this one included.
    pub fn ask(&mut self, to: To, question: Question, then: Then) {
        let (me, question) = (self.io.shard, Arc::new(question));
        let others = (0..self.io.mailer.shards()).map(ShardId);
        let asked: Vec<ShardId> = match to {
            To::All => others.filter(|&s| s != me).collect(),
            To::One(shard) => Vec::from_iter((shard != me).then_some(shard)),
        };
        let includes_me = to == To::All || to == To::One(me);
        self.io.scatter_gather.next = self.io.scatter_gather.next.wrapping_add(1);
        let number = self.io.scatter_gather.next;
        let own = includes_me.then(|| (self.hooks.answer)(self, &question, Ask { shard: me, number }));
        let left = asked.len() + usize::from(matches!(own, Some(None)));
        let parts = Vec::from_iter(own.flatten());
        if left == 0 {
            return self.io.finish(parts, then);
        }
        self.io.scatter_gather.open.insert(number, Incomplete { left, parts, then });
        for shard in asked {
            self.io.mailer.post(shard, GatherMail::Ask { from: me, number, question: Arc::clone(&question) });
        }
    }

    /// Sends a request to the shard where a room lives. A request for history waits on this shard until the
    /// room's place is known; others go to the node that leads the room, which knows it.
    pub fn ask_home(&mut self, room: &[u8], question: Question, then: Then) {
        let waits = matches!(question, Question::History(_)).then_some(self.io.shard);
        match self.broker.home_of(room).map(|home| home.or(waits)) {
            Ok(Some(shard)) => self.ask(To::One(shard), question, then),
            Ok(None) => self.io.finish(vec![Part::Refused(ErrorCode::HubClosed)], then),
            Err(refused) => self.io.finish(vec![Part::Refused(refused)], then),
        }
    }

    /// Counts the subscribers of each topic: in the whole cluster, or on all shards of a single node.
    pub fn ask_counts(&mut self, namespace: Namespace, topics: &[&[u8]], then: Then) {
        self.io.scatter_gather.next = self.io.scatter_gather.next.wrapping_add(1);
        let number = self.io.scatter_gather.next;
        if topics.is_empty() {
            return self.io.finish(Vec::new(), then);
        }
        self.io
            .scatter_gather
            .open
            .insert(number, Incomplete { left: topics.len(), parts: Vec::new(), then });
        for (topic, item) in topics.iter().zip(0u32..) {
            let (shard, now) = (self.io.shard, self.io.now);
            let ticket = Ticket { shard, asker: Asker::Gathering { number, item } };
            if let Outcome::Now(count) = self.broker.subscribers(ticket, namespace, topic, now, &mut self.io)
            {
                self.io.gather(number, Part::Counted(item, count));
            }
        }
    }

    /// Asks the control plane where a room is.
    pub fn ask_where(&mut self, room: &[u8], then: Then) {
        self.io.scatter_gather.next = self.io.scatter_gather.next.wrapping_add(1);
        let number = self.io.scatter_gather.next;
        let asked = Event::Locate(u64::from(self.io.shard.0) << 32 | u64::from(number), room.into());
        if !self.io.control.offer(asked) {
            return self.io.finish(vec![Part::Refused(ErrorCode::TimedOut)], then);
        }
        self.io.scatter_gather.open.insert(number, Incomplete { left: 1, parts: Vec::new(), then });
    }

    /// Handles another shard's request.
    pub fn answer_question(&mut self, from: ShardId, number: u32, question: &Question) {
        if let Some(part) = (self.hooks.answer)(self, question, Ask { shard: from, number }) {
            self.io.mailer.post(from, GatherMail::Part { number, part });
        }
    }

    /// Handles a request of the control plane.
    pub fn request(&mut self, ticket: u64, request: Request) {
        let Request { principal, call } = request;
        if let Call::All(question) | Call::Room(_, question) = &call
            && let Some((action, topic)) = needs(question)
            && !self.io.access.allowed(principal, action, topic)
        {
            let refused = vec![Part::Refused(ErrorCode::NotAllowed)];
            return self.io.control.tell(Event::Parts(ticket, refused));
        }
        match call {
            Call::Publish(items) => self.publish_batch(ticket, principal, items),
            Call::All(question) => self.ask(To::All, question, Then::Control(ticket)),
            Call::Members(room) if !self.io.access.allowed(principal, Action::Subscribe, &room) => {
                self.io.control.tell(Event::Parts(ticket, vec![Part::Refused(ErrorCode::NotAllowed)]));
            }
            Call::Members(room) => (self.hooks.ask_members)(self, room, Then::Control(ticket)),
            Call::Room(room, question) => self.ask_home(&room, question, Then::Control(ticket)),
        }
    }

    fn publish_batch(&mut self, ticket: u64, principal: PrincipalId, items: Vec<Item>) {
        let outcomes = vec![Err(ErrorCode::TimedOut); items.len()];
        self.io.scatter_gather.batches.insert(ticket, Batch { left: items.len(), outcomes });
        if items.is_empty() {
            self.io.finish_batch(ticket);
        }
        for (item, index) in items.into_iter().zip(0u32..) {
            let Item { topic, payload, headers, publisher, producer } = item;
            let asker = Asker::Control { ticket, item: index };
            let draft = Draft {
                namespace: Namespace::Global,
                topic: &topic,
                payload: &payload,
                headers,
                publisher: Publisher::Name(&publisher),
                producer,
                qos: Qos::ExactlyOnce,
                retain: false,
            };
            let (shard, now) = (self.io.shard, self.io.now);
            let outcome = if self.io.access.allowed(principal, Action::Publish, &topic) {
                self.broker.publish(Ticket { shard, asker }, draft, now, &mut self.io)
            } else {
                Outcome::Now(Err(ErrorCode::NotAllowed))
            };
            if let Outcome::Now(outcome) = outcome {
                self.io.answer_control(ticket, index, Answer::Published(outcome));
            }
        }
    }
}

/// The permission that a request through the control plane needs. Anybody may ask where a room is, as with
/// HUBSUB LOCATE.
fn needs(question: &Question) -> Option<(Action, &[u8])> {
    match question {
        Question::Room(_, false) => None,
        Question::Occupancy(room) => Some((Action::Subscribe, room)),
        Question::History(query) => {
            let topic = query.topic.as_ref().filter(|_| !is_reserved(&query.room));
            Some((Action::Subscribe, topic.unwrap_or(&query.room)))
        }
        Question::Room(room, true) | Question::DeleteRoom(room) => Some((Action::Admin, room)),
        _ => Some((Action::Admin, b"")),
    }
}

impl Io {
    /// Opens the slot for the reply to a listing and returns its destination.
    pub fn then_list(&mut self, key: ConnKey, write: Write) -> Then {
        Then::Listing(key, self.open_question(key, LISTING), write)
    }

    /// Adds another shard's response.
    pub fn gather(&mut self, number: u32, part: Part) {
        let Some(open) = self.scatter_gather.open.get_mut(&number) else { return };
        open.parts.push(part);
        open.left -= 1;
        if open.left == 0
            && let Some(Incomplete { parts, then, .. }) = self.scatter_gather.open.remove(&number)
        {
            self.finish(parts, then);
        }
    }

    /// Adds a count that the broker requested from another shard or node.
    pub fn gather_count(&mut self, number: u32, item: u32, answer: Answer) {
        let Answer::Counted(count) = answer else {
            unreachable!("a question is answered by a number: {answer:?}")
        };
        self.gather(number, Part::Counted(item, count));
    }

    fn finish(&mut self, mut parts: Vec<Part>, then: Then) {
        let weight = if let Then::Listing(..) = then { LISTING } else { 1 };
        match then {
            Then::Reply(conn, slot, write) | Then::Listing(conn, slot, write) => {
                self.close_question(conn, weight);
                let bytes_max = self.limits.reply_bytes_max as usize;
                let mut is_refused = parts.iter().any(|part| matches!(part, Part::TooLong));
                self.resolve(conn, slot, |out, proto, pending| {
                    if matches!(pending, Pending::Silence) {
                        return;
                    }
                    let start = out.len();
                    if !is_refused {
                        write(out, proto, parts);
                        is_refused = weight == LISTING && out.len() - start > bytes_max;
                    }
                    if is_refused {
                        out.truncate(start);
                        resp::error(out, LISTING_TOO_LONG);
                    }
                });
                self.metrics.listings_refused_total.add(u64::from(is_refused));
            }
            Then::Records(conn, slot) => {
                self.close_question(conn, 1);
                match parts.pop() {
                    Some(Part::History(HistoryPart { recovered: true, records, .. })) => {
                        self.resolve_records(conn, slot, records);
                    }
                    Some(Part::History(HistoryPart { start, .. })) => {
                        self.resolve(conn, slot, |out, _, pending| {
                            if !matches!(pending, Pending::Silence) {
                                let text = format!(
                                    "NOTRECOVERED unknown epoch or lost records, history starts after {start}"
                                );
                                resp::error(out, text);
                            }
                        })
                    }
                    Some(Part::Refused(refused)) => self.resolve(conn, slot, |out, _, pending| {
                        if !matches!(pending, Pending::Silence) {
                            resp::error(out, &*refused.resp_line());
                        }
                    }),
                    other => unreachable!("records answer a question for history: {other:?}"),
                }
            }
            Then::Work(of) => self.own.queue(of(parts.pop())),
            Then::Control(ticket) => self.control.tell(Event::Parts(ticket, parts)),
        }
    }

    /// Adds one outcome of a batch of the control plane.
    pub fn answer_control(&mut self, ticket: u64, item: u32, answer: Answer) {
        let Answer::Published(outcome) = answer else {
            let fields = vec![("answer", format!("{answer:?}"))];
            return self.lines.log(Level::Error, "unexpected answer for the control plane", fields);
        };
        let Some(batch) = self.scatter_gather.batches.get_mut(&ticket) else { return };
        batch.outcomes[item as usize] = outcome;
        batch.left -= 1;
        if batch.left == 0 {
            self.finish_batch(ticket);
        }
    }

    fn finish_batch(&mut self, ticket: u64) {
        if let Some(batch) = self.scatter_gather.batches.remove(&ticket) {
            self.control.tell(Event::Published(ticket, batch.outcomes));
        }
    }
}
