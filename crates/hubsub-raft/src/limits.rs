//! All limits of the coordinator's store. Commands are checked against them before they are proposed
//! ([`crate::store::Command::check`]) and never when they are applied, since replicas of different versions
//! must not diverge.

use std::time::Duration;

/// Longest key, in bytes, including directories. The interface allows 512; the prefix that separates users of
/// one cluster is added to it.
pub const KEY_BYTES_MAX: usize = 1024;
/// Longest value in bytes: a bucket of room records.
pub const VALUE_BYTES_MAX: usize = 64 * 1024;
/// Maximum of expectations plus writes in a commit. etcd allows 128 operations.
pub const COMMIT_KEYS_MAX: usize = 100;
/// Maximum bytes of keys and values in a commit. etcd allows 1.5 MiB, ZooKeeper 1 MiB.
pub const COMMIT_BYTES_MAX: usize = 1024 * 1024;
/// Maximum bytes of keys and values in the whole store. Each node has it in memory, and a second copy while
/// it writes a snapshot.
pub const STORE_BYTES_MAX: usize = 1024 * 1024 * 1024;
/// Maximum number of leases: one for each node, with a margin.
pub const LEASES_MAX: usize = 16 * 1024;
/// Shortest lease: a shorter one could expire during an election although it is renewed.
pub const LEASE_TTL_MIN: Duration = Duration::from_millis(500);
pub const LEASE_TTL_MAX: Duration = Duration::from_secs(24 * 3600);
/// A leader extends each time to live by one part in this many, since the clocks of two machines
/// drift apart.
pub const LEASE_DRIFT_PART: u32 = 64;
/// A voter that was silent for longer is replaced by a learner, and another node may take its name.
pub const AWAY_MAX: Duration = Duration::from_secs(15);
/// Maximum number of leases that one log entry ends.
pub const EXPIRE_LEASES_MAX: usize = 1000;
/// Maximum entries in a page or in one answer to a watcher.
pub const PAGE_ENTRIES_MAX: usize = 1000;
/// A page ends with the entry that reaches this many bytes.
pub const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Changes retained for watchers. A watcher that missed more starts again with the whole directory.
pub const CHANGES_MAX: usize = 64 * 1024;

/// A log segment is closed at this size in bytes.
pub const SEGMENT_BYTES: u64 = 8 * 1024 * 1024;
/// Longest log entry in bytes: a commit with its framing, or a membership.
pub const ENTRY_BYTES_MAX: usize = COMMIT_BYTES_MAX + 64 * 1024;
/// A snapshot is made when this many entries follow the last one…
pub const SNAPSHOT_ENTRIES: u64 = 5_000;
/// …or when the log has this many bytes.
pub const SNAPSHOT_LOG_BYTES: u64 = 64 * 1024 * 1024;

pub const FRAME_BYTES_MAX: usize = 8 * 1024 * 1024;
/// A message carries at least one entry, and more until it has this many bytes.
pub const APPEND_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Size of the pieces in which a snapshot is sent, in bytes.
pub const SNAPSHOT_PIECE_BYTES: usize = 1024 * 1024;
/// Largest snapshot that a follower accepts, in bytes.
pub const SNAPSHOT_BYTES_MAX: usize = STORE_BYTES_MAX + STORE_BYTES_MAX / 4;
/// Maximum of requests in flight from this node's own callers.
pub const REQUESTS_MAX: usize = 10_000;
/// Maximum of connections from nodes that a node serves.
pub const CONNECTIONS_MAX: usize = 1_024;
/// Maximum of connections from callers that have not authenticated yet.
pub const UNAUTHENTICATED_MAX: usize = 128;
/// Idle connections retained per peer and lane.
pub const IDLE_CONNECTIONS_MAX: usize = 8;
/// Maximum of nodes in a cluster, including learners.
pub const MEMBERS_MAX: usize = 1_000;

const _: () = assert!(KEY_BYTES_MAX + VALUE_BYTES_MAX < COMMIT_BYTES_MAX);
const _: () = assert!(APPEND_BYTES_MAX + ENTRY_BYTES_MAX < FRAME_BYTES_MAX);
const _: () = assert!(SNAPSHOT_PIECE_BYTES < FRAME_BYTES_MAX);
const _: () = assert!(CHANGES_MAX > COMMIT_KEYS_MAX);
