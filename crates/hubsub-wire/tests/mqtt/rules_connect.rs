//! CONNECT: the version it selects, and how it is refused.

use crate::tools::*;
use hubsub_wire::mqtt::*;

const ID: &[u8] = &[0, 1, b'c'];

fn connected(bytes: &[u8]) -> Connect<'_> {
    match decode_first(bytes) {
        Ok(Packet::Connect(connect)) => connect,
        other => panic!("{other:?}"),
    }
}

#[test]
fn name_and_level_decide_the_version() {
    assert_eq!(connected(&connect("MQIsdp", 3, 2, &[ID])).version, V31);
    assert_eq!(connected(&connect("MQTT", 4, 2, &[ID])).version, V311);
    assert_eq!(connected(&connect("MQTT", 5, 2, &[&[0], ID])).version, V5);
}

#[test]
fn a_level_that_is_not_known_is_answered_in_its_own_way() {
    let v3 = [0x20, 2, 0, 0x01];
    for (name, level) in [("MQTT", 0), ("MQTT", 3), ("MQIsdp", 4), ("MQTT", 0x84), ("MQIsdp", 0x83)] {
        let refused = first_flaw(&connect(name, level, 2, &[ID]));
        assert_eq!(refused, (Flaw::ProtocolLevel(level), v3.to_vec()), "{name} {level}");
    }
    let v5 = [0x20, 3, 0, 0x84, 0];
    for (name, level) in [("MQTT", 6), ("MQTT", 0x7F), ("MQTT", 0x85), ("MQIsdp", 5)] {
        let refused = first_flaw(&connect(name, level, 2, &[ID]));
        assert_eq!(refused, (Flaw::ProtocolLevel(level), v5.to_vec()), "{name} {level}");
    }
}

#[test]
fn a_level_is_refused_whatever_follows_it() {
    let (flaw, answer) = first_flaw(&packet(0x10, &[&text(b"MQTT")[..], &[9]].concat()));
    assert_eq!((flaw, answer), (Flaw::ProtocolLevel(9), vec![0x20, 3, 0, 0x84, 0]));
}

#[test]
fn another_protocols_name_gets_no_answer() {
    for name in ["", "mqtt", "MQTTT", "AMQP", "MQIsdpX"] {
        assert_eq!(first_flaw(&connect(name, 4, 2, &[ID])), (Flaw::ProtocolName, vec![]), "{name}");
    }
}

#[test]
fn the_first_packet_is_connect_and_nothing_else() {
    for kind in (0..16).filter(|&kind| kind != 1) {
        assert_eq!(first_flaw(&[kind << 4, 0]), (Flaw::NotConnect(kind), vec![]));
    }
    assert_eq!(first_flaw(b"GET / HTTP/1.1\r\n").0, Flaw::NotConnect(4));
}

#[test]
fn a_second_connect_is_a_protocol_error() {
    for version in [V31, V311, V5] {
        let error = decode(Client, version, &connect("MQTT", 4, 2, &[ID])).expect_err("it came before");
        assert_eq!(error.flaw, Flaw::ConnectAgain);
        let said: &[u8] = if version == V5 { &[0xE0, 1, 0x82] } else { &[] };
        assert_eq!(answer(error), said);
    }
}

#[test]
fn the_reserved_flag_is_zero_but_in_3_1() {
    assert_eq!(first_flaw(&connect("MQTT", 4, 3, &[ID])), (Flaw::ConnectFlags(3), vec![]));
    let malformed = vec![0x20, 3, 0, 0x81, 0];
    assert_eq!(first_flaw(&connect("MQTT", 5, 3, &[&[0], ID])), (Flaw::ConnectFlags(3), malformed));
    assert!(connected(&connect("MQIsdp", 3, 3, &[ID])).clean_start);
}

#[test]
fn a_will_that_is_none_has_neither_qos_nor_retain() {
    for flags in [0x0A, 0x12, 0x22] {
        assert_eq!(first_flaw(&connect("MQTT", 4, flags, &[ID])).0, Flaw::ConnectFlags(flags));
        assert_eq!(first_flaw(&connect("MQTT", 5, flags, &[&[0], ID])).0, Flaw::ConnectFlags(flags));
    }
}

#[test]
fn a_will_of_qos_3_is_malformed() {
    let will: &[&[u8]] = &[ID, &[0, 1, b't', 0, 1, b'p']];
    assert_eq!(first_flaw(&connect("MQTT", 4, 0x1E, will)), (Flaw::QosThree, vec![]));
    let will: &[&[u8]] = &[&[0], ID, &[0, 0, 1, b't', 0, 1, b'p']];
    assert_eq!(first_flaw(&connect("MQTT", 5, 0x1E, will)), (Flaw::QosThree, vec![0x20, 3, 0, 0x81, 0]));
}

#[test]
fn a_will_is_read_with_its_properties() {
    let will: &[&[u8]] = &[&[0], ID, &[5, 24, 0, 0, 0, 9], &[0, 1, b't', 0, 2, b'p', 0]];
    let bytes = connect("MQTT", 5, 0x36, will);
    let will = connected(&bytes).will.expect("its flag is set");
    assert_eq!((will.topic, will.payload, will.qos, will.retain), ("t", &b"p\0"[..], Qos::ExactlyOnce, true));
    assert_eq!(will.properties.iter().collect::<Vec<_>>(), [Property::WillDelay(9)]);
}

