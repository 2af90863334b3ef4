//! Requests for the ends of the logs of all hubs ([`super::Broker::hub_ends`]).
//!
//! Invariant: each hub answers a request once; one whose time has passed is refused.

use crate::requests::{Answer, Asker};
use crate::sink::{Sink, Turn};
use hubsub_types::{ErrorCode, HubId};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug)]
struct Ends {
    asker: Asker,
    /// Hubs that have not answered yet.
    left: BTreeSet<HubId>,
    found: Vec<(HubId, u64)>,
    until_ms: u64,
    /// Whether the call still runs: hubs that answer at once are part of its outcome.
    is_asking: bool,
}

#[derive(Debug, Default)]
pub(super) struct EndsRequests {
    by_number: BTreeMap<u32, Ends>,
}

impl EndsRequests {
    /// All these hubs are to be asked now, for this requester.
    pub(super) fn begin(&mut self, number: u32, asker: Asker, hubs: &[HubId], until_ms: u64) {
        let left = hubs.iter().copied().collect();
        let ends = Ends { asker, left, found: Vec::new(), until_ms, is_asking: true };
        self.by_number.insert(number, ends);
    }

    /// All hubs were asked; returns the ends if all have answered already.
    pub(super) fn asked(&mut self, number: u32) -> Option<Vec<(HubId, u64)>> {
        match self.by_number.get_mut(&number) {
            Some(ends) if !ends.left.is_empty() => {
                ends.is_asking = false;
                None
            }
            _ => Some(self.by_number.remove(&number).map(|ends| ends.found).unwrap_or_default()),
        }
    }

    pub(super) fn answered(&mut self, number: u32, (hub, committed): (HubId, u64), sink: &mut impl Sink) {
        let Some(ends) = self.by_number.get_mut(&number) else { return };
        if !ends.left.remove(&hub) {
            return;
        }
        ends.found.push((hub, committed));
        if ends.left.is_empty()
            && !ends.is_asking
            && let Some(ends) = self.by_number.remove(&number)
        {
            sink.answer(ends.asker, Answer::HubEnds(Ok(ends.found)));
        }
    }

    pub(super) fn expire(&mut self, turn: &mut Turn<impl Sink>) {
        let is_over = |ends: &Ends| ends.until_ms <= turn.now.mono_ms;
        while let Some(entry) = self.by_number.first_entry().filter(|entry| is_over(entry.get())) {
            turn.sink.answer(entry.remove().asker, Answer::HubEnds(Err(ErrorCode::HubClosed)));
        }
    }

    pub(super) fn due_ms(&self) -> Option<u64> {
        self.by_number.values().map(|ends| ends.until_ms).min()
    }
}
