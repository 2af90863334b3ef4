//! Groups that share records ([`crate::groups`]): join, leave, and the path of a record to a member. `picks`
//! and `deliver_to_groups` run at the home of its room, `deliver_to_member` on the selected shard. `redeliver` returns
//! a record that no member accepted, or whose member was lost.

use super::publish::Body;
use super::subscribe::RESUMED_TIMES;
use super::{Broker, Turn};
use crate::counts::{Holder, HolderSet};
use crate::groups::{ABSENT_TRIES, TRIES_MAX, hash};
use crate::patterns::Patterns;
use crate::relay::Leader;
use crate::ring::NOWHERE;
use crate::topics::TopicId;
use crate::traces::StepKind;
use crate::{Delivery, Draft, Give, Msg, Now, Outcome, Publisher, Reply, Sink, Ticket, Via, publisher_name};
use hubsub_message::{Namespace, NodeMessage, Record};
use hubsub_types::names::{group_of, group_pattern};
use hubsub_types::{ConnKey, ErrorCode, HubId, NodeId, ShardId, ShareKey, ShareStrategy};
use std::sync::Arc;

/// For each group of a record the shard or node that gets it; none where a named consumer delivers it.
pub(super) type Picks = Vec<(u32, Option<Holder>)>;

impl Broker {
    /// Makes a connection a member of a group that shares records matching an MQTT filter. It gets records at
    /// once; [`Outcome::Later`] promises one [`crate::Answer::PatternHeld`], when all nodes that can lead
    /// know it.
    pub fn join_group(
        &mut self,
        ticket: Ticket,
        conn: ConnKey,
        group: &[u8],
        filter: &[u8],
        now: Now,
        sink: &mut impl Sink,
    ) -> Reply<()> {
        self.enter_group(ticket, (conn, true), (group, filter), &mut Turn { now, sink })
    }

    /// As `join_group`, for a resumed session: groups created since do not count against it.
    pub fn resume_group(
        &mut self,
        ticket: Ticket,
        conn: ConnKey,
        group: &[u8],
        filter: &[u8],
        now: Now,
        sink: &mut impl Sink,
    ) -> Reply<()> {
        self.enter_group(ticket, (conn, false), (group, filter), &mut Turn { now, sink })
    }

    fn enter_group(
        &mut self,
        ticket: Ticket,
        (conn, is_new): (ConnKey, bool),
        (group, filter): (&[u8], &[u8]),
        turn: &mut Turn<impl Sink>,
    ) -> Reply<()> {
        if (group.len() + filter.len()) as u64 > self.limits.pattern_bytes_max {
            return Outcome::Now(Err(ErrorCode::PatternLength));
        }
        let source = group_pattern(group, filter);
        let table = &self.groups.table;
        if table.find(&source).is_some_and(|id| table.get(id).subs.contains(conn.index)) {
            return Outcome::Now(Ok(()));
        }
        if self.is_full(conn) {
            return Outcome::Now(Err(ErrorCode::TooManySubscriptions));
        }
        if !self.has_bytes_for(conn, source.len(), (true, is_new), turn.sink) {
            return Outcome::Now(Err(ErrorCode::SubscriptionBytes));
        }
        let times = if is_new { 1 } else { RESUMED_TIMES };
        let table = &self.groups.table;
        let has_room = (table.len() as u64) < self.limits.groups_max.saturating_mul(times)
            && (table.bytes() as u64) < self.limits.patterns_bytes_max.saturating_mul(times);
        if !has_room && table.find(&source).is_none() {
            return Outcome::Now(Err(ErrorCode::TooManyGroups));
        }
        self.clients.count_name(conn.index, source.len(), turn.sink);
        let id = self.groups.table.intern(&source);
        self.groups.table.hold(id, self.shard, self.shards);
        let source = Arc::clone(&self.groups.table.get(id).source);
        self.groups.enter(id, conn.index);
        let is_held = self.announce_added(ticket, conn, id, &source, turn.sink);
        self.open_consumer(&source, turn);
        if is_held { Outcome::Now(Ok(())) } else { Outcome::Later }
    }

