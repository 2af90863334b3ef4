//! PUBLISH: flags, topics, ids, payloads in pieces, and the encoding shared by subscribers.

use crate::any_input::{LIMITS, VERSIONS, WIDE, begun};
use crate::tools::*;
use hubsub_wire::mqtt::*;

fn published(from: Peer, version: Version, bytes: &[u8]) -> Publish<'_> {
    match decode(from, version, bytes) {
        Ok(Packet::Publish(publish)) => publish,
        other => panic!("{other:?}"),
    }
}

fn id(number: u16) -> PacketId {
    PacketId::new(number).expect("not 0")
}

#[test]
fn qos_3_and_a_repeated_qos_0_are_malformed_by_the_first_byte() {
    for version in VERSIONS {
        for first in [0x36, 0x37, 0x3E, 0x3F] {
            assert_eq!(flaw(Client, version, &[first, 0]), Flaw::QosThree);
        }
        for first in [0x38, 0x39] {
            assert_eq!(flaw(Client, version, &[first, 0]), Flaw::RepeatedQosZero);
        }
    }
    assert_eq!(Flaw::QosThree.reason(), Reason::MalformedPacket);
    assert_eq!(Flaw::RepeatedQosZero.reason(), Reason::MalformedPacket);
}

#[test]
fn flags_topic_id_and_payload_are_read() {
    let bytes = packet(0x3D, &[&text(b"a/b")[..], &[1, 2], b"\0\xFF"].concat());
    let publish = published(Client, V311, &bytes);
    assert_eq!((publish.dup, publish.qos, publish.retain), (true, Qos::ExactlyOnce, true));
    assert_eq!((publish.topic, publish.id, publish.payload), ("a/b", Some(id(0x0102)), &b"\0\xFF"[..]));
    let bytes = packet(0x30, &text(b"a"));
    assert_eq!(
        (published(Client, V311, &bytes).id, published(Client, V311, &bytes).payload),
        (None, &b""[..])
    );
}

#[test]
fn a_packet_id_of_0_is_refused() {
    for first in [0x32, 0x34] {
        for version in VERSIONS {
            let bytes = packet(first, &[&text(b"a")[..], &[0, 0, 0]].concat());
            assert_eq!(flaw(Client, version, &bytes), Flaw::PacketIdZero);
        }
    }
}

#[test]
fn a_topic_has_no_wildcard_and_no_nul_and_is_utf_8() {
    for version in VERSIONS {
        let of = |topic: &[u8]| flaw(Client, version, &packet(0x30, &[&text(topic)[..], &[0]].concat()));
        assert_eq!(of(b"a/+/b"), Flaw::TopicWildcard);
        assert_eq!(of(b"a#"), Flaw::TopicWildcard);
        assert_eq!(of(b"a\0"), Flaw::NulInText);
        assert_eq!(of(b"\xED\xBF\xBF"), Flaw::NotUtf8);
        assert_eq!(of(b""), Flaw::TopicEmpty);
    }
    assert_eq!(Flaw::TopicWildcard.reason(), Reason::TopicNameInvalid);
    assert_eq!(topic_name("/ €/\u{10FFFF}".as_bytes()), Ok("/ €/\u{10FFFF}"));
}

#[test]
fn a_topic_is_as_long_as_its_length_can_say() {
    let topic = vec![b'x'; 65_535];
    let publish = Publish {
        dup: false,
        qos: Qos::AtMostOnce,
        retain: false,
        topic: std::str::from_utf8(&topic).expect("ascii"),
        id: None,
        properties: Properties::default(),
        payload: b"",
    };
    let mut out = Vec::new();
    write_publish(&mut out, V311, &publish, usize::MAX).expect("it fits");
    assert_eq!(published(Client, V311, &out), publish);
    let long = "x".repeat(65_536);
    let error = write_publish(&mut out, V311, &Publish { topic: &long, ..publish }, usize::MAX);
    assert_eq!(error, Err(EncodeError::FieldTooLong { bytes: 65_536 }));
}

#[test]
fn an_empty_topic_needs_an_alias_that_is_not_0() {
    let aliased = |alias: u8| packet(0x30, &[0, 0, 3, 35, 0, alias]);
    assert_eq!(published(Client, V5, &aliased(7)).topic, "");
    assert_eq!(flaw(Client, V5, &aliased(0)), Flaw::TopicAliasZero);
    assert_eq!(Flaw::TopicAliasZero.reason(), Reason::TopicAliasInvalid);
    assert_eq!(flaw(Client, V5, &packet(0x30, &[0, 0, 5, 2, 0, 0, 0, 1])), Flaw::TopicEmpty);
    assert_eq!(Flaw::TopicEmpty.reason(), Reason::ProtocolError);
}

#[test]
fn a_client_sends_no_subscription_identifier_and_a_server_may_send_several() {
    let bytes = publish_with(&[11, 1, 11, 0x80, 1]);
    assert_eq!(flaw(Client, V5, &bytes), Flaw::PropertyOfOtherSide(11));
    assert_eq!(Flaw::PropertyOfOtherSide(11).reason(), Reason::ProtocolError);
    let ids: Vec<Property<'_>> = published(Server, V5, &bytes).properties.iter().collect();
    let of = |number| Property::SubscriptionId(SubscriptionId::new(number).expect("in range"));
    assert_eq!(ids, [of(1), of(128)]);
}

#[test]
fn a_field_that_ends_behind_its_packet_is_malformed() {
    for body in [&[][..], &[0], &[0, 2, b'a'], &[0, 1, b'a', 9]] {
        assert_eq!(flaw(Client, V5, &packet(0x30, body)), Flaw::Short, "{body:?}");
    }
    assert_eq!(flaw(Client, V311, &packet(0x32, &[0, 1, b'a', 1])), Flaw::Short);
}

