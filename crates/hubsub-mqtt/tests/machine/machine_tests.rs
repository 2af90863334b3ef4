//! Rules of a connection, one by one.

use hubsub_mqtt::*;
use hubsub_wire::mqtt::*;

use crate::any_input::WIDE;
use crate::tools::{V5, V31, V311, decode};

pub fn terms() -> Terms {
    Terms {
        packet_bytes_max: 1000,
        receive_max: 2,
        is_strict: true,
        inflight_max: 3,
        aliases_max: 2,
        keep_alive_s_max: 0,
        retains: true,
        long_ids: false,
        session_expiry_s_max: 0,
        session_expiry_s_default: 0,
        has_shares: false,
    }
}

pub fn connect(version: Version) -> Connect<'static> {
    Connect {
        version,
        clean_start: true,
        keep_alive_s: 10,
        client_id: "me",
        will: None,
        user_name: None,
        password: None,
        properties: Properties::default(),
    }
}

pub fn list(properties: &[Property<'_>]) -> PropertyList {
    let mut list = PropertyList::default();
    properties.iter().for_each(|property| list.push(*property).unwrap());
    list
}

pub fn opened(connect: Connect<'_>, terms: &Terms) -> Result<Opened, Refusal> {
    Machine::open(&connect, terms, 0, || "given".to_owned())
}

fn machine(version: Version) -> Machine {
    let Ok(opened) = opened(connect(version), &terms()) else { panic!("nothing is wrong with it") };
    opened.machine
}

/// Why it is refused, and the code in CONNACK.
fn refused(connect: Connect<'_>, terms: &Terms) -> (Reason, u8) {
    let Err(refusal) = opened(connect, terms) else { panic!("it is taken in") };
    let mut out = Vec::new();
    refusal.write(&mut out);
    (refusal.fault.reason, out[3])
}

/// The instruction for a packet as text, and the immediate output.
pub fn said(machine: &mut Machine, packet: Packet<'_>) -> Result<(String, Vec<u8>), Reason> {
    let mut out = Vec::new();
    let step = machine.take(packet, 0, &mut out).map_err(|fault| fault.reason)?;
    let words = match step {
        Step::Publish(incoming) => format!("publish {}", incoming.topic.as_str()),
        other => format!("{other:?}"),
    };
    Ok((words, out))
}

pub fn publish(qos: Qos, id: u16) -> Publish<'static> {
    let (properties, id) = (Properties::default(), PacketId::new(id));
    Publish { dup: false, qos, retain: false, topic: "t", id, properties, payload: b"p" }
}

pub fn ack(id: u16) -> Ack<'static> {
    Ack { id: PacketId::new(id).unwrap(), reason: Reason::Success, properties: Properties::default() }
}

pub fn subscribe(machine: &mut Machine, filter: &str, options: Options, id: Option<u32>) -> u32 {
    let mut raw = Vec::new();
    Filters::push(&mut raw, filter, options).unwrap();
    let properties = list(
        &id.map(|id| Property::SubscriptionId(SubscriptionId::new(id).unwrap()))
            .into_iter()
            .collect::<Vec<_>>(),
    );
    let (id, filters) = (PacketId::MIN, Filters::new(&raw, V5).unwrap());
    let mut out = Vec::new();
    let packet = Packet::Subscribe(Subscribe { id, properties: properties.as_properties(), filters });
    let Ok(Step::Subscribe { first, .. }) = machine.take(packet, 0, &mut out) else { panic!("it is one") };
    first
}

pub fn subscribed(machine: &mut Machine, filter: &str, options: Options, id: Option<u32>) {
    let number = subscribe(machine, filter, options, id);
    machine.granted(number, Ok(()), &mut Vec::new());
}

pub fn of_qos(qos: Qos) -> Options {
    Options { qos, ..Options::default() }
}

/// QoS and identifiers with which a message is sent.
fn granted(machine: &Machine, by: Match<'_>, topic: &str) -> Option<(Qos, Vec<u32>)> {
    let Grant { qos, ids, .. } = machine.filters.grant(by, topic.as_bytes(), false)?;
    Some((qos, ids.into_iter().map(SubscriptionId::get).collect()))
}

