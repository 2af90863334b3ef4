//! What changes the store, and what it answers. A command is one log entry: its meaning may not change once it is
//! written, so variants are only ever added at the end.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::LeaseId;
use crate::error::Refusal;
use crate::limits::{
    COMMIT_BYTES_MAX, COMMIT_KEYS_MAX, KEY_BYTES_MAX, LEASE_TTL_MAX, LEASE_TTL_MIN, VALUE_BYTES_MAX,
};

/// One change of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// All writes or none, and only if every expectation holds.
    Commit {
        /// Keys with the revision that they must have.
        expect: Vec<Expect>,
        /// Done in this order; no key twice.
        writes: Vec<Write>,
    },
    /// Begins a lease.
    Grant {
        /// Its time to live.
        ttl_ms: u32,
    },
    /// Ends a lease with its keys: its holder gives it back.
    Release(LeaseId),
    /// Ends leases with their keys: the leader saw their time pass.
    Expire(Vec<LeaseId>),
}

/// A key and the revision that it must have; 0: it must not be there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expect {
    /// The key.
    pub key: String,
    /// Its revision.
    pub revision: u64,
}

/// A write of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Write {
    /// Sets a value, and the lease with which the key goes.
    Put {
        /// The key.
        key: String,
        /// The value.
        value: Value,
        /// The lease to which the key is bound from now on; none: it stays.
        lease: Option<LeaseId>,
    },
    /// Removes a key; one that is not there is no failure.
    Delete {
        /// The key.
        key: String,
    },
}

impl Write {
    /// The key that is written.
    pub fn key(&self) -> &str {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }
}

/// What a command came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Nothing to say: an entry of Raft's own.
    Nothing,
    /// The commit was made; the revisions of its writes in their order, 0 for a deletion.
    Committed(Vec<u64>),
    /// The commit was not made: this expectation failed.
    Mismatch {
        /// Which of the expectations, from 0.
        index: u32,
        /// The revision that its key has.
        revision: u64,
    },
    /// The commit was not made: it names a lease that is no more.
    NoLease(LeaseId),
    /// The lease that began.
    Granted(LeaseId),
    /// How many leases ended.
    Ended(u32),
}

/// The bytes of a value, shared by all who hold it.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Value(pub Arc<[u8]>);

impl Command {
    /// Refuses what no backend would take. Called before a command is proposed, never when it is applied.
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

    /// Bytes of keys and values that it can add to the store.
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

/// A key is names with `/` between them, none of them empty, without a NUL.
pub fn check_key(key: &str) -> Result<(), Refusal> {
    if key.len() > KEY_BYTES_MAX {
        return Err(Refusal::KeyTooLong { bytes: key.len() });
    }
    if key.split('/').any(str::is_empty) || key.contains('\0') {
        return Err(Refusal::BadKey { key: key.escape_debug().to_string() });
    }
    Ok(())
}

/// A directory is a key, or empty for the one that holds the first names.
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

// By hand because serde would take the bytes one by one.
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
