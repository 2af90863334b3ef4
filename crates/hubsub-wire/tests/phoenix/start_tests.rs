//! The start position in a join.

use hubsub_types::{Epoch, Position, Seq};
use hubsub_wire::phoenix::*;

fn start(params: &str) -> Result<Start, BadJoin> {
    Start::read(Payload::Json(params))
}

#[test]
fn a_join_is_live_or_rewinds_or_goes_on() {
    for params in ["{}", r#"{"token":"x","rewind":null,"after":null}"#, "null", "[20]", "\"10s\""] {
        assert_eq!(start(params), Ok(Start::Live), "{params}");
    }
    assert_eq!(start(r#"{"rewind": 20, "user": {"rewind": 1}}"#), Ok(Start::Last(20)));
    assert_eq!(start(r#"{"rewind": 0}"#), Ok(Start::Last(0)));
    for (time, ms) in
        [("10s", 10_000), ("250ms", 250), ("5m", 300_000), ("2h", 7_200_000), ("1d", 86_400_000)]
    {
        assert_eq!(start(&format!(r#"{{"rewind":"{time}"}}"#)), Ok(Start::Past { ms }));
    }
    let position = Position { epoch: Epoch(12), seq: Seq(7) };
    assert_eq!(start(r#"{"after":"12-7"}"#), Ok(Start::After(position)));
    assert_eq!(start(r#"{"\u0061fter":"12\u002d7"}"#), Ok(Start::After(position)));
    assert_eq!(Start::read(Payload::Binary(b"{}")), Ok(Start::Live));
}

#[test]
fn an_invalid_start_is_refused_with_a_hint() {
    for value in [
        "-1",
        "1.5",
        "1e3",
        "true",
        "[]",
        r#""""#,
        r#""s""#,
        r#""10""#,
        r#""10 s""#,
        r#""-1s""#,
        r#""1w""#,
        "18446744073709551616",
        r#""18446744073709551615d""#,
    ] {
        assert_eq!(start(&format!(r#"{{"rewind":{value}}}"#)), Err(BadJoin::Rewind), "{value}");
    }
    for value in ["1", r#""""#, r#""1""#, r#""a-b""#, "{}"] {
        assert_eq!(start(&format!(r#"{{"after":{value}}}"#)), Err(BadJoin::After), "{value}");
    }
    assert_eq!(start(r#"{"rewind":1,"after":"1-1"}"#), Err(BadJoin::Both));
    assert!(
        BadJoin::Rewind.to_string().contains("hint:") && BadJoin::After.to_string().contains("EPOCH-SEQ")
    );
}

#[test]
fn the_reply_to_a_join_has_its_position_and_whether_records_are_missing() {
    let position = Position { epoch: Epoch(12), seq: Seq(7) };
    assert_eq!(joined_at(position, true), r#"{"position":"12-7","recovered":true}"#);
    assert_eq!(joined_at(position, false), r#"{"position":"12-7","recovered":false}"#);
}
