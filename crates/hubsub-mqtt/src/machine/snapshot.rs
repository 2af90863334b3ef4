//! Encoding of a session and its events. Numbers have 7 bits per byte, the lowest first; texts and bytes have
//! their length in front.
//!
//! ```text
//! | version | flags | expiry s | left at ms (flag 0) | events | last number | last id |
//! | filters | unreleased | window | will (flag 1) | crc32c |
//! filters:    count, then each: text | options | identifier (option bit 7)
//! unreleased: count, then each: id | number | 1 if it is known to be published
//! window:     count, then each: id | awaited packet | key
//! will:       topic | QoS, plus 4 if retained | delay s | payload | header count, then each: name | value
//! event:      number | kind | id | number or key, by kind
//! ```
//!
//! Decoding checks the fields as if a client had sent them; the checksum (little-endian) detects other
//! damage. Events have none, because the records that contain them do.

use super::filters::Filters;
use super::intents::Intents;
use super::opening::LastWill;
use super::session::{Damaged, Event, SessionState, since_1970};
use super::window::{Awaits, Window};
use crate::reader::{Reader, SHORT, write_bytes, write_number};
use hubsub_wire::mqtt::{Options, PacketId, Qos, SubscriptionId, topic_filter, topic_name};

const VERSION: u8 = 1;
const LEFT: u8 = 1;
const WILL: u8 = 2;
const HAS_ID: u8 = 0x80;

const SENT_ONCE: u8 = 1;
const SENT_TWICE: u8 = 2;
const RECEIVED: u8 = 3;
const ENDED: u8 = 4;
const INTENDED: u8 = 5;
const RELEASED: u8 = 6;

const RETAIN: u8 = 4;

impl Reader<'_> {
    fn id(&mut self) -> Result<PacketId, Damaged> {
        PacketId::new(self.number()?).ok_or(Damaged("a packet identifier of 0"))
    }
}

impl SessionState {
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let left = if self.left_at_ms.is_some() { LEFT } else { 0 };
        let will = if self.will.is_some() { WILL } else { 0 };
        out.extend([VERSION, left | will]);
        write_number(u64::from(self.expiry_s), out);
        self.left_at_ms().inspect(|&ms| write_number(ms, out));
        write_number(self.events, out);
        write_number(self.intents.as_ref().map_or(0, |intents| intents.given()), out);
        write_number(u64::from(self.window.last()), out);
        write_number(self.filters.len() as u64, out);
        for (filter, options, id) in self.filters.iter() {
            write_bytes(filter.as_bytes(), out);
            out.push(options.byte() | if id.is_some() { HAS_ID } else { 0 });
            id.inspect(|id| write_number(u64::from(id.get()), out));
        }
        write_number(self.intents.as_ref().map_or(0, |intents| intents.iter().len()) as u64, out);
        for (id, number, is_published) in self.unreleased() {
            write_number(u64::from(id.get()), out);
            write_number(number, out);
            out.push(u8::from(is_published));
        }
        write_number(self.window.len() as u64, out);
        for (id, qos, key, is_received) in self.window.iter() {
            write_number(u64::from(id.get()), out);
            out.push(if is_received { Awaits::Pubcomp } else { Awaits::of(qos) } as u8);
            write_number(key, out);
        }
        if let Some(will) = &self.will {
            encode_will(will, out);
        }
        let checksum = crc32c::crc32c(&out[start..]);
        out.extend_from_slice(&checksum.to_le_bytes());
    }

    /// Decodes and checks a snapshot.
    ///
    /// # Errors
    /// It is invalid, or of a later version.
    pub fn decode(snapshot: &[u8]) -> Result<SessionState, Damaged> {
        let (body, checksum) = snapshot.split_last_chunk().ok_or(SHORT)?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*checksum) {
            return Err(Damaged("its checksum is another"));
        }
        let mut from = Reader(body);
        if from.byte()? != VERSION {
            return Err(Damaged("its version is not known"));
        }
        let flags = from.byte()?;
        if flags & !(LEFT | WILL) != 0 {
            return Err(Damaged("unknown flags"));
        }
        let expiry_s = from.number()?;
        let left_at_ms = if flags & LEFT != 0 { Some(since_1970(from.number()?)) } else { None };
        let events = from.number()?;
        let given = from.number()?;
        let last = from.number()?;
        let mut filters = Filters::default();
        for _ in 0..from.number::<usize>()? {
            let filter = topic_filter(from.bytes()?).map_err(|_| Damaged("a filter that is none"))?;
            let byte = from.byte()?;
            let options = Options::of_byte(byte & !HAS_ID).ok_or(Damaged("a filter's options"))?;
            let id = if byte & HAS_ID != 0 { Some(from.number()?) } else { None };
            let wrong = Damaged("a subscription identifier out of range");
            let id = id.map(|id| SubscriptionId::new(id).ok_or(wrong)).transpose()?;
            if !filters.restore(filter, options, id) {
                return Err(Damaged("a filter twice"));
            }
        }
        let mut intents = Intents::default();
        for _ in 0..from.number::<usize>()? {
            let (id, number) = (from.id()?, from.number()?);
            intents.restore(id, number, from.byte()? != 0);
        }
        intents.set_given(given);
        let intents = (intents.given() > 0).then(|| Box::new(intents));
        let mut window = Window::new(1);
        for _ in 0..from.number::<usize>()? {
            let id = from.id()?;
            let awaits = Awaits::of_byte(from.byte()?).ok_or(Damaged("what a message awaits"))?;
            window.restore(id, awaits, from.number()?)?;
        }
        window.set_last(last)?;
        let will = if flags & WILL != 0 { Some(Box::new(decode_will(&mut from)?)) } else { None };
        if !from.0.is_empty() {
            return Err(Damaged("bytes behind the last field"));
        }
        Ok(SessionState { filters, intents, window, will, expiry_s, left_at_ms, events })
    }
}

