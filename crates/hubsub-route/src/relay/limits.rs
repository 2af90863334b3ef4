//! Limits of the state that a relay keeps for others, with their reasons. Each is per shard.

/// Publishes, and requests about rooms, that wait for a leader.
pub const PARKED_MAX: usize = 65_536;

/// Memory of these, in bytes.
pub const PARKED_BYTES_MAX: usize = 64 << 20;

/// Time limit for them, and for waiting subscriptions, in ms: a longer failover is reported.
pub const PARKED_MS: u64 = 5_000;

/// Publishes in flight to a hub's leader: further ones wait here, where a refusal is certain.
pub const IN_FLIGHT_MAX: usize = 4_096;

/// Time for which a publish in flight to a former leader blocks later ones, in ms.
pub const FORMER_MS: u64 = 500;

/// Time for which a new leader waits for the nodes that it reaches to register their interest before it
/// commits anything, in ms: usually a round trip. It exceeds the time that a route takes to all nodes, and
/// the time for which these wait for `LeadershipEnded` of the previous leader. It does not wait for suspected
/// nodes.
pub const REGISTER_MS: u64 = 1_000;

/// Time for which the next leader's route waits for `LeadershipEnded` of the previous one, in ms, while that
/// one is reachable and responsive: usually `LeadershipEnded` was sent before the route was made.
pub const OVER_MS: u64 = 500;

/// Routes of a hub that wait for that: more than the moves of a hub in that time.
pub const ROUTES_MAX: usize = 32;

/// Delay before a leader that replied `not mine` is asked again, in ms: it may learn of its term later.
pub const RETRY_MS: u64 = 20;

/// The same delay after registered interest was refused, in ms.
pub const RETRY_REFUSED_MS: u64 = 1_000;

/// Subscriptions that wait for a leader.
pub const ATTACHES_MAX: usize = 1_000_000;

/// Buffered messages of nodes with a term that this node does not know yet.
pub const EARLY_MAX: usize = 65_536;

/// Memory of these, in bytes; above half of it a node gets no more credit.
pub const EARLY_BYTES_MAX: usize = 64 << 20;

/// Memory of records that wait for a hole before them, in bytes; above it nodes get no more credit.
pub const HELD_BYTES_MAX: usize = 16 << 20;

/// Messages that wait for a link; above it the node gets no more credit, and sends no requests.
pub const UNSENT_MAX: usize = 1_024;

/// Bytes of records per read of a hole.
pub const HOLE_BYTES: usize = 256 << 10;

/// Records in one response to a read, whatever limit was requested.
pub const READ_RECORDS_MAX: u64 = 16_384;

/// Bytes in one response to a read.
pub const READ_BYTES_MAX: usize = 4 << 20;

/// Patterns of one node: a set that is announced as longer is refused.
pub const PATTERNS_MAX: u32 = 10_000_000;

/// Limits that tests reduce; the defaults are the `PARKED_*` constants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RelayLimits {
    pub parked_max: usize,
    pub parked_bytes_max: usize,
    pub parked_ms: u64,
}

impl Default for RelayLimits {
    fn default() -> RelayLimits {
        RelayLimits { parked_max: PARKED_MAX, parked_bytes_max: PARKED_BYTES_MAX, parked_ms: PARKED_MS }
    }
}
