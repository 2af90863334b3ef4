//! Rules of a session that outlives its connection, one by one.

use crate::any_input::WIDE;
use crate::machine_tests::{ack, connect, list, of_qos, opened, publish, said, subscribe, subscribed, terms};
use crate::tools::{V5, V31, V311};
use hubsub_mqtt::*;
use hubsub_wire::mqtt::*;

/// Limits of a server with sessions.
pub fn lasting() -> Terms {
    Terms { session_expiry_s_max: 1000, session_expiry_s_default: 300, ..terms() }
}

fn asks(expiry_s: u32) -> PropertyList {
    list(&[Property::SessionExpiry(expiry_s)])
}

/// A connection whose session outlives it.
pub fn resumable(receive_max: u16) -> Machine {
    let told = list(&[Property::SessionExpiry(60), Property::ReceiveMaximum(receive_max)]);
    let connect = Connect { clean_start: false, properties: told.as_properties(), ..connect(V5) };
    let Ok(opened) = opened(connect, &lasting()) else { panic!("it is taken in") };
    assert!(!opened.is_clean);
    opened.machine
}

/// Session Present and properties of a CONNACK.
fn told(accepted: &Accepted, version: Version, session_present: bool) -> (bool, Vec<u8>) {
    let mut bytes = Vec::new();
    accepted.write(session_present, &mut bytes);
    let mut decoder = Decoder::of_server(version);
    let Ok(Decoded::Packet { packet: Packet::Connack(connack), .. }) = decoder.decode(&bytes, &WIDE) else {
        panic!("it is a CONNACK")
    };
    (connack.session_present, connack.properties.as_bytes().to_vec())
}

fn has(properties: &[u8], property: Property<'_>) -> bool {
    let wanted = list(&[property]);
    let wanted = wanted.as_properties().as_bytes();
    properties.windows(wanted.len()).any(|window| window == wanted)
}

#[test]
fn a_session_lasts_as_long_as_both_sides_have_it() {
    // Version, clean start, requested expiry; granted expiry, whether CONNACK reports it.
    let rows = [
        (V5, true, None, 0, false),
        (V5, true, Some(0), 0, false),
        (V5, true, Some(60), 60, false),
        (V5, false, Some(1000), 1000, false),
        (V5, false, Some(1001), 1000, true),
        (V5, false, Some(u32::MAX), 1000, true),
        (V311, true, None, 0, false),
        (V311, false, None, 300, false),
        (V31, false, None, 300, false),
    ];
    for (version, clean_start, asked, granted, is_told) in rows {
        let properties = asked.map(asks).unwrap_or_default();
        let connect = Connect { clean_start, properties: properties.as_properties(), ..connect(version) };
        let Ok(opened) = opened(connect, &lasting()) else { panic!("{connect:?} is taken in") };
        assert_eq!(opened.machine.session_expiry_s(), granted, "{connect:?}");
        assert_eq!(opened.is_clean, clean_start);
        let (_, properties) = told(&opened.accepted, version, false);
        assert_eq!(has(&properties, Property::SessionExpiry(granted)), is_told, "{connect:?}");
    }
    let forever = Terms { session_expiry_s_max: u32::MAX, ..lasting() };
    let properties = asks(u32::MAX);
    let connect = Connect { properties: properties.as_properties(), ..connect(V5) };
    let mut state = opened(connect, &forever).ok().unwrap().machine.suspend(7);
    assert_eq!((state.expires_at_ms(), state.will_at_ms(), state.take_will()), (None, None, None));
}

#[test]
fn a_session_that_is_present_is_told_as_its_version_can() {
    for (version, can) in [(V31, false), (V311, true), (V5, true)] {
        let Ok(opened) = opened(connect(version), &lasting()) else { panic!("it is taken in") };
        assert!(!told(&opened.accepted, version, false).0);
        assert_eq!(told(&opened.accepted, version, true).0, can, "{version:?}");
    }
}

