//! Traces of a shard: the next records of a topic, with the time and place of each step.
//!
//! A record has no position before its leader commits it, so its first steps are held under the ticket of its
//! publish: a requester gives each of its publishes in flight another one. The response to the publisher has the
//! position, which binds the steps. Steps of other nodes and shards are joined by position, by the one who
//! collects them. On a busy topic each shard would be full with other records than the others, so all follow the
//! same sample of positions ([`Bounds::every`]).
//!
//! Invariants: at most `max` traces at a time; a trace takes at most `records` positions before it is open and as
//! many after, [`OPEN_MAX`] publishes without one, and [`STEPS_MAX`] steps of each; after its deadline ([`Traces::expire`]) it takes nothing,
//! and [`KEPT_MS`] later it is removed even if nobody collected it.

use crate::{Now, Ticket};
use hubsub_message::Namespace;
use hubsub_types::{NodeId, Position, ShardId};

/// Steps of one record on one shard; later ones are left out.
pub const STEPS_MAX: usize = 32;

/// The largest number of records of a trace.
pub const RECORDS_MAX: usize = 200;

/// Publishes of a trace whose position is not known yet; others are not followed. One that went on to another
/// shard or node, because its room has moved, stays until the deadline.
pub const OPEN_MAX: usize = 512;

/// Time that the steps of a trace are retained after its deadline, in ms.
pub const KEPT_MS: u64 = 60_000;

/// A kind of step of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepKind {
    /// A publisher's request for it arrived at this node.
    Received,
    /// It waits here: for its leader, the place of its room, earlier publishes, the delay of its class, or a
    /// congested receiver.
    Waits,
    /// It was sent to the shard of its hub.
    SentToShard(ShardId),
    /// It was sent to the node that leads its hub.
    SentToLeader(NodeId),
    /// It came from another shard, to be committed here.
    FromShard(ShardId),
    /// It came from another node, to be committed here.
    FromNode(NodeId),
    /// It has a position, and the log has it at this offset, not yet on disk.
    Logged(u64),
    /// The log has it on disk.
    Synced,
    /// It is committed, for this many subscribers in the whole cluster.
    Committed(u64),
    /// The committed record was sent to another node with subscribers.
    SentToNode(NodeId),
    /// The committed record came from its leader.
    FromLeader(NodeId),
    /// It was passed to this many subscriptions of this shard.
    Delivered(u64),
    /// Its position was sent to the shard or node that had sent it.
    Answered,
    /// Its publisher was answered.
    Acknowledged,
}

/// A step, and its time since 1970 in µs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    pub at_us: u64,
    pub kind: StepKind,
}

/// The records that a trace follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Most records, up to [`RECORDS_MAX`].
    pub records: usize,
    /// Time from its start to its deadline, in ms.
    pub ms: u64,
    /// Sampling: it follows about one record in this number, and all shards choose the same ones. 0 and 1: every record.
    pub every: u64,
}

/// The positions of which a shard has all steps, as epoch and seq.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Window {
    /// Those up to this one gave way to later ones.
    pub after: Option<(u64, u64)>,
    /// Those from here on are not followed any more.
    pub until: Option<(u64, u64)>,
    /// Whether it takes no more records and waits for the position of none.
    pub is_full: bool,
}

/// The steps of one record on one shard, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Traced {
    pub position: Position,
    pub steps: Vec<Step>,
}

/// A publish whose position is not known yet.
#[derive(Debug)]
struct Open {
    ticket: Ticket,
    steps: Vec<Step>,
}

#[derive(Debug)]
struct Trace {
    number: u64,
    namespace: Namespace,
    topic: Box<[u8]>,
    /// Whether it takes publishes of this shard's clients.
    is_open: bool,
    records: usize,
    /// Positions that it still takes. Until it is open the oldest gives way to one more: other shards, which are
    /// open already, may follow the last ones.
    positions_left: usize,
    every: u64,
    /// The last position that gave way.
    given_up: Option<(u64, u64)>,
    /// Monotonic time, in ms.
    deadline_ms: u64,
    open: Vec<Open>,
    traced: Vec<Traced>,
}

/// The table of traces is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyTraces;

/// The traces of a shard.
#[derive(Debug, Default)]
pub struct Traces {
    all: Vec<Trace>,
}

impl Traces {
    /// Whether there is any trace: the only thing that is asked while there is none.
    #[inline]
    pub fn is_on(&self) -> bool {
        !self.all.is_empty()
    }

    /// Starts to follow the next records of a topic, as they come from other shards and nodes. Called again with
    /// the same number, it also follows what this shard's clients publish: so all places of a record follow it
    /// before the first one does, and no step is missing.
    ///
    /// # Errors
    /// There are `max` others before their deadline.
    pub fn start(
        &mut self,
        number: u64,
        (namespace, topic): (Namespace, &[u8]),
        bounds: Bounds,
        max: usize,
        now: Now,
    ) -> Result<(), TooManyTraces> {
        self.expire(now);
        if let Some(trace) = self.all.iter_mut().find(|trace| trace.number == number) {
            if !trace.is_open && now.mono_ms < trace.deadline_ms {
                (trace.is_open, trace.positions_left) = (true, trace.records);
            }
            return Ok(());
        }
        if self.all.len() >= max {
            // One that ended and that nobody collected makes room.
            let ended = self.all.iter().position(|trace| now.mono_ms >= trace.deadline_ms);
            self.all.remove(ended.ok_or(TooManyTraces)?);
        }
        self.all.push(Trace {
            number,
            namespace,
            topic: topic.into(),
            is_open: false,
            records: bounds.records.min(RECORDS_MAX),
            positions_left: bounds.records.min(RECORDS_MAX),
            every: bounds.every,
            given_up: None,
            deadline_ms: now.mono_ms.saturating_add(bounds.ms),
            open: Vec::new(),
            traced: Vec::new(),
        });
        Ok(())
    }

