//! Hub cursors: a subscriber that follows all hubs with a log by its patterns has one offset in each of them.
//! While such a cursor lags, live records of its hub bypass it, and it stores the highest of their offsets.
//! It reads the hub's records in the order of offsets, of all rooms. It becomes live when a read has reached
//! the last committed record and no later one bypassed it.
//!
//! Invariant: matching records below `next` were delivered to the connection or reported as lost; later ones
//! will be, once.

use crate::HubFilter;
use crate::hubread::{END, HubRead, HubThen};
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_message::LogPlace;
use hubsub_types::{ConnKey, HubId, ShardId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Debug)]
struct HubCursor {
    /// The first offset that it has not received.
    next: u64,
    /// Oldest timestamp that it receives, in µs since 1970.
    since_us: u64,
    /// The highest offset that bypassed it, or is known to be due.
    passed: u64,
    is_live: bool,
    /// The last record for which delivery was decided, and the decision.
    decided: (u64, bool),
}

impl HubCursor {
    fn behind(next: u64, since_us: u64) -> HubCursor {
        HubCursor { next, since_us, passed: 0, is_live: false, decided: (0, false) }
    }
}

/// The hub cursors of one connection, or of one of its patterns.
#[derive(Debug, Default)]
struct Follower {
    /// The filter of its patterns; none after they changed.
    filter: Option<Arc<HubFilter>>,
    hubs: BTreeMap<HubId, HubCursor>,
    behind: BTreeSet<HubId>,
    reading: Option<(HubId, u64)>,
    /// The hub that was read last: the next read is for another one.
    turn: HubId,
}

/// The hub cursors of a shard: of connections, and of single patterns with a start of their own.
#[derive(Debug, Default)]
pub struct HubCursors {
    by_conn: HashMap<u32, BTreeMap<Option<u32>, Follower>, RandomState>,
    stirred: BTreeSet<u32>,
    /// The number of the record that is being delivered.
    record: u64,
    reads: u64,
}

