//! How far a client has acknowledged one row of messages, such as those of a room: acknowledgements come in any
//! order, a cursor moves to where everything before it is acknowledged.

use std::collections::VecDeque;

/// Of messages whose places ascend.
#[derive(Clone, Debug)]
pub struct Progress<P> {
    /// What is behind `reached`, and whether it is acknowledged; the first is not, nor the one before one that is.
    row: VecDeque<(P, bool)>,
    reached: Option<P>,
}

impl<P> Default for Progress<P> {
    fn default() -> Progress<P> {
        Progress { row: VecDeque::new(), reached: None }
    }
}

impl<P: Ord + Copy> Progress<P> {
    /// Of a row that is acknowledged as far as this.
    #[must_use]
    pub fn from(reached: P) -> Progress<P> {
        Progress { row: VecDeque::new(), reached: Some(reached) }
    }

    /// A message that is to be acknowledged; its place is above all before.
    pub fn sent(&mut self, place: P) {
        self.row.push_back((place, false));
    }

    /// One that is not: of QoS 0, or not for this client.
    pub fn passed(&mut self, place: P) {
        match self.row.back_mut() {
            None => self.reached = Some(place),
            Some((last, true)) => *last = place,
            Some(_) => self.row.push_back((place, true)),
        }
    }

    /// It is acknowledged; whether [`Progress::reached`] moved.
    pub fn acknowledged(&mut self, place: P) -> bool {
        let Ok(at) = self.row.binary_search_by_key(&place, |&(place, _)| place) else { return false };
        self.row[at].1 = true;
        let mut moved = false;
        while let Some(&(place, true)) = self.row.front() {
            self.row.pop_front();
            (self.reached, moved) = (Some(place), true);
        }
        moved
    }

    /// The last place up to which everything is acknowledged.
    #[must_use]
    pub fn reached(&self) -> Option<P> {
        self.reached
    }

    /// The first place that is not.
    #[must_use]
    pub fn lowest_open(&self) -> Option<P> {
        self.row.front().map(|&(place, _)| place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_reaches_as_far_as_all_is_acknowledged(
            rows in proptest::collection::vec((any::<bool>(), any::<u8>()), 1..60),
        ) {
            let mut progress = Progress::default();
            let mut open: Vec<usize> = Vec::new();
            let mut last = None;
            for (place, &(is_sent, which)) in rows.iter().enumerate() {
                if is_sent {
                    progress.sent(place);
                    open.push(place);
                } else {
                    progress.passed(place);
                }
                last = Some(place);
                if which & 1 == 1 && !open.is_empty() {
                    let before = progress.reached();
                    let moved = progress.acknowledged(open.remove(usize::from(which / 2) % open.len()));
                    prop_assert_eq!(moved, before != progress.reached());
                }
                let expected = match open.iter().min() {
                    None => last,
                    Some(&lowest) => lowest.checked_sub(1),
                };
                prop_assert_eq!(progress.reached(), expected);
                prop_assert_eq!(progress.lowest_open(), open.iter().min().copied());
                prop_assert!(progress.row.len() <= 2 * rows.len());
            }
            for place in open {
                progress.acknowledged(place);
            }
            prop_assert_eq!((progress.reached(), progress.lowest_open()), (last, None));
        }
    }
}
