//! Why a link is over.

use super::{FrameError, Lane, Refusal};
use std::fmt;

/// Why a link is over. Nothing more is read; what its output still holds is
/// for the peer to know, and the connection is closed behind it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// The peer said goodbye.
    Bye {
        /// Whether its process goes; else only this link.
        stopping: bool,
        /// Its words.
        text: Box<str>,
    },
    /// This side said goodbye, or has told why it is over before.
    Left,
    /// The connection ended without a goodbye: the peer may be dead.
    Eof,
    /// The peer was not heard for `silence_ms`.
    Silent,
    /// This side refused the peer.
    Refused(Refusal, Box<str>),
    /// The peer refused this side. A newer one may have refusals that have no name here.
    RefusedByPeer(Option<Refusal>, Box<str>),
    /// What came is no frame.
    Bad(FrameError),
    /// A frame came that has no place there.
    OutOfPlace(&'static str),
    /// A frame came for which there was no credit.
    WithoutCredit(Lane),
    /// More came of one peer, or waits for it, than there is room for: what there is too much of.
    Crowding(&'static str),
}

impl End {
    /// What a breaker is told: why the peer and this node do not go together.
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
