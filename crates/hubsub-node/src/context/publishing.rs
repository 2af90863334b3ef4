//! The check whether a client may publish, made once per message in every protocol.

use crate::context::Ctx;
use crate::io::access::Action;
use crate::io::meter::MESSAGES_IN;
use hubsub_types::{ConnKey, ErrorCode};

impl Ctx {
    /// Checks whether a client may publish to a topic now, and counts the publish if so.
    ///
    /// # Errors
    /// It has no permission, or it has reached its publishes per minute.
    pub fn may_publish(&mut self, key: ConnKey, topic: &[u8]) -> Result<(), ErrorCode> {
        let (limit, minute) = (self.io.limits.publishes_per_minute_max, self.io.now.mono_ms / 60_000);
        let Some(conn) = self.io.conns.get_mut(key) else { return Err(ErrorCode::Stopping) };
        if !self.io.access.allowed(conn.principal, Action::Publish, topic) {
            return Err(ErrorCode::NotAllowed);
        }
        if limit > 0 {
            let extra = conn.extra();
            if extra.publish_minute.0 != minute {
                extra.publish_minute = (minute, 0);
            }
            if extra.publish_minute.1 >= limit {
                return Err(ErrorCode::PublishRate);
            }
            extra.publish_minute.1 += 1;
        }
        conn.meter.totals[MESSAGES_IN] += 1;
        self.io.metrics.published_total.add(1);
        Ok(())
    }
}
