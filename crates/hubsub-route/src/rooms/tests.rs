//! Rooms on their own, without a log.

use super::*;
use crate::logread::{Ask, Known};
use crate::record::Record;
use hubsub_types::{Class, History};

fn rooms(history: Option<History>, limits: Limits) -> Rooms {
    let mut class = Class::named("all");
    class.history = history;
    of_class(class, limits)
}

fn of_class(class: Class, limits: Limits) -> Rooms {
    let classes = Arc::new(ClassTable::new(vec![class], true));
    let hubs = Arc::new(Hubs::new(1, &classes, Vec::new()));
    Rooms::new(classes, hubs, ShardId(0), &limits, (Arc::new(AtomicU64::new(1 << 32)), Arc::default()))
}

fn say(rooms: &mut Rooms, room: &str, payload: &[u8], now: Now) -> Position {
    let handle = rooms.open(room.as_bytes(), now, |_| None).unwrap();
    let mut record = Record::new(Namespace::Global, room.as_bytes(), payload, "me".into(), None);
    (record.position, record.timestamp_us) = rooms.next_position(handle, now);
    let position = record.position;
    rooms.remember(handle, Arc::new(record));
    position
}

fn past(rooms: &Rooms, query: &HistoryQuery) -> HistoryPart {
    let ask = Ask { shard: ShardId(0), number: 0 };
    match rooms.history(query, Now::default(), ask, |_| None) {
        Known::Here(part) => part,
        Known::InLog(_) => unreachable!("there is no log"),
    }
}

fn payloads(rooms: &Rooms, room: &str, count: u64, after: Option<Position>) -> Vec<Vec<u8>> {
    let query = HistoryQuery { room: room.into(), count, after, topic: None };
    past(rooms, &query).records.iter().map(|r| r.payload().to_vec()).collect()
}

const NO_LIMIT: History = History { messages: 0, bytes: u64::MAX, age_ms: 0 };

#[test]
fn a_room_is_small() {
    assert!(
        std::mem::size_of::<(u32, Option<Room>)>() <= 88,
        "{}",
        std::mem::size_of::<(u32, Option<Room>)>()
    );
}

#[test]
fn messages_bound_a_room_and_bytes_bound_the_hub_oldest_first() {
    let record = Record::new(Namespace::Global, b"a", b"0", "me".into(), None).weight() as u64;
    let mut rooms = rooms(Some(History { messages: 3, bytes: 4 * record, age_ms: 0 }), Limits::default());
    let now = Now::default();
    for payload in [b"1", b"2", b"3", b"4"] {
        say(&mut rooms, "a", payload, now);
    }
    assert_eq!(payloads(&rooms, "a", 9, None), [b"2", b"3", b"4"]);
    say(&mut rooms, "b", b"5", now);
    say(&mut rooms, "b", b"6", now);
    assert_eq!(payloads(&rooms, "a", 9, None), [b"3", b"4"]);
    assert_eq!(payloads(&rooms, "b", 9, None), [b"5", b"6"]);
    assert_eq!(rooms.history_size(), (4 * record, 4));
}

#[test]
fn a_quiet_room_does_not_let_the_ledger_grow() {
    let mut rooms = rooms(Some(History { messages: 2, bytes: 0, age_ms: 0 }), Limits::default());
    say(&mut rooms, "quiet", b"x", Now::default());
    for _ in 0..100_000 {
        say(&mut rooms, "busy", b"x", Now::default());
    }
    assert!(rooms.history_size().1 == 3);
    assert_eq!(payloads(&rooms, "quiet", 9, None).len(), 1);
}

#[test]
fn age_empties_a_room_and_the_sweep_forgets_it() {
    let mut rooms = rooms(Some(History { messages: 9, bytes: 0, age_ms: 1000 }), Limits::default());
    let at = |s: u64| Now { mono_ms: s * 1000, wall_us: s * 1_000_000 };
    let before = say(&mut rooms, "a", b"x", at(10));
    rooms.sweep(at(10), 10, |_, _| (0, None));
    assert_eq!(rooms.len(), 1);
    rooms.sweep(at(12), 10, |_, _| (0, None));
    assert_eq!(rooms.len(), 0);
    let after = say(&mut rooms, "a", b"y", at(13));
    assert_ne!(before.epoch, after.epoch);
    assert_eq!(after.seq, Seq(1));
    let part =
        past(&rooms, &HistoryQuery { room: b"a".to_vec(), count: 9, after: Some(before), topic: None });
    assert!(!part.recovered && part.records.is_empty());
}

