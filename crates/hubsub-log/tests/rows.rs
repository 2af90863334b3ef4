//! Rows from an Arrow stream leave their chunks unchanged, however the stream is split; any other stream is
//! an error.

use arrow_array::builder::{MapBuilder, StringBuilder};
use arrow_array::{ArrayRef, BinaryArray, RecordBatch, StringArray};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};
use hubsub_log::arrow::rows::{CHUNK_BYTES, RowChunk, RowError, RowReader, rows};
use hubsub_types::ErrorCode;
use proptest::prelude::*;
use std::sync::Arc;

#[derive(Clone, PartialEq, Debug)]
struct Row {
    topic: String,
    payload: Vec<u8>,
    publisher: Option<String>,
    headers: Vec<(String, String)>,
}

fn stream(rows: &[Row], batch_rows: usize) -> Vec<u8> {
    let mut headers = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
    for row in rows {
        for (name, value) in &row.headers {
            headers.keys().append_value(name);
            headers.values().append_value(value);
        }
        headers.append(true).unwrap();
    }
    let columns: [(&str, ArrayRef); 4] = [
        ("topic", Arc::new(StringArray::from_iter_values(rows.iter().map(|row| &row.topic)))),
        ("payload", Arc::new(BinaryArray::from_iter_values(rows.iter().map(|row| &row.payload)))),
        ("publisher", Arc::new(StringArray::from_iter(rows.iter().map(|row| row.publisher.as_ref())))),
        ("headers", Arc::new(headers.finish())),
    ];
    let batch = RecordBatch::try_from_iter_with_nullable(columns.map(|(n, c)| (n, c, true))).unwrap();
    let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    for start in (0..rows.len()).step_by(batch_rows) {
        writer.write(&batch.slice(start, batch_rows.min(rows.len() - start))).unwrap();
    }
    writer.finish().unwrap();
    writer.into_inner().unwrap()
}

fn read(bytes: &[u8], cut: usize) -> Result<Vec<RowChunk>, RowError> {
    let mut reader = RowReader::new(None, "nobody".to_owned());
    let mut chunks = Vec::new();
    for piece in bytes.chunks(cut) {
        chunks.extend(reader.feed(piece, &|_| Ok(()))?);
    }
    chunks.extend(reader.finish()?);
    Ok(chunks)
}

fn taken(chunks: &[RowChunk]) -> Vec<Row> {
    let mut all = Vec::new();
    for chunk in chunks {
        let rows = rows(&chunk.bytes).expect("a chunk");
        assert_eq!(rows.len(), chunk.rows as usize);
        assert!(!rows.is_empty());
        all.extend(rows.into_iter().map(|row| Row {
            topic: String::from_utf8(row.topic.to_vec()).unwrap(),
            payload: row.payload.to_vec(),
            publisher: (row.publisher != "nobody").then(|| row.publisher.to_owned()),
            headers: row.headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
        }));
    }
    all
}

fn a_row() -> impl Strategy<Value = Row> {
    let headers = proptest::collection::btree_map("[a-c]{1,2}", ".{0,4}", 0..3);
    (
        "[a-zé:/]{1,9}",
        proptest::collection::vec(any::<u8>(), 0..40),
        proptest::option::of("[a-m]{0,4}"),
        headers,
    )
        .prop_map(|(topic, payload, publisher, headers)| Row {
            topic,
            payload,
            publisher,
            headers: headers.into_iter().collect(),
        })
}

