//! The offline sessions of a shard, by the connection slot that each keeps, and what goes with them: totals,
//! sessions with missing subscriptions, session deletes to retry.

use super::delete_retry::DeleteRetries;
use super::message::Message;
use super::missing_subscriptions::MissingSubscriptions;
use super::offline::{OfflineSession, QueueLimits};
use super::session::Session;
use super::shares::{Group, Sharing};
use crate::machine::Grant;
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_types::ConnKey;
use std::rc::Rc;

#[derive(Default)]
pub struct Sessions {
    by_place: HashMap<u32, (u32, Box<OfflineSession>), RandomState>,
    pub missing: MissingSubscriptions,
    /// Ended sessions whose snapshot still exists.
    pub deletes: DeleteRetries,
    /// Sessions that queue messages for groups, with the number of members each group had then.
    pub sharing: Sharing,
    /// Connected clients whose sessions outlive their connections.
    pub connected: usize,
    pub queued: usize,
    pub queued_bytes: usize,
}

impl Sessions {
    pub fn offline(&self) -> usize {
        self.by_place.len()
    }

    pub fn get_mut(&mut self, key: ConnKey) -> Option<&mut OfflineSession> {
        let (generation, offline) = self.by_place.get_mut(&key.index)?;
        (*generation == key.generation).then_some(offline)
    }

    pub fn get(&self, key: ConnKey) -> Option<&OfflineSession> {
        let (generation, offline) = self.by_place.get(&key.index)?;
        (*generation == key.generation).then_some(offline)
    }

    pub fn iter(&self) -> impl Iterator<Item = (ConnKey, &OfflineSession)> {
        self.by_place
            .iter()
            .map(|(&index, &(generation, ref offline))| (ConnKey { index, generation }, &**offline))
    }

    pub fn session_mut(&mut self, key: ConnKey) -> Option<&mut Session> {
        self.get_mut(key).map(|offline| &mut offline.session)
    }

    /// True if the session receives records from logs while offline, which is when it has no hub cursors.
    pub fn reads(&self, conn: u32) -> bool {
        let has_hub_cursors =
            |session: &Session| session.cursors.as_ref().is_some_and(|cursors| cursors.has_hub_cursors);
        self.by_place.get(&conn).is_some_and(|(_, offline)| !has_hub_cursors(&offline.session))
    }

    pub fn insert(&mut self, key: ConnKey, offline: OfflineSession) {
        let (messages, bytes, _) = offline.queued();
        self.queued += messages;
        self.queued_bytes += bytes;
        self.by_place.insert(key.index, (key.generation, Box::new(offline)));
    }

    pub fn remove(&mut self, key: ConnKey) -> Option<OfflineSession> {
        self.get_mut(key)?;
        let (_, offline) = self.by_place.remove(&key.index)?;
        let (messages, bytes, _) = offline.queued();
        self.queued -= messages;
        self.queued_bytes -= bytes;
        Some(*offline)
    }

    /// Queues a message for an offline session; returns how many were dropped, or none without a session.
    pub fn queue(
        &mut self,
        key: ConnKey,
        message: Rc<Message>,
        grant: Grant,
        group: Option<Group>,
        limits: QueueLimits,
    ) -> Option<u64> {
        self.changed(key, |offline| offline.push(message, grant, 0, group, limits))
    }

    /// Takes the queued messages of an offline session for a group, or for all groups.
    pub fn take_shared(&mut self, key: ConnKey, of: Option<&[u8]>) -> Option<Vec<(Group, Rc<Message>)>> {
        self.changed(key, |offline| offline.take_shared(of))
    }

    /// Changes the queue of a session, and with it the totals.
    fn changed<R>(&mut self, key: ConnKey, change: impl FnOnce(&mut OfflineSession) -> R) -> Option<R> {
        let offline = self.get_mut(key)?;
        let (messages, bytes, _) = offline.queued();
        let changed = change(offline);
        let (messages_now, bytes_now, _) = offline.queued();
        self.queued = self.queued + messages_now - messages;
        self.queued_bytes = self.queued_bytes + bytes_now - bytes;
        Some(changed)
    }

    pub fn is_offline(&self, conn: u32) -> bool {
        self.by_place.contains_key(&conn)
    }

    /// The offline session of a slot, whatever its generation, with its key.
    pub fn at_mut(&mut self, conn: u32) -> Option<(ConnKey, &mut OfflineSession)> {
        let (generation, offline) = self.by_place.get_mut(&conn)?;
        Some((ConnKey { index: conn, generation: *generation }, offline))
    }
}
