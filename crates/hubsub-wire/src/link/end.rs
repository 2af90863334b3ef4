//! Why a link ended.

use super::{FrameError, Lane, Refusal};
use std::fmt;

/// Why a link ended. Nothing more is read; the remaining output is sent to the peer, then the connection is
/// closed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// The peer sent Bye.
    Bye {
        /// Whether its process stops; else only this link ends.
        stopping: bool,
        /// The peer's explanation for people.
        text: Box<str>,
    },
    /// This side sent Bye, or the link has reported its end before.
    Left,
    /// The connection ended without Bye: the peer may be dead.
    Eof,
    /// Nothing was received from the peer for `silence_ms`.
    Silent,
    /// This side refused the peer.
    Refused(Refusal, Box<str>),
    /// The peer refused this side; `None` for a reason that this version does not know.
    RefusedByPeer(Option<Refusal>, Box<str>),
    /// The input was no valid frame.
    Bad(FrameError),
    /// A frame arrived that is not allowed there.
    OutOfPlace(&'static str),
    /// A frame arrived without credit.
    WithoutCredit(Lane),
    /// A limit for one peer was exceeded; the text names it.
    Crowding(&'static str),
}

impl End {
    /// The refusal for the breaker, if one side refused the other.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            End::Refused(refusal, _) => Some(*refusal),
            End::RefusedByPeer(refusal, _) => *refusal,
            _ => None,
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Bye { text, .. } => write!(f, "the peer said goodbye: {text}"),
            End::Left => f.write_str("this node said goodbye"),
            End::Eof => f.write_str("the connection ended without a goodbye"),
            End::Silent => f.write_str("the peer was silent for too long"),
            End::Refused(_, text) => write!(f, "refused: {text}"),
            End::RefusedByPeer(_, text) => write!(f, "refused by the peer: {text}"),
            End::Bad(error) => error.fmt(f),
            End::OutOfPlace(name) => write!(f, "frame out of place: {name}"),
            End::Crowding(what) => write!(f, "more than there is room for of one peer: {what}"),
            End::WithoutCredit(lane) => write!(f, "frame without credit in lane: {lane:?}"),
        }
    }
}
