//! PUBREL and PUBCOMP that wait until their cause is recorded. Each has a number by which the caller reports
//! that, in any order; they are written in the order of the packets that they answer.

use hubsub_wire::mqtt::PacketId;
use std::collections::VecDeque;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Pubrel,
    Pubcomp,
}

#[derive(Debug)]
struct Place {
    answer: Answer,
    id: PacketId,
    is_safe: bool,
}

#[derive(Debug, Default)]
pub(super) struct Held {
    queue: VecDeque<Place>,
    first: u32,
    pub events: u64,
}

impl Held {
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    pub fn push(&mut self, answer: Answer, id: PacketId, is_safe: bool) -> u32 {
        self.queue.push_back(Place { answer, id, is_safe });
        self.first.wrapping_add(self.queue.len() as u32 - 1)
    }

    pub fn safe(&mut self, number: u32) {
        if let Some(place) = self.queue.get_mut(number.wrapping_sub(self.first) as usize) {
            place.is_safe = true;
        }
    }

    pub fn next(&mut self) -> Option<(Answer, PacketId)> {
        self.queue.front().filter(|place| place.is_safe)?;
        let place = self.queue.pop_front()?;
        self.first = self.first.wrapping_add(1);
        Some((place.answer, place.id))
    }
}
