//! A graceful stop, coordinated between shards. Once ordered to stop, no shard reads from clients, so work
//! only decreases. A shard is quiet when it awaits no response and holds no publish. When all shards are
//! quiet and no mail is in flight, every request is answered and delivered: then leader leases end, links send
//! a goodbye, and connections close as they take their output. After its deadline, a stop does so in any case.

use super::internal;
use super::turn::reap;
use crate::context::Ctx;
use crate::context::conn::Conn;
use crate::context::events::Event;
use crate::context::work::Asked;
use crate::io::output::Slot;
use hubsub_types::ConnKey;
use hubsub_wire::phoenix::End;

pub struct Stopping {
    /// Deadline in ms of the node's clock.
    at_ms: u64,
    closes: bool,
    parts: bool,
}

impl Stopping {
    pub fn new(at_ms: u64) -> Stopping {
        Stopping { at_ms, closes: false, parts: false }
    }

    /// Called at the end of each turn, after the turn's mail is sent.
    pub fn end_turn(&mut self, ctx: &mut Ctx) {
        let is_late = ctx.io.now.mono_ms >= self.at_ms;
        let own_mail = ctx.io.mailer.own().bytes() > 0;
        let mut quiet = !own_mail && is_quiet(ctx);
        if quiet && !self.parts {
            // Only now: all their requests are answered.
            self.parts = true;
            part_from_sessions(ctx);
            quiet = is_quiet(ctx);
        }
        ctx.io.info.set_quiet(ctx.io.shard.0, quiet && !parts_from_sessions(ctx));
        self.closes |= is_late || ctx.io.info.all_done(&ctx.io.mailer);
        if !self.closes {
            return;
        }
        let keys: Vec<ConnKey> = ctx.io.conns.iter().map(|(key, _)| key).collect();
        for key in keys {
            crate::mqtt::notify_of_stop(&mut ctx.io, key);
            crate::phoenix::end(&mut ctx.io, key, End::Restart);
            if is_late { ctx.io.close_now(key) } else { ctx.io.close_soon(key) }
        }
        // A peer that receives the goodbye considers the process gone and its leadership ended.
        ctx.io.states.led.end();
        ctx.io.states.links.leave(is_late);
        ctx.io.states.links.flush(&ctx.io.metrics);
        drop(reap(ctx));
        ctx.io.mailer.flush();
    }

    pub fn is_done(&self, ctx: &Ctx) -> bool {
        self.closes && ctx.io.conns.len() == 0 && ctx.io.states.links.is_empty()
    }
}

/// Called at the end of each turn before the node leaves its cluster: records sessions while links are
/// up.
pub(crate) fn part_before_leaving(ctx: &mut Ctx) {
    if !ctx.io.states.mqtt.is_leaving || ctx.io.states.mqtt.has_parted {
        return;
    }
    part_from_sessions(ctx);
    if !parts_from_sessions(ctx) {
        ctx.io.states.mqtt.has_parted = true;
        ctx.io.control.tell(Event::Parted(ctx.io.shard.0));
    }
}

/// Closes the connections of recorded sessions, which continue offline.
fn part_from_sessions(ctx: &mut Ctx) {
    let is_kept = |conn: &Conn| conn.session.mqtt().is_some_and(|client| client.is_recorded());
    let conns = ctx.io.conns.iter().filter(|(_, conn)| is_kept(conn));
    let keys: Vec<ConnKey> = conns.map(|(key, _)| key).collect();
    for key in keys {
        crate::mqtt::notify_of_stop(&mut ctx.io, key);
        ctx.io.close_soon(key);
    }
    ctx.io.flush();
    drop(reap(ctx));
    internal::take(ctx);
    ctx.io.mailer.flush();
}

/// Whether such connections are left, or session records are not confirmed.
fn parts_from_sessions(ctx: &Ctx) -> bool {
    let is_kept = |conn: &Conn| conn.session.mqtt().is_some_and(|client| client.is_recorded());
    let records = |asked: &Asked| matches!(asked, Asked::Session(_));
    ctx.io.own.has_work() || ctx.io.own.awaits(records) || ctx.io.conns.iter().any(|(_, conn)| is_kept(conn))
}

/// Whether nothing here waits for another shard, a commit or the control plane.
fn is_quiet(ctx: &Ctx) -> bool {
    let waits = |slot: &Slot| matches!(slot, Slot::Waiting(_));
    let waits_of_mqtt = |conn: &Conn| conn.session.mqtt().is_some_and(|client| client.waits());
    let mut outputs = ctx.io.conns.iter().filter_map(|(_, conn)| conn.output.as_ref());
    ctx.broker.stalled() == 0
        && ctx.broker.unlogged() == 0
        && !ctx.broker.is_waiting()
        && ctx.io.scatter_gather.is_empty()
        && !ctx.io.conns.iter().any(|(_, conn)| waits_of_mqtt(conn))
        && !outputs.any(|output| output.slots.iter().any(waits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::mail::Mail;
    use crate::link::state::leases::tests::leading;
    use crate::lone::Lone;
    use hubsub_types::Limits;

    #[test]
    fn who_says_goodbye_past_its_time_leads_no_more() {
        let mut lone = Lone::new(Limits::default());
        let (led, (hub, term), now_us) = leading();
        lone.ctx.io.states.led = led;
        let mut stopping = Stopping::new(lone.ctx.io.now.mono_ms + 1);
        lone.ctx.io.mailer.own().send(&mut vec![Mail::Accept]);
        stopping.end_turn(&mut lone.ctx);
        assert_eq!(lone.ctx.io.states.led.leads(hub, now_us), Some(term), "it may still order what waits");
        lone.ctx.io.now.mono_ms += 1;
        stopping.end_turn(&mut lone.ctx);
        assert_eq!(lone.ctx.io.states.led.leads(hub, now_us), None);
    }
}
