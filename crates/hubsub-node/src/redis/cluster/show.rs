//! The cluster in the formats of Redis 7: CLUSTER SLOTS, SHARDS, NODES, INFO, LINKS. Every node is a master
//! without replicas.

use crate::context::Ctx;
use crate::redis::args::Args;
use crate::redis::caller::is_of_cluster;
use crate::redis::reply::error;
use crate::redis::state::slot::SLOTS;
use crate::redis::state::{ClusterNode, Roster};
use hubsub_types::ConnKey;
use hubsub_wire::resp::{self, Proto};
use std::fmt::Write;
use std::sync::Arc;

/// A node's host for a client that connected to `here`. It is never empty, because some clients do not
/// interpret an empty host as the one they used.
pub fn host<'a>(node: &'a ClusterNode, here: &'a str) -> &'a str {
    if node.host.is_empty() { here } else { &node.host }
}

/// The address that a client connected to.
pub fn host_here(ctx: &Ctx, key: ConnKey) -> String {
    let local = ctx.io.conns.get(key).and_then(|conn| conn.io.local());
    local.map_or_else(String::new, |address| address.ip().to_canonical().to_string())
}

/// True for clients of the cluster listener; others get an error.
pub fn serves(ctx: &mut Ctx, key: ConnKey) -> bool {
    let serves = is_of_cluster(ctx, key);
    if !serves {
        error(ctx, key, "ERR This instance has cluster support disabled");
    }
    serves
}

/// Replies with the node list, for the address that the client connected to.
fn show(ctx: &mut Ctx, key: ConnKey, write: impl FnOnce(&mut Vec<u8>, Proto, &Roster, &str)) {
    if serves(ctx, key) {
        let (roster, here) = (Arc::clone(&ctx.io.states.roster), host_here(ctx, key));
        ctx.io.reply(key, |out, proto| write(out, proto, &roster, &here));
    }
}

/// `CLUSTER SLOTS`: `[first, last, [host, port, id, {}]]` per range.
pub fn slots(ctx: &mut Ctx, key: ConnKey, _: Args<'_>) {
    show(ctx, key, |out, proto, roster, here| {
        resp::array_header(out, roster.ranges().len());
        for (range, node) in roster.ranges() {
            resp::array_header(out, 3);
            resp::int(out, i64::from(range.first));
            resp::int(out, i64::from(range.last));
            resp::array_header(out, 4);
            resp::bulk(out, host(node, here).as_bytes());
            resp::int(out, i64::from(node.port));
            resp::bulk(out, node.id.as_bytes());
            resp::map_header(out, proto, 0);
        }
    });
}

/// `CLUSTER SHARDS`: `{slots: [first, last, …], nodes: [{…}]}` per node.
pub fn shards(ctx: &mut Ctx, key: ConnKey, _: Args<'_>) {
    show(ctx, key, |out, proto, roster, here| {
        resp::array_header(out, roster.nodes().len());
        for (place, node) in roster.nodes() {
            let ranges = roster.ranges_of(place);
            resp::map_header(out, proto, 2);
            resp::bulk(out, b"slots");
            resp::array_header(out, 2 * ranges.clone().count());
            for slot in ranges.flat_map(|range| [range.first, range.last]) {
                resp::int(out, i64::from(slot));
            }
            resp::bulk(out, b"nodes");
            resp::array_header(out, 1);
            write_node(out, proto, node, host(node, here));
        }
    });
}

fn write_node(out: &mut Vec<u8>, proto: Proto, node: &ClusterNode, host: &str) {
    resp::map_header(out, proto, 7);
    resp::bulk(out, b"id");
    resp::bulk(out, node.id.as_bytes());
    resp::bulk(out, b"port");
    resp::int(out, i64::from(node.port));
    for (name, text) in [("ip", host), ("endpoint", host), ("role", "master")] {
        resp::bulk(out, name.as_bytes());
        resp::bulk(out, text.as_bytes());
    }
    resp::bulk(out, b"replication-offset");
    resp::int(out, 0);
    resp::bulk(out, b"health");
    resp::bulk(out, b"online");
}

/// `CLUSTER NODES`: one line per node, with its ranges at the end. There is no bus port.
pub fn nodes(ctx: &mut Ctx, key: ConnKey, _: Args<'_>) {
    show(ctx, key, |out, proto, roster, here| {
        resp::verbatim(out, proto, lines(roster, here).as_bytes());
    });
}

fn lines(roster: &Roster, here: &str) -> String {
    let (mut text, own) = (String::new(), roster.own().map(|(place, _)| place));
    let proof = "a text takes what is written to it";
    for (place, node) in roster.nodes() {
        let flags = if own == Some(place) { "myself,master" } else { "master" };
        let (id, host, port) = (&node.id, host(node, here), node.port);
        write!(text, "{id} {host}:{port}@0 {flags} - 0 0 {place} connected").expect(proof);
        for range in roster.ranges_of(place) {
            write!(text, " {}", range.first).expect(proof);
            if range.last > range.first {
                write!(text, "-{}", range.last).expect(proof);
            }
        }
        text.push('\n');
    }
    text
}

/// `CLUSTER INFO`. A node's epoch is its index.
pub fn info(ctx: &mut Ctx, key: ConnKey, _: Args<'_>) {
    show(ctx, key, |out, proto, roster, _| {
        let nodes = roster.nodes().len() as u64;
        let slots = if nodes > 0 { u64::from(SLOTS) } else { 0 };
        let mut text = format!("cluster_state:{}\r\n", if nodes > 0 { "ok" } else { "fail" });
        let lines = [
            ("cluster_slots_assigned", slots),
            ("cluster_slots_ok", slots),
            ("cluster_slots_pfail", 0),
            ("cluster_slots_fail", 0),
            ("cluster_known_nodes", nodes),
            ("cluster_size", nodes),
            ("cluster_current_epoch", nodes.saturating_sub(1)),
            ("cluster_my_epoch", roster.own().map_or(0, |(place, _)| u64::from(place))),
            ("cluster_stats_messages_sent", 0),
            ("cluster_stats_messages_received", 0),
            ("total_cluster_links_buffer_limit_exceeded", 0),
        ];
        lines.iter().for_each(|(name, value)| text.push_str(&format!("{name}:{value}\r\n")));
        resp::verbatim(out, proto, text.as_bytes());
    });
}

/// `CLUSTER LINKS`: always empty, because there is no Redis cluster bus.
pub fn links(ctx: &mut Ctx, key: ConnKey, _: Args<'_>) {
    show(ctx, key, |out, _, _, _| resp::array_header(out, 0));
}
