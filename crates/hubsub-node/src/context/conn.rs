//! The record of one connection. Most connections are idle most of the time, so state that only an active
//! one needs is allocated separately.

use super::session::Session;
use crate::io::listener::ListenerKind;
use crate::io::meter::Meter;
use crate::io::output::Output;
use crate::io::transport::{Raw, Transport};
use hubsub_route::Record;
use hubsub_types::PrincipalId;
use hubsub_wire::phoenix::Version;
use hubsub_wire::resp::Decoder;
use std::sync::Arc;

/// The last command of a connection that has sent none, or an unknown one.
pub const NO_COMMAND: u8 = u8::MAX;

/// Error for the client with the most unfinished input.
pub(crate) const UNFINISHED: &str = "max bytes of unfinished input reached, and yours was the most";

pub struct Conn {
    pub io: Transport,
    /// Unique on this node, never reused.
    pub id: u64,
    /// The principal whose rights it has.
    pub principal: PrincipalId,
    /// The kind of listener that accepted it.
    pub kind: ListenerKind,
    pub flags: Flags,
    pub session: Session,
    /// Index of its last command in the command table.
    pub command: u8,
    /// When it connected, in s of the node's clock.
    pub created_s: u32,
    /// When it last sent a command, in s of the node's clock.
    pub active_s: u32,
    pub meter: Meter,
    /// Present while output is pending or replies are outstanding.
    pub output: Option<Box<Output>>,
    /// Present while a command is incomplete or reading is paused.
    pub input: Option<Box<Input>>,
    /// State that few clients need; allocated on first use.
    pub extra: Option<Box<Extra>>,
}

/// Input that is not executed yet: the command is incomplete, or reading is paused.
#[derive(Default)]
pub struct Input {
    /// They begin with the start of a frame.
    pub bytes: Vec<u8>,
    /// Decoder state for these bytes.
    pub decoder: Decoder,
    /// Its part of the shard's sum of unfinished input: the capacity of `bytes`.
    pub counted: usize,
}

impl Input {
    /// Drops the first `used` bytes, which were executed. A short remainder is copied into a buffer of its size,
    /// so that the connection does not retain a large one; returns the old buffer then.
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

/// The limit of unfinished input, divided by this, is spare capacity that a buffer may have even if that is
/// more than a quarter of it.
const SPARE_PART: usize = 64;

/// Appends to unfinished input. The capacity grows by a quarter, or at most doubles while it is small compared
/// with `bytes_max`, the limit of all such input. Spare capacity does not exceed that limit, nor `frame_len`,
/// the length of the frame (0: unknown): a client whose input fits is not closed for its buffer's spare
/// capacity.
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

/// State that few clients need.
#[derive(Default)]
pub struct Extra {
    /// Set by `CLIENT SETNAME`; empty: none.
    pub name: Box<str>,
    /// Set by `CLIENT SETINFO LIB-NAME`.
    pub lib_name: Box<str>,
    /// Set by `CLIENT SETINFO LIB-VER`.
    pub lib_ver: Box<str>,
    /// Commands queued by MULTI.
    pub transaction: Option<Transaction>,
    /// The minute of the publish limit, and publishes in it.
    pub publish_minute: (u64, u64),
    /// Records lost to a room's policy.
    pub dropped: u64,
    /// Whether the reason for closing it was sent.
    pub was_told: bool,
    /// Records delivered to it as a member of groups and not yet acknowledged, in the order of delivery.
    pub consumed: Vec<Consumed>,
}

/// A record delivered to a group member and not yet acknowledged.
pub struct Consumed {
    /// The group, as the broker names it.
    pub group: Box<[u8]>,
    pub record: Arc<Record>,
}

/// Commands between MULTI and EXEC.
#[derive(Default)]
pub struct Transaction {
    /// The arguments of each, in order of arrival.
    pub commands: Vec<Vec<Box<[u8]>>>,
    /// Bytes of their arguments.
    pub bytes: usize,
    /// Whether a command could not be queued, so that EXEC fails.
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
    /// It has sent a complete command.
    HANDSHAKED = 0;
    /// It is in the turn's list of connections to flush.
    DIRTY = 1;
    /// It is to be closed at once.
    CLOSE_NOW = 2;
    /// It is to be closed when its output is written.
    CLOSE_SOON = 3;
    /// Its input is not read for now.
    PAUSED = 4;
    /// HUBSUB POSITIONS ON, or `positions=true` of a browser.
    POSITIONS = 5;
    /// `CLIENT REPLY OFF` is in force.
    REPLY_OFF = 6;
    /// `CLIENT REPLY SKIP`: the next command gets no reply.
    REPLY_SKIP_NEXT = 7;
    /// The current command gets no reply.
    REPLY_SKIP = 8;
    /// `CLIENT NO-EVICT ON` is in force.
    NO_EVICT = 9;
    /// `CLIENT NO-TOUCH ON` is in force.
    NO_TOUCH = 10;
    /// It is in the list of closing connections.
    LISTED = 11;
    /// A timer limits the wait until its output is written.
    LINGERS = 12;
    /// Its peer sends no more: the end of its input may be read.
    ENDED = 13;
    /// A timer checks its soft limit.
    WATCHED = 14;
    /// It has read history, so the kernel buffers little output ahead of its reading.
    PACED = 15;
}

impl Flags {
    /// Whether any of these is set.
    #[inline]
    #[must_use]
    pub fn any(self, of: Flags) -> bool {
        self.0 & of.0 != 0
    }

