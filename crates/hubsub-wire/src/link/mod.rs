//! The protocol between two nodes over a link, sans-I/O: bytes and the time in; frames, bytes and results
//! out. No socket, no clock, no randomness of its own. See docs/protocol/link.md.
//!
//! Invariants:
//!
//! 1. Nothing is allocated for a frame before its length was checked. Frames of the link and of control
//!    planes are read without a copy; a broker's message gets the allocations that it needs, and no other.
//! 2. A peer that has not proved the secret can send at most two frames of a kilobyte.
//! 3. Frames of one lane arrive in the order they were sent, each at most once; in the urgent lane this holds
//!    separately for those of control planes and the others. An ended link returns nothing: the outcome of
//!    its frames is unknown.
//! 4. No frame begins without credit in its lane.
//! 5. Output and each lane's queue are bounded; refused frames are counted.
//! 6. A peer is suspected when nothing was received from it for `suspect_ms`, never before.

pub mod breaker;
pub mod clock;
mod credit;
mod decode;
mod end;
mod error;
pub mod frame;
pub mod handshake;
mod limits;
mod list;
pub mod machine;
mod outbox;
mod parts;
mod queue;
pub mod roster;

pub use breaker::Breaker;
pub use decode::{Decoded, decode};
pub use end::End;
pub use error::Refusal;
pub use frame::Frame;
pub use handshake::{Identity, Peer, Secret};
pub use hubsub_message::{Flaw, FrameError, Lane};
pub use limits::{HANDSHAKE_FRAME_BYTES_MAX, LinkLimits};
pub use list::List;
pub use machine::{Answer, Link, Next};
pub use outbox::{Counters, Sent};
pub use parts::{Payload, Status};
pub use roster::{Admission, Roster};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now {
    pub mono_us: u64,
    /// Wall time in µs since 1970.
    pub wall_us: u64,
}
