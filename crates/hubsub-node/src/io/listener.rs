//! Accepting connections. Each shard has its own socket on the same port, and the kernel distributes
//! connections. A node of a cluster binds before it may serve: connections wait in the kernel until the
//! listener opens.
//!
//! Clients leave `descriptors_reserved` of the process's descriptors free for the log, links and the
//! coordinator: a new client whose descriptor is in the reserve gets an error and is closed. Since the system
//! assigns the lowest free number, that many remain free, whoever uses the others. If descriptors run out all
//! the same, the loop and existing clients continue: the new client gets an error and is closed by means of a
//! spare descriptor, and this listener retries after a pause that grows each time.

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::net::SocketAddr;

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
    pub fn token(self) -> Token {
        Token(LISTENERS + self as usize)
    }

    /// Whether clients of this listener speak MQTT.
    #[inline]
    pub fn is_mqtt(self) -> bool {
        matches!(self, ListenerKind::Mqtt | ListenerKind::WebSocket)
    }

    /// Error for a client that cannot be served; none for MQTT, whose version is not known yet.
    pub fn full(self) -> &'static [u8] {
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

/// A pause of a listener, because descriptors or memory lack.
pub struct Pause {
    pub kind: ListenerKind,
    pub error: io::Error,
    /// Whether a client was refused.
    pub has_refused: bool,
    /// Its length, in ms; then [`Listener::resume`] ends it.
    pub ms: u64,
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

    /// Accepts waiting connections and hands them to `admit`, at most [`ACCEPTS`].
    ///
    /// # Errors
    /// Descriptors or memory lack: one client was refused, if that was possible, and the listener pauses.
    pub fn accept(&mut self, mut admit: impl FnMut(TcpStream, ListenerKind)) -> Result<(), Pause> {
        self.accepts_more = false;
        for _ in 0..ACCEPTS {
            if self.is_paused || !self.is_open {
                return Ok(());
            }
            match self.socket.accept() {
                Ok((socket, _)) => {
                    self.pause_ms = PAUSE_MS;
                    admit(socket, self.kind);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(error) => return Err(self.turn_away(error)),
            }
        }
        self.accepts_more = true;
        Ok(())
    }

    /// Refuses one client, if a descriptor can be had for that, and begins a pause.
    fn turn_away(&mut self, error: io::Error) -> Pause {
        let mut has_refused = false;
        if self.spare.take().is_some()
            && let Ok((mut socket, _)) = self.socket.accept()
        {
            has_refused = true;
            let _ = socket.write(self.kind.full());
        }
        self.spare = File::open("/dev/null").ok();
        self.is_paused = true;
        let pause = Pause { kind: self.kind, error, has_refused, ms: self.pause_ms };
        self.pause_ms = (self.pause_ms * 2).min(PAUSE_MS_MAX);
        pause
    }
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
