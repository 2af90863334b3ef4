//! Rooms of a cluster: three nodes over real links, which lead different hubs.

use crate::support::trio::{
    CLASSES, HUBS, NAMES, Trio, class_rows, hub, hub_rows, incarnation, publish, until,
};
use crate::support::{Value, bulk, number, simple};
use hubsub_node::link::{self, Change, LeadEvent, LinkEvent};
use hubsub_node::routes::{ClassRow, HubRow};
use hubsub_node::{Event, ShardEvent};
use hubsub_types::names::Matcher;
use hubsub_types::{Class, ErrorCode, HubId, Term};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

/// A room of a class whose hub a given node leads.
fn room_of(trio: &Trio, class: &str, leader: usize) -> String {
    let name = |n: usize| if class == "default" { format!("room{n}") } else { format!("{class}:{n}") };
    let is_meant = |room: &String| {
        let (_, found, index) = trio.nodes[0].routes().of(room.as_bytes());
        (found.as_str(), usize::from(index)) == (class, leader)
    };
    (0..).map(name).find(is_meant).unwrap()
}

fn message(topic: &str, payload: &str) -> Value {
    Value::Many('*', vec![bulk("message"), bulk(topic), bulk(payload)])
}

#[test]
fn a_publish_to_any_node_reaches_the_subscribers_of_every_node() {
    let trio = Trio::start();
    assert_eq!(CLASSES.len() * usize::from(HUBS), trio.rows.len());
    for class in ["default", "mem", "log"] {
        for leader in 0..3 {
            let room = room_of(&trio, class, leader);
            let mut subscribers: Vec<_> = (0..3).map(|at| trio.connect(at)).collect();
            for subscriber in &mut subscribers {
                let confirmed = subscriber.call(&["SUBSCRIBE", &room]);
                assert_eq!(confirmed, Value::Many('*', vec![bulk("subscribe"), bulk(&room), number(1)]));
            }
            for at in 0..3 {
                let mut publisher = trio.connect(at);
                for n in 0..20 {
                    assert_eq!(publish(&mut publisher, &room, &format!("{at} {n}")), 3, "{room}");
                }
            }
            let expected: Vec<Value> =
                (0..60).map(|n| message(&room, &format!("{} {}", n / 20, n % 20))).collect();
            for subscriber in &mut subscribers {
                assert_eq!(subscriber.read_many(60), expected);
            }
        }
    }
}

/// A position as epoch and seq.
type At = (u64, u64);

/// The first and the last position of a gap.
type Gap = (At, At);

fn at(position: &Value) -> At {
    let (epoch, seq) = position.text().split_once('-').unwrap();
    (epoch.parse().unwrap(), seq.parse().unwrap())
}

/// Reads a subscriber with positions up to the message `last`, exclusively: payloads with their positions,
/// and gaps.
fn got(subscriber: &mut crate::support::Client, last: &str) -> (Vec<(String, At)>, Vec<Gap>) {
    let (mut messages, mut gaps) = (Vec::new(), Vec::new());
    loop {
        let value = subscriber.read();
        match value.items() {
            [_, _, from, to] if value.is_a("gap") => gaps.push((at(from), at(to))),
            [_, _, payload, _] if payload.text() == last => return (messages, gaps),
            [_, _, payload, position] => messages.push((payload.text().to_owned(), at(position))),
            other => panic!("{other:?}"),
        }
    }
}

/// True if a gap covers a position; its last seq is 0 if the epoch has ended.
fn is_in((from, to): &Gap, at: At) -> bool {
    at.0 == from.0 && at.1 >= from.1 && (to.1 == 0 || at.1 <= to.1)
}

/// A room's HUBSUB HISTORY, oldest first.
fn history(trio: &Trio, at: usize, room: &str) -> Vec<String> {
    let answer = trio.connect(at).call(&["HUBSUB", "HISTORY", room, "COUNT", "10000"]);
    answer.items().iter().map(|row| row.items()[4].text().to_owned()).collect()
}

/// Payloads of messages up to `last`, exclusively; other pushes are skipped.
fn payloads(subscriber: &mut crate::support::Client, last: &str) -> Vec<String> {
    let mut payloads = Vec::new();
    loop {
        let value = subscriber.read();
        if !value.is_a("message") {
            continue;
        }
        match value.items()[2].text() {
            payload if payload == last => return payloads,
            payload => payloads.push(payload.to_owned()),
        }
    }
}

