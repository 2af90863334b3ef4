//! Carries opaque requests between nodes. [`crate::tcp`] is one implementation; the node's links can be
//! another; tests have a third that loses, delays and cuts.

use std::future::Future;
use std::time::Duration;

use crate::types::Peer;

pub trait Transport: Clone + 'static {
    /// Sends one request and returns its reply, within `limit`. Requests of different lanes do not wait
    /// for each other.
    fn call(
        &self,
        peer: &Peer,
        lane: Lane,
        request: Vec<u8>,
        limit: Duration,
    ) -> impl Future<Output = Result<Vec<u8>, CallError>>;

    /// All addresses of a name; the name itself if the transport has no name resolution.
    fn resolve(&self, address: &str) -> impl Future<Output = Result<Vec<String>, String>> {
        std::future::ready(Ok(vec![address.to_owned()]))
    }

    /// Whether certainly no process listens at an address. A machine that does not respond is no proof.
    fn is_refused(&self, _address: &str) -> impl Future<Output = bool> {
        std::future::ready(false)
    }
}

/// Purpose of a request. Separate lanes ensure that a snapshot does not delay heartbeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Entries and requests for votes.
    Log,
    /// Heartbeats, and the confirmation of a leader.
    Heartbeat,
    Snapshot,
    /// Client requests forwarded to the leader.
    Client,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    #[error("not sent: {0}")]
    NotSent(String),
    /// The peer has a different secret, and received nothing.
    #[error("the cluster's secret is another one there")]
    WrongSecret,
    /// The peer may have received and executed the request.
    #[error("no answer: {0}")]
    Unanswered(String),
}
