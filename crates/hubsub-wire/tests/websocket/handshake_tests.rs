//! The handshake, from both ends.

use hubsub_wire::websocket::*;

const GOOD: &str = "GET /mqtt HTTP/1.1\r\nHost: example.org\r\nUpgrade: WebSocket\r\nConnection: keep-alive, upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Protocol: mqttv3.1, mqtt\r\nOrigin: https://example.org\r\n\
    Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n\r\n";

fn refused(request: &str) -> Refusal {
    match Request::read(request.as_bytes()) {
        Err(refusal) => refusal,
        Ok(request) => panic!("taken: {request:?}"),
    }
}

fn without(line: &str) -> String {
    let lines: Vec<&str> = GOOD.split("\r\n").filter(|of| !of.starts_with(line)).collect();
    assert!(lines.join("\r\n").len() < GOOD.len());
    lines.join("\r\n")
}

fn with(line: &str) -> String {
    GOOD.replacen("\r\n", &format!("\r\n{line}\r\n"), 1)
}

#[test]
fn a_complete_request_is_read_and_later_bytes_stay() {
    for cut in 0..GOOD.len() {
        assert_eq!(Request::read(&GOOD.as_bytes()[..cut]), Ok(None));
    }
    let bytes = [GOOD.as_bytes(), &[0x82, 0x80]].concat();
    let request = Request::read(&bytes).expect("valid").expect("whole");
    assert_eq!((request.path, request.host, request.len), ("/mqtt", "example.org", GOOD.len()));
    assert_eq!(request.origin, Some("https://example.org"));
    assert_eq!(request.subprotocols().collect::<Vec<_>>(), ["mqttv3.1", "mqtt"]);
}

#[test]
fn the_answer_is_the_specifications_and_has_no_extension() {
    let request = Request::read(GOOD.as_bytes()).expect("valid").expect("whole");
    let mut out = Vec::new();
    request.write_accept(&mut out, request.choose_subprotocol(&["mqtt", "mqttv3.1"]));
    let answer = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: mqttv3.1\r\n\r\n";
    assert_eq!(String::from_utf8(out).expect("ASCII"), answer);
}

#[test]
fn a_subprotocol_is_chosen_in_the_clients_order_and_only_if_both_speak_it() {
    let request = Request::read(GOOD.as_bytes()).expect("valid").expect("whole");
    assert_eq!(request.choose_subprotocol(&["mqtt"]), Some("mqtt"));
    assert_eq!(request.choose_subprotocol(&["mqtt", "mqttv3.1"]), Some("mqttv3.1"));
    assert_eq!(request.choose_subprotocol(&["MQTT", "phoenix"]), None);
}

#[test]
fn an_origin_is_read_as_it_is_said_and_said_once() {
    let request = Request::read(GOOD.as_bytes()).expect("valid").expect("whole");
    assert_eq!(request.origin, Some("https://example.org"));
    let plain = without("Origin");
    assert_eq!(Request::read(plain.as_bytes()).expect("valid").expect("whole").origin, None);
    assert_eq!(refused(&with("Origin: https://b")), Refusal::NotHttp);
}

#[test]
fn missing_or_invalid_fields_are_refused() {
    assert_eq!(refused(&GOOD.replace("GET", "POST")), Refusal::Method);
    assert_eq!(refused(&GOOD.replace("HTTP/1.1", "HTTP/1.0")), Refusal::NotHttp);
    assert_eq!(refused(&GOOD.replace("/mqtt", "mqtt")), Refusal::NotHttp);
    assert_eq!(refused(&GOOD.replace("GET /mqtt", "GET  /mqtt")), Refusal::NotHttp);
    assert_eq!(refused(&without("Host")), Refusal::NoHost);
    assert_eq!(refused(&with("Host: other")), Refusal::NoHost);
    assert_eq!(refused(&without("Upgrade")), Refusal::NotUpgrade);
    assert_eq!(refused(&without("Connection")), Refusal::NotUpgrade);
    assert_eq!(refused(&GOOD.replace("WebSocket\r", "h2c\r")), Refusal::NotUpgrade);
    assert_eq!(refused(&without("Sec-WebSocket-Version")), Refusal::Version);
    assert_eq!(refused(&GOOD.replace("Version: 13", "Version: 8")), Refusal::Version);
    assert_eq!(refused(&without("Sec-WebSocket-Key")), Refusal::Key);
    assert_eq!(refused(&with("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")), Refusal::Key);
    for key in
        ["dGhlIHNhbXBsZSBub25jZQ", "dGhlIHNhbXBsZSBub25jZR==", "dGhlIHNhbXBsZSBub25j!Q==", "dGhlIHNhbXBsZQ=="]
    {
        assert_eq!(refused(&GOOD.replace("dGhlIHNhbXBsZSBub25jZQ==", key)), Refusal::Key, "{key}");
    }
    assert_eq!(refused(&with("Content-Length: 3")), Refusal::Body);
    assert_eq!(refused(&with("Transfer-Encoding: chunked")), Refusal::Body);
    for line in [" folded: x", "no colon", ": no name", "name : blank", "bare: \n", "nul: \0"] {
        assert_eq!(refused(&with(line)), Refusal::NotHttp, "{line:?}");
    }
    assert_eq!(Request::read(b"\xFF\r\n\r\n"), Err(Refusal::NotHttp));
    // A head without carriage returns has no end, so it is refused at once.
    assert_eq!(Request::read(b"GET /mqtt HTTP/1.1\nHost: a\n\n"), Err(Refusal::NotHttp));
    assert_eq!(Request::read(b"\n"), Err(Refusal::NotHttp));
    assert_eq!(Request::read(b"GET /mqtt HTTP/1.1\r"), Ok(None));
}

