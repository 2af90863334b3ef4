//! Connections: the replies, joins, leaves and publishes for each message.

use crate::tools::*;
use hubsub_types::names::Matcher;
use hubsub_wire::phoenix::*;
use hubsub_wire::websocket::CloseCode;

/// A connection, and its owner's pending replies.
pub struct Client {
    pub socket: Socket,
    pub rules: Rules,
    pub answers: Vec<Answer>,
}

impl Client {
    pub fn new(version: Version) -> Client {
        let topics = ["topics:*", "room:*", "phoenix"];
        let topics = topics.map(|topic| Matcher::parse(topic).expect("a glob")).to_vec();
        let rules = Rules { topics, ..Rules::default() };
        Client { socket: Socket::new(version, 0), rules, answers: Vec::new() }
    }

    /// The actions for a message, as text; `waits` if it was not accepted.
    pub fn sends(&mut self, text: &str) -> Vec<String> {
        let version = self.socket.version();
        let push = read(version, text).expect("a message");
        self.pushes(&push)
    }

    pub fn pushes(&mut self, push: &Push<'_>) -> Vec<String> {
        let (mut done, answers) = (Vec::new(), &mut self.answers);
        let version = self.socket.version();
        let taken =
            self.socket.receive(push, &self.rules, &mut |action| done.push(words(version, action, answers)));
        if taken == Taken::Waits {
            assert_eq!(done, [""; 0]);
            done.push("waits".into());
        }
        done
    }

    pub fn joined(&mut self, topic: &str, outcome: Result<&str, &str>) -> String {
        let mut out = Vec::new();
        self.socket.joined(topic, outcome, &mut out);
        String::from_utf8(out).expect("a text")
    }

    /// The reply to the oldest unanswered push.
    pub fn published(&mut self, outcome: Result<&str, &str>) -> String {
        let mut out = Vec::new();
        self.answers.remove(0).write(outcome, &mut out);
        String::from_utf8(out).expect("a text")
    }

