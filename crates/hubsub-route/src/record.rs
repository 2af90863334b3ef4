//! A record: what a publish becomes, and what subscribers get.

use crate::producers::Producer;
use crate::publisher::{PUBLISHER_BYTES_MAX, publisher_name};
use hubsub_types::{HubId, OnSlow, Position, Qos};
use std::sync::Arc;

/// Redis keeps the channels of SPUBLISH apart from those of PUBLISH; so do we.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum Namespace {
    /// SUBSCRIBE, PUBLISH and every other protocol.
    #[default]
    Global,
    /// SSUBSCRIBE and SPUBLISH.
    Shard,
}

/// Where a record stands in the log of its room's hub, once it is committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogPlace {
    /// The hub.
    pub hub: HubId,
    /// Place in its log, from 1; 0: it stands in none.
    pub offset: u64,
}

/// String to string, shared between copies of a record.
pub type Headers = Option<Arc<[(Box<str>, Box<str>)]>>;

/// A record that outlives its publish: in history, or on its way to another
/// shard. Topic and payload share one allocation.
#[derive(Clone, Debug)]
pub struct Record {
    bytes: Box<[u8]>,
    topic_len: u32,
    /// Of its topic.
    pub namespace: Namespace,
    /// Given by the hub; zero before, and where no room took it.
    pub position: Position,
    /// Given by a hub with a log, and by its log.
    pub place: LogPlace,
    /// Given by the hub, in µs since 1970; never falls within a hub.
    pub timestamp_us: u64,
    /// Who published it, see [`publisher_name`]; empty where nobody will ask.
    pub publisher: Box<str>,
    /// Beside the payload.
    pub headers: Headers,
    /// How surely its publisher wants it to arrive, at most.
    pub qos: Qos,
    /// Whether its topic keeps it, for those who subscribe later.
    pub retain: bool,
    /// Who numbered it; apart, since few do.
    producer: Option<Box<Producer>>,
}

impl Record {
    /// A record without a position.
    #[must_use]
    pub fn new(
        namespace: Namespace,
        topic: &[u8],
        payload: &[u8],
        publisher: Box<str>,
        headers: Headers,
    ) -> Record {
        let mut bytes = Vec::with_capacity(topic.len() + payload.len());
        bytes.extend_from_slice(topic);
        bytes.extend_from_slice(payload);
        Record::of_parts(namespace, bytes, topic.len(), publisher, headers)
    }

    /// A record of a topic and, behind it, a payload, which are not copied.
    ///
    /// # Panics
    /// The topic is longer than all.
    #[must_use]
    pub fn of_parts(
        namespace: Namespace,
        bytes: Vec<u8>,
        topic_len: usize,
        publisher: Box<str>,
        headers: Headers,
    ) -> Record {
        assert!(topic_len <= bytes.len(), "the topic is in front of the payload");
        Record {
            bytes: bytes.into_boxed_slice(),
            topic_len: topic_len as u32,
            namespace,
            position: Position::default(),
            place: LogPlace::default(),
            timestamp_us: 0,
            publisher: if publisher.len() > PUBLISHER_BYTES_MAX {
                publisher_name(&publisher).into()
            } else {
                publisher
            },
            headers,
            qos: Qos::ExactlyOnce,
            retain: false,
            producer: None,
        }
    }

    /// The same, numbered by a producer.
    #[must_use]
    pub fn from_producer(self, producer: Option<Producer>) -> Record {
        Record { producer: producer.map(Box::new), ..self }
    }

    /// The same, whose publisher wants it to arrive so at most.
    #[must_use]
    pub fn of_qos(self, qos: Qos) -> Record {
        Record { qos, ..self }
    }

    /// The same, kept by its topic or not.
    #[must_use]
    pub fn retained(self, retain: bool) -> Record {
        Record { retain, ..self }
    }

    /// Numbers it, where nobody has.
    pub fn number(&mut self, producer: Producer) {
        self.producer.get_or_insert_with(|| Box::new(producer));
    }

    /// Who numbered it.
    #[must_use]
    pub fn producer(&self) -> Option<Producer> {
        self.producer.as_deref().copied()
    }

    /// The topic it was published to.
    #[must_use]
    pub fn topic(&self) -> &[u8] {
        &self.bytes[..self.topic_len as usize]
    }

    /// What was published.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.bytes[self.topic_len as usize..]
    }

    /// Bytes of topic and payload.
    #[must_use]
    pub fn said_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Its memory, in bytes, near enough for limits.
    #[must_use]
    pub fn weight(&self) -> usize {
        let headers = self.headers.iter().flat_map(|h| h.iter());
        let headers: usize = headers.map(|(k, v)| k.len() + v.len() + 32).sum();
        let producer = self.producer.as_ref().map_or(0, |_| std::mem::size_of::<Producer>() + 16);
        std::mem::size_of::<Record>() + producer + 32 + self.bytes.len() + self.publisher.len() + headers
    }

    /// The parts that delivery needs.
    #[must_use]
    pub fn view(&self, on_slow: OnSlow) -> RecordView<'_> {
        RecordView {
            namespace: self.namespace,
            topic: self.topic(),
            payload: self.payload(),
            headers: self.headers.as_deref().unwrap_or_default(),
            publisher: &self.publisher,
            position: self.position,
            place: self.place,
            timestamp_us: self.timestamp_us,
            qos: self.qos,
            retain: self.retain,
            on_slow,
        }
    }
}

/// What delivery needs of a record, owned or still in the socket's buffer.
#[derive(Clone, Copy, Debug)]
pub struct RecordView<'a> {
    /// Of its topic.
    pub namespace: Namespace,
    /// The topic it was published to.
    pub topic: &'a [u8],
    /// What was published.
    pub payload: &'a [u8],
    /// Beside it.
    pub headers: &'a [(Box<str>, Box<str>)],
    /// Who published it; empty where it is not known.
    pub publisher: &'a str,
    /// Zero where no room took it.
    pub position: Position,
    /// In the log of its hub, where that has one.
    pub place: LogPlace,
    /// Given by the hub, in µs since 1970.
    pub timestamp_us: u64,
    /// How surely its publisher wants it to arrive, at most.
    pub qos: Qos,
    /// Whether its topic keeps it.
    pub retain: bool,
    /// What happens to it at a connection's output limit, as its class says.
    pub on_slow: OnSlow,
}
