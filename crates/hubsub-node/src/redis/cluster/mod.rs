//! The additions of the cluster listener to plain Redis: CLUSTER, and commands that name channels of slots,
//! which the slot's owner executes.
//!
//! Slots determine the node that a client connects to, not where rooms are: every node serves every room by
//! forwarding. So no data moves with a slot, and any node could execute any command; clients are redirected
//! to the owner because they expect to find the node of a shard channel that way.

mod deal;
mod roster;
mod show;
mod slot;

pub use roster::{ClusterNode, NewRoster, Roster};
pub use show::{info, links, nodes, shards, slots};

use super::table::{self, Command, Lookup};
use super::{Args, NOT_A_NUMBER, error, integer, ok, pubsub, quoting, server};
use crate::context::Ctx;
use crate::context::io::TURN_BYTES;
use crate::io::listener::ListenerKind;
use hubsub_route::Namespace;
use hubsub_types::{ConnKey, ShardId};
use hubsub_wire::resp::{self, Subscription};
use slot::{SLOTS, slot_of};
use std::sync::Arc;

const CROSS_SLOT: &str = "CROSSSLOT Keys in request don't hash to the same slot";
const DOWN: &str = "CLUSTERDOWN Hash slot not served";

/// True if a client uses the cluster listener.
pub fn is_client(ctx: &Ctx, key: ConnKey) -> bool {
    ctx.io.conns.get(key).is_some_and(|conn| conn.kind == ListenerKind::RedisCluster)
}

/// Why a cluster client's command is not executed here: its names have several slots, or one of another node.
/// For EXEC all queued commands are checked.
pub fn redirection(ctx: &Ctx, key: ConnKey, command: &Command, args: Args<'_>) -> Option<String> {
    let slot =
        if command.name == "exec" { queued_slot(ctx, key) } else { one_slot(None, hashed(command, args)) };
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

/// The names have different slots.
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
fn queued_slot(ctx: &Ctx, key: ConnKey) -> Result<Option<u16>, CrossSlot> {
    let extra = ctx.io.conns.get(key).and_then(|conn| conn.extra.as_ref());
    let Some(transaction) = extra.and_then(|extra| extra.transaction.as_ref()) else { return Ok(None) };
    transaction.commands.iter().try_fold(None, |slot, command| {
        let args: Vec<&[u8]> = command.iter().map(|arg| &**arg).collect();
        match table::find(&args) {
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

/// The address that a client connected to.
fn host_here(ctx: &Ctx, key: ConnKey) -> String {
    let local = ctx.io.conns.get(key).and_then(|conn| conn.io.local());
    local.map_or_else(String::new, |address| address.ip().to_canonical().to_string())
}

/// Applies a new node list of the control plane to this shard. The last shard to apply it makes all shards
/// notify their clients: a client that learns from one shard that a slot has moved may ask another one, and
/// would lose its subscription if that shard redirected it back.
pub fn learn(ctx: &mut Ctx, new: &NewRoster) {
    ctx.io.states.roster = Arc::clone(new.roster());
    if new.heard() {
        for shard in 0..ctx.io.mailer.shards() {
            ctx.io.mailer.post(ShardId(shard), Arc::clone(new.roster()));
        }
    }
}

/// All shards use this list now. Notifies cluster clients of shard channels that belong to another node now,
/// as when Redis moves a slot: they look up the owner and subscribe there.
pub fn follow(ctx: &mut Ctx, roster: &Arc<Roster>) {
    if !Arc::ptr_eq(&ctx.io.states.roster, roster) {
        return; // There is a newer list, which is handled on its own.
    }
    let came_here = ctx.io.conns.iter().filter(|(_, conn)| conn.kind == ListenerKind::RedisCluster);
    let keys: Vec<ConnKey> = came_here.map(|(key, _)| key).collect();
    for key in keys {
        for topic in ctx.broker.topics_of(key, Namespace::Shard) {
            if !roster.is_own(slot_of(&topic)) {
                pubsub::end(ctx, key, Namespace::Shard, Subscription::SUnsubscribe, &topic);
                if ctx.io.turn_bytes() > TURN_BYTES {
                    ctx.flush();
                }
            }
        }
    }
}

/// True for clients of the cluster listener; others get an error.
fn serves(ctx: &mut Ctx, key: ConnKey) -> bool {
    let serves = is_client(ctx, key);
    if !serves {
        error(ctx, key, "ERR This instance has cluster support disabled");
    }
    serves
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
        server::write_help(ctx, key, "CLUSTER", HELP);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::mail::Mail;
    use crate::lone::Lone;
    use hubsub_types::Limits;

    fn roster(own: &str) -> Roster {
        let node = |name: &str| ClusterNode {
            name: name.to_owned(),
            id: format!("{:0>40}", name.len()),
            host: String::new(),
            port: 1,
        };
        Roster::new(own, vec![node("a"), node("bb")]).unwrap()
    }

    fn mail(lone: &mut Lone) -> Vec<Mail> {
        lone.ctx.flush();
        let mut mail = Vec::new();
        lone.ctx.io.mailer.own().take(&mut mail);
        mail
    }

    /// A client of the cluster listener that subscribes to `c`.
    fn subscribed() -> (Lone, ConnKey, std::net::TcpStream) {
        let mut lone = Lone::new(Limits::default());
        let (key, peer) = lone.connect();
        lone.ctx.io.conns.get_mut(key).unwrap().kind = ListenerKind::RedisCluster;
        pubsub::ssubscribe(&mut lone.ctx, key, &[b"SSUBSCRIBE", b"c"]);
        (lone, key, peer)
    }

    #[test]
    fn clients_are_told_of_moved_slots_when_no_shard_answers_by_the_old_ones() {
        let (mut lone, key, _peer) = subscribed();
        let own = if roster("a").is_own(slot_of(b"c")) { "bb" } else { "a" };
        let new = NewRoster::new(roster(own), 2);
        learn(&mut lone.ctx, &new);
        assert!(lone.ctx.io.states.roster.owner(slot_of(b"c")).is_some_and(|(_, is_own)| !is_own));
        assert!(mail(&mut lone).is_empty(), "the other shard has not heard of it");
        assert_eq!(lone.ctx.broker.counts(key), (0, 0, 1));

        learn(&mut lone.ctx, &new); // As the other shard does.
        for letter in mail(&mut lone) {
            crate::shard::mail::receive(&mut lone.ctx, letter);
        }
        assert_eq!(lone.ctx.broker.counts(key), (0, 0, 0));
    }

    #[test]
    fn a_roster_that_was_followed_by_another_moves_nothing() {
        let (mut lone, key, _peer) = subscribed();
        let (own, other) = if roster("a").is_own(slot_of(b"c")) { ("a", "bb") } else { ("bb", "a") };
        learn(&mut lone.ctx, &NewRoster::new(roster(other), 1));
        let letters = mail(&mut lone);
        assert_eq!(letters.len(), 1);
        learn(&mut lone.ctx, &NewRoster::new(roster(own), 1));
        for letter in letters.into_iter().chain(mail(&mut lone)) {
            crate::shard::mail::receive(&mut lone.ctx, letter);
        }
        assert_eq!(lone.ctx.broker.counts(key), (0, 0, 1));
    }
}
