//! A publishing connection: keeps its pace, stamps every payload, counts replies.
//!
//! Frames are copies of one template in which only room and stamp change; all publishes that may be sent now
//! are written at once.
//!
//! An MQTT message with QoS 0 has no reply: after each quarter of the window follows a ping, whose reply
//! counts for all messages before it.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;

use hdrhistogram::Histogram;

use crate::codec::{self, Frame, Malformed};
use crate::mqtt::{self, Packet};
use crate::pace::{Pace, RoomPick, Schedule};
use crate::phoenix;
use crate::report::histogram;
use crate::scenario::{Protocol, ROOM_DIGITS, Scenario, Verb, room_name};
use crate::socket::{ReadEnd, Socket};
use crate::stamp::{FILLER, Stamp};

/// Bytes encoded before they are written; more would only wait in user space.
const BATCH_BYTES_MAX: usize = 256 * 1024;

/// Times that publishes wait for their reply.
pub struct Waits {
    /// Due times of the publishes in flight, in ns of the generator's clock; replies arrive in the same
    /// order.
    due_ns: VecDeque<u64>,
    /// Waits in ns of publishes that were due in the window.
    pub histogram: Histogram<u64>,
}

impl Waits {
    fn answered(&mut self, now_ns: u64, window: &Range<u64>) {
        let Some(due_ns) = self.due_ns.pop_front() else { return };
        if window.contains(&due_ns) {
            self.histogram.saturating_record(now_ns.saturating_sub(due_ns));
        }
    }
}

/// Counts replies by pings, for messages without a reply.
struct Pings {
    every: u64,
    /// Messages after the last ping.
    unasked: u64,
    /// Number of messages before each ping in flight.
    asked: VecDeque<u64>,
}

pub struct Publisher {
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
    /// Position of the MQTT packet id in the template.
    id_at: Option<usize>,
    /// Set for MQTT with QoS 0.
    pings: Option<Pings>,
    digits_at: usize,
    payload_at: usize,
    verb: Verb,
    protocol: Protocol,
    /// Set if waits for replies are measured.
    pub waits: Option<Box<Waits>>,
    pub sent: u64,
    pub answered: u64,
    pub errors: u64,
    /// Sum of the receivers in the replies.
    pub receivers: u64,
    /// Pending answers to replies: PUBREL of MQTT.
    answers: Vec<u8>,
    pub error_last: Option<String>,
}

