//! Requests that are refused, by this shard or by the broker.

use crate::context::io::Io;
use crate::io::log_lines::Level;
use crate::io::origin_check::{ForeignOrigin, fields_for};
use hubsub_types::{ConnKey, ErrorCode};
use hubsub_wire::http::{Refusal, write_error};

/// Refuses a request and logs the reason.
pub fn refuse(io: &mut Io, key: ConnKey, origin: Option<&str>, refusal: Refusal) {
    io.log_conn(Level::Info, "request refused", key, vec![("reason", refusal.to_string())]);
    end(io, key, origin, refusal);
}

/// Refuses a request of a page whose origin or host is not allowed.
pub fn turn_away(io: &mut Io, key: ConnKey, stranger: &ForeignOrigin) {
    io.note_stranger(key, stranger);
    let refusal = match stranger {
        ForeignOrigin::Origin(_) => Refusal::Origin,
        ForeignOrigin::Host(_) => Refusal::Host,
    };
    end(io, key, None, refusal);
}

fn end(io: &mut Io, key: ConnKey, origin: Option<&str>, refusal: Refusal) {
    io.metrics.events_refused_total.add(1);
    io.push(key, |out, _| refusal.write(out, &fields_for(origin)));
    io.close_soon(key);
}

/// Writes the response to a request that the broker refused.
pub fn write_refused(out: &mut Vec<u8>, origin: Option<&str>, refused: ErrorCode) {
    let (status, hint) = match refused {
        ErrorCode::TopicLength => ("400 Bad Request", "topic_bytes_max"),
        ErrorCode::NotAllowed => ("403 Forbidden", "the room of another name"),
        ErrorCode::TooManySubscriptions => ("429 Too Many Requests", "subscriptions_per_client_max"),
        ErrorCode::SubscriptionBytes => ("429 Too Many Requests", "subscription_bytes_shard_max"),
        ErrorCode::RoomCreationRate => ("429 Too Many Requests", "try again in a second"),
        _ => ("503 Service Unavailable", "try again in a second"),
    };
    let words = refused.resp();
    let words = words.split_once(' ').map_or(words, |(_, words)| words);
    write_error(out, status, &fields_for(origin), (refused.code(), words, hint));
}
