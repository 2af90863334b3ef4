//! Server-sent events, sans-I/O: a room's records as a browser's `EventSource` reads them (HTML, section 9.2). See
//! docs/protocol/events.md.
//!
//! ```text
//! id: EPOCH-SEQ
//! event: say
//! data: {"text":"hello"}
//!
//! ```
//!
//! - [`Ask`]: a request for the events of a topic, and from where on
//! - [`write_record`], [`write_gap`], [`write_place`], [`HEARTBEAT`]: what comes
//!
//! Invariants: whatever a record says is one event, and never the end of one; the id of the last event that came is
//! where a client goes on, so nothing that it lacks is silent.

mod ask;

pub use ask::{Ask, topic_of};

use crate::phoenix::{Payload, is_reserved, word, write_payload};
use hubsub_types::Position;

/// What its answer is.
pub const CONTENT_TYPE: &str = "text/event-stream";

/// Comes where nothing else does, so that both ends know that the other is there.
pub const HEARTBEAT: &[u8] = b":\n\n";

/// The event that tells of records that do not come.
pub const GAP: &str = "gap";

/// The event of a record, by its header `event`: one that is the stream's own, or no word of one line, is `message`.
#[must_use]
pub fn record_event(header: Option<&str>) -> &str {
    let is_own = |event: &str| [GAP, "open", "error", ""].contains(&event) || is_reserved(event);
    let is_line = |event: &str| !event.contains(['\r', '\n', '\0']);
    header.filter(|event| !is_own(event) && is_line(event)).unwrap_or(word::MESSAGE)
}

/// Appends a record; its bytes are base64 in an object where they are no text.
pub fn write_record(out: &mut Vec<u8>, position: Position, event: &str, payload: Payload<'_>) {
    write_head(out, position, event);
    let start = out.len();
    write_payload(out, payload);
    // JSON may have lines, and only between its words: each is a line of data of its own.
    if out[start..].iter().any(|byte| matches!(byte, b'\r' | b'\n')) {
        let data = out.split_off(start);
        for byte in data {
            match byte {
                b'\r' => {}
                b'\n' => out.extend_from_slice(b"\ndata: "),
                byte => out.push(byte),
            }
        }
    }
    out.extend_from_slice(b"\n\n");
}

/// Appends what does not come: from one record to another, or from one on where the room has another life, which then
/// goes on behind `goes_on`.
pub fn write_gap(out: &mut Vec<u8>, from: Position, to: Option<Position>, goes_on: Position) {
    write_head(out, goes_on, GAP);
    let to = to.map_or_else(|| "null".to_owned(), |to| format!("\"{to}\""));
    out.extend_from_slice(format!("{{\"from\":\"{from}\",\"to\":{to}}}\n\n").as_bytes());
}

/// What is missing in front of a stream that begins behind `after`, though all behind `asked` was asked for.
#[must_use]
pub fn missing(asked: Position, after: Position) -> (Position, Option<Position>) {
    let from = Position { epoch: asked.epoch, seq: asked.seq.next() };
    (from, (after.epoch == asked.epoch && after.seq >= from.seq).then_some(after))
}

/// Appends where the stream stands, which is no event: a client that comes back goes on from there.
pub fn write_place(out: &mut Vec<u8>, position: Position) {
    out.extend_from_slice(format!("id: {position}\n\n").as_bytes());
}

fn write_head(out: &mut Vec<u8>, position: Position, event: &str) {
    out.extend_from_slice(format!("id: {position}\nevent: {event}\ndata: ").as_bytes());
}

#[cfg(test)]
mod tests;
