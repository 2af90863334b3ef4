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

use super::client::end;
use super::connect::displaced;
use super::{claims, persist, session, takeover_read};
use crate::context::Ctx;
use crate::context::conn::Conn;
use crate::io::listener::ListenerKind;
use crate::io::meter::Meter;
use crate::io::transport::Transport;
use crate::mqtt::MqttMail;
use hubsub_mqtt::Fault;
use hubsub_route::claims::{Aim, Heir, Holder};
use hubsub_types::{ConnKey, PrincipalId, ShardId};
use hubsub_wire::mqtt::Reason;

/// A connection on its way to a session.
pub struct Traveller {
    io: Transport,
    id: u64,
    principal: PrincipalId,
    kind: ListenerKind,
    created_s: u32,
    meter: Meter,
    /// Its input: CONNECT and the bytes after it.
    pub input: Vec<u8>,
    /// Its previous place, under which it claims the client id.
    from: Holder,
    client_id: Box<str>,
    /// The slot of the session.
    to: ConnKey,
}

/// The holder must release its id to a connection of this or another node, which may want a new session.
pub(super) fn yields(ctx: &mut Ctx, key: ConnKey, heir: Heir) {
    if takeover_read::ends(ctx, key) {
        return;
    }
    if ctx.io.states.mqtt.sessions.get_mut(key).is_some() {
        return match heir {
            // This slot is about to be freed, and the id with it.
            Heir::Here(to) if to.aim == Aim::Resume && persist::is_moving(&mut ctx.io, key) => {}
            Heir::Here(to) if to.aim == Aim::Resume => call(ctx, key, to.who),
            Heir::Away { is_clean: false } if persist::hand_over(ctx, key) => {}
            _ => session::end(ctx, key),
        };
    }
    let Some(conn) = ctx.io.conns.get_mut(key) else { return };
    let (is_closing, has_queue) =
        (conn.is_closing(), conn.output.as_ref().is_some_and(|output| !output.queue.is_empty()));
    let Some(client) = &mut conn.mqtt else { return };
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
        let holder = Holder { shard: ctx.io.shard, conn: key };
        return persist::release(ctx, id, holder, persistence);
    }
    if is_closing || has_queue {
        // The claimant does not wait for a client that reads nothing.
        ctx.io.close_now(key);
    }
}

/// Calls a connection to an offline session.
pub(super) fn call(ctx: &mut Ctx, key: ConnKey, to: Holder) {
    let here = Holder { shard: ctx.io.shard, conn: key };
    let Some(offline) = ctx.io.states.mqtt.sessions.get_mut(key) else { return };
    offline.awaits = Some(Box::new(to));
    post(ctx, to.shard, MqttMail::Call(to.conn, here));
}

/// A connection that was called to a session is gone.
pub(super) fn abandoned(ctx: &mut Ctx, key: ConnKey) {
    let Some(offline) = ctx.io.states.mqtt.sessions.get_mut(key) else { return };
    offline.awaits = None;
    let (id, here) = (offline.id.clone(), Holder { shard: ctx.io.shard, conn: key });
    claims::keep(ctx, id, here);
}

/// Removes the connections that were called to their sessions; each is returned with its target shard.
pub fn depart(ctx: &mut Ctx) -> Vec<(ShardId, Box<Traveller>)> {
    let mut leaving = Vec::new();
    for (key, to) in std::mem::take(&mut ctx.io.states.mqtt.called) {
        let may_go = ctx.io.conns.get(key).is_some_and(|conn| !conn.is_closing());
        let Some(conn) = may_go.then(|| ctx.io.conns.remove(key)).flatten() else {
            post(ctx, to.shard, MqttMail::Abandon(to.conn));
            continue;
        };
        ctx.broker.disconnected(key, ctx.io.now, &mut ctx.io);
        ctx.io.input_bytes -= conn.unfinished_bytes();
        let Conn { io, id, principal, kind, created_s, meter, input, mqtt, .. } = conn;
        let Some(client) = mqtt else { unreachable!("clients of MQTT are called alone") };
        ctx.io.states.mqtt.clients -= 1;
        ctx.io.states.mqtt.sessions.connected -= usize::from(client.session.is_some());
        let connecting = client.connecting.as_ref().expect("who is connected is not called");
        let mut all = connecting.connect.to_vec();
        all.extend(input.into_iter().flat_map(|input| input.bytes));
        let (from, client_id) =
            (Holder { shard: ctx.io.shard, conn: key }, client.machine.client_id().into());
        let (input, to_place) = (all, to.conn);
        let traveller =
            Traveller { io, id, principal, kind, created_s, meter, input, from, client_id, to: to_place };
        leaving.push((to.shard, Box::new(traveller)));
    }
    leaving
}

impl Traveller {
    /// The socket, for registration.
    pub fn source(&mut self) -> &mut mio::net::TcpStream {
        self.io.source()
    }

    /// Its memory, for mailbox limits.
    #[must_use]
    pub fn weight(&self) -> usize {
        std::mem::size_of::<Traveller>() + self.input.len()
    }

    /// Enters this shard, in the slot of its session if that still exists. Returns its key and its input,
    /// which the caller processes. If a client id is returned, the caller then calls [`handed_over`]; until
    /// then no other connection is called to that session.
    pub fn arrive(self, ctx: &mut Ctx) -> (ConnKey, Vec<u8>, Option<Box<str>>) {
        let Traveller { io, id, principal, kind, created_s, meter, input, from, client_id, to } = self;
        let mut conn = Conn::new(io, kind, id, created_s);
        (conn.principal, conn.meter) = (principal, meter);
        let is_awaited = ctx
            .io
            .states
            .mqtt
            .sessions
            .get_mut(to)
            .is_some_and(|offline| offline.awaits.as_deref() == Some(&from));
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
}

/// A connection has taken over its session; another one may be called to it.
pub fn handed_over(ctx: &mut Ctx, client_id: Box<str>, key: ConnKey) {
    let here = Holder { shard: ctx.io.shard, conn: key };
    claims::keep(ctx, client_id, here);
}

pub(super) fn post(ctx: &mut Ctx, shard: ShardId, mail: MqttMail) {
    if shard == ctx.io.shard {
        claims::receive(ctx, mail);
    } else {
        ctx.io.mailer.post(shard, mail);
    }
}
