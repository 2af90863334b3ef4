//! Replies, confirmations and records arrive in the order that Redis guarantees, also when commits are late
//! and hubs are on another shard.

use crate::support::{Client, TestNode, Value, bulk, class, encode, number, simple};
use hubsub_types::{Class, History, Limits};
use std::io::Write;

/// Rooms `slow:*` commit 20 ms late.
fn node(shards: u16) -> TestNode {
    let slow = Class { commit_delay_ms: 20, ..class("slow:*") };
    TestNode::start(shards, vec![slow], Limits::default())
}

/// Runs a test on one shard, and on two.
fn on_shards(test: impl Fn(&TestNode)) {
    [1, 2].into_iter().for_each(|shards| test(&node(shards)));
}

#[test]
fn no_reply_overtakes_a_publish_that_is_not_committed() {
    on_shards(|node| {
        let mut client = node.connect();
        for i in 0..8 {
            let (slow, fast) = (format!("slow:{i}"), format!("fast:{i}"));
            let commands: [&[&str]; 6] = [
                &["PUBLISH", &slow, "x"],
                &["PING"],
                &["PUBLISH", &fast, "x"],
                &["ECHO", "e"],
                &["NOSUCH"],
                &["CLIENT", "LIST"],
            ];
            client.send_all(&commands);
            let replies = client.read_many(6);
            assert_eq!(replies[..4], [number(0), simple("PONG"), number(0), bulk("e")]);
            assert!(matches!(replies[4], Value::Line('-', _)) && matches!(replies[5], Value::Bulk(_)));
        }
    });
}

#[test]
fn publishes_of_one_client_to_a_room_keep_their_order_behind_late_commits() {
    on_shards(|node| {
        let (mut subscriber, mut publisher) = (node.connect(), node.connect());
        subscriber.call(&["SUBSCRIBE", "slow:1"]);
        let bytes: Vec<u8> = (0..200).flat_map(|i| encode(&["PUBLISH", "slow:1", &i.to_string()])).collect();
        publisher.socket.write_all(&bytes).unwrap();
        for i in 0..200 {
            assert_eq!(subscriber.read().items()[2], bulk(&i.to_string()));
        }
        assert_eq!(publisher.read_many(200), vec![number(1); 200]);
    });
}

#[test]
fn a_confirmation_precedes_the_records_of_its_topic() {
    on_shards(|node| {
        let (mut subscriber, mut publisher) = (node.connect3(), node.connect());
        let topics: Vec<String> = (0..64).map(|i| format!("t{i}")).collect();
        let round: Vec<u8> = topics.iter().flat_map(|t| encode(&["PUBLISH", t, "x"])).collect();
        let rounds = 20;
        (0..rounds).for_each(|_| publisher.socket.write_all(&round).unwrap());
        for topic in &topics {
            subscriber.send_all(&[&["SUBSCRIBE", topic], &["PSUBSCRIBE", &format!("{topic}*")], &["PING"]]);
        }
        let replies = publisher.read_many(rounds * topics.len());
        let receivers: i64 = replies.iter().map(Value::int).sum();
        subscriber.send(&["ECHO", "end"]);
        let (mut confirmed, mut received, mut pongs) = (Vec::new(), 0, 0);
        loop {
            let frame = subscriber.read();
            match &frame {
                Value::Bulk(end) if end == "end" => break,
                Value::Line('+', _) => pongs += 1,
                frame if frame.is_a("subscribe") || frame.is_a("psubscribe") => {
                    confirmed.push(frame.items()[1].clone());
                }
                frame => {
                    received += 1;
                    assert!(confirmed.contains(&frame.items()[1]), "{frame:?} came before its confirmation");
                }
            }
        }
        assert_eq!((confirmed.len(), pongs), (2 * topics.len(), topics.len()));
        assert!(received <= receivers, "{received} of {receivers}");
    });
}

