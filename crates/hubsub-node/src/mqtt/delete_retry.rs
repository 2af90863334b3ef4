//! Retries session deletes that failed because the hub or store was unavailable or refused. The client id is
//! free and nothing waits, but a remaining snapshot would be restored as a session later. Each delete is
//! retried with back-off. A session that has started under the id meanwhile has another snapshot, which
//! stays.
//!
//! If even reading the snapshot failed, because its hub's leader is unreachable, the session is unknown. It
//! is looked up each second and deleted if it was written before the request.

use super::persist::Written;
use super::takeover::{publish_will_of, room_of};
use super::work::Work;
use super::{store, takeover_read};
use crate::io::context::Ctx;
use crate::io::questions::{Part, Question};
use crate::io::scatter_gather::Then;
use crate::io::shard_io::Io;
use hubsub_route::Owner;
use hubsub_route::rooms::HistoryPart;
use hubsub_types::ErrorCode;
use std::collections::VecDeque;

/// The delay before the first retry, in ms; it doubles per refusal.
const WAIT_MS: u64 = 1_000;

/// The most doublings of the delay.
const DOUBLED_MAX: u32 = 6;

/// The most retries per shard and second.
const AT_ONCE_MAX: usize = 64;

/// The most pending deletes of a shard; beyond that the oldest is dropped and its snapshot remains.
const DELETES_MAX: usize = 10_000;

/// A session delete to retry.
pub struct SessionDelete {
    pub id: Box<str>,
    of: Of,
    /// The number of refusals.
    refusals: u32,
    /// The time of the next try, in ms of the node's clock.
    due_ms: u64,
}

/// Identifies the session of a client id that ends.
#[derive(Clone, Copy)]
enum Of {
    /// The session with this holder epoch and `born`.
    Session(u64, u64),
    /// A session whose snapshot was written before this time, in µs since 1970.
    Before(u64),
}

impl SessionDelete {
    /// A delete of the session `born` by its holder of that epoch.
    #[must_use]
    pub fn new(id: Box<str>, epoch: u64, born: u64) -> SessionDelete {
        SessionDelete { id, of: Of::Session(epoch, born), refusals: 0, due_ms: 0 }
    }
}

/// The pending deletes of a shard.
#[derive(Default)]
pub struct DeleteRetries {
    waiting: VecDeque<SessionDelete>,
    /// Deletes being tried now.
    in_flight: usize,
}

impl DeleteRetries {
    /// The number of pending deletes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len() + self.in_flight
    }

    /// Adds a refused delete; returns whether another one was dropped.
    fn keep(&mut self, mut delete: SessionDelete, now_ms: u64) -> bool {
        let doubled = match delete.of {
            Of::Session(..) => delete.refusals.min(DOUBLED_MAX),
            // Another lookup is cheap, and must precede a takeover of that session by another node.
            Of::Before(_) => 0,
        };
        delete.due_ms = now_ms + (WAIT_MS << doubled);
        delete.refusals += 1;
        self.waiting.push_back(delete);
        self.waiting.len() > DELETES_MAX && self.waiting.pop_front().is_some()
    }

    /// Takes the deletes that are due.
    fn due(&mut self, now_ms: u64) -> Vec<SessionDelete> {
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

impl Io {
    /// Handles the outcome of a delete.
    pub(super) fn delete_done(&mut self, delete: SessionDelete, outcome: Result<u64, ErrorCode>) {
        // The snapshot belongs to another holder or session, which must not be deleted.
        if matches!(outcome, Ok(_) | Err(ErrorCode::NotAllowed)) {
            return;
        }
        if self.states.mqtt.sessions.deletes.keep(delete, self.now.mono_ms) {
            self.metrics.mqtt_session_ends_lost_total.add(1);
        }
    }

    /// Handles the outcome of a retried delete.
    pub(super) fn delete_retried(&mut self, delete: SessionDelete, outcome: Result<u64, ErrorCode>) {
        self.states.mqtt.sessions.deletes.in_flight -= 1;
        self.delete_done(delete, outcome);
    }

    /// Deletes whatever session a client id has now, once its snapshot can be read.
    pub(super) fn delete_later(&mut self, id: Box<str>) {
        let of = Of::Before(self.now.wall_us);
        self.delete_done(SessionDelete { id, of, refusals: 0, due_ms: 0 }, Err(ErrorCode::HubClosed));
    }
}

/// Retries the deletes that are due. Runs once a second.
pub fn retry_deletes(ctx: &mut Ctx) {
    for delete in ctx.io.states.mqtt.sessions.deletes.due(ctx.io.now.mono_ms) {
        match delete.of {
            Of::Session(epoch, born) => {
                store::end(ctx, delete.id.clone(), (epoch, born), Written::DeletedAgain(delete));
            }
            Of::Before(_) => {
                let query = takeover_read::snapshot_of(&delete.id);
                let room = room_of(&delete.id);
                let then = move |part| Work::Ended(Box::new(delete), Part::history(part));
                ctx.ask_home(&room, Question::Row(query), Then::work(then));
            }
        }
    }
}

/// The snapshot to delete was looked up.
pub fn found(ctx: &mut Ctx, delete: SessionDelete, part: Result<HistoryPart, ErrorCode>) {
    let part = match part {
        Ok(part) => part,
        Err(code) => return ctx.io.delete_retried(delete, Err(code)),
    };
    let is_meant = |at_us: u64| matches!(delete.of, Of::Before(before_us) if at_us < before_us);
    let row = part.records.last().filter(|row| !row.payload().is_empty() && is_meant(row.timestamp_us));
    let Some(row) = row else { return ctx.io.delete_retried(delete, Ok(0)) };
    let epoch = Owner::of(row).unwrap_or_default().epoch + 1;
    let key = ctx.own_key();
    let born = publish_will_of(ctx, key, &delete.id, row.payload());
    let delete = SessionDelete { of: Of::Session(epoch, born), refusals: 0, ..delete };
    store::end(ctx, delete.id.clone(), (epoch, born), Written::DeletedAgain(delete));
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
