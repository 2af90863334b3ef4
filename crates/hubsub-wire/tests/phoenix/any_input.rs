//! Properties of any input, as text and as bytes, of either side: decoding, then encoding yields the same,
//! and a connection that gets it line by line obeys its rules. The fuzz target `phoenix_decode` and the test
//! of its sample use this file.

use hubsub_types::names::Matcher;
use hubsub_wire::phoenix::{
    Action, Broadcast, DecodeLimits, Flaw, Message, Payload, Push, Rules, Socket, Taken, Version,
    is_reserved, write_push,
};
use hubsub_wire::websocket::Kind;
use std::collections::BTreeSet;

/// Low, so that a short sample exceeds it.
pub const LIMITS: DecodeLimits = DecodeLimits { topic_bytes_max: 300 };

pub const VERSIONS: [Version; 2] = [Version::V1, Version::V2];

/// Checks all properties of an input.
///
/// # Panics
/// A property is violated.
pub fn check(input: &[u8]) {
    for version in VERSIONS {
        if let Ok(text) = std::str::from_utf8(input) {
            look(Push::read_text(version, text, &LIMITS), |push| pushed_again(version, push));
            look(Message::read_text(version, text, &LIMITS), |message| said_again(version, message));
            play(version, text);
        }
        look(Push::read_binary(version, input, &LIMITS), |push| pushed_again(version, push));
        look(Message::read_binary(version, input, &LIMITS), |message| said_again(version, message));
    }
    for form in [None, Some("json"), Some("binary")] {
        let form = form.and_then(hubsub_wire::phoenix::Form::named);
        let mut made = Vec::new();
        let payload = Payload::of_record(input, form, &mut made);
        for version in VERSIONS {
            broadcast_again(version, Broadcast { topic: "room", event: "message", payload, position: None });
        }
    }
}

/// Checks that an error has a text and a code; passes a success to `good`.
fn look<T>(read: Result<T, Flaw>, good: impl FnOnce(&T)) {
    match read {
        Ok(read) => good(&read),
        Err(flaw) => {
            assert!(flaw.code().number() >= 1003 && !flaw.to_string().is_empty());
        }
    }
}

/// Checks that a push is equal after encoding and decoding.
pub fn pushed_again(version: Version, push: &Push<'_>) {
    let mut bytes = Vec::new();
    let kind = write_push(&mut bytes, version, push).expect("it was short enough");
    let again = match kind {
        Kind::Text => Push::read_text(version, text(&bytes), &LIMITS),
        Kind::Binary => Push::read_binary(version, &bytes, &LIMITS),
    };
    let without = |push: &Push<'_>| match version {
        Version::V1 => format!("{:?}", (&push.reference, &push.topic, &push.event, push.payload)),
        Version::V2 => format!("{push:?}"),
    };
    assert_eq!(again.as_ref().map(without), Ok(without(push)), "{bytes:?}");
}

/// Checks that a server message is equal after encoding and decoding.
pub fn said_again(version: Version, message: &Message<'_>) {
    let mut bytes = Vec::new();
    let kind = message.write(version, &mut bytes).expect("it was short enough");
    let again = match kind {
        Kind::Text => Message::read_text(version, text(&bytes), &LIMITS),
        Kind::Binary => Message::read_binary(version, &bytes, &LIMITS),
    };
    let (mut again, mut message) = (again.expect("what is written is read"), message.clone());
    if version == Version::V1 {
        // Version 1 has no join_ref.
        for message in [&mut again, &mut message] {
            match message {
                Message::Push(push) => push.join_ref = None,
                Message::Reply(reply) => reply.join_ref = None,
            }
        }
    }
    assert_eq!(again, message, "{bytes:?}");
}

fn broadcast_again(version: Version, broadcast: Broadcast<'_>) {
    let mut bytes = Vec::new();
    let encoded = broadcast.write(version, &mut bytes);
    assert_eq!((encoded.start, encoded.end, bytes.len()), (0, bytes.len(), broadcast.bytes(version)));
    let read = match encoded.kind {
        Kind::Text => Message::read_text(version, text(&bytes), &LIMITS),
        Kind::Binary => Message::read_binary(version, &bytes, &LIMITS),
    };
    let Ok(Message::Push(push)) = read else { panic!("{read:?}") };
    let said = (&*push.topic, &*push.event, &push.join_ref, &push.reference);
    assert_eq!(said, (broadcast.topic, broadcast.event, &None, &None));
    if encoded.kind == Kind::Binary || matches!(broadcast.payload, Payload::Json(_)) {
        assert_eq!(push.payload, broadcast.payload);
    }
}

/// The lines are messages of one connection, whose joins are answered when a message waits for them, every
/// third with a refusal.
fn play(version: Version, input: &str) {
    let rules =
        Rules { topics: vec![Matcher::parse("*").expect("a glob")], channels_max: 3, ..Rules::default() };
    let mut socket = Socket::new(version, 0);
    let mut subscribed = BTreeSet::new();
    let mut joining = Vec::new();
    let mut joins = 0;
    for line in input.lines() {
        let Ok(push) = Push::read_text(version, line, &LIMITS) else { continue };
        loop {
            let mut said = 0;
            let taken = socket.receive(&push, &rules, &mut |action| match action {
                Action::Send(message) => {
                    said += 1;
                    said_again(version, &message);
                }
                Action::Join { topic, .. } => {
                    assert!(subscribed.insert(topic.to_string()), "joined twice: {topic}");
                    joining.push(topic.to_string());
                }
                Action::Leave { topic } => {
                    assert!(subscribed.remove(topic), "left and not joined: {topic}");
                }
                Action::Update { topic, answer, .. } => {
                    said += 1;
                    assert!(subscribed.contains(topic));
                    answer.write(Err("no member"), &mut Vec::new());
                }
                Action::Publish { topic, event, answer, .. } => {
                    said += 1;
                    assert!(subscribed.contains(topic) && !is_reserved(event));
                    let mut out = Vec::new();
                    answer.write(Ok("{}"), &mut out);
                    assert!(matches!(
                        Message::read_text(version, text(&out), &LIMITS),
                        Ok(Message::Reply(_))
                    ));
                }
            });
            assert!(said <= 2, "an answer, and the end of a channel");
            assert!(subscribed.len() <= rules.channels_max);
            assert!(socket.topics().eq(subscribed.iter().map(String::as_str)));
            if taken == Taken::Yes {
                break;
            }
            assert_eq!(said, 0, "what waits does nothing");
            assert!(joining.contains(&push.topic.to_string()), "it waits for a join");
            for topic in joining.drain(..) {
                joins += 1;
                let refused = joins % 3 == 0;
                let mut out = Vec::new();
                socket.joined(&topic, if refused { Err("no") } else { Ok("{}") }, &mut out);
                assert!(matches!(Message::read_text(version, text(&out), &LIMITS), Ok(Message::Reply(_))));
                if refused {
                    subscribed.remove(&topic);
                }
            }
        }
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("texts are UTF-8")
}
