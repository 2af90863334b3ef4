//! The status of a node's log for operators: state, counters, and hubs.

use super::health::{SYNC_BOUNDS_US, State};
use super::hubs::HubStatus;
use super::start::Started;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone, Debug, Serialize)]
pub struct LogStatus {
    /// `open`, `full` or `failed`.
    pub state: &'static str,
    /// The random identity of its directory, in hexadecimal.
    pub identity: String,
    pub reason: Option<String>,
    /// Counters (their names end in `_total`) and gauges.
    pub figures: BTreeMap<&'static str, u64>,
    /// The sync time histogram: upper bound in µs (none for the last bucket) and the number of syncs in the
    /// bucket.
    pub syncs: Vec<(Option<u64>, u64)>,
    pub hubs: Vec<HubStatus>,
}

impl Started {
    pub fn status(&self) -> LogStatus {
        let (state, reason) = (self.log.shared.state(), self.log.shared.reason());
        let reason = reason.filter(|_| state != State::Open);
        let hubs: Vec<HubStatus> =
            self.hubs.all().iter().map(|(id, hub)| hub.status(*id, (state, reason.as_deref()))).collect();
        let counters = &self.log.shared.counters;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (waiting, running) = self.readers.load();
        let figures = BTreeMap::from([
            ("records_total", load(&counters.records)),
            ("bytes_total", load(&counters.bytes)),
            ("syncs_total", load(&counters.syncs)),
            ("sync_us_total", load(&counters.sync_us)),
            ("checkpoints_total", load(&counters.checkpoints)),
            ("segments_retired_total", load(&counters.retired)),
            ("journal_waits_total", load(&counters.journal_waits)),
            ("opens_failed_total", load(&counters.opens_failed)),
            ("reads_total", load(&counters.reads)),
            ("reads_failed_total", load(&counters.reads_failed)),
            ("index_rebuilds_total", hubs.iter().map(|hub| hub.index_rebuilds).sum()),
            ("stream_rows_total", load(&counters.stream_rows)),
            ("stream_bytes_total", load(&counters.stream_bytes)),
            ("streams_failed_total", load(&counters.streams_failed)),
            ("streams_refused_total", load(&counters.streams_refused)),
            ("streams_idle_total", load(&counters.streams_idle)),
            ("streams_open", self.streams.count() as u64),
            ("pending_bytes", self.log.pending_bytes() as u64),
            ("reads_waiting", waiting as u64),
            ("reads_running", running as u64),
        ]);
        let bounds = SYNC_BOUNDS_US.iter().copied().map(Some).chain([None]);
        let syncs = bounds.zip(counters.syncs_by_time.iter().map(load)).collect();
        let (state, identity) = (state.name(), format!("{:016x}", self.identity));
        LogStatus { state, identity, reason, figures, syncs, hubs }
    }
}
