//! A whole connection of the real client, line by line: `transcript.json` has the messages of the client and
//! a server. `tests/clients/phoenix_transcript.mjs` plays the server's lines and checks the client's; this
//! file does the reverse.

use crate::socket_tests::Client;
use crate::tools::*;
use crate::vectors_tests::{bytes_of, shared};
use hubsub_wire::phoenix::*;
use hubsub_wire::websocket::Kind;
use std::collections::VecDeque;

/// A server message as text, or bytes as hex.
fn line(kind: Kind, bytes: &[u8]) -> String {
    match kind {
        Kind::Text => String::from_utf8(bytes.to_vec()).expect("a text"),
        Kind::Binary => format!("hex {}", bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()),
    }
}

/// All messages caused by a push: joins are answered with `{}`, and published events are sent to the client,
/// too.
fn says(client: &mut Client, push: &Push<'_>) -> Vec<String> {
    let mut said = Vec::new();
    let Client { socket, rules, .. } = client;
    let mut joining = Vec::new();
    let mut published = Vec::new();
    let taken = socket.receive(push, rules, &mut |action| match action {
        Action::Send(message) => {
            let mut out = Vec::new();
            let kind = message.write(V2, &mut out).expect("short");
            said.push(line(kind, &out));
        }
        Action::Join { topic, .. } => joining.push(topic.to_string()),
        Action::Leave { .. } | Action::Update { .. } => {}
        Action::Publish { topic, event, payload, answer } => {
            let mut arena = Vec::new();
            let encoded = Broadcast { topic, event, payload, position: None }.write(V2, &mut arena);
            published.push((topic.to_string(), arena, encoded, answer));
        }
    });
    assert_eq!(taken, Taken::Yes);
    for topic in joining {
        let mut out = Vec::new();
        socket.joined(&topic, Ok("{}"), &mut out);
        said.push(line(Kind::Text, &out));
    }
    for (topic, arena, encoded, answer) in published {
        let join_ref = socket.join_ref(&topic).expect("it has joined");
        let mut out = Vec::new();
        copy(&encoded, socket.version(), &arena, join_ref, &mut out);
        said.push(line(encoded.kind, &out));
        out.clear();
        answer.write(Ok("{}"), &mut out);
        said.push(line(Kind::Text, &out));
    }
    said
}

#[test]
fn joined_clients_get_published_messages_with_their_own_join_ref() {
    let (mut neo, mut trinity) = (Client::new(V2), Client::new(V2));
    let of = |text| read(V2, text).expect("a message");
    let joined = says(&mut neo, &of(r#"["1","1","topics:matrix","phx_join",{}]"#));
    assert_eq!(joined, [r#"["1","1","topics:matrix","phx_reply",{"status":"ok","response":{}}]"#]);
    says(&mut trinity, &of(r#"["7","7","topics:matrix","phx_join",{}]"#));
    let publish = of(r#"["1","2","topics:matrix","publish",["event",{"message":"Hi"}]]"#);
    let own = r#"["1",null,"topics:matrix","event",{"message":"Hi"}]"#;
    let ok = r#"["1","2","topics:matrix","phx_reply",{"status":"ok","response":{}}]"#;
    assert_eq!(says(&mut neo, &publish), [own, ok]);

    let mut arena = Vec::new();
    let event = Broadcast {
        topic: "topics:matrix",
        event: "event",
        payload: Payload::Json(r#"{"message":"Hi"}"#),
        position: None,
    };
    let encoded = event.write(V2, &mut arena);
    let mut out = Vec::new();
    let own = trinity.socket.join_ref("topics:matrix").expect("it has joined");
    copy(&encoded, V2, &arena, own, &mut out);
    assert_eq!(line(encoded.kind, &out), r#"["7",null,"topics:matrix","event",{"message":"Hi"}]"#);
}

#[test]
fn the_real_client_s_connection_is_answered_word_for_word() {
    let transcript = shared("transcript.json");
    let url = transcript["url"].as_str().expect("a url");
    let path = url.strip_prefix("ws://localhost:4000").expect("of this server");
    let protocols = transcript["protocols"].as_array().expect("a list");
    let protocols = protocols.iter().map(|name| name.as_str().expect("a name"));
    let connect = Connect::read(path, protocols).expect("a good request");
    assert_eq!(
        (connect.version, connect.token.as_deref(), connect.subprotocol),
        (V2, Some("secret"), Some("phoenix"))
    );

    let mut client = Client::new(connect.version);
    let (mut due, mut steps) = (VecDeque::new(), 0);
    for step in transcript["steps"].as_array().expect("a list") {
        steps += 1;
        let (member, what) = step.as_object().expect("a step").iter().next().expect("who");
        let what = what.as_str().expect("a text");
        if member == "server" {
            assert_eq!(due.pop_front().as_deref(), Some(what), "step {steps}");
            continue;
        }
        assert_eq!(due, [""; 0], "more was said before step {steps}");
        match member.as_str() {
            "client" => match what.strip_prefix("hex ") {
                None => due.extend(says(&mut client, &read(V2, what).expect("a message"))),
                Some(hex) => {
                    let bytes = bytes_of(hex);
                    due.extend(says(&mut client, &Push::read_binary(V2, &bytes, &WIDE).expect("a message")));
                }
            },
            "fails" => {
                assert!(client.socket.fail(what, "room lost", &mut |action| {
                    let Action::Send(message) = action else { panic!("{action:?}") };
                    due.push_back(said(V2, &message));
                }));
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!(due, [""; 0]);
    assert!(steps > 20 && client.socket.topics().count() == 0);
}
