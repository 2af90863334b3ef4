//! Sessions that have ended, of which the row could not be: whatever keeps it was away, or refused. Their client ids are
//! free, and nobody waits; but a row that stays is a session again for who finds it. So it is ended again, until that is done,
//! after a while that grows. A session that has begun under the id meanwhile has another row, which stays.
//!
//! Where the row could not even be read, since the leader of its hub is not reached, it is not known which session that is:
//! it is looked for each second, and ends if it was written before.

use super::adoption::{publish_will_of, room_of};
use super::durable::Written;
use super::{reading, store};
use crate::core::Core;
use crate::gather::Then;
use crate::mail::Question;
use crate::rim::Rim;
use hubsub_route::Owner;
use hubsub_route::rooms::HistoryPart;
use hubsub_types::ErrorCode;
use std::collections::VecDeque;

/// Until a row is ended again at first, in ms; each time that is refused, twice as much.
const WAIT_MS: u64 = 1_000;

/// How often it doubles.
const DOUBLED_MAX: u32 = 6;

/// Rows of a shard that are ended again in one second.
const AT_ONCE_MAX: usize = 64;

/// Those of a shard that are known: of more, the oldest gives way, and its row stays.
const ENDINGS_MAX: usize = 10_000;

/// The end of a session.
pub struct Ending {
    /// Of its client.
    pub id: Box<str>,
    /// Which.
    of: Of,
    /// How often it was refused.
    refusals: u32,
    /// When it is tried again.
    due_ms: u64,
}

/// Which session of its client id ends.
#[derive(Clone, Copy)]
enum Of {
    /// Its last holder, and how it is born.
    Session(u64, u64),
    /// What has a row that was written before then, in µs since 1970.
    Before(u64),
}

impl Ending {
    /// Of the session that is so born, as its holder of that epoch.
    #[must_use]
    pub fn new(id: Box<str>, epoch: u64, born: u64) -> Ending {
        Ending { id, of: Of::Session(epoch, born), refusals: 0, due_ms: 0 }
    }
}

/// Those of a shard that were refused.
#[derive(Default)]
pub struct Endings {
    waiting: VecDeque<Ending>,
    /// Those that are tried now.
    under_way: usize,
}

impl Endings {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len() + self.under_way
    }

    /// One was refused; whether another one gives way.
    fn keep(&mut self, mut ending: Ending, now_ms: u64) -> bool {
        let doubled = match ending.of {
            Of::Session(..) => ending.refusals.min(DOUBLED_MAX),
            // To look again costs next to nothing, and before somebody takes the session in for one that is to go on.
            Of::Before(_) => 0,
        };
        ending.due_ms = now_ms + (WAIT_MS << doubled);
        ending.refusals += 1;
        self.waiting.push_back(ending);
        self.waiting.len() > ENDINGS_MAX && self.waiting.pop_front().is_some()
    }

    /// Those that are tried again now.
    fn due(&mut self, now_ms: u64) -> Vec<Ending> {
        let (mut due, mut left) = (Vec::new(), VecDeque::new());
        for ending in self.waiting.drain(..) {
            match ending.due_ms <= now_ms && due.len() < AT_ONCE_MAX {
                true => due.push(ending),
                false => left.push_back(ending),
            }
        }
        self.waiting = left;
        self.under_way += due.len();
        due
    }
}

impl Rim {
    /// What came of the end of a row.
    pub(super) fn ended(&mut self, ending: Ending, outcome: Result<u64, ErrorCode>) {
        // A row of another holder, or session, is not its own to end.
        if matches!(outcome, Ok(_) | Err(ErrorCode::NotAllowed)) {
            return;
        }
        if self.sessions.endings.keep(ending, self.now.mono_ms) {
            self.metrics.mqtt_session_ends_lost_total.add(1);
        }
    }

    /// Likewise, of one that was tried again.
    pub(super) fn ended_again(&mut self, ending: Ending, outcome: Result<u64, ErrorCode>) {
        self.sessions.endings.under_way -= 1;
        self.ended(ending, outcome);
    }

    /// Whatever session a client id has now ends when its row can be read.
    pub(super) fn end_later(&mut self, id: Box<str>) {
        let of = Of::Before(self.now.wall_us);
        self.ended(Ending { id, of, refusals: 0, due_ms: 0 }, Err(ErrorCode::HubClosed));
    }
}

/// Tries those again that are due. Once a second.
pub fn end_again(core: &mut Core) {
    for ending in core.rim.sessions.endings.due(core.rim.now.mono_ms) {
        match ending.of {
            Of::Session(epoch, born) => {
                store::end(core, ending.id.clone(), (epoch, born), Written::EndAgain(ending));
            }
            Of::Before(_) => {
                let query = reading::row_of(&ending.id);
                core.ask_home(&room_of(&ending.id), Question::Row(query), Then::Ending(Box::new(ending)));
            }
        }
    }
}

/// The row of a client id of which the session is to end, if there is one.
pub fn found(core: &mut Core, ending: Ending, part: Result<HistoryPart, ErrorCode>) {
    let part = match part {
        Ok(part) => part,
        Err(code) => return core.rim.ended_again(ending, Err(code)),
    };
    let is_meant = |at_us: u64| matches!(ending.of, Of::Before(before_us) if at_us < before_us);
    let row = part.records.last().filter(|row| !row.payload().is_empty() && is_meant(row.timestamp_us));
    let Some(row) = row else { return core.rim.ended_again(ending, Ok(0)) };
    let epoch = Owner::of(row).unwrap_or_default().epoch + 1;
    let key = core.own_key();
    let born = publish_will_of(core, key, &ending.id, row.payload());
    let ending = Ending { of: Of::Session(epoch, born), refusals: 0, ..ending };
    store::end(core, ending.id.clone(), (epoch, born), Written::EndAgain(ending));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_refused_waits_longer_each_time() {
        let (mut endings, mut now_ms) = (Endings::default(), 0);
        endings.keep(Ending::new("a".into(), 1, 2), now_ms);
        for wait_ms in [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 64_000] {
            assert!(endings.due(now_ms + wait_ms - 1).is_empty());
            now_ms += wait_ms;
            let mut due = endings.due(now_ms);
            assert_eq!(due.len(), 1, "{wait_ms}");
            endings.keep(due.remove(0), now_ms);
        }
    }

    #[test]
    fn of_too_many_the_oldest_gives_way() {
        let mut endings = Endings::default();
        let ending = |n: usize| Ending::new(n.to_string().into(), 1, 2);
        assert!((0..ENDINGS_MAX).all(|n| !endings.keep(ending(n), 0)));
        assert!(endings.keep(ending(ENDINGS_MAX), 0));
        assert_eq!(endings.due(u64::MAX).first().map(|first| &*first.id), Some("1"));
        assert_eq!(endings.waiting.len(), ENDINGS_MAX - AT_ONCE_MAX);
    }
}