#[test]
fn two_hundred_megabytes_come_in_pieces_and_need_no_memory() {
    let payload_bytes = 200 << 20;
    let publish = Publish {
        dup: false,
        qos: Qos::AtLeastOnce,
        retain: false,
        topic: "a/b",
        id: Some(id(7)),
        properties: Properties::default(),
        payload: b"",
    };
    for version in VERSIONS {
        let mut head = Vec::new();
        write_publish_head(&mut head, version, &publish, payload_bytes, usize::MAX).expect("it fits");
        assert!(head.len() < 20);
        let limits = DecodeLimits { packet_bytes_max: 256 << 20, ..LIMITS };
        let mut decoder = begun(Client, version);
        let decoded = decoder.decode(&head, &limits);
        assert_eq!(decoded, Ok(Decoded::Head { publish, payload_bytes, len: head.len() }));
        let (piece, mut left) = (vec![7; 64 << 10], payload_bytes);
        while left > piece.len() {
            let chunk = Decoded::Chunk { bytes: &piece, last: false, len: piece.len() };
            assert_eq!(decoder.decode(&piece, &limits), Ok(chunk));
            left -= piece.len();
        }
        // The next packet follows in the same read.
        let rest = [&piece[..left], &[0xC0, 0]].concat();
        let chunk = Decoded::Chunk { bytes: &piece[..left], last: true, len: left };
        assert_eq!(decoder.decode(&rest, &limits), Ok(chunk));
        let next = decoder.decode(&rest[left..], &limits);
        assert_eq!(next, Ok(Decoded::Packet { packet: Packet::Pingreq, len: 2 }));
    }
}

#[test]
fn a_head_longer_than_may_be_in_memory_is_refused_when_its_length_is_read() {
    let long_topic = [&[0x30, 0xD0, 0x0F][..], &[0x03, 0x20]].concat();
    let refused = |version, bytes: &[u8]| {
        let limits = DecodeLimits { packet_bytes_max: 9_000, ..LIMITS };
        begun(Client, version).decode(bytes, &limits).map(drop)
    };
    for version in VERSIONS {
        let error = refused(version, &long_topic).expect_err("800 bytes of topic");
        assert_eq!(error.flaw, Flaw::HeadTooLarge(397));
    }
    let long_properties = [&[0x30, 0xD0, 0x0F][..], &[0, 1, b'a'], &[0xA0, 0x06]].concat();
    assert_eq!(refused(V5, &long_properties).map_err(|error| error.flaw), Err(Flaw::HeadTooLarge(397)));
    assert!(refused(V311, &long_properties).is_ok(), "they are payload");
}

#[test]
fn a_message_is_encoded_once_and_its_id_is_patched_for_each() {
    let mut properties = PropertyList::default();
    properties.push(Property::ContentType("text/plain")).expect("short");
    for version in VERSIONS {
        for qos in [Qos::AtLeastOnce, Qos::ExactlyOnce] {
            let publish = Publish {
                dup: false,
                qos,
                retain: true,
                topic: "room/1",
                id: None,
                payload: b"hello",
                properties: if version == V5 { properties.as_properties() } else { Properties::default() },
            };
            let mut arena = b"others".to_vec();
            let encoded = write_publish(&mut arena, version, &publish, usize::MAX).expect("short");
            for (number, dup) in [(1, false), (65_535, true)] {
                let mut out = arena[encoded.start..encoded.end].to_vec();
                let id_at = encoded.id_at.map(|at| at - encoded.start);
                Encoded { start: 0, end: out.len(), id_at }.patch(&mut out, id(number), dup);
                assert_eq!(
                    published(Server, version, &out),
                    Publish { id: Some(id(number)), dup, ..publish }
                );
            }
            encoded.patch(&mut arena, id(9), true);
            encoded.patch(&mut arena, id(300), false);
            assert_eq!(published(Server, version, &arena[6..]), Publish { id: Some(id(300)), ..publish });
        }
    }
}

#[test]
fn a_message_of_qos_0_has_no_id_and_is_never_repeated() {
    let publish = Publish {
        dup: true,
        qos: Qos::AtMostOnce,
        retain: false,
        topic: "t",
        id: Some(id(1)),
        properties: Properties::default(),
        payload: b"p",
    };
    let mut out = Vec::new();
    let encoded = write_publish(&mut out, V311, &publish, usize::MAX).expect("short");
    assert_eq!((&out[..], encoded.id_at), (&[0x30, 4, 0, 1, b't', b'p'][..], None));
}

#[test]
fn a_message_longer_than_the_protocol_allows_is_not_sent() {
    let publish = Publish {
        dup: false,
        qos: Qos::AtMostOnce,
        retain: false,
        topic: "t",
        id: None,
        properties: Properties::default(),
        payload: b"",
    };
    let mut out = Vec::new();
    let longest = REMAINING_LENGTH_MAX - 3;
    write_publish_head(&mut out, V311, &publish, longest, usize::MAX).expect("just short enough");
    assert_eq!(&out[..5], [0x30, 0xFF, 0xFF, 0xFF, 0x7F]);
    let error = write_publish_head(&mut out, V311, &publish, longest + 1, usize::MAX);
    assert_eq!(error, Err(EncodeError::TooLong { bytes: REMAINING_LENGTH_MAX + 6 }));
    assert!(matches!(begun(Client, V311).decode(&out, &WIDE), Ok(Decoded::Incomplete { .. })));
}
