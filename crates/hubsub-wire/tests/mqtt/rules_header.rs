//! The fixed header: types, flags, lengths, and allowed senders.

use crate::any_input::{VERSIONS, WIDE, begun};
use crate::tools::*;
use hubsub_wire::mqtt::*;

#[test]
fn flags_are_what_their_type_has() {
    for (kind, flags, from) in [
        (4, 0, Client),
        (5, 0, Client),
        (6, 2, Client),
        (7, 0, Client),
        (8, 2, Client),
        (10, 2, Client),
        (12, 0, Client),
        (14, 0, Client),
        (9, 0, Server),
        (11, 0, Server),
        (13, 0, Server),
    ] {
        for other in (0..16).filter(|&other| other != flags) {
            for version in VERSIONS {
                if version == V31 && flags == 2 && other == 0b1010 {
                    continue;
                }
                assert_eq!(flaw(from, version, &[kind << 4 | other, 0]), Flaw::FixedHeaderFlags(other));
            }
        }
    }
    for flags in 1..16 {
        assert_eq!(first_flaw(&[0x10 | flags, 0]).0, Flaw::FixedHeaderFlags(flags));
    }
}

#[test]
fn what_3_1_repeats_may_have_dup() {
    assert!(matches!(decode(Client, V31, &[0x6A, 2, 0, 1]), Ok(Packet::Pubrel(_))));
    assert!(matches!(decode(Client, V31, &[0x8A, 6, 0, 1, 0, 1, b'a', 0]), Ok(Packet::Subscribe(_))));
    assert!(matches!(decode(Client, V31, &[0xAA, 5, 0, 1, 0, 1, b'a']), Ok(Packet::Unsubscribe(_))));
    assert_eq!(flaw(Client, V311, &[0x6A, 2, 0, 1]), Flaw::FixedHeaderFlags(0b1010));
}

#[test]
fn a_length_has_at_most_four_bytes() {
    assert_eq!(flaw(Client, V311, &[0x30, 0x80, 0x80, 0x80, 0x80, 1]), Flaw::LengthTooLong);
    let decoded = begun(Client, V311).decode(&[0x30, 0xFF, 0xFF, 0xFF, 0x7F], &WIDE);
    assert_eq!(decoded, Ok(Decoded::Incomplete { needed: 5 + REMAINING_LENGTH_MAX }));
}

#[test]
fn in_5_0_lengths_are_as_short_as_they_can_be() {
    assert_eq!(flaw(Client, V5, &[0xC0, 0x80, 0]), Flaw::LengthNotShortest);
    assert_eq!(decode(Client, V311, &[0xC0, 0x80, 0]), Ok(Packet::Pingreq));
    let properties = packet(0x30, &[&text(b"t")[..], &[0x80, 0]].concat());
    assert_eq!(flaw(Client, V5, &properties), Flaw::LengthNotShortest);
    let long: Vec<u8> = [&[0x10, 0x8E, 0][..], &crate::any_input::connect(V5)[2..]].concat();
    assert_eq!(long[1] & 0x7F, crate::any_input::connect(V5)[1]);
    assert_eq!(first_flaw(&long), (Flaw::LengthNotShortest, vec![0x20, 3, 0, 0x81, 0]));
}

#[test]
fn a_packet_too_large_is_refused_before_it_comes() {
    let limits = DecodeLimits { packet_bytes_max: 100, connect_bytes_max: 100, whole_bytes_max: 50 };
    let refused =
        |version, bytes: &[u8]| begun(Client, version).decode(bytes, &limits).expect_err("too large");
    let error = refused(V5, &[0x30, 99]);
    assert_eq!((error.flaw, answer(error)), (Flaw::TooLarge(101, 100), vec![0xE0, 1, 0x95]));
    let error = refused(V311, &[0x30, 99]);
    assert_eq!((error.flaw, answer(error)), (Flaw::TooLarge(101, 100), vec![]));
    assert_eq!(refused(V5, &[0x82, 49]).flaw, Flaw::TooLarge(51, 50));
}

#[test]
fn types_that_are_none_are_refused() {
    for version in VERSIONS {
        assert_eq!(flaw(Client, version, &[0, 0]), Flaw::UnknownType(0));
    }
    for version in [V31, V311] {
        assert_eq!(flaw(Client, version, &[0xF0, 0]), Flaw::UnknownType(15));
    }
}

#[test]
fn each_side_sends_its_own_packets() {
    for version in VERSIONS {
        for kind in [9, 11, 13] {
            assert_eq!(flaw(Client, version, &[kind << 4, 0]), Flaw::OtherSide(kind));
        }
        assert_eq!(flaw(Client, version, &[0x20, 0]), Flaw::OtherSide(2));
        for kind in [8, 10, 12, 1] {
            assert_eq!(flaw(Server, version, &[kind << 4 | 2, 0]), Flaw::OtherSide(kind));
        }
    }
    assert_eq!(flaw(Server, V311, &[0xE0, 0]), Flaw::OtherSide(14));
    assert!(matches!(decode(Server, V5, &[0xE0, 0]), Ok(Packet::Disconnect(_))));
}

#[test]
fn a_server_begins_with_connack() {
    let first =
        |bytes: &[u8]| Decoder::of_server(V5).decode(bytes, &WIDE).map(drop).map_err(|error| error.flaw);
    assert_eq!(first(&[0xD0, 0]), Err(Flaw::NotConnack(13)));
    assert_eq!(first(&[0x20, 3, 0, 0, 0]), Ok(()));
    assert_eq!(first(&[0xF0, 6, 0x18, 4, 21, 0, 1, b'm']), Ok(()));
    assert_eq!(flaw(Server, V5, &[0x20, 3, 0, 0, 0]), Flaw::ConnectAgain);
}

#[test]
fn packets_without_a_body_have_none() {
    for version in VERSIONS {
        assert_eq!(flaw(Client, version, &[0xC0, 1, 0]), Flaw::Trailing(1));
        assert_eq!(flaw(Server, version, &[0xD0, 1, 0]), Flaw::Trailing(1));
        assert_eq!(decode(Server, version, &[0xD0, 0]), Ok(Packet::Pingresp));
    }
    assert_eq!(flaw(Client, V311, &[0xE0, 1, 0]), Flaw::Trailing(1));
}

#[test]
fn every_flaw_of_5_0_has_a_reason_that_its_answer_may_carry() {
    for flaw in [
        Flaw::LengthTooLong,
        Flaw::TooLarge(2, 1),
        Flaw::HeadTooLarge(1),
        Flaw::FixedHeaderFlags(1),
        Flaw::ConnectAgain,
        Flaw::NotUtf8,
        Flaw::QosThree,
        Flaw::PacketIdZero,
        Flaw::TopicAliasZero,
        Flaw::TopicWildcard,
        Flaw::FilterWildcard,
        Flaw::ShareName,
        Flaw::ShareNoLocal,
        Flaw::NoFilter,
        Flaw::UnknownReason(1),
    ] {
        assert!(flaw.reason().fits(Carrier::SERVER_DISCONNECT), "{flaw}");
        let said = answer(ProtocolError { flaw, version: Some(V5), first: false });
        assert_eq!(said, [0xE0, 1, flaw.reason().number()]);
        assert!(answer(ProtocolError { flaw, version: Some(V311), first: false }).is_empty());
    }
}
