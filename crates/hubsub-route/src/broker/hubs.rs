//! Subscribers that follow whole hubs with a log by patterns (see `cursors::hub`): start, reads, and the ends
//! of logs.

use super::{Broker, Turn};
use crate::hubread::{END, ENDS_MS, HubLogRead, HubRange, HubRead, HubThen};
use crate::{Delivery, HubFilter, Msg, Now, Outcome, Reply, Sink, Ticket, Via};
use hubsub_message::home;
use hubsub_types::class::ClassIndex;
use hubsub_types::{ConnKey, ErrorCode, HubId, Position, ShardId};
use std::sync::Arc;

const READ_BYTES: usize = 64 * 1024;

const READ_RECORDS: u32 = 4_096;

#[derive(Clone, Copy, Debug)]
pub enum HubsFrom<'a> {
    Offsets(&'a [(HubId, u64)]),
    /// With the first record that is not older than this, in µs since 1970; 0: with the oldest.
    Since(u64),
}

impl Broker {
    /// A connection follows all hubs with a log by all its patterns, also by later ones. It gets matching
    /// records of these hubs from `from` on, each once, those of a room in order. Later hubs are followed
    /// from their first record. A repeated call starts again. Patterns that
    /// [`Broker::subscribe_pattern_from`] started keep their place.
    pub fn follow_hubs(&mut self, conn: ConnKey, from: HubsFrom<'_>, now: Now, sink: &mut impl Sink) {
        self.set_hub_cursors(conn, None, from);
        self.drained(conn, now, sink);
    }

    /// Subscribes a connection to a pattern, as [`Broker::subscribe_pattern`] does, and delivers the records
    /// of hubs with a log from `from` on, then live records. A repeated subscription to a pattern starts
    /// again.
    pub fn subscribe_pattern_from(
        &mut self,
        ticket: Ticket,
        conn: ConnKey,
        pattern: &[u8],
        from: HubsFrom<'_>,
        sink: &mut impl Sink,
    ) -> Reply<()> {
        let outcome = self.subscribe_pattern(ticket, conn, pattern, sink);
        if !matches!(outcome, Outcome::Now(Err(_)))
            && let Some(id) = self.patterns.find(pattern)
        {
            self.set_hub_cursors(conn, Some(id), from);
        }
        outcome
    }

    fn set_hub_cursors(&mut self, conn: ConnKey, pattern: Option<u32>, from: HubsFrom<'_>) {
        for hub in self.logged_hubs() {
            let (next, since_us) = match from {
                HubsFrom::Offsets(offsets) => {
                    (offsets.iter().find(|(of, _)| *of == hub).map_or(1, |(_, next)| *next), 0)
                }
                HubsFrom::Since(us) => (1, us),
            };
            self.cursors.hubs.set(conn.index, pattern, hub, next, since_us);
        }
    }

    /// Known hubs with a log, of the clients' classes.
    pub fn logged_hubs(&self) -> Vec<HubId> {
        let all = self.rooms.all_hubs();
        let classes = (0u16..).zip(self.classes.classes());
        let logged =
            classes.filter(|(_, class)| class.durability.is_logged() && !class.name.starts_with('$'));
        let of_class = |class: ClassIndex| -> Vec<HubId> {
            if all.cluster.is_some() {
                return (0..all.placement.hubs(class)).filter_map(|at| all.placement.id(class, at)).collect();
            }
            all.seeds.iter().filter(|seed| seed.class == class).map(|seed| seed.id).collect()
        };
        logged.flat_map(|(class, _)| of_class(class)).collect()
    }

    /// Whether all classes of clients that a room may be of have a log.
    pub fn has_log_everywhere(&self) -> bool {
        self.classes.all_clients(|class| class.durability.is_logged())
    }

    pub(super) fn add_new_hubs(&mut self) {
        if self.cursors.hubs.is_empty() {
            return;
        }
        for hub in self.logged_hubs() {
            self.cursors.hubs.add_hub(hub);
        }
    }

    fn home_of_hub(&self, hub: HubId) -> Option<(ShardId, ClassIndex)> {
        let all = self.rooms.all_hubs();
        if all.cluster.is_none() {
            let seed = all.seeds.iter().find(|seed| seed.id == hub)?;
            return Some((all.placement.shard(seed.class, seed.index), seed.class));
        }
        let is_of = |&class: &ClassIndex| {
            (0..all.placement.hubs(class)).any(|at| all.placement.id(class, at) == Some(hub))
        };
        Some((home(hub, self.shards), (0..all.placement.classes()).find(is_of)?))
    }