#[test]
fn subscribers_are_counted_in_the_whole_cluster() {
    let trio = Trio::start();
    for leader in 0..3 {
        let room = room_of(&trio, "default", leader);
        let mut subscribers: Vec<_> = [0, 0, 1, 2, 2, 2].into_iter().map(|at| trio.connect(at)).collect();
        subscribers.iter_mut().for_each(|subscriber| _ = subscriber.call(&["SUBSCRIBE", &room]));
        for at in 0..3 {
            let mut client = trio.connect(at);
            let answer = until(
                || {
                    let answer = client.call(&["PUBSUB", "NUMSUB", &room, "nobody:here"]);
                    (answer.items()[1] == number(6)).then_some(answer)
                },
                || format!("not all of {room} are counted"),
            );
            let expected = vec![bulk(&room), number(6), bulk("nobody:here"), number(0)];
            assert_eq!(answer, Value::Many('*', expected));
        }
    }
}

#[test]
fn a_pattern_that_is_confirmed_on_one_node_gets_what_is_published_on_others_then() {
    let trio = Trio::start();
    let mut subscriber = trio.connect(1);
    subscriber.call(&["PSUBSCRIBE", "*"]);
    for class in ["default", "mem", "log"] {
        for leader in 0..3 {
            let room = room_of(&trio, class, leader);
            for at in 0..3 {
                assert_eq!(publish(&mut trio.connect(at), &room, "x"), 1, "{room} on {at}");
                let parts = vec![bulk("pmessage"), bulk("*"), bulk(&room), bulk("x")];
                assert_eq!(subscriber.read(), Value::Many('*', parts));
            }
        }
    }
}

#[test]
fn a_room_with_a_log_elsewhere_is_read_and_resumed_from_any_node() {
    let trio = Trio::start();
    for leader in 0..3 {
        let room = room_of(&trio, "log", leader);
        let (from, third) = ((leader + 1) % 3, (leader + 2) % 3);
        let mut publisher = trio.connect(from);
        let all: Vec<String> = (0..200).map(|n| n.to_string()).collect();
        all.iter().for_each(|payload| _ = publish(&mut publisher, &room, payload));
        for at in 0..3 {
            assert_eq!(history(&trio, at, &room), all, "{room} on {at}");
        }
        let mut client = trio.connect(third);
        let rows = client.call(&["HUBSUB", "HISTORY", &room, "COUNT", "1000"]);
        let position = rows.items()[99].items()[0].text().to_owned();
        let started = client.call(&["HUBSUB", "SUBSCRIBE", &room, "FROM", &position]);
        assert_eq!(started.items()[4], number(1), "recovered: {started:?}");
        publish(&mut publisher, &room, "live");
        assert_eq!(payloads(&mut client, "live"), all[100..]);
    }
}

