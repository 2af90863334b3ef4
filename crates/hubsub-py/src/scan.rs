//! Converts scans of a hub's log from Python.

use crate::config::{Table, bad};
use hubsub_log::arrow::{Column, Filter, Scan, Shape};
use hubsub_types::HubId;
use pyo3::prelude::*;

/// Converts a dict with all keys of a scan.
pub fn scan(value: &Bound<'_, PyAny>) -> PyResult<Scan> {
    let mut table = Table::new("", value)?;
    let columns: Vec<String> = table.take("columns")?;
    let column =
        |name: &String| Column::named(name).ok_or_else(|| bad("columns", format!("unknown: {name}")));
    let scan = Scan {
        hub: HubId(table.take("hub")?),
        from: table.take("from")?,
        until: table.take("until")?,
        filter: Filter {
            rooms: table.take("rooms")?,
            room_prefix: table.take("room_prefix")?,
            room_patterns: table.matchers("room_patterns")?,
            topics: table.take("topics")?,
            topic_prefix: table.take("topic_prefix")?,
            topic_filters: table.matchers("topic_filters")?,
            devices: table.take("devices")?,
            device: None,
            since_us: table.take("since_us")?,
            until_us: table.take("until_us")?,
        },
        shape: Shape {
            device: None,
            columns: columns.iter().map(column).collect::<PyResult<_>>()?,
            is_compressed: table.take("lz4")?,
            batch_rows: table.take("batch_rows")?,
            batch_bytes: table.take("batch_bytes")?,
        },
    };
    table.done()?;
    Ok(scan)
}