    /// Removes a member; returns whether it was one. For its records see [`Broker::give_to_another`].
    pub fn leave_group(&mut self, conn: ConnKey, group: &[u8], filter: &[u8], sink: &mut impl Sink) -> bool {
        let source = group_pattern(group, filter);
        let id = self.groups.table.find(&source);
        let Some(id) = id.filter(|&id| self.groups.leave(id, conn.index)) else { return false };
        self.clients.uncount_name(conn.index, source.len());
        self.drop_member(id, sink);
        true
    }

    pub(super) fn drop_member(&mut self, id: u32, sink: &mut impl Sink) {
        let source = Arc::clone(&self.groups.table.get(id).source);
        self.groups.table.release(id, self.shard, self.shards);
        self.announce_dropped(&source, sink);
    }

    pub(super) fn table_of(&mut self, source: &[u8]) -> &mut Patterns {
        if group_of(source).is_some() { &mut self.groups.table } else { &mut self.patterns }
    }

    /// Picks a destination in each group that matches the topic; none when all members of one are congested.
    pub(super) fn picks(&mut self, id: TopicId, body: &Body<'_>, sink: &impl Sink) -> Option<Picks> {
        if self.groups.is_empty() {
            return Some(Picks::new());
        }
        let (namespace, topic) = match body {
            Body::Draft(Draft { namespace, topic, .. }) => (*namespace, *topic),
            Body::Record(record) => (record.namespace, record.topic()),
        };
        if namespace != Namespace::Global {
            return Some(Picks::new());
        }
        let mut picks = Picks::new();
        let is_logged = self.classes.get(self.topics.get(id).class).durability.is_logged();
        for &group in &*self.groups.table.matching(topic) {
            if is_logged && self.kept_topic(&self.groups.table.get(group).source).is_some() {
                picks.push((group, None));
                continue;
            }
            let (may, is_behind) = self.may_get(group, id, sink);
            let strategy = self.strategy(id);
            let key = if let ShareStrategy::Hash(key) = &strategy { key_of(key, body, sink) } else { 0 };
            match self.groups.pick(group, may, &strategy, key) {
                Some(holder) => picks.push((group, Some(holder))),
                None if is_behind => return None,
                None => {}
            }
        }
        Some(picks)
    }

    /// Holders with members of a group that accept a record now, and whether others are congested.
    pub(super) fn may_get(&mut self, group: u32, id: TopicId, sink: &impl Sink) -> (HolderSet, bool) {
        let (mut all, mut may, mut is_behind) = (HolderSet::default(), HolderSet::default(), false);
        self.groups.table.get(group).counts.holders(&mut all);
        let slot = if all.has_nodes(self.shards) { self.slot_of_topic(id) } else { None };
        for holder in all.iter() {
            if holder.0 < self.shards {
                let is_free = ShardId(holder.0) == self.shard || !sink.congested(ShardId(holder.0));
                is_behind |= !is_free;
                if is_free {
                    may.insert(holder);
                }
            } else if let Some(slot) = slot
                && let relay = &mut self.relay
                && let hub = relay.hub(slot).id
                && let Some(node) = relay.peers.node_of(holder, self.shards)
                && relay.peers.reaches(node, hub)
            {
                if relay.peers.flows(node, hub, sink) {
                    may.insert(holder);
                } else {
                    relay.is_held_up = true;
                    is_behind = true;
                }
            }
        }
        (may, is_behind)
    }

    fn strategy(&self, id: TopicId) -> ShareStrategy {
        self.classes.get(self.topics.get(id).class).share_strategy.clone()
    }

    pub(super) fn strategy_for(
        &self,
        id: TopicId,
        record: &Arc<Record>,
        sink: &impl Sink,
    ) -> (ShareStrategy, u64) {
        let strategy = self.strategy(id);
        let key = match &strategy {
            ShareStrategy::Hash(key) => key_of(key, &Body::Record(Arc::clone(record)), sink),
            _ => 0,
        };
        (strategy, key)
    }

