//! Chooses the voters: an odd number of nodes, at most `voters_max`; the others are learners. Two nodes are
//! one voter and one learner, because with two voters both would be needed. Also tracks which members the
//! leader has not heard from.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::types::{NodeId, Vote};

/// The voters to have, given the present `voters` and the `learners` that have caught up. `leader` stays;
/// then voters before learners, and learners before voters that are `away`.
pub(super) fn voters(
    leader: NodeId,
    voters: &BTreeSet<NodeId>,
    learners: &BTreeSet<NodeId>,
    away: &BTreeSet<NodeId>,
    voters_max: usize,
) -> BTreeSet<NodeId> {
    let able = voters.union(learners).count();
    let count = (able - (able + 1) % 2).min(voters_max);
    let (gone, here): (Vec<NodeId>, Vec<NodeId>) = voters.iter().partition(|voter| away.contains(voter));
    let (first, others): (Vec<NodeId>, Vec<NodeId>) = here.into_iter().partition(|voter| *voter == leader);
    let in_order = first.into_iter().chain(others).chain(learners.difference(voters).copied()).chain(gone);
    in_order.take(count).collect()
}

/// Times at which members were last heard from, while this node leads.
#[derive(Default)]
pub(super) struct Presence {
    /// The leadership to which the times belong.
    lead: Option<Vote>,
    heard: BTreeMap<NodeId, Instant>,
}

impl Presence {
    /// Records when members last answered. A new leader assumes that it has heard from all of them just now.
    pub fn follow(
        &mut self,
        lead: Vote,
        answered: impl Iterator<Item = (NodeId, Option<Instant>)>,
        now: Instant,
    ) {
        if self.lead != Some(lead) {
            *self = Self { lead: Some(lead), ..Self::default() };
        }
        let before = std::mem::take(&mut self.heard);
        for (node, at) in answered {
            let known = before.get(&node).copied().unwrap_or(now);
            self.heard.insert(node, at.map_or(known, |at| at.max(known)));
        }
    }

    pub fn away(&self, now: Instant, limit: Duration) -> BTreeSet<NodeId> {
        let silent = self.heard.iter().filter(|(_, at)| now.saturating_duration_since(**at) > limit);
        silent.map(|(node, _)| *node).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_odd_number_votes_and_voters_stay() {
        let set = |ids: &[NodeId]| ids.iter().copied().collect::<BTreeSet<_>>();
        let none = BTreeSet::new();
        let case = |now: &[NodeId], ready: &[NodeId], max| voters(2, &set(now), &set(ready), &none, max);
        assert_eq!(case(&[2], &[], 3), set(&[2]));
        assert_eq!(case(&[2], &[1], 3), set(&[2]));
        assert_eq!(case(&[2], &[1, 3], 3), set(&[1, 2, 3]));
        assert_eq!(case(&[2], &[1, 3, 4, 5], 3), set(&[1, 2, 3]));
        assert_eq!(case(&[2, 4, 5], &[1, 3], 3), set(&[2, 4, 5]));
        assert_eq!(case(&[2, 4, 5], &[1], 5), set(&[2, 4, 5]));
        assert_eq!(case(&[2, 4, 5], &[1, 3], 5), set(&[1, 2, 3, 4, 5]));
        assert_eq!(case(&[1, 2], &[], 3), set(&[2]), "one of three left and nobody can follow it");
        assert_eq!(case(&[1, 2], &[7], 3), set(&[1, 2, 7]), "one of three left and a learner follows it");
    }

    #[test]
    fn a_voter_that_is_away_is_replaced_by_a_learner_if_there_is_one() {
        let set = |ids: &[NodeId]| ids.iter().copied().collect::<BTreeSet<_>>();
        let case = |now: &[NodeId], ready: &[NodeId], away: &[NodeId]| {
            voters(2, &set(now), &set(ready), &set(away), 3)
        };
        assert_eq!(case(&[1, 2, 3], &[], &[1]), set(&[1, 2, 3]));
        assert_eq!(case(&[1, 2, 3], &[7], &[1]), set(&[2, 3, 7]));
        assert_eq!(case(&[1, 2, 3], &[7, 8], &[1, 3]), set(&[2, 7, 8]));
        assert_eq!(case(&[1, 2, 3], &[7], &[]), set(&[1, 2, 3]));
    }

    #[test]
    fn a_member_is_away_after_its_time_and_never_earlier_under_a_new_leader() {
        let (start, limit) = (Instant::now(), Duration::from_secs(5));
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut presence = Presence::default();
        presence.follow(Vote::new_committed(1, 1), [(2, None), (3, Some(start))].into_iter(), start);
        assert!(presence.away(at(5), limit).is_empty());
        presence.follow(Vote::new_committed(1, 1), [(2, None), (3, Some(at(4)))].into_iter(), at(6));
        assert_eq!(presence.away(at(6), limit), BTreeSet::from([2]));
        presence.follow(Vote::new_committed(2, 1), [(2, None), (3, None)].into_iter(), at(7));
        assert!(presence.away(at(12), limit).is_empty());
        assert_eq!(presence.away(at(13), limit), BTreeSet::from([2, 3]));
    }
}
