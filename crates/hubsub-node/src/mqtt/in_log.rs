//! Reads the sessions of MQTT clients from the log at a start: the latest snapshot of each, and the entries
//! after it.

use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_log::record::Kind;
use hubsub_log::storage::Storage;
use hubsub_log::{Chain, LogError};
use hubsub_mqtt::rooms::{entries_id, snapshot_id};
use hubsub_mqtt::{Found, adds_to};

/// The sessions in the chains of snapshots and of entries.
///
/// # Errors
/// If a chain is damaged or cannot be read.
pub fn rebuild<S: Storage>(rows: &Chain<S>, entries: Option<&Chain<S>>) -> Result<Vec<Found>, LogError> {
    let mut found: HashMap<Box<str>, Found, RandomState> = HashMap::default();
    rows.replay(0, |record| {
        let Some(id) = snapshot_id(record.room) else { return };
        if record.kind == Kind::Message && !record.payload.is_empty() {
            let (id, snapshot): (Box<str>, _) = (id.into(), record.payload.into());
            found.insert(id.clone(), Found { id, snapshot, entries: Vec::new() });
        } else {
            found.remove(&*id);
        }
    })?;
    let Some(entries) = entries.filter(|_| !found.is_empty()) else {
        return Ok(found.into_values().collect());
    };
    entries.replay(0, |record| {
        let session = entries_id(record.room).and_then(|id| found.get_mut(&*id));
        if let Some(session) = session.filter(|session| adds_to(&session.snapshot, record.payload)) {
            session.entries.push(record.payload.into());
        }
    })?;
    Ok(found.into_values().collect())
}