    pub(super) fn deliver_to_groups(
        &mut self,
        id: TopicId,
        record: &Arc<Record>,
        picks: Picks,
        turn: &mut Turn<impl Sink>,
    ) {
        for (group, holder) in picks {
            let group = Arc::clone(&self.groups.table.get(group).source);
            match holder {
                Some(holder) => {
                    let give = Give { group, record: Arc::clone(record), tries: 0, was_taken: false };
                    self.send_to_member(id, holder, give, turn);
                }
                None => self.consume(&group, record, turn),
            }
        }
    }

    pub(super) fn send_to_member(
        &mut self,
        id: TopicId,
        holder: Holder,
        give: Give,
        turn: &mut Turn<impl Sink>,
    ) {
        if holder == self.shard.into() {
            return self.deliver_to_member(give, turn);
        }
        if holder.0 < self.shards {
            return turn.sink.send(ShardId(holder.0), Msg::Give(Box::new(give)));
        }
        let (slot, shards) = (self.slot_of_topic(id), self.shards);
        if let Some(slot) = slot
            && let relay = &mut self.relay
            && let hub = relay.hub(slot).id
            && let Some(node) = relay.peers.node_of(holder, shards)
            && let record = self.traces.is_on().then(|| Arc::clone(&give.record))
            && relay.peers.send(node, hub, NodeMessage::Give { hub, give }, turn.sink)
        {
            if let Some(record) = record {
                self.trace_record(&record, StepKind::SentToNode(node), turn.sink);
            }
            return;
        }
        self.groups.lost += 1;
    }

    pub(super) fn deliver_to_member(&mut self, give: Give, turn: &mut Turn<impl Sink>) {
        let id = self.topics.intern(give.record.namespace, give.record.topic());
        let (strategy, key) = self.strategy_for(id, &give.record, turn.sink);
        let on_slow = self.classes.get(self.topics.get(id).class).on_slow;
        if let Some(group) = self.groups.table.find(&give.group) {
            let members = self.groups.members(group, &strategy, key);
            for &conn in &members {
                turn.sink.record_begins();
                if turn.sink.deliver(conn, Via::Group(&give.group), &give.record.view(on_slow))
                    == Delivery::Taken
                {
                    self.groups.took(group, conn, &strategy);
                    return self.note_taken(&give.record, turn.sink);
                }
            }
            if self.may_wait(group, id, &give, members.len()) {
                let of = (&*give.group, self.groups.table.get(group).counts.total());
                for &conn in &members {
                    let kept = turn.sink.keep_for_absent(conn, of, &give.record.view(on_slow));
                    if kept == Delivery::Taken {
                        self.groups.took(group, conn, &strategy);
                        return self.note_taken(&give.record, turn.sink);
                    }
                }
            }
        }
        self.redeliver(give, turn);
    }

    fn note_taken(&mut self, record: &Record, sink: &impl Sink) {
        if self.traces.is_on() {
            self.trace_record(record, StepKind::Delivered(1), sink);
        }
    }

    /// Whether a record that none of `members` members here accepted waits for an offline session: when there
    /// are no other members, or they were tried. In a group with a position the consumer does that instead.
    fn may_wait(&self, group: u32, id: TopicId, give: &Give, members: usize) -> bool {
        let held = self.groups.table.get(group);
        let is_logged = self.classes.get(self.topics.get(id).class).durability.is_logged();
        let keeps_place = is_logged && self.kept_topic(&held.source).is_some();
        !keeps_place && (give.tries >= ABSENT_TRIES || held.counts.total() == members as u64)
    }

    pub fn group_members(&self, source: &[u8]) -> u64 {
        let table = &self.groups.table;
        table.find(source).map_or(0, |group| table.get(group).counts.total())
    }

    /// Redelivers a record that a member of this shard will not acknowledge any more to another member. The
    /// record keeps its position; the other member may get it before or after later records.
    pub fn give_to_another(&mut self, group: &[u8], record: Arc<Record>, now: Now, sink: &mut impl Sink) {
        self.redeliver(
            Give { group: group.into(), record, tries: 0, was_taken: true },
            &mut Turn { now, sink },
        );
    }

