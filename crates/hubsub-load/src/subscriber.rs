//! A subscribing connection and its counts; and connections that only hold a subscription (idle), or read it
//! slowly or never.
//!
//! All deliveries of a run have the same shape except for room and stamp, so the usual frame is recognised by
//! comparing its fixed parts; any other goes through the codec.

use hdrhistogram::Histogram;

use crate::codec::{self, Frame, Malformed};
use crate::ledger::Ledger;
use crate::mqtt::{self, Packet};
use crate::phoenix::{self, Said};
use crate::report::histogram;
use crate::scenario::{Protocol, ROOM_DIGITS, Scenario, Verb, room_name};
use crate::socket::Socket;
use crate::stamp::Stamp;

/// Payload of the PING of a holder without a room, and the end of the answer.
const ANSWER: &[u8] = b"hubsub-load";
const ANSWER_END: &[u8] = b"hubsub-load\r\n";

/// Counts of one thread's subscribers.
pub struct Tally {
    pub ledger: Ledger,
    /// Latency in ns of deliveries that were due in the window.
    pub latency: Histogram<u64>,
    /// Deliveries to a subscription of another room, or on another channel than stamped.
    pub misrouted: u64,
    pub corrupt: u64,
    pub errors: u64,
    pub error_last: Option<String>,
    /// Due times from here on count for latency, in ns of the generator's clock.
    pub window_from_ns: u64,
    /// Due times before this count for latency.
    pub window_to_ns: u64,
}

impl Tally {
    pub fn new(lanes: usize) -> Tally {
        Tally {
            ledger: Ledger::new(lanes),
            latency: histogram(),
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

/// The fixed parts of a delivery: `head`, the room's digits, `tail`, a packet id, the payload, `end`.
pub struct Shape {
    head: Vec<u8>,
    tail: Vec<u8>,
    /// Bytes of the packet id: 2 if MQTT deliveries have one, else 0.
    id_bytes: usize,
    payload: usize,
    end: &'static [u8],
}

/// The variable parts of a delivery of the usual shape.
struct Shaped<'a> {
    room: u32,
    id: u16,
    payload: &'a [u8],
    len: usize,
}

impl Shape {
    pub fn new(scenario: &Scenario) -> Shape {
        let name = room_name(0);
        let payload = scenario.payload;
        if scenario.protocol == Protocol::Mqtt {
            let mut head = Vec::new();
            let (id_at, payload_at) = mqtt::publish(&mut head, &name, &vec![0; payload], scenario.qos, false);
            head.truncate(id_at.unwrap_or(payload_at) - ROOM_DIGITS);
            let id_bytes = id_at.map_or(0, |at| payload_at - at);
            return Shape { head, tail: Vec::new(), id_bytes, payload, end: b"" };
        }
        if scenario.protocol == Protocol::Phoenix {
            let (head, tail, end) = phoenix::around(&name, ROOM_DIGITS, payload);
            return Shape { head, tail, id_bytes: 0, payload, end };
        }
        let kind = if scenario.resp == 3 { '>' } else { '*' };
        let word = if scenario.verb == Verb::Spublish { "smessage" } else { "message" };
        let prefix = &name[..name.len() - ROOM_DIGITS];
        Shape {
            head: format!("{kind}3\r\n${}\r\n{word}\r\n${}\r\n{prefix}", word.len(), name.len()).into_bytes(),
            tail: format!("\r\n${}\r\n", scenario.payload).into_bytes(),
            id_bytes: 0,
            payload,
            end: b"\r\n",
        }
    }

    /// The delivery at the front of `bytes`, if it has this shape.
    #[inline]
    fn split<'a>(&self, bytes: &'a [u8]) -> Option<Shaped<'a>> {
        let tail_at = self.head.len() + ROOM_DIGITS;
        let id_at = tail_at + self.tail.len();
        let payload_at = id_at + self.id_bytes;
        let end_at = payload_at + self.payload;
        let len = end_at + self.end.len();
        let frame = bytes.get(..len)?;
        if !frame.starts_with(&self.head)
            || frame[tail_at..id_at] != self.tail
            || &frame[end_at..] != self.end
        {
            return None;
        }
        let room = room_of(&frame[self.head.len()..tail_at])?;
        let id = frame[id_at..payload_at].iter().fold(0, |id, &byte| id << 8 | u16::from(byte));
        Some(Shaped { room, id, payload: &frame[payload_at..end_at], len })
    }
}

pub struct Subscriber {
    /// None once the connection was lost.
    pub socket: Option<Socket>,
    pub connection: u32,
    /// Subscriptions that the server has not confirmed yet.
    pub unconfirmed: usize,
    /// The room, if it has only one.
    only_room: Option<u32>,
    /// Index of its first lane in the thread's ledger.
    pub lanes_at: usize,
}

impl Subscriber {
    /// A subscriber; its commands are appended to the socket's output.
    pub fn new(connection: u32, mut socket: Socket, lanes_at: usize, scenario: &Scenario) -> Subscriber {
        let rooms: Vec<u32> = scenario.rooms_of(connection).collect();
        let names = rooms.iter().map(|&room| room_name(scenario.number_of(room))).collect();
        subscribe(&mut socket, &format!("s{connection}"), names, scenario);
        let only_room = if rooms.len() == 1 { rooms.first().copied() } else { None };
        Subscriber { socket: Some(socket), connection, unconfirmed: rooms.len(), only_room, lanes_at }
    }