#[test]
fn the_replies_of_a_transaction_are_one_array_though_its_publishes_are_late() {
    on_shards(|node| {
        let mut client = node.connect3();
        let mut other = node.connect();
        for topic in ["slow:1", "slow:2", "fast"] {
            client.call(&["SUBSCRIBE", topic]);
        }
        let commands: [&[&str]; 8] = [
            &["MULTI"],
            &["PUBLISH", "slow:1", "1"],
            &["PUBLISH", "fast", "2"],
            &["PING"],
            &["PUBLISH", "slow:2", "3"],
            &["ECHO", "e"],
            &["EXEC"],
            &["PING"],
        ];
        client.send_all(&commands);
        other.send_all(&[&["PUBLISH", "fast", "4"][..]; 50]);
        let frames = client.read_many(8 + 3 + 50);
        let (pushes, replies): (Vec<_>, Vec<_>) =
            frames.into_iter().partition(|v| matches!(v, Value::Many('>', _)));
        let mut expected = vec![simple("OK")];
        expected.extend(vec![simple("QUEUED"); 5]);
        let items = vec![number(1), number(1), simple("PONG"), number(1), bulk("e")];
        expected.extend([Value::Many('*', items), simple("PONG")]);
        assert_eq!(replies, expected);
        assert!(pushes.iter().all(|push| push.is_a("message")) && pushes.len() == 53);
        assert_eq!(other.read_many(50), vec![number(1); 50]);
    });
}

#[test]
fn a_transaction_that_publishes_to_its_own_client_gets_its_array_first() {
    on_shards(|node| {
        let mut client = node.connect3();
        client.call(&["SUBSCRIBE", "self"]);
        client.send_all(&[&["MULTI"], &["PUBLISH", "self", "a"], &["PUBLISH", "self", "b"], &["EXEC"]]);
        assert_eq!(client.read_many(3), [simple("OK"), simple("QUEUED"), simple("QUEUED")]);
        assert_eq!(client.read(), Value::Many('*', vec![number(1), number(1)]));
        for payload in ["a", "b"] {
            assert_eq!(client.read(), Value::Many('>', vec![bulk("message"), bulk("self"), bulk(payload)]));
        }
    });
}

#[test]
fn a_publisher_that_hears_itself_gets_each_reply_before_its_record() {
    on_shards(|node| {
        let mut client = node.connect3();
        let topics: Vec<String> = (0..8).flat_map(|i| [format!("slow:{i}"), format!("fast:{i}")]).collect();
        for topic in &topics {
            client.call(&["SUBSCRIBE", topic]);
            client.call(&["SSUBSCRIBE", topic]);
        }
        client.call(&["PSUBSCRIBE", "slow:*"]);
        client.call(&["PSUBSCRIBE", "*:1"]);
        let publishes: Vec<(&str, &str)> =
            topics.iter().flat_map(|topic| [("PUBLISH", &**topic), ("SPUBLISH", topic)]).collect();
        let bytes =
            (0..).zip(&publishes).flat_map(|(i, (command, topic))| encode(&[command, topic, &i.to_string()]));
        client.socket.write_all(&bytes.collect::<Vec<u8>>()).unwrap();
        let (mut replies, mut received, mut owed) = (0, 0, 0);
        while replies < publishes.len() || received < owed {
            match client.read() {
                Value::Many('>', items) => {
                    let Some(Value::Bulk(number)) = items.last() else { panic!("{items:?}") };
                    assert!(number.parse::<usize>().unwrap() < replies, "{items:?} after {replies} replies");
                    received += 1;
                }
                reply => {
                    replies += 1;
                    owed += reply.int();
                }
            }
        }
        assert_eq!(owed, 16 + 8 + 2 + 16, "topics, patterns, shard channels");
    });
}

#[test]
fn a_publish_that_is_not_to_be_answered_leaves_the_connection_open() {
    on_shards(|node| {
        let (mut subscriber, mut client) = (node.connect3(), node.connect3());
        for i in 0..8 {
            for topic in [format!("slow:{i}"), format!("fast:{i}")] {
                // Every second publisher also subscribes itself.
                if i % 2 == 0 {
                    client.call(&["SUBSCRIBE", &topic]);
                }
                subscriber.call(&["SUBSCRIBE", &topic]);
                client.send_all(&[&["CLIENT", "REPLY", "SKIP"], &["PUBLISH", &topic, "x"]]);
                let record = Value::Many('>', vec![bulk("message"), bulk(&topic), bulk("x")]);
                assert_eq!(subscriber.read(), record);
                if i % 2 == 0 {
                    assert_eq!(client.read(), record);
                }
                assert_eq!(client.call(&["PING"]), simple("PONG"));
            }
        }
    });
}

