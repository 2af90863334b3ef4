//! Searches a hub's chain for records of a room that are no longer in memory.

use super::Log;
use crate::io::log_lines::Level;
use hubsub_log::record::{self, decode_headers};
use hubsub_log::{Chain, Disk, Keep, LogError, Mark};
use hubsub_route::{Found, LogPlace, LogRead, Namespace, Record, Then, Want};
use hubsub_types::{Epoch, ErrorCode, Position, Qos, Seq};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The duration of one turn of a query.
pub(super) const SLICE: Duration = Duration::from_millis(1);

/// The result of one turn.
#[derive(Debug)]
pub enum Answer<T> {
    Found(T),
    /// The segments lack records that it needs.
    Waits,
    /// There is more to search.
    GoesOn,
}

/// A query of a chain and its progress. It stores the results and a position, so its memory is bounded by the
/// results.
pub struct Search {
    pub read: Box<LogRead>,
    found: Found,
    /// The number of records taken; for the start of a subscription only the last one is stored.
    taken: u64,
    bytes: usize,
    /// Reading backwards: the last record examined.
    mark: Option<Mark>,
    /// Reading forwards: the next seq.
    next: Option<Seq>,
    /// When the turn ends, and whether it has.
    until: Instant,
    is_over: bool,
    /// The damage that it met, for the operator.
    pub damage: Option<String>,
}

impl Search {
    pub fn new(read: Box<LogRead>) -> Search {
        let (found, until) = (Found::default(), Instant::now());
        let (mark, next, damage) = (None, None, None);
        Search { read, found, taken: 0, bytes: 0, mark, next, until, is_over: false, damage }
    }

    /// Runs one turn. Records that it waits for are written to segments soon, on request; once the log has
    /// ended they never are.
    ///
    /// # Errors
    /// The error code for the client.
    pub fn turn(&mut self, chain: &Chain<Disk>, log: &Log) -> Result<Answer<Found>, ErrorCode> {
        self.turn_for(SLICE, chain, log)
    }

    pub(super) fn turn_for(
        &mut self,
        slice: Duration,
        chain: &Chain<Disk>,
        log: &Log,
    ) -> Result<Answer<Found>, ErrorCode> {
        let has_ended = log.shared.has_ended();
        let has_all = chain.next() > self.read.through;
        let later = || match has_ended {
            true => Err(ErrorCode::LogFailed),
            false => {
                log.hurry();
                Ok(Answer::Waits)
            }
        };
        let read = &self.read;
        let last = chain.rooms.get(chain.hash(&read.room)).filter(|last| last.epoch == read.epoch.0);
        let lacks = |seq: Seq| !has_all && last.is_none_or(|last| last.seq < seq.0);
        // A cursor takes what is available.
        let enough = match (read.want, &read.then) {
            (Want::On(seq), Then::Range(_) | Then::Attach(..)) => seq.max(read.seq_min),
            _ => read.seq_max,
        };
        if lacks(enough) {
            return later();
        }
        (self.until, self.is_over) = (Instant::now() + slice, false);
        let outcome = match read.want {
            Want::Back => self.read_back(chain),
            Want::On(seq) => self.read_on(chain, self.next.unwrap_or(seq.max(read.seq_min)).0),
            Want::Since(us) => self.read_since(chain, us.max(read.since_us)),
        };
        match outcome {
            Ok(()) if self.is_over => Ok(Answer::GoesOn),
            // All records found were too old; later ones may not be.
            Ok(()) if self.found.records.is_empty() && lacks(self.read.seq_max) => later(),
            Ok(()) => {
                let mut found = std::mem::take(&mut self.found);
                if self.read.want == Want::Back {
                    found.records.reverse();
                }
                Ok(Answer::Found(found))
            }
            // A cursor first gets the records before the damage; its next query meets the damage.
            Err(LogError::Damaged { .. }) if self.is_of_cursor() && !self.found.records.is_empty() => {
                Ok(Answer::Found(std::mem::take(&mut self.found)))
            }
            Err(error) => {
                log.shared.log(Level::Error, "log cannot be read", vec![("reason", error.to_string())]);
                self.damage = damage(&error);
                match self.damage.is_some().then(|| self.behind_damage(chain)).flatten() {
                    Some(found) => Ok(Answer::Found(found)),
                    None => Err(refusal(&error)),
                }
            }
        }
    }

