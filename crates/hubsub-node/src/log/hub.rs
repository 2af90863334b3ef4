//! Opening of a hub, at the start or later: the data for its shard and for the log's threads.

use super::archive::{Archive, Keeping};
use super::hubs::LoggedHub;
use super::producers;
use super::reading::owned;
use hubsub_log::manifest::HubEntry;
use hubsub_log::record::Kind;
use hubsub_log::{Chain, Disk, Keep, LogError, Retention};
use hubsub_message::home;
use hubsub_route::rows::{SESSIONS, is_class, topic_of};
use hubsub_route::{HubSeed, Producers, Record, RowTotals, Rows, Traffic, Window};
use hubsub_types::Class;
use hubsub_types::class::ClassIndex;
use std::sync::Arc;

pub struct Opened {
    pub hub: Arc<LoggedHub>,
    pub seed: HubSeed,
    /// Its duplicate window; none if its records are damaged.
    pub producers: Option<Producers>,
    pub rows: Rows,
}

/// The data for the shard, the segment thread and the operator.
pub struct Described {
    pub opened: Opened,
    pub keeping: Keeping,
    pub warning: Option<String>,
}

/// The shard of a hub: by index on a node that numbers its hubs itself, by id if the controller does
/// (`is_given`).
pub fn shard_of(entry: &HubEntry, is_given: bool, shards: u16) -> u16 {
    if is_given { home(entry.hub, shards).0 } else { entry.index % shards }
}

pub fn keep_of(class: &Class) -> Keep {
    if class.keeps_latest { Keep::Latest } else { Keep::Log }
}

/// The retention limits of a class, without an archive. A class that keeps the latest record per room has
/// none.
pub fn limits_of(class: &Class) -> Retention {
    let kept = class.history.filter(|_| !class.keeps_latest);
    kept.map_or_else(Retention::default, |history| Retention {
        bytes: history.bytes,
        age_us: history.age_ms * 1000,
        archive: None,
    })
}

/// Prepares a hub of a shard from its entry and, if its records are not quarantined, its chain. Reads the end
/// of the chain for the duplicate window.
///
/// # Errors
/// If it cannot be read. Damage in the duplicate window is no error: numbered records are refused then.
pub fn describe(
    entry: &HubEntry,
    chain: Option<Arc<Chain<Disk>>>,
    (index, class): (ClassIndex, &Class),
    shard: u16,
    window: Window,
) -> Result<Described, LogError> {
    let limits = limits_of(class);
    let (archive, traffic) = (Arc::new(Archive::default()), Arc::new(Traffic::default()));
    let archive_wait_bytes = class.archive_wait_bytes;
    let keeping = Keeping { limits, archive_wait_bytes, archive: Arc::clone(&archive) };
    let seed = HubSeed {
        id: entry.hub,
        class: index,
        index: entry.index,
        next: chain.as_ref().map_or(entry.next, |chain| chain.next()),
        last_us: chain.as_ref().map_or(0, |chain| chain.info().last_us),
        continuous_from: entry.continuous_from,
        traffic: Arc::clone(&traffic),
    };
    let hub = LoggedHub::new(entry, chain.clone(), (index, class), shard, archive, traffic);
    let (mut producers, mut warning) = (None, None);
    let mut rows = Rows::default();
    if let Some(chain) = chain {
        if is_class(class) {
            rows = retained(&chain)?;
        }
        producers = Some(match producers::rebuild(&chain, window) {
            Err(e @ LogError::Damaged { .. }) => {
                let (id, class) = (entry.hub.0, &entry.class);
                warning =
                    Some(format!("hub {id} ({class}) refuses numbered records, it cannot tell repeats: {e}"));
                let until = "numbered records are refused until the duplicate window is behind it";
                hub.is_damaged(format!("{e}; {until}"));
                Producers::damaged(window, chain.next() - 1)
            }
            rebuilt => rebuilt?,
        });
    }
    Ok(Described { opened: Opened { hub: Arc::new(hub), seed, producers, rows }, keeping, warning })
}

/// Rebuilds a hub's retained entries and the writers of its session snapshots from its log, which keeps the
/// latest record of each room.
///
/// # Errors
/// If the chain is damaged or cannot be read.
fn retained(chain: &Chain<Disk>) -> Result<Rows, LogError> {
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
