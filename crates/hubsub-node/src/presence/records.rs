//! Who comes and goes, as records in `$stats/presence/ROOM` where a room's class says so: what the job `sessions` reads.
//!
//! ```text
//! {"kind":"join","user":"ann","room":"chat:lobby","ts":1785000000000,"ref":"RUN.N"}
//! ```
//!
//! Each node records its own members. So nobody says of those of a process that was killed that they left.

use crate::core::Core;
use crate::own::Asked;
use hubsub_wire::phoenix::{reference_text, write_text};

/// Topics of these records begin so.
const ROOMS: &[u8] = b"$stats/presence/";

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
    let reference = reference_text(core.rim.presence.run(), reference);
    said.extend_from_slice(format!(",\"ts\":{ts},\"ref\":\"{reference}\"}}").as_bytes());
    core.say_in(&topic, &said, Asked::Nobody);
}
