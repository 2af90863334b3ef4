//! Rows to publish: decodes an Arrow IPC stream into chunks, and chunks into rows.
//!
//! [`RowReader`] takes a stream in pieces as they arrive and returns chunks: self-contained bytes of about
//! [`CHUNK_BYTES`] that fit into one record of a stage. [`rows`] decodes a chunk. The columns are `topic`
//! (string), `payload` (binary or string), and optionally `publisher` (string) and `headers` (map of string
//! to string). A topic is text in the form of [`super`]'s columns: bytes that are not UTF-8 are
//! percent-escaped.
//!
//! A chunk is its format (1), the number of rows (u32), and for each row the lengths of topic (u32), payload
//! (u32) and publisher (u32) and the number of headers (u32), then these; a header is the lengths of its name
//! and value (u32 each), then both. All little-endian.
//!
//! Invariants: rows keep their order; a chunk has at least one row; a stream without an end-of-stream mark is
//! an error, whatever it contained.

use super::framing::Framing;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_buffer::Buffer;
use arrow_ipc::reader::StreamDecoder;
use arrow_schema::{DataType, Schema};
use thiserror::Error;

/// A chunk ends with the row that reaches this many bytes.
pub const CHUNK_BYTES: usize = 256 * 1024;

const FORMAT: u8 = 1;
const HEAD: usize = 5;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row<'a> {
    pub topic: &'a [u8],
    pub payload: &'a [u8],
    /// Empty if the row has none.
    pub publisher: &'a str,
    /// Sorted by name, each name once.
    pub headers: Vec<(&'a str, &'a str)>,
}

#[derive(Debug, Default)]
pub struct RowChunk {
    pub rows: u32,
    pub bytes: Vec<u8>,
}

