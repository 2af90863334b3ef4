//! Encoding of a session and its events: decoding restores it, and damage is detected.

use crate::machine_tests::{connect, list, of_qos, opened, subscribed};
use crate::session_tests::{lasting, resumable};
use crate::tools::V5;
use hubsub_mqtt::*;
use hubsub_wire::mqtt::*;
use proptest::prelude::*;

#[test]
fn a_session_can_go_to_another_thread() {
    fn goes<T: Send>(_: &T) {}
    goes(&small());
}

/// A session with one subscription.
fn small() -> SessionState {
    let mut machine = resumable(9);
    subscribed(
        &mut machine,
        "building/7/floor/3/room/12/temperature",
        of_qos(Qos::AtLeastOnce),
        Some(70_000),
    );
    machine.suspend(1_700_000_000_000)
}

#[test]
fn the_snapshot_of_a_small_session_is_small_and_any_damage_is_found() {
    let mut bytes = Vec::new();
    small().encode(&mut bytes);
    assert!(bytes.len() <= 100, "{}", bytes.len());
    for at in 0..bytes.len() {
        assert!(SessionState::decode(&bytes[..at]).is_err(), "the first {at} bytes");
        for flip in [1, 0x80, 0xFF] {
            let mut other = bytes.clone();
            other[at] ^= flip;
            assert!(SessionState::decode(&other).is_err(), "{flip} at {at}");
        }
    }
    bytes.push(0);
    let error = SessionState::decode(&bytes).unwrap_err();
    assert_eq!(error.to_string(), "damaged record of a session: its checksum is another");
}

fn event() -> impl Strategy<Value = Event> {
    let id = || prop_oneof![1..9_u16, 65_530..=65_535_u16].prop_map(|id| PacketId::new(id).unwrap());
    let qos = prop_oneof![Just(Qos::AtLeastOnce), Just(Qos::ExactlyOnce)];
    prop_oneof![
        3 => (id(), qos, any::<u64>()).prop_map(|(id, qos, key)| Event::Sent { id, qos, key }),
        1 => id().prop_map(Event::Received),
        1 => id().prop_map(Event::Ended),
        1 => (id(), any::<u64>()).prop_map(|(id, number)| Event::Intended { id, number }),
        1 => id().prop_map(Event::Released),
    ]
}

proptest! {
    #[test]
    fn snapshots_and_events_come_back_as_they_were(
        events in proptest::collection::vec(event(), 0..40),
        filters in proptest::collection::vec(("[abc]{1,3}|(a/\\+|b)(/#)?|\\$share/g/[ab]", 0..3_u8, 0..300_u32), 0..12),
        will in proptest::option::of((any::<Vec<u8>>(), any::<u32>(), any::<(String, String)>())),
        expiry_s in any::<u32>(),
    ) {
        let mut machine = resumable(9);
        for (filter, qos, id) in &filters {
            let qos = Qos::from_bits(*qos).unwrap();
            subscribed(&mut machine, filter, of_qos(qos), (*id > 0).then_some(*id));
        }
        let mut state = machine.suspend(u64::from(expiry_s));
        let mut log = Vec::new();
        for (number, event) in (1..).zip(&events) {
            event.encode(number, &mut log);
            prop_assert!(state.apply(number, event.clone()));
            prop_assert!(!state.apply(number, event.clone()), "it has that already");
            // Ids stay in the order of their first delivery.
            let mut ids: Vec<u16> = state.unacknowledged().map(|(id, ..)| id.get()).collect();
            let first = ids.first().copied().unwrap_or_default();
            ids.iter_mut().for_each(|id| *id = id.wrapping_sub(first).wrapping_sub(u16::from(*id < first)));
            prop_assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
        }
        let mut left = &log[..];
        for (number, event) in (1..).zip(&events) {
            prop_assert_eq!(Event::decode(&mut left), Ok((number, event.clone())));
        }
        prop_assert_eq!(left.len(), 0);
        let mut bytes = Vec::new();
        state.encode(&mut bytes);
        let decoded = SessionState::decode(&bytes).unwrap();
        let subscriptions = |state: &SessionState| {
            let mut all: Vec<_> =
                state.filters.iter().map(|(filter, options, id)| (filter.to_owned(), options.qos, id)).collect();
            all.sort();
            all
        };
        prop_assert_eq!(subscriptions(&decoded), subscriptions(&state));
        let wild = |state: &SessionState| {
            let is_wild = |filter: &&str| filter.contains(['+', '#']);
            state.filters.iter().map(|row| row.0).filter(is_wild).map(str::to_owned).collect::<Vec<_>>()
        };
        prop_assert_eq!(wild(&decoded), wild(&state), "their order decides by which a message comes");
        prop_assert_eq!(decoded.expires_at_ms(), state.expires_at_ms());
        prop_assert!(decoded.unacknowledged().eq(state.unacknowledged()));
        prop_assert!(decoded.unreleased().eq(state.unreleased()));
        if let Some((payload, delay_s, (name, value))) = will {
            let user = if name.contains('\0') || value.contains('\0') { None } else { Some((name, value)) };
            let mut all = vec![Property::WillDelay(delay_s)];
            all.extend(user.iter().map(|(name, value)| Property::User(Pair { name, value })));
            let properties = list(&all);
            let properties = properties.as_properties();
            let will = Will { topic: "w", payload: &payload, qos: Qos::AtLeastOnce, retain: false, properties };
            let mut willing = opened(Connect { will: Some(will), ..connect(V5) }, &lasting()).ok().unwrap().machine.suspend(0);
            bytes.clear();
            willing.encode(&mut bytes);
            prop_assert_eq!(SessionState::decode(&bytes).unwrap().take_will(), willing.take_will());
        }
    }

    #[test]
    fn garbage_is_refused_and_not_feared(garbage in any::<Vec<u8>>()) {
        let _ = Event::decode(&mut &garbage[..]);
        prop_assert!(SessionState::decode(&garbage).is_err());
    }
}
