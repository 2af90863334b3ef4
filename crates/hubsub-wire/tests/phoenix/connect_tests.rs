//! The connect request of a client.

use crate::tools::*;
use hubsub_wire::phoenix::*;
use hubsub_wire::websocket::{Request, write_request};
use proptest::prelude::*;

fn connect<'a>(path: &'a str, subprotocols: &[&str]) -> Result<Connect<'a>, Refused> {
    Connect::read(path, subprotocols.iter().copied())
}

fn of_query(query: &str) -> Result<(Version, Option<String>), Refused> {
    connect(&format!("{PATH}?{query}"), &[]).map(|connect| (connect.version, connect.token))
}

fn token(text: &str) -> Option<String> {
    Some(text.into())
}

#[test]
fn version_and_token_are_in_the_query() {
    assert_eq!(of_query("token=x&vsn=2.0.0"), Ok((V2, token("x"))));
    assert_eq!(of_query("vsn=1.0.0"), Ok((V1, None)));
    assert_eq!(connect(PATH, &[]).map(|connect| connect.version), Ok(V1), "the default");
    assert_eq!(of_query("a=b&&c&token=a%2Bb+c%C3%BC&vsn=2.0.0&vsn=1.0.0"), Ok((V1, token("a+b cü"))));
    assert_eq!(
        connect("/socket/websocket?a=%ZZ&vsn=2.0.0", &[]).map(|connect| connect.query),
        Ok("a=%ZZ&vsn=2.0.0")
    );
}

#[test]
fn a_version_that_is_not_spoken_is_403() {
    for vsn in ["3.0.0", "2", "", "2.1.0"] {
        assert_eq!(of_query(&format!("vsn={vsn}")), Err(Refused::Version), "{vsn}");
    }
    let mut out = Vec::new();
    Refused::Version.write(&mut out);
    assert!(out.starts_with(b"HTTP/1.1 403 Forbidden\r\n"));
}

#[test]
fn positions_are_asked_for_in_the_query() {
    let of = |query: &str| connect(&format!("{PATH}?{query}"), &[]).map(|connect| connect.positions);
    assert_eq!(
        [of("vsn=2.0.0"), of("positions=true"), of("positions=false")],
        [Ok(false), Ok(true), Ok(false)]
    );
    assert_eq!(of("positions=1"), Err(Refused::Positions));
}

#[test]
fn a_query_that_is_not_percent_encoded_text_is_400() {
    for query in ["vsn=%", "vsn=%2", "token=%zz", "token=%FF", "token=%+1"] {
        assert_eq!(of_query(query), Err(Refused::Query), "{query}");
    }
}

#[test]
fn another_path_is_404() {
    for path in ["/", "/socket", "/socket/websocket/", "/socket/longpoll?vsn=2.0.0", "/Socket/websocket"] {
        assert_eq!(connect(path, &[]), Err(Refused::Path), "{path}");
    }
}

#[test]
fn a_token_among_the_subprotocols_goes_before_the_query_s_and_phoenix_is_answered() {
    let path = "/socket/websocket?vsn=2.0.0&token=other";
    for encoded in ["c2VjcmV0", "c2VjcmV0Pz8_Pz4", "c2VjcmV0Pz8/Pz4="] {
        let bearer = format!("base64url.bearer.phx.{encoded}");
        for order in [["phoenix", &bearer], [&bearer, "phoenix"]] {
            let connect = connect(path, &order).expect("a good request");
            assert_eq!(connect.subprotocol, Some("phoenix"));
            assert!(connect.token.expect("one").starts_with("secret"));
        }
    }
    let plain = connect(path, &["phoenix"]).expect("a good request");
    assert_eq!((plain.token, plain.subprotocol), (token("other"), Some("phoenix")));
    let only = connect(path, &["base64url.bearer.phx.eA"]).expect("a good request");
    assert_eq!((only.token, only.subprotocol), (token("x"), None));
}

#[test]
fn a_token_that_is_no_text_in_base64_and_a_second_one_are_403() {
    for encoded in ["a", "a*bc", "/w", "eB", "eA.", "abcde"] {
        let bearer = format!("base64url.bearer.phx.{encoded}");
        assert_eq!(connect(PATH, &["phoenix", &bearer]), Err(Refused::Token), "{encoded}");
    }
    let twice = connect(PATH, &["base64url.bearer.phx.eA", "base64url.bearer.phx.eA"]);
    assert_eq!(twice, Err(Refused::Token));
}

#[test]
fn other_subprotocols_alone_are_403() {
    assert_eq!(connect(PATH, &["mqtt"]), Err(Refused::Subprotocol));
    assert!(connect(PATH, &["mqtt", "phoenix"]).is_ok());
}

#[test]
fn a_request_as_a_browser_sends_it_is_read_and_every_refusal_is_whole() {
    let mut bytes = Vec::new();
    let offered = ["phoenix", "base64url.bearer.phx.eA"];
    write_request(&mut bytes, "localhost", "/socket/websocket?vsn=2.0.0", [7; 16], &offered);
    let request = Request::read(&bytes).expect("good").expect("whole");
    let connect = Connect::read(request.path, request.subprotocols()).expect("good");
    assert_eq!((connect.version, connect.token), (V2, token("x")));
    for refused in Refused::ALL {
        let mut out = Vec::new();
        refused.write(&mut out);
        let text = String::from_utf8(out).expect("a text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        assert!(head.contains(&format!("Content-Length: {}", body.len())) && head.contains(refused.status()));
    }
}

proptest! {
    #[test]
    fn any_token_in_base64_is_read(secret in ".{0,40}") {
        let mut encoded = Vec::new();
        let payload = Payload::Binary(secret.as_bytes());
        let said = Message::Push(push([None, None], "t", "e", payload));
        said.write(V1, &mut encoded).expect("a text");
        let value: serde_json::Value = serde_json::from_slice(&encoded).expect("JSON");
        let base64 = value["payload"]["base64"].as_str().expect("a text");
        let bearer = format!("base64url.bearer.phx.{}", base64.trim_end_matches('='));
        let connect = connect(PATH, &["phoenix", &bearer]).expect("a good request");
        prop_assert_eq!(connect.token, Some(secret));
    }

    #[test]
    fn any_path_and_subprotocols_are_read_or_refused(path in "/socket/websocket\\?.{0,40}|.{0,20}", name in ".{0,40}") {
        let _ = connect(&path, &["phoenix", &name, &format!("base64url.bearer.phx.{name}")]);
    }
}
