//! Runs a node on a thread of its own, for callers on other threads. The caller chooses a ticket for each
//! request, and fetches answers with [`Handle::drain`] after a wake-up, which occurs when the first answer
//! arrives in an empty queue. A node that cannot continue (disk, files, a panic) reports the reason by
//! [`Handle::failed`], also after a wake-up.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::LocalSet;

use crate::error::{Error, Refusal};
use crate::limits::REQUESTS_MAX;
use crate::node::{Node, Options, StartError, Status};
use crate::store::{Answer, Batch, Command, Cursor, Item, LeaseId, Value};
use crate::tcp::{Detours, Gate, Tcp, listen};
use crate::types::NodeId;

/// Chosen by the caller; links an answer to its request.
pub type Ticket = u64;

/// How a node enters its cluster.
#[derive(Clone, Debug)]
pub enum Start {
    /// It bootstraps a cluster, unless it is already in one.
    Bootstrap,
    /// It asks the members at these addresses, for at most this time.
    Join(Vec<String>, Duration),
}

#[derive(Clone, Debug)]
pub enum Request {
    Get { key: String },
    Page { directory: String, after: Option<String>, limit: usize },
    Propose(Command),
    Renew(LeaseId),
    Watch { directory: String, cursor: Option<Cursor>, wait: Duration },
    Leave(NodeId),
    Status,
}

#[derive(Clone, Debug)]
pub enum Response {
    Value(Option<(Value, u64)>),
    Page(Vec<Item>, bool),
    Answer(Answer),
    Batch(Batch),
    Status(Status),
    Done,
}

