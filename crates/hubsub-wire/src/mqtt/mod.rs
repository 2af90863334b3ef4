//! MQTT 3.1, 3.1.1 and 5.0, sans-I/O: bytes in, packets out, and back, for
//! either side of a connection. See docs/protocol/mqtt.md.
//!
//! ```text
//! | type, flags | remaining length | body                                      |
//! |   1 byte    | 1 to 4 bytes, 7 bits each, the lowest first | so many bytes  |
//! ```
//!
//! - [`Decoder`]: where in the stream it is; gives a [`Packet`] after the other
//! - [`Packet`]: all fifteen, one definition for both directions; they borrow
//! - [`Properties`]: those of 5.0 as they came, checked; read by walking them
//! - [`Reason`]: every reason code, which packets carry it, and its text
//! - [`ProtocolError`]: what is wrong, and the packet that says so to the peer
//! - [`Machine`]: one client's connection, as the server has it (`machine/`)
//! - [`write_publish`]: a message once for all who get it alike; ids are patched in
//!
//! Invariants:
//!
//! 1. However the input is cut, the same packets or the same error come of it.
//! 2. A decoder owns no memory. What must be in the caller's is bounded by
//!    [`DecodeLimits`], and refused when its length is read. A longer PUBLISH
//!    comes as its head and then its payload piece by piece.
//! 3. No input panics. What a decoder gives is valid for its version and for
//!    who sent it: texts, names, filters, ids, properties, reasons.
//! 4. What is encoded decodes to itself. A packet too long for its peer, or with
//!    a field longer than 65,535 bytes, leaves the output as it was.
//!
//! Not here: what a broker allows, and texts of payloads that say they are UTF-8.

mod ack;
mod connect;
mod decode;
mod encode;
mod error;
mod field;
mod machine;
mod packet;
mod property;
mod publish;
mod reason;
mod subscribe;
mod topic;

pub use ack::{Ack, Auth, Connack, Disconnect};
pub use connect::{Connect, Will};
pub use decode::{DecodeLimits, Decoded, Decoder, packet_bytes};
pub use encode::EncodeError;
pub use error::{Flaw, ProtocolError};
pub use field::{Pair, SubscriptionId};
pub use machine::{
    Accepted, Damaged, Event, Fault, Grant, Incoming, Key, LastWill, Machine, Match, Opened, OwnAliases,
    Progress, Refusal, SessionState, Step, Terms, Topic, Window, expiry_s, read_headers, write_headers,
};
pub use packet::{Packet, PacketId, Peer, Qos, REMAINING_LENGTH_MAX, Version};
pub use property::{Place, Properties, Property, PropertyList};
pub use publish::{Encoded, Publish, write_plain, write_publish, write_publish_head};
pub use reason::{Carrier, Reason};
pub use subscribe::{
    Filters, Names, Options, Reasons, RetainHandling, Suback, Subscribe, Unsuback, Unsubscribe,
};
pub use topic::{Rewind, is_topic_name, rewind, shared, topic_filter, topic_name};
