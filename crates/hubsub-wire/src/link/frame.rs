//! All frames of a link, with their fields in order.
//!
//! ```text
//!  0            4      5
//!  ├────────────┼──────┼───────────────┐
//!  │ length u32 │ type │ body          │      length: of type and body, little-endian
//!  └────────────┴──────┴───────────────┘
//! ```
//!
//! One definition generates the type, the encoder and the decoder. Decoding copies nothing: names, texts and
//! payloads are slices of the input.

use super::credit::Lane;
use super::error::FrameError;
use super::field::{Field, Reader, Short};
use super::list::List;
use super::parts::{Names, Payload, Record, Start, Status};
use super::texts::Texts;
use hubsub_types::{HubId, Position, Seq, Term};

/// Bytes before a frame's type.
pub(super) const LENGTH_BYTES: usize = 4;

macro_rules! frames {
    ($lt:lifetime $($(#[doc = $doc:literal])+ $code:literal $name:ident $lane:ident {
        $($(#[doc = $field_doc:literal])+ $field:ident: $type:ty,)*
    })+) => {
        /// A message from one node to another.
        #[derive(Clone, Copy, PartialEq, Debug)]
        pub enum Frame<$lt> {
            $($(#[doc = $doc])+ $name { $($(#[doc = $field_doc])+ $field: $type,)* },)+
        }

        impl<$lt> Frame<$lt> {
            /// Its name, for errors and logs.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self { $(Frame::$name { .. } => stringify!($name),)+ }
            }

            /// The lane in which it is queued and counted.
            #[must_use]
            pub fn lane(&self) -> Lane {
                match self { $(Frame::$name { .. } => Lane::$lane,)+ }
            }

            fn write(&self, out: &mut Vec<u8>) {
                match self {
                    $(Frame::$name { $($field,)* } => {
                        out.push($code);
                        $($field.write(out);)*
                    })+
                }
            }

            pub(super) fn read(code: u8, from: &mut Reader<$lt>) -> Result<Frame<$lt>, FrameError> {
                match code {
                    $($code => {
                        let mut read = || Ok(Frame::$name { $($field: Field::read(from)?,)* });
                        read().map_err(|flaw| FrameError::Flawed { frame: stringify!($name), flaw })
                    })+
                    _ => Err(FrameError::UnknownType(code)),
                }
            }
        }
    };
}

frames! { 'a
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
    /// Either side: refuses the link, and the connection is closed. Its layout is the same in all versions.
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

    /// Edge to leader: a record without a position yet.
    16 Publish Live {
        /// The edge's number for this request.
        ask: u64,
        /// The room's hub according to the edge.
        hub: HubId,
        /// The hub's term that the edge knows.
        term: u64,
        /// The record, with the edge's own sequence number.
        record: Record<'a>,
    }
    /// Leader to edge: the record is committed.
    17 Published Live {
        /// Copied from the request.
        ask: u64,
        /// Whether it is a duplicate, committed before.
        again: bool,
        /// The record's position; zero if no room took it.
        position: Position,
        /// Subscribers in the whole cluster.
        receivers: u64,
    }
    /// Reply to any request: this node does not lead the hub.
    18 NotMine Live {
        /// Copied from the request.
        ask: u64,
        /// Copied from the request.
        hub: HubId,
        /// The term that this node knows.
        term: u64,
    }
    /// Reply to any request: it is refused.
    19 Denied Live {
        /// Copied from the request.
        ask: u64,
        /// Stable code of an error.
        code: &'a str,
    }
    /// Edge to leader: the number of its clients that subscribe to a topic, at first or again; 0 removes the
    /// interest.
    20 Interest Live {
        /// The edge's number for this request; 0 requests no reply.
        ask: u64,
        /// The room's hub according to the edge.
        hub: HubId,
        /// The hub's term that the edge knows.
        term: u64,
        /// The subscribed topic and its room.
        names: Names<'a>,
        /// Subscribers on the edge, all its shards together.
        count: u32,
        /// The last record of the room that the edge has; zero if it has none.
        known: Position,
        /// Where the newest subscription starts.
        start: Start,
    }
    /// Leader to edge: the interest is registered, and records after this position will be sent.
    21 Attached Live {
        /// Copied from the request.
        ask: u64,
        /// The room's last record.
        position: Position,
        /// First record to replay; 0 if there is none.
        replay_from: Seq,
        /// Whether all requested records are available.
        recovered: bool,
    }
    /// Edge to leader: only the number of subscribers changed.
    22 Counts Live {
        /// Copied from the interest.
        hub: HubId,
        /// The hub's term that the edge knows.
        term: u64,
        /// The subscribed topic and its room.
        names: Names<'a>,
        /// Subscribers on the edge.
        count: u32,
    }
    /// To a leader: requests the number of subscribers.
    23 CountAsk Live {
        /// The sender's number for this request.
        ask: u64,
        /// The room's hub according to the sender.
        hub: HubId,
        /// The hub's term that the sender knows.
        term: u64,
        /// The topic and its room.
        names: Names<'a>,
        /// Whether the reply waits until the topic's retained messages in flight are stored.
        settles: bool,
    }
    /// The reply to CountAsk.
    24 Counted Live {
        /// Copied from the request.
        ask: u64,
        /// Subscribers in the whole cluster.
        count: u64,
    }
    /// Leader to a node with interest: a committed record.
    25 Deliver Live {
        /// The hub that committed it.
        hub: HubId,
        /// The term in which it was committed.
        term: u64,
        /// Zero if no room took it, and only patterns match.
        position: Position,
        /// Seq of the room's previous record that was sent to this node.
        previous: Seq,
        /// Its offset in the hub's log; 0 if there is none.
        offset: Short,
        /// The previous offset in the log that was expected at this node.
        before: Short,
        /// The record without its position.
        record: Record<'a>,
    }
    /// Edge to all possible leaders: the number of its clients that subscribe to a pattern; 0 removes it.
    /// Each change increments the version of the edge's set of patterns.
    26 Pattern Live {
        /// Version of the edge's set, including this change.
        version: u64,
        /// Subscribers on the edge.
        count: u32,
        /// The subscribed pattern, encoded by `hubsub_types::names`.
        pattern: &'a [u8],
    }
    /// Edge to a node that has joined: begins a copy of the edge's whole set.
    27 PatternsBegin Live {
        /// Version of the set.
        version: u64,
        /// Number of entries that follow.
        patterns: u32,
    }
    /// One entry of the set.
    28 PatternsEntry Live {
        /// Subscribers on the edge.
        count: u32,
        /// The subscribed pattern, encoded as in Pattern.
        pattern: &'a [u8],
    }
    /// End of the copy.
    29 PatternsEnd Live {
        /// Version of the set, as in PatternsBegin.
        version: u64,
    }
    /// The reply: all patterns up to this version are stored.
    30 PatternsHeld Live {
        /// Version of the edge's set.
        version: u64,
    }
    /// Edge to a member: requests records from history.
    31 Read Live {
        /// The edge's number for this request.
        ask: u64,
        /// The hub that contains the records.
        hub: HubId,
        /// Topic and room; an empty topic selects the whole room.
        names: Names<'a>,
        /// Where the records start.
        start: Start,
        /// Most records in the reply.
        records_max: u32,
        /// Total length after which the reply stops.
        bytes_max: u32,
    }
    /// Member to edge: one record of the reply.
    32 Range Reads {
        /// Copied from the request.
        ask: u64,
        /// Position of the record in its room.
        position: Position,
        /// The hub that contains it.
        hub: HubId,
        /// Its offset in the hub's log; 0 if there is none.
        offset: Short,
        /// The record without its position.
        record: Record<'a>,
    }
    /// Member to edge: end of the reply.
    33 RangeEnd Reads {
        /// Copied from the request.
        ask: u64,
        /// Position before the oldest record in history, after which a reader may start.
        oldest: Position,
        /// Where to continue reading.
        next: Seq,
        /// First of the records that history no longer has; 0 if none is missing.
        gap_first: Seq,
        /// Last of these records.
        gap_last: Seq,
        /// Whether `next` is after the room's last record.
        at_end: bool,
        /// Whether the room's epoch differs from the requested one.
        is_gone: bool,
    }
    /// Leader to a node: from here on the leader sends it records of a hub that match its patterns.
    34 PatternsLive Live {
        /// Id of the hub.
        hub: HubId,
        /// The term in which the hub is led.
        term: u64,
        /// Distinguishes this leadership of the hub from others.
        life: u64,
        /// Records of this leadership that were expected at the node so far, or may have been.
        due: u64,
    }
    /// Edge to a leader: all interest of the edge in rooms of a hub is synced.
    35 Registered Live {
        /// Id of the hub.
        hub: HubId,
        /// The term for which the interest was sent.
        term: u64,
    }
    /// Leader to a node: its leadership of a hub ended, and all its records were sent.
    36 Over Live {
        /// Id of the hub.
        hub: HubId,
        /// The term in which the hub was led.
        term: u64,
        /// Identifies the leadership, as in PatternsLive.
        life: u64,
        /// As in PatternsLive, in total.
        due: u64,
        /// Records committed in this leadership.
        said: u64,
    }
    /// Leader to a node with members of a group: delivers a record to one of them. Node to leader: no member
    /// took it, or the member that took it is lost.
    40 Give Live {
        /// The hub that committed it.
        hub: HubId,
        /// The group and its filter, encoded as in Pattern.
        group: &'a [u8],
        /// How often no member took it.
        tries: u8,
        /// Whether a member that is lost had taken it.
        was_taken: bool,
        /// Zero if no room took it.
        position: Position,
        /// Its offset in the hub's log; 0 if there is none.
        offset: Short,
        /// The record without its position.
        record: Record<'a>,
    }
    /// To the leader: a member of a group with a stored cursor has acknowledged a record.
    41 Acknowledge Live {
        /// The hub that contains the record.
        hub: HubId,
        /// The group and its topic, encoded as in Pattern.
        group: &'a [u8],
        /// Position of the acknowledged record.
        position: Position,
    }

    /// Edge to a member: requests records of all rooms of a hub with a log.
    37 ReadHub Live {
        /// The edge's number for this request.
        ask: u64,
        /// Id of the hub.
        hub: HubId,
        /// The first requested offset; the greatest number requests only the end of the log.
        next: u64,
        /// Time of the oldest requested record, in µs since 1970.
        since_us: u64,
        /// Most records in the reply.
        records_max: u32,
        /// Total length after which the reply stops.
        bytes_max: u32,
        /// Patterns of which one must match the topic.
        filter: Texts<'a>,
    }
    /// Member to edge: end of the reply, after its records.
    38 HubEnd Reads {
        /// Copied from the request.
        ask: u64,
        /// The offset at which to continue.
        next: u64,
        /// The last committed offset.
        committed: u64,
        /// First of the offsets that the log no longer has; 0 if none is missing.
        lost_first: u64,
        /// Last of these offsets.
        lost_last: u64,
    }

    /// Edge to a hub of retained messages: requests those whose topic matches a filter. The replies are Range
    /// and RangeEnd.
    42 Rows Live {
        /// The edge's number for this request.
        ask: u64,
        /// The hub that stores them.
        hub: HubId,
        /// MQTT filter for the topics.
        filter: &'a [u8],
        /// Only topics after this one; empty: from the first.
        after: &'a [u8],
        /// Total length after which the reply stops.
        bytes_max: u32,
    }
    /// To any node: requests a reply once all retained messages in flight from its shards are stored.
    43 SettleAsk Live {
        /// The edge's number for this request.
        ask: u64,
    }
    /// The reply, once they are stored.
    44 Settled Live {
        /// Copied from the request.
        ask: u64,
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
        mandate: u64,
        /// Revision of the voters that the controller knows.
        census: u64,
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
}

impl Frame<'_> {
    /// "HSLK"; a peer that begins otherwise uses another protocol.
    pub const MAGIC: u32 = u32::from_le_bytes(*b"HSLK");

    /// Appends the whole frame; returns its length.
    pub fn encode(&self, out: &mut Vec<u8>) -> usize {
        let start = out.len();
        out.extend_from_slice(&[0; LENGTH_BYTES]);
        self.write(out);
        let bytes = out.len() - start;
        // A longer frame exceeds every limit, so its sender refuses it.
        let length = u32::try_from(bytes - LENGTH_BYTES).unwrap_or(u32::MAX);
        out[start..start + LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
        bytes
    }
}
