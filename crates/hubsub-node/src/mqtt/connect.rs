//! The first steps of a connect: CONNECT, and the claim of the client id. A connection whose session has its
//! slot in another shard moves there ([`handover`](super::handover)).

use super::client::client_ref;
use super::connack::{follow, forgo_will, recorded, refused};
use super::{claims, missing_subscriptions, offline, session, session_cursors, store, takeover_read};
use crate::context::Ctx;
use crate::context::conn::Flags;
use crate::context::io::Io;
use crate::io::log_lines::Level;
use hubsub_mqtt::{Client, Connecting, Fault, Machine, Opened, Persistence, Refusal, Session, Terms};
use hubsub_route::claims::Aim;
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
    let (retains, records) = (ctx.broker.rows_class().is_some(), store::records_sessions(ctx));
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
                let persistence = records.then(|| Box::new(Persistence::new(claims::new_token(io))));
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
                conn.session.put_mqtt(Box::new(client));
            }
            if is_resumed {
                if let Some(filters) = missing {
                    return follow(ctx, key, &filters);
                }
                let _ = session_cursors::resume(ctx, key);
                return recorded(ctx, key, true);
            }
            let aim = if is_clean { Aim::Clean } else { Aim::Resume };
            if claims::claim(ctx, client_id, key, aim) {
                granted(ctx, key);
            }
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
        && offline::has_no_room(io, 0)
        && !forgo_will(&mut ctx.io, key)
    {
        return refused(ctx, key, Reason::QuotaExceeded);
    }
    let client = client_ref(&ctx.io, key);
    let connecting =
        client.and_then(|client| Some((client.machine.client_id(), client.connecting.as_deref()?)));
    let connecting = connecting.map(|(id, connecting)| (Box::<str>::from(id), connecting.connect.is_empty()));
    match connecting {
        Some((id, is_clean)) if store::reads_sessions(ctx) => takeover_read::begin(ctx, key, id, is_clean),
        _ => recorded(ctx, key, false),
    }
}
