//! The encodings of a record and of a gap, by the variant that a connection gets.

use crate::io::conn::Dialect;
use crate::io::fanout::EVENTS;
use crate::{http, phoenix};
use hubsub_route::{Namespace, RecordView, Via};
use hubsub_types::Position;
use hubsub_wire::phoenix::Version;
use hubsub_wire::resp::{self, Kind, Proto};

/// Appends a record in the encoding of this index.
#[inline]
pub(crate) fn encode(out: &mut Vec<u8>, variant: usize, via: Via<'_>, record: &RecordView<'_>) {
    if variant == EVENTS {
        return http::encode(out, record);
    }
    let position = (variant & 2 == 2).then_some(record.position);
    if variant & 4 == 4 {
        let version = if variant & 1 == 1 { Version::V2 } else { Version::V1 };
        return phoenix::encode(out, version, record, position);
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
        Dialect::Phoenix(version) => return phoenix::write_gap(out, version, topic, from, to),
        Dialect::Events => return http::write_gap(out, from, to),
    };
    resp::push_header(out, proto, 4);
    resp::bulk(out, b"gap");
    resp::bulk(out, topic);
    resp::bulk(out, from.to_string().as_bytes());
    resp::bulk(out, to.to_string().as_bytes());
}
