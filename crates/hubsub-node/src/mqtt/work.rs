//! Work of MQTT to be done after the broker's call returns.

use super::{connect, delete_retry, persist, takeover_read};
use crate::context::Ctx;
use hubsub_mqtt::SessionDelete;
use hubsub_route::rooms::HistoryPart;
use hubsub_types::{ConnKey, ErrorCode};

pub enum Work {
    /// This session must be recorded.
    Record(ConnKey),
    /// A room's history for the session that is being restored at this connection slot.
    Past(ConnKey, Result<HistoryPart, ErrorCode>),
    /// The entry of an ended session.
    Ended(Box<SessionDelete>, Result<HistoryPart, ErrorCode>),
    /// Whether a session that was taken over from another process has all its subscriptions again.
    Follows(ConnKey, bool),
}

pub fn work(ctx: &mut Ctx, work: Work) {
    match work {
        Work::Record(key) => persist::persist(ctx, key),
        Work::Past(key, part) => takeover_read::came(ctx, key, part),
        Work::Ended(delete, part) => delete_retry::found(ctx, *delete, part),
        Work::Follows(key, is_held) => connect::followed(ctx, key, is_held),
    }
}
