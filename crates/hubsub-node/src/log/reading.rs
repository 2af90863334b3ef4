//! What a reader does: finds in a hub's chain what a room's memory has no more.

use super::Log;
use crate::control::Level;
use hubsub_log::record::{self, decode_headers};
use hubsub_log::{Chain, Disk, LogError};
use hubsub_route::{Found, LogRead, Namespace, Record, Then, Want};
use hubsub_types::{Epoch, ErrorCode, HubId, Position, Seq};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// The chains of a node's hubs that are whole.
#[derive(Default)]
pub struct Chains(pub HashMap<HubId, Arc<Chain<Disk>>>);

impl Chains {
    /// A hub's chain.
    pub fn get(&self, hub: HubId) -> Option<Arc<Chain<Disk>>> {
        self.0.get(&hub).cloned()
    }
}

/// Answers a question; none while the segments have not what that takes. It is on its
/// way there, at leisure until somebody wants it; once the log has ended it never comes.
pub fn find(chain: &Chain<Disk>, read: &LogRead, log: &Log) -> Result<Option<Found>, ErrorCode> {
    let has_ended = log.has_ended();
    let has_all = chain.next() > read.through;
    let later = || match has_ended {
        true => Err(ErrorCode::LogFailed),
        false => {
            log.hurry();
            Ok(None)
        }
    };
    let last = chain.rooms.get(chain.hash(&read.room)).filter(|last| last.epoch == read.epoch.0);
    // Who reads on takes what there is.
    let enough = match (read.want, &read.then) {
        (Want::On(seq), Then::Range(_) | Then::Attach(..)) => seq.max(read.seq_min),
        _ => read.seq_max,
    };
    if !has_all && last.is_none_or(|last| last.seq < enough.0) {
        return later();
    }
    let mut found = Collected { read, records: Vec::new(), taken: 0, bytes: 0 };
    let outcome = match read.want {
        Want::Back => {
            let outcome = chain.read_back(&read.room, |record| found.take_back(record));
            found.records.reverse();
            outcome
        }
        Want::On(seq) => found.read_on(chain, seq.max(read.seq_min).0),
        Want::Since(us) => found.keep_first(chain, us.max(read.since_us)),
    };
    match outcome {
        // All that is there was too old; what comes may not be.
        Ok(())
            if found.records.is_empty() && !has_all && last.is_none_or(|last| last.seq < read.seq_max.0) =>
        {
            later()
        }
        Ok(()) => Ok(Some(found.records)),
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
    /// How many were taken; where a subscription begins only the last one of them is kept.
    taken: u64,
    bytes: usize,
}

impl Collected<'_> {
    /// The next record, in order of seqs.
    fn take(&mut self, record: &record::Record<'_>) -> ControlFlow<()> {
        if record.seq > self.read.seq_max.0 {
            return ControlFlow::Break(());
        }
        self.keep(record)
    }

    /// The next record, from the last one back.
    fn take_back(&mut self, record: &record::Record<'_>) -> ControlFlow<()> {
        let is_present = record.epoch == self.read.epoch.0;
        if !is_present && self.is_of_attach() {
            return ControlFlow::Break(());
        }
        if is_present && record.seq > self.read.seq_max.0 {
            return ControlFlow::Continue(());
        }
        if (is_present && record.seq < self.read.seq_min.0) || record.timestamp_us < self.read.since_us {
            return ControlFlow::Break(());
        }
        self.keep(record)
    }

    /// The records from a seq on, but for those that are too old.
    fn read_on(&mut self, chain: &Chain<Disk>, from: u64) -> Result<(), LogError> {
        let (read, mut is_old) = (self.read, false);
        chain.read_on(&read.room, read.epoch.0, from, None, |record| {
            is_old = record.timestamp_us < read.since_us;
            if is_old { ControlFlow::Break(()) } else { self.take(record) }
        })?;
        match is_old.then(|| self.first_since(chain, from, read.since_us)).transpose()?.flatten() {
            Some(from) => chain.read_on(&read.room, read.epoch.0, from, None, |r| self.take(r)).map(drop),
            None => Ok(()),
        }
    }

    /// The first record that is not older.
    fn keep_first(&mut self, chain: &Chain<Disk>, since_us: u64) -> Result<(), LogError> {
        let read = self.read;
        let Some(from) = self.first_since(chain, read.seq_min.0.max(1), since_us)? else { return Ok(()) };
        chain.read_on(&read.room, read.epoch.0, from, None, |record| self.take(record)).map(drop)
    }

    /// Seq of the first record from `from` on that is not older. Timestamps never fall, so
    /// half of what is left goes with each look.
    fn first_since(
        &self,
        chain: &Chain<Disk>,
        mut from: u64,
        since_us: u64,
    ) -> Result<Option<u64>, LogError> {
        let (read, mut first) = (self.read, None);
        let mut to = read.seq_max.0 + 1;
        while from < to {
            let middle = from + (to - from) / 2;
            let mut older = None;
            chain.read_on(&read.room, read.epoch.0, middle, None, |record| {
                if record.timestamp_us < since_us {
                    older = Some(record.seq);
                } else if record.seq <= read.seq_max.0 {
                    first = Some(record.seq);
                }
                ControlFlow::Break(())
            })?;
            match older {
                Some(seq) => from = seq + 1,
                None => to = middle,
            }
        }
        Ok(first)
    }

    fn is_of_attach(&self) -> bool {
        matches!(self.read.then, Then::Attach(..))
    }

    fn keep(&mut self, record: &record::Record<'_>) -> ControlFlow<()> {
        let namespace = namespace(record);
        let is_wanted = self.read.topic.as_ref().is_none_or(|topic| *topic == record.topic)
            && self.read.namespace.is_none_or(|wanted| wanted == namespace);
        if !is_wanted {
            return ControlFlow::Continue(());
        }
        if self.taken >= self.read.count {
            return ControlFlow::Break(());
        }
        let kept = owned(record);
        self.taken += 1;
        if self.is_of_attach() {
            self.records.clear();
        } else {
            self.bytes += kept.weight();
        }
        self.records.push(Arc::new(kept));
        let is_full = self.taken >= self.read.count || self.bytes >= self.read.bytes_max;
        if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

fn namespace(record: &record::Record<'_>) -> Namespace {
    if record.is_sharded { Namespace::Shard } else { Namespace::Global }
}

/// A record of a log as brokers have it.
pub(super) fn owned(record: &record::Record<'_>) -> Record {
    let publisher = String::from_utf8_lossy(record.publisher).into();
    let headers: Vec<(Box<str>, Box<str>)> =
        decode_headers(record.headers).map(|(k, v)| (k.into(), v.into())).collect();
    let headers = (!headers.is_empty()).then(|| headers.into());
    let mut owned = Record::new(namespace(record), record.topic, record.payload, publisher, headers);
    owned.position = Position { epoch: Epoch(record.epoch), seq: Seq(record.seq) };
    owned.timestamp_us = record.timestamp_us;
    owned
}
