//! How far a client has acknowledged one row of messages, such as those of a room: acknowledgements come in any
//! order, a cursor moves to where everything before it is acknowledged.

use super::session::Damaged;
use super::snapshot::{read_number, write_number};
use std::collections::VecDeque;

/// Of messages whose places ascend. Places are from 1 on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Places of messages that are not acknowledged, in order.
    open: VecDeque<u64>,
    /// What is behind this was not taken yet; whatever else is before it was acknowledged, or is not to be.
    taken: u64,
}

impl Progress {
    /// Of a row that is acknowledged as far as this.
    #[must_use]
    pub fn from(reached: u64) -> Progress {
        Progress { open: VecDeque::new(), taken: reached }
    }

    /// A message that is to be acknowledged, unless it was taken before; whether it was not.
    pub fn sent(&mut self, place: u64) -> bool {
        let is_new = place > self.taken;
        if is_new {
            self.open.push_back(place);
            self.taken = place;
        }
        is_new
    }

    /// Up to there nothing else is for this client.
    pub fn passed(&mut self, place: u64) {
        self.taken = self.taken.max(place);
    }

    /// It is acknowledged; whether it was not before.
    pub fn acknowledged(&mut self, place: u64) -> bool {
        // Mostly it is the first.
        let at = match self.open.front() {
            Some(&first) if first == place => Ok(0),
            _ => self.open.binary_search(&place),
        };
        at.is_ok_and(|at| self.open.remove(at).is_some())
    }

    /// Messages from there on are not taken.
    pub fn forget_from(&mut self, place: u64) {
        self.open.truncate(self.open.partition_point(|&open| open < place));
        self.taken = self.taken.min(place.saturating_sub(1));
    }

    /// The last place up to which everything is acknowledged.
    #[must_use]
    pub fn reached(&self) -> u64 {
        self.open.front().map_or(self.taken, |first| first - 1)
    }

    /// The last place that was taken.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Lets go of memory that it does not need while nothing comes.
    pub fn rest(&mut self) {
        self.open.shrink_to_fit();
    }

    /// Appends it: how many are open, the first place, then each next one's distance from the one before; how far the
    /// last taken one is behind.
    pub fn encode(&self, out: &mut Vec<u8>) {
        write_number(self.open.len() as u64, out);
        let mut before = 0;
        for &place in self.open.iter().chain([&self.taken]) {
            write_number(place - before, out);
            before = place;
        }
    }

    /// Takes one off the bytes.
    ///
    /// # Errors
    /// They are none, or more than `open_max` are open.
    pub fn decode(from: &mut &[u8], open_max: usize) -> Result<Progress, Damaged> {
        let short = Damaged("a cursor ends behind its record");
        let count = read_number(from).ok_or(short)?;
        if count > open_max as u64 {
            return Err(Damaged("more messages are open than may be"));
        }
        let mut progress = Progress::default();
        for at in 0..=count {
            let ahead = read_number(from).ok_or(short)?;
            let place = progress.taken.checked_add(ahead).filter(|_| at == count || ahead > 0);
            progress.taken = place.ok_or(Damaged("a cursor's places do not ascend"))?;
            if at < count {
                progress.open.push_back(progress.taken);
            }
        }
        Ok(progress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_reaches_as_far_as_all_is_acknowledged(
            rows in proptest::collection::vec((0..8_u8, any::<u8>()), 1..60),
        ) {
            let mut progress = Progress::default();
            let mut open = BTreeSet::new();
            let mut taken = 0;
            for (place, &(what, which)) in (1..).zip(&rows) {
                match what {
                    0..4 => {
                        prop_assert!(progress.sent(place) && !progress.sent(place));
                        open.insert(place);
                        taken = place;
                    }
                    4..7 => {
                        progress.passed(place);
                        taken = place;
                    }
                    _ => {
                        // What waited is forgotten, and comes again later.
                        let from = place.saturating_sub(u64::from(which % 4));
                        progress.forget_from(from);
                        open.retain(|&place| place < from);
                        taken = taken.min(from.saturating_sub(1));
                    }
                }
                if which & 1 == 1 && !open.is_empty() {
                    let one = *open.iter().nth(usize::from(which / 2) % open.len()).unwrap();
                    open.remove(&one);
                    prop_assert!(progress.acknowledged(one) && !progress.acknowledged(one));
                }
                let reached = open.first().map_or(taken, |first| first - 1);
                prop_assert_eq!((progress.reached(), progress.taken()), (reached, taken));
                let mut bytes = Vec::new();
                progress.encode(&mut bytes);
                let mut rest = &bytes[..];
                prop_assert_eq!(Progress::decode(&mut rest, open.len()), Ok(progress.clone()));
                prop_assert!(rest.is_empty());
                prop_assert!(open.is_empty() || Progress::decode(&mut &bytes[..], open.len() - 1).is_err());
            }
        }

        #[test]
        fn any_bytes_are_a_cursor_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let mut rest = &bytes[..];
            if let Ok(progress) = Progress::decode(&mut rest, 16) {
                let mut again = Vec::new();
                progress.encode(&mut again);
                prop_assert_eq!(&again[..], &bytes[..bytes.len() - rest.len()]);
            }
        }
    }
}