    /// The steps of records whose position is known; empty for an unknown number.
    pub fn steps(&self, number: u64) -> &[Traced] {
        self.all.iter().find(|trace| trace.number == number).map_or(&[], |trace| &trace.traced)
    }

    /// The positions that a trace follows; all for an unknown number, or after its deadline.
    pub fn window(&self, number: u64) -> Window {
        let Some(trace) = self.all.iter().find(|trace| trace.number == number) else {
            return Window::default();
        };
        let takes_more = trace.takes_more() || trace.records == 0;
        let last = trace.traced.iter().map(|traced| place(traced.position)).max();
        Window {
            after: trace.given_up,
            until: last.filter(|_| !takes_more),
            is_full: !takes_more && trace.open.is_empty(),
        }
    }

    /// Ends a trace and drops its steps. Whether there was one.
    pub fn end(&mut self, number: u64) -> bool {
        let before = self.all.len();
        self.all.retain(|trace| trace.number != number);
        before > self.all.len()
    }

    /// Ends the traces whose deadline has passed, and removes those that nobody collected.
    pub fn expire(&mut self, now: Now) {
        self.all.retain(|trace| now.mono_ms < trace.deadline_ms.saturating_add(KEPT_MS));
        for trace in self.all.iter_mut().filter(|trace| now.mono_ms >= trace.deadline_ms) {
            (trace.records, trace.positions_left) = (0, 0);
            trace.open = Vec::new();
        }
    }

    /// A publish arrives at this shard, perhaps again. Whether it is followed.
    pub fn begin(&mut self, (namespace, topic): (Namespace, &[u8]), ticket: Ticket, step: Step) -> bool {
        let mut is_followed = false;
        for trace in self.all.iter_mut().filter(|trace| trace.is_of(namespace, topic)) {
            let is_awaited = trace.is_open || step.kind != StepKind::Received;
            if let Some(open) = trace.open_of(ticket) {
                add(&mut open.steps, step);
                is_followed = true;
            } else if is_awaited && trace.takes_more() && trace.open.len() < OPEN_MAX {
                trace.open.push(Open { ticket, steps: vec![step] });
                is_followed = true;
            }
        }
        is_followed
    }

    /// A step of the publish with this ticket.
    pub fn step(&mut self, ticket: Ticket, step: Step) {
        for open in self.all.iter_mut().filter_map(|trace| trace.open_of(ticket)) {
            add(&mut open.steps, step);
        }
    }

    /// The last step of the publish with this ticket: its position is known. Without a position it was refused,
    /// or is stored nowhere, and is dropped.
    pub fn bind(&mut self, ticket: Ticket, position: Option<Position>, step: Step) {
        for trace in &mut self.all {
            let Some(index) = trace.open.iter().position(|open| open.ticket == ticket) else { continue };
            let open = trace.open.swap_remove(index);
            if let Some(position) = position.filter(|it| *it != Position::default())
                && let Some(traced) = trace.at(position)
            {
                let later = std::mem::replace(&mut traced.steps, open.steps);
                for step in later.into_iter().chain([step]) {
                    add(&mut traced.steps, step);
                }
                // Stable: of the steps of one µs, those of the publish were first.
                traced.steps.sort_by_key(|step| step.at_us);
            }
        }
    }

    /// A step of a record with a position.
    pub fn step_at(&mut self, (namespace, topic): (Namespace, &[u8]), position: Position, step: Step) {
        if position == Position::default() {
            return;
        }
        for trace in self.all.iter_mut().filter(|trace| trace.is_of(namespace, topic)) {
            if let Some(traced) = trace.at(position) {
                add(&mut traced.steps, step);
            }
        }
    }
}

impl Trace {
    fn is_of(&self, namespace: Namespace, topic: &[u8]) -> bool {
        self.namespace == namespace && *self.topic == *topic
    }

    fn takes_more(&self) -> bool {
        self.positions_left > 0 || (!self.is_open && self.records > 0)
    }

    fn open_of(&mut self, ticket: Ticket) -> Option<&mut Open> {
        self.open.iter_mut().find(|open| open.ticket == ticket)
    }

    /// Whether the sample has a position. The hash spreads positions with a common stride: those of one topic of
    /// a room, for example.
    fn is_sampled(&self, position: Position) -> bool {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        (position.seq.0.wrapping_mul(GOLDEN) >> 32).is_multiple_of(self.every.max(1))
    }

    /// The record of this position; none if the sample does not have it, or it is beyond the last record of the
    /// trace.
    fn at(&mut self, position: Position) -> Option<&mut Traced> {
        let index = match self.traced.iter().rposition(|traced| traced.position == position) {
            Some(index) => index,
            None if !self.takes_more() || !self.is_sampled(position) => return None,
            None => {
                if self.positions_left == 0 {
                    let oldest = place(self.traced.remove(0).position);
                    self.given_up = self.given_up.max(Some(oldest));
                    self.positions_left = 1;
                }
                self.positions_left -= 1;
                self.traced.push(Traced { position, steps: Vec::new() });
                self.traced.len() - 1
            }
        };
        self.traced.get_mut(index)
    }
}

fn place(position: Position) -> (u64, u64) {
    (position.epoch.0, position.seq.0)
}

fn add(steps: &mut Vec<Step>, step: Step) {
    if steps.len() < STEPS_MAX {
        steps.push(step);
    }
}
