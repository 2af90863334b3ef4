//! Delivery to a client: a record is sent, queued, or dropped by the policy of its class.
//!
//! Invariant: while a record is queued for a client, later ones are queued too, so order is preserved.

use super::client::Client;
use super::cursors::Cursors;
use super::entries::put_event;
use super::message::{Content, CountedBy, Message};
use super::pending::Item;
use super::persistence::{Prepared, Under};
use super::session::Sent;
use super::shares::shared_filter;
use crate::machine::{Event, Grant, Match};
use hubsub_route::{RecordView, Via, is_publisher};
use hubsub_types::names::FILTER_MARK;
use hubsub_types::{OnSlow, Qos};
use hubsub_wire::mqtt::Version;
use std::rc::Rc;

/// The most messages of a session that wait for one entry. Later ones stay in `pending`, within the client's
/// output limit; the next entry is written once this one is safe.
const PREPARED_MAX: usize = 256;

#[derive(Clone, Copy, Default)]
pub struct Way<'a> {
    /// The group, if the client got it as a member.
    pub group: Option<&'a [u8]>,
    pub counted: CountedBy,
}

pub enum Next<T> {
    None,
    /// It waits for the window, the socket or its entry.
    Waits,
    Record,
    Ready(T),
}

/// The outcome for a record at the output limit of a client.
pub struct Squeezed {
    /// How many records were dropped, queued ones and perhaps this one.
    pub dropped: u64,
    /// How this record is queued; none if it was dropped.
    pub queue: Option<(Grant, CountedBy)>,
}

impl Client {
    /// True if a record of that QoS must be queued; `has_output`: output waits for the socket.
    #[inline]
    pub fn must_queue(&self, has_output: bool, qos: Qos) -> bool {
        !self.pending.is_empty()
            || self.connecting.is_some()
            || has_output
            || (qos > Qos::AtMostOnce && self.machine.window.is_full())
            || self.waits_for_records(qos)
    }

    /// True if a message of that QoS, or one before it, must be persisted before it is sent.
    #[inline]
    fn waits_for_records(&self, qos: Qos) -> bool {
        self.persistence().is_some_and(|it| qos == Qos::ExactlyOnce || it.has_prepared())
    }

    #[inline]
    pub fn grant(&self, via: Via<'_>, record: &RecordView<'_>) -> Option<Grant> {
        let filters = &self.machine.filters;
        let grant = match via {
            Via::Group(source) => filters.grant_shared(&shared_filter(source)?)?,
            via => {
                let is_own = is_publisher(record.publisher, self.machine.client_id());
                filters.grant(matched(via)?, record.topic, is_own)?
            }
        };
        Some(Grant { qos: grant.qos.min(record.qos), ..grant })
    }

    /// True if its session has topic cursors; these count QoS 0 records too.
    pub(crate) fn has_topic_cursors(&self) -> bool {
        self.cursors().is_some_and(Cursors::has_topics)
    }

    #[inline]
    pub fn counted_by(&self, via: Via<'_>, record: &RecordView<'_>) -> CountedBy {
        let Some(cursors) = self.cursors() else { return CountedBy::None };
        match via {
            Via::Group(_) => CountedBy::None,
            via => cursors.counted_by(matches!(via, Via::Topic), record.topic, record.place.offset),
        }
    }

    /// Marks a record as taken by its session; false if it was taken before.
    #[inline]
    pub fn takes(&mut self, counted: CountedBy, content: &Content<'_>, is_open: bool) -> bool {
        self.cursors_mut(counted).is_none_or(|cursors| cursors.take(counted, content, is_open))
    }

    /// Marks a record as not taken for now.
    #[inline]
    pub fn refuses(&mut self, counted: CountedBy, record: &RecordView<'_>) {
        if let Some(cursors) = self.cursors_mut(counted) {
            cursors.refuse(counted, record.place.hub, record.place.offset);
        }
    }

    pub fn reports_gaps(&self) -> bool {
        self.machine.version() >= Version::V5
    }

    /// Queues a message after those that wait; returns how many were dropped instead.
    pub fn queue(&mut self, message: Rc<Message>, grant: Grant, on_slow: OnSlow, way: Way<'_>) -> u64 {
        let mut dropped = 0;
        if on_slow == OnSlow::Conflate && self.pending.conflates() {
            let Client { pending, session, .. } = self;
            pending.conflate(message.content().topic, |item| {
                dropped += 1;
                session.iter_mut().for_each(|session| session.done(item.counted, &item.message.content()));
            });
        }
        let Way { group, counted } = way;
        self.pending.push(Item { message, grant, on_slow, group: group.map(Into::into), key: 0, counted });
        dropped
    }

