//! Detection of missing records for patterns, per hub: a leader counts the records due to each node, and the
//! node counts those that arrived. If the numbers differ, the node lacks records that match its patterns.
//!
//! Invariant: the number due to a node is at least the number due by its patterns; while the node is watched,
//! it is exactly the number of records sent.

use crate::counts::NODES_MAX;
use hubsub_message::LeadershipEnd;
use hubsub_types::{Epoch, NodeId, Term};
use std::collections::BTreeMap;

/// For a hub that is led here: the nodes with whose patterns its records are matched.
#[derive(Debug, Default)]
pub struct Watchers {
    /// Identifies this leadership of the hub.
    pub life: Epoch,
    commits: u64,
    /// The last committed offset of its log; 0 without a log.
    committed: u64,
    nodes: BTreeMap<NodeId, Watcher>,
}

#[derive(Debug)]
struct Watcher {
    due: u64,
    /// The last offset that was due, or may have been.
    offset: u64,
    /// The number of commits when the node stopped being watched; none: it is watched.
    away: Option<u64>,
}

impl Watchers {
    /// This node starts to lead the hub; its log is committed up to this offset.
    pub fn new(life: Epoch, committed: u64) -> Watchers {
        Watchers { life, committed, ..Watchers::default() }
    }

    /// As `new`, after leading in the same term: one of its records may have been due to any node.
    pub fn anew(life: Epoch, committed: u64) -> Watchers {
        Watchers { life, committed, commits: 1, ..Watchers::default() }
    }

    /// Counts a committed record of the hub; with this offset, if it has a log.
    #[inline]
    pub fn commit(&mut self, offset: u64) {
        self.commits += 1;
        self.committed = offset;
    }

    /// Counts a record for a node; returns the offset due before, all of them for an unwatched node.
    pub fn sent(&mut self, node: NodeId, offset: u64) -> u64 {
        match self.nodes.get_mut(&node).filter(|watcher| watcher.away.is_none()) {
            Some(watcher) => {
                watcher.due += 1;
                std::mem::replace(&mut watcher.offset, offset)
            }
            None => offset.saturating_sub(1),
        }
    }

    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// Adds a node without patterns: no earlier record was due there.
    pub fn meet(&mut self, node: NodeId) {
        let (commits, offset) = (self.commits, self.committed);
        self.watcher(node, Watcher { due: 0, offset, away: Some(commits) });
    }

    /// Watches a node from now on, which gets all matching records; returns the number due before.
    pub fn begin(&mut self, node: NodeId) -> u64 {
        let (commits, committed) = (self.commits, self.committed);
        let watcher = self.watcher(node, Watcher { due: 0, offset: 0, away: Some(0) });
        if let Some(away) = watcher.away.take() {
            watcher.due += commits - away;
            watcher.offset = committed;
        }
        watcher.due
    }

    fn watcher(&mut self, node: NodeId, first: Watcher) -> &mut Watcher {
        if self.nodes.len() >= 2 * usize::from(NODES_MAX) && !self.nodes.contains_key(&node) {
            // A node that returns is notified that all records were due.
            self.nodes.retain(|_, watcher| watcher.away.is_none());
        }
        self.nodes.entry(node).or_insert(first)
    }

    /// The number of records that were due to a node, or may have been.
    pub fn due(&self, node: NodeId) -> u64 {
        let watcher = self.nodes.get(&node);
        watcher.map_or(self.commits, |it| it.due + it.away.map_or(0, |away| self.commits - away))
    }

    pub fn commits(&self) -> u64 {
        self.commits
    }

    /// Stops watching a node: matching records may not be sent to it any more.
    pub fn end(&mut self, node: NodeId) {
        let commits = self.commits;
        if let Some(watcher) = self.nodes.get_mut(&node) {
            watcher.away.get_or_insert(commits);
        }
    }

    /// A node's patterns have changed at an unknown time: one record may have been due.
    pub fn doubt(&mut self, node: NodeId) {
        if let Some(watcher) = self.nodes.get_mut(&node).filter(|_| self.commits > 0) {
            watcher.due += 1;
            watcher.offset = self.committed;
        }
    }
}