#[test]
fn records_of_other_topics_pass_a_publish_that_waits() {
    for shards in [1, 2] {
        let late = Class { commit_delay_ms: 600_000, ..class("late:*") };
        let node = TestNode::start(shards, vec![late], Limits::default());
        let (mut client, mut other) = (node.connect3(), node.connect());
        for topic in ["late:1", "a", "b"] {
            client.call(&["SUBSCRIBE", topic]);
        }
        client.send(&["PUBLISH", "late:1", "x"]);
        for topic in ["a", "b", "a"] {
            assert_eq!(other.call(&["PUBLISH", topic, "y"]), number(1));
            assert_eq!(client.read(), Value::Many('>', vec![bulk("message"), bulk(topic), bulk("y")]));
        }
    }
}

#[test]
fn silenced_publishes_that_are_late_stay_silent_and_keep_the_order() {
    on_shards(|node| {
        let mut client = node.connect();
        for i in 0..4 {
            let topic = format!("slow:{i}");
            let commands: [&[&str]; 8] = [
                &["CLIENT", "REPLY", "OFF"],
                &["PUBLISH", &topic, "x"],
                &["CLIENT", "LIST"],
                &["CLIENT", "REPLY", "ON"],
                &["CLIENT", "REPLY", "SKIP"],
                &["PUBLISH", &topic, "x"],
                &["PUBLISH", &topic, "x"],
                &["PING"],
            ];
            client.send_all(&commands);
            assert_eq!(client.read_many(3), [simple("OK"), number(0), simple("PONG")]);
        }
    });
}

#[test]
fn subscriptions_are_confirmed_although_replies_are_off() {
    on_shards(|node| {
        let mut client = node.connect3();
        let topics: Vec<String> = (0..8).map(|i| format!("t{i}")).collect();
        client.send(&["CLIENT", "REPLY", "OFF"]);
        for topic in &topics {
            client.send_all(&[&["SUBSCRIBE", topic], &["PING"]]);
        }
        for topic in &topics {
            assert_eq!(client.read().items()[1], bulk(topic));
        }
    });
}

#[test]
fn quit_is_answered_behind_late_publishes_and_then_closes() {
    on_shards(|node| {
        let mut client = node.connect();
        let commands: [&[&str]; 5] =
            [&["PUBLISH", "slow:1", "x"], &["PUBLISH", "slow:2", "x"], &["PING"], &["QUIT"], &["PING"]];
        client.send_all(&commands);
        assert_eq!(client.read_many(4), [number(0), number(0), simple("PONG"), simple("OK")]);
        client.assert_closed();
    });
}

/// A node whose rooms `log:*` keep history.
fn node_with_history(shards: u16) -> TestNode {
    let history = Some(History { messages: 10_000, bytes: 0, age_ms: 0 });
    TestNode::start(shards, vec![Class { history, ..class("log:*") }], Limits::default())
}

fn fill(node: &TestNode, topic: &str, count: usize, payload: &str) {
    let mut publisher = node.connect();
    for _ in 0..count {
        publisher.send(&["PUBLISH", topic, payload]);
    }
    publisher.read_many(count);
}

