//! One connection a client id: each id belongs to one shard of the node, by its hash, which knows the
//! connection that has it, and in a cluster speaks for the node in the id's room. What they do with a claim is decided
//! by `hubsub_route::claims`; here it is carried out.
//!
//! Invariant: a connection is told that it is connected only once its shard was granted the id, and the one
//! before it, on any node, has been sent word by then.

use super::adoption::{self, Found};
use super::handover::{self, tell};
use super::store::{Stored, stored};
use super::{arrival, reading};
use crate::core::Core;
use crate::mail::Mail;
use crate::own::{self, Asked};
use crate::rim::Timer;
use hubsub_route::claims::{Action, Claimant, Heir, Holder, Token, Word};
use hubsub_types::{ConnKey, ErrorCode, ShardId};
use hubsub_wire::mqtt::Reason;

/// What shards say to each other of client ids.
#[derive(Debug)]
pub enum MqttMail {
    /// To the id's shard: this connection wants it.
    Claim(Box<str>, Claimant),
    /// From there: it is this connection's own.
    Granted(ConnKey),
    /// It will not be.
    Refused(ConnKey),
    /// It would have been, and another one has it since.
    Displaced(ConnKey),
    /// It has to let go.
    Yield(ConnKey, Heir),
    /// To the id's shard: this connection, or session, has ended or let go.
    Release(Box<str>, Holder),
    /// To the id's shard: who was to have this session is gone, and it stays where it is.
    Keep(Box<str>, Holder),
    /// To a connection: its session is kept in that place.
    Call(ConnKey, Holder),
    /// To the shard of a session: who was called to it is gone.
    Abandon(ConnKey),
    /// To the id's shard: a session that the process before left.
    Adopt(Box<Found>),
    /// Likewise: the process of the one that held this session is gone.
    Orphan(Box<str>),
    /// An answer of the store of sessions.
    Stored(Box<Stored>),
}

impl MqttMail {
    /// Bytes that it keeps from being freed, for mailbox limits.
    #[must_use]
    pub fn weight(&self) -> usize {
        std::mem::size_of::<Mail>()
            + match self {
                MqttMail::Claim(id, _) | MqttMail::Release(id, _) | MqttMail::Keep(id, _) => id.len(),
                MqttMail::Orphan(id) => id.len(),
                MqttMail::Adopt(found) => found.weight(),
                MqttMail::Stored(stored) => stored.weight(),
                _ => 0,
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
pub(super) fn claim(core: &mut Core, id: Box<str>, claimant: Claimant) {
    let shard = shard_of(core, &id);
    tell(core, shard, MqttMail::Claim(id, claimant));
}

/// Keeps an id that was to be given to another connection.
pub(super) fn keep(core: &mut Core, id: Box<str>, holder: Holder) {
    let shard = shard_of(core, &id);
    tell(core, shard, MqttMail::Keep(id, holder));
}

/// Gives an id back.
pub(super) fn release(core: &mut Core, id: Box<str>, holder: Holder) {
    let shard = shard_of(core, &id);
    tell(core, shard, MqttMail::Release(id, holder));
}

/// Acts on a letter.
pub fn receive(core: &mut Core, mail: MqttMail) {
    match mail {
        MqttMail::Claim(id, claimant) => {
            event(core, |core, token, actions| core.rim.claims.claim(id, claimant, token, actions));
        }
        MqttMail::Keep(id, holder) => {
            event(core, |core, token, actions| core.rim.claims.keep(&id, holder, token, actions));
        }
        MqttMail::Release(id, holder) => {
            event(core, |core, token, actions| core.rim.claims.release(&id, holder, token, actions));
        }
        MqttMail::Granted(key) => arrival::granted(core, key),
        MqttMail::Refused(key) | MqttMail::Displaced(key) if reading::is_refused(core, key) => {}
        MqttMail::Refused(key) => arrival::refused(core, key, Reason::ServerUnavailable),
        MqttMail::Displaced(key) => arrival::displaced(core, key),
        MqttMail::Yield(key, to) => handover::yields(core, key, to),
        // It goes when its input has been looked at.
        MqttMail::Call(key, to) => core.rim.called.push((key, to)),
        MqttMail::Abandon(key) => handover::abandoned(core, key),
        MqttMail::Adopt(found) => adoption::adopt_of_before(core, *found),
        MqttMail::Orphan(id) => reading::claim(core, id),
        MqttMail::Stored(answer) => stored(core, *answer),
    }
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
            Action::Displace(who) => tell(core, who.shard, MqttMail::Displaced(who.conn)),
            Action::Yield(who, to) => tell(core, who.shard, MqttMail::Yield(who.conn, to)),
            Action::Watch(id) => {
                let room = room_of(&id);
                core.watch(room.as_bytes(), Asked::Claims(ClaimAsked::Watch(id)));
            }
            Action::Unwatch(id) => core.unwatch(room_of(&id).as_bytes()),
            Action::Say(id, word) => {
                let room = room_of(&id);
                let asked = match word {
                    Word::Claim(token, _) => Asked::Claims(ClaimAsked::Claim(id, token)),
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

fn shard_of(core: &Core, id: &str) -> ShardId {
    home_of(id, core.rim.mailer.shards())
}

/// The shard of an id, of so many.
#[must_use]
pub fn home_of(id: &str, shards: u16) -> ShardId {
    own::shard_of(id.as_bytes(), shards)
}

/// An id as one level of a room's name.
pub(super) fn escaped(id: &str) -> String {
    id.replace('%', "%25").replace('/', "%2F")
}

/// The id of such a level.
pub(super) fn unescaped(level: &str) -> String {
    level.replace("%2F", "/").replace("%25", "%")
}

/// The room of an id.
fn room_of(id: &str) -> String {
    format!("{ROOMS}{}", escaped(id))
}

fn id_of(room: &[u8]) -> Option<String> {
    Some(unescaped(std::str::from_utf8(room).ok()?.strip_prefix(ROOMS)?))
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
