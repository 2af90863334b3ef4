//! Compares streams with the rules of HTML, section 9.2.6.

use super::*;
use crate::http::{Refusal, Request};
use crate::phoenix::Start;
use hubsub_types::{Epoch, Seq};

fn at(epoch: u64, seq: u64) -> Position {
    Position { epoch: Epoch(epoch), seq: Seq(seq) }
}

/// Id, event and data of each block that a browser dispatches, by those rules.
fn dispatched(stream: &[u8]) -> Vec<(String, String, String)> {
    let text = std::str::from_utf8(stream).unwrap().replace("\r\n", "\n").replace('\r', "\n");
    let (mut id, mut event, mut data, mut all) = (String::new(), String::new(), String::new(), Vec::new());
    for line in text.split('\n') {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "" if line.is_empty() && !data.is_empty() => {
                all.push((id.clone(), std::mem::take(&mut event), std::mem::take(&mut data)));
            }
            "" => event.clear(),
            "id" => id = value.to_owned(),
            "event" => event = value.to_owned(),
            "data" => {
                if !data.is_empty() {
                    data.push('\n');
                }
                data.push_str(value);
            }
            _ => panic!("an unknown field: {line:?}"),
        }
    }
    all
}

#[test]
fn a_record_is_one_event_whatever_its_payload() {
    for json in ["{\"a\":1}", "{\r\n \"a\"\r:\n\n1}", "\"x\"", "[1,\n\n2]"] {
        let mut out = Vec::new();
        write_record(&mut out, at(1, 2), "say", Payload::Json(json));
        let got = dispatched(&out);
        assert_eq!(got.len(), 1, "{out:?}");
        assert_eq!((&*got[0].0, &*got[0].1), ("1-2", "say"));
        let plain = |text: &str| text.chars().filter(|char| !char.is_whitespace()).collect::<String>();
        assert_eq!(plain(&got[0].2), plain(json));
    }
    let mut out = Vec::new();
    write_record(&mut out, at(1, 3), "message", Payload::Binary(b"\xff\n"));
    assert_eq!(dispatched(&out)[0].2, "{\"base64\":\"/wo=\"}");
}

#[test]
fn an_event_that_is_the_streams_own_or_no_line_is_a_message() {
    for event in ["gap", "open", "error", "", "phx_gap", "presence_diff", "a\nid: 9-9", "a\rb", "a\0"] {
        assert_eq!(record_event(Some(event)), "message", "{event:?}");
    }
    assert_eq!(record_event(Some("say")), "say");
    assert_eq!(record_event(None), "message");
}

#[test]
fn a_gap_states_the_missing_records_and_its_id_is_after_them() {
    let mut out = Vec::new();
    write_gap(&mut out, at(1, 3), Some(at(1, 5)), at(1, 5));
    write_gap(&mut out, at(1, 6), None, at(2, 4));
    out.extend_from_slice(HEARTBEAT);
    write_place(&mut out, at(2, 9));
    let got = dispatched(&out);
    assert_eq!(got.len(), 2, "a place and a heartbeat are no events");
    assert_eq!(got[0], ("1-5".into(), "gap".into(), "{\"from\":\"1-3\",\"to\":\"1-5\"}".into()));
    assert_eq!(got[1], ("2-4".into(), "gap".into(), "{\"from\":\"1-6\",\"to\":null}".into()));
    assert_eq!(missing(at(1, 2), at(1, 5)), (at(1, 3), Some(at(1, 5))));
    assert_eq!(missing(at(1, 2), at(2, 5)), (at(1, 3), None));
    assert_eq!(missing(at(1, 9), at(1, 5)), (at(1, 10), None), "a room that has less had another epoch");
    assert_eq!(missing(at(1, u64::MAX), at(1, 5)), (at(1, u64::MAX), None), "whatever a client names");
}

fn request(target: &str, fields: &str) -> Result<EventsRequest, Refusal> {
    let head = format!("GET {target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    EventsRequest::read(&Request::read(head.as_bytes())?.expect("it is whole"))
}

#[test]
fn a_request_has_its_topic_and_start() {
    let path = "/v1/rooms/chat%3Aa%2Fb%ff/events";
    let plain = request(path, "").unwrap();
    assert_eq!((&*plain.topic, plain.start, plain.token), (&b"chat:a/b\xff"[..], Start::Live, None));
    let start =
        |query: &str, fields: &str| request(&format!("{path}?{query}"), fields).map(|request| request.start);
    assert_eq!(start("rewind=20", ""), Ok(Start::Last(20)));
    assert_eq!(start("rewind=10s&token=x", ""), Ok(Start::Past { ms: 10_000 }));
    assert_eq!(start("after=1-2", ""), Ok(Start::After(at(1, 2))));
    for query in ["rewind=20", "after=1-2"] {
        assert_eq!(start(query, "Last-Event-ID: 7-8\r\n"), Ok(Start::After(at(7, 8))));
        assert!(start(query, "Last-Event-ID: \r\n").is_ok_and(|start| start != Start::After(at(7, 8))));
    }
    assert_eq!(start("after=x", ""), Err(Refusal::After));
    assert_eq!(start("", "Last-Event-ID: x\r\n"), Err(Refusal::After));
    assert_eq!(start("rewind=x", ""), Err(Refusal::Rewind));
    assert_eq!(start("rewind=1&after=1-1", ""), Err(Refusal::Both));
    assert_eq!(start("token=%ff", ""), Err(Refusal::Token));
    assert_eq!(request("/v1/rooms/a%2/events", ""), Err(Refusal::Topic));
    for elsewhere in ["/v1/rooms//events", "/v1/rooms/a/b/events", "/v1/rooms/a", "/events"] {
        assert_eq!(request(elsewhere, ""), Err(Refusal::Path));
    }
}
