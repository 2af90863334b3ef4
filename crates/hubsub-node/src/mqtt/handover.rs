//! Moves a connection to the shard of its client's session. The session keeps its slot and its subscriptions,
//! so no message is lost or duplicated.
//!
//! ```text
//!  the session's shard                    the connection's shard
//!      │ ── Call: its slot ────────────────► │
//!      │ ◄─ socket and input bytes ───────── │
//!      │ takes the slot; CONNECT is parsed again and finds the session
//! ```
//!
//! The connection has no subscription and was sent nothing: it waits for CONNACK.

use super::changes::{hand_over, is_moving};
use super::claims::{self, here, post};
use super::client::{client_ref, end, is_open};
use super::connack::displaced;
use super::state::mail::{MqttMail, Traveller};
use super::{persist, session, takeover_read};
use crate::context::Ctx;
use crate::context::conn::Conn;
use hubsub_mqtt::Fault;
use hubsub_route::claims::{Aim, Heir};
use hubsub_types::{ConnKey, ShardId};
use hubsub_wire::mqtt::Reason;

/// The holder must release its id to a connection of this or another node, which may want a new session.
pub(super) fn yields(ctx: &mut Ctx, key: ConnKey, heir: Heir) {
    if takeover_read::ends(ctx, key) {
        return;
    }
    if ctx.io.states.mqtt.sessions.get_mut(key).is_some() {
        return match heir {
            // This slot is about to be freed, and the id with it.
            Heir::Here(to) if to.aim == Aim::Resume && is_moving(&mut ctx.io, key) => {}
            Heir::Here(to) if to.aim == Aim::Resume => session::call(ctx, key, to.who),
            Heir::Away { is_clean: false } if hand_over(&mut ctx.io, key) => {}
            _ => session::end(ctx, key),
        };
    }
    let Some(conn) = ctx.io.conns.get_mut(key) else { return };
    let (is_closing, has_queue) =
        (conn.is_closing(), conn.output.as_ref().is_some_and(|output| !output.queue.is_empty()));
    let Some(client) = conn.session.mqtt_mut() else { return };
    let (id, outlives) = (client.machine.client_id().into(), client.outlives());
    let (is_connecting, mut persistence) = (client.connecting.is_some(), None);
    let keeps = match heir {
        Heir::Here(to) => to.aim == Aim::Resume,
        Heir::Away { is_clean } => !is_clean && client.is_recorded(),
    };
    if let Some(session) = &mut client.session {
        session.is_over |= !keeps;
        session.yields_to = keeps.then(|| Box::new(heir));
        if !outlives || !keeps {
            (persistence, session.is_released) = (session.persistence.take(), true);
        }
    }
    if !is_closing {
        match is_connecting {
            true => displaced(ctx, key),
            false => {
                ctx.io.metrics.mqtt_taken_over_total.add(1);
                end(ctx, key, Fault::of(Reason::SessionTakenOver));
            }
        }
    }
    if !outlives || !keeps {
        // The connection may take long to close.
        return persist::release(ctx, id, key, persistence);
    }
    if is_closing || has_queue {
        // The claimant does not wait for a client that reads nothing.
        ctx.io.close_now(key);
    }
}

/// A connection that was called to a session is gone.
pub(super) fn abandoned(ctx: &mut Ctx, key: ConnKey) {
    let Some(offline) = ctx.io.states.mqtt.sessions.get_mut(key) else { return };
    offline.awaits = None;
    let id = offline.id.clone();
    claims::keep(ctx, id, key);
}

/// Removes the connections that were called to their sessions; each is returned with its target shard.
pub fn depart(ctx: &mut Ctx) -> Vec<(ShardId, Box<Traveller>)> {
    let mut leaving = Vec::new();
    for (key, to) in std::mem::take(&mut ctx.io.states.mqtt.called) {
        // It may have got its id, and with it its CONNACK, since it was called: the session was ended meanwhile.
        let is_connecting = client_ref(&ctx.io, key).is_some_and(|client| client.connecting.is_some());
        let may_go = is_connecting && is_open(&ctx.io, key);
        let Some(conn) = may_go.then(|| ctx.io.conns.remove(key)).flatten() else {
            post(ctx, to.shard, MqttMail::Abandon(to.conn));
            continue;
        };
        ctx.broker.disconnected(key, ctx.io.now, &mut ctx.io);
        ctx.io.input_bytes -= conn.unfinished_bytes();
        let Conn { io, id, principal, kind, created_s, meter, input, mut session, .. } = conn;
        let Some(client) = session.take_mqtt() else { unreachable!("it was there just now") };
        ctx.io.states.mqtt.clients -= 1;
        ctx.io.states.mqtt.sessions.connected -= usize::from(client.session.is_some());
        let connecting = client.connecting.as_ref().expect("it was connecting just now");
        let rest = input.into_iter().flat_map(|input| input.bytes);
        let input = connecting.connect.iter().copied().chain(rest).collect();
        let (from, client_id) = (here(ctx, key), client.machine.client_id().into());
        let (shard, to) = (to.shard, to.conn);
        let traveller = Traveller { io, id, principal, kind, created_s, meter, input, from, client_id, to };
        leaving.push((shard, Box::new(traveller)));
    }
    leaving
}

/// Enters this shard, in the slot of its session if that still exists. Returns its key and its input,
/// which the caller processes. If a client id is returned, the caller then calls `handed_over`; until
/// then no other connection is called to that session.
pub fn arrive(ctx: &mut Ctx, traveller: Traveller) -> (ConnKey, Vec<u8>, Option<Box<str>>) {
    let Traveller { io, id, principal, kind, created_s, meter, input, from, client_id, to } = traveller;
    let mut conn = Conn::new(io, kind, id, created_s);
    (conn.principal, conn.meter) = (principal, meter);
    let session = ctx.io.states.mqtt.sessions.get(to);
    let is_awaited = session.is_some_and(|offline| offline.awaits.as_deref() == Some(&from));
    ctx.io.input_bytes += conn.unfinished_bytes();
    let key = if is_awaited {
        ctx.io.conns.put(to, conn);
        to
    } else {
        let key = ctx.io.add(conn);
        ctx.broker.connected(key);
        key
    };
    // The session keeps the id, or this connection claims it again.
    claims::release(ctx, client_id.clone(), from);
    (key, input, is_awaited.then_some(client_id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::session::Session;
    use crate::io::listener::ListenerKind;
    use crate::lone::Lone;
    use crate::mqtt;
    use hubsub_types::Limits;

    #[test]
    fn a_client_that_was_called_and_has_its_connack_meanwhile_stays() {
        let mut lone = Lone::new(Limits::default());
        let (key, _peer) = lone.connect();
        let conn = lone.ctx.io.conns.get_mut(key).unwrap();
        (conn.kind, conn.session) = (ListenerKind::Mqtt, Session::at(ListenerKind::Mqtt));
        let connect = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01a";
        assert_eq!(mqtt::execute(&mut lone.ctx, key, connect), Some(connect.len()));
        assert!(client_ref(&lone.ctx.io, key).unwrap().connecting.is_none(), "it has its CONNACK");
        let to = here(&lone.ctx, key);
        lone.ctx.io.states.mqtt.called.push((key, to));
        assert!(depart(&mut lone.ctx).is_empty());
        assert!(is_open(&lone.ctx.io, key));
    }
}