    /// Counts the whole frames of `bytes`, which were read at `now_ns`; appends acknowledgements to
    /// `answers`.
    pub fn take(
        &mut self,
        bytes: &[u8],
        now_ns: u64,
        shape: &Shape,
        scenario: &Scenario,
        tally: &mut Tally,
        answers: &mut Vec<u8>,
    ) -> Result<usize, Malformed> {
        let mut used = 0;
        loop {
            let rest = &bytes[used..];
            if let Some(shaped) = shape.split(rest) {
                self.deliver(Some(shaped.room), shaped.payload, now_ns, scenario, tally);
                mqtt::taken(answers, scenario.qos, shaped.id);
                used += shaped.len;
                continue;
            }
            if scenario.protocol == Protocol::Mqtt {
                let Some((packet, len)) = mqtt::packet(rest)? else { return Ok(used) };
                used += len;
                match packet {
                    Packet::Publish { topic, payload, qos, id } => {
                        let room = topic.last_chunk::<ROOM_DIGITS>().and_then(|digits| room_of(digits));
                        self.deliver(room, payload, now_ns, scenario, tally);
                        mqtt::taken(answers, qos, id);
                    }
                    Packet::Pubrel(id) => mqtt::complete(answers, id),
                    Packet::Subscribed(count) => self.unconfirmed = self.unconfirmed.saturating_sub(count),
                    Packet::Refused(code) => tally.error(format!("refused with {code:#04x}").as_bytes()),
                    _ => {}
                }
                continue;
            }
            if scenario.protocol == Protocol::Phoenix {
                let Some((said, len)) = phoenix::said(rest)? else { return Ok(used) };
                used += len;
                match said {
                    Said::Event(topic, payload) => {
                        let room =
                            topic.as_bytes().last_chunk::<ROOM_DIGITS>().and_then(|digits| room_of(digits));
                        self.deliver(room, &payload, now_ns, scenario, tally);
                    }
                    Said::Answered(_) => self.unconfirmed = self.unconfirmed.saturating_sub(1),
                    Said::Refused(why) => tally.error(why.as_bytes()),
                    Said::Connected | Said::Other => {}
                }
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
        let stamp = match scenario.protocol {
            Protocol::Phoenix => phoenix::stamp_of(payload),
            Protocol::Redis | Protocol::Mqtt => Stamp::read(payload),
        };
        let Some(stamp) = stamp.filter(|_| payload.len() == scenario.payload) else {
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

/// A connection that holds a subscription and counts only bytes.
pub struct Holder {
    /// None once the connection was lost.
    pub socket: Option<Socket>,
    /// Whether its subscription is not confirmed yet.
    pub unconfirmed: bool,
    /// Bytes per second that it reads once confirmed; None for no limit.
    pub bytes_per_second: Option<u64>,
    /// Bytes read since it was confirmed.
    pub bytes: u64,
    /// When the server closed it, in ns of the generator's clock.
    pub closed_ns: Option<u64>,
}

impl Holder {
    /// A holder; its commands are appended to the socket's output. Without a room it sends a PING.
    pub fn new(
        index: u32,
        mut socket: Socket,
        room: Option<String>,
        bytes_per_second: Option<u64>,
        scenario: &Scenario,
    ) -> Holder {
        subscribe(&mut socket, &format!("h{index}"), room.into_iter().collect(), scenario);
        Holder { socket: Some(socket), unconfirmed: true, bytes_per_second, bytes: 0, closed_ns: None }
    }

    /// Processes whole frames until the confirmation has arrived.
    pub fn take(&mut self, bytes: &[u8], protocol: Protocol, tally: &mut Tally) -> Result<usize, Malformed> {
        let mut used = 0;
        if protocol == Protocol::Mqtt {
            while let Some((packet, len)) = mqtt::packet(&bytes[used..])? {
                used += len;
                match packet {
                    Packet::Subscribed(_) | Packet::Pong => self.unconfirmed = false,
                    Packet::Refused(code) => tally.error(format!("refused with {code:#04x}").as_bytes()),
                    _ => {}
                }
            }
            return Ok(used);
        }
        if protocol == Protocol::Phoenix {
            while let Some((said, len)) = phoenix::said(&bytes[used..])? {
                used += len;
                match said {
                    Said::Answered(_) => self.unconfirmed = false,
                    Said::Refused(why) => tally.error(why.as_bytes()),
                    Said::Connected | Said::Event(..) | Said::Other => {}
                }
            }
            return Ok(used);
        }
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

/// Appends the handshake, and one request to subscribe to all of `rooms`; without rooms, another request that
/// is answered.
fn subscribe(socket: &mut Socket, client_id: &str, rooms: Vec<String>, scenario: &Scenario) {
    let out = &mut socket.out;
    if scenario.protocol == Protocol::Mqtt {
        mqtt::connect(out, client_id, false);
        return match rooms.is_empty() {
            true => out.extend_from_slice(&mqtt::PING),
            false => mqtt::subscribe(out, &rooms, scenario.qos),
        };
    }
    if scenario.protocol == Protocol::Phoenix {
        phoenix::connect(out);
        if rooms.is_empty() {
            phoenix::heartbeat(out, 1);
        }
        (1..).zip(&rooms).for_each(|(reference, room)| phoenix::join(out, room, reference));
        return;
    }
    if scenario.resp == 3 {
        codec::command(out, &[b"HELLO", b"3"]);
    }
    if rooms.is_empty() {
        return codec::command(out, &[b"PING", ANSWER]);
    }
    let verb: &[u8] = if scenario.verb == Verb::Spublish { b"SSUBSCRIBE" } else { b"SUBSCRIBE" };
    let args: Vec<&[u8]> = std::iter::once(verb).chain(rooms.iter().map(|room| room.as_bytes())).collect();
    codec::command(out, &args);
}

#[inline]
fn room_of(digits: &[u8]) -> Option<u32> {
    digits
        .iter()
        .try_fold(0u32, |room, digit| digit.is_ascii_digit().then(|| room * 10 + u32::from(digit - b'0')))
}
