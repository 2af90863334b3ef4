//! Offline sessions with a missing subscription: it was refused during the takeover because a link was full
//! or there were too many rooms. They retry with back-off until all are granted. A client that reconnects
//! meanwhile is disconnected with an error unless the missing ones are granted then.

use super::client::NOBODY;
use super::offline::OfflineSession;
use super::takeover::subscribe;
use super::{members, persist, session_cursors};
use crate::io::context::Ctx;
use crate::io::log_lines::Level;
use crate::io::shard_io::Io;
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_types::{ConnKey, ErrorCode};

/// The delay before the first retry, in ms; it doubles per refusal.
const WAIT_MS: u64 = 1_000;

/// The most doublings of the delay.
const DOUBLED_MAX: u32 = 6;

/// The most sessions of a shard that retry per second.
const AT_ONCE_MAX: usize = 64;

/// The sessions of a shard by slot; at most one per slot.
#[derive(Default)]
pub struct MissingSubscriptions(HashMap<ConnKey, Try, RandomState>);

/// The retry state of a session.
struct Try {
    /// The number of refusals.
    refusals: u32,
    /// True if a subscription was refused since the last retry.
    is_refused: bool,
    /// The time of the next retry, or, if nothing is refused until then, of completion.
    due_ms: u64,
}

impl MissingSubscriptions {
    /// The number of such sessions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Records a refusal; returns whether it is the session's first.
    fn refuse(&mut self, key: ConnKey, now_ms: u64) -> bool {
        let before = self.0.get(&key).map_or(0, |it| it.refusals);
        let is_more = self.0.get(&key).is_none_or(|it| !it.is_refused);
        let refusals = before.saturating_add(u32::from(is_more));
        let due_ms = now_ms + (WAIT_MS << (refusals - 1).min(DOUBLED_MAX));
        self.0.insert(key, Try { refusals, is_refused: true, due_ms });
        before == 0
    }

    /// A session subscribes to all its filters, or has none left.
    fn asks(&mut self, key: ConnKey, now_ms: u64) -> bool {
        let Some(it) = self.0.get_mut(&key) else { return false };
        (it.is_refused, it.due_ms) = (false, now_ms + WAIT_MS);
        true
    }

    /// Takes the sessions that are due; sessions without a new refusal are removed.
    fn due(&mut self, now_ms: u64) -> Vec<ConnKey> {
        self.0.retain(|_, it| it.is_refused || it.due_ms > now_ms);
        let due = self.0.iter().filter(|(_, it)| it.is_refused && it.due_ms <= now_ms);
        due.map(|(&key, _)| key).take(AT_ONCE_MAX).collect()
    }
}

impl Io {
    /// A background subscription of a session was refused: it will be retried.
    pub(crate) fn note_missing(&mut self, key: ConnKey, refused: ErrorCode) {
        self.metrics.mqtt_session_refusals_total.add(1);
        if !self.states.mqtt.sessions.missing.refuse(key, self.now.mono_ms) {
            return;
        }
        let offline = self.states.mqtt.sessions.get_mut(key).map(|offline| offline.id.clone());
        let client = self.conns.get(key).and_then(|conn| conn.mqtt.as_ref());
        let id = offline.or_else(|| client.map(|client| client.machine.client_id().into()));
        let client = id.unwrap_or_default().chars().take(64).collect();
        let fields = vec![("client", client), ("reason", refused.code().to_owned())];
        self.lines.log(Level::Warning, "mqtt session lacks a subscription", fields);
    }

    /// A refusal for an offline session.
    pub(crate) fn refused_offline(&mut self, key: ConnKey, slot: u32, refused: ErrorCode) {
        if slot == NOBODY {
            self.note_missing(key, refused);
        }
    }
}

/// The filters that an offline session must retry now; none if nothing is missing.
pub(super) fn takes_filters(ctx: &mut Ctx, key: ConnKey) -> Option<Vec<Box<str>>> {
    let now_ms = ctx.io.now.mono_ms;
    ctx.io.states.mqtt.sessions.missing.asks(key, now_ms).then(|| {
        let offline = ctx.io.states.mqtt.sessions.get(key);
        offline.map(|offline| filters_of(ctx, offline)).unwrap_or_default()
    })
}

/// Retries for the sessions that are due. Runs once a second.
pub fn retry_missing(ctx: &mut Ctx) {
    for key in ctx.io.states.mqtt.sessions.missing.due(ctx.io.now.mono_ms) {
        // A connected client was disconnected instead, and a session that moves to another node subscribes
        // there. An ended session has no filters and is removed.
        let is_offline = ctx.io.conns.get(key).is_none() && !persist::is_moving(&mut ctx.io, key);
        if is_offline
            && let Some(filters) = takes_filters(ctx, key)
            && let Some(refused) = subscribe(ctx, key, &filters).refused
        {
            ctx.io.note_missing(key, refused);
        }
    }
}

/// The filters of an offline session.
pub(super) fn filters_of(ctx: &Ctx, offline: &OfflineSession) -> Vec<Box<str>> {
    let cursors = offline.session.cursors.as_deref();
    // Cursors resume these when the client is back.
    let has_cursor =
        |filter: &str| cursors.is_some_and(|cursors| session_cursors::is_resumed(ctx, cursors, filter));
    // Presence is sent once the client is connected.
    let waits = |filter: &str| filter.starts_with(members::PRESENCE) || has_cursor(filter);
    let filters = offline.state.subscriptions().map(|(filter, ..)| filter);
    filters.filter(|filter| !waits(filter)).map(Box::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: ConnKey = ConnKey { index: 3, generation: 1 };

    #[test]
    fn one_that_is_refused_waits_longer_each_time_and_is_forgotten_when_it_is_not() {
        let mut missing = MissingSubscriptions::default();
        assert!(missing.refuse(KEY, 0) && !missing.refuse(KEY, 0), "two of its subscriptions, of one time");
        let mut now_ms = 0;
        for wait_ms in [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 64_000] {
            assert!(missing.due(now_ms + wait_ms - 1).is_empty());
            now_ms += wait_ms;
            assert_eq!(missing.due(now_ms), [KEY], "{wait_ms}");
            assert!(missing.asks(KEY, now_ms) && missing.due(now_ms).is_empty());
            assert!(!missing.refuse(KEY, now_ms), "it is no news");
        }
        assert!(missing.asks(KEY, now_ms));
        assert!(missing.due(now_ms + 999).is_empty() && missing.len() == 1, "it may be refused yet");
        assert!(missing.due(now_ms + 1_000).is_empty() && missing.len() == 0);
        assert!(!missing.asks(KEY, now_ms));
    }
}