    /// For a cursor whose next record is damaged: the first readable record after it, so that the reported
    /// gap is exactly the damage. The step doubles, then a binary search follows.
    fn behind_damage(&self, chain: &Chain<Disk>) -> Option<Found> {
        let Want::On(seq) = self.read.want else { return None };
        if !self.is_of_cursor() {
            return None;
        }
        let mut damaged = self.next.unwrap_or(seq.max(self.read.seq_min)).0;
        // The failed read may have met the damage of a later record.
        let (mut at, mut step) = (damaged, 1);
        let mut found = self.readable(chain, at);
        while found.is_none() && damaged < self.read.seq_max.0 {
            at = damaged.saturating_add(step).min(self.read.seq_max.0);
            found = self.readable(chain, at);
            if found.is_none() {
                (damaged, step) = (at, step * 2);
            }
        }
        let mut found = found?;
        while damaged + 1 < at {
            let middle = damaged + (at - damaged) / 2;
            match self.readable(chain, middle) {
                Some(record) => (at, found) = (middle, record),
                None => damaged = middle,
            }
        }
        Some(Found { first: Some(found.position.seq), records: vec![Arc::new(found)] })
    }

    /// The record of a seq, or the next existing one, if readable.
    fn readable(&self, chain: &Chain<Disk>, seq: u64) -> Option<Record> {
        let (read, mut found) = (&self.read, None);
        let taken = chain.read_on(&read.room, read.epoch.0, seq, 1, |record| {
            if (seq..=read.seq_max.0).contains(&record.seq) && record.timestamp_us >= read.since_us {
                found = Some(owned(record));
            }
            ControlFlow::Break(())
        });
        taken.ok().and(found)
    }

    fn read_back(&mut self, chain: &Chain<Disk>) -> Result<(), LogError> {
        let (room, wanted, mut mark) = (Arc::clone(&self.read.room), self.wanted(), self.mark);
        let outcome = chain.read_back_from(&room, &mut mark, wanted, |record| self.take_back(record));
        self.mark = mark;
        outcome
    }

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

    /// Reads records from a seq on, except those that are too old.
    fn read_on(&mut self, chain: &Chain<Disk>, from: u64) -> Result<(), LogError> {
        let (room, epoch, since_us) = (Arc::clone(&self.read.room), self.read.epoch.0, self.read.since_us);
        let (goes_on, mut is_old) = (self.next.is_some() && chain.keep == Keep::Log, false);
        let reach = chain.read_on(&room, epoch, from, self.wanted(), |record| {
            is_old = record.timestamp_us < since_us;
            // Records removed between two turns are reported by the next query.
            let is_gap = goes_on && self.next.is_some_and(|next| next.0 != record.seq);
            if is_old || is_gap { ControlFlow::Break(()) } else { self.take(record) }
        })?;
        if !is_old {
            self.begins_at(reach);
            return Ok(());
        }
        match self.first_since(chain, from, since_us)? {
            Some(from) => self.take_from(chain, from),
            None => Ok(()),
        }
    }

    /// Reads records from the first one that is not too old.
    fn read_since(&mut self, chain: &Chain<Disk>, since_us: u64) -> Result<(), LogError> {
        let from = match self.next {
            Some(next) => Some(next.0),
            None => self.first_since(chain, self.read.seq_min.0.max(1), since_us)?,
        };
        from.map_or(Ok(()), |from| self.take_from(chain, from))
    }

    fn take_from(&mut self, chain: &Chain<Disk>, from: u64) -> Result<(), LogError> {
        let (room, epoch, wanted) = (Arc::clone(&self.read.room), self.read.epoch.0, self.wanted());
        let first = chain.read_on(&room, epoch, from, wanted, |record| self.take(record))?;
        self.begins_at(first);
        Ok(())
    }

