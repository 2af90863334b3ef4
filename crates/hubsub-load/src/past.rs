//! Reads room history: `HUBSUB HISTORY` of rooms picked at random, or of all rooms from their first record to
//! their last.
//!
//! Every record is checked: it belongs to the requested room, this generator published it to that room, and
//! its seq follows the previous one.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::codec;
use crate::pace::RoomPick;
use crate::procfs;
use crate::report::{BUILD_PROFILE, Latency, histogram};
use crate::scenario::room_name;
use crate::stamp::Stamp;

/// Interval at which the server's memory is sampled.
const LOOK: Duration = Duration::from_millis(100);

const REPLY_TIME_MAX: Duration = Duration::from_secs(30);

/// Reads the history of rooms; prints one JSON line.
#[derive(Args, Serialize, Clone, Debug)]
pub struct Past {
    /// Address of the server.
    #[arg(long, value_name = "HOST:PORT")]
    pub target: String,
    /// Process id of the server, to read its memory.
    #[arg(long)]
    pub pid: Option<u32>,
    /// Number of rooms on the server.
    #[arg(long, default_value_t = 1)]
    pub rooms: u32,
    /// Connections, each with one request in flight.
    #[arg(long, default_value_t = 1)]
    pub connections: u32,
    /// Maximum of records per request.
    #[arg(long, default_value_t = 50)]
    pub count: u64,
    /// Requests for the last records of rooms picked at random; 0: every record of every room.
    #[arg(long, default_value_t = 0)]
    pub questions: u64,
    /// Seed for the choice of rooms.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

#[derive(Serialize)]
pub struct PastReport {
    pub build_profile: &'static str,
    pub asked: Past,
    pub seconds: f64,
    pub records: u64,
    pub bytes: u64,
    /// Records that differ from the published ones, or are out of place.
    pub wrong: u64,
    pub errors: u64,
    pub error: Option<String>,
    /// From a request to its whole reply.
    pub latency: Latency,
    /// The server's resident memory before the run.
    pub rss_before: Option<u64>,
    /// The server's maximum resident memory during the run.
    pub rss_max: Option<u64>,
}

#[derive(Clone)]
struct Tally {
    latency: Histogram<u64>,
    records: u64,
    bytes: u64,
    wrong: u64,
    errors: u64,
    error: Option<String>,
}

/// Sends the requests and checks the replies.
///
/// # Errors
/// Errors of the connection, or bytes that are no reply.
pub fn read(asked: Past) -> Result<PastReport, String> {
    if asked.rooms == 0 || asked.connections == 0 || asked.connections > 64 || asked.count == 0 {
        return Err("--rooms, --connections (at most 64) and --count must be above 0".to_owned());
    }
    let rss = || asked.pid.and_then(procfs::memory).map(|memory| memory.rss);
    let (rss_before, rss_max, done) = (rss(), AtomicU64::new(0), AtomicBool::new(false));
    let next_room = AtomicU32::new(0);
    let started = Instant::now();
    let tallies: Result<Vec<Tally>, String> = thread::scope(|scope| {
        scope.spawn(|| {
            while asked.pid.is_some() && !done.load(Relaxed) {
                rss_max.fetch_max(rss().unwrap_or(0), Relaxed);
                thread::park_timeout(LOOK);
            }
        });
        let readers: Vec<_> = (0..asked.connections)
            .map(|index| {
                let (asked, next_room) = (&asked, &next_room);
                scope.spawn(move || one(asked, index, next_room))
            })
            .collect();
        let read = readers.into_iter().map(|reader| {
            reader.join().map_err(|_| "a reader panicked".to_owned())?.map_err(|error| error.to_string())
        });
        let read: Vec<Result<Tally, String>> = read.collect();
        done.store(true, Relaxed);
        read.into_iter().collect()
    });
    let seconds = started.elapsed().as_secs_f64();
    let mut sum = Tally::new();
    tallies?.into_iter().for_each(|tally| sum.add(tally));
    Ok(PastReport {
        build_profile: BUILD_PROFILE,
        seconds,
        records: sum.records,
        bytes: sum.bytes,
        wrong: sum.wrong,
        errors: sum.errors,
        error: sum.error,
        latency: Latency::of(&sum.latency),
        rss_before,
        rss_max: asked.pid.map(|_| rss_max.into_inner()).filter(|&bytes| bytes > 0),
        asked,
    })
}

/// The epoch of each room's last record; None if it has no record.
///
/// # Errors
/// Errors of the connection, or bytes that are no reply.
pub(crate) fn epochs(target: &str, rooms: u32) -> io::Result<Vec<Option<u64>>> {
    let mut connection = Connection::open(target)?;
    let mut epoch = |room| Ok(connection.ask(room, 1, None, &mut Tally::new())?.map(|(epoch, _)| epoch));
    (0..rooms).map(&mut epoch).collect()
}

fn one(asked: &Past, index: u32, next_room: &AtomicU32) -> io::Result<Tally> {
    let mut connection = Connection::open(&asked.target)?;
    let mut tally = Tally::new();
    if asked.questions == 0 {
        loop {
            let room = next_room.fetch_add(1, Relaxed);
            if room >= asked.rooms {
                return Ok(tally);
            }
            whole(&mut connection, room, asked.count, &mut tally)?;
        }
    }
    let mut rooms = RoomPick::new(0, asked.rooms, asked.seed.wrapping_mul(1_000_003) + u64::from(index));
    let share = asked.questions / u64::from(asked.connections)
        + u64::from(u64::from(index) < asked.questions % u64::from(asked.connections));
    for _ in 0..share {
        connection.ask(rooms.pick(), asked.count, None, &mut tally)?;
    }
    Ok(tally)
}

/// Reads all records of a room, page by page.
fn whole(connection: &mut Connection, room: u32, count: u64, tally: &mut Tally) -> io::Result<()> {
    // The last record has the epoch, and the seq at which to end.
    let mut ahead = Tally::new();
    let last = connection.ask(room, 1, None, &mut ahead)?;
    tally.errors += ahead.errors;
    tally.error = tally.error.take().or(ahead.error);
    let Some((epoch, last)) = last else { return Ok(()) };
    let mut after = 0;
    while after < last {
        match connection.ask(room, count, Some((epoch, after)), tally)? {
            Some((_, seq)) if seq > after => after = seq,
            _ => {
                tally.wrong += last - after;
                return Ok(());
            }
        }
    }
    Ok(())
}

impl Tally {
    fn new() -> Tally {
        Tally { latency: histogram(), records: 0, bytes: 0, wrong: 0, errors: 0, error: None }
    }

