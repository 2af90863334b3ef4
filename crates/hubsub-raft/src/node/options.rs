//! How a node is set up, and what openraft makes of it.

use std::path::PathBuf;
use std::time::Duration;

use openraft::{Config, SnapshotPolicy};

use crate::limits::{AWAY_MAX, SNAPSHOT_ENTRIES};
use crate::types::Peer;

/// How a node is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where its files are.
    pub directory: PathBuf,
    /// Its name, and where its transport listens, as others reach it.
    pub peer: Peer,
    /// Most voters: 3 or 5.
    pub voters_max: usize,
    /// Its clocks.
    pub timing: Timing,
    /// A snapshot is made when so many entries follow the last one; a fifth of them is kept behind it.
    pub snapshot_entries: u64,
}

impl Options {
    /// What suits most: three voters.
    pub fn new(directory: PathBuf, peer: Peer) -> Self {
        Self { directory, peer, voters_max: 3, timing: Timing::default(), snapshot_entries: SNAPSHOT_ENTRIES }
    }
}

/// How long things may take. All nodes of a cluster have the same.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Between two heartbeats of a leader.
    pub heartbeat: Duration,
    /// A follower that hears nothing for the longer of both, and then a random time between them, asks to be elected.
    pub election: (Duration, Duration),
    /// For an answer to entries, and for one step of forwarding.
    pub rpc: Duration,
    /// For all of a request.
    pub request: Duration,
    /// How often a leader looks after leases and members.
    pub tick: Duration,
    /// A member that was silent for so long is away: [`crate::limits::AWAY_MAX`].
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

/// openraft's part of it; an error says which times make no sense.
pub(super) fn config(options: &Options) -> Result<Config, String> {
    let ms = |time: Duration| time.as_millis() as u64;
    let (timing, entries) = (&options.timing, options.snapshot_entries);
    let config = Config {
        cluster_name: "hubsub".into(),
        heartbeat_interval: ms(timing.heartbeat),
        election_timeout_min: ms(timing.election.0),
        election_timeout_max: ms(timing.election.1),
        // A snapshot ends with being installed, and that with a sync of the whole.
        install_snapshot_timeout: 60_000,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(entries),
        max_in_snapshot_log_to_keep: entries / 5,
        purge_batch_size: (entries / 5).max(1),
        // Who is further behind than what is kept gets a snapshot.
        replication_lag_threshold: entries * 2,
        enable_pre_vote: Some(true),
        // The store is in memory: who led before a restart has to be elected to know what was committed.
        enable_leader_restore: Some(false),
        ..Config::default()
    };
    config.validate().map_err(|error| error.to_string())
}
