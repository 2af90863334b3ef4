//! Tests of rooms without a log.

use super::*;
use crate::logread::Known;
use crate::requests::Ask;
use hubsub_message::Record;
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
fn names_of_rooms_are_limited_together() {
    let mut rooms = rooms(Some(NO_LIMIT), Limits { room_names_bytes_max: 6, ..Limits::default() });
    let now = Now::default();
    let open = |rooms: &mut Rooms, name: &[u8]| rooms.open(name, now, |_| None).map(|_| ());
    assert_eq!((open(&mut rooms, b"abc"), open(&mut rooms, b"de")), (Ok(()), Ok(())));
    assert_eq!(open(&mut rooms, b"fg"), Err(ErrorCode::TooManyRooms));
    assert_eq!((open(&mut rooms, b"f"), open(&mut rooms, b"abc")), (Ok(()), Ok(())));
    assert_eq!((open(&mut rooms, b"g"), rooms.refused), (Err(ErrorCode::TooManyRooms), 2));
    assert_eq!(rooms.delete(b"abc"), Ok(true));
    assert_eq!(open(&mut rooms, b"ghi"), Ok(()));
}

#[test]
fn pages_are_in_order_of_name() {
    let mut rooms = rooms(Some(NO_LIMIT), Limits::default());
    for name in ["d", "a", "c", "b", "e"] {
        rooms.open(name.as_bytes(), Now::default(), |_| None).unwrap();
    }
    let page = |glob: Option<&[u8]>, after: Option<&[u8]>, limit| listed(&rooms, glob, after, limit, 1).0;
    assert_eq!(page(None, None, 2), ["a", "b"]);
    assert_eq!(page(None, Some(b"b"), 2), ["c", "d"]);
    assert_eq!(page(Some(b"[^a]"), Some(b"d"), 9), ["e"]);
    assert!(page(None, None, 0).is_empty());
    assert!(page(None, Some(b"e"), 9).is_empty());
}

#[test]
fn a_page_passes_no_room_that_is_before_it_or_behind_its_prefix() {
    let mut rooms = rooms(Some(NO_LIMIT), Limits::default());
    for n in 0..2_000 {
        let (name, other) = (format!("room:{n:04}"), format!("s:{n:04}"));
        rooms.open(name.as_bytes(), Now::default(), |_| None).unwrap();
        rooms.open(other.as_bytes(), Now::default(), |_| None).unwrap();
    }
    assert_eq!(listed(&rooms, None, None, 1, 8), (vec!["room:0000".to_owned()], vec![1]));
    assert_eq!(listed(&rooms, None, Some(b"room:1998"), 2, 8).1, [2]);
    assert_eq!(listed(&rooms, Some(b"s:*"), None, 1, 8).1, [1]);
    assert_eq!(listed(&rooms, Some(b"room:199*"), None, 100, 8).1, [8, 2]);
    assert_eq!(listed(&rooms, Some(b"room:*"), Some(b"s:0001"), 100, 8).1, [0]);
    assert_eq!(listed(&rooms, Some(b"room:*"), Some(b"a"), 1, 8).1, [1]);
}

#[test]
fn a_pattern_that_matches_little_passes_so_many_rooms_a_turn_and_no_more() {
    let mut rooms = rooms(Some(NO_LIMIT), Limits::default());
    for n in 0..1_000 {
        rooms.open(format!("room:{n:04}").as_bytes(), Now::default(), |_| None).unwrap();
    }
    for budget in [1, 7, 999, 1_000, 1_001] {
        let (found, passed) = listed(&rooms, Some(b"*:0999"), None, 9, budget);
        assert_eq!(found, ["room:0999"]);
        assert_eq!(passed.iter().sum::<usize>(), 1_000);
        assert!(passed.iter().all(|&passed| passed <= budget), "{passed:?}");
    }
}

#[test]
fn rooms_may_come_and_go_while_a_page_is_filled() {
    let mut rooms = rooms(Some(NO_LIMIT), Limits::default());
    let make = |rooms: &mut Rooms, name: &[u8]| rooms.open(name, Now::default(), |_| None).unwrap();
    for name in [b"b", b"c", b"d", b"e"] {
        make(&mut rooms, name);
    }
    let mut page = Page::new(None, None, 9);
    rooms.fill(&mut page, 2, ShardId(0), Now::default());
    assert!(!page.is_whole);
    rooms.delete(b"c").unwrap();
    rooms.delete(b"d").unwrap();
    make(&mut rooms, b"a");
    make(&mut rooms, b"da");
    rooms.fill(&mut page, 9, ShardId(0), Now::default());
    assert!(page.is_whole);
    let names: Vec<&[u8]> = page.found.iter().map(|room| &*room.name).collect();
    assert_eq!(names, [&b"b"[..], b"c", b"da", b"e"]);
}

