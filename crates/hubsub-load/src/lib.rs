//! The load generator: it publishes into rooms of any Redis server or MQTT broker, counts what
//! the subscribers get (delivered, lost, doubled, reordered, misrouted, corrupt),
//! measures latency and reads what the server spent on it.
//!
//! It shares no code with the server, so that it cannot share a bug with it, and
//! it is built to be much cheaper than any server: a thread reads its
//! connections into one large buffer, recognises the expected message frame by
//! one comparison, counts without copying and writes once a turn.
//!
//! `scenario` says what to do; `run` does it with `worker` threads that own the
//! `publisher`s and `subscriber`s; `codec`, `mqtt`, `phoenix`, `stamp`, `pace` and `ledger` are pure;
//! `procfs` reads the server's costs; `report` is the one JSON line that comes out.
//!
//! Beside it stand smaller measurements for servers with a log: `disk` (what a sync
//! takes without any server, and cold files), `past` (what rooms remember) and
//! `follow` (slow subscribers that catch up); and for MQTT brokers `kept` (sessions of absent clients, retained
//! messages), and for channels of browsers `joins` (a flood of them).

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
