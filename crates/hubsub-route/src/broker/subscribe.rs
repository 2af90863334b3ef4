//! Subscriptions: from the edge to the hub and back. A subscription is live only after the hub has confirmed
//! it (docs/adr/0005).

use super::clients::stores_names;
use super::{Broker, Turn};
use crate::cursors::{CursorKey, Key};
use crate::logread::Known;
use crate::ring::NOWHERE;
use crate::topics::TopicId;
use crate::{Answer, Asker, Attach, Attached, CloseReason, Msg, Now, Outcome, Reply, Sink, Start, Ticket};
use hubsub_message::Namespace;
use hubsub_types::{ConnKey, ErrorCode, Position, Protocol};
use std::sync::Arc;

/// Resumed sessions may use this multiple of the limits of patterns and of bytes of subscriptions.
pub(super) const RESUMED_TIMES: u64 = 2;

#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    pub topic: &'a [u8],
    pub namespace: Namespace,
    pub start: Start,
}

impl Broker {
    /// Registers a connection. Its index was free.
    pub fn connected(&mut self, conn: ConnKey) {
        self.clients.add(conn);
    }

    pub fn connected_itself(&mut self, conn: ConnKey) {
        self.connected(conn);
        self.clients.set_internal(conn.index);
    }

    pub fn disconnected(&mut self, conn: ConnKey, now: Now, sink: &mut impl Sink) {
        self.cursors.remove_conn(conn.index);
        let client = self.clients.take(conn.index);
        for &id in client.topics.as_slice() {
            self.drop_subscription((conn.index, client.protocol), id, &mut Turn { now, sink });
        }
        for id in client.pattern_ids() {
            self.drop_pattern(conn.index, id, sink);
        }
        for id in self.groups.leave_all(conn.index) {
            self.drop_member(id, sink);
        }
    }

    /// Subscribes a connection to a topic. [`Outcome::Later`] promises one [`Answer::Attached`]. A repeated
    /// subscription is confirmed at once, unless it has a start: then it starts again there.
    pub fn subscribe(
        &mut self,
        ticket: Ticket,
        conn: ConnKey,
        wish: Wish<'_>,
        now: Now,
        sink: &mut impl Sink,
    ) -> Reply<Attached> {
        self.add_topic(ticket, (conn, true), wish, &mut Turn { now, sink })
    }

    /// As `subscribe`, for a resumed session: subscriptions added since do not count against it.
    pub fn resume(
        &mut self,
        ticket: Ticket,
        conn: ConnKey,
        wish: Wish<'_>,
        now: Now,
        sink: &mut impl Sink,
    ) -> Reply<Attached> {
        self.add_topic(ticket, (conn, false), wish, &mut Turn { now, sink })
    }

    fn add_topic(
        &mut self,
        ticket: Ticket,
        (conn, is_new): (ConnKey, bool),
        wish: Wish<'_>,
        turn: &mut Turn<impl Sink>,
    ) -> Reply<Attached> {
        let Wish { namespace, topic, start } = wish;
        if !self.topic_fits(topic) {
            return Outcome::Now(Err(ErrorCode::TopicLength));
        }
        if self.is_outside(&self.classes.room(topic)) {
            return Outcome::Now(Err(ErrorCode::HubClosed));
        }
        let id = self.topics.intern(namespace, topic);
        let adds = !self.clients.get(conn.index).topics.contains(id);
        if !adds && start == Start::Live {
            return Outcome::Now(Ok(Attached {
                position: Position::default(),
                replay_from: None,
                recovered: true,
            }));
        }
        if adds {
            let is_kept = !self.topics.get(id).subs.is_empty();
            if self.is_full(conn) {
                return Outcome::Now(Err(ErrorCode::TooManySubscriptions));
            } else if !self.has_bytes_for(conn, topic.len(), (is_kept, is_new), turn.sink) {
                return Outcome::Now(Err(ErrorCode::SubscriptionBytes));
            }
        }
        let name = Arc::clone(&self.topics.get(id).name);
        let (shard, revision) = (self.topics.get(id).shard, self.topics.revision(id));
        if shard == NOWHERE {
            self.found(id);
        } else if shard == self.shard && self.at_home(id, revision, turn).is_err() {
            let room = self.room_of(topic);
            self.leave_room(&room, self.shard, turn);
        }
        let id = self.topics.intern(namespace, topic);
        let (shard, revision) = (self.topics.get(id).shard, self.topics.revision(id));
        let relayed = if shard == self.shard { self.relayed_slot(&self.classes.room(topic)) } else { None };
        if start != Start::Live || shard != self.shard || relayed.is_some() {
            // Until the hub confirms the start, live records bypass the subscription: some may arrive through
            // interest that is about to end, and later ones would then be missing.
            let key = CursorKey { pattern: None, namespace, topic: Arc::clone(&name) };
            if !self.cursors.set(conn.index, key, None) {
                turn.sink.close(conn.index, CloseReason::TooManyCursors);
            }
        }
        if adds {
            let protocol = self.clients.count_name(conn.index, name.len(), turn.sink);
            let client = self.clients.get_mut(conn.index);
            client.topics.insert(id);
            client.shard_topics += u32::from(namespace == Namespace::Shard);
            self.topics.subscribe(id, conn.index);
            self.count_subscription(id, protocol, true);
        }
        let attach = Attach {
            ticket,
            conn: conn.index,
            namespace,
            topic: name,
            start,
            adds,
            id: self.unconfirmed.next_id(),
            home: shard,
            revision,
            left: None,
        };
        if shard != self.shard {
            self.unconfirmed.add_attach(id, &attach);
            match shard {
                NOWHERE => self.miss_attach(id, attach, turn),
                _ => turn.sink.send(shard, Msg::Attach(Box::new(attach))),
            }
            return Outcome::Later;
        }
        if let Some(slot) = relayed {
            return match self.attach_relayed(slot, &attach, self.shard, turn) {
                Some(attached) => {
                    self.confirm(conn, &attach, &attached);
                    Outcome::Now(attached)
                }
                None => {
                    self.unconfirmed.add_attach(id, &attach);
                    Outcome::Later
                }
            };
        }
        let known = self.attach_led(&attach, self.shard, turn).map(|(known, room)| {
            self.topics.get_mut(id).room = room;
            known
        });
        let attached = match known {
            Ok(Known::InLog(ask)) => {
                self.unconfirmed.add_attach(id, &attach);
                turn.sink.read_log(ask);
                return Outcome::Later;
            }
            Ok(Known::Here(attached)) => Ok(attached),
            Err(refused) => Err(refused),
        };
        self.confirm(conn, &attach, &attached);
        Outcome::Now(attached)
    }