#[test]
fn a_will_waits_for_its_delay_or_the_end_of_the_session() {
    // Expiry, delay; when the will is published, in s after the end.
    for (expiry_s, delay_s, after_s) in [(60, 9, 9), (60, 600, 60), (60, 0, 0), (0, 9, 0)] {
        let delay = list(&[Property::WillDelay(delay_s)]);
        let properties = delay.as_properties();
        let will = Will { topic: "w", payload: b"p", qos: Qos::AtMostOnce, retain: false, properties };
        let asks = asks(expiry_s);
        let connect = Connect { will: Some(will), properties: asks.as_properties(), ..connect(V5) };
        let mut state = opened(connect, &lasting()).ok().unwrap().machine.suspend(1_000);
        assert_eq!(state.will_at_ms(), Some(1_000 + 1_000 * after_s));
        assert_eq!(state.expires_at_ms(), Some(1_000 + 1_000 * u64::from(expiry_s)));
        assert_eq!(state.take_will().expect("it has one").headers, [], "the delay is the server's alone");
        assert_eq!((state.will_at_ms(), state.take_will()), (None, None), "once");
    }
}

#[test]
fn who_comes_back_has_the_will_and_the_expiry_of_the_new_connection() {
    let properties = Properties::default();
    let will = Will { topic: "w", payload: b"p", qos: Qos::AtMostOnce, retain: false, properties };
    let asks = asks(9);
    let willing = Connect { will: Some(will), properties: asks.as_properties(), ..connect(V5) };
    let state = opened(willing, &lasting()).ok().unwrap().machine.suspend(0);
    let mut back = resumable(5);
    back.resume(state);
    assert_eq!((back.session_expiry_s(), back.take_will()), (60, None));
}

#[test]
fn a_goodbye_may_change_how_long_the_session_lasts() {
    let bye = |machine: &mut Machine, seconds: u32| {
        let expiry = asks(seconds);
        let properties = expiry.as_properties();
        said(machine, Packet::Disconnect(Disconnect { reason: Reason::Success, properties })).map(|_| ())
    };
    for (seconds, granted) in [(0, 0), (7, 7), (5000, 1000)] {
        let mut machine = resumable(5);
        assert_eq!(bye(&mut machine, seconds), Ok(()));
        assert_eq!(machine.suspend(0).expiry_s, granted);
    }
    let Ok(Opened { machine: mut ends, .. }) = opened(connect(V5), &lasting()) else { panic!() };
    assert_eq!(bye(&mut ends, 7), Err(Reason::ProtocolError));
}

#[test]
fn what_was_not_acknowledged_is_sent_again_in_order_and_within_the_window() {
    let mut first = resumable(100);
    first.window = Window::new(9);
    let qos = [Qos::AtLeastOnce, Qos::ExactlyOnce, Qos::ExactlyOnce, Qos::AtLeastOnce, Qos::AtLeastOnce];
    let ids: Vec<u16> =
        (10..).zip(qos).map(|(key, qos)| first.window.send(qos, key).unwrap().get()).collect();
    said(&mut first, Packet::Pubrec(ack(ids[1]))).unwrap();
    said(&mut first, Packet::Puback(ack(ids[3]))).unwrap();
    let mut back = resumable(2);
    back.resume(first.suspend(0));
    let again = |machine: &mut Machine| {
        let mut out = Vec::new();
        let sent: Vec<(u16, u64)> =
            std::iter::from_fn(|| machine.send_again(&mut out)).map(|(id, _, key)| (id.get(), key)).collect();
        (sent, out)
    };
    let (sent, out) = again(&mut back);
    assert_eq!(sent, [(ids[0], 10), (ids[2], 12)], "PUBREL takes no room, two messages take all");
    assert_eq!(out, [0x62, 2, 0, ids[1] as u8]);
    assert_eq!(back.window.send(Qos::AtLeastOnce, 20), None, "nothing new before all that is old");
    said(&mut back, Packet::Puback(ack(ids[0]))).unwrap();
    assert_eq!(again(&mut back).0, [(ids[4], 14)]);
    assert_eq!(back.window.send(Qos::AtLeastOnce, 20), None, "the window is full");
    said(&mut back, Packet::Pubrec(ack(ids[2]))).unwrap();
    assert_eq!(back.window.send(Qos::AtLeastOnce, 20), None, "PUBREC is not the end");
    said(&mut back, Packet::Pubcomp(ack(ids[2]))).unwrap();
    let new = back.window.send(Qos::AtLeastOnce, 20).expect("there is room");
    assert!(!ids.contains(&new.get()), "its id is not in use");
}

