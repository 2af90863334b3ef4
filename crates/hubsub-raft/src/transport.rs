//! What carries requests between nodes, and does not look into them. [`crate::tcp`] is one; the node's links can be
//! another; tests have a third that loses, delays and cuts.

use std::future::Future;
use std::time::Duration;

use crate::types::Peer;

/// Carries a request to a peer and its reply back.
pub trait Transport: Clone + 'static {
    /// One request and its reply, within `patience`. Requests of different lanes do not wait for each other.
    fn call(
        &self,
        peer: &Peer,
        lane: Lane,
        request: Vec<u8>,
        patience: Duration,
    ) -> impl Future<Output = Result<Vec<u8>, CallError>>;

    /// All addresses that a name stands for; the name itself where the transport knows no others.
    fn resolve(&self, address: &str) -> impl Future<Output = Result<Vec<String>, String>> {
        std::future::ready(Ok(vec![address.to_owned()]))
    }

    /// Whether it is sure that no process listens at an address. A machine that does not answer proves nothing.
    fn is_refused(&self, _address: &str) -> impl Future<Output = bool> {
        std::future::ready(false)
    }
}

/// What a request is for: a snapshot holds up no heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Entries and votes.
    Log,
    /// Heartbeats, and confirming a leader.
    Heartbeat,
    /// Snapshots.
    Snapshot,
    /// What clients ask for, on its way to the leader.
    Client,
}

/// Why there is no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The peer got nothing.
    #[error("not sent: {0}")]
    NotSent(String),
    /// The peer has another secret, and got nothing.
    #[error("the cluster's secret is another one there")]
    WrongSecret,
    /// The peer may have got the request, and done what it says.
    #[error("no answer: {0}")]
    Unanswered(String),
}
