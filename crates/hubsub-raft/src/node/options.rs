//! Configuration of a node, and of openraft.

use std::path::PathBuf;
use std::time::Duration;

use openraft::{Config, SnapshotPolicy};

use crate::limits::{AWAY_MAX, SNAPSHOT_ENTRIES};
use crate::types::Peer;

#[derive(Clone, Debug)]
pub struct Options {
    pub directory: PathBuf,
    /// Its name, and the address at which others reach its transport.
    pub peer: Peer,
    /// Maximum number of voters: 3 or 5.
    pub voters_max: usize,
    pub timing: Timing,
    /// A snapshot is made when this many entries follow the last one; a fifth of them is retained after it.
    pub snapshot_entries: u64,
}

impl Options {
    /// The defaults, with three voters.
    pub fn new(directory: PathBuf, peer: Peer) -> Self {
        Self { directory, peer, voters_max: 3, timing: Timing::default(), snapshot_entries: SNAPSHOT_ENTRIES }
    }
}

/// Time limits and intervals. All nodes of a cluster must have the same.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    pub heartbeat: Duration,
    /// A follower that hears nothing for the longer of both, and then a random time between them, starts an
    /// election.
    pub election: (Duration, Duration),
    /// Limit for the answer to entries, and for one step of forwarding.
    pub rpc: Duration,
    pub request: Duration,
    /// Interval at which a leader checks leases and members.
    pub tick: Duration,
    /// A member that was silent for this long is away: [`crate::limits::AWAY_MAX`].
    pub away: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        let ms = Duration::from_millis;
        Self {
            heartbeat: ms(50),
            election: (ms(150), ms(300)),
            rpc: ms(1000),
            request: ms(5000),
            tick: ms(50),
            away: AWAY_MAX,
        }
    }
}

/// The configuration of openraft; the error describes inconsistent times.
pub(super) fn config(options: &Options) -> Result<Config, String> {
    let ms = |time: Duration| time.as_millis() as u64;
    let (timing, entries) = (&options.timing, options.snapshot_entries);
    let config = Config {
        cluster_name: "hubsub".into(),
        heartbeat_interval: ms(timing.heartbeat),
        election_timeout_min: ms(timing.election.0),
        election_timeout_max: ms(timing.election.1),
        // The last step of a snapshot is its installation, which includes a sync of the whole.
        install_snapshot_timeout: 60_000,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(entries),
        max_in_snapshot_log_to_keep: entries / 5,
        purge_batch_size: (entries / 5).max(1),
        // A follower that lags by more than the retained entries gets a snapshot.
        replication_lag_threshold: entries * 2,
        enable_pre_vote: Some(true),
        // The store is in memory: a leader from before a restart must be elected again to know which entries
        // were committed.
        enable_leader_restore: Some(false),
        ..Config::default()
    };
    config.validate().map_err(|error| error.to_string())
}
