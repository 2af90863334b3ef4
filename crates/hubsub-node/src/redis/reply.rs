//! The replies that many commands have in common: OK, errors and help texts.

use super::args::shown;
use crate::context::Ctx;
use hubsub_types::ConnKey;
use hubsub_wire::resp;

/// The Redis version whose commands and replies are implemented.
pub const REDIS_VERSION: &str = "7.4.0";

pub const SYNTAX: &str = "ERR syntax error";
pub const NOT_A_NUMBER: &str = "ERR value is not an integer or out of range";

pub fn error(ctx: &mut Ctx, key: ConnKey, text: impl AsRef<[u8]>) {
    ctx.io.reply(key, |out, _| resp::error(out, text));
}

pub fn texts(out: &mut Vec<u8>, texts: &[&str]) {
    texts.iter().for_each(|text| resp::bulk(out, text.as_bytes()));
}

pub fn ok(ctx: &mut Ctx, key: ConnKey) {
    ctx.io.reply(key, |out, _| resp::simple(out, "OK"));
}

pub fn wrong_arity(name: &str) -> String {
    format!("ERR wrong number of arguments for '{name}' command")
}

/// An error that quotes an argument.
pub fn quoting(before: &str, arg: &[u8], after: &str) -> Vec<u8> {
    [before.as_bytes(), shown(arg), after.as_bytes()].concat()
}

pub fn help(ctx: &mut Ctx, key: ConnKey, name: &str, lines: &[&str]) {
    ctx.io.reply(key, |out, _| {
        resp::array_header(out, lines.len() + 3);
        resp::simple(out, &format!("{name} <subcommand> [<argument> ...], where the subcommand is one of:"));
        lines.iter().for_each(|line| resp::simple(out, line));
        resp::simple(out, "HELP");
        resp::simple(out, "    Print this text.");
    });
}
