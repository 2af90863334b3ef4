//! Whether a log accepts records, and its counters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum State {
    Open = 0,
    /// None until the disk has room or a file can be opened.
    Full = 1,
    /// None any more: it is unknown what reached the disk since the last sync.
    Failed = 2,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            State::Open => "open",
            State::Full => "full",
            State::Failed => "failed",
        }
    }
}

/// Upper bounds of the sync time histogram, in µs; longer syncs count in the last bucket.
pub const SYNC_BOUNDS_US: [u64; 9] = [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 50_000, 250_000];

/// Counters since the start.
#[derive(Default)]
pub struct Counters {
    pub records: AtomicU64,
    pub bytes: AtomicU64,
    /// Syncs of the journal that carried records.
    pub syncs: AtomicU64,
    /// The total duration of these, in µs.
    pub sync_us: AtomicU64,
    pub syncs_by_time: [AtomicU64; SYNC_BOUNDS_US.len() + 1],
    pub checkpoints: AtomicU64,
    pub retired: AtomicU64,
    /// Failed tries to open a file.
    pub opens_failed: AtomicU64,
    pub journal_waits: AtomicU64,
    /// Queries that readers finished, including failed ones.
    pub reads: AtomicU64,
    pub reads_failed: AtomicU64,
    pub stream_rows: AtomicU64,
    /// Bytes of these rows.
    pub stream_bytes: AtomicU64,
    pub streams_failed: AtomicU64,
    /// Streams refused because too many were open.
    pub streams_refused: AtomicU64,
    /// Streams closed because nothing was requested.
    pub streams_idle: AtomicU64,
}

impl Counters {
    pub fn synced(&self, records: u64, bytes: u64, took: Duration) {
        let us = took.as_micros() as u64;
        self.records.fetch_add(records, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.sync_us.fetch_add(us, Ordering::Relaxed);
        let at = SYNC_BOUNDS_US.partition_point(|&bound| bound < us);
        self.syncs_by_time[at].fetch_add(1, Ordering::Relaxed);
    }
}
