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
    /// A message from one node to another.
    pub enum Frame<'a> {
        /// Dialer to acceptor: the first frame. Its layout is the same in all versions.
        1 Hello Handshake {
            /// Always [`Frame::MAGIC`]; identifies the protocol.
            magic: u32,
            /// Least version that the dialer supports.
            version_min: u16,
            /// Greatest version that the dialer supports.
            version_max: u16,
            /// Id of the dialer's cluster.
            cluster: &'a str,
            /// The dialer's node name.
            node: &'a str,
            /// Issued at the dialer's registration.
            incarnation: u64,
            /// Number of its shards.
            shards: u16,
            /// Index of the link in the pair.
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
            /// Id of the acceptor's cluster.
            cluster: &'a str,
            /// The acceptor's node name.
            node: &'a str,
            /// Issued at the acceptor's registration.
            incarnation: u64,
            /// Number of its shards.
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
        /// Either side: refuses the link, and the connection is closed. Its layout is the same in all
        /// versions.
        5 Refuse Handshake {
            /// Number of a [`super::Refusal`].
            code: u8,
            /// Explanation for people, at most 512 bytes.
            text: &'a str,
            /// Additions of a later version, ignored by this one.
            more: Payload<'a>,
        }
        /// Heartbeat; also measures the clock offset.
        6 Ping Own {
            /// The sender's monotonic time, in µs.
            stamp_us: u64,
            /// The sender's current status.
            status: Status,
        }
        /// The reply to Ping.
        7 Pong Own {
            /// Copied from the ping.
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
            /// Explanation for people, at most 512 bytes.
            text: &'a str,
        }
        /// Total bytes of each lane that may be sent since the link began.
        9 Credit Own {
            /// Limit of the live lane.
            live: u64,
            /// Limit of the lane of range reads.
            reads: u64,
        }

        /// To the controller's node: requests a leader lease.
        48 LeadAsk Urgent {
            /// The sender's monotonic time before it sent the request, in µs.
            stamp_us: u64,
            /// The hubs and terms that it wants to lead.
            claim: List<'a, (HubId, Term)>,
            /// The terms that it will never lead again, of those that records still assign to it.
            gave_up: List<'a, (HubId, Term)>,
            /// Names of nodes that it suspects.
            suspects: List<'a, &'a str>,
        }
        /// The reply to LeadAsk.
        49 LeadGranted Urgent {
            /// Copied from the request.
            stamp_us: u64,
            /// Length of the leader lease, in ms after `stamp_us` on the requester's clock.
            lead_ms: u32,
            /// Controller term of the granting controller.
            controller_term: u64,
            /// Revision of the voters that the controller knows.
            voters_revision: u64,
            /// The granted part of the claim.
            granted: List<'a, (HubId, Term)>,
        }
        /// A request or reply between control planes.
        50 Control Urgent {
            /// The requester's number for this request.
            id: u64,
            /// Whether this is the reply.
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
