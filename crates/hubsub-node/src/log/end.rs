//! A shard's handle to the log: the batches of its hubs in this turn, the log's data about rooms, and log
//! queries.

use super::hub_reading::HubSearch;
use super::reading::{Answer, Search};
use super::{Listing, Log, LogMail, LoggedHub, LoggedHubs, Readers, State, Turn};
use crate::io::inbox::Post;
use hubsub_log::record::{self, encode_headers};
use hubsub_log::{Batch, Chain, Disk, Keep, Kind};
use hubsub_route::{Found, HubLogRead, HubRange, LogRead, Namespace, Recalled, Record, Then};
use hubsub_types::{Epoch, ErrorCode, HubId, Position, Seq, ShardId, Term};
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a query waits for committed records to reach the segments.
const PATIENCE: Duration = Duration::from_secs(5);

/// The maximal duration of a search in turns: the requester may be gone.
const SEARCH: Duration = Duration::from_secs(60);

/// A shard's concurrent cursor reads: many cursors that catch up must neither fill its mailbox nor delay
/// other queries.
const RANGES_MAX: usize = 2;

#[derive(Clone)]
pub enum Question {
    Room(Box<LogRead>),
    Hub(Box<HubLogRead>),
}

impl Question {
    fn hub(&self) -> HubId {
        match self {
            Question::Room(read) => read.hub,
            Question::Hub(asked) => asked.read.hub,
        }
    }

    /// True if a cursor reads.
    fn is_range(&self) -> bool {
        match self {
            Question::Room(read) => matches!(read.then, Then::Range(_)),
            Question::Hub(_) => true,
        }
    }
}

enum Looking {
    Room(Search),
    Hub(HubSearch),
}

/// The term of a hub on a lone node.
const TERM: u64 = 1;

#[derive(Clone)]
pub struct LogEnd {
    log: Arc<Log>,
    readers: Arc<Readers>,
    pub listing: Arc<Listing>,
    hubs: HashMap<HubId, Arc<LoggedHub>>,
    /// In a cluster, the terms in which this node leads them.
    terms: HashMap<HubId, u64>,
    inboxes: Arc<dyn Post<LogMail>>,
    shard: ShardId,
    /// This turn's batches, one per hub with records.
    batches: Vec<Batch>,
    /// Queries that the readers had no room for.
    waiting: VecDeque<Question>,
    /// Cursor reads in progress, and those that wait for one to end.
    ranges: usize,
    waiting_ranges: VecDeque<Question>,
}

impl LogEnd {
    pub fn new(
        shard: ShardId,
        log: Arc<Log>,
        readers: Arc<Readers>,
        listing: Arc<Listing>,
        hubs: &LoggedHubs,
        inboxes: Arc<dyn Post<LogMail>>,
    ) -> LogEnd {
        let hubs = hubs.all().into_iter().filter(|(_, hub)| hub.shard == shard.0).collect();
        LogEnd {
            log,
            readers,
            listing,
            hubs,
            terms: HashMap::new(),
            inboxes,
            shard,
            batches: Vec::new(),
            waiting: VecDeque::new(),
            ranges: 0,
            waiting_ranges: VecDeque::new(),
        }
    }

    /// Sets the term in which this node leads a hub; its records contain it.
    pub fn leads(&mut self, hub: HubId, term: Term) {
        self.terms.insert(hub, term.0);
    }

    fn term(&self, hub: HubId) -> u64 {
        self.terms.get(&hub).copied().unwrap_or(TERM)
    }

    pub fn opened(&mut self, hub: HubId, logged: Arc<LoggedHub>) {
        self.hubs.insert(hub, logged);
    }

    /// A hub of this shard is closing: hands over its batch of this turn; none follows.
    pub fn closes(&mut self, hub: HubId) {
        debug_assert!(self.hubs.get(&hub).is_none_or(|hub| hub.closes()), "it is marked before");
        self.flush();
    }

    pub fn closed(&mut self, hub: HubId) {
        self.hubs.remove(&hub);
    }

    fn chain(&self, hub: HubId) -> Option<&Arc<Chain<Disk>>> {
        self.hubs.get(&hub)?.chain()
    }

    /// The last record of a room in a hub's log.
    pub fn recall(&self, hub: HubId, room: &[u8]) -> Option<Recalled> {
        let chain = self.chain(hub)?;
        let last = chain.rooms.get(chain.hash(room))?;
        let position = Position { epoch: Epoch(last.epoch), seq: Seq(last.seq) };
        Some(Recalled { position, offset: last.offset })
    }

