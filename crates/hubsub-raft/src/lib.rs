//! The store behind the embedded coordinator: keys, revisions and leases that a Raft group agrees on, for what a cluster
//! has to agree on (docs/adr/0013-a-cluster.md). It does not know what its keys mean.
//!
//! | part | what it owns |
//! |---|---|
//! | [`store`] | the pure state machine: commands in, answers out |
//! | `log` | Raft's log, vote and snapshots on disk |
//! | `machine` | the store as openraft's state machine |
//! | [`node`] | openraft with forwarding, linearizable reads, leases, members |
//! | [`transport`] | the seam through which nodes speak |
//!
//! A node lives on one thread, in a tokio `LocalSet`. What calls it from other threads, as the Python binding does, goes
//! through [`handle::Handle`]: requests go in with a ticket, answers come out with it, in batches after one wake-up.
//!
//! | call | gives |
//! |---|---|
//! | `Handle::start(options, Start::Found or Start::Join, listener, (gate, detours), wake)` | a running node in its cluster, or why not |
//! | `submit(ticket, Request)` | nothing, or a refusal; never waits |
//! | `drain(max, wait)` | `(ticket, Ok(Response) or Err(Error))`; with the interpreter released |
//! | `stop()` | when the thread has ended |
//!
//! - A commit is `Request::Propose(Command::Commit)`: `Answer::Committed` with revisions, `Mismatch` or `NoLease`.
//! - A lease is `Command::Grant`, then `Request::Renew` at a third of its time; its deadline is the monotonic time before
//!   the request was submitted plus its time to live. `Command::Release` gives it back.
//! - A watch is `Request::Watch` again and again with the cursor of the last batch; a cursor means the same on all nodes.
//! - [`Error::code`](error::Error::code) is stable; `Error::Unknown` is the ADR's `unknown`, all else `refused`.

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