#[test]
fn the_server_tells_what_it_grants() {
    let asks = list(&[Property::SessionExpiry(60), Property::TopicAliasMaximum(9)]);
    let wish = Connect { client_id: "", keep_alive_s: 0, properties: asks.as_properties(), ..connect(V5) };
    let Ok(opened) = opened(wish, &Terms { keep_alive_s_max: 30, ..terms() }) else {
        panic!("it is taken in")
    };
    let (mut decoder, mut bytes) = (Decoder::of_server(V5), Vec::new());
    opened.accepted.write(false, &mut bytes);
    let Ok(Decoded::Packet { packet: Packet::Connack(connack), .. }) = decoder.decode(&bytes, &WIDE) else {
        panic!("it is a CONNACK")
    };
    assert_eq!((connack.reason, connack.session_present), (Reason::Success, false));
    let told: Vec<Property<'_>> = connack.properties.iter().collect();
    let expected = [
        Property::SessionExpiry(0),
        Property::ReceiveMaximum(2),
        Property::MaximumPacketSize(1000),
        Property::AssignedClientId("given"),
        Property::TopicAliasMaximum(2),
        Property::SharedAvailable(false),
        Property::ServerKeepAlive(30),
    ];
    assert_eq!(told, expected);
    assert_eq!(opened.machine.silent_at_ms(), Some(45_000), "one and a half times the keep alive");
}

#[test]
fn who_cannot_be_served_is_refused_as_its_version_says_it() {
    let long = Connect { client_id: "123456789012345678901234", ..connect(V31) };
    assert_eq!(refused(long, &terms()), (Reason::ClientIdInvalid, 2));
    assert!(opened(long, &Terms { long_ids: true, ..terms() }).is_ok());
    let lasting = |version| Connect { clean_start: false, ..connect(version) };
    assert_eq!(refused(lasting(V311), &terms()), (Reason::ServerUnavailable, 3));
    assert_eq!(refused(lasting(V31), &terms()), (Reason::ServerUnavailable, 3));
    assert!(opened(lasting(V5), &terms()).is_ok(), "it is told that there is no session");
    let will = Will {
        topic: "w",
        payload: b"",
        qos: Qos::AtMostOnce,
        retain: true,
        properties: Properties::default(),
    };
    let kept = |version| Connect { will: Some(will), ..connect(version) };
    let forgets = Terms { retains: false, ..terms() };
    assert_eq!(refused(kept(V5), &forgets), (Reason::RetainNotSupported, 0x9A));
    assert_eq!(refused(kept(V311), &forgets), (Reason::RetainNotSupported, 3));
    let method = list(&[Property::AuthMethod("SCRAM-SHA-1")]);
    let proving = Connect { properties: method.as_properties(), ..connect(V5) };
    assert_eq!(refused(proving, &terms()), (Reason::BadAuthenticationMethod, 0x8C));
    let tiny = list(&[Property::MaximumPacketSize(5)]);
    let narrow = Connect { properties: tiny.as_properties(), ..connect(V5) };
    let Err(refusal) = opened(narrow, &terms()) else { panic!("it is taken in") };
    let mut out = Vec::new();
    refusal.write(&mut out);
    assert_eq!((refusal.fault.reason, &out[..]), (Reason::PacketTooLarge, &[0x20, 3, 0, 0x95, 0][..]));
}

#[test]
fn messages_above_the_receive_maximum_end_the_connection_or_are_counted() {
    let mut strict = machine(V5);
    assert!(said(&mut strict, Packet::Publish(publish(Qos::AtLeastOnce, 1))).is_ok());
    assert!(said(&mut strict, Packet::Publish(publish(Qos::ExactlyOnce, 2))).is_ok());
    assert!(said(&mut strict, Packet::Publish(publish(Qos::AtMostOnce, 0))).is_ok(), "QoS 0 does not count");
    let third = said(&mut strict, Packet::Publish(publish(Qos::AtLeastOnce, 3)));
    assert_eq!(third, Err(Reason::ReceiveMaximumExceeded));
    let Ok(Opened { machine: mut lenient, .. }) = opened(connect(V5), &Terms { is_strict: false, ..terms() })
    else {
        panic!("it is taken in")
    };
    (1..=3).for_each(|id| _ = said(&mut lenient, Packet::Publish(publish(Qos::AtLeastOnce, id))).unwrap());
    assert_eq!((lenient.take_exceeded(), lenient.take_exceeded()), (1, 0));
    let mut older = machine(V311);
    (1..=9).for_each(|id| _ = said(&mut older, Packet::Publish(publish(Qos::AtLeastOnce, id))).unwrap());
}