impl HubCursors {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.by_conn.is_empty()
    }

    pub fn has(&self, conn: u32) -> bool {
        !self.is_empty() && self.by_conn.contains_key(&conn)
    }

    /// Whether a pattern of a connection has hub cursors.
    pub fn covers(&self, conn: u32, pattern: u32) -> bool {
        let groups = if self.is_empty() { None } else { self.by_conn.get(&conn) };
        groups.is_some_and(|groups| groups.contains_key(&None) || groups.contains_key(&Some(pattern)))
    }

    pub fn own_patterns(&self, conn: u32) -> impl Iterator<Item = u32> {
        self.by_conn.get(&conn).into_iter().flat_map(|groups| groups.keys().copied().flatten())
    }

    /// The number of cursors that are not live, of a connection or of all.
    pub fn behind(&self, conn: Option<u32>) -> usize {
        let of = |groups: &BTreeMap<Option<u32>, Follower>| -> usize {
            groups.values().map(|follower| follower.behind.len()).sum()
        };
        match conn {
            Some(conn) => self.by_conn.get(&conn).map_or(0, of),
            None => self.by_conn.values().map(of).sum(),
        }
    }

    /// Starts a cursor of a connection or its pattern in a hub, at an offset and not before a time.
    pub fn set(&mut self, conn: u32, pattern: Option<u32>, hub: HubId, next: u64, since_us: u64) {
        let groups = self.by_conn.entry(conn).or_default();
        groups.entry(pattern).or_default().set(hub, HubCursor::behind(next.max(1), since_us));
        self.stirred.insert(conn);
        if pattern.is_some() {
            self.changed(conn);
        }
    }

    pub fn add_hub(&mut self, hub: HubId) {
        for (&conn, groups) in &mut self.by_conn {
            for follower in groups.values_mut() {
                follower.add(hub);
            }
            self.stirred.insert(conn);
        }
    }

    /// The positions of a connection in each hub, for all patterns without their own cursors: the first
    /// offset that it has not received, and whether it is live.
    pub fn places(&self, conn: u32) -> impl Iterator<Item = (HubId, u64, bool)> {
        let follower = self.by_conn.get(&conn).and_then(|groups| groups.get(&None));
        let hubs = follower.into_iter().flat_map(|follower| &follower.hubs);
        hubs.map(|(&hub, cursor)| (hub, cursor.next, cursor.is_live))
    }

    /// The patterns of a connection have changed: reads in flight used the previous ones.
    pub fn changed(&mut self, conn: u32) {
        let Some(groups) = self.by_conn.get_mut(&conn) else { return };
        for follower in groups.values_mut() {
            (follower.filter, follower.reading) = (None, None);
        }
        self.stirred.insert(conn);
    }

    pub fn take_stirred(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.stirred)
    }

    #[inline]
    pub fn record_begins(&mut self) {
        self.record += 1;
    }

    /// Whether a connection gets a live record by a pattern: otherwise it has it, or will read it.
    pub fn takes(&mut self, conn: u32, pattern: u32, place: LogPlace) -> bool {
        if place.offset == 0 || self.is_empty() {
            return true;
        }
        let Some(follower) = follower(&mut self.by_conn, conn, pattern) else { return true };
        if follower.add(place.hub) {
            self.stirred.insert(conn);
        }
        let Some(cursor) = follower.hubs.get_mut(&place.hub) else { return true };
        if cursor.decided.0 != self.record {
            let takes = cursor.is_live && place.offset >= cursor.next;
            cursor.decided = (self.record, takes);
            if takes {
                cursor.next = place.offset + 1;
            } else if !cursor.is_live {
                cursor.passed = cursor.passed.max(place.offset);
            }
        }
        cursor.decided.1
    }

    /// An output did not accept a live record: its cursor reads from there. False: it follows no hub.
    pub fn refused(&mut self, conn: u32, pattern: u32, place: LogPlace) -> bool {
        if place.offset == 0 || self.is_empty() {
            return false;
        }
        let Some(follower) = follower(&mut self.by_conn, conn, pattern) else { return false };
        follower.fall_behind(place.hub);
        let Some(cursor) = follower.hubs.get_mut(&place.hub) else { return false };
        cursor.next = place.offset;
        cursor.decided = (self.record, false);
        true
    }

    /// Records of a hub up to an offset may be missing, or arrive late; [`END`]: the offset is unknown.
    pub fn lacks(&mut self, hub: HubId, upto: u64) {
        for (&conn, groups) in &mut self.by_conn {
            for follower in groups.values_mut() {
                let lacks = follower.hubs.get(&hub).filter(|cursor| upto >= cursor.next);
                let Some(is_live) = lacks.map(|cursor| cursor.is_live) else { continue };
                if is_live || upto == END {
                    follower.fall_behind(hub);
                    self.stirred.insert(conn);
                }
                if upto != END
                    && let Some(cursor) = follower.hubs.get_mut(&hub)
                {
                    cursor.passed = cursor.passed.max(upto);
                }
            }
        }
    }

    /// Begins a connection's next read, of its hubs in turn; none while a read is in flight. `patterns`
    /// returns the texts of one pattern, or of all without their own cursors; a pattern that is not confirmed
    /// yet is not ready.
    pub fn begin_read(
        &mut self,
        shard: ShardId,
        conn: ConnKey,
        (records_max, bytes_max): (u32, usize),
        is_ready: impl Fn(Option<u32>) -> bool,
        patterns: impl FnOnce(Option<u32>) -> Vec<Arc<[u8]>>,
    ) -> Option<HubRead> {
        let groups = self.by_conn.get_mut(&conn.index)?;
        if groups.values().any(|follower| follower.reading.is_some()) {
            return None;
        }
        let mut ready = groups.iter_mut().filter(|(pattern, _)| is_ready(**pattern));
        let (pattern, follower, hub) = ready.find_map(|(&pattern, follower)| {
            let hub = follower.next_hub()?;
            Some((pattern, follower, hub))
        })?;
        let filter = follower.filter.get_or_insert_with(|| Arc::new(HubFilter::new(patterns(pattern))));
        let filter = Arc::clone(filter);
        follower.turn = hub;
        self.reads += 1;
        follower.reading = Some((hub, self.reads));
        let cursor = &follower.hubs[&hub];
        let (next, since_us) = (cursor.next, cursor.since_us);
        let then = HubThen::Cursor { shard, conn, pattern, number: self.reads };
        Some(HubRead { hub, filter, next, since_us, records_max, bytes_max, then })
    }

    /// Ends the read of a cursor if it waits for this response.
    pub fn end_read(&mut self, (conn, pattern): (u32, Option<u32>), hub: HubId, number: u64) -> bool {
        let follower = self.by_conn.get_mut(&conn).and_then(|groups| groups.get_mut(&pattern));
        let is_it = |follower: &&mut Follower| follower.reading == Some((hub, number));
        follower.filter(is_it).map(|follower| follower.reading = None).is_some()
    }

    /// Records up to an offset were delivered; the cursor is live if no later record bypassed it.
    pub fn read_to(&mut self, (conn, pattern): (u32, Option<u32>), hub: HubId, next: u64, committed: u64) {
        let follower = self.by_conn.get_mut(&conn).and_then(|groups| groups.get_mut(&pattern));
        let Some(follower) = follower else { return };
        let Some(cursor) = follower.hubs.get_mut(&hub) else { return };
        cursor.next = next;
        cursor.is_live = next > committed && committed >= cursor.passed;
        if cursor.is_live {
            follower.behind.remove(&hub);
        }
    }

    pub fn remove_pattern(&mut self, conn: u32, pattern: u32) {
        if let Some(groups) = self.by_conn.get_mut(&conn) {
            groups.remove(&Some(pattern));
            if groups.is_empty() {
                self.by_conn.remove(&conn);
            }
            self.changed(conn);
        }
    }

    pub fn remove_conn(&mut self, conn: u32) {
        self.by_conn.remove(&conn);
        self.stirred.remove(&conn);
    }
}