proptest! {
    #[test]
    fn rows_come_out_as_they_went_in(
        rows in proptest::collection::vec(a_row(), 0..60), batch_rows in 1usize..70, cut in 1usize..5000,
    ) {
        let chunks = read(&stream(&rows, batch_rows), cut).unwrap();
        prop_assert_eq!(taken(&chunks), rows);
    }

    #[test]
    fn a_stream_that_ends_early_is_an_error(rows in proptest::collection::vec(a_row(), 0..9), part in 0.0..1.0) {
        let bytes = stream(&rows, 4);
        let end = (part * (bytes.len() - 4) as f64) as usize;
        prop_assert!(matches!(read(&bytes[..end], 100), Err(RowError::Stream(_))));
    }

    #[test]
    fn a_chunk_that_was_cut_or_grew_is_none(rows_in in proptest::collection::vec(a_row(), 1..9), by in 1usize..50) {
        let chunks = read(&stream(&rows_in, 4), 1000).unwrap();
        let bytes = &chunks[0].bytes;
        prop_assert!(rows(&bytes[..bytes.len().saturating_sub(by)]).is_none());
        prop_assert!(rows(&[&bytes[..], &vec![0; by]].concat()).is_none());
    }
}

#[test]
fn chunks_are_of_bounded_size_and_a_larger_row_has_one_of_its_own() {
    let row = |len| Row { topic: "t".into(), payload: vec![7; len], publisher: None, headers: vec![] };
    let rows: Vec<Row> = (0..2000).map(|_| row(1000)).chain([row(3 * CHUNK_BYTES)]).collect();
    let chunks = read(&stream(&rows, 100), 1 << 16).unwrap();
    assert_eq!(taken(&chunks), rows);
    let (last, others) = chunks.split_last().unwrap();
    assert!(last.bytes.len() > 3 * CHUNK_BYTES);
    assert!(others.iter().all(|chunk| chunk.bytes.len() < CHUNK_BYTES + 2000));
}

#[test]
fn what_the_check_refuses_is_named_by_its_number() {
    let row = |topic: &str| Row { topic: topic.into(), payload: vec![], publisher: None, headers: vec![] };
    let bytes = stream(&[row("a"), row("b"), row("c")], 2);
    let mut reader = RowReader::new(None, String::new());
    let refuse = |row: &hubsub_log::arrow::rows::Row<'_>| match row.topic {
        b"c" => Err(ErrorCode::NotAllowed),
        _ => Ok(()),
    };
    let error = reader.feed(&bytes, &refuse).unwrap_err();
    assert!(matches!(error, RowError::Refused { row: 2, reason: ErrorCode::NotAllowed }), "{error}");
}

#[test]
fn an_escaped_topic_is_the_bytes_that_it_stands_for() {
    let row = |topic: &str| Row { topic: topic.into(), payload: vec![], publisher: None, headers: vec![] };
    let chunks = read(&stream(&[row("a%FF"), row("100%"), row("%2541"), row("%zz%4")], 9), 999).unwrap();
    let topics: Vec<Vec<u8>> = rows(&chunks[0].bytes).unwrap().iter().map(|row| row.topic.to_vec()).collect();
    assert_eq!(topics, [&b"a\xff"[..], b"100%", b"%41", b"%zz%4"]);
}

/// A compressed buffer states its own uncompressed size, so a few bytes could request any amount of memory.
#[test]
fn compressed_buffers_and_lengths_out_of_all_reason_are_refused_before_they_are_believed() {
    let topics = StringArray::from_iter_values((0..1_000).map(|_| "room"));
    let payloads = StringArray::from_iter_values((0..1_000).map(|_| "hello"));
    let columns: [(&str, ArrayRef); 2] = [("topic", Arc::new(topics)), ("payload", Arc::new(payloads))];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let options = IpcWriteOptions::default().try_with_compression(Some(CompressionType::LZ4_FRAME)).unwrap();
    let mut writer = StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    let compressed = writer.into_inner().unwrap();
    let refused = read(&compressed, 7).unwrap_err().to_string();
    assert!(refused.contains("compressed"), "{refused}");

    for (length, reason) in [(u32::MAX >> 1, "too long"), (4, "whole Arrow IPC stream")] {
        let mut huge = vec![0xff; 4];
        huge.extend(length.to_le_bytes());
        huge.extend([0; 64]);
        let refused = read(&huge, 3).unwrap_err().to_string();
        assert!(refused.contains(reason), "{refused}");
    }
    let mut more = stream(&[], 1);
    more.extend([0; 8]);
    assert!(read(&more, 5).unwrap_err().to_string().contains("follows"));
}
