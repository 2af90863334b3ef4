//! A publishing connection: keeps its pace, stamps every payload, counts replies.
//!
//! Frames are copies of one template with room, stamp and nothing else changed;
//! all that may be sent now goes out in one write.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;

use hdrhistogram::Histogram;

use crate::codec::{self, Frame, Malformed};
use crate::pace::{Pace, RoomPick, Schedule};
use crate::scenario::{ROOM_DIGITS, Scenario, Verb, room_name};
use crate::socket::{ReadEnd, Socket};
use crate::stamp::{FILLER, Stamp};
use crate::subscriber::LATENCY_NS_MAX;

/// Bytes encoded before they are written; more would wait in user space only.
const BATCH_BYTES_MAX: usize = 256 * 1024;

/// How long publishes waited for their reply.
pub struct Waits {
    /// Due times of the publishes in flight, in ns of the generator's clock; replies come in their order.
    due_ns: VecDeque<u64>,
    /// Waits in ns of publishes that were due in the window.
    pub histogram: Histogram<u64>,
}

impl Waits {
    fn new() -> Waits {
        let histogram = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("the bounds are valid");
        Waits { due_ns: VecDeque::new(), histogram }
    }

    fn answered(&mut self, now_ns: u64, window: &Range<u64>) {
        let Some(due_ns) = self.due_ns.pop_front() else { return };
        if window.contains(&due_ns) {
            self.histogram.saturating_record(now_ns.saturating_sub(due_ns));
        }
    }
}

/// One publisher.
pub struct Publisher {
    /// Index among all publishers.
    pub index: u32,
    socket: Option<Socket>,
    pace: Pace,
    rooms: RoomPick,
    /// Next seq for each room of `rooms`.
    seqs: Vec<u64>,
    /// Numbers in the names of `rooms`.
    numbers: Vec<u32>,
    quota: u64,
    template: Vec<u8>,
    digits_at: usize,
    payload_at: usize,
    verb: Verb,
    /// Where waits are measured.
    pub waits: Option<Box<Waits>>,
    /// Publishes encoded for sending.
    pub sent: u64,
    /// Replies, errors included.
    pub answered: u64,
    /// Error replies.
    pub errors: u64,
    /// Sum of the receivers that the replies name.
    pub receivers: u64,
    /// Text of the last error.
    pub error_last: Option<String>,
}

impl Publisher {
    /// A publisher over a connected socket.
    pub fn new(index: u32, socket: Socket, scenario: &Scenario) -> Publisher {
        let pace = if scenario.rate > 0.0 {
            let (publisher, publishers) = (u64::from(index), u64::from(scenario.publishers));
            Pace::Open(Schedule { start_ns: 0, publisher, publishers, rate: scenario.rate })
        } else {
            Pace::Closed { in_flight: scenario.in_flight }
        };
        let (first, count) = scenario.rooms_of_publisher(index);
        let numbers: Vec<u32> = (first..first + count).map(|room| scenario.number_of(room)).collect();
        let name = room_name(numbers[0]);
        let mut template = Vec::new();
        let filler = vec![FILLER; scenario.payload];
        match scenario.verb {
            Verb::Publish => codec::command(&mut template, &[b"PUBLISH", name.as_bytes(), &filler]),
            Verb::Spublish => codec::command(&mut template, &[b"SPUBLISH", name.as_bytes(), &filler]),
            Verb::Xadd => codec::command(&mut template, &[b"XADD", name.as_bytes(), b"*", b"d", &filler]),
        }
        let payload_at = template.len() - 2 - scenario.payload;
        // The verb is no part of the name, so its first place is the only one.
        let name_at = memchr::memmem::find(&template, name.as_bytes()).expect("the name is in the template");
        let digits_at = name_at + name.len() - ROOM_DIGITS;
        Publisher {
            index,
            socket: Some(socket),
            pace,
            rooms: RoomPick::new(first, count, scenario.seed.wrapping_mul(1_000_003) + u64::from(index)),
            seqs: vec![0; count as usize],
            numbers,
            quota: scenario.quota_of(index),
            template,
            digits_at,
            payload_at,
            verb: scenario.verb,
            waits: scenario.replies.then(|| Box::new(Waits::new())),
            sent: 0,
            answered: 0,
            errors: 0,
            receivers: 0,
            error_last: None,
        }
    }

