//! The steps between CONNECT and CONNACK: mainly, waiting for the client id. A connection whose session has
//! its slot in another shard moves there ([`handover`](super::handover)).

use super::client::{client_mut, client_ref, end};
use super::work::Work;
use super::{
    claims, missing_subscriptions, offline, persist, session, session_cursors, takeover, takeover_read,
};
use crate::io::conn::Flags;
use crate::io::context::Ctx;
use crate::io::log_lines::Level;
use crate::io::shard_io::{Io, Timer};
use hubsub_mqtt::{Client, Connecting, Fault, Machine, Opened, Persistence, Refusal, Session, Terms, Wait};
use hubsub_route::Answer;
use hubsub_route::claims::{Aim, Claimant, Heir, Holder};
use hubsub_types::ConnKey;
use hubsub_wire::mqtt::{Connect, Decoder, Reason};

/// The limits granted to clients. The configuration ensures that they fit their packet fields.
fn terms(io: &Io, retains: bool) -> Terms {
    let limits = &io.limits;
    Terms {
        packet_bytes_max: limits.mqtt_packet_bytes_max as u32,
        receive_max: limits.mqtt_receive_max as u16,
        is_strict: io.info.mqtt.is_strict,
        inflight_max: limits.mqtt_inflight_max as u16,
        aliases_max: limits.mqtt_topic_aliases_max as u16,
        keep_alive_s_max: limits.mqtt_keep_alive_s_max as u16,
        retains,
        long_ids: io.info.mqtt.long_ids,
        session_expiry_s_max: limits.mqtt_session_expiry_s_max as u32,
        session_expiry_s_default: limits.mqtt_session_expiry_s.min(limits.mqtt_session_expiry_s_max) as u32,
        has_shares: true,
    }
}

pub(super) fn begin(ctx: &mut Ctx, key: ConnKey, connect: &Connect<'_>, packet: &[u8], decoder: Decoder) {
    let (retains, records) = (ctx.broker.rows_class().is_some(), ctx.records_sessions());
    // The subscriptions that are missing in the session of this slot.
    let missing = missing_subscriptions::takes_filters(ctx, key);
    let io = &mut ctx.io;
    // A connection that has moved to its session's slot leaves together with the session.
    let is_late = io.states.mqtt.is_leaving && io.states.mqtt.sessions.get_mut(key).is_none();
    let Some(conn) = io.conns.get_mut(key) else { return };
    conn.flags.set(Flags::HANDSHAKED, true);
    let id = conn.id;
    let is_known = connect.user_name.is_none_or(|name| name == "default");
    let opened = if is_late {
        Err(Refusal::new(connect, Fault::of(Reason::ServerUnavailable)))
    } else if is_known {
        // Unique in the cluster because the run id of the node is.
        let new_id = || format!("hubsub-{}-{id}", &io.info.run_id[..12]);
        Machine::open(connect, &terms(io, retains), io.now.mono_ms, new_id)
    } else {
        Err(Refusal::new(connect, Fault::of(Reason::BadUserNameOrPassword)))
    };
    match opened {
        Ok(Opened { mut machine, is_clean, accepted }) => {
            let client_id = machine.client_id().into();
            let mut session = None;
            let has_session = machine.session_expiry_s() > 0;
            // This session ends with its connection; it is persisted only for its will.
            let is_recorded = records && io.info.mqtt.records_wills && machine.will.is_some();
            if has_session || is_recorded {
                let persistence = records.then(|| Box::new(Persistence::new(super::claims::new_token(io))));
                session = Some(Box::new(Session::new(persistence, 0)));
            }
            if session.is_some() && records {
                machine.record();
            }
            io.states.mqtt.sessions.connected += usize::from(session.is_some());
            let connect = if is_clean { Box::default() } else { packet.into() };
            let connecting = Connecting { accepted, is_resumed: false, follows: None, connect };
            let mut client = Client::new(machine, decoder, connecting, session);
            io.states.mqtt.clients += 1;
            let is_resumed = offline::resume(io, key, &mut client);
            if let Some(connecting) = &mut client.connecting {
                connecting.is_resumed = is_resumed;
            }
            if let Some(conn) = io.conns.get_mut(key) {
                conn.mqtt = Some(Box::new(client));
            }
            if is_resumed {
                if let Some(filters) = missing {
                    return takeover::follow(ctx, key, &filters);
                }
                let _ = session_cursors::resume(ctx, key);
                return recorded(ctx, key, true);
            }
            let who = Holder { shard: io.shard, conn: key };
            let aim = if is_clean { Aim::Clean } else { Aim::Resume };
            claims::claim(ctx, client_id, Claimant { who, aim });
        }
        Err(refusal) => {
            // The session that it would have continued ends too: the connection occupies its slot.
            session::forget(ctx, key);
            let io = &mut ctx.io;
            io.metrics.mqtt_refused_total.add(1);
            let fields = vec![
                ("client", connect.client_id.chars().take(64).collect()),
                ("reason", refusal.fault.what.to_owned()),
            ];
            io.log_conn(Level::Info, "mqtt client refused", key, fields);
            io.push(key, |out, _| refusal.write(out));
            io.close_soon(key);
        }
    }
}

