//! The segment thread: writes synced records to segments in large writes, and does checkpoints, retention,
//! and preparation of the next journal file. Other threads send tasks, which run between two writes.

use super::archive::Keeping;
use super::health::State;
use super::intake::bytes_of;
use super::shared::{Lack, LogSettings, Shared};
use crate::io::log_lines::Level;
use hubsub_log::journal::Prepared;
use hubsub_log::storage::Storage;
use hubsub_log::{Batch, Compaction, HubId, LogError, Retention, Segments, Verdict};
use std::collections::HashMap;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The interval of non-urgent work.
const HOUSEKEEPING: Duration = Duration::from_millis(500);

/// Buffered bytes that trigger a write before it is due.
const WRITE_BYTES: usize = 256 << 10;

/// The retry interval while the disk is full.
pub(super) const RETRY: Duration = Duration::from_millis(50);

/// The longest interval between tries to open a file; it doubles from `RETRY`.
const RETRY_MAX: Duration = Duration::from_secs(1);

/// After this time without being able to open a file, records are refused as on a full disk.
const REFUSES_AFTER: Duration = Duration::from_secs(1);

pub struct Frame {
    pub file: u64,
    pub number: u64,
    pub batches: Vec<Batch>,
}

/// A task with access to the segments and the retention settings of each hub.
type Errand<S> = Box<dyn FnOnce(&mut Segments<S>, &mut HashMap<HubId, Keeping>) + Send>;

/// The exchange between the two threads: frames one way, journal files the other. Tasks of other threads come
/// with the frames.
pub struct Handover<S: Storage> {
    inner: Mutex<Inner<S>>,
    to_write: Condvar,
    to_sync: Condvar,
}

struct Inner<S: Storage> {
    frames: Vec<Frame>,
    bytes: usize,
    /// True if the frames' records are waited for.
    is_urgent: bool,
    /// Tasks; senders wait for them, so there is at most one per sending thread.
    errands: Vec<Errand<S>>,
    file: Option<Prepared<S::File>>,
    has_ended: bool,
}

impl<S: Storage> Default for Handover<S> {
    fn default() -> Self {
        let (frames, errands) = (Vec::new(), Vec::new());
        let inner = Inner { frames, bytes: 0, is_urgent: false, errands, file: None, has_ended: false };
        Handover { inner: Mutex::new(inner), to_write: Condvar::new(), to_sync: Condvar::new() }
    }
}

