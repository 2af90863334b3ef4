//! The members of rooms on a shard: of the rooms that belong to it, and the counts of rooms in its buckets.

use super::mail::PresenceMail;
use super::records::Records;
use super::seats::Edge;
use crate::io::node_info::{NodeInfo, run_of};
use crate::io::questions::Shown;
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_route::Ask;
use hubsub_route::occupancy::{Counts, Telling};
use hubsub_route::presence::{Diff, Limits, Presence};
use hubsub_types::{NodeId, ShardId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// How long changes of a room are batched, in ms.
pub const BATCH_MS: u64 = 250;

/// The timeout for nodes to send their members of a room, in ms.
const ANSWER_MS: u64 = 1_000;

/// The maximal bytes of members in one message of a node.
const WORD_BYTES: usize = 64 * 1024;

#[derive(Default)]
pub struct Audience {
    /// The number of watching seats per shard, including waiting ones.
    pub shards: BTreeMap<ShardId, u64>,
    /// Requests that wait until the members are known.
    pub waiting: Vec<Waiting>,
    /// True if not all members were listed in the last list or change.
    pub had_more: bool,
}

pub enum Waiting {
    Seat(ShardId, u64),
    /// A query, and until when it waits, in ms.
    Question(Ask, u64),
}

/// A result of one part of presence for another on this shard.
pub enum Out {
    Mail(PresenceMail),
    /// The counts of all nodes in this bucket are known now.
    CountsKnown(Arc<[u8]>),
    CountsChanged(Diff),
}

pub struct Members {
    pub machine: Presence,
    pub audiences: HashMap<Arc<[u8]>, Audience, RandomState>,
    /// Member lists of watched rooms, reused within a second for many watchers that come at once.
    pub lists: HashMap<Arc<[u8]>, Arc<Shown>, RandomState>,
    pub runs: BTreeMap<NodeId, u64>,
    pub occupancies: Occupancies,
    /// Empty whenever an entry point of presence has returned. Meanwhile it has at most an entry for each watching shard
    /// and waiting seat of the rooms that one event concerns; a seat belongs to a subscription, and those are limited.
    pub outbox: VecDeque<Out>,
    /// True while results are delivered: those that come meanwhile wait for their turn.
    pub is_delivering: bool,
    pub edge: Edge,
    /// Join and leave records not known to be logged.
    pub records: Records,
}

impl Members {
    /// The state of a node outside a cluster, until `begin`.
    pub fn new(shard: ShardId, node: &NodeInfo, listed_max: u64) -> Members {
        let listed_max = usize::try_from(listed_max).unwrap_or(usize::MAX);
        let limits = Limits { batch_ms: BATCH_MS, answer_ms: ANSWER_MS, listed_max, word_bytes: WORD_BYTES };
        Members {
            machine: Presence::new(run_of(&node.name, node.incarnation.into()), limits),
            audiences: HashMap::default(),
            lists: HashMap::default(),
            runs: BTreeMap::new(),
            occupancies: Occupancies::default(),
            outbox: VecDeque::new(),
            is_delivering: false,
            edge: Edge::new(shard),
            records: Records::default(),
        }
    }

    /// Sets this process's identity in the cluster; no member can exist before.
    pub fn begin(&mut self, node: &str, incarnation: u64) {
        self.machine.begin(run_of(node, incarnation));
        self.occupancies.incarnation = incarnation;
    }

    pub fn run(&self) -> u64 {
        self.machine.run()
    }

    /// Drops the lists, so that unused ones take no memory; later watchers get new ones.
    pub fn forget_lists(&mut self) {
        self.lists = HashMap::default();
        self.outbox.shrink_to_fit();
        self.edge.forget_lists();
    }
}

#[derive(Default)]
pub struct Occupancies {
    /// This node's parts of rooms in buckets of this shard.
    pub own: HashMap<Arc<[u8]>, Own, RandomState>,
    /// The last number assigned to one of these parts.
    pub last: u64,
    pub telling: Telling,
    /// True if it watches the buckets of this shard.
    pub listens: bool,
    pub incarnation: u64,
    /// Incarnations of the cluster's other processes, by run id.
    pub processes: BTreeMap<u64, u64>,
    /// Run ids of gone processes that are still registered.
    pub gone: BTreeSet<u64>,
}

#[derive(Default)]
pub struct Own {
    pub shards: BTreeMap<ShardId, Counts>,
    /// The part as last sent: its number and the counts.
    pub said: Option<(u64, Counts)>,
}
