//! The encodings of a record and of a gap, by the variant that a connection gets.

mod browser;
mod encoded;
mod events;

use super::conn::{Conn, Dialect, Flags};
use hubsub_route::{Namespace, RecordView, Via};
use hubsub_types::Position;
use hubsub_wire::phoenix::Version;
use hubsub_wire::resp::{self, Kind, Proto};

pub(crate) use browser::{write_event, write_message, write_text};
pub(crate) use encoded::{Encoded, FRAME_SHARED};

/// Number of encodings of a record: RESP2 and RESP3, each with and without position; Phoenix versions 1 and
/// 2, each with and without position; and a server-sent event.
pub(crate) const VARIANTS: usize = 9;

/// Index of the server-sent event encoding, the last one.
pub(crate) const EVENTS: usize = VARIANTS - 1;

/// Index of a connection's encoding.
#[inline]
pub(crate) fn variant_of(conn: &Conn) -> usize {
    let of_dialect = match conn.dialect() {
        Dialect::Redis(Proto::Resp2) => 0,
        Dialect::Redis(Proto::Resp3) => 1,
        Dialect::Phoenix(Version::V1) => 4,
        Dialect::Phoenix(Version::V2) => 5,
        Dialect::Events => return EVENTS,
    };
    of_dialect + 2 * usize::from(conn.flags.any(Flags::POSITIONS))
}

/// Appends a record in the encoding of this index.
#[inline]
pub(crate) fn encode(out: &mut Vec<u8>, variant: usize, via: Via<'_>, record: &RecordView<'_>) {
    if variant == EVENTS {
        return events::encode(out, record);
    }
    let position = (variant & 2 == 2).then_some(record.position);
    if variant & 4 == 4 {
        let version = if variant & 1 == 1 { Version::V2 } else { Version::V1 };
        return browser::encode(out, version, record, position);
    }
    let proto = if variant & 1 == 1 { Proto::Resp3 } else { Proto::Resp2 };
    let (topic, payload) = (record.topic, record.payload);
    match (via, record.namespace) {
        (Via::Topic | Via::Group(_), Namespace::Global) => {
            resp::message(out, proto, Kind::Message, topic, payload, position)
        }
        (Via::Topic | Via::Group(_), Namespace::Shard) => {
            resp::message(out, proto, Kind::SMessage, topic, payload, position)
        }
        (Via::Pattern(_, pattern), _) => resp::pmessage(out, proto, pattern, topic, payload, position),
    }
}

/// Writes a gap notice: `["gap", topic, first missing, last missing]`, or the protocol's equivalent for
/// browsers.
pub(crate) fn write_gap(out: &mut Vec<u8>, dialect: Dialect, topic: &[u8], from: Position, to: Position) {
    let proto = match dialect {
        Dialect::Redis(proto) => proto,
        Dialect::Phoenix(version) => return browser::write_gap(out, version, topic, from, to),
        Dialect::Events => return events::write_gap(out, from, to),
    };
    resp::push_header(out, proto, 4);
    resp::bulk(out, b"gap");
    resp::bulk(out, topic);
    resp::bulk(out, from.to_string().as_bytes());
    resp::bulk(out, to.to_string().as_bytes());
}
