//! MULTI and EXEC: commands are queued, then executed in order, each with its own reply. Later replies keep
//! their places, and records that arrive meanwhile are sent after the whole array.

use super::args::Args;
use super::caller::{refused_to_administer, take_transaction};
use super::reply::{error, ok};
use super::table::{Lookup, Table};
use crate::context::Ctx;
use crate::context::conn::{Flags, Transaction};
use crate::context::io::TURN_BYTES;
use crate::io::log_lines::Level;
use hubsub_types::ConnKey;
use hubsub_wire::resp;

const TOO_LARGE: &str = "ERR transaction is too large; hint: transaction_commands_max, transaction_bytes_max";

fn open(ctx: &mut Ctx, key: ConnKey) -> Option<&mut Transaction> {
    ctx.io.conns.get_mut(key)?.extra.as_mut()?.transaction.as_mut()
}

/// A command could not be queued: EXEC will fail, so later commands are not stored.
pub fn spoil(ctx: &mut Ctx, key: ConnKey) {
    if let Some(transaction) = open(ctx, key) {
        let broken = Transaction { is_broken: true, ..Transaction::default() };
        let bytes = std::mem::replace(transaction, broken).bytes;
        ctx.io.input_bytes -= bytes;
    }
}

/// EXEC itself was refused: discards the transaction.
pub fn abort(ctx: &mut Ctx, key: ConnKey, text: &str) {
    take_transaction(ctx, key);
    let why = text.strip_prefix("ERR ").unwrap_or(text);
    error(ctx, key, format!("EXECABORT Transaction discarded because of: {why}"));
}

/// Queues a command; a transaction above the limits is spoiled.
pub fn queue(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    let bytes: usize = args.iter().map(|a| a.len() + 16).sum();
    let commands_max = ctx.io.limits.transaction_commands_max;
    let bytes_max = ctx.io.limits.transaction_bytes_max;
    let Some(transaction) = open(ctx, key) else { return };
    if !transaction.is_broken {
        let too_many = transaction.commands.len() as u64 >= commands_max;
        if too_many || (transaction.bytes + bytes) as u64 > bytes_max {
            spoil(ctx, key);
            return error(ctx, key, TOO_LARGE);
        }
        transaction.bytes += bytes;
        transaction.commands.push(args.iter().map(|&arg| arg.into()).collect());
        ctx.io.input_bytes += bytes;
    }
    ctx.io.reply(key, |out, _| resp::simple(out, "QUEUED"));
}

/// `MULTI`: starts queueing commands.
pub fn multi(ctx: &mut Ctx, key: ConnKey, _: Args<'_>) {
    if open(ctx, key).is_some() {
        return error(ctx, key, "ERR MULTI calls can not be nested");
    }
    let Some(conn) = ctx.io.conns.get_mut(key) else { return };
    conn.extra().transaction = Some(Transaction::default());
    ok(ctx, key);
}

/// `DISCARD`: drops the queued commands.
pub fn discard(ctx: &mut Ctx, key: ConnKey, _: Args<'_>) {
    match take_transaction(ctx, key) {
        Some(_) => ok(ctx, key),
        None => error(ctx, key, "ERR DISCARD without MULTI"),
    }
}

/// `WATCH key …`: accepted, because there are no keys that could change.
pub fn watch(ctx: &mut Ctx, key: ConnKey, _: Args<'_>) {
    if open(ctx, key).is_some() {
        return error(ctx, key, "ERR WATCH inside MULTI is not allowed");
    }
    ok(ctx, key);
}

/// `EXEC`: executes the queued commands.
pub fn exec(ctx: &mut Ctx, key: ConnKey, table: &Table) {
    let Some(transaction) = take_transaction(ctx, key) else {
        return error(ctx, key, "ERR EXEC without MULTI");
    };
    if transaction.is_broken {
        return error(ctx, key, "EXECABORT Transaction discarded because of previous errors.");
    }
    ctx.io.reply(key, |out, _| resp::array_header(out, transaction.commands.len()));
    ctx.io.hold(key);
    for command in &transaction.commands {
        if ctx.io.conns.get(key).is_none_or(|conn| conn.flags.any(Flags::CLOSE_NOW)) {
            break;
        }
        let args: Vec<&[u8]> = command.iter().map(|arg| &**arg).collect();
        if let Lookup::Found(_, command) = table.find(&args) {
            // The user may have changed since it was queued.
            match refused_to_administer(ctx, key, command) {
                Some(text) => error(ctx, key, text),
                None => (command.run)(ctx, key, &args),
            }
        }
        if ctx.io.turn_bytes() > TURN_BYTES {
            ctx.flush();
        }
        end_if_unread(ctx, key);
    }
    ctx.io.release(key);
}

/// The most requests to other shards in one transaction.
const QUESTIONS_MAX: u32 = 128;

/// A transaction cannot be paused. A client that leaves too many of its replies unread, or causes too many
/// requests, is closed; the remaining commands are not executed.
fn end_if_unread(ctx: &mut Ctx, key: ConnKey) {
    let Some(conn) = ctx.io.conns.get(key) else { return };
    let Some(output) = &conn.output else { return };
    let (pending_bytes, questions) = (output.pending_bytes() - output.long_bytes, output.questions);
    if pending_bytes as u64 >= ctx.io.limits.reply_bytes_max || questions > QUESTIONS_MAX {
        let fields = vec![("pending_bytes", pending_bytes.to_string())];
        ctx.io.log_conn(Level::Warning, "transaction's replies are over the limit", key, fields);
        ctx.io.close_now(key);
    }
}
