//! Interest in rooms that other nodes lead: counts subscribers here, sends the counts to the leader, and
//! confirms a subscription when the leader has confirmed it.

use super::Broker;
use crate::Names;
use crate::counts::Holder;
use crate::logread::Known;
use crate::relay::limits::{ATTACHES_MAX, RETRY_REFUSED_MS};
use crate::relay::state::{Asked, AskedInterest, Held, Relay, UnderWay, Upstream, WaitingAttach};
use crate::relay::{AskId, Leader, NodeMessage};
use crate::rooms::{RoomHandle, TopicKey};
use crate::{Attach, Attached, Namespace, Now, Sink, Start};
use hubsub_types::{ErrorCode, Position, Seq, ShardId};
use std::sync::Arc;

impl Broker {
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
        if self.relay().attaches >= ATTACHES_MAX {
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
        self.follow_topic(slot, room, key.clone(), false);
        let position = self.rooms.position(room);
        // A subscription that follows a room was confirmed before, and waits without limit.
        let parked_ms = self.relay().cluster.limits.parked_ms;
        let until_ms = if attach.left.is_some() { u64::MAX } else { now.mono_ms + parked_ms };
        let relay = self.relay();
        relay.wake_by(until_ms);
        let is_resuming = relay.resuming.contains_key(&room);
        let up = relay.upstreams.get_mut(&key).expect("followed above");
        if attach.adds && !std::mem::replace(&mut up.is_dirty, true) {
            relay.dirty.push(key.clone());
        }
        if up.is_confirmed && attach.start == Start::Live && !is_resuming {
            return Some(Ok(Attached { position, replay_from: None, recovered: true }));
        }
        let is_asked = up.asked != AskId::NONE || up.is_confirmed;
        up.waiting.push(WaitingAttach { attach: attach.clone(), from, until_ms });
        relay.attaches += 1;
        if attach.start != Start::Live {
            self.ask_interest(&key, Some((from, attach.id, attach.start)), sink);
        } else if !is_asked || is_resuming {
            self.ask_interest(&key, None, sink);
        }
        None
    }

    /// Registers a topic whose leader is to be notified of subscribers here.
    pub(super) fn follow_topic(&mut self, slot: u16, room: RoomHandle, key: TopicKey, was_confirmed: bool) {
        let upstream = Upstream {
            slot,
            room,
            is_confirmed: false,
            was_confirmed,
            life: self.rooms.position(room).epoch,
            asked: AskId::NONE,
            waiting: Vec::new(),
            is_dirty: false,
        };
        self.relay().upstreams.entry(key).or_insert(upstream);
    }

    pub(super) fn names_of(&self, (namespace, topic): &TopicKey) -> Names {
        let room: Arc<[u8]> = self.classes.room(topic).as_ref().into();
        Names { namespace: *namespace, room, topic: Arc::clone(topic) }
    }

    fn count_of(&self, room: RoomHandle, (namespace, topic): &TopicKey) -> u32 {
        let counts = self.rooms.counts_of(room, *namespace, topic);
        counts.map_or(0, |counts| counts.of_shards(self.shards))
    }

    /// Sends interest to the leader, if it is reachable, and requests a confirmation.
    fn ask_interest(&mut self, key: &TopicKey, of: Option<(ShardId, u32, Start)>, sink: &mut impl Sink) {
        let names = self.names_of(key);
        let Some(up) = self.relay().upstreams.get(key) else { return };
        let (slot, room) = (up.slot, up.room);
        // One request resumes the topic; another one is for a subscriber that came meanwhile.
        let resumes = up.was_confirmed && of.is_none() && !up.is_confirmed && up.asked == AskId::NONE;
        let (known, count) = (self.rooms.position(room), self.count_of(room, key));
        let shard = self.shard;
        let relay = self.relay();
        let Some(to) = relay.leader_of(slot).filter(|_| relay.hub(slot).retry_ms == u64::MAX) else { return };
        let ask = relay.next_ask(shard);
        let up = relay.upstreams.get_mut(key).expect("looked up above");
        if !up.is_confirmed && up.asked == AskId::NONE {
            up.asked = ask;
        }
        up.is_dirty = false;
        let (hub, term) = (relay.hub(slot).id, relay.hub(slot).term);
        let start = of.map_or(Start::Live, |(_, _, start)| start);
        let of = of.map(|(from, id, _)| (from, id));
        let what = Asked::Interest(AskedInterest { room, key: key.clone(), known, resumes, of });
        relay.asks.insert(ask, UnderWay { to, slot, term, what, records: Vec::new(), bytes: 0 });
        let message = NodeMessage::Interest { ask, hub, term, names, count, known, start };
        relay.peers.send(to, hub, message, sink);
    }

