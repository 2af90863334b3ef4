//! Measures the cost of a record on a link, and the gain of numbers in place of names: `cargo run --release
//! -p hubsub-wire --example link_cost`.
//!
//! A frame is encoded into an arena and decoded, and its topic is looked up: by name in a hash table, as an
//! edge does, or by number in a vector, as it could if each link sent names only once.

use ahash::RandomState;
use hubsub_message::{Namespace, NodeMessage, Record};
use hubsub_types::{Epoch, HubId, Position, Seq, Term};
use hubsub_wire::link::{Decoded, Frame, decode};
use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

const ROUNDS: usize = 2_000;
/// Frames of one turn: the arena stays in the cache, as a shard's does.
const FRAMES: usize = 1_000;

fn main() {
    if cfg!(debug_assertions) {
        return eprintln!("a debug build measures nothing; hint: cargo run --release");
    }
    println!("rooms    way     bytes a frame  encode ns  read and look up ns");
    for rooms in [100, 10_000, 100_000] {
        let names: Vec<Vec<u8>> = (0..rooms).map(|i| format!("chat/channel-{i:06}").into_bytes()).collect();
        let table: HashMap<&[u8], usize, RandomState> =
            names.iter().enumerate().map(|(i, name)| (&name[..], i)).collect();
        let numbers: Vec<[u8; 4]> = (0..rooms as u32).map(u32::to_le_bytes).collect();
        let by_name = |topic: &[u8]| table.get(topic).copied();
        let by_number = |topic: &[u8]| {
            let number = u32::from_le_bytes(topic.try_into().ok()?) as usize;
            names.get(number).map(|_| number)
        };
        report(rooms, "name", |i| &names[i], by_name);
        report(rooms, "number", |i| &numbers[i], by_number);
    }
}

/// Prints the median of all rounds.
fn report<'a>(
    rooms: usize,
    way: &str,
    name: impl Fn(usize) -> &'a [u8],
    find: impl Fn(&[u8]) -> Option<usize>,
) {
    let (mut encode_ns, mut read_ns, mut bytes) = (Vec::new(), Vec::new(), 0);
    let payload = [7; 128];
    let mut arena = Vec::new();
    for round in 0..ROUNDS {
        arena.clear();
        let messages: Vec<NodeMessage> = (0..FRAMES)
            .map(|i| {
                // Rooms in an order that a cache cannot predict.
                let topic = name((round * FRAMES + i) * 7_919 % rooms);
                let mut record = Record::new(Namespace::Global, topic, &payload, "".into(), None);
                record.position = Position { epoch: Epoch(1), seq: Seq(i as u64) };
                record.timestamp_us = 1;
                let (hub, term, record) = (HubId(1), Term(1), Arc::new(record));
                NodeMessage::Deliver { hub, term, previous: Seq(0), before: 0, record }
            })
            .collect();
        let start = Instant::now();
        for message in &messages {
            message.encode(&mut arena);
        }
        encode_ns.push(per_frame(start));
        let (start, mut at, mut found) = (Instant::now(), 0, 0);
        while let Ok(Decoded::Frame { frame, bytes }) = decode(&arena[at..], 1 << 20) {
            let Frame::Message(NodeMessage::Deliver { record, .. }) = frame else {
                unreachable!("only these were encoded")
            };
            found += usize::from(black_box(find(record.topic())).is_some());
            at += bytes;
        }
        read_ns.push(per_frame(start));
        assert_eq!(found, FRAMES);
        bytes = arena.len() / FRAMES;
    }
    println!("{rooms:<8} {way:<7} {bytes:>13}  {:>9.0}  {:>19.0}", median(encode_ns), median(read_ns));
}

fn per_frame(start: Instant) -> f64 {
    start.elapsed().as_nanos() as f64 / FRAMES as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
