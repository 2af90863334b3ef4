//! Messages that are too long to wait for as a whole: their payload is collected as it comes, in the one allocation that
//! becomes the record's own. So a long message is in memory once, besides what the log and subscribers take of it, and
//! what its client has announced is bounded for all clients of the shard together.
//!
//! Invariant: `Rim::mqtt_large_bytes` is what all that are under way have announced.

use super::{end, take};
use crate::core::Core;
use hubsub_route::{Headers, Namespace, Record};
use hubsub_types::ConnKey;
use hubsub_wire::mqtt::{DecodeLimits, Decoded, Decoder, Fault, Packet, Publish, Reason};

/// Packets up to here are kept as they come until they are whole.
pub(super) const WHOLE_BYTES: usize = 2 * 1024 * 1024;

/// A message that is under way.
pub(super) struct Large {
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

impl Large {
    /// What it counts for while it is under way.
    pub fn announced(&self) -> usize {
        self.announced
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
    let under_way = core.rim.mqtt_large_bytes;
    if under_way > 0 && (under_way + announced) as u64 > core.rim.limits.mqtt_large_bytes_max {
        core.rim.metrics.mqtt_large_refused_total.add(1);
        let what = "too many bytes of long messages are under way: mqtt_large_bytes_max";
        return end(core, key, Fault { reason: Reason::QuotaExceeded, what });
    }
    let Some(client) = core.rim.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut()) else { return };
    // The system gives pages of it as they are written: who announces and sends nothing has nothing.
    let mut bytes = Vec::with_capacity(announced);
    bytes.extend_from_slice(publish.topic.as_bytes());
    let (decoder, limits) = read;
    let large = Large { head: head.into(), decoder, limits, bytes, topic_len, announced };
    client.large = Some(Box::new(large));
    core.rim.mqtt_large_bytes += announced;
}

/// The next piece of its payload.
pub(super) fn go_on(core: &mut Core, key: ConnKey, bytes: &[u8], is_last: bool) {
    let now_ms = core.rim.now.mono_ms;
    let Some(client) = core.rim.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut()) else { return };
    // It takes its time, and is not silent meanwhile.
    client.machine.excuse(now_ms);
    let Some(large) = &mut client.large else { return };
    large.bytes.extend_from_slice(bytes);
    if is_last && let Some(large) = client.large.take() {
        core.rim.mqtt_large_bytes -= large.announced;
        core.rim.metrics.mqtt_packets_total.add(1);
        whole(core, key, *large);
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
