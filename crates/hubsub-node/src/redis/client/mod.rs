//! CLIENT subcommands about the requesting connection: name, library, replies and flags. `list` lists all
//! connections, `kill` closes them.

pub mod kill;
pub mod list;

use super::args::{Args, is};
use super::caller::{CLIENT_NAMES, check_name, set_name};
use super::reply::{SYNTAX, error, ok, quoting};
use crate::context::Ctx;
use crate::context::conn::Flags;
use hubsub_types::ConnKey;
use hubsub_wire::resp;

/// `CLIENT ID`: replies this connection's number.
pub fn id(ctx: &mut Ctx, key: ConnKey, _: Args<'_>) {
    let Some(id) = ctx.io.conns.get(key).map(|conn| conn.id) else { return };
    ctx.io.reply(key, |out, _| resp::int(out, id as i64));
}

/// `CLIENT GETNAME`: replies the name, or null without one.
pub fn getname(ctx: &mut Ctx, key: ConnKey, _: Args<'_>) {
    let extra = ctx.io.conns.get(key).and_then(|conn| conn.extra.as_ref());
    let name = extra.map(|extra| extra.name.clone()).unwrap_or_default();
    ctx.io.reply(key, |out, proto| match &*name {
        "" => resp::null(out, proto),
        name => resp::bulk(out, name.as_bytes()),
    });
}

/// `CLIENT SETNAME name`; an empty name removes it.
pub fn setname(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    if let Err(text) = check_name(CLIENT_NAMES, args[2]) {
        return error(ctx, key, text);
    }
    if let Some(conn) = ctx.io.conns.get_mut(key) {
        set_name(conn, args[2]);
    }
    ok(ctx, key);
}

/// `CLIENT SETINFO LIB-NAME|LIB-VER text`.
pub fn setinfo(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    let (option, text) = (args[2], args[3]);
    let is_name_of_library = is(option, "lib-name");
    if !is_name_of_library && !is(option, "lib-ver") {
        return error(ctx, key, quoting("ERR Unrecognized option '", option, "'"));
    }
    if let Err(text) = check_name(option, text) {
        return error(ctx, key, text);
    }
    if let Some(conn) = ctx.io.conns.get_mut(key) {
        let text = String::from_utf8_lossy(text).into();
        *(if is_name_of_library { &mut conn.extra().lib_name } else { &mut conn.extra().lib_ver }) = text;
    }
    ok(ctx, key);
}

/// `CLIENT REPLY ON|OFF|SKIP`: only ON gets a reply.
pub fn reply(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    let Some(conn) = ctx.io.conns.get_mut(key) else { return };
    if is(args[2], "on") {
        conn.flags.set(Flags::REPLY_OFF.or(Flags::REPLY_SKIP), false);
        ok(ctx, key);
    } else if is(args[2], "off") {
        conn.flags.set(Flags::REPLY_OFF, true);
    } else if is(args[2], "skip") {
        let is_on = !conn.flags.any(Flags::REPLY_OFF);
        conn.flags.set(Flags::REPLY_SKIP_NEXT, is_on);
    } else {
        error(ctx, key, SYNTAX);
    }
}

pub const HELP: &[&str] = &[
    "GETNAME",
    "    The name that SETNAME gave to this connection.",
    "ID",
    "    The number of this connection; none is used twice.",
    "INFO",
    "    What LIST shows, of this connection.",
    "KILL <ip:port>",
    "    Close the connection from this address.",
    "KILL <option> <value> [<option> <value> ...]",
    "    Close connections for which all of these hold:",
    "    * ID <id>, ADDR <ip:port>, LADDR <ip:port>, USER <name>, MAXAGE <seconds>",
    "    * TYPE (NORMAL|PUBSUB|MASTER|REPLICA)",
    "    * SKIPME (YES|NO): whether to spare this connection, YES unless said.",
    "LIST [TYPE (NORMAL|PUBSUB|MASTER|REPLICA) | ID <id> [<id> ...]]",
    "    A line a connection.",
    "NO-EVICT (ON|OFF)",
    "    Accepted; no connection is evicted for memory.",
    "NO-TOUCH (ON|OFF)",
    "    Accepted; there are no keys.",
    "REPLY (ON|OFF|SKIP)",
    "    Whether commands are answered; SKIP leaves out the next one.",
    "SETINFO (LIB-NAME|LIB-VER) <text>",
    "    Tell which client library this is.",
    "SETNAME <name>",
    "    Name this connection; records it publishes carry the name.",
];
