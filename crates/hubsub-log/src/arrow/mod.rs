//! A range of a hub's log as an Arrow IPC stream (docs/adr/0009, docs/protocol/records.md).
//!
//! [`Scan`] says what is wanted, as a plain value. [`Filter`] picks records, [`Encoder`]
//! makes bytes of them, and neither knows of a chain: who reads one gives records.
//!
//! Invariants: a row stands for one message, in the order in which they were given; the
//! columns are the canonical ones in the canonical order, less those nobody asked for;
//! the end-of-stream mark is written when [`Encoder::finish`] is called and never else.

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

/// What a reader wants of a hub's log.
#[derive(Clone, Debug)]
pub struct Scan {
    /// The hub.
    pub hub: HubId,
    /// First offset; none: the oldest that is kept.
    pub from: Option<u64>,
    /// The offset behind the last; none: behind what is committed when the scan begins.
    pub until: Option<u64>,
    /// Which records.
    pub filter: Filter,
    /// How they are told.
    pub shape: Shape,
}

/// How records are told.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Of each record; in whatever order, they are given in the canonical one.
    pub columns: Vec<Column>,
    /// What names a topic's device; none: the column is null. It is the hub's class that says it.
    pub device: Option<Arc<DeviceTemplate>>,
    /// Whether the buffers of a batch are compressed, as LZ4 frames.
    pub is_compressed: bool,
    /// A batch ends with so many rows,
    pub batch_rows: usize,
    /// or with so many bytes of names, headers and payloads, and one record more.
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
