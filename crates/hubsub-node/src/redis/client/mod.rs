//! CLIENT subcommands about the requesting connection: name, library, replies and flags. `list` lists all
//! connections, `kill` closes them.

pub mod kill;
pub mod list;

use super::{Args, SYNTAX, error, is, ok, quoting};
use crate::context::Ctx;
use crate::context::conn::{Conn, Flags};
use hubsub_types::ConnKey;
use hubsub_wire::resp;

/// The longest name of a connection, of a library and of its version, in bytes: records of classes with
/// history contain the first, and CLIENT LIST returns all of them. Redis has no limit.
pub const NAME_BYTES_MAX: usize = hubsub_route::PUBLISHER_BYTES_MAX;

/// The error for names with blanks.
const BLANKS: &str = " cannot contain spaces, newlines or special characters.";

/// Checks a client's name, or part of a library's.
///
/// # Errors
/// The error reply, which calls the argument `what`.
pub fn check_name(what: &[u8], name: &[u8]) -> Result<(), Vec<u8>> {
    if name.len() > NAME_BYTES_MAX {
        return Err(quoting("ERR ", what, &format!(" cannot be longer than {NAME_BYTES_MAX} bytes.")));
    }
    let is_plain = name.iter().all(|b| (b'!'..=b'~').contains(b));
    if is_plain { Ok(()) } else { Err(quoting("ERR ", what, BLANKS)) }
}

/// The term for a connection's name in these errors.
pub const CLIENT_NAMES: &[u8] = b"Client names";

/// Sets the name of a connection; the caller has checked it.
pub fn set_name(conn: &mut Conn, name: &[u8]) {
    if !name.is_empty() || conn.extra.is_some() {
        conn.extra().name = String::from_utf8_lossy(name).into();
    }
}

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

/// `CLIENT NO-EVICT ON|OFF`: sets a flag that only `CLIENT LIST` and `CLIENT INFO` show.
pub fn no_evict(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    switch(ctx, key, args, Flags::NO_EVICT);
}

/// `CLIENT NO-TOUCH ON|OFF`: sets a flag that only `CLIENT LIST` and `CLIENT INFO` show.
pub fn no_touch(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    switch(ctx, key, args, Flags::NO_TOUCH);
}

/// Sets a flag to ON or OFF.
pub fn switch(ctx: &mut Ctx, key: ConnKey, args: Args<'_>, flag: Flags) {
    let on = is(args[2], "on");
    if !on && !is(args[2], "off") {
        return error(ctx, key, SYNTAX);
    }
    if let Some(conn) = ctx.io.conns.get_mut(key) {
        conn.flags.set(flag, on);
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

pub fn help(ctx: &mut Ctx, key: ConnKey, _: Args<'_>) {
    super::server::write_help(ctx, key, "CLIENT", HELP);
}

const HELP: &[&str] = &[
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_have_no_blanks_and_no_control_characters() {
        let is_name = |name: &[u8]| check_name(CLIENT_NAMES, name).is_ok();
        assert!(is_name(b"") && is_name(b"!~") && is_name(b"worker-1"));
        for name in [&b"a b"[..], b"a\n", b"\x7f", b"\xc3\xa4", b"\0"] {
            assert!(!is_name(name), "{name:?}");
        }
        assert!(is_name(&[b'x'; NAME_BYTES_MAX]) && !is_name(&[b'x'; NAME_BYTES_MAX + 1]));
    }
}
