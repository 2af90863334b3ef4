//! The canonical columns and their Arrow types. They match Spark's types for the same fields, including
//! nullability and the names within the map, so that Spark finds the schemas equal.

use arrow_schema::{DataType, Field, Fields, Schema, TimeUnit};
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Column {
    /// Id of the hub.
    Hub,
    /// Term of the hub's configuration.
    Term,
    /// Place in the hub's log.
    Offset,
    /// Name as text, escaped as `python/hubsub/names.py` does.
    Room,
    /// Epoch of the room.
    Epoch,
    /// Place in the epoch.
    Seq,
    /// As text, like the room.
    Topic,
    /// In µs since 1970, UTC.
    Timestamp,
    /// Name of the publisher.
    Publisher,
    /// As text; null if the class has no device template, or the topic does not match it.
    Device,
    /// Map of string to string.
    Headers,
    Payload,
}

/// All columns in canonical order, which is that of their discriminants.
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

/// The only field of the headers map.
pub(super) fn entries() -> Field {
    Field::new("entries", DataType::Struct(pair()), false)
}

pub(super) fn pair() -> Fields {
    vec![Field::new("key", DataType::Utf8, false), Field::new("value", DataType::Utf8, true)].into()
}

/// The schema of columns in canonical order.
pub(super) fn schema(columns: &[Column]) -> Schema {
    let field = |column: &Column| Field::new(column.name(), column.data_type(), true);
    Schema::new(columns.iter().map(field).collect::<Vec<_>>())
}
