//! The links of a shard, without the brokers that use them.
//!
//! Layers, from below:
//!
//! 1. [`events`] and [`shown`], for the control plane; [`peer_table`]; [`leases`], those of a shard
//! 2. [`reach`], the links to other nodes for a shard's broker; [`conn`], one connection; [`mail`]
//! 3. [`asks`], unanswered requests of the control plane; [`lead_state`], leader leases on shard 0
//! 4. [`links`], a shard's links: admission, dialing, output, ends

pub(super) mod asks;
pub(super) mod conn;
pub(super) mod events;
pub(super) mod lead_state;
pub(crate) mod leases;
pub(super) mod links;
pub(super) mod mail;
pub(super) mod peer_table;
pub(super) mod reach;
pub(super) mod shown;

pub use conn::Handover;
pub use events::{Change, Event, LeadEvent, LinkEvent};
pub use leases::{LeadMail, Led};
pub use links::Links;
pub(crate) use links::{LISTENER, TOKENS};
pub use mail::LinkMail;
pub use peer_table::{LinkRow, PeerRow, PeerTable, Registered, State};
pub use shown::{LeadView, Shown, ShownReady};

use hubsub_lead::Timing;
use hubsub_types::Limits;
use hubsub_wire::link::LinkLimits;

/// Bytes for names and headers in addition to the longest command's payload.
const NAMES_BYTES: u64 = 1024 * 1024;

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

pub fn timing(limits: &Limits) -> Timing {
    Timing { lease_us: limits.leader_lease_ms * 1_000, silence_us: limits.leader_silence_ms * 1_000 }
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