    /// Subscribes a connection to a topic after a position that it has already received, like
    /// [`Broker::subscribe`]. Records that no longer exist are reported as a gap. If the room's epoch ended,
    /// the current epoch is read from its first record. If the start is known now, [`Broker::drained`] begins
    /// to read.
    pub fn subscribe_on(
        &mut self,
        ticket: Ticket,
        conn: ConnKey,
        topic: &[u8],
        after: Position,
        now: Now,
        sink: &mut impl Sink,
    ) -> Reply<Attached> {
        let namespace = Namespace::Global;
        let key = CursorKey { pattern: None, namespace, topic: topic.into() };
        if !self.cursors.set(conn.index, key, None) {
            sink.close(conn.index, CloseReason::TooManyCursors);
        }
        self.cursors.goes_on(conn.index, Key(None, namespace, topic), after);
        // The hub need not look up the records that the cursor will read.
        let wish = Wish { topic, namespace, start: Start::Last(0) };
        let outcome = self.resume(ticket, conn, wish, now, sink);
        if matches!(outcome, Outcome::Now(Err(_))) {
            self.cursors.remove(conn.index, Key(None, namespace, topic));
        }
        outcome
    }

    /// Removes a subscription; returns whether it existed.
    pub fn unsubscribe(
        &mut self,
        conn: ConnKey,
        namespace: Namespace,
        topic: &[u8],
        now: Now,
        sink: &mut impl Sink,
    ) -> bool {
        let Some(id) = self.topics.find(namespace, topic) else { return false };
        let client = self.clients.get_mut(conn.index);
        if !client.topics.remove(id) {
            return false;
        }
        client.shard_topics -= u32::from(namespace == Namespace::Shard);
        self.clients.uncount_name(conn.index, topic.len());
        self.cursors.remove(conn.index, Key(None, namespace, topic));
        let protocol = self.clients.get(conn.index).protocol;
        self.drop_subscription((conn.index, protocol), id, &mut Turn { now, sink });
        true
    }

    pub fn counts(&self, conn: ConnKey) -> (usize, usize, usize) {
        self.clients.get(conn.index).counts()
    }

    pub fn topics_of(&self, conn: ConnKey, namespace: Namespace) -> Vec<Arc<[u8]>> {
        let ids = self.clients.get(conn.index).topics.as_slice();
        let topics = ids.iter().map(|&id| self.topics.get(id));
        topics.filter(|t| t.namespace == namespace).map(|t| Arc::clone(&t.name)).collect()
    }

