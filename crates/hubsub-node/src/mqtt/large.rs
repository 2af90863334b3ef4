//! Messages too long to buffer as a packet: their payload is collected in pieces
//! ([`LongMessages`](hubsub_mqtt::LongMessages)).

use super::client::{client_mut, end};
use super::packets::take;
use crate::context::Ctx;
use hubsub_mqtt::Fault;
use hubsub_types::ConnKey;
use hubsub_wire::mqtt::{DecodeLimits, Decoder, Packet, Publish, Reason};

/// The head of a long message has arrived.
pub(super) fn begin(
    ctx: &mut Ctx,
    key: ConnKey,
    (publish, payload_bytes): (&Publish<'_>, usize),
    head: &[u8],
    read: (Decoder, DecodeLimits),
) {
    let bytes_max = ctx.io.limits.mqtt_large_bytes_max;
    if !ctx.io.states.mqtt.long_messages.begin(key, (publish, payload_bytes), head, read, bytes_max) {
        ctx.io.metrics.mqtt_large_refused_total.add(1);
        let what = "too many bytes of long messages are under way: mqtt_large_bytes_max";
        end(ctx, key, Fault { reason: Reason::QuotaExceeded, what });
    }
}

/// The next part of its payload. A complete message is handled like any PUBLISH, except that its payload is
/// not in the packet.
pub(super) fn go_on(ctx: &mut Ctx, key: ConnKey, bytes: &[u8], is_last: bool) {
    let now_ms = ctx.io.now.mono_ms;
    let Some(client) = client_mut(&mut ctx.io, key) else { return };
    // A slow transfer is not silence.
    client.machine.excuse(now_ms);
    if let Some(message) = ctx.io.states.mqtt.long_messages.add(key, bytes, is_last) {
        ctx.io.metrics.mqtt_packets_total.add(1);
        message.take(|publish, whole| take(ctx, key, Packet::Publish(publish), Some(whole)));
    }
}