#[test]
fn an_alias_stands_for_the_topic_that_it_was_given_with() {
    let with = |machine: &mut Machine, topic: &'static str, alias: u16| {
        let properties = list(&[Property::TopicAlias(alias)]);
        let packet = Publish { topic, properties: properties.as_properties(), ..publish(Qos::AtMostOnce, 0) };
        said(machine, Packet::Publish(packet)).map(|(words, _)| words)
    };
    let mut one = machine(V5);
    assert_eq!(with(&mut one, "", 1), Err(Reason::ProtocolError), "it stands for nothing");
    assert_eq!(with(&mut one, "a", 2).as_deref(), Ok("publish a"));
    assert_eq!(with(&mut one, "", 2).as_deref(), Ok("publish a"));
    assert_eq!(with(&mut one, "b", 2).as_deref(), Ok("publish b"));
    assert_eq!(with(&mut one, "", 2).as_deref(), Ok("publish b"));
    assert_eq!(with(&mut one, "c", 3), Err(Reason::TopicAliasInvalid), "above the maximum");
}

#[test]
fn a_message_to_be_kept_where_nothing_is_and_authentication_unasked_end_the_connection() {
    let kept = Publish { retain: true, ..publish(Qos::AtMostOnce, 0) };
    for version in [V5, V311] {
        let forgets = Terms { retains: false, ..terms() };
        let mut one = opened(connect(version), &forgets).ok().unwrap().machine;
        assert_eq!(said(&mut one, Packet::Publish(kept)), Err(Reason::RetainNotSupported));
    }
    let method = list(&[Property::AuthMethod("x")]);
    let auth = Auth { reason: Reason::ReAuthenticate, properties: method.as_properties() };
    assert_eq!(said(&mut machine(V5), Packet::Auth(auth)), Err(Reason::ProtocolError));
}

#[test]
fn what_topics_kept_is_due_as_the_subscription_says_and_comes_by_its_options() {
    let mut one = machine(V5);
    let with = |retain_handling| Options { retain_handling, ..of_qos(Qos::AtLeastOnce) };
    let mut due = |filter, handling| {
        let number = subscribe(&mut one, filter, with(handling), Some(7));
        one.granted(number, Ok(()), &mut Vec::new()).map(|filter| String::from_utf8(filter.into()).unwrap())
    };
    let is_due = |filter: &str| Some(filter.to_owned());
    assert_eq!(due("a", RetainHandling::DoNotSend), None);
    assert_eq!(due("a", RetainHandling::SendIfNew), None);
    assert_eq!(due("a", RetainHandling::Send), is_due("a"));
    assert_eq!(due("b/#", RetainHandling::SendIfNew), is_due("b/#"));
    assert_eq!(due("b/#", RetainHandling::SendIfNew), None);
    assert_eq!(due("$share/g/a", RetainHandling::Send), None);
    let grant = one.filters.grant_kept(b"b/#", true).unwrap();
    assert_eq!((grant.qos, grant.ids.len(), grant.retain), (Qos::AtLeastOnce, 1, true));
    assert_eq!(one.filters.grant_kept(b"c", false), None, "nobody asked for it");
    let number = subscribe(&mut one, "c", Options { no_local: true, ..Options::default() }, None);
    assert!(one.granted(number, Err(Reason::NotAuthorized), &mut Vec::new()).is_none(), "it is refused");
    assert_eq!(one.filters.grant_kept(b"c", false), None);
}

#[test]
fn a_message_bears_retain_where_a_subscription_wants_to_know() {
    let mut one = machine(V5);
    subscribed(&mut one, "t", Options::default(), None);
    assert!(!one.filters.grant(Match::Topic, b"t", false).unwrap().retain);
    subscribed(&mut one, "#", Options { retain_as_published: true, ..Options::default() }, None);
    assert!(one.filters.grant(Match::Topic, b"t", false).unwrap().retain);
}

