//! A graceful stop, coordinated between shards. Once ordered to stop, no shard reads from clients, so work
//! only decreases. A shard is quiet when it awaits no response and holds no publish. When all shards are
//! quiet and no mail is in flight, every request is answered and delivered: then leader leases end, links send
//! a goodbye, and connections close as they take their output. After its deadline, a stop does so in any case.

use super::events::Event;
use super::internal::{self, Asked};
use super::turn::reap;
use crate::io::conn::Conn;
use crate::io::core::Core;
use crate::io::output::Slot;
use hubsub_types::ConnKey;
use hubsub_wire::phoenix::End;

/// State of one shard's stop.
pub struct Stopping {
    /// Deadline in ms of the node's clock.
    at_ms: u64,
    /// Whether connections are being closed.
    closes: bool,
    /// Whether clients with recorded sessions were closed.
    parts: bool,
}

impl Stopping {
    pub fn new(at_ms: u64) -> Stopping {
        Stopping { at_ms, closes: false, parts: false }
    }

    /// Called at the end of each turn, after the turn's mail is sent.
    pub fn end_turn(&mut self, core: &mut Core) {
        let is_late = core.rim.now.mono_ms >= self.at_ms;
        let own_mail = core.rim.mailer.own().bytes() > 0;
        let mut quiet = !own_mail && is_quiet(core);
        if quiet && !self.parts {
            // Only now: all their requests are answered.
            self.parts = true;
            part_from_sessions(core);
            quiet = is_quiet(core);
        }
        core.rim.info.set_quiet(core.rim.shard.0, quiet && !parts_from_sessions(core));
        self.closes |= is_late || core.rim.info.all_done(&core.rim.mailer);
        if !self.closes {
            return;
        }
        let keys: Vec<ConnKey> = core.rim.conns.iter().map(|(key, _)| key).collect();
        for key in keys {
            core.rim.notify_mqtt_of_stop(key);
            crate::phoenix::end(&mut core.rim, key, End::Restart);
            if is_late { core.rim.close_now(key) } else { core.rim.close_soon(key) }
        }
        // A peer that receives the goodbye considers the process gone and its leadership ended.
        core.rim.states.led.end();
        core.rim.states.links.leave(is_late);
        core.rim.states.links.flush(&core.rim.metrics);
        drop(reap(core));
        core.rim.mailer.flush();
    }

    /// Whether the shard may end.
    pub fn is_done(&self, core: &Core) -> bool {
        self.closes && core.rim.conns.len() == 0 && core.rim.states.links.is_empty()
    }
}

/// Called at the end of each turn before the node leaves its cluster: records sessions while links are
/// up.
pub(crate) fn part_before_leaving(core: &mut Core) {
    if !core.rim.states.mqtt.is_leaving || core.rim.states.mqtt.has_parted {
        return;
    }
    part_from_sessions(core);
    if !parts_from_sessions(core) {
        core.rim.states.mqtt.has_parted = true;
        core.rim.control.tell(Event::Parted(core.rim.shard.0));
    }
}

/// Closes the connections of recorded sessions, which continue offline.
fn part_from_sessions(core: &mut Core) {
    let is_kept = |conn: &Conn| conn.mqtt.as_ref().is_some_and(|client| client.is_recorded());
    let conns = core.rim.conns.iter().filter(|(_, conn)| is_kept(conn));
    let keys: Vec<ConnKey> = conns.map(|(key, _)| key).collect();
    for key in keys {
        core.rim.notify_mqtt_of_stop(key);
        core.rim.close_soon(key);
    }
    core.rim.flush();
    drop(reap(core));
    internal::take(core);
    core.rim.mailer.flush();
}

/// Whether such connections are left, or session records are not confirmed.
fn parts_from_sessions(core: &Core) -> bool {
    let is_kept = |conn: &Conn| conn.mqtt.as_ref().is_some_and(|client| client.is_recorded());
    let records = |asked: &Asked| matches!(asked, Asked::Session(_));
    core.rim.own.has_work()
        || core.rim.own.awaits(records)
        || core.rim.conns.iter().any(|(_, conn)| is_kept(conn))
}

/// Whether nothing here waits for another shard, a commit or the control plane.
fn is_quiet(core: &Core) -> bool {
    let waits = |slot: &Slot| matches!(slot, Slot::Waiting(_));
    let waits_of_mqtt = |conn: &Conn| conn.mqtt.as_ref().is_some_and(|client| client.waits());
    let mut outputs = core.rim.conns.iter().filter_map(|(_, conn)| conn.output.as_ref());
    core.broker.stalled() == 0
        && core.broker.unlogged() == 0
        && !core.broker.is_waiting()
        && core.rim.scatter_gather.is_empty()
        && !core.rim.conns.iter().any(|(_, conn)| waits_of_mqtt(conn))
        && !outputs.any(|output| output.slots.iter().any(waits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::leases::tests::leading;
    use crate::lone::Lone;
    use crate::shard::mail::Mail;
    use hubsub_types::Limits;

    #[test]
    fn who_says_goodbye_past_its_time_leads_no_more() {
        let mut lone = Lone::new(Limits::default());
        let (led, (hub, term), now_us) = leading();
        lone.core.rim.states.led = led;
        let mut stopping = Stopping::new(lone.core.rim.now.mono_ms + 1);
        lone.core.rim.mailer.own().send(&mut vec![Mail::Accept]);
        stopping.end_turn(&mut lone.core);
        assert_eq!(lone.core.rim.states.led.leads(hub, now_us), Some(term), "it may still order what waits");
        lone.core.rim.now.mono_ms += 1;
        stopping.end_turn(&mut lone.core);
        assert_eq!(lone.core.rim.states.led.leads(hub, now_us), None);
    }
}