#[test]
fn leaders_change_while_clients_publish_and_who_lacks_an_acknowledged_record_is_told_so() {
    let mut trio = Trio::start();
    for class in ["default", "mem"] {
        let room = room_of(&trio, class, 0);
        let hub = hub(class, 0);
        let mut subscribers: Vec<_> = (0..3).map(|at| trio.connect(at)).collect();
        for subscriber in &mut subscribers {
            assert_eq!(subscriber.call(&["HUBSUB", "POSITIONS", "ON"]), simple("OK"));
            subscriber.call(&["SUBSCRIBE", &room]);
        }
        let (trio_ref, room_ref) = (&trio, &room);
        let done = AtomicBool::new(false);
        let acknowledged: Vec<Vec<String>> = std::thread::scope(|scope| {
            let mut publishers = Vec::new();
            for at in 0..3 {
                let mut client = trio_ref.connect(at);
                let done = &done;
                publishers.push(scope.spawn(move || {
                    let mut taken = Vec::new();
                    for n in 0.. {
                        if done.load(Ordering::Relaxed) && !taken.is_empty() {
                            break;
                        }
                        let payload = format!("{at} {n}");
                        if let Value::Line(':', _) = client.call(&["PUBLISH", room_ref, &payload]) {
                            taken.push(payload);
                        }
                    }
                    taken
                }));
            }
            // Each change of leaders notifies the nodes in another order, and late.
            let mut rows = trio_ref.rows.clone();
            for round in 1..=12_u64 {
                rows[hub as usize - 1] = (round + 1, Some(round as usize % 3));
                trio_ref.lead_as(&rows);
                let order = [round, round + 1, round + 2].map(|at| at as usize % 3);
                trio_ref.tell_as(&rows, &order);
                let mut client = trio_ref.connect(order[1]);
                until(
                    || matches!(client.call(&["PUBLISH", room_ref, "-"]), Value::Line(':', _)).then_some(()),
                    || format!("round {round} of {room_ref}"),
                );
            }
            done.store(true, Ordering::Relaxed);
            publishers.into_iter().map(|publisher| publisher.join().unwrap()).collect()
        });
        trio.rows[hub as usize - 1] = (13, Some(0));
        publish(&mut trio.connect(0), &room, "end");
        let all: Vec<_> = subscribers.iter_mut().map(|subscriber| got(subscriber, "end")).collect();
        // A subscriber on the leader's own node gets all records that it commits.
        let places: HashMap<&str, At> =
            all.iter().flat_map(|(got, _)| got).map(|(payload, at)| (&**payload, *at)).collect();
        for (at, (messages, gaps)) in all.iter().enumerate() {
            for (from, acknowledged) in acknowledged.iter().enumerate() {
                assert!(!acknowledged.is_empty());
                let own: Vec<u64> = messages
                    .iter()
                    .filter_map(|(payload, _)| payload.strip_prefix(&format!("{from} ")))
                    .map(|n| n.parse().unwrap())
                    .collect();
                assert!(own.is_sorted_by(|a, b| a < b), "in order, each once: {at} from {from}");
            }
            let got: HashSet<&str> = messages.iter().map(|(payload, _)| &**payload).collect();
            for payload in acknowledged.iter().flatten().filter(|payload| !got.contains(&***payload)) {
                let place = *places.get(&**payload).unwrap_or_else(|| panic!("nobody got {payload}"));
                // An epoch that ended before its node learned of it is covered by the gap at the end of the
                // previous epoch.
                let is_unheard = !messages.iter().any(|(_, at)| at.0 == place.0);
                let tells = |gap: &Gap| is_in(gap, place) || (is_unheard && gap.1.1 == 0);
                assert!(gaps.iter().any(tells), "{at} lacks {payload}, {place:?}: {gaps:?}");
            }
        }
    }
}

#[test]
fn a_link_that_is_cut_and_mended_loses_no_numbered_record_and_tells_the_others() {
    let trio = Trio::start();
    let room = room_of(&trio, "log", 0);
    let mut subscriber = trio.connect(2);
    subscriber.call(&["SUBSCRIBE", &room]);
    let mut publisher = trio.connect(1);
    let mut taken = Vec::new();
    for round in 0..6 {
        for n in 0..20 {
            let payload = format!("{round} {n}");
            publish(&mut publisher, &room, &payload);
            taken.push(payload);
        }
        // Both nodes are unregistered, then registered again.
        let pending = format!("{round} over");
        publisher.send(&["PUBLISH", &room, &pending]);
        trio.link(&[0]);
        trio.link(&[0, 1, 2]);
        let answer = publisher.read();
        assert!(matches!(answer, Value::Line(':', _)), "it is sent again under its number: {answer:?}");
        taken.push(pending);
        trio.wait_ready();
    }
    assert_eq!(history(&trio, 2, &room), taken, "each once");
    publish(&mut publisher, &room, "end");
    assert_eq!(payloads(&mut subscriber, "end"), taken);
}

