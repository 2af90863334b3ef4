//! Rooms with a log, over real sockets and on a real disk: acknowledged records survive a restart, and
//! records no longer in memory are read from disk.

use crate::support::{Client, TestNode, Value, class};
use hubsub_types::{Class, Durability, ErrorCode, History, OnSlow};
use std::path::Path;

fn logged(glob: &str, durability: Durability) -> Class {
    let history = Some(History { messages: 0, bytes: 1 << 30, age_ms: 0 });
    Class { durability, history, on_slow: OnSlow::CatchUp, ..class(glob) }
}

fn node(shards: u16, incarnation: u32, directory: &Path) -> TestNode {
    let classes = vec![logged("chat:*", Durability::Durable), logged("fast:*", Durability::Replicated)];
    TestNode::start_logged(shards, classes, incarnation, directory)
}

/// Position and payload per record of a room's history.
fn history(client: &mut Client, room: &str, options: &[&str]) -> Vec<(String, String)> {
    let args = [&["HUBSUB", "HISTORY", room], options].concat();
    let rows = client.call(&args);
    let row = |row: &Value| (row.items()[0].text().to_owned(), row.items()[4].text().to_owned());
    rows.items().iter().map(row).collect()
}

fn payloads(rows: &[(String, String)]) -> Vec<&str> {
    rows.iter().map(|(_, payload)| payload.as_str()).collect()
}

fn publish(client: &mut Client, topic: &str, from: u32, to: u32) {
    let texts: Vec<String> = (from..=to).map(|i| format!("{i:04} {}", "x".repeat(95))).collect();
    let commands: Vec<Vec<&str>> = texts.iter().map(|text| vec!["PUBLISH", topic, text]).collect();
    let commands: Vec<&[&str]> = commands.iter().map(Vec::as_slice).collect();
    client.send_all(&commands);
    for reply in client.read_many(commands.len()) {
        assert!(matches!(reply, Value::Line(':', _)), "{reply:?}");
    }
}

fn numbers(payloads: &[&str]) -> Vec<u32> {
    payloads.iter().map(|payload| payload[..4].parse().unwrap()).collect()
}

#[test]
fn a_restart_keeps_history_and_epoch_and_loses_nothing() {
    for shards in [1, 3] {
        let directory = tempfile::tempdir().unwrap();
        let (mut positions, mut next) = (Vec::new(), 1);
        // The number of shards may change between two starts.
        for (life, shards) in [(1, shards), (2, 4 - shards), (3, 2)] {
            let node = node(shards, life, directory.path());
            let mut client = node.connect();
            publish(&mut client, "chat:1", next, next + 99);
            publish(&mut client, "fast:1", next, next + 99);
            next += 100;
            for room in ["chat:1", "fast:1"] {
                let rows = history(&mut client, room, &["COUNT", "10000"]);
                assert_eq!(numbers(&payloads(&rows)), (1..next).collect::<Vec<_>>(), "{room} in life {life}");
                let (epoch, seq) = rows[rows.len() - 1].0.split_once('-').unwrap();
                assert_eq!(seq, (next - 1).to_string());
                positions.push((room, epoch.to_owned()));
            }
        }
        for room in ["chat:1", "fast:1"] {
            let mut epochs: Vec<_> = positions.iter().filter(|p| p.0 == room).map(|p| &p.1).collect();
            epochs.dedup();
            assert_eq!(epochs.len(), 1, "{room}: {epochs:?}");
        }
    }
}

#[test]
fn a_subscriber_resumes_across_a_restart_and_reads_from_disk_what_memory_has_not() {
    let directory = tempfile::tempdir().unwrap();
    let position = {
        let node = node(2, 1, directory.path());
        let mut client = node.connect();
        publish(&mut client, "chat:a", 1, 300);
        history(&mut client, "chat:a", &["COUNT", "250"])[0].0.clone()
    };
    let node = node(2, 2, directory.path());
    let (mut publisher, mut subscriber) = (node.connect(), node.connect());
    publish(&mut publisher, "chat:a", 301, 400);
    let started = subscriber.call(&["HUBSUB", "SUBSCRIBE", "chat:a", "FROM", &position]);
    assert!(started.is_a("subscribe") && started.items()[4].int() == 1, "{started:?}");
    publish(&mut publisher, "chat:a", 401, 500);
    let got: Vec<Value> = subscriber.read_many(500 - 51);
    let payloads: Vec<&str> = got.iter().map(|message| message.items()[2].text()).collect();
    assert_eq!(numbers(&payloads), (52..=500).collect::<Vec<_>>());
}

