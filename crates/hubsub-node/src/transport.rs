//! The seam between a connection and its socket, which TLS will fill. All
//! calls are non-blocking.

mod websocket;

use mio::net::TcpStream;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr};

pub use websocket::{Origins, WebSocket};

/// How a connection's bytes travel.
pub enum Transport {
    /// As they are.
    Plain(TcpStream),
    /// In messages of a WebSocket, or that is to be one. It is there but for the moment in which it gives its socket away.
    WebSocket(Option<Box<WebSocket>>),
    /// As they are, from the request for browsers' channels on.
    Phoenix(TcpStream),
}

/// It gives its socket away and another takes its place in one call.
const IS_THERE: &str = "a WebSocket is there between calls";

impl Transport {
    /// Reads what is there.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is; others end the connection.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Transport::Plain(socket) | Transport::Phoenix(socket) => socket.read(into),
            Transport::WebSocket(place) => {
                let got = place.as_mut().expect(IS_THERE).read(into);
                if let Some(raw) = place.take_if(|socket| socket.is_raw()) {
                    *self = Transport::Phoenix(raw.into_socket());
                }
                got
            }
        }
    }

    /// Writes from one buffer or several.
    ///
    /// # Errors
    /// `WouldBlock` when the socket is full; others end the connection.
    pub fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        match (self, from) {
            (Transport::Plain(socket) | Transport::Phoenix(socket), [one]) => socket.write(one),
            (Transport::Plain(socket) | Transport::Phoenix(socket), several) => {
                socket.write_vectored(several)
            }
            (Transport::WebSocket(socket), slices) => socket.as_mut().expect(IS_THERE).write(slices),
        }
    }

    /// Whether there may be more to read although the last read did not fill its buffer.
    #[inline]
    #[must_use]
    pub fn has_more(&self) -> bool {
        match self {
            Transport::Plain(_) | Transport::Phoenix(_) => false,
            Transport::WebSocket(socket) => socket.as_ref().expect(IS_THERE).has_more(),
        }
    }

    /// Whether browsers' channels are spoken, whose bytes are passed through.
    #[inline]
    #[must_use]
    pub fn is_phoenix(&self) -> bool {
        matches!(self, Transport::Phoenix(_))
    }

    /// Says goodbye, where there is a word for it, as far as the socket takes it.
    pub fn leave(&mut self) {
        if let Transport::WebSocket(socket) = self {
            socket.as_mut().expect(IS_THERE).leave();
        }
    }

    /// Sends no more: the peer reads to the end, and what it sends is still taken.
    ///
    /// # Errors
    /// The socket is not connected any more.
    pub fn end_writing(&self) -> io::Result<()> {
        self.socket().shutdown(Shutdown::Write)
    }

    /// Reads bytes off the socket that nobody wants.
    ///
    /// # Errors
    /// `WouldBlock` when there are none; others as the end.
    pub fn discard(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.source().read(into)
    }

    /// From now on the system takes little ahead of what the peer reads.
    pub fn pace(&self) {
        crate::sys::pace(self.socket());
    }

    /// The socket, to register it.
    pub fn source(&mut self) -> &mut TcpStream {
        match self {
            Transport::Plain(socket) | Transport::Phoenix(socket) => socket,
            Transport::WebSocket(socket) => socket.as_mut().expect(IS_THERE).socket_mut(),
        }
    }

    fn socket(&self) -> &TcpStream {
        match self {
            Transport::Plain(socket) | Transport::Phoenix(socket) => socket,
            Transport::WebSocket(socket) => socket.as_ref().expect(IS_THERE).socket(),
        }
    }

    /// Address of the peer, if it is still known.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        self.socket().peer_addr().ok()
    }

    /// Address on this side.
    #[must_use]
    pub fn local(&self) -> Option<SocketAddr> {
        self.socket().local_addr().ok()
    }

    /// The descriptor's number, as INFO and CLIENT LIST show it.
    #[must_use]
    pub fn descriptor(&self) -> i64 {
        use std::os::fd::AsRawFd;
        i64::from(self.socket().as_raw_fd())
    }
}