#[test]
fn a_will_is_gone_with_a_goodbye_and_stays_without() {
    let user = [Property::User(Pair { name: "k", value: "v" }), Property::WillDelay(9)];
    let properties = list(&user);
    let properties = properties.as_properties();
    let will = Will { topic: "w", payload: b"gone", qos: Qos::AtLeastOnce, retain: false, properties };
    let willing = || opened(Connect { will: Some(will), ..connect(V5) }, &terms()).ok().unwrap().machine;
    let bye = |reason| Packet::Disconnect(Disconnect { reason, properties: Properties::default() });
    let mut gone = willing();
    said(&mut gone, bye(Reason::Success)).unwrap();
    assert_eq!(gone.take_will(), None);
    let mut stays = willing();
    said(&mut stays, bye(Reason::DisconnectWithWill)).unwrap();
    let kept = stays.take_will().expect("it is to be published");
    assert_eq!((&*kept.topic, &*kept.payload, kept.qos), ("w", &b"gone"[..], Qos::AtLeastOnce));
    assert_eq!(kept.headers, [("k".into(), "v".into())], "the delay is the server's alone");
    assert_eq!(stays.take_will(), None, "once");
    let mut reasons = 0;
    for number in 1..=255 {
        let bytes = [0xE0, 1, number];
        let Ok(bye) = decode(Peer::Client, V5, &bytes) else { continue };
        let mut stays = willing();
        said(&mut stays, bye).unwrap();
        assert!(stays.take_will().is_some(), "{number:#04x}");
        reasons += 1;
    }
    assert_eq!(reasons, 13, "all that a client may say");
}

#[test]
fn who_gets_some_of_what_topics_keep_later_is_told_so() {
    for (version, explains, is_told) in [(V5, true, true), (V5, false, false), (V311, true, false)] {
        let silent = list(&[Property::RequestProblemInfo(explains)]);
        let properties = if version == V5 { silent.as_properties() } else { Properties::default() };
        let mut m = opened(Connect { properties, ..connect(version) }, &terms()).ok().unwrap().machine;
        let options = |retain_handling| Options { retain_handling, ..Options::default() };
        for (handling, refused, is_due) in [
            (RetainHandling::Send, None, is_told),
            (RetainHandling::DoNotSend, None, false),
            (RetainHandling::Send, Some(Reason::NotAuthorized), is_told),
        ] {
            let mut raw = Vec::new();
            Filters::push(
                &mut raw,
                "a/+",
                if version == V5 { options(handling) } else { Options::default() },
            )
            .unwrap();
            let filters = Filters::new(&raw, version).unwrap();
            let id = PacketId::new(7).unwrap();
            let mut out = Vec::new();
            let ask = Subscribe { id, properties: Properties::default(), filters };
            let step = m.take(Packet::Subscribe(ask), 0, &mut out).unwrap();
            let Step::Subscribe { first, .. } = step else { panic!("it subscribes") };
            assert_eq!(m.retained_comes_later(first), handling == RetainHandling::Send || version != V5);
            m.granted(first, refused.map_or(Ok(()), Err), &mut out);
            let said = String::from_utf8_lossy(&out);
            assert_eq!(
                said.contains("come as soon as"),
                is_due && refused.is_none(),
                "{version:?} {handling:?}"
            );
            assert_eq!(said.contains("not authorized"), is_due && refused.is_some());
            assert!(!m.retained_comes_later(first), "it is answered");
        }
    }
}

#[test]
fn a_session_that_was_to_end_is_not_prolonged_by_a_goodbye() {
    let longer = list(&[Property::SessionExpiry(9)]);
    let bye = Disconnect { reason: Reason::Success, properties: longer.as_properties() };
    assert_eq!(said(&mut machine(V5), Packet::Disconnect(bye)), Err(Reason::ProtocolError));
    let asks = list(&[Property::SessionExpiry(60)]);
    let wish = Connect { properties: asks.as_properties(), ..connect(V5) };
    let mut lasting = opened(wish, &terms()).ok().unwrap().machine;
    assert!(said(&mut lasting, Packet::Disconnect(bye)).is_ok());
}

#[test]
fn a_message_comes_once_with_the_highest_qos_and_all_identifiers() {
    let mut m = machine(V5);
    subscribed(&mut m, "a/b", of_qos(Qos::AtMostOnce), Some(1));
    subscribed(&mut m, "a/+", of_qos(Qos::ExactlyOnce), Some(2));
    subscribed(&mut m, "#", of_qos(Qos::AtLeastOnce), None);
    assert_eq!(granted(&m, Match::Topic, "a/b"), Some((Qos::ExactlyOnce, vec![1, 2])));
    assert_eq!(granted(&m, Match::Filter(b"a/+"), "a/b"), None, "it comes by its topic");
    assert_eq!(granted(&m, Match::Filter(b"#"), "a/b"), None);
    assert_eq!(granted(&m, Match::Filter(b"a/+"), "a/c"), Some((Qos::ExactlyOnce, vec![2])));
    assert_eq!(granted(&m, Match::Filter(b"#"), "a/c"), None, "it comes by the first");
    assert_eq!(granted(&m, Match::Filter(b"#"), "z"), Some((Qos::AtLeastOnce, vec![])));
    assert_eq!(granted(&m, Match::Filter(b"a/+"), "z"), None);
}

