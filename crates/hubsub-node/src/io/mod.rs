//! The parts of a data plane, without a protocol and without a state of their own: sockets and how they are accepted,
//! the output of a connection, mailboxes and timers, metrics and log lines. [`crate::context`] puts it together.

pub(crate) mod access;
pub mod classes;
pub mod descriptors;
pub(crate) mod inbox;
pub(crate) mod lingering_close;
pub(crate) mod listener;
pub(crate) mod log_lines;
pub mod memory;
pub(crate) mod meter;
pub mod metrics;
pub mod node_info;
pub(crate) mod origin_check;
pub(crate) mod output;
pub mod questions;
pub(crate) mod report;
pub(crate) mod slab;
pub(crate) mod spin;
pub(crate) mod sys;
pub(crate) mod transport;
pub(crate) mod wheel;
pub(crate) mod wrong_protocol;
