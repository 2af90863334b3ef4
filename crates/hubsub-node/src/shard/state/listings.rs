//! Unfinished listings ([`crate::shard::listings`]).

use crate::log::Wanted;
use hubsub_route::rooms::Page;
use hubsub_route::{Ask, Namespace};
use hubsub_types::names::Glob;
use std::collections::VecDeque;
use std::sync::Arc;

#[derive(Default)]
pub struct Listings {
    pub(crate) waiting: VecDeque<(Listing, Ask)>,
    /// Rooms and topics scanned in this turn.
    pub(crate) passed: usize,
}

pub enum Listing {
    /// Rooms, and the request to their hubs' logs that follows.
    Rooms(Wanted, Page),
    Topics {
        namespace: Namespace,
        glob: Option<Glob>,
        /// Index of the next topic to scan.
        place: usize,
        found: Vec<Arc<[u8]>>,
        /// Bytes left for names; `None` if the limit was exceeded.
        bytes_left: Option<u64>,
    },
}

impl Listing {
    pub fn rooms(wanted: Wanted) -> Listing {
        let page = Page::new(wanted.glob.as_deref(), wanted.after.as_deref(), wanted.limit);
        Listing::Rooms(wanted, page)
    }

    /// Lists topics with subscribers; refused if their names exceed `bytes_max` bytes.
    pub fn topics(namespace: Namespace, glob: Option<&[u8]>, bytes_max: u64) -> Listing {
        let (glob, bytes_left) = (glob.map(Glob::new), Some(bytes_max));
        Listing::Topics { namespace, glob, place: 0, found: Vec::new(), bytes_left }
    }
}
