//! A shard's broker with its I/O context: commands and mail act on both.

use super::conn::{Conn, Flags};
use super::io::{Io, Timer};
use super::scatter_gather::Then;
use crate::io::questions::{ClientFilter, ClientInfo, Part, Question};
use crate::presence::state::{Refusal, Wish};
use hubsub_route::hubs::HubLog;
use hubsub_route::{Ask, Broker, Namespace};
use hubsub_types::{ConnKey, ErrorCode, NodeId};

pub struct Ctx {
    pub broker: Broker,
    pub io: Io,
    pub hooks: Hooks,
}

/// A change of the cluster's processes, noticed by links.
pub enum ProcessChange<'a> {
    /// The name and the incarnation of this process.
    Own(&'a str, u64),
    /// All other registered processes: this node's id of each, its name and its incarnation.
    Registered(&'a mut dyn Iterator<Item = (NodeId, &'a str, u64)>),
    /// A link to this node is up: its process is not gone, if that was assumed.
    Up(NodeId),
    /// The process with this run id is gone.
    Gone(u64),
}

/// The functions of the shard that protocols, which do not know it, call.
#[derive(Clone, Copy)]
pub struct Hooks {
    /// Writes what this turn produced.
    pub flush: fn(&mut Ctx),
    /// This shard's response to a question; `None` if it is sent later.
    pub answer: fn(&mut Ctx, &Question, Ask) -> Option<Part>,
    /// Requests a room's members from the shard that owns them.
    pub ask_members: fn(&mut Ctx, Vec<u8>, Then),
    /// Updates the gauges that are not maintained incrementally.
    pub set_gauges: fn(&Ctx),
    /// Whether a connection matches a filter.
    pub is_meant: fn(&Ctx, &ClientFilter, ConnKey, &Conn) -> bool,
    /// The details of a connection that CLIENT LIST and the API show.
    pub client_info: fn(&Ctx, ConnKey, &Conn) -> ClientInfo,
    /// Reserves a seat for a connection that is about to join a topic, and returns its number; the outcome of
    /// the join is queued as [`super::internal_client::Event::Joined`].
    pub reserve_seat: fn(&mut Ctx, ConnKey, Wish<'_>) -> Result<u64, ErrorCode>,
    /// A connection leaves a topic, and its seat there.
    pub leave_seat: fn(&mut Ctx, ConnKey, &str),
    /// Replaces the metadata of a member, by connection and topic.
    pub update_member: fn(&mut Ctx, ConnKey, &str, &str) -> Result<(), Refusal>,
    /// Applies a change of processes to the members of rooms.
    pub process_changed: fn(&mut Ctx, ProcessChange<'_>),
    /// Sends an MQTT client the members of a room, as a retained message, or a change.
    pub send_members: fn(&mut Io, ConnKey, &str, &[u8], bool),
}

impl Ctx {
    /// Writes what this turn produced.
    pub fn flush(&mut self) {
        (self.hooks.flush)(self);
    }

    /// Gives closing connections at most `linger_ms` to take their output.
    pub fn linger(&mut self, linger_ms: u64) {
        let due_ms = self.io.now.mono_ms + linger_ms;
        for &key in &self.io.closing {
            if let Some(conn) = self.io.conns.get_mut(key)
                && !conn.flags.any(Flags::LINGERS)
            {
                conn.flags.set(Flags::LINGERS, true);
                self.io.timers.set(due_ms, Timer::Linger(key));
            }
        }
    }

    /// Applies classes that were set since the last call.
    pub(crate) fn see_classes(&mut self) {
        let changes = self.io.classes.changes();
        if changes == self.io.classes_seen {
            return;
        }
        self.io.classes_seen = changes;
        let (classes, hubs) = self.io.classes.both();
        self.broker.set_classes(classes, hubs, self.io.now, &mut self.io);
    }

    /// Number of a connection's subscriptions in a namespace, on this shard.
    pub fn subscriptions(&self, key: ConnKey, namespace: Namespace) -> usize {
        let (topics, patterns, shard) = self.broker.counts(key);
        if namespace == Namespace::Shard { shard } else { topics + patterns }
    }

    /// The hubs of this shard that have a log.
    pub fn hub_logs(&self) -> impl Iterator<Item = &HubLog> {
        self.broker.rooms.hubs.iter().filter_map(|hub| hub.log.as_ref())
    }

    /// Counts a refused publish or subscription.
    pub fn count_refusal(&self, is_publish: bool) {
        let metrics = &self.io.metrics;
        if is_publish {
            metrics.publishes_refused_total.add(1)
        } else {
            metrics.subscriptions_refused_total.add(1)
        }
    }
}
