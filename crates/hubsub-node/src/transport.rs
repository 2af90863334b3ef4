//! The seam between a connection and its socket, which TLS will fill. All
//! calls are non-blocking.

mod websocket;

use crate::http::Polled;
use mio::net::TcpStream;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr};

pub use websocket::{Raw, WebSocket};

/// How a connection's bytes travel.
pub enum Transport {
    /// As they are.
    Plain(TcpStream),
    /// In messages of a WebSocket, or that is to be one. It is there but for the moment in which it gives its socket away.
    WebSocket(Option<Box<WebSocket>>),
    /// As they are, from the request for browsers' channels on.
    Phoenix(TcpStream),
    /// As they are, from a request that asks for no WebSocket on; and whether one waits for its answer.
    Http(TcpStream, bool),
    /// Of an answer that goes on as long as the connection: a stream of events.
    Events(TcpStream),
    /// In requests of other connections, as long polls: it has no socket.
    Polled(Box<Polled>),
}

/// Those whose bytes travel as they are.
macro_rules! plain {
    ($socket:pat) => {
        Transport::Plain($socket)
            | Transport::Phoenix($socket)
            | Transport::Http($socket, _)
            | Transport::Events($socket)
    };
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
    /// `WouldBlock` when the socket is full; others end the connection.
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

    /// Memory for the head of a request, or the header of a frame, that is not whole.
    #[inline]
    #[must_use]
    pub fn unfinished_bytes(&self) -> usize {
        match self {
            Transport::WebSocket(socket) => socket.as_ref().expect(IS_THERE).unfinished_bytes(),
            plain!(_) | Transport::Polled(_) => 0,
        }
    }

    /// Drops that: nothing more is read. Where a request has not come whole, its answer is one of HTTP.
    pub fn drop_unfinished(&mut self) {
        let Transport::WebSocket(place) = self else { return };
        if let Some(request) = place.take_if(|socket| !socket.is_open()) {
            *self = Transport::Http(request.into_socket(), false);
        } else {
            place.as_mut().expect(IS_THERE).drop_unfinished();
        }
    }

    /// Whether browsers' channels are spoken, whose bytes are passed through.
    #[inline]
    #[must_use]
    pub fn is_phoenix(&self) -> bool {
        matches!(self, Transport::Phoenix(_) | Transport::Polled(_))
    }

    /// Whether requests are answered that ask for no WebSocket.
    #[inline]
    #[must_use]
    pub fn is_http(&self) -> bool {
        matches!(self, Transport::Http(..) | Transport::Events(_))
    }

    /// Whether its answer is a stream of events.
    #[inline]
    #[must_use]
    pub fn is_events(&self) -> bool {
        matches!(self, Transport::Events(_))
    }

    /// Whether it has no socket, and what it is told waits for a request.
    #[inline]
    #[must_use]
    pub fn is_polled(&self) -> bool {
        matches!(self, Transport::Polled(_))
    }

    /// Whether a request waits for its answer: none is read before.
    #[inline]
    #[must_use]
    pub fn awaits_answer(&self) -> bool {
        matches!(self, Transport::Http(_, true))
    }

    /// A request waits for its answer, or has it.
    pub fn await_answer(&mut self, waits: bool) {
        if let Transport::Http(_, waiting) = self {
            *waiting = waits;
        }
    }

    /// The answer to its request is a stream of events.
    pub fn become_events(&mut self) {
        // Taken out for the moment in which it is neither.
        let before = std::mem::replace(self, Transport::WebSocket(None));
        *self = match before {
            Transport::Http(socket, _) => Transport::Events(socket),
            other => other,
        };
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
        self.socket().map_or(Ok(()), |socket| socket.shutdown(Shutdown::Write))
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
        if let Some(socket) = self.socket() {
            crate::sys::pace(socket);
        }
    }

    /// The socket, to register it.
    ///
    /// # Panics
    /// It has none.
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

    /// Address on this side.
    #[must_use]
    pub fn local(&self) -> Option<SocketAddr> {
        self.socket()?.local_addr().ok()
    }

    /// The descriptor's number, as INFO and CLIENT LIST show it; -1 where there is none.
    #[must_use]
    pub fn descriptor(&self) -> i64 {
        use std::os::fd::AsRawFd;
        self.socket().map_or(-1, |socket| i64::from(socket.as_raw_fd()))
    }
}
