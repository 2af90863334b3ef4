//! MULTI and EXEC: commands are queued, then executed in order, each with its own reply. Later replies keep
//! their places, and records that arrive meanwhile are sent after the whole array.

use super::table::{self, Lookup};
use super::{Args, error, ok};
use crate::io::conn::{Flags, Transaction};
use crate::io::context::TURN_BYTES;
use crate::io::core::Core;
use crate::io::log_lines::Level;
use hubsub_types::ConnKey;
use hubsub_wire::resp;

const TOO_LARGE: &str = "ERR transaction is too large; hint: transaction_commands_max, transaction_bytes_max";

fn open(core: &mut Core, key: ConnKey) -> Option<&mut Transaction> {
    core.rim.conns.get_mut(key)?.extra.as_mut()?.transaction.as_mut()
}

/// True if the connection is between MULTI and EXEC.
fn is_open(core: &mut Core, key: ConnKey) -> bool {
    open(core, key).is_some()
}

/// A command could not be queued: EXEC will fail, so later commands are not stored.
pub fn spoil(core: &mut Core, key: ConnKey) {
    if let Some(transaction) = open(core, key) {
        let broken = Transaction { is_broken: true, ..Transaction::default() };
        let bytes = std::mem::replace(transaction, broken).bytes;
        core.rim.input_bytes -= bytes;
    }
}

/// EXEC itself was refused: discards the transaction.
pub fn abort(core: &mut Core, key: ConnKey, text: &str) {
    take(core, key);
    let why = text.strip_prefix("ERR ").unwrap_or(text);
    error(core, key, format!("EXECABORT Transaction discarded because of: {why}"));
}

/// Queues a command; a transaction above the limits is spoiled.
pub fn queue(core: &mut Core, key: ConnKey, args: Args<'_>) {
    let bytes: usize = args.iter().map(|a| a.len() + 16).sum();
    let commands_max = core.rim.limits.transaction_commands_max;
    let bytes_max = core.rim.limits.transaction_bytes_max;
    let Some(transaction) = open(core, key) else { return };
    if !transaction.is_broken {
        let too_many = transaction.commands.len() as u64 >= commands_max;
        if too_many || (transaction.bytes + bytes) as u64 > bytes_max {
            spoil(core, key);
            return error(core, key, TOO_LARGE);
        }
        transaction.bytes += bytes;
        transaction.commands.push(args.iter().map(|&arg| arg.into()).collect());
        core.rim.input_bytes += bytes;
    }
    core.rim.reply(key, |out, _| resp::simple(out, "QUEUED"));
}

/// `MULTI`: starts queueing commands.
pub fn multi(core: &mut Core, key: ConnKey, _: Args<'_>) {
    if is_open(core, key) {
        return error(core, key, "ERR MULTI calls can not be nested");
    }
    let Some(conn) = core.rim.conns.get_mut(key) else { return };
    conn.extra().transaction = Some(Transaction::default());
    ok(core, key);
}

/// `DISCARD`: drops the queued commands.
pub fn discard(core: &mut Core, key: ConnKey, _: Args<'_>) {
    match take(core, key) {
        Some(_) => ok(core, key),
        None => error(core, key, "ERR DISCARD without MULTI"),
    }
}

/// `WATCH key …`: accepted, because there are no keys that could change.
pub fn watch(core: &mut Core, key: ConnKey, _: Args<'_>) {
    if is_open(core, key) {
        return error(core, key, "ERR WATCH inside MULTI is not allowed");
    }
    ok(core, key);
}

pub fn unwatch(core: &mut Core, key: ConnKey, _: Args<'_>) {
    ok(core, key);
}

/// `EXEC`: executes the queued commands.
pub fn exec(core: &mut Core, key: ConnKey, _: Args<'_>) {
    let Some(transaction) = take(core, key) else { return error(core, key, "ERR EXEC without MULTI") };
    if transaction.is_broken {
        return error(core, key, "EXECABORT Transaction discarded because of previous errors.");
    }
    core.rim.reply(key, |out, _| resp::array_header(out, transaction.commands.len()));
    core.rim.hold(key);
    for command in &transaction.commands {
        if core.rim.conns.get(key).is_none_or(|conn| conn.flags.any(Flags::CLOSE_NOW)) {
            break;
        }
        let args: Vec<&[u8]> = command.iter().map(|arg| &**arg).collect();
        if let Lookup::Found(_, command) = table::find(&args) {
            // The user may have changed since it was queued.
            match super::refused_to_administer(core, key, command) {
                Some(text) => error(core, key, text),
                None => (command.run)(core, key, &args),
            }
        }
        if core.rim.turn_bytes() > TURN_BYTES {
            core.flush();
        }
        end_if_unread(core, key);
    }
    core.rim.release(key);
}

/// The most requests to other shards in one transaction.
const QUESTIONS_MAX: u32 = 128;

/// A transaction cannot be paused. A client that leaves too many of its replies unread, or causes too many
/// requests, is closed; the remaining commands are not executed.
fn end_if_unread(core: &mut Core, key: ConnKey) {
    let Some(conn) = core.rim.conns.get(key) else { return };
    let Some(output) = &conn.output else { return };
    let (pending_bytes, questions) = (output.pending_bytes() - output.long_bytes, output.questions);
    if pending_bytes as u64 >= core.rim.limits.reply_bytes_max || questions > QUESTIONS_MAX {
        let fields = vec![("pending_bytes", pending_bytes.to_string())];
        core.rim.log_conn(Level::Warning, "transaction's replies are over the limit", key, fields);
        core.rim.close_now(key);
    }
}

/// Removes a transaction without executing it.
pub fn take(core: &mut Core, key: ConnKey) -> Option<Transaction> {
    let transaction = core.rim.conns.get_mut(key)?.extra.as_mut()?.transaction.take()?;
    core.rim.input_bytes -= transaction.bytes;
    Some(transaction)
}