    /// Joins a topic, with an immediate reply.
    pub fn joins(&mut self, topic: &str, reference: &str) {
        let done = self.sends(&format!(r#"["{reference}","{reference}","{topic}","phx_join",{{}}]"#));
        assert!(done.last().is_some_and(|last| *last == format!("join {topic} Live {{}}")), "{done:?}");
        self.joined(topic, Ok("{}"));
    }
}

fn words(version: Version, action: Action<'_>, answers: &mut Vec<Answer>) -> String {
    let of = |payload: Payload<'_>| String::from_utf8_lossy(payload.as_bytes()).into_owned();
    match action {
        Action::Send(message) => said(version, &message),
        Action::Join { topic, start, params, presence: None } => {
            format!("join {topic} {start:?} {}", of(params))
        }
        Action::Join { topic, presence: Some(PresenceRequest { member }), .. } => {
            let member = member.map(|member| format!("{} {}", member.key, member.meta));
            format!("join {topic} as {member:?}")
        }
        Action::Update { topic, meta, answer } => {
            answers.push(answer);
            format!("update {topic} {meta}")
        }
        Action::Leave { topic } => format!("leave {topic}"),
        Action::Publish { topic, event, payload, answer } => {
            answers.push(answer);
            format!("publish {topic} {event} {}", of(payload))
        }
    }
}

#[test]
fn a_heartbeat_is_answered() {
    let mut client = Client::new(V2);
    let ok = r#"[null,"6","phoenix","phx_reply",{"status":"ok","response":{}}]"#;
    assert_eq!(client.sends(r#"[null,"6","phoenix","heartbeat",{}]"#), [ok]);
    let mut client = Client::new(V1);
    let ok = r#"{"topic":"phoenix","event":"phx_reply","ref":"6","payload":{"status":"ok","response":{}}}"#;
    assert_eq!(client.sends(r#"{"topic":"phoenix","event":"heartbeat","payload":{},"ref":"6"}"#), [ok]);
}

#[test]
fn a_push_to_a_topic_that_is_not_joined_is_unmatched() {
    let mut client = Client::new(V2);
    let unmatched =
        r#"[null,"2","room:1","phx_reply",{"status":"error","response":{"reason":"unmatched topic"}}]"#;
    assert_eq!(client.sends(r#"["1","2","room:1","say",{}]"#), [unmatched]);
    assert_eq!(client.sends(r#"["1","2","room:1","publish",["a",1]]"#), [unmatched]);
    assert_eq!(client.sends(r#"["1","2","room:1","heartbeat",{}]"#), [unmatched]);
}

#[test]
fn a_topic_that_may_not_be_joined_is_unmatched_and_so_is_the_protocol_s_own() {
    let mut client = Client::new(V2);
    for topic in ["other", "", "phoenix", "Room:1"] {
        let done = client.sends(&format!(r#"["3","1","{topic}","phx_join",{{}}]"#));
        let response = r#"{"status":"error","response":{"reason":"unmatched topic"}}"#;
        assert_eq!(done, [format!(r#"["3","1","{topic}","phx_reply",{response}]"#)], "it names the join");
    }
}

#[test]
fn a_join_is_answered_when_it_is_done_and_dependent_messages_wait() {
    let mut client = Client::new(V2);
    let done = client.sends(r#"["1","1","room:1","phx_join",{"rewind":"10s"}]"#);
    assert_eq!(done, [r#"join room:1 Past { ms: 10000 } {"rewind":"10s"}"#]);
    for event in ["say", "phx_leave", "phx_join"] {
        assert_eq!(client.sends(&format!(r#"["1","2","room:1","{event}",{{}}]"#)), ["waits"], "{event}");
    }
    assert_eq!(client.sends(r#"["3","3","room:2","phx_join",{}]"#), ["join room:2 Live {}"], "others do not");
    assert_eq!(client.sends(r#"[null,"4","phoenix","heartbeat",{}]"#).len(), 1);
    let ok =
        r#"["1","1","room:1","phx_reply",{"status":"ok","response":{"position":"1-2","recovered":true}}]"#;
    assert_eq!(client.joined("room:1", Ok(r#"{"position":"1-2","recovered":true}"#)), ok);
    assert_eq!(client.sends(r#"["1","2","room:1","say",{"a":1}]"#), [r#"publish room:1 say {"a":1}"#]);
}

#[test]
fn a_join_that_is_refused_leaves_nothing() {
    let mut client = Client::new(V2);
    client.sends(r#"["1","1","room:1","phx_join",{}]"#);
    let refused =
        r#"["1","1","room:1","phx_reply",{"status":"error","response":{"reason":"not \"allowed\""}}]"#;
    assert_eq!(client.joined("room:1", Err("not \"allowed\"")), refused);
    assert_eq!(client.socket.topics().count(), 0);
    assert_eq!(client.sends(r#"["2","2","room:1","phx_join",{}]"#), ["join room:1 Live {}"]);
}

#[test]
fn a_join_with_an_invalid_start_is_refused() {
    let mut client = Client::new(V2);
    let done = client.sends(r#"["1","1","room:1","phx_join",{"rewind":"soon"}]"#);
    assert!(done[0].starts_with(r#"["1","1","room:1","phx_reply",{"status":"error""#), "{done:?}");
    assert!(done[0].contains("rewind is a count or a time") && done.len() == 1);
    assert_eq!(client.socket.topics().count(), 0);
}

#[test]
fn a_second_join_closes_the_first_channel_and_then_joins() {
    let mut client = Client::new(V2);
    client.joins("room:1", "1");
    let done = client.sends(r#"["5","5","room:1","phx_join",{}]"#);
    let closed = r#"["1","1","room:1","phx_close",{}]"#;
    assert_eq!(done, [closed, "leave room:1", "join room:1 Live {}"]);
    assert_eq!(
        client.joined("room:1", Ok("{}")),
        r#"["5","5","room:1","phx_reply",{"status":"ok","response":{}}]"#
    );
}

#[test]
fn leaving_is_answered_and_closes_the_channel_with_the_ref_of_its_join() {
    let mut client = Client::new(V2);
    client.joins("room:1", "1");
    let ok = r#"["1","7","room:1","phx_reply",{"status":"ok","response":{}}]"#;
    let closed = r#"["1","1","room:1","phx_close",{}]"#;
    assert_eq!(client.sends(r#"["1","7","room:1","phx_leave",{}]"#), ["leave room:1", ok, closed]);
    assert_eq!(
        client.sends(r#"["1","7","room:1","phx_leave",{}]"#),
        [ok],
        "and a topic that is not joined, too"
    );
}

#[test]
fn messages_of_an_earlier_join_are_ignored_and_those_without_a_join_ref_are_not() {
    let mut client = Client::new(V2);
    client.joins("room:1", "1");
    client.joins("room:1", "5");
    for event in ["say", "publish", "phx_leave"] {
        assert_eq!(client.sends(&format!(r#"["1","6","room:1","{event}",{{}}]"#)), [""; 0], "{event}");
    }
    assert_eq!(client.sends(r#"[null,"6","room:1","say",{}]"#), ["publish room:1 say {}"]);
    let leave = client.sends(r#"[null,"7","room:1","phx_leave",{}]"#);
    let closed = r#"["5","5","room:1","phx_close",{}]"#;
    assert_eq!((leave.len(), &*leave[2]), (3, closed));
}

#[test]
fn a_join_ref_that_is_a_number_is_that_number_in_binary_too() {
    let mut client = Client::new(V2);
    client.sends(r#"[1,1,"room:1","phx_join",{}]"#);
    assert_eq!(
        client.joined("room:1", Ok("{}")),
        r#"[1,1,"room:1","phx_reply",{"status":"ok","response":{}}]"#
    );
    let push = Push::read_binary(V2, b"\0\x01\x01\x06\x0312room:1say\xFF", &WIDE).expect("a push");
    assert_eq!(client.pushes(&push), ["publish room:1 say \u{FFFD}"]);
    assert_eq!(client.published(Ok("{}")), r#"["1","2","room:1","phx_reply",{"status":"ok","response":{}}]"#);
}

#[test]
fn the_hundred_and_first_channel_is_one_too_many() {
    let mut client = Client::new(V2);
    for number in 0..100 {
        let join = format!(r#"["{number}","{number}","room:{number}","phx_join",{{}}]"#);
        assert_eq!(client.sends(&join), [format!("join room:{number} Live {{}}")]);
    }
    for number in 0..50 {
        client.joined(&format!("room:{number}"), Ok("{}"));
    }
    let many = r#"["x","x","room:x","phx_reply",{"status":"error","response":{"reason":"too many channels joined"}}]"#;
    let join = r#"["x","x","room:x","phx_join",{}]"#;
    assert_eq!(client.sends(join), [many]);
    assert_eq!(
        client.sends(r#"["y","y","room:1","phx_join",{}]"#).len(),
        3,
        "a second join takes the first's place"
    );
    assert_eq!(client.sends(join), [many]);
    client.sends(r#"["2","z","room:2","phx_leave",{}]"#);
    assert_eq!(client.sends(join), ["join room:x Live {}"]);
    assert_eq!(client.socket.topics().count(), 100);
}

#[test]
fn publish_carries_its_event_in_the_payload_and_other_events_are_their_own() {
    let mut client = Client::new(V2);
    client.joins("topics:matrix", "1");
    let publish = r#"["1","2","topics:matrix","publish",["event",{"message":"Hi"}]]"#;
    assert_eq!(client.sends(publish), [r#"publish topics:matrix event {"message":"Hi"}"#]);
    let escaped = r#"["1","3","topics:matrix","publish", [ "\u0065vent" , [1] ] ]"#;
    assert_eq!(client.sends(escaped), ["publish topics:matrix event [1]"]);
    assert_eq!(
        client.sends(r#"["1","4","topics:matrix","typing",null]"#),
        ["publish topics:matrix typing null"]
    );
    assert_eq!(
        client.published(Ok("{}")),
        r#"["1","2","topics:matrix","phx_reply",{"status":"ok","response":{}}]"#
    );
    let refused = r#"["1","3","topics:matrix","phx_reply",{"status":"error","response":{"reason":"no"}}]"#;
    assert_eq!(client.published(Err("no")), refused);
}

#[test]
fn a_publish_of_another_form_is_refused() {
    let mut client = Client::new(V2);
    client.joins("room:1", "1");
    for payload in ["{}", "null", "[]", r#"["event"]"#, r#"["event",1,2]"#, r#"[1,{}]"#, r#""event""#] {
        let done = client.sends(&format!(r#"["1","2","room:1","publish",{payload}]"#));
        let response = r#"{"status":"error","response":{"reason":"publish takes [event, payload]"}}"#;
        assert_eq!(done, [format!(r#"["1","2","room:1","phx_reply",{response}]"#)], "{payload}");
    }
    let binary = Push::read_binary(V2, b"\0\x01\x01\x06\x0712room:1publish[]", &WIDE).expect("a push");
    assert!(client.pushes(&binary)[0].contains("publish takes"));
}

#[test]
fn clients_cannot_send_the_protocols_own_events_to_others() {
    let mut client = Client::new(V2);
    client.joins("room:1", "1");
    let refused =
        r#"["1","2","room:1","phx_reply",{"status":"error","response":{"reason":"reserved event"}}]"#;
    for event in ["phx_close", "phx_error", "phx_reply", "presence_state", "presence_diff", "presence_count"]
    {
        assert_eq!(client.sends(&format!(r#"["1","2","room:1","{event}",{{}}]"#)), [refused], "{event}");
        let within = format!(r#"["1","2","room:1","publish",["{event}",{{}}]]"#);
        assert_eq!(client.sends(&within), [refused], "{event}");
    }
    let long = format!(r#"["1","2","room:1","publish",["{}",1]]"#, "e".repeat(256));
    assert!(client.sends(&long)[0].contains("event too long"));
}

#[test]
fn an_answer_holds_though_its_channel_is_gone() {
    let mut client = Client::new(V2);
    client.joins("room:1", "1");
    client.sends(r#"["1","2","room:1","say",{}]"#);
    client.sends(r#"["1","3","room:1","phx_leave",{}]"#);
    assert_eq!(client.published(Ok("{}")), r#"["1","2","room:1","phx_reply",{"status":"ok","response":{}}]"#);
}

#[test]
fn the_server_closes_a_channel_or_tells_that_it_failed_once() {
    let mut client = Client::new(V2);
    client.joins("room:1", "1");
    client.joins("room:2", "2");
    client.sends(r#"["3","3","room:3","phx_join",{}]"#);
    let mut done = Vec::new();
    let mut act = |action: Action<'_>| done.push(words(V2, action, &mut Vec::new()));
    assert!(client.socket.close("room:1", &mut act) && !client.socket.close("room:1", &mut act));
    assert!(client.socket.fail("room:2", "room lost", &mut act));
    assert!(!client.socket.fail("room:2", "room lost", &mut act));
    assert!(!client.socket.close("room:3", &mut act), "a join is answered, not closed");
    let closed = r#"["1","1","room:1","phx_close",{}]"#;
    assert_eq!(done, [closed, r#"["2","2","room:2","phx_error",{"reason":"room lost"}]"#]);
    assert!(client.socket.topics().eq(["room:3"]));
    assert_eq!(
        client.sends(r#"["9","9","room:2","phx_join",{}]"#),
        ["join room:2 Live {}"],
        "it joins again"
    );
}

#[test]
fn in_version_1_a_channel_is_known_by_the_ref_of_its_join() {
    let mut client = Client::new(V1);
    let join = r#"{"topic":"room:1","event":"phx_join","payload":{},"ref":"1"}"#;
    assert_eq!(client.sends(join), ["join room:1 Live {}"]);
    let ok = |number| {
        format!(
            r#"{{"topic":"room:1","event":"phx_reply","ref":"{number}","payload":{{"status":"ok","response":{{}}}}}}"#
        )
    };
    assert_eq!(client.joined("room:1", Ok("{}")), ok(1));
    assert_eq!(
        client.sends(r#"{"topic":"room:1","event":"say","payload":{},"ref":"2"}"#),
        ["publish room:1 say {}"]
    );
    assert_eq!(client.published(Ok("{}")), ok(2));
    let closed = r#"{"topic":"room:1","event":"phx_close","payload":{},"ref":"1"}"#;
    let again = client.sends(&join.replace(r#""ref":"1""#, r#""ref":"3""#));
    assert_eq!(again, [closed, "leave room:1", "join room:1 Live {}"]);
    client.joined("room:1", Ok("{}"));
    let leave = client.sends(r#"{"topic":"room:1","event":"phx_leave","payload":{},"ref":"4"}"#);
    assert_eq!(leave, ["leave room:1".into(), ok(4), closed.replace(r#""ref":"1""#, r#""ref":"3""#)]);
}

#[test]
fn a_join_without_a_join_ref_has_none_in_version_2() {
    let mut client = Client::new(V2);
    client.sends(r#"[null,"1","room:1","phx_join",{}]"#);
    assert_eq!(
        client.joined("room:1", Ok("{}")),
        r#"[null,"1","room:1","phx_reply",{"status":"ok","response":{}}]"#
    );
    assert_eq!(client.socket.join_ref("room:1"), None);
    assert_eq!(client.sends(r#"["1","2","room:1","say",{}]"#), [""; 0], "that would be another join's");
    let left = client.sends(r#"[null,"3","room:1","phx_leave",{}]"#);
    assert_eq!(left[2], r#"[null,null,"room:1","phx_close",{}]"#);
}

#[test]
fn a_client_is_silent_for_too_long_when_nothing_comes_for_as_long_as_the_rules_say() {
    let mut socket = Socket::new(V2, 1_000);
    let rules = Rules::default();
    assert_eq!(socket.silent_at_ms(&rules), 61_000);
    socket.heard(31_000);
    assert_eq!(socket.silent_at_ms(&rules), 91_000);
    assert_eq!(socket.silent_at_ms(&Rules { silence_ms_max: u64::MAX, ..rules }), u64::MAX);
}

#[test]
fn no_end_has_the_code_after_which_old_clients_stay_away() {
    let ends = [End::Flaw(Flaw::NotEnvelope), End::Silent, End::Disconnected, End::Restart];
    let codes = ends.map(|end| end.code().number());
    assert_eq!(codes, [1007, 1001, 1001, 1012]);
    assert!(!codes.contains(&CloseCode::NORMAL.number()));
}
