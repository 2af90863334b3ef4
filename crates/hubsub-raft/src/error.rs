//! Errors, divided by their meaning for the caller: a *refused* request changed nothing; one with an
//! *unknown* outcome may have.

use serde::{Deserialize, Serialize};

use crate::limits::{
    AWAY_MAX, COMMIT_BYTES_MAX, COMMIT_KEYS_MAX, KEY_BYTES_MAX, LEASE_TTL_MAX, LEASE_TTL_MIN, LEASES_MAX,
    MEMBERS_MAX, REQUESTS_MAX, STORE_BYTES_MAX, VALUE_BYTES_MAX,
};
use crate::store::LeaseId;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Error {
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The request may have been executed, or may be executed later.
    #[error("the outcome is unknown: {0}\nhint: read again, then decide")]
    Unknown(String),
}

impl Error {
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unknown(_) => "unknown_outcome",
            Self::Refused(refusal) => refusal.code(),
        }
    }

    /// Whether a retry of the same request may succeed.
    pub fn retryable(&self) -> bool {
        use Refusal::{ClusterBusy, NoLeader, TooManyLeases, TooManyRequests};
        matches!(self, Self::Refused(NoLeader { .. } | ClusterBusy { .. } | TooManyLeases | TooManyRequests))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Refusal {
    #[error("key too long: {bytes} bytes\nhint: at most {KEY_BYTES_MAX}")]
    KeyTooLong { bytes: usize },
    #[error("not a key: {key}\nhint: names with one / between them, no empty one, no NUL")]
    BadKey { key: String },
    #[error("the same key twice in one commit: {key}")]
    KeyTwice { key: String },
    #[error("value of {key} too long: {bytes} bytes\nhint: at most {VALUE_BYTES_MAX}")]
    ValueTooLong { key: String, bytes: usize },
    #[error("too many expectations and writes in one commit: {count}\nhint: at most {COMMIT_KEYS_MAX}")]
    TooManyKeys { count: usize },
    #[error("commit too large: {bytes} bytes of keys and values\nhint: at most {COMMIT_BYTES_MAX}")]
    CommitTooLarge { bytes: usize },
    #[error(
        "the coordinator's store is full: {bytes} bytes\nhint: at most {STORE_BYTES_MAX}; delete what is not used"
    )]
    StoreFull { bytes: usize },
    #[error("not a time to live: {ttl_ms} ms\nhint: from {LEASE_TTL_MIN:?} to {LEASE_TTL_MAX:?}")]
    BadTimeToLive { ttl_ms: u64 },
    #[error("no such lease: {lease}\nhint: it ended; its keys are gone")]
    NoLease { lease: LeaseId },
    #[error("too many leases\nhint: at most {LEASES_MAX}")]
    TooManyLeases,
    #[error("the coordinator has no leader that can be reached: {reason}")]
    NoLeader { reason: String },
    #[error("too many requests in flight\nhint: at most {REQUESTS_MAX} at a time; try again")]
    TooManyRequests,
    #[error("another change of the members is in progress: {reason}\nhint: try again")]
    ClusterBusy { reason: String },
    #[error("node {node} is no member\nhint: join first")]
    NoMember { node: u64 },
    #[error("the last voter cannot leave")]
    LastVoter,
    #[error("too many members\nhint: at most {MEMBERS_MAX}")]
    TooManyMembers,
    #[error("another cluster: the request is for {theirs:032x}, this is {ours:032x}")]
    OtherCluster { ours: u128, theirs: u128 },
    #[error(
        "another node has the name: {name}\nhint: give each node its own; one that is gone for good frees its name in {AWAY_MAX:?}"
    )]
    NameHeld { name: String },
    #[error("the coordinator has stopped: {reason}")]
    Stopped { reason: String },
}

impl Refusal {
    pub fn code(&self) -> &'static str {
        match self {
            Self::KeyTooLong { .. } => "key_too_long",
            Self::BadKey { .. } => "bad_key",
            Self::KeyTwice { .. } => "key_twice",
            Self::ValueTooLong { .. } => "value_too_long",
            Self::TooManyKeys { .. } => "too_many_keys",
            Self::CommitTooLarge { .. } => "commit_too_large",
            Self::StoreFull { .. } => "store_full",
            Self::BadTimeToLive { .. } => "bad_time_to_live",
            Self::NoLease { .. } => "no_lease",
            Self::TooManyLeases => "too_many_leases",
            Self::NoLeader { .. } => "no_leader",
            Self::TooManyRequests => "too_many_requests",
            Self::ClusterBusy { .. } => "cluster_busy",
            Self::NoMember { .. } => "no_member",
            Self::LastVoter => "last_voter",
            Self::TooManyMembers => "too_many_members",
            Self::OtherCluster { .. } => "other_cluster",
            Self::NameHeld { .. } => "duplicate_node",
            Self::Stopped { .. } => "stopped",
        }
    }
}
