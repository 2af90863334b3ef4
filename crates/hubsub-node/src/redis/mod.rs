//! Redis commands. One table names them all; `execute` does the checks common to every command, in Redis's
//! order, and calls its function.
//!
//! A function sends exactly one reply per element that Redis replies with: at once by `Io::reply`, or later
//! through `Io::wait`.
//!
//! Layers, from below; those of one line do not know each other:
//!
//! 1. [`state`], the nodes of the cluster listener; [`args`]; [`reply`], what commands have in common; [`table`], which finds a command
//! 2. [`caller`], the connection that sent it
//! 3. families: [`client`], [`cluster`], [`command`], [`config`], [`connection`], [`hubsub`], [`info`],
//!    [`pubsub`], [`server`], [`transaction`]
//! 4. [`commands`], the list with their functions; [`moved_slots`]
//! 5. `execute`

mod args;
mod caller;
mod client;
mod cluster;
mod command;
mod commands;
mod config;
mod connection;
mod hubsub;
mod info;
pub mod moved_slots;
mod pubsub;
mod reply;
mod server;
pub(crate) mod state;
mod table;
mod transaction;

pub use hubsub::write_started;

use crate::context::conn::{Flags, NO_COMMAND};
use crate::context::{Ctx, refusals};
use crate::io::listener::ListenerKind;
use crate::io::wrong_protocol;
use args::{Args, shown};
use caller::{is_subscribed, refused_to_administer, take_transaction};
use commands::TABLE;
use hubsub_types::ConnKey;
use hubsub_wire::resp::Proto;
use reply::{error, wrong_arity};
use std::sync::atomic::Ordering;
use table::{Command, Lookup, NOT_QUEUED, WHILE_SUBSCRIBED};

pub fn execute(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    let second = ctx.io.second();
    let Some(conn) = ctx.io.conns.get_mut(key) else { return };
    conn.active_s = second;
    let skips = conn.flags.any(Flags::REPLY_SKIP_NEXT);
    conn.flags.set(Flags::REPLY_SKIP, skips);
    conn.flags.set(Flags::REPLY_SKIP_NEXT, false);
    let is_first = !conn.flags.any(Flags::HANDSHAKED);
    conn.flags.set(Flags::HANDSHAKED, true);
    ctx.io.metrics.commands_total.add(1);
    let (index, command) = match TABLE.find(args) {
        Lookup::Found(index, command) => (index, command),
        missing => {
            conn.command = NO_COMMAND;
            let is_subcommand = matches!(missing, Lookup::NoSubcommand);
            return if is_subcommand {
                unknown_subcommand(ctx, key, args)
            } else {
                unknown(ctx, key, args, is_first)
            };
        }
    };
    conn.command = index;
    let is_resp2 = conn.session.proto() == Proto::Resp2;
    let is_of_cluster = conn.kind == ListenerKind::RedisCluster;
    let is_queued = conn.extra.as_ref().is_some_and(|e| e.transaction.is_some()) && !command.has(NOT_QUEUED);
    if !command.accepts(args.len()) {
        return reject(ctx, key, command, &wrong_arity(command.name));
    }
    if let Some(error) = refused_to_administer(ctx, key, command) {
        return reject(ctx, key, command, &error);
    }
    if is_of_cluster && let Some(error) = cluster::redirection(ctx, key, &TABLE, command, args) {
        return redirect(ctx, key, command, &error);
    }
    if is_resp2 && !command.has(WHILE_SUBSCRIBED) && is_subscribed(ctx, key) {
        return reject(ctx, key, command, &refused_while_subscribed(command));
    }
    if is_queued {
        return transaction::queue(ctx, key, args);
    }
    (command.run)(ctx, key, args);
}

pub fn command_name(index: u8) -> &'static str {
    TABLE.commands.get(usize::from(index)).map_or("NULL", |c| c.name)
}

/// Refuses a command before it is run or queued; an open transaction will not be executed.
fn reject(ctx: &mut Ctx, key: ConnKey, command: &Command, text: &str) {
    if command.name == "exec" {
        return transaction::abort(ctx, key, text);
    }
    transaction::spoil(ctx, key);
    error(ctx, key, text);
}

/// Redirects a cluster client; its transaction is not executed here.
fn redirect(ctx: &mut Ctx, key: ConnKey, command: &Command, text: &str) {
    if command.name == "exec" {
        take_transaction(ctx, key);
    } else {
        transaction::spoil(ctx, key);
    }
    error(ctx, key, text);
}

/// The error of a command that a RESP2 client must not send while subscribed.
fn refused_while_subscribed(command: &Command) -> String {
    let allowed = "only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context";
    format!("ERR Can't execute '{}': {allowed}", command.name)
}

/// The most bytes of an unknown command's name, and of its arguments, that the error quotes.
const QUOTED_MAX: usize = 128;

fn unknown(ctx: &mut Ctx, key: ConnKey, args: Args<'_>, is_first: bool) {
    if is_first && wrong_protocol::is_http(args) {
        return refusals::refuse_protocol(&mut ctx.io, key, wrong_protocol::WrongProtocol::Http);
    }
    transaction::spoil(ctx, key);
    error(ctx, key, unknown_text(args));
    if table::is_of_redis_data(args[0]) && !ctx.io.info.hinted.swap(true, Ordering::Relaxed) {
        let fields = vec![
            ("command", String::from_utf8_lossy(args[0]).to_ascii_lowercase()),
            ("hint", "HubSub carries messages, it stores no keys".to_owned()),
        ];
        ctx.io.log_conn(crate::control::Level::Warning, "command of Redis's data types", key, fields);
    }
}

fn unknown_text(args: Args<'_>) -> Vec<u8> {
    let name = &shown(args[0])[..shown(args[0]).len().min(QUOTED_MAX)];
    let mut text = [b"ERR unknown command '", name, b"', with args beginning with: "].concat();
    let start = text.len();
    for arg in &args[1..] {
        let quoted = text.len() - start;
        if quoted >= QUOTED_MAX {
            break;
        }
        let arg = shown(arg);
        text.push(b'\'');
        text.extend_from_slice(&arg[..arg.len().min(QUOTED_MAX - quoted)]);
        text.extend_from_slice(b"' ");
    }
    text
}

fn unknown_subcommand(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    let sub = &shown(args[1])[..shown(args[1]).len().min(QUOTED_MAX)];
    let container = args[0].to_ascii_uppercase();
    transaction::spoil(ctx, key);
    error(ctx, key, [b"ERR unknown subcommand '", sub, b"'. Try ", &container, b" HELP."].concat());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_command_is_quoted_with_at_most_128_bytes_of_arguments() {
        let text = |args: Args<'_>| String::from_utf8(unknown_text(args)).unwrap();
        assert_eq!(text(&[b"FOO"]), "ERR unknown command 'FOO', with args beginning with: ");
        assert_eq!(text(&[b"f", b"a\0b", b""]), "ERR unknown command 'f', with args beginning with: 'a' '' ");
        let long = [b'x'; 200];
        let cut = "x".repeat(128);
        assert_eq!(text(&[&long]), format!("ERR unknown command '{cut}', with args beginning with: "));
        assert!(text(&[b"f", &long, b"y"]).ends_with(&format!(": '{cut}' ")));
        assert!(text(&[b"f", &long[..123], b"yyy", b"z"]).ends_with("x' 'yy' "));
    }
}
