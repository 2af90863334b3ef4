//! The byte format of a session's cursors: positions and offsets. Numbers are varints, 7 bits a byte, lowest
//! first; texts follow their length.
//!
//! ```text
//! | version | flags | topics | hubs |
//! flags:  1: wildcards have hub cursors, 2: wildcard records are queued
//! topics: count, then each: text | epoch | cursor
//! hubs:   count, sorted, each: id | cursor
//! cursor: see `Progress`
//! ```
//!
//! The container has the checksum. The length of the input bounds what is allocated.

use super::{Cursors, InHub, InTopic};
use crate::machine::{Damaged, Key, Progress};
use hubsub_types::{Epoch, HubId};

const VERSION: u8 = 1;
const FOLLOWS: u8 = 1;
const QUEUED: u8 = 2;

/// The most unacknowledged messages of a client: the number of packet identifiers.
const OPEN_MAX: usize = u16::MAX as usize;

const SHORT: Damaged = Damaged("a field ends behind its record, or is no number");

impl Cursors {
    /// Appends the cursors. Records queued without a packet id must be [taken back](Cursors::take_back)
    /// first.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let flags = if self.has_hub_cursors { FOLLOWS } else { 0 } | if self.is_queued { QUEUED } else { 0 };
        out.extend([VERSION, flags]);
        (self.topics.iter().count() as u64).write(out);
        for (topic, at) in self.topics.iter() {
            (topic.len() as u64).write(out);
            out.extend_from_slice(topic.as_bytes());
            at.epoch.0.write(out);
            at.progress.encode(out);
        }
        (self.hubs.len() as u64).write(out);
        for at in &self.hubs {
            u64::from(at.hub.0).write(out);
            at.progress.encode(out);
        }
    }

    /// Reads the output of [`Cursors::encode`].
    ///
    /// # Errors
    /// If the bytes are not valid cursors.
    pub fn decode(bytes: &[u8]) -> Result<Cursors, Damaged> {
        let [VERSION, flags, rest @ ..] = bytes else {
            return Err(Damaged("cursors of a version that is not known"));
        };
        if flags & !(FOLLOWS | QUEUED) != 0 {
            return Err(Damaged("flags of cursors that are not known"));
        }
        let mut from = rest;
        let has_hub_cursors = flags & FOLLOWS != 0;
        let mut cursors = Cursors { has_hub_cursors, is_queued: flags & QUEUED != 0, ..Cursors::default() };
        for _ in 0..number(&mut from)? {
            let topic = text(&mut from)?;
            let epoch = Epoch(number(&mut from)?);
            let progress = Progress::decode(&mut from, OPEN_MAX)?;
            if cursors.topics.get(topic).is_some() {
                return Err(Damaged("two cursors of a topic"));
            }
            cursors.topics.insert(topic, InTopic { epoch, progress, quiet_us: 0 });
        }
        for _ in 0..number(&mut from)? {
            let hub = u32::try_from(number(&mut from)?).map(HubId).map_err(|_| SHORT)?;
            let progress = Progress::decode(&mut from, OPEN_MAX)?;
            if cursors.hubs.last().is_some_and(|last| last.hub >= hub) {
                return Err(Damaged("hubs out of order"));
            }
            cursors.hubs.push(InHub { hub, progress, stop: 0 });
        }
        if from.is_empty() { Ok(cursors) } else { Err(Damaged("bytes behind the cursors")) }
    }
}

fn number(from: &mut &[u8]) -> Result<u64, Damaged> {
    u64::read(from).ok_or(SHORT)
}

fn text<'a>(from: &mut &'a [u8]) -> Result<&'a str, Damaged> {
    let length = usize::try_from(number(from)?).map_err(|_| SHORT)?;
    let (text, rest) = from.split_at_checked(length).ok_or(SHORT)?;
    *from = rest;
    std::str::from_utf8(text).map_err(|_| Damaged("a topic that is not UTF-8"))
}
