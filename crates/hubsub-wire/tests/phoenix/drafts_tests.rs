//! Random messages, encoded and decoded, and random inputs.

use crate::any_input::{VERSIONS, check, pushed_again, said_again};
use crate::drafts::draft;
use hubsub_wire::phoenix::*;
use hubsub_wire::websocket::Kind;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// In version 1 bytes become JSON and stay it.
fn comes_back(version: Version, payload: Payload<'_>) -> bool {
    version == Version::V2 || matches!(payload, Payload::Json(_))
}

proptest! {
    #[test]
    fn encoded_messages_decode_to_the_same(draft in draft()) {
        for version in VERSIONS {
            let push = draft.push();
            if comes_back(version, push.payload) {
                pushed_again(version, &push);
                said_again(version, &draft.message());
            }
        }
    }

    #[test]
    fn every_text_of_a_server_is_json(draft in draft()) {
        for version in VERSIONS {
            let mut out = Vec::new();
            if draft.message().write(version, &mut out) == Ok(Kind::Text) {
                let read: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
                prop_assert_eq!(read.is_array(), version == Version::V2);
            }
        }
    }

    #[test]
    fn any_input_is_read_or_refused(
        drafts in vec(draft(), 1..5), wrong in proptest::option::of((any::<Index>(), any::<u8>())), end in any::<Index>(),
    ) {
        let mut input = Vec::new();
        for draft in &drafts {
            let mut line = Vec::new();
            write_push(&mut line, Version::V2, &draft.push()).expect("short");
            input.extend_from_slice(&line);
            input.push(b'\n');
        }
        if let Some((at, byte)) = wrong {
            let at = at.index(input.len());
            input[at] = byte;
        }
        check(&input);
        check(&input[..end.index(input.len())]);
    }
}
