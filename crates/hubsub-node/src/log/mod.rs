//! The log's threads and their interface to shards. Shards only submit and receive notifications here.
//!
//! ```text
//!   shards ── batches ──► journal thread ── frames ──► segment thread
//!     ▲                      │    ▲                      │
//!     └───── safe, failed ───┘    └── next journal file ─┘
//!   shards ── jobs ──► readers, listing ── results ──► shards
//!   control plane ── requests ──► streams ── chunks ──► control plane
//!   control plane ── hubs ──► openings ── tasks ──► segment thread
//!                                └── seeds ──► shards
//! ```
//!
//! Invariants: only synced records are reported safe; segments get nothing before it is synced; each queue
//! has a limit, at which the sender waits or is refused.

mod archive;
mod end;
mod hub;
mod hub_reading;
mod intake;
mod journal;
mod listing;
mod mail;
mod openings;
mod producers;
mod readers;
mod reading;
mod retained;
mod segments;
pub mod start;
mod state;
mod status;
mod stream;
mod streams;
mod turns;

pub use end::{LogEnd, Question as LogQuestion};
pub use hub::Opened as OpenedHub;
pub use listing::{Listing, Wanted};
pub use mail::LogMail;
pub use openings::{Answer as HubAnswer, Openings};
pub use readers::{Readers, Turn};
pub use state::{Counters, State};
pub use status::{HubStatus, LogStatus, LoggedHub, LoggedHubs};
pub use streams::{Answer as StreamAnswer, Refusal, Streams};

use crate::io::log_lines::Level;
use crate::io::report::Report;
use archive::Keeping;
use hubsub_log::storage::Storage;
use hubsub_log::{Batch, HubId, Opened};
use intake::Intake;
use segments::Handover;
use state::Shared;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use turns::Turns;

/// An event of the log for the control plane.
#[derive(Debug)]
pub enum Event {
    /// The outcome of a request about a stream of records.
    Stream(u64, Result<StreamAnswer, Refusal>),
    /// The outcome of a request to open or close a hub.
    Hub(u64, Result<HubAnswer, Refusal>),
}

/// Receives the outcome of records.
pub trait Listener: Send + Sync + 'static {
    /// Records of these hubs are safe up to these offsets.
    fn safe(&self, hubs: &[(HubId, u64)]);
    /// Nothing more will become safe.
    fn failed(&self);
}

/// Settings of the threads.
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
    /// The retention settings of each hub.
    pub keeping: HashMap<HubId, Keeping>,
}

/// A running log, shared by the shards and the control plane.
pub struct Log {
    shared: Arc<Shared>,
    intake: Arc<Intake>,
    settings: LogSettings,
    /// Notifies the segment thread that its records are waited for.
    hurry: Box<dyn Fn() + Send + Sync>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Log {
    /// Starts the threads on an opened log. Later tasks for its segments use the handover.
    ///
    /// # Errors
    /// If the system has no threads left.
    fn start<S: Storage>(
        opened: Opened<S>,
        settings: LogSettings,
        listener: Arc<dyn Listener>,
        control: Arc<dyn Report<Event>>,
    ) -> io::Result<(Log, Arc<Handover<S>>)> {
        let Opened { journal, segments, warnings, .. } = opened;
        for warning in warnings {
            control.log(Level::Error, "log is damaged", vec![("reason", warning)]);
        }
        let (shared, intake) = (Arc::new(Shared::new(control, listener)), Arc::new(Intake::default()));
        let handover = Arc::new(Handover::default());
        let log = Log {
            shared: Arc::clone(&shared),
            intake: Arc::clone(&intake),
            settings: settings.clone(),
            hurry: {
                let handover = Arc::clone(&handover);
                Box::new(move || handover.hurry())
            },
            threads: Mutex::new(Vec::new()),
        };
        let unwritten_bytes_max = settings.unwritten_bytes_max;
        let (ended, of_errands) = (Arc::clone(&handover), Arc::clone(&handover));
        let writes = segments::Thread::new(segments, settings, Arc::clone(&shared), Arc::clone(&handover));
        let syncs = journal::Thread { journal, intake, shared, handover, unwritten_bytes_max };
        let ends =
            |is_writer| Ends { shared: Arc::clone(&log.shared), handover: Arc::clone(&ended), is_writer };
        let (of_writes, of_syncs) = (ends(true), ends(false));
        let mut threads = log.threads.lock().expect("nothing panics under this lock");
        threads.push(named("hubsub-log-segments").spawn(move || {
            let _ends = of_writes;
            writes.run();
        })?);
        let syncing = named("hubsub-log-journal").spawn(move || {
            let _ends = of_syncs;
            syncs.run();
        });
        match syncing {
            Ok(thread) => threads.push(thread),
            Err(e) => {
                drop(threads);
                log.stop();
                return Err(e);
            }
        }
        drop(threads);
        Ok((log, of_errands))
    }

    /// Submits the batches of a shard's turn.
    pub fn submit(&self, batches: &mut Vec<Batch>) {
        self.intake.put(batches);
    }

    /// Requests that synced records be written to segments soon.
    pub fn hurry(&self) {
        (self.hurry)();
    }

    /// True if so much waits that publishers must wait. Never after a failure: the queue then stays, and new
    /// records are refused.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.intake.bytes() > self.settings.pending_bytes_max && self.state() != State::Failed
    }

    /// Bytes that wait for the disk.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.intake.bytes()
    }

    /// Whether it accepts records.
    #[must_use]
    pub fn state(&self) -> State {
        self.shared.state()
    }

    /// Why it does not accept records, if known.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        self.shared.reason()
    }

    /// True if segments get nothing more, so a record missing there stays missing.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.shared.has_ended()
    }

    /// Schedules disk reads between syncs.
    pub(crate) fn turns(&self) -> Arc<Turns> {
        Arc::clone(&self.shared.turns)
    }

    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Logs a line for the operator.
    pub fn tell(&self, level: Level, message: &'static str, fields: Vec<(&'static str, String)>) {
        self.shared.log(level, message, fields);
    }

    /// Syncs all submitted records, if possible, and ends cleanly.
    pub fn stop(&self) {
        self.intake.stop();
        self.shared.begin_to_stop();
        let threads = std::mem::take(&mut *self.threads.lock().expect("nothing panics under this lock"));
        // The journal's end ends the segments.
        for thread in threads.into_iter().rev() {
            // A thread that panicked has logged it.
            let _ = thread.join();
        }
    }
}

/// Dropped when one of the two threads ends or cannot start, so that the other does not wait for it.
struct Ends<S: Storage> {
    shared: Arc<Shared>,
    handover: Arc<Handover<S>>,
    /// True for the segment thread.
    is_writer: bool,
}

impl<S: Storage> Drop for Ends<S> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.fail("a thread of the log panicked");
        }
        self.handover.end();
        if self.is_writer {
            self.shared.end();
        }
    }
}

fn named(name: &str) -> std::thread::Builder {
    std::thread::Builder::new().name(name.to_owned())
}

#[cfg(test)]
#[path = "../../../hubsub-log/tests/support/sim.rs"]
mod sim;
#[cfg(test)]
mod tests;
