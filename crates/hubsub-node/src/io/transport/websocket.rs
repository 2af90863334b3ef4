//! A WebSocket (RFC 6455) as a stream of bytes: the payloads of its binary messages, concatenated regardless
//! of frame boundaries (MQTT-6.0.0-2). The handshake, pings and the close are handled here and are invisible
//! to the stream's user. Phoenix channels also use text messages, with meaningful boundaries: their bytes are
//! passed through to [`crate::phoenix`], starting with the request. Requests without a WebSocket are passed
//! to [`crate::http`] in the same way.
//!
//! Invariants: a started frame is completed before another begins, so the caller continues with the bytes
//! that were not taken. Only an incomplete request or frame header of the peer is buffered.

use crate::io::listener::ListenerKind;
use crate::io::origin_check::{ForeignOrigin, OriginCheck};
use crate::io::wrong_protocol;
use hubsub_wire::events::topic_of;
use hubsub_wire::phoenix::LONGPOLL_PATH;
use hubsub_wire::websocket::{
    CloseCode, DecodeLimits, Decoded, Decoder, HEAD_BYTES_MAX, Kind, Opcode, Peer, Refusal, Request,
    write_close, write_frame, write_frame_header,
};
use hubsub_wire::{http, phoenix};
use mio::net::TcpStream;
use std::io::{self, ErrorKind, IoSlice, Read, Write};

/// Path of MQTT over WebSocket.
const PATH: &str = "/mqtt";

/// Subprotocols of that path; MQTT 3.1 has a separate name.
const SUBPROTOCOLS: &[&str] = &["mqtt", "mqttv3.1"];

/// Frames and messages may have any length: packets are bounded, and frames are not buffered.
const LIMITS: DecodeLimits = DecodeLimits { frame_bytes_max: u64::MAX, message_bytes_max: u64::MAX };

/// Limit of pending Pongs for a full socket, in bytes; further pings get none.
const ANSWERS_BYTES_MAX: usize = 1024;

/// A kind of connection whose bytes are passed through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Raw {
    /// Phoenix channels of browsers.
    Phoenix,
    /// HTTP requests without a WebSocket.
    Http,
}

pub struct WebSocket {
    socket: TcpStream,
    pages: OriginCheck,
    /// Set at the request if the bytes are passed through.
    raw: Option<Raw>,
    /// `None` before the handshake.
    decoder: Option<Decoder>,
    /// Incomplete request head or frame header.
    kept: Vec<u8>,
    /// Whether the last read filled its buffer, so that there may be more.
    has_more: bool,
    /// Whether further input of the peer is ignored.
    is_over: bool,
    /// Bytes to write before the next frame: handshake response, Pong, Close.
    answers: Vec<u8>,
    /// Unwritten header of the current frame.
    header: Vec<u8>,
    /// Unwritten payload bytes of the current frame.
    frame_left: usize,
}

impl WebSocket {
    /// A connection before its handshake.
    pub fn new(socket: TcpStream, pages: OriginCheck) -> WebSocket {
        WebSocket {
            socket,
            pages,
            raw: None,
            decoder: None,
            kept: Vec::new(),
            has_more: false,
            is_over: false,
            answers: Vec::new(),
            header: Vec::new(),
            frame_left: 0,
        }
    }

    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub fn socket_mut(&mut self) -> &mut TcpStream {
        &mut self.socket
    }

    #[must_use]
    pub fn into_socket(self) -> TcpStream {
        self.socket
    }

    /// Whether there may be more although the last read did not fill its buffer: bytes of the socket, or the
    /// peer's Close after what was read.
    pub fn has_more(&self) -> bool {
        self.has_more || self.is_over
    }

    /// Set if the bytes are passed through from here on; the input then begins with the complete request.
    pub fn raw(&self) -> Option<Raw> {
        self.raw
    }

    /// Whether the handshake is done.
    pub fn is_open(&self) -> bool {
        self.decoder.is_some()
    }

    /// Memory of an incomplete request head or frame header, in bytes.
    pub fn unfinished_bytes(&self) -> usize {
        self.kept.capacity()
    }

    /// Drops incomplete input: nothing more is read.
    pub fn drop_unfinished(&mut self) {
        self.kept = Vec::new();
    }

