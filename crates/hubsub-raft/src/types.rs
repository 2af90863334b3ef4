//! The type parameters of openraft, and the encoding of its entries. The encoding is our own, because the
//! disk format must not change with a version of openraft.
//!
//! ```text
//! entry       postcard (term, node, index), kind u8, rest
//! kind 0      a blank: no rest
//! kind 1      a command: postcard Command
//! kind 2      a membership: postcard ([voters of each configuration], [(node, peer)])
//! ```

use std::collections::BTreeSet;
use std::fmt;

use openraft::alias::{CommittedLeaderIdOf, LogIdOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf, VoteOf};
use openraft::vote::RaftLeaderId;
use openraft::{EntryPayload, RaftTypeConfig};
use serde::{Deserialize, Serialize};

use crate::store::{Answer, Command};

/// Id of a node within its cluster: drawn when its data directory is created, so a node with a wiped
/// directory is another node.
pub type NodeId = u64;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    pub name: String,
    /// `HOST:PORT` of its transport.
    pub address: String,
}

openraft::declare_raft_types!(
    pub Types:
        D = Command,
        R = Answer,
        NodeId = NodeId,
        Node = Peer,
        AsyncRuntime = crate::runtime::Runtime,
);

pub(crate) type LogId = LogIdOf<Types>;
pub(crate) type Vote = VoteOf<Types>;
pub(crate) type Entry = <Types as RaftTypeConfig>::Entry;
pub(crate) type Membership = openraft::Membership<NodeId, Peer>;
pub(crate) type StoredMembership = StoredMembershipOf<Types>;
pub(crate) type SnapshotMeta = SnapshotMetaOf<Types>;
/// The encoded store, shared between snapshots and transfers.
pub(crate) type State = std::sync::Arc<Vec<u8>>;
pub(crate) type Snapshot = SnapshotOf<Types, State>;

pub(crate) type RawLogId = (u64, NodeId, u64);
type RawMembership = (Vec<BTreeSet<NodeId>>, Vec<(NodeId, Peer)>);

/// The bytes are no valid entry, membership or vote.
#[derive(Debug, thiserror::Error)]
#[error("cannot be read: {0}")]
pub struct Malformed(String);

impl From<postcard::Error> for Malformed {
    fn from(error: postcard::Error) -> Self {
        Self(error.to_string())
    }
}

const BLANK: u8 = 0;
const COMMAND: u8 = 1;
const MEMBERSHIP: u8 = 2;

pub(crate) fn raw_log_id(id: &LogId) -> RawLogId {
    let leader = id.committed_leader_id();
    (leader.term, leader.node_id, id.index())
}

pub(crate) fn log_id((term, node, index): RawLogId) -> LogId {
    let leader: CommittedLeaderIdOf<Types> =
        <Types as RaftTypeConfig>::LeaderId::new(term, node).to_committed();
    LogId::new(leader, index)
}

pub(crate) fn encode_entry(entry: &Entry, out: &mut Vec<u8>) {
    put(&raw_log_id(&entry.log_id), out);
    match &entry.payload {
        EntryPayload::Blank => out.push(BLANK),
        EntryPayload::Normal(command) => {
            out.push(COMMAND);
            put(command, out);
        }
        EntryPayload::Membership(membership) => {
            out.push(MEMBERSHIP);
            put(&raw_membership(membership), out);
        }
    }
}

pub(crate) fn decode_entry(bytes: &[u8]) -> Result<Entry, Malformed> {
    let (raw, rest) = postcard::take_from_bytes(bytes)?;
    let (kind, rest) = rest.split_first().ok_or_else(|| Malformed("it ends early".into()))?;
    let payload = match *kind {
        BLANK => EntryPayload::Blank,
        COMMAND => EntryPayload::Normal(postcard::from_bytes(rest)?),
        MEMBERSHIP => EntryPayload::Membership(membership(postcard::from_bytes(rest)?)?),
        other => return Err(Malformed(format!("a kind of entry that is not known: {other}"))),
    };
    Ok(Entry { log_id: log_id(raw), payload })
}

pub(crate) fn encode_meta(meta: &SnapshotMeta, out: &mut Vec<u8>) {
    put(&meta.last_log_id.as_ref().map(raw_log_id), out);
    put(&meta.last_membership.log_id().as_ref().map(raw_log_id), out);
    put(&raw_membership(meta.last_membership.membership()), out);
}

/// Decodes the metadata of a snapshot; also returns the bytes after it.
pub(crate) fn decode_meta(bytes: &[u8]) -> Result<(SnapshotMeta, &[u8]), Malformed> {
    let ((last, of, raw), rest) =
        postcard::take_from_bytes::<(Option<RawLogId>, Option<RawLogId>, RawMembership)>(bytes)?;
    let last_membership = StoredMembership::new(of.map(log_id), membership(raw)?);
    Ok((SnapshotMeta { last_log_id: last.map(log_id), last_membership }, rest))
}

fn raw_membership(membership: &Membership) -> RawMembership {
    let nodes = membership.nodes().map(|(id, peer)| (*id, peer.clone()));
    (membership.get_joint_config().clone(), nodes.collect())
}

fn membership((configs, nodes): RawMembership) -> Result<Membership, Malformed> {
    if configs.is_empty() && nodes.is_empty() {
        return Ok(Membership::default());
    }
    let nodes: std::collections::BTreeMap<_, _> = nodes.into_iter().collect();
    Membership::new(configs, nodes).map_err(|error| Malformed(error.to_string()))
}

pub(crate) fn put(value: &impl Serialize, out: &mut Vec<u8>) {
    *out = postcard::to_extend(value, std::mem::take(out)).expect("a vector takes all bytes");
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.name, self.address)
    }
}