#[test]
fn a_hub_with_a_log_loses_its_leader_and_has_it_again_while_clients_publish_and_each_record_is_there_once() {
    let trio = Trio::start();
    let room = room_of(&trio, "log", 0);
    let hub = hub("log", 0);
    let mut subscribers: Vec<_> = (0..3).map(|at| trio.connect(at)).collect();
    subscribers.iter_mut().for_each(|subscriber| _ = subscriber.call(&["SUBSCRIBE", &room]));
    let done = AtomicBool::new(false);
    let acknowledged: Vec<Vec<String>> = std::thread::scope(|scope| {
        let publishers = (0..3).map(|at| {
            let (mut client, done, room) = (trio.connect(at), &done, &room);
            scope.spawn(move || {
                let go_on = |n: &u64| *n < 20 || !done.load(Ordering::Relaxed);
                let published = (0..).take_while(go_on).map(|n| {
                    let payload = format!("{at} {n}");
                    publish(&mut client, room, &payload);
                    payload
                });
                published.collect::<Vec<String>>()
            })
        });
        let publishers: Vec<_> = publishers.collect();
        let mut rows = trio.rows.clone();
        for round in 1..=20_u64 {
            let leader = (round % 2 == 0).then_some(0);
            rows[hub as usize - 1] = (1 + round / 2, leader);
            trio.tell_as(&rows, &[round, round + 1, round + 2].map(|at| at as usize % 3));
        }
        done.store(true, Ordering::Relaxed);
        publishers.into_iter().map(|publisher| publisher.join().unwrap()).collect()
    });
    let kept = history(&trio, 1, &room);
    assert_eq!(kept.len(), acknowledged.iter().map(Vec::len).sum::<usize>());
    for (at, acknowledged) in acknowledged.iter().enumerate() {
        let own = kept.iter().filter(|payload| payload.starts_with(&format!("{at} "))).cloned();
        assert_eq!(own.collect::<Vec<_>>(), *acknowledged, "in order, each once");
    }
    publish(&mut trio.connect(2), &room, "end");
    subscribers.iter_mut().for_each(|subscriber| assert_eq!(payloads(subscriber, "end"), kept));
}

#[test]
fn a_publish_waits_while_its_leader_has_no_lead() {
    let mut trio = Trio::start();
    let (room, hub) = (room_of(&trio, "default", 0), hub("default", 0));
    let mut subscriber = trio.connect(1);
    subscriber.call(&["SUBSCRIBE", &room]);
    let mut without = trio.rows.clone();
    without[hub as usize - 1].1 = None;
    trio.lead_as(&without);
    let gone = LeadEvent::GaveUp(HubId(hub), Term(1));
    trio.wait(
        0,
        "it is given up",
        |event| matches!(event, Event::Link(link::Event::Lead(told)) if *told == gone),
    );
    let mut publishers: Vec<_> = (0..3).map(|at| trio.connect(at)).collect();
    publishers.iter_mut().for_each(|publisher| publisher.send(&["PUBLISH", &room, "x"]));
    trio.change(hub, Some(0));
    publishers.iter_mut().for_each(|publisher| assert_eq!(publisher.read(), number(1)));
    publish(&mut publishers[0], &room, "end");
    let got = payloads(&mut subscriber, "end");
    assert!(got.len() <= 3 && got.iter().all(|payload| payload == "x"), "none twice: {got:?}");
}

/// Waits for a node's next request for a room's placement.
fn miss(trio: &Trio, at: usize) -> String {
    match trio.wait(at, "it asks for a room", |event| matches!(event, Event::Shard(ShardEvent::RoomMiss(..))))
    {
        Event::Shard(ShardEvent::RoomMiss(_, room, _)) => String::from_utf8(room.into()).unwrap(),
        _ => unreachable!("waited for above"),
    }
}

fn place(trio: &Trio, at: usize, room: &str, hub: Option<u32>) {
    let rooms = vec![(room.as_bytes().into(), hub.map(HubId))];
    trio.nodes[at].routes().set_rooms("busy", rooms).unwrap();
}

#[test]
fn what_concerns_a_room_without_a_place_waits_for_it_in_order() {
    let trio = Trio::start();
    let mut subscriber = trio.connect(1);
    subscriber.send(&["SUBSCRIBE", "busy:1"]);
    assert_eq!(miss(&trio, 1), "busy:1");
    let mut publisher = trio.connect(0);
    let commands: Vec<[String; 3]> =
        (0..50).map(|n| ["PUBLISH".into(), "busy:1".into(), n.to_string()]).collect();
    for command in &commands {
        publisher.send(&command.each_ref().map(String::as_str));
    }
    assert_eq!(miss(&trio, 0), "busy:1", "once");
    place(&trio, 1, "busy:1", Some(hub("busy", 2)));
    assert_eq!(miss(&trio, 2), "busy:1", "who leads it asks, too");
    place(&trio, 2, "busy:1", Some(hub("busy", 2)));
    assert!(subscriber.read().is_a("subscribe"));
    place(&trio, 0, "busy:1", Some(hub("busy", 2)));
    for n in 0..50 {
        assert_eq!(publisher.read(), number(1));
        assert_eq!(subscriber.read(), message("busy:1", &n.to_string()));
    }
    let asks = |at: usize| trio.nodes[at].control.drain(1 << 16);
    let is_miss = |event: &Event| matches!(event, Event::Shard(ShardEvent::RoomMiss(..)));
    assert!((0..3).all(|at| !asks(at).iter().any(is_miss)), "each asked once");
}

