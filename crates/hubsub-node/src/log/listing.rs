//! Lists rooms: those in a shard's memory and those only in the logs of its hubs, merged into pages. Names
//! are on disk and read by a separate thread, so a listing does not delay history reads.

use super::{Log, LogMail, LoggedHub, LoggedHubs, Readers, Turn, reading};
use crate::io::classes::ClassesNow;
use crate::io::inbox::Post;
use crate::io::questions::{ColdRoom, Listed, Part};
use hubsub_log::rooms::Last;
use hubsub_route::{Ask, RoomInfo};
use hubsub_types::names::Glob;
use hubsub_types::{Epoch, ErrorCode, HubId, Position, Seq, ShardId};
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

const JOBS_MAX: usize = 1024;

/// How long a listing waits for committed records, above all deletions, to reach the segments; after that the
/// latest may be missing.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct Wanted {
    pub glob: Option<Vec<u8>>,
    pub after: Option<Vec<u8>>,
    pub limit: usize,
}

/// The listing thread and its data.
pub struct Listing {
    thread: Readers,
    known: Arc<Known>,
    log: Arc<Log>,
    inboxes: Arc<dyn Post<LogMail>>,
}

struct Known {
    logged: Arc<LoggedHubs>,
    classes: Arc<ClassesNow>,
}

impl Listing {
    /// Starts the thread that reads names.
    ///
    /// # Errors
    /// If the system has no threads left.
    pub fn start(
        log: Arc<Log>,
        logged: Arc<LoggedHubs>,
        classes: Arc<ClassesNow>,
        inboxes: Arc<dyn Post<LogMail>>,
    ) -> io::Result<Listing> {
        let thread = Readers::start("hubsub-log-names", 1, JOBS_MAX)?;
        Ok(Listing { thread, known: Arc::new(Known { logged, classes }), log, inboxes })
    }

    /// Looks up a room in its hub's log, from memory.
    pub fn room(&self, hub: HubId, name: &[u8]) -> Option<ColdRoom> {
        let chain = self.known.logged.chain(hub)?;
        let last = chain.rooms.get(chain.hash(name))?;
        self.known.cold_room(hub, name, last)
    }

    pub fn count(&self, hubs: impl Iterator<Item = HubId>) -> u64 {
        hubs.filter_map(|hub| self.known.logged.chain(hub)).map(|chain| chain.rooms.len() as u64).sum()
    }

    /// Merges the rooms in memory with those in these hubs' logs up to an offset. The response is mailed to
    /// the requester, or returned if the queue is full.
    pub fn page(
        &self,
        hubs: Vec<(HubId, u64)>,
        wanted: Wanted,
        here: Vec<RoomInfo>,
        ask: Ask,
    ) -> Option<Part> {
        let (known, log, inboxes) =
            (Arc::clone(&self.known), Arc::clone(&self.log), Arc::clone(&self.inboxes));
        let (begin, mut here) = (Instant::now(), here);
        let job = Box::new(move || {
            if known.is_behind(&hubs) && begin.elapsed() < PATIENCE {
                log.hurry();
                return Turn::Waits;
            }
            let part = match known.page(&hubs, &wanted, std::mem::take(&mut here)) {
                Ok(rooms) => Part::Rooms(Ok(rooms)),
                Err(refused) => Part::Refused(refused),
            };
            inboxes.post(ask.shard, LogMail::Listed(ask, part));
            Turn::Done
        });
        self.thread.submit(job).is_err().then_some(Part::Refused(ErrorCode::TimedOut))
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        let all = self.known.logged.all();
        all.iter().filter_map(|(_, hub)| hub.chain()).for_each(|chain| chain.stop_names());
        self.thread.stop();
    }
}

impl Known {
    /// True if committed records are missing in segments.
    fn is_behind(&self, hubs: &[(HubId, u64)]) -> bool {
        hubs.iter().any(|&(hub, through)| self.logged.chain(hub).is_some_and(|chain| chain.next() <= through))
    }

    fn page(
        &self,
        hubs: &[(HubId, u64)],
        wanted: &Wanted,
        here: Vec<RoomInfo>,
    ) -> Result<Vec<Listed>, ErrorCode> {
        let glob = wanted.glob.as_deref().map(Glob::new);
        let names: HashSet<Arc<[u8]>> = here.iter().map(|room| Arc::clone(&room.name)).collect();
        let mut rooms: Vec<Listed> = here.into_iter().map(Listed::Here).collect();
        for &(hub, _) in hubs {
            // Without a chain it is quarantined and serves no room.
            let Some(logged) = self.logged.get(hub) else { continue };
            let Some(chain) = logged.chain() else { continue };
            let matches = |name: &[u8]| {
                glob.as_ref().is_none_or(|glob| glob.matches(name)) && self.is_served(&logged, name)
            };
            let page = chain.rooms_page(wanted.after.as_deref(), wanted.limit, matches);
            let page = page.map_err(|e| {
                reading::damage(&e).into_iter().for_each(|damage| self.logged.damaged(hub, damage));
                reading::refusal(&e)
            })?;
            let cold = page.into_iter().filter(|(name, _)| !names.contains(&name[..]));
            rooms.extend(cold.filter_map(|(name, last)| self.cold_room(hub, &name, last)).map(Listed::InLog));
        }
        rooms.sort_unstable_by(|a, b| a.name().cmp(b.name()));
        rooms.truncate(wanted.limit);
        Ok(rooms)
    }

    /// True if this hub serves the room under the current classes.
    fn is_served(&self, hub: &LoggedHub, name: &[u8]) -> bool {
        let class = self.classes.get().class_of_room(name);
        (hub.class_index, hub.index) == (class, self.classes.hubs().placement.hub(class, name))
    }

    fn cold_room(&self, hub: HubId, name: &[u8], last: Last) -> Option<ColdRoom> {
        let hub = self.logged.get(hub)?;
        Some(ColdRoom {
            name: name.into(),
            class: hub.class_index,
            hub: hub.index,
            shard: ShardId(hub.shard),
            position: Position { epoch: Epoch(last.epoch), seq: Seq(last.seq) },
        })
    }
}
