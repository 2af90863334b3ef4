//! Messages too long to buffer as a packet: the payload is collected in the allocation that becomes the
//! record. So a long message is in memory once, apart from the log's and subscribers' copies, and the
//! announced bytes of all clients of a shard are bounded together.
//!
//! Invariant: a connection has at most one, and none after it ended.

use super::client::end;
use super::packets::take;
use crate::io::context::Ctx;
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_mqtt::Fault;
use hubsub_route::{Headers, Namespace, Record};
use hubsub_types::ConnKey;
use hubsub_wire::mqtt::{DecodeLimits, Decoded, Decoder, Packet, Publish, Reason};

/// Packets up to this size are buffered until complete, or up to `input_shard_bytes_max` where that is less.
pub(super) const WHOLE_BYTES: usize = 2 * 1024 * 1024;

/// A message being received.
pub struct Large {
    /// The packet without its payload.
    head: Box<[u8]>,
    /// The decoder as it was before the head, to decode the head again.
    decoder: Decoder,
    /// The limits for that.
    limits: DecodeLimits,
    /// The topic and the payload so far.
    bytes: Vec<u8>,
    topic_len: usize,
    /// Bytes of topic and payload.
    announced: usize,
}

/// The long messages of a shard, by connection: few have one.
#[derive(Default)]
pub struct LongMessages {
    all: HashMap<ConnKey, Large, RandomState>,
    /// Announced bytes of all.
    bytes: usize,
}

impl LongMessages {
    /// Announced bytes of topics and payloads.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn insert(&mut self, key: ConnKey, large: Large) {
        self.bytes += large.announced;
        self.all.insert(key, large);
    }

    /// Removes a message that is complete or whose connection ended.
    pub(super) fn remove(&mut self, key: ConnKey) -> Option<Large> {
        let large = self.all.remove(&key)?;
        self.bytes -= large.announced;
        Some(large)
    }
}

/// The head of a long message has arrived.
pub(super) fn begin(
    ctx: &mut Ctx,
    key: ConnKey,
    publish: &Publish<'_>,
    head: &[u8],
    read: (Decoder, DecodeLimits),
    payload_bytes: usize,
) {
    let topic_len = publish.topic.len();
    let announced = topic_len + payload_bytes;
    let in_flight = ctx.io.states.mqtt.long_messages.bytes();
    if in_flight > 0 && (in_flight + announced) as u64 > ctx.io.limits.mqtt_large_bytes_max {
        ctx.io.metrics.mqtt_large_refused_total.add(1);
        let what = "too many bytes of long messages are under way: mqtt_large_bytes_max";
        return end(ctx, key, Fault { reason: Reason::QuotaExceeded, what });
    }
    // The system allocates pages as they are written, so an announcement alone costs nothing.
    let mut bytes = Vec::with_capacity(announced);
    bytes.extend_from_slice(publish.topic.as_bytes());
    let (decoder, limits) = read;
    ctx.io
        .states
        .mqtt
        .long_messages
        .insert(key, Large { head: head.into(), decoder, limits, bytes, topic_len, announced });
}

/// The next part of its payload.
pub(super) fn go_on(ctx: &mut Ctx, key: ConnKey, bytes: &[u8], is_last: bool) {
    let now_ms = ctx.io.now.mono_ms;
    let Some(client) = ctx.io.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut()) else { return };
    // A slow transfer is not silence.
    client.machine.excuse(now_ms);
    let Some(large) = ctx.io.states.mqtt.long_messages.all.get_mut(&key) else { return };
    large.bytes.extend_from_slice(bytes);
    if is_last && let Some(large) = ctx.io.states.mqtt.long_messages.remove(key) {
        ctx.io.metrics.mqtt_packets_total.add(1);
        whole(ctx, key, large);
    }
}

/// It is complete and handled like any PUBLISH, except that its payload is not in the packet.
fn whole(ctx: &mut Ctx, key: ConnKey, large: Large) {
    let Large { head, mut decoder, limits, bytes, topic_len, .. } = large;
    let Ok(Decoded::Head { publish, .. }) = decoder.decode(&head, &limits) else {
        unreachable!("it was read before")
    };
    take(ctx, key, Packet::Publish(publish), Some(Whole { bytes, topic_len }));
}

/// Topic and payload of a collected message.
pub(super) struct Whole {
    bytes: Vec<u8>,
    /// 0 if an alias replaces the topic.
    topic_len: usize,
}

impl Whole {
    /// Converts it to a record.
    pub fn record(self, topic: &[u8], publisher: Box<str>, headers: Headers) -> Record {
        let Whole { mut bytes, topic_len } = self;
        if topic_len == 0 {
            bytes.splice(..0, topic.iter().copied());
        }
        Record::of_parts(Namespace::Global, bytes, topic.len(), publisher, headers)
    }
}