    /// The offset up to which `recall` covers the hub's log.
    pub fn recalls_through(&self, hub: HubId) -> u64 {
        self.chain(hub).map_or(0, |chain| chain.next() - 1)
    }

    /// Why a hub's log accepts no records; none if it does.
    pub fn refuses(&self, hub: HubId) -> Option<ErrorCode> {
        let Some(hub) = self.hubs.get(&hub).filter(|hub| !hub.closes()) else {
            return Some(ErrorCode::HubClosed);
        };
        match self.log.shared.state() {
            _ if hub.chain().is_none() => Some(ErrorCode::Quarantined),
            State::Open => None,
            State::Full => Some(ErrorCode::DiskFull),
            State::Failed => Some(ErrorCode::LogFailed),
        }
    }

    /// True if so much waits for the disk that publishers must wait.
    pub fn is_behind(&self) -> bool {
        self.log.is_behind()
    }

    pub fn append(&mut self, hub: HubId, offset: u64, room: &[u8], record: &Record) {
        let headers = record.headers.iter().flat_map(|h| h.iter().map(|(k, v)| (&**k, &**v)));
        let (producer, producer_seq) = record.producer().map_or((0, 0), |p| (p.id.0, p.sequence));
        self.push(&record::Record {
            hub,
            kind: self.kind(hub, record),
            is_sharded: record.namespace == Namespace::Shard,
            qos_lack: record.qos.lack(),
            is_retained: record.retain,
            term: self.term(hub),
            offset,
            epoch: record.position.epoch.0,
            seq: record.position.seq.0,
            producer,
            producer_seq,
            timestamp_us: record.timestamp_us,
            room,
            topic: record.topic(),
            publisher: record.publisher.as_bytes(),
            headers: &encode_headers(headers),
            payload: record.payload(),
        });
    }

    /// In a hub that keeps the latest record per key, a record without a payload is a tombstone.
    fn kind(&self, hub: HubId, record: &Record) -> Kind {
        let ends =
            record.payload().is_empty() && self.chain(hub).is_some_and(|chain| chain.keep == Keep::Latest);
        if ends { Kind::Tombstone } else { Kind::Message }
    }

    /// Adds the deletion of a room and its records to a hub's batch.
    pub fn append_deletion(
        &mut self,
        hub: HubId,
        offset: u64,
        room: &[u8],
        last: Position,
        timestamp_us: u64,
    ) {
        let (kind, epoch, seq) = (Kind::RoomDeleted, last.epoch.0, last.seq.0);
        let deletion = record::Record {
            hub,
            kind,
            term: self.term(hub),
            offset,
            epoch,
            seq,
            timestamp_us,
            room,
            topic: room,
            ..Default::default()
        };
        self.push(&deletion);
    }

    fn push(&mut self, record: &record::Record<'_>) {
        let record::Record { hub, offset, .. } = *record;
        let at = self.batches.iter().position(|batch| batch.hub == hub).unwrap_or_else(|| {
            self.batches.push(Batch { hub, first: offset, count: 0, bytes: Vec::new() });
            self.batches.len() - 1
        });
        self.batches[at].count += 1;
        record::encode(record, &mut self.batches[at].bytes);
    }

    /// Submits this turn's batches, and queries that had to wait.
    pub fn flush(&mut self) {
        for batch in &self.batches {
            let hub = self.hubs.get(&batch.hub).expect("it goes only when it says nothing more");
            hub.gave(batch.first + u64::from(batch.count) - 1);
        }
        self.log.submit(&mut self.batches);
        while let Some(read) = self.waiting.pop_front() {
            if let Some(read) = self.submit(read) {
                return self.waiting.push_front(read);
            }
        }
        while self.ranges < RANGES_MAX
            && let Some(read) = self.waiting_ranges.pop_front()
        {
            if let Some(read) = self.submit(read) {
                return self.waiting_ranges.push_front(read);
            }
            self.ranges += 1;
        }
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len() + self.waiting_ranges.len()
    }

