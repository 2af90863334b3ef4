//! Text messages of both versions: accepted ones, and the errors of the others.

use crate::tools::*;
use hubsub_wire::phoenix::*;
use hubsub_wire::websocket::CloseCode;
use std::borrow::Cow;

#[test]
fn a_message_of_version_2_is_its_five_parts() {
    let text = r#"["1","2","room:1","say",{"text":"hi"}]"#;
    let wanted = push([reference("1"), reference("2")], "room:1", "say", Payload::Json(r#"{"text":"hi"}"#));
    assert_eq!(read(V2, text), Ok(wanted));
}

#[test]
fn a_message_of_version_1_is_an_object_in_any_order_with_or_without_a_ref() {
    let wanted = push([None, reference("2")], "room:1", "say", Payload::Json("[1, 2]"));
    for text in [
        r#"{"topic":"room:1","event":"say","payload":[1, 2],"ref":"2"}"#,
        r#" { "ref" : "2" , "payload" : [1, 2] , "other":[{"a":null}], "event":"say","topic":"room:1" } "#,
        r#"{"topic":"room:1","event":"say","payload":[1, 2],"r\u0065f":"2","join_ref":null}"#,
    ] {
        assert_eq!(read(V1, text), Ok(wanted.clone()), "{text}");
    }
    let without = read(V1, r#"{"topic":"t","event":"e","payload":null}"#).expect("a message");
    assert_eq!((without.reference, without.payload), (None, Payload::Json("null")));
}

#[test]
fn a_payload_is_left_as_it_came_without_the_space_around_it() {
    for payload in ["{}", "null", "-1.5E+7", r#""\ud800 \" ü""#, r#"{ "a" : [ ] , "b":{"c":[[1]]} }"#, "[]"]
    {
        let text = format!("\n[null, null ,\"t\",\t\"e\" , {payload}\r\n]\n");
        assert_eq!(read(V2, &text).expect("a message").payload, Payload::Json(payload));
    }
}

#[test]
fn words_are_borrowed_and_copied_only_where_they_have_escapes() {
    let plain = read(V2, r#"[null,null,"zimmer:ü","€",1]"#).expect("a message");
    assert!(matches!(plain.topic, Cow::Borrowed("zimmer:ü")) && matches!(plain.event, Cow::Borrowed("€")));
    let escaped = read(V2, r#"["\u0031",null,"a\/b\"\\\n\t\u00fc\ud83d\ude00","",1]"#).expect("a message");
    assert!(matches!(&escaped.topic, Cow::Owned(topic) if topic == "a/b\"\\\n\tü😀"));
    assert_eq!((escaped.join_ref, &*escaped.event), (reference("1"), ""));
}

#[test]
fn a_ref_is_a_text_or_a_whole_number_and_goes_back_as_it_came() {
    let taken = read(V2, r#"[1,-20,"t","e",{}]"#).expect("a message");
    assert_eq!((&taken.join_ref, &taken.reference), (&reference("1"), &reference("-20")));
    assert_eq!(said(V2, &Message::Push(taken)), r#"[1,-20,"t","e",{}]"#);
    for wrong in ["1.0", "1e3", "true", "[]", "{}"] {
        assert_eq!(flaw(V2, &format!(r#"[null,{wrong},"t","e",{{}}]"#)), Flaw::RefKind, "{wrong}");
    }
    let long = "1".repeat(256);
    for text in [format!(r#"["{long}",null,"t","e",{{}}]"#), format!(r#"[null,{long},"t","e",{{}}]"#)] {
        assert_eq!(flaw(V2, &text), Flaw::RefTooLong(256, 255));
    }
    assert!(read(V2, &format!(r#"[null,"{}","t","e",{{}}]"#, &long[1..])).is_ok());
}

#[test]
fn json_that_is_no_message_has_another_error_than_text_that_is_not_json() {
    for text in [
        "{}",
        "1",
        "null",
        "[]",
        "[1]",
        r#"[null,null,"t","e"]"#,
        r#"[null,null,"t","e",{},1]"#,
        r#"[null,null,"t","e",{},]"#,
        r#"[null,null,1,"e",{}]"#,
        r#"[null,null,"t",null,{}]"#,
    ] {
        assert_eq!(flaw(V2, text), Flaw::NotEnvelope, "{text}");
    }
    for text in
        ["[]", "1", r#"{"topic":1,"event":"e","payload":1}"#, r#"{"topic":"t","event":[],"payload":1}"#]
    {
        assert_eq!(flaw(V1, text), Flaw::NotObject, "{text}");
    }
    for (name, text) in [
        ("topic", r#"{"event":"e","payload":1,"ref":null}"#),
        ("event", r#"{"topic":"t","payload":1,"ref":null}"#),
        ("payload", r#"{"topic":"t","event":"e","ref":null}"#),
    ] {
        assert_eq!(flaw(V1, text), Flaw::Missing(name));
    }
    for (name, twice) in
        [("topic", r#""a""#), ("event", r#""a""#), ("payload", "{}"), ("ref", "null"), ("join_ref", "null")]
    {
        assert_eq!(flaw(V1, &format!(r#"{{"{name}":{twice},"{name}":{twice}}}"#)), Flaw::Repeated(name));
    }
}

#[test]
fn the_error_of_invalid_json_has_its_position() {
    for (at, text) in [
        (0, ""),
        (2, "  "),
        (0, "x"),
        (1, "["),
        (18, r#"[null,null,"t","e"{}]"#),
        (19, r#"[null,null,"t","e",]"#),
        (20, r#"[null,null,"t","e",{,}]"#),
        (20, r#"[null,null,"t","e",01]"#),
        (21, r#"[null,null,"t","e",{}"#),
        (22, r#"[null,null,"t","e",{}]]"#),
        (12, "[null,null,\"\n\",\"e\",{}]"),
        (12, r#"[null,null,"\x","e",{}]"#),
        (12, r#"[null,null,"\u12g4","e",{}]"#),
        (13, r#"[null,null,"t"#),
        (23, r#"[null,null,"t","e",{"a"}]"#),
    ] {
        assert_eq!(flaw(V2, text), Flaw::NotJson(at), "{text}");
    }
    assert_eq!(flaw(V1, r#"{"topic":"t",}"#), Flaw::NotJson(13));
    assert_eq!(Flaw::NotJson(1).code(), CloseCode::INVALID_DATA);
}

#[test]
fn half_a_character_is_refused_in_a_word_and_left_alone_in_a_payload() {
    for half in [r"\ud83d", r"\ude00", r"\ud83dx", r"\ud83d\n", r"\ude00\ud83d", r"\ud83d\ud83d"] {
        assert_eq!(flaw(V2, &format!(r#"[null,null,"{half}","e",{{}}]"#)), Flaw::HalfCharacter, "{half}");
        assert!(read(V2, &format!(r#"[null,null,"t","e","{half}"]"#)).is_ok());
    }
}

#[test]
fn topics_and_events_have_their_lengths() {
    let limits = DecodeLimits { topic_bytes_max: 4 };
    let of = |topic: &str, event: &str| {
        let text = format!(r#"[null,null,"{topic}","{event}",{{}}]"#);
        Push::read_text(V2, &text, &limits).map(drop)
    };
    assert_eq!(of("room", &"e".repeat(255)), Ok(()));
    assert_eq!(of("rooms", "e"), Err(Flaw::TopicTooLong(5, 4)));
    assert_eq!(of("\\u00fc\\u00fcx", "e"), Err(Flaw::TopicTooLong(5, 4)), "as it is, not as it is written");
    assert_eq!(of("room", &"e".repeat(256)), Err(Flaw::EventTooLong(256, 255)));
    assert_eq!(Flaw::TopicTooLong(5, 4).code(), CloseCode::POLICY);
}

#[test]
fn a_payload_is_as_deep_as_it_may_be_and_no_deeper_in_linear_time() {
    let of = |depth: usize, open: &str, close: &str| {
        let text = format!(r#"[null,null,"t","e",{}1{}]"#, open.repeat(depth), close.repeat(depth));
        read(V2, &text).map(drop)
    };
    for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
        assert_eq!(of(DEPTH_MAX as usize, open, close), Ok(()));
        assert_eq!(of(DEPTH_MAX as usize + 1, open, close), Err(Flaw::TooDeep(DEPTH_MAX)));
        assert_eq!(of(1_000_000, open, close), Err(Flaw::TooDeep(DEPTH_MAX)));
    }
    let mixed = format!(r#"[null,null,"t","e",{}]"#, r#"{"a":[1,{"b":[]},[[]]],"c":{}}"#);
    assert!(read(V2, &mixed).is_ok());
    for crossed in ["[1}", "{\"a\":1]", "[{]}", "{\"a\":[}]"] {
        assert!(matches!(flaw(V2, &format!(r#"[null,null,"t","e",{crossed}]"#)), Flaw::NotJson(_)));
    }
}

#[test]
fn replies_and_events_of_a_server_are_written_as_their_versions_have_them() {
    let reply = Message::Reply(Reply {
        join_ref: reference("1"),
        reference: reference("2"),
        topic: Cow::Borrowed("a\"b"),
        status: Status::Error,
        response: Payload::Json(r#"{"reason":"x"}"#),
    });
    let response = r#"{"status":"error","response":{"reason":"x"}}"#;
    assert_eq!(said(V2, &reply), format!(r#"["1","2","a\"b","phx_reply",{response}]"#));
    let in_v1 = format!(r#"{{"topic":"a\"b","event":"phx_reply","ref":"2","payload":{response}}}"#);
    assert_eq!(said(V1, &reply), in_v1);
    let event = Message::Push(push([None, None], "t", "\u{1}", Payload::Binary(&[0xFF, 0])));
    assert_eq!(said(V1, &event), r#"{"topic":"t","event":"\u0001","payload":{"base64":"/wA="},"ref":null}"#);
}

#[test]
fn a_server_s_reply_that_is_none_is_refused_by_a_client() {
    let of = |payload: &str| {
        Message::read_text(V2, &format!(r#"[null,null,"t","phx_reply",{payload}]"#), &WIDE).map(drop)
    };
    assert_eq!(of(r#"{"status":"ok","response":[],"more":1}"#), Ok(()));
    for payload in ["[]", "{}", r#"{"status":1,"response":{}}"#, r#"{"status":"ok"}"#] {
        assert_eq!(of(payload), Err(Flaw::ReplyForm), "{payload}");
    }
    assert_eq!(of(r#"{"status":"fine","response":{}}"#), Err(Flaw::ReplyStatus));
    let twice = r#"{"status":"ok","status":"ok","response":{}}"#;
    assert_eq!(of(twice), Err(Flaw::Repeated("status")));
}

#[test]
fn a_version_is_what_its_requirement_takes() {
    for (vsn, version) in
        [("1.0.0", Some(V1)), ("2.0.0", Some(V2)), ("1.0.12", Some(V1)), ("2.0.7", Some(V2))]
    {
        assert_eq!(Version::of(vsn), version);
    }
    for vsn in
        ["", "1", "2.0", "2.0.", "2.1.0", "3.0.0", "2.0.0-rc", "2.0.01", "2.0.x", "02.0.0", "2.0.0 ", "€.0"]
    {
        assert_eq!(Version::of(vsn), None, "{vsn}");
    }
}