#[test]
fn a_long_history_read_slowly_is_whole_with_records_behind_it() {
    for shards in [1, 2] {
        let node = node_with_history(shards);
        let payload = "p".repeat(1000);
        fill(&node, "log:1", 5000, &payload);
        let mut reader = node.connect_narrow();
        reader.call(&["HELLO", "3"]);
        reader.call(&["SUBSCRIBE", "live"]);
        reader.send_all(&[&["HUBSUB", "HISTORY", "log:1", "COUNT", "5000"], &["ECHO", "end"]]);
        // The reply has begun, so these are published while it is written.
        let mut first = [0];
        reader.socket.peek(&mut first).unwrap();
        let mut publisher = node.connect();
        (0..300).for_each(|_| assert_eq!(publisher.call(&["PUBLISH", "live", "now"]), number(1)));
        let rows = reader.read();
        assert_eq!(rows.items().len(), 5000);
        assert!(rows.items().iter().all(|row| row.items()[4] == bulk(&payload)));
        let frames = reader.read_many(301);
        assert_eq!(frames.iter().filter(|f| **f == bulk("end")).count(), 1);
        assert_eq!(frames.iter().filter(|f| f.is_a("message")).count(), 300);
    }
}

#[test]
fn history_is_read_in_pages_without_loss_or_repetition() {
    let node = node_with_history(2);
    fill(&node, "log:1", 25, "x");
    let mut client = node.connect();
    let all = client.call(&["HUBSUB", "HISTORY", "log:1", "COUNT", "1000"]);
    assert_eq!(all.items().len(), 25);
    assert_eq!(client.call(&["HUBSUB", "HISTORY", "log:1", "COUNT", "3"]).items(), &all.items()[22..]);
    let epoch = all.items()[0].items()[0].text().split_once('-').unwrap().0.to_owned();
    let (mut rows, mut after) = (Vec::new(), format!("{epoch}-0"));
    loop {
        let page = client.call(&["HUBSUB", "HISTORY", "log:1", "COUNT", "10", "AFTER", &after]);
        let Some(last) = page.items().last() else { break };
        after = last.items()[0].text().to_owned();
        rows.extend(page.items().to_vec());
    }
    assert_eq!(rows, all.items());
}

#[test]
fn hubsub_s_own_commands_refuse_wrong_forms_with_clear_words() {
    let node = node_with_history(1);
    let mut client = node.connect();
    let arity = |name: &str| format!("ERR wrong number of arguments for 'hubsub|{name}' command");
    let (syntax, number) = ("ERR syntax error", "ERR value is not an integer or out of range");
    let position = "ERR position is not EPOCH-SEQ";
    let wrong = [
        ("HUBSUB", "ERR wrong number of arguments for 'hubsub' command"),
        ("HUBSUB NOSUCH", "ERR unknown subcommand 'NOSUCH'. Try HUBSUB HELP."),
        ("HUBSUB LOCATE", &arity("locate")),
        ("HUBSUB LOCATE a b", &arity("locate")),
        ("HUBSUB HISTORY", &arity("history")),
        ("HUBSUB HISTORY log:1 COUNT", syntax),
        ("HUBSUB HISTORY log:1 NOSUCH 1", syntax),
        ("HUBSUB HISTORY log:1 COUNT x", number),
        ("HUBSUB HISTORY log:1 COUNT -1", number),
        ("HUBSUB HISTORY log:1 AFTER 7", position),
        ("HUBSUB HISTORY log:1 AFTER 1-x", position),
        ("HUBSUB SUBSCRIBE log:1", &arity("subscribe")),
        ("HUBSUB SUBSCRIBE log:1 FROM", &arity("subscribe")),
        ("HUBSUB SUBSCRIBE log:1 NOSUCH 1", syntax),
        ("HUBSUB SUBSCRIBE log:1 LAST x", number),
        ("HUBSUB SUBSCRIBE log:1 SINCE -1", number),
        ("HUBSUB SUBSCRIBE log:1 FROM 1", position),
        ("HUBSUB POSITIONS", &arity("positions")),
        ("HUBSUB POSITIONS maybe", syntax),
    ];
    for (line, text) in wrong {
        let args: Vec<&str> = line.split(' ').collect();
        assert_eq!(client.call(&args), Value::Line('-', text.to_owned()), "{line}");
    }
    fill(&node, "log:1", 1, "x");
    let Value::Line('-', text) = client.call(&["HUBSUB", "HISTORY", "log:1", "AFTER", "999-1"]) else {
        panic!()
    };
    assert!(text.starts_with("NOTRECOVERED "), "{text}");
    assert_eq!(client.call(&["HUBSUB", "HISTORY", "nothing"]), Value::Many('*', vec![]));
    assert_eq!(client.call(&["HUBSUB", "HISTORY", "log:1", "COUNT", "0"]), Value::Many('*', vec![]));
}

