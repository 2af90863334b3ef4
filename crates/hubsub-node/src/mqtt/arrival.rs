//! What a client waits for between its CONNECT and its CONNACK: that its id is its own. One whose session is kept in
//! another place goes there ([`handover`](super::handover)).

use super::durable::{self, Wait};
use crate::control::Level;
use crate::core::Core;
use crate::rim::Timer;
use hubsub_types::ConnKey;
use hubsub_wire::mqtt::{Accepted, Fault, Reason};

/// See the module.
pub struct Arrival {
    /// Its CONNACK.
    pub accepted: Accepted,
    /// Whether it has the session that it came for, and waits until that is recorded.
    pub is_resumed: bool,
    /// Its CONNECT, if it would go on with a session that is kept.
    pub connect: Box<[u8]>,
}

/// A client id is its connection's own, and no session is kept.
pub(super) fn granted(core: &mut Core, key: ConnKey) {
    let rim = &mut core.rim;
    let share = rim.limits.mqtt_sessions_max.div_ceil(u64::from(rim.mailer.shards()));
    let sessions = rim.sessions.connected + rim.sessions.absent();
    let client = rim.conns.get(key).and_then(|conn| conn.mqtt.as_ref());
    if client.is_some_and(|client| client.session.is_some()) && sessions as u64 > share {
        return refused(core, key, Reason::QuotaExceeded);
    }
    recorded(core, key, false);
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
