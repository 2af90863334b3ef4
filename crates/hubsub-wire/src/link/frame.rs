//! Every frame of a link: what it holds, in the order in which it stands there.
//!
//! ```text
//!  0            4      5
//!  ├────────────┼──────┼───────────────┐
//!  │ length u32 │ type │ body          │      length: of type and body, little-endian
//!  └────────────┴──────┴───────────────┘
//! ```
//!
//! One definition makes the type, the encoder and the decoder. Decoding copies
//! nothing: names, texts and payloads are slices of the input.

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
        /// What one node says to another.
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

            /// What it waits for, and what it counts against.
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
        /// [`Frame::MAGIC`].
        magic: u32,
        /// Least version that the dialer speaks.
        version_min: u16,
        /// Greatest.
        version_max: u16,
        /// The cluster it belongs to.
        cluster: &'a str,
        /// Its name.
        node: &'a str,
        /// As it was issued when it registered.
        incarnation: u64,
        /// How many shards it has.
        shards: u16,
        /// Which link of the pair this is.
        link: u16,
        /// To be proved upon.
        nonce: &'a [u8; 32],
        /// What a later version adds, which this one passes over.
        more: Payload<'a>,
    }
    /// Acceptor to dialer: prove it.
    2 Challenge Handshake {
        /// The greatest version that both speak.
        version: u16,
        /// The cluster it belongs to.
        cluster: &'a str,
        /// Its name.
        node: &'a str,
        /// As it was issued when it registered.
        incarnation: u64,
        /// How many shards it has.
        shards: u16,
        /// To be proved upon.
        nonce: &'a [u8; 32],
    }
    /// Dialer to acceptor.
    3 Proof Handshake {
        /// Of the secret, over both frames before.
        mac: &'a [u8; 32],
    }
    /// Acceptor to dialer: the link is up.
    4 Welcome Handshake {
        /// Of the secret, over all three frames before.
        mac: &'a [u8; 32],
    }
    /// Either: it is not, and the connection is closed. Its layout is the same in all versions.
    5 Refuse Handshake {
        /// Number of a [`super::Refusal`].
        code: u8,
        /// For a person.
        text: &'a str,
        /// What a later version adds, which this one passes over.
        more: Payload<'a>,
    }
    /// The sender lives.
    6 Ping Own {
        /// The sender's monotonic time, in µs.
        stamp_us: u64,
        /// What it says of itself.
        status: Status,
    }
    /// The answer.
    7 Pong Own {
        /// As in the ping.
        stamp_us: u64,
        /// When the ping came: the answering node's µs since 1970.
        wall_us: u64,
        /// What the answering node says of itself, since the ping came.
        status: Status,
    }
    /// The sender leaves, on purpose.
    8 Bye Own {
        /// Whether its process goes, not only this link.
        stopping: bool,
        /// For a person.
        text: &'a str,
    }
    /// How many bytes of each lane may be sent over the link's whole life.
    9 Credit Own {
        /// Live.
        live: u64,
        /// Range reads.
        reads: u64,
    }

    /// Edge to leader: a record without a position yet.
    16 Publish Live {
        /// The edge's number for this request.
        ask: u64,
        /// Where the edge believes the room to live.
        hub: HubId,
        /// Of which it knows this term.
        term: u64,
        /// What is published, and the edge's own numbering of it.
        record: Record<'a>,
    }
    /// Leader to edge: it is committed.
    17 Published Live {
        /// As in the request.
        ask: u64,
        /// Whether it stood there before.
        again: bool,
        /// Where it stands; zero where no room took it.
        position: Position,
        /// Subscribers in the whole cluster.
        receivers: u64,
    }
    /// To any request: this node does not lead the hub.
    18 NotMine Live {
        /// As in the request.
        ask: u64,
        /// Likewise.
        hub: HubId,
        /// The term that this node knows.
        term: u64,
    }
    /// To any request: no.
    19 Denied Live {
        /// As in the request.
        ask: u64,
        /// Stable code of an error.
        code: &'a str,
    }
    /// Edge to leader: that many of its clients subscribe to a topic, from here
    /// on or still; 0 takes the interest back.
    20 Interest Live {
        /// The edge's number for this request; 0 wants no answer.
        ask: u64,
        /// Where the edge believes the room to live.
        hub: HubId,
        /// Of which it knows this term.
        term: u64,
        /// What they subscribe to.
        names: Names<'a>,
        /// Subscribers on the edge, all its shards together.
        count: u32,
        /// The last record of the room that the edge has; zero if it has none.
        known: Position,
        /// Where the newest subscription begins.
        start: Start,
    }
    /// Leader to edge: the interest holds, and what follows this seq will be sent.
    21 Attached Live {
        /// As in the request.
        ask: u64,
        /// The room's last record.
        position: Position,
        /// First record to replay; 0 when there is none.
        replay_from: Seq,
        /// Whether everything that was asked for is there.
        recovered: bool,
    }
    /// Edge to leader: another number of subscribers, nothing else.
    22 Counts Live {
        /// As in the interest.
        hub: HubId,
        /// Of which the edge knows this term.
        term: u64,
        /// Of what.
        names: Names<'a>,
        /// Subscribers on the edge.
        count: u32,
    }
    /// To a leader: how many subscribers are there?
    23 CountAsk Live {
        /// The asker's number for this request.
        ask: u64,
        /// Where the asker believes the room to live.
        hub: HubId,
        /// Of which it knows this term.
        term: u64,
        /// Of what.
        names: Names<'a>,
        /// Whether the answer waits until the topic's retained messages that are under way are kept.
        settles: bool,
    }
    /// The answer.
    24 Counted Live {
        /// As in the request.
        ask: u64,
        /// In the whole cluster.
        count: u64,
    }
    /// Leader to a node with interest: a committed record.
    25 Deliver Live {
        /// Where it was committed.
        hub: HubId,
        /// In this term.
        term: u64,
        /// Zero where no room took it, and patterns alone match.
        position: Position,
        /// The seq of the room that was sent to this node before.
        previous: Seq,
        /// Its offset in the hub's log; 0 where that has none.
        offset: Short,
        /// The offset in it that was due to this node before.
        before: Short,
        /// What was published.
        record: Record<'a>,
    }
    /// Edge to all that can lead: that many of its clients subscribe to a
    /// pattern; 0 takes it back. It makes the edge's set of patterns the next version.
    26 Pattern Live {
        /// Of the edge's set, with this change.
        version: u64,
        /// Subscribers on the edge.
        count: u32,
        /// What they subscribe to.
        pattern: &'a [u8],
    }
    /// Edge to a node that has joined: here is my whole set.
    27 PatternsBegin Live {
        /// Of the set.
        version: u64,
        /// How many entries follow.
        patterns: u32,
    }
    /// One entry.
    28 PatternsEntry Live {
        /// Subscribers on the edge.
        count: u32,
        /// What they subscribe to.
        pattern: &'a [u8],
    }
    /// That was all.
    29 PatternsEnd Live {
        /// As at its begin.
        version: u64,
    }
    /// The answer: everything up to this version is held.
    30 PatternsHeld Live {
        /// Of the edge's set.
        version: u64,
    }
    /// Edge to a member: records of the past, please.
    31 Read Live {
        /// The edge's number for this request.
        ask: u64,
        /// Where the records stand.
        hub: HubId,
        /// Of what; an empty topic is the whole room.
        names: Names<'a>,
        /// Where they begin.
        start: Start,
        /// At most so many.
        records_max: u32,
        /// Stop once they are so long.
        bytes_max: u32,
    }
    /// Member to edge: one of them.
    32 Range Reads {
        /// As in the request.
        ask: u64,
        /// Where it stands.
        position: Position,
        /// In which hub.
        hub: HubId,
        /// Its offset in the hub's log; 0 where that has none.
        offset: Short,
        /// What was published.
        record: Record<'a>,
    }
    /// Member to edge: that was all.
    33 RangeEnd Reads {
        /// As in the request.
        ask: u64,
        /// Before the oldest record that history has: what a reader may start after.
        oldest: Position,
        /// Where to read on.
        next: Seq,
        /// First of the records that history no longer has; 0 if none is missing.
        gap_first: Seq,
        /// The last of them.
        gap_last: Seq,
        /// Whether `next` is behind the room's last record.
        at_end: bool,
        /// Whether the room has another epoch than the one that was asked for.
        is_gone: bool,
    }
    /// Leader to a node: from here on it is sent what its patterns match of a hub.
    34 PatternsLive Live {
        /// Which hub.
        hub: HubId,
        /// In which term it is led.
        term: u64,
        /// Told apart from other leaders, and other times, of that hub.
        life: u64,
        /// Records of this life that were due to the node before, or may have been.
        due: u64,
    }
    /// Edge to a leader: all interest that the edge has in rooms of a hub is told.
    35 Registered Live {
        /// Which hub.
        hub: HubId,
        /// In which the edge told it.
        term: u64,
    }
    /// Leader to a node: that was all of a time in which it led a hub.
    36 Over Live {
        /// Which hub.
        hub: HubId,
        /// In which it was led.
        term: u64,
        /// As in PatternsLive.
        life: u64,
        /// Likewise, in all.
        due: u64,
        /// Records of this life that were committed.
        said: u64,
    }
    /// Leader to a node with members of a group: a record for one of them. Of a node to the leader: nobody took
    /// it, or who took it is lost.
    40 Give Live {
        /// Where it was committed.
        hub: HubId,
        /// The group and its filter, as Pattern has it.
        group: &'a [u8],
        /// How often nobody was there to take it.
        tries: u8,
        /// Whether a member had it that is lost.
        was_taken: bool,
        /// Zero where no room took it.
        position: Position,
        /// Its offset in the hub's log; 0 where that has none.
        offset: Short,
        /// What was published.
        record: Record<'a>,
    }
    /// To the leader: a member of a group that keeps its place has done with a record.
    41 Acknowledge Live {
        /// Where it stands.
        hub: HubId,
        /// The group and its topic, as Pattern has it.
        group: &'a [u8],
        /// The record's.
        position: Position,
    }

    /// Edge to a member: records of all rooms of a hub with a log, please.
    37 ReadHub Live {
        /// The edge's number for this request.
        ask: u64,
        /// Which hub.
        hub: HubId,
        /// The first offset that is wanted; the greatest number: none, only where the log ends.
        next: u64,
        /// None that are older, in µs since 1970.
        since_us: u64,
        /// At most so many records.
        records_max: u32,
        /// Stop once they are so long.
        bytes_max: u32,
        /// Patterns of which one must match the topic.
        filter: Texts<'a>,
    }
    /// Member to edge, behind the records: that was all.
    38 HubEnd Reads {
        /// As in the request.
        ask: u64,
        /// The offset to go on at.
        next: u64,
        /// The last one that is committed.
        committed: u64,
        /// First of the offsets that the log has no more; 0 if none is missing.
        lost_first: u64,
        /// The last of them.
        lost_last: u64,
    }

    /// Edge to a hub of retained messages: those of topics that a filter matches, please. Range and RangeEnd answer.
    42 Rows Live {
        /// The edge's number for this request.
        ask: u64,
        /// Which keeps them.
        hub: HubId,
        /// An MQTT filter.
        filter: &'a [u8],
        /// Topics behind this one; empty: from the first on.
        after: &'a [u8],
        /// Stop once they are so long.
        bytes_max: u32,
    }
    /// To any node: are all retained messages kept that are under way from its shards?
    43 SettleAsk Live {
        /// The edge's number for this request.
        ask: u64,
    }
    /// The answer, once they are.
    44 Settled Live {
        /// As in the request.
        ask: u64,
    }

    /// To the controller's node: may I lead these?
    48 LeadAsk Urgent {
        /// The asker's monotonic time before it asked, in µs.
        stamp_us: u64,
        /// What it means to lead.
        claim: List<'a, (HubId, Term)>,
        /// What it will never lead again, of what records still say that it leads.
        gave_up: List<'a, (HubId, Term)>,
        /// Names of nodes that it suspects.
        suspects: List<'a, &'a str>,
    }
    /// The answer.
    49 LeadGranted Urgent {
        /// As in the request.
        stamp_us: u64,
        /// The lead ends so long after `stamp_us`, on the asker's clock.
        lead_ms: u32,
        /// Of the controller that grants it.
        mandate: u64,
        /// Revision of the census that the controller knows.
        census: u64,
        /// What of the claim is granted.
        granted: List<'a, (HubId, Term)>,
    }
    /// From control plane to control plane.
    50 Control Urgent {
        /// The asker's number for this request.
        id: u64,
        /// Whether this answers it.
        is_answer: bool,
        /// What is said.
        body: Payload<'a>,
    }
}

impl Frame<'_> {
    /// "HSLK": who begins otherwise speaks something else.
    pub const MAGIC: u32 = u32::from_le_bytes(*b"HSLK");

    /// Appends the whole frame; gives its bytes.
    pub fn encode(&self, out: &mut Vec<u8>) -> usize {
        let start = out.len();
        out.extend_from_slice(&[0; LENGTH_BYTES]);
        self.write(out);
        let bytes = out.len() - start;
        // What is longer than this can say is longer than any limit, and refused by who sends it.
        let length = u32::try_from(bytes - LENGTH_BYTES).unwrap_or(u32::MAX);
        out[start..start + LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
        bytes
    }
}
