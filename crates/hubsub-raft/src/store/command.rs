//! Commands that change the store, and their answers. A command is a log entry: its meaning must not change
//! once it is written, so variants are only added, at the end.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::LeaseId;
use crate::error::Refusal;
use crate::limits::{
    COMMIT_BYTES_MAX, COMMIT_KEYS_MAX, KEY_BYTES_MAX, LEASE_TTL_MAX, LEASE_TTL_MIN, VALUE_BYTES_MAX,
};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Executes all writes or none, and only if every expectation holds.
    Commit {
        /// Keys with their required revisions.
        expect: Vec<Expect>,
        /// Executed in this order; no key twice.
        writes: Vec<Write>,
    },
    Grant {
        ttl_ms: u32,
    },
    /// Ends a lease and deletes its keys, at its holder's request.
    Release(LeaseId),
    /// Ends leases and deletes their keys, after the leader saw them expire.
    Expire(Vec<LeaseId>),
}

/// A key and its required revision; 0: it must not exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expect {
    pub key: String,
    pub revision: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Write {
    /// Sets a value, and the lease that the key is bound to.
    Put {
        key: String,
        value: Value,
        /// Lease with which the key is deleted; none: the key is bound to no lease.
        lease: Option<LeaseId>,
    },
    /// Deletes a key; succeeds if it does not exist.
    Delete { key: String },
}

impl Write {
    pub fn key(&self) -> &str {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Result of one of Raft's own entries.
    Nothing,
    /// The commit succeeded; the revisions of its writes in order, 0 for a deletion.
    Committed(Vec<u64>),
    /// The commit failed because of this expectation.
    Mismatch {
        /// Index of the expectation, from 0.
        index: u32,
        /// Actual revision of the key.
        revision: u64,
    },
    /// The commit failed because it names a lease that does not exist.
    NoLease(LeaseId),
    Granted(LeaseId),
    /// Number of leases that ended.
    Ended(u32),
}

/// The bytes of a value, shared by all users.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Value(pub Arc<[u8]>);

impl Command {
    /// Rejects commands that exceed the limits. Called before a command is proposed, never when it is
    /// applied.
    pub fn check(&self) -> Result<(), Refusal> {
        match self {
            Self::Commit { expect, writes } => check_commit(expect, writes),
            Self::Grant { ttl_ms } => {
                let ttl = std::time::Duration::from_millis(u64::from(*ttl_ms));
                let good = (LEASE_TTL_MIN..=LEASE_TTL_MAX).contains(&ttl);
                if good { Ok(()) } else { Err(Refusal::BadTimeToLive { ttl_ms: u64::from(*ttl_ms) }) }
            }
            Self::Release(_) | Self::Expire(_) => Ok(()),
        }
    }

    /// Maximum bytes of keys and values that it can add to the store.
    pub fn bytes(&self) -> usize {
        let Self::Commit { writes, .. } = self else { return 0 };
        writes
            .iter()
            .map(|write| match write {
                Write::Put { key, value, .. } => key.len() + value.0.len(),
                Write::Delete { .. } => 0,
            })
            .sum()
    }
}

fn check_commit(expect: &[Expect], writes: &[Write]) -> Result<(), Refusal> {
    let count = expect.len() + writes.len();
    if count > COMMIT_KEYS_MAX {
        return Err(Refusal::TooManyKeys { count });
    }
    let mut bytes = 0;
    for key in expect.iter().map(|expect| expect.key.as_str()).chain(writes.iter().map(Write::key)) {
        check_key(key)?;
        bytes += key.len();
    }
    for write in writes {
        if let Write::Put { key, value, .. } = write {
            if value.0.len() > VALUE_BYTES_MAX {
                return Err(Refusal::ValueTooLong { key: key.clone(), bytes: value.0.len() });
            }
            bytes += value.0.len();
        }
    }
    if bytes > COMMIT_BYTES_MAX {
        return Err(Refusal::CommitTooLarge { bytes });
    }
    let mut keys: Vec<&str> = writes.iter().map(Write::key).collect();
    keys.sort_unstable();
    match keys.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Refusal::KeyTwice { key: pair[0].to_owned() }),
        None => Ok(()),
    }
}

/// Checks that a key consists of nonempty names with `/` between them, without a NUL.
pub fn check_key(key: &str) -> Result<(), Refusal> {
    if key.len() > KEY_BYTES_MAX {
        return Err(Refusal::KeyTooLong { bytes: key.len() });
    }
    if key.split('/').any(str::is_empty) || key.contains('\0') {
        return Err(Refusal::BadKey { key: key.escape_debug().to_string() });
    }
    Ok(())
}

/// Checks a directory: a key, or the empty string for the root.
pub fn check_directory(directory: &str) -> Result<(), Refusal> {
    if directory.is_empty() { Ok(()) } else { check_key(directory) }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Commit { expect, writes } => {
                write!(f, "commit({} expected, {} written)", expect.len(), writes.len())
            }
            Self::Grant { ttl_ms } => write!(f, "grant({ttl_ms} ms)"),
            Self::Release(lease) => write!(f, "release({lease})"),
            Self::Expire(leases) => write!(f, "expire({} leases)", leases.len()),
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            0..=32 => write!(f, "\"{}\"", self.0.escape_ascii()),
            bytes => write!(f, "{bytes} bytes"),
        }
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

// Implemented by hand because serde would serialize the bytes one by one.
impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl serde::de::Visitor<'_> for Bytes {
            type Value = Value;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Value, E> {
                Ok(bytes.into())
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}
