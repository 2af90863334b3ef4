//! Selects records of a range.

use crate::record::Record;
use hubsub_types::names::{DeviceTemplate, Matcher};
use std::sync::Arc;

/// A record passes if it meets every condition; an empty list, and none, are no condition.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub rooms: Vec<Vec<u8>>,
    pub room_prefix: Vec<u8>,
    pub room_patterns: Vec<Matcher>,
    pub topics: Vec<Vec<u8>>,
    pub topic_prefix: Vec<u8>,
    pub topic_filters: Vec<Matcher>,
    /// Of one of these devices, as `device` extracts them.
    pub devices: Vec<Vec<u8>>,
    /// Extracts a topic's device, as the hub's class configures it.
    pub device: Option<Arc<DeviceTemplate>>,
    pub since_us: u64,
    pub until_us: Option<u64>,
}

impl Filter {
    /// Sorts its lists for the binary searches of `passes`.
    #[must_use]
    pub fn prepared(mut self) -> Filter {
        self.rooms.sort_unstable();
        self.topics.sort_unstable();
        self.devices.sort_unstable();
        self
    }

    /// Whether a record passes. The lists must be sorted.
    pub fn passes(&self, record: &Record<'_>) -> bool {
        record.timestamp_us >= self.since_us
            && self.until_us.is_none_or(|until| record.timestamp_us < until)
            && is_of(record.room, &self.rooms, &self.room_prefix, &self.room_patterns)
            && is_of(record.topic, &self.topics, &self.topic_prefix, &self.topic_filters)
            && (self.devices.is_empty() || self.is_of_device(record.topic))
    }

    fn is_of_device(&self, topic: &[u8]) -> bool {
        let device = self.device.as_ref().and_then(|template| template.device(topic));
        device.is_some_and(|name| self.devices.binary_search_by(|of| of[..].cmp(name)).is_ok())
    }

    /// Whether neither this record nor a later one passes, as timestamps never decrease.
    pub fn is_over(&self, record: &Record<'_>) -> bool {
        self.until_us.is_some_and(|until| record.timestamp_us >= until)
    }
}

fn is_of(name: &[u8], names: &[Vec<u8>], prefix: &[u8], patterns: &[Matcher]) -> bool {
    (names.is_empty() || names.binary_search_by(|of| of[..].cmp(name)).is_ok())
        // An empty prefix has no memory, and comparing with it costs 40 ns on AMD: a masked load that would
        // fault.
        && (prefix.is_empty() || name.starts_with(prefix))
        && (patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(name)))
}