/// For a hub that another node leads: the records that arrived.
#[derive(Debug, Default)]
pub struct Watched {
    /// The leader's leadership, and the number of its records that arrived or were reported as missing.
    known: Option<(Epoch, u64)>,
    /// The term of the first route that this node applied: nobody here follows earlier records.
    first: Option<Term>,
    /// The term whose leadership has ended, and whether all its records are here.
    over: Option<(Term, bool)>,
    /// The numbers of the last leadership that ended.
    last: LeadershipEnd,
    /// Whether records that arrived were skipped.
    pub lacks: bool,
    /// The highest offset of its log whose arrival is known here.
    seen: u64,
}

impl Watched {
    pub fn routed(&mut self, term: Term) {
        self.first.get_or_insert(term);
    }

    pub fn came(&mut self) {
        if let Some((_, came)) = &mut self.known {
            *came += 1;
        }
    }

    /// A record arrived after the offset `before` that was due: returns `before` if it is unknown here.
    pub fn saw(&mut self, before: u64, offset: u64) -> Option<u64> {
        let lacks = (before > self.seen).then_some(before);
        self.seen = self.seen.max(offset);
        lacks
    }

    /// A leader reports the number of records due; returns whether none is missing.
    pub fn live(&mut self, life: Epoch, term: Term, due: u64) -> bool {
        let is_same = self.known.is_some_and(|known| known.0 == life);
        let is_whole = if is_same { self.known == Some((life, due)) } else { due == 0 && self.goes_on(term) };
        if !is_same && self.is_over(term) {
            // The same node leads again.
            self.over = None;
        }
        self.known = Some((life, due));
        is_whole
    }

    /// A term's leader has ended. `is_confirmed`: all interest that ever was is confirmed there.
    pub fn ends(&mut self, term: Term, end: LeadershipEnd, is_confirmed: bool) {
        let has_all = match self.known {
            Some((life, came)) if life == end.epoch => came == end.expected,
            _ => end.expected == 0,
        };
        let is_known = is_confirmed && self.known.is_some_and(|known| known.0 == end.epoch);
        // If it committed nothing in this term, nothing was due.
        let committed_before = if self.last.epoch == end.epoch { self.last.committed } else { 0 };
        let is_whole = has_all && (is_known || (end.committed == committed_before && self.goes_on(term)));
        (self.over, self.last) = (Some((term, is_whole)), end);
    }

    /// This node's own leadership in this term has ended: it has all records.
    pub fn ends_own(&mut self, term: Term) {
        self.over = Some((term, true));
    }

    /// Whether the leader of a term has reported its end.
    pub fn is_over(&self, term: Term) -> bool {
        self.over.is_some_and(|over| over.0 == term)
    }

    /// Whether no record is missing up to the end of a term.
    pub fn has_all_of(&self, term: Term) -> bool {
        self.over == Some((term, true))
    }

