//! Changes of the table of rooms (`hubsub_route::places`), with the mail that notifies shards.
//!
//! The control plane's thread changes the table when it gets a room's place; a shard does when it gives rooms
//! up.
//!
//! Invariant: a change and its mail to all shards are made under one lock. So each shard receives changes in
//! order of revision and without omissions. Shard 0 is notified first, so that it has finished its lookup of
//! a room before other shards repeat theirs.
//!
//! Lock order: the state of `Routes`, this lock, an inbox.

use crate::io::inbox::Post;
use hubsub_route::Leader;
use hubsub_route::places::{Change, Changed};
use hubsub_types::class::ClassIndex;
use hubsub_types::{ErrorCode, HubId, ShardId, Term};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

/// Changed rooms, as sent to shards.
type News = Arc<[(Box<[u8]>, Change)]>;

/// Messages to shards about routes.
pub enum RouteMail {
    /// Join the cluster with the hubs that are known now.
    Join,
    Classes,
    /// To the home of these hubs: their leaders.
    Leaders(Vec<(HubId, (Term, Leader))>),
    /// To the home of these hubs: whether this node is their acting leader, without a leader lease.
    Serves(Vec<(HubId, bool)>),
    /// Changed rooms of a class in the table.
    Rooms(ClassIndex, Arc<[(Box<[u8]>, Change)]>),
    /// These rooms get no place, for this reason.
    Refused(Arc<[Box<[u8]>]>, ErrorCode),
    /// These rooms have no place; their lookup did not ask for one.
    Absent(Arc<[Box<[u8]>]>),
    /// To the home of a hub: which of these rooms are unused?
    Unused(UnusedRooms),
    /// To shard 0: where is this room of a class, and is it to get a place if it has none?
    Miss(ClassIndex, Box<[u8]>, bool),
}

/// A request about rooms that may be unused.
pub struct UnusedRooms {
    /// Ticket of the response, which is an event.
    pub ticket: u64,
    /// Their hub, and the term in which this process leads it.
    pub of: (HubId, Term),
    pub rooms: Vec<Box<[u8]>>,
    /// Whether this process gives up the unused ones: afterwards no shard has a place for them.
    pub gives_up: bool,
    /// Notifies all shards before the response.
    pub changes: Arc<RoomChanges>,
}

pub struct RoomChanges {
    inboxes: Arc<dyn Post<RouteMail>>,
    order: Mutex<()>,
}

impl RoomChanges {
    pub fn new(inboxes: Arc<dyn Post<RouteMail>>) -> RoomChanges {
        RoomChanges { inboxes, order: Mutex::new(()) }
    }

    /// Changes the table and notifies all shards.
    pub fn make(&self, change: impl FnOnce() -> Changed) {
        let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        let (class, rooms) = change();
        self.tell(class, rooms.into());
    }

    /// Like `make`, for a shard, which never blocks: returns `None` if another change is in progress, which
    /// it has not received yet.
    pub fn try_make(&self, change: impl FnOnce() -> Changed) -> Option<News> {
        let _order = match self.order.try_lock() {
            Ok(order) => order,
            Err(TryLockError::Poisoned(order)) => order.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let (class, rooms) = change();
        let rooms: News = rooms.into();
        if !rooms.is_empty() {
            self.tell(class, Arc::clone(&rooms));
        }
        Some(rooms)
    }

    /// Replaces the table. No change of the old one is sent afterwards.
    pub fn begin_anew(&self, begin: impl FnOnce()) {
        let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        begin();
    }

    fn tell(&self, class: ClassIndex, rooms: News) {
        for shard in 0..self.inboxes.shards() {
            self.inboxes.post(ShardId(shard), RouteMail::Rooms(class, Arc::clone(&rooms)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::mail::Mail;
    use crate::io::inbox::{Inbox, Inboxes};
    use hubsub_route::places::Places;
    use mio::{Poll, Token, Waker};

    fn changes(polls: &[Poll]) -> (RoomChanges, Arc<Inboxes<Mail>>) {
        let inbox = |poll: &Poll| Inbox::new(Waker::new(poll.registry(), Token(0)).unwrap());
        let inboxes: Arc<Inboxes<Mail>> = Arc::new(polls.iter().map(inbox).collect());
        (RoomChanges::new(inboxes.clone()), inboxes)
    }

    /// The revisions that a shard received.
    fn told(inboxes: &Inboxes<Mail>, shard: usize) -> Vec<u64> {
        let mut mail = Vec::new();
        inboxes[shard].take(&mut mail);
        let revision = |mail: &Mail| match mail {
            Mail::Route(RouteMail::Rooms(0, rooms)) => rooms[0].1.revision,
            _ => panic!("rooms are told"),
        };
        mail.iter().map(revision).collect()
    }

    #[test]
    fn every_shard_hears_of_changes_in_their_order_whoever_makes_them() {
        let polls = [Poll::new().unwrap(), Poll::new().unwrap()];
        let ((changes, inboxes), places) = (changes(&polls), Places::new([true].into_iter()));
        let set = |room: &[u8], hub| (0, vec![(room.into(), places.set(0, room, hub, 0).unwrap())]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..20_000).for_each(|n| changes.make(|| set(b"a", Some(n % 2))));
            });
            let mut given_up = 0;
            while given_up < 1_000 {
                changes.make(|| set(b"b", Some(0)));
                given_up += usize::from(changes.try_make(|| set(b"b", None)).is_some());
            }
        });
        for shard in 0..2 {
            let told = told(&inboxes, shard);
            assert!(told.len() >= 22_000, "{}", told.len());
            // A change to the place that a room has already has the revision of the change before it.
            let at = told.windows(2).position(|two| two[0] > two[1]);
            assert_eq!(at.map(|at| &told[at..at + 2]), None, "shard {shard}");
        }
    }

    #[test]
    fn a_shard_that_would_wait_for_another_change_makes_none() {
        let polls = [Poll::new().unwrap()];
        let ((changes, inboxes), places) = (changes(&polls), Places::new([true].into_iter()));
        let set = |hub| (0, vec![(Box::from(&b"a"[..]), places.set(0, b"a", hub, 0).unwrap())]);
        changes.make(|| {
            let set = set(Some(1));
            assert!(changes.try_make(|| panic!("the table is being changed")).is_none());
            set
        });
        assert_eq!(changes.try_make(|| set(None)).map(|rooms| rooms[0].1.before), Some(1));
        assert!(changes.try_make(|| (0, Vec::new())).is_some_and(|rooms| rooms.is_empty()));
        assert_eq!(told(&inboxes, 0), [1, 2], "of nothing nobody is told");
    }
}
