//! The canonical columns and their Arrow types. They are Spark's own for the same
//! fields, nullability and names within the map included, so that a reader there
//! finds the schema equal.

use arrow_schema::{DataType, Field, Fields, Schema, TimeUnit};
use std::sync::Arc;

/// A column.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Column {
    /// Number of the hub.
    Hub,
    /// Of the hub's configuration.
    Term,
    /// Place in the hub's log.
    Offset,
    /// As text (`python/hubsub/names.py`).
    Room,
    /// Life of the room.
    Epoch,
    /// Place in it.
    Seq,
    /// As text.
    Topic,
    /// µs, UTC.
    Timestamp,
    /// Who published it.
    Publisher,
    /// As text; null where the class has no template for it, or the topic does not fit.
    Device,
    /// Text to text.
    Headers,
    /// What was published.
    Payload,
}

/// All columns in the canonical order, which is that of their numbers.
pub const COLUMNS: [Column; 12] = [
    Column::Hub,
    Column::Term,
    Column::Offset,
    Column::Room,
    Column::Epoch,
    Column::Seq,
    Column::Topic,
    Column::Timestamp,
    Column::Publisher,
    Column::Device,
    Column::Headers,
    Column::Payload,
];

impl Column {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Column::Hub => "hub",
            Column::Term => "term",
            Column::Offset => "offset",
            Column::Room => "room",
            Column::Epoch => "epoch",
            Column::Seq => "seq",
            Column::Topic => "topic",
            Column::Timestamp => "timestamp",
            Column::Publisher => "publisher",
            Column::Device => "device",
            Column::Headers => "headers",
            Column::Payload => "payload",
        }
    }

    /// The column of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Column> {
        COLUMNS.into_iter().find(|column| column.name() == name)
    }

    fn data_type(self) -> DataType {
        match self {
            Column::Hub => DataType::Int32,
            Column::Term | Column::Offset | Column::Epoch | Column::Seq => DataType::Int64,
            Column::Room | Column::Topic | Column::Publisher | Column::Device => DataType::Utf8,
            Column::Timestamp => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            Column::Headers => DataType::Map(Arc::new(entries()), false),
            Column::Payload => DataType::Binary,
        }
    }
}

/// The one field of the map of headers.
pub(super) fn entries() -> Field {
    Field::new("entries", DataType::Struct(pair()), false)
}

/// Key and value.
pub(super) fn pair() -> Fields {
    vec![Field::new("key", DataType::Utf8, false), Field::new("value", DataType::Utf8, true)].into()
}

/// The schema of some columns, which are in order.
pub(super) fn schema(columns: &[Column]) -> Schema {
    let field = |column: &Column| Field::new(column.name(), column.data_type(), true);
    Schema::new(columns.iter().map(field).collect::<Vec<_>>())
}
