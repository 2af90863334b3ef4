//! Broadcasts: encoded once, and copied with a subscriber's own join_ref.

use crate::drafts::draft;
use crate::tools::*;
use hubsub_wire::phoenix::*;
use hubsub_wire::websocket::Kind;
use proptest::prelude::*;
use std::borrow::Cow;

const EVENT: Broadcast<'_> = Broadcast {
    topic: "topics:matrix",
    event: "event",
    payload: Payload::Json(r#"{"message":"Hi"}"#),
    position: None,
};

#[test]
fn a_broadcast_is_written_once_and_each_subscriber_may_have_its_join_ref() {
    let mut arena = b"others".to_vec();
    let encoded = EVENT.write(V2, &mut arena);
    let shared = &arena[encoded.start..encoded.end];
    assert_eq!(shared, br#"[null,null,"topics:matrix","event",{"message":"Hi"}]"#);
    for join_ref in ["1", "1000", "\"\\"] {
        let join_ref = Ref::new(join_ref).expect("short");
        let mut out = b"before".to_vec();
        copy(&encoded, V2, &arena, &join_ref, &mut out);
        let text = std::str::from_utf8(&out[6..]).expect("a text");
        let wanted = push([Some(join_ref), None], "topics:matrix", "event", EVENT.payload);
        assert_eq!(Message::read_text(V2, text, &WIDE), Ok(Message::Push(wanted)));
    }
}

#[test]
fn a_thousand_copies_are_the_shared_bytes_after_their_join_refs() {
    let mut arena = Vec::new();
    let encoded = EVENT.write(V2, &mut arena);
    let mut out = Vec::new();
    for number in 0..1_000 {
        out.clear();
        copy(&encoded, V2, &arena, &Ref::new(number.to_string()).expect("short"), &mut out);
        assert_eq!(
            out,
            format!(r#"["{number}",null,"topics:matrix","event",{{"message":"Hi"}}]"#).as_bytes()
        );
    }
    assert_eq!(arena.len(), EVENT.bytes(V2), "and nothing else was written");
}

#[test]
fn a_position_stands_in_the_place_of_the_ref_and_makes_bytes_a_text() {
    for (version, text) in [
        (V1, r#"{"topic":"room","event":"say","payload":{"base64":"/wA="},"ref":"7-1"}"#),
        (V2, r#"[null,"7-1","room","say",{"base64":"/wA="}]"#),
    ] {
        let payload = Payload::Binary(&[0xFF, 0]);
        let broadcast = Broadcast { topic: "room", event: "say", payload, position: Some("7-1") };
        let mut arena = Vec::new();
        assert_eq!(broadcast.write(version, &mut arena).kind, Kind::Text);
        assert_eq!((std::str::from_utf8(&arena), arena.len()), (Ok(text), broadcast.bytes(version)));
    }
}

#[test]
fn version_1_has_no_join_ref_so_all_get_the_same() {
    let mut arena = Vec::new();
    let encoded = EVENT.write(V1, &mut arena);
    let text = r#"{"topic":"topics:matrix","event":"event","payload":{"message":"Hi"},"ref":null}"#;
    assert_eq!(arena, text.as_bytes());
    let (mut out, join_ref) = (Vec::new(), Ref::new("7").expect("short"));
    copy(&encoded, V1, &arena, &join_ref, &mut out);
    assert_eq!(out, arena);
}

#[test]
fn bytes_are_a_binary_broadcast_and_for_one_subscriber_a_push() {
    let broadcast =
        Broadcast { topic: "room", event: "say", payload: Payload::Binary(&[0xFF, 0]), position: None };
    let mut arena = Vec::new();
    let encoded = broadcast.write(V2, &mut arena);
    assert_eq!((encoded.kind, &arena[..]), (Kind::Binary, &b"\x02\x04\x03roomsay\xFF\x00"[..]));
    let (mut out, join_ref) = (Vec::new(), Ref::new("12").expect("short"));
    copy(&encoded, V2, &arena, &join_ref, &mut out);
    assert_eq!(out, b"\x00\x02\x04\x0312roomsay\xFF\x00");
}

#[test]
fn bytes_are_base64_in_an_object_in_version_1_and_where_a_topic_is_too_long() {
    let topic = "t".repeat(256);
    for (version, topic) in [(V1, "room"), (V2, &topic)] {
        for (bytes, base64) in
            [(&b""[..], ""), (b"\xFF", "/w=="), (b"\xFF\0", "/wA="), (b"\xFF\0\x10", "/wAQ")]
        {
            let mut out = Vec::new();
            let encoded = Broadcast { topic, event: "say", payload: Payload::Binary(bytes), position: None }
                .write(version, &mut out);
            assert_eq!(encoded.kind, Kind::Text);
            let text = String::from_utf8(out).expect("a text");
            assert!(text.contains(&format!(r#"{{"base64":"{base64}"}}"#)), "{text}");
        }
    }
}

#[test]
fn the_longest_topic_and_event_of_a_binary_message_are_in_one() {
    let (topic, event) = ("t".repeat(255), "e".repeat(255));
    let broadcast =
        Broadcast { topic: &topic, event: &event, payload: Payload::Binary(b"\xFF"), position: None };
    let mut out = Vec::new();
    assert_eq!(broadcast.write(V2, &mut out).kind, Kind::Binary);
    let wanted = Message::Push(push([None, None], &topic, &event, broadcast.payload));
    assert_eq!(Message::read_binary(V2, &out, &WIDE), Ok(wanted));
}

proptest! {
    #[test]
    fn any_broadcast_has_its_computed_length_and_each_copy_is_equal(draft in draft(), own in ".{1,20}") {
        let push = draft.push();
        let broadcast = Broadcast { topic: &push.topic, event: &push.event, payload: push.payload, position: None };
        let own = Ref::new(own).expect("short");
        for version in [V1, V2] {
            let mut arena = vec![7; 3];
            let encoded = broadcast.write(version, &mut arena);
            prop_assert_eq!(arena.len() - 3, broadcast.bytes(version));
            prop_assert_eq!((encoded.start, encoded.end), (3, arena.len()));
            let mut out = Vec::new();
            copy(&encoded, version, &arena, &own, &mut out);
            let mut wanted = Vec::new();
            let join_ref = Some(own.clone());
            let event = (Cow::Borrowed(&*push.topic), Cow::Borrowed(&*push.event));
            let said = Push { join_ref, reference: None, topic: event.0, event: event.1, payload: push.payload };
            let kind = Message::Push(said).write(version, &mut wanted);
            prop_assert_eq!((kind, out), (Ok(encoded.kind), wanted));
        }
    }
}
