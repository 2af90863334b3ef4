//! Opens and closes hubs while the node runs. The control plane requests it, a separate thread creates or
//! opens the files, and the hub's shard is notified.
//!
//! ```text
//!  open   control plane ─► here: files ─► segment thread: listed ─► here ─► shard, then the reply
//!  close  control plane ─► here ─► shard: accepts no more ─► here: waits until segments have all
//!         records ─► segment thread: synced, released ─► here ─► shard: removes it, then the reply
//! ```
//!
//! Invariants
//! - The segment thread only plans the opening, and writes the manifest once for all hubs that are opened
//!   together. Files are created and read here, so an opening delays neither shards nor other hubs' commits.
//! - A shard has a hub before the requester gets its reply, and gets no record for it after the close was
//!   confirmed.
//! - A closing hub refuses records and commits those that it accepted before. If it cannot be synced it
//!   serves again.
//! - Only one operation runs per hub: a request for a closing hub is refused.

use super::events::{Event, HubAnswer, Refusal, refused};
use super::health::State;
use super::hub::{Described, describe, keep_of, limits_of, shard_of};
use super::hubs::{LoggedHub, LoggedHubs};
use super::mail::LogMail;
use super::segments::Handover;
use super::start::Started;
use super::threads::Log;
use crate::io::classes::ClassesNow;
use crate::io::inbox::Post;
use crate::io::log_lines::Level;
use crate::io::report::Report;
use hubsub_log::{Disk, HubName, Keep, LogError, Opening, Ready};
use hubsub_route::Window;
use hubsub_types::class::ClassIndex;
use hubsub_types::{ErrorCode, HubId, ShardId};
use std::collections::HashSet;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// The most queued requests. A controller assigns no more hubs to a node at once.
const REQUESTS_MAX: usize = 10_000;

/// The most hubs opened together with one manifest write; the first waits for the last.
const TOGETHER: usize = 32;

/// The interval between checks of a closing hub.
const LOOK: Duration = Duration::from_millis(1);

type Outcome = Result<HubAnswer, Refusal>;

pub struct Openings {
    work: Arc<Work>,
    /// The class changes that the thread was notified of.
    seen: AtomicU64,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Work {
    queue: Mutex<Queue>,
    came: Condvar,
    log: Arc<Log>,
    handover: Arc<Handover<Disk>>,
    hubs: Arc<LoggedHubs>,
    classes: Arc<ClassesNow>,
    inboxes: Arc<dyn Post<LogMail>>,
    control: Arc<dyn Report<Event>>,
    window: Window,
    is_given: bool,
}

#[derive(Default)]
struct Queue {
    requests: Vec<Request>,
    /// True if hubs must apply changed classes.
    has_classes: bool,
    is_stopping: bool,
}

enum Request {
    Open(Wanted),
    Close(u64, HubId),
}

struct Wanted {
    ticket: u64,
    name: HubName,
    class: ClassIndex,
}

struct Closing {
    ticket: u64,
    id: HubId,
    hub: Arc<LoggedHub>,
    /// Signals that its shard assigns no more offsets.
    told: Receiver<()>,
    is_told: bool,
}

impl Openings {
    /// # Errors
    /// If the system has no threads left.
    pub(crate) fn start(
        of: &Started,
        classes: Arc<ClassesNow>,
        inboxes: Arc<dyn Post<LogMail>>,
        control: Arc<dyn Report<Event>>,
        window: Window,
    ) -> io::Result<Openings> {
        let (log, handover, hubs) = (Arc::clone(&of.log), Arc::clone(&of.handover), Arc::clone(&of.hubs));
        let (queue, came) = (Mutex::default(), Condvar::new());
        let is_given = of.is_given;
        let work =
            Arc::new(Work { queue, came, log, handover, hubs, classes, inboxes, control, window, is_given });
        let of_thread = Arc::clone(&work);
        let thread = Builder::new().name("hubsub-log-hubs".to_owned()).spawn(move || of_thread.run())?;
        Ok(Openings { work, seen: AtomicU64::new(0), thread: Mutex::new(Some(thread)) })
    }