/// The names on a page, and the number of rooms that each turn passed.
fn listed(
    rooms: &Rooms,
    glob: Option<&[u8]>,
    after: Option<&[u8]>,
    limit: usize,
    rooms_max: usize,
) -> (Vec<String>, Vec<usize>) {
    let (mut page, mut passed) = (Page::new(glob, after, limit), Vec::new());
    while !page.is_whole {
        passed.push(rooms.fill(&mut page, rooms_max, ShardId(0), Now::default()));
    }
    let names = page.found.iter().map(|room| String::from_utf8_lossy(&room.name).into_owned());
    (names.collect(), passed)
}

#[test]
fn few_rooms_that_are_left_of_many_give_memory_back_and_old_handles_find_nobody() {
    let mut rooms = rooms(None, Limits::default());
    let now = Now::default();
    let name = |n: usize| format!("room:{n}").into_bytes();
    let handles: Vec<RoomHandle> =
        (0..20_000).map(|n| rooms.open(&name(n), now, |_| None).unwrap()).collect();
    let full = rooms.table_bytes();
    for &handle in &handles[2_500..] {
        rooms.forget(handle);
    }
    rooms.shrink();
    assert_eq!(rooms.slots.len(), 2_500, "places behind the last room are gone");
    assert!(rooms.table_bytes() < full / 4, "{} of {full}", rooms.table_bytes());
    assert!(handles[2_500..].iter().all(|&handle| rooms.get(handle).is_none()));
    let again: Vec<RoomHandle> =
        (2_500..20_000).map(|n| rooms.open(&name(n), now, |_| None).unwrap()).collect();
    assert!(handles[2_500..].iter().all(|&handle| rooms.get(handle).is_none()), "another has its place");
    assert!(again.iter().all(|&handle| rooms.get(handle).is_some()));
    assert_eq!((rooms.len(), rooms.find(&name(7))), (20_000, Some(handles[7])));
    // A room at the end keeps the slots before it.
    let left = [&handles[1_000..2_500], &again[..again.len() - 1]];
    left.into_iter().flatten().for_each(|&handle| rooms.forget(handle));
    rooms.shrink();
    assert_eq!(rooms.slots.len(), 20_000);
}

#[test]
fn places_behind_the_last_room_go_once_they_are_half_of_all() {
    let mut rooms = rooms(None, Limits::default());
    let now = Now::default();
    let handles: Vec<RoomHandle> =
        (0..16_000).map(|n| rooms.open(format!("room:{n}").as_bytes(), now, |_| None).unwrap()).collect();
    let few = 1_000;
    handles[few..7_999].iter().chain(&handles[8_001..]).for_each(|&handle| rooms.forget(handle));
    rooms.shrink();
    assert_eq!(rooms.slots.len(), 16_000, "a place less than half of all could go");
    assert!(rooms.names.capacity() < 4_096, "{}", rooms.names.capacity());
    assert!(rooms.last_place == 8_000 && rooms.is_late(8_000), "the next look sees that one alone");
    rooms.forget(handles[8_000]);
    rooms.shrink();
    let places = (rooms.slots.len(), rooms.slots.capacity(), rooms.free.len());
    assert_eq!(places, (8_000, 8_000, 8_000 - few - 1));
}

#[test]
fn what_the_ledger_has_of_rooms_that_are_gone_leads_nowhere_when_their_places_are_gone_too() {
    let record = Record::new(Namespace::Global, b"room:0", b"0", "me".into(), None).weight() as u64;
    let mut rooms = rooms(Some(History { messages: 0, bytes: 3 * record, age_ms: 0 }), Limits::default());
    let now = Now::default();
    for n in 0..5_000 {
        say(&mut rooms, &format!("room:{n}"), b"0", now);
    }
    for n in 0..5_000 {
        assert_eq!(rooms.delete(format!("room:{n}").as_bytes()), Ok(true));
    }
    rooms.shrink();
    assert_eq!(rooms.slots.len(), 0);
    for n in 0..5 {
        say(&mut rooms, "room:0", &[b'0' + n], now);
    }
    assert_eq!(payloads(&rooms, "room:0", 10, None), [b"2", b"3", b"4"]);
}
