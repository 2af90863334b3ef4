//! Creates and reads the state that an MQTT broker retains beyond connections: sessions of absent clients,
//! and retained messages.
//!
//! One thread with blocking sockets: its speed does not matter, only the broker's state and its answers.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use crate::mqtt::{self, Packet};
use crate::procfs;
use crate::report::BUILD_PROFILE;

const GROUP: usize = 100;
/// Messages in flight that wait for their PUBACK.
const WINDOW: usize = 200;

/// Creates sessions of clients that then disconnect.
#[derive(Args, Clone, Debug)]
pub struct Absent {
    /// Address of the broker.
    #[arg(long, value_name = "HOST:PORT")]
    pub target: String,
    /// Process id of the broker, to read its memory.
    #[arg(long)]
    pub pid: Option<u32>,
    /// Number of sessions, each with one subscription of QoS 1 to a topic of its own.
    #[arg(long, default_value_t = 100_000)]
    pub count: u32,
    /// Seconds without an answer after which the run fails.
    #[arg(long, default_value_t = 30.0)]
    pub patience: f64,
}

#[derive(Serialize, Debug)]
pub struct AbsentReport {
    build_profile: &'static str,
    sessions: u32,
    seconds: f64,
    /// Resident bytes of the broker before and after.
    before: Option<u64>,
    after: Option<u64>,
}

/// Publishes retained messages, each to its own topic.
#[derive(Args, Clone, Debug)]
pub struct Retain {
    /// Address of the broker.
    #[arg(long, value_name = "HOST:PORT")]
    pub target: String,
    /// Number of messages, each with a topic of its own.
    #[arg(long, default_value_t = 100_000)]
    pub count: u32,
    /// Payload bytes of each message.
    #[arg(long, default_value_t = 64)]
    pub payload: usize,
    /// Seconds without an answer after which the run fails.
    #[arg(long, default_value_t = 30.0)]
    pub patience: f64,
}

/// Subscribes to all retained messages, and counts them.
#[derive(Args, Clone, Debug)]
pub struct Collect {
    /// Address of the broker.
    #[arg(long, value_name = "HOST:PORT")]
    pub target: String,
    /// Number of messages to wait for.
    #[arg(long, default_value_t = 100_000)]
    pub count: u32,
    /// Repeats this for so many seconds, at least once, with a new connection each time.
    #[arg(long, default_value_t = 0.0)]
    pub seconds: f64,
    /// Seconds without a message after which the run stops waiting.
    #[arg(long, default_value_t = 30.0)]
    pub patience: f64,
}

/// Result of [`retain`] and [`collect`].
#[derive(Serialize, Debug)]
pub struct Kept {
    build_profile: &'static str,
    /// Distinct topics; the minimum of all rounds.
    topics: usize,
    /// Messages of a topic that already had one in the same round.
    doubled: u64,
    /// Duration of the longest round.
    seconds: f64,
    rounds: u32,
}

struct Client {
    stream: TcpStream,
    held: Vec<u8>,
}

impl Client {
    fn connect(target: &str, patience: f64) -> io::Result<Client> {
        let stream = TcpStream::connect(target)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs_f64(patience)))?;
        Ok(Client { stream, held: Vec::new() })
    }

    /// Reads until `take` returns true; returns false if the broker closed the connection.
    fn read(&mut self, mut take: impl FnMut(Packet<'_>) -> io::Result<bool>) -> io::Result<bool> {
        let mut piece = vec![0; 64 * 1024];
        loop {
            let mut used = 0;
            let mut enough = false;
            while !enough
                && let Some((packet, len)) = mqtt::packet(&self.held[used..])
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.0))?
            {
                used += len;
                if let Packet::Refused(code) = packet {
                    return Err(io::Error::other(format!("refused with {code:#04x}")));
                }
                enough = take(packet)?;
            }
            self.held.drain(..used);
            if enough {
                return Ok(true);
            }
            match self.stream.read(&mut piece)? {
                0 => return Ok(false),
                read => self.held.extend_from_slice(&piece[..read]),
            }
        }
    }
}

