//! MQTT 3.1, 3.1.1 and 5.0, sans-I/O: decoding and encoding of packets, for clients and servers. See
//! docs/protocol/mqtt.md.
//!
//! ```text
//! | type, flags | remaining length                            | body                     |
//! |   1 byte    | 1 to 4 bytes, 7 bits each, the lowest first | `remaining length` bytes |
//! ```
//!
//! Invariants:
//!
//! 1. However the input is split, it yields the same packets or the same error.
//! 2. A decoder owns no memory. The bytes that the caller must buffer are bounded by [`DecodeLimits`]; a
//!    longer packet is refused when its length is read. A longer PUBLISH is returned as its head and then its
//!    payload in pieces.
//! 3. No input panics. Decoded values are valid for their version and sender: texts, names, filters, ids,
//!    properties, reasons.
//! 4. Encoding, then decoding yields the original. A packet that is too long for its peer, or has a field
//!    longer than 65,535 bytes, leaves the output unchanged.
//!
//! Not checked here: the broker's permissions, and payloads that are declared as UTF-8.

mod ack;
mod connect;
mod decode;
mod encode;
mod error;
mod field;
mod packet;
mod property;
mod publish;
mod reason;
mod subscribe;
mod topic;
mod version;

pub use ack::{Ack, Auth, Connack, Disconnect};
pub use connect::{Connect, Will};
pub use decode::{DecodeLimits, Decoded, Decoder, packet_bytes};
pub use error::{EncodeError, Flaw, ProtocolError};
pub use field::{PacketId, Pair, SubscriptionId};
pub use packet::{Packet, REMAINING_LENGTH_MAX};
pub use property::{Place, Properties, Property, PropertyList};
pub use publish::{Encoded, Publish, write_plain, write_publish, write_publish_head};
pub use reason::{Carrier, Reason};
pub use subscribe::{
    Filters, Names, Options, Reasons, RetainHandling, Suback, Subscribe, Unsuback, Unsubscribe,
};
pub use topic::{Rewind, is_topic_name, rewind, shared, topic_filter, topic_name};
pub use version::{Peer, Version};

pub use hubsub_types::Qos;
