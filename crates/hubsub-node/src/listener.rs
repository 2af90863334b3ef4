//! Accepting connections. Each shard has a socket of its own on the same port
//! and the kernel deals connections out. A node of a cluster binds before it may
//! serve: who connects meanwhile waits in the kernel until the listener opens.
//!
//! Clients leave `descriptors_reserved` of the process's descriptors free for the log, links and the coordinator: a
//! newcomer whose descriptor is one of those is told and closed. The system gives out the lowest number that is free,
//! so whoever has the others, that many are left.
//! Running out of descriptors all the same stops neither the loop nor the clients that are there: the newcomer is
//! told and closed with a descriptor kept for that, and this listener tries again after a while, longer each time.

use crate::conn::Conn;
use crate::control::Level;
use crate::rim::{Rim, Timer};
use crate::transport::{Transport, WebSocket};
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

/// Connections taken in one turn; more wait for the next.
const ACCEPTS: usize = 256;

/// Pause after running out of descriptors, in ms; it doubles while they are lacking.
const PAUSE_MS: u64 = 100;

/// The longest pause, in ms.
const PAUSE_MS_MAX: u64 = 1_000;

/// Connections that the kernel holds until they are accepted.
const BACKLOG: i32 = 4096;

/// What a Redis client is told that cannot be served.
const FULL: &[u8] = b"-ERR max number of clients reached\r\n";

/// Which listener a client came in by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Door {
    /// That of plain Redis clients.
    Redis,
    /// That of Redis cluster clients.
    RedisCluster,
    /// That of MQTT clients.
    Mqtt,
    /// That of WebSockets, by which MQTT is spoken.
    WebSocket,
}

impl Door {
    /// What the poll calls a shard's socket of it: above every connection's index.
    #[must_use]
    pub fn token(self) -> Token {
        Token(DOORS + self as usize)
    }

    /// Whether MQTT is spoken there.
    #[inline]
    #[must_use]
    pub fn is_mqtt(self) -> bool {
        matches!(self, Door::Mqtt | Door::WebSocket)
    }

    /// What a client is told that cannot be served; one of MQTT has not said its version yet.
    fn full(self) -> &'static [u8] {
        match self {
            Door::Redis | Door::RedisCluster => FULL,
            Door::Mqtt => b"",
            Door::WebSocket => {
                b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            }
        }
    }
}

/// The least token of a listener.
pub const DOORS: usize = usize::MAX - 8;

/// One shard's listening socket.
pub struct Listener {
    socket: TcpListener,
    door: Door,
    /// Whether it accepts; before, connections wait in the kernel.
    is_open: bool,
    /// Whether more connections may wait to be accepted.
    pub accepts_more: bool,
    /// Given up to accept and turn away one more when descriptors run out.
    spare: Option<File>,
    /// Until its timer ends the pause: there is one timer while this holds, and none else.
    is_paused: bool,
    /// The next pause, in ms.
    pause_ms: u64,
}

/// Binds one socket for each shard to the same address. Port 0 becomes a free
/// port, the same for all.
///
/// # Errors
/// The address cannot be bound; also where another node listens.
pub fn bind(address: SocketAddr, shards: u16) -> io::Result<(SocketAddr, Vec<TcpListener>)> {
    let sockets = crate::sys::listening_sockets(address, shards, BACKLOG)?;
    let bound = sockets[0].local_addr()?;
    Ok((bound, sockets.into_iter().map(TcpListener::from_std).collect()))
}

impl Listener {
    /// Waits for connections; it accepts from the first turn on if `is_open`, else from `open` on.
    ///
    /// # Errors
    /// The poll refuses the socket.
    pub fn new(
        mut socket: TcpListener,
        door: Door,
        is_open: bool,
        registry: &Registry,
    ) -> io::Result<Listener> {
        registry.register(&mut socket, door.token(), Interest::READABLE)?;
        let spare = File::open("/dev/null").ok();
        Ok(Listener {
            socket,
            door,
            is_open,
            accepts_more: false,
            spare,
            is_paused: false,
            pause_ms: PAUSE_MS,
        })
    }

    /// Whether it is what the poll calls so.
    #[must_use]
    pub fn is(&self, token: Token) -> bool {
        self.door.token() == token
    }

