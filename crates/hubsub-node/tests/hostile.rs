//! Permitted but hostile client behaviour: it affects no other client, and no command, reply or gap is lost.

use crate::support::{PATIENCE, TestNode, Value, bulk, class, encode, number, simple};
use hubsub_types::{Class, Limits, OnSlow};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

/// Rooms `slow:*` commit 20 ms late.
fn node(shards: u16, limits: Limits) -> TestNode {
    let slow = Class { commit_delay_ms: 20, ..class("slow:*") };
    let drops = Class { on_slow: OnSlow::DropOldest, ..class("drops:*") };
    TestNode::start(shards, vec![slow, drops], limits)
}

#[test]
fn a_client_that_is_paused_behind_a_large_command_goes_on() {
    let node = node(1, Limits { pending_per_client_max: 1, ..Limits::default() });
    let mut client = node.connect();
    client.send_all(&[&["PUBLISH", "slow:1", &"x".repeat(200_000)], &["PING"]]);
    assert_eq!(client.read_many(2), [number(0), simple("PONG")]);
}

#[test]
fn a_client_that_sends_no_more_gets_the_answers_to_what_it_sent() {
    for shards in [1, 2] {
        let node = node(shards, Limits { pending_per_client_max: 3, ..Limits::default() });
        let mut client = node.connect();
        client.send_all(&[&["PUBLISH", "slow:1", "x"][..]; 10]);
        client.socket.shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.read_many(10), vec![number(0); 10]);
        client.assert_closed();
    }
}

#[test]
fn a_client_that_is_paused_goes_on_as_soon_as_its_answers_are_there() {
    let node = node(1, Limits { pending_per_client_max: 1, ..Limits::default() });
    let mut client = node.connect();
    let begin = Instant::now();
    client.send_all(&[&["PUBLISH", "slow:1", "x"][..]; 30]);
    client.read_many(30);
    // 20 ms each; without the wake-up under test, a shard wakes once a second.
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
}

#[test]
fn a_stop_is_over_when_nothing_is_left_to_do_on_any_shard() {
    for _ in 0..10 {
        let node = node(4, Limits::default());
        let mut clients: Vec<_> = (0..16).map(|_| node.connect()).collect();
        clients.iter_mut().for_each(|client| _ = client.call(&["PSUBSCRIBE", "*"]));
        let took = node.stop_in(PATIENCE);
        assert!(took < PATIENCE / 3, "{took:?}");
    }
}

#[test]
fn a_gap_behind_a_confirmation_is_told_before_the_next_record() {
    let node = node(1, Limits { output_bytes_max: 2_000, ..Limits::default() });
    let (mut subscriber, mut publisher) = (node.connect(), node.connect());
    subscriber.call(&["HUBSUB", "POSITIONS", "ON"]);
    subscriber.call(&["SUBSCRIBE", "drops:1"]);
    subscriber.send_all(&[&["MULTI"], &["PUBLISH", "slow:1", "x"], &["EXEC"]]);
    let refused = subscriber.read();
    assert!(matches!(refused, Value::Line('-', _)), "{refused:?}");
    subscriber.send_all(&[
        &["RESET"],
        &["HELLO", "3"],
        &["HUBSUB", "POSITIONS", "ON"],
        &["SUBSCRIBE", "drops:1"],
    ]);
    while !subscriber.read().is_a("subscribe") {}
    subscriber.send_all(&[&["MULTI"], &["PUBLISH", "slow:1", "x"], &["EXEC"]]);
    assert_eq!(subscriber.read_many(2), [simple("OK"), simple("QUEUED")]);
    let payload = "x".repeat(100);
    publisher.send_all(&[&["PUBLISH", "drops:1", &payload][..]; 100]);
    publisher.read_many(100);
    assert_eq!(subscriber.read(), Value::Many('*', vec![number(0)]));
    publisher.call(&["PUBLISH", "drops:1", "last"]);
    let mut seq = None;
    loop {
        let frame = subscriber.read();
        let items = frame.items();
        let seq_of = |v: &Value| v.text().split_once('-').unwrap().1.parse::<u64>().unwrap();
        if frame.is_a("gap") {
            assert_eq!(seq.map(|s: u64| s + 1), Some(seq_of(&items[2])));
            seq = Some(seq_of(&items[3]));
            continue;
        }
        let next = seq_of(&items[3]);
        assert!(seq.is_none_or(|s| s + 1 == next), "{seq:?} {next}");
        seq = Some(next);
        if items[2] == bulk("last") {
            break;
        }
    }
}