impl Publisher {
    pub fn new(index: u32, mut socket: Socket, scenario: &Scenario) -> Publisher {
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
        let is_of_page = scenario.protocol == Protocol::Phoenix;
        let filler =
            if is_of_page { phoenix::filler(scenario.payload) } else { vec![FILLER; scenario.payload] };
        let (is_mqtt, qos) = (scenario.protocol == Protocol::Mqtt, scenario.qos);
        let mut id_at = None;
        match scenario.verb {
            _ if is_mqtt => {
                mqtt::connect(&mut socket.out, &format!("p{index}"), false);
                id_at = mqtt::publish(&mut template, &name, &filler, qos, false).0;
            }
            Verb::Publish => codec::command(&mut template, &[b"PUBLISH", name.as_bytes(), &filler]),
            Verb::Spublish => codec::command(&mut template, &[b"SPUBLISH", name.as_bytes(), &filler]),
            Verb::Xadd => codec::command(&mut template, &[b"XADD", name.as_bytes(), b"*", b"d", &filler]),
        }
        let end_bytes = if is_mqtt { 0 } else { 2 };
        let payload_at = template.len() - end_bytes - scenario.payload;
        // The verb does not contain the name, so the first match is the only one.
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
            id_at,
            pings: (is_mqtt && qos == 0).then(|| Pings {
                every: (scenario.in_flight / 4).max(1),
                unasked: 0,
                asked: VecDeque::new(),
            }),
            digits_at,
            payload_at,
            verb: scenario.verb,
            protocol: scenario.protocol,
            waits: scenario
                .replies
                .then(|| Box::new(Waits { due_ns: VecDeque::new(), histogram: histogram() })),
            sent: 0,
            answered: 0,
            errors: 0,
            receivers: 0,
            answers: Vec::new(),
            error_last: None,
        }
    }

    /// Sets the due time of the open loop's first publish.
    pub fn start(&mut self, now_ns: u64) {
        if let Pace::Open(schedule) = &mut self.pace {
            schedule.start_ns = now_ns;
        }
    }

    /// Stops it: it only sends publishes that are already encoded.
    pub fn stop(&mut self, now_ns: u64) {
        self.quota = self.sent;
        self.publish(now_ns);
    }

    /// Whether every publish was answered, or the connection is lost.
    pub fn is_settled(&self) -> bool {
        self.socket.is_none() || self.answered == self.sent
    }

    pub fn is_disconnected(&self) -> bool {
        self.socket.is_none()
    }

    /// The number of publishes per room: the first room, then the counts.
    pub fn into_sent(self) -> (u32, Vec<u64>) {
        (self.rooms.rooms().start, self.seqs)
    }

    /// Processes the replies received by `now_ns`; `window` is the range of due times to be measured.
    pub fn on_readable(&mut self, scratch: &mut Vec<u8>, now_ns: u64, window: &Range<u64>) {
        let Some(mut socket) = self.socket.take() else { return };
        match socket.read(scratch, |bytes| self.take_replies(bytes, now_ns, window)) {
            Ok(ReadEnd::Drained) => {
                socket.out.append(&mut self.answers);
                self.socket = Some(socket);
            }
            Ok(ReadEnd::Closed) => {
                self.error_last = Some("the server closed a publisher's connection".to_owned())
            }
            Err(error) => self.error_last = Some(error.to_string()),
        }
    }

    /// Sends the publishes that are due at `now_ns`.
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
            self.ping_last(&mut socket.out);
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
        let stamp = Stamp { publisher: self.index, room, seq: *seq, due_ns };
        let payload = &mut self.template[self.payload_at..];
        match self.protocol {
            Protocol::Phoenix => phoenix::write_stamp(&stamp, payload),
            Protocol::Redis | Protocol::Mqtt => stamp.write(payload),
        }
        *seq += 1;
        self.sent += 1;
        if let Some(at) = self.id_at {
            let id = ((self.sent - 1) % 65_535 + 1) as u16;
            self.template[at..at + 2].copy_from_slice(&id.to_be_bytes());
        }
        if let Some(waits) = &mut self.waits {
            waits.due_ns.push_back(due_ns);
        }
        out.extend_from_slice(&self.template);
        if let Some(pings) = &mut self.pings {
            pings.unasked += 1;
            if pings.unasked >= pings.every {
                pings.ask(out);
            }
        }
    }

    /// Appends a ping after the last messages if no more follow for now.
    fn ping_last(&mut self, out: &mut Vec<u8>) {
        let is_last = self.sent == self.quota || matches!(self.pace, Pace::Open(_));
        if let Some(pings) = self.pings.as_mut().filter(|pings| is_last && pings.unasked > 0) {
            pings.ask(out);
        }
    }

    fn take_replies(&mut self, bytes: &[u8], now_ns: u64, window: &Range<u64>) -> Result<usize, Malformed> {
        let mut used = 0;
        let answered_before = self.answered;
        if self.protocol == Protocol::Mqtt {
            while let Some((packet, len)) = mqtt::packet(&bytes[used..])? {
                used += len;
                self.take_packet(packet);
            }
        }
        while self.protocol != Protocol::Mqtt
            && let Some((frame, len)) = codec::frame(&bytes[used..])?
        {
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

    fn take_packet(&mut self, packet: Packet<'_>) {
        match packet {
            Packet::Puback(_) | Packet::Pubcomp(_) => self.answered += 1,
            Packet::Pubrec(id) => mqtt::release(&mut self.answers, id),
            Packet::Pong => {
                let asked = self.pings.as_mut().and_then(|pings| pings.asked.pop_front());
                self.answered += asked.unwrap_or(0);
            }
            Packet::Refused(code) => {
                self.errors += 1;
                self.error_last = Some(format!("refused with {code:#04x}"));
            }
            Packet::Connected | Packet::Subscribed(_) | Packet::Publish { .. } | Packet::Pubrel(_) => {}
        }
    }
}

impl Pings {
    fn ask(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&mqtt::PING);
        self.asked.push_back(std::mem::take(&mut self.unasked));
    }
}
