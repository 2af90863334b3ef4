//! A subscribing connection and what it counts; and connections that only hold a
//! subscription (idle), or read it slowly or never.
//!
//! All deliveries of a run have one shape but for room and stamp, so the usual
//! frame is recognised by comparing its fixed parts; whatever differs goes through
//! the codec.

use hdrhistogram::Histogram;

use crate::codec::{self, Frame, Malformed};
use crate::ledger::Ledger;
use crate::scenario::{ROOM_DIGITS, Scenario, Verb, room_name};
use crate::socket::Socket;
use crate::stamp::Stamp;

/// Latencies above this count as this.
pub const LATENCY_NS_MAX: u64 = 120_000_000_000;

/// What a holder without a room asks to be answered, and how that answer ends.
const ANSWER: &[u8] = b"hubsub-load";
const ANSWER_END: &[u8] = b"hubsub-load\r\n";

/// What the subscribers of one thread got.
pub struct Tally {
    /// Deliveries by lane.
    pub ledger: Ledger,
    /// Latency in ns of deliveries that were due in the window.
    pub latency: Histogram<u64>,
    /// Deliveries into a subscription of another room, or under another channel than stamped.
    pub misrouted: u64,
    /// Payloads that are not as they were published.
    pub corrupt: u64,
    /// Error replies.
    pub errors: u64,
    /// Text of the last error.
    pub error_last: Option<String>,
    /// Due times from here on count for latency, in ns of the generator's clock.
    pub window_from_ns: u64,
    /// Due times before this count for latency.
    pub window_to_ns: u64,
}

impl Tally {
    /// A tally for so many lanes.
    pub fn new(lanes: usize) -> Tally {
        Tally {
            ledger: Ledger::new(lanes),
            latency: Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("the bounds are valid"),
            misrouted: 0,
            corrupt: 0,
            errors: 0,
            error_last: None,
            window_from_ns: u64::MAX,
            window_to_ns: u64::MAX,
        }
    }

    fn error(&mut self, text: &[u8]) {
        self.errors += 1;
        self.error_last = Some(String::from_utf8_lossy(text).into_owned());
    }
}

/// The fixed parts of a delivery: `head`, the room's digits, `tail`, the payload, CR LF.
pub struct Shape {
    head: Vec<u8>,
    tail: Vec<u8>,
    payload: usize,
}

impl Shape {
    /// The shape of this scenario's deliveries.
    pub fn new(scenario: &Scenario) -> Shape {
        let name = room_name(0);
        let kind = if scenario.resp == 3 { '>' } else { '*' };
        let word = if scenario.verb == Verb::Spublish { "smessage" } else { "message" };
        let prefix = &name[..name.len() - ROOM_DIGITS];
        Shape {
            head: format!("{kind}3\r\n${}\r\n{word}\r\n${}\r\n{prefix}", word.len(), name.len()).into_bytes(),
            tail: format!("\r\n${}\r\n", scenario.payload).into_bytes(),
            payload: scenario.payload,
        }
    }

    /// Room, payload and length of the delivery at the front of `bytes`, if it has this shape.
    #[inline]
    fn split<'a>(&self, bytes: &'a [u8]) -> Option<(u32, &'a [u8], usize)> {
        let tail_at = self.head.len() + ROOM_DIGITS;
        let payload_at = tail_at + self.tail.len();
        let len = payload_at + self.payload + 2;
        let frame = bytes.get(..len)?;
        if !frame.starts_with(&self.head)
            || frame[tail_at..payload_at] != self.tail
            || &frame[len - 2..] != b"\r\n"
        {
            return None;
        }
        Some((room_of(&frame[self.head.len()..tail_at])?, &frame[payload_at..len - 2], len))
    }
}

/// One subscriber.
pub struct Subscriber {
    /// The connection; None once it was lost.
    pub socket: Option<Socket>,
    /// Index among all subscribing connections.
    pub connection: u32,
    /// Its subscriptions that the server has not confirmed.
    pub unconfirmed: usize,
    /// The one room it has, where it has one.
    only_room: Option<u32>,
    /// Where its lanes start in the thread's ledger.
    pub lanes_at: usize,
}

impl Subscriber {
    /// A subscriber whose commands are in the socket's output.
    pub fn new(connection: u32, mut socket: Socket, lanes_at: usize, scenario: &Scenario) -> Subscriber {
        let rooms: Vec<u32> = scenario.rooms_of(connection).collect();
        hello(&mut socket, scenario.resp);
        let verb: &[u8] = if scenario.verb == Verb::Spublish { b"SSUBSCRIBE" } else { b"SUBSCRIBE" };
        subscribe(&mut socket, verb, rooms.iter().map(|&room| room_name(scenario.number_of(room))));
        let only_room = if rooms.len() == 1 { rooms.first().copied() } else { None };
        Subscriber { socket: Some(socket), connection, unconfirmed: rooms.len(), only_room, lanes_at }
    }