impl Follower {
    fn set(&mut self, hub: HubId, cursor: HubCursor) {
        self.reading = self.reading.filter(|&(of, _)| of != hub);
        self.hubs.insert(hub, cursor);
        self.behind.insert(hub);
    }

    fn add(&mut self, hub: HubId) -> bool {
        let is_new = !self.hubs.contains_key(&hub);
        if is_new {
            self.set(hub, HubCursor::behind(1, 0));
        }
        is_new
    }

    fn fall_behind(&mut self, hub: HubId) {
        let Some(cursor) = self.hubs.get_mut(&hub) else { return };
        (cursor.is_live, cursor.passed) = (false, 0);
        self.reading = self.reading.filter(|&(of, _)| of != hub);
        self.behind.insert(hub);
    }

    fn next_hub(&self) -> Option<HubId> {
        let later = self.behind.range(HubId(self.turn.0.saturating_add(1))..).next();
        later.or_else(|| self.behind.first()).copied()
    }
}

fn follower(
    by_conn: &mut HashMap<u32, BTreeMap<Option<u32>, Follower>, RandomState>,
    conn: u32,
    pattern: u32,
) -> Option<&mut Follower> {
    let groups = by_conn.get_mut(&conn)?;
    let key = Some(pattern).filter(|_| groups.contains_key(&Some(pattern)));
    groups.get_mut(&key)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUB: HubId = HubId(4);
    const GROUP: (u32, Option<u32>) = (7, None);
    const CONN: ConnKey = ConnKey { index: 7, generation: 1 };

    fn at(offset: u64) -> LogPlace {
        LogPlace { hub: HUB, offset }
    }

    fn live(cursors: &mut HubCursors, offset: u64) -> bool {
        cursors.record_begins();
        cursors.takes(CONN.index, 0, at(offset))
    }

    fn read(cursors: &mut HubCursors) -> Option<HubRead> {
        cursors.begin_read(ShardId(0), CONN, (10, 100), |_| true, |_| vec![(*b"*").into()])
    }

    fn number(read: &HubRead) -> u64 {
        let HubThen::Cursor { number, .. } = read.then else { panic!("a cursor reads") };
        number
    }

    #[test]
    fn a_cursor_is_live_when_it_has_read_all_that_passed_it_by() {
        let mut cursors = HubCursors::default();
        assert!(live(&mut cursors, 3), "who follows no hub takes all");
        cursors.set(7, None, HUB, 2, 0);
        assert!(!live(&mut cursors, 5));
        let first = read(&mut cursors).unwrap();
        assert_eq!((first.next, read(&mut cursors).is_none()), (2, true));
        assert!(!cursors.end_read(GROUP, HUB, 99) && cursors.end_read(GROUP, HUB, number(&first)));
        cursors.read_to(GROUP, HUB, 5, 4);
        assert!(!live(&mut cursors, 6), "5 has passed it by");
        let second = read(&mut cursors).unwrap();
        assert!(cursors.end_read(GROUP, HUB, number(&second)));
        cursors.read_to(GROUP, HUB, 8, 7);
        assert!(read(&mut cursors).is_none());
        assert!(!live(&mut cursors, 7), "it was read");
        assert!(live(&mut cursors, 8));
        assert!(cursors.takes(7, 1, at(8)), "by another pattern");
        assert!(!live(&mut cursors, 8) && live(&mut cursors, 10));
        assert_eq!(cursors.places(7).collect::<Vec<_>>(), [(HUB, 11, true)]);
    }

    #[test]
    fn who_may_lack_records_reads_and_an_answer_from_before_counts_no_more() {
        let mut cursors = HubCursors::default();
        cursors.set(7, None, HUB, 1, 0);
        let first = read(&mut cursors).unwrap();
        assert!(cursors.end_read(GROUP, HUB, number(&first)));
        cursors.read_to(GROUP, HUB, 11, 10);
        assert_eq!(cursors.take_stirred().into_iter().collect::<Vec<_>>(), [7]);
        cursors.lacks(HUB, 10);
        assert!(cursors.take_stirred().is_empty(), "it has had that");
        cursors.lacks(HUB, 12);
        assert_eq!(cursors.take_stirred().len(), 1);
        let second = read(&mut cursors).unwrap();
        assert!(!live(&mut cursors, 13));
        cursors.lacks(HUB, END);
        assert_eq!((second.next, cursors.take_stirred().len()), (11, 1));
        assert!(!cursors.end_read(GROUP, HUB, number(&second)));
        let third = read(&mut cursors).unwrap();
        cursors.changed(7);
        assert!(!cursors.end_read(GROUP, HUB, number(&third)));
        let fourth = read(&mut cursors).unwrap();
        assert!(cursors.end_read(GROUP, HUB, number(&fourth)));
        cursors.read_to(GROUP, HUB, 15, 14);
        assert!(live(&mut cursors, 15));
        assert!(cursors.refused(7, 0, at(15)) && !live(&mut cursors, 16));
        assert_eq!(read(&mut cursors).unwrap().next, 15);
    }

    #[test]
    fn hubs_are_read_in_turn_and_a_new_one_from_its_beginning() {
        let mut cursors = HubCursors::default();
        (1..=3).for_each(|hub| cursors.set(7, None, HubId(hub), 5, 0));
        let mut order = Vec::new();
        for _ in 0..4 {
            let read = read(&mut cursors).unwrap();
            order.push(read.hub.0);
            assert!(cursors.end_read(GROUP, read.hub, number(&read)));
        }
        assert_eq!(order, [1, 2, 3, 1]);
        cursors.record_begins();
        assert!(!cursors.takes(7, 0, LogPlace { hub: HubId(9), offset: 3 }));
        assert_eq!(cursors.places(7).last(), Some((HubId(9), 1, false)));
        cursors.remove_conn(7);
        assert!(cursors.is_empty());
    }

    #[test]
    fn a_pattern_that_begins_elsewhere_has_cursors_of_its_own() {
        let mut cursors = HubCursors::default();
        cursors.set(7, Some(3), HUB, 1, 0);
        assert!(cursors.covers(7, 3) && !cursors.covers(7, 4));
        cursors.record_begins();
        assert!(cursors.takes(7, 4, at(5)) && !cursors.takes(7, 3, at(5)));
        let read = read(&mut cursors).unwrap();
        assert!(cursors.end_read((7, Some(3)), HUB, number(&read)));
        cursors.read_to((7, Some(3)), HUB, 6, 5);
        cursors.set(7, None, HUB, 2, 0);
        cursors.record_begins();
        assert!(cursors.takes(7, 3, at(6)) && !cursors.takes(7, 4, at(6)));
        cursors.remove_pattern(7, 3);
        assert!(!live(&mut cursors, 7) && cursors.covers(7, 3));
    }
}
