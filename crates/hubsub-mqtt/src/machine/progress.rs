//! Acknowledged positions of a client in one sequence of messages, such as a room's. Acknowledgements come in
//! any order; a cursor advances to the position up to which everything is acknowledged.
//!
//! Positions *ahead* are those whose outcome is known from recorded events while the outcome of earlier ones
//! is not: the earlier ones are sent again, these are not.

use super::seldom::Seldom;
use super::session::Damaged;
use crate::reader::{Reader, write_number};
use std::collections::VecDeque;

/// Progress in a sequence of messages with ascending positions, from 1.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    open: Seldom<VecDeque<u64>>,
    /// The last position taken: those up to here are acknowledged or need no acknowledgement, but for `open`.
    taken: u64,
    /// Ranges after `taken`, in order.
    ahead: Seldom<Vec<Ahead>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ahead {
    from: u64,
    upto: u64,
    /// Whether it is unacknowledged; such a range has one position.
    is_open: bool,
}

impl Ahead {
    fn open(place: u64) -> Ahead {
        Ahead { from: place, upto: place, is_open: true }
    }

    fn done(from: u64, upto: u64) -> Ahead {
        Ahead { from, upto, is_open: false }
    }
}

impl PartialEq for Progress {
    fn eq(&self, other: &Progress) -> bool {
        (&*self.open, self.taken, &*self.ahead) == (&*other.open, other.taken, &*other.ahead)
    }
}

impl Eq for Progress {}

impl Progress {
    /// A sequence that is acknowledged up to this position.
    #[must_use]
    pub fn from(reached: u64) -> Progress {
        Progress { taken: reached, ..Progress::default() }
    }

    /// A message was sent that needs an acknowledgement; returns false if it was already taken or sent.
    #[inline]
    pub fn sent(&mut self, place: u64) -> bool {
        let mut is_new = place > self.taken;
        if !self.ahead.is_empty() {
            self.pass_ahead(place.saturating_sub(1));
            if self.ahead.first().is_some_and(|first| first.from == place) {
                self.pass_ahead(place);
                is_new = false;
            }
        }
        if is_new {
            self.open.push_back(place);
        }
        self.taken = self.taken.max(place);
        is_new
    }

    /// Skips a position: up to and including it, no more messages are for this client.
    pub fn passed(&mut self, place: u64) {
        if !self.ahead.is_empty() {
            self.pass_ahead(place);
        }
        self.taken = self.taken.max(place);
    }

    /// Removes the ranges ahead up to and including a position; adds their open positions to `open`.
    fn pass_ahead(&mut self, upto: u64) {
        let passed = self.ahead.partition_point(|ahead| ahead.upto <= upto);
        let passed = self.ahead.drain(..passed).filter(|ahead| ahead.is_open).map(|ahead| ahead.from);
        self.open.extend(passed);
        match self.ahead.first_mut() {
            Some(first) => first.from = first.from.max(upto + 1),
            None => self.ahead = Seldom::default(),
        }
    }

    /// Index of the range ahead that contains a position, or where it belongs.
    fn find_ahead(&self, place: u64) -> Result<usize, usize> {
        let at = self.ahead.partition_point(|ahead| ahead.upto < place);
        if self.ahead.get(at).is_some_and(|ahead| ahead.from <= place) { Ok(at) } else { Err(at) }
    }

    /// A message was sent, while the outcome of earlier ones is unknown.
    pub fn sent_ahead(&mut self, place: u64) {
        if place > self.taken
            && let Err(at) = self.find_ahead(place)
        {
            self.ahead.insert(at, Ahead::open(place));
        }
    }

    /// A message was acknowledged; returns whether it was unacknowledged.
    #[inline]
    pub fn acknowledged(&mut self, place: u64) -> bool {
        if place > self.taken {
            return self.find_ahead(place).is_ok_and(|at| std::mem::take(&mut self.ahead[at].is_open));
        }
        // Usually it is the first.
        let at = match self.open.front() {
            Some(&first) if first == place => Ok(0),
            _ => self.open.binary_search(&place),
        };
        at.is_ok_and(|at| self.open.remove(at).is_some())
    }

