//! Measures the cost of decoding and encoding a Phoenix message: `cargo run --release -p hubsub-wire
//! --example phoenix_cost`.
//!
//! An event with a payload of 128 bytes, of each version and as bytes: decoded as a client's push; encoded
//! once for all subscribers.

use hubsub_wire::phoenix::{Broadcast, DecodeLimits, Payload, Push, Ref, Version, write_push};
use hubsub_wire::websocket::Kind;
use std::borrow::Cow;
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 2_000;
/// Messages of one turn: the arena stays in the cache, as a shard's does.
const MESSAGES: usize = 1_000;
const LIMITS: DecodeLimits = DecodeLimits { topic_bytes_max: 65_535 };

fn main() {
    if cfg!(debug_assertions) {
        return eprintln!("a debug build measures nothing; hint: cargo run --release");
    }
    let json = format!(r#"{{"user":"neo","text":"{}"}}"#, "x".repeat(128 - 24));
    let binary = [7; 128];
    println!("version  payload  bytes  read ns  write ns");
    report(Version::V1, Payload::Json(&json));
    report(Version::V2, Payload::Json(&json));
    report(Version::V2, Payload::Binary(&binary));
}

/// Prints the median of all rounds.
fn report(version: Version, payload: Payload<'_>) {
    let (topic, event) = ("chat/channel-000001", "message");
    let refs = ["4", "1234"].map(|text| Some(Ref::new(text).expect("short")));
    let [join_ref, reference] = refs.clone();
    let push =
        Push { join_ref, reference, topic: Cow::Borrowed(topic), event: Cow::Borrowed(event), payload };
    let mut pushed = Vec::new();
    let kind = write_push(&mut pushed, version, &push).expect("short");
    let broadcast = Broadcast { topic, event, payload, position: None };
    let (mut read_ns, mut write_ns) = (Vec::new(), Vec::new());
    let mut arena = Vec::new();
    for _ in 0..ROUNDS {
        read_ns.push(per_message(|| match kind {
            Kind::Text => {
                let text = std::str::from_utf8(black_box(&pushed)).expect("a text");
                drop(black_box(Push::read_text(version, text, &LIMITS)));
            }
            Kind::Binary => drop(black_box(Push::read_binary(version, black_box(&pushed), &LIMITS))),
        }));
        arena.clear();
        write_ns.push(per_message(|| {
            black_box(broadcast).write(version, &mut arena);
        }));
    }
    let name = if matches!(payload, Payload::Json(_)) { "JSON" } else { "bytes" };
    let (read, write) = (median(read_ns), median(write_ns));
    let bytes = broadcast.bytes(version);
    println!("{version:<8?} {name:<7} {bytes:>6}  {read:>7.1}  {write:>8.1}");
}

fn per_message(mut work: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..MESSAGES).for_each(|_| work());
    start.elapsed().as_nanos() as f64 / MESSAGES as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