    /// No member here accepted a record: the home of its room picks again.
    fn redeliver(&mut self, give: Give, turn: &mut Turn<impl Sink>) {
        if give.tries >= TRIES_MAX {
            self.groups.lost += 1;
            return;
        }
        self.groups.given_again += 1;
        let give = Give { tries: give.tries + 1, ..give };
        let id = self.topics.intern(give.record.namespace, give.record.topic());
        match self.topics.get(id).shard {
            shard if shard == self.shard || shard == NOWHERE => {
                self.redeliver_at_home(give, self.shard, turn)
            }
            shard => turn.sink.send(shard, Msg::GiveAgain(self.shard, Box::new(give))),
        }
    }

    /// At a room's home, or its leader: picks another destination for a record that nobody accepted.
    pub(super) fn redeliver_at_home(&mut self, give: Give, from: ShardId, turn: &mut Turn<impl Sink>) {
        let room = self.classes.room(give.record.topic()).into_owned();
        if let Some(slot) = self.relayed_slot(&room)
            && let relay = &mut self.relay
            && let Leader::Node(leader) = relay.hub(slot).leader
            && let hub = relay.hub(slot).id
            && relay.peers.reaches(leader, hub)
        {
            relay.peers.send(leader, hub, NodeMessage::Give { hub, give }, turn.sink);
            return;
        }
        if !self.returned_to_consumer(&give, Some(from.into()), turn) {
            self.deliver_to_any(give, false, Some(from.into()), turn);
        }
    }

    /// A record for a group: from the leader for a member here, or to the leader for any member.
    pub(super) fn group_record_received(
        &mut self,
        from: NodeId,
        hub: HubId,
        give: Give,
        turn: &mut Turn<impl Sink>,
    ) {
        let is_led = self.leads(hub).is_some();
        if self.traces.is_on() && !is_led {
            self.trace_record(&give.record, StepKind::FromLeader(from), turn.sink);
        }
        let from = self.relay.peers.holder(from, self.shards);
        if !is_led || !self.returned_to_consumer(&give, from, turn) {
            self.deliver_to_any(give, !is_led, from, turn);
        }
    }

    /// Sends a record to a member; to one of `from`, where none accepted it, only if there are no others.
    fn deliver_to_any(
        &mut self,
        give: Give,
        here_only: bool,
        from: Option<Holder>,
        turn: &mut Turn<impl Sink>,
    ) {
        let id = self.topics.intern(give.record.namespace, give.record.topic());
        let picked = self.pick_for(&give.group, id, &give.record, here_only, from, turn.sink);
        match picked {
            Some(holder) => self.send_to_member(id, holder, give, turn),
            None if here_only => self.redeliver(give, turn),
            None => self.groups.lost += 1,
        }
    }
}

fn key_of(key: &ShareKey, body: &Body<'_>, sink: &impl Sink) -> u64 {
    let header = |headers: Option<&[(Box<str>, Box<str>)]>, name: &str| {
        let found = headers.unwrap_or_default().iter().find(|(own, _)| **own == *name);
        hash(found.map_or(&[][..], |(_, value)| value.as_bytes()))
    };
    match (key, body) {
        (ShareKey::Topic, Body::Draft(draft)) => hash(draft.topic),
        (ShareKey::Topic, Body::Record(record)) => hash(record.topic()),
        (ShareKey::Publisher, Body::Draft(draft)) => match draft.publisher {
            Publisher::Name(name) | Publisher::Told(name) => hash(publisher_name(name).as_bytes()),
            Publisher::Conn(conn) => hash(publisher_name(&sink.publisher(conn)).as_bytes()),
        },
        (ShareKey::Publisher, Body::Record(record)) => hash(record.publisher.as_bytes()),
        (ShareKey::Header(name), Body::Draft(draft)) => header(draft.headers.as_deref(), name),
        (ShareKey::Header(name), Body::Record(record)) => header(record.headers.as_deref(), name),
    }
}
