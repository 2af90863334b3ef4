//! Measures the cost of decoding and encoding an MQTT message: `cargo run --release -p hubsub-wire --example
//! mqtt_cost`.
//!
//! A PUBLISH of 128 bytes, of each version, QoS 0 and 1: decoded from one read of a turn; encoded alone; and,
//! with QoS 1, copied for another subscriber with its own packet id.

use hubsub_wire::mqtt::{
    DecodeLimits, Decoded, Decoder, Encoded, Packet, PacketId, Properties, Publish, Qos, Version,
    write_publish,
};
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 2_000;
/// Packets of one turn: the arena stays in the cache, as a shard's does.
const PACKETS: usize = 1_000;
const LIMITS: DecodeLimits =
    DecodeLimits { packet_bytes_max: 1 << 20, connect_bytes_max: 1 << 16, whole_bytes_max: 1 << 20 };

fn main() {
    if cfg!(debug_assertions) {
        return eprintln!("a debug build measures nothing; hint: cargo run --release");
    }
    println!("version  QoS  bytes  decode ns  encode ns  copy with id ns");
    for version in [Version::V311, Version::V5] {
        for qos in [Qos::AtMostOnce, Qos::AtLeastOnce] {
            report(version, qos);
        }
    }
}

/// Prints the median of all rounds.
fn report(version: Version, qos: Qos) {
    let id = (qos > Qos::AtMostOnce).then_some(PacketId::MIN);
    let publish = Publish {
        dup: false,
        qos,
        retain: false,
        topic: "chat/channel-000001",
        id,
        properties: Properties::default(),
        payload: &[7; 128],
    };
    let (mut decode_ns, mut encode_ns, mut copy_ns) = (Vec::new(), Vec::new(), Vec::new());
    let mut arena = Vec::new();
    let mut packet_bytes = 0;
    for _ in 0..ROUNDS {
        arena.clear();
        let start = Instant::now();
        for _ in 0..PACKETS {
            write_publish(&mut arena, version, black_box(&publish), 1 << 20).expect("short");
        }
        encode_ns.push(per_packet(start));
        packet_bytes = arena.len() / PACKETS;
        decode_ns.push(decode(version, &arena));
        if let Some(id) = id {
            let first = write_publish(&mut arena, version, &publish, 1 << 20).expect("short");
            let start = Instant::now();
            for _ in 0..PACKETS {
                let (start, end) = (arena.len(), arena.len() + first.end - first.start);
                arena.extend_from_within(first.start..first.end);
                let id_at = first.id_at.map(|at| at - first.start + start);
                Encoded { start, end, id_at }.patch(&mut arena, black_box(id), false);
            }
            copy_ns.push(per_packet(start));
        }
    }
    let copy = if copy_ns.is_empty() { "–".to_string() } else { format!("{:.1}", median(copy_ns)) };
    let (decode, encode) = (median(decode_ns), median(encode_ns));
    println!("{version:<8?} {:<4} {packet_bytes:>5}  {decode:>9.1}  {encode:>9.1}  {copy:>15}", qos as u8);
}

/// Decodes all packets of the input, after CONNECT.
fn decode(version: Version, input: &[u8]) -> f64 {
    let connect: &[u8] = match version {
        Version::V5 => &[0x10, 13, 0, 4, b'M', b'Q', b'T', b'T', 5, 2, 0, 0, 0, 0, 0],
        _ => &[0x10, 12, 0, 4, b'M', b'Q', b'T', b'T', 4, 2, 0, 0, 0, 0],
    };
    let mut decoder = Decoder::of_client();
    decoder.decode(connect, &LIMITS).expect("a valid CONNECT");
    let (start, mut at, mut bytes) = (Instant::now(), 0, 0);
    while let Ok(Decoded::Packet { packet: Packet::Publish(publish), len }) =
        decoder.decode(&input[at..], &LIMITS)
    {
        bytes += black_box(publish).payload.len();
        at += len;
    }
    let spent = per_packet(start);
    assert_eq!(bytes, PACKETS * 128);
    spent
}

fn per_packet(start: Instant) -> f64 {
    start.elapsed().as_nanos() as f64 / PACKETS as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
