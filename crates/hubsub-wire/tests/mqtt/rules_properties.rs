//! Properties of 5.0: allowed packets, repetitions and values.

use crate::tools::*;
use hubsub_wire::mqtt::*;

/// A shortest value for each identifier.
fn sample(id: u8) -> Option<Vec<u8>> {
    Some(match id {
        1 | 23 | 25 | 36 | 37 | 40 | 41 | 42 | 11 => vec![id, 1],
        19 | 33 | 34 | 35 => vec![id, 0, 1],
        2 | 17 | 24 | 39 => vec![id, 0, 0, 0, 1],
        3 | 8 | 9 | 18 | 21 | 22 | 26 | 28 | 31 => vec![id, 0, 1, b'x'],
        38 => vec![id, 0, 1, b'n', 0, 1, b'v'],
        _ => return None,
    })
}

/// A packet with properties: name, sender, constructor, and the allowed identifiers.
type Place = (&'static str, Peer, fn(&[u8]) -> Vec<u8>, &'static [u8]);

fn with_length(properties: &[u8]) -> Vec<u8> {
    [&[properties.len() as u8], properties].concat()
}

const PLACES: &[Place] = &[
    ("PUBLISH of a client", Client, publish_with, &[1, 2, 3, 8, 9, 35, 38]),
    ("PUBLISH of a server", Server, publish_with, &[1, 2, 3, 8, 9, 11, 35, 38]),
    ("PUBACK", Client, |p| packet(0x40, &[&[0, 1, 0], &with_length(p)[..]].concat()), &[31, 38]),
    ("PUBREC", Client, |p| packet(0x50, &[&[0, 1, 0], &with_length(p)[..]].concat()), &[31, 38]),
    ("PUBREL", Client, |p| packet(0x62, &[&[0, 1, 0], &with_length(p)[..]].concat()), &[31, 38]),
    ("PUBCOMP", Client, |p| packet(0x70, &[&[0, 1, 0], &with_length(p)[..]].concat()), &[31, 38]),
    (
        "SUBSCRIBE",
        Client,
        |p| packet(0x82, &[&[0, 1], &with_length(p)[..], &[0, 1, b'a', 0]].concat()),
        &[11, 38],
    ),
    ("SUBACK", Server, |p| packet(0x90, &[&[0, 1], &with_length(p)[..], &[0]].concat()), &[31, 38]),
    ("UNSUBSCRIBE", Client, |p| packet(0xA2, &[&[0, 1], &with_length(p)[..], &[0, 1, b'a']].concat()), &[38]),
    ("UNSUBACK", Server, |p| packet(0xB0, &[&[0, 1], &with_length(p)[..], &[0]].concat()), &[31, 38]),
    (
        "DISCONNECT of a client",
        Client,
        |p| packet(0xE0, &[&[0], &with_length(p)[..]].concat()),
        &[17, 31, 38],
    ),
    (
        "DISCONNECT of a server",
        Server,
        |p| packet(0xE0, &[&[0x80], &with_length(p)[..]].concat()),
        &[28, 31, 38],
    ),
];

const CONNECT: &[u8] = &[17, 21, 23, 25, 33, 34, 38, 39];
const WILL: &[u8] = &[1, 2, 3, 8, 9, 24, 38];
const CONNACK: &[u8] = &[17, 18, 19, 21, 26, 28, 31, 33, 34, 36, 37, 38, 39, 40, 41, 42];

fn connect_with(properties: &[u8]) -> Vec<u8> {
    connect("MQTT", 5, 2, &[&with_length(properties), &text(b"c")])
}

fn will_with(properties: &[u8]) -> Vec<u8> {
    connect("MQTT", 5, 6, &[&[0], &text(b"c"), &with_length(properties), &text(b"t"), &text(b"p")])
}

fn connack_with(properties: &[u8]) -> Result<(), Flaw> {
    let bytes = packet(0x20, &[&[0, 0], &with_length(properties)[..]].concat());
    let limits = crate::any_input::WIDE;
    Decoder::of_server(V5).decode(&bytes, &limits).map(drop).map_err(|error| error.flaw)
}

/// Calls `look` for every packet with properties: its name, the allowed properties, and a function that
/// decodes it with given ones.
fn each_place(mut look: impl FnMut(&str, &[u8], &dyn Fn(&[u8]) -> Result<(), Flaw>)) {
    for &(name, from, build, allowed) in PLACES {
        look(name, allowed, &|p| decode(from, V5, &build(p)).map(drop).map_err(|error| error.flaw));
    }
    look("CONNECT", CONNECT, &|p| decode_first(&connect_with(p)).map(drop).map_err(|error| error.flaw));
    look("will", WILL, &|p| decode_first(&will_with(p)).map(drop).map_err(|error| error.flaw));
    look("CONNACK", CONNACK, &connack_with);
}

