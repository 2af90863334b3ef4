//! Every bound of what a relay keeps for others, by name, with its reason. Of one shard each.

/// Publishes, and questions about rooms, that wait for a leader.
pub const PARKED_MAX: usize = 65_536;

/// Their memory.
pub const PARKED_BYTES_MAX: usize = 64 << 20;

/// How long they wait, and subscriptions too, in ms: a failover that takes longer is told.
pub const PARKED_MS: u64 = 5_000;

/// Publishes of one hub that are under way to its leader: more wait here, where they may yet be
/// refused with a known outcome.
pub const UNDER_WAY_MAX: usize = 4_096;

/// How long a publish that is under way to a former leader holds up those behind it, in ms: its
/// outcome is unknown then.
pub const FORMER_MS: u64 = 500;

/// How long a new leader waits for the nodes that it reaches to register their interest, in ms, before it commits
/// anything: a round trip as a rule. Longer than a route takes to all nodes, and than these wait for the word of the
/// leader before. Nodes that are suspected are not waited for.
pub const REGISTER_MS: u64 = 1_000;

/// How long the next leader's route waits for the word of the one before that its lead is over, in ms, while that one
/// is reached and heard: it was sent before the route was made, as a rule.
pub const OVER_MS: u64 = 500;

/// Routes of a hub that wait so: more than a hub is moved in that time.
pub const ROUTES_MAX: usize = 32;

/// How long after `not mine` the same leader is asked again, in ms: it may hear of its term later.
pub const RETRY_MS: u64 = 20;

/// Likewise after interest that is there already was refused.
pub const RETRY_REFUSED_MS: u64 = 1_000;

/// Subscriptions that wait for a leader.
pub const ATTACHES_MAX: usize = 1_000_000;

/// What nodes sent of a term that this one has not heard of yet.
pub const EARLY_MAX: usize = 65_536;

/// Their memory; past half of it a node gets no more credit.
pub const EARLY_BYTES_MAX: usize = 64 << 20;

/// Memory of records that wait for a hole before them to be read; past it nodes get no more
/// credit.
pub const HELD_BYTES_MAX: usize = 16 << 20;

/// Messages that wait for a link to take them; past it the node gets no more credit, so that it
/// asks for nothing more.
pub const UNSENT_MAX: usize = 1_024;

/// Bytes of records that a hole is read by at once.
pub const HOLE_BYTES: usize = 256 << 10;

/// Records of one answer to a read, whoever asked for how many.
pub const READ_RECORDS_MAX: u64 = 16_384;

/// Bytes of the same.
pub const READ_BYTES_MAX: usize = 4 << 20;

/// Patterns that one node may have: a set that is announced as longer is not taken.
pub const PATTERNS_MAX: u32 = 10_000_000;

/// Those that tests make small.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RelayLimits {
    /// See [`PARKED_MAX`].
    pub parked_max: usize,
    /// See [`PARKED_BYTES_MAX`].
    pub parked_bytes_max: usize,
    /// See [`PARKED_MS`].
    pub parked_ms: u64,
}

impl Default for RelayLimits {
    fn default() -> RelayLimits {
        RelayLimits { parked_max: PARKED_MAX, parked_bytes_max: PARKED_BYTES_MAX, parked_ms: PARKED_MS }
    }
}
