//! Steps of followed records ([`crate::traces`]). Nothing here runs unless a trace is active: each place on the path of
//! a message asks [`crate::traces::Traces::is_on`] and calls one of these.

use super::Broker;
use super::publish::{Body, Draft};
use crate::topics::TopicId;
use crate::traces::{Step, StepKind, TooManyTraces};
use crate::{Asker, Now, Outcome, Published, Sink, Ticket};
use hubsub_message::{Namespace, Record, RecordView};
use hubsub_types::{ErrorCode, Position};

fn step(kind: StepKind, sink: &impl Sink) -> Step {
    Step { at_us: sink.wall_us(), kind }
}

impl Broker {
    /// Starts to follow the next records of a topic, see [`crate::traces::Traces::start`].
    ///
    /// # Errors
    /// The topic is too long, or there are too many traces.
    pub fn start_trace(
        &mut self,
        number: u64,
        (namespace, topic): (Namespace, &[u8]),
        records_and_ms: (usize, u64),
        now: Now,
    ) -> Result<(), ErrorCode> {
        if !self.topic_fits(topic) {
            return Err(ErrorCode::TopicLength);
        }
        let max = self.limits.traces_max as usize;
        let started = self.traces.start(number, (namespace, topic), records_and_ms, max, now);
        started.map_err(|TooManyTraces| ErrorCode::TooManyTraces)
    }

    /// Publishes while a trace is active.
    #[cold]
    #[inline(never)]
    pub(super) fn publish_traced(
        &mut self,
        ticket: Ticket,
        body: Body<'_>,
        now: Now,
        sink: &mut impl Sink,
    ) -> Outcome<Result<Published, ErrorCode>> {
        let received = step(StepKind::Received, sink);
        let is_followed = match &body {
            Body::Draft(Draft { namespace, topic, .. }) => {
                self.traces.begin((*namespace, topic), ticket, received)
            }
            Body::Record(record) => self.traces.begin((record.namespace, record.topic()), ticket, received),
        };
        let outcome = self.publish_routed(ticket, body, now, sink);
        if is_followed && let Outcome::Now(published) = &outcome {
            self.trace_answer(ticket, published, sink);
        }
        outcome
    }

    /// A record came from another shard or node, to be committed here.
    #[cold]
    #[inline(never)]
    pub(super) fn trace_arrival(
        &mut self,
        ticket: Ticket,
        record: &Record,
        kind: StepKind,
        sink: &impl Sink,
    ) {
        self.traces.begin((record.namespace, record.topic()), ticket, step(kind, sink));
    }

    /// A step of a publish whose position is not known yet.
    #[cold]
    #[inline(never)]
    pub(super) fn trace_step(&mut self, ticket: Ticket, kind: StepKind, sink: &impl Sink) {
        self.traces.step(ticket, step(kind, sink));
    }

    /// A publish is answered.
    #[cold]
    #[inline(never)]
    pub(super) fn trace_answer(
        &mut self,
        to: Ticket,
        published: &Result<Published, ErrorCode>,
        sink: &impl Sink,
    ) {
        let is_own = to.shard == self.shard && !matches!(to.asker, Asker::Node { .. });
        let kind = if is_own { StepKind::Acknowledged } else { StepKind::Answered };
        let position = published.as_ref().ok().map(|published| published.position);
        self.traces.bind(to, position, step(kind, sink));
    }

    /// A step of a record that has a position.
    #[cold]
    #[inline(never)]
    pub(super) fn trace_record(&mut self, record: &Record, kind: StepKind, sink: &impl Sink) {
        self.traces.step_at((record.namespace, record.topic()), record.position, step(kind, sink));
    }

    /// As `trace_record`, for a record that may not outlive the call.
    #[cold]
    #[inline(never)]
    pub(super) fn trace_position(
        &mut self,
        of: (Namespace, &[u8]),
        position: Position,
        kind: StepKind,
        sink: &impl Sink,
    ) {
        self.traces.step_at(of, position, step(kind, sink));
    }

    /// A record of a log need not wait for it any more, and is committed.
    #[cold]
    #[inline(never)]
    pub(super) fn trace_release(&mut self, slot: u16, record: &Record, receivers: u64, sink: &impl Sink) {
        let log = self.rooms.hubs.get(slot).log.as_ref();
        if log.is_some_and(|log| log.has(record.place.offset)) {
            self.trace_record(record, StepKind::Synced, sink);
        }
        self.trace_record(record, StepKind::Committed(receivers), sink);
    }

    /// A record was passed to the subscriptions of this shard.
    #[cold]
    #[inline(never)]
    pub(super) fn trace_delivery(
        &mut self,
        id: TopicId,
        record: &RecordView<'_>,
        matched: Option<&[u32]>,
        sink: &impl Sink,
    ) {
        let of_topic = self.topics.get(id).subs.len();
        let by_pattern = matched.unwrap_or_default().iter().map(|&id| self.patterns.get(id).subs.len());
        let count = (of_topic + by_pattern.sum::<usize>()) as u64;
        if count > 0 {
            let of = (record.namespace, record.topic);
            self.traces.step_at(of, record.position, step(StepKind::Delivered(count), sink));
        }
    }
}