    fn begins_at(&mut self, first: Option<u64>) {
        if let Some(first) = first.filter(|&first| first <= self.read.seq_max.0) {
            self.found.first.get_or_insert(Seq(first));
        }
    }

    fn take(&mut self, record: &record::Record<'_>) -> ControlFlow<()> {
        if record.seq > self.read.seq_max.0 {
            return ControlFlow::Break(());
        }
        self.next = Some(Seq(record.seq + 1));
        self.keep(record)
    }

    /// The seq of the first record from `from` on that is not too old, by binary search: timestamps never
    /// decrease.
    fn first_since(
        &self,
        chain: &Chain<Disk>,
        mut from: u64,
        since_us: u64,
    ) -> Result<Option<u64>, LogError> {
        let (read, mut first) = (&self.read, None);
        let mut to = read.seq_max.0 + 1;
        while from < to {
            let middle = from + (to - from) / 2;
            let mut older = None;
            chain.read_on(&read.room, read.epoch.0, middle, 1, |record| {
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

    fn is_of_cursor(&self) -> bool {
        matches!(self.read.then, Then::Range(..))
    }

    fn is_of_attach(&self) -> bool {
        matches!(self.read.then, Then::Attach(..))
    }

    /// The number of records that it will take, as far as known.
    fn wanted(&self) -> u64 {
        match self.read.topic {
            None => self.read.count.saturating_sub(self.taken),
            Some(_) => u64::MAX,
        }
    }

    fn keep(&mut self, record: &record::Record<'_>) -> ControlFlow<()> {
        let namespace = namespace(record);
        let is_wanted = self.read.topic.as_ref().is_none_or(|topic| *topic == record.topic)
            && self.read.namespace.is_none_or(|wanted| wanted == namespace);
        if !is_wanted {
            return self.go_on();
        }
        if self.taken >= self.read.count {
            return ControlFlow::Break(());
        }
        let kept = owned(record);
        self.taken += 1;
        if self.is_of_attach() {
            self.found.records.clear();
        } else {
            self.bytes += kept.weight();
        }
        self.found.records.push(Arc::new(kept));
        let is_full = self.taken >= self.read.count || self.bytes >= self.read.bytes_max;
        if is_full { ControlFlow::Break(()) } else { self.go_on() }
    }

    fn go_on(&mut self) -> ControlFlow<()> {
        self.is_over = Instant::now() >= self.until;
        if self.is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// The damage, if that is why the log cannot be read.
pub fn damage(error: &LogError) -> Option<String> {
    matches!(error, LogError::Damaged { .. }).then(|| error.to_string())
}

/// The error code for a client when the log cannot be read.
pub fn refusal(error: &LogError) -> ErrorCode {
    match error {
        LogError::Damaged { .. } => ErrorCode::Quarantined,
        LogError::Full | LogError::Unopened { .. } => ErrorCode::DiskFull,
        _ => ErrorCode::LogFailed,
    }
}

pub(super) fn namespace(record: &record::Record<'_>) -> Namespace {
    if record.is_sharded { Namespace::Shard } else { Namespace::Global }
}

/// Converts a record of a log to the broker's form.
pub(super) fn owned(record: &record::Record<'_>) -> Record {
    let publisher = String::from_utf8_lossy(record.publisher).into();
    let headers: Vec<(Box<str>, Box<str>)> =
        decode_headers(record.headers).map(|(k, v)| (k.into(), v.into())).collect();
    let headers = (!headers.is_empty()).then(|| headers.into());
    let mut owned = Record::new(namespace(record), record.topic, record.payload, publisher, headers)
        .of_qos(Qos::from_lack(record.qos_lack).unwrap_or(Qos::ExactlyOnce))
        .retained(record.is_retained);
    owned.position = Position { epoch: Epoch(record.epoch), seq: Seq(record.seq) };
    owned.place = LogPlace { hub: record.hub, offset: record.offset };
    owned.timestamp_us = record.timestamp_us;
    owned
}
