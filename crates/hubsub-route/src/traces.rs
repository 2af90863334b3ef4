//! Traces of a shard: the next records of a topic, with the time and place of each step.
//!
//! A record has no position before its leader commits it, so its first steps are held under the ticket of its
//! publish. The response to the publisher has the position: it binds the steps of the oldest record with that
//! ticket. Steps of other nodes and shards are joined by position, by the one who collects them.
//!
//! Invariants: at most `max` traces at a time; a trace takes at most `records` publishes and `records`
//! positions, and [`STEPS_MAX`] steps of each; after its deadline ([`Traces::expire`]) it takes nothing, and [`KEPT_MS`]
//! later it is removed even if nobody collected it.

use crate::{Now, Ticket};
use hubsub_message::Namespace;
use hubsub_types::{NodeId, Position, ShardId};

/// Steps of one record on one shard; later ones are left out.
pub const STEPS_MAX: usize = 32;

/// The largest number of records of a trace.
pub const RECORDS_MAX: usize = 200;

/// Time that the steps of a trace are retained after its deadline, in ms.
pub const KEPT_MS: u64 = 60_000;

/// A kind of step of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepKind {
    /// A publisher's request for it arrived at this node.
    Received,
    /// It waits here for its leader, or for earlier publishes.
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
    /// Publishes that it still takes, those of other shards and nodes included.
    publishes_left: usize,
    /// Positions that it still takes.
    positions_left: usize,
    /// Monotonic time, in ms.
    deadline_ms: u64,
    /// In order of arrival.
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
    #[must_use]
    pub fn is_on(&self) -> bool {
        !self.all.is_empty()
    }

    /// Starts to follow the next `records` records of a topic, for `ms` ms, as they come from other shards and
    /// nodes. Called again with the same number, it also follows what this shard's clients publish: so all places
    /// of a record follow it before the first one does, and no step is missing.
    ///
    /// # Errors
    /// There are `max` others.
    pub fn start(
        &mut self,
        number: u64,
        (namespace, topic): (Namespace, &[u8]),
        (records, ms): (usize, u64),
        max: usize,
        now: Now,
    ) -> Result<(), TooManyTraces> {
        self.expire(now);
        if let Some(trace) = self.all.iter_mut().find(|trace| trace.number == number) {
            trace.is_open = true;
            return Ok(());
        }
        if self.all.len() >= max {
            return Err(TooManyTraces);
        }
        let records = records.min(RECORDS_MAX);
        self.all.push(Trace {
            number,
            namespace,
            topic: topic.into(),
            is_open: false,
            publishes_left: records,
            positions_left: records,
            deadline_ms: now.mono_ms.saturating_add(ms),
            open: Vec::new(),
            traced: Vec::new(),
        });
        Ok(())
    }

    /// The steps of records whose position is known; empty for an unknown number.
    #[must_use]
    pub fn steps(&self, number: u64) -> &[Traced] {
        self.all.iter().find(|trace| trace.number == number).map_or(&[], |trace| &trace.traced)
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
            (trace.publishes_left, trace.positions_left) = (0, 0);
            trace.open = Vec::new();
        }
    }

    /// A publish arrives at this shard. Whether it is followed.
    pub fn begin(&mut self, (namespace, topic): (Namespace, &[u8]), ticket: Ticket, step: Step) -> bool {
        let mut is_followed = false;
        for trace in self.all.iter_mut().filter(|trace| trace.is_of(namespace, topic)) {
            let is_awaited = trace.is_open || step.kind != StepKind::Received;
            if is_awaited && trace.publishes_left > 0 {
                trace.publishes_left -= 1;
                trace.open.push(Open { ticket, steps: vec![step] });
                is_followed = true;
            }
        }
        is_followed
    }

    /// A step of the youngest publish with this ticket.
    pub fn step(&mut self, ticket: Ticket, step: Step) {
        for trace in &mut self.all {
            if let Some(open) = trace.open.iter_mut().rfind(|open| open.ticket == ticket) {
                add(&mut open.steps, step);
            }
        }
    }

    /// The last step of the oldest publish with this ticket: its position is known. Without a position it was
    /// refused, or is stored nowhere, and is dropped.
    pub fn bind(&mut self, ticket: Ticket, position: Option<Position>, step: Step) {
        for trace in &mut self.all {
            let Some(index) = trace.open.iter().position(|open| open.ticket == ticket) else { continue };
            let open = trace.open.remove(index);
            if let Some(position) = position.filter(|it| *it != Position::default())
                && let Some(traced) = trace.at(position)
            {
                for step in open.steps.into_iter().chain([step]) {
                    add(&mut traced.steps, step);
                }
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

    /// The record of this position; none if it is beyond the last record of the trace.
    fn at(&mut self, position: Position) -> Option<&mut Traced> {
        let index = match self.traced.iter().rposition(|traced| traced.position == position) {
            Some(index) => index,
            None if self.positions_left == 0 => return None,
            None => {
                self.positions_left -= 1;
                self.traced.push(Traced { position, steps: Vec::new() });
                self.traced.len() - 1
            }
        };
        self.traced.get_mut(index)
    }
}

fn add(steps: &mut Vec<Step>, step: Step) {
    if steps.len() < STEPS_MAX {
        steps.push(step);
    }
}