/// A running node. Dropping the last clone does not stop it; [`Handle::stop`] does.
#[derive(Clone)]
pub struct Handle {
    requests: UnboundedSender<Work>,
    answers: Arc<Answers>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

enum Work {
    Request(Ticket, Request),
    Stop,
}

struct Answers {
    queue: Mutex<VecDeque<(Ticket, Result<Response, Error>)>>,
    filled: Condvar,
    /// Requests submitted and not yet drained; limits both queues.
    open: AtomicUsize,
    failed: OnceLock<String>,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Handle {
    /// Starts a node that listens on `listener`; returns when it is in its cluster. `wake` is called on the
    /// node's thread.
    pub fn start<G: Gate + Send>(
        options: Options,
        start: Start,
        listener: std::net::TcpListener,
        (gate, detours): (G, Detours),
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        let (requests, work) = unbounded_channel();
        let (queue, filled, open) = (Mutex::default(), Condvar::new(), AtomicUsize::new(0));
        let failed = OnceLock::new();
        let answers = Arc::new(Answers { queue, filled, open, failed, wake: Box::new(wake) });
        let (started, outcome) = mpsc::sync_channel(1);
        let run = {
            let answers = answers.clone();
            move || {
                let setup = (options, start, listener, gate, detours);
                guarded(&answers, || run(setup, work, answers.clone(), &started));
            }
        };
        let thread = std::thread::Builder::new().name("coordinator".into()).spawn(run)?;
        let stopped = || StartError::Raft("its thread ended".into());
        outcome.recv().map_err(|_| stopped())??;
        Ok(Self { requests, answers, thread: Arc::new(Mutex::new(Some(thread))) })
    }

    /// Submits a request; its answer comes with `ticket`.
    pub fn submit(&self, ticket: Ticket, request: Request) -> Result<(), Refusal> {
        if self.answers.open.fetch_add(1, Ordering::Relaxed) >= REQUESTS_MAX {
            self.answers.open.fetch_sub(1, Ordering::Relaxed);
            return Err(Refusal::TooManyRequests);
        }
        self.requests.send(Work::Request(ticket, request)).map_err(|_| {
            self.answers.open.fetch_sub(1, Ordering::Relaxed);
            Refusal::Stopped { reason: "on request".into() }
        })
    }

    /// Returns up to `max` answers in order of arrival; waits at most `wait` for the first.
    pub fn drain(&self, max: usize, wait: Duration) -> Vec<(Ticket, Result<Response, Error>)> {
        let queue = self.answers.queue.lock().expect("no thread panics with the queue");
        let waited = self.answers.filled.wait_timeout_while(queue, wait, |queue| queue.is_empty());
        let mut queue = waited.expect("no thread panics with the queue").0;
        let count = queue.len().min(max);
        self.answers.open.fetch_sub(count, Ordering::Relaxed);
        queue.drain(..count).collect()
    }

    /// Why the node cannot continue, if so: requests then get errors, or no answer.
    pub fn failed(&self) -> Option<&str> {
        self.answers.failed.get().map(String::as_str)
    }

    /// Stops the node and waits for its thread. Unanswered requests have an unknown outcome.
    pub fn stop(&self) {
        let _ = self.requests.send(Work::Stop);
        let thread = self.thread.lock().expect("no thread panics with the handle").take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Answers {
    fn push(&self, ticket: Ticket, answer: Result<Response, Error>) {
        let first = {
            let mut queue = self.queue.lock().expect("no thread panics with the queue");
            queue.push_back((ticket, answer));
            queue.len() == 1
        };
        if first {
            self.filled.notify_all();
            (self.wake)();
        }
    }

    /// Stores the first reason: later ones follow from it.
    fn fail(&self, reason: String) {
        if self.failed.set(reason).is_ok() {
            (self.wake)();
        }
    }
}

/// Runs the node's thread; reports a panic as a failure.
fn guarded(answers: &Answers, run: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
        answers.fail(format!("its thread panicked: {}", message_of(&*panic)));
    }
}

fn message_of(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

type Setup<G> = (Options, Start, std::net::TcpListener, G, Detours);

fn run<G: Gate>(
    setup: Setup<G>,
    work: UnboundedReceiver<Work>,
    answers: Arc<Answers>,
    started: &mpsc::SyncSender<Result<(), StartError>>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(8).build();
    let served = runtime.map_err(StartError::from).and_then(|runtime| {
        LocalSet::new().block_on(&runtime, async {
            let node = open(setup).await?;
            // `Handle::start` waits for this.
            let _ = started.send(Ok(()));
            serve(node, work, answers).await;
            Ok(())
        })
    });
    // The runtime has ended: the caller may reuse the directory as soon as it gets the error.
    if served.is_err() {
        let _ = started.send(served);
    }
}

async fn open<G: Gate>(
    (options, start, listener, gate, detours): Setup<G>,
) -> Result<Node<Tcp<G>>, StartError> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let node = Node::open(options, Tcp::new(gate.clone(), detours)).await?;
    tokio::task::spawn_local(listen(listener, gate, node.clone()));
    match start {
        Start::Bootstrap => node.bootstrap().await?,
        Start::Join(addresses, within) => node.join(&addresses, within).await?,
    }
    Ok(node)
}

async fn serve<G: Gate>(node: Node<Tcp<G>>, mut work: UnboundedReceiver<Work>, answers: Arc<Answers>) {
    let node = Rc::new(node);
    let (watched, failed) = (node.clone(), answers.clone());
    tokio::task::spawn_local(async move {
        if let Some(reason) = watched.failure().await {
            failed.fail(reason);
        }
    });
    while let Some(Work::Request(ticket, request)) = work.recv().await {
        let (node, answers) = (node.clone(), answers.clone());
        tokio::task::spawn_local(async move { answers.push(ticket, answer(&node, request).await) });
    }
    node.stop().await;
}

async fn answer<G: Gate>(node: &Node<Tcp<G>>, request: Request) -> Result<Response, Error> {
    match request {
        Request::Get { key } => node.get(&key).await.map(Response::Value),
        Request::Page { directory, after, limit } => {
            let (items, more) = node.page(&directory, after.as_deref(), limit).await?;
            Ok(Response::Page(items, more))
        }
        Request::Propose(command) => node.propose(command).await.map(Response::Answer),
        Request::Renew(lease) => node.renew(lease).await.map(|()| Response::Done),
        Request::Watch { directory, cursor, wait } => {
            node.watch(&directory, cursor, wait).await.map(Response::Batch)
        }
        Request::Leave(node_id) => node.leave(node_id).await.map(|()| Response::Done),
        Request::Status => Ok(Response::Status(node.status())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_the_thread_is_reported_once_with_its_message() {
        let wakes = Arc::new(AtomicUsize::new(0));
        let counted = wakes.clone();
        let answers = Answers {
            queue: Mutex::default(),
            filled: Condvar::new(),
            open: AtomicUsize::new(0),
            failed: OnceLock::new(),
            wake: Box::new(move || {
                counted.fetch_add(1, Ordering::Relaxed);
            }),
        };
        guarded(&answers, || {});
        assert_eq!(answers.failed.get(), None);
        guarded(&answers, || panic!("at {}", 7));
        guarded(&answers, || panic!("later"));
        assert_eq!(answers.failed.get().map(String::as_str), Some("its thread panicked: at 7"));
        assert_eq!(wakes.load(Ordering::Relaxed), 1);
    }
}
