//! The log's replies to requests of the control plane.

use super::hubs::HubStatus;
use hubsub_log::arrow::Chunk;
use hubsub_types::ErrorCode;

#[derive(Debug)]
pub enum Event {
    /// The outcome of a request about a stream of records.
    Stream(u64, Result<StreamAnswer, Refusal>),
    /// The outcome of a request to open or close a hub.
    Hub(u64, Result<HubAnswer, Refusal>),
}

/// Why a stream cannot be opened, or has ended.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub code: ErrorCode,
    /// The value to which the error refers.
    pub value: String,
    /// The range of missing offsets: the first, and the one after the last.
    pub missing: Option<(u64, u64)>,
}

#[derive(Clone, Debug)]
pub enum StreamAnswer {
    Opened(u64),
    /// The next chunk; none after the last.
    Chunk(Option<Chunk>),
    Offset(u64),
}

#[derive(Clone, Debug)]
pub enum HubAnswer {
    Opened(Box<HubStatus>),
    /// It is closed; the last offset assigned, 0 without a record. None if it was not open.
    Closed(Option<u64>),
}

/// A refusal without missing offsets.
pub(super) fn refused(code: ErrorCode, value: impl Into<String>) -> Refusal {
    Refusal { code, value: value.into(), missing: None }
}
