//! Publishes the wills of clients.

use super::client::{NOBODY, ticket};
use crate::context::Ctx;
use crate::io::access::Action;
use hubsub_mqtt::{LastWill, will_of};
use hubsub_route::{Draft, Namespace, Outcome, Publisher};
use hubsub_types::ConnKey;

pub(super) fn publish_will(ctx: &mut Ctx, key: ConnKey, will: LastWill, client_id: &str) {
    let LastWill { topic, payload, headers, qos, retain, .. } = will;
    if !ctx.io.access.allowed(Default::default(), Action::Publish, topic.as_bytes()) {
        return ctx.count_refusal(true);
    }
    let draft = Draft {
        namespace: Namespace::Global,
        topic: topic.as_bytes(),
        payload: &payload,
        headers: (!headers.is_empty()).then(|| headers.into()),
        publisher: Publisher::Name(client_id),
        producer: None,
        qos,
        retain,
    };
    // The outcome is ignored: the connection of this key is gone.
    let ticket = ticket(&ctx.io, key, NOBODY);
    let outcome = ctx.broker.publish(ticket, draft, ctx.io.now, &mut ctx.io);
    if let Outcome::Now(Err(_)) = outcome {
        ctx.count_refusal(true);
    }
    ctx.io.metrics.mqtt_wills_total.add(1);
}

/// Publishes the will in the snapshot of a session that ends; returns the session's `born`.
pub(super) fn publish_will_of(ctx: &mut Ctx, key: ConnKey, id: &str, snapshot: &[u8]) -> u64 {
    let (born, will) = will_of(snapshot);
    if let Some(will) = will {
        publish_will(ctx, key, *will, id);
    }
    born
}
