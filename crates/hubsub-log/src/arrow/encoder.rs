//! Encodes records as Arrow IPC messages.
//!
//! A record's fields are copied once, from the bytes read from disk into the buffers of the columns, which
//! become the body of the message as they are. So a [`Chunk`] is a list of buffers, and the sender decides
//! whether to copy them into one.

use super::schema::{self, Column};
use super::text::{append_lossy, append_name};
use super::{COLUMNS, Shape};
use crate::record::{Record, decode_headers};
use crate::{LogError, Result};
use arrow_array::types::{BinaryType, ByteArrayType, Utf8Type};
use arrow_array::{
    ArrayRef, GenericByteArray, Int32Array, Int64Array, MapArray, RecordBatch, RecordBatchOptions,
    StructArray, TimestampMicrosecondArray,
};
use arrow_buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{IpcWriteOptions, StreamEncoder};
use arrow_schema::{ArrowError, SchemaRef};
use hubsub_types::names::DeviceTemplate;
use std::sync::Arc;

/// Initial capacity of text buffers, so that the first rows do not grow them repeatedly.
const BEGIN_BYTES: usize = 64 * 1024;

/// Part of a stream, as a sequence of buffers.
#[derive(Clone, Debug, Default)]
pub struct Chunk {
    buffers: Vec<Buffer>,
    pub rows: usize,
}

impl Chunk {
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.buffers.iter().map(Buffer::as_slice)
    }

    pub fn len(&self) -> usize {
        self.buffers.iter().map(Buffer::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Splits off at most the first `bytes_max` bytes; all rows count with them. Copies nothing.
    #[must_use]
    pub fn split_to(&mut self, bytes_max: usize) -> Chunk {
        let (mut first, mut left) = (Chunk { buffers: Vec::new(), rows: self.rows }, bytes_max);
        self.rows = 0;
        let mut rest = std::mem::take(&mut self.buffers).into_iter();
        for buffer in rest.by_ref() {
            if buffer.len() > left {
                first.buffers.push(buffer.slice_with_length(0, left));
                self.buffers.push(buffer.slice(left));
                break;
            }
            left -= buffer.len();
            first.buffers.push(buffer);
        }
        self.buffers.extend(rest);
        first
    }

    pub fn append(&mut self, other: Chunk) {
        self.buffers.extend(other.buffers);
        self.rows += other.rows;
    }
}

pub struct Encoder {
    shape: Shape,
    schema: SchemaRef,
    stream: StreamEncoder,
    rows: Rows,
    /// Sizes of the previous batches, from which the next one's buffers are allocated.
    before: Sizes,
}

impl Encoder {
    pub fn new(mut shape: Shape) -> Encoder {
        shape.columns.sort_unstable();
        shape.columns.dedup();
        let codec = shape.is_compressed.then_some(CompressionType::LZ4_FRAME);
        let options = IpcWriteOptions::default().try_with_compression(codec);
        let options = options.expect("this version of the format knows compression");
        let schema = Arc::new(schema::schema(&shape.columns));
        let stream = StreamEncoder::try_new_with_options(&schema, options);
        let stream = stream.expect("the schema's types are all known to the format");
        let (rows, before) = (Rows::new(&shape.columns, Sizes::default()), Sizes::default());
        Encoder { shape, schema, stream, rows, before }
    }

    pub fn push(&mut self, record: &Record<'_>) {
        self.rows.push(record, self.shape.device.as_deref());
    }

    pub fn rows(&self) -> usize {
        self.rows.count
    }

    /// Whether these rows are a whole batch.
    pub fn is_full(&self) -> bool {
        self.rows.count >= self.shape.batch_rows || self.rows.bytes() >= self.shape.batch_bytes
    }

    /// Encodes the waiting rows as a batch, which may be empty; the first batch is preceded by the schema.
    ///
    /// # Errors
    /// They exceed Arrow's 32-bit offsets.
    pub fn take(&mut self) -> Result<Chunk> {
        let count = self.rows.count;
        let sizes = self.rows.sizes();
        self.before = Sizes {
            rows: sizes.rows.max(self.before.rows).min(self.shape.batch_rows),
            names: sizes.names.max(self.before.names).min(self.shape.batch_bytes),
            payload: sizes.payload.max(self.before.payload).min(self.shape.batch_bytes),
        };
        let rows = std::mem::replace(&mut self.rows, Rows::new(&self.shape.columns, self.before));
        let cannot = |e: ArrowError| LogError::io("cannot encode records", std::io::Error::other(e));
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), rows.columns(), &options);
        let buffers = self.stream.encode(&batch.map_err(cannot)?).map_err(cannot)?;
        Ok(Chunk { buffers, rows: count })
    }

    /// Encodes the waiting rows and the end of the stream.
    ///
    /// # Errors
    /// As for `take`.
    pub fn finish(mut self) -> Result<Chunk> {
        let mut chunk = if self.rows() > 0 { self.take()? } else { Chunk::default() };
        let cannot = |e: ArrowError| LogError::io("cannot encode records", std::io::Error::other(e));
        chunk.buffers.extend(self.stream.finish().map_err(cannot)?);
        Ok(chunk)
    }
}

