//! The store of the embedded coordinator: keys, revisions and leases, replicated by a Raft group, for the
//! state on which a cluster must agree (docs/adr/0013-a-cluster.md). It does not interpret its keys.
//!
//! | part | what it owns |
//! |---|---|
//! | [`store`] | the pure state machine: commands in, answers out |
//! | `log` | Raft's log, vote and snapshots on disk |
//! | `machine` | the store as openraft's state machine |
//! | [`node`] | openraft with forwarding, linearizable reads, leases, members |
//! | [`transport`] | the interface for messages between nodes |
//!
//! A node runs on one thread, in a tokio `LocalSet`. Callers on other threads, such as the Python binding,
//! use [`handle::Handle`]: each request has a ticket, and answers come with it, in batches after one wake-up.
//!
//! | call | result |
//! |---|---|
//! | `Handle::start(options, Start::Bootstrap or Join, listener, (gate, detours), wake)` | a node, or an error |
//! | `submit(ticket, Request)` | nothing, or a refusal; never blocks |
//! | `drain(max, wait)` | `(ticket, Ok(Response) or Err(Error))`; called with the interpreter released |
//! | `stop()` | returns when the thread has ended |
//!
//! - A commit is `Request::Propose(Command::Commit)`: `Answer::Committed` with revisions, `Mismatch` or
//!   `NoLease`.
//! - A lease is `Command::Grant`, then `Request::Renew` at a third of its time to live; its deadline is the
//!   monotonic time before the request was submitted plus its time to live. `Command::Release` ends it.
//! - A watch is repeated `Request::Watch` with the cursor of the last batch; a cursor is valid on all nodes.
//! - [`Error::code`](error::Error::code) is stable; `Error::Unknown` is the ADR's `unknown`, any other is
//!   `refused`.

pub mod error;
pub mod handle;
mod identity;
pub mod limits;
mod log;
mod machine;
pub mod node;
pub mod runtime;
pub mod store;
pub mod tcp;
pub mod transport;
pub mod types;

pub use log::LogError;
