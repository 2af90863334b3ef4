//! The requests of this node's control plane to those of peers that are unanswered, with their limits.
//!
//! Request numbers start at a random value, so a response to a request of a previous process matches none.

use super::events::Event;
use crate::io::report::Report;
use hubsub_types::{ConnKey, ErrorCode};
use std::collections::{BTreeMap, HashMap};

/// The time after which an unanswered request fails, in µs; callers time out earlier.
const ASK_US: u64 = 60_000_000;

/// Outstanding requests to one peer, and their bytes; a single one may be longer.
pub(crate) const ASKS_MAX: usize = 1_024;
pub(crate) const ASKS_BYTES_MAX: usize = 16 * 1024 * 1024;

/// True if one more item of `more` bytes fits.
pub(crate) fn has_room(
    (count, bytes): (usize, usize),
    more: usize,
    (count_max, bytes_max): (usize, usize),
) -> bool {
    count < count_max && (bytes == 0 || bytes + more <= bytes_max)
}

/// A request that was sent and is unanswered.
pub(crate) struct Asked {
    pub link: ConnKey,
    /// The control plane's ticket.
    pub ticket: u64,
    pub at_us: u64,
    pub bytes: usize,
}

pub struct Asks {
    /// The number of the next request.
    pub(crate) next: u64,
    waiting: BTreeMap<u64, Asked>,
    /// Per link: their number and bytes.
    of_link: HashMap<ConnKey, (usize, usize)>,
}

impl Default for Asks {
    fn default() -> Asks {
        let random = crate::io::sys::random();
        // The upper half of the numbers is left for increments.
        let next = u64::from_le_bytes(*random.first_chunk().expect("it is longer")) >> 1;
        Asks { next, waiting: BTreeMap::new(), of_link: HashMap::new() }
    }
}

impl Asks {
    /// A link has ended: its outstanding requests may have been executed or not.
    pub fn lost(&mut self, key: ConnKey, control: &dyn Report<Event>) {
        if self.of_link.remove(&key).is_none() {
            return;
        }
        self.waiting.retain(|_, asked| {
            if asked.link == key {
                control.tell(Event::Answered(asked.ticket, Err(ErrorCode::LinkLost)));
            }
            asked.link != key
        });
    }

    pub(crate) fn has_room(&self, link: ConnKey, bytes: usize) -> bool {
        let waiting = self.of_link.get(&link).copied().unwrap_or_default();
        has_room(waiting, bytes, (ASKS_MAX, ASKS_BYTES_MAX))
    }

    pub(crate) fn add(&mut self, asked: Asked) {
        let waiting = self.of_link.entry(asked.link).or_default();
        *waiting = (waiting.0 + 1, waiting.1 + asked.bytes);
        self.waiting.insert(self.next, asked);
        self.next += 1;
    }

    pub(crate) fn take_of(&mut self, id: u64, link: ConnKey) -> Option<Asked> {
        self.waiting.get(&id).filter(|asked| asked.link == link)?;
        self.take(id)
    }

    fn take(&mut self, id: u64) -> Option<Asked> {
        let asked = self.waiting.remove(&id)?;
        let waiting = self.of_link.get_mut(&asked.link).expect("it was counted");
        *waiting = (waiting.0 - 1, waiting.1 - asked.bytes);
        if waiting.0 == 0 {
            self.of_link.remove(&asked.link);
        }
        Some(asked)
    }

    pub(crate) fn give_up(&mut self, now_us: u64, control: &dyn Report<Event>) {
        while let Some((&first, asked)) = self.waiting.first_key_value()
            && asked.at_us + ASK_US <= now_us
        {
            let asked = self.take(first).expect("it is the first");
            control.tell(Event::Answered(asked.ticket, Err(ErrorCode::TimedOut)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{self, Control};

    #[test]
    fn a_question_is_answered_by_the_link_that_was_asked_and_by_no_other() {
        let mut asks = Asks::default();
        let link = |index| ConnKey { index, generation: 1 };
        let first = asks.next;
        for (ticket, index) in [(1, 1), (2, 1), (3, 2)] {
            asks.add(Asked { link: link(index), ticket, at_us: 0, bytes: 10 });
        }
        assert!(asks.take_of(first, link(2)).is_none() && asks.take_of(first + 9, link(1)).is_none());
        assert_eq!(asks.take_of(first, link(1)).map(|asked| asked.ticket), Some(1));
        assert!(asks.take_of(first, link(1)).is_none(), "once");
        assert_eq!((asks.of_link[&link(1)], asks.of_link[&link(2)]), ((1, 10), (1, 10)));
        let queue = Control::new(9).unwrap();
        asks.lost(link(1), &queue);
        asks.give_up(ASK_US, &queue);
        let text = |event| match event {
            control::Event::Link(event) => format!("{event:?}"),
            other => format!("{other:?}"),
        };
        let ends = queue.drain(9).into_iter().map(text).collect::<Vec<_>>();
        assert_eq!(ends, ["Answered(2, Err(LinkLost))", "Answered(3, Err(TimedOut))"]);
        assert!(asks.of_link.is_empty() && asks.waiting.is_empty(), "nothing is kept");
    }
}
