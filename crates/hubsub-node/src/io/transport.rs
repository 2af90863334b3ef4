//! The layer between a connection and its socket, where TLS will be added. All calls are non-blocking.

mod polled;
mod websocket;

use mio::net::TcpStream;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr};

pub use polled::{Asker, Polled};
pub use websocket::{Raw, WebSocket, is_poll};

/// The framing of a connection's bytes.
pub enum Transport {
    /// A raw byte stream.
    Plain(TcpStream),
    /// Messages of a WebSocket, also before its handshake. `None` only while the socket is being moved out.
    WebSocket(Option<Box<WebSocket>>),
    /// A raw byte stream of Phoenix channels, starting with the WebSocket request.
    Phoenix(TcpStream),
    /// A raw byte stream of HTTP requests without a WebSocket; the flag is whether a request awaits its
    /// response.
    Http(TcpStream, bool),
    /// An HTTP response that lasts as long as the connection: a stream of server-sent events.
    Events(TcpStream),
    /// Long polls by requests of other connections; without a socket.
    Polled(Box<Polled>),
}

/// Matches the variants with a raw byte stream.
macro_rules! plain {
    ($socket:pat) => {
        Transport::Plain($socket)
            | Transport::Phoenix($socket)
            | Transport::Http($socket, _)
            | Transport::Events($socket)
    };
}

/// The socket is moved out and replaced within one call.
const IS_THERE: &str = "a WebSocket is there between calls";

impl Transport {
    /// Reads the bytes that are available.
    ///
    /// # Errors
    /// `WouldBlock` if none are available; other errors end the connection.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            plain!(socket) => socket.read(into),
            Transport::WebSocket(place) => {
                let got = place.as_mut().expect(IS_THERE).read(into);
                if let Some(raw) = place.take_if(|socket| socket.raw().is_some()) {
                    let of = raw.raw();
                    let socket = raw.into_socket();
                    *self = match of {
                        Some(Raw::Http) => Transport::Http(socket, false),
                        _ => Transport::Phoenix(socket),
                    };
                }
                got
            }
            Transport::Polled(_) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Writes from one buffer or several.
    ///
    /// # Errors
    /// `WouldBlock` if the socket is full; other errors end the connection.
    pub fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        match (self, from) {
            (plain!(socket), [one]) => socket.write(one),
            (plain!(socket), several) => socket.write_vectored(several),
            (Transport::Polled(polled), slices) => polled.write(slices),
            (Transport::WebSocket(socket), slices) => socket.as_mut().expect(IS_THERE).write(slices),
        }
    }

    /// Whether there may be more to read although the last read did not fill its buffer.
    #[inline]
    #[must_use]
    pub fn has_more(&self) -> bool {
        match self {
            plain!(_) | Transport::Polled(_) => false,
            Transport::WebSocket(socket) => socket.as_ref().expect(IS_THERE).has_more(),
        }
    }

    /// Memory of an incomplete request head or frame header, in bytes.
    #[inline]
    #[must_use]
    pub fn unfinished_bytes(&self) -> usize {
        match self {
            Transport::WebSocket(socket) => socket.as_ref().expect(IS_THERE).unfinished_bytes(),
            plain!(_) | Transport::Polled(_) => 0,
        }
    }

    /// Drops incomplete input: nothing more is read. If that is an incomplete request, the connection becomes
    /// an HTTP one, to get an HTTP error.
    pub fn drop_unfinished(&mut self) {
        let Transport::WebSocket(place) = self else { return };
        if let Some(request) = place.take_if(|socket| !socket.is_open()) {
            *self = Transport::Http(request.into_socket(), false);
        } else {
            place.as_mut().expect(IS_THERE).drop_unfinished();
        }
    }

    /// Whether the connection speaks Phoenix channels, whose bytes are passed through.
    #[inline]
    #[must_use]
    pub fn is_phoenix(&self) -> bool {
        matches!(self, Transport::Phoenix(_) | Transport::Polled(_))
    }

    /// Whether the connection serves HTTP requests without a WebSocket.
    #[inline]
    #[must_use]
    pub fn is_http(&self) -> bool {
        matches!(self, Transport::Http(..) | Transport::Events(_))
    }

    /// Whether the response is a stream of server-sent events.
    #[inline]
    #[must_use]
    pub fn is_events(&self) -> bool {
        matches!(self, Transport::Events(_))
    }

    /// Whether it has no socket, so that its output waits for a request.
    #[inline]
    #[must_use]
    pub fn is_polled(&self) -> bool {
        matches!(self, Transport::Polled(_))
    }

    /// Whether a request awaits its response; no further request is read meanwhile.
    #[inline]
    #[must_use]
    pub fn awaits_answer(&self) -> bool {
        matches!(self, Transport::Http(_, true))
    }

    /// Sets whether a request awaits its response.
    pub fn await_answer(&mut self, waits: bool) {
        if let Transport::Http(_, waiting) = self {
            *waiting = waits;
        }
    }

    /// Turns the response into a stream of server-sent events.
    pub fn become_events(&mut self) {
        // A placeholder while the socket moves.
        let before = std::mem::replace(self, Transport::WebSocket(None));
        *self = match before {
            Transport::Http(socket, _) => Transport::Events(socket),
            other => other,
        };
    }

    /// Sends a closing message, if the protocol has one and the socket has room.
    pub fn leave(&mut self) {
        if let Transport::WebSocket(socket) = self {
            socket.as_mut().expect(IS_THERE).leave();
        }
    }

    /// Shuts the socket down for writing: the peer can read to the end, and its input is still read.
    ///
    /// # Errors
    /// The socket is not connected any more.
    pub fn end_writing(&self) -> io::Result<()> {
        self.socket().map_or(Ok(()), |socket| socket.shutdown(Shutdown::Write))
    }

    /// Reads and discards input.
    ///
    /// # Errors
    /// `WouldBlock` if there is none; other errors mean the end.
    pub fn discard(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.source().read(into)
    }

    /// Limits the kernel's buffering for the peer from now on ([`crate::io::sys::pace`]).
    pub fn pace(&self) {
        if let Some(socket) = self.socket() {
            crate::io::sys::pace(socket);
        }
    }

    /// The socket, to register it.
    ///
    /// # Panics
    /// The transport has no socket.
    pub fn source(&mut self) -> &mut TcpStream {
        match self {
            plain!(socket) => socket,
            Transport::WebSocket(socket) => socket.as_mut().expect(IS_THERE).socket_mut(),
            Transport::Polled(_) => unreachable!("who has no socket is registered nowhere"),
        }
    }

    fn socket(&self) -> Option<&TcpStream> {
        match self {
            plain!(socket) => Some(socket),
            Transport::WebSocket(socket) => Some(socket.as_ref().expect(IS_THERE).socket()),
            Transport::Polled(_) => None,
        }
    }

    /// Address of the peer, if it is still known.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        self.socket()?.peer_addr().ok()
    }

    /// Local address of the socket.
    #[must_use]
    pub fn local(&self) -> Option<SocketAddr> {
        self.socket()?.local_addr().ok()
    }

    /// The descriptor's number, as INFO and CLIENT LIST show it; -1 without a socket.
    #[must_use]
    pub fn descriptor(&self) -> i64 {
        use std::os::fd::AsRawFd;
        self.socket().map_or(-1, |socket| i64::from(socket.as_raw_fd()))
    }
}
