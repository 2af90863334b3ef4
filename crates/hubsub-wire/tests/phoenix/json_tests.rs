//! Compares JSON parsing with another implementation (serde_json).

use crate::tools::*;
use hubsub_wire::phoenix::*;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::Value;

/// The verdict of the other implementation; `None` where it is stricter than the RFC, or has a limit that we
/// do not have.
fn other(text: &str) -> Option<bool> {
    match serde_json::from_str::<Value>(text) {
        Ok(_) => Some(true),
        Err(error) => {
            let words = error.to_string();
            let stricter = ["surrogate", "out of range", "hex escape"].iter().any(|of| words.contains(of));
            (!stricter).then_some(false)
        }
    }
}

fn ours(text: &str) -> bool {
    read(V2, &format!(r#"[null,null,"t","e",{text}]"#)).is_ok()
}

/// Random texts that are JSON or resemble it.
fn near_json() -> impl Strategy<Value = String> {
    let tokens = [
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "\"a\"",
        "\"a\":",
        "\"b\":1",
        "null",
        "true",
        "false",
        "nul",
        "0",
        "-",
        "-0",
        "01",
        "1",
        "12.5",
        "1.",
        ".5",
        "1e5",
        "1E-2",
        "1e",
        "+1",
        " ",
        "\n",
        "\t",
        "\u{b}",
        "\\",
        "\\n",
        "\\u00fc",
        "\\u0g00",
        "\\x",
        "\"\\\"\"",
        "\"\\u00e9\"",
        "\"ü😀\"",
        "\"\u{1f}\"",
        "\"\u{7f}\"",
        "{}",
        "[]",
        "[1,2]",
        "{\"a\":[]}",
        "ü",
    ];
    vec(proptest::sample::select(tokens.to_vec()), 0..8).prop_map(|tokens| tokens.concat())
}

pub fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::from),
            vec((any::<String>(), inner), 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn both_readers_accept_the_same_values(text in near_json()) {
        if let Some(other) = other(&text) {
            prop_assert_eq!(ours(&text), other, "{}", text);
        }
    }
}

proptest! {
    #[test]
    fn any_value_is_taken_as_it_is_written_in_either_way(value in value()) {
        for text in [value.to_string(), serde_json::to_string_pretty(&value).expect("a value")] {
            let message = format!(r#"[null,null,"t","e",{text}]"#);
            prop_assert_eq!(read(V2, &message).map(|push| push.payload), Ok(Payload::Json(&text)));
            let message = format!(r#"{{"topic":"t","payload":{text} ,"event":"e","ref":null}}"#);
            prop_assert_eq!(read(V1, &message).map(|push| push.payload), Ok(Payload::Json(&text)));
        }
    }

    #[test]
    fn any_words_are_read_as_the_other_wrote_them_and_by_it_as_written_here(
        topic in any::<String>(), event in "\\PC{0,20}|[\\x00-\\x20\"\\\\]{0,20}", own in ".{0,20}",
    ) {
        let words = serde_json::to_string(&(&own, &own, &topic, &event, 1)).expect("words");
        let push = read(V2, &words).expect("a message");
        prop_assert_eq!((&*push.topic, &*push.event), (&*topic, &*event));
        prop_assert_eq!(push.join_ref.as_ref().map(Ref::as_str), Some(&*own));
        let text = said(V2, &Message::Push(push));
        let read: (String, String, String, String, i64) = serde_json::from_str(&text).expect("a message");
        prop_assert_eq!(read, (own.clone(), own, topic, event, 1));
    }
}

#[test]
fn a_text_whose_every_byte_is_an_escape_is_read_in_linear_time() {
    let text = format!(r#"[null,null,"t","e","{}"]"#, r#"\u0041\""#.repeat(500_000));
    assert!(read(V2, &text).is_ok());
}