    // -- reads of cursors --

    /// Starts the next read of a connection's hub cursors; whether it is complete and more is accepted.
    pub(super) fn read_hubs(&mut self, conn: ConnKey, sink: &mut impl Sink) -> bool {
        if !self.cursors.hubs.has(conn.index) {
            return false;
        }
        let own: Vec<u32> = self.cursors.hubs.own_patterns(conn.index).collect();
        let Broker { cursors, clients, patterns, .. } = self;
        let all = || clients.get(conn.index).pattern_ids();
        let others = || all().filter(|id| !own.contains(id));
        let is_held = |id: u32| patterns.get(id).subs.contains(conn.index);
        // A read without a pattern that is still being confirmed would miss its records.
        let is_ready = |pattern: Option<u32>| pattern.map_or_else(|| others().all(is_held), is_held);
        let texts = |pattern: Option<u32>| {
            let source = |id: u32| Arc::clone(&patterns.get(id).source);
            pattern.map_or_else(|| others().map(source).collect(), |id| vec![source(id)])
        };
        let Some(read) =
            cursors.hubs.begin_read(self.shard, conn, (READ_RECORDS, READ_BYTES), is_ready, texts)
        else {
            return false;
        };
        sink.replays(conn.index);
        let Some((shard, _)) = self.home_of_hub(read.hub) else {
            // Its class was removed.
            let (next, committed) = (read.next, read.next - 1);
            return self.deliver_hub_range(&read, HubRange { next, committed, ..HubRange::default() }, sink);
        };
        if shard != self.shard {
            sink.send(shard, Msg::ReadHub(Box::new(read)));
            return false;
        }
        let known = self.hub_led(read, sink);
        known.is_some_and(|(read, range)| self.deliver_hub_range(&read, range, sink))
    }

    pub(super) fn read_hub_here(&mut self, read: HubRead, turn: &mut Turn<impl Sink>) {
        if let Some((read, range)) = self.hub_led(read, turn.sink) {
            self.hub_range(read, range, turn);
        }
    }

    /// As `read_hub_here`: returns its records, or none if they come later.
    fn hub_led(&mut self, read: HubRead, sink: &mut impl Sink) -> Option<(HubRead, HubRange)> {
        match self.relayed_hub(read.hub) {
            Ok(None) => {}
            Ok(Some(slot)) => {
                self.read_hub_relayed(slot, read, sink);
                return None;
            }
            Err(_) => {
                self.block_hub_read(read, sink);
                return None;
            }
        }
        let is_closed = sink.log_refuses(read.hub) == Some(ErrorCode::HubClosed);
        let Some(slot) = self.rooms.hubs.slot_of(read.hub).filter(|_| !is_closed) else {
            self.block_hub_read(read, sink);
            return None;
        };
        if let Some(range) = self.rooms.range_of_hub(slot, &read) {
            return Some((read, range));
        }
        let through = self.rooms.committed_of(slot);
        sink.read_hub_log(Box::new(HubLogRead { read, through }));
        None
    }

    pub fn hub_log_read(
        &mut self,
        asked: HubLogRead,
        found: Result<HubRange, ErrorCode>,
        now: Now,
        sink: &mut impl Sink,
    ) {
        let HubLogRead { read, through } = asked;
        let range = match found {
            Ok(range) => HubRange { committed: through, ..range },
            // The hub may open again here, or elsewhere.
            Err(ErrorCode::HubClosed) => return self.block_hub_read(read, sink),
            // Nothing is lost: the disk is slow.
            Err(ErrorCode::TimedOut) => HubRange::again(read.next, through),
            // Unreadable records are reported as a gap, and later ones are read on.
            Err(_) => HubRange::lost(read.next, through),
        };
        self.hub_range(read, range, &mut Turn { now, sink });
    }

    pub(super) fn hub_range(&mut self, read: HubRead, range: HubRange, turn: &mut Turn<impl Sink>) {
        match read.then {
            HubThen::Node { node, ask } => self.answer_node_hub_read(node, ask, read.hub, range, turn.sink),
            HubThen::Cursor { shard, .. } | HubThen::Ends { shard, .. } if shard != self.shard => {
                turn.sink.send(shard, Msg::HubRange(Box::new((read, range))));
            }
            HubThen::Ends { number, .. } => {
                self.ends.answered(number, (read.hub, range.committed), turn.sink)
            }
            HubThen::Cursor { conn, .. } => {
                if self.deliver_hub_range(&read, range, turn.sink) {
                    self.drained(conn, turn.now, turn.sink);
                }
            }
        }
    }

