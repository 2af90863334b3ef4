//! Compares the messages that one thread's subscriptions received with those they should have.
//!
//! A *lane* is one publisher's stream into one room as one subscription sees it; its seqs run from 0. The
//! ledger stores the next expected seq of each lane, and holes only where messages are missing: a seq that
//! fills a hole was reordered, a lower one that fills none is doubled, and holes that remain at the end are
//! lost. Invariant: delivered + lost − doubled is the number of publishes of all lanes once every lane is
//! closed.

use std::collections::HashMap;
use std::ops::Range;

#[derive(Default)]
pub struct Ledger {
    next: Vec<u64>,
    holes: HashMap<usize, Vec<Range<u64>>>,
    /// Received messages, including doubled and reordered ones.
    pub delivered: u64,
    /// Messages that had been received before.
    pub doubled: u64,
    /// Messages received after a later one of their lane.
    pub reordered: u64,
    /// Messages that never arrived; complete once [`close`](Ledger::close) was called for every lane.
    pub lost: u64,
}

impl Ledger {
    /// A ledger of `lanes` lanes, all at seq 0.
    pub fn new(lanes: usize) -> Ledger {
        Ledger { next: vec![0; lanes], ..Ledger::default() }
    }

    /// Counts the message `seq` of `lane`.
    #[inline]
    pub fn take(&mut self, lane: usize, seq: u64) {
        self.delivered += 1;
        let next = &mut self.next[lane];
        if seq == *next {
            *next += 1;
        } else {
            self.take_out_of_turn(lane, seq);
        }
    }

    /// Closes a lane into which `sent` messages were published: missing ones are lost.
    pub fn close(&mut self, lane: usize, sent: u64) {
        let missing: u64 =
            self.holes.remove(&lane).unwrap_or_default().iter().map(|hole| hole.end - hole.start).sum();
        self.lost += missing + sent.saturating_sub(self.next[lane]);
    }

    #[cold]
    fn take_out_of_turn(&mut self, lane: usize, seq: u64) {
        let next = self.next[lane];
        if seq > next {
            self.holes.entry(lane).or_default().push(next..seq);
            self.next[lane] = seq + 1;
            return;
        }
        let holes = self.holes.entry(lane).or_default();
        match holes.iter().position(|hole| hole.contains(&seq)) {
            None => self.doubled += 1,
            Some(i) => {
                self.reordered += 1;
                let hole = holes.swap_remove(i);
                holes
                    .extend([hole.start..seq, seq + 1..hole.end].into_iter().filter(|part| !part.is_empty()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counted(stream: &[u64], sent: u64) -> (u64, u64, u64, u64) {
        let mut ledger = Ledger::new(1);
        stream.iter().for_each(|&seq| ledger.take(0, seq));
        ledger.close(0, sent);
        (ledger.delivered, ledger.lost, ledger.doubled, ledger.reordered)
    }

    #[test]
    fn a_whole_stream_has_nothing_to_report() {
        assert_eq!(counted(&[0, 1, 2, 3], 4), (4, 0, 0, 0));
    }

    #[test]
    fn a_hole_and_a_missing_tail_are_lost() {
        assert_eq!(counted(&[0, 1, 4, 5], 8), (4, 4, 0, 0));
        assert_eq!(counted(&[], 3), (0, 3, 0, 0));
    }

    #[test]
    fn a_late_message_is_reordered_and_not_lost() {
        assert_eq!(counted(&[0, 2, 1, 3], 4), (4, 0, 0, 1));
        assert_eq!(counted(&[3, 1, 2, 0], 4), (4, 0, 0, 3));
    }

    #[test]
    fn a_repeated_message_is_doubled_even_when_it_had_been_late() {
        assert_eq!(counted(&[0, 1, 1, 2], 3), (4, 0, 1, 0));
        assert_eq!(counted(&[0, 2, 1, 1], 3), (4, 0, 1, 1));
    }

    #[test]
    fn lanes_do_not_mix() {
        let mut ledger = Ledger::new(2);
        ledger.take(0, 0);
        ledger.take(1, 1);
        ledger.take(0, 1);
        ledger.close(0, 2);
        ledger.close(1, 2);
        assert_eq!((ledger.delivered, ledger.lost, ledger.doubled, ledger.reordered), (3, 1, 0, 0));
    }

    proptest! {
        #[test]
        fn any_stream_counts_as_a_set_would(stream in proptest::collection::vec(0u64..40, 0..120)) {
            let distinct = stream.iter().collect::<std::collections::HashSet<_>>().len() as u64;
            let late = {
                let mut seen = std::collections::HashSet::new();
                let mut highest = None;
                stream.iter().filter(|&&seq| {
                    let is_late = seen.insert(seq) && highest.is_some_and(|high| seq < high);
                    highest = highest.max(Some(seq));
                    is_late
                }).count() as u64
            };
            let (delivered, lost, doubled, reordered) = counted(&stream, 40);
            prop_assert_eq!(delivered, stream.len() as u64);
            prop_assert_eq!(doubled, delivered - distinct);
            prop_assert_eq!(lost, 40 - distinct);
            prop_assert_eq!(reordered, late);
        }
    }
}
