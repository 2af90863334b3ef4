//! Messages that are too long to wait for as a whole: their payload is collected as it comes, in the one allocation that
//! becomes the record's own. So a long message is in memory once, besides what the log and subscribers take of it, and
//! what its client has announced is bounded for all clients of the shard together.
//!
//! Invariant: a connection has at most one, and none once it has ended.

use super::client::end;
use super::packets::take;
use crate::core::Core;
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_route::{Headers, Namespace, Record};
use hubsub_types::ConnKey;
use hubsub_wire::mqtt::{DecodeLimits, Decoded, Decoder, Fault, Packet, Publish, Reason};

/// Packets up to here are kept as they come until they are whole.
pub(super) const WHOLE_BYTES: usize = 2 * 1024 * 1024;

/// A message that is under way.
pub struct Large {
    /// Its packet without the payload.
    head: Box<[u8]>,
    /// Reads the head again; as it was before it.
    decoder: Decoder,
    /// By which it was read.
    limits: DecodeLimits,
    /// Its topic, and as much of the payload as has come.
    bytes: Vec<u8>,
    topic_len: usize,
    /// Bytes of topic and payload.
    announced: usize,
}

/// Those of a shard, by their connections: few have one.
#[derive(Default)]
pub struct LongMessages {
    all: HashMap<ConnKey, Large, RandomState>,
    /// What they have announced together.
    bytes: usize,
}

impl LongMessages {
    /// Bytes of topics and payloads that were announced.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn insert(&mut self, key: ConnKey, large: Large) {
        self.bytes += large.announced;
        self.all.insert(key, large);
    }

    /// It is whole, or its connection has ended.
    pub(super) fn remove(&mut self, key: ConnKey) -> Option<Large> {
        let large = self.all.remove(&key)?;
        self.bytes -= large.announced;
        Some(large)
    }
}

/// The head of a long message came.
pub(super) fn begin(
    core: &mut Core,
    key: ConnKey,
    publish: &Publish<'_>,
    head: &[u8],
    read: (Decoder, DecodeLimits),
    payload_bytes: usize,
) {
    let topic_len = publish.topic.len();
    let announced = topic_len + payload_bytes;
    let under_way = core.rim.long_messages.bytes();
    if under_way > 0 && (under_way + announced) as u64 > core.rim.limits.mqtt_large_bytes_max {
        core.rim.metrics.mqtt_large_refused_total.add(1);
        let what = "too many bytes of long messages are under way: mqtt_large_bytes_max";
        return end(core, key, Fault { reason: Reason::QuotaExceeded, what });
    }
    // The system gives pages of it as they are written: who announces and sends nothing has nothing.
    let mut bytes = Vec::with_capacity(announced);
    bytes.extend_from_slice(publish.topic.as_bytes());
    let (decoder, limits) = read;
    core.rim
        .long_messages
        .insert(key, Large { head: head.into(), decoder, limits, bytes, topic_len, announced });
}

/// The next piece of its payload.
pub(super) fn go_on(core: &mut Core, key: ConnKey, bytes: &[u8], is_last: bool) {
    let now_ms = core.rim.now.mono_ms;
    let Some(client) = core.rim.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut()) else { return };
    // It takes its time, and is not silent meanwhile.
    client.machine.excuse(now_ms);
    let Some(large) = core.rim.long_messages.all.get_mut(&key) else { return };
    large.bytes.extend_from_slice(bytes);
    if is_last && let Some(large) = core.rim.long_messages.remove(key) {
        core.rim.metrics.mqtt_packets_total.add(1);
        whole(core, key, large);
    }
}

/// It is whole: as any PUBLISH from here on, but that its payload is not in the packet.
fn whole(core: &mut Core, key: ConnKey, large: Large) {
    let Large { head, mut decoder, limits, bytes, topic_len, .. } = large;
    let Ok(Decoded::Head { publish, .. }) = decoder.decode(&head, &limits) else {
        unreachable!("it was read before")
    };
    take(core, key, Packet::Publish(publish), Some(Whole { bytes, topic_len }));
}

/// Topic and payload of a message that was collected.
pub(super) struct Whole {
    bytes: Vec<u8>,
    /// None where an alias stands for the topic.
    topic_len: usize,
}

impl Whole {
    /// The record that it becomes.
    pub fn record(self, topic: &[u8], publisher: Box<str>, headers: Headers) -> Record {
        let Whole { mut bytes, topic_len } = self;
        if topic_len == 0 {
            bytes.splice(..0, topic.iter().copied());
        }
        Record::of_parts(Namespace::Global, bytes, topic.len(), publisher, headers)
    }
}
