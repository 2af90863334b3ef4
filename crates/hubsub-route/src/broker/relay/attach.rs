//! Subscriptions whose hub has its home here: answered at once where the hub is led here, and otherwise when the
//! leader has confirmed the interest of this node.

use super::Broker;
use crate::logread::Known;
use crate::relay::limits::ATTACHES_MAX;
use crate::relay::upstreams::{Upstream, WaitingAttach};
use crate::rooms::TopicKey;
use crate::{Attach, Attached, Msg, Now, Sink, Start};
use hubsub_message::AskId;
use hubsub_types::{ErrorCode, ShardId};
use std::sync::Arc;

impl Broker {
    /// A subscription of any shard, whose hub has its home here.
    pub(in crate::broker) fn attach_for(&mut self, attach: Attach, now: Now, sink: &mut impl Sink) {
        let from = attach.ticket.shard;
        let id = self.topics.intern(attach.namespace, &attach.topic);
        if self.at_home(id, attach.revision, now, sink).is_err() {
            return self.answer_attach(attach, from, Err(ErrorCode::HubDiffers), now, sink);
        }
        if let Some(slot) = self.relayed_slot(&self.classes.room(&attach.topic)) {
            if let Some(answer) = self.attach_relayed(slot, &attach, from, now, sink) {
                self.answer_attach(attach, from, answer, now, sink);
            }
            return;
        }
        let recall = |hub, room: &[u8]| sink.recall(hub, room);
        let known = match self.refuses_start(&attach, sink) {
            Some(refused) => Err(refused),
            None => self.rooms.attach(&attach, from, now, recall),
        };
        match known {
            Ok((Known::InLog(ask), _)) => sink.read_log(ask),
            Ok((Known::Here(attached), _)) => self.answer_attach(attach, from, Ok(attached), now, sink),
            Err(refused) => self.answer_attach(attach, from, Err(refused), now, sink),
        }
    }

    /// Answers a subscription of any shard.
    pub(super) fn answer_attach(
        &mut self,
        attach: Attach,
        from: ShardId,
        attached: Result<Attached, ErrorCode>,
        now: Now,
        sink: &mut impl Sink,
    ) {
        if from == self.shard {
            self.attached(attach, attached, now, sink);
        } else {
            sink.send(from, Msg::Attached(Box::new((attach, attached))));
        }
    }

    /// A subscription to a topic whose hub has its home here and is led elsewhere. None: it is answered
    /// later.
    pub(in crate::broker) fn attach_relayed(
        &mut self,
        slot: u16,
        attach: &Attach,
        from: ShardId,
        now: Now,
        sink: &mut impl Sink,
    ) -> Option<Result<Attached, ErrorCode>> {
        let key: TopicKey = (attach.namespace, Arc::clone(&attach.topic));
        if self.relay.upstreams.attaches() >= ATTACHES_MAX {
            return Some(Err(ErrorCode::LinkFull));
        }
        let name = self.classes.room(&attach.topic);
        let room = match self.rooms.open_relayed(&name, now) {
            Ok(room) => room,
            Err(refused) => return Some(Err(refused)),
        };
        let shards = self.shards;
        if attach.adds {
            self.rooms.count(room, &key, |counts| counts.add(from, shards), now);
        }
        self.add_upstream(slot, room, key.clone(), false);
        let position = self.rooms.position(room);
        // A subscription that follows a room was confirmed before, and waits without limit.
        let parked_ms = self.relay.limits.parked_ms;
        let until_ms = if attach.left.is_some() { u64::MAX } else { now.mono_ms + parked_ms };
        let relay = &mut self.relay;
        relay.wake_by(until_ms);
        let is_resuming = relay.holes.rooms.contains_key(&room);
        if attach.adds {
            relay.upstreams.changed(&key);
        }
        let up = relay.upstreams.by_topic.get(&key).expect("followed above");
        if up.is_confirmed && attach.start == Start::Live && !is_resuming {
            return Some(Ok(Attached { position, replay_from: None, recovered: true }));
        }
        let is_asked = up.asked != AskId::NONE || up.is_confirmed;
        relay.upstreams.wait(&key, WaitingAttach { attach: attach.clone(), from, until_ms });
        if attach.start != Start::Live {
            self.request_interest(&key, Some((from, attach.id, attach.start)), sink);
        } else if !is_asked || is_resuming {
            self.request_interest(&key, None, sink);
        }
        None
    }

    /// A subscription that was counted while another node led, and waited: this node leads now.
    pub(super) fn attach_counted(&mut self, waiting: WaitingAttach, now: Now, sink: &mut impl Sink) {
        let WaitingAttach { attach, from, .. } = waiting;
        let refused = self.refuses_start(&attach, sink);
        let counted = Attach { adds: false, ..attach.clone() };
        let recall = |hub, room: &[u8]| sink.recall(hub, room);
        let known = match refused {
            Some(refused) => Err(refused),
            None => self.rooms.attach(&counted, from, now, recall),
        };
        match known {
            Ok((Known::Here(attached), _)) => self.answer_attach(attach, from, Ok(attached), now, sink),
            Ok((Known::InLog(mut read), _)) => {
                // It is counted already; the count is reverted if the log cannot be read.
                read.then = crate::Then::Attach(Box::new(attach), from);
                sink.read_log(read);
            }
            Err(refused) => {
                let until_ms = 0;
                self.refuse_attach(WaitingAttach { attach, from, until_ms }, refused, now, sink);
            }
        }
    }

    /// Refuses a subscription, and no longer counts it.
    pub(super) fn refuse_attach(
        &mut self,
        waiting: WaitingAttach,
        code: ErrorCode,
        now: Now,
        sink: &mut impl Sink,
    ) {
        let WaitingAttach { attach, from, .. } = waiting;
        if attach.adds {
            self.detach_here(attach.namespace, &attach.topic, (from, attach.revision), now, sink);
        }
        self.answer_attach(attach, from, Err(code), now, sink);
    }

    /// Refuses subscriptions that have waited too long.
    pub(super) fn expire_attaches(&mut self, now: Now, sink: &mut impl Sink) {
        let relay = &mut self.relay;
        let waits = |up: &Upstream| !up.waiting.is_empty();
        let keys = relay.upstreams.by_topic.iter().filter(|(_, up)| waits(up)).map(|(key, _)| key.clone());
        let (mut due_ms, mut expired) = (u64::MAX, Vec::new());
        for key in keys.collect::<Vec<_>>() {
            let over = relay.upstreams.take_waiting(&key, |waiting| waiting.until_ms <= now.mono_ms);
            expired.extend(over.into_iter().map(|waiting| (key.clone(), waiting)));
            let up = relay.upstreams.by_topic.get(&key);
            due_ms = up.iter().flat_map(|up| &up.waiting).map(|it| it.until_ms).fold(due_ms, u64::min);
        }
        relay.wake_by(due_ms);
        expired.sort_unstable_by(|a, b| (&a.0, a.1.attach.id).cmp(&(&b.0, b.1.attach.id)));
        for (_, waiting) in expired {
            self.refuse_attach(waiting, ErrorCode::HubClosed, now, sink);
        }
    }
}
