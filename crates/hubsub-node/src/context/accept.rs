//! Connections of accepted sockets, and their limits.

use super::conn::Conn;
use super::io::{Io, Once, Timer};
use crate::io::listener::{Listener, ListenerKind};
use crate::io::log_lines::Level;
use crate::io::sys;
use crate::io::transport::{Transport, WebSocket};
use hubsub_types::ConnKey;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

impl Io {
    /// Adds the waiting connections of a listener; their keys are appended to `added`.
    pub(crate) fn accept(&mut self, listener: &mut Listener, registry: &Registry, added: &mut Vec<ConnKey>) {
        let accepted = listener.accept(|socket, kind| added.extend(admit(self, socket, kind, registry)));
        let Err(pause) = accepted else { return };
        self.metrics.accept_errors_total.add(1);
        self.metrics.connections_refused_total.add(u64::from(pause.has_refused));
        if self.limited_log(Once::Accept) {
            let fields =
                vec![("error", pause.error.to_string()), ("connections", self.conns.len().to_string())];
            self.lines.log(Level::Error, "cannot accept connections", fields);
        }
        self.timers.set(self.now.mono_ms + pause.ms, Timer::Accept(pause.kind));
    }
}

/// Adds a connection for a socket, unless a limit is reached.
fn admit(io: &mut Io, mut socket: TcpStream, kind: ListenerKind, registry: &Registry) -> Option<ConnKey> {
    if !io.info.descriptors.serves(socket.as_raw_fd()) {
        io.metrics.connections_refused_total.add(1);
        let _ = socket.write(kind.full());
        if io.limited_log(Once::Full) {
            let fields = io.info.descriptors.fields();
            io.lines.log(Level::Warning, "connection refused: the descriptors left are reserved", fields);
        }
        return None;
    }
    let open = io.info.connections.fetch_add(1, Ordering::Relaxed);
    if open >= io.limits.connections_max {
        io.info.connections.fetch_sub(1, Ordering::Relaxed);
        io.metrics.connections_refused_total.add(1);
        let _ = socket.write(kind.full());
        if io.limited_log(Once::Full) {
            let fields = vec![("connections_max", io.limits.connections_max.to_string())];
            io.lines.log(Level::Warning, "connection refused: limit reached", fields);
        }
        return None;
    }
    sys::prepare(&socket, io.limits.tcp_keepalive_ms, io.limits.tcp_user_timeout_ms);
    let id = io.info.clients.fetch_add(1, Ordering::Relaxed);
    let transport = match kind {
        ListenerKind::WebSocket => {
            Transport::WebSocket(Some(Box::new(WebSocket::new(socket, io.info.pages.clone()))))
        }
        _ => Transport::Plain(socket),
    };
    let key = io.add(Conn::new(transport, kind, id, io.second()));
    io.metrics.connections_accepted_total.add(1);
    let conn = io.conns.get_mut(key).expect("just added");
    if registry
        .register(conn.io.source(), Token(key.index as usize), Interest::READABLE | Interest::WRITABLE)
        .is_err()
    {
        io.conns.remove(key);
        io.info.connections.fetch_sub(1, Ordering::Relaxed);
        return None;
    }
    Some(key)
}
