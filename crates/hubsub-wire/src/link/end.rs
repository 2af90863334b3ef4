//! Why a link ended.

use super::{FrameError, Lane, Refusal};

/// Why a link ended. Nothing more is read; the connection closes after the remaining output.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum End {
    /// The peer sent Bye, with an explanation for people.
    #[error("the peer said goodbye: {text}")]
    Bye {
        /// Whether its process stops; else only this link ends.
        stopping: bool,
        text: Box<str>,
    },
    /// This side sent Bye, or the link has reported its end before.
    #[error("this node said goodbye")]
    Left,
    /// The connection ended without Bye: the peer may be dead.
    #[error("the connection ended without a goodbye")]
    Eof,
    /// Nothing was received from the peer for `silence_ms`.
    #[error("the peer was silent for too long")]
    Silent,
    #[error("refused: {1}")]
    Refused(Refusal, Box<str>),
    /// The peer refused this side; `None` for a reason that this version does not know.
    #[error("refused by the peer: {1}")]
    RefusedByPeer(Option<Refusal>, Box<str>),
    #[error("{0}")]
    Bad(FrameError),
    #[error("frame out of place: {0}")]
    OutOfPlace(&'static str),
    #[error("frame without credit in lane: {0:?}")]
    WithoutCredit(Lane),
    /// A limit for one peer was exceeded; the text names it.
    #[error("more than there is room for of one peer: {0}")]
    Crowding(&'static str),
}

impl End {
    /// The refusal for the breaker, if one side refused the other.
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            End::Refused(refusal, _) => Some(*refusal),
            End::RefusedByPeer(refusal, _) => *refusal,
            _ => None,
        }
    }
}
