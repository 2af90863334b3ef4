//! Owners of MQTT sessions, from the entries of one hub: for each session the owner that wrote its entry
//! last.
//!
//! Invariant: an entry written by an earlier owner has no effect.

use hubsub_message::Record;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// Prefix of the room of a session's entry; the client id follows.
pub const SESSIONS: &[u8] = b"$system/session/";

/// The header of a session's entry with its owner.
const OWNER: &str = "hubsub-owner";

/// The last word of that header, if the owner has given the session up.
const OVER: &str = "over";

/// Entries that one search for orphans examines, at most: some ms of a shard.
const LOOKED_AT_MAX: usize = 20_000;

/// The owner of a session that wrote its entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Owner {
    /// Number of the owner, from 1; each is one higher than the previous one.
    pub epoch: u64,
    /// Incarnation of its process; 0: that of a single node.
    pub run: u64,
    /// Identifies the session of its client id; 0: unknown.
    pub born: u64,
    /// Whether it has given the session up, for another node.
    pub is_over: bool,
}

impl Owner {
    /// Decodes the owner of an entry; none if the entry has none.
    pub fn of(row: &Record) -> Option<Owner> {
        let (_, value) = row.headers.as_deref()?.iter().find(|(name, _)| **name == *OWNER)?;
        let mut words = value.split(' ');
        let mut number = || words.next()?.parse().ok();
        let (epoch, run) = (number()?, number()?);
        // There must be a number for its successor.
        let epoch = Some(epoch).filter(|&epoch| epoch < u64::MAX)?;
        let mut words = words.peekable();
        let born = words.next_if(|word| *word != OVER).map_or(Some(0), |word| word.parse().ok())?;
        Some(Owner { epoch, run, born, is_over: words.next() == Some(OVER) })
    }

    /// The headers of an entry that this owner writes.
    #[must_use]
    pub fn headers(self) -> Arc<[(Box<str>, Box<str>)]> {
        let Owner { epoch, run, born, is_over } = self;
        let over = if is_over { OVER } else { "" };
        [(OWNER.into(), format!("{epoch} {run} {born} {over}").trim_end().into())].into()
    }

    /// Whether it is known to own another session than `other`.
    fn is_of_another(self, other: Owner) -> bool {
        self.born != other.born && self.born != 0 && other.born != 0
    }

    /// Whether it may overwrite the entry of another owner.
    fn follows(self, before: Owner) -> bool {
        self.epoch > before.epoch || (self.epoch, self.run) == (before.epoch, before.run)
    }
}

#[derive(Debug, Default)]
pub struct Owners {
    sessions: BTreeMap<Box<[u8]>, Owner>,
    /// The room after which the next search for owners without a process continues.
    looked_at: Box<[u8]>,
}

impl Owners {
    /// Whether a session's entry may be written: not by an owner with a successor. Others always may.
    pub fn may_own(&mut self, record: &Record) -> bool {
        let (Some(owner), true) = (Owner::of(record), record.topic().starts_with(SESSIONS)) else {
            return true;
        };
        let ends = record.payload().is_empty();
        let is_refused = |before: &Owner| !owner.follows(*before) || (ends && owner.is_of_another(*before));
        if self.sessions.get(record.topic()).is_some_and(is_refused) {
            return false;
        }
        // A record that deletes the entry may be in flight: until then, this owner is the last one.
        self.sessions.insert(record.topic().into(), owner);
        true
    }

    /// Rooms of sessions whose owner has given them up, or whose owner's process is gone. If `hubs` hubs are
    /// searched together, each returns its share of `max`; each call continues after the previous one, in
    /// turn.
    pub fn orphans(
        &mut self,
        mut is_gone: impl FnMut(u64) -> bool,
        max: usize,
        hubs: usize,
    ) -> Vec<Box<[u8]>> {
        let (found_max, looked_at_max) = (max.div_ceil(hubs), LOOKED_AT_MAX.div_ceil(hubs));
        let (mut found, mut looked_at) = (Vec::new(), 0);
        let behind = (Bound::Excluded(&*self.looked_at), Bound::Unbounded);
        let mut last = None;
        for (room, owner) in self.sessions.range::<[u8], _>(behind) {
            if looked_at == looked_at_max || found.len() == found_max {
                break;
            }
            looked_at += 1;
            last = Some(room);
            if owner.is_over || is_gone(owner.run) {
                found.push(room.clone());
            }
        }
        let is_end = looked_at < looked_at_max && found.len() < found_max;
        self.looked_at = last.filter(|_| !is_end).cloned().unwrap_or_default();
        found
    }