/// The claim to a client id was granted, to a connection or to a session takeover; this node has no session
/// of that id.
pub(super) fn granted(ctx: &mut Ctx, key: ConnKey) {
    if takeover_read::begin_takeover(ctx, key) {
        return;
    }
    let io = &ctx.io;
    if client_ref(io, key).is_some_and(|client| client.session.is_some())
        && io.has_sessions(0)
        && !forgo_will(&mut ctx.io, key)
    {
        return refused(ctx, key, Reason::QuotaExceeded);
    }
    let client = client_ref(&ctx.io, key);
    let connecting =
        client.and_then(|client| Some((client.machine.client_id(), client.connecting.as_deref()?)));
    let connecting = connecting.map(|(id, connecting)| (Box::<str>::from(id), connecting.connect.is_empty()));
    match connecting {
        Some((id, is_clean)) if ctx.reads_sessions() => takeover_read::begin(ctx, key, id, is_clean),
        _ => recorded(ctx, key, false),
    }
}

impl Io {
    /// True if this many additional sessions exceed this shard's share of `mqtt_sessions_max`.
    pub(super) fn has_sessions(&self, more: usize) -> bool {
        let share = self.limits.mqtt_sessions_max.div_ceil(u64::from(self.mailer.shards()));
        (self.states.mqtt.sessions.connected + self.states.mqtt.sessions.offline() + more) as u64 > share
    }

    /// Counts a confirmation for a session that needs all its subscriptions before CONNACK; returns whether
    /// it is one.
    pub(super) fn has_followed(&mut self, key: ConnKey, answer: &Answer) -> bool {
        let confirmed = client_mut(self, key).and_then(|client| client.confirmed());
        let Some(is_last) = confirmed else { return false };
        if let Answer::Attached(Err(refused)) = *answer {
            self.note_missing(key, refused);
            self.own.queue(Work::Follows(key, false));
        } else if is_last {
            self.own.queue(Work::Follows(key, true));
        }
        true
    }
}

/// The subscriptions of a connecting client's session are complete, or one was refused.
pub fn followed(ctx: &mut Ctx, key: ConnKey, is_held: bool) {
    if is_held {
        return recorded(ctx, key, true);
    }
    if ctx.reads_sessions() {
        // Here the session would lack the refused subscription. The next connect reads it from its rooms and
        // subscribes to all again.
        let session = client_mut(&mut ctx.io, key).and_then(|client| client.session.as_mut());
        session
            .into_iter()
            .for_each(|session| session.yields_to = Some(Box::new(Heir::Away { is_clean: false })));
    }
    refused(ctx, key, Reason::ServerUnavailable);
}

/// Connects a client without a session although its will cannot be persisted: the will is lost if this node
/// fails. Returns whether it is such a client.
pub(super) fn forgo_will(io: &mut Io, key: ConnKey) -> bool {
    let is_its = client_mut(io, key).is_some_and(|client| client.forgo_will());
    if is_its {
        io.states.mqtt.sessions.connected -= 1;
        io.metrics.mqtt_wills_unrecorded_total.add(1);
    }
    is_its
}

/// A client has its session; it is connected once the snapshot is written, where sessions are persisted.
pub(super) fn recorded(ctx: &mut Ctx, key: ConnKey, session_present: bool) {
    if ctx.io.conns.get(key).is_none_or(|conn| conn.is_closing()) {
        return;
    }
    if !persist::request_snapshot(&mut ctx.io, key, Some(Wait::Connected(session_present))) {
        connected(ctx, key, session_present);
    }
}

/// Sends CONNACK, starts the keep-alive timer and delivers what waits.
pub(super) fn connected(ctx: &mut Ctx, key: ConnKey, session_present: bool) {
    let io = &mut ctx.io;
    let now_ms = io.now.mono_ms;
    let silent_at_ms =
        io.with_mqtt(key, |client, out| client.connected(session_present, now_ms, out).flatten());
    if let Some(Some(silent_at_ms)) = silent_at_ms {
        io.timers.set(silent_at_ms, Timer::Silence(key));
    }
    io.pump_mqtt(key);
    io.update_plain(key.index);
    super::members::back(ctx, key);
    // Its hub subscriptions continue from where they were while it was offline.
    ctx.broker.drained(key, ctx.io.now, &mut ctx.io);
}

/// A connecting client was superseded by a later one. No request of its was refused, so it gets CONNACK, then
/// DISCONNECT "session taken over" and its will is published, as for a connected client. Before 5.0 its
/// connection is closed.
pub(super) fn displaced(ctx: &mut Ctx, key: ConnKey) {
    let io = &mut ctx.io;
    if io.conns.get(key).is_none_or(|conn| conn.is_closing()) {
        return;
    }
    if io.with_mqtt(key, |client, out| client.displaced(out)) == Some(true) {
        io.metrics.mqtt_taken_over_total.add(1);
        end(ctx, key, Fault::of(Reason::SessionTakenOver));
    }
}

/// Refuses a connect and closes the connection.
pub(super) fn refused(ctx: &mut Ctx, key: ConnKey, reason: Reason) {
    let io = &mut ctx.io;
    if io.conns.get(key).is_none_or(|conn| conn.is_closing()) {
        return;
    }
    let notified = io.with_mqtt(key, |client, out| {
        client.connecting.as_ref()?;
        client.machine.refuse(Fault::of(reason)).write(out);
        Some(())
    });
    if notified.flatten().is_some() {
        io.metrics.mqtt_refused_total.add(1);
        let fields = vec![("reason", reason.words().to_owned())];
        io.log_conn(Level::Info, "mqtt client refused", key, fields);
        io.close_soon(key);
    }
}