    fn add(&mut self, other: Tally) {
        self.latency.add(&other.latency).expect("both histograms have the same bounds");
        self.records += other.records;
        self.bytes += other.bytes;
        self.wrong += other.wrong;
        self.errors += other.errors;
        self.error = self.error.take().or(other.error);
    }
}

struct Connection {
    input: BufReader<TcpStream>,
    output: TcpStream,
    request: Vec<u8>,
    line: Vec<u8>,
    bulk: Vec<u8>,
}

impl Connection {
    fn open(target: &str) -> io::Result<Connection> {
        let output = TcpStream::connect(target)?;
        output.set_nodelay(true)?;
        output.set_read_timeout(Some(REPLY_TIME_MAX))?;
        let input = BufReader::with_capacity(256 * 1024, output.try_clone()?);
        Ok(Connection { input, output, request: Vec::new(), line: Vec::new(), bulk: Vec::new() })
    }

    /// Requests records of a room; returns epoch and seq of the last one received.
    fn ask(
        &mut self,
        room: u32,
        count: u64,
        after: Option<(u64, u64)>,
        tally: &mut Tally,
    ) -> io::Result<Option<(u64, u64)>> {
        let (name, count) = (room_name(room), count.to_string());
        let position = after.map(|(epoch, seq)| format!("{epoch}-{seq}"));
        let mut args: Vec<&[u8]> = vec![b"HUBSUB", b"HISTORY", name.as_bytes(), b"COUNT", count.as_bytes()];
        if let Some(position) = &position {
            args.extend([&b"AFTER"[..], position.as_bytes()]);
        }
        self.request.clear();
        codec::command(&mut self.request, &args);
        let started = Instant::now();
        self.output.write_all(&self.request)?;
        let rows = match self.head()? {
            (b'*', rows) => rows,
            (b'-', _) => {
                tally.errors += 1;
                tally.error = Some(String::from_utf8_lossy(&self.line).into_owned());
                return Ok(None);
            }
            _ => return Err(self.malformed()),
        };
        let mut last = after;
        for _ in 0..rows {
            let position = self.row(room, &name, tally)?;
            let follows = last.is_none_or(|(epoch, seq)| position == (epoch, seq + 1));
            tally.wrong += u64::from(!follows);
            last = Some(position);
        }
        tally.latency.saturating_record(started.elapsed().as_nanos() as u64);
        Ok(last.filter(|_| rows > 0))
    }

    /// Reads `[position, time, topic, publisher, payload]`.
    fn row(&mut self, room: u32, name: &str, tally: &mut Tally) -> io::Result<(u64, u64)> {
        if self.head()? != (b'*', 5) {
            return Err(self.malformed());
        }
        self.bulk()?;
        let position = std::str::from_utf8(&self.bulk).ok().and_then(|text| {
            let (epoch, seq) = text.split_once('-')?;
            Some((epoch.parse().ok()?, seq.parse().ok()?))
        });
        let position = position.ok_or_else(|| self.malformed())?;
        if self.head()?.0 != b':' {
            return Err(self.malformed());
        }
        self.bulk()?;
        let is_of_room = self.bulk == name.as_bytes();
        self.bulk()?; // The publisher's name.
        self.bulk()?;
        let is_as_published = Stamp::read(&self.bulk).is_some_and(|stamp| stamp.room == room);
        tally.records += 1;
        tally.bytes += self.bulk.len() as u64;
        tally.wrong += u64::from(!is_of_room || !is_as_published);
        Ok(position)
    }

    /// A line's type and number (0 if it has none).
    fn head(&mut self) -> io::Result<(u8, u64)> {
        self.line.clear();
        self.input.read_until(b'\n', &mut self.line)?;
        if !self.line.ends_with(b"\r\n") {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the server closed a reader's connection",
            ));
        }
        self.line.truncate(self.line.len() - 2);
        let (&kind, digits) = self.line.split_first().ok_or_else(|| self.malformed())?;
        let number = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
        Ok((kind, number.unwrap_or(0)))
    }

    fn bulk(&mut self) -> io::Result<()> {
        let (b'$', len) = self.head()? else { return Err(self.malformed()) };
        self.bulk.resize(len as usize + 2, 0);
        self.input.read_exact(&mut self.bulk)?;
        self.bulk.truncate(len as usize);
        Ok(())
    }

    fn malformed(&self) -> io::Error {
        let line = String::from_utf8_lossy(&self.line).into_owned();
        io::Error::new(io::ErrorKind::InvalidData, format!("not a reply of HISTORY: {line:?}"))
    }
}
