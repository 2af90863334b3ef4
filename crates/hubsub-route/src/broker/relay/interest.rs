//! Interest in rooms that other nodes lead: counts subscribers here, sends the counts to the leader, and
//! confirms a subscription when the leader has confirmed it.

use super::{Broker, Turn};
use crate::Names;
use crate::counts::Holder;
use crate::relay::{
    Buffered, InFlight, InterestRequest, Leader, RETRY_REFUSED_MS, Request, Upstream, WaitingAttach,
};
use crate::rooms::{RoomHandle, TopicKey};
use crate::{Attached, Namespace, Sink, Start};
use hubsub_message::{AskId, NodeMessage};
use hubsub_types::{ErrorCode, Position, Seq, ShardId};
use std::sync::Arc;

impl Broker {
    /// Registers a topic whose leader is to be notified of subscribers here.
    pub(crate) fn add_upstream(&mut self, slot: u16, room: RoomHandle, key: TopicKey, was_confirmed: bool) {
        let upstream = Upstream {
            slot,
            room,
            is_confirmed: false,
            was_confirmed,
            epoch: self.rooms.position(room).epoch,
            asked: AskId::NONE,
            waiting: Vec::new(),
            is_dirty: false,
        };
        self.relay.upstreams.by_topic.entry(key).or_insert(upstream);
    }

    pub(crate) fn names_of(&self, (namespace, topic): &TopicKey) -> Names {
        let room: Arc<[u8]> = self.room_of(topic);
        Names { namespace: *namespace, room, topic: Arc::clone(topic) }
    }

    fn count_of(&self, room: RoomHandle, (namespace, topic): &TopicKey) -> u32 {
        let counts = self.rooms.counts_of(room, *namespace, topic);
        counts.map_or(0, |counts| counts.of_shards(self.shards))
    }

    pub(crate) fn request_interest(
        &mut self,
        key: &TopicKey,
        of: Option<(ShardId, u32, Start)>,
        sink: &mut impl Sink,
    ) {
        let names = self.names_of(key);
        let Some(up) = self.relay.upstreams.by_topic.get(key) else { return };
        let (slot, room) = (up.slot, up.room);
        // One request resumes the topic; another one is for a subscriber that came meanwhile.
        let resumes = up.was_confirmed && of.is_none() && !up.is_confirmed && up.asked == AskId::NONE;
        let (known, count) = (self.rooms.position(room), self.count_of(room, key));
        let Some(to) = self.relay.ready_leader_of(slot) else { return };
        let start = of.map_or(Start::Live, |(_, _, start)| start);
        let of = of.map(|(from, id, _)| (from, id));
        let what = Request::Interest(InterestRequest { room, key: key.clone(), known, resumes, of });
        let message = |ask, hub, term| NodeMessage::Interest { ask, hub, term, names, count, known, start };
        let ask = self.relay.request((to, slot), what, message, sink);
        let up = self.relay.upstreams.by_topic.get_mut(key).expect("looked up above");
        if !up.is_confirmed && up.asked == AskId::NONE {
            up.asked = ask;
        }
        up.is_dirty = false;
    }

    /// The interest that a hub's leader was sent is no longer valid.
    pub(crate) fn unconfirm(&mut self, slot: u16) {
        // Responses of a former leader are not valid, either.
        self.relay.requests.retain(|_, in_flight| {
            in_flight.slot != slot || !matches!(in_flight.what, Request::Interest(_) | Request::Hole(_))
        });
        let Broker { relay, rooms, .. } = self;
        for (&room, resume) in &mut relay.holes.rooms {
            if rooms.slot_of_room(room) == Some(slot) {
                resume.read = None;
            }
        }
        for up in self.relay.upstreams.by_topic.values_mut().filter(|up| up.slot == slot) {
            (up.is_confirmed, up.asked) = (false, AskId::NONE);
        }
    }

    /// Registers all interest with a hub's leader, with the positions of its rooms. A room continues when all
    /// its topics are confirmed and missing records are read, or reported if there is no history.
    pub(crate) fn register(&mut self, slot: u16, sink: &mut impl Sink) {
        self.unconfirm(slot);
        let keys = self.relay.upstreams.of_hub(slot);
        let rooms: Vec<RoomHandle> = self.relay.holes.rooms.keys().copied().collect();
        for room in rooms {
            if self.rooms.slot_of_room(room).is_none_or(|of| of == slot) {
                self.drop_resume(room);
            }
        }
        for key in &keys {
            let Some(up) = self.relay.upstreams.by_topic.get(key) else { continue };
            let (room, resumes) = (up.room, up.was_confirmed);
            if resumes {
                self.relay.holes.rooms.entry(room).or_default().pending += 1;
            }
        }
        for room in self.rooms.of_hub(slot) {
            let is_known = self.rooms.position(room).epoch.0 != 0;
            if is_known && !self.relay.holes.rooms.contains_key(&room) {
                self.relay.holes.suspects.insert(room);
            }
        }
        for key in &keys {
            self.request_interest(key, None, sink);
            let Some(up) = self.relay.upstreams.by_topic.get(key) else { continue };
            let named = up.waiting.iter().filter(|waiting| waiting.attach.start != Start::Live);
            let named: Vec<_> =
                named.map(|waiting| (waiting.from, waiting.attach.id, waiting.attach.start)).collect();
            for of in named {
                self.request_interest(key, Some(of), sink);
            }
        }
    }

