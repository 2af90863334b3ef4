//! Measures the speed of encoding a log as an Arrow stream on one core: the encoder alone, and including the
//! read of segments and their checksums. The segments are in the page cache.
//!
//! `cargo run --release -p hubsub-log --example arrow_speed -- [rows] [lz4]`

use hubsub_log::arrow::{Chunk, Encoder, Shape};
use hubsub_log::record::{self, Record};
use hubsub_log::{Cursor, Disk, HubId, Keep, LogOptions, Opened, open};
use std::hint::black_box;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let rows: u64 = arguments.next().map_or(4_000_000, |n| n.parse().expect("a number of rows"));
    let shape = Shape { is_compressed: arguments.next().as_deref() == Some("lz4"), ..Shape::default() };

    let some = records(1..16_385, HubId(1));
    for _ in 0..3 {
        let (mut encoder, mut bytes, begin) = (Encoder::new(shape.clone()), 0, Instant::now());
        for _ in 0..rows / 16_384 {
            let mut at = 0;
            while at < some.len() {
                let (record, len) = record::parse(&some[at..]).expect("it was encoded");
                encoder.push(&record);
                at += len;
            }
            bytes += sent(&encoder.take().expect("it fits"));
        }
        tell("encoder", rows / 16_384 * 16_384, bytes, begin);
    }

    let directory = tempfile::tempdir().expect("a directory");
    let disk = Arc::new(Disk::lock(directory.path()).expect("nobody else has it"));
    let Opened { mut segments, .. } = open(disk, 1, LogOptions::default()).expect("it is new");
    let hub = segments.add_hub("chat", 0, Keep::Log).expect("there is room");
    for (frame, first) in (1..).zip((1..=rows).step_by(10_000)) {
        let last = (first + 9_999).min(rows);
        let bytes = records(first..last + 1, hub);
        let batch = hubsub_log::Batch { hub, first, count: (last + 1 - first) as u32, bytes };
        segments.apply(1, frame, vec![batch]);
        segments.flush().expect("there is room");
    }
    let chain = segments.chain(hub).expect("it is whole");
    for _ in 0..5 {
        let (mut encoder, mut bytes) = (Encoder::new(shape.clone()), 0);
        let (mut cursor, begin) = (Cursor::at(1), Instant::now());
        while cursor.next() < chain.next() {
            let read = chain.read_through(&mut cursor, u64::MAX, |record| {
                encoder.push(record);
                if encoder.is_full() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            read.expect("it is whole");
            bytes += sent(&encoder.take().expect("it fits"));
        }
        tell("segments", rows, bytes, begin);
    }
}

/// Reads the chunk once, in place of a sender.
fn sent(chunk: &Chunk) -> usize {
    chunk.pieces().for_each(|piece| _ = black_box(piece.last()));
    chunk.len()
}

fn tell(what: &str, rows: u64, bytes: usize, begin: Instant) {
    let seconds = begin.elapsed().as_secs_f64();
    let (rate, volume) = (rows as f64 / seconds / 1e6, bytes as f64 / seconds / 1e9);
    println!("{what}: {rate:.2} million rows/s, {volume:.2} GB/s");
}

fn records(offsets: std::ops::Range<u64>, hub: HubId) -> Vec<u8> {
    let (mut bytes, payload) = (Vec::new(), [b'x'; 128]);
    for offset in offsets {
        let room = format!("chat:room-{}", offset % 1000);
        let record = Record {
            hub,
            term: 1,
            offset,
            epoch: 1 << 32,
            seq: offset / 1000 + 1,
            timestamp_us: 1_700_000_000_000_000 + offset,
            room: room.as_bytes(),
            topic: room.as_bytes(),
            publisher: b"127.0.0.1:41234",
            payload: &payload,
            ..Record::default()
        };
        record::encode(&record, &mut bytes);
    }
    bytes
}
