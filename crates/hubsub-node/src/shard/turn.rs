//! The end of a turn: what it produced is written, and connections that are marked for closing are removed.

use super::debtors::close_debtors;
use crate::io::conn::Flags;
use crate::io::context::TURN_BYTES;
use crate::io::core::Core;
use crate::io::transport::Transport;

/// Writes what this turn produced. Mail goes first, so that a client never sees an effect before the
/// other shards know of it. Lagging connections that have room get their next records, which the next
/// turn writes.
pub(crate) fn flush(core: &mut Core) {
    crate::mqtt::learn_ends(core);
    crate::mqtt::read_retained(core);
    crate::presence::tell_changed(core);
    if let Some(log) = &mut core.rim.states.log {
        log.flush();
    }
    core.rim.mailer.flush();
    core.rim.states.links.flush(&core.rim.metrics);
    core.rim.lagging = !core.broker.cursors.is_empty();
    core.rim.flush();
    let mut drained = std::mem::take(&mut core.rim.drained).into_iter();
    // The rest is handled after this batch is written, so that many lagging clients do not exceed a
    // turn's memory.
    while core.rim.turn_bytes() <= TURN_BYTES
        && let Some(key) = drained.next()
    {
        core.rim.pump_slots(key);
        core.rim.pump_mqtt(key);
        crate::mqtt::read_on(core, key);
        if core.rim.conns.get(key).is_some() && core.broker.cursors.has(key.index) {
            core.broker.drained(key, core.rim.now, &mut core.rim);
        }
    }
    core.rim.drained.extend(drained);
    for key in std::mem::take(&mut core.rim.polled) {
        crate::phoenix::poll::tell(core, key);
    }
    core.rim.mailer.flush();
}

/// Whether there is output that the next turn must write.
#[must_use]
pub(crate) fn has_more(core: &Core) -> bool {
    !core.rim.dirty.is_empty()
        || !core.rim.drained.is_empty()
        || !core.rim.polled.is_empty()
        || !core.rim.answered.is_empty()
        || !core.rim.states.listings.is_empty()
        || core.rim.own.has_work()
        || core.broker.occupancy.has_changed()
        || core.rim.states.links.has_work()
}

/// Removes connections that are marked for closing and have no output left. Returns the sockets of
/// clients that were sent a reason; they are closed later ([`crate::io::lingering_close`]).
pub(crate) fn reap(core: &mut Core) -> Vec<Transport> {
    close_debtors(core);
    let (mut waiting, mut gone, mut told) = (Vec::new(), Vec::new(), Vec::new());
    while let Some(key) = core.rim.closing.pop() {
        let Some(conn) = core.rim.conns.get(key) else { continue };
        let has_output = conn.output.as_ref().is_some_and(|o| !o.is_idle());
        if has_output && !conn.flags.any(Flags::CLOSE_NOW) {
            waiting.push(key);
            continue;
        }
        let outlives = conn.mqtt.as_ref().is_some_and(|client| client.outlives());
        let left = if outlives {
            core.rim.conns.vacate(key)
        } else {
            core.broker.disconnected(key, core.rim.now, &mut core.rim);
            core.rim.conns.remove(key)
        };
        let mut conn = left.expect("it was there a moment ago");
        if let Some(output) = &conn.output {
            core.rim.output_bytes -= output.queue_bytes + output.slot_bytes + output.long_bytes;
            core.rim.reply_bytes -= output.counted_replies;
        }
        core.rim.input_bytes -= conn.unfinished_bytes();
        let was_told = (conn.mqtt.as_ref().is_some_and(|client| client.was_notified)
            || conn.phoenix.as_ref().is_some_and(|client| client.was_told)
            || conn.extra.as_ref().is_some_and(|extra| extra.was_told)
            || conn.io.is_http())
            && !conn.flags.any(Flags::CLOSE_NOW.or(Flags::ENDED));
        if let Some(client) = conn.mqtt.take() {
            crate::mqtt::gone(core, key, client, outlives);
        }
        core.rim.states.phoenix.clients -= usize::from(conn.phoenix.is_some());
        crate::presence::ends(core, key);
        core.broker.publisher_gone(key.index);
        core.rim.states.http.streams -= usize::from(conn.io.is_events());
        if let Some(extra) = &mut conn.extra {
            crate::consumers::give_away(core, std::mem::take(&mut extra.consumed));
        }
        if let Transport::Polled(polled) = conn.io {
            crate::phoenix::poll::ended(core, key, *polled);
            core.rim.info.connections.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
            continue;
        }
        conn.io.leave();
        if was_told {
            told.push(conn.io);
        } else {
            gone.push(conn);
        }
        core.rim.info.connections.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
    }
    core.rim.closing = waiting;
    // Once a client's end is visible, no other shard may still count it.
    core.rim.mailer.flush();
    drop(gone);
    told
}