    /// The interest that a hub's leader was sent is no longer valid.
    pub(super) fn unconfirm(&mut self, slot: u16) {
        // Responses of a former leader are not valid, either.
        self.relay().asks.retain(|_, under_way| {
            under_way.slot != slot || !matches!(under_way.what, Asked::Interest(_) | Asked::Hole(_))
        });
        let Broker { relay: Some(relay), rooms, .. } = self else { return };
        for (&room, resume) in &mut relay.resuming {
            if rooms.slot_of_room(room) == Some(slot) {
                resume.read = None;
            }
        }
        for up in self.relay().upstreams.values_mut().filter(|up| up.slot == slot) {
            (up.is_confirmed, up.asked) = (false, AskId::NONE);
        }
    }

    /// Registers all interest with a hub's leader, with the positions of its rooms. A room continues when all
    /// its topics are confirmed and missing records are read, or reported if there is no history.
    pub(super) fn register(&mut self, slot: u16, _now: Now, sink: &mut impl Sink) {
        self.unconfirm(slot);
        let ups = self.relay().upstreams.iter().filter(|(_, up)| up.slot == slot);
        let mut keys: Vec<TopicKey> = ups.map(|(key, _)| key.clone()).collect();
        // A deterministic order, independent of hashes.
        keys.sort_unstable();
        let rooms: Vec<RoomHandle> = self.relay().resuming.keys().copied().collect();
        for room in rooms {
            if self.rooms.slot_of_room(room).is_none_or(|of| of == slot) {
                self.drop_resume(room);
            }
        }
        for key in &keys {
            let Some(up) = self.relay().upstreams.get(key) else { continue };
            let (room, resumes) = (up.room, up.was_confirmed);
            if resumes {
                self.relay().resuming.entry(room).or_default().pending += 1;
            }
        }
        for room in self.rooms.of_hub(slot) {
            let is_known = self.rooms.position(room).epoch.0 != 0;
            let relay = self.relay();
            if is_known && !relay.resuming.contains_key(&room) {
                relay.suspects.insert(room);
            }
        }
        for key in &keys {
            self.ask_interest(key, None, sink);
            let Some(up) = self.relay().upstreams.get(key) else { continue };
            let named = up.waiting.iter().filter(|waiting| waiting.attach.start != Start::Live);
            let named: Vec<_> =
                named.map(|waiting| (waiting.from, waiting.attach.id, waiting.attach.start)).collect();
            for of in named {
                self.ask_interest(key, Some(of), sink);
            }
        }
    }

    pub(super) fn interest_confirmed(
        &mut self,
        ask: AskId,
        mut asked: AskedInterest,
        attached: Attached,
        now: Now,
        sink: &mut impl Sink,
    ) {
        let room = asked.room;
        let here = self.rooms.position(room);
        let there = attached.position;
        let relay = self.relay();
        if relay.suspects.remove(&room)
            && !asked.resumes
            && !relay.resuming.contains_key(&room)
            && (here.epoch, there.seq > here.seq) == (there.epoch, true)
        {
            let relay = self.relay();
            relay.resuming.entry(room).or_default().upto = there.seq;
        }
        if asked.resumes && here.epoch != there.epoch {
            self.begin_unseen(room, there, now, sink);
        }
        let relay = self.relay();
        let Some(resume) = relay.resuming.get_mut(&room) else {
            return self.apply_confirmed(ask, asked, attached, now, sink);
        };
        if asked.resumes && resume.pending > 0 {
            resume.pending -= 1;
            resume.upto = resume.upto.max(there.seq);
            // Its hole is read with that of the room.
            asked.resumes = false;
        }
        relay.held_bytes += size_of::<Held>();
        resume.held.push_back(Held::Attached(ask, asked, attached));
        self.go_on(room, now, sink);
    }

