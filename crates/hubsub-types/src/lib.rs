//! Types that all other crates of HubSub share: identifiers, limits, error codes, room classes, topic and
//! room names, shared bytes. Data and pure functions on it; no I/O, no clock, no dependency but a byte search
//! (memchr) and serde.

pub mod class;
pub mod error;
pub mod ids;
pub mod limits;
pub mod names;
pub mod protocol;
pub mod qos;
pub mod shared;
mod tables;

pub use class::{Class, ClassTable, Durability, History, OnGap, OnSlow, ShareKey, ShareStrategy};
pub use error::ErrorCode;
pub use ids::{ConnKey, Epoch, HubId, NodeId, Position, PrincipalId, ProducerId, Seq, ShardId, Term};
pub use protocol::Protocol;
pub use qos::Qos;
pub use tables::Limits;
