//! A running log: its two threads, and what shards and readers do with it.

use super::events::Event;
use super::health::State;
use super::intake::Intake;
use super::journal;
use super::segments::{self, Handover};
use super::shared::{Listener, LogSettings, Shared};
use crate::io::log_lines::Level;
use crate::io::report::Report;
use hubsub_log::storage::Storage;
use hubsub_log::{Batch, Opened};
use std::io;
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};

/// A running log, shared by the shards and the control plane.
pub struct Log {
    pub(super) shared: Arc<Shared>,
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
    pub(super) fn start<S: Storage>(
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
        threads.push(Builder::new().name("hubsub-log-segments".to_owned()).spawn(move || {
            let _ends = of_writes;
            writes.run();
        })?);
        let syncing = Builder::new().name("hubsub-log-journal".to_owned()).spawn(move || {
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

    pub fn submit(&self, batches: &mut Vec<Batch>) {
        self.intake.put(batches);
    }

    /// Requests that synced records be written to segments soon.
    pub fn hurry(&self) {
        (self.hurry)();
    }

    /// True if so much waits that publishers must wait. Never after a failure: the queue then stays, and new
    /// records are refused.
    pub fn is_behind(&self) -> bool {
        self.intake.bytes() > self.settings.pending_bytes_max && self.shared.state() != State::Failed
    }

    pub fn pending_bytes(&self) -> usize {
        self.intake.bytes()
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