    pub(super) fn apply_confirmed(
        &mut self,
        ask: AskId,
        asked: AskedInterest,
        attached: Attached,
        now: Now,
        sink: &mut impl Sink,
    ) {
        let AskedInterest { room, key, known, resumes, of } = asked;
        if self.rooms.get(room).is_none() {
            return;
        }
        let (here, there) = (self.rooms.position(room), attached.position);
        if here.epoch != there.epoch {
            self.begin_epoch(room, there, now, sink);
        } else {
            // In an epoch that began meanwhile, it is unknown which records this topic missed.
            let had = if known.epoch == there.epoch { known.seq } else { Seq(0) };
            if resumes && there.seq > had {
                let from = Position { epoch: there.epoch, seq: had.next() };
                self.tell_gap(&key, from, there, sink);
            }
            if there.seq > here.seq {
                self.rooms.set_position(room, there, now);
            }
        }
        let here = self.rooms.position(room);
        let relay = self.relay();
        let Some(up) = relay.upstreams.get_mut(&key) else { return };
        if up.asked == ask {
            (up.is_confirmed, up.was_confirmed, up.life) = (true, true, here.epoch);
        }
        let is_confirmed = up.is_confirmed;
        let answered = |waiting: &WaitingAttach| match of {
            Some((from, id)) if (waiting.from, waiting.attach.id) == (from, id) => true,
            _ => is_confirmed && waiting.attach.start == Start::Live,
        };
        let (answered, waiting) = std::mem::take(&mut up.waiting).into_iter().partition(answered);
        up.waiting = waiting;
        let answered: Vec<WaitingAttach> = answered;
        relay.attaches -= answered.len();
        for WaitingAttach { attach, from, .. } in answered {
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
            self.answer_attach(attach, from, Ok(attached), now, sink);
        }
    }

    /// Interest was sent over a link that has ended.
    pub(super) fn interest_lost(&mut self, ask: AskId, asked: &AskedInterest) {
        if let Some(up) = self.relay().upstreams.get_mut(&asked.key).filter(|up| up.asked == ask) {
            (up.is_confirmed, up.asked) = (false, AskId::NONE);
        }
    }

    /// A leader refuses a request.
    pub(super) fn denied(
        &mut self,
        ask: AskId,
        slot: u16,
        what: Asked,
        code: ErrorCode,
        now: Now,
        sink: &mut impl Sink,
    ) {
        match what {
            Asked::Publish(parked) => {
                self.tell_published(parked.ticket, Err(code), sink);
                self.push_queue(slot, now, sink);
            }
            Asked::Question(question) => self.answer_unplaced(question.what, Some(code), sink),
            Asked::Interest(asked) => self.interest_denied(slot, &asked, code, now, sink),
            Asked::Read(_) | Asked::Hole(_) | Asked::Hub(_) => {
                self.read_denied(ask, slot, what, code, now, sink)
            }
        }
    }

