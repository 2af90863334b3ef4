//! Server-sent events, sans-I/O: a room's records in the format of a browser's `EventSource` (HTML, section
//! 9.2). See docs/protocol/events.md.
//!
//! ```text
//! id: EPOCH-SEQ
//! event: say
//! data: {"text":"hello"}
//!
//! ```
//!
//! Invariants: a record is exactly one event, whatever it contains. A client resumes from the id of its last
//! event, so no missing record goes unreported.

mod request;

pub use request::{EventsRequest, topic_of};

use crate::phoenix::{Payload, is_reserved, word, write_payload};
use hubsub_types::Position;

pub const CONTENT_TYPE: &str = "text/event-stream";

/// A comment sent when the stream is idle, so that both ends see that the other is alive.
pub const HEARTBEAT: &[u8] = b":\n\n";

pub const GAP: &str = "gap";

/// The event of a record, from its header `event`: `message` if that is missing, empty, not one line, or an
/// event of the stream itself or of Phoenix.
#[must_use]
pub fn record_event(header: Option<&str>) -> &str {
    let is_own = |event: &str| [GAP, "open", "error", ""].contains(&event) || is_reserved(event);
    let is_line = |event: &str| !event.contains(['\r', '\n', '\0']);
    header.filter(|event| !is_own(event) && is_line(event)).unwrap_or(word::MESSAGE)
}

/// Appends a record; bytes that are not text become base64 in an object.
pub fn write_record(out: &mut Vec<u8>, position: Position, event: &str, payload: Payload<'_>) {
    write_head(out, position, event);
    let start = out.len();
    write_payload(out, payload);
    // JSON may have line breaks, but only between tokens: each line gets its own `data:`.
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

/// Appends a gap: records `from` to `to`, or a new epoch. The stream continues after `goes_on`.
pub fn write_gap(out: &mut Vec<u8>, from: Position, to: Option<Position>, goes_on: Position) {
    write_head(out, goes_on, GAP);
    let to = to.map_or_else(|| "null".to_owned(), |to| format!("\"{to}\""));
    out.extend_from_slice(format!("{{\"from\":\"{from}\",\"to\":{to}}}\n\n").as_bytes());
}

/// The gap before a stream that starts after `after`, if the client requested all records after `requested`.
#[must_use]
pub fn missing(requested: Position, after: Position) -> (Position, Option<Position>) {
    let from = Position { epoch: requested.epoch, seq: requested.seq.next() };
    (from, (after.epoch == requested.epoch && after.seq >= from.seq).then_some(after))
}

/// Appends the stream's position, which is no event: a reconnecting client resumes from there.
pub fn write_place(out: &mut Vec<u8>, position: Position) {
    out.extend_from_slice(format!("id: {position}\n\n").as_bytes());
}

fn write_head(out: &mut Vec<u8>, position: Position, event: &str) {
    out.extend_from_slice(format!("id: {position}\nevent: {event}\ndata: ").as_bytes());
}

#[cfg(test)]
mod tests;
