//! One room: this node's part, the last part of each node, and messages that are still to be sent or
//! received.

use super::words::{Member, Word};
use super::{Action, Diff, Seen, Turn};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

type Members = BTreeMap<u64, Arc<Member>>;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Place {
    #[default]
    Outside,
    Asked,
    Inside,
}

#[derive(Debug, Default)]
struct Part {
    number: u64,
    members: Members,
    more: u64,
    /// Received pieces of a newer part, and its number.
    arriving: Option<(u64, Members)>,
}

#[derive(Debug)]
struct Asked {
    number: u64,
    others: Option<u64>,
    until_ms: u64,
}

#[derive(Debug, Default)]
pub struct Room {
    own: Members,
    /// The number of members of this node that are not listed.
    more: u64,
    pub watchers: u64,
    place: Place,
    /// By node incarnation, including this node's.
    parts: BTreeMap<u64, Part>,
    /// Nodes that have sent their parts since this node subscribed or missed something.
    fresh: BTreeSet<u64>,
    asked: Option<Asked>,
    is_known: bool,
    /// The number of this node's part when it was sent last; 0: it was not.
    told: u64,
    /// The number of the message that this node leaves, until it is published: others would keep its part.
    bye: Option<u64>,
    joins: Members,
    leaves: BTreeSet<u64>,
    told_more: u64,
    owes_part: bool,
    /// The time at which pending messages are sent.
    due_ms: Option<u64>,
    /// The time at which an unreachable room is tried again.
    retry_ms: Option<u64>,
    part_ms: Option<u64>,
    wakes_ms: Option<u64>,
}

impl Room {
    /// Adds a member; returns whether it is listed, which at most `listed_max` are.
    pub fn join(&mut self, member: Member, listed_max: usize, turn: &mut Turn<'_>) -> bool {
        self.say_by(turn.now_ms + turn.limits.batch_ms);
        let is_listed = self.own.len() < listed_max;
        if is_listed {
            let (reference, member) = (member.reference, Arc::new(member));
            self.own.insert(reference, member.clone());
            self.joins.insert(reference, member);
        } else {
            self.more += 1;
        }
        is_listed
    }

    pub fn leave(&mut self, reference: u64, turn: &mut Turn<'_>) {
        match self.own.remove(&reference) {
            Some(_) if self.joins.remove(&reference).is_some() => {}
            Some(_) => _ = self.leaves.insert(reference),
            None => self.more = self.more.saturating_sub(1),
        }
        self.say_by(turn.now_ms + turn.limits.batch_ms);
    }

    pub fn entered(&mut self, is_held: bool, turn: &mut Turn<'_>) {
        if self.place != Place::Asked {
            return;
        }
        if is_held {
            self.place = Place::Inside;
            self.ask(turn);
            if self.has_members() {
                self.owe(turn.now_ms);
            }
        } else {
            self.place = Place::Outside;
            self.retry_ms = Some(turn.now_ms + turn.limits.answer_ms);
        }
    }

    pub fn said(&mut self, number: u64, nodes: Option<u64>, turn: &mut Turn<'_>) {
        match (&mut self.asked, nodes) {
            (Some(asked), _) if asked.number == number => {
                asked.others = nodes.map(|nodes| nodes.saturating_sub(1))
            }
            (_, Some(_)) if self.bye == Some(number) => self.bye = None,
            (_, None) if self.bye == Some(number) => {
                self.bye = None;
                // It is sent again, unless a member has joined since.
                self.told = self.told.max(number);
                self.say_by(turn.now_ms + turn.limits.answer_ms);
            }
            // Other nodes may lack it.
            (_, None) if self.place == Place::Inside => self.owe(turn.now_ms + turn.limits.answer_ms),
            _ => {}
        }
    }

    pub fn heard(&mut self, from: u64, word: Word, turn: &mut Turn<'_>) {
        if self.place != Place::Inside {
            return;
        }
        match word {
            Word::Hello if from == turn.run => {}
            Word::Hello => {
                // Several requests within a short time are answered once.
                let next_ms = self.part_ms.map_or(0, |part_ms| part_ms + turn.limits.batch_ms);
                self.owe(turn.now_ms.max(next_ms));
            }
            Word::Part { number, is_first, is_last, more, members } => {
                let part = self.parts.entry(from).or_default();
                if is_first {
                    part.arriving = Some((number, Members::new()));
                }
                let Some((_, arriving)) = part.arriving.as_mut().filter(|(of, _)| *of == number) else {
                    return;
                };
                arriving.extend(members.into_iter().map(|member| (member.reference, member)));
                if is_last && let Some((number, mut members)) = part.arriving.take() {
                    share(&mut members, &part.members);
                    share(&mut members, &self.own);
                    let before = std::mem::replace(part, Part { number, members, more, arriving: None });
                    self.fresh.insert(from);
                    self.tell(from, &before, turn);
                }
            }
            Word::Change { after, number, more, joins, leaves } => {
                let Some(part) = self.parts.get_mut(&from).filter(|part| part.number == after) else {
                    return self.mismatched(from, turn);
                };
                (part.number, part.more) = (number, more);
                let mut diff = Diff::default();
                for reference in leaves {
                    diff.leaves.extend(part.members.remove(&reference).map(|member| (from, member)));
                }
                for member in joins {
                    let member =
                        self.own.get(&member.reference).filter(|_| from == turn.run).unwrap_or(&member);
                    if part.members.insert(member.reference, member.clone()).is_none() {
                        diff.joins.push((from, member.clone()));
                    }
                }
                self.show(diff, turn);
            }
            Word::Bye if from == turn.run => self.drop_part(from, turn),
            Word::Bye => {
                self.fresh.insert(from);
                self.drop_part(from, turn);
            }
        }
    }

