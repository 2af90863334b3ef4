//! The content of a record, as PUBLISH packets are written from it.

use crate::machine::expiry_s;
use hubsub_route::{LogPlace, Namespace, Record, RecordView};
use hubsub_types::shared::Shared;
use hubsub_types::{Position, Qos};
use hubsub_wire::mqtt::topic_name;

/// A queued record, shared by all clients that wait for it.
#[derive(Debug)]
pub struct Message {
    topic: Box<str>,
    payload: Shared,
    headers: Box<[(Box<str>, Box<str>)]>,
    timestamp_us: u64,
    position: Position,
    place: LogPlace,
    qos: Qos,
    retain: bool,
}

#[derive(Clone, Copy)]
pub struct Content<'a> {
    /// A valid MQTT topic name.
    pub topic: &'a str,
    pub payload: &'a [u8],
    /// User properties and other MQTT properties.
    pub headers: &'a [(Box<str>, Box<str>)],
    /// The publish time, in µs since 1970.
    pub timestamp_us: u64,
    pub position: Position,
    /// The place in its hub's log, if the hub has one.
    pub place: LogPlace,
    /// The publisher's QoS, an upper limit.
    pub qos: Qos,
    pub retain: bool,
}

/// The cursor of a session that counts a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CountedBy {
    #[default]
    None,
    Topic,
    Hub,
}

impl<'a> Content<'a> {
    /// None if the topic is not a valid MQTT topic name.
    #[must_use]
    #[inline]
    pub fn of(record: &RecordView<'a>) -> Option<Content<'a>> {
        let RecordView { payload, headers, timestamp_us, position, place, qos, retain, .. } = *record;
        let topic = topic_name(record.topic).ok()?;
        Some(Content { topic, payload, headers, timestamp_us, position, place, qos, retain })
    }

    pub fn age_s(&self, now_us: u64) -> u32 {
        u32::try_from(now_us.saturating_sub(self.timestamp_us) / 1_000_000).unwrap_or(u32::MAX)
    }

    #[inline]
    pub fn is_expired(&self, now_us: u64) -> bool {
        !self.headers.is_empty()
            && expiry_s(self.headers).is_some_and(|seconds| self.age_s(now_us) >= seconds)
    }

    pub fn keep(&self) -> Message {
        Message {
            topic: self.topic.into(),
            payload: self.payload.into(),
            headers: self.headers.into(),
            timestamp_us: self.timestamp_us,
            position: self.position,
            place: self.place,
            qos: self.qos,
            retain: self.retain,
        }
    }
}

impl Message {
    #[inline]
    pub fn content(&self) -> Content<'_> {
        let Message { topic, payload, headers, timestamp_us, position, place, qos, retain } = self;
        let (timestamp_us, position, place) = (*timestamp_us, *position, *place);
        Content { topic, payload, headers, timestamp_us, position, place, qos: *qos, retain: *retain }
    }

    #[inline]
    pub fn payload(&self) -> &Shared {
        &self.payload
    }

    /// A record with its content, at its position, for another member of a group.
    pub fn to_record(&self) -> Record {
        let content = self.content();
        let headers = (!content.headers.is_empty()).then(|| content.headers.into());
        let topic = content.topic.as_bytes();
        let record = Record::new(Namespace::Global, topic, content.payload, Box::default(), headers);
        let mut record = record.of_qos(content.qos);
        (record.position, record.timestamp_us) = (content.position, content.timestamp_us);
        record
    }

    pub fn weight(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len() + 32).sum();
        std::mem::size_of::<Message>() + 64 + self.topic.len() + self.payload.len() + headers
    }
}
