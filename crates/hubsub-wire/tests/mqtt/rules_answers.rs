//! CONNACK, acknowledgements, DISCONNECT, AUTH and their reasons.

use crate::any_input::WIDE;
use crate::tools::*;
use hubsub_wire::mqtt::*;

fn connack(version: Version, body: &[u8]) -> Result<(bool, Reason), Flaw> {
    let bytes = packet(0x20, body);
    match Decoder::of_server(version).decode(&bytes, &WIDE) {
        Ok(Decoded::Packet { packet: Packet::Connack(connack), .. }) => {
            Ok((connack.session_present, connack.reason))
        }
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.flaw),
    }
}

#[test]
fn only_the_lowest_flag_of_connack_is_used() {
    for version in [V311, V5] {
        let rest: &[u8] = if version == V5 { &[0, 0] } else { &[0] };
        assert_eq!(connack(version, &[&[1], rest].concat()), Ok((true, Reason::Success)));
        for flags in [2, 0x80, 0xFF] {
            assert_eq!(connack(version, &[&[flags], rest].concat()), Err(Flaw::ConnackFlags(flags)));
        }
    }
    assert_eq!(connack(V31, &[7, 0]), Ok((false, Reason::Success)), "3.1 does not use that byte");
}

#[test]
fn a_refused_connection_has_no_session() {
    assert_eq!(connack(V311, &[1, 5]), Err(Flaw::SessionOfRefused));
    assert_eq!(connack(V5, &[1, 0x87, 0]), Err(Flaw::SessionOfRefused));
    let refused =
        Connack { session_present: true, reason: Reason::Banned, properties: Properties::default() };
    for (version, expected) in
        [(V31, &[0x20, 2, 0, 5][..]), (V311, &[0x20, 2, 0, 5]), (V5, &[0x20, 3, 0, 0x8A, 0])]
    {
        let mut out = Vec::new();
        Packet::Connack(refused).write(&mut out, version, usize::MAX).expect("short");
        assert_eq!(out, expected);
    }
}

#[test]
fn return_codes_of_older_versions_are_the_first_six() {
    for code in 0..=5 {
        let reason = connack(V311, &[0, code]).expect("it has such").1;
        assert_eq!(reason.connect_return(), code);
        assert!(reason.fits(Carrier::CONNACK));
    }
    assert_eq!(connack(V311, &[0, 6]), Err(Flaw::UnknownReason(6)));
    let failures = Reason::ALL.iter().filter(|reason| reason.is_failure());
    assert!(failures.clone().all(|reason| (1..=5).contains(&reason.connect_return())));
}

#[test]
fn reasons_and_empty_properties_may_be_left_out() {
    for (first, from) in [(0x40, Client), (0x50, Client), (0x62, Client), (0x70, Server)] {
        for body in [&[0, 1][..], &[0, 1, 0], &[0, 1, 0, 0]] {
            let bytes = packet(first, body);
            let (Packet::Puback(ack) | Packet::Pubrec(ack) | Packet::Pubrel(ack) | Packet::Pubcomp(ack)) =
                decode(from, V5, &bytes).expect("all three are valid")
            else {
                panic!("not an acknowledgement")
            };
            assert_eq!((ack.id.get(), ack.reason, ack.properties.is_empty()), (1, Reason::Success, true));
            let mut out = Vec::new();
            decode(from, V5, &bytes).expect("again").write(&mut out, V5, usize::MAX).expect("short");
            assert_eq!(out, [first, 2, 0, 1]);
        }
        assert_eq!(flaw(from, V5, &packet(first, &[0, 1, 0, 0, 0])), Flaw::Trailing(1));
        assert_eq!(flaw(from, V5, &packet(first, &[0])), Flaw::Short);
        assert_eq!(flaw(from, V5, &packet(first, &[0, 0])), Flaw::PacketIdZero);
        assert_eq!(flaw(from, V311, &packet(first, &[0, 1, 0])), Flaw::Trailing(1));
    }
}

