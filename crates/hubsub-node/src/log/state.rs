//! What the log's threads share: whether it takes records, and its figures.

use super::Listener;
use super::turns::Turns;
use crate::control::{Control, Level};
use hubsub_log::{HubId, LogError};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Whether a log takes records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum State {
    /// It does.
    Open = 0,
    /// Not until the disk has room.
    Full = 1,
    /// Not any more: what reached the disk since the last sync is not known.
    Failed = 2,
}

impl State {
    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            State::Open => "open",
            State::Full => "full",
            State::Failed => "failed",
        }
    }
}

/// What a log lacks that takes no records now.
#[derive(Debug)]
pub enum Lack {
    /// So many bytes, free on its disk.
    Room(u64),
    /// A file that cannot be opened, and why.
    File(String),
}

/// Upper bounds of the sync times that are counted apart, in µs; what is longer is
/// counted in the last place.
pub const SYNC_BOUNDS_US: [u64; 9] = [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 50_000, 250_000];

/// Figures since the start.
#[derive(Default)]
pub struct Counters {
    /// Records that are safe.
    pub records: AtomicU64,
    /// Their bytes.
    pub bytes: AtomicU64,
    /// Syncs of the journal that carried records.
    pub syncs: AtomicU64,
    /// Time in them, in µs.
    pub sync_us: AtomicU64,
    /// How many took how long.
    pub syncs_by_time: [AtomicU64; SYNC_BOUNDS_US.len() + 1],
    /// Checkpoints.
    pub checkpoints: AtomicU64,
    /// Segments that retention removed.
    pub retired: AtomicU64,
    /// Times that a file could not be opened for them.
    pub opens_failed: AtomicU64,
    /// Times that the journal waited for the segments.
    pub journal_waits: AtomicU64,
    /// Questions that readers answered.
    pub reads: AtomicU64,
    /// Those that they could not.
    pub reads_failed: AtomicU64,
    /// Rows that streams gave.
    pub stream_rows: AtomicU64,
    /// Bytes of them.
    pub stream_bytes: AtomicU64,
    /// Streams that broke off.
    pub streams_failed: AtomicU64,
    /// Streams that were not opened, since too many were open.
    pub streams_refused: AtomicU64,
    /// Streams that were closed, since nobody asked for anything.
    pub streams_idle: AtomicU64,
}

impl Counters {
    /// A sync carried so many records and bytes and took so long.
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

/// See the module.
pub struct Shared {
    state: AtomicU8,
    reason: Mutex<Option<String>>,
    is_stopping: AtomicBool,
    has_ended: AtomicBool,
    control: Arc<Control>,
    listener: Arc<dyn Listener>,
    /// Held while the listener is told: nothing is safe behind a failure.
    telling: Mutex<()>,
    /// Figures.
    pub counters: Counters,
    /// Who may read the disk when.
    pub turns: Arc<Turns>,
}

impl Shared {
    /// Of a log that takes records.
    pub fn new(control: Arc<Control>, listener: Arc<dyn Listener>) -> Shared {
        Shared {
            state: AtomicU8::new(State::Open as u8),
            reason: Mutex::new(None),
            is_stopping: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            control,
            listener,
            telling: Mutex::new(()),
            counters: Counters::default(),
            turns: Arc::new(Turns::new()),
        }
    }

    /// Whether it takes records.
    pub fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::Open,
            1 => State::Full,
            _ => State::Failed,
        }
    }

    /// Why it does not.
    pub fn reason(&self) -> Option<String> {
        self.reason.lock().expect("nothing panics under this lock").clone()
    }

    /// It takes no records until it has what it lacks; or it lacks nothing.
    pub fn set_full(&self, lack: Option<Lack>) {
        let is_full = lack.is_some();
        let (from, to) = if is_full { (State::Open, State::Full) } else { (State::Full, State::Open) };
        let mut reason = self.reason.lock().expect("nothing panics under this lock");
        let changed =
            self.state.compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if self.state() != to {
            return;
        }
        let refuses = match lack {
            Some(Lack::File(_)) => "log refuses records: a file cannot be opened",
            _ => "log refuses records: disk is full",
        };
        *reason = lack.map(|lack| match lack {
            Lack::Room(bytes) => {
                let mib = bytes.div_ceil(1 << 20).max(1);
                format!("the disk is full; the log goes on once it has {mib} MiB free")
            }
            Lack::File(why) => format!("{why}; the log goes on once the file can be opened"),
        });
        let fields = reason.iter().map(|reason| ("reason", reason.clone())).collect();
        drop(reason);
        match is_full {
            _ if !changed => {}
            true => self.control.log(Level::Error, refuses, fields),
            false => self.control.log(Level::Warning, "log takes records again", fields),
        }
    }

    /// Tells who waits for these records that they are safe, each hub's to this offset.
    ///
    /// # Errors
    ///
    /// `Broken` where another thread has told a failure since they were written: nothing is told behind that.
    pub fn safe(&self, hubs: &[(HubId, u64)]) -> Result<(), LogError> {
        let _telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        if self.state() == State::Failed {
            return Err(LogError::Broken);
        }
        self.listener.safe(hubs);
        Ok(())
    }

    /// Nothing more can be made safe.
    pub fn fail(&self, why: &str) {
        let mut reason = self.reason.lock().expect("nothing panics under this lock");
        if self.state.swap(State::Failed as u8, Ordering::AcqRel) == State::Failed as u8 {
            return;
        }
        *reason = Some(why.to_owned());
        drop(reason);
        self.control.log(Level::Error, "log has failed", vec![("reason", why.to_owned())]);
        let _telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        self.listener.failed();
    }

    /// A log line.
    pub fn log(&self, level: Level, message: &'static str, fields: Vec<(&'static str, String)>) {
        self.control.log(level, message, fields);
    }

    /// What cannot be made safe now is given up.
    pub fn begin_to_stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
    }

    /// Segments get nothing more.
    pub fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
    }

    /// Whether segments get nothing more.
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Whether the node stops.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }
}
