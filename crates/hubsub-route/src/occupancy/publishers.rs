//! Connections of a shard that published to a room within the last minute, with a precision of a second.
//!
//! A publish to the same topic as the connection's last one in the same second costs a comparison. Others
//! look the room up among those of the connection. The first publish to a room schedules the time at which
//! the connection may no longer be a publisher; then its last publish is examined.

use super::{PUBLISHER_S, Published};
use crate::topics::TopicId;
use ahash::RandomState;
use hashbrown::HashMap;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The times at which a connection last published to rooms.
type Rooms = HashMap<Arc<[u8]>, Last, RandomState>;

type Pairs = Vec<(u32, Arc<[u8]>)>;

#[derive(Debug, Default)]
pub struct Publishers {
    conns: Vec<Conn>,
    due: BTreeMap<u32, Pairs>,
    remembered: u64,
    pub uncounted: u64,
}

#[derive(Debug, Default)]
struct Conn {
    /// The last publish: topic, count of reused handles, second.
    last: Option<(TopicId, u32, u32)>,
    rooms: Option<Box<Rooms>>,
}

/// Times in s: the last publish, and the next examination.
#[derive(Clone, Copy, Debug)]
struct Last {
    at: u32,
    due: u32,
}

impl Publishers {
    #[inline]
    pub fn repeats(&self, Published { conn, topic, reused, second }: Published) -> bool {
        self.conns.get(conn as usize).is_some_and(|conn| conn.last == Some((topic, reused, second)))
    }

    pub fn published(
        &mut self,
        Published { conn: index, topic, reused, second }: Published,
        room: &[u8],
        name: impl FnOnce() -> Arc<[u8]>,
        max: u64,
    ) -> Option<Arc<[u8]>> {
        if self.conns.len() <= index as usize {
            self.conns.resize_with(index as usize + 1, Conn::default);
        }
        let conn = &mut self.conns[index as usize];
        conn.last = Some((topic, reused, second));
        if let Some(last) = conn.rooms.as_mut().and_then(|rooms| rooms.get_mut(room)) {
            last.at = second;
            return None;
        }
        if self.remembered >= max {
            self.uncounted += 1;
            return None;
        }
        let (name, due) = (name(), second + PUBLISHER_S + 1);
        conn.rooms.get_or_insert_default().insert(Arc::clone(&name), Last { at: second, due });
        self.due.entry(due).or_default().push((index, Arc::clone(&name)));
        self.remembered += 1;
        Some(name)
    }

    pub fn gone(&mut self, conn: u32) -> Vec<Arc<[u8]>> {
        let Some(conn) = self.conns.get_mut(conn as usize) else { return Vec::new() };
        let rooms = std::mem::take(conn).rooms;
        rooms.into_iter().flat_map(|rooms| rooms.into_keys()).collect()
    }

    pub fn expire(&mut self, second: u32) -> Vec<Arc<[u8]>> {
        let mut over = Vec::new();
        while let Some(entry) = self.due.first_entry().filter(|entry| *entry.key() <= second) {
            let (due, looked_at) = entry.remove_entry();
            self.remembered -= looked_at.len() as u64;
            for (index, room) in looked_at {
                let Some(rooms) = self.conns.get_mut(index as usize).and_then(|conn| conn.rooms.as_mut())
                else {
                    continue;
                };
                // An entry of a previous connection with this index is ignored.
                let Some(last) = rooms.get_mut(&room).filter(|last| last.due == due) else { continue };
                if last.at + PUBLISHER_S + 1 > second {
                    last.due = last.at + PUBLISHER_S + 1;
                    self.due.entry(last.due).or_default().push((index, room));
                    self.remembered += 1;
                } else {
                    rooms.remove(&room);
                    if rooms.is_empty() {
                        self.conns[index as usize].rooms = None;
                    }
                    over.push(room);
                }
            }
        }
        over
    }
}
