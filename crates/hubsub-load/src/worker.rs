//! A thread of the generator: it owns its connections and its poll, and shares with the run only [`Shared`].
//!
//! Connections are made in groups, each confirmed before the next starts, so that no server's accept queue
//! overflows. Under load a turn is: wait for events, read, let publishers with replies continue, store
//! counts.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::{Events, Poll, Token};

use crate::publisher::Publisher;
use crate::scenario::{Scenario, Share, idle_room_name, room_name};
use crate::socket::{ReadEnd, Socket};
use crate::subscriber::{Holder, Shape, Subscriber, Tally};

const SCRATCH_BYTES: usize = 256 * 1024;
const EVENTS_MAX: usize = 1024;
/// Connections made before their subscriptions must be confirmed.
const CONNECT_GROUP: usize = 128;
const CONNECT_TIME_MAX: Duration = Duration::from_secs(30);
/// Longest sleep between checks of the phase.
const TURN: Duration = Duration::from_millis(10);
/// Longest sleep in open loop with `--sleep`.
const CALM_TURN: Duration = Duration::from_millis(1);

#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
pub enum Phase {
    Connect = 0,
    Load = 1,
    /// Count, publish no more.
    Drain = 2,
    End = 3,
}

pub struct Shared {
    pub scenario: Scenario,
    /// Server addresses, assigned to rooms in turn.
    pub addresses: Vec<SocketAddr>,
    /// Server addresses for publishers, assigned to rooms in turn.
    pub publish_addresses: Vec<SocketAddr>,
    /// Zero of the generator's clock.
    pub clock: Instant,
    /// A [`Phase`], written by the run.
    pub phase: AtomicU8,
    /// Due times from here on count for latency.
    pub window_from_ns: AtomicU64,
    /// Due times before this count for latency.
    pub window_to_ns: AtomicU64,
    /// Counts so far, one per thread.
    pub seats: Vec<Seat>,
}

/// Counts of one thread, written by it after every turn.
#[derive(Default)]
#[repr(align(128))]
pub struct Seat {
    /// The system's id of the thread, to read its CPU time.
    pub thread: AtomicU32,
    pub published: AtomicU64,
    pub answered: AtomicU64,
    pub delivered: AtomicU64,
    /// Whether no publish waits for its reply.
    pub settled: AtomicBool,
}

impl Shared {
    /// Current time, in ns of the generator's clock.
    pub fn now_ns(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }

    fn is_past(&self, phase: Phase) -> bool {
        self.phase.load(Relaxed) > phase as u8
    }
}

pub struct Outcome {
    pub publishers: Vec<Publisher>,
    pub subscribers: Vec<Subscriber>,
    pub holders: Vec<Holder>,
    pub tally: Tally,
}

/// Connects, reports to `ready`, works until the end.
pub fn run(seat: usize, shared: &Shared, ready: &Sender<Result<(), String>>) -> io::Result<Outcome> {
    let mut worker = Worker::new(seat, shared)?;
    let connected = worker.connect();
    // The run ends before this thread only if another one failed; then nobody receives this.
    let _ = ready.send(connected.as_ref().map(|_| ()).map_err(|error| error.to_string()));
    connected?;
    while !shared.is_past(Phase::Connect) {
        worker.turn(TURN)?;
    }
    worker.load()?;
    let Worker { publishers, subscribers, holders, tally, .. } = worker;
    Ok(Outcome { publishers, subscribers, holders, tally })
}

/// Kinds of connections, in the upper half of a token.
const SUBSCRIBER: usize = 0;
const PUBLISHER: usize = 1;
const HOLDER: usize = 2;

struct Worker<'s> {
    shared: &'s Shared,
    seat: usize,
    poll: Poll,
    events: Option<Events>,
    scratch: Vec<u8>,
    /// Pending acknowledgements of a read, until they are moved to the socket.
    answers: Vec<u8>,
    shape: Shape,
    publishers: Vec<Publisher>,
    subscribers: Vec<Subscriber>,
    holders: Vec<Holder>,
    /// When slow subscribers last read, in ns of the generator's clock.
    slow_read_ns: u64,
    tally: Tally,
}

