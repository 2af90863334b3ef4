//! What a client waits for between its CONNECT and its CONNACK: that its id is its own. One whose session is kept in
//! another place goes there ([`handover`](super::handover)).

use super::client::{Client, end};
use super::durable;
use super::kept::{Kept, Wait};
use super::session::{self, Session};
use super::{absent, adoption, claims, lacking, reading, standing};
use crate::conn::Flags;
use crate::control::Level;
use crate::core::Core;
use crate::rim::{Rim, Timer};
use hubsub_route::Answer;
use hubsub_route::claims::{Aim, Claimant, Heir, Holder};
use hubsub_types::ConnKey;
use hubsub_wire::mqtt::{Accepted, Connect, Decoder, Fault, Machine, Opened, Reason, Refusal, Terms};

/// See the module.
pub struct Arrival {
    /// Its CONNACK.
    pub accepted: Accepted,
    /// Whether it has the session that it came for, and waits until that is recorded.
    pub is_resumed: bool,
    /// Subscriptions of a session that another process had, or that lacked some, which are not confirmed, less those that are
    /// before it is known how many there are; none of another one.
    pub follows: Option<i64>,
    /// Its CONNECT, if it would go on with a session that is kept.
    pub connect: Box<[u8]>,
}

/// What clients are granted. The limits are within what their packets can say: the configuration sees to it.
fn terms(rim: &Rim, retains: bool) -> Terms {
    let limits = &rim.limits;
    Terms {
        packet_bytes_max: limits.mqtt_packet_bytes_max as u32,
        receive_max: limits.mqtt_receive_max as u16,
        is_strict: rim.info.mqtt.is_strict,
        inflight_max: limits.mqtt_inflight_max as u16,
        aliases_max: limits.mqtt_topic_aliases_max as u16,
        keep_alive_s_max: limits.mqtt_keep_alive_s_max as u16,
        retains,
        long_ids: rim.info.mqtt.long_ids,
        session_expiry_s_max: limits.mqtt_session_expiry_s_max as u32,
        session_expiry_s_default: limits.mqtt_session_expiry_s.min(limits.mqtt_session_expiry_s_max) as u32,
        has_shares: true,
    }
}

pub(super) fn begin(core: &mut Core, key: ConnKey, connect: &Connect<'_>, packet: &[u8], decoder: Decoder) {
    let (retains, records) = (core.broker.rows_class().is_some(), core.records_sessions());
    // Of the session of this place, if it was refused something.
    let lacks = lacking::takes_filters(core, key);
    let rim = &mut core.rim;
    // One that has come to its session's place goes with that.
    let is_late = rim.is_leaving && rim.sessions.get_mut(key).is_none();
    let Some(conn) = rim.conns.get_mut(key) else { return };
    conn.flags.set(Flags::HANDSHAKED, true);
    let id = conn.id;
    let is_known = connect.user_name.is_none_or(|name| name == "default");
    let opened = if is_late {
        Err(Refusal::new(connect, Fault::of(Reason::ServerUnavailable)))
    } else if is_known {
        // Unique in the cluster: the node's run is.
        let new_id = || format!("hubsub-{}-{id}", &rim.info.run_id[..12]);
        Machine::open(connect, &terms(rim, retains), rim.now.mono_ms, new_id)
    } else {
        Err(Refusal::new(connect, Fault::of(Reason::BadUserNameOrPassword)))
    };
    match opened {
        Ok(Opened { mut machine, is_clean, accepted }) => {
            let client_id = machine.client_id().into();
            let mut session = None;
            let has_session = machine.session_expiry_s() > 0;
            // A session that ends with its connection: what is recorded of it is there for its will alone.
            let is_recorded = records && rim.info.mqtt.records_wills && machine.has_will();
            if has_session || is_recorded {
                let kept = records.then(|| Box::new(Kept::new(rim.new_token())));
                session = Some(Box::new(Session::new(kept, 0)));
            }
            if session.is_some() && records {
                machine.record();
            }
            rim.sessions.connected += usize::from(session.is_some());
            let connect = if is_clean { Box::default() } else { packet.into() };
            let arrival = Arrival { accepted, is_resumed: false, follows: None, connect };
            let mut client = Client::new(machine, decoder, arrival, session);
            rim.mqtt_clients += 1;
            let is_kept = absent::resume(rim, key, &mut client);
            if let Some(arrival) = &mut client.arrival {
                arrival.is_resumed = is_kept;
            }
            if let Some(conn) = rim.conns.get_mut(key) {
                conn.mqtt = Some(Box::new(client));
            }
            if is_kept {
                if let Some(filters) = lacks {
                    return adoption::follow(core, key, &filters);
                }
                let _ = standing::go_on(core, key);
                return recorded(core, key, true);
            }
            let who = Holder { shard: rim.shard, conn: key };
            let aim = if is_clean { Aim::Clean } else { Aim::Resume };
            claims::claim(core, client_id, Claimant { who, aim });
        }
        Err(refusal) => {
            // What it would have gone on with is over, too: its place is the connection's.
            session::forget(core, key);
            let rim = &mut core.rim;
            rim.metrics.mqtt_refused_total.add(1);
            let fields = vec![
                ("client", connect.client_id.chars().take(64).collect()),
                ("reason", refusal.fault.what.to_owned()),
            ];
            rim.log_conn(Level::Info, "mqtt client refused", key, fields);
            rim.push(key, |out, _| refusal.write(out));
            rim.close_soon(key);
        }
    }
}

