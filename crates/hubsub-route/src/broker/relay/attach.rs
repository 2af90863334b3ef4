//! Subscriptions whose hub has its home here: answered at once where the hub is led here, and otherwise when the
//! leader has confirmed the interest of this node.

use super::{Broker, Turn};
use crate::logread::Known;
use crate::relay::{ATTACHES_MAX, Upstream, WaitingAttach};
use crate::rooms::{RoomHandle, TopicKey};
use crate::{Attach, Attached, Msg, Sink, Start};
use hubsub_message::AskId;
use hubsub_types::{ErrorCode, ShardId};
use std::sync::Arc;

impl Broker {
    /// A subscription of any shard, whose hub has its home here.
    pub(crate) fn attach_for(&mut self, attach: Attach, turn: &mut Turn<impl Sink>) {
        let from = attach.ticket.shard;
        let id = self.topics.intern(attach.namespace, &attach.topic);
        if self.at_home(id, attach.revision, turn).is_err() {
            return self.answer_attach(attach, from, Err(ErrorCode::HubDiffers), turn);
        }
        if let Some(slot) = self.relayed_slot(&self.classes.room(&attach.topic)) {
            if let Some(answer) = self.attach_relayed(slot, &attach, from, turn) {
                self.answer_attach(attach, from, answer, turn);
            }
            return;
        }
        match self.attach_led(&attach, from, turn) {
            Ok((Known::InLog(ask), _)) => turn.sink.read_log(ask),
            Ok((Known::Here(attached), _)) => self.answer_attach(attach, from, Ok(attached), turn),
            Err(refused) => self.answer_attach(attach, from, Err(refused), turn),
        }
    }

    /// Registers a subscription to a topic whose hub is led here, and finds its start.
    pub(crate) fn attach_led(
        &mut self,
        attach: &Attach,
        from: ShardId,
        turn: &mut Turn<impl Sink>,
    ) -> Result<(Known<Attached>, RoomHandle), ErrorCode> {
        self.check_start(attach, turn.sink)?;
        self.rooms.attach(attach, from, turn.now, |hub, room| turn.sink.recall(hub, room))
    }

    pub(crate) fn answer_attach(
        &mut self,
        attach: Attach,
        from: ShardId,
        attached: Result<Attached, ErrorCode>,
        turn: &mut Turn<impl Sink>,
    ) {
        self.pass(from, Msg::Attached(Box::new((attach, attached))), turn);
    }

    /// A subscription to a topic whose hub has its home here and is led elsewhere. None: answered later.
    pub(crate) fn attach_relayed(
        &mut self,
        slot: u16,
        attach: &Attach,
        from: ShardId,
        turn: &mut Turn<impl Sink>,
    ) -> Option<Result<Attached, ErrorCode>> {
        let key: TopicKey = (attach.namespace, Arc::clone(&attach.topic));
        if self.relay.upstreams.attaches() >= ATTACHES_MAX {
            return Some(Err(ErrorCode::LinkFull));
        }
        let name = self.classes.room(&attach.topic);
        let room = match self.rooms.open_relayed(&name, turn.now) {
            Ok(room) => room,
            Err(refused) => return Some(Err(refused)),
        };
        let shards = self.shards;
        if attach.adds {
            self.rooms.count(room, &key, |counts| counts.add(from, shards), turn.now);
        }
        self.add_upstream(slot, room, key.clone(), false);
        let position = self.rooms.position(room);
        // A subscription that follows a room was confirmed before, and waits without limit.
        let parked_ms = self.relay.limits.parked_ms;
        let until_ms = if attach.left.is_some() { u64::MAX } else { turn.now.mono_ms + parked_ms };
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
            self.request_interest(&key, Some((from, attach.id, attach.start)), turn.sink);
        } else if !is_asked || is_resuming {
            self.request_interest(&key, None, turn.sink);
        }
        None
    }

    pub(crate) fn attach_counted(&mut self, waiting: WaitingAttach, turn: &mut Turn<impl Sink>) {
        let WaitingAttach { attach, from, .. } = waiting;
        let counted = Attach { adds: false, ..attach.clone() };
        match self.attach_led(&counted, from, turn) {
            Ok((Known::Here(attached), _)) => self.answer_attach(attach, from, Ok(attached), turn),
            Ok((Known::InLog(mut read), _)) => {
                // It is counted already; the count is reverted if the log cannot be read.
                read.then = crate::Then::Attach(Box::new(attach), from);
                turn.sink.read_log(read);
            }
            Err(refused) => self.refuse_attach(attach, from, refused, turn),
        }
    }

    pub(crate) fn refuse_attach(
        &mut self,
        attach: Attach,
        from: ShardId,
        code: ErrorCode,
        turn: &mut Turn<impl Sink>,
    ) {
        if attach.adds {
            self.detach_here(attach.namespace, &attach.topic, (from, attach.revision), turn);
        }
        self.answer_attach(attach, from, Err(code), turn);
    }

    pub(crate) fn expire_attaches(&mut self, turn: &mut Turn<impl Sink>) {
        let relay = &mut self.relay;
        let waits = |up: &Upstream| !up.waiting.is_empty();
        let keys = relay.upstreams.by_topic.iter().filter(|(_, up)| waits(up)).map(|(key, _)| key.clone());
        let (mut due_ms, mut expired) = (u64::MAX, Vec::new());
        for key in keys.collect::<Vec<_>>() {
            let over = relay.upstreams.take_waiting(&key, |waiting| waiting.until_ms <= turn.now.mono_ms);
            expired.extend(over.into_iter().map(|waiting| (key.clone(), waiting)));
            let up = relay.upstreams.by_topic.get(&key);
            due_ms = up.iter().flat_map(|up| &up.waiting).map(|it| it.until_ms).fold(due_ms, u64::min);
        }
        relay.wake_by(due_ms);
        expired.sort_unstable_by(|a, b| (&a.0, a.1.attach.id).cmp(&(&b.0, b.1.attach.id)));
        for (_, waiting) in expired {
            self.refuse_attach(waiting.attach, waiting.from, ErrorCode::HubClosed, turn);
        }
    }
}