    /// A taken message was not sent after all; nor were later ones, except those that remain ahead.
    pub fn take_back(&mut self, place: u64) {
        if place > self.taken {
            if let Ok(at) = self.find_ahead(place)
                && self.ahead[at].is_open
            {
                self.ahead.remove(at);
            }
            return;
        }
        let from = self.open.partition_point(|&open| open < place);
        let behind = self.open.split_off(from);
        self.taken = place.saturating_sub(1);
        for place in behind.into_iter().filter(|&open| open > place) {
            self.sent_ahead(place);
        }
    }

    /// Of the unacknowledged messages only the known ones are in flight. The others are sent again;
    /// everything else that was taken is not.
    pub fn lose(&mut self, is_known: impl Fn(u64) -> bool) {
        if !self.ahead.is_empty() {
            self.ahead.retain(|ahead| !ahead.is_open || is_known(ahead.from));
        }
        let Some(lost) = self.open.iter().position(|&place| !is_known(place)) else { return };
        let behind = self.open.split_off(lost);
        let (mut ahead, mut next) = (Vec::new(), behind[0] + 1);
        for &place in behind.iter().skip(1) {
            if next < place {
                ahead.push(Ahead::done(next, place - 1));
            }
            if is_known(place) {
                ahead.push(Ahead::open(place));
            }
            next = place + 1;
        }
        if next <= self.taken {
            ahead.push(Ahead::done(next, self.taken));
        }
        self.taken = behind[0] - 1;
        if !ahead.is_empty() {
            self.ahead.splice(0..0, ahead);
        }
    }

    pub fn reached(&self) -> u64 {
        self.open.front().map_or(self.taken, |first| first - 1)
    }