#[test]
fn a_created_room_stays_until_it_is_deleted_or_idle_for_too_long() {
    let at = |s: u64| Now { mono_ms: s * 1000, wall_us: s * 1_000_000 };
    let mut rooms = rooms(Some(History { messages: 9, bytes: 0, age_ms: 1000 }), Limits::default());
    rooms.create(b"a", at(1), |_| None).unwrap();
    rooms.open(b"b", at(1), |_| None).unwrap();
    rooms.sweep(at(2), 10, |_, _| (0, None));
    assert!(rooms.find(b"a").is_some() && rooms.find(b"b").is_none());
    let position = say(&mut rooms, "a", b"x", at(3));
    rooms.sweep(at(5), 10, |_, _| (0, None));
    assert_eq!(payloads(&rooms, "a", 9, None).len(), 0);
    assert_eq!(say(&mut rooms, "a", b"y", at(6)).epoch, position.epoch);
    assert_eq!(rooms.delete(b"a"), Ok(true));

    let mut class = Class::named("all");
    (class.history, class.idle_ms) = (Some(NO_LIMIT), 5000);
    let mut rooms = of_class(class, Limits::default());
    rooms.create(b"a", at(1), |_| None).unwrap();
    rooms.sweep(at(5), 10, |_, _| (0, None));
    assert_eq!(rooms.len(), 1);
    rooms.sweep(at(6), 10, |_, _| (0, None));
    assert_eq!(rooms.len(), 0);
}

#[test]
fn history_reads_on_behind_a_position_and_says_when_it_cannot() {
    let mut rooms = rooms(Some(History { messages: 3, bytes: 0, age_ms: 0 }), Limits::default());
    let positions: Vec<_> = (0..5u8).map(|i| say(&mut rooms, "a", &[i], Now::default())).collect();
    assert_eq!(payloads(&rooms, "a", 1, Some(positions[2])), [[3]]);
    assert_eq!(payloads(&rooms, "a", 9, Some(positions[1])), [[2], [3], [4]]);
    let lost = HistoryQuery { room: b"a".to_vec(), count: 9, after: Some(positions[0]), topic: None };
    assert!(!past(&rooms, &lost).recovered);
    assert_eq!(payloads(&rooms, "a", 2, None), [[3], [4]]);
}

#[test]
fn rooms_and_their_creation_rate_are_limited() {
    let limits = Limits { rooms_max: 2, room_creations_per_second_max: 1, ..Limits::default() };
    let mut rooms = rooms(Some(NO_LIMIT), limits);
    let at = |s: u64| Now { mono_ms: s * 1000, wall_us: 0 };
    assert!(rooms.open(b"a", at(1), |_| None).is_ok());
    assert_eq!(rooms.open(b"b", at(1), |_| None), Err(ErrorCode::RoomCreationRate));
    assert!(rooms.open(b"b", at(2), |_| None).is_ok() && rooms.open(b"a", at(2), |_| None).is_ok());
    assert_eq!(rooms.open(b"c", at(3), |_| None), Err(ErrorCode::TooManyRooms));
    assert_eq!(rooms.refused, 2);
}

#[test]
fn pages_are_in_order_of_name() {
    let mut rooms = rooms(Some(NO_LIMIT), Limits::default());
    for name in ["d", "a", "c", "b", "e"] {
        rooms.open(name.as_bytes(), Now::default(), |_| None).unwrap();
    }
    let names = |handles: Vec<RoomHandle>| -> Vec<Vec<u8>> {
        handles.iter().map(|&h| rooms.get(h).unwrap().name.to_vec()).collect()
    };
    assert_eq!(names(rooms.page(None, 2, |_| true)), [b"a", b"b"]);
    assert_eq!(names(rooms.page(Some(b"b"), 2, |_| true)), [b"c", b"d"]);
    assert_eq!(names(rooms.page(Some(b"d"), 9, |n| n != b"a")), [b"e"]);
    assert!(rooms.page(None, 0, |_| true).is_empty());
}
