//! Mail about members, and the requests to node rooms.

use crate::io::inbox::LETTER_BYTES;
use crate::io::questions::Shown;
use hubsub_route::occupancy::Counts;
use hubsub_route::presence::{Diff, Member, Seen};
use hubsub_types::ShardId;
use std::sync::Arc;

#[derive(Debug)]
pub struct Told {
    pub diff: Diff,
    /// True if the count is sent too: not all members are listed, or were not before the change.
    pub is_counted: bool,
}

#[derive(Debug)]
pub enum PresenceMail {
    /// To the room's shard: a member has joined.
    Join(Arc<[u8]>, Member),
    /// To the room's shard: the member of this reference has left.
    Leave(Arc<[u8]>, u64),
    /// To the room's shard: this seat of that shard watches.
    Watch(Arc<[u8]>, ShardId, u64),
    /// To the room's shard: this seat of that shard no longer watches.
    Unwatch(Arc<[u8]>, ShardId, u64),
    /// From the room's shard to a seat: the member list.
    Shown(Arc<[u8]>, u64, Arc<Shown>),
    /// From the room's shard to all seats of a shard that have the list: a change.
    Told(Arc<[u8]>, Arc<Told>),
    /// To the shard of the room's bucket: the counts of a shard's part of a room.
    Occupied(Arc<[u8]>, ShardId, Counts),
}

impl PresenceMail {
    pub fn weight(&self) -> usize {
        let of = |members: &[Seen]| members.iter().map(|(_, member)| member.weight()).sum::<usize>();
        LETTER_BYTES
            + match self {
                PresenceMail::Join(_, member) => member.weight(),
                PresenceMail::Told(_, told) => of(&told.diff.joins) + of(&told.diff.leaves),
                // The members themselves belong to the room.
                PresenceMail::Shown(_, _, shown) => shown.members.len() * std::mem::size_of::<Seen>(),
                _ => 0,
            }
    }
}

/// A request to a node room or about a room of this node.
pub enum PresenceAsked {
    Enter(Arc<[u8]>),
    /// To publish the message of that number there.
    Say(Arc<[u8]>, u64),
    /// To write the join or leave record with this reference.
    Recorded(u64),
    Occupancy(Arc<[u8]>),
}
