//! Dropped records that a client is to be notified of.

use hubsub_types::Position;
use std::rc::Rc;

/// Identifies the record of a frame.
pub struct Tag {
    pub topic: Rc<[u8]>,
    pub position: Position,
}

/// Consecutive dropped records of one topic.
pub struct Gap {
    pub topic: Rc<[u8]>,
    pub from: Position,
    /// Position of the last missing record, inclusive.
    pub to: Position,
}

/// Gaps to report to a client, by topic.
#[derive(Default)]
pub struct Gaps {
    list: Vec<Gap>,
    /// Index in `list` of each topic's last gap.
    places: Latest,
    /// Approximate memory, in bytes.
    pub bytes: usize,
}

impl Gaps {
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Takes all gaps, in order of their start.
    pub fn take(&mut self) -> Vec<Gap> {
        std::mem::take(self).list
    }

    pub(super) fn add(&mut self, Tag { topic, position }: Tag) {
        let place = self.places.get(&topic).map(|&place| place as usize);
        if let Some(gap) = place.map(|place| &mut self.list[place])
            && gap.to.epoch == position.epoch
        {
            gap.to.seq = gap.to.seq.max(position.seq);
            return;
        }
        self.bytes += size_of::<Gap>() + topic.len();
        self.places.insert(Rc::clone(&topic), self.list.len() as u64);
        self.list.push(Gap { topic, from: position, to: position });
    }
}

/// The number of the latest thing of each topic.
pub type Latest = hashbrown::HashMap<Rc<[u8]>, u64, ahash::RandomState>;
