//! One connection's record. Most are idle most of the time, so everything that
//! only an active one needs is behind a pointer.

use crate::listener::Door;
use crate::meter::Meter;
use crate::mqtt::{Client, Plain};
use crate::output::Output;
use crate::phoenix;
use crate::transport::Transport;
use hubsub_route::Record;
use hubsub_types::PrincipalId;
use hubsub_wire::mqtt::Version;
use hubsub_wire::resp::{Decoder, Proto};
use std::sync::Arc;

/// The last command of a connection that has sent none, or an unknown one.
pub const NO_COMMAND: u8 = u8::MAX;

/// One client.
pub struct Conn {
    /// Its socket.
    pub io: Transport,
    /// Unique on this node, never reused.
    pub id: u64,
    /// Whom it acts for.
    pub principal: PrincipalId,
    /// Where it came in.
    pub door: Door,
    /// State bits.
    pub flags: Flags,
    /// RESP version, of a Redis client.
    pub proto: Proto,
    /// What a browser speaks, once it has been let in: here, since each delivery asks.
    pub phoenix_version: Option<hubsub_wire::phoenix::Version>,
    /// Index of its last command in the command table.
    pub command: u8,
    /// When it connected, in s of the node's clock.
    pub created_s: u32,
    /// When it last sent a command, likewise.
    pub active_s: u32,
    /// Traffic.
    pub meter: Meter,
    /// While output pends or replies wait.
    pub output: Option<Box<Output>>,
    /// While a command is incomplete or reading is paused.
    pub input: Option<Box<Input>>,
    /// What only some clients set.
    pub extra: Option<Box<Extra>>,
    /// Of an MQTT client.
    pub plain: Plain,
    /// Once an MQTT client has sent its CONNECT.
    pub mqtt: Option<Box<Client>>,
    /// Of a browser, once it has been let in.
    pub phoenix: Option<Box<phoenix::Client>>,
}

/// In which words a client is told what it did not ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dialect {
    /// Those of Redis.
    Redis(Proto),
    /// Those of Phoenix.
    Phoenix(hubsub_wire::phoenix::Version),
    /// Those of a stream of events.
    Events,
}

/// Bytes that no whole command covers yet.
#[derive(Default)]
pub struct Input {
    /// From the start of a frame.
    pub bytes: Vec<u8>,
    /// How far they are decoded.
    pub decoder: Decoder,
    /// What the shard's sum has of it: the capacity of `bytes`.
    pub counted: usize,
}

impl Input {
    /// Drops the first `used` bytes, which were executed. A short rest is copied, so that a connection does not keep the
    /// room of what it no longer has; returns the buffer that this leaves over.
    pub fn consume(&mut self, used: usize) -> Option<Vec<u8>> {
        let rest = &self.bytes[used..];
        if used == 0 || 2 * rest.len() >= self.bytes.capacity() {
            self.bytes.drain(..used);
            return None;
        }
        let rest = rest.to_vec();
        Some(std::mem::replace(&mut self.bytes, rest))
    }
}

/// The spare room of a buffer may be this part of the sum of unfinished input, however short the buffer is.
const SPARE_PART: usize = 64;

/// Appends to unfinished input. The capacity grows by a quarter, or doubles while it is small beside `bytes_max`, the sum
/// of all such input. It does not exceed that sum, nor `frame_len`, the length of the frame, or 0 while that is unknown: a
/// client is not closed for the spare room of its buffer if what it sends fits.
pub fn append(input: &mut Vec<u8>, bytes: &[u8], frame_len: usize, bytes_max: u64) {
    let len = input.len() + bytes.len();
    let capacity = input.capacity();
    if len > capacity {
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        let spare = capacity.min((capacity / 4).max(bytes_max / SPARE_PART));
        let grown = (capacity + spare).min(bytes_max);
        let grown = if frame_len >= len { grown.min(frame_len) } else { grown };
        input.reserve_exact(grown.max(len) - input.len());
    }
    input.extend_from_slice(bytes);
}

/// What only some clients set.
#[derive(Default)]
pub struct Extra {
    /// CLIENT SETNAME.
    pub name: Box<str>,
    /// CLIENT SETINFO LIB-NAME.
    pub lib_name: Box<str>,
    /// CLIENT SETINFO LIB-VER.
    pub lib_ver: Box<str>,
    /// Commands queued by MULTI.
    pub transaction: Option<Transaction>,
    /// The minute of the publish limit, and publishes in it.
    pub publish_minute: (u64, u64),
    /// Records lost to a room's policy.
    pub dropped: u64,
    /// It was told why it is closed.
    pub was_told: bool,
    /// What it was given as a member of groups and has not acknowledged, in order.
    pub consumed: Vec<Consumed>,
}