#[test]
fn history_is_read_on_from_any_position_and_bounded_by_its_topic() {
    let directory = tempfile::tempdir().unwrap();
    let node = node(1, 1, directory.path());
    let mut client = node.connect();
    publish(&mut client, "{chat:b}.one", 1, 150);
    publish(&mut client, "{chat:b}.two", 151, 152);
    publish(&mut client, "{chat:b}.one", 153, 300);
    let all = history(&mut client, "chat:b", &["COUNT", "1000"]);
    assert_eq!(numbers(&payloads(&all)), (1..=300).collect::<Vec<_>>());
    for at in [0, 7, 150, 260, 298] {
        let page = history(&mut client, "chat:b", &["COUNT", "20", "AFTER", &all[at].0]);
        assert_eq!(page, all[at + 1..(at + 21).min(300)], "after {}", all[at].0);
    }
    let mut subscriber = node.connect();
    let started = subscriber.call(&["HUBSUB", "SUBSCRIBE", "{chat:b}.two", "LAST", "5"]);
    assert!(started.is_a("subscribe"));
    let got: Vec<Value> = subscriber.read_many(2);
    let texts: Vec<&str> = got.iter().map(|message| message.items()[2].text()).collect();
    assert_eq!(numbers(&texts), [151, 152]);
}

#[test]
fn replies_keep_their_order_behind_a_disk() {
    let directory = tempfile::tempdir().unwrap();
    let node = node(2, 1, directory.path());
    let mut client = node.connect();
    for round in 0..50 {
        let topic = format!("chat:{round}");
        let commands: [&[&str]; 6] = [
            &["PING", "a"],
            &["PUBLISH", &topic, "durable"],
            &["PUBLISH", "plain", "ephemeral"],
            &["PING", "b"],
            &["PUBSUB", "NUMSUB", "plain"],
            &["PING", "c"],
        ];
        client.send_all(&commands);
        let replies = client.read_many(6);
        let texts: Vec<String> = [0, 3, 5].map(|i: usize| replies[i].text().to_owned()).to_vec();
        assert_eq!(texts, ["a", "b", "c"]);
        assert_eq!((replies[1].int(), replies[2].int(), replies[4].items().len()), (0, 0, 2));
        assert_eq!(payloads(&history(&mut client, &topic, &[])), ["durable"]);
    }
    client.send_all(&[
        &["MULTI"],
        &["PUBLISH", "chat:x", "1"],
        &["PUBLISH", "plain", "2"],
        &["EXEC"],
        &["PING"],
    ]);
    let replies = client.read_many(5);
    assert_eq!(replies[3].items().iter().map(Value::int).collect::<Vec<_>>(), [0, 0]);
    assert_eq!(replies[4].text(), "PONG");
}

#[test]
fn a_slow_subscriber_catches_up_from_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let node = node(2, 1, directory.path());
    let mut subscribers = [node.connect_narrow(), node.connect_narrow()];
    for subscriber in &mut subscribers {
        assert!(subscriber.call(&["SUBSCRIBE", "chat:slow"]).is_a("subscribe"));
    }
    let mut publisher = node.connect();
    for part in 0..20 {
        publish(&mut publisher, "chat:slow", part * 250 + 1, part * 250 + 250);
    }
    for mut subscriber in subscribers {
        let got: Vec<Value> = subscriber.read_many(5000);
        let texts: Vec<&str> = got.iter().map(|message| message.items()[2].text()).collect();
        assert_eq!(numbers(&texts), (1..=5000).collect::<Vec<_>>());
    }
}

#[test]
fn a_question_for_history_sees_what_its_asker_published_before_it() {
    let directory = tempfile::tempdir().unwrap();
    let node = node(2, 1, directory.path());
    let mut client = node.connect();
    for round in 1..=30 {
        let topic = format!("chat:{}", round % 3);
        client.send_all(&[
            &["PUBLISH", &topic, "a"],
            &["PUBLISH", &topic, "b"],
            &["HUBSUB", "HISTORY", &topic, "COUNT", "2"],
        ]);
        let replies = client.read_many(3);
        let texts: Vec<&str> = replies[2].items().iter().map(|row| row.items()[4].text()).collect();
        assert_eq!(texts, ["a", "b"], "round {round}");
    }
}

#[test]
fn a_deleted_room_stays_deleted_and_begins_a_new_life() {
    let directory = tempfile::tempdir().unwrap();
    let mut epochs = Vec::new();
    for life in 1..=3 {
        let node = node(2, life, directory.path());
        let mut client = node.connect();
        if life == 2 {
            // Not in memory yet: only the log has the room.
            assert_eq!(node.delete("chat:d"), Ok(1));
            assert_eq!(node.delete("chat:d"), Ok(0), "it is gone");
            assert_eq!(history(&mut client, "chat:d", &[]), []);
        }
        if life == 3 {
            assert_eq!(history(&mut client, "chat:d", &[]).len(), 40, "those before are gone");
        }
        publish(&mut client, "chat:d", 1, 20);
        if life == 1 {
            assert_eq!(node.delete("chat:d"), Ok(1));
        }
        publish(&mut client, "chat:d", 21, 40);
        let rows = history(&mut client, "chat:d", &["COUNT", "1000"]);
        let expected: Vec<u32> = match life {
            1 => (21..=40).collect(),
            2 => (1..=40).collect(),
            _ => (1..=40).chain(1..=40).collect(),
        };
        assert_eq!(numbers(&payloads(&rows)), expected);
        epochs.push(rows[0].0.split_once('-').unwrap().0.to_owned());
    }
    assert!(epochs[0] != epochs[1] && epochs[1] == epochs[2], "{epochs:?}");
}

