//! The canonical columns, which `python/hubsub/columns.py` defines, and their Arrow types. They match Spark's types for the same fields, including
//! nullability and the names within the map, so that Spark finds the schemas equal.

use arrow_schema::{DataType, Field, Fields, Schema, TimeUnit};
use std::sync::Arc;

macro_rules! columns {
    ($($name:ident = ($text:literal, $kind:ident);)+) => {
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        #[repr(u8)]
        pub enum Column { $($name,)+ }

        /// All columns in canonical order, which is that of their discriminants.
        pub const COLUMNS: [Column; [$($text,)+].len()] = [$(Column::$name,)+];

        impl Column {
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Column::$name => $text,)+ }
            }

            fn data_type(self) -> DataType {
                match self { $(Column::$name => $kind(),)+ }
            }
        }
    };
}
include!("columns.rs");

impl Column {
    #[must_use]
    pub fn named(name: &str) -> Option<Column> {
        COLUMNS.into_iter().find(|column| column.name() == name)
    }
}

fn int() -> DataType {
    DataType::Int32
}

fn bigint() -> DataType {
    DataType::Int64
}

fn string() -> DataType {
    DataType::Utf8
}

fn timestamp() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
}

fn map() -> DataType {
    DataType::Map(Arc::new(entries()), false)
}

fn binary() -> DataType {
    DataType::Binary
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
