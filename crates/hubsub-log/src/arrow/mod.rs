//! Encodes a range of a hub's log as an Arrow IPC stream (docs/adr/0009, docs/protocol/records.md).
//!
//! [`Scan`] describes the request as a plain value. [`Filter`] selects records, [`Encoder`] encodes them, and
//! neither depends on a chain: the caller passes in records.
//!
//! Invariants: each row is one message, in input order; the columns are the requested ones in canonical
//! order; only [`Encoder::finish`] writes the end-of-stream mark.

mod encoder;
mod filter;
mod framing;
pub mod rows;
mod schema;
mod text;

pub use encoder::{Chunk, Encoder};
pub use filter::Filter;
pub use schema::{COLUMNS, Column};

use hubsub_types::HubId;
use hubsub_types::names::DeviceTemplate;
use std::sync::Arc;

/// A request to read a hub's log.
#[derive(Clone, Debug)]
pub struct Scan {
    pub hub: HubId,
    /// First offset; none: the oldest record.
    pub from: Option<u64>,
    /// The offset after the last; none: after the last record committed when the scan begins.
    pub until: Option<u64>,
    pub filter: Filter,
    pub shape: Shape,
}

#[derive(Clone, Debug)]
pub struct Shape {
    /// Requested columns in any order; they are encoded in the canonical one.
    pub columns: Vec<Column>,
    /// Extracts a topic's device, as the hub's class configures it; none: the column is null.
    pub device: Option<Arc<DeviceTemplate>>,
    /// Whether the buffers of a batch are compressed, as LZ4 frames.
    pub is_compressed: bool,
    pub batch_rows: usize,
    /// A batch ends with the record that reaches this many bytes of names, headers and payloads.
    pub batch_bytes: usize,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            columns: COLUMNS.to_vec(),
            device: None,
            is_compressed: false,
            batch_rows: 16_384,
            batch_bytes: 4 << 20,
        }
    }
}