#[test]
fn an_acknowledgement_that_comes_before_the_repetition_spares_it() {
    let mut first = resumable(9);
    let ids: Vec<u16> = (0..3).map(|key| first.window.send(Qos::ExactlyOnce, key).unwrap().get()).collect();
    let mut back = resumable(9);
    back.resume(first.suspend(0));
    let (_, out) = said(&mut back, Packet::Pubrec(ack(ids[1]))).unwrap();
    assert_eq!(out, [0x62, 2, 0, ids[1] as u8]);
    let mut out = Vec::new();
    let sent: Vec<u64> = std::iter::from_fn(|| back.send_again(&mut out)).map(|(_, _, key)| key).collect();
    assert_eq!((sent, &out[..]), (vec![0, 2], &[][..]));
}

#[test]
fn pubrel_and_pubcomp_wait_until_what_they_follow_from_is_recorded() {
    let mut machine = resumable(9);
    machine.record();
    let ids: Vec<u16> = (0..2).map(|key| machine.window.send(Qos::ExactlyOnce, key).unwrap().get()).collect();
    let (words, out) = said(&mut machine, Packet::Publish(publish(Qos::ExactlyOnce, 7))).unwrap();
    assert_eq!((words.as_str(), &out[..]), ("publish t", &[][..]));
    machine.published(0, Reason::Success, &mut Vec::new()).unwrap();
    let mut wait = |packet| {
        let mut out = Vec::new();
        let number = match machine.take(packet, 0, &mut out).unwrap() {
            Step::Received { number, .. } | Step::Released { number, .. } => number,
            other => panic!("{other:?}"),
        };
        assert_eq!(out, []);
        number
    };
    let first = wait(Packet::Pubrec(ack(ids[0])));
    let second = wait(Packet::Pubrec(ack(ids[1])));
    let third = wait(Packet::Pubrel(ack(7)));
    let (_, out) = said(&mut machine, Packet::Pubrec(ack(ids[0]))).unwrap();
    assert_eq!((out.len(), machine.pending()), (0, 4), "again: nothing before the first answer");
    let mut out = Vec::new();
    machine.recorded(third, &mut out);
    machine.recorded(second, &mut out);
    assert_eq!(out, [], "answers keep their order");
    machine.recorded(first, &mut out);
    let (a, b) = (ids[0] as u8, ids[1] as u8);
    assert_eq!(out, [0x62, 2, 0, a, 0x62, 2, 0, b, 0x70, 2, 0, 7, 0x62, 2, 0, a]);
    assert_eq!(machine.pending(), 0);
}

#[test]
fn who_ends_subscriptions_is_told_once_that_is_recorded() {
    let mut machine = resumable(9);
    machine.record();
    let number = subscribe(&mut machine, "t", of_qos(Qos::AtLeastOnce), None);
    machine.confirm(number);
    assert_eq!(machine.state().filters.iter().count(), 1, "a snapshot has it before its client is told");
    let mut out = Vec::new();
    machine.granted(number, Ok(()), &mut out);
    assert_eq!(out[0], 0x90);
    let mut raw = Vec::new();
    Names::push(&mut raw, "t").unwrap();
    let (id, properties) = (PacketId::MIN, Properties::default());
    let packet = Unsubscribe { id, properties, filters: Names::new(&raw).unwrap() };
    let mut out = Vec::new();
    let Ok(Step::Unsubscribe { number: Some(number), .. }) =
        machine.take(Packet::Unsubscribe(packet), 0, &mut out)
    else {
        panic!("it has a number")
    };
    assert_eq!((machine.state().filters.iter().count(), machine.pending(), &out[..]), (0, 1, &[][..]));
    machine.unsubscribed(number, &mut out);
    assert_eq!((machine.pending(), &out[..]), (0, &[0xB0, 4, 0, 1, 0, 0][..]));
}

