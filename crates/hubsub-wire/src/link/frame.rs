//! The frames of a link: those of its handshake, its own, those of control planes, and the messages of
//! brokers.
//!
//! The first three are defined here, with their fields in order; decoding them copies nothing: names, texts
//! and bodies are slices of the input. Messages of brokers are defined in `hubsub_message`, and are decoded
//! to owned values.

use super::list::List;
use super::parts::{Payload, Status};
use hubsub_message::{NodeMessage, frames};
use hubsub_types::{HubId, Term};

frames! {
    pub enum Frame<'a> {
        /// Dialer to acceptor: the first frame. Its layout is the same in all versions.
        1 Hello Handshake {
            /// Always [`Frame::MAGIC`]; identifies the protocol.
            magic: u32,
            version_min: u16,
            version_max: u16,
            cluster: &'a str,
            node: &'a str,
            incarnation: u64,
            shards: u16,
            link: u16,
            /// Random; both proofs cover it.
            nonce: &'a [u8; 32],
            /// Additions of a later version, ignored by this one.
            more: Payload<'a>,
        }
        /// Acceptor to dialer: requests the proof.
        2 Challenge Handshake {
            /// The greatest version that both support.
            version: u16,
            cluster: &'a str,
            node: &'a str,
            incarnation: u64,
            shards: u16,
            /// Random; both proofs cover it.
            nonce: &'a [u8; 32],
        }
        /// Dialer to acceptor: proves the secret.
        3 Proof Handshake {
            /// HMAC with the secret, over both earlier frames.
            mac: &'a [u8; 32],
        }
        /// Acceptor to dialer: the link is up.
        4 Welcome Handshake {
            /// HMAC with the secret, over all three earlier frames.
            mac: &'a [u8; 32],
        }
        /// Either side: refuses the link, and closes. Its layout is the same in all versions.
        5 Refuse Handshake {
            /// Number of a [`super::Refusal`].
            code: u8,
            text: &'a str,
            /// Additions of a later version, ignored by this one.
            more: Payload<'a>,
        }
        /// Heartbeat; also measures the clock offset.
        6 Ping Own {
            /// The sender's monotonic time, in µs.
            stamp_us: u64,
            status: Status,
        }
        /// The reply to Ping.
        7 Pong Own {
            stamp_us: u64,
            /// When the ping arrived: the replying node's µs since 1970.
            wall_us: u64,
            /// The replying node's status, at or after the arrival of the ping.
            status: Status,
        }
        /// The sender ends the link on purpose.
        8 Bye Own {
            /// Whether its process stops, not only this link.
            stopping: bool,
            text: &'a str,
        }
        /// Total bytes of each lane that may be sent since the link began.
        9 Credit Own {
            live: u64,
            reads: u64,
        }

        /// To the controller's node: requests a leader lease.
        48 LeadAsk Urgent {
            /// The sender's monotonic time before it sent the request, in µs.
            stamp_us: u64,
            claim: List<'a, (HubId, Term)>,
            /// The terms that it will never lead again, of those that records still assign to it.
            gave_up: List<'a, (HubId, Term)>,
            suspects: List<'a, &'a str>,
        }
        /// The reply to LeadAsk.
        49 LeadGranted Urgent {
            stamp_us: u64,
            /// Length of the leader lease, in ms after `stamp_us` on the requester's clock.
            lead_ms: u32,
            controller_term: u64,
            /// Revision of the voters that the controller knows.
            voters_revision: u64,
            granted: List<'a, (HubId, Term)>,
        }
        /// A request or reply between control planes.
        50 Control Urgent {
            id: u64,
            is_answer: bool,
            /// The message, opaque to the link.
            body: Payload<'a>,
        }
        _ Message(NodeMessage)
    }
}

impl Frame<'_> {
    /// "HSLK"; a peer that begins otherwise uses another protocol.
    pub const MAGIC: u32 = u32::from_le_bytes(*b"HSLK");
}
