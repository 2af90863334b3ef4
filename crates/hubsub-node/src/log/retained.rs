//! Rebuilds a hub's retained entries and the writers of its session snapshots from its log, which keeps the
//! latest record of each room.

use super::reading::owned;
use hubsub_log::record::Kind;
use hubsub_log::storage::Storage;
use hubsub_log::{Chain, LogError};
use hubsub_route::rows::{SESSIONS, topic_of};
use hubsub_route::{Record, RowTotals, Rows};
use std::sync::Arc;

/// The entries of the hub that wrote the chain.
///
/// # Errors
/// If the chain is damaged or cannot be read.
pub fn rebuild<S: Storage>(chain: &Chain<S>) -> Result<Rows, LogError> {
    // The owner that takes them counts them.
    let (mut rows, uncounted) = (Rows::default(), RowTotals::default());
    chain.replay(0, |record| {
        if topic_of(record.room).is_none() && !record.room.starts_with(SESSIONS) {
            return;
        }
        let record = match record.kind {
            Kind::Message | Kind::Tombstone => owned(record),
            Kind::RoomDeleted => Record::new(Default::default(), record.room, b"", Box::default(), None),
        };
        rows.set(&Arc::new(record), &uncounted);
    })?;
    Ok(rows)
}
