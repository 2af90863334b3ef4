//! What nodes say to each other: requests and replies as postcard, in frames that the transport carries without looking.
//! Both sides are of one protocol version, which the transport's handshake settles; openraft's own messages are written as
//! openraft describes them, so a new version of openraft that changes them raises [`PROTOCOL`].

use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::store::{Answer, Command, LeaseId, Value};
use crate::types::{NodeId, Peer, Types, Vote, put};

/// The version of what is said here.
pub const PROTOCOL: u16 = 1;

/// To whom a request goes: an address may have got another owner.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Envelope {
    /// 0: the sender is in no cluster yet.
    pub cluster: u128,
    /// 0: whoever is there.
    pub to: NodeId,
}

#[derive(Serialize, Deserialize)]
pub(crate) enum Request {
    Append(AppendEntriesRequest<Types>),
    Vote(VoteRequest<Types>),
    PreVote(VoteRequest<Types>),
    Transfer(TransferLeaderRequest<Types>),
    Snapshot(Piece),
    Ask(Ask),
}

/// A part of a snapshot. Pieces come in order on one connection.
#[derive(Serialize, Deserialize)]
pub(crate) struct Piece {
    pub vote: Vote,
    /// Of the whole snapshot.
    pub total: u64,
    pub offset: u64,
    pub bytes: Value,
}

/// What only a leader can answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Ask {
    Propose(Command),
    /// Up to where must a store have applied to show all that was answered before now?
    ReadIndex,
    Renew(LeaseId),
    Join(NodeId, Peer),
    Leave(NodeId),
}

/// A leader's answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Told {
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
    /// The piece was taken.
    More,
    Told(Told),
    /// Not done here; the leader, if it is known.
    NotLeader(Option<(NodeId, Peer)>),
    Failed(Error),
}

impl Ask {
    /// Whether asking twice does what asking once does.
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
