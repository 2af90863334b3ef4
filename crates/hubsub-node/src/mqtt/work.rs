//! Work of MQTT to be done after the broker's call returns.

use super::endings::{self, Ending};
use super::{arrival, durable, reading};
use crate::io::context::Ctx;
use hubsub_route::rooms::HistoryPart;
use hubsub_types::{ConnKey, ErrorCode};

pub enum Work {
    /// This session must be recorded.
    Record(ConnKey),
    /// A room's history for the session that is being restored at this connection slot.
    Past(ConnKey, Result<HistoryPart, ErrorCode>),
    /// The entry of an ended session.
    Ended(Box<Ending>, Result<HistoryPart, ErrorCode>),
    /// Whether a session that was taken over from another process has all its subscriptions again.
    Follows(ConnKey, bool),
}

pub fn work(ctx: &mut Ctx, work: Work) {
    match work {
        Work::Record(key) => durable::record(ctx, key),
        Work::Past(key, part) => reading::came(ctx, key, part),
        Work::Ended(ending, part) => endings::found(ctx, *ending, part),
        Work::Follows(key, is_held) => arrival::followed(ctx, key, is_held),
    }
}
