//! Queued output bytes, with a per-thread count of their memory.

pub use hubsub_types::shared::{Counted, Shared, waiting_bytes};

// A receiver of shared bytes has a queue entry, and the queue may be half empty.
const _: () = assert!(hubsub_types::shared::PLACE_BYTES == size_of::<crate::io::output::Frame>() * 3 / 2);
