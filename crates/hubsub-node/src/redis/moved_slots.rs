//! A new node list of the cluster listener: all shards apply it, then cluster clients hear of the shard channels
//! that belong to another node now.

use super::pubsub;
use super::state::slot::slot_of;
use super::state::{NewRoster, Roster};
use crate::context::Ctx;
use crate::context::io::TURN_BYTES;
use crate::io::listener::ListenerKind;
use hubsub_route::Namespace;
use hubsub_types::{ConnKey, ShardId};
use hubsub_wire::resp::Subscription;
use std::sync::Arc;

/// Applies a new node list of the control plane to this shard. The last shard to apply it makes all shards
/// notify their clients: a client that learns from one shard that a slot has moved may ask another one, and
/// would lose its subscription if that shard redirected it back.
pub fn learn(ctx: &mut Ctx, new: &NewRoster) {
    ctx.io.states.roster = Arc::clone(&new.roster);
    if new.heard() {
        for shard in 0..ctx.io.mailer.shards() {
            ctx.io.mailer.post(ShardId(shard), Arc::clone(&new.roster));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::mail::Mail;
    use crate::lone::Lone;
    use crate::redis::state::ClusterNode;
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
