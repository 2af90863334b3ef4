//! A record as PUBLISH packets are made from it.

use crate::shared::Shared;
use hubsub_route::{LogPlace, RecordView};
use hubsub_types::{Position, Qos};
use hubsub_wire::mqtt::{expiry_s, topic_name};

/// A record that waits for clients, shared by all of them.
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

/// What a packet says.
#[derive(Clone, Copy)]
pub struct Said<'a> {
    /// That MQTT can say.
    pub topic: &'a str,
    /// What.
    pub payload: &'a [u8],
    /// Beside it.
    pub headers: &'a [(Box<str>, Box<str>)],
    /// When it was published, in µs since 1970.
    pub timestamp_us: u64,
    /// Where it stands.
    pub position: Position,
    /// In the log of its hub, where that has one.
    pub place: LogPlace,
    /// How surely, at most.
    pub qos: Qos,
    /// Whether its topic keeps it.
    pub retain: bool,
}

impl<'a> Said<'a> {
    /// Of a record; none if MQTT cannot say its topic.
    #[must_use]
    #[inline]
    pub fn of(record: &RecordView<'a>) -> Option<Said<'a>> {
        let RecordView { payload, headers, timestamp_us, position, place, qos, retain, .. } = *record;
        let topic = topic_name(record.topic).ok()?;
        Some(Said { topic, payload, headers, timestamp_us, position, place, qos, retain })
    }

    /// How old it is, in s.
    #[must_use]
    pub fn age_s(&self, now_us: u64) -> u32 {
        u32::try_from(now_us.saturating_sub(self.timestamp_us) / 1_000_000).unwrap_or(u32::MAX)
    }

    /// Whether its time is over.
    #[must_use]
    pub fn is_expired(&self, now_us: u64) -> bool {
        !self.headers.is_empty()
            && expiry_s(self.headers).is_some_and(|seconds| self.age_s(now_us) >= seconds)
    }

    /// One that outlives the record.
    #[must_use]
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
    /// What its packets say.
    #[must_use]
    pub fn said(&self) -> Said<'_> {
        let Message { topic, payload, headers, timestamp_us, position, place, qos, retain } = self;
        let (timestamp_us, position, place) = (*timestamp_us, *position, *place);
        Said { topic, payload, headers, timestamp_us, position, place, qos: *qos, retain: *retain }
    }

    /// Its payload, shared.
    #[must_use]
    pub fn payload(&self) -> &Shared {
        &self.payload
    }

    /// Its memory, in bytes, near enough for limits.
    #[must_use]
    pub fn weight(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len() + 32).sum();
        std::mem::size_of::<Message>() + 64 + self.topic.len() + self.payload.len() + headers
    }
}
