//! Join and leave records that are not known to be logged.
//!
//! Invariants: one record per member is in flight at most, so a join never follows the leave. A refused
//! record is retried, with the time of the event. So a record may occur twice, and none is missing except
//! those counted as lost and those of a process that died.

use ahash::RandomState;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use hubsub_types::ErrorCode;
use std::sync::Arc;

/// Records of this shard's members that are not known to be logged. It has neither rooms nor a clock.
#[derive(Default)]
pub struct Records {
    /// By the reference of the member's join.
    pub unsaid: HashMap<u64, Unsaid, RandomState>,
    pub lost: u64,
}

#[derive(Clone)]
pub struct Unsaid {
    pub topic: Arc<[u8]>,
    pub payload: Arc<[u8]>,
    /// The leave record, while the join record is not known to be logged.
    pub then: Option<Arc<[u8]>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    Say,
    SayLater,
    Nothing,
}

impl Records {
    /// The number of records not known to be logged.
    pub fn waiting(&self) -> u64 {
        self.unsaid.len() as u64
    }

    pub fn add(&mut self, reference: u64, topic: Arc<[u8]>, payload: Arc<[u8]>, waiting_max: u64) -> Next {
        let is_full = self.waiting() >= waiting_max;
        match self.unsaid.entry(reference) {
            Entry::Occupied(mut came) => came.get_mut().then = Some(payload),
            Entry::Vacant(_) if is_full => self.lost += 1,
            Entry::Vacant(entry) => {
                entry.insert(Unsaid { topic, payload, then: None });
                return Next::Say;
            }
        }
        Next::Nothing
    }

    /// Handles the outcome of a member's last record.
    pub fn said(&mut self, reference: u64, outcome: Result<u64, ErrorCode>) -> Next {
        let Some(unsaid) = self.unsaid.get_mut(&reference) else { return Next::Nothing };
        match outcome {
            Ok(_) => {
                if let Some(went) = unsaid.then.take() {
                    unsaid.payload = went;
                    return Next::Say;
                }
                self.unsaid.remove(&reference);
            }
            // A retry would be refused too.
            Err(ErrorCode::TopicLength | ErrorCode::PayloadLength) => {
                self.lost += 1 + u64::from(unsaid.then.is_some());
                self.unsaid.remove(&reference);
            }
            Err(_) => return Next::SayLater,
        }
        Next::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const CAME: &[u8] = b"came";
    const WENT: &[u8] = b"went";

    /// A log that refuses records, loses replies, and stores records that it reports as refused.
    struct World {
        records: Records,
        seed: u64,
        /// References of records in flight or waiting for a retry.
        said: Vec<u64>,
        log: Vec<(u64, Arc<[u8]>)>,
    }

    impl World {
        fn below(&mut self, n: usize) -> usize {
            self.seed =
                self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.seed >> 33) as usize % n
        }

        fn add(&mut self, reference: u64, payload: &[u8], waiting_max: u64) {
            let next = self.records.add(reference, b"topic"[..].into(), payload.into(), waiting_max);
            self.follow(reference, next);
        }

        fn follow(&mut self, reference: u64, next: Next) {
            if next != Next::Nothing {
                assert!(!self.said.contains(&reference), "no more than one of a member is under way");
                self.said.push(reference);
            }
        }

        /// A record in flight reaches the log, or does not.
        fn step(&mut self, is_kind: bool) {
            let at = self.below(self.said.len());
            let reference = self.said.swap_remove(at);
            let kind = if is_kind { 0 } else { self.below(3) };
            if kind < 2 {
                let payload = self.records.unsaid[&reference].payload.clone();
                self.log.push((reference, payload));
            }
            let outcome = if kind == 0 { Ok(0) } else { Err(ErrorCode::TimedOut) };
            let next = self.records.said(reference, outcome);
            self.follow(reference, next);
        }
    }

    #[test]
    fn whatever_is_refused_each_member_came_and_then_went_in_the_log() {
        for seed in 0..500 {
            let mut world = World { records: Records::default(), seed, said: vec![], log: vec![] };
            let mut there: Vec<u64> = vec![];
            for reference in 1..=30 {
                world.add(reference, CAME, 1_000);
                there.push(reference);
                for _ in 0..world.below(3) {
                    let at = world.below(there.len().max(1));
                    if at < there.len() {
                        let went = there.swap_remove(at);
                        world.add(went, WENT, 1_000);
                    }
                    if !world.said.is_empty() {
                        world.step(false);
                    }
                }
            }
            there.into_iter().for_each(|reference| world.add(reference, WENT, 1_000));
            while !world.said.is_empty() {
                world.step(true);
            }
            assert_eq!((world.records.waiting(), world.records.lost), (0, 0), "seed {seed}");
            let mut of_member: BTreeMap<u64, Vec<&[u8]>> = BTreeMap::new();
            world
                .log
                .iter()
                .for_each(|(reference, said)| of_member.entry(*reference).or_default().push(said));
            assert_eq!(of_member.len(), 30, "seed {seed}");
            for said in of_member.values_mut() {
                said.dedup();
                assert_eq!(*said, [CAME, WENT], "seed {seed}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_or_is_refused_for_good_is_counted() {
        let mut world = World { records: Records::default(), seed: 1, said: vec![], log: vec![] };
        world.add(1, CAME, 2);
        world.add(2, CAME, 2);
        world.add(3, CAME, 2);
        assert_eq!((world.records.waiting(), world.records.lost), (2, 1));
        // A leave does not count against the limit if its join waits.
        world.add(1, WENT, 2);
        assert_eq!(world.records.said(1, Err(ErrorCode::PayloadLength)), Next::Nothing);
        assert_eq!((world.records.waiting(), world.records.lost), (1, 3));
    }
}
