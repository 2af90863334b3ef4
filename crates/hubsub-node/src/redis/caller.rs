//! The connection that sent a command: its permissions, its name, and the state that several commands
//! read or change.

use super::args::{Args, is};
use super::reply::{SYNTAX, error, ok, quoting};
use super::table::{ADMIN, Command};
use crate::context::Ctx;
use crate::context::conn::{Conn, Flags, Transaction};
use crate::io::access::Action;
use crate::io::listener::ListenerKind;
use crate::io::output::Pending;
use hubsub_route::Outcome;
use hubsub_types::{ConnKey, ErrorCode};
use hubsub_wire::resp::Proto;

pub fn is_of_cluster(ctx: &Ctx, key: ConnKey) -> bool {
    ctx.io.conns.get(key).is_some_and(|conn| conn.kind == ListenerKind::RedisCluster)
}

pub fn is_subscribed(ctx: &Ctx, key: ConnKey) -> bool {
    let (topics, patterns, shard) = ctx.broker.counts(key);
    topics + patterns + shard > 0
}

/// Why a command that administers the node is not permitted; none if it is. Publishing and subscribing are
/// checked where the topics are known.
pub fn refused_to_administer(ctx: &Ctx, key: ConnKey, command: &Command) -> Option<String> {
    if !command.has(ADMIN) {
        return None;
    }
    let principal = ctx.io.conns.get(key)?.principal;
    let is_allowed = ctx.io.access.allowed(principal, Action::Admin, b"");
    let text = || format!("NOPERM this user has no permissions to run the '{}' command", command.name);
    (!is_allowed).then(text)
}

/// True if a client may subscribe; otherwise an error is sent and the refusal counted.
pub fn allowed_to_subscribe(ctx: &mut Ctx, key: ConnKey, topic: &[u8]) -> bool {
    let allowed = allowed_to_read(ctx, key, topic);
    if !allowed {
        ctx.count_refusal(false);
    }
    allowed
}

/// Confirms a subscription with what `write` writes, now or in its place among the replies.
pub fn confirm<T>(
    ctx: &mut Ctx,
    key: ConnKey,
    outcome: Outcome<Result<T, ErrorCode>>,
    write: impl Fn(&mut Vec<u8>, Proto),
) {
    match outcome {
        Outcome::Now(Ok(_)) => ctx.io.push(key, write),
        Outcome::Now(Err(refused)) => refuse_subscription(ctx, key, refused),
        Outcome::Later => {
            let Some(proto) = ctx.io.conns.get(key).map(|c| c.session.proto()) else { return };
            let mut frame = Vec::new();
            write(&mut frame, proto);
            ctx.io.wait(key, Pending::Confirm(frame));
        }
    }
}

/// Replies an error and counts the refusal.
pub fn refuse_subscription(ctx: &mut Ctx, key: ConnKey, refused: ErrorCode) {
    ctx.count_refusal(false);
    error(ctx, key, &*refused.resp_line());
}

/// True if a client may read a topic's records; otherwise an error is sent.
pub fn allowed_to_read(ctx: &mut Ctx, key: ConnKey, topic: &[u8]) -> bool {
    let Some(conn) = ctx.io.conns.get(key) else { return false };
    let allowed = ctx.io.access.allowed(conn.principal, Action::Subscribe, topic);
    if !allowed {
        error(ctx, key, &*ErrorCode::NotAllowed.resp_line());
    }
    allowed
}

/// `CLIENT NO-EVICT|NO-TOUCH ON|OFF`, which only `CLIENT LIST` and `CLIENT INFO` show, and `HUBSUB POSITIONS
/// ON|OFF`, whether messages carry their positions: sets a flag.
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

pub fn take_transaction(ctx: &mut Ctx, key: ConnKey) -> Option<Transaction> {
    let transaction = ctx.io.conns.get_mut(key)?.extra.as_mut()?.transaction.take()?;
    ctx.io.input_bytes -= transaction.bytes;
    Some(transaction)
}

/// The longest name of a connection, of a library and of its version, in bytes: records of classes with
/// history contain the first, and CLIENT LIST returns all of them. Redis has no limit.
pub const NAME_BYTES_MAX: usize = hubsub_route::PUBLISHER_BYTES_MAX;

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