    /// Opens a hub of a class with a log, and creates it if it never existed here. The reply to the ticket is
    /// its status, also if it was open.
    pub fn open(&self, ticket: u64, hub: HubId, class: ClassIndex, index: u16) {
        let name = HubName { hub, class: self.work.classes.get().get(class).name.clone(), index };
        self.work.ask(ticket, Request::Open(Wanted { ticket, name, class }));
    }

    /// Closes a hub, which stays on disk. The reply to the ticket is the last offset assigned, if it was
    /// open. Waits until all its records are safe in segments; on a full disk, until there is room.
    pub fn close(&self, ticket: u64, hub: HubId) {
        self.work.ask(ticket, Request::Close(ticket, hub));
    }

    /// Applies changed classes to open hubs.
    pub(crate) fn see_classes(&self) {
        let changes = self.work.classes.changes();
        if self.seen.swap(changes, Ordering::AcqRel) != changes {
            self.work.queue().has_classes = true;
            self.work.came.notify_one();
        }
    }

    /// Ends the thread; queued requests are refused.
    pub fn stop(&self) {
        self.work.queue().is_stopping = true;
        self.work.came.notify_one();
        let thread = self.thread.lock().expect("nothing panics under this lock").take();
        thread.map(JoinHandle::join);
    }
}

impl Work {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("nothing panics under this lock")
    }

    fn ask(&self, ticket: u64, request: Request) {
        let mut queue = self.queue();
        if queue.is_stopping || queue.requests.len() >= REQUESTS_MAX {
            let code = if queue.is_stopping { ErrorCode::Stopping } else { ErrorCode::TimedOut };
            drop(queue);
            return self.tell(ticket, Err(refused(code, "")));
        }
        queue.requests.push(request);
        drop(queue);
        self.came.notify_one();
    }

    fn tell(&self, ticket: u64, outcome: Outcome) {
        self.control.tell(Event::Hub(ticket, outcome));
    }

    fn run(&self) {
        // Live traffic has priority over openings.
        crate::io::sys::yield_to_others();
        let mut closing = Vec::new();
        while let Some(requests) = self.requests(!closing.is_empty()) {
            if std::mem::take(&mut self.queue().has_classes) {
                self.keep_as_classes_say();
            }
            let mut wanted = Vec::new();
            for request in requests {
                match request {
                    Request::Open(one) => wanted.push(one),
                    Request::Close(ticket, id) => closing.extend(self.begin_to_close(ticket, id)),
                }
            }
            self.open(wanted);
            closing.retain_mut(|hub| !self.close(hub));
        }
        let waiting = std::mem::take(&mut self.queue().requests).into_iter().map(|request| match request {
            Request::Open(Wanted { ticket, .. }) | Request::Close(ticket, _) => ticket,
        });
        for ticket in waiting.chain(closing.iter().map(|hub| hub.ticket)) {
            self.tell(ticket, Err(refused(ErrorCode::Stopping, "")));
        }
    }

    /// The next requests, at most `TOGETHER` and one per hub; none at the end. While hubs are closing it
    /// returns soon.
    fn requests(&self, closes: bool) -> Option<Vec<Request>> {
        let is_idle =
            |queue: &mut Queue| queue.requests.is_empty() && !queue.is_stopping && !queue.has_classes;
        let proof = "nothing panics under this lock";
        let mut queue = match closes {
            false => self.came.wait_while(self.queue(), is_idle).expect(proof),
            true => self.came.wait_timeout_while(self.queue(), LOOK, is_idle).expect(proof).0,
        };
        if queue.is_stopping {
            return None;
        }
        let mut seen = HashSet::new();
        let is_next = |request: &&Request| seen.insert(request.hub());
        let count = queue.requests.iter().take(TOGETHER).take_while(is_next).count();
        Some(queue.requests.drain(..count).collect())
    }

    /// Passes changed retention limits to the segment thread and device templates to readers.
    fn keep_as_classes_say(&self) {
        let classes = self.classes.get();
        let all: Vec<_> = self.hubs.all();
        let mut kept = Vec::with_capacity(all.len());
        for (id, hub) in all {
            let class = classes.get(hub.class_index);
            hub.set_device(class.device.clone());
            kept.push((id, limits_of(class), class.archive_wait_bytes));
        }
        self.handover.run(move |_, keeping| {
            for (id, limits, archive_wait_bytes) in kept {
                if let Some(keeping) = keeping.get_mut(&id) {
                    (keeping.limits, keeping.archive_wait_bytes) = (limits, archive_wait_bytes);
                }
            }
        });
    }