#[test]
fn a_property_stands_where_it_may_and_nowhere_else() {
    each_place(|name, allowed, decoded| {
        for id in (0..=255).filter(|&id| id != 22) {
            match (decoded(&sample(id).unwrap_or(vec![id, 0])), sample(id)) {
                (Ok(()), _) => assert!(allowed.contains(&id), "{name} took {id}"),
                (Err(Flaw::UnknownProperty(of)), None) => assert_eq!(of, id),
                (Err(Flaw::PropertyMisplaced(of) | Flaw::PropertyOfOtherSide(of)), Some(_)) => {
                    assert!(of == id && !allowed.contains(&id), "{name} refused {id}");
                }
                (other, _) => panic!("{name}, {id}: {other:?}"),
            }
        }
    });
    assert_eq!(Flaw::UnknownProperty(0).reason(), Reason::MalformedPacket);
    assert_eq!(Flaw::PropertyMisplaced(0).reason(), Reason::MalformedPacket);
}

#[test]
fn a_property_comes_once_but_for_user_properties() {
    each_place(|name, allowed, decoded| {
        for &id in allowed {
            let property = sample(id).expect("known");
            let expected = match (name, id) {
                (_, 38) | ("PUBLISH of a server", 11) => Ok(()),
                _ => Err(Flaw::PropertyRepeated(id)),
            };
            assert_eq!(decoded(&[&property[..], &property].concat()), expected, "{name}, {id}");
        }
    });
    assert_eq!(Flaw::PropertyRepeated(1).reason(), Reason::ProtocolError);
}

#[test]
fn values_are_in_their_range() {
    let in_connect = |p: &[u8]| first_flaw(&connect_with(p)).0;
    assert_eq!(in_connect(&[33, 0, 0]), Flaw::PropertyValue(33));
    assert_eq!(in_connect(&[39, 0, 0, 0, 0]), Flaw::PropertyValue(39));
    assert_eq!(in_connect(&[23, 2]), Flaw::PropertyValue(23));
    assert_eq!(in_connect(&[25, 2]), Flaw::PropertyValue(25));
    for id in [36, 37, 40, 41, 42] {
        assert_eq!(connack_with(&[id, 2]), Err(Flaw::PropertyValue(id)));
    }
    assert_eq!(flaw(Client, V5, &publish_with(&[1, 2])), Flaw::PropertyValue(1));
    let subscribe = |p: &[u8]| packet(0x82, &[&[0, 1], &with_length(p)[..], &[0, 1, b'a', 0]].concat());
    assert_eq!(flaw(Client, V5, &subscribe(&[11, 0])), Flaw::PropertyValue(11));
    assert_eq!(flaw(Client, V5, &subscribe(&[11, 0x80, 0])), Flaw::LengthNotShortest);
    assert_eq!(flaw(Client, V5, &subscribe(&[11, 0xFF, 0xFF, 0xFF, 0xFF, 1])), Flaw::LengthTooLong);
    assert!(decode(Client, V5, &subscribe(&[11, 0xFF, 0xFF, 0xFF, 0x7F])).is_ok());
}

#[test]
fn a_response_topic_is_a_name() {
    for topic in [&b""[..], b"a/+", b"#"] {
        let property = [&[8], &text(topic)[..]].concat();
        assert_eq!(flaw(Client, V5, &publish_with(&property)), Flaw::ResponseTopic);
        assert_eq!(first_flaw(&will_with(&property)).0, Flaw::ResponseTopic);
    }
    assert_eq!(Flaw::ResponseTopic.reason(), Reason::ProtocolError);
}

#[test]
fn texts_in_properties_are_utf_8_without_nul() {
    for id in [3, 8] {
        assert_eq!(flaw(Client, V5, &publish_with(&[id, 0, 1, 0xFF])), Flaw::NotUtf8);
        assert_eq!(flaw(Client, V5, &publish_with(&[id, 0, 1, 0])), Flaw::NulInText);
    }
    assert_eq!(flaw(Client, V5, &publish_with(&[38, 0, 1, b'n', 0, 1, 0xFF])), Flaw::NotUtf8);
    assert!(decode(Client, V5, &publish_with(&[9, 0, 2, 0xFF, 0])).is_ok(), "correlation data is bytes");
}

#[test]
fn authentication_data_needs_a_method() {
    assert_eq!(first_flaw(&connect_with(&[22, 0, 1, b'd'])).0, Flaw::NoAuthMethod);
    assert!(decode_first(&connect_with(&[22, 0, 1, b'd', 21, 0, 1, b'm'])).is_ok(), "in any order");
    assert_eq!(connack_with(&[22, 0, 1, b'd']), Err(Flaw::NoAuthMethod));
}

#[test]
fn a_property_that_ends_behind_the_properties_is_malformed() {
    assert_eq!(flaw(Client, V5, &publish_with(&[2, 0, 0, 0])), Flaw::Short);
    assert_eq!(flaw(Client, V5, &publish_with(&[3, 0, 9, b'x'])), Flaw::Short);
    assert_eq!(flaw(Client, V5, &publish_with(&[38, 0, 1, b'n', 0])), Flaw::Short);
}

#[test]
fn a_list_of_properties_refuses_what_is_too_long() {
    let mut list = PropertyList::default();
    list.push(Property::ContentType("x")).expect("short");
    let before = list.clone();
    let long = "x".repeat(65_536);
    let error = list.push(Property::User(Pair { name: "n", value: &long }));
    assert_eq!(error, Err(EncodeError::FieldTooLong { bytes: 65_536 }));
    assert_eq!(list, before);
    assert!(!list.as_properties().is_empty());
}
