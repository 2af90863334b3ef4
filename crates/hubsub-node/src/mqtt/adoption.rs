//! Sessions of the process before, which a node takes in at its start (docs/protocol/mqtt-state.md): the rooms in which
//! it finds them, and an absent session made of each before anybody is connected.

use super::durable::Kept;
use super::entries::{Head, head_of};
use super::recalled::{Recalled, recall};
use super::session::{Absent, Sent, Session};
use super::{NOBODY, attach, claims, standing};
use crate::control::Level;
use crate::core::Core;
use hubsub_route::claims::Holder;
use hubsub_route::{Asker, Outcome, Ticket};
use hubsub_wire::mqtt::shared;
use std::rc::Rc;

/// A session as it was found at the start.
#[derive(Debug)]
pub struct Found {
    /// Of its client.
    pub id: Box<str>,
    /// The row.
    pub row: Vec<u8>,
    /// Entries behind it, in their order.
    pub entries: Vec<Vec<u8>>,
}

impl Found {
    /// Its memory, for mailbox limits.
    #[must_use]
    pub fn weight(&self) -> usize {
        std::mem::size_of::<Found>()
            + self.id.len()
            + self.row.len()
            + self.entries.iter().map(Vec::len).sum::<usize>()
    }
}

/// A client id's shard takes in a session of the process before: its connection, if it had one, has ended now.
pub(super) fn adopt(core: &mut Core, found: Found) {
    let Found { id, row, entries } = found;
    let mut recalled = match recall(&row, &entries) {
        Ok(recalled) => recalled,
        Err(damaged) => {
            core.rim.metrics.mqtt_sessions_damaged_total.add(1);
            let fields = vec![("client", id.chars().take(64).collect()), ("error", damaged.to_string())];
            return core.rim.control.log(Level::Error, "a session is lost", fields);
        }
    };
    let kept = Box::new(Kept::found(&mut recalled));
    let Recalled { head, mut state, cursors, sent, queue, .. } = recalled;
    let cursors = cursors.map(|cursors| standing::adopted(core, cursors));
    let rim = &mut core.rim;
    state.leave(rim.now.wall_us / 1000);
    let key = rim.conns.reserve();
    let mut session = Session::new(Some(kept), head.last_key);
    for (key, row, message, grant) in sent {
        session.send(key, Sent { message: Rc::new(message), grant, row, is_recorded: true });
    }
    // Where it stands it goes on when its client is back.
    let stands =
        |filter: &str| cursors.as_ref().is_some_and(|cursors| standing::rests(core, cursors, filter));
    let filters = state.subscriptions().map(|(filter, ..)| filter).filter(|filter| !stands(filter));
    let filters: Vec<Box<str>> = filters.map(Box::from).collect();
    session.cursors = cursors;
    let rim = &mut core.rim;
    let holder = Holder { shard: rim.shard, conn: key };
    rim.claims.hold(id.clone(), holder);
    rim.adopt_session(key, Absent::new(id, state, session), queue);
    rim.metrics.mqtt_sessions_adopted_total.add(1);
    core.broker.connected(key);
    let ticket = Ticket { shard: core.rim.shard, asker: Asker::Client { conn: key, slot: NOBODY } };
    for filter in &filters {
        let (group, filter) =
            shared(filter).map_or((None, &**filter), |(group, filter)| (Some(group), filter));
        if let Outcome::Now(Err(_)) = attach(core, ticket, key, (group, None, filter), None) {
            core.count_refusal(false);
        }
    }
    super::session::look_at(core, key);
}

/// What rooms of rows begin with; the client id follows, as one level.
const ROWS: &str = "$system/session/";

/// The room of a client id's row.
pub(super) fn room_of(id: &str) -> Vec<u8> {
    format!("{ROWS}{}", claims::escaped(id)).into_bytes()
}

/// The client id of a row's room; none if it is another room.
#[must_use]
pub fn id_of_row(room: &[u8]) -> Option<String> {
    Some(claims::unescaped(std::str::from_utf8(room).ok()?.strip_prefix(ROWS)?))
}

/// What rooms of entries begin with; likewise.
const ENTRIES: &str = "$queue/";

/// The room of a client id's entries.
pub(super) fn queue_of(id: &str) -> Vec<u8> {
    format!("{ENTRIES}{}", claims::escaped(id)).into_bytes()
}

/// The client id of such a room; none if it is another room.
#[must_use]
pub fn id_of_entries(room: &[u8]) -> Option<String> {
    Some(claims::unescaped(std::str::from_utf8(room).ok()?.strip_prefix(ENTRIES)?))
}

/// Whether an entry is of use behind a session's row.
#[must_use]
pub fn is_of_use(row: &[u8], entry: &[u8]) -> bool {
    let head = Head::read(row).map(|(head, ..)| head);
    matches!((head, head_of(entry)), (Ok(head), Ok((born, number, _))) if born == head.born && number > head.through)
}