    /// Whether no record is missing from before a term.
    fn goes_on(&self, term: Term) -> bool {
        // There was no leader before the first term, and nobody here followed before this node knew a leader.
        let is_first = term <= Term(1) || self.first == Some(term);
        (self.known.is_none() && is_first) || (term > Term(0) && self.has_all_of(Term(term.0 - 1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(3);

    #[test]
    fn what_was_sent_and_what_was_committed_meanwhile_was_due() {
        let mut watchers = Watchers::new(Epoch(7), 0);
        watchers.commit(0);
        assert_eq!(watchers.begin(NODE), 1, "committed before it was watched");
        watchers.commit(0);
        watchers.commit(0);
        watchers.sent(NODE, 0);
        assert_eq!(watchers.begin(NODE), 2, "the other one did not match");
        watchers.end(NODE);
        watchers.end(NODE);
        watchers.commit(0);
        watchers.sent(NODE, 0);
        assert_eq!(watchers.begin(NODE), 3, "counted once");
        watchers.doubt(NODE);
        assert_eq!(watchers.begin(NODE), 4);
    }

    #[test]
    fn each_record_of_a_log_names_the_one_that_was_due_before() {
        let mut watchers = Watchers::new(Epoch(7), 40);
        let say = |watchers: &mut Watchers, offset| {
            watchers.commit(offset);
            watchers.sent(NODE, offset)
        };
        assert_eq!(say(&mut watchers, 41), 40, "all are due to who is not watched");
        watchers.begin(NODE);
        watchers.commit(42);
        assert_eq!((say(&mut watchers, 43), say(&mut watchers, 44)), (41, 43), "nobody there wanted 42");
        watchers.end(NODE);
        watchers.commit(45);
        watchers.begin(NODE);
        watchers.commit(46);
        assert_eq!(say(&mut watchers, 47), 45, "nobody knows what of it was wanted");
        watchers.commit(48);
        watchers.doubt(NODE);
        assert_eq!(say(&mut watchers, 49), 48);

        let mut watched = Watched::default();
        assert_eq!(watched.saw(40, 41), Some(40));
        assert_eq!((watched.saw(41, 43), watched.saw(43, 44)), (None, None));
        assert_eq!(watched.saw(45, 47), Some(45));
        assert_eq!((watched.saw(47, 46), watched.saw(47, 48)), (None, None), "what comes late hides nothing");
    }

    #[test]
    fn who_got_all_of_a_life_lacks_nothing() {
        let mut watched = Watched::default();
        assert!(watched.live(Epoch(7), Term(1), 0), "the first leader of all, and nothing went by");
        watched.came();
        assert!(watched.live(Epoch(7), Term(2), 1));
        assert!(!watched.live(Epoch(7), Term(2), 2), "one is missing");
        assert!(watched.live(Epoch(7), Term(2), 2), "that was told");
        assert!(!watched.live(Epoch(8), Term(3), 2), "nobody knows what the former leader sent last");
        assert!(!Watched::default().live(Epoch(9), Term(2), 0));
    }

    #[test]
    fn what_was_before_a_node_came_is_due_to_nobody_there() {
        let mut watchers = Watchers::new(Epoch(7), 40);
        watchers.commit(41);
        watchers.meet(NODE);
        watchers.commit(42);
        watchers.meet(NODE);
        assert_eq!(watchers.begin(NODE), 1, "it may have had patterns by then");
        watchers.meet(NODE);
        watchers.sent(NODE, 43);
        assert_eq!(watchers.begin(NODE), 2, "it is known");

        let mut watched = Watched::default();
        watched.routed(Term(5));
        assert!(watched.live(Epoch(7), Term(5), 0));
        let mut watched = Watched::default();
        watched.routed(Term(5));
        watched.routed(Term(6));
        assert!(!watched.live(Epoch(8), Term(6), 0), "of the fifth it was told nothing");
        let mut watched = Watched::default();
        watched.routed(Term(5));
        assert!(!watched.live(Epoch(7), Term(5), 1));
    }

    #[test]
    fn who_got_all_of_a_lead_that_is_over_lacks_nothing_in_the_next() {
        let over = |epoch, expected, committed| LeadershipEnd { epoch: Epoch(epoch), expected, committed };
        let followed = || {
            let mut watched = Watched::default();
            watched.live(Epoch(7), Term(1), 0);
            watched.came();
            watched
        };
        let mut watched = followed();
        watched.ends(Term(1), over(7, 1, 4), true);
        assert!(watched.live(Epoch(8), Term(2), 0));
        watched.ends(Term(2), over(8, 0, 0), false);
        assert!(watched.live(Epoch(9), Term(3), 0), "nothing was said in between");
        watched.ends(Term(3), over(9, 0, 2), false);
        assert!(!watched.live(Epoch(10), Term(4), 0), "what was said there was not asked for in time");

        let mut watched = followed();
        watched.ends(Term(1), over(7, 2, 2), true);
        assert!(watched.is_over(Term(1)) && !watched.has_all_of(Term(1)));
        assert!(!watched.live(Epoch(8), Term(2), 0), "one is missing");
        let mut watched = followed();
        watched.ends(Term(1), over(7, 1, 1), true);
        assert!(!watched.live(Epoch(8), Term(3), 0), "another led in between");
        let mut watched = followed();
        watched.ends(Term(1), over(7, 1, 1), true);
        assert!(!watched.live(Epoch(8), Term(2), 1), "it committed before it sent everything");
        let mut watched = followed();
        watched.ends(Term(1), over(7, 1, 1), true);
        assert!(!watched.live(Epoch(8), Term(1), 0) && !watched.is_over(Term(1)), "it leads again");
        let mut watched = followed();
        watched.ends_own(Term(2));
        assert!(watched.live(Epoch(8), Term(3), 0));
    }

    #[test]
    fn nodes_that_went_are_forgotten() {
        let mut watchers = Watchers::new(Epoch(7), 0);
        for node in 0..1_000 {
            watchers.begin(NodeId(node));
            watchers.end(NodeId(node));
        }
        assert!(watchers.nodes.len() <= 2 * usize::from(NODES_MAX));
    }
}
