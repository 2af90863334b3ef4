//! A session of another process, as read from its rooms or its store, and its conversion to an offline
//! session.

use super::entries::{EntryHead, Head, head_of};
use super::message::Message;
use super::offline::OfflineSession;
use super::persistence::Persistence;
use super::restored::{Restored, restore};
use super::session::{Sent, Session};
use crate::machine::{Damaged, Grant, LastWill, SessionState};
use std::rc::Rc;

/// Queued messages by key, in order.
pub type RestoredQueue = Vec<(u64, Message, Grant)>;

#[derive(Debug)]
pub struct Found {
    pub id: Box<str>,
    pub snapshot: Vec<u8>,
    pub entries: Vec<Vec<u8>>,
}

impl Found {
    pub fn weight(&self) -> usize {
        std::mem::size_of::<Found>()
            + self.id.len()
            + self.snapshot.len()
            + self.entries.iter().map(Vec::len).sum::<usize>()
    }

    /// Restores the session, with its queue by key; if it was connected, its connection has ended at this
    /// wall time, in ms. `has_store`: sessions are in a store, not in a log.
    ///
    /// # Errors
    /// If the snapshot or an entry is damaged.
    pub fn revive(self, has_store: bool, now_ms: u64) -> Result<(OfflineSession, RestoredQueue), Damaged> {
        let Found { id, snapshot, entries } = self;
        let mut restored = restore(&snapshot, &entries)?;
        let persistence = Box::new(Persistence::restored(&mut restored, has_store));
        let Restored { head, mut state, cursors, sent, queue, .. } = restored;
        state.leave(now_ms);
        let mut session = Session::new(Some(persistence), head.last_key);
        for (key, counted, message, grant) in sent {
            session.send(key, Sent { message: Rc::new(message), grant, counted, is_recorded: true });
        }
        session.cursors = cursors;
        Ok((OfflineSession::new(id, state, session), queue))
    }
}

/// The `born` of a session that ends, by its snapshot, and its will. A damaged snapshot has neither.
#[must_use]
pub fn will_of(snapshot: &[u8]) -> (u64, Option<Box<LastWill>>) {
    let head = Head::read(snapshot);
    let born = head.as_ref().map_or(0, |(head, ..)| head.born);
    let state = head.and_then(|(.., state)| SessionState::decode(state));
    (born, state.ok().and_then(|mut state| state.take_will()))
}

#[must_use]
pub fn adds_to(snapshot: &[u8], entry: &[u8]) -> bool {
    let (Ok((head, ..)), Ok((EntryHead { born, number, .. }, _))) = (Head::read(snapshot), head_of(entry))
    else {
        return false;
    };
    born == head.born && (number == 0 || number > head.through)
}
