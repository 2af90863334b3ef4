//! Reads a range of a hub's records, of all rooms in order of offsets, filtered by topic.

use super::Log;
use super::reading::{Answer, SLICE, damage, namespace, owned, refusal};
use crate::io::log_lines::Level;
use hubsub_log::{Chain, Cursor, Disk, Kind, LogError};
use hubsub_route::{HubLogRead, HubRange};
use hubsub_types::ErrorCode;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Records between two checks of the clock.
const LOOK_EVERY: u32 = 64;

/// How long to search for matching records before the response reports how far the search came, so that
/// nothing is searched twice.
const PATIENCE: Duration = Duration::from_millis(250);

pub struct HubSearch {
    pub asked: Box<HubLogRead>,
    cursor: Option<Cursor<Disk>>,
    range: HubRange,
    bytes: usize,
    begun: Option<Instant>,
    /// The damage that it met, for the operator.
    pub damage: Option<String>,
}

impl HubSearch {
    pub fn new(asked: Box<HubLogRead>) -> HubSearch {
        let range = HubRange { next: asked.read.next, ..HubRange::default() };
        HubSearch { asked, cursor: None, range, bytes: 0, begun: None, damage: None }
    }

    /// Reads for at most `SLICE`.
    ///
    /// # Errors
    /// The error code for the client.
    pub fn turn(&mut self, chain: &Chain<Disk>, log: &Log) -> Result<Answer<HubRange>, ErrorCode> {
        let begun = *self.begun.get_or_insert_with(Instant::now);
        let (slice, has_ended) = (Instant::now() + SLICE, log.shared.has_ended());
        let HubLogRead { read, through } = &*self.asked;
        let until = through + 1;
        if self.cursor.is_none() {
            // Skips older records that still exist.
            let skipped = if read.since_us > 0 { chain.offset_before_time(read.since_us) } else { 0 };
            let is_left = read.next >= chain.info().earliest || read.since_us > 0;
            let from = if is_left { read.next.max(skipped).min(until) } else { read.next };
            self.range.next = self.range.next.max(from);
            self.cursor = Some(Cursor::at(from));
        }
        let cursor = self.cursor.as_mut().expect("it was made above");
        let (range, bytes, mut seen) = (&mut self.range, &mut self.bytes, 0);
        let outcome = chain.read_through(cursor, until, |record| {
            let is_wanted = record.kind == Kind::Message
                && record.timestamp_us >= read.since_us
                && read.filter.wants(namespace(record), record.topic);
            if is_wanted {
                let kept = owned(record);
                *bytes += kept.weight();
                range.records.push(Arc::new(kept));
            }
            seen += 1;
            let is_late = seen % LOOK_EVERY == 0 && Instant::now() >= slice;
            if is_late || is_full(range, *bytes, read) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        self.range.next = self.range.next.max(cursor.next());
        let is_over = self.range.next > *through || is_full(&self.range, self.bytes, read);
        match outcome {
            Ok(()) if is_over => Ok(self.found()),
            Ok(()) if begun.elapsed() >= PATIENCE && self.range.next > self.asked.read.next => {
                Ok(self.found())
            }
            Ok(()) if self.range.next < chain.next() => Ok(Answer::GoesOn),
            // A cursor takes what is available.
            Ok(()) if !self.range.records.is_empty() => Ok(self.found()),
            Ok(()) if has_ended => Err(ErrorCode::LogFailed),
            Ok(()) => {
                log.hurry();
                Ok(Answer::Waits)
            }
            // The cursor first gets the records before the error; its next query meets it.
            Err(_) if !self.range.records.is_empty() => Ok(self.found()),
            Err(LogError::Gone { first, end }) => {
                let next = end.min(until);
                self.range = HubRange { next, lost: Some((first, next - 1)), ..HubRange::default() };
                Ok(self.found())
            }
            Err(error) => {
                log.shared.log(Level::Error, "log cannot be read", vec![("reason", error.to_string())]);
                self.damage = damage(&error);
                let first = self.range.next;
                match self.damage.is_some().then(|| behind_damage(chain, first, until)) {
                    Some(next) => {
                        self.range = HubRange { next, lost: Some((first, next - 1)), ..HubRange::default() };
                        Ok(self.found())
                    }
                    None => Err(refusal(&error)),
                }
            }
        }
    }

    /// The response; the caller sets `committed`.
    fn found(&mut self) -> Answer<HubRange> {
        Answer::Found(std::mem::take(&mut self.range))
    }
}

fn is_full(range: &HubRange, bytes: usize, read: &hubsub_route::HubRead) -> bool {
    bytes >= read.bytes_max || range.records.len() >= read.records_max as usize
}

/// The first readable offset after a damaged one; `until` if there is none. The step doubles, then a binary
/// search follows.
fn behind_damage(chain: &Chain<Disk>, damaged: u64, until: u64) -> u64 {
    let is_readable = |offset: u64| {
        let mut cursor = Cursor::at(offset);
        let read = chain.read_through(&mut cursor, offset + 1, |_| ControlFlow::Break(()));
        read.is_ok() && cursor.next() > offset
    };
    let (mut bad, mut step, mut good) = (damaged, 1, until);
    while bad + step < until {
        if is_readable(bad + step) {
            good = bad + step;
            break;
        }
        (bad, step) = (bad + step, step * 2);
    }
    while bad + 1 < good {
        let middle = bad + (good - bad) / 2;
        if is_readable(middle) { good = middle } else { bad = middle }
    }
    good
}