#[derive(Clone, Copy, Default)]
struct Sizes {
    rows: usize,
    names: usize,
    payload: usize,
}

/// The rows of one batch, by column; columns that were not requested stay empty.
struct Rows {
    count: usize,
    wanted: [bool; COLUMNS.len()],
    hub: Vec<i32>,
    term: Vec<i64>,
    offset: Vec<i64>,
    room: Texts,
    epoch: Vec<i64>,
    seq: Vec<i64>,
    topic: Texts,
    timestamp: Vec<i64>,
    publisher: Texts,
    device: Texts,
    /// Validity of `device`: false where the device is null.
    is_device: Vec<bool>,
    /// End of each row's headers in `keys` and `values`.
    headers: Vec<i32>,
    keys: Texts,
    values: Texts,
    payload: Texts,
}

impl Rows {
    fn new(columns: &[Column], sizes: Sizes) -> Rows {
        let mut wanted = [false; COLUMNS.len()];
        columns.iter().for_each(|&column| wanted[column as usize] = true);
        let rows = |column: Column| if wanted[column as usize] { sizes.rows } else { 0 };
        let texts = |column: Column, bytes: usize| match wanted[column as usize] {
            true => Texts::with_capacity(sizes.rows, bytes),
            false => Texts::with_capacity(0, 0),
        };
        let mut headers = Vec::with_capacity(rows(Column::Headers) + 1);
        headers.push(0);
        Rows {
            count: 0,
            wanted,
            hub: Vec::with_capacity(rows(Column::Hub)),
            term: Vec::with_capacity(rows(Column::Term)),
            offset: Vec::with_capacity(rows(Column::Offset)),
            room: texts(Column::Room, sizes.names),
            epoch: Vec::with_capacity(rows(Column::Epoch)),
            seq: Vec::with_capacity(rows(Column::Seq)),
            topic: texts(Column::Topic, sizes.names),
            timestamp: Vec::with_capacity(rows(Column::Timestamp)),
            publisher: texts(Column::Publisher, sizes.names),
            device: Texts::with_capacity(rows(Column::Device), 0),
            is_device: Vec::with_capacity(rows(Column::Device)),
            headers,
            keys: Texts::with_capacity(0, 0),
            values: Texts::with_capacity(0, 0),
            payload: texts(Column::Payload, sizes.payload),
        }
    }

    fn wants(&self, column: Column) -> bool {
        self.wanted[column as usize]
    }

    fn push(&mut self, record: &Record<'_>, template: Option<&DeviceTemplate>) {
        self.count += 1;
        // The log's 64-bit numbers fit into 63 bits: offsets and seqs count from 1, and the high half of an
        // epoch is a time in seconds.
        let numbers = [
            (Column::Term, &mut self.term, record.term),
            (Column::Offset, &mut self.offset, record.offset),
            (Column::Epoch, &mut self.epoch, record.epoch),
            (Column::Seq, &mut self.seq, record.seq),
            (Column::Timestamp, &mut self.timestamp, record.timestamp_us),
        ];
        for (column, values, value) in numbers {
            if self.wanted[column as usize] {
                values.push(value as i64);
            }
        }
        if self.wants(Column::Hub) {
            self.hub.push(record.hub.0 as i32);
        }
        if self.wants(Column::Room) {
            self.room.push(|bytes| append_name(bytes, record.room));
        }
        if self.wants(Column::Topic) {
            self.topic.push(|bytes| append_name(bytes, record.topic));
        }
        if self.wants(Column::Publisher) {
            self.publisher.push(|bytes| append_lossy(bytes, record.publisher));
        }
        if self.wants(Column::Device) {
            let device = template.and_then(|template| template.device(record.topic));
            self.device.push(|bytes| append_name(bytes, device.unwrap_or_default()));
            self.is_device.push(device.is_some());
        }
        if self.wants(Column::Headers) {
            for (key, value) in decode_headers(record.headers) {
                self.keys.push(|bytes| bytes.extend_from_slice(key.as_bytes()));
                self.values.push(|bytes| bytes.extend_from_slice(value.as_bytes()));
            }
            self.headers.push(self.keys.len() as i32);
        }
        if self.wants(Column::Payload) {
            self.payload.push(|bytes| bytes.extend_from_slice(record.payload));
        }
    }

