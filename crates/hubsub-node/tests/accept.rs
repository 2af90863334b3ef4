//! A cluster node has its addresses before it may serve: early connections wait.

use crate::support::{TestNode, Value};

#[test]
fn clients_that_come_before_the_node_accepts_wait_and_are_served_then() {
    let node = TestNode::start_closed(2);
    let mut early: Vec<_> = (0..20).map(|_| node.connect()).collect();
    early.iter_mut().for_each(|client| client.send_all(&[&["PING"]]));
    // Each shard replies only after it has checked its sockets.
    for _ in 0..3 {
        assert!(node.clients().is_empty());
    }
    node.accept();
    for client in &mut early {
        assert_eq!(client.read_many(1), [Value::Line('+', "PONG".to_owned())]);
    }
    let mut late = node.connect();
    assert_eq!(late.call(&["PING"]), Value::Line('+', "PONG".to_owned()));
    node.accept();
    assert_eq!(node.clients().len(), 21, "asked twice it is the same");
}
