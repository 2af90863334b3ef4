//! Rooms of a cluster: three nodes over real links, whose hubs are led by one or another of them.

mod support;

use support::trio::{CLASSES, HUBS, Trio, publish};
use support::{Value, bulk, number};

/// A room of a class whose hub is led by a node.
fn room_of(trio: &Trio, class: &str, leader: usize) -> String {
    let name = |n: usize| if class == "default" { format!("room{n}") } else { format!("{class}:{n}") };
    let is_meant = |room: &String| {
        let (_, found, index) = trio.nodes[0].routes().of(room.as_bytes());
        (found, usize::from(index)) == (class, leader)
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
