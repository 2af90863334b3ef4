//! The start of a subscription, and its confirmation.

use hubsub_types::{Position, Seq};

/// The start of a new subscription.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// With the next record.
    Live,
    /// With the record after this position.
    After(Position),
    /// With the last `n` records of the topic.
    Last(u64),
    /// With the first record that is not older than this, in µs since 1970.
    Since(u64),
}

/// A hub's confirmation of a new subscription.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attached {
    /// The room's last record when interest began.
    pub position: Position,
    /// First record to replay; none when the subscription is live at once.
    pub replay_from: Option<Seq>,
    /// Whether all requested records are available.
    pub recovered: bool,
}