    /// Handles a change that does not follow the known part of its node.
    fn mismatched(&mut self, from: u64, turn: &mut Turn<'_>) {
        if from == turn.run {
            self.owe(turn.now_ms);
        } else if self.fresh.remove(&from) || self.asked.is_none() {
            self.ask(turn);
        }
        // Otherwise its part has yet to arrive.
    }

    pub fn missed(&mut self, turn: &mut Turn<'_>) {
        if self.place != Place::Inside {
            return;
        }
        self.fresh.clear();
        self.parts.values_mut().for_each(|part| part.arriving = None);
        self.ask(turn);
        if self.told > 0 || self.has_members() {
            self.owe(turn.now_ms);
        }
    }

    pub fn gone(&mut self, run: u64, turn: &mut Turn<'_>) {
        self.fresh.insert(run);
        self.drop_part(run, turn);
    }

    pub fn tick(&mut self, turn: &mut Turn<'_>) {
        self.wakes_ms = self.wakes_ms.filter(|&at_ms| at_ms > turn.now_ms);
    }

    pub fn knows(&self, run: u64) -> bool {
        self.parts.contains_key(&run) || self.asked.is_some()
    }

    pub fn is_known(&self) -> bool {
        self.is_known
    }

    pub fn shown(&self) -> (Vec<Seen>, u64) {
        let of = |(&run, part): (&u64, &Part)| {
            part.members.values().map(|it| (run, it.clone())).collect::<Vec<_>>()
        };
        (self.parts.iter().flat_map(of).collect(), self.count())
    }

    /// Performs the next step; returns whether the room is no longer needed.
    pub fn go_on(&mut self, turn: &mut Turn<'_>) -> bool {
        let is_wanted = self.watchers > 0 || self.has_members();
        let is_due = self.due_ms.is_some_and(|due_ms| due_ms <= turn.now_ms);
        match self.place {
            Place::Outside if !is_wanted => return true,
            Place::Outside if self.retry_ms.is_none_or(|retry_ms| retry_ms <= turn.now_ms) => {
                self.place = Place::Asked;
                turn.actions.push(Action::Enter(turn.name.clone()));
            }
            Place::Outside | Place::Asked => {}
            Place::Inside if !is_wanted && self.bye.is_some() => self.due_ms = None,
            // A member that returns at once, for example when a page is reloaded, finds the room unchanged.
            Place::Inside if !is_wanted && !is_due => self.say_by(turn.now_ms + turn.limits.batch_ms),
            Place::Inside if !is_wanted && self.told == 0 => {
                turn.actions.push(Action::Exit(turn.name.clone()));
                return true;
            }
            Place::Inside if !is_wanted => {
                (self.told, self.due_ms) = (0, None);
                self.bye = Some(turn.say(&Word::Bye));
            }
            Place::Inside => {
                if is_due {
                    self.say(turn);
                }
                self.look_at_answers(turn);
            }
        }
        self.set_timer(is_wanted, turn);
        false
    }

    fn has_members(&self) -> bool {
        !self.own.is_empty() || self.more > 0
    }

    fn say_by(&mut self, at_ms: u64) {
        self.due_ms = Some(self.due_ms.map_or(at_ms, |due_ms| due_ms.min(at_ms)));
    }

    fn owe(&mut self, at_ms: u64) {
        self.owes_part = true;
        self.say_by(at_ms);
    }

    fn say(&mut self, turn: &mut Turn<'_>) {
        self.due_ms = None;
        if self.owes_part || (self.told == 0 && self.has_members()) {
            self.say_part(turn);
        } else if self.told > 0 {
            self.say_changes(turn);
        }
        self.told_more = self.more;
    }

    fn say_part(&mut self, turn: &mut Turn<'_>) {
        let number = turn.number();
        let pages = pages(self.own.values(), turn.limits.word_bytes);
        let last = pages.len() - 1;
        for (at, members) in pages.into_iter().enumerate() {
            let (is_first, is_last, more) = (at == 0, at == last, self.more);
            turn.say(&Word::Part { number, is_first, is_last, more, members });
        }
        (self.told, self.owes_part, self.part_ms) = (number, false, Some(turn.now_ms));
        self.joins.clear();
        self.leaves.clear();
    }