    /// A session's entry is committed; that of a later owner in flight is valid since it was accepted.
    pub fn set(&mut self, record: &Record) {
        let owner = Owner::of(record);
        let last = self.sessions.get(record.topic());
        if let (Some(owner), Some(last)) = (owner, last)
            && last.epoch > owner.epoch
        {
            return;
        }
        match owner.filter(|_| !record.payload().is_empty()) {
            Some(owner) => _ = self.sessions.insert(record.topic().into(), owner),
            None => _ = self.sessions.remove(record.topic()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Namespace;

    fn session(id: &str, payload: &str, epoch: u64, run: u64) -> Arc<Record> {
        let (room, headers) =
            ([SESSIONS, id.as_bytes()].concat(), Owner { epoch, run, born: 0, is_over: run == 0 }.headers());
        Arc::new(Record::new(Namespace::Global, &room, payload.as_bytes(), "".into(), Some(headers)))
    }

    #[test]
    fn no_row_of_an_older_holder_of_a_session_counts() {
        let mut owners = Owners::default();
        let write = |owners: &mut Owners, payload, epoch, run| {
            let record = session("a", payload, epoch, run);
            let may = owners.may_own(&record);
            if may {
                owners.set(&record);
            }
            may
        };
        assert!(write(&mut owners, "x", 2, 7) && write(&mut owners, "y", 2, 7), "its own are written again");
        assert!(
            !write(&mut owners, "z", 1, 8) && !write(&mut owners, "z", 2, 8) && !write(&mut owners, "", 1, 8)
        );
        assert!(write(&mut owners, "z", 3, 8) && !write(&mut owners, "x", 2, 7));
        assert!(write(&mut owners, "", 3, 8), "it ends");
        assert!(write(&mut owners, "x", 1, 9), "and another one begins");
        assert!(owners.may_own(&session("b", "x", 5, 1)), "under way");
        assert!(!owners.may_own(&session("b", "x", 4, 1)));
    }

    #[test]
    fn a_row_that_is_safe_late_makes_no_place_for_its_holder_before_one_that_is_under_way() {
        for payload in ["x", ""] {
            let mut owners = Owners::default();
            let (old, new) = (session("a", payload, 2, 7), session("a", "y", 3, 8));
            assert!(owners.may_own(&old) && owners.may_own(&new), "both are under way");
            owners.set(&old);
            assert!(!owners.may_own(&session("a", "z", 2, 7)), "behind that of a later holder");
            owners.set(&new);
            assert!(owners.may_own(&session("a", "z", 3, 8)));
        }
    }

    #[test]
    fn an_end_is_of_the_session_that_it_names() {
        let of = |payload: &str, born| {
            let headers = Some(Owner { epoch: 1, run: 0, born, is_over: false }.headers());
            Record::new(Namespace::Global, &[SESSIONS, b"a"].concat(), payload.as_bytes(), "".into(), headers)
        };
        let mut owners = Owners::default();
        assert!(owners.may_own(&of("x", 7)) && owners.may_own(&of("", 7)));
        assert!(owners.may_own(&of("y", 8)), "another one begins, of the same holder");
        assert!(!owners.may_own(&of("", 7)), "the end of the one before comes late");
        assert!(owners.may_own(&of("", 0)), "it names none");
        for (born, is_over) in [(0, false), (7, false), (7, true)] {
            let owner = Owner { epoch: 3, run: 5, born, is_over };
            let row = Record::new(Namespace::Global, b"r", b"", "".into(), Some(owner.headers()));
            assert_eq!(Owner::of(&row), Some(owner));
        }
        for (said, is_over) in [("3 5", false), ("3 5 over", true)] {
            let headers = Some([(OWNER.into(), said.into())].into());
            let row = Record::new(Namespace::Global, b"r", b"", "".into(), headers);
            assert_eq!(Owner::of(&row), Some(Owner { epoch: 3, run: 5, born: 0, is_over }), "of before");
        }
    }

    #[test]
    fn sessions_that_nobody_holds_are_found_in_turn() {
        let mut owners = Owners::default();
        for (id, run) in [("a", 1), ("b", 2), ("c", 1), ("d", 0)] {
            owners.set(&session(id, "x", 1, run));
        }
        let ids = |rooms: Vec<Box<[u8]>>| -> Vec<u8> {
            rooms.iter().filter_map(|room| room.last()).copied().collect()
        };
        let found: Vec<Vec<u8>> = (0..3).map(|_| ids(owners.orphans(|run| run == 1, 4, 2))).collect();
        assert_eq!(found, [b"ac".to_vec(), b"d".to_vec(), b"ac".to_vec()]);
        assert_eq!(ids(owners.orphans(|run| run == 3, 9, 1)), b"d", "it was given up");
        assert_eq!(ids(owners.orphans(|_| true, 9, 1)), b"abcd", "and again from the first");
    }
}
