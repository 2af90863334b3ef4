//! Reads of whole hubs that other nodes lead, and detection of missing records from there.
//!
//! Invariant: no record of a hub with a log is forwarded here before its followers know what they lack before
//! it. With each record the leader sends the offset that was due before; records blocked by a hole count as
//! missing, too, since later ones overtake them.

use super::{Broker, Turn};
use crate::hubread::{HubRange, HubRead, HubThen};
use crate::relay::{READ_BYTES_MAX, READ_RECORDS_MAX, Request};
use crate::{Msg, Sink};
use hubsub_message::{AskId, NodeMessage};
use hubsub_types::{ErrorCode, HubId, NodeId};
use std::sync::Arc;

impl Broker {
    /// The slot of a hub if this node does not lead it.
    ///
    /// # Errors
    /// The hub is not known here.
    pub(crate) fn relayed_hub(&self, hub: HubId) -> Result<Option<u16>, ErrorCode> {
        if self.relay.is_alone {
            return Ok(None);
        }
        let slot = self.relay.slot_of(hub).ok_or(ErrorCode::HubClosed)?;
        Ok((!self.is_led(slot)).then_some(slot))
    }

    // -- the follower's side --

    /// Sends a read of a hub to the node that leads it. The read waits while there is no leader.
    pub(crate) fn read_hub_relayed(&mut self, slot: u16, read: HubRead, sink: &mut impl Sink) {
        if let HubThen::Node { node, ask } = read.then {
            return self.relay.not_mine(node, ask, slot, sink);
        }
        let Some(to) = self.relay.ready_leader_of(slot) else {
            return self.relay.keep_hub_read(slot, read);
        };
        let HubRead { next, since_us, records_max, .. } = read;
        let (filter, bytes_max) = (Arc::clone(&read.filter), read.bytes_max as u32);
        let message =
            |ask, hub, _| NodeMessage::ReadHub { ask, hub, next, since_us, records_max, bytes_max, filter };
        self.relay.request((to, slot), Request::Hub(Box::new(read)), message, sink);
    }

    pub(crate) fn read_waiting_hubs(&mut self, slot: u16, turn: &mut Turn<impl Sink>) {
        for read in std::mem::take(&mut self.relay.hub_mut(slot).hub_reads) {
            self.read_hub_here(read, turn);
        }
    }

    /// Records of a hub up to an offset may be missing on this node, or arrive late.
    pub(crate) fn lack_of_hub(&mut self, slot: u16, upto: u64, sink: &mut impl Sink) {
        let (hub, class) = (self.relay.hub(slot).id, self.relay.hub(slot).class);
        if upto == 0 || self.patterns.is_empty() || !self.classes.get(class).durability.is_logged() {
            return;
        }
        for shard in self.other_shards() {
            sink.send(shard, Msg::HubLack(hub, upto));
        }
        self.cursors.hubs.lacks(hub, upto);
    }

    // -- the leader's side --

    pub(crate) fn serve_hub_read(&mut self, from: NodeId, message: NodeMessage, turn: &mut Turn<impl Sink>) {
        let NodeMessage::ReadHub { ask, hub, next, since_us, records_max, bytes_max, filter } = message
        else {
            return;
        };
        let read = HubRead {
            hub,
            filter,
            next,
            since_us,
            records_max: records_max.clamp(1, READ_RECORDS_MAX as u32),
            bytes_max: (bytes_max as usize).clamp(1, READ_BYTES_MAX),
            then: HubThen::Node { node: from, ask },
        };
        self.read_hub_here(read, turn);
    }

    pub(crate) fn answer_node_hub_read(
        &mut self,
        to: NodeId,
        ask: AskId,
        hub: HubId,
        range: HubRange,
        sink: &mut impl Sink,
    ) {
        if self.leads(hub).is_none() {
            // This node was the leader when its log was read.
            return self.relay.deny((to, hub), ask, ErrorCode::HubClosed, sink);
        }
        let HubRange { records, next, committed, lost } = range;
        let end = NodeMessage::HubEnd { ask, next, committed, lost };
        self.relay.answer_read((to, hub), ask, records, end, sink);
    }
}
