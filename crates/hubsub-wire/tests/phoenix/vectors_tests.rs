//! The real client's serializer: `vectors.json` has messages, and how the client encodes or decodes them.
//! `tests/clients/phoenix_vectors.mjs` checks the client; this file checks the codec.

use crate::tools::*;
use hubsub_wire::phoenix::*;
use hubsub_wire::websocket::Kind;
use serde_json::Value;
use std::borrow::Cow;
use std::fs;
use std::path::Path;

/// Test data shared with the JavaScript tests.
pub fn shared(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/phoenix").join(name);
    serde_json::from_slice(&fs::read(path).expect("a file")).expect("JSON")
}

pub fn bytes_of(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2).map(|two| std::str::from_utf8(two).expect("hex"));
    digits.map(|two| u8::from_str_radix(two, 16).expect("hex")).collect()
}

fn text<'a>(message: &'a Value, name: &str) -> &'a str {
    message[name].as_str().expect("a text")
}

fn ref_of<'a>(message: &'a Value, name: &str) -> Option<Ref<'a>> {
    message[name].as_str().map(|text| Ref::new(text).expect("short"))
}

/// A payload in the vectors' format: bytes as `{"hex": …}`.
fn payload_of(value: &Value) -> (String, Option<Vec<u8>>) {
    (value.to_string(), value.get("hex").map(|hex| bytes_of(hex.as_str().expect("hex"))))
}

#[test]
fn messages_of_the_real_client_are_read() {
    let vectors = shared("vectors.json");
    let vectors = vectors["client"].as_array().expect("a list");
    assert!(vectors.len() >= 10);
    for vector in vectors {
        let (message, wire) = (&vector["message"], text(vector, "wire"));
        let bytes = wire.strip_prefix("hex ").map(bytes_of);
        let push = match &bytes {
            None => read(V2, wire),
            Some(bytes) => Push::read_binary(V2, bytes, &WIDE),
        }
        .expect("a message");
        assert_eq!((&*push.topic, &*push.event), (text(message, "topic"), text(message, "event")));
        assert_eq!(push.join_ref, ref_of(message, "join_ref"));
        assert_eq!(push.reference, ref_of(message, "ref"));
        match (push.payload, payload_of(&message["payload"])) {
            (Payload::Binary(bytes), (_, Some(wanted))) => assert_eq!(bytes, wanted),
            (Payload::Json(text), (wanted, None)) => {
                assert_eq!(serde_json::from_str::<Value>(text).expect("JSON").to_string(), wanted);
            }
            other => panic!("{other:?}"),
        }
        // The client's encoding is the same as ours.
        let mut out = Vec::new();
        write_push(&mut out, V2, &push).expect("short");
        assert_eq!(out, bytes.unwrap_or(wire.as_bytes().to_vec()), "{wire}");
    }
}

#[test]
fn messages_for_the_real_client_are_written() {
    let vectors = shared("vectors.json");
    let vectors = vectors["server"].as_array().expect("a list");
    assert!(vectors.len() >= 10);
    for vector in vectors {
        let (message, wire) = (&vector["message"], text(vector, "wire"));
        let (join_ref, reference) = (ref_of(message, "join_ref"), ref_of(message, "ref"));
        let topic = Cow::Borrowed(text(message, "topic"));
        let is_reply = text(message, "event") == word::REPLY;
        let value = if is_reply { &message["payload"]["response"] } else { &message["payload"] };
        let (json, bytes) = payload_of(value);
        let payload = bytes.as_deref().map_or(Payload::Json(&json), Payload::Binary);
        let written = if is_reply {
            let status = if text(&message["payload"], "status") == "ok" { Status::Ok } else { Status::Error };
            Message::Reply(Reply { join_ref, reference, topic, status, response: payload })
        } else {
            let event = Cow::Borrowed(text(message, "event"));
            Message::Push(Push { join_ref, reference, topic, event, payload })
        };
        let mut out = Vec::new();
        let kind = written.write(V2, &mut out).expect("short");
        let wanted = wire.strip_prefix("hex ").map_or(wire.as_bytes().to_vec(), bytes_of);
        assert_eq!(out, wanted, "{wire}");
        assert_eq!(kind == Kind::Binary, wire.starts_with("hex "));
    }
}
