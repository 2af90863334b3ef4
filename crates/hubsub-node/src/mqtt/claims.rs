//! One connection per client id. Each id belongs to one shard of the node, by its hash. That shard knows the
//! id's connection, and in a cluster it represents the node in the id's room. `hubsub_route::claims` decides
//! on claims; this module executes its decisions.
//!
//! Invariant: a connection gets CONNACK only after its shard was granted the id, and by then the previous
//! holder, on any node, was sent a release request.

use super::handover::{self, post};
use super::store::{Stored, stored};
use super::{connect, takeover, takeover_read};
use crate::context::Ctx;
use crate::context::io::Io;
use crate::context::io::Timer;
use crate::io::inbox::{self, LETTER_BYTES};
use hubsub_mqtt::Found;
use hubsub_mqtt::rooms::{claim_id, claim_room};
use hubsub_route::claims::{Action, Claimant, Heir, Holder, Token, Word};
use hubsub_types::{ConnKey, ErrorCode, ShardId};
use hubsub_wire::mqtt::Reason;

/// Messages between shards about client ids.
#[derive(Debug)]
pub enum MqttMail {
    /// To the id's shard: this connection wants the id.
    Claim(Box<str>, Claimant),
    /// From the id's shard: the claim is granted.
    Granted(ConnKey),
    /// From the id's shard: the claim is refused.
    Refused(ConnKey),
    /// From the id's shard: a later connection superseded the claim.
    Displaced(ConnKey),
    /// From the id's shard: release the id to this heir.
    Yield(ConnKey, Heir),
    /// To the id's shard: this connection or session has ended or released the id.
    Release(Box<str>, Holder),
    /// To the id's shard: the claimant of this session is gone; its holder keeps the id.
    Keep(Box<str>, Holder),
    /// To a connection: move to its session in that slot.
    Call(ConnKey, Holder),
    /// To the shard of a session: the connection that was to move there is gone.
    Abandon(ConnKey),
    /// To the id's shard: a session of the previous process.
    Restore(Box<Found>),
    /// To the id's shard: the process that held this session is gone.
    TakeOver(Box<str>),
    /// A reply of the session store.
    Stored(Box<Stored>),
}

impl MqttMail {
    /// Its memory in bytes, for mailbox limits.
    #[must_use]
    pub fn weight(&self) -> usize {
        LETTER_BYTES
            + match self {
                MqttMail::Claim(id, _) | MqttMail::Release(id, _) | MqttMail::Keep(id, _) => id.len(),
                MqttMail::TakeOver(id) => id.len(),
                MqttMail::Restore(found) => found.weight(),
                MqttMail::Stored(stored) => stored.weight(),
                _ => 0,
            }
    }
}

/// Requests of an id's shard to the id's room.
pub enum ClaimAsked {
    /// To join the room.
    Watch(Box<str>),
    /// To publish a claim there.
    Claim(Box<str>, Token),
}

/// Claims an id for a connection.
pub(super) fn claim(ctx: &mut Ctx, id: Box<str>, claimant: Claimant) {
    let shard = shard_of(ctx, &id);
    post(ctx, shard, MqttMail::Claim(id, claimant));
}

/// Keeps an id that was to go to another connection.
pub(super) fn keep(ctx: &mut Ctx, id: Box<str>, holder: Holder) {
    let shard = shard_of(ctx, &id);
    post(ctx, shard, MqttMail::Keep(id, holder));
}

/// Releases an id that `holder` has.
pub(super) fn release(ctx: &mut Ctx, id: Box<str>, holder: Holder) {
    let shard = shard_of(ctx, &id);
    post(ctx, shard, MqttMail::Release(id, holder));
}

pub fn receive(ctx: &mut Ctx, mail: MqttMail) {
    match mail {
        MqttMail::Claim(id, claimant) => {
            event(ctx, |ctx, token, actions| ctx.io.states.mqtt.claims.claim(id, claimant, token, actions));
        }
        MqttMail::Keep(id, holder) => {
            event(ctx, |ctx, token, actions| ctx.io.states.mqtt.claims.keep(&id, holder, token, actions));
        }
        MqttMail::Release(id, holder) => {
            event(ctx, |ctx, token, actions| ctx.io.states.mqtt.claims.release(&id, holder, token, actions));
        }
        MqttMail::Granted(key) => connect::granted(ctx, key),
        MqttMail::Refused(key) | MqttMail::Displaced(key) if takeover_read::is_refused(ctx, key) => {}
        MqttMail::Refused(key) => connect::refused(ctx, key, Reason::ServerUnavailable),
        MqttMail::Displaced(key) => connect::displaced(ctx, key),
        MqttMail::Yield(key, to) => handover::yields(ctx, key, to),
        // It moves once its input is processed.
        MqttMail::Call(key, to) => ctx.io.states.mqtt.called.push((key, to)),
        MqttMail::Abandon(key) => handover::abandoned(ctx, key),
        MqttMail::Restore(found) => takeover::restore_previous(ctx, *found),
        MqttMail::TakeOver(id) => takeover_read::claim(ctx, id),
        MqttMail::Stored(answer) => stored(ctx, *answer),
    }
}

/// The outcome of a request to an id's room.
pub fn answered(ctx: &mut Ctx, asked: ClaimAsked, outcome: Result<u64, ErrorCode>) {
    event(ctx, |ctx, token, actions| match asked {
        ClaimAsked::Watch(id) => ctx.io.states.mqtt.claims.watched(&id, outcome.is_ok(), token, actions),
        ClaimAsked::Claim(id, of) => ctx.io.states.mqtt.claims.said(&id, of, outcome.ok(), actions),
    });
}

/// A message in the room of an id.
pub fn heard(ctx: &mut Ctx, room: &[u8], content: &[u8]) {
    let word = std::str::from_utf8(content).ok().and_then(|text| text.parse::<Word>().ok());
    if let (Some(id), Some(word)) = (claim_id(room), word) {
        event(ctx, |ctx, token, actions| ctx.io.states.mqtt.claims.heard(&id, word, token, actions));
    }
}

/// Messages in that room may have been missed.
pub fn missed(ctx: &mut Ctx, room: &[u8]) {
    if let Some(id) = claim_id(room) {
        event(ctx, |ctx, _, actions| ctx.io.states.mqtt.claims.missed(&id, actions));
    }
}

/// The time for other holders to release an id is over.
pub fn late(ctx: &mut Ctx, id: &str, of: Token) {
    event(ctx, |ctx, _, actions| ctx.io.states.mqtt.claims.late(id, of, actions));
}

/// Passes an event to the ids of this shard and executes the resulting actions.
fn event(ctx: &mut Ctx, event: impl FnOnce(&mut Ctx, Option<Token>, &mut Vec<Action>)) {
    let token = ctx.broker.is_clustered().then(|| new_token(&mut ctx.io));
    let mut actions = Vec::new();
    event(ctx, token, &mut actions);
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

fn shard_of(ctx: &Ctx, id: &str) -> ShardId {
    home_of(id, ctx.io.mailer.shards())
}

/// The shard of an id on a node with this many shards.
#[must_use]
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
