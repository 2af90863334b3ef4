//! Subscribers that catch up: each resumes its room from before its first record, so
//! it gets everything and what comes then, and reads so many bytes a second.
//!
//! A publisher's messages into a room count up from 0; a second run of the
//! generator begins at 0 again. So what follows a message of a publisher is the
//! next one or 0, and anything else is missing or doubled.

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

/// A connection is read so often.
const TURN: Duration = Duration::from_millis(50);
/// Turns are cut in so many parts, so that the server is not met by all at once.
const PARTS: usize = 10;
const SCRATCH_BYTES: usize = 256 * 1024;

/// Catches up with rooms, slowly; prints one JSON line.
#[derive(Args, Serialize, Clone, Debug)]
pub struct Follow {
    /// Where the server listens.
    #[arg(long, value_name = "HOST:PORT")]
    pub target: String,
    /// Rooms; subscribers get them in turn.
    #[arg(long, default_value_t = 1)]
    pub rooms: u32,
    /// Subscribers.
    #[arg(long, default_value_t = 1)]
    pub subscribers: u32,
    /// Bytes a second that each reads.
    #[arg(long, default_value_t = 100_000)]
    pub bytes_per_second: u64,
    /// Bytes that the kernel may receive ahead of a subscriber; 0: as it likes, some MB.
    #[arg(long, default_value_t = 0)]
    pub receive_bytes: u32,
    /// How long.
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
}

/// What came.
#[derive(Serialize, Default)]
pub struct FollowReport {
    /// `debug` or `release`.
    pub build_profile: &'static str,
    /// Time from the first connection's start.
    pub seconds: f64,
    /// Bytes read.
    pub bytes: u64,
    /// Messages.
    pub messages: u64,
    /// Messages that are missing, doubled, out of order, or of another room.
    pub wrong: u64,
    /// Subscribers that got no message.
    pub without: u64,
    /// Subscribers whose connection was lost.
    pub disconnected: u64,
    /// Error replies.
    pub errors: u64,
    /// Text of an error, if there was one.
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

/// Subscribes and reads.
///
/// # Errors
/// A connection cannot be made, or a server that speaks something else.
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

    /// Reads what its rate allows since the last time.
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
    // SAFETY: the descriptor is open for the length of the call, which reads `len` bytes of `bytes`.
    match unsafe { libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, at, len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
