//! The thread that executes store requests of the shards in batches, so that they share a sync or a round
//! trip.
//!
//! Invariant: each request has one reply, mailed to the requesting shard; replies to accepted requests keep
//! their order.

use super::mail::{MqttMail, Stored};
use crate::io::inbox::Post;
use crate::io::log_lines::{Level, LogLines};
use hubsub_sessions::{Answer, Request, SessionStore, StoreError};
use hubsub_types::ShardId;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The most requests in a batch.
const TOGETHER: usize = 1_024;

/// The most bytes in a batch; the last request may exceed it.
const TOGETHER_BYTES: usize = 8 << 20;

pub struct StoreThread {
    work: Arc<Work>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Asks {
    shard: ShardId,
    number: u32,
    request: Request,
}

impl Asks {
    fn weight(&self) -> usize {
        let bytes = match &self.request {
            Request::Save { id, snapshot, entries, .. } => {
                id.len() + snapshot.len() + entries.iter().map(Vec::len).sum::<usize>()
            }
            Request::Update { id, snapshot, .. } => id.len() + snapshot.len(),
            Request::Append { id, entry } => id.len() + entry.len(),
            Request::End { id, begins_with } => id.len() + begins_with.len(),
            Request::Load { id } => id.len(),
            Request::List { after, .. } => after.as_ref().map_or(0, |after| after.len()),
        };
        size_of::<Asks>() + bytes
    }
}

/// A shard's handle to the store. The internal client numbers its requests and maps the replies.
pub struct StoreEnd {
    work: Arc<Work>,
    pub shard: ShardId,
    /// The number of an outstanding health check.
    pub looks: Option<u32>,
}

impl StoreEnd {
    pub fn new(thread: &StoreThread, shard: ShardId) -> StoreEnd {
        StoreEnd { work: Arc::clone(&thread.work), shard, looks: None }
    }

