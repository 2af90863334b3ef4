//! Unacknowledged messages that a client got as a member of groups: when the client is gone for good, another
//! member gets them. A QoS 2 message that was sent goes to no other member (section 4.8.2 of 5.0).

use super::actions::Action;
use super::client::Client;
use super::message::Message;
use super::pending::Item;
use super::persist;
use crate::io::context::Ctx;
use crate::io::shard_io::Io;
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_route::{Namespace, Record};
use hubsub_types::{ConnKey, Position, Qos};
use hubsub_wire::mqtt::PacketId;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// A group and its filter, in the broker's notation.
pub type Group = Box<[u8]>;

/// Unacknowledged shared messages and device actions, by packet id.
#[derive(Default)]
pub struct Shares {
    /// Group, message, and whether it goes to another member if this one is lost.
    of_groups: BTreeMap<PacketId, (Group, Rc<Message>, bool)>,
    /// Unacknowledged actions. They are here to save each client a field of its own.
    pub actions: BTreeMap<PacketId, Action>,
}

impl Shares {
    /// A message is sent under this packet id.
    pub fn sent(&mut self, id: PacketId, group: &[u8], message: Rc<Message>, qos: Qos) {
        self.of_groups.insert(id, (group.into(), message, qos < Qos::ExactlyOnce));
    }

    /// Removes the message of an acknowledged or reused packet id.
    pub fn ended(&mut self, id: PacketId) -> Option<(Group, Position)> {
        self.of_groups.remove(&id).map(|(group, message, _)| (group, message.content().position))
    }
}

/// Offline sessions that queue messages for groups, with the number of members each group had then.
#[derive(Default)]
pub struct Sharing(HashMap<ConnKey, BTreeMap<Group, u64>, RandomState>);

impl Sharing {
    /// An offline session has queued a message for a group.
    pub fn insert(&mut self, key: ConnKey, group: &[u8], members: u64) {
        let groups = self.0.entry(key).or_default();
        if !groups.contains_key(group) {
            groups.insert(group.into(), members);
        }
    }
}

/// Passes messages queued by offline sessions to groups that gained a member. Runs once a second.
pub fn share_queued(ctx: &mut Ctx) {
    let mut sharing = std::mem::take(&mut ctx.io.states.mqtt.sessions.sharing.0);
    let mut left = Vec::new();
    sharing.retain(|&key, groups| {
        if ctx.io.states.mqtt.sessions.get_mut(key).is_none() {
            return false;
        }
        groups.retain(|group, before| {
            let members = ctx.broker.group_members(group);
            if members <= *before {
                *before = members;
                return true;
            }
            left.extend(ctx.io.take_shared(key, Some(group)));
            false
        });
        !groups.is_empty()
    });
    ctx.io.states.mqtt.sessions.sharing.0 = sharing;
    redeliver(ctx, left);
}

/// Delivers messages to other members of their groups, in order.
pub(super) fn redeliver(ctx: &mut Ctx, messages: Vec<(Group, Rc<Message>)>) {
    for (group, message) in messages {
        let record = Arc::new(record_of(&message));
        ctx.broker.give_to_another(&group, record, ctx.io.now, &mut ctx.io);
    }
}

impl Io {
    /// Takes queued messages of an offline session for a group, or for all groups, and schedules a snapshot.
    pub(super) fn take_shared(&mut self, key: ConnKey, of: Option<&[u8]>) -> Vec<(Group, Rc<Message>)> {
        let Some(offline) = self.states.mqtt.sessions.get_mut(key) else { return Vec::new() };
        let (len, bytes, _) = offline.queued();
        let taken = offline.take_shared(of);
        let (len_now, bytes_now, _) = offline.queued();
        self.states.mqtt.sessions.queued -= len - len_now;
        self.states.mqtt.sessions.queued_bytes -= bytes - bytes_now;
        self.show_sessions();
        if !taken.is_empty() {
            persist::request_snapshot(self, key, None);
        }
        taken
    }
}

/// A client is gone: takes its unacknowledged and unsent group messages, in order of delivery, to [`redeliver`]
/// them to other members.
#[must_use]
pub(super) fn take_left(ctx: &mut Ctx, client: &mut Client) -> Vec<(Group, Rc<Message>)> {
    let (mut left, mut done) = (Vec::new(), Vec::new());
    if let Some(shares) = &mut client.shares {
        let sent: Vec<(PacketId, u64)> =
            client.machine.window.iter().map(|(id, _, &key, _)| (id, key)).collect();
        for (id, key) in sent {
            match shares.of_groups.remove(&id) {
                Some((group, message, true)) => {
                    left.push((group, message));
                    // Its session does not send it again.
                    client.machine.window.unsend(id);
                    client.session.iter_mut().for_each(|session| _ = session.ended(key));
                }
                // QoS 2: only its session may send it again.
                Some((group, message, false)) => done.push((group, message.content().position)),
                None => {}
            }
        }
    }
    for (group, position) in done {
        ctx.broker.acknowledge(&group, position, ctx.io.now, &mut ctx.io);
    }
    for item in std::mem::take(&mut client.pending).into_items() {
        match item {
            Item { message, group: Some(group), .. } => left.push((group, message)),
            item => client.pending.push(item),
        }
    }
    left
}

fn record_of(message: &Message) -> Record {
    let content = message.content();
    let headers = (!content.headers.is_empty()).then(|| content.headers.into());
    let topic = content.topic.as_bytes();
    let mut record =
        Record::new(Namespace::Global, topic, content.payload, Box::default(), headers).of_qos(content.qos);
    (record.position, record.timestamp_us) = (content.position, content.timestamp_us);
    record
}
