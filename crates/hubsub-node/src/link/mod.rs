//! The I/O context of links: sockets between this node's shards and those of others, driven by the state
//! machines of `hubsub_wire::link`. See docs/protocol/link.md.
//!
//! Layers, from below:
//!
//! 1. [`events`] and [`shown`], for the control plane; [`peer_table`]; [`leases`], those of a shard
//! 2. [`reach`], the links to other nodes for a shard's broker; [`conn`], one connection; [`mail`]
//! 3. [`asks`], unanswered requests of the control plane; [`lead_state`], leader leases on shard 0
//! 4. [`links`], a shard's links: admission, dialing, output, ends
//! 5. [`sending`], for the broker; [`credit`]; over link 0: [`control`], requests between control planes,
//!    [`ready`] and [`leads`], leader leases
//! 6. [`dispatch`], all frames and mail of links
//! 7. [`intake`], input, bounded per turn
//!
//! Invariants:
//!
//! 1. Link `i` of a pair is owned by shard `i` on both sides: any shard accepts, and hands the connection
//!    over once its peer has authenticated.
//! 2. Links exist only with registered processes, identified by name and incarnation.
//! 3. A peer is reported dead only if a link to it ended without a goodbye and then all its addresses refused
//!    a connection.
//! 4. A shard without links spends nothing on them.

mod asks;
mod conn;
mod control;
mod credit;
pub(crate) mod dispatch;
mod events;
pub(crate) mod intake;
mod lead_state;
pub(crate) mod leads;
pub mod leases;
mod links;
mod mail;
pub mod peer_table;
mod reach;
mod ready;
pub(crate) mod sending;
mod shown;

pub use conn::Handover;
pub(crate) use credit::settle_credit;
pub use events::{Change, Event, LeadEvent, LinkEvent};
pub use hubsub_wire::link::handshake::VERSIONS;
pub use hubsub_wire::link::{Counters, Identity, LinkLimits, Secret, Status};
pub use leads::timing;
pub use links::Links;
pub(crate) use links::{LISTENER, TOKENS};
pub use mail::LinkMail;
pub use peer_table::{LinkRow, PeerRow, PeerTable, Registered, State};
pub use shown::{LeadView, Shown, ShownReady};

use hubsub_types::Limits;

/// Bytes for names and headers in addition to the longest command's payload.
const NAMES_BYTES: u64 = 1024 * 1024;

/// The link limits of a node with these limits.
#[must_use]
pub fn limits(limits: &Limits) -> LinkLimits {
    LinkLimits {
        frame_bytes_max: (limits.frame_bytes_max + NAMES_BYTES).min(u64::from(u32::MAX) - 1) as usize,
        handshake_ms: limits.link_handshake_ms,
        heartbeat_ms: limits.link_heartbeat_ms,
        suspect_ms: limits.link_suspect_ms,
        silence_ms: limits.link_silence_ms,
        live_window_bytes: limits.link_live_window_bytes,
        reads_window_bytes: limits.link_reads_window_bytes,
        urgent_queue_bytes_max: limits.link_urgent_queue_bytes_max as usize,
        live_queue_bytes_max: limits.link_live_queue_bytes_max as usize,
        reads_queue_bytes_max: limits.link_reads_queue_bytes_max as usize,
        output_bytes_max: limits.link_output_bytes_max as usize,
        redial_ms_min: limits.link_redial_ms_min,
        redial_ms_max: limits.link_redial_ms_max,
        stable_ms: limits.link_stable_ms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_machines() {
        assert_eq!(limits(&Limits::default()), LinkLimits::default());
        assert_eq!(timing(&Limits::default()), hubsub_lead::Timing::default());
    }
}