#[test]
fn what_waits_for_a_room_that_gets_no_place_is_refused() {
    let trio = Trio::start();
    let (mut subscriber, mut publisher) = (trio.connect(0), trio.connect(0));
    subscriber.send(&["SUBSCRIBE", "busy:1"]);
    publisher.send(&["PUBLISH", "busy:1", "x"]);
    assert_eq!(miss(&trio, 0), "busy:1");
    // Both rooms' requests wait; the reply for the other room arrives.
    publisher.send(&["PUBLISH", "busy:2", "x"]);
    assert_eq!(miss(&trio, 0), "busy:2");
    trio.nodes[0]
        .routes()
        .refuse_rooms(vec![b"busy:1"[..].into(), b"busy:2"[..].into()], ErrorCode::HubClosed);
    let closed = "ERR the hub of this room is not open here, try again later";
    let refused = Value::Line('-', closed.to_owned());
    assert_eq!(subscriber.read(), refused);
    assert_eq!(publisher.read_many(2), [refused.clone(), refused]);
    assert_eq!(subscriber.call(&["PING"]), simple("PONG"), "it does not subscribe");
    // The next request finds the room.
    publisher.send(&["PUBLISH", "busy:1", "x"]);
    assert_eq!(miss(&trio, 0), "busy:1");
    place(&trio, 0, "busy:1", Some(hub("busy", 0)));
    assert_eq!(publisher.read(), number(0));
}

#[test]
fn a_room_of_a_ring_is_where_it_is_pinned_and_who_subscribes_follows_it() {
    let trio = Trio::start();
    let room = room_of(&trio, "default", 0);
    let mut subscribers: Vec<_> = (0..3).map(|at| trio.connect(at)).collect();
    subscribers.iter_mut().for_each(|subscriber| _ = subscriber.call(&["SUBSCRIBE", &room]));
    for index in [1, 2, 0] {
        let pin = |at: usize| {
            let rooms = vec![(room.as_bytes().into(), Some(HubId(hub("default", index))))];
            trio.nodes[at].routes().set_rooms("default", rooms).unwrap();
        };
        (0..3).for_each(pin);
        for at in 0..3 {
            let mut client = trio.connect(at);
            until(
                || (client.call(&["PUBSUB", "NUMSUB", &room]).items()[1] == number(3)).then_some(()),
                || format!("who subscribes has not followed to {index}"),
            );
            assert_eq!(publish(&mut client, &room, "x"), 3);
            for subscriber in &mut subscribers {
                assert_eq!(subscriber.read(), message(&room, "x"));
            }
        }
    }
}

