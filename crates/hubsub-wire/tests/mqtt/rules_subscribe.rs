//! Filters, shared ones, options, and the replies to them.

use crate::any_input::VERSIONS;
use crate::tools::*;
use hubsub_wire::mqtt::*;

/// A SUBSCRIBE of one filter with these options.
fn subscribe(version: Version, filter: &[u8], options: u8) -> Vec<u8> {
    let properties: &[u8] = if version == V5 { &[0] } else { &[] };
    packet(0x82, &[&[0, 1], properties, &text(filter), &[options]].concat())
}

fn unsubscribe(version: Version, filter: &[u8]) -> Vec<u8> {
    let properties: &[u8] = if version == V5 { &[0] } else { &[] };
    packet(0xA2, &[&[0, 1], properties, &text(filter)].concat())
}

/// The error of a filter, in either packet of every version.
fn filter_flaw(filter: &[u8]) -> Option<Flaw> {
    let found = topic_filter(filter).err();
    for version in VERSIONS {
        for bytes in [subscribe(version, filter, 0), unsubscribe(version, filter)] {
            assert_eq!(decode(Client, version, &bytes).err().map(|error| error.flaw), found);
        }
    }
    found
}

#[test]
fn wildcards_are_whole_levels_and_hash_is_the_last() {
    for filter in ["a", "/", "+", "#", "+/+", "/+", "a/+/b", "a/#", "+/#", "/#", "$SYS/#", "a b/€", "$share"]
    {
        assert_eq!(filter_flaw(filter.as_bytes()), None, "{filter}");
    }
    for filter in ["a+", "+a", "a/b+", "a/+b/c", "#/a", "a#", "a/#/b", "##", "++", "#/", "+#"] {
        assert_eq!(filter_flaw(filter.as_bytes()), Some(Flaw::FilterWildcard), "{filter}");
    }
    assert_eq!(filter_flaw(b""), Some(Flaw::FilterEmpty));
    assert_eq!(filter_flaw(b"a\0"), Some(Flaw::NulInText));
    assert_eq!(filter_flaw(b"a\xFF"), Some(Flaw::NotUtf8));
    assert_eq!(Flaw::FilterWildcard.reason(), Reason::TopicFilterInvalid);
}

#[test]
fn a_shared_subscription_has_a_name_and_a_filter() {
    for (filter, name, filtered) in [
        ("$share/g/a", "g", "a"),
        ("$share/g/#", "g", "#"),
        ("$share/g//", "g", "/"),
        ("$share/g/+/x", "g", "+/x"),
    ] {
        assert_eq!(filter_flaw(filter.as_bytes()), None, "{filter}");
        assert_eq!(shared(filter), Some((name, filtered)));
    }
    for filter in ["$share/", "$share/g", "$share/g/", "$share//a", "$share/+/a", "$share/g#/a"] {
        assert_eq!(filter_flaw(filter.as_bytes()), Some(Flaw::ShareName), "{filter}");
    }
    assert_eq!(filter_flaw(b"$share/g/a#"), Some(Flaw::FilterWildcard));
    assert_eq!((shared("a/b"), shared("$share")), (None, None));
}

#[test]
fn options_are_read() {
    let bytes = subscribe(V5, b"a", 0b0010_1110);
    let Ok(Packet::Subscribe(subscribe)) = decode(Client, V5, &bytes) else { panic!("not taken") };
    let options = Options {
        qos: Qos::ExactlyOnce,
        no_local: true,
        retain_as_published: true,
        retain_handling: RetainHandling::DoNotSend,
    };
    assert_eq!(subscribe.filters.iter().collect::<Vec<_>>(), [("a", options)]);
    assert_eq!(subscribe.id.get(), 1);
}

#[test]
fn reserved_bits_of_options_are_zero() {
    for bit in 2..8 {
        for version in [V31, V311] {
            let options = 1 << bit;
            assert_eq!(
                flaw(Client, version, &subscribe(version, b"a", options)),
                Flaw::SubscribeOptions(options)
            );
        }
    }
    for options in [0x40, 0x80] {
        assert_eq!(flaw(Client, V5, &subscribe(V5, b"a", options)), Flaw::SubscribeOptions(options));
    }
    assert_eq!(Flaw::SubscribeOptions(0x40).reason(), Reason::MalformedPacket);
}

#[test]
fn a_qos_of_3_and_a_retain_handling_of_3_are_refused() {
    for version in VERSIONS {
        assert_eq!(flaw(Client, version, &subscribe(version, b"a", 3)), Flaw::QosThree);
    }
    assert_eq!(flaw(Client, V5, &subscribe(V5, b"a", 0x30)), Flaw::RetainHandling);
    assert_eq!(Flaw::RetainHandling.reason(), Reason::ProtocolError);
}

