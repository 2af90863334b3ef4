//! What a shard remembers of HTTP clients.

/// The state of HTTP on a shard, apart from its connections.
#[derive(Default)]
pub struct State {
    pub streams: usize,
}
