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
use crate::machine::{Damaged, Progress};
use crate::reader::{Reader, write_bytes, write_number};
use hubsub_types::{Epoch, HubId};

const VERSION: u8 = 1;
const FOLLOWS: u8 = 1;
const QUEUED: u8 = 2;

/// The most unacknowledged messages of a client: the number of packet identifiers.
const OPEN_MAX: usize = u16::MAX as usize;

impl Cursors {
    /// Appends the cursors, once records without a packet id are [taken back](Cursors::take_back).
    pub fn encode(&self, out: &mut Vec<u8>) {
        let flags = if self.has_hub_cursors { FOLLOWS } else { 0 } | if self.is_queued { QUEUED } else { 0 };
        out.extend([VERSION, flags]);
        write_number(self.topics.len() as u64, out);
        for (topic, at) in self.topics.iter() {
            write_bytes(topic, out);
            write_number(at.epoch.0, out);
            at.progress.encode(out);
        }
        write_number(self.hubs.len() as u64, out);
        for at in &self.hubs {
            write_number(at.hub.0.into(), out);
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
        let mut from = Reader(rest);
        let has_hub_cursors = flags & FOLLOWS != 0;
        let mut cursors = Cursors { has_hub_cursors, is_queued: flags & QUEUED != 0, ..Cursors::default() };
        for _ in 0..from.number::<u64>()? {
            let topic = from.text()?.as_bytes();
            let epoch = Epoch(from.number()?);
            let progress = Progress::decode(&mut from, OPEN_MAX)?;
            if cursors.topics.get(topic).is_some() {
                return Err(Damaged("two cursors of a topic"));
            }
            cursors.topics.insert(topic, InTopic { epoch, progress, quiet_us: 0 });
        }
        for _ in 0..from.number::<u64>()? {
            let hub = HubId(from.number()?);
            let progress = Progress::decode(&mut from, OPEN_MAX)?;
            if cursors.hubs.last().is_some_and(|last| last.hub >= hub) {
                return Err(Damaged("hubs out of order"));
            }
            cursors.hubs.push(InHub { hub, progress, stop: 0 });
        }
        if from.0.is_empty() { Ok(cursors) } else { Err(Damaged("bytes behind the cursors")) }
    }
}
