//! The soft limit of a subscriber's output: above `output_soft_bytes` for `output_soft_ms` it counts as full.
//! A timer checks it, so that the limit holds even if no further record arrives.
//!
//! Invariant: a connection has at most one such pending timer.

use crate::context::conn::Flags;
use crate::context::io::{Io, Timer};
use hubsub_route::{CloseReason, Sink};
use hubsub_types::ConnKey;

impl Io {
    /// Schedules a check of a connection's soft limit at `due_ms`, unless one is pending: output that
    /// fluctuates sets one timer.
    pub(crate) fn watch_soft_limit(&mut self, conn: u32, due_ms: u64) {
        let Some(c) = self.conns.at_mut(conn) else { return };
        if c.flags.any(Flags::WATCHED) {
            return;
        }
        c.flags.set(Flags::WATCHED, true);
        if let Some(key) = self.conns.key_at(conn) {
            self.timers.set(due_ms, Timer::SoftLimit(key));
        }
    }

    /// Handles the timer of the soft limit. If a record is queued whose room's class closes slow subscribers,
    /// the connection is closed now; other classes act when their next record arrives.
    pub(crate) fn end_soft_limit(&mut self, key: ConnKey) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.flags.set(Flags::WATCHED, false);
        let (since, closes) = match (&conn.mqtt, &conn.output) {
            (Some(client), _) => (client.pending.soft_since_ms(), client.pending.has_closers()),
            (None, Some(output)) => (output.soft_since_ms, output.closers > 0),
            (None, None) => return,
        };
        let Some(since) = since else { return };
        let due_ms = since + self.limits.output_soft_ms;
        if self.now.mono_ms < due_ms {
            self.watch_soft_limit(key.index, due_ms);
        } else if closes {
            self.close(key.index, CloseReason::OutputLimit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::output::Output;
    use crate::lone::Lone;
    use hubsub_route::{Delivery, Namespace, Record, Via};
    use hubsub_types::{Limits, OnGap, OnSlow};
    use std::io::Read;
    use std::net::TcpStream;

    const SOFT_MS: u64 = 1000;

    fn limits() -> Limits {
        Limits { output_soft_bytes: 64 * 1024, output_soft_ms: SOFT_MS, ..Limits::default() }
    }

    fn send(io: &mut Io, key: ConnKey, via: Via<'_>, on_slow: OnSlow) -> Delivery {
        let payload = [b'.'; 4000];
        let record = Record::new(Namespace::Global, b"t", &payload, Box::default(), None);
        io.record_begins();
        io.deliver(key.index, via, &record.view(on_slow))
    }

    fn output(io: &Io, key: ConnKey) -> &Output {
        io.conns.get(key).and_then(|c| c.output.as_ref()).unwrap()
    }

    /// Sends until the socket is full, and then until the queue is above its soft limit.
    fn fill(io: &mut Io, key: ConnKey, via: Via<'_>, on_slow: OnSlow) {
        for _ in 0..100_000 {
            send(io, key, via, on_slow);
            io.flush();
            if io.conns.get(key).unwrap().output.as_ref().is_some_and(|o| o.soft_since_ms.is_some()) {
                return;
            }
        }
        panic!("a socket takes no 400 MB");
    }

    /// Reads everything at the peer.
    fn drain(io: &mut Io, key: ConnKey, peer: &mut TcpStream) {
        let mut bytes = vec![0; 1 << 20];
        while io.conns.get(key).unwrap().output.is_some() {
            assert!(peer.read(&mut bytes).unwrap() > 0);
            io.write_queue(key);
        }
    }

    /// Advances time by `ms` and handles expired timers. Returns the number of checks.
    fn pass(io: &mut Io, ms: u64) -> usize {
        io.now.mono_ms += ms;
        let mut due = Vec::new();
        io.timers.due(io.now.mono_ms, &mut due);
        let mut looks = 0;
        for timer in due {
            if let Timer::SoftLimit(key) = timer {
                looks += 1;
                io.end_soft_limit(key);
            }
        }
        looks
    }

    #[test]
    fn above_the_soft_limit_the_classes_of_what_waits_decide_also_for_patterns() {
        for via in [Via::Topic, Via::Pattern(1, b"*")] {
            for on_slow in [OnSlow::Disconnect, OnSlow::DropOldest, OnSlow::Conflate, OnSlow::CatchUp] {
                let mut lone = Lone::new(limits());
                let (key, _peer) = lone.connect();
                let io = &mut lone.ctx.io;
                fill(io, key, via, on_slow);
                pass(io, SOFT_MS / 2);
                assert!(!io.conns.get(key).unwrap().is_closing());
                pass(io, SOFT_MS);
                assert_eq!(io.conns.get(key).unwrap().is_closing(), on_slow == OnSlow::Disconnect);
            }
        }
    }

    #[test]
    fn one_record_that_closes_is_enough_until_it_is_written() {
        let mut lone = Lone::new(limits());
        let (key, mut peer) = lone.connect();
        let io = &mut lone.ctx.io;
        fill(io, key, Via::Topic, OnSlow::DropOldest);
        send(io, key, Via::Topic, OnSlow::Disconnect);
        assert_eq!(output(io, key).closers, 1);
        // Records dropped for another class's record do not extend this one's time.
        pass(io, SOFT_MS - 1);
        io.now.mono_ms += 1;
        let payload = [b'.'; 4000];
        let record = Record::new(Namespace::Global, b"t", &payload, Box::default(), None);
        let record = record.view(OnSlow::DropOldest);
        io.record_begins();
        assert_eq!(io.deliver(key.index, Via::Topic, &record), Delivery::Full);
        io.squeeze(key.index, Via::Topic, &record, OnSlow::DropOldest, OnGap::Continue);
        assert_eq!(output(io, key).closers, 1);
        drain(io, key, &mut peer);
        fill(io, key, Via::Topic, OnSlow::DropOldest);
        assert_eq!(output(io, key).closers, 0);
        send(io, key, Via::Topic, OnSlow::Disconnect);
        pass(io, 2 * SOFT_MS);
        assert!(io.conns.get(key).unwrap().is_closing());
    }

    #[test]
    fn output_that_comes_and_goes_sets_one_timer() {
        let mut lone = Lone::new(limits());
        let (key, mut peer) = lone.connect();
        let io = &mut lone.ctx.io;
        for _ in 0..5 {
            fill(io, key, Via::Topic, OnSlow::Disconnect);
            drain(io, key, &mut peer);
            assert_eq!(pass(io, 10), 0);
        }
        fill(io, key, Via::Topic, OnSlow::Disconnect);
        assert_eq!(pass(io, SOFT_MS - 20), 1, "of the first time; it looks again later");
        assert!(!io.conns.get(key).unwrap().is_closing());
        assert_eq!(pass(io, SOFT_MS), 1);
        assert!(io.conns.get(key).unwrap().is_closing());
    }
}
