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
    /// Long polls by requests of other connections; without a socket.
    Polled(Box<Polled>),
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
            Transport::Plain(socket) => socket.read(into),
            Transport::WebSocket(socket) => socket.as_mut().expect(IS_THERE).read(into),
            Transport::Polled(_) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Becomes a raw byte stream, which starts with the request, if that was no WebSocket of MQTT.
    #[inline]
    pub fn unwrap_raw(&mut self) -> Option<Raw> {
        let Transport::WebSocket(place) = self else { return None };
        let raw = place.as_ref().expect(IS_THERE).raw()?;
        let socket = place.take().expect(IS_THERE);
        *self = Transport::Plain(socket.into_socket());
        Some(raw)
    }

    /// Writes from one buffer or several.
    ///
    /// # Errors
    /// `WouldBlock` if the socket is full; other errors end the connection.
    pub fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        match (self, from) {
            (Transport::Plain(socket), [one]) => socket.write(one),
            (Transport::Plain(socket), several) => socket.write_vectored(several),
            (Transport::Polled(polled), slices) => polled.write(slices),
            (Transport::WebSocket(socket), slices) => socket.as_mut().expect(IS_THERE).write(slices),
        }
    }

    /// Whether there may be more to read although the last read did not fill its buffer.
    #[inline]
    pub fn has_more(&self) -> bool {
        match self {
            Transport::Plain(_) | Transport::Polled(_) => false,
            Transport::WebSocket(socket) => socket.as_ref().expect(IS_THERE).has_more(),
        }
    }

    /// Memory of an incomplete request head or frame header, in bytes.
    #[inline]
    pub fn unfinished_bytes(&self) -> usize {
        match self {
            Transport::WebSocket(socket) => socket.as_ref().expect(IS_THERE).unfinished_bytes(),
            Transport::Plain(_) | Transport::Polled(_) => 0,
        }
    }

    /// Drops incomplete input: nothing more is read. If that is an incomplete request, the connection becomes
    /// an HTTP one, to get an HTTP error.
    pub fn drop_unfinished(&mut self) -> Option<Raw> {
        let Transport::WebSocket(place) = self else { return None };
        if let Some(request) = place.take_if(|socket| !socket.is_open()) {
            *self = Transport::Plain(request.into_socket());
            return Some(Raw::Http);
        }
        place.as_mut().expect(IS_THERE).drop_unfinished();
        None
    }

    /// Whether it has no socket, so that its output waits for a request.
    #[inline]
    pub fn is_polled(&self) -> bool {
        matches!(self, Transport::Polled(_))
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
            Transport::Plain(socket) => socket,
            Transport::WebSocket(socket) => socket.as_mut().expect(IS_THERE).socket_mut(),
            Transport::Polled(_) => unreachable!("who has no socket is registered nowhere"),
        }
    }

    fn socket(&self) -> Option<&TcpStream> {
        match self {
            Transport::Plain(socket) => Some(socket),
            Transport::WebSocket(socket) => Some(socket.as_ref().expect(IS_THERE).socket()),
            Transport::Polled(_) => None,
        }
    }

    /// Address of the peer, if it is still known.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.socket()?.peer_addr().ok()
    }

    /// Local address of the socket.
    pub fn local(&self) -> Option<SocketAddr> {
        self.socket()?.local_addr().ok()
    }

    /// The descriptor's number, as INFO and CLIENT LIST show it; -1 without a socket.
    pub fn descriptor(&self) -> i64 {
        use std::os::fd::AsRawFd;
        self.socket().map_or(-1, |socket| i64::from(socket.as_raw_fd()))
    }
}
