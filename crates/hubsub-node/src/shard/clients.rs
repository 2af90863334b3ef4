//! Connections as CLIENT LIST and the API show them, and their selection by filter.

use crate::context::Ctx;
use crate::context::conn::{Conn, Flags};
use crate::io::questions::{ClientFilter, ClientInfo};
use hubsub_types::ConnKey;

pub(crate) fn is_meant(ctx: &Ctx, filter: &ClientFilter, key: ConnKey, conn: &Conn) -> bool {
    let is = |wanted: &Option<String>, is: String| wanted.as_ref().is_none_or(|w| *w == is);
    !conn.is_closing()
        && (filter.ids.is_empty() || filter.ids.binary_search(&conn.id).is_ok())
        && (filter.client_ids.is_empty()
            || conn.session.mqtt().is_some_and(|c| c.is_any_of(&filter.client_ids)))
        && filter.except != Some(conn.id)
        && u64::from(ctx.io.second().saturating_sub(conn.created_s)) >= filter.age_s_min
        && filter.user.as_ref().is_none_or(|user| user == "default")
        && filter.kind.as_ref().is_none_or(|wanted| wanted == kind(ctx, key))
        && (filter.addr.is_none() || is(&filter.addr, address(conn.io.peer())))
        && (filter.laddr.is_none() || is(&filter.laddr, address(conn.io.local())))
}

/// The client type that Redis would report.
fn kind(ctx: &Ctx, key: ConnKey) -> &'static str {
    let (topics, patterns, shard) = ctx.broker.counts(key);
    if topics + patterns + shard > 0 { "pubsub" } else { "normal" }
}

pub(crate) fn client_info(ctx: &Ctx, key: ConnKey, conn: &Conn) -> ClientInfo {
    let (topics, patterns, shard) = ctx.broker.counts(key);
    let second = ctx.io.second();
    let rates = conn.meter.rates(second);
    let extra = conn.extra.as_deref();
    let multi = extra.and_then(|e| e.transaction.as_ref()).map(|t| t.commands.len() as u64);
    let mut flags = String::new();
    let marks = [('P', topics + patterns + shard > 0), ('x', multi.is_some())];
    let more = [('e', conn.flags.any(Flags::NO_EVICT)), ('T', conn.flags.any(Flags::NO_TOUCH))];
    flags.extend(marks.iter().chain(&more).filter(|(_, on)| *on).map(|(c, _)| c));
    if flags.is_empty() {
        flags.push('N');
    }
    let output = conn.output.as_deref();
    let machine = conn.session.mqtt().map(|client| &client.machine);
    let pending = conn.session.mqtt().map(|client| &client.pending);
    ClientInfo {
        id: conn.id,
        shard: ctx.io.shard.0,
        addr: address(conn.io.peer()),
        laddr: address(conn.io.local()),
        descriptor: conn.io.descriptor(),
        name: match machine {
            Some(machine) => machine.client_id().to_owned(),
            None => extra.map_or_else(String::new, |e| e.name.to_string()),
        },
        lib_name: extra.map_or_else(String::new, |e| e.lib_name.to_string()),
        lib_ver: extra.map_or_else(String::new, |e| e.lib_ver.to_string()),
        protocol: conn.session.name(),
        age_s: u64::from(second - conn.created_s.min(second)),
        idle_s: u64::from(second - conn.active_s.min(second)),
        flags,
        subscriptions: topics as u64,
        patterns: patterns as u64,
        shard_subscriptions: shard as u64,
        multi,
        query_bytes: conn.input.as_ref().map_or(0, |i| i.bytes.len() as u64),
        pending_bytes: (output.map_or(0, |o| o.pending_bytes()) + pending.map_or(0, |p| p.bytes())) as u64,
        pending_frames: (output.map_or(0, |o| o.queue.len() + o.slots.len()) + pending.map_or(0, |p| p.len()))
            as u64,
        keep_alive_s: machine.map_or(0, |m| m.keep_alive_s()),
        inflight: machine.map_or(0, |m| m.window.len() as u64),
        inflight_max: machine.map_or(0, |m| m.window.size() as u64),
        waiting: pending.map_or(0, |p| p.len() as u64),
        dropped: extra.map_or(0, |e| e.dropped),
        lagging: ctx.broker.cursors.count(key.index) as u64,
        command: crate::redis::command_name(conn.command),
        totals: conn.meter.totals,
        per_second: rates.second,
        per_minute: rates.minute,
    }
}

fn address(address: Option<std::net::SocketAddr>) -> String {
    address.map_or_else(|| "?:0".to_owned(), |a| a.to_string())
}
