//! Rows of a batch: read from an Arrow stream into a stage, and published from there.

use hubsub_log::arrow::rows::{Row, RowChunk, RowError, RowReader as Reader, rows};
use hubsub_node::questions::Item;
use hubsub_route::{GAPLESS, Producer};
use hubsub_types::names::{is_reserved, topic_fits};
use hubsub_types::{ClassTable, ErrorCode, ProducerId};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use siphasher::sip::SipHasher13;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The number of rows of a chunk, and its bytes.
type Chunk<'py> = (u32, Bound<'py, PyBytes>);

/// Reads one Arrow stream of rows.
#[pyclass(module = "hubsub._core")]
pub struct RowReader {
    reader: Reader,
    classes: Arc<ClassTable>,
    topic_bytes_max: u64,
}

impl RowReader {
    /// A reader of rows for rooms of these classes. With `topic` all rows are for that one; rows without a
    /// publisher get `publisher`.
    pub fn new(
        classes: Arc<ClassTable>,
        topic_bytes_max: u64,
        topic: Option<Vec<u8>>,
        publisher: String,
    ) -> RowReader {
        RowReader { reader: Reader::new(topic, publisher), classes, topic_bytes_max }
    }
}

#[pymethods]
impl RowReader {
    fn feed<'py>(&mut self, py: Python<'py>, data: &[u8]) -> PyResult<Vec<Chunk<'py>>> {
        let (reader, classes, most) = (&mut self.reader, &*self.classes, self.topic_bytes_max);
        let chunks = py.detach(|| guarded(|| reader.feed(data, &|row| check(classes, most, row))))?;
        Ok(chunks.into_iter().map(|chunk| given(py, &chunk)).collect())
    }

    fn finish<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Chunk<'py>>> {
        let last = guarded(|| self.reader.finish())?;
        Ok(last.map(|chunk| given(py, &chunk)))
    }
}

fn given<'py>(py: Python<'py>, chunk: &RowChunk) -> Chunk<'py> {
    (chunk.rows, PyBytes::new(py, &chunk.bytes))
}

/// Converts an error to its code and a text. Bytes that make the decoder panic are bad rows too.
fn guarded<T>(work: impl FnOnce() -> Result<T, RowError>) -> PyResult<T> {
    let outcome = catch_unwind(AssertUnwindSafe(work));
    let outcome = outcome.unwrap_or_else(|_| Err(RowError::Stream("its parts contradict each other".into())));
    outcome.map_err(|error| {
        let code = match &error {
            RowError::Refused { reason, .. } => reason.code(),
            _ => "bad_rows",
        };
        PyValueError::new_err((code, error.to_string()))
    })
}

/// Checks a row for permanent refusals, before it is published.
fn check(classes: &ClassTable, topic_bytes_max: u64, row: &Row<'_>) -> Result<(), ErrorCode> {
    const NAME_MAX: usize = u16::MAX as usize;
    if row.topic.is_empty() || !topic_fits(row.topic, topic_bytes_max) {
        return Err(ErrorCode::TopicLength);
    }
    if is_reserved(row.topic) && !is_statistic(row.topic) {
        return Err(ErrorCode::NotAllowed);
    }
    let class = classes.get(classes.class_of_room(&classes.room(row.topic)));
    // The log truncates longer names, so a retry would differ from the original.
    let is_long = row.headers.iter().any(|(name, _)| name.len() > NAME_MAX);
    if is_long || row.payload.len() as u64 > class.payload_bytes_max {
        return Err(ErrorCode::PayloadLength);
    }
    Ok(())
}

/// Prefix of statistics about rooms: the only internal topics that rows may have.
const STATISTICS: &[u8] = b"$stats/room/";

fn is_statistic(topic: &[u8]) -> bool {
    topic.len() > STATISTICS.len() && topic.starts_with(STATISTICS)
}

/// Converts the rows of a chunk to items and their places in it: all rows, or those in `left`.
///
/// In a class with a log the rows in `of` (None: all) that are for one room get a gapless sequence, by a
/// producer of that room. So they keep their order, whatever is refused and retried.
pub fn items(
    chunk: &[u8],
    (left, of): (Option<&[u32]>, Option<&[u32]>),
    producer: u64,
    classes: &ClassTable,
) -> PyResult<(Vec<u32>, Vec<Item>)> {
    let rows = rows(chunk).ok_or_else(|| PyValueError::new_err("no chunk of rows"))?;
    let has = |places: Option<&[u32]>, n: u32| places.is_none_or(|places| places.binary_search(&n).is_ok());
    let mut counts: HashMap<ProducerId, u64> = HashMap::new();
    let mut taken = (Vec::new(), Vec::new());
    for (n, row) in (0u32..).zip(&rows).filter(|(n, _)| has(of, *n)) {
        let room = classes.room(row.topic);
        let is_logged = classes.get(classes.class_of_room(&room)).durability.is_logged();
        let numbered = is_logged.then(|| {
            let id = producer_of_room(producer, &room);
            let count = counts.entry(id).or_default();
            *count += 1;
            Producer { id, sequence: GAPLESS + *count }
        });
        if !has(left, n) {
            continue;
        }
        let headers: Vec<(Box<str>, Box<str>)> =
            row.headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        taken.0.push(n);
        taken.1.push(Item {
            topic: row.topic.to_vec(),
            payload: row.payload.to_vec(),
            headers: (!headers.is_empty()).then(|| headers.into()),
            publisher: row.publisher.to_owned(),
            producer: numbered,
        });
    }
    Ok(taken)
}

/// The producer of one room's rows of a chunk by `producer`, equal in every process. The highest bit is set,
/// as for named producers.
fn producer_of_room(producer: u64, room: &[u8]) -> ProducerId {
    ProducerId(SipHasher13::new_with_keys(producer, 0).hash(room) | 1 << 63)
}