#[test]
fn records_keep_the_form_that_held_before_a_hello_that_waits() {
    let late = Class { commit_delay_ms: 500, ..class("late:*") };
    let node = TestNode::start(1, vec![late], Limits::default());
    let (mut client, mut publisher) = (node.connect3(), node.connect());
    client.call(&["SUBSCRIBE", "t"]);
    client.send_all(&[&["PUBLISH", "late:1", "x"], &["HELLO", "2"]]);
    while node.clients().iter().any(|info| info.command == "subscribe" || info.command == "publish") {}
    publisher.call(&["PUBLISH", "t", "y"]);
    assert_eq!(client.read(), number(0));
    let hello = client.read();
    assert!(matches!(hello, Value::Many('*', _)) && !hello.is_a("message"), "{hello:?}");
    assert!(client.read().is_a("message"));
}

#[test]
fn a_transaction_s_replies_beyond_the_limit_end_its_connection() {
    let node = node(1, Limits { reply_bytes_max: 256 * 1024, ..Limits::default() });
    let mut client = node.connect_narrow();
    let mut bytes = encode(&["MULTI"]);
    (0..20_000).for_each(|_| bytes.extend(encode(&["COMMAND", "DOCS"])));
    bytes.extend(encode(&["EXEC"]));
    client.socket.write_all(&bytes).unwrap();
    let mut other = node.connect();
    other.call(&["PING"]);
    let pending = |node: &TestNode| node.clients().iter().map(|c| c.pending_bytes).max().unwrap();
    // It is closed, or still sends what it queued; it never owns more than its limit and one reply.
    let end = Instant::now() + PATIENCE;
    while node.clients().len() > 1 {
        assert!(pending(&node) < 1024 * 1024, "{}", pending(&node));
        assert!(Instant::now() < end);
    }
}

#[test]
fn few_questions_of_one_client_are_under_way_at_once() {
    let node = node(2, Limits::default());
    let mut client = node.connect();
    let mut bytes = Vec::new();
    (0..3_000).for_each(|_| bytes.extend(b"CLIENT LIST\r\n"));
    client.socket.write_all(&bytes).unwrap();
    let most = (0..3_000).map(|_| client.read().text().split("oll=").nth(1).unwrap().to_owned());
    let most = most.map(|text| text.split(' ').next().unwrap().parse::<u32>().unwrap()).max().unwrap();
    assert!(most <= 17, "{most} answers were awaited");
}

#[test]
fn a_short_command_is_not_answered_with_gigabytes() {
    let node = node(1, Limits::default());
    let mut client = node.connect();
    for start in [&["COMMAND", "DOCS"][..], &["COMMAND", "INFO"], &["CLIENT", "LIST", "ID"]] {
        let word = if start[0] == "CLIENT" { "1" } else { "client" };
        let command = [start, &vec![word; 100_000][..]].concat();
        let reply = client.call(&command);
        assert!(matches!(reply, Value::Line('-', _)), "{start:?}");
    }
    let long = "[a]".repeat(100_000);
    for start in
        [&["PUBSUB", "CHANNELS"][..], &["CONFIG", "GET"], &["COMMAND", "LIST", "FILTERBY", "PATTERN"]]
    {
        let reply = client.call(&[start, &[&long]].concat());
        assert!(matches!(reply, Value::Line('-', _)), "{start:?}");
    }
}

#[test]
fn lists_that_nobody_reads_are_made_one_by_one_and_come_whole() {
    const TOPICS: usize = 1_000;
    for shards in [1, 2] {
        let limits = Limits { reply_bytes_max: 256 * 1024, ..Limits::default() };
        let node = node(shards, limits);
        let topics: Vec<String> = (0..TOPICS).map(|i| format!("{i:0>60}")).collect();
        let mut subscriber = node.connect();
        for topic in &topics {
            subscriber.send(&["SUBSCRIBE", topic]);
        }
        subscriber.read_many(TOPICS);
        let list_bytes = TOPICS * 67 + 100;
        let numsub: Vec<&str> = ["PUBSUB", "NUMSUB"].into_iter().chain(topics.iter().map(|t| &**t)).collect();
        for command in [&["PUBSUB", "CHANNELS"][..], &numsub, &["CLIENT", "LIST"]] {
            let mut client = node.connect_narrow();
            let count = if command.len() > 2 { 20 } else { 200 };
            let mut sender = client.socket.try_clone().unwrap();
            let bytes: Vec<u8> = (0..count).flat_map(|_| encode(command)).collect();
            let sends = std::thread::spawn(move || sender.write_all(&bytes).unwrap());
            let most = |node: &TestNode| node.clients().iter().map(|c| c.pending_bytes).max().unwrap();
            let mut seen = 0;
            for _ in 0..50 {
                seen = seen.max(most(&node));
            }
            assert!(seen as usize <= 256 * 1024 + 2 * list_bytes, "{seen} after {command:?}");
            for _ in 0..count {
                match client.read() {
                    Value::Many('*', items) => assert!(items.len() >= TOPICS),
                    list => assert!(list.text().contains("cmd=client|list")),
                }
            }
            sends.join().unwrap();
        }
    }
}

