//! Messages between nodes: requests and replies as postcard, in frames that are opaque to the transport. The
//! transport's handshake ensures that both sides have the same protocol version. openraft's own messages use
//! its serde format, so a new version of openraft that changes them requires a new [`PROTOCOL`].

use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::store::{Answer, Command, LeaseId, Value};
use crate::types::{NodeId, Peer, Types, Vote, put};

pub const PROTOCOL: u16 = 1;

/// Addressee of a request, since an address may have a new owner.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Envelope {
    /// 0 if the sender is in no cluster yet.
    pub cluster: u128,
    /// 0 for any node at the address.
    pub to: NodeId,
}

#[derive(Serialize, Deserialize)]
pub(crate) enum Request {
    Append(AppendEntriesRequest<Types>),
    Vote(VoteRequest<Types>),
    PreVote(VoteRequest<Types>),
    Transfer(TransferLeaderRequest<Types>),
    Snapshot(Piece),
    Client(ClientRequest),
}

/// A part of a snapshot. Pieces are sent in order on one connection.
#[derive(Serialize, Deserialize)]
pub(crate) struct Piece {
    pub vote: Vote,
    pub total: u64,
    pub offset: u64,
    pub bytes: Value,
}

/// A request that only a leader can answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum ClientRequest {
    Propose(Command),
    /// Index up to which a store must have applied to reflect all writes answered before now.
    ReadIndex,
    Renew(LeaseId),
    Join(NodeId, Peer),
    Leave(NodeId),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum ClientReply {
    Answer(Answer),
    Index(u64),
    Renewed,
    Joined { cluster: u128 },
    Left,
}

#[derive(Serialize, Deserialize)]
pub(crate) enum Reply {
    Append(AppendEntriesResponse<Types>),
    Vote(VoteResponse<Types>),
    Transfer(TransferLeaderResponse<Types>),
    Snapshot(SnapshotResponse<Types>),
    More,
    Client(ClientReply),
    /// Not executed here; names the leader if known.
    NotLeader(Option<(NodeId, Peer)>),
    Failed(Error),
}

impl ClientRequest {
    pub fn repeatable(&self) -> bool {
        !matches!(self, Self::Propose(_))
    }
}

pub(crate) fn encode(head: &impl Serialize, body: &impl Serialize) -> Vec<u8> {
    let mut out = Vec::new();
    put(head, &mut out);
    put(body, &mut out);
    out
}

pub(crate) fn decode<H: DeserializeOwned, B: DeserializeOwned>(
    bytes: &[u8],
) -> Result<(H, B), postcard::Error> {
    let (head, rest) = postcard::take_from_bytes(bytes)?;
    Ok((head, postcard::from_bytes(rest)?))
}