    /// Reads the payload of messages.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is available. `Interrupted` if the input had no payload and more input or the
    /// end may follow without another event: so a peer that sends only control frames gets one read at a
    /// time. Other errors end the connection.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.is_over {
            return Ok(0);
        }
        let before = self.kept.len();
        into[..before].copy_from_slice(&self.kept);
        self.has_more = false;
        let got = self.socket.read(&mut into[before..])?;
        if got == 0 {
            return Ok(0);
        }
        self.has_more = before + got == into.len();
        self.kept = Vec::new();
        let came = self.take(&mut into[..before + got]);
        self.write_answers()?;
        match came {
            Ok(0) if !self.is_over => Err(ErrorKind::Interrupted.into()),
            other => other,
        }
    }

    /// Moves the payload to the start of the input. Returns its bytes.
    fn take(&mut self, input: &mut [u8]) -> io::Result<usize> {
        let mut at = 0;
        if self.decoder.is_none() {
            match self.shake_hands(input)? {
                Some(_) if self.raw.is_some() => return Ok(input.len()),
                Some(len) => at = len,
                None => {
                    self.kept.extend_from_slice(input);
                    return Ok(0);
                }
            }
        }
        let Some(decoder) = &mut self.decoder else { return Ok(0) };
        let mut carried = 0;
        while at < input.len() {
            let left = input.len() - at;
            let (taken, bytes) = match decoder.decode(&mut input[at..], &LIMITS) {
                Ok(Decoded::Data { kind: Kind::Binary, bytes, len, .. }) => (len, bytes.len()),
                Ok(Decoded::Data { kind: Kind::Text, .. }) => {
                    self.end(CloseCode::UNSUPPORTED);
                    break;
                }
                Ok(Decoded::Ping { payload, len }) => {
                    if self.answers.len() < ANSWERS_BYTES_MAX {
                        write_frame(&mut self.answers, Opcode::Pong, true, payload, None);
                    }
                    (len, 0)
                }
                Ok(Decoded::Pong { len, .. } | Decoded::AfterClose { len }) => (len, 0),
                Ok(Decoded::Close { code, .. }) => {
                    self.end(code.unwrap_or(CloseCode::NORMAL));
                    break;
                }
                Ok(Decoded::Incomplete { .. }) => {
                    self.kept.extend_from_slice(&input[at..]);
                    break;
                }
                Err(flaw) => {
                    self.end(flaw.code());
                    break;
                }
            };
            debug_assert!(taken <= left);
            input.copy_within(at + taken - bytes..at + taken, carried);
            carried += bytes;
            at += taken;
        }
        Ok(carried)
    }

    /// Stops reading and sends a Close with this code.
    fn end(&mut self, code: CloseCode) {
        self.is_over = true;
        write_close(&mut self.answers, code, "", None);
    }

    /// Answers the opening request. Returns its length; `None` while it is incomplete.
    fn shake_hands(&mut self, input: &[u8]) -> io::Result<Option<usize>> {
        if wrong_protocol::is_tls(input) {
            self.answers
                .extend_from_slice(wrong_protocol::WrongProtocol::Tls.answer(ListenerKind::WebSocket));
            let _ = self.write_answers();
            return Err(io::Error::new(ErrorKind::InvalidData, wrong_protocol::WrongProtocol::Tls));
        }
        if let Ok(Some(request)) = http::Request::read(input)
            && !request.is_upgrade()
            && serves(request.path)
        {
            self.raw = Some(Raw::Http);
            return Ok(Some(request.len));
        }
        let checked = match Request::read(input) {
            Ok(None) if input.len() < HEAD_BYTES_MAX => return Ok(None),
            Ok(None) => Err((Refusal::HeadTooLarge, None)),
            Ok(Some(request)) => match self.check(&request) {
                Ok(None) => {
                    self.raw = Some(Raw::Phoenix);
                    return Ok(Some(request.len));
                }
                Ok(Some(subprotocol)) => Ok((request, subprotocol)),
                Err(refusal) => Err((refusal, request.origin)),
            },
            Err(refusal) => Err((refusal, None)),
        };
        match checked {
            Ok((request, subprotocol)) => {
                request.write_accept(&mut self.answers, Some(subprotocol));
                self.decoder = Some(Decoder::new(Peer::Client));
                Ok(Some(request.len))
            }
            Err((refusal, origin)) => {
                refusal.write(&mut self.answers);
                // Best effort: a refused peer is not waited for.
                let _ = self.write_answers();
                Err(match (refusal, origin) {
                    (Refusal::Origin, Some(origin)) => {
                        io::Error::new(ErrorKind::InvalidData, ForeignOrigin::Origin(origin.into()))
                    }
                    _ => io::Error::new(ErrorKind::InvalidData, refusal),
                })
            }
        }
    }

    /// Chooses the subprotocol; `None` for Phoenix channels.
    fn check(&self, request: &Request<'_>) -> Result<Option<&'static str>, Refusal> {
        let path = request.path.split('?').next().unwrap_or_default();
        if ![PATH, phoenix::PATH].contains(&path) {
            return Err(Refusal::Path);
        }
        // Browsers send an origin with each WebSocket request, so one without origin is not a browser's.
        if request.origin.is_some_and(|origin| !self.pages.is_listed(origin, self.socket.local_addr().ok())) {
            return Err(Refusal::Origin);
        }
        if path == phoenix::PATH {
            return Ok(None);
        }
        request.choose_subprotocol(SUBPROTOCOLS).map(Some).ok_or(Refusal::Subprotocol)
    }

    /// Sends a Close, unless a frame is incomplete, as far as the socket takes it.
    pub fn leave(&mut self) {
        if self.decoder.is_some() && !self.is_over && self.frame_left == 0 {
            self.end(CloseCode::NORMAL);
            // The socket is closed next.
            let _ = self.write_answers();
        }
    }

    /// Writes pending control frames between two frames, as far as the socket takes them.
    fn write_answers(&mut self) -> io::Result<()> {
        while !self.answers.is_empty() && self.frame_left == 0 {
            match self.socket.write(&self.answers) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(sent) => drop(self.answers.drain(..sent)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Writes bytes as one message, or continues the current one: then at most its missing bytes.
    ///
    /// # Errors
    /// `WouldBlock` if the socket is full; other errors end the connection.
    pub fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.decoder.is_none() {
            // Nothing is sent before the handshake.
            return Err(ErrorKind::NotConnected.into());
        }
        if self.frame_left == 0 {
            self.write_answers()?;
            if !self.answers.is_empty() {
                return Err(ErrorKind::WouldBlock.into());
            }
            self.frame_left = from.iter().map(|slice| slice.len()).sum();
            write_frame_header(&mut self.header, Opcode::Binary, true, self.frame_left, None);
        }
        let mut slices = Vec::with_capacity(from.len() + 1);
        slices.push(IoSlice::new(&self.header));
        let mut left = self.frame_left;
        for slice in from {
            let bytes = &slice[..slice.len().min(left)];
            left -= bytes.len();
            slices.push(IoSlice::new(bytes));
        }
        let sent = self.socket.write_vectored(&slices)?;
        let of_header = sent.min(self.header.len());
        self.header.drain(..of_header);
        let sent = sent - of_header;
        self.frame_left -= sent;
        if self.frame_left == 0 {
            // If the socket is full, they wait for the next frame.
            self.write_answers()?;
        }
        if sent == 0 { Err(ErrorKind::WouldBlock.into()) } else { Ok(sent) }
    }
}

/// Whether HTTP requests with this path are answered.
pub fn serves(path: &str) -> bool {
    topic_of(path).is_some() || is_poll(path)
}

/// Whether it is the path of long polls.
pub fn is_poll(path: &str) -> bool {
    path == LONGPOLL_PATH
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net;

    const REQUEST: &[u8] = b"GET /mqtt HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n";

    /// A client that has sent its request and these frames, and the node's side.
    fn connected(frames: &[(Opcode, &[u8])]) -> (net::TcpStream, WebSocket) {
        let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut said = REQUEST.to_vec();
        for (opcode, payload) in frames {
            write_frame(&mut said, *opcode, true, payload, Some([1, 2, 3, 4]));
        }
        client.write_all(&said).unwrap();
        (client, WebSocket::new(TcpStream::from_std(socket), OriginCheck::default()))
    }

    /// Reads until there is a result.
    fn read(socket: &mut WebSocket) -> Result<usize, ErrorKind> {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
        loop {
            match socket.read(&mut [0; 16 * 1024]) {
                Err(e) if e.kind() == ErrorKind::WouldBlock && std::time::Instant::now() < end => {}
                other => return other.map_err(|e| e.kind()),
            }
        }
    }

    #[test]
    fn who_sends_nothing_but_pings_is_read_once_at_a_time() {
        let pings = [(Opcode::Ping, &b""[..]); 8 * 1024];
        let (client, mut socket) = connected(&pings);
        let reads = (REQUEST.len() + 6 * pings.len()) / (16 * 1024);
        for _ in 0..reads {
            assert_eq!(read(&mut socket), Err(ErrorKind::Interrupted));
        }
        client.shutdown(net::Shutdown::Write).unwrap();
        while let Err(kind) = read(&mut socket) {
            assert_eq!(kind, ErrorKind::Interrupted);
        }
    }

    #[test]
    fn an_end_that_came_with_the_last_bytes_is_read_behind_them() {
        for last in [(Opcode::Close, &b"\x03\xe8"[..]), (Opcode::Text, b"a")] {
            let (_client, mut socket) = connected(&[(Opcode::Binary, b"abc"), last]);
            assert_eq!(read(&mut socket), Ok(3));
            assert!(socket.has_more(), "nothing more comes of the socket");
            assert_eq!(read(&mut socket), Ok(0));
        }
    }
}
