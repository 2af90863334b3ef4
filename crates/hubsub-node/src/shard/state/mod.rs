//! What the shard's own folder remembers.

pub(crate) mod listings;
pub(crate) mod room_changes;
