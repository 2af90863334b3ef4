//! Sessions beyond their process (docs/protocol/mqtt-state.md): what is recorded of one before its client is answered,
//! and how a node takes in what the process before it left.
//!
//! What is recorded is asked for as things happen ([`due`]) and carried out once a turn for each session ([`record`]), so
//! that all that waits shares one row. It owns the format of the row.
//!
//! Invariant: CONNACK, SUBACK and UNSUBACK of a session that is kept follow the row that they are true of.

use super::session::{Absent, Session};
use super::{NOBODY, attach, claims, connected, end, refused};
use crate::control::Level;
use crate::core::Core;
use crate::own::Asked;
use crate::rim::Rim;
use hubsub_route::claims::Holder;
use hubsub_route::rows::CLASS;
use hubsub_route::{Asker, Outcome, Ticket};
use hubsub_types::{ConnKey, ErrorCode};
use hubsub_wire::mqtt::{Damaged, Fault, Reason, SessionState, shared};

/// What a session has that is recorded.
#[derive(Default)]
pub struct Kept {
    /// What waits until the session is recorded as it is now.
    waits: Vec<Wait>,
    /// Whether that is to be done in this turn.
    is_due: bool,
    /// Whether there is a row of it, or one is under way.
    has_row: bool,
    /// The number of its connection: machines of two number PUBREL and PUBCOMP alike.
    visit: u32,
}

/// What waits for a session's row.
#[derive(Clone, Copy, Debug)]
pub enum Wait {
    /// CONNACK, and whether it says that the session was there.
    Connected(bool),
    /// What the machine calls the answer to a filter.
    Granted(u32),
    /// Likewise, to UNSUBSCRIBE.
    Unsubscribed(u32),
    /// PUBREL or PUBCOMP, by what the machine of this connection calls it.
    Recorded(u32),
}

/// Who waits for what was written.
pub enum Written {
    /// A session's row, for those of the connection of that number.
    Row(ConnKey, u32, Vec<Wait>),
    /// The end of a row: the client id is free then.
    End(Box<str>, Holder),
}

/// A session as it was found at the start.
#[derive(Debug)]
pub struct Found {
    /// Of its client.
    pub id: Box<str>,
    /// The row.
    pub row: Vec<u8>,
}

impl Found {
    /// Its memory, for mailbox limits.
    #[must_use]
    pub fn weight(&self) -> usize {
        std::mem::size_of::<Found>() + self.id.len() + self.row.len()
    }
}

impl Core {
    /// Whether sessions are recorded here: a lone node does, with a log.
    pub(super) fn records_sessions(&self) -> bool {
        let classes = self.broker.classes();
        let is_logged = |class| classes.get(class).durability.is_logged();
        !self.broker.is_clustered() && classes.index_of(CLASS).is_some_and(is_logged)
    }
}

/// A session of a place, with its connection or without.
fn session_of(rim: &mut Rim, key: ConnKey) -> Option<&mut Session> {
    let client = rim.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut());
    match client.and_then(|client| client.session.as_deref_mut()) {
        Some(session) => Some(session),
        None => rim.sessions.get_mut(key).map(|absent| &mut absent.session),
    }
}

/// A session is to be recorded as it is at the end of this turn, for who waits; whether it is one that is kept.
pub(super) fn due(rim: &mut Rim, key: ConnKey, wait: Option<Wait>) -> bool {
    let Some(kept) = session_of(rim, key).and_then(|session| session.kept.as_mut()) else { return false };
    kept.waits.extend(wait);
    if !std::mem::replace(&mut kept.is_due, true) {
        rim.own.record(key);
    }
    true
}

impl Kept {
    /// Another connection has the session: what waits for the one before is nobody's.
    pub fn comes(&mut self) {
        self.visit = self.visit.wrapping_add(1);
        self.waits.clear();
    }
}

/// Records a session as it is now.
pub fn record(core: &mut Core, key: ConnKey) {
    let Some(session) = session_of(&mut core.rim, key) else { return };
    let Some(kept) = &mut session.kept else { return };
    (kept.is_due, kept.has_row) = (false, true);
    let visit = kept.visit;
    let waits = std::mem::take(&mut kept.waits);
    let mut row = Vec::with_capacity(128);
    Head { last_key: session.last_key() }.write(&mut row);
    let rim = &mut core.rim;
    let id: Box<str> = match rim.conns.get(key).and_then(|conn| conn.mqtt.as_ref()) {
        Some(client) => {
            client.machine.state().encode(&mut row);
            client.machine.client_id().into()
        }
        None => {
            let Some(absent) = rim.sessions.get_mut(key) else { return };
            absent.state.encode(&mut row);
            absent.id.clone()
        }
    };
    rim.metrics.mqtt_session_rows_total.add(1);
    core.say_in(&room_of(&id), &row, Asked::Session(Written::Row(key, visit, waits)));
}