impl<S: Storage> Handover<S> {
    fn inner(&self) -> std::sync::MutexGuard<'_, Inner<S>> {
        self.inner.lock().expect("nothing panics under this lock")
    }

    /// Passes a frame on; waits while more than `bytes_max` are queued. Returns whether it waited.
    pub fn put(&self, frame: Frame, bytes_max: usize) -> bool {
        let mut inner = self.inner();
        let has_waited = inner.bytes > bytes_max;
        while inner.bytes > bytes_max && !inner.has_ended {
            inner.is_urgent = true;
            self.to_write.notify_one();
            inner = self.to_sync.wait(inner).expect("nothing panics under this lock");
        }
        let before = inner.bytes;
        inner.bytes += bytes_of(&frame.batches);
        inner.frames.push(frame);
        if before < WRITE_BYTES && inner.bytes >= WRITE_BYTES {
            self.to_write.notify_one();
        }
        has_waited
    }

    /// Requests that queued frames be written now instead of collected for a larger write.
    pub fn hurry(&self) {
        let mut inner = self.inner();
        if !inner.frames.is_empty() && !std::mem::replace(&mut inner.is_urgent, true) {
            self.to_write.notify_one();
        }
    }

    /// Takes the next journal file if it is ready; if it is `needed`, waits up to `wait`.
    pub fn take_file(&self, needed: bool, wait: Duration) -> Option<Prepared<S::File>> {
        let mut inner = self.inner();
        if needed && inner.file.is_none() {
            self.to_write.notify_one();
            let is_missing = |inner: &mut Inner<S>| inner.file.is_none() && !inner.has_ended;
            let waited = self.to_sync.wait_timeout_while(inner, wait, is_missing);
            inner = waited.expect("nothing panics under this lock").0;
        }
        let file = inner.file.take();
        if file.is_some() {
            self.to_write.notify_one();
        }
        file
    }

    pub fn pause(&self, wait: Duration) {
        drop(self.to_sync.wait_timeout(self.inner(), wait));
    }

    /// Runs a task on the segment thread and waits for its result; none if that thread has ended.
    pub fn run<T: Send + 'static>(
        &self,
        errand: impl FnOnce(&mut Segments<S>, &mut HashMap<HubId, Keeping>) -> T + Send + 'static,
    ) -> Option<T> {
        let (tell, told) = sync_channel(1);
        let mut inner = self.inner();
        if inner.has_ended {
            return None;
        }
        // The receiver exists: it waits below.
        inner.errands.push(Box::new(move |segments, keeping| _ = tell.send(errand(segments, keeping))));
        drop(inner);
        self.to_write.notify_one();
        told.recv().ok()
    }

    /// Ends the exchange: no frame will be sent, or none taken.
    pub fn end(&self) {
        let mut inner = self.inner();
        inner.has_ended = true;
        // Waiting senders see that their task is dropped.
        let errands = std::mem::take(&mut inner.errands);
        drop(inner);
        drop(errands);
        self.to_write.notify_one();
        self.to_sync.notify_one();
    }

    fn has_file(&self) -> bool {
        self.inner().file.is_some()
    }

    fn give_file(&self, file: Prepared<S::File>) {
        self.inner().file = Some(file);
        self.to_sync.notify_one();
    }

    /// Waits until frames are worth a write or urgent, the time is over, tasks exist, or (with `makes_files`)
    /// a journal file is wanted. Returns the frames, the tasks, and whether more may come.
    fn take(&self, wait: Duration, makes_files: bool) -> (Vec<Frame>, Vec<Errand<S>>, bool) {
        let is_idle = |inner: &mut Inner<S>| {
            let is_due = inner.bytes >= WRITE_BYTES || inner.is_urgent || !inner.errands.is_empty();
            !is_due && !inner.has_ended && (inner.file.is_some() || !makes_files)
        };
        let waited = self.to_write.wait_timeout_while(self.inner(), wait, is_idle);
        let mut inner = waited.expect("nothing panics under this lock").0;
        (inner.bytes, inner.is_urgent) = (0, false);
        self.to_sync.notify_one();
        let errands = std::mem::take(&mut inner.errands);
        (std::mem::take(&mut inner.frames), errands, !inner.has_ended)
    }
}

pub struct Thread<S: Storage> {
    segments: Segments<S>,
    settings: LogSettings,
    shared: Arc<Shared>,
    handover: Arc<Handover<S>>,
    saved: Instant,
    /// When it last did non-urgent work.
    kept_house: Option<Instant>,
    /// Since when files cannot be opened, and the delay before the next try.
    unopened: Option<(Instant, Duration)>,
}

impl<S: Storage> Thread<S> {
    pub fn new(
        segments: Segments<S>,
        settings: LogSettings,
        shared: Arc<Shared>,
        handover: Arc<Handover<S>>,
    ) -> Thread<S> {
        let now = Instant::now();
        Thread { segments, settings, shared, handover, saved: now, kept_house: None, unopened: None }
    }

    pub fn run(mut self) {
        let mut retry = None;
        loop {
            let (frames, errands, goes_on) =
                self.handover.take(retry.unwrap_or(HOUSEKEEPING), retry.is_none());
            for Frame { file, number, batches } in frames {
                self.segments.apply(file, number, batches);
            }
            for errand in errands {
                errand(&mut self.segments, &mut self.settings.keeping);
            }
            retry = match self.turn() {
                Ok(()) => None,
                Err(LogError::Full) => Some(RETRY),
                Err(LogError::Unopened { what, source }) => Some(self.cannot_open(&what, &source)),
                Err(e) => return self.shared.fail(&e.to_string()),
            };
            if !goes_on {
                break;
            }
        }
        if self.shared.state() != State::Failed
            && let Err(e) = self.segments.close()
        {
            self.shared.log(Level::Warning, "log did not end cleanly", vec![("reason", e.to_string())]);
        }
    }

    fn turn(&mut self) -> Result<(), LogError> {
        let outcome = self.keep_up();
        let met_full = matches!(outcome, Err(LogError::Full));
        let is_due = self.kept_house.is_none_or(|kept| kept.elapsed() >= HOUSEKEEPING);
        if is_due || met_full {
            self.retire()?;
            self.compact()?;
        }
        if is_due {
            // Not more often: a try may briefly use the space that others need.
            self.kept_house = Some(Instant::now());
            self.segments.keep_reserve()?;
        }
        // The reserve is spent on records accepted earlier, so none is accepted from here on.
        if matches!(outcome, Err(LogError::Unopened { .. })) {
            return outcome;
        }
        if self.unopened.take().is_some() {
            self.shared.log(Level::Warning, "log opens its files again", Vec::new());
        }
        let is_full = met_full || !self.segments.has_reserve();
        self.shared
            .set_full(is_full.then(|| Lack::Room(self.segments.wanted_bytes(!self.handover.has_file()))));
        outcome
    }

