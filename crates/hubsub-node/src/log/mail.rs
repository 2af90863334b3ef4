//! Mail of the log's threads to shards.

use super::OpenedHub;
use crate::io::inbox::LETTER_BYTES;
use crate::io::questions::Part;
use hubsub_route::{Ask, Found, HubLogRead, HubRange, LogRead};
use hubsub_types::{ErrorCode, HubId};
use std::sync::mpsc::Sender;

pub enum LogMail {
    /// Records of these hubs are synced to the journal up to these offsets, inclusive.
    Safe(Vec<(HubId, u64)>),
    /// The log failed and syncs nothing more.
    Failed,
    /// A hub of this shard was opened, with its log and the broker's initial state.
    HubOpened(Box<OpenedHub>),
    /// A hub of this shard stops writing to its log; the sender is notified once it has.
    HubCloses(HubId, Sender<()>),
    /// All writes of the hub are synced, and its log is closed.
    HubClosed(HubId),
    /// The result of a log read for a request of this shard.
    Found(Box<LogRead>, Result<Found, ErrorCode>),
    /// The result of a log read over a whole hub.
    FoundHub(Box<HubLogRead>, Result<HubRange, ErrorCode>),
    Listed(Ask, Part),
}

impl LogMail {
    pub fn weight(&self) -> usize {
        let records = match self {
            LogMail::Found(_, Ok(found)) => &found.records,
            LogMail::FoundHub(_, Ok(range)) => &range.records,
            _ => return LETTER_BYTES,
        };
        LETTER_BYTES + records.iter().map(|record| record.weight()).sum::<usize>()
    }
}
