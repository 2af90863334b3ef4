//! The additions of the cluster listener to plain Redis: CLUSTER, and commands that name channels of slots,
//! which the slot's owner executes.
//!
//! Slots determine the node that a client connects to, not where rooms are: every node serves every room by
//! forwarding. So no data moves with a slot, and any node could execute any command; clients are redirected
//! to the owner because they expect to find the node of a shard channel that way.

mod show;

pub use show::{info, links, nodes, shards, slots};

use super::args::{Args, integer};
use super::reply::{self, NOT_A_NUMBER, error, ok, quoting};
use super::state::slot::{SLOTS, slot_of};
use super::table::{Command, Lookup, Table};
use crate::context::Ctx;
use hubsub_types::ConnKey;
use hubsub_wire::resp;
use show::{host_here, serves};
use std::sync::Arc;

const CROSS_SLOT: &str = "CROSSSLOT Keys in request don't hash to the same slot";
const DOWN: &str = "CLUSTERDOWN Hash slot not served";

/// Why a cluster client's command is not executed here: its names have several slots, or one of another node.
/// For EXEC all queued commands are checked.
pub fn redirection(
    ctx: &Ctx,
    key: ConnKey,
    table: &Table,
    command: &Command,
    args: Args<'_>,
) -> Option<String> {
    let slot = if command.name == "exec" {
        queued_slot(ctx, key, table)
    } else {
        one_slot(None, hashed(command, args))
    };
    let Ok(slot) = slot else { return Some(CROSS_SLOT.to_owned()) };
    let slot = slot?;
    match ctx.io.states.roster.owner(slot) {
        Some((_, true)) => None,
        // Redis redirects these too. A client that was notified of a moved slot may already unsubscribe.
        _ if command.name == "sunsubscribe" => None,
        Some((owner, false)) => {
            let here = host_here(ctx, key);
            Some(format!("MOVED {slot} {}:{}", show::host(owner, &here), owner.port))
        }
        None => Some(DOWN.to_owned()),
    }
}

struct CrossSlot;

/// The common slot of these names and of `before`.
fn one_slot(before: Option<u16>, names: Args<'_>) -> Result<Option<u16>, CrossSlot> {
    let mut slot = before;
    for name in names {
        let of_name = slot_of(name);
        if *slot.get_or_insert(of_name) != of_name {
            return Err(CrossSlot);
        }
    }
    Ok(slot)
}

/// The slot of the names in the connection's transaction.
fn queued_slot(ctx: &Ctx, key: ConnKey, table: &Table) -> Result<Option<u16>, CrossSlot> {
    let extra = ctx.io.conns.get(key).and_then(|conn| conn.extra.as_ref());
    let Some(transaction) = extra.and_then(|extra| extra.transaction.as_ref()) else { return Ok(None) };
    transaction.commands.iter().try_fold(None, |slot, command| {
        let args: Vec<&[u8]> = command.iter().map(|arg| &**arg).collect();
        match table.find(&args) {
            Lookup::Found(_, command) => one_slot(slot, hashed(command, &args)),
            _ => Ok(slot),
        }
    })
}

/// The arguments whose slot determines the node.
fn hashed<'a, 'b>(command: &Command, args: &'b [&'a [u8]]) -> &'b [&'a [u8]] {
    match command.keys() {
        None => &[],
        Some((0, _)) => &args[1..2],
        Some(_) => &args[1..],
    }
}

/// `ASKING`, `READONLY`, `READWRITE`: no slot is being migrated and there are no replicas.
pub fn accept(ctx: &mut Ctx, key: ConnKey, _: Args<'_>) {
    if serves(ctx, key) {
        ok(ctx, key);
    }
}

/// `CLUSTER KEYSLOT key`: replies the slot of a channel.
pub fn keyslot(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    if serves(ctx, key) {
        ctx.io.reply(key, |out, _| resp::int(out, i64::from(slot_of(args[2]))));
    }
}

/// `CLUSTER MYID`. A node that is not in the node list returns its run id.
pub fn myid(ctx: &mut Ctx, key: ConnKey, _: Args<'_>) {
    if serves(ctx, key) {
        let (roster, info) = (Arc::clone(&ctx.io.states.roster), Arc::clone(&ctx.io.info));
        let id = roster.own().map_or(&info.run_id, |(_, own)| &own.id);
        ctx.io.reply(key, |out, _| resp::bulk(out, id.as_bytes()));
    }
}

/// `CLUSTER COUNTKEYSINSLOT slot`: there are no keys.
pub fn countkeysinslot(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    if !serves(ctx, key) {
        return;
    }
    match integer(args[2]) {
        Some(slot) if is_slot(slot) => ctx.io.reply(key, |out, _| resp::int(out, 0)),
        Some(_) => error(ctx, key, "ERR Invalid slot"),
        None => error(ctx, key, NOT_A_NUMBER),
    }
}

/// `CLUSTER GETKEYSINSLOT slot count`.
pub fn getkeysinslot(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    if !serves(ctx, key) {
        return;
    }
    match (integer(args[2]), integer(args[3])) {
        (Some(slot), Some(0..)) if is_slot(slot) => ctx.io.reply(key, |out, _| resp::array_header(out, 0)),
        (Some(_), Some(_)) => error(ctx, key, "ERR Invalid slot or number of keys"),
        _ => error(ctx, key, NOT_A_NUMBER),
    }
}

fn is_slot(number: i64) -> bool {
    (0..i64::from(SLOTS)).contains(&number)
}

/// `CLUSTER REPLICAS id`: no node has replicas.
pub fn replicas(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    if !serves(ctx, key) {
        return;
    }
    match ctx.io.states.roster.by_id(args[2]) {
        Some(_) => ctx.io.reply(key, |out, _| resp::array_header(out, 0)),
        None => error(ctx, key, quoting("ERR Unknown node ", args[2], "")),
    }
}

pub fn help(ctx: &mut Ctx, key: ConnKey, _: Args<'_>) {
    if serves(ctx, key) {
        reply::help(ctx, key, "CLUSTER", HELP);
    }
}

const HELP: &[&str] = &[
    "COUNTKEYSINSLOT <slot>",
    "    Zero; there are no keys.",
    "GETKEYSINSLOT <slot> <count>",
    "    Nothing; there are no keys.",
    "INFO",
    "    The state of the cluster, in lines of text.",
    "KEYSLOT <channel>",
    "    The slot of a channel.",
    "LINKS",
    "    Nothing; nodes have no bus of Redis's.",
    "MYID",
    "    The id of this node.",
    "NODES",
    "    The nodes and their slots, a line each.",
    "REPLICAS <id>",
    "    Nothing; every slot has one node.",
    "SHARDS",
    "    The nodes and their slots.",
    "SLOTS",
    "    Ranges of slots and their nodes.",
];
