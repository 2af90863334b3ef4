//! What a client may do that is allowed and unkind: it stays its own problem,
//! and no command, answer or gap is lost over it.

mod support;

use hubsub_types::{Class, Limits, OnSlow};
use std::io::Write;
use std::net::Shutdown;
use support::{PATIENCE, TestNode, Value, bulk, class, encode, number, simple};

/// Rooms `slow:*` commit late.
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
fn a_stop_is_over_when_nothing_is_left_to_do_on_any_shard() {
    for _ in 0..10 {
        let node = node(4, Limits::default());
        let mut clients: Vec<_> = (0..16).map(|_| node.connect()).collect();
        clients.iter_mut().for_each(|client| _ = client.call(&["PSUBSCRIBE", "*"]));
        let took = node.stop_in(PATIENCE);
        assert!(took < PATIENCE / 3, "{took:?}");
    }
}

