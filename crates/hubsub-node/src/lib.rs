//! The node's data plane: shards with their connections, listeners, mailboxes and timers. It is the only
//! crate with sockets and threads: it turns packets into events for the broker and carries out the broker's
//! actions.
//!
//! Path of a publish: [`shard`] reads and decodes, [`redis`] or [`mqtt`] executes, the broker
//! (`hubsub-route`) decides, [`fanout`] encodes once and shares, [`flush`] writes at the end of the turn.

mod access;
pub mod classes;
mod conn;
mod consumers;
pub mod control;
mod core;
mod debtors;
pub mod descriptors;
mod early;
mod fanout;
mod flush;
mod gather;
mod http;
mod inbox;
pub mod led;
pub mod link;
mod listener;
mod listings;
pub mod log;
#[cfg(test)]
mod lone;
pub mod mail;
pub mod memory;
mod meter;
pub mod metrics;
mod mqtt;
pub mod node;
mod output;
mod own;
mod pages;
mod parting;
mod phoenix;
pub mod presence;
mod publishing;
mod redis;
mod reply;
mod rim;
mod room_changes;
pub mod routes;
mod routing;
mod shard;
mod shared;
mod slab;
mod sniff;
mod soft;
mod spin;
mod stopping;
mod sys;
mod transport;
mod wheel;

pub use control::{Control, Event, Level};
pub use mqtt::{StoreConfig, StoreState, StoreStatus};
pub use node::{MqttRules, Node, NodeConfig, NodeInfo, NotStarted};
pub use redis::cluster::{ClusterNode, Roster};

/// The cargo profile of this build. Benchmarks refuse `debug`.
pub const BUILD_PROFILE: &str = env!("HUBSUB_PROFILE");
