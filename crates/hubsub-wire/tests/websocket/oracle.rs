//! Another implementation (tungstenite) as the peer: handshakes, messages and ends of either side are equal
//! in both.

use crate::any_input::outcome;
use hubsub_wire::websocket::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::io::{self, Read, Write};
use tungstenite::protocol::Role;
use tungstenite::{Error, Message, WebSocket, client, handshake};

/// A connection to this end: the bytes written to it, and those to read.
#[derive(Default)]
struct Pipe {
    to_read: Vec<u8>,
    written: Vec<u8>,
    /// Whether requests are answered as by a server.
    serves: bool,
}

impl Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.serves && self.to_read.is_empty() {
            let request = Request::read(&self.written).expect("it asks as it should").expect("whole");
            request.write_accept(&mut self.to_read, None);
            self.serves = false;
        }
        let bytes = self.to_read.len().min(buffer.len());
        buffer[..bytes].copy_from_slice(&self.to_read[..bytes]);
        self.to_read.drain(..bytes);
        Ok(bytes)
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.written.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        "[a-zäöü€😀]{0,60}".prop_map(Message::text),
        vec(any::<u8>(), 0..290).prop_map(Message::binary),
        vec(any::<u8>(), 0..125).prop_map(|bytes| Message::Ping(bytes.into())),
        vec(any::<u8>(), 0..125).prop_map(|bytes| Message::Pong(bytes.into())),
    ]
}

fn words(message: &Message) -> String {
    match message {
        Message::Text(text) => format!("Text {:?}", text.as_bytes()),
        Message::Binary(bytes) => format!("Binary {:?}", &bytes[..]),
        Message::Ping(bytes) => format!("Ping {:?}", &bytes[..]),
        Message::Pong(bytes) => format!("Pong {:?}", &bytes[..]),
        other => panic!("{other:?}"),
    }
}

fn write_as_server(message: &Message, cut: usize, mask: Option<[u8; 4]>, out: &mut Vec<u8>) {
    let (opcode, bytes) = match message {
        Message::Text(text) => (Opcode::Text, text.as_bytes()),
        Message::Binary(bytes) => (Opcode::Binary, &bytes[..]),
        Message::Ping(bytes) => return write_frame(out, Opcode::Ping, true, bytes, mask),
        Message::Pong(bytes) => return write_frame(out, Opcode::Pong, true, bytes, mask),
        other => panic!("{other:?}"),
    };
    let cut = cut.min(bytes.len());
    write_frame(out, opcode, false, &bytes[..cut], mask);
    write_frame(out, Opcode::Continuation, true, &bytes[cut..], mask);
}

proptest! {
    #[test]
    fn messages_of_the_oracle_are_read_here(messages in vec(message(), 0..6), client in any::<bool>()) {
        let role = if client { Role::Client } else { Role::Server };
        let mut socket = WebSocket::from_raw_socket(Pipe::default(), role, None);
        messages.iter().for_each(|message| socket.send(message.clone()).expect("a pipe takes all"));
        let from = if client { Peer::Client } else { Peer::Server };
        let mut wanted: Vec<String> = messages.iter().map(words).collect();
        wanted.push("[] under way".to_string());
        let came = outcome(from, &socket.get_ref().written, &[]);
        prop_assert_eq!(came.came, wanted);
        prop_assert_eq!(came.flaw, None);
    }

    #[test]
    fn messages_of_this_codec_are_read_by_the_oracle(
        messages in vec(message(), 1..6), cut in 0..100_usize, mask in any::<[u8; 4]>(), client in any::<bool>(),
    ) {
        let mut bytes = Vec::new();
        let mask = Some(mask).filter(|_| !client);
        messages.iter().for_each(|message| write_as_server(message, cut, mask, &mut bytes));
        write_close(&mut bytes, CloseCode::GOING_AWAY, "until later", mask);
        let role = if client { Role::Client } else { Role::Server };
        let pipe = Pipe { to_read: bytes, ..Pipe::default() };
        let mut socket = WebSocket::from_raw_socket(pipe, role, None);
        for message in &messages {
            prop_assert_eq!(words(&socket.read().expect("it is there")), words(message));
        }
        let close = socket.read().expect("the end");
        let Message::Close(Some(close)) = close else { panic!("{close:?}") };
        prop_assert_eq!((u16::from(close.code), close.reason.as_str()), (1001, "until later"));
    }

    #[test]
    fn input_refused_by_the_oracle_is_refused_here(input in vec(any::<u8>(), 2..60)) {
        let here = outcome(Peer::Server, &input, &[]);
        let pipe = Pipe { to_read: input, ..Pipe::default() };
        let mut socket = WebSocket::from_raw_socket(pipe, Role::Client, None);
        let there = loop {
            match socket.read() {
                Ok(Message::Close(_)) | Err(Error::Io(_) | Error::ConnectionClosed) => break false,
                Err(Error::Protocol(tungstenite::error::ProtocolError::ResetWithoutClosingHandshake)) => break false,
                Ok(_) => {}
                Err(_) => break true,
            }
        };
        // Not the reverse: it checks a frame only once it is complete.
        prop_assert!(here.flaw.is_some() || !there, "{:?}", here);
    }
}

#[test]
fn its_client_shakes_hands_with_the_server_here() {
    let pipe = Pipe { serves: true, ..Pipe::default() };
    let (_, answer) =
        client("ws://example.org/mqtt", pipe).map_err(|error| error.to_string()).expect("a WebSocket");
    assert_eq!(answer.status().as_u16(), 101);
}

#[test]
fn its_server_shakes_hands_with_the_client_here() {
    let mut pipe = Pipe::default();
    write_request(&mut pipe.to_read, "example.org", "/mqtt", [9; 16], &[]);
    let socket = tungstenite::accept(pipe).map_err(|error| error.to_string()).expect("a WebSocket");
    let answer = &socket.get_ref().written;
    assert_eq!(read_answer(answer, [9; 16], &[]), Ok(Some((None, answer.len()))));
}

#[test]
fn keys_are_answered_alike() {
    for nonce in (0..=255).map(|byte| [byte; 16]) {
        let mut asked = Vec::new();
        write_request(&mut asked, "h", "/", nonce, &[]);
        let request = Request::read(&asked).expect("valid").expect("whole");
        let text = String::from_utf8(asked.clone()).expect("ASCII");
        let key = text
            .split("Sec-WebSocket-Key: ")
            .nth(1)
            .and_then(|rest| rest.split("\r\n").next())
            .expect("a key");
        let mut out = Vec::new();
        request.write_accept(&mut out, None);
        let accept = handshake::derive_accept_key(key.as_bytes());
        assert!(String::from_utf8(out).expect("ASCII").contains(&format!("Accept: {accept}\r\n")));
    }
}