#[derive(Debug, Error)]
pub enum RowError {
    /// The bytes are no Arrow IPC stream, or end early.
    #[error("this is no whole Arrow IPC stream ({0})")]
    Stream(String),
    #[error("there is no column: {0}")]
    NoColumn(&'static str),
    #[error("column {name} is {found}, it should be: {wanted}")]
    Column { name: &'static str, found: String, wanted: &'static str },
    #[error("rows have no such column: {0}")]
    Strange(String),
    #[error("row {row} has no {column}")]
    Null { row: u64, column: &'static str },
    #[error("row {row}")]
    Refused { row: u64, reason: hubsub_types::ErrorCode },
}

pub struct RowReader {
    framing: Framing,
    decoder: StreamDecoder,
    /// The topic of all rows, if they have no column for it.
    topic: Option<Vec<u8>>,
    publisher: String,
    is_checked: bool,
    rows: u64,
    chunk: RowChunk,
}

type Check<'a> = &'a dyn Fn(&Row<'_>) -> Result<(), hubsub_types::ErrorCode>;

impl RowReader {
    /// A reader of one stream. With a `topic`, the stream must have no topic column. `publisher` is the
    /// default for rows without one.
    pub fn new(topic: Option<Vec<u8>>, publisher: String) -> RowReader {
        let (framing, decoder) = (Framing::new(), StreamDecoder::new());
        RowReader {
            framing,
            decoder,
            topic,
            publisher,
            is_checked: false,
            rows: 0,
            chunk: RowChunk::default(),
        }
    }

    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Takes the next bytes of the stream; returns the full chunks.
    ///
    /// # Errors
    /// The stream cannot be read, or a row is rejected.
    pub fn feed(&mut self, bytes: &[u8], check: Check<'_>) -> Result<Vec<RowChunk>, RowError> {
        self.framing.feed(bytes)?;
        let (mut buffer, mut full) = (Buffer::from(bytes), Vec::new());
        while !buffer.is_empty() {
            let batch = self.decoder.decode(&mut buffer).map_err(|e| RowError::Stream(e.to_string()))?;
            if !self.is_checked
                && let Some(schema) = self.decoder.schema()
            {
                check_schema(&schema, self.topic.is_some())?;
                self.is_checked = true;
            }
            if let Some(batch) = batch {
                self.take(&batch, check, &mut full)?;
            }
        }
        Ok(full)
    }

    /// Returns the last chunk, if there is one.
    ///
    /// # Errors
    /// The stream has not ended.
    pub fn finish(&mut self) -> Result<Option<RowChunk>, RowError> {
        self.decoder.finish().map_err(|e| RowError::Stream(e.to_string()))?;
        if !self.is_checked {
            return Err(RowError::Stream("it is empty".to_owned()));
        }
        if !self.framing.is_at_end() {
            return Err(RowError::Stream("its end is missing".to_owned()));
        }
        let last = std::mem::take(&mut self.chunk);
        Ok((last.rows > 0).then_some(last))
    }

    fn take(
        &mut self,
        batch: &RecordBatch,
        check: Check<'_>,
        full: &mut Vec<RowChunk>,
    ) -> Result<(), RowError> {
        let columns = Columns::of(batch);
        for at in 0..batch.num_rows() {
            let row = self.rows;
            let own;
            let topic: &[u8] = match (&self.topic, &columns.topic) {
                (Some(topic), _) => topic,
                (None, Some(column)) => {
                    let text = column.get(at).ok_or(RowError::Null { row, column: "topic" })?;
                    own = unescaped(text);
                    own.as_deref().unwrap_or(text)
                }
                (None, None) => return Err(RowError::NoColumn("topic")),
            };
            let payload = columns.payload.as_ref().and_then(|column| column.get(at));
            let payload = payload.ok_or(RowError::Null { row, column: "payload" })?;
            let publisher = columns.publisher.as_ref().and_then(|column| column.text(at));
            let publisher = publisher.unwrap_or(&self.publisher);
            let mut headers = Vec::new();
            if let Some(map) = &columns.headers
                && map.is_valid(at)
            {
                let offsets = map.offsets();
                let (keys, values) = (Texts::of(map.keys()), Texts::of(map.values()));
                for entry in offsets[at] as usize..offsets[at + 1] as usize {
                    let pair = keys.as_ref().and_then(|k| k.text(entry)).zip(
                        // A header without a value gets an empty one.
                        values.as_ref().map(|v| v.text(entry).unwrap_or("")),
                    );
                    headers.extend(pair);
                }
                headers.sort_unstable();
                headers.dedup_by(|later, earlier| later.0 == earlier.0);
            }
            let value = Row { topic, payload, publisher, headers };
            check(&value).map_err(|reason| RowError::Refused { row, reason })?;
            // All rows of a chunk must fit into a hub's duplicate window at once, so a large row gets a chunk
            // of its own.
            if value.payload.len() >= CHUNK_BYTES && self.chunk.rows > 0 {
                full.push(std::mem::take(&mut self.chunk));
            }
            write(&mut self.chunk, &value);
            self.rows += 1;
            if self.chunk.bytes.len() >= CHUNK_BYTES {
                full.push(std::mem::take(&mut self.chunk));
            }
        }
        Ok(())
    }
}

/// The columns of a batch whose schema was checked.
struct Columns<'a> {
    topic: Option<Texts<'a>>,
    payload: Option<Texts<'a>>,
    publisher: Option<Texts<'a>>,
    headers: Option<&'a arrow_array::MapArray>,
}

impl<'a> Columns<'a> {
    fn of(batch: &'a RecordBatch) -> Columns<'a> {
        let texts = |name| batch.column_by_name(name).and_then(Texts::of);
        Columns {
            topic: texts("topic"),
            payload: texts("payload"),
            publisher: texts("publisher"),
            headers: batch.column_by_name("headers").and_then(|column| column.as_map_opt()),
        }
    }
}

enum Texts<'a> {
    Text(&'a arrow_array::StringArray),
    LargeText(&'a arrow_array::LargeStringArray),
    Bytes(&'a arrow_array::BinaryArray),
    LargeBytes(&'a arrow_array::LargeBinaryArray),
}

impl<'a> Texts<'a> {
    fn of(column: &'a ArrayRef) -> Option<Texts<'a>> {
        match column.data_type() {
            DataType::Utf8 => Some(Texts::Text(column.as_string())),
            DataType::LargeUtf8 => Some(Texts::LargeText(column.as_string())),
            DataType::Binary => Some(Texts::Bytes(column.as_binary())),
            DataType::LargeBinary => Some(Texts::LargeBytes(column.as_binary())),
            _ => None,
        }
    }

    /// The value of a row; none if it is null.
    fn get(&self, at: usize) -> Option<&'a [u8]> {
        match *self {
            Texts::Text(c) => c.is_valid(at).then(|| c.value(at).as_bytes()),
            Texts::LargeText(c) => c.is_valid(at).then(|| c.value(at).as_bytes()),
            Texts::Bytes(c) => c.is_valid(at).then(|| c.value(at)),
            Texts::LargeBytes(c) => c.is_valid(at).then(|| c.value(at)),
        }
    }

    fn text(&self, at: usize) -> Option<&'a str> {
        match *self {
            Texts::Text(c) => c.is_valid(at).then(|| c.value(at)),
            Texts::LargeText(c) => c.is_valid(at).then(|| c.value(at)),
            Texts::Bytes(_) | Texts::LargeBytes(_) => None,
        }
    }
}

fn check_schema(schema: &Schema, has_topic: bool) -> Result<(), RowError> {
    let is_text = |kind: &DataType| matches!(kind, DataType::Utf8 | DataType::LargeUtf8);
    let is_bytes =
        |kind: &DataType| is_text(kind) || matches!(kind, DataType::Binary | DataType::LargeBinary);
    let is_map = |kind: &DataType| {
        let DataType::Map(entries, _) = kind else { return false };
        let DataType::Struct(fields) = entries.data_type() else { return false };
        fields.len() == 2 && fields.iter().all(|field| is_text(field.data_type()))
    };
    for field in schema.fields() {
        let kind = field.data_type();
        let (name, is_good, wanted) = match field.name().as_str() {
            // If the caller gave a topic, the stream must not have a topic column.
            "topic" if !has_topic => ("topic", is_text(kind), "string"),
            "payload" => ("payload", is_bytes(kind), "binary or string"),
            "publisher" => ("publisher", is_text(kind), "string"),
            "headers" => ("headers", is_map(kind), "map of string to string"),
            strange => return Err(RowError::Strange(strange.to_owned())),
        };
        if !is_good {
            return Err(RowError::Column { name, found: kind.to_string(), wanted });
        }
    }
    let must = if has_topic { &["payload"][..] } else { &["topic", "payload"] };
    match must.iter().find(|name| schema.column_with_name(name).is_none()) {
        Some(name) => Err(RowError::NoColumn(name)),
        None => Ok(()),
    }
}

/// Decodes percent-escapes in a name; none if it has no `%`.
fn unescaped(text: &[u8]) -> Option<Vec<u8>> {
    let hex = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    memchr::memchr(b'%', text)?;
    let (mut bytes, mut at) = (Vec::with_capacity(text.len()), 0);
    while let Some(&byte) = text.get(at) {
        let escaped = match (byte, text.get(at + 1..at + 3)) {
            (b'%', Some(&[high, low])) => hex(high).zip(hex(low)),
            _ => None,
        };
        match escaped {
            Some((high, low)) => bytes.push(high << 4 | low),
            None => bytes.push(byte),
        }
        at += if escaped.is_some() { 3 } else { 1 };
    }
    Some(bytes)
}

fn write(chunk: &mut RowChunk, row: &Row<'_>) {
    let out = &mut chunk.bytes;
    if out.is_empty() {
        out.extend([FORMAT, 0, 0, 0, 0]);
    }
    let mut number = |n: usize| out.extend((n as u32).to_le_bytes());
    number(row.topic.len());
    number(row.payload.len());
    number(row.publisher.len());
    number(row.headers.len());
    for part in [row.topic, row.payload, row.publisher.as_bytes()] {
        out.extend_from_slice(part);
    }
    for (name, value) in &row.headers {
        out.extend((name.len() as u32).to_le_bytes());
        out.extend((value.len() as u32).to_le_bytes());
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(value.as_bytes());
    }
    chunk.rows += 1;
    out[1..HEAD].copy_from_slice(&chunk.rows.to_le_bytes());
}

/// Decodes the rows of a chunk; none if it is invalid.
#[must_use]
pub fn rows(chunk: &[u8]) -> Option<Vec<Row<'_>>> {
    let (head, mut rest) = chunk.split_at_checked(HEAD)?;
    if head[0] != FORMAT {
        return None;
    }
    let count = u32::from_le_bytes(head[1..].try_into().ok()?);
    let mut found = Vec::new();
    for _ in 0..count {
        found.push(row(&mut rest)?);
    }
    rest.is_empty().then_some(found)
}

fn row<'a>(rest: &mut &'a [u8]) -> Option<Row<'a>> {
    let [topic, payload, publisher, headers] = [number(rest)?, number(rest)?, number(rest)?, number(rest)?];
    let (topic, payload) = (part(rest, topic)?, part(rest, payload)?);
    let publisher = std::str::from_utf8(part(rest, publisher)?).ok()?;
    let header = |rest: &mut &'a [u8]| {
        let (name, value) = (number(rest)?, number(rest)?);
        let (name, value) = (part(rest, name)?, part(rest, value)?);
        Some((std::str::from_utf8(name).ok()?, std::str::from_utf8(value).ok()?))
    };
    let headers = (0..headers).map(|_| header(rest)).collect::<Option<_>>()?;
    Some(Row { topic, payload, publisher, headers })
}

fn number(rest: &mut &[u8]) -> Option<usize> {
    let (number, behind) = rest.split_first_chunk::<4>()?;
    *rest = behind;
    Some(u32::from_le_bytes(*number) as usize)
}

fn part<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (part, behind) = rest.split_at_checked(len)?;
    *rest = behind;
    Some(part)
}
