//! Memory of a turn, measured from outside: this file has a single test, because it measures the whole
//! process.

mod support;

use hubsub_types::{Class, History, Limits};
use std::io::{Read, Write};
use support::{TestNode, class, encode};

/// The peak resident memory of the process.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[cfg(target_os = "linux")]
#[test]
fn long_replies_that_are_read_quickly_own_little_memory() {
    let history = History { messages: 2000, bytes: 0, age_ms: 0 };
    let keeps = Class { history: Some(history), ..class("*") };
    let node = TestNode::start(1, vec![keeps], Limits::default());
    let mut publisher = node.connect();
    let payload = "x".repeat(4_000);
    for _ in 0..20 {
        publisher.send_all(&[&["PUBLISH", "t", &payload][..]; 100]);
        publisher.read_many(100);
    }
    let before = peak_bytes();
    let ask = encode(&["HUBSUB", "HISTORY", "t", "COUNT", "2000"]);
    let mut client = node.connect();
    let mut w = client.socket.try_clone().unwrap();
    (0..50).for_each(|_| w.write_all(&ask).unwrap());
    let mut bytes = vec![0; 1024 * 1024];
    let mut left: usize = 50 * 8_000_000;
    while left > 0 {
        left = left.saturating_sub(client.socket.read(&mut bytes).unwrap());
    }
    let grew = peak_bytes() - before;
    assert!(grew < 16 * 1024 * 1024, "{grew}");
}