/// A session ends, and with it what is recorded of it; then its client id is free.
pub(super) fn release(core: &mut Core, id: Box<str>, holder: Holder, kept: Option<Box<Kept>>) {
    if kept.is_none_or(|kept| !kept.has_row) {
        return claims::release(core, id, holder);
    }
    let room = room_of(&id);
    core.say_in(&room, b"", Asked::Session(Written::End(id, holder)));
}

/// What came of something that was to be written.
pub fn written(core: &mut Core, what: Written, outcome: Result<u64, ErrorCode>) {
    if outcome.is_err() {
        core.rim.metrics.mqtt_session_unwritten_total.add(1);
    }
    match what {
        Written::Row(key, visit, waits) => {
            let kept = session_of(&mut core.rim, key).and_then(|session| session.kept.as_ref());
            if kept.is_none_or(|kept| kept.visit != visit) {
                return;
            }
            for wait in waits {
                go_on(core, key, wait, outcome.is_ok());
            }
        }
        Written::End(id, holder) => claims::release(core, id, holder),
    }
}

/// A session is recorded, or could not be.
fn go_on(core: &mut Core, key: ConnKey, wait: Wait, is_safe: bool) {
    if core.rim.conns.get(key).is_none_or(|conn| conn.is_closing()) {
        return;
    }
    match wait {
        Wait::Connected(present) if is_safe => connected(core, key, present),
        Wait::Connected(_) => refused(core, key, Reason::ServerUnavailable),
        Wait::Granted(number) if is_safe => core.rim.mqtt_granted_now(key, number, Ok(())),
        Wait::Unsubscribed(number) if is_safe => {
            core.rim.with_mqtt(key, |client, out| client.machine.unsubscribed(number, out));
        }
        Wait::Recorded(number) if is_safe => {
            core.rim.with_mqtt(key, |client, out| client.machine.recorded(number, out));
        }
        // It would be told of a session that may be forgotten.
        Wait::Granted(_) | Wait::Unsubscribed(_) | Wait::Recorded(_) => {
            end(core, key, Fault::of(Reason::ImplementationSpecific))
        }
    }
}

/// A client id's shard takes in a session of the process before: its connection, if it had one, has ended now.
pub(super) fn adopt(core: &mut Core, found: Found) {
    let Found { id, row } = found;
    let (head, mut state) = match read(&row) {
        Ok(read) => read,
        Err(damaged) => {
            core.rim.metrics.mqtt_sessions_damaged_total.add(1);
            let fields = vec![("client", id.chars().take(64).collect()), ("error", damaged.to_string())];
            return core.rim.control.log(Level::Error, "a session is lost", fields);
        }
    };
    let rim = &mut core.rim;
    state.leave(rim.now.wall_us / 1000);
    let key = rim.conns.reserve();
    let kept = Box::new(Kept { has_row: true, ..Kept::default() });
    let session = Session::new(Some(kept), head.last_key);
    let filters: Vec<Box<str>> = state.subscriptions().map(|(filter, ..)| filter.into()).collect();
    let holder = Holder { shard: rim.shard, conn: key };
    rim.claims.hold(id.clone(), holder);
    rim.adopt_session(key, Absent::new(id, state, session));
    rim.metrics.mqtt_sessions_adopted_total.add(1);
    core.broker.connected(key);
    let ticket = Ticket { shard: core.rim.shard, asker: Asker::Client { conn: key, slot: NOBODY } };
    for filter in &filters {
        let (group, filter) =
            shared(filter).map_or((None, &**filter), |(group, filter)| (Some(group), filter));
        if let Outcome::Now(Err(_)) = attach(core, ticket, key, (group, None, filter)) {
            core.count_refusal(false);
        }
    }
    super::session::look_at(core, key);
}

/// What stands before the state in a row.
struct Head {
    /// The key given last to a message.
    last_key: u64,
}

/// Of the row's format.
const VERSION: u8 = 1;

impl Head {
    const BYTES: usize = 9;

    fn write(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        out.extend(self.last_key.to_le_bytes());
    }
}

fn read(row: &[u8]) -> Result<(Head, SessionState<u64>), Damaged> {
    let (head, state) = row.split_at_checked(Head::BYTES).ok_or(Damaged("a row that is too short"))?;
    let (&version, last_key) = head.split_first().expect("it is that long");
    if version != VERSION {
        return Err(Damaged("a row of another version"));
    }
    let last_key = u64::from_le_bytes(last_key.try_into().expect("it is that long"));
    Ok((Head { last_key }, SessionState::decode(state)?))
}

/// What rooms of rows begin with; the client id follows, as one level.
const ROWS: &str = "$system/session/";

/// The room of a client id's row.
fn room_of(id: &str) -> Vec<u8> {
    format!("{ROWS}{}", claims::escaped(id)).into_bytes()
}

/// The client id of a row's room; none if it is another room.
#[must_use]
pub fn id_of_row(room: &[u8]) -> Option<String> {
    Some(claims::unescaped(std::str::from_utf8(room).ok()?.strip_prefix(ROWS)?))
}
