//! A node without Python: it proves that the boundary is real and is convenient to profile. Prints the ready
//! line and runs until standard input ends or SIGKILL.
//!
//! `serve [--redis ADDR] [--mqtt ADDR] [--shards N] [--history N]`: with `--history`, rooms `chat:*` keep
//! their last N records.

use hubsub_node::{Control, Event, Node, NodeConfig, ShardEvent, StoreConfig};
use hubsub_types::names::Matcher;
use hubsub_types::{Class, ClassTable, History, Limits, OnSlow};
use std::io::Read;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The same allocator as in the Python extension, so that profiles are comparable.
#[global_allocator]
static ALLOCATOR: hubsub_node::memory::Allocator = hubsub_node::memory::Allocator;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let option = |name: &str| args.iter().position(|a| a == name).and_then(|i| args.get(i + 1));
    let redis = option("--redis").map_or("127.0.0.1:3221", |a| a);
    let mqtt = option("--mqtt").map_or("127.0.0.1:0", |a| a);
    let mut classes = Vec::new();
    if let Some(messages) = option("--history") {
        let messages = messages.parse().expect("--history takes a number");
        let mut chat = Class::named("chat");
        chat.matches = vec![Matcher::parse("chat:*").expect("a valid glob")];
        chat.history = Some(History { messages, bytes: 0, age_ms: 0 });
        chat.on_slow = OnSlow::CatchUp;
        classes.push(chat);
    }
    let limits = Limits::default();
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let config = NodeConfig {
        name: "example".to_owned(),
        incarnation: seconds as u32,
        shards: option("--shards").map_or(1, |n| n.parse().expect("--shards takes a number")),
        redis: Some(redis.parse().expect("--redis takes HOST:PORT")),
        redis_cluster: None,
        mqtt: Some(mqtt.parse().expect("--mqtt takes HOST:PORT")),
        ws: None,
        ws_origins: Vec::new(),
        hosts: Vec::new(),
        phoenix_topics: Vec::new(),
        mqtt_rules: Default::default(),
        link: None,
        accepts: true,
        advertise: None,
        classes: ClassTable::new(classes, true),
        limits: limits.clone(),
        log: None,
        inflight_store: StoreConfig::Memory,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let control = Arc::new(Control::new(limits.control_events_max as usize).expect("descriptors are left"));
    let node = Node::start(config, Arc::clone(&control)).expect("the address is free");
    let redis = node.redis.expect("configured above");
    let mqtt = node.mqtt.expect("configured above");
    println!(r#"{{"event":"ready","redis":"{redis}","http":null,"ws":null,"mqtt":"{mqtt}","link":null}}"#);
    let logs = std::thread::spawn(move || {
        let mut running = true;
        while running {
            for event in control.drain(1024) {
                running &= !matches!(event, Event::Shard(ShardEvent::Stopped(..)));
                eprintln!("{event:?}");
            }
            std::thread::park_timeout(std::time::Duration::from_millis(200));
        }
    });
    let mut rest = Vec::new();
    // Only the end of the input matters.
    let _ = std::io::stdin().read_to_end(&mut rest);
    node.stop(limits.drain_ms);
    node.join();
    logs.join().expect("the log thread does not panic");
}