fn encode_will(will: &LastWill, out: &mut Vec<u8>) {
    write_bytes(will.topic.as_bytes(), out);
    out.push(will.qos as u8 | if will.retain { RETAIN } else { 0 });
    write_number(u64::from(will.delay_s), out);
    write_bytes(&will.payload, out);
    write_number(will.headers.len() as u64, out);
    for (name, value) in &will.headers {
        write_bytes(name.as_bytes(), out);
        write_bytes(value.as_bytes(), out);
    }
}

fn decode_will(from: &mut Reader<'_>) -> Result<LastWill, Damaged> {
    let topic = topic_name(from.bytes()?).map_err(|_| Damaged("a will's topic that is none"))?.into();
    let byte = from.byte()?;
    let qos = Qos::from_bits(byte & !RETAIN).ok_or(Damaged("a will's QoS"))?;
    let retain = byte & RETAIN != 0;
    let delay_s = from.number()?;
    let payload = from.bytes()?.into();
    let mut headers = Vec::new();
    for _ in 0..from.number::<usize>()? {
        headers.push((from.text()?.into(), from.text()?.into()));
    }
    Ok(LastWill { topic, payload, headers, qos, retain, delay_s })
}

impl Event {
    /// Encodes it with its number ([`super::Machine::next_event`]).
    pub fn encode(&self, number: u64, out: &mut Vec<u8>) {
        write_number(number, out);
        let (kind, id) = match self {
            Event::Sent { qos: Qos::ExactlyOnce, id, .. } => (SENT_TWICE, id),
            Event::Sent { id, .. } => (SENT_ONCE, id),
            Event::Received(id) => (RECEIVED, id),
            Event::Ended(id) => (ENDED, id),
            Event::Intended { id, .. } => (INTENDED, id),
            Event::Released(id) => (RELEASED, id),
        };
        out.push(kind);
        write_number(u64::from(id.get()), out);
        match self {
            Event::Sent { key, .. } => write_number(*key, out),
            Event::Intended { number, .. } => write_number(*number, out),
            Event::Received(_) | Event::Ended(_) | Event::Released(_) => {}
        }
    }

    /// Decodes an event and its number from the front of the bytes.
    ///
    /// # Errors
    /// They are invalid.
    pub fn decode(from: &mut &[u8]) -> Result<(u64, Event), Damaged> {
        let mut left = Reader(from);
        let number = left.number()?;
        let (kind, id) = (left.byte()?, left.id()?);
        let event = match kind {
            SENT_ONCE => Event::Sent { id, qos: Qos::AtLeastOnce, key: left.number()? },
            SENT_TWICE => Event::Sent { id, qos: Qos::ExactlyOnce, key: left.number()? },
            RECEIVED => Event::Received(id),
            ENDED => Event::Ended(id),
            INTENDED => Event::Intended { id, number: left.number()? },
            RELEASED => Event::Released(id),
            _ => return Err(Damaged("an event of no kind")),
        };
        *from = left.0;
        Ok((number, event))
    }
}
