//! What a client waits for between its CONNECT and its CONNACK: that its id is its own. One whose session is kept in
//! another place goes there ([`handover`](super::handover)).

use super::durable::{self, Wait};
use super::reading;
use crate::control::Level;
use crate::core::Core;
use crate::rim::{Rim, Timer};
use hubsub_route::Answer;
use hubsub_route::claims::Heir;
use hubsub_types::ConnKey;
use hubsub_wire::mqtt::{Accepted, Fault, Reason};

/// See the module.
pub struct Arrival {
    /// Its CONNACK.
    pub accepted: Accepted,
    /// Whether it has the session that it came for, and waits until that is recorded.
    pub is_resumed: bool,
    /// Subscriptions of a session that another process had which are not confirmed, less those that are before it is known how
    /// many there are; none of another one.
    pub follows: Option<i64>,
    /// Its CONNECT, if it would go on with a session that is kept.
    pub connect: Box<[u8]>,
}

/// A client id is its connection's own, or that of a session that is to be taken in; and no session is kept on this node.
pub(super) fn granted(core: &mut Core, key: ConnKey) {
    if reading::begin_adopted(core, key) {
        return;
    }
    let rim = &mut core.rim;
    let share = rim.limits.mqtt_sessions_max.div_ceil(u64::from(rim.mailer.shards()));
    let sessions = rim.sessions.connected + rim.sessions.absent();
    let client = rim.conns.get(key).and_then(|conn| conn.mqtt.as_ref());
    if client.is_some_and(|client| client.session.is_some()) && sessions as u64 > share {
        return refused(core, key, Reason::QuotaExceeded);
    }
    let arrival = client.and_then(|client| Some((client.machine.client_id(), client.arrival.as_deref()?)));
    let arrival = arrival.map(|(id, arrival)| (Box::<str>::from(id), arrival.connect.is_empty()));
    match arrival {
        Some((id, is_clean)) if core.reads_sessions() => reading::begin(core, key, id, is_clean),
        _ => recorded(core, key, false),
    }
}

impl Rim {
    /// What came of a subscription of a session that another process had; whether its client waits for it.
    pub(super) fn has_followed(&mut self, key: ConnKey, answer: &Answer) -> bool {
        let client = self.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut());
        let arrival = client.and_then(|client| client.arrival.as_mut());
        let Some(left) = arrival.and_then(|arrival| arrival.follows.as_mut()) else { return false };
        *left -= 1;
        let is_held = !matches!(answer, Answer::Attached(Err(_)));
        if *left == 0 || !is_held {
            self.own.follow(key, is_held);
        }
        true
    }
}

/// A session that another process had is subscribed to all that it was, or cannot be.
pub fn followed(core: &mut Core, key: ConnKey, is_held: bool) {
    if is_held {
        return recorded(core, key, true);
    }
    // It would stay here without what was refused: whoever comes for it reads it anew, and subscribes to all of it.
    let client = core.rim.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut());
    let session = client.and_then(|client| client.session.as_mut());
    session
        .into_iter()
        .for_each(|session| session.yields_to = Some(Box::new(Heir::Away { is_clean: false })));
    refused(core, key, Reason::ServerUnavailable);
}

/// A client has its session, and is connected once that is recorded, where sessions are.
pub(super) fn recorded(core: &mut Core, key: ConnKey, session_present: bool) {
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
