//! Sessions that have ended, of which the row could not be: whatever keeps it was away, or refused. Their client ids are
//! free, and nobody waits; but a row that stays is a session again for who finds it. So it is ended again, until that is done,
//! after a while that grows. A session that has begun under the id meanwhile has another row, which stays.

use super::durable::Written;
use super::store;
use crate::core::Core;
use crate::rim::Rim;
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
    /// Its last holder, and which session it is.
    of: (u64, u64),
    /// How often it was refused.
    refusals: u32,
    /// When it is tried again.
    due_ms: u64,
}

impl Ending {
    /// Of the session that is so born, as its holder of that epoch.
    #[must_use]
    pub fn new(id: Box<str>, epoch: u64, born: u64) -> Ending {
        Ending { id, of: (epoch, born), refusals: 0, due_ms: 0 }
    }
}

/// Those of a shard that were refused.
#[derive(Default)]
pub struct Endings(VecDeque<Ending>);

impl Endings {
    /// One was refused; whether another one gives way.
    fn keep(&mut self, mut ending: Ending, now_ms: u64) -> bool {
        ending.due_ms = now_ms + (WAIT_MS << ending.refusals.min(DOUBLED_MAX));
        ending.refusals += 1;
        self.0.push_back(ending);
        self.0.len() > ENDINGS_MAX && self.0.pop_front().is_some()
    }

    /// Those that are tried again now.
    fn due(&mut self, now_ms: u64) -> Vec<Ending> {
        let (mut due, mut left) = (Vec::new(), VecDeque::new());
        for ending in self.0.drain(..) {
            match ending.due_ms <= now_ms && due.len() < AT_ONCE_MAX {
                true => due.push(ending),
                false => left.push_back(ending),
            }
        }
        self.0 = left;
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
}

/// Tries those again that are due. Once a second.
pub fn end_again(core: &mut Core) {
    for ending in core.rim.sessions.endings.due(core.rim.now.mono_ms) {
        store::end(core, ending.id.clone(), ending.of, Written::EndAgain(ending));
    }
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
        assert_eq!(endings.0.len(), ENDINGS_MAX - AT_ONCE_MAX);
    }
}