    fn interest_denied(
        &mut self,
        slot: u16,
        asked: &AskedInterest,
        code: ErrorCode,
        now: Now,
        sink: &mut impl Sink,
    ) {
        let relay = self.relay();
        let Some(up) = relay.upstreams.get_mut(&asked.key) else { return };
        let is_meant = |waiting: &WaitingAttach| match asked.of {
            Some(of) => (waiting.from, waiting.attach.id) == of,
            None => waiting.attach.start == Start::Live,
        };
        let (refused, waiting) = std::mem::take(&mut up.waiting).into_iter().partition(is_meant);
        up.waiting = waiting;
        up.asked = AskId::NONE;
        up.is_confirmed = up.is_confirmed && asked.of.is_some();
        let stays = up.was_confirmed || !up.waiting.is_empty();
        let refused: Vec<WaitingAttach> = refused;
        relay.attaches -= refused.len();
        for waiting in refused {
            self.refuse_attach(waiting, code, now, sink);
        }
        if stays && self.relay().upstreams.get(&asked.key).is_some_and(|up| !up.is_confirmed) {
            // Until then the room does not continue: another topic's confirmation would skip the missing
            // records.
            self.retry_later(slot, now.mono_ms + RETRY_REFUSED_MS);
        } else if let Some(resume) = self.relay().resuming.get_mut(&asked.room).filter(|_| asked.resumes) {
            resume.pending = resume.pending.saturating_sub(1);
            self.go_on(asked.room, now, sink);
        }
    }

    /// Refuses a subscription, and no longer counts it.
    fn refuse_attach(&mut self, waiting: WaitingAttach, code: ErrorCode, now: Now, sink: &mut impl Sink) {
        let WaitingAttach { attach, from, .. } = waiting;
        if attach.adds {
            self.detach_here(attach.namespace, &attach.topic, (from, attach.revision), now, sink);
        }
        self.answer_attach(attach, from, Err(code), now, sink);
    }

    /// Refuses subscriptions that have waited too long.
    pub(super) fn expire_attaches(&mut self, now: Now, sink: &mut impl Sink) {
        let relay = self.relay();
        let mut due_ms = u64::MAX;
        let mut expired: Vec<(TopicKey, WaitingAttach)> = Vec::new();
        for (key, up) in relay.upstreams.iter_mut().filter(|(_, up)| !up.waiting.is_empty()) {
            let is_over = |waiting: &WaitingAttach| waiting.until_ms <= now.mono_ms;
            let (over, waiting) = std::mem::take(&mut up.waiting).into_iter().partition(is_over);
            up.waiting = waiting;
            let over: Vec<WaitingAttach> = over;
            expired.extend(over.into_iter().map(|waiting| (key.clone(), waiting)));
            due_ms = up.waiting.iter().map(|waiting| waiting.until_ms).fold(due_ms, u64::min);
        }
        relay.attaches -= expired.len();
        relay.wake_by(due_ms);
        expired.sort_unstable_by(|a, b| (&a.0, a.1.attach.id).cmp(&(&b.0, b.1.attach.id)));
        for (_, waiting) in expired {
            self.refuse_attach(waiting, ErrorCode::HubClosed, now, sink);
        }
    }

    /// A shard has one subscription less to a topic whose hub has its home here.
    pub(in crate::broker) fn detach_here(
        &mut self,
        namespace: Namespace,
        topic: &[u8],
        (from, revision): (ShardId, u64),
        now: Now,
        sink: &mut impl Sink,
    ) {
        // If the room was moved since, the subscription is no longer counted.
        let room =
            self.rooms.find_of_topic(topic).filter(|&room| self.rooms.revision(room) == Some(revision));
        let slot = room.and_then(|room| self.rooms.slot_of_room(room));
        let is_relayed = |relay: &Relay| {
            let hub = slot.and_then(|slot| relay.hubs.get(usize::from(slot)));
            hub.is_some_and(|hub| hub.leader != Leader::Me)
        };
        let Some(room) = room else { return };
        if !self.relay.as_deref().is_some_and(is_relayed) {
            return self.rooms.detach(namespace, topic, from, now);
        }
        let key: TopicKey = (namespace, topic.into());
        self.rooms.count(room, &key, |counts| _ = counts.remove(from), now);
        if self.count_of(room, &key) > 0 {
            let relay = self.relay();
            if let Some(up) = relay.upstreams.get_mut(&key)
                && !std::mem::replace(&mut up.is_dirty, true)
            {
                relay.dirty.push(key);
            }
            return;
        }
        let names = self.names_of(&key);
        let known = self.rooms.position(room);
        let relay = self.relay();
        let Some(up) = relay.upstreams.remove(&key) else { return };
        relay.attaches -= up.waiting.len();
        if let Some(to) = relay.leader_of(up.slot) {
            let (hub, term) = (relay.hub(up.slot).id, relay.hub(up.slot).term);
            let (ask, count, start) = (AskId::NONE, 0, Start::Live);
            let message = NodeMessage::Interest { ask, hub, term, names, count, known, start };
            relay.peers.send(to, hub, message, sink);
        }
        self.leave_resume(room, &key, now, sink);
        if self.matching(key.0, &key.1).is_none_or(|patterns| patterns.is_empty()) {
            self.rooms.forget_unused(room);
        }
        if self.rooms.get(room).is_none() {
            self.drop_resume(room);
        }
        // Requests for another start of a subscription that has ended: nothing is replayed.
        let attached = Attached { position: known, replay_from: None, recovered: false };
        for WaitingAttach { attach, from, .. } in up.waiting {
            self.answer_attach(attach, from, Ok(attached), now, sink);
        }
    }

