//! Which rooms there are: those of a shard's memory and those that only the logs of
//! its hubs know, in one page. The names are on disk, so a thread of its own reads
//! them: a listing keeps nobody waiting who reads history.

use super::reading;
use super::status::LoggedHub;
use super::{Log, LoggedHubs, Readers, Turn};
use crate::classes::ClassesNow;
use crate::inbox::Inbox;
use crate::mail::{ColdRoom, Listed, Mail, Part};
use hubsub_log::rooms::Last;
use hubsub_route::{Ask, RoomInfo};
use hubsub_types::names::Glob;
use hubsub_types::{Epoch, ErrorCode, HubId, Position, Seq, ShardId};
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Listings that wait.
const JOBS_MAX: usize = 1024;

/// How long a listing waits for the segments to have what was committed, deletions
/// above all; what came last may be missing from it then.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a page holds.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Rooms that match this.
    pub glob: Option<Vec<u8>>,
    /// Behind this name.
    pub after: Option<Vec<u8>>,
    /// So many at most.
    pub limit: usize,
}

/// See the module.
pub struct Listing {
    thread: Readers,
    known: Arc<Known>,
    log: Arc<Log>,
}

/// What is known of hubs.
struct Known {
    logged: Arc<LoggedHubs>,
    classes: Arc<ClassesNow>,
}

impl Listing {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system is out of threads.
    pub fn start(log: Arc<Log>, logged: Arc<LoggedHubs>, classes: Arc<ClassesNow>) -> io::Result<Listing> {
        let thread = Readers::start("hubsub-log-names", 1, JOBS_MAX)?;
        Ok(Listing { thread, known: Arc::new(Known { logged, classes }), log })
    }

    /// What the log of a room's hub knows of it; from memory.
    pub fn room(&self, hub: HubId, name: &[u8]) -> Option<ColdRoom> {
        let chain = self.known.logged.chain(hub)?;
        let last = chain.rooms.get(chain.hash(name))?;
        self.known.cold_room(hub, name, last)
    }

    /// How many rooms the logs of some hubs know.
    pub fn count(&self, hubs: impl Iterator<Item = HubId>) -> u64 {
        hubs.filter_map(|hub| self.known.logged.chain(hub)).map(|chain| chain.rooms.len() as u64).sum()
    }

    /// Adds to the rooms in memory those that these hubs' logs know up to an offset. The
    /// answer goes to who asked, unless it is returned: too many wait.
    pub fn page(
        &self,
        hubs: Vec<(HubId, u64)>,
        wanted: Wanted,
        here: Vec<RoomInfo>,
        ask: Ask,
        inboxes: &Arc<[Inbox]>,
    ) -> Option<Part> {
        let (known, log, inboxes) = (Arc::clone(&self.known), Arc::clone(&self.log), Arc::clone(inboxes));
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
            inboxes[usize::from(ask.shard.0)].send(&mut vec![Mail::Part { gathering: ask.number, part }]);
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
    /// Whether segments have not yet what was committed.
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
            // Without its chain it is quarantined: it serves no room.
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

    /// Whether a name's room is of this hub, as its class stands now.
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