    /// Whether a client may add a subscription to a name of `bytes` bytes. `is_kept`: others subscribe to the
    /// name, or it is counted elsewhere, so that only the client's own copy is added. `is_new`: no session
    /// resumes it.
    pub(super) fn has_bytes_for(
        &self,
        conn: ConnKey,
        bytes: usize,
        (is_kept, is_new): (bool, bool),
        sink: &impl Sink,
    ) -> bool {
        if self.clients.is_internal(conn.index) {
            return true;
        }
        let bytes = bytes as u64;
        let own = self.clients.get(conn.index).name_bytes();
        if is_new && own + bytes > self.limits.subscription_bytes_per_client_max {
            return false;
        }
        let times = if is_new { 1 } else { RESUMED_TIMES };
        let shard_max = self.limits.subscription_bytes_shard_max.saturating_mul(times);
        let copies = u64::from(!is_kept) + u64::from(stores_names(self.clients.protocol(conn.index, sink)));
        copies == 0 || self.subscription_bytes() + copies * bytes <= shard_max
    }

    /// Bytes of names of subscriptions: of each topic once, and of all names that clients store themselves.
    pub fn subscription_bytes(&self) -> u64 {
        self.topics.subscribed_bytes() + self.clients.stored_name_bytes()
    }

    pub(super) fn is_full(&self, conn: ConnKey) -> bool {
        let (topics, patterns, shard) = self.counts(conn);
        let groups = self.groups.of(conn.index);
        !self.clients.is_internal(conn.index)
            && (topics + patterns + shard + groups) as u64 >= self.limits.subscriptions_per_client_max
    }

    fn drop_subscription(
        &mut self,
        (conn, protocol): (u32, Option<Protocol>),
        id: TopicId,
        turn: &mut Turn<impl Sink>,
    ) {
        self.count_subscription(id, protocol, false);
        let topic = self.topics.get(id);
        let (namespace, name, counted) = (topic.namespace, Arc::clone(&topic.name), self.counted_at(id));
        self.topics.unsubscribe(id, conn);
        // The hub may still refuse an attach in flight; if it does not, the interest is removed then.
        if !self.unconfirmed.cancel(conn, id)
            && let Some((shard, revision)) = counted
        {
            self.pass(shard, Msg::Detach(self.shard, namespace, name, revision), turn);
        }
    }

    /// The response to an attach that went to another shard, or that needed a read of the log.
    pub(super) fn attached(
        &mut self,
        attach: Attach,
        attached: Result<Attached, ErrorCode>,
        turn: &mut Turn<impl Sink>,
    ) {
        let Asker::Client { conn, .. } = attach.ticket.asker else { return };
        if attached == Err(ErrorCode::HubDiffers) {
            return self.attach_again(attach, turn);
        }
        let is_cancelled = self.unconfirmed.take_cancelled(attach.id);
        if attach.left.is_some() && attached.is_err() && !is_cancelled {
            return self.retry_attach_later(attach, turn.now);
        }
        if is_cancelled {
            if attached.is_ok() && attach.adds {
                let Attach { namespace, ref topic, revision, home, .. } = attach;
                self.pass(home, Msg::Detach(self.shard, namespace, Arc::clone(topic), revision), turn);
            }
        } else if let Some(id) = self.topics.find(attach.namespace, &attach.topic)
            && let Some(is_latest) = self.unconfirmed.attached(&attach, id)
        {
            if let (Some(left), Ok(attached)) = (attach.left, attached) {
                self.report_missed(&attach, left, attached, turn.sink);
            }
            if is_latest || attached.is_err() {
                self.confirm(conn, &attach, &attached);
            }
        }
        if attach.left.is_none() {
            turn.sink.answer(attach.ticket.asker, Answer::Attached(attached));
        }
        if self.clients.has(conn) {
            self.drained(conn, turn.now, turn.sink);
        }
    }

    fn confirm(&mut self, conn: ConnKey, attach: &Attach, attached: &Result<Attached, ErrorCode>) {
        let key = Key(None, attach.namespace, &attach.topic);
        match attached {
            Ok(attached) => {
                let epoch = attached.position.epoch;
                let goes_on = self.cursors.take_goes_on(conn.index, key, epoch);
                let next = attached.replay_from.map(|seq| Position { epoch, seq });
                match goes_on.or(next) {
                    Some(next) => _ = self.cursors.place(conn.index, key, Some(next)),
                    None => self.cursors.remove(conn.index, key),
                }
            }
            Err(_) => {
                self.cursors.remove(conn.index, key);
                if attach.adds
                    && let Some(id) = self.topics.find(attach.namespace, &attach.topic)
                {
                    // The hub counted nothing, so no interest is removed there.
                    let client = self.clients.get_mut(conn.index);
                    client.topics.remove(id);
                    client.shard_topics -= u32::from(attach.namespace == Namespace::Shard);
                    let protocol = client.protocol;
                    self.clients.uncount_name(conn.index, attach.topic.len());
                    self.count_subscription(id, protocol, false);
                    self.topics.unsubscribe(id, conn.index);
                }
            }
        }
    }
}