#[test]
fn each_packet_has_its_own_reasons() {
    let code = |first, code| decode(Client, V5, &packet(first, &[0, 1, code])).map(drop).map_err(|e| e.flaw);
    assert_eq!(code(0x40, 0x10), Ok(()));
    assert_eq!(code(0x40, 0x92), Err(Flaw::ReasonMisplaced(0x92)));
    assert_eq!(code(0x62, 0x92), Ok(()));
    assert_eq!(code(0x62, 0x10), Err(Flaw::ReasonMisplaced(0x10)));
    assert_eq!(code(0x70, 0x03), Err(Flaw::UnknownReason(3)));
    assert_eq!(decode(Client, V5, &[0xE0, 1, 0x04]).map(drop), Ok(()));
    assert_eq!(flaw(Server, V5, &[0xE0, 1, 0x04]), Flaw::ReasonMisplaced(4));
    assert_eq!(decode(Server, V5, &[0xE0, 1, 0x8E]).map(drop), Ok(()));
    assert_eq!(flaw(Client, V5, &[0xE0, 1, 0x8E]), Flaw::ReasonMisplaced(0x8E));
}

#[test]
fn only_a_client_says_when_its_session_expires_and_only_a_server_where_to_go() {
    let expiry = packet(0xE0, &[0, 5, 17, 0, 0, 0, 9]);
    assert!(decode(Client, V5, &expiry).is_ok());
    assert_eq!(flaw(Server, V5, &expiry), Flaw::PropertyOfOtherSide(17));
    let reference = packet(0xE0, &[0x80, 4, 28, 0, 1, b's']);
    assert!(decode(Server, V5, &reference).is_ok());
    assert_eq!(flaw(Client, V5, &reference), Flaw::PropertyOfOtherSide(28));
}

#[test]
fn a_disconnect_without_a_reason_is_a_normal_one() {
    for version in crate::any_input::VERSIONS {
        let Ok(Packet::Disconnect(disconnect)) = decode(Client, version, &[0xE0, 0]) else {
            panic!("not taken")
        };
        assert_eq!(disconnect.reason, Reason::Success);
    }
}

#[test]
fn auth_has_a_method_and_a_reason_of_its_sender() {
    let auth = |code: u8| packet(0xF0, &[code, 4, 21, 0, 1, b'm']);
    assert!(decode(Client, V5, &auth(0x18)).is_ok());
    assert!(decode(Client, V5, &auth(0x19)).is_ok());
    assert!(decode(Server, V5, &auth(0x00)).is_ok());
    assert_eq!(flaw(Server, V5, &auth(0x19)), Flaw::ReasonMisplaced(0x19));
    assert_eq!(flaw(Client, V5, &auth(0x00)), Flaw::ReasonMisplaced(0));
    assert_eq!(flaw(Client, V5, &[0xF0, 0]), Flaw::ReasonMisplaced(0));
    assert!(decode(Server, V5, &[0xF0, 0]).is_ok(), "it succeeded, and that is all");
    assert_eq!(flaw(Client, V5, &[0xF0, 2, 0x18, 0]), Flaw::NoAuthMethod);
    assert_eq!(flaw(Client, V5, &[0xF1, 0]), Flaw::FixedHeaderFlags(1));
}

#[test]
fn an_answer_too_long_for_its_peer_can_go_without_its_properties() {
    let mut list = PropertyList::default();
    list.push(Property::ReasonString("because")).expect("short");
    let id = PacketId::new(1).expect("not 0");
    let ack = Ack { id, reason: Reason::NotAuthorized, properties: list.as_properties() };
    let mut out = Vec::new();
    assert_eq!(Packet::Puback(ack).write(&mut out, V5, 10), Err(EncodeError::TooLong { bytes: 16 }));
    let bare = Ack { properties: Properties::default(), ..ack };
    Packet::Puback(bare).write(&mut out, V5, 10).expect("5 bytes");
    assert_eq!(out, [0x40, 3, 0, 1, 0x87]);
}

#[test]
fn every_reason_has_a_number_words_and_a_packet() {
    let numbers: Vec<u8> = Reason::ALL.iter().map(|reason| reason.number()).collect();
    assert!(numbers.is_sorted(), "{numbers:?}");
    assert_eq!(numbers.len(), 43);
    let carriers = [
        Carrier::CONNACK,
        Carrier::RECEIVED,
        Carrier::RELEASED,
        Carrier::SUBACK,
        Carrier::UNSUBACK,
        Carrier::CLIENT_DISCONNECT,
        Carrier::SERVER_DISCONNECT,
        Carrier::CLIENT_AUTH,
        Carrier::SERVER_AUTH,
    ];
    for number in 0..=255 {
        match Reason::from_number(number) {
            None => assert!(!numbers.contains(&number)),
            Some(reason) => {
                assert_eq!(reason.number(), number);
                assert!(!reason.words().is_empty());
                assert!(carriers.iter().any(|&carrier| reason.fits(carrier)), "{number:#x}");
            }
        }
    }
}
