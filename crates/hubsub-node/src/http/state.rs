//! The state of HTTP clients on a shard.

/// The state of HTTP on a shard, apart from its connections.
#[derive(Default)]
pub struct State {
    pub streams: usize,
}