/// A client id is its connection's own, or that of a session that is to be taken in; and no session is kept on this node.
pub(super) fn granted(core: &mut Core, key: ConnKey) {
    if reading::begin_adopted(core, key) {
        return;
    }
    let rim = &core.rim;
    let client = rim.conns.get(key).and_then(|conn| conn.mqtt.as_ref());
    if client.is_some_and(|client| client.session.is_some())
        && rim.has_sessions(0)
        && !forgo_will(&mut core.rim, key)
    {
        return refused(core, key, Reason::QuotaExceeded);
    }
    let client = core.rim.conns.get(key).and_then(|conn| conn.mqtt.as_ref());
    let arrival = client.and_then(|client| Some((client.machine.client_id(), client.arrival.as_deref()?)));
    let arrival = arrival.map(|(id, arrival)| (Box::<str>::from(id), arrival.connect.is_empty()));
    match arrival {
        Some((id, is_clean)) if core.reads_sessions() => reading::begin(core, key, id, is_clean),
        _ => recorded(core, key, false),
    }
}

impl Rim {
    /// Whether with so many sessions more there are more than this shard's share of `mqtt_sessions_max`.
    pub(super) fn has_sessions(&self, more: usize) -> bool {
        let share = self.limits.mqtt_sessions_max.div_ceil(u64::from(self.mailer.shards()));
        (self.sessions.connected + self.sessions.absent() + more) as u64 > share
    }

    /// What came of a subscription of a session that is to have all before its client is told; whether its client waits for it.
    pub(super) fn has_followed(&mut self, key: ConnKey, answer: &Answer) -> bool {
        let client = self.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut());
        let arrival = client.and_then(|client| client.arrival.as_mut());
        let Some(left) = arrival.and_then(|arrival| arrival.follows.as_mut()) else { return false };
        *left -= 1;
        let is_last = *left == 0;
        if let Answer::Attached(Err(refused)) = *answer {
            self.lacks(key, refused);
            self.own.follow(key, false);
        } else if is_last {
            self.own.follow(key, true);
        }
        true
    }
}

/// A session that its client waits for is subscribed to all that it should, or cannot be.
pub fn followed(core: &mut Core, key: ConnKey, is_held: bool) {
    if is_held {
        return recorded(core, key, true);
    }
    if core.reads_sessions() {
        // It would stay here without what was refused: whoever comes for it reads it anew, and subscribes to all of it.
        let client = core.rim.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut());
        let session = client.and_then(|client| client.session.as_mut());
        session
            .into_iter()
            .for_each(|session| session.yields_to = Some(Box::new(Heir::Away { is_clean: false })));
    }
    refused(core, key, Reason::ServerUnavailable);
}

