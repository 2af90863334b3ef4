//! Clean handovers of leadership: all links are up and nobody is slow; leaders give up and others take over,
//! with messages in any order. Then no subscriber may miss a record or get a gap notice, and each publish
//! counts all subscribers.

use crate::check::{SubKey, matches, room_of};
use crate::{Sim, TOPICS};
use hubsub_route::Start;
use hubsub_types::{ErrorCode, Term};
use std::collections::BTreeSet;

const STEPS: usize = 400;

impl Sim {
    /// Runs after `settle`: leadership changes while clients publish and subscribe.
    pub(super) fn pass_on(&mut self) -> Result<(), String> {
        let seed = self.net.model.seed;
        self.refresh()?;
        let (first, gaps) = (self.ids + 1, self.net.model.gaps);
        let stay: BTreeSet<SubKey> = self.net.model.subs.keys().cloned().collect();
        for step in 0..STEPS {
            match self.net.rng.below(100) {
                0..55 => _ = self.take_one(),
                55..75 => self.publish_somewhere(),
                75..82 => self.hand_over(),
                82..86 => {
                    let sub = self.some_subscription();
                    self.subscribe_to(sub, |_| Start::Live);
                }
                _ => {
                    let (node, shard) = self.somewhere();
                    self.turn(node, shard);
                }
            }
            self.fails(&format!("step {step} of leads that pass on"))?;
        }
        self.settle();
        self.fails("when leads have passed on")?;
        self.net.model.check_whole();
        self.fails("when leads have passed on")?;
        self.check_interest()?;
        if self.net.model.gaps > gaps {
            let reported = self.net.model.gaps - gaps;
            return Err(format!("seed {seed}: {reported} gaps were reported while leads passed on"));
        }
        for id in first..=self.ids {
            self.check_passed(id, &stay).map_err(|text| format!("seed {seed}: {text}"))?;
        }
        Ok(())
    }

    /// Makes each node look up all rooms by subscribing, so that pending gap notices are delivered now. Some
    /// of the subscriptions remain.
    fn refresh(&mut self) -> Result<(), String> {
        let mut new = Vec::new();
        let nodes = self.net.nodes.len();
        for node in 0..nodes as u16 {
            for (number, topic) in TOPICS.iter().enumerate() {
                let sub: SubKey = ((node, 0, 0), false, (*topic).to_owned());
                let is_new = self.subscribe_to(sub.clone(), |_| Start::Live);
                // One node keeps each subscription, so that the room remains.
                new.extend(Some(sub).filter(|_| is_new && number % nodes != usize::from(node)));
            }
        }
        self.settle();
        self.fails("while all is subscribed to")?;
        for sub in new {
            if self.net.rng.percent(50) {
                self.unsubscribe(sub);
            }
        }
        self.settle();
        self.fails("while some of it is not any more")
    }

    /// The leader of a hub without a log gives it up in one of two ways; another node, or the same, becomes
    /// the leader.
    fn hand_over(&mut self) {
        let at = self.net.rng.below(self.net.hubs.len());
        let row = self.net.hubs[at].clone();
        let Some(leader) = row.leader.filter(|_| row.home.is_none() && !row.is_moving) else { return };
        if self.net.rng.percent(30) {
            return self.net.move_hub(at);
        }
        let homes = self.homes(row.id);
        let (node, shard) = homes[usize::from(leader)];
        self.net.nodes[usize::from(node)].worlds[usize::from(shard)].gave_up.insert(row.id, Term(row.term));
        self.net.act(node, shard, |broker, world, _| broker.gave_up(row.id, Term(row.term), world));
        self.net.elect(at);
    }

    /// Checks that a record reached all earlier subscribers, and that its count includes them.
    fn check_passed(&self, id: u32, stay: &BTreeSet<SubKey>) -> Result<(), String> {
        let model = &self.net.model;
        let publish = &model.publishes[&id];
        let published = match publish.outcome {
            Some(Ok(published)) => published,
            // The queue of the link was full.
            Some(Err(ErrorCode::LinkFull)) => return Ok(()),
            outcome => return Err(format!("publish {id} to {} came to {outcome:?}", publish.topic)),
        };
        let topic = &publish.topic;
        let wants = |key: &SubKey| if key.1 { matches(&key.2, topic) } else { key.2 == *topic };
        let groups = model.groups_for(topic);
        let all = (model.subs.iter().filter(|(key, _)| wants(key)).count() + groups.len()) as u64;
        let mut least = groups.len() as u64;
        if let Some(group) = groups.iter().find(|&&group| !model.shares.given.contains_key(&(group, id))) {
            let group = crate::groups::GROUPS[*group];
            return Err(format!(
                "nobody of {group:?} was given record {id} of {topic} while leads passed on"
            ));
        }
        for key in stay.iter().filter(|key| wants(key)) {
            least += 1;
            let sub = &model.subs[key];
            if !sub.is_lossy() && !sub.saw(id) {
                let place = format!("{} in {}", published.position, room_of(topic));
                return Err(format!("{key:?} lacks record {id}, {place}, while leads passed on"));
            }
        }
        if published.is_duplicate || (least..=all).contains(&published.receivers) {
            return Ok(());
        }
        Err(format!("record {id} of {topic} has {} receivers, not {least} to {all}", published.receivers))
    }
}
