//! Binary messages of version 2: accepted ones, and the errors of the others.

use crate::tools::*;
use hubsub_wire::phoenix::*;
use hubsub_wire::websocket::{CloseCode, Kind};
use std::borrow::Cow;

fn read_binary(bytes: &[u8]) -> Result<Push<'_>, Flaw> {
    Push::read_binary(V2, bytes, &WIDE)
}

#[test]
fn a_push_of_a_client_has_four_fields_and_any_bytes() {
    let bytes = b"\x00\x01\x02\x06\x03112room:1say\x00\xFF[";
    let wanted = push([reference("1"), reference("12")], "room:1", "say", Payload::Binary(b"\x00\xFF["));
    assert_eq!(read_binary(bytes), Ok(wanted));
}

#[test]
fn an_empty_ref_is_none_and_an_empty_payload_is_one() {
    let taken = read_binary(b"\x00\x00\x00\x01\x01te").expect("a message");
    assert_eq!(taken, push([None, None], "t", "e", Payload::Binary(b"")));
}

#[test]
fn every_message_that_ends_inside_its_fields_is_refused() {
    let bytes = b"\x00\x01\x02\x06\x03112room:1say";
    for cut in 0..bytes.len() {
        assert_eq!(read_binary(&bytes[..cut]), Err(Flaw::BinaryShort), "{cut}");
    }
    assert_eq!(read_binary(b"\x00\xFF\xFF\xFF\xFF"), Err(Flaw::BinaryShort));
}

#[test]
fn kinds_of_a_server_and_others_are_refused() {
    for kind in 1..=255 {
        assert_eq!(read_binary(&[kind, 0, 0, 0, 0]), Err(Flaw::BinaryKind(kind)));
    }
    assert_eq!(Message::read_binary(V2, &[3, 0, 0, 0, 0], &WIDE), Err(Flaw::BinaryKind(3)));
}

#[test]
fn version_1_has_none() {
    let push = Push::read_binary(V1, b"\x00\x00\x00\x00\x00", &WIDE);
    assert_eq!(push, Err(Flaw::BinaryInV1));
    assert_eq!(Message::read_binary(V1, b"\x02\x00\x00", &WIDE), Err(Flaw::BinaryInV1));
    assert_eq!(Flaw::BinaryInV1.code(), CloseCode::UNSUPPORTED);
}

#[test]
fn a_field_is_utf_8_and_a_topic_has_its_length() {
    for bytes in [b"\x00\x01\x00\x00\x00\xFF", b"\x00\x00\x01\x00\x00\xFF", b"\x00\x00\x00\x01\x00\xFF"] {
        assert_eq!(read_binary(bytes), Err(Flaw::NotUtf8));
    }
    // A character split between two fields is invalid in both.
    assert_eq!(read_binary("\0\0\0\u{1}\u{1}ü".as_bytes()), Err(Flaw::NotUtf8));
    let limits = DecodeLimits { topic_bytes_max: 1 };
    let long = Push::read_binary(V2, b"\x00\x00\x00\x02\x00tt", &limits);
    assert_eq!(long, Err(Flaw::TopicTooLong(2, 1)));
}

#[test]
fn a_server_sends_pushes_broadcasts_and_replies() {
    let write = |message: &Message<'_>| {
        let mut out = Vec::new();
        assert_eq!(message.write(V2, &mut out), Ok(Kind::Binary));
        out
    };
    let data = Payload::Binary(b"\xFF\x00");
    let own = write(&Message::Push(push([reference("12"), None], "room", "say", data)));
    assert_eq!(own, b"\x00\x02\x04\x0312roomsay\xFF\x00");
    let all = write(&Message::Push(push([None, None], "room", "say", data)));
    assert_eq!(all, b"\x02\x04\x03roomsay\xFF\x00");
    let reply = Message::Reply(Reply {
        join_ref: reference("12"),
        reference: reference("345"),
        topic: Cow::Borrowed("room"),
        status: Status::Ok,
        response: data,
    });
    assert_eq!(write(&reply), b"\x01\x02\x03\x04\x0212345roomok\xFF\x00");
    for bytes in [&own[..], &all, &write(&reply)] {
        let message = Message::read_binary(V2, bytes, &WIDE).expect("a message");
        assert_eq!(write(&message), bytes);
    }
}

#[test]
fn a_field_longer_than_a_binary_message_has_room_for_leaves_the_output_as_it_was() {
    let topic = "t".repeat(256);
    let mut out = b"before".to_vec();
    let message = Message::Push(push([None, None], &topic, "e", Payload::Binary(b"")));
    let error = message.write(V2, &mut out);
    assert_eq!(error, Err(EncodeError::FieldTooLong { bytes: 256 }));
    let error = write_push(&mut out, V2, &push([None, None], &topic, "e", Payload::Binary(b"")));
    assert_eq!((error, &out[..]), (Err(EncodeError::FieldTooLong { bytes: 256 }), &b"before"[..]));
}
