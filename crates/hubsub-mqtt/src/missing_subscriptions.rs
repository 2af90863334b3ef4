//! Sessions with a missing subscription: it was refused during the takeover because a link was full or there
//! were too many rooms. They retry with back-off until all are granted. A client that reconnects meanwhile is
//! disconnected with an error unless the missing ones are granted then.

use super::delete_retry::{AT_ONCE_MAX, WAIT_MS, delay_ms};
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_types::ConnKey;

/// The sessions of a shard by slot; at most one per slot.
#[derive(Default)]
pub struct MissingSubscriptions(HashMap<ConnKey, Try, RandomState>);

struct Try {
    refusals: u32,
    /// True if a subscription was refused since the last retry.
    is_refused: bool,
    /// The time of the next retry, or, if nothing is refused until then, of completion.
    due_ms: u64,
}

impl MissingSubscriptions {
    #[allow(clippy::len_without_is_empty, reason = "it is a figure, and no collection")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Records a refusal; returns whether it is the session's first.
    pub fn refuse(&mut self, key: ConnKey, now_ms: u64) -> bool {
        let before = self.0.get(&key).map_or(0, |it| it.refusals);
        let is_more = self.0.get(&key).is_none_or(|it| !it.is_refused);
        let refusals = before.saturating_add(u32::from(is_more));
        let due_ms = now_ms + delay_ms(refusals - 1);
        self.0.insert(key, Try { refusals, is_refused: true, due_ms });
        before == 0
    }

    /// A session subscribes to all its filters, or has none left.
    pub fn asks(&mut self, key: ConnKey, now_ms: u64) -> bool {
        let Some(it) = self.0.get_mut(&key) else { return false };
        (it.is_refused, it.due_ms) = (false, now_ms + WAIT_MS);
        true
    }

    /// Takes the sessions that are due; sessions without a new refusal are removed.
    pub fn due(&mut self, now_ms: u64) -> Vec<ConnKey> {
        self.0.retain(|_, it| it.is_refused || it.due_ms > now_ms);
        let due = self.0.iter().filter(|(_, it)| it.is_refused && it.due_ms <= now_ms);
        due.map(|(&key, _)| key).take(AT_ONCE_MAX).collect()
    }
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
