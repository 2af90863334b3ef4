//! Every bound of the coordinator's store, by name. What a command must keep to is checked before it is proposed
//! ([`crate::store::Command::check`]) and never when it is applied: replicas of two versions must not disagree.

use std::time::Duration;

/// Longest key, in bytes, directories included. The interface takes 512; what several in one cluster differ in comes on top.
pub const KEY_BYTES_MAX: usize = 1024;
/// Longest value: a bucket of room records.
pub const VALUE_BYTES_MAX: usize = 64 * 1024;
/// Most expectations and writes of one commit together. etcd takes 128 operations.
pub const COMMIT_KEYS_MAX: usize = 100;
/// Most bytes of keys and values in one commit: etcd takes 1.5 MiB, ZooKeeper 1 MiB.
pub const COMMIT_BYTES_MAX: usize = 1024 * 1024;
/// Most bytes of keys and values in the whole store. Each node holds it in memory, and once more while it writes a snapshot.
pub const STORE_BYTES_MAX: usize = 1024 * 1024 * 1024;
/// Most leases at a time: one for each node, and some.
pub const LEASES_MAX: usize = 16 * 1024;
/// Shortest lease: below it an election ends leases that were renewed.
pub const LEASE_TTL_MIN: Duration = Duration::from_millis(500);
/// Longest lease.
pub const LEASE_TTL_MAX: Duration = Duration::from_secs(24 * 3600);
/// A leader waits this part of the time to live longer than its own clock says: clocks of two machines drift apart.
pub const LEASE_DRIFT_PART: u32 = 64;
/// A voter that was silent for longer is replaced by a learner, and another node may take its name.
pub const AWAY_MAX: Duration = Duration::from_secs(15);
/// Most leases that one log entry ends.
pub const EXPIRE_LEASES_MAX: usize = 1000;
/// Most entries in one page or one answer to a watcher.
pub const PAGE_ENTRIES_MAX: usize = 1000;
/// A page ends after the entry with which it has this many bytes.
pub const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Changes kept for watchers. Who was away for longer begins with the whole again.
pub const CHANGES_MAX: usize = 64 * 1024;

/// A log segment is closed when it has this many bytes.
pub const SEGMENT_BYTES: u64 = 8 * 1024 * 1024;
/// Longest log entry: a commit and its framing, or a membership.
pub const ENTRY_BYTES_MAX: usize = COMMIT_BYTES_MAX + 64 * 1024;
/// A snapshot is made when so many entries follow the last one…
pub const SNAPSHOT_ENTRIES: u64 = 5_000;
/// …or when the log has so many bytes.
pub const SNAPSHOT_LOG_BYTES: u64 = 64 * 1024 * 1024;

/// Largest frame between nodes.
pub const FRAME_BYTES_MAX: usize = 8 * 1024 * 1024;
/// One message carries entries until it has this many bytes, and at least one.
pub const APPEND_BYTES_MAX: usize = 2 * 1024 * 1024;
/// A snapshot travels in pieces of this size.
pub const SNAPSHOT_PIECE_BYTES: usize = 1024 * 1024;
/// Largest snapshot that a follower takes.
pub const SNAPSHOT_BYTES_MAX: usize = STORE_BYTES_MAX + STORE_BYTES_MAX / 4;
/// Requests of this node's own callers under way at a time.
pub const REQUESTS_MAX: usize = 10_000;
/// Connections of nodes that a node serves at a time.
pub const CONNECTIONS_MAX: usize = 1_024;
/// Connections at a time of callers that have not proved yet that they know the cluster's secret.
pub const UNPROVED_MAX: usize = 128;
/// Idle connections kept for one peer.
pub const IDLE_CONNECTIONS_MAX: usize = 8;
/// Most nodes of a cluster, learners included.
pub const MEMBERS_MAX: usize = 1_000;

const _: () = assert!(KEY_BYTES_MAX + VALUE_BYTES_MAX < COMMIT_BYTES_MAX);
const _: () = assert!(APPEND_BYTES_MAX + ENTRY_BYTES_MAX < FRAME_BYTES_MAX);
const _: () = assert!(SNAPSHOT_PIECE_BYTES < FRAME_BYTES_MAX);
const _: () = assert!(CHANGES_MAX > COMMIT_KEYS_MAX);