/// A subscriber with positions enabled, of this topic.
fn positioned(node: &TestNode, topic: &str) -> Client {
    let mut subscriber = node.connect_narrow();
    subscriber.call(&["HELLO", "3"]);
    assert_eq!(subscriber.call(&["HUBSUB", "POSITIONS", "ON"]), simple("OK"));
    subscriber.call(&["SUBSCRIBE", topic]);
    subscriber
}

fn seq(value: &Value) -> u64 {
    value.text().split_once('-').unwrap().1.parse().unwrap()
}

#[test]
fn a_slow_subscriber_is_told_of_each_gap_where_it_is() {
    for on_slow in [hubsub_types::OnSlow::DropOldest, hubsub_types::OnSlow::Conflate] {
        let limits = Limits { output_bytes_max: 64 * 1024, ..Limits::default() };
        let lossy = Class { on_slow, ..class("lossy:*") };
        let node = TestNode::start(1, vec![lossy], limits);
        let mut subscriber = positioned(&node, "lossy:1");
        let mut publisher = node.connect();
        let payload = "p".repeat(999);
        let count: u64 = 10_000;
        for _ in 0..count / 100 {
            publisher.send_all(&[&["PUBLISH", "lossy:1", &payload][..]; 100]);
            assert_eq!(publisher.read_many(100), vec![number(1); 100]);
        }
        let (mut next, mut missing) = (1, 0);
        while next <= count {
            let frame = subscriber.read();
            let items = frame.items();
            if frame.is_a("gap") {
                assert_eq!(seq(&items[2]), next, "a gap stands where its records would");
                next = seq(&items[3]) + 1;
                missing += 1;
            } else {
                assert!(frame.is_a("message") && items[2] == bulk(&payload), "{frame:?}");
                assert_eq!(seq(&items[3]), next);
                next += 1;
            }
        }
        assert!(missing > 0, "{on_slow:?}: the subscriber was slow enough to lose some");
    }
}

/// Rooms `late:*` commit 200 ms late, after the test's other steps.
fn node_with_late_rooms(shards: u16) -> TestNode {
    let late = Class { commit_delay_ms: 200, ..class("late:*") };
    TestNode::start(shards, vec![late], Limits::default())
}

#[test]
fn records_keep_their_order_behind_a_confirmation_and_a_late_publish() {
    let node = node_with_late_rooms(2);
    for i in 0..16 {
        let (mut one, mut other) = (node.connect3(), node.connect());
        let (room, more, late) = (format!("room:{i}"), format!("more:{i}"), format!("late:{i}"));
        one.call(&["SUBSCRIBE", &room]);
        one.send_all(&[&["SUBSCRIBE", &more], &["PUBLISH", &late, "x"], &["PUBLISH", &room, "1"]]);
        assert!(one.read().is_a("subscribe"));
        other.call(&["PUBLISH", &room, "2"]);
        let messages: Vec<Value> = one.read_many(4).into_iter().filter(|v| v.is_a("message")).collect();
        assert_eq!([&messages[0].items()[2], &messages[1].items()[2]], [&bulk("1"), &bulk("2")]);
    }
}

#[test]
fn a_confirmation_behind_a_late_publish_precedes_the_records_of_its_topic() {
    for node in [1, 2].map(node_with_late_rooms) {
        let (mut one, mut other) = (node.connect3(), node.connect());
        one.send_all(&[&["PUBLISH", "late:1", "x"], &["SUBSCRIBE", "room"]]);
        while other.call(&["PUBLISH", "room", "1"]) == number(0) {}
        let got = one.read_many(3);
        let place = |kind: &str| got.iter().position(|v| v.is_a(kind)).expect("one of each came");
        assert!(place("subscribe") < place("message"), "{got:?}");
    }
}