    #[must_use]
    pub const fn or(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

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
    pub fn new(io: Transport, kind: ListenerKind, id: u64, second: u32) -> Conn {
        Conn {
            io,
            id,
            principal: PrincipalId::default(),
            kind,
            flags: Flags::default(),
            session: Session::at(kind),
            command: NO_COMMAND,
            created_s: second,
            active_s: second,
            meter: Meter::default(),
            output: None,
            input: None,
            extra: None,
        }
    }

    /// Reads the bytes that are available.
    ///
    /// # Errors
    /// `WouldBlock` if none are available; other errors end the connection.
    #[inline]
    pub fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let got = self.io.read(into);
        let raw = self.io.unwrap_raw();
        self.speaks(raw);
        got
    }

    /// Follows a request that is no WebSocket of MQTT.
    fn speaks(&mut self, raw: Option<Raw>) {
        match raw {
            Some(Raw::Http) => self.session = Session::Http(false),
            Some(Raw::Phoenix) => self.session = Session::Phoenix(Version::V2, None),
            None => {}
        }
    }

    /// Whether it is notified of records that it will not get; Redis clients are if they requested positions.
    #[inline]
    pub fn hears_of_gaps(&self) -> bool {
        self.session.browser().is_some() || self.session.is_events() || self.flags.any(Flags::POSITIONS)
    }

    /// Whether it will be closed.
    #[inline]
    pub fn is_closing(&self) -> bool {
        self.flags.any(Flags::CLOSE_NOW.or(Flags::CLOSE_SOON))
    }

    /// Returns its `extra`, allocated if there is none.
    pub fn extra(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    /// Its part of the shard's sum of unfinished input, in bytes: buffers of an incomplete request head, of bytes
    /// that are not executed yet, and of a message with missing frames; and commands between MULTI and EXEC.
    pub fn unfinished_bytes(&self) -> usize {
        let transaction = self.extra.as_ref().and_then(|extra| extra.transaction.as_ref());
        self.io.unfinished_bytes()
            + self.input.as_ref().map_or(0, |input| input.counted)
            + transaction.map_or(0, |open| open.bytes)
            + self.session.browser().map_or(0, |client| client.unfinished_bytes())
    }

    /// Drops all unfinished input; it will not be executed.
    pub fn drop_unfinished(&mut self) {
        let raw = self.io.drop_unfinished();
        self.speaks(raw);
        self.input = None;
        self.extra.iter_mut().for_each(|extra| extra.transaction = None);
        self.session.browser_mut().into_iter().for_each(|browser| browser.drop_unfinished());
    }

    /// Its identity as a publisher: the MQTT client id, the name from `CLIENT SETNAME`, or `client-` and its id.
    pub fn publisher(&self) -> Box<str> {
        if let Some(client) = self.session.mqtt() {
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
