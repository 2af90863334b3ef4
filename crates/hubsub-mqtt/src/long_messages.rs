//! Messages too long to buffer as a packet: the payload is collected in the allocation that becomes the
//! record. So a long message is in memory once, apart from the log's and subscribers' copies, and the
//! announced bytes of all clients of a shard are bounded together.
//!
//! Invariant: a connection has at most one, and none after it ended.

use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_route::{Headers, Namespace, Record};
use hubsub_types::ConnKey;
use hubsub_wire::mqtt::{DecodeLimits, Decoded, Decoder, Publish};

/// Packets up to this size are buffered until complete, or up to `input_shard_bytes_max` where that is less.
pub const WHOLE_BYTES: usize = 2 * 1024 * 1024;

pub struct LongMessage {
    head: Box<[u8]>,
    /// The decoder as it was before the head, to decode the head again.
    decoder: Decoder,
    limits: DecodeLimits,
    bytes: Vec<u8>,
    topic_len: usize,
    announced: usize,
}

/// The long messages of a shard, by connection: few have one.
#[derive(Default)]
pub struct LongMessages {
    all: HashMap<ConnKey, LongMessage, RandomState>,
    bytes: usize,
}

impl LongMessages {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The head of a long message has arrived, with the decoder as it was before. Returns false if the
    /// announced bytes of all would exceed `bytes_max`; one message has always room.
    pub fn begin(
        &mut self,
        key: ConnKey,
        (publish, payload_bytes): (&Publish<'_>, usize),
        head: &[u8],
        (decoder, limits): (Decoder, DecodeLimits),
        bytes_max: u64,
    ) -> bool {
        let topic_len = publish.topic.len();
        let announced = topic_len + payload_bytes;
        if self.bytes > 0 && (self.bytes + announced) as u64 > bytes_max {
            return false;
        }
        // The system allocates pages as they are written, so an announcement alone costs nothing.
        let mut bytes = Vec::with_capacity(announced);
        bytes.extend_from_slice(publish.topic.as_bytes());
        self.bytes += announced;
        self.all.insert(key, LongMessage { head: head.into(), decoder, limits, bytes, topic_len, announced });
        true
    }

    /// The next part of a payload; returns the message with its last part.
    pub fn add(&mut self, key: ConnKey, bytes: &[u8], is_last: bool) -> Option<LongMessage> {
        self.all.get_mut(&key)?.bytes.extend_from_slice(bytes);
        is_last.then(|| self.remove(key)).flatten()
    }

    /// Removes a message that is complete or whose connection ended.
    pub fn remove(&mut self, key: ConnKey) -> Option<LongMessage> {
        let message = self.all.remove(&key)?;
        self.bytes -= message.announced;
        Some(message)
    }
}

impl LongMessage {
    /// Passes the complete message on: its packet without a payload, and the payload.
    pub fn take(self, then: impl FnOnce(Publish<'_>, Whole)) {
        let LongMessage { head, mut decoder, limits, bytes, topic_len, .. } = self;
        let Ok(Decoded::Head { publish, .. }) = decoder.decode(&head, &limits) else {
            unreachable!("it was read before")
        };
        then(publish, Whole { bytes, topic_len });
    }
}

pub struct Whole {
    bytes: Vec<u8>,
    /// 0 if an alias replaces the topic.
    topic_len: usize,
}

impl Whole {
    #[must_use]
    pub fn record(self, topic: &[u8], publisher: Box<str>, headers: Headers) -> Record {
        let Whole { mut bytes, topic_len } = self;
        if topic_len == 0 {
            bytes.splice(..0, topic.iter().copied());
        }
        Record::of_parts(Namespace::Global, bytes, topic.len(), publisher, headers)
    }
}
