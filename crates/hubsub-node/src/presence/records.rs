//! Who comes and goes, as records in `$stats/presence/ROOM` where a room's class says so: what the job `sessions` reads.
//!
//! ```text
//! {"kind":"join","user":"ann","room":"chat:lobby","ts":1785000000000,"ref":"RUN.N"}
//! ```
//!
//! Each node records its own members, under the reference that each came with, however often it says something else of
//! itself. Of those of a process that is gone the node speaks that has the records (`hubsub.control.departures`).
//!
//! Invariants: of one member no more than one record is under way, so that it never comes after it went; what was not
//! taken is said again until it is, with the time at which it happened. So one may be there twice, and none is missing
//! but those that are counted as lost, and what a process took with it.

use crate::core::Core;
use crate::own::Asked;
use crate::rim::Timer;
use ahash::RandomState;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use hubsub_types::ErrorCode;
use hubsub_wire::phoenix::{reference_text, write_text};

/// Topics of these records begin so.
const ROOMS: &[u8] = b"$stats/presence/";

/// What was not taken is said again after so long, in ms.
const AGAIN_MS: u64 = 1_000;

/// Records of members of this shard that are not known to be in a log.
#[derive(Default)]
pub struct Records {
    /// By the references that the members came with. As many as a node may have members.
    unsaid: HashMap<u64, Unsaid, RandomState>,
    /// What will never be in a log.
    pub lost: u64,
}

struct Unsaid {
    topic: Box<[u8]>,
    payload: Box<[u8]>,
    /// That it went, while it is not known to be recorded that it came.
    then: Option<Box<[u8]>>,
}

impl Records {
    /// How many are not known to be in a log.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.unsaid.len() as u64
    }
}

/// A member of this node came, or went.
pub fn record(core: &mut Core, room: &[u8], kind: &str, (reference, key): (u64, &str)) {
    let classes = core.broker.classes();
    if !classes.get(classes.class_of_room(room)).presence_records {
        return;
    }
    let topic = [ROOMS, room].concat();
    if !classes.get(classes.class_of_room(&topic)).name.starts_with('$') {
        // The node has no place for it.
        return;
    }
    let mut said = format!("{{\"kind\":\"{kind}\",\"user\":").into_bytes();
    write_text(&mut said, key);
    said.extend_from_slice(b",\"room\":");
    write_text(&mut said, &String::from_utf8_lossy(room));
    let ts = core.rim.now.wall_us / 1000;
    let text = reference_text(core.rim.presence.run(), reference);
    said.extend_from_slice(format!(",\"ts\":{ts},\"ref\":\"{text}\"}}").as_bytes());
    let unsaid_max = core.rim.limits.presence_members_max;
    let records = &mut core.rim.presence.records;
    let is_full = records.waiting() >= unsaid_max;
    match records.unsaid.entry(reference) {
        Entry::Occupied(mut came) => came.get_mut().then = Some(said.into()),
        Entry::Vacant(_) if is_full => records.lost += 1,
        Entry::Vacant(entry) => {
            entry.insert(Unsaid { topic: topic.into(), payload: said.into(), then: None });
            record_again(core, reference);
        }
    }
}

/// Says what is to be recorded of a member.
pub fn record_again(core: &mut Core, reference: u64) {
    let Some(unsaid) = core.rim.presence.records.unsaid.get(&reference) else { return };
    let (topic, payload) = (unsaid.topic.clone(), unsaid.payload.clone());
    core.say_in(&topic, &payload, Asked::Recorded(reference));
}

/// What came of that.
pub fn recorded(core: &mut Core, reference: u64, outcome: Result<u64, ErrorCode>) {
    let records = &mut core.rim.presence.records;
    let Some(unsaid) = records.unsaid.get_mut(&reference) else { return };
    match outcome {
        Ok(_) => match unsaid.then.take() {
            Some(went) => {
                unsaid.payload = went;
                record_again(core, reference);
            }
            None => _ = records.unsaid.remove(&reference),
        },
        // It would be refused again.
        Err(ErrorCode::TopicLength | ErrorCode::PayloadLength) => {
            records.lost += 1 + u64::from(unsaid.then.is_some());
            records.unsaid.remove(&reference);
        }
        Err(_) => {
            let at_ms = core.rim.now.mono_ms + AGAIN_MS;
            core.rim.timers.set(at_ms, Timer::PresenceRecord(reference));
        }
    }
}