    pub(crate) fn interest_confirmed(
        &mut self,
        ask: AskId,
        mut asked: InterestRequest,
        attached: Attached,
        turn: &mut Turn<impl Sink>,
    ) {
        let room = asked.room;
        let here = self.rooms.position(room);
        let there = attached.position;
        let relay = &mut self.relay;
        if relay.holes.suspects.remove(&room)
            && !asked.resumes
            && !relay.holes.rooms.contains_key(&room)
            && (here.epoch, there.seq > here.seq) == (there.epoch, true)
        {
            self.relay.holes.rooms.entry(room).or_default().upto = there.seq;
        }
        if asked.resumes && here.epoch != there.epoch {
            self.begin_unseen(room, there, turn);
        }
        let Some(resume) = self.relay.holes.rooms.get_mut(&room) else {
            return self.apply_confirmed(ask, asked, attached, turn);
        };
        if asked.resumes && resume.pending > 0 {
            resume.pending -= 1;
            resume.upto = resume.upto.max(there.seq);
            // Its hole is read with that of the room.
            asked.resumes = false;
        }
        self.relay.holes.buffer(room, Buffered::Attached(ask, asked, attached));
        self.resume_room(room, turn);
    }

    pub(crate) fn apply_confirmed(
        &mut self,
        ask: AskId,
        asked: InterestRequest,
        attached: Attached,
        turn: &mut Turn<impl Sink>,
    ) {
        let InterestRequest { room, key, known, resumes, of } = asked;
        if self.rooms.get(room).is_none() {
            return;
        }
        let (here, there) = (self.rooms.position(room), attached.position);
        if here.epoch != there.epoch {
            self.begin_epoch(room, there, turn);
        } else {
            // In an epoch that began meanwhile, it is unknown which records this topic missed.
            let had = if known.epoch == there.epoch { known.seq } else { Seq(0) };
            if resumes && there.seq > had {
                let from = Position { epoch: there.epoch, seq: had.next() };
                self.report_gap(&key, from, there, turn.sink);
            }
            if there.seq > here.seq {
                self.rooms.set_position(room, there, turn.now);
            }
        }
        let here = self.rooms.position(room);
        let Some(up) = self.relay.upstreams.by_topic.get_mut(&key) else { return };
        if up.asked == ask {
            (up.is_confirmed, up.was_confirmed, up.epoch) = (true, true, here.epoch);
        }
        let is_confirmed = up.is_confirmed;
        let answered = |waiting: &WaitingAttach| match of {
            Some((from, id)) if (waiting.from, waiting.attach.id) == (from, id) => true,
            _ => is_confirmed && waiting.attach.start == Start::Live,
        };
        for WaitingAttach { attach, from, .. } in self.relay.upstreams.take_waiting(&key, answered) {
            let is_named = of == Some((from, attach.id));
            let attached = match is_named {
                // Records that arrived meanwhile bypassed the subscription.
                true if attached.replay_from.is_none()
                    && here.seq > there.seq
                    && here.epoch == there.epoch =>
                {
                    Attached { replay_from: Some(there.seq.next()), ..attached }
                }
                true => attached,
                false => Attached { position: here, replay_from: None, recovered: true },
            };
            self.answer_attach(attach, from, Ok(attached), turn);
        }
    }

    /// Interest was sent over a link that has ended.
    pub(crate) fn interest_lost(&mut self, ask: AskId, asked: &InterestRequest) {
        if let Some(up) = self.relay.upstreams.by_topic.get_mut(&asked.key).filter(|up| up.asked == ask) {
            (up.is_confirmed, up.asked) = (false, AskId::NONE);
        }
    }

    pub(crate) fn denied(
        &mut self,
        ask: AskId,
        slot: u16,
        what: Request,
        code: ErrorCode,
        turn: &mut Turn<impl Sink>,
    ) {
        match what {
            Request::Publish(parked) => {
                self.answer_publish(parked.ticket, Err(code), turn.sink);
                self.push_queue(slot, turn);
            }
            Request::Question(question) => self.answer_unplaced(question.what, Some(code), turn.sink),
            Request::Interest(asked) => self.interest_denied(slot, &asked, code, turn),
            Request::Read(_) | Request::Hole(_) | Request::Hub(_) => {
                self.read_denied(ask, slot, what, code, turn)
            }
        }
    }

