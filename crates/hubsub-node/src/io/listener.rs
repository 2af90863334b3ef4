//! Accepting connections. Each shard has its own socket on the same port, and the kernel distributes
//! connections. A node of a cluster binds before it may serve: connections wait in the kernel until the
//! listener opens.
//!
//! Clients leave `descriptors_reserved` of the process's descriptors free for the log, links and the
//! coordinator: a new client whose descriptor is in the reserve gets an error and is closed. Since the system
//! assigns the lowest free number, that many remain free, whoever uses the others. If descriptors run out all
//! the same, the loop and existing clients continue: the new client gets an error and is closed by means of a
//! spare descriptor, and this listener retries after a pause that grows each time.

use crate::io::conn::Conn;
use crate::io::log_lines::Level;
use crate::io::shard_io::{Io, Timer};
use crate::io::transport::{Transport, WebSocket};
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

/// Limit of connections accepted per turn; the rest waits for the next turn.
const ACCEPTS: usize = 256;

/// First pause after running out of descriptors, in ms; it doubles while none is free.
const PAUSE_MS: u64 = 100;

/// Maximum pause, in ms.
const PAUSE_MS_MAX: u64 = 1_000;

/// Limit of connections that the kernel queues per socket until they are accepted.
const BACKLOG: i32 = 4096;

/// Error for a Redis client that cannot be served.
const FULL: &[u8] = b"-ERR max number of clients reached\r\n";

/// The kind of listener through which a client connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListenerKind {
    Redis,
    RedisCluster,
    Mqtt,
    /// Accepts WebSocket connections that carry MQTT.
    WebSocket,
}

impl ListenerKind {
    /// Poll token of a shard's socket of this kind; above every connection's index.
    #[must_use]
    pub fn token(self) -> Token {
        Token(LISTENERS + self as usize)
    }

    /// Whether clients of this listener speak MQTT.
    #[inline]
    #[must_use]
    pub fn is_mqtt(self) -> bool {
        matches!(self, ListenerKind::Mqtt | ListenerKind::WebSocket)
    }

    /// Error for a client that cannot be served; none for MQTT, whose version is not known yet.
    fn full(self) -> &'static [u8] {
        match self {
            ListenerKind::Redis | ListenerKind::RedisCluster => FULL,
            ListenerKind::Mqtt => b"",
            ListenerKind::WebSocket => {
                b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            }
        }
    }
}

/// Lowest poll token of a listener.
pub const LISTENERS: usize = usize::MAX - 8;

pub struct Listener {
    socket: TcpListener,
    kind: ListenerKind,
    /// Whether it accepts; until then, connections wait in the kernel.
    is_open: bool,
    /// Whether more connections may be waiting.
    pub accepts_more: bool,
    /// A spare descriptor, released to accept and refuse one client when descriptors run out.
    spare: Option<File>,
    /// True while paused; exactly then a timer is pending.
    is_paused: bool,
    /// Length of the next pause, in ms.
    pause_ms: u64,
}

/// Binds one socket per shard to the same address. Port 0 becomes a free port, the same for all.
///
/// # Errors
/// The address cannot be bound, or another node listens there.
pub fn bind(address: SocketAddr, shards: u16) -> io::Result<(SocketAddr, Vec<TcpListener>)> {
    let sockets = crate::io::sys::listening_sockets(address, shards, BACKLOG)?;
    let bound = sockets[0].local_addr()?;
    Ok((bound, sockets.into_iter().map(TcpListener::from_std).collect()))
}

impl Listener {
    /// Registers a socket. It accepts from the first turn on if `is_open`, else once `open` is called.
    ///
    /// # Errors
    /// The socket cannot be registered with the poll.
    pub fn new(
        mut socket: TcpListener,
        kind: ListenerKind,
        is_open: bool,
        registry: &Registry,
    ) -> io::Result<Listener> {
        registry.register(&mut socket, kind.token(), Interest::READABLE)?;
        let spare = File::open("/dev/null").ok();
        Ok(Listener {
            socket,
            kind,
            is_open,
            accepts_more: false,
            spare,
            is_paused: false,
            pause_ms: PAUSE_MS,
        })
    }

    /// Whether this is the token of this listener.
    #[must_use]
    pub fn is(&self, token: Token) -> bool {
        self.kind.token() == token
    }

    /// Stops accepting; the kernel refuses waiting connections.
    pub fn close(mut self, registry: &Registry) {
        // The socket is closed next, which deregisters it, too.
        let _ = registry.deregister(&mut self.socket);
    }