#[test]
fn no_local_is_not_for_shared_subscriptions() {
    assert_eq!(flaw(Client, V5, &subscribe(V5, b"$share/g/a", 4)), Flaw::ShareNoLocal);
    assert_eq!(Flaw::ShareNoLocal.reason(), Reason::ProtocolError);
    assert!(decode(Client, V5, &subscribe(V5, b"a", 4)).is_ok());
}

#[test]
fn there_is_at_least_one_filter() {
    for version in VERSIONS {
        let body: &[u8] = if version == V5 { &[0, 1, 0] } else { &[0, 1] };
        assert_eq!(flaw(Client, version, &packet(0x82, body)), Flaw::NoFilter);
        assert_eq!(flaw(Client, version, &packet(0xA2, body)), Flaw::NoFilter);
    }
    assert_eq!(Flaw::NoFilter.reason(), Reason::ProtocolError);
}

#[test]
fn several_filters_come_in_their_order() {
    let body = [&[0, 9][..], &text(b"a"), &[1], &text(b"b/#"), &[2]].concat();
    let bytes = packet(0x82, &body);
    let Ok(Packet::Subscribe(subscribe)) = decode(Client, V311, &bytes) else { panic!("not taken") };
    let all: Vec<_> = subscribe.filters.iter().map(|(filter, options)| (filter, options.qos)).collect();
    assert_eq!(all, [("a", Qos::AtLeastOnce), ("b/#", Qos::ExactlyOnce)]);
    let bytes = packet(0xA2, &[&[0, 9][..], &text(b"a"), &text(b"b/#")].concat());
    let Ok(Packet::Unsubscribe(unsubscribe)) = decode(Client, V311, &bytes) else { panic!("not taken") };
    assert_eq!(unsubscribe.filters.iter().collect::<Vec<_>>(), ["a", "b/#"]);
    let cut = packet(0x82, &body[..body.len() - 1]);
    assert_eq!(flaw(Client, V311, &cut), Flaw::Short);
}

#[test]
fn a_packet_id_of_0_is_refused_in_both() {
    for version in VERSIONS {
        for first in [0x82, 0xA2] {
            assert_eq!(flaw(Client, version, &packet(first, &[0, 0, 0, 0, 1, b'a', 0])), Flaw::PacketIdZero);
        }
    }
}

#[test]
fn the_failure_of_a_subscription_is_said_as_its_version_can() {
    let refused = [Reason::NotAuthorized.number(), Reason::GrantedQos2.number()];
    let reasons = Reasons::new(&refused, Carrier::SUBACK).expect("they fit");
    let id = PacketId::new(5).expect("not 0");
    let suback = Packet::Suback(Suback { id, properties: Properties::default(), reasons });
    for (version, expected) in [
        (V31, &[0x90, 4, 0, 5, 0, 2][..]),
        (V311, &[0x90, 4, 0, 5, 0x80, 2]),
        (V5, &[0x90, 5, 0, 5, 0, 0x87, 2]),
    ] {
        let mut out = Vec::new();
        suback.write(&mut out, version, usize::MAX).expect("short");
        assert_eq!(out, expected);
    }
}

#[test]
fn answers_have_the_codes_of_their_version() {
    let suback = |version, code| {
        let properties: &[u8] = if version == V5 { &[0] } else { &[] };
        let bytes = packet(0x90, &[&[0, 1], properties, &[code]].concat());
        decode(Server, version, &bytes).map(drop).map_err(|error| error.flaw)
    };
    assert_eq!(suback(V31, 2), Ok(()));
    assert_eq!(suback(V31, 0x80), Err(Flaw::UnknownReason(0x80)));
    assert_eq!(suback(V311, 0x80), Ok(()));
    assert_eq!(suback(V311, 0x87), Err(Flaw::UnknownReason(0x87)));
    assert_eq!(suback(V5, 0x87), Ok(()));
    assert_eq!(suback(V5, 0x03), Err(Flaw::UnknownReason(3)));
    assert_eq!(suback(V5, 0x92), Err(Flaw::ReasonMisplaced(0x92)));
    assert_eq!(flaw(Server, V311, &[0xB0, 3, 0, 1, 0]), Flaw::Trailing(1));
    assert_eq!(flaw(Server, V5, &[0xB0, 3, 0, 1, 0]), Flaw::Short);
    assert_eq!(flaw(Server, V311, &[0x90, 2, 0, 1]), Flaw::Short);
}
