//! Requests about the consumers of groups, and their origins.

use hubsub_route::Record;
use hubsub_types::{ErrorCode, Position};
use std::sync::Arc;

/// Work for consumers that is done after the broker's call returns.
pub enum Wanted {
    /// Read the entry of a consumer.
    Load(Arc<[u8]>),
    /// The entry was read.
    Loaded(Arc<[u8]>, Result<Option<Vec<u8>>, ErrorCode>),
    /// Write the entry of a consumer.
    Save(Arc<[u8]>, Vec<u8>),
    /// Publish a record to the dead-letter topic.
    Bury(Arc<[u8]>, Arc<Record>),
}

/// The origin of a request of consumers.
pub enum ConsumerAsked {
    /// A consumer whose entry was written.
    Row(Arc<[u8]>),
    /// A consumer that dead-lettered the record at this position.
    Buried(Arc<[u8]>, Position),
}
