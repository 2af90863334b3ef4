//! Peers that are refused: counted, logged at most once a second, and answered.

use super::io::{Io, Once};
use crate::io::listener::ListenerKind;
use crate::io::log_lines::Level;
use crate::io::origin_check::ForeignOrigin;
use crate::io::wrong_protocol::WrongProtocol;
use hubsub_types::ConnKey;

impl Io {
    /// Counts and logs a refused request.
    pub fn note_stranger(&mut self, key: ConnKey, stranger: &ForeignOrigin) {
        self.metrics.origins_refused_total.add(1);
        if !self.limited_log(Once::Page) {
            return;
        }
        let fields = match stranger {
            ForeignOrigin::Origin(origin) => {
                vec![("origin", origin.to_string()), ("hint", "ws_origins".to_owned())]
            }
            ForeignOrigin::Host(host) => vec![("host", host.to_string()), ("hint", "hosts".to_owned())],
        };
        self.log_conn(Level::Warning, "page refused", key, fields);
    }
}

/// Sends the error to a peer that speaks another protocol, and closes.
pub fn refuse_protocol(io: &mut Io, key: ConnKey, stranger: WrongProtocol) {
    let Some(kind) = io.conns.get(key).map(|conn| conn.kind) else { return };
    io.push(key, |out, _| out.extend_from_slice(stranger.answer(kind)));
    note_protocol(io, key, stranger);
    io.close_soon(key);
}

/// Counts and logs a refused peer.
pub fn note_protocol(io: &mut Io, key: ConnKey, stranger: WrongProtocol) {
    let Some(kind) = io.conns.get(key).map(|conn| conn.kind) else { return };
    io.metrics.protocol_errors_total.add(1);
    if io.limited_log(Once::WrongProtocol) {
        let fields = vec![("protocol", stranger.name().to_owned())];
        let message = match kind {
            ListenerKind::Mqtt => "another protocol on the MQTT port",
            ListenerKind::WebSocket => "another protocol on the WebSocket port",
            ListenerKind::Redis | ListenerKind::RedisCluster => "another protocol on the Redis port",
        };
        io.log_conn(Level::Warning, message, key, fields);
    }
}
