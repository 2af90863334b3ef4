//! The segment thread: what is safe goes into segments, in large writes;
//! checkpoints, retention, and the next journal file before it is needed. Who wants
//! something of the segments beside that sends an errand, which is run between two writes.

use super::LogSettings;
use super::archive::Keeping;
use super::intake::bytes_of;
use super::state::{Lack, Shared, State};
use crate::control::Level;
use hubsub_log::journal::Prepared;
use hubsub_log::storage::Storage;
use hubsub_log::{Batch, Compaction, HubId, LogError, Retention, Segments, Verdict};
use std::collections::HashMap;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time between two looks at what is not urgent.
const HOUSEKEEPING: Duration = Duration::from_millis(500);

/// Bytes that are worth a write before it is time for one.
const WRITE_BYTES: usize = 256 << 10;

/// Wait between tries while the disk is full.
pub(super) const RETRY: Duration = Duration::from_millis(50);

/// The longest wait between tries to open a file; it doubles from `RETRY`.
const RETRY_MAX: Duration = Duration::from_secs(1);

/// Records are taken for so long while a file cannot be opened; then they are refused, as on a full disk.
const REFUSES_AFTER: Duration = Duration::from_secs(1);

/// A frame that is safe in the journal.
pub struct Frame {
    /// Which journal file it is in.
    pub file: u64,
    /// Its number.
    pub number: u64,
    /// Its records.
    pub batches: Vec<Batch>,
}

/// What is done with the segments, and with how long each hub keeps its records.
type Errand<S> = Box<dyn FnOnce(&mut Segments<S>, &mut HashMap<HubId, Keeping>) + Send>;

/// Between the two threads: frames one way, journal files the other. Others' errands come
/// with the frames.
pub struct Handover<S: Storage> {
    inner: Mutex<Inner<S>>,
    /// For the segment thread.
    to_write: Condvar,
    /// For the journal thread.
    to_sync: Condvar,
}

struct Inner<S: Storage> {
    frames: Vec<Frame>,
    bytes: usize,
    /// Somebody waits for what is in the frames.
    is_urgent: bool,
    /// Who sent one waits for it, so there are as many as such threads.
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

    /// Hands a frame on; waits while more than `bytes_max` are there already. Whether it did.
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

    /// Somebody waits for what was handed over: it is not kept for a larger write.
    pub fn hurry(&self) {
        let mut inner = self.inner();
        if !inner.frames.is_empty() && !std::mem::replace(&mut inner.is_urgent, true) {
            self.to_write.notify_one();
        }
    }

    /// The next journal file, if it is ready; if it is `needed`, waits for it a while.
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

    /// Waits a while.
    pub fn pause(&self, wait: Duration) {
        drop(self.to_sync.wait_timeout(self.inner(), wait));
    }

    /// Has something done with the segments, and waits for it; none if they get nothing more.
    pub fn run<T: Send + 'static>(
        &self,
        errand: impl FnOnce(&mut Segments<S>, &mut HashMap<HubId, Keeping>) -> T + Send + 'static,
    ) -> Option<T> {
        let (tell, told) = sync_channel(1);
        let mut inner = self.inner();
        if inner.has_ended {
            return None;
        }
        // Who has asked is there: it waits below.
        inner.errands.push(Box::new(move |segments, keeping| _ = tell.send(errand(segments, keeping))));
        drop(inner);
        self.to_write.notify_one();
        told.recv().ok()
    }

    /// No frame will come any more, or none will be taken.
    pub fn end(&self) {
        let mut inner = self.inner();
        inner.has_ended = true;
        // Who waits for one sees that it is gone.
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

    /// Frames that wait, once they are worth it or somebody wants them, or some time
    /// has passed, or there are errands, or, if it can be made, the next journal file is
    /// wanted; those errands; and whether more may come.
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

/// See the module.
pub struct Thread<S: Storage> {
    segments: Segments<S>,
    settings: LogSettings,
    shared: Arc<Shared>,
    handover: Arc<Handover<S>>,
    saved: Instant,
    /// When it last looked at what is not urgent.
    kept_house: Option<Instant>,
    /// Since when files cannot be opened, and the wait before the next try.
    unopened: Option<(Instant, Duration)>,
}

impl<S: Storage> Thread<S> {
    /// Ready to run.
    pub fn new(
        segments: Segments<S>,
        settings: LogSettings,
        shared: Arc<Shared>,
        handover: Arc<Handover<S>>,
    ) -> Thread<S> {
        let now = Instant::now();
        Thread { segments, settings, shared, handover, saved: now, kept_house: None, unopened: None }
    }

    /// Runs until the journal has ended.
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
            // Not more often: a try may take all that is left from others, for a moment.
            self.kept_house = Some(Instant::now());
            self.segments.keep_reserve()?;
        }
        // What is spent of the reserve is for what was taken already: no more is, from here on.
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

    /// A file cannot be opened, which ends nothing: how long to wait before the next try. Records that are safe in the
    /// journal wait in memory meanwhile, so that after a while no more are taken.
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
                // A checkpoint gives journals back.
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

    /// What came of waiting for an archive.
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

    /// A little of it: records wait meanwhile.
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

/// By the clock of the system, in µs since 1970.
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
