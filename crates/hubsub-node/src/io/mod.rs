//! Connections and the context in which protocols act on them. It knows no protocol.
//!
//! - [`conn`], [`transport`], [`listener`]: a connection, its socket, how it is accepted
//! - [`output`], [`reply`], [`fanout`], [`flush`], [`soft_limit`]: its output, from a record or reply to the write
//! - [`shard_io`], [`context`]: the I/O context of a shard, alone and with the broker
//! - [`inbox`], [`scatter_gather`], [`questions`]: mail and requests between shards
//! - [`internal_client`]: the shard's own subscriptions and publishes
//! - [`log_lines`], [`report`]: log lines and events for the control plane
//!
//! [`shard_io::Io`] names the states of the folders above (`shard::states`), which are to become its parameter.

pub(crate) mod access;
pub mod classes;
pub(crate) mod conn;
pub(crate) mod context;
pub mod descriptors;
pub(crate) mod fanout;
pub(crate) mod flush;
pub(crate) mod inbox;
pub(crate) mod internal_client;
pub(crate) mod lingering_close;
pub(crate) mod listener;
pub(crate) mod log_lines;
pub mod memory;
pub(crate) mod meter;
pub mod metrics;
pub mod node_info;
pub(crate) mod origin_check;
pub(crate) mod output;
pub(crate) mod publishing;
pub mod questions;
pub(crate) mod reply;
pub(crate) mod report;
pub(crate) mod scatter_gather;
pub(crate) mod shard_io;
pub(crate) mod shared;
pub(crate) mod slab;
pub(crate) mod soft_limit;
pub(crate) mod spin;
pub(crate) mod sys;
pub(crate) mod transport;
pub(crate) mod wheel;
pub(crate) mod wrong_protocol;