#[test]
fn a_message_of_qos_2_keeps_its_number_over_connections() {
    let number = |machine: &mut Machine, id: u16| {
        let mut out = Vec::new();
        match machine.take(Packet::Publish(publish(Qos::ExactlyOnce, id)), 0, &mut out).unwrap() {
            Step::Publish(incoming) => Ok((incoming.number, incoming.intent.expect("it is of QoS 2"))),
            _ => Err(out),
        }
    };
    let mut first = resumable(9);
    assert_eq!(number(&mut first, 3), Ok((0, 1)));
    assert_eq!(number(&mut first, 4), Ok((1, 2)));
    first.published(1, Reason::Success, &mut Vec::new()).unwrap();
    let mut state = first.suspend(0);
    assert_eq!(state.unreleased().map(|row| row.2).collect::<Vec<_>>(), [false, true]);
    let mut back = resumable(9);
    back.resume(state.clone());
    assert_eq!(number(&mut back, 3), Ok((0, 1)), "perhaps it was not published");
    assert_eq!(number(&mut back, 3), Err(vec![]), "its answer follows");
    back.published(0, Reason::Success, &mut Vec::new()).unwrap();
    assert_eq!(number(&mut back, 4), Err(vec![0x50, 2, 0, 4]), "it was");
    assert_eq!(said(&mut back, Packet::Pubrel(ack(4))).unwrap().1, [0x70, 2, 0, 4]);
    assert_eq!(number(&mut back, 4), Ok((2, 3)), "another message");
    state.published(1);
    let mut late = resumable(9);
    late.resume(state);
    assert_eq!(number(&mut late, 3), Err(vec![0x50, 2, 0, 3]), "what came of it came while it was absent");
    assert_eq!(
        said(&mut late, Packet::Pubrel(ack(4))).unwrap().1,
        [0x70, 2, 0, 4],
        "who releases has PUBREC"
    );
}

#[test]
fn messages_of_an_older_connection_count_for_the_receive_maximum_when_they_come_again() {
    let mut first = resumable(9);
    for id in [1, 2] {
        said(&mut first, Packet::Publish(publish(Qos::ExactlyOnce, id))).unwrap();
    }
    let mut back = resumable(9);
    back.resume(first.suspend(0));
    assert!(said(&mut back, Packet::Publish(publish(Qos::AtLeastOnce, 3))).is_ok());
    assert!(said(&mut back, Packet::Publish(publish(Qos::ExactlyOnce, 1))).is_ok());
    let third = said(&mut back, Packet::Publish(publish(Qos::ExactlyOnce, 2)));
    assert_eq!(third, Err(Reason::ReceiveMaximumExceeded));
}