#[test]
fn a_wills_topic_is_a_name() {
    for (topic, expected) in
        [(&b""[..], Flaw::TopicEmpty), (b"a/+", Flaw::TopicWildcard), (b"a\0", Flaw::NulInText)]
    {
        let bytes = connect("MQTT", 4, 0x06, &[ID, &text(topic), &text(b"")]);
        assert_eq!(first_flaw(&bytes).0, expected);
    }
}

#[test]
fn a_password_without_a_user_name_is_for_5_0_only() {
    assert_eq!(first_flaw(&connect("MQTT", 4, 0x42, &[ID, &text(b"p")])).0, Flaw::ConnectFlags(0x42));
    let bytes = connect("MQTT", 5, 0x42, &[&[0], ID, &text(b"p\xFF\0")]);
    let connect = connected(&bytes);
    assert_eq!((connect.user_name, connect.password), (None, Some(&b"p\xFF\0"[..])));
}

#[test]
fn in_3_1_the_length_goes_before_the_flags_of_user_name_and_password() {
    let bytes = connect("MQIsdp", 3, 0xC2, &[ID]);
    assert_eq!((connected(&bytes).user_name, connected(&bytes).password), (None, None));
    let bytes = connect("MQIsdp", 3, 0xC2, &[ID, &text(b"u")]);
    assert_eq!((connected(&bytes).user_name, connected(&bytes).password), (Some("u"), None));
    assert_eq!(first_flaw(&connect("MQTT", 4, 0xC2, &[ID])).0, Flaw::Short);
}

#[test]
fn fields_follow_in_their_order_and_nothing_follows_them() {
    let bytes = connect("MQTT", 4, 0xC6, &[ID, &text(b"t"), &text(b"w"), &text(b"u"), &text(b"p")]);
    let all = connected(&bytes);
    assert_eq!((all.client_id, all.keep_alive_s, all.user_name), ("c", 60, Some("u")));
    assert_eq!((all.password, all.will.map(|will| will.payload)), (Some(&b"p"[..]), Some(&b"w"[..])));
    assert_eq!(first_flaw(&connect("MQTT", 4, 2, &[ID, &[1, 2]])).0, Flaw::Trailing(2));
    assert_eq!(first_flaw(&connect("MQTT", 4, 2, &[])).0, Flaw::Short);
}

#[test]
fn texts_of_connect_are_utf_8_without_nul() {
    for (bytes, expected) in [
        (&b"\xFF"[..], Flaw::NotUtf8),
        (b"\xED\xA0\x80", Flaw::NotUtf8),
        (b"\xC0\x80", Flaw::NotUtf8),
        (b"a\0b", Flaw::NulInText),
    ] {
        assert_eq!(first_flaw(&connect("MQTT", 4, 2, &[&text(bytes)])).0, expected);
        assert_eq!(first_flaw(&connect("MQTT", 4, 0x82, &[ID, &text(bytes)])).0, expected);
    }
    let bytes = connect("MQTT", 4, 2, &[&text("\u{FEFF}x".as_bytes())]);
    assert_eq!(connected(&bytes).client_id, "\u{FEFF}x", "a byte order mark stays");
}

#[test]
fn client_ids_are_as_their_version_has_them() {
    let check = |bytes: &[u8], long_ids| connected(bytes).check_client_id(long_ids);
    let refused = Err(Reason::ClientIdInvalid);
    let id = |length: usize| text("ä".repeat(length).as_bytes());
    let v31 = |length| connect("MQIsdp", 3, 2, &[&id(length)]);
    assert_eq!(check(&v31(0), true), refused);
    assert_eq!(check(&v31(23), false), Ok(()));
    assert_eq!(check(&v31(24), false), refused);
    assert_eq!(check(&v31(24), true), Ok(()));
    assert_eq!(check(&connect("MQTT", 4, 2, &[&id(0)]), false), Ok(()));
    assert_eq!(check(&connect("MQTT", 4, 0, &[&id(0)]), false), refused);
    assert_eq!(check(&connect("MQTT", 4, 0, &[&id(200)]), false), Ok(()));
    assert_eq!(check(&connect("MQTT", 5, 0, &[&[0], &id(0)]), false), Ok(()));
    assert_eq!(Reason::ClientIdInvalid.connect_return(), 2);
}

#[test]
fn a_long_connect_is_refused_by_its_length() {
    let limits = DecodeLimits { packet_bytes_max: 1_000, connect_bytes_max: 50, whole_bytes_max: 1_000 };
    let error = Decoder::of_client().decode(&[0x10, 49], &limits).expect_err("51 bytes");
    assert_eq!((error.flaw, answer(error)), (Flaw::TooLarge(51, 50), vec![]));
    assert_eq!(Decoder::of_client().decode(&[0x10, 48], &limits), Ok(Decoded::Incomplete { needed: 50 }));
}