    /// True if queries wait and no response will arrive before them.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty() || (self.ranges == 0 && !self.waiting_ranges.is_empty())
    }

    /// Queries the log; the response arrives as mail.
    pub fn read(&mut self, read: Question) {
        let is_range = read.is_range();
        if is_range && (self.ranges >= RANGES_MAX || !self.waiting_ranges.is_empty()) {
            return self.waiting_ranges.push_back(read);
        }
        match self.submit(read) {
            None => self.ranges += usize::from(is_range),
            Some(read) if is_range => self.waiting_ranges.push_back(read),
            Some(read) => self.waiting.push_back(read),
        }
    }

    /// A response has arrived; `is_of_cursor` if it was a cursor's read.
    pub fn answered(&mut self, is_of_cursor: bool) {
        self.ranges -= usize::from(is_of_cursor);
    }

    /// Submits a query to the readers; returns it if they have no room.
    fn submit(&self, question: Question) -> Option<Question> {
        let (hub, inboxes, shard) =
            (self.hubs.get(&question.hub()).cloned(), Arc::clone(&self.inboxes), self.shard);
        let slot = Arc::new(std::sync::Mutex::new(Some(Looking::new(question))));
        let taken = Arc::clone(&slot);
        let log = Arc::clone(&self.log);
        let mut begin = None;
        let job = Box::new(move || {
            let mut slot = taken.lock().expect("nothing panics under this lock");
            let Some(mut looking) = slot.take() else { return Turn::Done };
            let passed = begin.get_or_insert_with(Instant::now).elapsed();
            let turn = || match hub.as_ref().map(|hub| hub.chain()) {
                None => Came::refused(&looking, ErrorCode::HubClosed),
                Some(None) => Came::refused(&looking, ErrorCode::Quarantined),
                Some(Some(chain)) => looking.turn(chain, &log),
            };
            let came = catch_unwind(AssertUnwindSafe(turn));
            let came = came.unwrap_or_else(|_| Came::refused(&looking, ErrorCode::LogFailed));
            if let (Some(damage), Some(hub)) = (looking.damage(), &hub) {
                hub.is_damaged(damage);
            }
            let came = match came {
                Came::Turn(turn) if passed <= if turn == Turn::Waits { PATIENCE } else { SEARCH } => {
                    *slot = Some(looking);
                    return turn;
                }
                Came::Turn(_) => Came::refused(&looking, ErrorCode::TimedOut),
                came => came,
            };
            let (mail, is_found) = match (looking, came) {
                (Looking::Room(search), Came::Room(found)) => {
                    let is_found = found.is_ok();
                    (LogMail::Found(search.read, found), is_found)
                }
                (Looking::Hub(search), Came::Hub(found)) => {
                    let is_found = found.is_ok();
                    (LogMail::FoundHub(search.asked, found), is_found)
                }
                _ => unreachable!("an answer is of the kind of its question"),
            };
            let counters = &log.shared.counters;
            counters.reads.fetch_add(1, Ordering::Relaxed);
            counters.reads_failed.fetch_add(u64::from(!is_found), Ordering::Relaxed);
            inboxes.post(shard, mail);
            Turn::Done
        });
        match self.readers.submit(job) {
            Ok(()) => None,
            Err(_) => {
                let looking = slot.lock().expect("nothing panics under this lock").take();
                looking.map(Looking::into_question)
            }
        }
    }
}

enum Came {
    /// It is not finished.
    Turn(Turn),
    Room(Result<Found, ErrorCode>),
    Hub(Result<HubRange, ErrorCode>),
}

impl Came {
    fn of<T>(turn: Result<Answer<T>, ErrorCode>, over: impl FnOnce(Result<T, ErrorCode>) -> Came) -> Came {
        match turn {
            Ok(Answer::Waits) => Came::Turn(Turn::Waits),
            Ok(Answer::GoesOn) => Came::Turn(Turn::GoesOn),
            Ok(Answer::Found(found)) => over(Ok(found)),
            Err(code) => over(Err(code)),
        }
    }

    fn refused(looking: &Looking, code: ErrorCode) -> Came {
        match looking {
            Looking::Room(_) => Came::Room(Err(code)),
            Looking::Hub(_) => Came::Hub(Err(code)),
        }
    }
}

impl Looking {
    fn new(question: Question) -> Looking {
        match question {
            Question::Room(read) => Looking::Room(Search::new(read)),
            Question::Hub(asked) => Looking::Hub(HubSearch::new(asked)),
        }
    }

    fn into_question(self) -> Question {
        match self {
            Looking::Room(search) => Question::Room(search.read),
            Looking::Hub(search) => Question::Hub(search.asked),
        }
    }

    fn turn(&mut self, chain: &Chain<Disk>, log: &Log) -> Came {
        match self {
            Looking::Room(search) => Came::of(search.turn(chain, log), Came::Room),
            Looking::Hub(search) => Came::of(search.turn(chain, log), Came::Hub),
        }
    }

    fn damage(&mut self) -> Option<String> {
        match self {
            Looking::Room(search) => search.damage.take(),
            Looking::Hub(search) => search.damage.take(),
        }
    }
}
