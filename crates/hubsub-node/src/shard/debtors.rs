//! Limits on two sums over all clients of a shard: unread replies and unfinished input. Above a limit the
//! clients with the most are closed, so that the others are not affected. A client with too much unfinished
//! input is sent the reason; one that does not read its replies would not receive it.
//!
//! Invariant: a sum is what its connections count, `Output::counted_replies` and `Conn::unfinished_bytes`.

use crate::context::Ctx;
use crate::context::conn::{Conn, Dialect, Flags, UNFINISHED};
use crate::context::io::Io;
use crate::io::log_lines::Level;
use hubsub_mqtt::Fault;
use hubsub_types::ConnKey;
use hubsub_wire::mqtt::Reason;
use hubsub_wire::phoenix::End;
use hubsub_wire::resp;

/// Divisor of a limit: closing clients brings a sum below its limit by this fraction. Each pass scans all
/// connections, so the next byte must not trigger another.
const MARGIN: usize = 16;

/// Closes the clients with the most unread replies or unfinished input if the sum is above its limit.
pub(super) fn close_debtors(ctx: &mut Ctx) {
    let Io { limits, reply_bytes, input_bytes, .. } = &ctx.io;
    let (replies_max, input_max) =
        (limits.reply_shard_bytes_max as usize, limits.input_shard_bytes_max as usize);
    let (reply_bytes, input_bytes) = (*reply_bytes, *input_bytes);
    if reply_bytes > replies_max {
        let unread = |conn: &Conn| conn.output.as_ref().map_or(0, |output| output.counted_replies);
        let over = reply_bytes - replies_max + replies_max / MARGIN;
        let closed = close_largest(ctx, over, "unread replies", unread, |ctx, key| ctx.io.close_now(key));
        ctx.io.metrics.reply_debtors_closed_total.add(closed);
    }
    if input_bytes > input_max {
        let over = input_bytes - input_max + input_max / MARGIN;
        let closed = close_largest(ctx, over, "unfinished input", Conn::unfinished_bytes, drop_unfinished);
        ctx.io.metrics.input_debtors_closed_total.add(closed);
    }
}

/// Drops a client's unfinished input, sends the reason and closes it.
fn drop_unfinished(ctx: &mut Ctx, key: ConnKey) {
    let Some(conn) = ctx.io.conns.get_mut(key) else { return };
    ctx.io.input_bytes -= conn.unfinished_bytes();
    conn.drop_unfinished();
    if conn.is_closing() {
        // Its final reply is already written.
        return ctx.io.close_now(key);
    }
    match conn.dialect() {
        _ if conn.is_mqtt() => crate::mqtt::end(ctx, key, Fault::of(Reason::QuotaExceeded)),
        Dialect::Phoenix(_) => crate::phoenix::end(&mut ctx.io, key, End::Debtor),
        _ if conn.io.is_http() => crate::http::refuse_debtor(&mut ctx.io, key),
        _ => {
            conn.extra().was_told = true;
            ctx.io.push(key, |out, _| {
                resp::error(out, format!("ERR {UNFINISHED}; hint: input_shard_bytes_max"))
            });
        }
    }
    ctx.io.close_soon(key);
}

/// Closes the largest debtors until `over` bytes are free. Returns how many.
fn close_largest(
    ctx: &mut Ctx,
    over: usize,
    reason: &str,
    debt: impl Fn(&Conn) -> usize,
    close: impl Fn(&mut Ctx, ConnKey),
) -> u64 {
    let debtors = ctx.io.conns.iter().map(|(key, conn)| (conn.flags.any(Flags::CLOSE_NOW), debt(conn), key));
    let mut debtors: Vec<(bool, usize, ConnKey)> = debtors.filter(|(_, bytes, _)| *bytes > 0).collect();
    // Bytes of connections that are closing already are about to be freed, so those count first.
    debtors.sort_unstable_by_key(|&(is_closed, bytes, _)| std::cmp::Reverse((is_closed, bytes)));
    let (mut freed, mut closed) = (0, 0);
    for (is_closed, bytes, key) in debtors {
        if freed >= over {
            break;
        }
        freed += bytes;
        if !is_closed {
            let fields = vec![("reason", reason.to_owned()), ("bytes", bytes.to_string())];
            ctx.io.log_conn(Level::Warning, "largest debtor closed", key, fields);
            close(ctx, key);
            closed += 1;
        }
    }
    closed
}

#[cfg(test)]
mod tests {
    use super::super::turn::reap;
    use super::*;
    use crate::io::output::Pending;
    use crate::lone::Lone;
    use hubsub_types::Limits;

    /// Queues a reply after one that is not known yet.
    fn owe(lone: &mut Lone, key: ConnKey, bytes: usize) {
        lone.ctx.io.reply(key, |out, _| out.extend(std::iter::repeat_n(b'.', bytes)));
    }

    #[test]
    fn unread_replies_at_the_limit_close_nobody_and_a_byte_more_closes_who_has_most() {
        let mut lone = Lone::new(Limits { reply_shard_bytes_max: 1_000, ..Limits::default() });
        let clients = [600, 399].map(|bytes| {
            let (key, peer) = lone.connect();
            lone.ctx.io.wait(key, Pending::Publish);
            owe(&mut lone, key, bytes);
            (key, peer)
        });
        let [large, small] = [clients[0].0, clients[1].0];
        for (more, left) in [(0, 2), (1, 2), (1, 1)] {
            owe(&mut lone, small, more);
            reap(&mut lone.ctx);
            assert_eq!(lone.ctx.io.conns.len(), left);
        }
        assert!(lone.ctx.io.conns.get(large).is_none());
        assert_eq!((lone.ctx.io.reply_bytes, lone.ctx.io.record_bytes()), (401, 0));
        assert_eq!(lone.ctx.io.metrics.reply_debtors_closed_total.get(), 1);
        lone.ctx.io.resolve(small, 0, |out, _, _| out.push(b'.'));
        lone.ctx.flush();
        assert_eq!((lone.ctx.io.reply_bytes, lone.ctx.io.output_bytes), (0, 0), "it took them");
    }
}