    /// Starts accepting. Connections that wait already are accepted in the next turn, since their events have
    /// passed.
    pub fn open(&mut self) {
        self.accepts_more |= !self.is_open;
        self.is_open = true;
    }

    /// Ends a pause. Waiting connections are accepted in the next turn, since their event has passed.
    pub fn resume(&mut self) {
        self.is_paused = false;
        self.accepts_more = true;
        self.spare = self.spare.take().or_else(|| File::open("/dev/null").ok());
    }

    pub fn accept(&mut self, io: &mut Io, registry: &Registry, added: &mut Vec<hubsub_types::ConnKey>) {
        self.accepts_more = false;
        for _ in 0..ACCEPTS {
            if self.is_paused || !self.is_open {
                return;
            }
            match self.socket.accept() {
                Ok((socket, _)) => {
                    self.pause_ms = PAUSE_MS;
                    added.extend(admit(socket, self.kind, io, registry));
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(e) => self.turn_away(&e, io),
            }
        }
        self.accepts_more = true;
    }

    /// Refuses one client and pauses after `accept` failed for lack of descriptors or memory.
    fn turn_away(&mut self, error: &io::Error, io: &mut Io) {
        io.metrics.accept_errors_total.add(1);
        if self.spare.take().is_some()
            && let Ok((mut socket, _)) = self.socket.accept()
        {
            io.metrics.connections_refused_total.add(1);
            let _ = socket.write(self.kind.full());
        }
        self.spare = File::open("/dev/null").ok();
        let fields = vec![("error", error.to_string()), ("connections", io.conns.len().to_string())];
        if io.limited_log(crate::io::shard_io::Once::Accept) {
            io.lines.log(Level::Error, "cannot accept connections", fields);
        }
        self.is_paused = true;
        io.timers.set(io.now.mono_ms + self.pause_ms, Timer::Accept(self.kind));
        self.pause_ms = (self.pause_ms * 2).min(PAUSE_MS_MAX);
    }
}

/// Adds a connection for a socket, unless a limit is reached.
fn admit(
    mut socket: TcpStream,
    kind: ListenerKind,
    io: &mut Io,
    registry: &Registry,
) -> Option<hubsub_types::ConnKey> {
    if !io.info.descriptors.serves(socket.as_raw_fd()) {
        io.metrics.connections_refused_total.add(1);
        let _ = socket.write(kind.full());
        if io.limited_log(crate::io::shard_io::Once::Full) {
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
        if io.limited_log(crate::io::shard_io::Once::Full) {
            let fields = vec![("connections_max", io.limits.connections_max.to_string())];
            io.lines.log(Level::Warning, "connection refused: limit reached", fields);
        }
        return None;
    }
    crate::io::sys::prepare(&socket, io.limits.tcp_keepalive_ms, io.limits.tcp_user_timeout_ms);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream as Client;

    #[test]
    fn a_port_where_another_node_listens_is_refused() {
        for shards in [1, 4] {
            let (bound, _sockets) = bind("127.0.0.1:0".parse().unwrap(), shards).unwrap();
            assert_eq!(bind(bound, 1).unwrap_err().kind(), ErrorKind::AddrInUse);
            assert_eq!(bind(bound, 4).unwrap_err().kind(), ErrorKind::AddrInUse);
        }
    }

    #[test]
    fn nodes_that_start_at_the_same_time_do_not_share_a_port() {
        for _ in 0..50 {
            let (bound, sockets) = bind("127.0.0.1:0".parse().unwrap(), 1).unwrap();
            drop(sockets);
            let start = std::sync::Barrier::new(4);
            let bind = || {
                start.wait();
                bind(bound, 4)
            };
            let results: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(bind)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert!(results.iter().filter(|result| result.is_ok()).count() <= 1);
        }
    }

    #[test]
    fn every_shard_gets_connections() {
        let (bound, sockets) = bind("127.0.0.1:0".parse().unwrap(), 4).unwrap();
        let _clients: Vec<_> = (0..256).map(|_| Client::connect(bound).unwrap()).collect();
        let accepted = |socket: &TcpListener| std::iter::from_fn(|| socket.accept().ok()).count();
        let counts: Vec<_> = sockets.iter().map(accepted).collect();
        assert_eq!(counts.iter().sum::<usize>(), 256);
        assert!(counts.iter().all(|&count| count > 0), "{counts:?}");
    }
}
