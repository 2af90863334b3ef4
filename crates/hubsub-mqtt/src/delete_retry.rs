//! Retries of session deletes that failed because the hub or store was unavailable or refused. The client id
//! is free and nothing waits, but a remaining snapshot would be restored as a session later. Each delete is
//! retried with back-off. A session that has started under the id meanwhile has another snapshot, which
//! stays.
//!
//! If even reading the snapshot failed, because its hub's leader is unreachable, the session is unknown. It
//! is looked up each second and deleted if it was written before the request.

use hubsub_route::{Owner, Record};
use hubsub_types::ErrorCode;
use std::collections::VecDeque;

/// The delay before the first retry, in ms; it doubles per refusal.
pub const WAIT_MS: u64 = 1_000;

const DOUBLED_MAX: u32 = 6;

/// The most retries of a kind per shard and second.
pub const AT_ONCE_MAX: usize = 64;

/// The delay before the next retry, in ms, after this many refusals before the last one.
pub fn delay_ms(refusals: u32) -> u64 {
    WAIT_MS << refusals.min(DOUBLED_MAX)
}

/// The most pending deletes of a shard; beyond that the oldest is dropped and its snapshot remains.
const DELETES_MAX: usize = 10_000;

pub struct SessionDelete {
    pub id: Box<str>,
    of: Of,
    refusals: u32,
    /// The time of the next try, in ms of the node's clock.
    due_ms: u64,
}

#[derive(Clone, Copy)]
enum Of {
    /// The session with this holder epoch and `born`.
    Session(u64, u64),
    /// A session whose snapshot was written before this time, in µs since 1970.
    Before(u64),
}

impl SessionDelete {
    /// A delete of the session `born` by its holder of that epoch.
    pub fn new(id: Box<str>, epoch: u64, born: u64) -> SessionDelete {
        SessionDelete { id, of: Of::Session(epoch, born), refusals: 0, due_ms: 0 }
    }

    /// A delete of whatever session a client id has at this time.
    #[must_use]
    pub fn of_unknown(id: Box<str>, now_us: u64) -> SessionDelete {
        SessionDelete { id, of: Of::Before(now_us), refusals: 0, due_ms: 0 }
    }

    /// Holder epoch and `born` of its session; none if that is to be looked up first.
    pub fn session(&self) -> Option<(u64, u64)> {
        match self.of {
            Of::Session(epoch, born) => Some((epoch, born)),
            Of::Before(_) => None,
        }
    }

    /// The holder epoch that deletes the session with this snapshot; none if the session is not meant.
    pub fn epoch_for(&self, snapshot: &Record) -> Option<u64> {
        let is_meant = matches!(self.of, Of::Before(before_us) if snapshot.timestamp_us < before_us);
        (is_meant && !snapshot.payload().is_empty())
            .then(|| Owner::of(snapshot).unwrap_or_default().epoch + 1)
    }
}

#[derive(Default)]
pub struct DeleteRetries {
    waiting: VecDeque<SessionDelete>,
    in_flight: usize,
}

impl DeleteRetries {
    #[allow(clippy::len_without_is_empty, reason = "it is a figure, and no collection")]
    pub fn len(&self) -> usize {
        self.waiting.len() + self.in_flight
    }

    /// Handles the outcome of a delete; returns whether another one was dropped because there are too many.
    pub fn done(&mut self, delete: SessionDelete, outcome: Result<u64, ErrorCode>, now_ms: u64) -> bool {
        // The snapshot belongs to another holder or session, which must not be deleted.
        !matches!(outcome, Ok(_) | Err(ErrorCode::NotAllowed)) && self.keep(delete, now_ms)
    }

    /// Handles the outcome of a retry, as [`DeleteRetries::done`] does.
    pub fn retried(&mut self, delete: SessionDelete, outcome: Result<u64, ErrorCode>, now_ms: u64) -> bool {
        self.in_flight -= 1;
        self.done(delete, outcome, now_ms)
    }

    /// Adds a refused delete; returns whether another one was dropped.
    fn keep(&mut self, mut delete: SessionDelete, now_ms: u64) -> bool {
        let delay_ms = match delete.of {
            Of::Session(..) => delay_ms(delete.refusals),
            // Another lookup is cheap, and must precede a takeover of that session by another node.
            Of::Before(_) => WAIT_MS,
        };
        delete.due_ms = now_ms + delay_ms;
        delete.refusals += 1;
        self.waiting.push_back(delete);
        self.waiting.len() > DELETES_MAX && self.waiting.pop_front().is_some()
    }

    pub fn due(&mut self, now_ms: u64) -> Vec<SessionDelete> {
        let (mut due, mut left) = (Vec::new(), VecDeque::new());
        for delete in self.waiting.drain(..) {
            match delete.due_ms <= now_ms && due.len() < AT_ONCE_MAX {
                true => due.push(delete),
                false => left.push_back(delete),
            }
        }
        self.waiting = left;
        self.in_flight += due.len();
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_refused_waits_longer_each_time() {
        let (mut endings, mut now_ms) = (DeleteRetries::default(), 0);
        endings.keep(SessionDelete::new("a".into(), 1, 2), now_ms);
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
        let mut endings = DeleteRetries::default();
        let delete = |n: usize| SessionDelete::new(n.to_string().into(), 1, 2);
        assert!((0..DELETES_MAX).all(|n| !endings.keep(delete(n), 0)));
        assert!(endings.keep(delete(DELETES_MAX), 0));
        assert_eq!(endings.due(u64::MAX).first().map(|first| &*first.id), Some("1"));
        assert_eq!(endings.waiting.len(), DELETES_MAX - AT_ONCE_MAX);
    }
}
