//! The load generator: it publishes to rooms of any Redis server or MQTT broker, counts deliveries
//! (delivered, lost, doubled, reordered, misrouted, corrupt), measures latency and reads the server's
//! resource usage.
//!
//! It shares no code with the server, so it cannot share a bug with it, and it is designed to use far less
//! CPU than any server: a thread reads its connections into one large buffer, recognises the expected message
//! frame by one comparison, counts without copying and writes once per turn.
//!
//! `scenario` defines a run; `run` executes it with `worker` threads that own the `publisher`s and
//! `subscriber`s; `codec`, `mqtt`, `phoenix`, `stamp`, `pace` and `ledger` are pure; `procfs` reads the
//! server's costs; `report` is the resulting JSON line.
//!
//! There are also smaller measurements for servers with a log: `disk` (the cost of a sync without any server,
//! and cold files), `past` (room history) and `follow` (slow subscribers that catch up); for MQTT brokers
//! `kept` (sessions of absent clients, retained messages); and for browser channels `joins` (a flood of
//! joins).

pub mod codec;
pub mod disk;
pub mod follow;
pub mod joins;
pub mod kept;
pub mod ledger;
pub mod mqtt;
pub mod pace;
pub mod past;
pub mod phoenix;
pub mod procfs;
mod publisher;
pub mod report;
pub mod run;
pub mod scenario;
mod socket;
pub mod stamp;
mod subscriber;
mod worker;
