//! The seats of a shard's connections: one for each topic that a connection joined as a member or watches. A
//! seat exists from the start of the join and counts once that is confirmed.

use crate::io::questions::Shown;
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_types::shared::Shared;
use hubsub_types::{ConnKey, ErrorCode, ShardId};
use hubsub_wire::phoenix::Version;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A member's key and metadata, a JSON object.
pub type Who = (Box<str>, Box<[u8]>);

#[derive(Default)]
pub struct Edge {
    /// The last number assigned, with the shard in its upper bits, so that it is unique in the node.
    last: u64,
    pub seats: HashMap<u64, Seat, RandomState>,
    of_conns: HashMap<ConnKey, Places, RandomState>,
    /// By room and seat number.
    pub watchers: HashMap<Arc<[u8]>, BTreeMap<u64, Watcher>, RandomState>,
    /// The encoded member lists for rooms with new watchers, reused within a second.
    pub lists: HashMap<Arc<[u8]>, (Arc<Shown>, Forms), RandomState>,
    pub members: u64,
    /// Bytes of the topic names of all seats.
    name_bytes: u64,
}

/// The seats of one connection, which may have as many as it has topics.
#[derive(Default)]
struct Places {
    /// By topic; one each.
    topics: HashMap<Arc<str>, u64, RandomState>,
    /// Seats that requests of an MQTT client join, by request number.
    requests: HashMap<u32, u64, RandomState>,
    watching: usize,
    name_bytes: u64,
}

pub struct Seat {
    pub topic: Arc<str>,
    pub room: Arc<[u8]>,
    /// The member; its reference number changes with its metadata.
    pub member: Option<(u64, Who)>,
    /// The reference number at the join, used in its records.
    pub came: u64,
    pub watches: bool,
    /// The number of an MQTT client's request that joins it.
    pub request: Option<u32>,
    pub is_joined: bool,
}

/// The request for a seat in a topic that a connection is about to join.
pub struct Wish<'a> {
    /// The topic; for an MQTT client, the filter.
    pub topic: &'a str,
    pub room: &'a [u8],
    /// Its key and metadata, if it will be a member.
    pub who: Option<Who>,
    pub watches: bool,
    /// The number of an MQTT client's request.
    pub request: Option<u32>,
}

pub struct Watcher {
    pub conn: ConnKey,
    pub topic: Arc<str>,
    pub is_told: bool,
}

impl Edge {
    pub fn new(shard: ShardId) -> Edge {
        Edge { last: u64::from(shard.0) << 48, ..Edge::default() }
    }

    pub fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub fn seat_of(&self, key: ConnKey, topic: &str) -> Option<u64> {
        self.of_conns.get(&key)?.topics.get(topic).copied()
    }

    pub fn seats_of(&self, key: ConnKey) -> Vec<u64> {
        self.of_conns.get(&key).map(|places| places.topics.values().copied().collect()).unwrap_or_default()
    }

    pub fn watched_by(&self, key: ConnKey) -> usize {
        self.of_conns.get(&key).map_or(0, |places| places.watching)
    }

    /// Bytes of the topic names of a connection's seats, and of all seats.
    pub fn name_bytes(&self, key: ConnKey) -> (u64, u64) {
        (self.of_conns.get(&key).map_or(0, |places| places.name_bytes), self.name_bytes)
    }

    /// The number of the seat that an MQTT client's request joins.
    pub fn seat_of_request(&self, key: ConnKey, request: u32) -> Option<u64> {
        self.of_conns.get(&key)?.requests.get(&request).copied()
    }

    /// Drops the encoded lists; later watchers get new ones.
    pub fn forget_lists(&mut self) {
        self.lists = HashMap::default();
    }

    /// Adds a seat in a topic where the connection has none; returns its number.
    pub fn add(&mut self, key: ConnKey, seat: Seat) -> u64 {
        let number = self.number();
        let places = self.of_conns.entry(key).or_default();
        let before = places.topics.insert(seat.topic.clone(), number);
        debug_assert!(before.is_none(), "who joins again has left before");
        places.watching += usize::from(seat.watches);
        places.name_bytes += seat.topic.len() as u64;
        self.name_bytes += seat.topic.len() as u64;
        if let Some(request) = seat.request {
            places.requests.insert(request, number);
        }
        self.members += u64::from(seat.member.is_some());
        self.seats.insert(number, seat);
        number
    }

    /// Marks a seat as joined; none if it already was.
    pub fn join(&mut self, key: ConnKey, number: u64) -> Option<&Seat> {
        let seat = self.seats.get_mut(&number).filter(|seat| !seat.is_joined)?;
        seat.is_joined = true;
        if let (Some(request), Some(places)) = (seat.request, self.of_conns.get_mut(&key)) {
            places.requests.remove(&request);
        }
        Some(seat)
    }

    pub fn take(&mut self, key: ConnKey, number: u64) -> Option<Seat> {
        let seat = self.seats.remove(&number)?;
        self.members -= u64::from(seat.member.is_some());
        self.name_bytes -= seat.topic.len() as u64;
        let places = self.of_conns.get_mut(&key)?;
        places.topics.remove(&seat.topic);
        places.watching -= usize::from(seat.watches);
        places.name_bytes -= seat.topic.len() as u64;
        if let Some(request) = seat.request.filter(|_| !seat.is_joined) {
            places.requests.remove(&request);
        }
        if places.topics.is_empty() {
            self.of_conns.remove(&key);
        }
        Some(seat)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    NoMember,
    Code(ErrorCode),
}

/// The encodings of one list or change, made on demand; most rooms have one topic.
#[derive(Default)]
pub struct Forms {
    frames: Vec<(Version, Arc<str>, Shared)>,
    json: Option<Shared>,
}

impl Forms {
    pub fn frames(
        &mut self,
        version: Version,
        topic: &Arc<str>,
        encode: impl FnOnce(Version, &str) -> Vec<u8>,
    ) -> Shared {
        let is_it = |(is, at, _): &&(Version, Arc<str>, Shared)| *is == version && at == topic;
        if let Some((_, _, frames)) = self.frames.iter().find(is_it) {
            return frames.clone();
        }
        let frames: Shared = encode(version, topic).into();
        self.frames.push((version, topic.clone(), frames.clone()));
        frames
    }

    pub fn json(&mut self, encode: impl FnOnce() -> Vec<u8>) -> Shared {
        self.json.get_or_insert_with(|| encode().into()).clone()
    }
}
