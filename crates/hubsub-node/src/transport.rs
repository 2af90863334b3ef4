//! The seam between a connection and its socket, which TLS will fill. All
//! calls are non-blocking.

use mio::net::TcpStream;
use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;

/// How a connection's bytes travel.
pub enum Transport {
    /// As they are.
    Plain(TcpStream),
}

impl Transport {
    /// Reads what is there.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is; others end the connection.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Transport::Plain(socket) = self;
        socket.read(into)
    }

    /// Writes from one buffer or several.
    ///
    /// # Errors
    /// `WouldBlock` when the socket is full; others end the connection.
    pub fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let Transport::Plain(socket) = self;
        match from {
            [one] => socket.write(one),
            several => socket.write_vectored(several),
        }
    }

    /// From now on the system takes little ahead of what the peer reads.
    pub fn pace(&self) {
        let Transport::Plain(socket) = self;
        crate::sys::pace(socket);
    }

    /// The socket, to register it.
    pub fn source(&mut self) -> &mut TcpStream {
        let Transport::Plain(socket) = self;
        socket
    }

    /// Address of the peer, if it is still known.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        let Transport::Plain(socket) = self;
        socket.peer_addr().ok()
    }

    /// Address on this side.
    #[must_use]
    pub fn local(&self) -> Option<SocketAddr> {
        let Transport::Plain(socket) = self;
        socket.local_addr().ok()
    }

    /// The descriptor's number, as INFO and CLIENT LIST show it.
    #[must_use]
    pub fn descriptor(&self) -> i64 {
        use std::os::fd::AsRawFd;
        let Transport::Plain(socket) = self;
        i64::from(socket.as_raw_fd())
    }
}
