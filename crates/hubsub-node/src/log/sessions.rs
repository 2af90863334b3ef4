//! Sessions of MQTT clients as the log has them at a start: the latest row of each.

use crate::mqtt::{Found, id_of_row};
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_log::record::Kind;
use hubsub_log::storage::Storage;
use hubsub_log::{Chain, LogError};

/// The sessions that the hub of rows had which wrote the chain.
///
/// # Errors
/// The chain is damaged, or the storage's.
pub fn rebuild<S: Storage>(chain: &Chain<S>) -> Result<Vec<Found>, LogError> {
    let mut found: HashMap<Box<str>, Vec<u8>, RandomState> = HashMap::default();
    chain.replay(0, |record| {
        let Some(id) = id_of_row(record.room) else { return };
        if record.kind == Kind::Message && !record.payload.is_empty() {
            found.insert(id.into(), record.payload.into());
        } else {
            found.remove(&*id);
        }
    })?;
    Ok(found.into_iter().map(|(id, row)| Found { id, row }).collect())
}