#[test]
fn a_head_that_only_lenient_readers_accept_is_refused() {
    for line in ["return: a\rb", "delete: \u{7f}", "control: \u{85}", "empty line:\n"] {
        assert_eq!(refused(&with(line)), Refusal::NotHttp, "{line:?}");
    }
    assert_eq!(refused(&format!("\r\n{GOOD}")), Refusal::NotHttp);
    assert_eq!(refused(&GOOD.replace("\r\nHost", "\nHost")), Refusal::NotHttp);
}

#[test]
fn only_its_bytes_limit_the_fields_of_a_head() {
    let many = with("a:\r\n".repeat(4_000 - GOOD.len() / 4).trim_end());
    assert!(many.len() <= HEAD_BYTES_MAX);
    let request = Request::read(many.as_bytes()).expect("valid").expect("complete");
    assert_eq!((request.host, request.len), ("example.org", many.len()));
}

#[test]
fn a_head_without_an_end_is_refused_at_its_limit() {
    let long = vec![b'x'; HEAD_BYTES_MAX];
    assert_eq!(Request::read(&long[1..]), Ok(None));
    assert_eq!(Request::read(&long), Err(Refusal::HeadTooLarge));
    assert_eq!(read_answer(&long, [0; 16], &[]), Err(AnswerFlaw::NotHttp));
}

#[test]
fn a_refusal_is_http_and_names_the_supported_version() {
    for &refusal in Refusal::ALL {
        let mut out = Vec::new();
        refusal.write(&mut out);
        let text = String::from_utf8(out).expect("ASCII");
        let (head, body) = text.split_once("\r\n\r\n").expect("an empty line");
        assert!(head.starts_with(&format!("HTTP/1.1 {}\r\n", refusal.status())));
        assert!(head.contains(&format!("\r\nContent-Length: {}", body.len())), "{text}");
        assert!(head.contains("close"));
        let version = matches!(refusal, Refusal::Version | Refusal::NotUpgrade);
        assert_eq!(head.contains("\r\nSec-WebSocket-Version: 13\r\n"), version);
    }
}

#[test]
fn a_client_takes_the_answer_to_its_own_key_only() {
    let (mut asked, mut answered) = (Vec::new(), Vec::new());
    write_request(&mut asked, "example.org", "/mqtt", [7; 16], &["mqtt"]);
    let request = Request::read(&asked).expect("valid").expect("whole");
    request.write_accept(&mut answered, request.choose_subprotocol(&["mqtt"]));
    let len = answered.len();
    assert_eq!(read_answer(&answered, [7; 16], &["mqtt"]), Ok(Some((Some("mqtt"), len))));
    assert_eq!(read_answer(&answered[..len - 1], [7; 16], &["mqtt"]), Ok(None));
    assert_eq!(read_answer(&answered, [8; 16], &["mqtt"]), Err(AnswerFlaw::Accept));
    assert_eq!(read_answer(&answered, [7; 16], &["other"]), Err(AnswerFlaw::Subprotocol("mqtt")));
    let text = String::from_utf8(answered).expect("ASCII");
    let changed = |from: &str, to: &str| text.replacen(from, to, 1).into_bytes();
    let read =
        |bytes: &[u8]| read_answer(bytes, [7; 16], &["mqtt"]).map(drop).map_err(|flaw| flaw.to_string());
    assert_eq!(read(&changed("101", "200")), Err("no upgrade: 200 Switching Protocols".into()));
    assert_eq!(read(&changed("websocket", "h2c")), Err("the answer upgrades to something else".into()));
    let extended = changed("\r\n\r\n", "\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n");
    assert_eq!(read(&extended), Err("an extension that was not offered".into()));
}