/// A record that a client has as a member of a group.
pub struct Consumed {
    /// The group, as the broker names it.
    pub group: Box<[u8]>,
    /// The record.
    pub record: Arc<Record>,
}

/// Commands between MULTI and EXEC.
#[derive(Default)]
pub struct Transaction {
    /// In order.
    pub commands: Vec<Vec<Box<[u8]>>>,
    /// Bytes of their arguments.
    pub bytes: usize,
    /// Whether one could not be queued, so that EXEC refuses.
    pub is_broken: bool,
}

/// State bits of a connection.
#[derive(Clone, Copy, Default)]
pub struct Flags(u16);

macro_rules! flags {
    ($($(#[doc = $doc:literal])+ $name:ident = $bit:literal;)+) => {
        impl Flags { $($(#[doc = $doc])+ pub const $name: Flags = Flags(1 << $bit);)+ }
    };
}

flags! {
    /// It sent a whole command.
    HANDSHAKED = 0;
    /// It is in the turn's list of connections to flush.
    DIRTY = 1;
    /// It is to be closed at once.
    CLOSE_NOW = 2;
    /// It is to be closed when its output is written.
    CLOSE_SOON = 3;
    /// Its input waits.
    PAUSED = 4;
    /// HUBSUB POSITIONS ON, or `positions=true` of a browser.
    POSITIONS = 5;
    /// CLIENT REPLY OFF.
    REPLY_OFF = 6;
    /// CLIENT REPLY SKIP: the next command is not answered.
    REPLY_SKIP_NEXT = 7;
    /// The present command is not answered.
    REPLY_SKIP = 8;
    /// CLIENT NO-EVICT ON.
    NO_EVICT = 9;
    /// CLIENT NO-TOUCH ON.
    NO_TOUCH = 10;
    /// It is listed as closing.
    LISTED = 11;
    /// A timer ends its wait for its output to be taken.
    LINGERS = 12;
    /// Its peer sends no more: the end of its input may be read.
    ENDED = 13;
    /// A timer looks at its soft limit.
    WATCHED = 14;
    /// It caught up once: the kernel takes little for it ahead of its reading.
    PACED = 15;
}

impl Flags {
    /// Whether any of these is set.
    #[inline]
    #[must_use]
    pub fn any(self, of: Flags) -> bool {
        self.0 & of.0 != 0
    }

    /// Both sets.
    #[must_use]
    pub const fn or(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// Sets or clears.
    #[inline]
    pub fn set(&mut self, which: Flags, on: bool) {
        if on {
            self.0 |= which.0;
        } else {
            self.0 &= !which.0;
        }
    }
}

impl Conn {
    /// A connection that was just accepted.
    #[must_use]
    pub fn new(io: Transport, door: Door, id: u64, second: u32) -> Conn {
        Conn {
            io,
            id,
            principal: PrincipalId::default(),
            door,
            flags: Flags::default(),
            proto: Proto::Resp2,
            phoenix_version: None,
            command: NO_COMMAND,
            created_s: second,
            active_s: second,
            meter: Meter::default(),
            output: None,
            input: None,
            extra: None,
            plain: Plain::No,
            mqtt: None,
            phoenix: None,
        }
    }

    /// Whether it speaks MQTT, or is to.
    #[inline]
    #[must_use]
    pub fn is_mqtt(&self) -> bool {
        self.door.is_mqtt() && !self.io.is_phoenix() && !self.io.is_http()
    }

    /// How it is spoken to, if it is no MQTT client.
    #[inline]
    #[must_use]
    pub fn dialect(&self) -> Dialect {
        match self.phoenix_version {
            Some(version) => Dialect::Phoenix(version),
            None if self.io.is_events() => Dialect::Events,
            None => Dialect::Redis(self.proto),
        }
    }

    /// Whether it can be told that records will not come; Redis clients can if they asked for positions.
    #[inline]
    #[must_use]
    pub fn hears_of_gaps(&self) -> bool {
        self.phoenix.is_some() || self.io.is_events() || self.flags.any(Flags::POSITIONS)
    }

    /// Whether it will be closed.
    #[inline]
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.flags.any(Flags::CLOSE_NOW.or(Flags::CLOSE_SOON))
    }

    /// What only some clients set, made now.
    pub fn extra(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    /// What it speaks, with its version.
    #[must_use]
    pub fn protocol(&self) -> &'static str {
        match (&self.mqtt, self.door, self.proto) {
            (Some(client), ..) => match client.machine.version() {
                Version::V31 => "mqtt3.1",
                Version::V311 => "mqtt3.1.1",
                Version::V5 => "mqtt5",
            },
            _ if self.io.is_phoenix() => "phoenix",
            _ if self.io.is_events() => "events",
            _ if self.io.is_http() => "http",
            (None, Door::Mqtt | Door::WebSocket, _) => "mqtt",
            (None, _, Proto::Resp2) => "resp2",
            (None, _, Proto::Resp3) => "resp3",
        }
    }

    /// Of its input, what the shard's sum has: buffers of the head of a request that is not whole, of bytes that no whole
    /// command covers, and of a message of which frames lack; and commands between MULTI and EXEC.
    #[must_use]
    pub fn unfinished_bytes(&self) -> usize {
        let transaction = self.extra.as_ref().and_then(|extra| extra.transaction.as_ref());
        self.io.unfinished_bytes()
            + self.input.as_ref().map_or(0, |input| input.counted)
            + transaction.map_or(0, |open| open.bytes)
            + self.phoenix.as_ref().map_or(0, |client| client.unfinished_bytes())
    }

    /// Drops that: it is executed no more.
    pub fn drop_unfinished(&mut self) {
        self.io.drop_unfinished();
        self.input = None;
        self.extra.iter_mut().for_each(|extra| extra.transaction = None);
        self.phoenix.iter_mut().for_each(|client| client.drop_unfinished());
    }

    /// Who it is as a publisher: its name, or its id.
    #[must_use]
    pub fn publisher(&self) -> Box<str> {
        if let Some(client) = &self.mqtt {
            return client.machine.client_id().into();
        }
        match &self.extra {
            Some(extra) if !extra.name.is_empty() => extra.name.clone(),
            _ => format!("client-{}", self.id).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_of_input_grows_by_a_quarter_and_has_no_spare_room_beyond_the_sum() {
        let mut input = vec![0; 60];
        let capacities = [1, 14, 1, 17, 67, 40, 1].map(|more| {
            append(&mut input, &vec![0; more], 0, 200);
            input.capacity()
        });
        assert_eq!(capacities, [75, 75, 93, 93, 160, 200, 201]);
        assert_eq!(input.len(), 201);
    }

    #[test]
    fn a_buffer_that_is_small_beside_the_sum_doubles() {
        let mut input = vec![0; 60];
        append(&mut input, &[0], 0, 64 * 60);
        assert_eq!(input.capacity(), 120);
    }

    #[test]
    fn a_buffer_of_input_has_no_spare_room_beyond_a_frame_of_known_length() {
        let mut input = vec![0; 100];
        append(&mut input, &[0], 110, 1_000);
        assert_eq!(input.capacity(), 110);
        append(&mut input, &[0; 9], 110, 1_000);
        assert_eq!(input.capacity(), 110);
        append(&mut input, &[0], 10_000, 1_000);
        assert_eq!(input.capacity(), 137, "room for a quarter more, not for all that was announced");
    }

    #[test]
    fn after_execution_a_short_rest_has_a_buffer_of_its_length_and_a_long_one_is_not_copied() {
        let mut input = Input { bytes: (0..200).collect(), ..Input::default() };
        assert!(input.consume(0).is_none());
        assert!(input.consume(100).is_none());
        assert_eq!((input.bytes.len(), input.bytes.capacity()), (100, 200));
        assert_eq!(input.consume(64).map(|left| left.capacity()), Some(200));
        assert_eq!((&*input.bytes, input.bytes.capacity()), (&*Vec::from_iter(164..200), 36));
    }

    #[test]
    fn an_idle_connection_is_small() {
        // In debug builds a socket of mio's is 8 bytes longer.
        let debug_bytes = if cfg!(debug_assertions) { 8 } else { 0 };
        assert!(size_of::<Conn>() <= 128 + debug_bytes, "{}", size_of::<Conn>());
    }
}
