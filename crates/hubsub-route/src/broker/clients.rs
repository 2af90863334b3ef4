//! The connections of a shard and the names of their subscriptions.
//!
//! Invariant: `stored_name_bytes` is the sum of `name_bytes` of clients whose protocol stores names.

use crate::Sink;
use crate::idset::IdSet;
use hubsub_types::{ConnKey, Protocol};

#[derive(Debug, Default)]
pub(super) struct Client {
    generation: u32,
    /// Subscriptions in `Namespace::Shard`, which are counted separately.
    pub(super) shard_topics: u32,
    name_bytes: u32,
    /// The protocol of its connection, set when it subscribes; none: the internal client.
    pub(super) protocol: Option<Protocol>,
    pub(super) topics: IdSet,
    pub(super) patterns: Option<Box<IdSet>>,
}

impl Client {
    /// Numbers of its subscriptions: topics, patterns, shard channels.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        let shard = self.shard_topics as usize;
        (self.topics.len() - shard, self.patterns.as_ref().map_or(0, |ids| ids.len()), shard)
    }

    pub(super) fn name_bytes(&self) -> u64 {
        u64::from(self.name_bytes)
    }

    pub(super) fn pattern_ids(&self) -> impl Iterator<Item = u32> {
        self.patterns.iter().flat_map(|ids| ids.as_slice()).copied()
    }
}

/// Whether clients of a protocol store the names of their subscriptions themselves.
pub(super) fn stores_names(protocol: Option<Protocol>) -> bool {
    matches!(protocol, Some(Protocol::Mqtt | Protocol::Phoenix))
}

#[derive(Debug, Default)]
pub(super) struct Clients {
    all: Vec<Client>,
    /// Bytes of the names that clients store themselves.
    stored_name_bytes: u64,
    /// The node's internal client; limits of clients do not apply to it.
    internal: Option<u32>,
}

impl Clients {
    pub(super) fn add(&mut self, conn: ConnKey) {
        let index = conn.index as usize;
        if self.all.len() <= index {
            self.all.resize_with(index + 1, Client::default);
        }
        debug_assert!(self.all[index].topics.is_empty());
        self.all[index].generation = conn.generation;
    }

    pub(super) fn set_internal(&mut self, conn: u32) {
        self.internal = Some(conn);
    }

    pub(super) fn is_internal(&self, conn: u32) -> bool {
        self.internal == Some(conn)
    }

    pub(super) fn take(&mut self, conn: u32) -> Client {
        let client = std::mem::take(self.get_mut(conn));
        if stores_names(client.protocol) {
            self.stored_name_bytes -= client.name_bytes();
        }
        client
    }

    pub(super) fn get(&self, conn: u32) -> &Client {
        &self.all[conn as usize]
    }

    pub(super) fn get_mut(&mut self, conn: u32) -> &mut Client {
        &mut self.all[conn as usize]
    }

    /// Whether the index of a connection is still its own.
    pub(super) fn has(&self, conn: ConnKey) -> bool {
        self.all.get(conn.index as usize).is_some_and(|client| client.generation == conn.generation)
    }

    pub(super) fn key(&self, conn: u32) -> ConnKey {
        ConnKey { index: conn, generation: self.get(conn).generation }
    }

    pub(super) fn stored_name_bytes(&self) -> u64 {
        self.stored_name_bytes
    }

    /// Memory of the clients and their names, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.all.capacity() * size_of::<Client>() + self.stored_name_bytes as usize
    }

    /// A client gains a subscription whose name has `bytes` bytes; returns the client's protocol.
    pub(super) fn count_name(&mut self, conn: u32, bytes: usize, sink: &impl Sink) -> Option<Protocol> {
        let protocol = self.protocol(conn, sink);
        let client = self.get_mut(conn);
        client.protocol = protocol;
        client.name_bytes += bytes as u32;
        if stores_names(protocol) {
            self.stored_name_bytes += bytes as u64;
        }
        protocol
    }

    /// A client loses a subscription whose name has `bytes` bytes.
    pub(super) fn uncount_name(&mut self, conn: u32, bytes: usize) {
        let client = self.get_mut(conn);
        client.name_bytes -= bytes as u32;
        if stores_names(client.protocol) {
            self.stored_name_bytes -= bytes as u64;
        }
    }

    /// The protocol of a client: unchanged while any of its names are counted.
    pub(super) fn protocol(&self, conn: u32, sink: &impl Sink) -> Option<Protocol> {
        let client = self.get(conn);
        if client.name_bytes > 0 { client.protocol } else { sink.protocol(conn) }
    }
}