    fn bytes(&self) -> usize {
        let names = [&self.room, &self.topic, &self.publisher, &self.device];
        let texts = names.into_iter().chain([&self.keys, &self.values, &self.payload]);
        texts.map(|texts| texts.bytes.len()).sum()
    }

    fn sizes(&self) -> Sizes {
        let names = [&self.room, &self.topic, &self.publisher].map(|texts| texts.bytes.len());
        Sizes {
            rows: self.count,
            names: names.into_iter().max().unwrap_or(0),
            payload: self.payload.bytes.len(),
        }
    }

    fn columns(self) -> Vec<ArrayRef> {
        let wanted = self.wanted;
        let all: [ArrayRef; COLUMNS.len()] = [
            Arc::new(Int32Array::from(self.hub)),
            Arc::new(Int64Array::from(self.term)),
            Arc::new(Int64Array::from(self.offset)),
            Arc::new(self.room.array::<Utf8Type>(None)),
            Arc::new(Int64Array::from(self.epoch)),
            Arc::new(Int64Array::from(self.seq)),
            Arc::new(self.topic.array::<Utf8Type>(None)),
            Arc::new(TimestampMicrosecondArray::from(self.timestamp).with_timezone("UTC")),
            Arc::new(self.publisher.array::<Utf8Type>(None)),
            Arc::new(self.device.array::<Utf8Type>(Some(NullBuffer::from(self.is_device)))),
            Arc::new(headers(self.headers, self.keys, self.values)),
            Arc::new(self.payload.array::<BinaryType>(None)),
        ];
        all.into_iter().zip(wanted).filter(|&(_, wanted)| wanted).map(|(array, _)| array).collect()
    }
}

fn headers(ends: Vec<i32>, keys: Texts, values: Texts) -> MapArray {
    let pairs: Vec<ArrayRef> =
        vec![Arc::new(keys.array::<Utf8Type>(None)), Arc::new(values.array::<Utf8Type>(None))];
    let pairs = StructArray::new(schema::pair(), pairs, None);
    let ends = OffsetBuffer::new(ScalarBuffer::from(ends));
    MapArray::new(Arc::new(schema::entries()), ends, pairs, None, false)
}

struct Texts {
    bytes: Vec<u8>,
    /// End of each value, after a first 0.
    ends: Vec<i32>,
}

impl Texts {
    fn with_capacity(rows: usize, bytes: usize) -> Texts {
        let bytes = if rows > 0 { bytes.max(BEGIN_BYTES) + bytes / 8 } else { 0 };
        let mut ends = Vec::with_capacity(rows + 1);
        ends.push(0);
        Texts { bytes: Vec::with_capacity(bytes), ends }
    }

    fn len(&self) -> usize {
        self.ends.len() - 1
    }

    /// Adds the value that `append` appends.
    fn push(&mut self, append: impl FnOnce(&mut Vec<u8>)) {
        append(&mut self.bytes);
        // A batch ends far below 2 GiB, and a record has 260 MiB at most.
        self.ends.push(self.bytes.len() as i32);
    }

    /// Converts to an array, with optional nulls. A text column must have only valid UTF-8.
    fn array<T: ByteArrayType<Offset = i32>>(self, nulls: Option<NullBuffer>) -> GenericByteArray<T> {
        let Texts { bytes, ends } = self;
        assert!(i32::try_from(bytes.len()).is_ok(), "a batch of {} bytes", bytes.len());
        // SAFETY: ends begin with 0, never decrease, and the last is the length of the bytes, which fits;
        // there are as many nulls as values. Texts were appended as whole `str`s: plain ones are ASCII, the
        // others were made of valid chunks.
        unsafe {
            let ends = OffsetBuffer::new_unchecked(ScalarBuffer::from(ends));
            GenericByteArray::new_unchecked(ends, Buffer::from_vec(bytes), nulls)
        }
    }
}