impl<'s> Worker<'s> {
    fn new(seat: usize, shared: &'s Shared) -> io::Result<Worker<'s>> {
        Ok(Worker {
            shared,
            seat,
            poll: Poll::new()?,
            events: Some(Events::with_capacity(EVENTS_MAX)),
            scratch: vec![0; SCRATCH_BYTES],
            answers: Vec::new(),
            shape: Shape::new(&shared.scenario),
            publishers: Vec::new(),
            subscribers: Vec::new(),
            holders: Vec::new(),
            slow_read_ns: 0,
            tally: Tally::new(0),
        })
    }

    fn connect(&mut self) -> io::Result<()> {
        let shared = self.shared;
        let scenario = &shared.scenario;
        let (publishers, subscribers) = scenario.shares_of(self.seat);
        if let Some((first, step)) = publishers {
            for index in (first as u32..scenario.publishers).step_by(step) {
                let room = scenario.rooms_of_publisher(index).0;
                let socket = self.socket(PUBLISHER, self.publishers.len(), room)?;
                self.publishers.push(Publisher::new(index, socket, scenario));
            }
        }
        if let Some(share) = subscribers {
            self.connect_subscribers(share)?;
            self.connect_holders(share)?;
        }
        Ok(())
    }

    fn connect_subscribers(&mut self, (first, step): Share) -> io::Result<()> {
        let scenario = &self.shared.scenario;
        let connections: Vec<u32> = (first as u32..scenario.connection_count()).step_by(step).collect();
        let mut lanes = 0;
        for group in connections.chunks(CONNECT_GROUP) {
            let group_at = self.subscribers.len();
            for &connection in group {
                let room = scenario.rooms_of(connection).next().unwrap_or(0);
                let socket = self.socket(SUBSCRIBER, self.subscribers.len(), room)?;
                let subscriber = Subscriber::new(connection, socket, lanes, scenario);
                lanes += subscriber.unconfirmed * scenario.lanes();
                self.subscribers.push(subscriber);
            }
            self.wait_until(|worker| worker.subscribers[group_at..].iter().all(|s| s.unconfirmed == 0))?;
        }
        self.tally = Tally::new(lanes);
        Ok(())
    }

    fn connect_holders(&mut self, (first, step): Share) -> io::Result<()> {
        let scenario = &self.shared.scenario;
        let idle = (0..scenario.idle).map(|i| (idle_room_name(i, scenario.idle_to), None));
        let slow = (0..scenario.slow).map(|i| {
            (Some(room_name(scenario.number_of(i % scenario.rooms))), Some(scenario.slow_bytes_per_second))
        });
        let all: Vec<_> = (0u32..).zip(idle.chain(slow)).skip(first).step_by(step).collect();
        for group in all.chunks(CONNECT_GROUP) {
            let group_at = self.holders.len();
            for (index, (room, bytes_per_second)) in group {
                let socket = self.socket(HOLDER, self.holders.len(), 0)?;
                self.holders.push(Holder::new(*index, socket, room.clone(), *bytes_per_second, scenario));
            }
            self.wait_until(|worker| worker.holders[group_at..].iter().all(|holder| !holder.unconfirmed))?;
        }
        Ok(())
    }

    fn socket(&self, kind: usize, index: usize, room: u32) -> io::Result<Socket> {
        let addresses =
            if kind == PUBLISHER { &self.shared.publish_addresses } else { &self.shared.addresses };
        let address = addresses[room as usize % addresses.len()];
        Socket::connect(address, self.poll.registry(), Token(kind << 32 | index))
    }

    /// Runs turns until `done`, at most for a group's time limit.
    fn wait_until(&mut self, done: impl Fn(&Worker) -> bool) -> io::Result<()> {
        let started = Instant::now();
        while !done(self) {
            self.turn(TURN)?;
            if let (true, Some(text)) = (self.tally.errors > 0, &self.tally.error_last) {
                return Err(io::Error::other(format!("the server refused a subscriber: {text}")));
            }
            let is_lost = |socket: &Option<Socket>| socket.is_none();
            if self.subscribers.iter().any(|s| is_lost(&s.socket))
                || self.holders.iter().any(|h| is_lost(&h.socket))
            {
                return Err(io::Error::other("the server closed a connection while it subscribed"));
            }
            if started.elapsed() > CONNECT_TIME_MAX {
                return Err(io::Error::other(format!(
                    "subscriptions are not confirmed after {CONNECT_TIME_MAX:?}"
                )));
            }
        }
        Ok(())
    }

    fn load(&mut self) -> io::Result<()> {
        let scenario = &self.shared.scenario;
        let open = scenario.rate > 0.0 && !self.publishers.is_empty();
        let timeout = match (open, scenario.spin) {
            (true, _) if scenario.sleep => CALM_TURN,
            (true, _) | (_, true) => Duration::ZERO,
            (false, false) => TURN,
        };
        let now_ns = self.shared.now_ns();
        for publisher in &mut self.publishers {
            publisher.start(now_ns);
            publisher.publish(now_ns);
        }
        while !self.shared.is_past(Phase::Load) {
            self.turn(timeout)?;
            if open {
                let now_ns = self.shared.now_ns();
                self.publishers.iter_mut().for_each(|publisher| publisher.publish(now_ns));
            }
        }
        let now_ns = self.shared.now_ns();
        self.publishers.iter_mut().for_each(|publisher| publisher.stop(now_ns));
        while !self.shared.is_past(Phase::Drain) {
            self.turn(TURN)?;
        }
        Ok(())
    }

    fn turn(&mut self, timeout: Duration) -> io::Result<()> {
        // Taken out for the turn, so that events can be read while connections are changed.
        let mut events = self.events.take().expect("only a turn takes the events, and it puts them back");
        let polled = self.poll.poll(&mut events, Some(timeout));
        // Loaded after the wait: a message that arrived meanwhile may belong to a window that opened
        // meanwhile.
        self.tally.window_from_ns = self.shared.window_from_ns.load(Relaxed);
        self.tally.window_to_ns = self.shared.window_to_ns.load(Relaxed);
        match polled {
            Ok(()) => events.iter().for_each(|event| self.on_event(event)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        self.events = Some(events);
        if self.shared.scenario.slow_bytes_per_second > 0 {
            self.read_slowly();
        }
        let seat = &self.shared.seats[self.seat];
        seat.published.store(self.publishers.iter().map(|publisher| publisher.sent).sum(), Relaxed);
        seat.answered.store(self.publishers.iter().map(|publisher| publisher.answered).sum(), Relaxed);
        seat.delivered.store(self.tally.ledger.delivered, Relaxed);
        if self.shared.is_past(Phase::Load) {
            seat.settled.store(self.publishers.iter().all(Publisher::is_settled), Relaxed);
        }
        Ok(())
    }

    fn on_event(&mut self, event: &Event) {
        let (kind, index) = (event.token().0 >> 32, event.token().0 & 0xFFFF_FFFF);
        match kind {
            SUBSCRIBER => self.on_subscriber(event, index),
            PUBLISHER => {
                if event.is_readable() {
                    let window = self.tally.window_from_ns..self.tally.window_to_ns;
                    let now_ns = self.shared.now_ns();
                    self.publishers[index].on_readable(&mut self.scratch, now_ns, &window);
                }
                if self.shared.is_past(Phase::Connect) {
                    self.publishers[index].publish(self.shared.now_ns());
                }
            }
            _ => self.on_holder(event, index),
        }
    }

    fn on_subscriber(&mut self, event: &Event, index: usize) {
        let subscriber = &mut self.subscribers[index];
        let Some(mut socket) = subscriber.socket.take() else { return };
        let (shared, tally, shape, answers) = (self.shared, &mut self.tally, &self.shape, &mut self.answers);
        let flushed = if socket.is_flushed() { Ok(()) } else { socket.flush() };
        let read = flushed.and_then(|()| match event.is_readable() {
            false => Ok(ReadEnd::Drained),
            true => socket.read(&mut self.scratch, |bytes| {
                subscriber.take(bytes, shared.now_ns(), shape, &shared.scenario, tally, answers)
            }),
        });
        socket.out.append(answers);
        let answered = read.and_then(|end| socket.flush().map(|()| end));
        match answered {
            Ok(ReadEnd::Drained) => subscriber.socket = Some(socket),
            Ok(ReadEnd::Closed) => {}
            Err(error) => tally.error_last = Some(error.to_string()),
        }
    }

    fn on_holder(&mut self, event: &Event, index: usize) {
        let protocol = self.shared.scenario.protocol;
        let holder = &mut self.holders[index];
        let Some(mut socket) = holder.socket.take() else { return };
        let slow = !holder.unconfirmed && holder.bytes_per_second.is_some();
        let closed = event.is_read_closed() || event.is_error();
        let read = socket.flush().and_then(|()| match (slow, event.is_readable()) {
            (true, _) => Ok(if closed { ReadEnd::Closed } else { ReadEnd::Drained }),
            (false, false) => Ok(ReadEnd::Drained),
            (false, true) => {
                socket.read(&mut self.scratch, |bytes| holder.take(bytes, protocol, &mut self.tally))
            }
        });
        match read {
            Ok(ReadEnd::Drained) => holder.socket = Some(socket),
            Ok(ReadEnd::Closed) | Err(_) => holder.closed_ns = Some(self.shared.now_ns()),
        }
    }

    /// Lets slow subscribers read at their rate, in steps of 50 ms.
    fn read_slowly(&mut self) {
        let now_ns = self.shared.now_ns();
        let since_ns = now_ns - self.slow_read_ns;
        if since_ns < 50_000_000 {
            return;
        }
        self.slow_read_ns = now_ns;
        for holder in self.holders.iter_mut().filter(|holder| !holder.unconfirmed) {
            let (Some(rate), Some(socket)) = (holder.bytes_per_second, holder.socket.as_mut()) else {
                continue;
            };
            let allowed = (rate as f64 * since_ns as f64 / 1e9) as usize;
            match socket.discard(&mut self.scratch, allowed) {
                Ok(Some(read)) => holder.bytes += read as u64,
                Ok(None) | Err(_) => {
                    holder.socket = None;
                    holder.closed_ns = Some(now_ns);
                }
            }
        }
    }
}
