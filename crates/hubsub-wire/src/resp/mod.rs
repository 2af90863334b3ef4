//! The server side of the Redis protocol, RESP2 and RESP3: decoding of commands (`decode`), encoding of
//! replies and pushes (`encode`). See docs/protocol/resp.md.

mod decode;
mod encode;
mod error;
mod inline;

pub use decode::{DecodeLimits, Decoded, Decoder};
pub use encode::{
    Kind, Proto, Subscription, array_header, bool, bulk, double, error, int, map_header, message, null,
    null_array, pmessage, push_header, set_header, simple, subscription, verbatim,
};
pub use error::ProtocolError;
