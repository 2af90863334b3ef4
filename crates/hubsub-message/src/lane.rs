//! The queue of a frame on a link.

/// The queue of a frame. Order is kept within a lane.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Lane {
    /// Frames of the handshake, used only then.
    Handshake,
    /// Internal frames of the link: a few bytes each, at most one of each kind queued.
    Own,
    /// Frames that must not wait after records: leader leases and control-plane messages. No credit.
    Urgent,
    /// Records and everything ordered with them.
    Live,
    /// Replies to range reads.
    Reads,
}

impl Lane {
    /// The lanes of frames from the link's owner, in the order of counters.
    pub const OF_OWNER: [Lane; 3] = [Lane::Urgent, Lane::Live, Lane::Reads];

    /// Index in `OF_OWNER`; `None` for frames that the link sends itself.
    pub fn index(self) -> Option<usize> {
        match self {
            Lane::Handshake | Lane::Own => None,
            Lane::Urgent => Some(0),
            Lane::Live => Some(1),
            Lane::Reads => Some(2),
        }
    }
}