#[test]
fn lists_in_a_transaction_are_few() {
    let node = node(2, Limits::default());
    for (count, is_answered) in [(4, true), (100, false)] {
        let mut client = node.connect();
        client.call(&["MULTI"]);
        (0..count).for_each(|_| _ = client.call(&["PUBSUB", "CHANNELS"]));
        client.send(&["EXEC"]);
        if is_answered {
            assert_eq!(client.read(), Value::Many('*', vec![Value::Many('*', Vec::new()); count]));
        } else {
            let mut came = Vec::new();
            client.socket.read_to_end(&mut came).unwrap();
            assert!(came.len() < 64, "{came:?} came before the end");
        }
    }
}

#[test]
fn records_of_replies_that_nobody_reads_count_against_the_client() {
    let history = hubsub_types::History { messages: 100, bytes: 0, age_ms: 0 };
    let keeps = Class { history: Some(history), ..class("*") };
    let node = TestNode::start(1, vec![keeps], Limits { reply_bytes_max: 1024 * 1024, ..Limits::default() });
    let (mut reader, mut publisher) = (node.connect_narrow(), node.connect());
    let payload = "x".repeat(10_000);
    for _ in 0..20 {
        publisher.send_all(&[&["PUBLISH", "t", &payload][..]; 100]);
        publisher.read_many(100);
        reader.send(&["HUBSUB", "HISTORY", "t"]);
    }
    publisher.call(&["PING"]);
    let pending = node.clients().iter().map(|c| c.pending_bytes).max().unwrap();
    assert!((1_000_000..4_000_000).contains(&pending), "{pending}");
}

#[test]
fn a_slow_subscriber_of_many_topics_slows_nobody() {
    let classes = [OnSlow::Conflate, OnSlow::DropOldest].map(|on_slow| (on_slow, format!("{on_slow:?}:*")));
    for (on_slow, glob) in classes {
        let limits = Limits { output_bytes_max: 8 * 1024 * 1024, ..Limits::default() };
        let node = TestNode::start(1, vec![Class { on_slow, ..class(&glob) }], limits);
        let (mut slow, mut publisher) = (node.connect_narrow(), node.connect());
        slow.call(&["HUBSUB", "POSITIONS", "ON"]);
        slow.call(&["PSUBSCRIBE", "*"]);
        let begin = Instant::now();
        let payload = "x".repeat(250);
        for i in 0..100 {
            // First records of other topics, which must not be dropped; then more topics than fit.
            let prefix = if i < 25 { "other".to_owned() } else { format!("{on_slow:?}") };
            let topics: Vec<String> =
                (0..1000).map(|j| format!("{prefix}:{}", (i * 1000 + j) % 40_000)).collect();
            let bytes: Vec<u8> = topics.iter().flat_map(|t| encode(&["PUBLISH", t, &payload])).collect();
            publisher.socket.write_all(&bytes).unwrap();
            publisher.read_many(1000);
        }
        assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
    }
}

#[test]
fn gaps_of_too_many_topics_end_the_connection_that_does_not_read() {
    let node = node(1, Limits { output_bytes_max: 100_000, ..Limits::default() });
    let (mut slow, mut publisher) = (node.connect_narrow(), node.connect());
    slow.call(&["HUBSUB", "POSITIONS", "ON"]);
    slow.call(&["PSUBSCRIBE", "*"]);
    let payload = "x".repeat(4_000);
    // Socket buffers take some megabytes.
    for i in 0..10_000 {
        publisher.call(&["PUBLISH", &format!("drops:{i}{}", "x".repeat(1000)), &payload]);
        if i % 100 == 0 && node.clients().len() == 1 {
            return;
        }
    }
    panic!("it is still there");
}