    /// Counts the whole frames of `bytes`, which were read at `now_ns`.
    pub fn take(
        &mut self,
        bytes: &[u8],
        now_ns: u64,
        shape: &Shape,
        scenario: &Scenario,
        tally: &mut Tally,
    ) -> Result<usize, Malformed> {
        let mut used = 0;
        loop {
            let rest = &bytes[used..];
            if let Some((room, payload, len)) = shape.split(rest) {
                self.deliver(Some(room), payload, now_ns, scenario, tally);
                used += len;
                continue;
            }
            let Some((frame, len)) = codec::frame(rest)? else { return Ok(used) };
            used += len;
            match frame {
                Frame::Message { channel, payload } => {
                    let room = channel.last_chunk::<ROOM_DIGITS>().and_then(|digits| room_of(digits));
                    self.deliver(room, payload, now_ns, scenario, tally);
                }
                Frame::Subscribed => self.unconfirmed = self.unconfirmed.saturating_sub(1),
                Frame::Error(text) => tally.error(text),
                Frame::Integer(_) | Frame::Other => {}
            }
        }
    }

    #[inline]
    fn deliver(
        &mut self,
        room: Option<u32>,
        payload: &[u8],
        now_ns: u64,
        scenario: &Scenario,
        tally: &mut Tally,
    ) {
        let Some(stamp) = Stamp::read(payload).filter(|_| payload.len() == scenario.payload) else {
            tally.corrupt += 1;
            return;
        };
        let place = match self.only_room {
            Some(only) => (only == stamp.room).then_some(0),
            None => scenario.place_of(self.connection, stamp.room),
        };
        let is_its = room == Some(scenario.number_of(stamp.room));
        let (Some(place), true) = (place, is_its && stamp.publisher < scenario.publishers) else {
            tally.misrouted += 1;
            return;
        };
        let lane = self.lanes_at + place * scenario.lanes() + scenario.lane_of(stamp.publisher);
        tally.ledger.take(lane, stamp.seq);
        if stamp.due_ns >= tally.window_from_ns && stamp.due_ns < tally.window_to_ns {
            tally.latency.saturating_record(now_ns.saturating_sub(stamp.due_ns).max(1));
        }
    }
}

/// A connection that holds a subscription and counts nothing but bytes.
pub struct Holder {
    /// The connection; None once it was lost.
    pub socket: Option<Socket>,
    /// Whether its subscription is not confirmed yet.
    pub unconfirmed: bool,
    /// Bytes a second that it reads once confirmed; None for all there is.
    pub bytes_per_second: Option<u64>,
    /// Bytes read since it was confirmed.
    pub bytes: u64,
    /// When the server closed it, in ns of the generator's clock.
    pub closed_ns: Option<u64>,
}

impl Holder {
    /// A holder whose commands are in the socket's output; without a room it sends a PING.
    pub fn new(mut socket: Socket, room: Option<String>, bytes_per_second: Option<u64>, resp: u8) -> Holder {
        hello(&mut socket, resp);
        match room {
            Some(room) => subscribe(&mut socket, b"SUBSCRIBE", std::iter::once(room)),
            None => codec::command(&mut socket.out, &[b"PING", ANSWER]),
        }
        Holder { socket: Some(socket), unconfirmed: true, bytes_per_second, bytes: 0, closed_ns: None }
    }

    /// Takes whole frames until the confirmation came.
    pub fn take(&mut self, bytes: &[u8], tally: &mut Tally) -> Result<usize, Malformed> {
        let mut used = 0;
        while let Some((frame, len)) = codec::frame(&bytes[used..])? {
            used += len;
            match frame {
                Frame::Subscribed => self.unconfirmed = false,
                Frame::Error(text) => tally.error(text),
                Frame::Other if bytes[..used].ends_with(ANSWER_END) => self.unconfirmed = false,
                Frame::Message { .. } | Frame::Integer(_) | Frame::Other => {}
            }
        }
        Ok(used)
    }
}

/// Appends HELLO where RESP3 is spoken.
fn hello(socket: &mut Socket, resp: u8) {
    if resp == 3 {
        codec::command(&mut socket.out, &[b"HELLO", b"3"]);
    }
}

/// Appends one command, SUBSCRIBE or SSUBSCRIBE, for all of `rooms`.
fn subscribe(socket: &mut Socket, verb: &[u8], rooms: impl Iterator<Item = String>) {
    let rooms: Vec<String> = rooms.collect();
    let args: Vec<&[u8]> = std::iter::once(verb).chain(rooms.iter().map(|room| room.as_bytes())).collect();
    codec::command(&mut socket.out, &args);
}

#[inline]
fn room_of(digits: &[u8]) -> Option<u32> {
    digits
        .iter()
        .try_fold(0u32, |room, digit| digit.is_ascii_digit().then(|| room * 10 + u32::from(digit - b'0')))
}
