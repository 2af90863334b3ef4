//! Small server commands: TIME, HELP, and commands that are accepted because there is nothing to do.

use super::args::{Args, is};
use super::reply::{SYNTAX, error, ok, quoting, texts};
use crate::context::Ctx;
use hubsub_types::ConnKey;
use hubsub_wire::resp;

/// Placeholder for a container command, which is never run: without a subcommand its arity is wrong.
pub fn container(_: &mut Ctx, _: ConnKey, _: Args<'_>) {
    unreachable!("the table finds a subcommand, or the arity is wrong");
}

/// `TIME`: replies seconds since 1970 and microseconds.
pub fn time(ctx: &mut Ctx, key: ConnKey, _: Args<'_>) {
    let us = ctx.io.now.wall_us;
    ctx.io.reply(key, |out, _| {
        resp::array_header(out, 2);
        texts(out, &[&(us / 1_000_000).to_string(), &(us % 1_000_000).to_string()]);
    });
}

/// `DBSIZE`: there are no keys. `redis-cli --cluster check` sends it.
pub fn dbsize(ctx: &mut Ctx, key: ConnKey, _: Args<'_>) {
    ctx.io.reply(key, |out, _| resp::int(out, 0));
}

/// `FLUSHALL|FLUSHDB [ASYNC|SYNC]`: there are no keys.
pub fn flush(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    match args[1..] {
        [] => ok(ctx, key),
        [how] if is(how, "sync") || is(how, "async") => ok(ctx, key),
        _ => error(ctx, key, SYNTAX),
    }
}

/// `FUNCTION FLUSH [ASYNC|SYNC]`: there are no functions.
pub fn function_flush(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    match args[2..] {
        [] => ok(ctx, key),
        [how] if is(how, "sync") || is(how, "async") => ok(ctx, key),
        [_] => error(ctx, key, "ERR FUNCTION FLUSH only supports SYNC|ASYNC option"),
        _ => {
            let before = "ERR unknown subcommand or wrong number of arguments for '";
            error(ctx, key, quoting(before, args[1], "'. Try FUNCTION HELP."));
        }
    }
}

pub const FUNCTION_HELP: &[&str] = &["FLUSH [ASYNC|SYNC]", "    Accepted; there are no functions."];