    /// Sets when the open loop's first publish is due.
    pub fn start(&mut self, now_ns: u64) {
        if let Pace::Open(schedule) = &mut self.pace {
            schedule.start_ns = now_ns;
        }
    }

    /// Stops it: nothing further is sent than what is encoded.
    pub fn stop(&mut self) {
        self.quota = self.sent;
    }

    /// Whether every publish was answered, or its connection is gone.
    pub fn is_settled(&self) -> bool {
        self.socket.is_none() || self.answered == self.sent
    }

    /// Whether its connection was lost.
    pub fn is_disconnected(&self) -> bool {
        self.socket.is_none()
    }

    /// How many publishes went into each of its rooms: the first room, then the counts.
    pub fn into_sent(self) -> (u32, Vec<u64>) {
        (self.rooms.rooms().start, self.seqs)
    }

    /// Takes the replies that came until `now_ns`; the window is of due times that are measured.
    pub fn on_readable(&mut self, scratch: &mut Vec<u8>, now_ns: u64, window: &Range<u64>) {
        let Some(mut socket) = self.socket.take() else { return };
        match socket.read(scratch, |bytes| self.take_replies(bytes, now_ns, window)) {
            Ok(ReadEnd::Drained) => self.socket = Some(socket),
            Ok(ReadEnd::Closed) => {
                self.error_last = Some("the server closed a publisher's connection".to_owned())
            }
            Err(error) => self.error_last = Some(error.to_string()),
        }
    }

    /// Sends what is due at `now_ns`.
    pub fn publish(&mut self, now_ns: u64) {
        let Some(mut socket) = self.socket.take() else { return };
        let sent = socket.flush().and_then(|()| self.fill(&mut socket, now_ns));
        match sent {
            Ok(()) => self.socket = Some(socket),
            Err(error) => self.error_last = Some(error.to_string()),
        }
    }

    fn fill(&mut self, socket: &mut Socket, now_ns: u64) -> io::Result<()> {
        while socket.is_flushed() {
            while socket.out.len() < BATCH_BYTES_MAX && self.sent < self.quota {
                let due_ns = match &self.pace {
                    Pace::Closed { in_flight } if self.sent - self.answered >= *in_flight => break,
                    Pace::Closed { .. } => now_ns,
                    Pace::Open(schedule) => match schedule.due_ns(self.sent) {
                        due_ns if due_ns > now_ns => break,
                        due_ns => due_ns,
                    },
                };
                self.encode(&mut socket.out, due_ns);
            }
            if socket.is_flushed() {
                break;
            }
            socket.flush()?;
        }
        Ok(())
    }

    fn encode(&mut self, out: &mut Vec<u8>, due_ns: u64) {
        let room = self.rooms.pick();
        let place = (room - self.rooms.rooms().start) as usize;
        let seq = &mut self.seqs[place];
        let mut digits = self.numbers[place];
        for byte in self.template[self.digits_at..self.digits_at + ROOM_DIGITS].iter_mut().rev() {
            *byte = b'0' + (digits % 10) as u8;
            digits /= 10;
        }
        Stamp { publisher: self.index, room, seq: *seq, due_ns }.write(&mut self.template[self.payload_at..]);
        *seq += 1;
        self.sent += 1;
        if let Some(waits) = &mut self.waits {
            waits.due_ns.push_back(due_ns);
        }
        out.extend_from_slice(&self.template);
    }

    fn take_replies(&mut self, bytes: &[u8], now_ns: u64, window: &Range<u64>) -> Result<usize, Malformed> {
        let mut used = 0;
        let answered_before = self.answered;
        while let Some((frame, len)) = codec::frame(&bytes[used..])? {
            used += len;
            match frame {
                Frame::Integer(receivers) => {
                    self.answered += 1;
                    self.receivers += receivers.max(0) as u64;
                }
                Frame::Error(text) => {
                    self.answered += 1;
                    self.errors += 1;
                    self.error_last = Some(String::from_utf8_lossy(text).into_owned());
                }
                Frame::Other if self.verb == Verb::Xadd => self.answered += 1,
                Frame::Message { .. } | Frame::Subscribed | Frame::Other => {}
            }
        }
        if let Some(waits) = &mut self.waits {
            (answered_before..self.answered).for_each(|_| waits.answered(now_ns, window));
        }
        Ok(used)
    }
}