    /// Delivers records that a hub cursor requested; returns whether the connection accepts more.
    fn deliver_hub_range(&mut self, read: &HubRead, range: HubRange, sink: &mut impl Sink) -> bool {
        let HubThen::Cursor { conn, pattern, number, .. } = read.then else { return false };
        if !self.clients.has(conn) {
            return false;
        }
        let conn = conn.index;
        let key = (conn, pattern);
        if !self.cursors.hubs.end_read(key, read.hub, number) {
            return true;
        }
        if range.lost.is_some()
            && let Some((_, class)) = self.home_of_hub(read.hub)
        {
            let on_gap = self.classes.get(class).on_gap;
            for source in read.filter.sources() {
                sink.gap(conn, source, Position::default(), Position::default(), on_gap);
            }
        }
        let own: Vec<u32> = self.cursors.hubs.own_patterns(conn).collect();
        let is_of = |id: u32| pattern.map_or_else(|| !own.contains(&id), |own| own == id);
        for record in &range.records {
            let matched = self.matching(record.namespace, record.topic());
            let id = self.topics.intern(record.namespace, record.topic());
            let view = record.view(self.classes.get(self.topics.get(id).class).on_slow);
            sink.record_begins();
            for &id in matched.iter().flat_map(|ids| ids.iter()).filter(|&&id| is_of(id)) {
                let pattern = self.patterns.get(id);
                if !pattern.subs.contains(conn) {
                    continue;
                }
                if sink.deliver(conn, Via::Pattern(id, &pattern.source), &view) == Delivery::Full {
                    let offset = record.place.offset;
                    self.cursors.hubs.read_to(key, read.hub, offset, offset);
                    return false;
                }
            }
        }
        self.cursors.hubs.read_to(key, read.hub, range.next, range.committed);
        true
    }

    // -- blocked reads --

    /// A read of a hub that is not open here is blocked until it is; another node repeats its request.
    fn block_hub_read(&mut self, read: HubRead, sink: &mut impl Sink) {
        if let HubThen::Node { node, ask } = read.then {
            return self.relay.deny((node, read.hub), ask, ErrorCode::HubClosed, sink);
        }
        read.wait_among(&mut self.blocked_reads.hubs);
    }

    /// Resumes reads of hubs that are open now, and reads for connections that may lack records.
    pub(super) fn retry_hub_reads(&mut self, turn: &mut Turn<impl Sink>) {
        for read in std::mem::take(&mut self.blocked_reads.hubs) {
            self.read_hub_here(read, turn);
        }
        if self.cursors.hubs.is_empty() {
            return;
        }
        for conn in self.cursors.hubs.take_stirred() {
            self.drained(self.clients.key(conn), turn.now, turn.sink);
        }
    }

    // -- ends of logs --

    /// The last committed offset of each hub that [`Broker::follow_hubs`] follows: a client that requests
    /// them before it subscribes can start after these offsets and misses nothing. [`Outcome::Later`]
    /// promises one [`Answer::HubEnds`].
    ///
    /// # Errors
    /// The leader of a hub, or its log, was not reached for 5 s.
    pub fn hub_ends(&mut self, ticket: Ticket, now: Now, sink: &mut impl Sink) -> Reply<Vec<(HubId, u64)>> {
        let number = self.unconfirmed.next_id();
        let hubs = self.logged_hubs();
        let until_ms = now.mono_ms + ENDS_MS;
        self.ends.begin(number, ticket.asker, &hubs, until_ms);
        let filter = Arc::new(HubFilter::new([]));
        for hub in hubs {
            let then = HubThen::Ends { shard: self.shard, number, until_ms };
            let (filter, since_us) = (Arc::clone(&filter), 0);
            let read = HubRead { hub, filter, next: END, since_us, records_max: 1, bytes_max: 1, then };
            let shard = self.home_of_hub(hub).map_or(self.shard, |(shard, _)| shard);
            self.pass(shard, Msg::ReadHub(Box::new(read)), &mut Turn { now, sink });
        }
        self.ends.asked(number).map_or(Outcome::Later, |found| Outcome::Now(Ok(found)))
    }
}
