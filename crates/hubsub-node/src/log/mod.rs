//! The log's threads, and how shards reach them. Nothing here is done by a shard
//! but to hand over and to be told.
//!
//! ```text
//!   shards ── batches ──► journal thread ── frames ──► segment thread
//!     ▲                      │    ▲                      │
//!     └───── safe, failed ───┘    └── next journal file ─┘
//!   shards ── jobs ──► readers, listing ── answers ──► shards
//!   control plane ── questions ──► streams ── chunks ──► control plane
//!   control plane ── hubs ──► openings ── errands ──► segment thread
//!                                └── seeds ──► shards
//! ```
//!
//! Invariants: what is told to be safe was synced; segments get nothing before it
//! is; each queue has a limit, and who would pass it waits or is refused.

mod archive;
mod end;
mod hub;
mod hub_reading;
mod intake;
mod journal;
mod listing;
mod openings;
mod producers;
mod readers;
mod reading;
mod retained;
mod segments;
mod sessions;
pub mod start;
mod state;
mod status;
mod stream;
mod streams;
mod turns;

pub use end::{LogEnd, Question as LogQuestion};
pub use hub::Opened as OpenedHub;
pub use listing::{Listing, Wanted};
pub use openings::{Answer as HubAnswer, Openings};
pub use readers::{Readers, Turn};
pub use state::{Counters, State};
pub use status::{HubStatus, LogStatus, LoggedHub, LoggedHubs};
pub use streams::{Answer as StreamAnswer, Refusal, Streams};

use crate::control::{Control, Level};
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

/// Who is told what became of records.
pub trait Listener: Send + Sync + 'static {
    /// Records of these hubs are safe up to these offsets.
    fn safe(&self, hubs: &[(HubId, u64)]);
    /// Nothing more will become safe.
    fn failed(&self);
}

/// How the threads behave.
#[derive(Clone, Debug)]
pub struct LogSettings {
    /// Bytes that wait for the journal; past it publishers into logged rooms are not read.
    pub pending_bytes_max: usize,
    /// Bytes that wait for the segments; past it the journal waits.
    pub unwritten_bytes_max: usize,
    /// Bytes between two checkpoints.
    pub checkpoint_bytes: u64,
    /// Time between two checkpoints, in ms.
    pub checkpoint_ms: u64,
    /// How long each hub keeps its records.
    pub keeping: HashMap<HubId, Keeping>,
}

/// A running log.
pub struct Log {
    shared: Arc<Shared>,
    intake: Arc<Intake>,
    settings: LogSettings,
    /// Tells the segment thread that somebody waits for it.
    hurry: Box<dyn Fn() + Send + Sync>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Log {
    /// Starts the threads on a log that was opened. What is to be done with its segments
    /// later goes over the handover.
    ///
    /// # Errors
    /// The system is out of threads.
    fn start<S: Storage>(
        opened: Opened<S>,
        settings: LogSettings,
        listener: Arc<dyn Listener>,
        control: Arc<Control>,
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

    /// Takes what a shard's hubs said in a turn.
    pub fn submit(&self, batches: &mut Vec<Batch>) {
        self.intake.put(batches);
    }

    /// Somebody waits for what is safe and not in segments yet.
    pub fn hurry(&self) {
        (self.hurry)();
    }

    /// Whether so much waits that publishers must. Nothing does once it has failed:
    /// what it took then stays, and new records are refused.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.intake.bytes() > self.settings.pending_bytes_max && self.state() != State::Failed
    }

    /// Bytes that wait for the disk.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.intake.bytes()
    }

    /// Whether it takes records.
    #[must_use]
    pub fn state(&self) -> State {
        self.shared.state()
    }

    /// Why it does not, where it says.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        self.shared.reason()
    }

    /// Whether segments get nothing more: what they lack now they will not have.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.shared.has_ended()
    }

    /// Who may read the disk when.
    pub(crate) fn turns(&self) -> Arc<Turns> {
        Arc::clone(&self.shared.turns)
    }

    /// Figures.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// A line for the operator.
    pub fn tell(&self, level: Level, message: &'static str, fields: Vec<(&'static str, String)>) {
        self.shared.log(level, message, fields);
    }

    /// Makes everything safe that was submitted, if it can be, and ends cleanly.
    pub fn stop(&self) {
        self.intake.stop();
        self.shared.begin_to_stop();
        let threads = std::mem::take(&mut *self.threads.lock().expect("nothing panics under this lock"));
        // The journal's end ends the segments.
        for thread in threads.into_iter().rev() {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// Goes when one of the two threads ends, or cannot begin: the other must not wait for it.
struct Ends<S: Storage> {
    shared: Arc<Shared>,
    handover: Arc<Handover<S>>,
    /// Whether it is the one that writes segments.
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
mod tests;
