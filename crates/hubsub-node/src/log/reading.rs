//! What a reader does: finds in a hub's chain what a room's memory has no more.

use super::Log;
use crate::control::Level;
use hubsub_log::record::{self, decode_headers};
use hubsub_log::{Chain, Disk, LogError};
use hubsub_route::{Found, LogRead, Namespace, Record, Want};
use hubsub_types::{Epoch, ErrorCode, HubId, Position, Seq};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The chains of a node's hubs that are whole.
#[derive(Default)]
pub struct Chains(pub HashMap<HubId, Arc<Chain<Disk>>>);

impl Chains {
    /// A hub's chain.
    pub fn get(&self, hub: HubId) -> Option<Arc<Chain<Disk>>> {
        self.0.get(&hub).cloned()
    }
}

/// How long a reader waits for the segments to have what was committed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Wait between two looks at it.
const LOOK: Duration = Duration::from_micros(200);

/// Answers a question.
pub fn find(chain: &Chain<Disk>, read: &LogRead, log: &Log) -> Result<Found, ErrorCode> {
    let begin = Instant::now();
    // What is committed is on its way into the segments, at leisure until somebody wants it.
    let has_all = || {
        let last = chain.rooms.get(chain.hash(&read.room));
        let has_room = last.is_some_and(|last| last.epoch == read.epoch.0 && last.seq >= read.seq_max.0);
        has_room || chain.next() > read.through
    };
    while !has_all() {
        if begin.elapsed() > PATIENCE {
            return Err(ErrorCode::TimedOut);
        }
        log.hurry();
        std::thread::sleep(LOOK);
    }
    let mut found = Collected { read, records: Vec::new(), bytes: 0 };
    let outcome = match read.want {
        Want::Back => {
            let outcome = chain.read_back(&read.room, |record| found.take_back(record));
            found.records.reverse();
            outcome
        }
        Want::On(seq) => {
            let from = seq.max(read.seq_min).0;
            chain.read_on(&read.room, read.epoch.0, from, None, |record| found.take(record)).map(drop)
        }
        // What is found here is replayed next, so looking at all of it costs no more.
        Want::Since(us) => chain.read_back(&read.room, |record| found.take_first(record, us)),
    };
    match outcome {
        Ok(()) => Ok(found.records),
        Err(error) => {
            log.tell(Level::Error, "log cannot be read", vec![("reason", error.to_string())]);
            Err(refusal(&error))
        }
    }
}

/// What a client is told when the log cannot be read.
pub fn refusal(error: &LogError) -> ErrorCode {
    match error {
        LogError::Damaged { .. } => ErrorCode::Quarantined,
        LogError::Full => ErrorCode::DiskFull,
        _ => ErrorCode::LogFailed,
    }
}

struct Collected<'a> {
    read: &'a LogRead,
    records: Found,
    bytes: usize,
}

impl Collected<'_> {
    /// The next record, in order of seqs.
    fn take(&mut self, record: &record::Record<'_>) -> ControlFlow<()> {
        if record.seq > self.read.seq_max.0 {
            return ControlFlow::Break(());
        }
        if record.timestamp_us < self.read.since_us && self.records.is_empty() {
            return ControlFlow::Continue(());
        }
        self.keep(record)
    }

    /// The next record, from the last one back.
    fn take_back(&mut self, record: &record::Record<'_>) -> ControlFlow<()> {
        let is_present = record.epoch == self.read.epoch.0;
        if is_present && record.seq > self.read.seq_max.0 {
            return ControlFlow::Continue(());
        }
        if (is_present && record.seq < self.read.seq_min.0) || record.timestamp_us < self.read.since_us {
            return ControlFlow::Break(());
        }
        self.keep(record)
    }

    /// The next record, from the last one back: the first of this epoch that is not
    /// older is the only one wanted.
    fn take_first(&mut self, record: &record::Record<'_>, since_us: u64) -> ControlFlow<()> {
        let is_over = record.epoch != self.read.epoch.0
            || record.seq < self.read.seq_min.0
            || record.timestamp_us < since_us.max(self.read.since_us);
        if is_over {
            return ControlFlow::Break(());
        }
        if record.seq <= self.read.seq_max.0 {
            self.records.clear();
            _ = self.keep(record);
        }
        ControlFlow::Continue(())
    }

    fn keep(&mut self, record: &record::Record<'_>) -> ControlFlow<()> {
        let namespace = if record.is_sharded { Namespace::Shard } else { Namespace::Global };
        let is_wanted = self.read.topic.as_ref().is_none_or(|topic| *topic == record.topic)
            && self.read.namespace.is_none_or(|wanted| wanted == namespace);
        if !is_wanted {
            return ControlFlow::Continue(());
        }
        if self.records.len() as u64 >= self.read.count {
            return ControlFlow::Break(());
        }
        let publisher = String::from_utf8_lossy(record.publisher).into();
        let headers: Vec<(Box<str>, Box<str>)> =
            decode_headers(record.headers).map(|(k, v)| (k.into(), v.into())).collect();
        let headers = (!headers.is_empty()).then(|| headers.into());
        let mut kept = Record::new(namespace, record.topic, record.payload, publisher, headers);
        kept.position = Position { epoch: Epoch(record.epoch), seq: Seq(record.seq) };
        kept.timestamp_us = record.timestamp_us;
        self.bytes += kept.weight();
        self.records.push(Arc::new(kept));
        let is_full = self.records.len() as u64 >= self.read.count || self.bytes >= self.read.bytes_max;
        if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}
