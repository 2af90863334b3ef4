//! Subscribers that catch up: each resumes its room from before its first record, so it gets the whole
//! history and then new messages, and reads at a limited rate.
//!
//! A publisher's messages in a room count up from 0; a second run of the generator begins at 0 again. So
//! after a message of a publisher, only the next number or 0 is valid; any other means loss or duplication.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use crate::codec::{self, Frame, Malformed};
use crate::past;
use crate::report::BUILD_PROFILE;
use crate::scenario::room_name;
use crate::stamp::Stamp;

const TURN: Duration = Duration::from_millis(50);
/// Turns are divided into this many parts, so that not all connections are read at once.
const PARTS: usize = 10;
const SCRATCH_BYTES: usize = 256 * 1024;

/// Catches up with rooms, slowly; prints one JSON line.
#[derive(Args, Serialize, Clone, Debug)]
pub struct Follow {
    /// Address of the server.
    #[arg(long, value_name = "HOST:PORT")]
    pub target: String,
    /// Number of rooms; subscribers are assigned to them in turn.
    #[arg(long, default_value_t = 1)]
    pub rooms: u32,
    /// Number of subscribers, one connection each.
    #[arg(long, default_value_t = 1)]
    pub subscribers: u32,
    /// Bytes per second that each subscriber reads.
    #[arg(long, default_value_t = 100_000)]
    pub bytes_per_second: u64,
    /// Size of the kernel's receive buffer per subscriber in bytes; 0: the system's default, some MB.
    #[arg(long, default_value_t = 0)]
    pub receive_bytes: u32,
    /// Duration of the run in seconds.
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
}

#[derive(Serialize, Default)]
pub struct FollowReport {
    pub build_profile: &'static str,
    /// Time since the first connection was started.
    pub seconds: f64,
    pub bytes: u64,
    pub messages: u64,
    /// Messages that are missing, doubled, out of order, or of another room.
    pub wrong: u64,
    /// Subscribers that got no message.
    pub without: u64,
    pub disconnected: u64,
    pub errors: u64,
    pub error: Option<String>,
}

struct Follower {
    stream: Option<TcpStream>,
    room: u32,
    held: Vec<u8>,
    next: HashMap<u32, u64>,
    messages: u64,
    read_at: Instant,
}

/// Subscribes, and reads for the requested time.
///
/// # Errors
/// A connection fails, or the server does not speak the protocol.
pub fn follow(asked: &Follow) -> io::Result<FollowReport> {
    if asked.rooms == 0 || asked.subscribers == 0 || asked.bytes_per_second == 0 {
        return Err(io::Error::other("--rooms, --subscribers and --bytes-per-second must be above 0"));
    }
    let epochs = past::epochs(&asked.target, asked.rooms)?;
    let started = Instant::now();
    let mut followers = Vec::new();
    for index in 0..asked.subscribers {
        let room = index % asked.rooms;
        followers.push(Follower::connect(asked, room, epochs[room as usize])?);
    }
    let mut report = FollowReport { build_profile: BUILD_PROFILE, ..FollowReport::default() };
    let mut scratch = vec![0; SCRATCH_BYTES];
    let (lasts, mut part) = (Duration::from_secs_f64(asked.seconds), 0);
    while started.elapsed() < lasts {
        let turn_ends = Instant::now() + TURN / PARTS as u32;
        for follower in followers.iter_mut().skip(part).step_by(PARTS) {
            follower.read(asked.bytes_per_second, &mut scratch, &mut report)?;
        }
        part = (part + 1) % PARTS;
        std::thread::sleep(turn_ends.saturating_duration_since(Instant::now()));
    }
    report.seconds = started.elapsed().as_secs_f64();
    report.without = followers.iter().filter(|follower| follower.messages == 0).count() as u64;
    report.disconnected = followers.iter().filter(|follower| follower.stream.is_none()).count() as u64;
    Ok(report)
}

impl Follower {
    fn connect(asked: &Follow, room: u32, epoch: Option<u64>) -> io::Result<Follower> {
        let mut stream = TcpStream::connect(&asked.target)?;
        if asked.receive_bytes > 0 {
            bound_receive_buffer(&stream, asked.receive_bytes)?;
        }
        let mut request = Vec::new();
        let name = room_name(room);
        let (word, value) = epoch.map_or(("LAST", "0".to_owned()), |epoch| ("FROM", format!("{epoch}-0")));
        codec::command(
            &mut request,
            &[b"HUBSUB", b"SUBSCRIBE", name.as_bytes(), word.as_bytes(), value.as_bytes()],
        );
        stream.write_all(&request)?;
        stream.set_nonblocking(true)?;
        let read_at = Instant::now();
        Ok(Follower {
            stream: Some(stream),
            room,
            held: Vec::new(),
            next: HashMap::new(),
            messages: 0,
            read_at,
        })
    }

    /// Reads the bytes that the rate allows since the last read.
    fn read(
        &mut self,
        bytes_per_second: u64,
        scratch: &mut [u8],
        report: &mut FollowReport,
    ) -> io::Result<()> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        let now = Instant::now();
        let allowed = bytes_per_second as f64 * (now - self.read_at).as_secs_f64();
        let limit = (allowed as usize).min(scratch.len());
        if limit == 0 {
            return Ok(());
        }
        self.read_at = now;
        match stream.read(&mut scratch[..limit]) {
            Ok(0) => self.stream = None,
            Ok(read) => {
                report.bytes += read as u64;
                self.held.extend_from_slice(&scratch[..read]);
                self.take(report)
                    .map_err(|Malformed(what)| io::Error::new(io::ErrorKind::InvalidData, what))?;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                report.error = Some(error.to_string());
                self.stream = None;
            }
        }
        Ok(())
    }

    fn take(&mut self, report: &mut FollowReport) -> Result<(), Malformed> {
        let mut used = 0;
        while let Some((frame, len)) = codec::frame(&self.held[used..])? {
            match frame {
                Frame::Message { payload, .. } => {
                    self.messages += 1;
                    report.messages += 1;
                    let stamp = Stamp::read(payload).filter(|stamp| stamp.room == self.room);
                    let follows = stamp.is_some_and(|stamp| {
                        let next = self.next.entry(stamp.publisher).or_default();
                        let follows = stamp.seq == *next || stamp.seq == 0;
                        *next = stamp.seq + 1;
                        follows
                    });
                    report.wrong += u64::from(!follows);
                }
                Frame::Error(text) => {
                    report.errors += 1;
                    report.error = Some(String::from_utf8_lossy(text).into_owned());
                }
                Frame::Subscribed | Frame::Integer(_) | Frame::Other => {}
            }
            used += len;
        }
        self.held.drain(..used);
        Ok(())
    }
}

fn bound_receive_buffer(stream: &TcpStream, bytes: u32) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    let at = (&raw const bytes).cast();
    // SAFETY: the descriptor is open during the call, which reads `len` bytes of `bytes`.
    match unsafe { libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, at, len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
