//! One connection a client id: each id belongs to one shard of the node, by its hash, which knows the
//! connection that has it. Who claims an id gets it; the one that had it is disconnected.
//!
//! Invariant: a connection is told that it is connected only once its shard was granted the id, and the one
//! before it has been sent word by then.

use super::{connected, end};
use crate::core::Core;
use crate::mail::Mail;
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_types::{ConnKey, ShardId};
use hubsub_wire::mqtt::{Fault, Reason};

/// A connection of the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Its shard.
    pub shard: ShardId,
    /// Which one there.
    pub conn: ConnKey,
}

/// The ids that belong to a shard, and who has them.
#[derive(Debug, Default)]
pub struct Claims(HashMap<Box<str>, Holder, RandomState>);

/// What shards say to each other of client ids.
#[derive(Debug)]
pub enum MqttMail {
    /// To the id's shard: this connection wants it.
    Claim(Box<str>, Holder),
    /// From there: it is this connection's own.
    Granted(ConnKey),
    /// Another one wants it.
    TakenOver(ConnKey),
    /// To the id's shard: this connection has ended.
    Release(Box<str>, Holder),
}

impl MqttMail {
    /// Bytes that it keeps from being freed, for mailbox limits.
    #[must_use]
    pub fn weight(&self) -> usize {
        std::mem::size_of::<Mail>()
            + match self {
                MqttMail::Claim(id, _) | MqttMail::Release(id, _) => id.len(),
                MqttMail::Granted(_) | MqttMail::TakenOver(_) => 0,
            }
    }
}

/// Asks for an id.
pub(super) fn claim(core: &mut Core, id: Box<str>, holder: Holder) {
    let shard = shard_of(core, &id);
    tell(core, shard, MqttMail::Claim(id, holder));
}

/// Gives an id back.
pub(super) fn release(core: &mut Core, id: Box<str>, holder: Holder) {
    let shard = shard_of(core, &id);
    tell(core, shard, MqttMail::Release(id, holder));
}

/// Acts on a letter.
pub fn receive(core: &mut Core, mail: MqttMail) {
    match mail {
        MqttMail::Claim(id, holder) => {
            let before = core.rim.claims.0.insert(id, holder).filter(|before| *before != holder);
            if let Some(before) = before {
                tell(core, before.shard, MqttMail::TakenOver(before.conn));
            }
            tell(core, holder.shard, MqttMail::Granted(holder.conn));
        }
        MqttMail::Granted(key) => connected(core, key),
        MqttMail::TakenOver(key) => {
            if core.rim.conns.get(key).is_some_and(|conn| !conn.is_closing()) {
                core.rim.metrics.mqtt_taken_over_total.add(1);
                end(core, key, Fault::of(Reason::SessionTakenOver));
            }
        }
        MqttMail::Release(id, holder) => {
            if core.rim.claims.0.get(&id) == Some(&holder) {
                core.rim.claims.0.remove(&id);
            }
        }
    }
}

fn tell(core: &mut Core, shard: ShardId, mail: MqttMail) {
    if shard == core.rim.shard {
        receive(core, mail);
    } else {
        core.rim.mailer.post(shard, Mail::Mqtt(mail));
    }
}

/// The shard of an id: the same for all shards of a node, so not by their seeds (FNV-1a).
fn shard_of(core: &Core, id: &str) -> ShardId {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    ShardId((hash % u64::from(core.rim.mailer.shards())) as u16)
}