#[test]
fn rooms_that_another_class_takes_go_on_there_while_some_nodes_are_behind() {
    let trio = Trio::start();
    // Rooms whose leader changes, and one whose leader stays.
    let rooms: Vec<String> = (0..3).map(|leader| room_of(&trio, "default", leader)).collect();
    let mut subscribers: Vec<_> = (0..3).map(|at| trio.connect(at)).collect();
    for subscriber in &mut subscribers {
        rooms.iter().for_each(|room| _ = subscriber.call(&["SUBSCRIBE", room]));
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for at in 0..3 {
            let (rooms, trio, is_over) = (&rooms, &trio, &is_over);
            scope.spawn(move || {
                let mut client = trio.connect(at);
                for n in 0.. {
                    for room in rooms {
                        // A refusal would panic here: a publish that meets a lagging node waits.
                        publish(&mut client, room, &format!("{at} {n}"));
                    }
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        let mut early = trio.connect(0);
        for at in [1, 2, 0] {
            let mut rows = class_rows(&trio.nodes[at]);
            let mem = rows.iter_mut().find(|row| row.class.name == "mem").unwrap();
            mem.class.matches.push(Matcher::parse("room*").unwrap());
            mem.version += 1;
            trio.nodes[at].set_classes(rows).unwrap();
            if at != 0 {
                // This node lags: the room's leader has the room in another class.
                early.send(&["PUBLISH", &rooms[at], &format!("early {at}")]);
            }
        }
        for _ in [1, 2] {
            assert!(matches!(early.read(), Value::Line(':', _)), "it waited until its node had heard");
        }
        for at in 0..3 {
            let mut client = trio.connect(at);
            for room in &rooms {
                until(
                    || (client.call(&["PUBSUB", "NUMSUB", room]).items()[1] == number(3)).then_some(()),
                    || format!("who subscribes has not followed {room}"),
                );
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    for room in &rooms {
        assert_eq!(trio.nodes[0].routes().of(room.as_bytes()).1, "mem");
        assert_eq!(publish(&mut trio.connect(0), room, "last"), 3);
        assert!(!history(&trio, 1, room).is_empty(), "it has the history of its class");
    }
    for subscriber in &mut subscribers {
        let mut seen = std::collections::HashMap::new();
        let mut open = rooms.len();
        while open > 0 {
            let push = subscriber.read();
            let (room, payload) = (push.items()[1].text().to_owned(), push.items()[2].text().to_owned());
            if payload == "last" {
                open -= 1;
                continue;
            }
            let (at, n) = payload.split_once(' ').unwrap();
            let n: i64 = n.parse().unwrap();
            let before = seen.insert((room.clone(), at.to_owned()), n).unwrap_or(-1);
            assert!(n > before, "{room}: {n} behind {before} of {at}");
        }
    }
}

#[test]
fn hubs_of_a_new_class_are_served_without_a_lead_also_where_that_was_said_before_they_counted() {
    let trio = Trio::start();
    let node = &trio.nodes[0];
    let hubs: Vec<HubId> = (0..HUBS).map(|index| HubId(100 + u32::from(index))).collect();
    node.routes().set_served(hubs.iter().copied().collect());
    let class = Class { matches: vec![Matcher::parse("side:*").unwrap()], ..Class::named("side") };
    let mut classes = class_rows(node);
    classes.insert(0, ClassRow { class, version: 1, hubs: HUBS, is_ring: true });
    node.set_classes(classes).unwrap();
    let mut rows = hub_rows(&trio.rows);
    let leader = Some((NAMES[0].into(), incarnation(0)));
    let row =
        |(index, &hub)| HubRow { hub, class: "side".into(), index, term: Term(1), leader: leader.clone() };
    rows.extend((0..).zip(&hubs).map(row));
    node.set_hubs(rows);
    let mut client = trio.connect(0);
    (0..20).for_each(|n| assert_eq!(publish(&mut client, &format!("side:{n}"), "x"), 0));
}

#[test]
fn a_client_asks_the_control_plane_where_a_room_is() {
    let trio = Trio::start();
    let mut client = trio.connect(2);
    let is_question = |event: &Event| matches!(event, Event::Shard(ShardEvent::Locate(..)));
    for members in [Ok(vec![("a".to_owned(), "127.0.0.1:3221".to_owned())]), Err(ErrorCode::HubClosed)] {
        client.send(&["HUBSUB", "LOCATE", "busy:1"]);
        let Event::Shard(ShardEvent::Locate(question, room)) = trio.wait(2, "it asks", is_question) else {
            unreachable!()
        };
        assert_eq!(*room, *b"busy:1");
        trio.nodes[2].located(question, members.clone());
        let expected = match members {
            Ok(_) => Value::Many('*', vec![Value::Many('*', vec![bulk("a"), bulk("127.0.0.1:3221")])]),
            Err(refused) => Value::Line('-', refused.resp().to_owned()),
        };
        assert_eq!(client.read(), expected);
    }
}

#[test]
fn nodes_stay_ready_when_one_of_them_is_gone_that_is_still_registered() {
    let trio = Trio::start();
    trio.nodes[2].stop(0);
    for at in [0, 1] {
        let is_down = |event: &Event| {
            matches!(event, Event::Link(link::Event::Link(LinkEvent { change: Change::Down(..), .. })))
        };
        trio.wait(at, "the third is down", is_down);
    }
    // A reply shows that the shard has handled the change.
    let mut client = trio.connect(0);
    publish(&mut client, &room_of(&trio, "mem", 0), "on");
    let ready = |at: usize| trio.nodes[at].peer_table.ready.get().len();
    assert_eq!((ready(0), ready(1)), (NAMES.len(), NAMES.len()));
    trio.link(&[0, 1]);
    until(
        || (ready(0) == 2 && ready(1) == 2).then_some(()),
        || format!("who is registered no more is known: {} {}", ready(0), ready(1)),
    );
}
