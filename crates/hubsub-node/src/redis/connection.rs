//! Commands about the connection: PING, ECHO, QUIT, SELECT, RESET, AUTH, HELLO.

use super::args::{Args, integer, is};
use super::caller::{CLIENT_NAMES, check_name, is_of_cluster, is_subscribed, set_name, take_transaction};
use super::reply::{NOT_A_NUMBER, REDIS_VERSION, SYNTAX, error, ok, quoting, texts, wrong_arity};
use crate::context::Ctx;
use crate::context::conn::Flags;
use crate::context::session::Session;
use hubsub_route::Namespace;
use hubsub_types::{ConnKey, PrincipalId};
use hubsub_wire::resp::{self, Proto};

/// `PING [message]`: a subscribed RESP2 client gets an array.
pub fn ping(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    if args.len() > 2 {
        return error(ctx, key, wrong_arity("ping"));
    }
    let subscribed = is_subscribed(ctx, key);
    ctx.io.reply(key, |out, proto| match args.get(1) {
        message if subscribed && proto == Proto::Resp2 => {
            resp::array_header(out, 2);
            resp::bulk(out, b"pong");
            resp::bulk(out, message.copied().unwrap_or_default());
        }
        Some(message) => resp::bulk(out, message),
        None => resp::simple(out, "PONG"),
    });
}

/// `ECHO message`: replies the message.
pub fn echo(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    ctx.io.reply(key, |out, _| resp::bulk(out, args[1]));
}

/// `QUIT`: replies OK, then closes.
pub fn quit(ctx: &mut Ctx, key: ConnKey, _: Args<'_>) {
    ok(ctx, key);
    ctx.io.close_soon(key);
}

/// `SELECT index`: accepts 0 to 15, which are all one database; on the cluster listener only 0.
pub fn select(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    const MIN: i64 = i32::MIN as i64;
    const MAX: i64 = i32::MAX as i64;
    match integer(args[1]) {
        Some(MIN..=-1 | 1..=MAX) if is_of_cluster(ctx, key) => {
            error(ctx, key, "ERR SELECT is not allowed in cluster mode");
        }
        Some(0..16) => ok(ctx, key),
        Some(MIN..=MAX) => error(ctx, key, "ERR DB index is out of range"),
        Some(_) => error(ctx, key, format!("ERR value is out of range, value must between {MIN} and {MAX}")),
        None => error(ctx, key, NOT_A_NUMBER),
    }
}

/// `RESET`: restores the state of a new connection, except for the library's name.
pub fn reset(ctx: &mut Ctx, key: ConnKey, _: Args<'_>) {
    let now = ctx.io.now;
    for namespace in [Namespace::Global, Namespace::Shard] {
        for topic in ctx.broker.topics_of(key, namespace) {
            ctx.broker.unsubscribe(key, namespace, &topic, now, &mut ctx.io);
        }
    }
    for pattern in ctx.broker.patterns_of(key) {
        ctx.broker.unsubscribe_pattern(key, &pattern, &mut ctx.io);
    }
    let Some(conn) = ctx.io.conns.get_mut(key) else { return };
    conn.session = Session::Redis(Proto::Resp2);
    conn.principal = PrincipalId::default();
    // A skip of this reply remains.
    for flag in [Flags::POSITIONS, Flags::REPLY_OFF, Flags::NO_EVICT, Flags::NO_TOUCH] {
        conn.flags.set(flag, false);
    }
    if let Some(extra) = &mut conn.extra {
        extra.name = Box::default();
    }
    take_transaction(ctx, key);
    ctx.io.reply(key, |out, _| resp::simple(out, "RESET"));
}

const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the default user. \
Are you sure your configuration is correct?";
const WRONG_PASS: &str = "WRONGPASS invalid username-password pair or user is disabled.";

/// `AUTH [user] password`. The default user has no password.
pub fn auth(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    match args {
        [_, _] => error(ctx, key, NO_PASSWORD),
        [_, user, _] if *user == b"default" => ok(ctx, key),
        [_, _, _] => error(ctx, key, WRONG_PASS),
        _ => error(ctx, key, SYNTAX),
    }
}

/// `HELLO [version [AUTH user password] [SETNAME name]]`.
pub fn hello(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    let proto = match args.get(1).map(|version| integer(version)) {
        None => ctx.io.conns.get(key).map_or(Proto::Resp2, |c| c.session.proto()),
        Some(Some(2)) => Proto::Resp2,
        Some(Some(3)) => Proto::Resp3,
        Some(Some(_)) => return error(ctx, key, "NOPROTO unsupported protocol version"),
        Some(None) => return error(ctx, key, "ERR Protocol version is not an integer or out of range"),
    };
    if let Err(text) = hello_options(ctx, key, args.get(2..).unwrap_or_default()) {
        return error(ctx, key, text);
    }
    let mode = if is_of_cluster(ctx, key) { "cluster" } else { "standalone" };
    let Some(conn) = ctx.io.conns.get_mut(key) else { return };
    conn.session = Session::Redis(proto);
    let id = conn.id;
    ctx.io.reply_before_records(key, |out, proto| {
        resp::map_header(out, proto, 7);
        texts(out, &["server", "redis", "version", REDIS_VERSION, "proto"]);
        resp::int(out, if proto == Proto::Resp3 { 3 } else { 2 });
        resp::bulk(out, b"id");
        resp::int(out, id as i64);
        texts(out, &["mode", mode, "role", "master", "modules"]);
        resp::array_header(out, 0);
    });
}

/// Options take effect one by one: a wrong one does not undo those before it.
fn hello_options(ctx: &mut Ctx, key: ConnKey, mut rest: Args<'_>) -> Result<(), Vec<u8>> {
    loop {
        rest = match rest {
            [] => return Ok(()),
            [option, user, _, rest @ ..] if is(option, "auth") => {
                if *user != b"default" {
                    return Err(WRONG_PASS.into());
                }
                rest
            }
            [option, name, rest @ ..] if is(option, "setname") => {
                check_name(CLIENT_NAMES, name)?;
                if let Some(conn) = ctx.io.conns.get_mut(key) {
                    set_name(conn, name);
                }
                rest
            }
            [option, ..] => return Err(quoting("ERR Syntax error in HELLO option '", option, "'")),
        }
    }
}
