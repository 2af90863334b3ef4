//! The data that the log's threads share: their settings, the log's state, and who is notified of it.

use super::archive::Keeping;
use super::events::Event;
use super::health::{Counters, State};
use super::turns::Turns;
use crate::io::log_lines::Level;
use crate::io::report::Report;
use hubsub_log::{HubId, LogError};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Receives the outcome of records.
pub trait Listener: Send + Sync + 'static {
    /// Records of these hubs are safe up to these offsets.
    fn safe(&self, hubs: &[(HubId, u64)]);
    /// Nothing more will become safe.
    fn failed(&self);
}

#[derive(Clone, Debug)]
pub struct LogSettings {
    /// Bytes waiting for the journal above which publishers to rooms with a log are not read.
    pub pending_bytes_max: usize,
    /// Bytes waiting for the segments above which the journal waits.
    pub unwritten_bytes_max: usize,
    /// Bytes between two checkpoints.
    pub checkpoint_bytes: u64,
    /// Time between two checkpoints, in ms.
    pub checkpoint_ms: u64,
    pub keeping: HashMap<HubId, Keeping>,
}

/// The resource that a log lacks while it accepts no records.
#[derive(Debug)]
pub enum Lack {
    /// Free disk space, in bytes.
    Room(u64),
    /// A file that cannot be opened, and the error.
    File(String),
}

pub struct Shared {
    state: AtomicU8,
    reason: Mutex<Option<String>>,
    is_stopping: AtomicBool,
    has_ended: AtomicBool,
    control: Arc<dyn Report<Event>>,
    listener: Arc<dyn Listener>,
    /// Locked while the listener is notified: nothing is reported safe after a failure.
    telling: Mutex<()>,
    pub counters: Counters,
    pub turns: Arc<Turns>,
}

impl Shared {
    pub fn new(control: Arc<dyn Report<Event>>, listener: Arc<dyn Listener>) -> Shared {
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

    pub fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::Open,
            1 => State::Full,
            _ => State::Failed,
        }
    }

    pub fn reason(&self) -> Option<String> {
        self.reason.lock().expect("nothing panics under this lock").clone()
    }

    /// Stops accepting records until the lack is over, or resumes with `None`.
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

    /// Notifies the listener that each hub's records up to this offset are safe.
    ///
    /// # Errors
    /// `Broken` if another thread has reported a failure since they were written: nothing is reported safe
    /// after that.
    pub fn safe(&self, hubs: &[(HubId, u64)]) -> Result<(), LogError> {
        let _telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        if self.state() == State::Failed {
            return Err(LogError::Broken);
        }
        self.listener.safe(hubs);
        Ok(())
    }

    /// Marks the log as failed: nothing more can be synced.
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

    pub fn log(&self, level: Level, message: &'static str, fields: Vec<(&'static str, String)>) {
        self.control.log(level, message, fields);
    }

    /// Marks the node as stopping: records that cannot be synced now are given up.
    pub fn begin_to_stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
    }

    /// Marks the segments as ended: they get nothing more.
    pub fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
    }

    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }
}