#[test]
fn a_subscription_counts_from_its_confirmation_and_other_options_replace_it() {
    let mut m = machine(V5);
    subscribed(&mut m, "#", of_qos(Qos::AtMostOnce), None);
    let number = subscribe(&mut m, "t", of_qos(Qos::AtLeastOnce), None);
    assert_eq!(
        granted(&m, Match::Filter(b"#"), "t"),
        Some((Qos::AtMostOnce, vec![])),
        "nothing is missed meanwhile"
    );
    m.granted(number, Ok(()), &mut Vec::new());
    assert_eq!(granted(&m, Match::Filter(b"#"), "t"), None);
    subscribed(&mut m, "t", of_qos(Qos::ExactlyOnce), Some(7));
    assert_eq!(granted(&m, Match::Topic, "t"), Some((Qos::ExactlyOnce, vec![7])));
    assert_eq!(m.filters.len(), 2);
    let number = subscribe(&mut m, "u", of_qos(Qos::AtMostOnce), None);
    m.granted(number, Err(Reason::NotAuthorized), &mut Vec::new());
    assert_eq!(m.filters.len(), 2, "a refused one is none");
}

#[test]
fn many_subscriptions_are_found_and_ended_like_few() {
    let mut m = machine(V5);
    for i in 0..20 {
        subscribed(&mut m, &format!("t/{i}"), of_qos(Qos::AtLeastOnce), Some(i + 1));
        assert_eq!(m.filters.len(), i as usize + 1);
    }
    for i in 0..20 {
        assert_eq!(granted(&m, Match::Topic, &format!("t/{i}")), Some((Qos::AtLeastOnce, vec![i + 1])));
    }
    assert_eq!(granted(&m, Match::Topic, "t/20"), None);
    let mut raw = Vec::new();
    (0..20).for_each(|i| Names::push(&mut raw, &format!("t/{i}")).unwrap());
    let packet = Unsubscribe {
        id: PacketId::MIN,
        properties: Properties::default(),
        filters: Names::new(&raw).unwrap(),
    };
    let (_, out) = said(&mut m, Packet::Unsubscribe(packet)).unwrap();
    assert_eq!((m.filters.len(), &out[5..]), (0, &[0; 20][..]));
}

#[test]
fn own_messages_stay_away_where_the_client_wants_it() {
    let mut m = machine(V5);
    subscribed(&mut m, "t", of_qos(Qos::AtMostOnce), Some(1));
    assert!(!m.has_no_local());
    subscribed(&mut m, "#", Options { no_local: true, ..of_qos(Qos::ExactlyOnce) }, Some(2));
    assert!(m.has_no_local());
    let own = m.filters.grant(Match::Topic, b"t", true).expect("one of them takes it");
    assert_eq!((own.qos, own.ids.len()), (Qos::AtMostOnce, 1));
    assert_eq!(m.filters.grant(Match::Filter(b"#"), b"u", true), None);
    assert!(m.filters.grant(Match::Filter(b"#"), b"u", false).is_some());
}

#[test]
fn an_end_says_whether_there_was_a_subscription() {
    let mut m = machine(V5);
    subscribed(&mut m, "a", of_qos(Qos::AtMostOnce), None);
    subscribed(&mut m, "b/#", of_qos(Qos::AtMostOnce), None);
    let mut raw = Vec::new();
    ["a", "b/#", "c", "d/+"].iter().for_each(|filter| Names::push(&mut raw, filter).unwrap());
    let (id, properties) = (PacketId::MIN, Properties::default());
    let packet = Unsubscribe { id, properties, filters: Names::new(&raw).unwrap() };
    let (_, out) = said(&mut m, Packet::Unsubscribe(packet)).unwrap();
    assert_eq!(out, [0xB0, 7, 0, 1, 0, 0, 0, 0x11, 0x11]);
    assert_eq!(m.filters.len(), 0);
}

