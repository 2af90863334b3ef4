//! A flood of joins at a fixed rate, each followed by a leave, while other connections send heartbeats.
//! Measures how long both wait for their answers.
//!
//! Joins have due times that do not depend on the server, so a slow server shows as latency.

use std::collections::HashMap;
use std::io;
use std::net::ToSocketAddrs;
use std::time::{Duration, Instant};

use clap::Args;
use hdrhistogram::Histogram;
use mio::{Events, Poll, Token};
use serde::Serialize;

use crate::phoenix::{self, Said};
use crate::report::{BUILD_PROFILE, Latency, histogram};
use crate::socket::{ReadEnd, Socket};

const SCRATCH_BYTES: usize = 256 * 1024;
const TURN: Duration = Duration::from_millis(1);

/// Joins and leaves topics of Phoenix channels at a fixed rate; prints one JSON line.
#[derive(Args, Clone, Debug)]
pub struct Joins {
    /// WebSocket address of the server.
    #[arg(long, value_name = "HOST:PORT")]
    pub target: String,
    /// Connections that join, in turn.
    #[arg(long, default_value_t = 1000)]
    pub connections: u32,
    /// Number of topics; connection c joins topic c modulo this number.
    #[arg(long, default_value_t = 100)]
    pub topics: u32,
    /// Joins per second of all connections together.
    #[arg(long, default_value_t = 10_000.0)]
    pub rate: f64,
    /// Further connections that send ten heartbeats per second.
    #[arg(long, default_value_t = 100)]
    pub others: u32,
    /// Duration of the run in seconds.
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// Seconds without an answer after which the run stops waiting.
    #[arg(long, default_value_t = 10.0)]
    pub patience: f64,
}

#[derive(Serialize)]
pub struct JoinsReport {
    build_profile: &'static str,
    seconds: f64,
    /// Joins that were answered with ok.
    joined: u64,
    /// Joins, leaves and heartbeats without an answer.
    unanswered: u64,
    /// Refusals and lost connections.
    errors: u64,
    error: Option<String>,
    /// From the due time of a join to its answer.
    joins: Latency,
    /// From the due time of a heartbeat to its answer.
    heartbeats: Latency,
}

struct Client {
    socket: Option<Socket>,
    topic: String,
    last_ref: u64,
    /// Due time and kind of each request in flight, by its ref.
    asked: HashMap<String, (Instant, What)>,
}

#[derive(Clone, Copy, PartialEq)]
enum What {
    Join,
    Leave,
    Heartbeat,
}

/// Sends the joins and the heartbeats.
///
/// # Errors
/// No connection can be made.
pub fn join(asked: &Joins) -> io::Result<JoinsReport> {
    if asked.connections == 0 || asked.topics == 0 || asked.rate <= 0.0 || asked.seconds <= 0.0 {
        return Err(io::Error::other("--connections, --topics, --rate and --seconds must be above 0"));
    }
    let address = asked.target.to_socket_addrs()?.next();
    let address = address.ok_or_else(|| io::Error::other(format!("no address: {}", asked.target)))?;
    let mut run = Run {
        poll: Poll::new()?,
        events: Events::with_capacity(4096),
        scratch: vec![0; SCRATCH_BYTES],
        clients: Vec::new(),
        connected: 0,
        joined: 0,
        errors: 0,
        error: None,
        joins: histogram(),
        heartbeats: histogram(),
    };
    for index in 0..asked.connections + asked.others {
        let mut socket = Socket::connect(address, run.poll.registry(), Token(index as usize))?;
        phoenix::connect(&mut socket.out);
        let topic = format!("join:{}", index % asked.topics);
        run.clients.push(Client { socket: Some(socket), topic, last_ref: 0, asked: HashMap::new() });
    }
    let patience = Duration::from_secs_f64(asked.patience);
    run.wait(patience, |run| run.connected == run.clients.len() || run.errors > 0)?;
    let started = Instant::now();
    let due = |number: u64, rate: f64| started + Duration::from_secs_f64(number as f64 / rate);
    let (mut joins, mut heartbeats, beats) = (0u64, 0u64, 10.0 * f64::from(asked.others));
    while started.elapsed().as_secs_f64() < asked.seconds {
        let now = Instant::now();
        while due(joins, asked.rate) <= now {
            let client = &mut run.clients[(joins % u64::from(asked.connections)) as usize];
            client.ask(What::Join, due(joins, asked.rate));
            client.ask(What::Leave, now);
            joins += 1;
        }
        while beats > 0.0 && due(heartbeats, beats) <= now {
            let other = (heartbeats % u64::from(asked.others)) as u32;
            let client = &mut run.clients[(asked.connections + other) as usize];
            client.ask(What::Heartbeat, due(heartbeats, beats));
            heartbeats += 1;
        }
        run.turn()?;
    }
    let seconds = started.elapsed().as_secs_f64();
    run.wait(patience, |run| run.clients.iter().all(|client| client.asked.is_empty()))?;
    Ok(JoinsReport {
        build_profile: BUILD_PROFILE,
        seconds,
        joined: run.joined,
        unanswered: run.clients.iter().map(|client| client.asked.len() as u64).sum(),
        errors: run.errors,
        error: run.error,
        joins: Latency::of(&run.joins),
        heartbeats: Latency::of(&run.heartbeats),
    })
}