/// Creates the sessions, in groups of 100.
///
/// # Errors
/// The broker cannot be reached, or refuses one.
pub fn absent(asked: &Absent) -> io::Result<AbsentReport> {
    let resident = || asked.pid.and_then(|pid| procfs::memory_of_all(&[pid])).map(|memory| memory.rss);
    let (before, started) = (resident(), Instant::now());
    let numbers: Vec<u32> = (0..asked.count).collect();
    for group in numbers.chunks(GROUP) {
        let mut clients = Vec::new();
        for number in group {
            let mut client = Client::connect(&asked.target, asked.patience)?;
            let mut out = Vec::new();
            mqtt::connect(&mut out, &format!("absent{number}"), true);
            mqtt::subscribe(&mut out, &[format!("absent/{number:08}")], 1);
            client.stream.write_all(&out)?;
            clients.push(client);
        }
        for client in &mut clients {
            client.read(|packet| Ok(matches!(packet, Packet::Subscribed(_))))?;
            client.stream.write_all(&mqtt::DISCONNECT)?;
        }
        for client in &mut clients {
            client.read(|_| Ok(false))?;
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    Ok(AbsentReport {
        build_profile: BUILD_PROFILE,
        sessions: asked.count,
        seconds,
        before,
        after: resident(),
    })
}

/// Publishes the messages, and waits for each acknowledgement.
///
/// # Errors
/// The broker cannot be reached, or does not acknowledge one.
pub fn retain(asked: &Retain) -> io::Result<Kept> {
    let started = Instant::now();
    let mut client = Client::connect(&asked.target, asked.patience)?;
    let mut out = Vec::new();
    mqtt::connect(&mut out, "retains", false);
    let numbers: Vec<u32> = (0..asked.count).collect();
    let payload = vec![b'.'; asked.payload];
    for window in numbers.chunks(WINDOW) {
        for (id, number) in (1u16..).zip(window) {
            let (id_at, _) = mqtt::publish(&mut out, &format!("retained/{number:08}"), &payload, 1, true);
            let at = id_at.expect("of QoS 1");
            out[at..at + 2].copy_from_slice(&id.to_be_bytes());
        }
        client.stream.write_all(&out)?;
        out.clear();
        let mut left = window.len();
        let is_there = client.read(|packet| {
            left -= usize::from(matches!(packet, Packet::Puback(_)));
            Ok(left == 0)
        })?;
        if !is_there {
            return Err(io::Error::other("the broker closed the connection"));
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    Ok(Kept { build_profile: BUILD_PROFILE, topics: numbers.len(), doubled: 0, seconds, rounds: 1 })
}

/// Subscribes to all of them by a wildcard, and counts messages until all have arrived, or none arrives any
/// more.
///
/// # Errors
/// The broker cannot be reached.
pub fn collect(asked: &Collect) -> io::Result<Kept> {
    let until = Instant::now() + Duration::from_secs_f64(asked.seconds.max(0.0));
    let mut all = round(asked)?;
    while Instant::now() < until {
        let next = round(asked)?;
        all.topics = all.topics.min(next.topics);
        all.doubled += next.doubled;
        all.seconds = all.seconds.max(next.seconds);
        all.rounds += 1;
    }
    Ok(all)
}

fn round(asked: &Collect) -> io::Result<Kept> {
    let mut client = Client::connect(&asked.target, asked.patience)?;
    let mut out = Vec::new();
    mqtt::connect(&mut out, "collects", false);
    mqtt::subscribe(&mut out, &["retained/#".to_owned()], 0);
    let started = Instant::now();
    client.stream.write_all(&out)?;
    let (mut topics, mut doubled) = (HashSet::new(), 0);
    let read = client.read(|packet| {
        if let Packet::Publish { topic, .. } = packet {
            doubled += u64::from(!topics.insert(topic.to_vec()));
        }
        Ok(topics.len() >= asked.count as usize)
    });
    match read {
        Err(error) if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            Err(error)
        }
        _ => {
            let seconds = started.elapsed().as_secs_f64();
            Ok(Kept { build_profile: BUILD_PROFILE, topics: topics.len(), doubled, seconds, rounds: 1 })
        }
    }
}