/// Connects a client whose will cannot be recorded all the same, if it has no session otherwise: its will is lost if this
/// node is. Whether it is such a client.
pub(super) fn forgo_will(rim: &mut Rim, key: ConnKey) -> bool {
    let client = rim.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut());
    let is_meant = |client: &&mut Box<Client>| {
        client.arrival.is_some() && client.machine.session_expiry_s() == 0 && client.session.is_some()
    };
    let Some(client) = client.filter(is_meant) else { return false };
    client.session = None;
    client.machine.forgo_record();
    rim.sessions.connected -= 1;
    rim.metrics.mqtt_wills_unrecorded_total.add(1);
    true
}

/// A client has its session, and is connected once that is recorded, where sessions are.
pub(super) fn recorded(core: &mut Core, key: ConnKey, session_present: bool) {
    if core.rim.conns.get(key).is_none_or(|conn| conn.is_closing()) {
        return;
    }
    if !durable::due(&mut core.rim, key, Some(Wait::Connected(session_present))) {
        connected(core, key, session_present);
    }
}

/// A client is connected, and told so.
pub(super) fn connected(core: &mut Core, key: ConnKey, session_present: bool) {
    let rim = &mut core.rim;
    let now_ms = rim.now.mono_ms;
    let silent_at_ms = rim.with_mqtt(key, |client, out| {
        client.arrival.take()?.accepted.write(session_present, out);
        client.machine.excuse(now_ms);
        let silent_at_ms = client.machine.silent_at_ms();
        let looks_at_ms = silent_at_ms.unwrap_or(u64::MAX);
        client.session.iter_mut().for_each(|session| session.looks_at_ms = looks_at_ms);
        silent_at_ms
    });
    if let Some(Some(silent_at_ms)) = silent_at_ms {
        rim.timers.set(silent_at_ms, Timer::Silence(key));
    }
    rim.pump_mqtt(key);
    rim.look_whether_plain(key.index);
    super::members::back(core, key);
    // What it followed while it was absent, it follows on.
    core.broker.drained(key, core.rim.now, &mut core.rim);
}

/// A client is not connected yet, and a later one has its id: as if it had been connected just before. It has asked for
/// nothing that was refused, so it is told what who was connected is told, with its will; before 5.0 its connection ends.
pub(super) fn displaced(core: &mut Core, key: ConnKey) {
    let rim = &mut core.rim;
    if rim.conns.get(key).is_none_or(|conn| conn.is_closing()) {
        return;
    }
    let told = rim.with_mqtt(key, |client, out| {
        let Arrival { accepted, is_resumed, connect, .. } = *client.arrival.take()?;
        if let Some(session) = client.session.as_mut().filter(|_| !is_resumed) {
            // What it would have begun has not begun.
            session.is_over = true;
        }
        // Who comes for a session is not told that it has none: it would forget its own part of it, which the later one has.
        accepted.write(is_resumed || !connect.is_empty(), out);
        Some(())
    });
    if told.flatten().is_some() {
        rim.metrics.mqtt_taken_over_total.add(1);
        end(core, key, Fault::of(Reason::SessionTakenOver));
    }
}

/// A client is not connected after all.
pub(super) fn refused(core: &mut Core, key: ConnKey, reason: Reason) {
    let rim = &mut core.rim;
    if rim.conns.get(key).is_none_or(|conn| conn.is_closing()) {
        return;
    }
    let told = rim.with_mqtt(key, |client, out| {
        client.arrival.as_ref()?;
        client.machine.refuse(Fault::of(reason)).write(out);
        Some(())
    });
    if told.flatten().is_some() {
        rim.metrics.mqtt_refused_total.add(1);
        let fields = vec![("reason", reason.words().to_owned())];
        rim.log_conn(Level::Info, "mqtt client refused", key, fields);
        rim.close_soon(key);
    }
}
