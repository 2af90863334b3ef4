//! The context in which protocols act: a shard's connections, its broker, its timers and mail, and the state of each
//! folder. Files from below:
//!
//! - [`conn`]: a connection
//! - [`scatter_gather`], [`events`]: requests between shards, and events for the control plane
//! - [`work`], [`internal_client`]: the shard's own subscriptions and publishes
//! - [`states`], [`mail`]: the states and the mail of all folders
//! - [`encoding`]: a record in the encoding of a connection
//! - [`io`]: all this as [`io::Io`], which [`fanout`], [`queue`], [`reply`] and [`flush`] write to clients
//! - [`Ctx`]: the same with the broker, for requests ([`asking`], [`internal_requests`], [`publishing`])

mod accept;
mod asking;
pub(crate) mod conn;
mod ctx;
pub(crate) mod encoding;
pub(crate) mod events;
pub(crate) mod fanout;
pub(crate) mod flush;
pub(crate) mod internal_client;
mod internal_requests;
pub(crate) mod io;
pub(crate) mod mail;
mod publishing;
pub(crate) mod queue;
pub(crate) mod refusals;
pub(crate) mod reply;
pub(crate) mod scatter_gather;
pub(crate) mod session;
pub(crate) mod soft_limit;
pub(crate) mod states;
pub(crate) mod work;

pub use ctx::{Ctx, Hooks, ProcessChange};
