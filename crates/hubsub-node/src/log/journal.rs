//! The journal thread: all waiting batches go into one frame with one sync; batches that arrive meanwhile
//! share the next.

use super::health::State;
use super::intake::{Intake, Taken, bytes_of};
use super::segments::{Frame, Handover, RETRY};
use super::shared::Shared;
use crate::io::spin::Spin;
use hubsub_log::storage::Storage;
use hubsub_log::{Batch, HubId, Journal, LogError};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// After this time an idle journal writes its mark.
const MARK: Duration = Duration::from_millis(100);

/// The maximal size of a frame in bytes, unless a record is longer.
const FRAME_BYTES: usize = 16 << 20;

pub struct Thread<S: Storage> {
    pub journal: Journal<S>,
    pub intake: Arc<Intake>,
    pub shared: Arc<Shared>,
    pub handover: Arc<Handover<S>>,
    pub unwritten_bytes_max: usize,
}

impl<S: Storage> Thread<S> {
    pub fn run(mut self) {
        crate::io::sys::be_prompt();
        let mut spin = Spin::default();
        loop {
            let wait = self.journal.wants_mark().then_some(MARK);
            let done = match self.intake.take(wait, &mut spin) {
                Taken::Batches(batches) => self.write_all(batches),
                Taken::Nothing => self.write(Vec::new()),
                Taken::End => return,
            };
            if let Err(e) = done {
                // Records that are given up may have been acknowledged from memory, so this is no clean end.
                if !matches!(e, LogError::Full) || self.intake.bytes() > 0 {
                    self.shared.fail(&e.to_string());
                }
                return;
            }
        }
    }

    /// Writes batches in frames of bounded length.
    fn write_all(&mut self, batches: Vec<Batch>) -> Result<(), LogError> {
        let mut frame: Vec<Batch> = Vec::new();
        let mut bytes = 0;
        for batch in batches {
            if bytes + batch.bytes.len() > FRAME_BYTES && !frame.is_empty() {
                self.write(std::mem::take(&mut frame))?;
                bytes = 0;
            }
            bytes += batch.bytes.len();
            frame.push(batch);
        }
        self.write(frame)
    }

    /// Syncs one frame, notifies those that wait for it, and passes it on. While the disk is full it retries
    /// until the node stops.
    fn write(&mut self, batches: Vec<Batch>) -> Result<(), LogError> {
        let bytes = bytes_of(&batches);
        let frame = loop {
            if self.shared.state() == State::Failed {
                return Err(LogError::Broken);
            }
            if self.journal.wants_next()
                && let Some(file) = self.handover.take_file(!self.journal.has_room(bytes), RETRY)
            {
                self.journal.give_next(file);
            }
            let written = if self.journal.has_room(bytes) {
                self.journal.append(&batches)
            } else {
                Err(LogError::Full)
            };
            match written {
                Ok(frame) => break frame,
                Err(LogError::Full) if self.shared.is_stopping() => return Err(LogError::Full),
                Err(LogError::Full) => self.handover.pause(RETRY),
                Err(e) => return Err(e),
            }
        };
        if batches.is_empty() {
            return self.journal.sync().map(drop);
        }
        let begin = Instant::now();
        self.shared.turns.sync(|| self.journal.sync())?;
        let records: u64 = batches.iter().map(|batch| u64::from(batch.count)).sum();
        self.shared.counters.synced(records, bytes as u64, begin.elapsed());
        let mut safe: BTreeMap<HubId, u64> = BTreeMap::new();
        for batch in &batches {
            safe.insert(batch.hub, batch.first + u64::from(batch.count) - 1);
        }
        self.intake.done(&batches);
        self.shared.safe(&safe.into_iter().collect::<Vec<_>>())?;
        let frame = Frame { file: self.journal.file(), number: frame, batches };
        if self.handover.put(frame, self.unwritten_bytes_max) {
            self.shared.counters.journal_waits.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}