    #[inline]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    pub fn rest(&mut self) {
        if self.open.is_empty() {
            self.open = Seldom::default();
        } else {
            self.open.shrink_to_fit();
        }
    }

    /// Encodes it: the number of open positions; the first position, then the distance of each next one from
    /// its predecessor, and of `taken` from the last; the number of ranges ahead; of each its distance,
    /// doubled, plus 1 if it is open, else followed by the number of positions after its first.
    pub fn encode(&self, out: &mut Vec<u8>) {
        write_number(self.open.len() as u64, out);
        let mut before = 0;
        for &place in self.open.iter().chain([&self.taken]) {
            write_number(place - before, out);
            before = place;
        }
        write_number(self.ahead.len() as u64, out);
        for &Ahead { from, upto, is_open } in self.ahead.iter() {
            write_number((from - before) << 1 | u64::from(is_open), out);
            if !is_open {
                write_number(upto - from, out);
            }
            before = upto;
        }
    }

    /// Decodes one from the front of the bytes.
    ///
    /// # Errors
    /// They are invalid, or more than `open_max` positions are open.
    pub(crate) fn decode(from: &mut Reader<'_>, open_max: usize) -> Result<Progress, Damaged> {
        let count = from.number::<u64>()?;
        if count > open_max as u64 {
            return Err(Damaged("more messages are open than may be"));
        }
        let mut progress = Progress::default();
        for at in 0..=count {
            let ahead = from.number()?;
            let place = progress.taken.checked_add(ahead).filter(|_| at == count || ahead > 0);
            progress.taken = place.ok_or(Damaged("a cursor's places do not ascend"))?;
            if at < count {
                progress.open.push_back(progress.taken);
            }
        }
        let mut before = progress.taken;
        for _ in 0..from.number::<u64>()? {
            let number = from.number::<u64>()?;
            let is_open = number & 1 == 1;
            let first = before.checked_add(number >> 1).filter(|&place| place > before);
            let more = if is_open { 0 } else { from.number()? };
            let last = first.and_then(|first| first.checked_add(more)).filter(|&last| last < u64::MAX);
            let places = first.zip(last).ok_or(Damaged("a cursor's places do not ascend"))?;
            progress.ahead.push(Ahead { from: places.0, upto: places.1, is_open });
            before = places.1;
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
                        // Waiting messages are taken back, and are sent again later.
                        let waited: Vec<u64> = open.iter().rev().take(usize::from(which % 4)).copied().collect();
                        for &place in waited.iter().rev() {
                            progress.take_back(place);
                            open.remove(&place);
                        }
                        taken = waited.last().map_or(taken, |first| first - 1);
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
                let mut rest = Reader(&bytes);
                prop_assert_eq!(Progress::decode(&mut rest, open.len()), Ok(progress.clone()));
                prop_assert!(rest.0.is_empty());
                prop_assert!(open.is_empty() || Progress::decode(&mut Reader(&bytes), open.len() - 1).is_err());
            }
        }

        #[test]
        fn what_was_sent_ahead_comes_no_more_and_the_others_do(
            rows in proptest::collection::vec((any::<bool>(), any::<bool>()), 1..40),
            restarts in any::<u8>(),
        ) {
            let mut progress = Progress::default();
            for (place, &(is_ahead, is_acknowledged)) in (1..).zip(&rows).filter(|(_, row)| row.0) {
                progress.sent_ahead(place);
                prop_assert!(is_ahead && (!is_acknowledged || progress.acknowledged(place)));
            }
            if restarts & 1 == 1 {
                let mut bytes = Vec::new();
                progress.encode(&mut bytes);
                progress = Progress::decode(&mut Reader(&bytes), rows.len()).unwrap();
            }
            for (place, &(is_ahead, _)) in (1..).zip(&rows) {
                prop_assert_eq!(progress.sent(place), !is_ahead);
            }
            for (place, &(is_ahead, is_acknowledged)) in (1..).zip(&rows) {
                let is_open = !(is_ahead && is_acknowledged);
                prop_assert_eq!(progress.acknowledged(place), is_open);
            }
            prop_assert_eq!(progress.reached(), rows.len() as u64);
        }

        #[test]
        fn what_was_lost_comes_again_and_nothing_else(
            rows in proptest::collection::vec((0..3_u8, any::<bool>()), 1..40),
            waits in 0..4_u64,
            restarts in any::<u8>(),
        ) {
            let mut progress = Progress::default();
            let count = rows.len() as u64;
            for (place, &(what, _)) in (1..).zip(&rows) {
                match what {
                    0 => progress.passed(place),
                    _ => prop_assert!(progress.sent(place)),
                }
                prop_assert!(what != 1 || progress.acknowledged(place));
            }
            (0..waits).for_each(|n| progress.sent_ahead(count + 2 * (n + 1)));
            let is_known = |place: u64| match rows.get(place as usize - 1) {
                Some(&(_, is_known)) => is_known,
                None => place.is_multiple_of(4),
            };
            progress.lose(is_known);
            let mut bytes = Vec::new();
            progress.encode(&mut bytes);
            let decoded = Progress::decode(&mut Reader(&bytes), rows.len()).unwrap();
            prop_assert_eq!(&decoded, &progress);
            if restarts & 1 == 1 {
                progress.lose(is_known);
                prop_assert_eq!(&decoded, &progress, "it is known already");
            }
            let is_lost = |place: u64| rows.get(place as usize - 1).is_some_and(|row| row == &(2, false));
            let last = count + 2 * waits;
            let is_open_ahead = |place: u64| place > count && (place - count).is_multiple_of(2) && is_known(place);
            for place in progress.taken() + 1..=last {
                let is_new = progress.sent(place);
                prop_assert_eq!(is_new, is_lost(place) || (place > count && !is_open_ahead(place)));
            }
            for place in 1..=last {
                let is_open = rows.get(place as usize - 1).is_none_or(|&(what, _)| what == 2);
                prop_assert_eq!(progress.acknowledged(place), is_open, "{}", place);
            }
            prop_assert_eq!(progress.reached(), last);
        }

        #[test]
        fn what_waits_among_what_is_under_way_is_taken_back_alone(waits in proptest::collection::vec(any::<bool>(), 1..20)) {
            let mut progress = Progress::default();
            for place in 1..=waits.len() as u64 {
                progress.sent(place);
            }
            let waiting = || (1..).zip(&waits).filter(|(_, waits)| **waits).map(|(place, _)| place);
            waiting().for_each(|place| progress.take_back(place));
            prop_assert_eq!(progress.taken(), waiting().next().map_or(waits.len() as u64, |first| first - 1));
            let again: Vec<u64> = (1..=waits.len() as u64).filter(|&place| progress.sent(place)).collect();
            prop_assert_eq!(again, waiting().collect::<Vec<u64>>());
        }

        #[test]
        fn any_bytes_are_a_cursor_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let mut rest = Reader(&bytes);
            if let Ok(progress) = Progress::decode(&mut rest, 16) {
                let mut again = Vec::new();
                progress.encode(&mut again);
                prop_assert_eq!(&again[..], &bytes[..bytes.len() - rest.0.len()]);
            }
        }
    }
}
