//! The end of a turn: what it produced is written, and connections that are marked for closing are removed.

use super::debtors::close_debtors;
use crate::context::Ctx;
use crate::context::conn::Flags;
use crate::context::io::TURN_BYTES;
use crate::io::transport::Transport;

/// Writes what this turn produced. Mail goes first, so that a client never sees an effect before the
/// other shards know of it. Lagging connections that have room get their next records, which the next
/// turn writes.
pub(crate) fn flush(ctx: &mut Ctx) {
    crate::mqtt::learn_ends(ctx);
    crate::mqtt::read_retained(ctx);
    crate::presence::tell_changed(ctx);
    if let Some(log) = &mut ctx.io.states.log {
        log.flush();
    }
    ctx.io.mailer.flush();
    ctx.io.states.links.flush(&ctx.io.metrics);
    ctx.io.lagging = !ctx.broker.cursors.is_empty();
    ctx.io.flush();
    let mut drained = std::mem::take(&mut ctx.io.drained).into_iter();
    // The rest is handled after this batch is written, so that many lagging clients do not exceed a
    // turn's memory.
    while ctx.io.turn_bytes() <= TURN_BYTES
        && let Some(key) = drained.next()
    {
        ctx.io.pump_slots(key);
        crate::mqtt::pump(&mut ctx.io, key);
        crate::mqtt::read_on(ctx, key);
        if ctx.io.conns.get(key).is_some() && ctx.broker.cursors.has(key.index) {
            ctx.broker.drained(key, ctx.io.now, &mut ctx.io);
        }
    }
    ctx.io.drained.extend(drained);
    for key in std::mem::take(&mut ctx.io.polled) {
        crate::phoenix::poll::tell(ctx, key);
    }
    ctx.io.mailer.flush();
}

/// Whether there is output that the next turn must write.
pub(crate) fn has_more(ctx: &Ctx) -> bool {
    !ctx.io.dirty.is_empty()
        || !ctx.io.drained.is_empty()
        || !ctx.io.polled.is_empty()
        || !ctx.io.answered.is_empty()
        || !ctx.io.states.listings.waiting.is_empty()
        || ctx.io.own.has_work()
        || ctx.broker.occupancy.has_changed()
        || ctx.io.states.links.has_work()
}

/// Removes connections that are marked for closing and have no output left. Returns the sockets of
/// clients that were sent a reason; they are closed later ([`crate::io::lingering_close`]).
pub(crate) fn reap(ctx: &mut Ctx) -> Vec<Transport> {
    close_debtors(ctx);
    let (mut waiting, mut gone, mut told) = (Vec::new(), Vec::new(), Vec::new());
    while let Some(key) = ctx.io.closing.pop() {
        let Some(conn) = ctx.io.conns.get(key) else { continue };
        let has_output = conn.output.as_ref().is_some_and(|o| !o.is_idle());
        if has_output && !conn.flags.any(Flags::CLOSE_NOW) {
            waiting.push(key);
            continue;
        }
        let outlives = conn.session.mqtt().is_some_and(|client| client.outlives());
        let left = if outlives {
            ctx.io.conns.vacate(key)
        } else {
            ctx.broker.disconnected(key, ctx.io.now, &mut ctx.io);
            ctx.io.conns.remove(key)
        };
        let mut conn = left.expect("it was there a moment ago");
        if let Some(output) = &conn.output {
            ctx.io.output_bytes -= output.queue_bytes + output.slot_bytes + output.long_bytes;
            ctx.io.reply_bytes -= output.counted_replies;
        }
        ctx.io.input_bytes -= conn.unfinished_bytes();
        let was_told = (conn.session.was_told() || conn.extra.as_ref().is_some_and(|extra| extra.was_told))
            && !conn.flags.any(Flags::CLOSE_NOW.or(Flags::ENDED));
        if let Some(client) = conn.session.take_mqtt() {
            crate::mqtt::gone(ctx, key, client, outlives);
        }
        ctx.io.states.phoenix.clients -= usize::from(conn.session.browser().is_some());
        crate::presence::ends(ctx, key);
        ctx.broker.publisher_gone(key.index);
        ctx.io.states.http.streams -= usize::from(conn.session.is_events());
        if let Some(extra) = &mut conn.extra {
            crate::consumers::give_away(ctx, std::mem::take(&mut extra.consumed));
        }
        if let Transport::Polled(polled) = conn.io {
            crate::phoenix::poll::ended(ctx, key, *polled);
            ctx.io.info.connections.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
            continue;
        }
        conn.io.leave();
        if was_told {
            told.push(conn.io);
        } else {
            gone.push(conn);
        }
        ctx.io.info.connections.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
    }
    ctx.io.closing = waiting;
    // Once a client's end is visible, no other shard may still count it.
    ctx.io.mailer.flush();
    drop(gone);
    told
}