#[test]
fn a_room_with_a_subscriber_is_not_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let node = node(2, 1, directory.path());
    let (mut client, mut publisher) = (node.connect(), node.connect());
    assert!(client.call(&["SUBSCRIBE", "chat:s"]).is_a("subscribe"));
    publish(&mut publisher, "chat:s", 1, 1);
    assert_eq!(node.delete("chat:s"), Err(ErrorCode::RoomInUse));
    assert_eq!(history(&mut publisher, "chat:s", &[]).len(), 1);
}

#[test]
fn a_subscription_begins_at_a_time_that_only_the_disk_remembers() {
    let directory = tempfile::tempdir().unwrap();
    let node = node(2, 1, directory.path());
    let mut client = node.connect();
    publish(&mut client, "chat:t", 1, 200);
    let rows = client.call(&["HUBSUB", "HISTORY", "chat:t", "COUNT", "150"]);
    let ms = rows.items()[0].items()[1].int();
    publish(&mut client, "chat:t", 201, 400);
    let mut subscriber = node.connect();
    assert!(subscriber.call(&["HUBSUB", "SUBSCRIBE", "chat:t", "SINCE", &ms.to_string()]).is_a("subscribe"));
    let first: u32 = subscriber.read_many(1)[0].items()[2].text()[..4].parse().unwrap();
    assert!((1..=51).contains(&first), "all of that ms and later, from {first}");
    let rest: Vec<Value> = subscriber.read_many(400 - first as usize);
    let texts: Vec<&str> = rest.iter().map(|message| message.items()[2].text()).collect();
    assert_eq!(numbers(&texts), (first + 1..=400).collect::<Vec<_>>());
}

#[test]
fn a_room_keeps_its_class_when_the_rules_change() {
    let directory = tempfile::tempdir().unwrap();
    let broad = || logged("chat:*", Durability::Durable);
    let narrow = || Class { name: "vip".to_owned(), ..logged("chat:v*", Durability::Durable) };
    let mut epoch = None;
    for (life, classes) in [
        (1, vec![broad()]),
        (2, vec![narrow(), broad()]),
        (3, vec![narrow(), broad()]),
        (4, vec![broad(), narrow()]),
    ] {
        let node = TestNode::start_logged(2, classes, life, directory.path());
        let mut client = node.connect();
        publish(&mut client, "chat:v1", life * 10, life * 10 + 4);
        let rows = history(&mut client, "chat:v1", &["COUNT", "100"]);
        assert_eq!(rows.len(), life as usize * 5, "what was said before is there in life {life}");
        let position = rows.last().unwrap().0.clone();
        let (this, seq) = position.split_once('-').unwrap();
        assert_eq!(
            (seq, epoch.get_or_insert(this.to_owned()).as_str()),
            (rows.len().to_string().as_str(), this)
        );
        // A new room gets its class by the new rules.
        publish(&mut client, &format!("chat:v-{life}"), 1, 1);
    }
}

#[test]
fn a_crowd_catches_up_and_keeps_no_question_waiting() {
    let directory = tempfile::tempdir().unwrap();
    let node = node(2, 1, directory.path());
    let mut publisher = node.connect();
    publish(&mut publisher, "chat:crowd", 1, 500);
    let position = history(&mut publisher, "chat:crowd", &["COUNT", "500"])[0].0.clone();
    // More cursors than a shard reads for concurrently.
    let mut crowd: Vec<Client> = (0..150).map(|_| node.connect()).collect();
    crowd.iter_mut().for_each(|one| one.send(&["HUBSUB", "SUBSCRIBE", "chat:crowd", "FROM", &position]));
    assert_eq!(history(&mut publisher, "chat:crowd", &["COUNT", "400"]).len(), 400);
    publish(&mut publisher, "chat:crowd", 501, 600);
    for one in &mut crowd {
        assert!(one.read().is_a("subscribe"));
        let got: Vec<Value> = one.read_many(599);
        let texts: Vec<&str> = got.iter().map(|message| message.items()[2].text()).collect();
        assert_eq!(numbers(&texts), (2..=600).collect::<Vec<_>>());
    }
}
