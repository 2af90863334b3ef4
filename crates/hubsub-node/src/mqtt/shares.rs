//! What a client was sent as a member of groups and has not acknowledged: when it is gone for good, another member
//! gets it. A message of QoS 2 that was sent is no other member's (section 4.8.2 of 5.0).

use super::actions::Action;
use super::client::Client;
use super::message::Message;
use super::pending::Item;
use crate::core::Core;
use hubsub_route::{Namespace, Record};
use hubsub_types::{Position, Qos};
use hubsub_wire::mqtt::PacketId;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// A group and its filter, as the broker names it.
pub type Group = Box<[u8]>;

/// By the id under which it was sent.
#[derive(Default)]
pub struct Shares {
    /// Whose it was, and whether it is another's when it is lost.
    of_groups: BTreeMap<PacketId, (Group, Rc<Message>, bool)>,
    /// Likewise, of actions: a place here saves each client one of its own.
    pub actions: BTreeMap<PacketId, Action>,
}

impl Shares {
    /// A message is sent under this id.
    pub fn sent(&mut self, id: PacketId, group: &[u8], message: Rc<Message>, qos: Qos) {
        self.of_groups.insert(id, (group.into(), message, qos < Qos::ExactlyOnce));
    }

    /// It is acknowledged, or the id is another message's now: which one it was.
    pub fn ended(&mut self, id: PacketId) -> Option<(Group, Position)> {
        self.of_groups.remove(&id).map(|(group, message, _)| (group, message.said().position))
    }
}

/// A client is gone: what it was given, and has not acknowledged or was not sent yet, goes to other members, in the
/// order in which it was given.
pub(super) fn give_away(core: &mut Core, client: &mut Client) {
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
                // Its session does, or nobody.
                Some((group, message, false)) => done.push((group, message.said().position)),
                None => {}
            }
        }
    }
    for (group, position) in done {
        core.broker.acknowledge(&group, position, core.rim.now, &mut core.rim);
    }
    for item in std::mem::take(&mut client.pending).into_items() {
        match item {
            Item { message, group: Some(group), .. } => left.push((group, message)),
            item => client.pending.push(item),
        }
    }
    for (group, message) in left {
        let record = Arc::new(record_of(&message));
        core.broker.give_to_another(&group, record, core.rim.now, &mut core.rim);
    }
}

fn record_of(message: &Message) -> Record {
    let said = message.said();
    let headers = (!said.headers.is_empty()).then(|| said.headers.into());
    let topic = said.topic.as_bytes();
    let mut record =
        Record::new(Namespace::Global, topic, said.payload, Box::default(), headers).of_qos(said.qos);
    (record.position, record.timestamp_us) = (said.position, said.timestamp_us);
    record
}