    /// Opens hubs, no two of the same id; those that cannot be opened are refused.
    fn open(&self, wanted: Vec<Wanted>) {
        let (closing, wanted): (Vec<Wanted>, Vec<Wanted>) =
            wanted.into_iter().partition(|one| self.hubs.get(one.name.hub).is_some_and(|hub| hub.closes()));
        for one in closing {
            let text = format!("{} is being closed", one.name);
            self.tell(one.ticket, Err(refused(ErrorCode::HubClosed, text)));
        }
        // Two requests may name the same class and index; `open` would not detect that.
        let mut places = HashSet::new();
        let (wanted, doubled): (Vec<Wanted>, Vec<Wanted>) =
            wanted.into_iter().partition(|one| places.insert((one.class, one.name.index)));
        for one in doubled {
            let text = format!("another hub is opened in the place of {}", one.name);
            self.tell(one.ticket, Err(refused(ErrorCode::HubDiffers, text)));
        }
        if wanted.is_empty() {
            return;
        }
        let classes = self.classes.get();
        let named = |one: &Wanted| (one.name.clone(), keep_of(classes.get(one.class)));
        let names: Vec<(HubName, Keep)> = wanted.iter().map(named).collect();
        let openings = self.handover.run(move |segments, _| {
            names.iter().map(|(name, keep)| segments.opening(name, *keep)).collect::<Vec<_>>()
        });
        let Some(openings) = openings else {
            return wanted.iter().for_each(|one| self.tell(one.ticket, Err(self.refusal_of_end())));
        };
        let (mut ready, mut of_ready) = (Vec::new(), Vec::new());
        for (one, opening) in wanted.into_iter().zip(openings) {
            let prepare = |opening| {
                // Other hubs are still opened.
                let prepared = catch_unwind(AssertUnwindSafe(|| self.prepare(&one, opening)));
                prepared.unwrap_or_else(|_| Err(LogError::Refused("a thread panicked".to_owned())))
            };
            match opening.and_then(|opening| opening.map(prepare).transpose()) {
                // It was open already.
                Ok(None) => self.tell_opened(one.ticket, one.name.hub),
                Ok(Some((opened, described))) => {
                    ready.push((opened, described.keeping));
                    of_ready.push((one, described.opened, described.warning));
                }
                Err(e) => self.refuse(one.ticket, &e),
            }
        }
        if ready.is_empty() {
            return;
        }
        let admitted = self.handover.run(move |segments, keeping| {
            let (ready, keepings): (Vec<Ready<Disk>>, Vec<_>) = ready.into_iter().unzip();
            let hubs: Vec<HubId> = ready.iter().map(|ready| ready.entry().hub).collect();
            segments.admit(ready).map(|()| keeping.extend(hubs.into_iter().zip(keepings)))
        });
        for (one, opened, warning) in of_ready {
            match &admitted {
                None => self.tell(one.ticket, Err(self.refusal_of_end())),
                Some(Err(e)) => self.refuse(one.ticket, e),
                Some(Ok(())) => {
                    if let Some(warning) = warning {
                        self.control.log(Level::Error, "log is damaged", vec![("reason", warning)]);
                    }
                    self.hubs.insert(one.name.hub, Arc::clone(&opened.hub));
                    let shard = ShardId(opened.hub.shard);
                    self.inboxes.post(shard, LogMail::HubOpened(Box::new(opened)));
                    self.tell_opened(one.ticket, one.name.hub);
                }
            }
        }
    }