    /// Sends changed numbers of subscribers to leaders.
    pub(super) fn tell_counts(&mut self, sink: &mut impl Sink) {
        if self.relay.as_ref().is_none_or(|relay| relay.dirty.is_empty()) {
            return;
        }
        for key in std::mem::take(&mut self.relay().dirty) {
            let Some(up) = self.relay().upstreams.get_mut(&key) else { continue };
            if !std::mem::take(&mut up.is_dirty) || (!up.is_confirmed && up.asked == AskId::NONE) {
                continue;
            }
            let (slot, room) = (up.slot, up.room);
            let (names, count) = (self.names_of(&key), self.count_of(room, &key));
            let relay = self.relay();
            let Some(to) = relay.leader_of(slot) else { continue };
            let (hub, term) = (relay.hub(slot).id, relay.hub(slot).term);
            relay.peers.send(to, hub, NodeMessage::Counts { hub, term, names, count }, sink);
        }
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

    /// Subscribers on a node, for tests of a hub's counts.
    #[must_use]
    pub fn interest_of(&self, node: hubsub_types::NodeId, namespace: Namespace, topic: &[u8]) -> u32 {
        let holder = self.relay.as_ref().and_then(|relay| relay.peers.holder(node, self.shards));
        let room = self.rooms.find_of_topic(topic);
        let counts = room.and_then(|room| self.rooms.counts_of(room, namespace, topic));
        counts.zip(holder).map_or(0, |(counts, holder): (_, Holder)| counts.of(holder))
    }

    /// Subscribers on this node's own shards, for tests.
    #[must_use]
    pub fn interest_here(&self, namespace: Namespace, topic: &[u8]) -> u32 {
        let room = self.rooms.find_of_topic(topic);
        let counts = room.and_then(|room| self.rooms.counts_of(room, namespace, topic));
        counts.map_or(0, |counts| counts.of_shards(self.shards))
    }

    /// A topic is not followed any more: its room does not wait for it.
    fn leave_resume(&mut self, room: RoomHandle, key: &TopicKey, now: Now, sink: &mut impl Sink) {
        let relay = self.relay();
        let is_of =
            |what: &Asked| matches!(what, Asked::Interest(asked) if asked.key == *key && asked.resumes);
        let asks: Vec<AskId> =
            relay.asks.iter().filter(|(_, under_way)| is_of(&under_way.what)).map(|(&ask, _)| ask).collect();
        for ask in asks {
            relay.take(ask);
            if let Some(resume) = relay.resuming.get_mut(&room) {
                resume.pending = resume.pending.saturating_sub(1);
            }
        }
        if self.rooms.topics_of(room).is_empty() {
            return self.drop_resume(room);
        }
        self.go_on(room, now, sink);
    }
}
