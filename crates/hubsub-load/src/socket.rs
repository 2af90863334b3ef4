//! A connection to the server: non-blocking, reads whole frames, writes in batches.
//!
//! It owns memory only while a frame is incomplete or output is pending; the read buffer belongs to the
//! thread. A short read means that the kernel's buffer was empty, and later data triggers a new edge of the
//! poll, so no extra read is needed to see "would block".

use std::io::{self, Read, Write};
use std::net::SocketAddr;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

use crate::codec::Malformed;

pub struct Socket {
    stream: TcpStream,
    /// Start of an incomplete frame.
    partial: Vec<u8>,
    /// Bytes to send, of which the first `out_at` were sent.
    pub out: Vec<u8>,
    out_at: usize,
}

/// How a read without error ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadEnd {
    /// Nothing is left to read now.
    Drained,
    Closed,
}

impl Socket {
    /// Connects (blocking) and registers for reading and writing.
    pub fn connect(address: SocketAddr, registry: &Registry, token: Token) -> io::Result<Socket> {
        let stream = std::net::TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let mut stream = TcpStream::from_std(stream);
        registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Socket { stream, partial: Vec::new(), out: Vec::new(), out_at: 0 })
    }

    /// Reads everything available; `take` gets the bytes since the last whole frame and returns how many it
    /// used.
    pub fn read(
        &mut self,
        scratch: &mut Vec<u8>,
        mut take: impl FnMut(&[u8]) -> Result<usize, Malformed>,
    ) -> io::Result<ReadEnd> {
        loop {
            let held = self.partial.len();
            if scratch.len() < 2 * held {
                scratch.resize(4 * held, 0);
            }
            scratch[..held].copy_from_slice(&self.partial);
            let space = scratch.len() - held;
            let read = match self.stream.read(&mut scratch[held..]) {
                Ok(0) => return Ok(ReadEnd::Closed),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(ReadEnd::Drained),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let bytes = &scratch[..held + read];
            let used =
                take(bytes).map_err(|Malformed(what)| io::Error::new(io::ErrorKind::InvalidData, what))?;
            self.partial.clear();
            self.partial.extend_from_slice(&bytes[used..]);
            if read < space {
                return Ok(ReadEnd::Drained);
            }
        }
    }

    /// Reads and discards up to `bytes`; returns how many, or None once closed.
    pub fn discard(&mut self, scratch: &mut [u8], bytes: usize) -> io::Result<Option<usize>> {
        let limit = bytes.min(scratch.len());
        match self.stream.read(&mut scratch[..limit]) {
            Ok(0) if limit > 0 => Ok(None),
            Ok(read) => Ok(Some(read)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Some(0)),
            Err(error) => Err(error),
        }
    }

    /// Writes `out`, as far as the kernel accepts it.
    pub fn flush(&mut self) -> io::Result<()> {
        while self.out_at < self.out.len() {
            match self.stream.write(&self.out[self.out_at..]) {
                Ok(written) => self.out_at += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        self.out_at = 0;
        Ok(())
    }

    pub fn is_flushed(&self) -> bool {
        self.out.is_empty()
    }
}
