//! A session where it is: beside the machine of its connection, or offline. Snapshots and entries are made
//! here, in the same way for both.

use super::client::Client;
use super::offline::OfflineSession;
use super::persistence::{Entry, HeadState, Persistence, Wait};
use super::session::Session;
use hubsub_types::HubId;

pub enum SessionPlace<'a> {
    Connected(&'a mut Client),
    Offline(&'a mut OfflineSession),
}

/// Something to write, in the order of a session's writes.
pub enum Write {
    Entry(Entry),
    Snapshot(Snapshot),
    /// A snapshot and entries that are written atomically. Entries up to `through` are obsolete.
    All {
        snapshot: Snapshot,
        through: u64,
        entries: Vec<Entry>,
    },
}

pub struct Snapshot {
    pub bytes: Vec<u8>,
    pub waits: Vec<Wait>,
    pub head: HeadState,
    /// True if the session moves to another node, which this snapshot releases it to.
    pub is_over: bool,
}

impl SessionPlace<'_> {
    pub fn client_id(&self) -> &str {
        match self {
            SessionPlace::Connected(client) => client.machine.client_id(),
            SessionPlace::Offline(offline) => &offline.id,
        }
    }

    pub fn session(&mut self) -> Option<&mut Session> {
        match self {
            SessionPlace::Connected(client) => client.session.as_deref_mut(),
            SessionPlace::Offline(offline) => Some(&mut offline.session),
        }
    }

    fn persistence(&mut self) -> Option<&mut Persistence> {
        self.session()?.persistence.as_deref_mut()
    }

    /// Returns the writes of a turn: an entry with the changes of this turn, and the snapshot if one is
    /// due. A snapshot with all live messages makes all earlier entries obsolete; in a store that is one
    /// write, so no snapshot refers to messages without an entry. `places`: the offset per hub up to which
    /// the connection has received all matching records.
    pub fn record(&mut self, has_store: bool, places: impl FnOnce() -> Vec<(HubId, u64)>) -> Vec<Write> {
        let Some(persistence) = self.persistence() else { return Vec::new() };
        persistence.is_scheduled = false;
        let is_due = persistence.snapshot_is_due;
        let needs_all = is_due && persistence.needs_all(has_store);
        let entries =
            if needs_all { self.take_all_entries() } else { persistence.take_entry().into_iter().collect() };
        let is_due = self.persistence().is_some_and(|it| it.snapshot_is_due);
        let snapshot = is_due.then(|| self.snapshot(&places())).flatten();
        let count = entries.len() as u32 + u32::from(snapshot.is_some());
        if let Some(persistence) = self.persistence().filter(|_| count > 0) {
            persistence.work().in_flight += count;
        }
        let writes = match snapshot {
            Some(snapshot) if needs_all && has_store => {
                let through = snapshot.head.last_entry - entries.len() as u64;
                vec![Write::All { snapshot, through, entries }]
            }
            snapshot => {
                let entries = entries.into_iter().map(Write::Entry);
                entries.chain(snapshot.map(Write::Snapshot)).collect()
            }
        };
        if let SessionPlace::Offline(offline) = self {
            offline.session.persistence.iter_mut().for_each(|persistence| persistence.shrink());
        }
        writes
    }

    /// Entries with all persisted messages and the changes of this turn.
    fn take_all_entries(&mut self) -> Vec<Entry> {
        match self {
            SessionPlace::Connected(client) => {
                let Client { session, pending, .. } = &mut **client;
                let Some(session) = session.as_deref_mut() else { return Vec::new() };
                let waiting = pending.iter().filter(|item| item.key > 0);
                session.take_all_entries(waiting.map(|item| (item.key, &*item.message, &item.grant)))
            }
            SessionPlace::Offline(offline) => offline.take_all_entries(),
        }
    }

    fn snapshot(&mut self, places: &[(HubId, u64)]) -> Option<Snapshot> {
        let (queued_from, cursors) = match self {
            SessionPlace::Connected(client) => {
                let queued_from = client.pending.front().map(|item| item.key).filter(|&key| key > 0);
                let cursors = client.session.as_deref()?.cursors.as_deref();
                (queued_from, cursors.map(|cursors| cursors.as_sent(&client.pending, places)))
            }
            SessionPlace::Offline(offline) => {
                (offline.first_key(), offline.session.cursors.as_deref().cloned())
            }
        };
        let session = self.session()?;
        let (last, in_flight_from) = (session.last_key(), session.first_sent().unwrap_or(u64::MAX));
        let persistence = session.persistence.as_mut()?;
        (persistence.snapshot_is_due, persistence.has_snapshot, persistence.has_moved) = (false, true, false);
        let head = persistence.head(last, in_flight_from, queued_from.unwrap_or(last + 1));
        let waits = persistence.work.as_mut().map_or_else(Vec::new, |work| std::mem::take(&mut work.waits));
        let (of_head, is_over) = (persistence.head, persistence.is_moving());
        let mut bytes = Vec::with_capacity(128);
        head.write(cursors.as_ref(), &mut bytes);
        match self {
            SessionPlace::Connected(client) => client.machine.state().encode(&mut bytes),
            SessionPlace::Offline(offline) => offline.state.encode(&mut bytes),
        }
        Some(Snapshot { bytes, waits, head: of_head, is_over })
    }
}
