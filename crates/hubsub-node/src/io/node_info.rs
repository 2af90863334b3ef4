//! Shared facts and counters of a node.

use super::descriptors::Descriptors;
use super::inbox::{Letter, Mailer};
use super::metrics::ShardMetrics;
use super::origin_check::OriginCheck;
use hubsub_types::names::Matcher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// The cargo profile of this build. Benchmarks refuse `debug`.
pub const BUILD_PROFILE: &str = env!("HUBSUB_PROFILE");

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MqttRules {
    /// Whether a client with more unacknowledged messages than `mqtt_receive_max` is disconnected, as MQTT
    /// 5.0 requires; else it is only counted.
    pub is_strict: bool,
    /// Whether MQTT 3.1 client ids may exceed 23 characters.
    pub long_ids: bool,
    /// Whether wills of clients without a session are recorded where sessions are.
    pub records_wills: bool,
}

impl Default for MqttRules {
    fn default() -> MqttRules {
        MqttRules { is_strict: true, long_ids: false, records_wills: false }
    }
}

/// Shared facts and counters of a node.
pub struct NodeInfo {
    pub name: String,
    /// Identifies this process among all that had the node's name.
    pub incarnation: u32,
    pub version: String,
    /// Address for Redis clients.
    pub redis: String,
    pub port: u16,
    /// Port for Redis cluster clients.
    pub cluster_port: u16,
    pub mqtt: MqttRules,
    /// Patterns of the topics that browsers may join.
    pub phoenix_topics: Vec<Matcher>,
    /// Whether sessions outlive this process.
    pub keeps_sessions: bool,
    /// The origin check for browsers.
    pub pages: OriginCheck,
    /// Limit of descriptors for clients.
    pub descriptors: Descriptors,
    pub started: Instant,
    /// Number of client connections.
    pub connections: AtomicU64,
    /// Number of room members that are connected to this node.
    pub members: AtomicU64,
    pub clients: AtomicU64,
    pub metrics: Vec<Arc<ShardMetrics>>,
    /// While stopping: per shard, how often it became busy or quiet; odd while quiet.
    pub(crate) quiet: Vec<AtomicU64>,
    /// While stopping: whether a shard saw that no shard has work left.
    pub(crate) all_done: AtomicBool,
    /// Whether the hint that HubSub stores no keys has been logged.
    pub hinted: AtomicBool,
    /// A random name of this run, 40 hex digits, as Redis's `run_id`.
    pub run_id: String,
}

impl NodeInfo {
    /// Sets whether a shard is quiet. The shard clears it before it handles mail.
    pub fn set_quiet(&self, shard: u16, is_quiet: bool) {
        let changes = &self.quiet[usize::from(shard)];
        if (changes.load(Ordering::SeqCst) % 2 == 1) != is_quiet {
            changes.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Whether no shard has work left. Once a shard has seen this, it holds for all: ending shards still send
    /// mail, which nobody will take.
    pub(crate) fn all_done<M: Letter>(&self, mailer: &Mailer<M>) -> bool {
        let changes = || self.quiet.iter().map(|c| c.load(Ordering::SeqCst)).collect::<Vec<_>>();
        if self.all_done.load(Ordering::SeqCst) {
            return true;
        }
        // Shards and mailboxes are checked one after the other, so mail could slip through: no shard may have
        // become busy meanwhile.
        let before = changes();
        let is_done = before.iter().all(|c| c % 2 == 1) && mailer.all_empty() && changes() == before;
        self.all_done.fetch_or(is_done, Ordering::SeqCst);
        is_done
    }
}

/// The run id of a process, unique among all that ever ran (FNV-1a).
pub fn run_of(node: &str, incarnation: u64) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    node.as_bytes().iter().chain(&incarnation.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, step)
}