    /// Stops accepting; connections that wait are refused by the kernel.
    pub fn close(mut self, registry: &Registry) {
        // The socket is closed next, which deregisters it too.
        let _ = registry.deregister(&mut self.socket);
    }

    /// Accepts from now on: those that wait in the next turn, since their events have passed.
    pub fn open(&mut self) {
        self.accepts_more |= !self.is_open;
        self.is_open = true;
    }

    /// Goes on after a pause, with those that wait; their event has passed.
    pub fn resume(&mut self) {
        self.is_paused = false;
        self.accepts_more = true;
        self.spare = self.spare.take().or_else(|| File::open("/dev/null").ok());
    }

    /// Takes the connections that wait.
    pub fn accept(&mut self, rim: &mut Rim, registry: &Registry, added: &mut Vec<hubsub_types::ConnKey>) {
        self.accepts_more = false;
        for _ in 0..ACCEPTS {
            if self.is_paused || !self.is_open {
                return;
            }
            match self.socket.accept() {
                Ok((socket, _)) => {
                    self.pause_ms = PAUSE_MS;
                    added.extend(admit(socket, self.door, rim, registry));
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(e) => self.turn_away(&e, rim),
            }
        }
        self.accepts_more = true;
    }

    /// Accepting failed for want of descriptors or memory.
    fn turn_away(&mut self, error: &io::Error, rim: &mut Rim) {
        rim.metrics.accept_errors_total.add(1);
        if self.spare.take().is_some()
            && let Ok((mut socket, _)) = self.socket.accept()
        {
            rim.metrics.connections_refused_total.add(1);
            let _ = socket.write(self.door.full());
        }
        self.spare = File::open("/dev/null").ok();
        let fields = vec![("error", error.to_string()), ("connections", rim.conns.len().to_string())];
        if rim.limited_log(crate::rim::Once::Accept) {
            rim.control.log(Level::Error, "cannot accept connections", fields);
        }
        self.is_paused = true;
        rim.timers.set(rim.now.mono_ms + self.pause_ms, Timer::Accept(self.door));
        self.pause_ms = (self.pause_ms * 2).min(PAUSE_MS_MAX);
    }
}

/// Makes a connection of a socket, unless there are too many.
fn admit(
    mut socket: TcpStream,
    door: Door,
    rim: &mut Rim,
    registry: &Registry,
) -> Option<hubsub_types::ConnKey> {
    if !rim.info.descriptors.serves(socket.as_raw_fd()) {
        rim.metrics.connections_refused_total.add(1);
        let _ = socket.write(door.full());
        if rim.limited_log(crate::rim::Once::Full) {
            let fields = rim.info.descriptors.fields();
            rim.control.log(Level::Warning, "connection refused: the descriptors left are reserved", fields);
        }
        return None;
    }
    let open = rim.info.connections.fetch_add(1, Ordering::Relaxed);
    if open >= rim.limits.connections_max {
        rim.info.connections.fetch_sub(1, Ordering::Relaxed);
        rim.metrics.connections_refused_total.add(1);
        let _ = socket.write(door.full());
        if rim.limited_log(crate::rim::Once::Full) {
            let fields = vec![("connections_max", rim.limits.connections_max.to_string())];
            rim.control.log(Level::Warning, "connection refused: limit reached", fields);
        }
        return None;
    }
    crate::sys::prepare(&socket, rim.limits.tcp_keepalive_ms, rim.limits.tcp_user_timeout_ms);
    let id = rim.info.clients.fetch_add(1, Ordering::Relaxed);
    let io = match door {
        Door::WebSocket => {
            Transport::WebSocket(Some(Box::new(WebSocket::new(socket, rim.info.pages.clone()))))
        }
        _ => Transport::Plain(socket),
    };
    let key = rim.add(Conn::new(io, door, id, rim.second()));
    rim.metrics.connections_accepted_total.add(1);
    let conn = rim.conns.get_mut(key).expect("just added");
    if registry
        .register(conn.io.source(), Token(key.index as usize), Interest::READABLE | Interest::WRITABLE)
        .is_err()
    {
        rim.conns.remove(key);
        rim.info.connections.fetch_sub(1, Ordering::Relaxed);
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
