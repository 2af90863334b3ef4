//! Messages of groups that go to another member.

use super::changes::request_snapshot;
use crate::context::Ctx;
use crate::context::io::Io;
use hubsub_mqtt::{Client, Group, Message};
use hubsub_types::ConnKey;
use std::rc::Rc;
use std::sync::Arc;

/// Passes messages queued by offline sessions to groups that gained a member. Runs once a second.
pub fn share_queued(ctx: &mut Ctx) {
    let mut sharing = std::mem::take(&mut ctx.io.states.mqtt.sessions.sharing);
    let has = |key| ctx.io.states.mqtt.sessions.get(key).is_some();
    let joined = sharing.take_joined(has, |group| ctx.broker.group_members(group));
    ctx.io.states.mqtt.sessions.sharing = sharing;
    let mut left = Vec::new();
    for (key, group) in joined {
        left.extend(take_shared(&mut ctx.io, key, Some(&group)));
    }
    redeliver(ctx, left);
}

/// Delivers messages to other members of their groups, in order.
pub(super) fn redeliver(ctx: &mut Ctx, messages: Vec<(Group, Rc<Message>)>) {
    for (group, message) in messages {
        let record = Arc::new(message.to_record());
        ctx.broker.give_to_another(&group, record, ctx.io.now, &mut ctx.io);
    }
}

/// A client is gone: takes its unacknowledged and unsent group messages, in order of delivery, to
/// [`redeliver`] them.
#[must_use]
pub(super) fn take_left(ctx: &mut Ctx, client: &mut Client) -> Vec<(Group, Rc<Message>)> {
    let left = client.take_shared();
    for (group, position) in left.done {
        ctx.broker.acknowledge(&group, position, ctx.io.now, &mut ctx.io);
    }
    left.messages
}

/// Takes queued messages of an offline session for a group, or for all groups, and schedules a snapshot.
pub(super) fn take_shared(io: &mut Io, key: ConnKey, of: Option<&[u8]>) -> Vec<(Group, Rc<Message>)> {
    let Some(taken) = io.states.mqtt.sessions.take_shared(key, of) else { return Vec::new() };
    io.states.mqtt.show_sessions(&io.metrics);
    if !taken.is_empty() {
        request_snapshot(io, key, None);
    }
    taken
}