#[test]
fn subscriptions_go_on_as_they_were_and_those_that_were_not_confirmed_do_not() {
    let mut first = resumable(9);
    subscribed(&mut first, "b/#", of_qos(Qos::AtMostOnce), None);
    subscribed(&mut first, "a/+", of_qos(Qos::ExactlyOnce), Some(2));
    subscribed(&mut first, "t", Options { no_local: true, ..of_qos(Qos::AtLeastOnce) }, Some(300));
    subscribed(&mut first, "$share/g/t", of_qos(Qos::ExactlyOnce), Some(7));
    subscribe(&mut first, "u", of_qos(Qos::AtLeastOnce), None);
    subscribe(&mut first, "$share/g/u", of_qos(Qos::AtLeastOnce), None);
    subscribe(&mut first, "#", of_qos(Qos::AtLeastOnce), None);
    let mut bytes = Vec::new();
    first.suspend(0).encode(&mut bytes);
    let state = SessionState::decode(&bytes).unwrap();
    let names: Vec<&str> = state.filters.iter().map(|(filter, ..)| filter).collect();
    assert_eq!(names, ["t", "b/#", "a/+", "$share/g/t"]);
    let mut back = resumable(9);
    back.resume(state);
    assert_eq!((back.filters.len(), back.has_no_local()), (4, true));
    let by = |grant: Option<Grant>| grant.map(|grant| (grant.qos, grant.ids.len()));
    assert_eq!(by(back.filters.grant(Match::Topic, b"t", false)), Some((Qos::AtLeastOnce, 1)));
    assert_eq!(by(back.filters.grant(Match::Topic, b"t", true)), None);
    assert_eq!(by(back.filters.grant(Match::Filter(b"a/+"), b"a/b", false)), Some((Qos::ExactlyOnce, 1)));
}

#[test]
fn a_shared_subscription_stands_apart() {
    let mut machine = resumable(9);
    subscribed(&mut machine, "$share/g/t", of_qos(Qos::ExactlyOnce), Some(7));
    assert_eq!(machine.filters.grant(Match::Topic, b"t", false), None);
    let grant = machine.filters.grant_shared(b"$share/g/t").expect("it has it");
    assert_eq!((grant.qos, grant.ids.len()), (Qos::ExactlyOnce, 1));
    assert_eq!(machine.filters.grant_shared(b"$share/h/t"), None);
    subscribed(&mut machine, "t", of_qos(Qos::AtMostOnce), None);
    assert_eq!(
        (machine.filters.len(), machine.filters.grant(Match::Topic, b"t", false).unwrap().ids.len()),
        (2, 0)
    );
    let number = subscribe(&mut machine, "$share/g/u", of_qos(Qos::AtLeastOnce), None);
    let mut out = Vec::new();
    machine.granted(number, Err(Reason::SharedSubscriptionsNotSupported), &mut out);
    assert_eq!((out[0], machine.filters.grant_shared(b"$share/g/u")), (0x90, None));
    let mut raw = Vec::new();
    ["$share/g/t", "$share/g/u"].iter().for_each(|filter| Names::push(&mut raw, filter).unwrap());
    let (id, properties) = (PacketId::MIN, Properties::default());
    let packet = Unsubscribe { id, properties, filters: Names::new(&raw).unwrap() };
    let (_, out) = said(&mut machine, Packet::Unsubscribe(packet)).unwrap();
    assert_eq!(out, [0xB0, 5, 0, 1, 0, 0, 0x11]);
    assert_eq!(machine.filters.len(), 1);
}

#[test]
fn shared_subscriptions_are_told_where_there_are_none() {
    for has_shares in [false, true] {
        let Ok(opened) = opened(connect(V5), &Terms { has_shares, ..lasting() }) else { panic!() };
        let (_, properties) = told(&opened.accepted, V5, false);
        assert_eq!(has(&properties, Property::SharedAvailable(false)), !has_shares);
    }
}

#[test]
fn response_information_is_told_to_who_asks_for_it() {
    for (wants, id, topic) in [(true, "me", Some("response/me")), (true, "a/+%", Some("response/a%2F%2B%25"))]
    {
        let properties = list(&[Property::RequestResponseInfo(wants)]);
        let connect = Connect { client_id: id, properties: properties.as_properties(), ..connect(V5) };
        let (_, told) = told(&opened(connect, &lasting()).ok().unwrap().accepted, V5, false);
        assert!(topic.is_some_and(|topic| has(&told, Property::ResponseInfo(topic))));
    }
    for properties in [list(&[]), list(&[Property::RequestResponseInfo(false)])] {
        let connect = Connect { properties: properties.as_properties(), ..connect(V5) };
        let (_, told) = told(&opened(connect, &lasting()).ok().unwrap().accepted, V5, false);
        assert!(!has(&told, Property::ResponseInfo("response/me")));
    }
}

