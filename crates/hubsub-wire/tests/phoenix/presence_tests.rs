//! The presence request of a join, and the presence messages of the server.

use crate::socket_tests::Client;
use crate::tools::*;
use hubsub_wire::phoenix::*;

fn wanted(params: &str) -> Result<Option<PresenceRequest>, BadJoin> {
    PresenceRequest::read(Payload::Json(params))
}

#[test]
fn a_join_names_its_member_or_only_requests_the_members() {
    for params in ["{}", "null", "[]", r#"{"presence":null}"#, r#"{"presence":false,"rewind":3}"#] {
        assert_eq!(wanted(params), Ok(None), "{params}");
    }
    assert_eq!(wanted(r#"{"presence":true}"#), Ok(Some(PresenceRequest { member: None })));
    let ann = |meta: &str| {
        Ok(Some(PresenceRequest { member: Some(Member { key: "ann \u{e9}".into(), meta: meta.into() }) }))
    };
    assert_eq!(wanted(r#"{"presence":{"key":"ann \u00e9"}}"#), ann("{}"));
    assert_eq!(wanted(r#"{"presence":{"meta":null,"key":"ann é","other":1}}"#), ann("{}"));
    assert_eq!(wanted(r#"{"presence":{"key":"ann é","meta":{"a": [1] }}}"#), ann(r#"{"a": [1] }"#));
    assert_eq!(PresenceRequest::read(Payload::Binary(b"{}")), Ok(None));
}

#[test]
fn an_invalid_presence_is_refused_with_a_hint() {
    for value in ["1", r#""ann""#, "[]"] {
        assert_eq!(wanted(&format!(r#"{{"presence":{value}}}"#)), Err(BadJoin::Presence), "{value}");
    }
    for value in ["{}", r#"{"key":1}"#, r#"{"key":""}"#, r#"{"key":null}"#] {
        assert_eq!(wanted(&format!(r#"{{"presence":{value}}}"#)), Err(BadJoin::Key), "{value}");
    }
    for meta in ["1", "[]", r#""x""#] {
        let params = format!(r#"{{"presence":{{"key":"a","meta":{meta}}}}}"#);
        assert_eq!(wanted(&params), Err(BadJoin::Meta), "{meta}");
    }
    let mut client = Client::new(V2);
    let done = client.sends(r#"["1","1","room:1","phx_join",{"presence":{"key":7}}]"#);
    assert!(done[0].contains("presence needs a key"), "{done:?}");
    let done = client.sends(r#"["1","1","room:1","phx_join",{"presence":{"key":"ann"}}]"#);
    assert_eq!(done, [r#"join room:1 as Some("ann {}")"#]);
}

#[test]
fn a_member_changes_its_meta() {
    let mut client = Client::new(V2);
    client.joins("room:1", "1");
    assert_eq!(client.sends(r#"["1","2","room:1","presence_update",{"a":1}]"#), [r#"update room:1 {"a":1}"#]);
    let done = client.sends(r#"["1","3","room:1","presence_update",[]]"#);
    assert!(done[0].contains("the meta of presence is an object"), "{done:?}");
    let done = client.sends(r#"["1","4","room:1","publish",["presence_update",{}]]"#);
    assert!(done[0].contains("reserved event"), "{done:?}");
}

#[test]
fn members_are_shown_by_key_and_none_can_say_another_s_reference() {
    let of = |reference, former, key, meta| Present { run: 255, reference, former, key, meta };
    let mut members = [
        of(12, 0, "bob", r#"{"phx_ref":"1.1","a":[]}"#),
        of(2, 1, "ann", "{ }"),
        of(1, 0, "ann", r#"{"x":{"y":1} } "#),
        of(3, 0, "\"", "{}"),
    ];
    let mut out = Vec::new();
    write_members(&mut members, &mut out);
    let expected = concat!(
        r#"{"\"":{"metas":[{"phx_ref":"ff.3"}]},"#,
        r#""ann":{"metas":[{"x":{"y":1},"phx_ref":"ff.1"},{"phx_ref":"ff.2","phx_ref_prev":"ff.1"}]},"#,
        r#""bob":{"metas":[{"phx_ref":"1.1","a":[],"phx_ref":"ff.c"}]}}"#
    );
    assert_eq!(String::from_utf8(out).unwrap(), expected);
    let mut out = Vec::new();
    write_diff(&mut [of(1, 0, "a", "{}")], &mut [], &mut out);
    assert_eq!(
        String::from_utf8(out).unwrap(),
        r#"{"joins":{"a":{"metas":[{"phx_ref":"ff.1"}]}},"leaves":{}}"#
    );
}
