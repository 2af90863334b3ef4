//! What a shard remembers of HTTP clients.

/// The state of HTTP on a shard, apart from its connections.
#[derive(Default)]
pub struct State {
    /// Number of event streams.
    pub streams: usize,
}
