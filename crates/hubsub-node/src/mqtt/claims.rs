//! One connection a client id: each id belongs to one shard of the node, by its hash, which knows the
//! connection that has it, and in a cluster speaks for the node in the id's room. What they do with a claim is decided
//! by `hubsub_route::claims`; here it is carried out.
//!
//! Invariant: a connection is told that it is connected only once its shard was granted the id, and the one
//! before it, on any node, has been sent word by then.

use super::{connected, end, refused};
use crate::core::Core;
use crate::mail::Mail;
use crate::own::Asked;
use crate::rim::Timer;
use hubsub_route::claims::{Action, Holder, Token, Word};
use hubsub_types::{ConnKey, ErrorCode, ShardId};
use hubsub_wire::mqtt::{Fault, Reason};

/// What shards say to each other of client ids.
#[derive(Debug)]
pub enum MqttMail {
    /// To the id's shard: this connection wants it.
    Claim(Box<str>, Holder),
    /// From there: it is this connection's own.
    Granted(ConnKey),
    /// It will not be.
    Refused(ConnKey),
    /// Another one wants it.
    TakenOver(ConnKey),
    /// To the id's shard: this connection has ended, or let go.
    Release(Box<str>, Holder),
}

impl MqttMail {
    /// Bytes that it keeps from being freed, for mailbox limits.
    #[must_use]
    pub fn weight(&self) -> usize {
        std::mem::size_of::<Mail>()
            + match self {
                MqttMail::Claim(id, _) | MqttMail::Release(id, _) => id.len(),
                MqttMail::Granted(_) | MqttMail::Refused(_) | MqttMail::TakenOver(_) => 0,
            }
    }
}

/// What an id's shard asked of the id's room.
pub enum ClaimAsked {
    /// To be in it.
    Watch(Box<str>),
    /// To say a claim there.
    Claim(Box<str>, Token),
}

/// Rooms of client ids.
const ROOMS: &str = "$claim/";

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
            event(core, |core, token, actions| core.rim.claims.claim(id, holder, token, actions));
        }
        MqttMail::Release(id, holder) => {
            event(core, |core, token, actions| core.rim.claims.release(&id, holder, token, actions));
        }
        MqttMail::Granted(key) => connected(core, key),
        MqttMail::Refused(key) => refused(core, key, Reason::ServerUnavailable),
        MqttMail::TakenOver(key) => taken_over(core, key),
    }
}

/// A connection has to let go of its id, and has.
fn taken_over(core: &mut Core, key: ConnKey) {
    let Some(conn) = core.rim.conns.get(key) else { return };
    let is_closing = conn.is_closing();
    let Some(client) = &conn.mqtt else { return };
    let id = client.machine.client_id().into();
    if !is_closing {
        core.rim.metrics.mqtt_taken_over_total.add(1);
        end(core, key, Fault::of(Reason::SessionTakenOver));
    }
    // It may take its time to close.
    let holder = Holder { shard: core.rim.shard, conn: key };
    release(core, id, holder);
}

/// What came of something that was asked of an id's room.
pub fn answered(core: &mut Core, asked: ClaimAsked, outcome: Result<u64, ErrorCode>) {
    event(core, |core, token, actions| match asked {
        ClaimAsked::Watch(id) => core.rim.claims.watched(&id, outcome.is_ok(), token, actions),
        ClaimAsked::Claim(id, of) => core.rim.claims.said(&id, of, outcome.ok(), actions),
    });
}

/// Something was said in the room of an id.
pub fn heard(core: &mut Core, room: &[u8], said: &[u8]) {
    let word = std::str::from_utf8(said).ok().and_then(|text| text.parse::<Word>().ok());
    if let (Some(id), Some(word)) = (id_of(room), word) {
        event(core, |core, token, actions| core.rim.claims.heard(&id, word, token, actions));
    }
}

/// Something that was said there may not have come.
pub fn missed(core: &mut Core, room: &[u8]) {
    if let Some(id) = id_of(room) {
        event(core, |core, _, actions| core.rim.claims.missed(&id, actions));
    }
}

/// Others have had their time to let go of an id.
pub fn late(core: &mut Core, id: &str, of: Token) {
    event(core, |core, _, actions| core.rim.claims.late(id, of, actions));
}

/// Something happens to an id of this shard, and what is to be done is done.
fn event(core: &mut Core, event: impl FnOnce(&mut Core, Option<Token>, &mut Vec<Action>)) {
    let token = core.broker.is_clustered().then(|| core.rim.new_token());
    let mut actions = Vec::new();
    event(core, token, &mut actions);
    for action in actions {
        match action {
            Action::Grant(who) => tell(core, who.shard, MqttMail::Granted(who.conn)),
            Action::Refuse(who) => tell(core, who.shard, MqttMail::Refused(who.conn)),
            Action::Yield(who) => tell(core, who.shard, MqttMail::TakenOver(who.conn)),
            Action::Watch(id) => {
                let room = room_of(&id);
                core.watch(room.as_bytes(), Asked::Claims(ClaimAsked::Watch(id)));
            }
            Action::Unwatch(id) => core.unwatch(room_of(&id).as_bytes()),
            Action::Say(id, word) => {
                let room = room_of(&id);
                let asked = match word {
                    Word::Claim(token) => Asked::Claims(ClaimAsked::Claim(id, token)),
                    Word::Released(_) | Word::Again(_) => Asked::Nobody,
                };
                core.say_in(room.as_bytes(), word.to_string().as_bytes(), asked);
            }
            Action::Wait(id, of) => {
                let at_ms = core.rim.now.mono_ms + core.rim.limits.mqtt_takeover_ms;
                core.rim.timers.set(at_ms, Timer::Claim(Box::new((id, of))));
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

/// The room of an id, which is one level of its name.
fn room_of(id: &str) -> String {
    format!("{ROOMS}{}", id.replace('%', "%25").replace('/', "%2F"))
}

fn id_of(room: &[u8]) -> Option<String> {
    let id = std::str::from_utf8(room).ok()?.strip_prefix(ROOMS)?;
    Some(id.replace("%2F", "/").replace("%25", "%"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_found_by_the_room_that_is_made_of_it() {
        for id in ["a", "a/b", "%2F", "%25/%", "$claim/", "ä b+#"] {
            let room = room_of(id);
            assert_eq!(room.matches('/').count(), 1, "{room}");
            assert_eq!(id_of(room.as_bytes()).as_deref(), Some(id));
        }
        assert_eq!(id_of(b"other/a"), None);
    }
}