#[test]
fn an_id_that_is_not_known_is_answered_so() {
    let mut m = machine(V5);
    assert_eq!(said(&mut m, Packet::Pubrel(ack(9))).unwrap().1, [0x70, 3, 0, 9, 0x92]);
    assert_eq!(said(&mut m, Packet::Pubrec(ack(9))).unwrap().1, [0x62, 3, 0, 9, 0x92]);
    assert_eq!(said(&mut m, Packet::Puback(ack(9))).unwrap().1, []);
    let mut older = machine(V311);
    assert_eq!(said(&mut older, Packet::Pubrel(ack(9))).unwrap().1, [0x70, 2, 0, 9]);
    assert_eq!(said(&mut older, Packet::Pubrec(ack(9))).unwrap().1, [0x62, 2, 0, 9]);
}

#[test]
fn an_acknowledgement_of_another_qos_ends_the_connection() {
    let mut m = machine(V5);
    let once = m.window.send(Qos::AtLeastOnce, 1).unwrap();
    let twice = m.window.send(Qos::ExactlyOnce, 2).unwrap();
    assert_eq!(said(&mut m, Packet::Puback(ack(twice.get()))), Err(Reason::ProtocolError));
    assert_eq!(said(&mut m, Packet::Pubrec(ack(once.get()))), Err(Reason::ProtocolError));
    assert_eq!(
        said(&mut m, Packet::Pubcomp(ack(twice.get()))),
        Err(Reason::ProtocolError),
        "before its PUBREL"
    );
}

#[test]
fn a_message_that_failed_is_told_in_5_0_and_ends_the_connection_before() {
    let (mut m, mut out) = (machine(V5), Vec::new());
    said(&mut m, Packet::Publish(publish(Qos::ExactlyOnce, 1))).unwrap();
    m.published(0, Reason::QuotaExceeded, &mut out).unwrap();
    assert_eq!(out, [0x50, 3, 0, 1, 0x97]);
    let again = said(&mut m, Packet::Publish(publish(Qos::ExactlyOnce, 1))).unwrap();
    assert_eq!(again.0, "publish t", "its id is free");
    let mut older = machine(V311);
    said(&mut older, Packet::Publish(publish(Qos::AtLeastOnce, 1))).unwrap();
    let fault = older.published(0, Reason::QuotaExceeded, &mut out).unwrap_err();
    assert_eq!(fault.reason, Reason::QuotaExceeded);
    let mut lossy = machine(V311);
    said(&mut lossy, Packet::Publish(publish(Qos::AtMostOnce, 0))).unwrap();
    assert_eq!(lossy.published(0, Reason::QuotaExceeded, &mut out), Ok(()), "nobody was promised anything");
}

#[test]
fn who_may_not_publish_is_answered_before_5_0_as_if_it_had_been_done() {
    let (mut m, mut out) = (machine(V311), Vec::new());
    said(&mut m, Packet::Publish(publish(Qos::AtLeastOnce, 1))).unwrap();
    m.published(0, Reason::NotAuthorized, &mut out).unwrap();
    said(&mut m, Packet::Publish(publish(Qos::ExactlyOnce, 2))).unwrap();
    m.published(1, Reason::NotAuthorized, &mut out).unwrap();
    assert_eq!(out, [0x40, 2, 0, 1, 0x50, 2, 0, 2]);
    assert_eq!(
        said(&mut m, Packet::Publish(publish(Qos::ExactlyOnce, 2))).unwrap().0,
        "Done",
        "it came before"
    );
    assert_eq!(said(&mut m, Packet::Pubrel(ack(2))).unwrap().1, [0x70, 2, 0, 2]);
    let (mut newer, mut out) = (machine(V5), Vec::new());
    said(&mut newer, Packet::Publish(publish(Qos::AtLeastOnce, 1))).unwrap();
    newer.published(0, Reason::NotAuthorized, &mut out).unwrap();
    assert_eq!((out[0], &out[2..5]), (0x40, &[0, 1, 0x87][..]));
}

#[test]
fn the_end_by_the_server_says_why_in_5_0() {
    let mut out = Vec::new();
    machine(V5).write_fault(Fault::of(Reason::SessionTakenOver), &mut out);
    assert_eq!(out[..3], [0xE0, out.len() as u8 - 2, 0x8E]);
    assert!(out.ends_with(b"session taken over"));
    let mut none = Vec::new();
    machine(V311).write_fault(Fault::of(Reason::SessionTakenOver), &mut none);
    assert_eq!(none, []);
}
