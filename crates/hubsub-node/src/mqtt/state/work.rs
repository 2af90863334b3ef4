//! Work of MQTT that is done after the current call returns, and the writes that operations wait for.

use super::mail::MqttMail;
use hubsub_mqtt::{SessionDelete, Wait};
use hubsub_route::claims::Token;
use hubsub_route::rooms::HistoryPart;
use hubsub_types::{ConnKey, ErrorCode};

pub enum Work {
    /// Mail of this shard to itself.
    Mail(MqttMail),
    Record(ConnKey),
    /// A room's history for the session that is being restored at this connection slot.
    Past(ConnKey, Result<HistoryPart, ErrorCode>),
    /// The entry of an ended session.
    Ended(Box<SessionDelete>, Result<HistoryPart, ErrorCode>),
    /// Whether a session that was taken over from another process has all its subscriptions again.
    Follows(ConnKey, bool),
}

pub enum ClaimAsked {
    Watch(Box<str>),
    Claim(Box<str>, Token),
}

pub enum Written {
    /// A snapshot of the connection with this visit number, and those that wait for it.
    Snapshot(ConnKey, u32, Vec<Wait>),
    /// An entry: visit number, entry number, and those that wait for it.
    Entry(ConnKey, u32, u64, Vec<Wait>),
    /// A snapshot and entries that are written atomically.
    All(Vec<Written>),
    /// The delete of the snapshot of this slot, after which the client id is free.
    Deleted(ConnKey, SessionDelete),
    /// A repeated delete; the client id was free already.
    DeletedAgain(SessionDelete),
    /// The fence of a session that is read for this slot.
    Fence(ConnKey),
    /// The delete of a snapshot by a connection that starts a new session.
    Cleared(ConnKey, SessionDelete),
}