    /// Queues a request; a full queue is reported as the reply.
    pub fn ask(&self, number: u32, request: Request) {
        self.work.ask(Asks { shard: self.shard, number, request });
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreState {
    /// The last batch succeeded.
    Open,
    /// The last batch failed.
    Away,
}

#[derive(Serialize)]
pub struct StoreStatus {
    pub state: StoreState,
    /// Why it does not answer; none if it does.
    pub reason: Option<String>,
    pub figures: BTreeMap<&'static str, u64>,
}

struct Work {
    queue: Mutex<Queue>,
    came: Condvar,
    bytes_max: usize,
    inboxes: Arc<dyn Post<MqttMail>>,
    lines: Arc<LogLines>,
    away: Mutex<Option<String>>,
    requests: AtomicU64,
    errors: AtomicU64,
    refused: AtomicU64,
    batches: AtomicU64,
    batch_ns: AtomicU64,
}

#[derive(Default)]
struct Queue {
    requests: VecDeque<Asks>,
    bytes: usize,
    is_stopping: bool,
}

impl StoreThread {
    /// Starts the thread. Queued requests may take up to `bytes_max`.
    ///
    /// # Errors
    /// If the system has no threads left.
    pub fn start(
        store: Box<dyn SessionStore>,
        bytes_max: usize,
        inboxes: Arc<dyn Post<MqttMail>>,
        lines: Arc<LogLines>,
    ) -> io::Result<StoreThread> {
        let work = Arc::new(Work {
            queue: Mutex::default(),
            came: Condvar::new(),
            bytes_max,
            inboxes,
            lines,
            away: Mutex::default(),
            requests: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            batch_ns: AtomicU64::new(0),
        });
        let of_thread = Arc::clone(&work);
        let thread = std::thread::Builder::new().name("hubsub-sessions".to_owned());
        let thread = thread.spawn(move || of_thread.run(store))?;
        Ok(StoreThread { work, thread: Mutex::new(Some(thread)) })
    }

    pub fn status(&self) -> StoreStatus {
        let work = &self.work;
        let reason = work.away.lock().expect("nothing panics under this lock").clone();
        let state = if reason.is_some() { StoreState::Away } else { StoreState::Open };
        let (waiting, bytes) = {
            let queue = work.queue();
            (queue.requests.len() as u64, queue.bytes as u64)
        };
        let read = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        let figures = BTreeMap::from([
            ("requests_total", read(&work.requests)),
            ("errors_total", read(&work.errors)),
            ("refused_total", read(&work.refused)),
            ("batches_total", read(&work.batches)),
            ("batch_ns_total", read(&work.batch_ns)),
            ("waiting", waiting),
            ("waiting_bytes", bytes),
        ]);
        StoreStatus { state, reason, figures }
    }

    /// Executes queued requests, then ends the thread.
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

    /// Queues a request, or replies that the queue is full.
    fn ask(&self, asks: Asks) {
        let weight = asks.weight();
        let mut queue = self.queue();
        if queue.is_stopping || (queue.bytes > 0 && queue.bytes + weight > self.bytes_max) {
            drop(queue);
            self.refused.fetch_add(1, Ordering::Relaxed);
            return self.inboxes.post(asks.shard, Stored::mail(asks.number, Err(StoreError::Busy)));
        }
        queue.bytes += weight;
        queue.requests.push_back(asks);
        drop(queue);
        self.came.notify_one();
    }

    fn run(&self, mut store: Box<dyn SessionStore>) {
        while let Some((asked, requests)) = self.batch() {
            let began = Instant::now();
            let carry_out = AssertUnwindSafe(|| store.carry_out(&requests));
            let answers = catch_unwind(carry_out).unwrap_or_else(|_| {
                let error = StoreError::Failed("it panicked".to_owned());
                requests.iter().map(|_| Err(error.clone())).collect()
            });
            self.note(&answers, began.elapsed());
            let mut mail: Vec<Vec<MqttMail>> = (0..self.inboxes.shards()).map(|_| Vec::new()).collect();
            for ((shard, number), answer) in asked.into_iter().zip(answers) {
                mail[usize::from(shard.0)].push(Stored::mail(number, answer));
            }
            for (mail, shard) in mail.into_iter().zip(0..) {
                if !mail.is_empty() {
                    self.inboxes.post_all(ShardId(shard), mail);
                }
            }
        }
    }

    /// The next batch and its requesters; none at the end.
    #[allow(clippy::type_complexity, reason = "the two halves of what was asked")]
    fn batch(&self) -> Option<(Vec<(ShardId, u32)>, Vec<Request>)> {
        let is_idle = |queue: &mut Queue| queue.requests.is_empty() && !queue.is_stopping;
        let mut queue = self.came.wait_while(self.queue(), is_idle).expect("nothing panics under this lock");
        let (mut asked, mut requests, mut bytes) = (Vec::new(), Vec::new(), 0);
        while requests.len() < TOGETHER && bytes < TOGETHER_BYTES {
            let Some(asks) = queue.requests.pop_front() else { break };
            bytes += asks.weight();
            asked.push((asks.shard, asks.number));
            requests.push(asks.request);
        }
        queue.bytes -= bytes;
        (!requests.is_empty()).then_some((asked, requests))
    }

    /// Counts the batch, and logs when the store fails and when it recovers.
    fn note(&self, answers: &[Result<Answer, StoreError>], took: Duration) {
        let failed = answers.iter().filter_map(|answer| answer.as_ref().err());
        self.requests.fetch_add(answers.len() as u64, Ordering::Relaxed);
        self.errors.fetch_add(failed.clone().count() as u64, Ordering::Relaxed);
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.batch_ns.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
        let why = failed.filter(|error| error.is_of_the_store()).map(StoreError::to_string).next();
        let mut away = self.away.lock().expect("nothing panics under this lock");
        match (&*away, &why) {
            (None, Some(why)) => {
                let fields = vec![("reason", why.clone())];
                self.lines.log(Level::Error, "the store of sessions does not answer", fields);
            }
            (Some(_), None) => self.lines.log(Level::Info, "the store of sessions answers again", Vec::new()),
            _ => {}
        }
        *away = why;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::mail::Mail;
    use crate::control::Control;
    use crate::io::inbox::{Inbox, Inboxes};
    use hubsub_sessions::{Limits, Memory};
    use mio::{Poll, Token, Waker};
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// A store that waits for permission before each batch and may be unreachable.
    struct Gated {
        store: Memory,
        began: Sender<usize>,
        gate: Receiver<Option<StoreError>>,
    }

    impl SessionStore for Gated {
        fn carry_out(&mut self, requests: &[Request]) -> Vec<Result<Answer, StoreError>> {
            self.began.send(requests.len()).unwrap();
            match self.gate.recv().unwrap() {
                Some(error) => requests.iter().map(|_| Err(error.clone())).collect(),
                None => self.store.carry_out(requests),
            }
        }
    }

    struct Bench {
        thread: StoreThread,
        inboxes: Arc<Inboxes<Mail>>,
        polls: Vec<Poll>,
        began: Receiver<usize>,
        gate: Sender<Option<StoreError>>,
    }

    fn bench(bytes_max: usize) -> Bench {
        let polls: Vec<Poll> = (0..2).map(|_| Poll::new().unwrap()).collect();
        let inbox = |poll: &Poll| Inbox::new(Waker::new(poll.registry(), Token(0)).unwrap());
        let inboxes: Arc<Inboxes<Mail>> = Arc::new(polls.iter().map(inbox).collect());
        let (begins, began) = channel();
        let (gate, opens) = channel();
        let store = Memory::new(Limits { entries_max: 100, bytes_max: 1 << 20 });
        let store = Box::new(Gated { store, began: begins, gate: opens });
        let control = Arc::new(Control::new(64).unwrap());
        let thread = StoreThread::start(store, bytes_max, inboxes.clone(), control.lines()).unwrap();
        Bench { thread, inboxes, polls, began, gate }
    }

    impl Bench {
        fn ask(&self, shard: u16, number: u32, request: Request) {
            self.thread.work.ask(Asks { shard: ShardId(shard), number, request });
        }

        /// The next `count` replies for a shard, in order.
        fn answers(&mut self, shard: u16, count: usize) -> Vec<(u32, Result<Answer, StoreError>)> {
            let place = usize::from(shard);
            let mut answers = Vec::new();
            let mut events = mio::Events::with_capacity(1);
            while answers.len() < count {
                let mut mail = Vec::new();
                self.inboxes[place].take(&mut mail);
                for letter in mail {
                    let Mail::Mqtt(MqttMail::Stored(stored)) = letter else { panic!("another letter") };
                    answers.push((stored.number, stored.answer));
                }
                if answers.len() < count && self.inboxes[place].may_sleep() {
                    self.polls[place].poll(&mut events, None).unwrap();
                }
                self.inboxes[place].woke();
            }
            answers
        }

        fn figure(&self, name: &str) -> u64 {
            self.thread.status().figures[name]
        }
    }

    fn save(id: &str) -> Request {
        Request::Save { id: id.into(), snapshot: vec![1; 100], through: 0, entries: Vec::new() }
    }

    fn append(id: &str) -> Request {
        Request::Append { id: id.into(), entry: vec![2; 100] }
    }

    #[test]
    fn what_waits_is_one_batch_and_each_shard_has_its_answers_in_order() {
        let mut bench = bench(1 << 20);
        bench.ask(0, 1, save("a"));
        assert_eq!(bench.began.recv(), Ok(1));
        bench.ask(0, 2, append("a"));
        bench.ask(1, 1, append("a"));
        bench.ask(0, 3, append("b"));
        bench.gate.send(None).unwrap();
        assert_eq!(bench.began.recv(), Ok(3), "what came meanwhile");
        bench.gate.send(None).unwrap();
        let answers = bench.answers(0, 3);
        let wanted = [(1, Ok(Answer::Saved)), (2, Ok(Answer::Appended(1))), (3, Err(StoreError::NoSession))];
        assert_eq!(answers, wanted);
        assert_eq!(bench.answers(1, 1), [(1, Ok(Answer::Appended(2)))]);
        assert_eq!(bench.thread.status().state, StoreState::Open, "a refusal is no fault of the store");
        let figures =
            ["requests_total", "errors_total", "batches_total", "waiting"].map(|name| bench.figure(name));
        assert_eq!(figures, [4, 1, 2, 0]);
        bench.thread.stop();
    }

    #[test]
    fn what_is_too_much_is_refused_and_counted_and_one_request_has_always_room() {
        let mut bench = bench(10);
        bench.ask(0, 1, save("a"));
        assert_eq!(bench.began.recv(), Ok(1));
        bench.ask(0, 2, append("a"));
        bench.ask(0, 3, append("a"));
        assert_eq!(bench.answers(0, 1), [(3, Err(StoreError::Busy))]);
        assert_eq!((bench.figure("refused_total"), bench.figure("waiting")), (1, 1));
        bench.gate.send(None).unwrap();
        bench.gate.send(None).unwrap();
        assert_eq!(bench.answers(0, 2), [(1, Ok(Answer::Saved)), (2, Ok(Answer::Appended(1)))]);
        assert_eq!(bench.figure("waiting_bytes"), 0);
        bench.thread.stop();
    }

    #[test]
    fn it_is_told_when_the_store_goes_and_when_it_is_back() {
        let mut bench = bench(1 << 20);
        let away = StoreError::Unreachable("no route".to_owned());
        for error in [Some(away.clone()), Some(away.clone()), None] {
            bench.ask(0, 1, save("a"));
            bench.gate.send(error.clone()).unwrap();
            let answer = bench.answers(0, 1).remove(0).1;
            assert_eq!(answer, error.clone().map_or(Ok(Answer::Saved), Err));
            let status = bench.thread.status();
            assert_eq!(status.reason, error.as_ref().map(|_| "no route".to_owned()));
            assert_eq!(status.state == StoreState::Away, error.is_some());
        }
        let told = bench.thread.work.lines.drain(64).len();
        assert_eq!(told, 2, "not with each request");
        bench.thread.stop();
    }

    #[test]
    fn what_waits_at_the_end_is_carried_out_and_what_comes_later_refused() {
        let mut bench = bench(1 << 20);
        bench.ask(0, 1, save("a"));
        bench.ask(0, 2, append("a"));
        // One per possible batch, and no more.
        bench.gate.send(None).unwrap();
        bench.gate.send(None).unwrap();
        bench.thread.stop();
        bench.ask(0, 3, append("a"));
        let answers: Vec<_> = bench.answers(0, 3).into_iter().map(|(_, answer)| answer).collect();
        assert_eq!(answers, [Ok(Answer::Saved), Ok(Answer::Appended(1)), Err(StoreError::Busy)]);
    }
}