    /// Handles a file that cannot be opened, which is not fatal, and returns the delay before the next try.
    /// Records safe in the journal wait in memory, so after a while new ones are refused.
    fn cannot_open(&mut self, what: &str, source: &io::Error) -> Duration {
        self.shared.counters.opens_failed.fetch_add(1, Ordering::Relaxed);
        if self.unopened.is_none() {
            let fields = vec![("reason", format!("{what}: {source}"))];
            self.shared.log(Level::Error, "log cannot open a file, tries again", fields);
        }
        let (since, wait) = *self.unopened.get_or_insert((Instant::now(), RETRY));
        self.unopened = Some((since, (wait * 2).min(RETRY_MAX)));
        let waits = self.segments.pending_bytes() >= self.settings.unwritten_bytes_max;
        if waits || since.elapsed() >= REFUSES_AFTER {
            self.shared.set_full(Some(Lack::File(format!("{what}: {source}"))));
        }
        wait
    }

    fn keep_up(&mut self) -> Result<(), LogError> {
        self.segments.flush()?;
        let unsaved = self.segments.unsaved_bytes();
        let is_due = self.saved.elapsed() >= Duration::from_millis(self.settings.checkpoint_ms);
        if unsaved >= self.settings.checkpoint_bytes || (unsaved > 0 && is_due) {
            self.checkpoint()?;
        }
        if !self.handover.has_file() {
            let file = match self.segments.prepare_next() {
                // A checkpoint frees journal files.
                Err(LogError::Full) if self.segments.unsaved_bytes() > 0 => {
                    self.checkpoint()?;
                    self.segments.prepare_next()
                }
                file => file,
            };
            self.handover.give_file(file?);
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), LogError> {
        self.segments.checkpoint()?;
        self.saved = Instant::now();
        self.shared.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn retire(&mut self) -> Result<(), LogError> {
        let keeping = &self.settings.keeping;
        let limits = |hub| (keeping.get(&hub).map_or_else(Retention::default, Keeping::retention), None);
        let retired = match self.segments.retire(now_us(), limits) {
            Err(LogError::Full) => 0,
            retired => retired?,
        };
        self.shared.counters.retired.fetch_add(retired as u64, Ordering::Relaxed);
        for (hub, verdict) in self.segments.take_verdicts() {
            self.tell(hub, &verdict);
        }
        Ok(())
    }

    fn tell(&self, hub: HubId, verdict: &Verdict) {
        let Some(keeping) = self.settings.keeping.get(&hub) else { return };
        keeping.archive.waiting_bytes.store(verdict.waiting_bytes, Ordering::Relaxed);
        let Some((first, end)) = verdict.lost else { return };
        keeping.archive.lost.fetch_add(end - first, Ordering::Relaxed);
        let fields = vec![
            ("hub", hub.0.to_string()),
            ("from", first.to_string()),
            ("to", (end - 1).to_string()),
            ("archive_wait_bytes", keeping.archive_wait_bytes.to_string()),
        ];
        self.shared.log(Level::Warning, "records were removed that are not archived", fields);
    }

    /// Compacts a bounded amount, because records wait meanwhile.
    fn compact(&mut self) -> Result<(), LogError> {
        match self.segments.compact(now_us(), Compaction::default(), |_| None) {
            Ok(_) | Err(LogError::Full) => Ok(()),
            Err(e @ LogError::Damaged { .. }) => {
                let reason = vec![("reason", e.to_string())];
                self.shared.log(Level::Error, "hub is not compacted any more", reason);
                Ok(())
            }
            Err(e) => Err(e),
        }
    }
}

/// The system clock, in µs since 1970.
fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use hubsub_log::sim::SimDisk;

    #[test]
    fn a_full_disk_is_tried_now_and_then_not_all_the_time() {
        let handover: Handover<SimDisk> = Handover::default();
        let begin = Instant::now();
        let (frames, _, goes_on) = handover.take(RETRY, false);
        assert!(frames.is_empty() && goes_on && begin.elapsed() >= RETRY);
    }
}
