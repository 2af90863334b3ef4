//! Compaction of the hubs that keep the latest of each key, one hub at a time in small steps, since its
//! thread also writes segments.
//!
//! Invariant: the manifest lists a copy before its sources are removed, so a crash leaves a complete set. The
//! next start removes the files that the manifest does not list.

use super::Segments;
use crate::chain::{Pass, PassLimits, Replacement, Turn};
use crate::manifest::Keep;
use crate::storage::Storage;
use crate::{LogError, Result};
use hubsub_types::HubId;

/// Keys that a pass keeps in memory: at least those of a segment of 64 MiB, in 26 MiB (a hash table with 2²⁰
/// places holds this many before it grows).
const KEYS_MAX: usize = 917_504;

/// A day, as in Kafka's default for tombstones.
const TOMBSTONE_US: u64 = 24 * 3600 * 1_000_000;

/// Bytes read, and at most written and synced, per turn of the segment thread: some ms, during which records
/// wait in memory and in the journal.
const BUDGET_BYTES: u64 = 1 << 20;

/// New bytes are read twice, and at most as many old ones once. With this factor, a pass ends before as many
/// bytes have arrived again, however fast they arrive.
const PACE: u64 = 4;

#[derive(Clone, Copy, Debug)]
pub struct Compaction {
    pub budget_bytes: u64,
    /// Additional budget per byte applied to such hubs since the previous call.
    pub pace: u64,
    /// Minimum time in µs for which a tombstone is kept after the records it hides are removed. A reader that
    /// takes longer for the whole hub must hold it.
    pub tombstone_us: u64,
    /// Maximum of keys of new records in memory; a pass ends where there are more.
    pub keys_max: usize,
}

impl Default for Compaction {
    fn default() -> Compaction {
        Compaction { budget_bytes: BUDGET_BYTES, pace: PACE, tombstone_us: TOMBSTONE_US, keys_max: KEYS_MAX }
    }
}

impl<S: Storage> Segments<S> {
    /// Continues compaction; returns the number of removed segments. `hold` returns the offset from which all
    /// records of a hub are needed.
    ///
    /// # Errors
    /// [`LogError::Full`], [`LogError::Unopened`]: no copy can be made now; the next call starts again.
    /// [`LogError::Damaged`]: a hub's segments cannot be read, and it is not compacted until the next start.
    /// In both cases nothing was lost. Others come from the storage.
    pub fn compact(
        &mut self,
        now_us: u64,
        limits: Compaction,
        hold: impl Fn(HubId) -> Option<u64>,
    ) -> Result<usize> {
        if self.is_broken {
            return Err(LogError::Broken);
        }
        let hold = |hub| hold(hub).unwrap_or(u64::MAX);
        let given = std::mem::take(&mut self.given_bytes);
        let mut left = limits.budget_bytes.saturating_add(given.saturating_mul(limits.pace));
        let mut gone = 0;
        while left > 0 {
            if let Some((_, pass)) = self.pass.take_if(|(hub, pass)| hold(*hub) < pass.behind()) {
                pass.discard();
            }
            if self.pass.is_none() {
                self.pass = self.next_pass(now_us, limits, &hold);
            }
            let Some((hub, mut pass)) = self.pass.take() else { break };
            let turn = pass.turn(&mut left).and_then(|turn| match turn {
                Turn::Copied(replacement) => {
                    gone += self.put(hub, &replacement)?;
                    pass.replaced();
                    Ok(true)
                }
                Turn::Paused => Ok(true),
                Turn::Done => Ok(false),
            });
            match turn {
                Ok(true) => self.pass = Some((hub, pass)),
                Ok(false) => {
                    self.compacted = hub;
                    let entry = self.manifest.hub_mut(hub).expect("hubs stay");
                    // Stored with the next manifest; if this is lost, the pass is repeated.
                    entry.compacted = pass.compacted(&entry.compacted, now_us);
                }
                Err(e) if e.is_passing() || matches!(e, LogError::Damaged { .. }) => {
                    pass.discard();
                    if matches!(e, LogError::Damaged { .. }) {
                        self.unreadable.insert(hub);
                    }
                    return Err(e);
                }
                Err(e) => return Err(e),
            }
        }
        Ok(gone)
    }

    /// A pass over the next hub in turn that has enough to compact.
    fn next_pass(
        &self,
        now_us: u64,
        limits: Compaction,
        hold: &impl Fn(HubId) -> u64,
    ) -> Option<(HubId, Pass<S>)> {
        let Compaction { tombstone_us, keys_max, .. } = limits;
        let (before, behind): (Vec<_>, Vec<_>) =
            self.manifest.hubs.iter().partition(|entry| entry.hub <= self.compacted);
        behind.into_iter().chain(before).find_map(|entry| {
            let hub = entry.hub;
            let appender = self.hubs.get(&hub).filter(|_| !self.unreadable.contains(&hub))?;
            // The next start needs the segment that was open at the last checkpoint.
            let listed = entry.segments.last().map_or(0, |s| s.0);
            let range = (listed, hold(hub));
            let limits = PassLimits { tombstone_us, keys_max };
            let options = self.options.chain;
            let pass = (entry.keep == Keep::Latest)
                .then(|| Pass::new(&appender.chain, options, limits, &entry.compacted, range, now_us));
            pass.flatten().map(|pass| (hub, pass))
        })
    }

    /// Replaces segments with their copy; returns how many were replaced.
    fn put(&mut self, hub: HubId, replacement: &Replacement) -> Result<usize> {
        let entry = self.manifest.hub_mut(hub).expect("hubs stay");
        let old = replacement.old();
        let at = entry.segments.iter().position(|s| s.name() == old[0]);
        let at = at.expect("a pass is over listed segments");
        let before = entry.segments.clone();
        entry.segments.splice(at..at + old.len(), [replacement.entry()]);
        if let Err(e) = self.manifest.store(&*self.storage) {
            // After another error, the disk may have either list; all files of both exist as long as nothing
            // is created or removed.
            self.is_broken |= !e.is_passing();
            self.manifest.hub_mut(hub).expect("hubs stay").segments = before;
            return Err(e);
        }
        self.hubs[&hub].chain.replace(replacement);
        Ok(old.len())
    }
}
