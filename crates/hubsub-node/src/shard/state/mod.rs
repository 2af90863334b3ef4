//! The state of the shard's own folder: listings, and changes of rooms.

pub(crate) mod listings;
pub(crate) mod room_changes;