struct Run {
    poll: Poll,
    events: Events,
    scratch: Vec<u8>,
    clients: Vec<Client>,
    connected: usize,
    joined: u64,
    errors: u64,
    error: Option<String>,
    joins: Histogram<u64>,
    heartbeats: Histogram<u64>,
}

impl Run {
    /// Runs turns until `done`, or until nothing was answered for `patience`.
    fn wait(&mut self, patience: Duration, done: impl Fn(&Run) -> bool) -> io::Result<()> {
        let answers = |run: &Run| (run.connected, run.joins.len() + run.heartbeats.len());
        let (mut last, mut moved) = (answers(self), Instant::now());
        while !done(self) && moved.elapsed() < patience {
            self.turn()?;
            if answers(self) != last {
                (last, moved) = (answers(self), Instant::now());
            }
        }
        Ok(())
    }

    fn turn(&mut self) -> io::Result<()> {
        for index in 0..self.clients.len() {
            if let Some(socket) = &mut self.clients[index].socket
                && !socket.is_flushed()
                && let Err(error) = socket.flush()
            {
                self.lose(index, error.to_string());
            }
        }
        match self.poll.poll(&mut self.events, Some(TURN)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        let ready: Vec<usize> =
            self.events.iter().filter(|event| event.is_readable()).map(|event| event.token().0).collect();
        ready.into_iter().for_each(|index| self.read(index));
        Ok(())
    }

    fn read(&mut self, index: usize) {
        let Some(mut socket) = self.clients[index].socket.take() else { return };
        let mut came = Vec::new();
        let read = socket.read(&mut self.scratch, |bytes| {
            let mut used = 0;
            while let Some((said, len)) = phoenix::said(&bytes[used..])? {
                used += len;
                came.push(said);
            }
            Ok(used)
        });
        let now = Instant::now();
        for said in came {
            match said {
                Said::Connected => self.connected += 1,
                Said::Answered(reference) => self.answered(index, &reference, now),
                Said::Refused(why) => {
                    self.errors += 1;
                    self.error = Some(why);
                }
                Said::Event(..) | Said::Other => {}
            }
        }
        match read {
            Ok(ReadEnd::Drained) => self.clients[index].socket = Some(socket),
            Ok(ReadEnd::Closed) => self.lose(index, "the server closed a connection".to_owned()),
            Err(error) => self.lose(index, error.to_string()),
        }
    }

    fn answered(&mut self, index: usize, reference: &str, now: Instant) {
        let Some((due, what)) = self.clients[index].asked.remove(reference) else { return };
        let ns = (now.saturating_duration_since(due).as_nanos() as u64).max(1);
        match what {
            What::Join => {
                self.joined += 1;
                self.joins.saturating_record(ns);
            }
            What::Heartbeat => self.heartbeats.saturating_record(ns),
            What::Leave => {}
        }
    }

    fn lose(&mut self, index: usize, why: String) {
        self.clients[index].socket = None;
        self.errors += 1;
        self.error = Some(why);
    }
}

impl Client {
    fn ask(&mut self, what: What, due: Instant) {
        let Some(socket) = &mut self.socket else { return };
        self.last_ref += 1;
        match what {
            What::Join => phoenix::join(&mut socket.out, &self.topic, self.last_ref),
            What::Leave => phoenix::leave(&mut socket.out, &self.topic, self.last_ref),
            What::Heartbeat => phoenix::heartbeat(&mut socket.out, self.last_ref),
        }
        self.asked.insert(self.last_ref.to_string(), (due, what));
    }
}
