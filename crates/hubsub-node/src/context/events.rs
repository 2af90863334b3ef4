//! The events of a shard for the control plane.

use crate::io::questions::Part;
use hubsub_route::Published;
use hubsub_types::ErrorCode;
use hubsub_types::class::ClassIndex;

#[derive(Debug)]
pub enum Event {
    /// The responses of a scatter-gather request, by ticket.
    Parts(u64, Vec<Part>),
    /// The outcome of each publish of a batch.
    Published(u64, Vec<Result<Published, ErrorCode>>),
    /// A shard needs the place of a room of a class; the flag is whether to place the room if it has no
    /// place. Sent at most once while the answer is awaited, or twice if the first did not ask for placement.
    RoomMiss(ClassIndex, Box<[u8]>, bool),
    /// Rooms of a hub that are unused or were released by this process, in response to the request with this
    /// ticket.
    Unused(u64, Vec<Box<[u8]>>),
    /// A client asks where a room is: request number and room.
    Locate(u64, Box<[u8]>),
    /// A shard stopped; with a reason if it was not asked to.
    Stopped(u16, Option<String>),
    /// A shard has recorded its MQTT sessions and closed their clients.
    Parted(u16),
}
