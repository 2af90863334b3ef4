//! The node's data plane: shards with their connections, listeners, mailboxes and timers. It is the only
//! crate with sockets and threads: it turns packets into events for the broker and carries out the broker's
//! actions.
//!
//! Path of a publish: [`shard`] reads and decodes, [`redis`] or [`mqtt`] executes, the broker
//! (`hubsub-route`) decides, [`context::fanout`] encodes once and shares, [`context::flush`] writes at the end of the turn.

mod consumers;
mod context;
pub mod control;
mod http;
mod io;
pub mod link;
pub mod log;
#[cfg(test)]
mod lone;
mod mqtt;
pub mod node;
mod phoenix;
pub mod presence;
mod redis;
mod shard;

pub use control::routes;
pub use control::{Control, Event, Level, ShardEvent};
pub use io::node_info::{BUILD_PROFILE, MqttRules, NodeInfo};
pub use io::{memory, questions};
pub use link::LeadMail;
pub use mqtt::StoreConfig;
pub use mqtt::state::store_thread::{StoreState, StoreStatus};
pub use node::{Node, NodeConfig, NotStarted};
pub use redis::state::{ClusterNode, Roster};
