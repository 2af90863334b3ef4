//! openraft's network over a transport: each message is one request and one reply.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{RaftNetworkFactory, RaftNetworkV2};

use super::wire::{self, Envelope, Piece, Reply, Request};
use crate::limits::SNAPSHOT_PIECE_BYTES;
use crate::machine::Machine;
use crate::transport::{Lane, Transport};
use crate::types::{NodeId, Peer, Snapshot, State, Types, Vote, encode_meta};

/// Creates the connections to all peers.
pub(super) struct Network<T> {
    pub transport: T,
    /// 0 until the node is in a cluster.
    pub cluster: Rc<Cell<u128>>,
    /// Has the current addresses of members: openraft keeps a connection object when a member's address
    /// changes.
    pub machine: Machine,
    /// Limit for the answer to a message other than a heartbeat.
    pub limit: Duration,
}

/// The connection to one peer, on one lane.
pub(super) struct End<T> {
    transport: T,
    peer: Peer,
    cluster: Rc<Cell<u128>>,
    machine: Machine,
    to: NodeId,
    lane: Lane,
    limit: Duration,
}

type RpcError = RPCError<Types>;

impl<T: Transport> Network<T> {
    fn end(&self, to: NodeId, peer: &Peer, lane: Lane) -> End<T> {
        let (transport, cluster, machine) =
            (self.transport.clone(), self.cluster.clone(), self.machine.clone());
        End { transport, peer: peer.clone(), cluster, machine, to, lane, limit: self.limit }
    }
}

impl<T: Transport> RaftNetworkFactory<Types> for Network<T> {
    type Network = End<T>;

    async fn new_client(&mut self, target: NodeId, peer: &Peer) -> End<T> {
        self.end(target, peer, Lane::Log)
    }

    async fn new_heartbeat_client(&mut self, target: NodeId, peer: &Peer) -> End<T> {
        self.end(target, peer, Lane::Heartbeat)
    }

    async fn new_snapshot_client(&mut self, target: NodeId, peer: &Peer) -> End<T> {
        self.end(target, peer, Lane::Snapshot)
    }
}

impl<T: Transport> End<T> {
    async fn call(&self, request: Request, limit: Duration) -> Result<Reply, RpcError> {
        let envelope = Envelope { cluster: self.cluster.get(), to: self.to };
        let bytes = wire::encode(&envelope, &request);
        let peer = self.machine.peer(self.to).unwrap_or_else(|| self.peer.clone());
        let reply = self.transport.call(&peer, self.lane, bytes, limit).await;
        let reply = reply.map_err(|error| unreachable(&error))?;
        match wire::decode::<(), Reply>(&reply) {
            Ok(((), Reply::Failed(error))) => Err(unreachable(&error)),
            Ok(((), reply)) => Ok(reply),
            Err(error) => Err(unreachable(&error)),
        }
    }
}

fn unreachable(error: &(impl std::error::Error + 'static)) -> RpcError {
    RPCError::Unreachable(Unreachable::new(error))
}

/// The content of a reply of this kind.
macro_rules! reply_of {
    ($kind:ident, $call:expr) => {
        match $call.await? {
            Reply::$kind(response) => Ok(response),
            _ => Err(nonsense()),
        }
    };
}

fn nonsense() -> RpcError {
    RPCError::Unreachable(Unreachable::from_string("the peer's reply is to another request"))
}

impl<T: Transport> RaftNetworkV2<Types> for End<T> {
    type SnapshotData = State;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RpcError> {
        // openraft passes the heartbeat interval, which is too short to sync many entries.
        let limit = if self.lane == Lane::Heartbeat { option.hard_ttl() } else { self.limit };
        reply_of!(Append, self.call(Request::Append(request), limit))
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RpcError> {
        reply_of!(Vote, self.call(Request::Vote(request), option.hard_ttl()))
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RpcError> {
        reply_of!(Vote, self.call(Request::PreVote(request), option.hard_ttl()))
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RpcError> {
        reply_of!(Transfer, self.call(Request::Transfer(request), option.hard_ttl()))
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        tokio::select! {
            biased;
            closed = cancel => Err(closed.into()),
            sent = self.send_snapshot(vote, snapshot, option.hard_ttl()) => Ok(sent?),
        }
    }
}

impl<T: Transport> End<T> {
    async fn send_snapshot(
        &self,
        vote: Vote,
        snapshot: Snapshot,
        install: Duration,
    ) -> Result<SnapshotResponse<Types>, RpcError> {
        let mut head = Vec::new();
        encode_meta(&snapshot.meta, &mut head);
        let total = (head.len() + snapshot.snapshot.len()) as u64;
        // The metadata of the snapshot is sent first, in a piece of its own.
        let pieces = std::iter::once(head.as_slice()).chain(snapshot.snapshot.chunks(SNAPSHOT_PIECE_BYTES));
        let mut offset = 0;
        for bytes in pieces {
            let piece = Piece { vote, total, offset, bytes: bytes.into() };
            offset += bytes.len() as u64;
            let limit = if offset == total { install } else { self.limit };
            match self.call(Request::Snapshot(piece), limit).await? {
                Reply::Snapshot(response) => return Ok(response),
                Reply::More if offset < total => {}
                _ => return Err(nonsense()),
            }
        }
        Err(nonsense())
    }
}
