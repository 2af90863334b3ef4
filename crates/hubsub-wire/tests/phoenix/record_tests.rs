//! Records as payloads for browsers (section "Payloads" of docs/protocol/phoenix.md).

use hubsub_wire::phoenix::*;
use proptest::prelude::*;

/// The payload as text.
fn seen(bytes: &[u8], form: Option<Form>) -> String {
    let mut made = Vec::new();
    match Payload::of_record(bytes, form, &mut made) {
        Payload::Json(text) => text.to_string(),
        Payload::Binary(bytes) => format!("{bytes:?}"),
    }
}

#[test]
fn an_object_is_as_it_is_other_text_is_data_and_bytes_are_bytes() {
    for (bytes, wanted) in [
        (&br#"{"a":1}"#[..], r#"{"a":1}"#),
        (b" {\"a\" : [] }\n", r#"{"a" : [] }"#),
        (b"", r#"{"data":""}"#),
        (b"hello", r#"{"data":"hello"}"#),
        ("ü\"\n".as_bytes(), "{\"data\":\"ü\\\"\\n\"}"),
        (b"[1]", r#"{"data":"[1]"}"#),
        (b"12", r#"{"data":"12"}"#),
        (br#"{"a":1"#, r#"{"data":"{\"a\":1"}"#),
        (br#"{"a":1} x"#, r#"{"data":"{\"a\":1} x"}"#),
        (b"\xFF{}", "[255, 123, 125]"),
    ] {
        assert_eq!(seen(bytes, None), wanted);
    }
}

#[test]
fn browsers_get_a_pushed_payload_unchanged() {
    for payload in [
        Payload::Json("{}"),
        Payload::Json("[1,2]"),
        Payload::Json("null"),
        Payload::Json(r#""text""#),
        Payload::Json("-1.5e3"),
        Payload::Binary(b""),
        Payload::Binary(b"{}"),
        Payload::Binary(b"text"),
        Payload::Binary(b"\xFF"),
    ] {
        let form = Form::of(payload);
        let named = form.map(|form| Form::named(form.as_str()).expect("its own name"));
        let mut made = Vec::new();
        assert_eq!(Payload::of_record(payload.as_bytes(), named, &mut made), payload);
    }
    assert_eq!(Form::of(Payload::Json("{}")), None, "an object needs nothing beside it");
}

#[test]
fn a_form_that_the_bytes_are_not_of_is_not_believed() {
    assert_eq!(Form::named("xml"), None);
    assert_eq!(seen(b"],[", Some(Form::Json)), r#"{"data":"],["}"#);
    assert_eq!(seen(b"\xFF", Some(Form::Json)), "[255]");
}

#[test]
fn an_object_too_deep_to_be_looked_at_is_text() {
    let deep = format!("{}1{}", r#"{"a":"#.repeat(200), "}".repeat(200));
    assert!(seen(deep.as_bytes(), None).starts_with(r#"{"data":"{\"a\""#));
}

#[test]
fn the_protocol_s_own_events_are_reserved() {
    for event in
        ["phx_reply", "phx_close", "phx_error", "phx_join", "phx_", "presence_state", "presence_diff"]
    {
        assert!(is_reserved(event), "{event}");
    }
    for event in ["", "message", "publish", "phx", "presence", "Phx_close"] {
        assert!(!is_reserved(event), "{event}");
    }
}

#[test]
fn a_record_s_event_is_that_of_its_header_unless_it_is_reserved() {
    for (header, event) in [
        (None, "message"),
        (Some("say"), "say"),
        (Some(""), ""),
        (Some("phx_close"), "message"),
        (Some("presence_diff"), "message"),
    ] {
        assert_eq!(record_event(header), event);
    }
}

proptest! {
    #[test]
    fn any_record_is_valid_json_or_its_bytes(bytes in any::<Vec<u8>>(), text in ".{0,30}|\\{.{0,30}\\}") {
        for bytes in [&bytes[..], text.as_bytes()] {
            for form in [None, Some(Form::Json), Some(Form::Binary)] {
                let mut made = Vec::new();
                match Payload::of_record(bytes, form, &mut made) {
                    Payload::Binary(same) => prop_assert_eq!(same, bytes),
                    Payload::Json(text) => {
                        let value: serde_json::Value = serde_json::from_str(text).expect("JSON");
                        let data = value.get("data").and_then(|data| data.as_str());
                        let as_it_is = std::str::from_utf8(bytes).is_ok_and(|bytes| bytes.trim() == text);
                        prop_assert!(as_it_is || data.map(str::as_bytes) == Some(bytes));
                    }
                }
            }
        }
    }
}
