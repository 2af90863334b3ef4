//! One connection per client id. Each id belongs to one shard of the node, by its hash. That shard knows the
//! id's connection, and in a cluster it represents the node in the id's room. `hubsub_route::claims` decides
//! on claims; this module executes its decisions.
//!
//! Invariant: a connection gets CONNACK only after its shard was granted the id, and by then the previous
//! holder, on any node, was sent a release request.

use super::state::mail::MqttMail;
use super::state::work::{ClaimAsked, Work};
use crate::context::Ctx;
use crate::context::io::{Io, Timer};
use crate::io::inbox;
use hubsub_mqtt::rooms::{claim_id, claim_room};
use hubsub_route::claims::{Action, Aim, Claimant, Claims, Holder, Token, Word};
use hubsub_types::{ConnKey, ErrorCode, ShardId};

/// A slot of this shard, as the holder of a client id.
pub(super) fn here(ctx: &Ctx, key: ConnKey) -> Holder {
    Holder { shard: ctx.io.shard, conn: key }
}

/// Claims an id for a slot of this shard. Returns true if it is granted at once; else the answer is mailed.
pub(super) fn claim(ctx: &mut Ctx, id: Box<str>, key: ConnKey, aim: Aim) -> bool {
    let claimant = Claimant { who: here(ctx, key), aim };
    if let Some(home) = other_home(ctx, &id) {
        ctx.io.mailer.post(home, MqttMail::Claim(id, claimant));
        return false;
    }
    let actions = decide(ctx, |claims, token, actions| claims.claim(id, claimant, token, actions));
    let is_granted = matches!(actions[..], [Action::Grant(who)] if who == claimant.who);
    if !is_granted {
        execute(ctx, actions);
    }
    is_granted
}

/// Keeps an id, of a slot of this shard, that was to go to another connection or has: another one may be called
/// to its session now.
pub fn keep(ctx: &mut Ctx, id: Box<str>, key: ConnKey) {
    let holder = here(ctx, key);
    match other_home(ctx, &id) {
        Some(home) => ctx.io.mailer.post(home, MqttMail::Keep(id, holder)),
        None => kept(ctx, &id, holder),
    }
}

pub(super) fn release(ctx: &mut Ctx, id: Box<str>, holder: Holder) {
    match other_home(ctx, &id) {
        Some(home) => ctx.io.mailer.post(home, MqttMail::Release(id, holder)),
        None => released(ctx, &id, holder),
    }
}

/// To the id's shard: see [`MqttMail::Claim`].
pub(super) fn claimed(ctx: &mut Ctx, id: Box<str>, claimant: Claimant) {
    event(ctx, |claims, token, actions| claims.claim(id, claimant, token, actions));
}

/// To the id's shard: see [`MqttMail::Keep`].
pub(super) fn kept(ctx: &mut Ctx, id: &str, holder: Holder) {
    event(ctx, |claims, token, actions| claims.keep(id, holder, token, actions));
}

/// To the id's shard: see [`MqttMail::Release`].
pub(super) fn released(ctx: &mut Ctx, id: &str, holder: Holder) {
    event(ctx, |claims, token, actions| claims.release(id, holder, token, actions));
}

/// Sends mail to a shard. This shard handles its own after the current call.
pub(super) fn post(ctx: &mut Ctx, shard: ShardId, mail: MqttMail) {
    if shard == ctx.io.shard {
        ctx.io.own.queue(Work::Mail(mail));
    } else {
        ctx.io.mailer.post(shard, mail);
    }
}

/// The outcome of a request to an id's room.
pub fn answered(ctx: &mut Ctx, asked: ClaimAsked, outcome: Result<u64, ErrorCode>) {
    event(ctx, |claims, token, actions| match asked {
        ClaimAsked::Watch(id) => claims.watched(&id, outcome.is_ok(), token, actions),
        ClaimAsked::Claim(id, of) => claims.said(&id, of, outcome.ok(), actions),
    });
}

pub fn heard(ctx: &mut Ctx, room: &[u8], content: &[u8]) {
    let word = std::str::from_utf8(content).ok().and_then(|text| text.parse::<Word>().ok());
    if let (Some(id), Some(word)) = (claim_id(room), word) {
        event(ctx, |claims, token, actions| claims.heard(&id, word, token, actions));
    }
}

/// Messages in that room may have been missed.
pub fn missed(ctx: &mut Ctx, room: &[u8]) {
    if let Some(id) = claim_id(room) {
        event(ctx, |claims, _, actions| claims.missed(&id, actions));
    }
}

/// The time for other holders to release an id is over.
pub fn late(ctx: &mut Ctx, id: &str, of: Token) {
    event(ctx, |claims, _, actions| claims.late(id, of, actions));
}

/// Passes an event to the ids of this shard and executes the resulting actions.
fn event(ctx: &mut Ctx, event: impl FnOnce(&mut Claims, Option<Token>, &mut Vec<Action>)) {
    let actions = decide(ctx, event);
    execute(ctx, actions);
}

fn decide(ctx: &mut Ctx, event: impl FnOnce(&mut Claims, Option<Token>, &mut Vec<Action>)) -> Vec<Action> {
    let token = ctx.broker.is_clustered().then(|| new_token(&mut ctx.io));
    let mut actions = Vec::new();
    event(&mut ctx.io.states.mqtt.claims, token, &mut actions);
    actions
}

fn execute(ctx: &mut Ctx, actions: Vec<Action>) {
    for action in actions {
        match action {
            Action::Grant(who) => post(ctx, who.shard, MqttMail::Granted(who.conn)),
            Action::Refuse(who) => post(ctx, who.shard, MqttMail::Refused(who.conn)),
            Action::Displace(who) => post(ctx, who.shard, MqttMail::Displaced(who.conn)),
            Action::Yield(who, to) => post(ctx, who.shard, MqttMail::Yield(who.conn, to)),
            Action::Watch(id) => {
                let room = claim_room(&id);
                ctx.watch(&room, ClaimAsked::Watch(id));
            }
            Action::Unwatch(id) => ctx.unwatch(&claim_room(&id)),
            Action::Say(id, word) => {
                let room = claim_room(&id);
                let asked = match word {
                    Word::Claim(token, _) => Some(ClaimAsked::Claim(id, token)),
                    Word::Released(_) | Word::Again(_) => None,
                };
                ctx.say_in(&room, word.to_string().as_bytes(), asked);
            }
            Action::Wait(id, of) => {
                let at_ms = ctx.io.now.mono_ms + ctx.io.limits.mqtt_takeover_ms;
                ctx.io.timers.set(at_ms, Timer::Claim(Box::new((id, of))));
            }
        }
    }
}

/// The shard of an id, if that is not this one.
fn other_home(ctx: &Ctx, id: &str) -> Option<ShardId> {
    Some(home_of(id, ctx.io.mailer.shards())).filter(|&home| home != ctx.io.shard)
}

/// The shard of an id on a node with this many shards.
pub fn home_of(id: &str, shards: u16) -> ShardId {
    inbox::shard_of(id.as_bytes(), shards)
}

/// A unique token for a claim of a client id.
pub(super) fn new_token(io: &mut Io) -> Token {
    io.states.mqtt.claimed += 1;
    // The number distinguishes claims of a shard, the shard those of a node, and the run those of nodes.
    let number = u64::from(io.shard.0) << 48 | io.states.mqtt.claimed;
    let run = io.info.run_id.get(..15).and_then(|run| u64::from_str_radix(run, 16).ok());
    Token { at_us: io.now.wall_us, run: run.unwrap_or_default(), number }
}
