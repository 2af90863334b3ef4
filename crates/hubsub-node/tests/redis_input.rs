//! Input split at any point, and the errors that end connections.

use crate::support::{TestNode, Value, bulk, encode, number, simple};
use hubsub_types::Limits;
use std::io::Write;

fn node(shards: u16) -> TestNode {
    TestNode::start(shards, Vec::new(), Limits::default())
}

#[test]
fn commands_that_come_byte_by_byte_are_executed() {
    let node = node(1);
    let mut client = node.connect();
    let bytes =
        [encode(&["ECHO", "a\r\nb"]), b"PING\r\n".to_vec(), encode(&["SUBSCRIBE", "x", "y"])].concat();
    for byte in bytes {
        client.socket.write_all(&[byte]).unwrap();
    }
    assert_eq!(client.read_many(2), [bulk("a\r\nb"), simple("PONG")]);
    assert_eq!(client.read_many(2).iter().map(|f| f.items()[2].int()).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn pipelines_and_arguments_larger_than_the_read_buffer_are_executed() {
    let node = node(2);
    let mut client = node.connect();
    let texts: Vec<String> = (0..20_000).map(|i| format!("text {i}")).collect();
    let long = "l".repeat(3_000_000);
    let mut bytes: Vec<u8> = texts.iter().flat_map(|text| encode(&["ECHO", text])).collect();
    bytes.extend(encode(&["ECHO", &long]));
    let mut socket = client.socket.try_clone().unwrap();
    let writer = std::thread::spawn(move || socket.write_all(&bytes));
    for text in &texts {
        assert_eq!(client.read(), bulk(text));
    }
    assert_eq!(client.read(), bulk(&long));
    writer.join().unwrap().unwrap();
}

#[test]
fn a_transaction_beyond_its_limits_is_refused_and_executes_nothing() {
    let limits = Limits { transaction_commands_max: 3, transaction_bytes_max: 1000, ..Limits::default() };
    let node = TestNode::start(1, Vec::new(), limits);
    let (mut client, mut subscriber) = (node.connect(), node.connect());
    subscriber.call(&["SUBSCRIBE", "c"]);
    let long = "l".repeat(1000);
    let hint = "transaction_commands_max, transaction_bytes_max";
    let too_large = Value::Line('-', format!("ERR transaction is too large; hint: {hint}"));
    let aborted = "EXECABORT Transaction discarded because of previous errors.".to_owned();
    for (payload, count) in [("x", 3), (&*long, 0)] {
        client.call(&["MULTI"]);
        for _ in 0..count {
            assert_eq!(client.call(&["PUBLISH", "c", payload]), simple("QUEUED"));
        }
        assert_eq!(client.call(&["PUBLISH", "c", payload]), too_large);
        assert_eq!(client.call(&["PUBLISH", "c", "x"]), simple("QUEUED"));
        assert_eq!(client.call(&["EXEC"]), Value::Line('-', aborted.clone()));
    }
    assert_eq!(client.call(&["PUBLISH", "c", "after"]), number(1));
    assert_eq!(subscriber.read().items()[2], bulk("after"));
}

#[test]
fn a_client_of_another_shard_is_listed_and_killed() {
    let node = node(2);
    let (mut killer, mut victim) = node.connect_apart();
    victim.call(&["CLIENT", "SETNAME", "victim"]);
    let id = victim.call(&["CLIENT", "ID"]).int().to_string();
    let list =
        |killer: &mut crate::support::Client| killer.call(&["CLIENT", "LIST", "ID", &id]).text().to_owned();
    assert!(list(&mut killer).starts_with(&format!("id={id} addr=127.0.0.1:")));
    assert!(list(&mut killer).contains(" name=victim "));
    assert_eq!(killer.call(&["CLIENT", "KILL", "ID", &id]), number(1));
    victim.assert_closed();
    assert_eq!(list(&mut killer), "");
    assert_eq!(killer.call(&["CLIENT", "KILL", "ID", &id]), number(0));
}

#[test]
fn the_old_form_of_kill_takes_the_address_that_list_shows() {
    let node = node(2);
    let (mut killer, mut victim) = node.connect_apart();
    let address = victim.socket.local_addr().unwrap().to_string();
    assert_eq!(killer.call(&["CLIENT", "KILL", &address]), simple("OK"));
    victim.assert_closed();
    let gone = Value::Line('-', "ERR No such client".to_owned());
    assert_eq!(killer.call(&["CLIENT", "KILL", &address]), gone);
}

#[test]
fn a_client_that_kills_itself_gets_its_reply_and_nothing_more() {
    let node = node(2);
    for form in [&["CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "NO"][..], &["CLIENT", "KILL", ""]] {
        let mut client = node.connect();
        let address = client.socket.local_addr().unwrap().to_string();
        let args: Vec<&str> = form.iter().map(|arg| if arg.is_empty() { &address } else { *arg }).collect();
        client.send_all(&[&args, &["PING"]]);
        assert!(matches!(client.read(), Value::Line(':' | '+', _)));
        client.assert_closed();
    }
}

#[test]
fn kill_of_all_others_spares_the_caller() {
    let node = node(2);
    let mut others: Vec<_> = (0..10).map(|_| node.connect()).collect();
    others.iter_mut().for_each(|other| assert_eq!(other.call(&["PING"]), simple("PONG")));
    let mut killer = node.connect();
    assert_eq!(killer.call(&["CLIENT", "KILL", "SKIPME", "YES"]), number(10));
    others.iter_mut().for_each(crate::support::Client::assert_closed);
    assert_eq!(killer.call(&["PING"]), simple("PONG"));
    assert_eq!(killer.call(&["CLIENT", "KILL", "MAXAGE", "1000"]), number(0));
}

#[test]
fn info_counts_channels_once_however_many_shards_subscribe() {
    let node = node(2);
    let (mut a, mut b) = node.connect_apart();
    for client in [&mut a, &mut b] {
        client.send(&["SUBSCRIBE", "one", "{one}two"]);
        client.read_many(2);
        client.call(&["PSUBSCRIBE", "p*"]);
    }
    let mut asker = node.connect();
    let mut field = |name: &str| {
        let info = asker.call(&["INFO", "stats"]).text().to_owned();
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(str::to_owned)
    };
    assert_eq!(field("pubsub_patterns").as_deref(), Some("1"));
    // Shards exchange their gauges once a second.
    let end = std::time::Instant::now() + crate::support::PATIENCE;
    while field("pubsub_channels").as_deref() != Some("2") {
        assert!(std::time::Instant::now() < end);
    }
    assert_eq!(field("no_such_field"), None);
}
