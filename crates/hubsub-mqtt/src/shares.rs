//! Unacknowledged messages that a client got as a member of groups: when the client is gone for good, another
//! member gets them. A QoS 2 message that was sent goes to no other member (section 4.8.2 of 5.0).

use super::actions::Action;
use super::message::Message;
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_types::names::group_of;
use hubsub_types::{ConnKey, Position, Qos};
use hubsub_wire::mqtt::PacketId;
use std::collections::BTreeMap;
use std::rc::Rc;

/// A group and its filter, in the broker's notation.
pub type Group = Box<[u8]>;

/// Unacknowledged shared messages and device actions, by packet id.
#[derive(Default)]
pub struct Shares {
    /// Group, message, and whether it goes to another member if this one is lost.
    pub(crate) of_groups: BTreeMap<PacketId, (Group, Rc<Message>, bool)>,
    /// Unacknowledged actions. They are here to save each client a field of its own.
    pub actions: BTreeMap<PacketId, Action>,
}

impl Shares {
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
    pub fn insert(&mut self, key: ConnKey, group: &[u8], members: u64) {
        let groups = self.0.entry(key).or_default();
        if !groups.contains_key(group) {
            groups.insert(group.into(), members);
        }
    }

    /// The groups that have gained a member since, each with the session that queues for it; they are
    /// forgotten, as are sessions that `has` does not know. `members`: how many a group has now.
    pub fn take_joined(
        &mut self,
        has: impl Fn(ConnKey) -> bool,
        members: impl Fn(&[u8]) -> u64,
    ) -> Vec<(ConnKey, Group)> {
        let mut joined = Vec::new();
        self.0.retain(|&key, groups| {
            if !has(key) {
                return false;
            }
            groups.retain(|group, before| {
                let members = members(group);
                let is_joined = members > *before;
                if is_joined {
                    joined.push((key, group.clone()));
                } else {
                    *before = members;
                }
                !is_joined
            });
            !groups.is_empty()
        });
        joined
    }
}

/// The client's name of a broker group: `$share/GROUP/FILTER`.
#[must_use]
pub fn shared_filter(source: &[u8]) -> Option<Vec<u8>> {
    let (group, filter) = group_of(source)?;
    Some([b"$share/", group, b"/", filter].concat())
}

/// Messages of groups that a client leaves when it is gone.
#[derive(Default)]
pub struct Left {
    /// Messages for other members, in order of delivery.
    pub messages: Vec<(Group, Rc<Message>)>,
    /// Messages of QoS 2 that only its session may send again: for their groups they are done.
    pub done: Vec<(Group, Position)>,
}