    fn say_changes(&mut self, turn: &mut Turn<'_>) {
        if self.joins.is_empty() && self.leaves.is_empty() && self.more == self.told_more {
            return;
        }
        let mut leaves: Vec<u64> = std::mem::take(&mut self.leaves).into_iter().collect();
        for joins in pages(std::mem::take(&mut self.joins).values(), turn.limits.word_bytes) {
            let (after, number) = (self.told, turn.number());
            let leaves = std::mem::take(&mut leaves);
            turn.say(&Word::Change { after, number, more: self.more, joins, leaves });
            self.told = number;
        }
    }

    fn ask(&mut self, turn: &mut Turn<'_>) {
        let number = turn.say(&Word::Hello);
        self.asked = Some(Asked { number, others: None, until_ms: turn.now_ms + turn.limits.answer_ms });
    }

    /// Checks whether all nodes have responded, or their time has passed.
    fn look_at_answers(&mut self, turn: &mut Turn<'_>) {
        let Some(asked) = &self.asked else { return };
        let is_late = asked.until_ms <= turn.now_ms;
        let others = self.fresh.iter().filter(|&&run| run != turn.run).count() as u64;
        match asked.others {
            None if is_late => self.ask(turn),
            Some(heard) if is_late || others >= heard => {
                self.asked = None;
                let silent = |run: &u64| *run != turn.run && !self.fresh.contains(run);
                let silent: Vec<u64> = self.parts.keys().copied().filter(silent).collect();
                silent.into_iter().for_each(|run| self.drop_silent(run, turn));
                self.fresh.retain(|run| self.parts.contains_key(run));
                if !std::mem::replace(&mut self.is_known, true) {
                    turn.actions.push(Action::Ready(turn.name.clone()));
                }
            }
            _ => {}
        }
    }

    /// Drops the known part of a node that has not responded; a part that is arriving is kept.
    fn drop_silent(&mut self, run: u64, turn: &mut Turn<'_>) {
        let Some(part) = self.parts.get_mut(&run).filter(|part| part.arriving.is_some()) else {
            return self.drop_part(run, turn);
        };
        let arriving = part.arriving.take();
        let before = std::mem::replace(part, Part { arriving, ..Part::default() });
        self.tell(run, &before, turn);
    }

    fn drop_part(&mut self, run: u64, turn: &mut Turn<'_>) {
        if let Some(part) = self.parts.remove(&run) {
            self.tell(run, &part, turn);
        }
    }

    /// Reports the changes of a node's part since `before`.
    fn tell(&mut self, run: u64, before: &Part, turn: &mut Turn<'_>) {
        let none = Members::new();
        let now = self.parts.get(&run).map_or(&none, |part| &part.members);
        let of = |(_, member): (&u64, &Arc<Member>)| (run, member.clone());
        let joins = now.iter().filter(|(it, _)| !before.members.contains_key(it)).map(of).collect();
        let leaves = before.members.iter().filter(|(it, _)| !now.contains_key(it)).map(of).collect();
        let is_counted = self.parts.get(&run).map_or(0, |part| part.more) != before.more;
        let diff = Diff { joins, leaves, ..Diff::default() };
        if is_counted || !diff.is_empty() {
            self.show(diff, turn);
        }
    }

    fn show(&self, diff: Diff, turn: &mut Turn<'_>) {
        if self.is_known && self.watchers > 0 {
            let diff = Diff { count: self.count(), more: self.more_shown(), ..diff };
            turn.actions.push(Action::Tell(turn.name.clone(), diff));
        }
    }

    fn count(&self) -> u64 {
        self.parts.values().map(|part| part.members.len() as u64).sum::<u64>() + self.more_shown()
    }

    fn more_shown(&self) -> u64 {
        self.parts.values().map(|part| part.more).sum()
    }

    fn set_timer(&mut self, is_wanted: bool, turn: &mut Turn<'_>) {
        let at_ms = match self.place {
            Place::Outside => self.retry_ms,
            Place::Asked => None,
            Place::Inside => {
                let asked_ms = self.asked.as_ref().filter(|_| is_wanted).map(|asked| asked.until_ms);
                self.due_ms.into_iter().chain(asked_ms).min()
            }
        };
        if let Some(at_ms) = at_ms.filter(|&at_ms| self.wakes_ms.is_none_or(|wakes_ms| at_ms < wakes_ms)) {
            self.wakes_ms = Some(at_ms);
            turn.actions.push(Action::Wait(turn.name.clone(), at_ms));
        }
    }
}

/// Shares members that are already known, instead of storing them twice.
fn share(members: &mut Members, known: &Members) {
    for (reference, member) in members {
        if let Some(known) = known.get(reference).filter(|known| *known == member) {
            *member = known.clone();
        }
    }
}

/// Splits members into messages: at least one page.
fn pages<'a>(members: impl Iterator<Item = &'a Arc<Member>>, word_bytes: usize) -> Vec<Vec<Arc<Member>>> {
    let mut pages = vec![Vec::new()];
    let mut bytes = 0;
    for member in members {
        if bytes + member.weight() > word_bytes && bytes > 0 {
            pages.push(Vec::new());
            bytes = 0;
        }
        bytes += member.weight();
        pages.last_mut().expect("there is one").push(member.clone());
    }
    pages
}