    fn interest_denied(
        &mut self,
        slot: u16,
        asked: &InterestRequest,
        code: ErrorCode,
        turn: &mut Turn<impl Sink>,
    ) {
        let is_meant = |waiting: &WaitingAttach| match asked.of {
            Some(of) => (waiting.from, waiting.attach.id) == of,
            None => waiting.attach.start == Start::Live,
        };
        let refused = self.relay.upstreams.take_waiting(&asked.key, is_meant);
        let Some(up) = self.relay.upstreams.by_topic.get_mut(&asked.key) else { return };
        up.asked = AskId::NONE;
        up.is_confirmed = up.is_confirmed && asked.of.is_some();
        let stays = up.was_confirmed || !up.waiting.is_empty();
        for waiting in refused {
            self.refuse_attach(waiting.attach, waiting.from, code, turn);
        }
        if stays && self.relay.upstreams.by_topic.get(&asked.key).is_some_and(|up| !up.is_confirmed) {
            // Until then the room waits: another topic's confirmation would skip the missing records.
            self.retry_later(slot, turn.now.mono_ms + RETRY_REFUSED_MS);
        } else if let Some(resume) = self.relay.holes.rooms.get_mut(&asked.room).filter(|_| asked.resumes) {
            resume.pending = resume.pending.saturating_sub(1);
            self.resume_room(asked.room, turn);
        }
    }

    /// A shard has one subscription less to a topic whose hub has its home here.
    pub(crate) fn detach_here(
        &mut self,
        namespace: Namespace,
        topic: &[u8],
        (from, revision): (ShardId, u64),
        turn: &mut Turn<impl Sink>,
    ) {
        // If the room was moved since, the subscription is no longer counted.
        let room =
            self.rooms.find_of_topic(topic).filter(|&room| self.rooms.revision(room) == Some(revision));
        let slot = room.and_then(|room| self.rooms.slot_of_room(room));
        let Some(room) = room else { return };
        let hub = slot.and_then(|slot| self.relay.hubs.get(usize::from(slot)));
        if hub.is_none_or(|hub| hub.leader == Leader::Me) {
            return self.rooms.detach(namespace, topic, from, turn.now);
        }
        let key: TopicKey = (namespace, topic.into());
        self.rooms.count(room, &key, |counts| _ = counts.remove(from), turn.now);
        if self.count_of(room, &key) > 0 {
            return self.relay.upstreams.changed(&key);
        }
        let names = self.names_of(&key);
        let known = self.rooms.position(room);
        let Some(up) = self.relay.upstreams.remove(&key) else { return };
        self.relay.send_no_interest(up.slot, names, known, turn.sink);
        self.leave_resume(room, &key, turn);
        if self.matching(key.0, &key.1).is_none_or(|patterns| patterns.is_empty()) {
            self.rooms.forget_unused(room);
        }
        if self.rooms.get(room).is_none() {
            self.drop_resume(room);
        }
        // Requests for another start of a subscription that has ended: nothing is replayed.
        let attached = Attached { position: known, replay_from: None, recovered: false };
        for WaitingAttach { attach, from, .. } in up.waiting {
            self.answer_attach(attach, from, Ok(attached), turn);
        }
    }

    pub(crate) fn send_counts(&mut self, sink: &mut impl Sink) {
        if self.relay.upstreams.dirty.is_empty() {
            return;
        }
        for key in std::mem::take(&mut self.relay.upstreams.dirty) {
            let Some(up) = self.relay.upstreams.by_topic.get_mut(&key) else { continue };
            if !std::mem::take(&mut up.is_dirty) || (!up.is_confirmed && up.asked == AskId::NONE) {
                continue;
            }
            let (slot, room) = (up.slot, up.room);
            let (names, count) = (self.names_of(&key), self.count_of(room, &key));
            let Some(to) = self.relay.leader_of(slot) else { continue };
            self.relay.send((to, slot), |hub, term| NodeMessage::Counts { hub, term, names, count }, sink);
        }
    }

    /// Subscribers on a node, for tests of a hub's counts.
    pub fn interest_of(&self, node: hubsub_types::NodeId, namespace: Namespace, topic: &[u8]) -> u32 {
        let holder = self.relay.peers.holder(node, self.shards);
        let room = self.rooms.find_of_topic(topic);
        let counts = room.and_then(|room| self.rooms.counts_of(room, namespace, topic));
        counts.zip(holder).map_or(0, |(counts, holder): (_, Holder)| counts.of(holder))
    }

    /// Subscribers on this node's own shards, for tests.
    pub fn interest_here(&self, namespace: Namespace, topic: &[u8]) -> u32 {
        let room = self.rooms.find_of_topic(topic);
        let counts = room.and_then(|room| self.rooms.counts_of(room, namespace, topic));
        counts.map_or(0, |counts| counts.of_shards(self.shards))
    }

    /// A topic is not followed any more: its room does not wait for it.
    fn leave_resume(&mut self, room: RoomHandle, key: &TopicKey, turn: &mut Turn<impl Sink>) {
        let is_of = |it: &InFlight| matches!(&it.what, Request::Interest(asked) if asked.key == *key && asked.resumes);
        for ask in self.relay.requests_where(is_of) {
            self.relay.take(ask);
            if let Some(resume) = self.relay.holes.rooms.get_mut(&room) {
                resume.pending = resume.pending.saturating_sub(1);
            }
        }
        if self.rooms.topics_of(room).is_empty() {
            return self.drop_resume(room);
        }
        self.resume_room(room, turn);
    }
}