    /// Creates or opens a hub's files, and prepares the data for its shard.
    fn prepare(&self, one: &Wanted, opening: Opening<Disk>) -> Result<(Ready<Disk>, Described), LogError> {
        if opening.makes() && self.log.shared.state() == State::Full {
            // The remaining disk space is for acknowledged records.
            return Err(LogError::Full);
        }
        let ready = opening.run()?;
        let classes = self.classes.get();
        let class = (one.class, classes.get(one.class));
        let shard = shard_of(ready.entry(), self.is_given, self.inboxes.shards());
        let described = describe(ready.entry(), Some(Arc::clone(ready.chain())), class, shard, self.window)?;
        Ok((ready, described))
    }

    fn tell_opened(&self, ticket: u64, id: HubId) {
        let state = (self.log.shared.state(), self.log.shared.reason());
        let reason = state.1.as_deref().filter(|_| state.0 != State::Open);
        let hub = self.hubs.get(id).expect("this thread alone takes hubs away");
        self.tell(ticket, Ok(HubAnswer::Opened(Box::new(hub.status(id, (state.0, reason))))));
    }

    /// The refusal when segments get nothing more.
    fn refusal_of_end(&self) -> Refusal {
        match self.log.shared.state() {
            State::Failed => refused(ErrorCode::LogFailed, self.log.shared.reason().unwrap_or_default()),
            State::Open | State::Full => refused(ErrorCode::Stopping, ""),
        }
    }

    fn refuse(&self, ticket: u64, error: &LogError) {
        let code = match error {
            LogError::Full | LogError::Unopened { .. } => ErrorCode::DiskFull,
            LogError::Differs { .. } => ErrorCode::HubDiffers,
            LogError::Damaged { .. } | LogError::Quarantined { .. } => ErrorCode::Quarantined,
            _ => ErrorCode::LogFailed,
        };
        self.tell(ticket, Err(refused(code, error.to_string())));
    }

    /// Starts to close a hub; none if it needs no further steps.
    fn begin_to_close(&self, ticket: u64, id: HubId) -> Option<Closing> {
        let Some(hub) = self.hubs.get(id) else {
            self.tell(ticket, Ok(HubAnswer::Closed(None)));
            return None;
        };
        if hub.closes() {
            self.tell(ticket, Err(refused(ErrorCode::HubClosed, format!("hub {} is being closed", id.0))));
            return None;
        }
        hub.set_closes(true);
        let (tell, told) = channel();
        self.inboxes.post(ShardId(hub.shard), LogMail::HubCloses(id, tell));
        Some(Closing { ticket, id, hub, told, is_told: false })
    }

    /// Continues to close a hub; returns whether that has ended.
    fn close(&self, closing: &mut Closing) -> bool {
        match closing.told.try_recv() {
            Ok(()) => closing.is_told = true,
            Err(TryRecvError::Disconnected) if !closing.is_told => {
                self.tell(closing.ticket, Err(refused(ErrorCode::Stopping, "")));
                return true;
            }
            Err(_) => {}
        }
        if !closing.is_told {
            return false;
        }
        let (id, given) = (closing.id, closing.hub.given());
        let closed = self.handover.run(move |segments, keeping| match segments.next(id) {
            Some(next) if next <= given => Ok(false),
            // A quarantined hub is not written.
            _ => segments.close_hub(id).map(|_| {
                keeping.remove(&id);
                true
            }),
        });
        let refusal = match closed {
            Some(Ok(true)) => {
                self.hubs.remove(id);
                self.inboxes.post(ShardId(closing.hub.shard), LogMail::HubClosed(id));
                self.tell(closing.ticket, Ok(HubAnswer::Closed(Some(given))));
                return true;
            }
            // Its records are being written, or the disk has no room now.
            Some(Ok(false) | Err(LogError::Full | LogError::Unopened { .. }))
                if self.log.shared.state() != State::Failed =>
            {
                self.log.hurry();
                return false;
            }
            Some(Ok(false) | Err(LogError::Full | LogError::Unopened { .. })) | None => self.refusal_of_end(),
            Some(Err(e)) => refused(ErrorCode::LogFailed, e.to_string()),
        };
        closing.hub.set_closes(false);
        self.tell(closing.ticket, Err(refusal));
        true
    }
}

impl Request {
    fn hub(&self) -> HubId {
        match self {
            Request::Open(wanted) => wanted.name.hub,
            Request::Close(_, hub) => *hub,
        }
    }
}