    /// Handles a record at the output limit, in a class that drops records: makes room for it by dropping
    /// queued ones, or drops it. None if it is not for this client, or was taken before.
    pub fn squeeze(
        &mut self,
        via: Via<'_>,
        record: &RecordView<'_>,
        content: &Content<'_>,
        policy: OnSlow,
    ) -> Option<Squeezed> {
        let grant = self.grant(via, record)?;
        let (counted, reports_gaps) = (self.counted_by(via, record), self.reports_gaps());
        if !self.takes(counted, content, grant.qos > Qos::AtMostOnce) {
            return None;
        }
        let needed = content.payload.len() + content.topic.len();
        let (mut dropped, mut gaps) = (0, Vec::new());
        let Client { pending, session, .. } = self;
        let mut each = |item: &Item| {
            dropped += 1;
            let content = item.message.content();
            session.iter_mut().for_each(|session| session.done(item.counted, &content));
            if reports_gaps {
                gaps.push((content.topic.to_owned(), content.position));
            }
        };
        let mut freed = match policy {
            OnSlow::Conflate => pending.conflate(content.topic, &mut each),
            _ => 0,
        };
        if freed < needed {
            freed += pending.drop_oldest(needed - freed, &mut each);
        }
        for (topic, position) in gaps {
            self.gaps.add(topic.as_bytes(), position, position);
        }
        if !self.pending.has_closers() {
            self.pending.set_soft_since_ms(None);
        }
        if freed >= needed {
            let counted = if grant.qos > Qos::AtMostOnce { counted } else { CountedBy::None };
            return Some(Squeezed { dropped, queue: Some((grant, counted)) });
        }
        // Nothing queued may be dropped, so this record is.
        self.session.iter_mut().for_each(|session| session.done(counted, content));
        if reports_gaps {
            self.gaps.add(record.topic, record.position, record.position);
        }
        Some(Squeezed { dropped: dropped + 1, queue: None })
    }

    /// Takes the next queued message, if the window has room for it and it need not be recorded first.
    pub fn next_queued(&mut self) -> Next<Item> {
        let is_recorded = self.is_recorded();
        let Some(next) = self.pending.front() else { return Next::None };
        if is_recorded && next.is_recorded() {
            return Next::Record;
        }
        if next.grant.qos > Qos::AtMostOnce && self.machine.window.is_full() {
            return Next::Waits;
        }
        self.pending.pop().map_or(Next::None, Next::Ready)
    }

    /// Assigns a packet id to a queued message that has a key and needs an acknowledgement.
    pub fn send_under_key(&mut self, item: &Item, now_us: u64) -> Option<Under> {
        let Item { message, grant, key, counted, .. } = item;
        let (key, counted) = (*key, *counted);
        let is_over = grant.qos == Qos::AtMostOnce || message.content().is_expired(now_us);
        let session = self.session.as_mut().filter(|_| key > 0 && !is_over)?;
        let (message, grant) = (Rc::clone(message), grant.clone());
        let id = self.machine.window.send(grant.qos, key).expect("the window was looked at");
        session.send(key, Sent { message, grant, counted, is_recorded: true });
        Some(Under { id, key, dup: false })
    }

    /// Assigns packet ids to waiting QoS 2 messages and those after them, which are sent once that is
    /// persisted. Returns the memory of those that left the queue, in bytes, and how many had expired.
    pub fn prepare(&mut self, now_us: u64) -> (usize, u64) {
        let (mut bytes, mut expired) = (0, 0);
        let Client { session, pending, machine, .. } = self;
        let Some(session) = session.as_deref_mut().filter(|_| self.connecting.is_none()) else {
            return (0, 0);
        };
        let Some(mut persistence) = session.persistence.take() else { return (0, 0) };
        while persistence.work().prepared.len() < PREPARED_MAX
            && let Some(next) = pending.front()
        {
            let (qos, is_recorded) = (next.grant.qos, next.is_recorded());
            let is_held_up = qos > Qos::AtMostOnce && machine.window.is_full();
            if is_held_up || (!persistence.has_prepared() && !is_recorded) {
                break;
            }
            let Some(Item { message, grant, group, key: queued, counted, .. }) = pending.pop() else {
                break;
            };
            bytes += message.weight();
            if message.content().is_expired(now_us) {
                session.done(counted, &message.content());
                expired += 1;
                continue;
            }
            let mut under = None;
            if qos > Qos::AtMostOnce {
                let key = if queued > 0 { queued } else { session.next_key() };
                let id = machine.window.send(qos, key).expect("the window was looked at");
                if is_recorded {
                    if queued == 0 {
                        persistence.put(false, key, counted, &message, &grant);
                    }
                    let sent = Event::Sent { id, qos, key };
                    put_event(machine.next_event(), &sent, &mut persistence.work().parts);
                }
                let is_recorded = queued > 0 || is_recorded;
                let (message, grant) = (Rc::clone(&message), grant.clone());
                session.send(key, Sent { message, grant, counted, is_recorded });
                under = Some(Under { id, key, dup: false });
            }
            let after = persistence.last_entry();
            persistence.work().prepared.push_back(Prepared { message, grant, group, under, after });
        }
        session.persistence = Some(persistence);
        (bytes, expired)
    }

    /// Takes the next message whose entry is safe; `has_room`: its socket has room.
    pub fn next_prepared(&mut self, has_room: bool) -> Next<Prepared> {
        let persistence = self.session.as_mut().and_then(|session| session.persistence.as_mut());
        let Some(persistence) = persistence else { return Next::None };
        let Some(work) = &mut persistence.work else { return Next::None };
        match work.prepared.front() {
            None => Next::None,
            Some(next) if has_room && next.after <= persistence.safe => {
                work.prepared.pop_front().map_or(Next::None, Next::Ready)
            }
            Some(_) => Next::Waits,
        }
    }
}

/// The subscription by which a record arrived; none for a group, or a pattern that is no filter.
#[inline]
pub(crate) fn matched(via: Via<'_>) -> Option<Match<'_>> {
    match via {
        Via::Topic => Some(Match::Topic),
        Via::Pattern(_, source) => source.strip_prefix(FILTER_MARK).map(Match::Filter),
        Via::Group(_) => None,
    }
}