#[test]
fn reasons_in_words_stay_away_where_they_are_not_wanted() {
    for (wants, words) in [(true, 1), (false, 0)] {
        let properties = list(&[Property::RequestProblemInfo(wants)]);
        let connect = Connect { properties: properties.as_properties(), ..connect(V5) };
        let mut machine = opened(connect, &lasting()).ok().unwrap().machine;
        let mut out = Vec::new();
        said(&mut machine, Packet::Publish(publish(Qos::AtLeastOnce, 1))).unwrap();
        machine.published(0, Reason::NotAuthorized, &mut out).unwrap();
        assert_eq!(out, [0x40, 3, 0, 1, 0x87], "PUBACK never has them");
        let number = subscribe(&mut machine, "t", of_qos(Qos::AtMostOnce), None);
        machine.granted(number, Err(Reason::NotAuthorized), &mut out);
        let text = b"not authorized";
        assert_eq!(out.windows(text.len()).filter(|window| window == text).count(), words);
        let mut end = Vec::new();
        machine.write_fault(Fault::of(Reason::SessionTakenOver), &mut end);
        assert!(end.ends_with(b"session taken over"), "DISCONNECT may have them");
    }
}

#[test]
fn a_message_whose_outcome_comes_late_is_not_published_again() {
    let mut out = Vec::new();
    let mut before = resumable(9);
    let Ok(Step::Publish(incoming)) = before.take(Packet::Publish(publish(Qos::ExactlyOnce, 7)), 0, &mut out)
    else {
        panic!("it is new")
    };
    let intent = incoming.intent.unwrap();
    let mut after = resumable(9);
    after.resume(before.suspend(0));
    after.published_before(intent + 1);
    after.published_before(intent);
    let again = after.take(Packet::Publish(publish(Qos::ExactlyOnce, 7)), 0, &mut out);
    assert!(matches!(again, Ok(Step::Done)) && !out.is_empty(), "PUBREC at once");
}

#[test]
fn what_comes_late_of_an_older_connections_request_answers_none_of_the_new_one() {
    let mut out = Vec::new();
    let mut before = resumable(9);
    let asked = |machine: &mut Machine, id: u16, out: &mut Vec<u8>| {
        let message = publish(Qos::AtLeastOnce, id);
        match machine.take(Packet::Publish(message), 0, out) {
            Ok(Step::Publish(incoming)) => incoming.number,
            other => panic!("{other:?}"),
        }
    };
    let numbers = [1, 2].map(|id| asked(&mut before, id, &mut out));
    let next = before.next_request();
    let state = before.suspend(0);
    let mut after = resumable(9);
    after.resume(state);
    after.number_requests_from(next);
    let number = asked(&mut after, 1, &mut out);
    for late in numbers {
        assert_ne!(late, number);
        after.published(late, Reason::Success, &mut out).unwrap();
    }
    assert_eq!((after.pending(), out.len()), (1, 0), "nothing was answered");
    after.published(number, Reason::Success, &mut out).unwrap();
    assert!(after.pending() == 0 && !out.is_empty());
}

#[test]
fn a_subscription_of_an_older_connection_is_not_waited_for() {
    let asks = |machine: &mut Machine| subscribe(machine, "a", of_qos(Qos::AtLeastOnce), None);
    let mut before = resumable(9);
    let older = asks(&mut before);
    assert!(before.waits_for(older));
    let next = before.next_request();
    let mut after = resumable(9);
    after.resume(before.suspend(0));
    after.number_requests_from(next);
    let newer = asks(&mut after);
    assert!(!after.waits_for(older) && after.waits_for(newer));
    after.granted(newer, Ok(()), &mut Vec::new());
    assert!(!after.waits_for(newer));
}
