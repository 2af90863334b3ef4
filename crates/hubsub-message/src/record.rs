//! A record: what a publish becomes, and subscribers get.

use crate::publisher::{PUBLISHER_BYTES_MAX, publisher_name};
use hubsub_types::{HubId, OnSlow, Position, ProducerId, Qos};
use std::sync::Arc;

/// The namespace of a topic: Redis separates the channels of SPUBLISH from those of PUBLISH, and so does this
/// server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum Namespace {
    /// SUBSCRIBE, PUBLISH and every other protocol.
    #[default]
    Global,
    /// Topics of SSUBSCRIBE and SPUBLISH.
    Shard,
}

/// The place of a record in the log of its room's hub, once it is committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogPlace {
    pub hub: HubId,
    /// Offset in its log, from 1; 0: it is in no log.
    pub offset: u64,
}

/// The producer that numbered a record before it had an offset, and the number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Producer {
    pub id: ProducerId,
    pub sequence: u64,
}

/// Headers, shared between copies of a record.
pub type Headers = Option<Arc<[(Box<str>, Box<str>)]>>;

/// A record that outlives its publish: in history, or in flight to another shard. Topic and payload share one
/// allocation.
#[derive(Clone, PartialEq, Debug)]
pub struct Record {
    bytes: Box<[u8]>,
    topic_len: u32,
    pub namespace: Namespace,
    /// Set by the hub; zero before that, and if no room stored it.
    pub position: Position,
    /// Set by a hub with a log.
    pub place: LogPlace,
    /// Set by the hub, in µs since 1970; never decreases within a hub.
    pub timestamp_us: u64,
    /// Name of the publisher, see [`publisher_name`]; empty where it is not needed.
    pub publisher: Box<str>,
    pub headers: Headers,
    pub qos: Qos,
    /// Whether its topic retains it for later subscribers.
    pub retain: bool,
    /// The producer that numbered it; boxed, since few records have one.
    producer: Option<Box<Producer>>,
}

impl Record {
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

    /// A record of `bytes`: a topic followed by a payload, which are not copied.
    ///
    /// # Panics
    /// `topic_len` exceeds the length of `bytes`.
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

    /// The record, numbered by a producer.
    #[must_use]
    pub fn from_producer(self, producer: Option<Producer>) -> Record {
        Record { producer: producer.map(Box::new), ..self }
    }

    #[must_use]
    pub fn of_qos(self, qos: Qos) -> Record {
        Record { qos, ..self }
    }

    #[must_use]
    pub fn retained(self, retain: bool) -> Record {
        Record { retain, ..self }
    }

    /// Numbers the record, if it has no number.
    pub fn number(&mut self, producer: Producer) {
        self.producer.get_or_insert_with(|| Box::new(producer));
    }

    pub fn producer(&self) -> Option<Producer> {
        self.producer.as_deref().copied()
    }

    pub fn topic(&self) -> &[u8] {
        &self.bytes[..self.topic_len as usize]
    }

    pub fn payload(&self) -> &[u8] {
        &self.bytes[self.topic_len as usize..]
    }

    /// Bytes of topic and payload.
    pub fn said_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Its approximate memory, in bytes, for limits.
    pub fn weight(&self) -> usize {
        let headers = self.headers.iter().flat_map(|h| h.iter());
        let headers: usize = headers.map(|(k, v)| k.len() + v.len() + 32).sum();
        let producer = self.producer.as_ref().map_or(0, |_| std::mem::size_of::<Producer>() + 16);
        std::mem::size_of::<Record>() + producer + 32 + self.bytes.len() + self.publisher.len() + headers
    }

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

/// The parts of a record that delivery needs, owned or still in the socket's buffer.
#[derive(Clone, Copy, Debug)]
pub struct RecordView<'a> {
    pub namespace: Namespace,
    pub topic: &'a [u8],
    pub payload: &'a [u8],
    pub headers: &'a [(Box<str>, Box<str>)],
    /// Name of the publisher; empty if it is not known.
    pub publisher: &'a str,
    /// Zero if no room stored it.
    pub position: Position,
    /// Its place in the log of its hub, if there is one.
    pub place: LogPlace,
    /// Set by the hub, in µs since 1970.
    pub timestamp_us: u64,
    /// Highest QoS with which its publisher wants it delivered.
    pub qos: Qos,
    pub retain: bool,
    /// Its class's policy for a connection at its output limit.
    pub on_slow: OnSlow,
}

impl<'a> RecordView<'a> {
    /// The value of the first header of this name.
    pub fn header(&self, name: &str) -> Option<&'a str> {
        self.headers.iter().find(|(of, _)| **of == *name).map(|(_, value)| &**value)
    }
}
