//! The I/O context of links: sockets between this node's shards and those of others, driven by the state
//! machines of `hubsub_wire::link`. See docs/protocol/link.md.
//!
//! Layers, from below:
//!
//! 1. [`state`], the links themselves
//! 2. [`sending`], for the broker; [`credit`]; over link 0: [`control`], requests between control planes,
//!    [`ready`] and [`leads`], leader leases
//! 3. [`dispatch`], all frames and mail of links
//! 4. [`intake`], input, bounded per turn
//!
//! Invariants:
//!
//! 1. Link `i` of a pair is owned by shard `i` on both sides: any shard accepts, and hands the connection
//!    over once its peer has authenticated.
//! 2. Links exist only with registered processes, identified by name and incarnation.
//! 3. A peer is reported dead only if a link to it ended without a goodbye and then all its addresses refused
//!    a connection.
//! 4. A shard without links spends nothing on them.

mod control;
mod credit;
pub(crate) mod dispatch;
pub(crate) mod intake;
pub(crate) mod leads;
mod ready;
pub(crate) mod sending;
pub(crate) mod state;

pub(crate) use credit::settle_credit;
pub use hubsub_wire::link::handshake::VERSIONS;
pub use hubsub_wire::link::{Counters, Identity, LinkLimits, Secret, Status};
pub use state::{
    Change, Event, Handover, LeadEvent, LeadMail, LeadView, LinkEvent, LinkMail, LinkRow, Links, PeerRow,
    PeerTable, Registered, Shown, ShownReady, State, limits, timing,
};
pub(crate) use state::{LISTENER, TOKENS};
