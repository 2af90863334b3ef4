//! Errors of frames, and reasons to refuse a peer.

use std::fmt;

/// Invalid frame; the link ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameError {
    /// A frame announces more bytes than it may have at this point.
    TooLong {
        /// Length, including the length field.
        bytes: u64,
        /// The limit at this point.
        max: usize,
    },
    /// A frame without a type.
    Empty,
    /// A type that this version does not have.
    UnknownType(u8),
    /// The body is invalid for its type.
    Flawed {
        /// Name of the frame's type.
        frame: &'static str,
        flaw: Flaw,
    },
}

/// Error in the body of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flaw {
    /// It ends inside a field.
    Short,
    /// This many bytes follow the last field.
    Trailing(usize),
    /// A text is not UTF-8.
    NotUtf8,
    /// The value is out of range for its field.
    Value(u64),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::TooLong { bytes, max } => write!(f, "frame too long: {bytes} bytes, at most {max}"),
            FrameError::Empty => f.write_str("frame without a type"),
            FrameError::UnknownType(code) => write!(f, "unknown frame type: {code}"),
            FrameError::Flawed { frame, flaw } => match flaw {
                Flaw::Short => write!(f, "{frame} ends inside a field"),
                Flaw::Trailing(bytes) => write!(f, "bytes behind {frame}: {bytes}"),
                Flaw::NotUtf8 => write!(f, "text in {frame} is not UTF-8"),
                Flaw::Value(value) => write!(f, "value in {frame} out of range: {value}"),
            },
        }
    }
}

impl std::error::Error for FrameError {}

macro_rules! refusals {
    ($($(#[doc = $doc:literal])+ $number:literal $name:ident $code:literal $words:literal $lasts:literal;)+) => {
        /// Why a peer is refused. Numbers never change; each has a stable code.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Refusal { $($(#[doc = $doc])+ $name = $number,)+ }

        impl Refusal {
            /// All refusals, for tables and the tests that iterate over them.
            pub const ALL: &'static [Refusal] = &[$(Refusal::$name,)+];

            /// The stable code, for logs and replies.
            #[must_use]
            pub fn code(self) -> &'static str {
                match self { $(Refusal::$name => $code,)+ }
            }

            /// Explanation for logs and people.
            #[must_use]
            pub fn words(self) -> &'static str {
                match self { $(Refusal::$name => $words,)+ }
            }

            /// Whether only an operator can fix it, so that fast retries are useless.
            #[must_use]
            pub fn lasts(self) -> bool {
                match self { $(Refusal::$name => $lasts,)+ }
            }

            /// `None` for a number that only a newer version knows.
            #[must_use]
            pub fn from_number(number: u8) -> Option<Refusal> {
                match number { $($number => Some(Refusal::$name),)+ _ => None }
            }
        }
    };
}

refusals! {
    /// It did not send a link's handshake, or is no node of this cluster.
    1 Stranger "stranger" "this is not a node of the cluster" true;
    /// It belongs to another cluster.
    2 OtherCluster "other_cluster" "the peer belongs to another cluster" true;
    /// The version ranges do not overlap.
    3 NoCommonVersion "no_common_version" "no protocol version that both speak" true;
    /// It does not know the cluster's secret.
    4 WrongSecret "wrong_secret" "the cluster's secret is another one here" true;
    /// Another process has its name.
    5 DuplicateNode "duplicate_node" "another process has this node's name" false;
    /// It is this very process.
    6 SameNode "same_node" "the node dialed itself" true;
    /// The handshake took too long.
    7 Late "late" "the handshake took too long" false;
    /// The answering node is not the one that was dialed.
    8 OtherNode "other_node" "another node has this address" false;
    /// Of two nodes the one with the lesser name dials, but this is the other.
    9 WrongSide "wrong_side" "of two nodes the one whose name is less dials" true;
    /// There are fewer links between these two.
    10 NoSuchLink "no_such_link" "there are fewer links between these nodes" false;
    /// The node is stopping.
    11 Stopping "stopping" "the node is stopping" false;
}
