//! Both sides in one: what a node's rim drives. It answers its own questions when the controller is this node.

use crate::{
    Action, Beat, Census, Grant, Grantor, Holder, HubTerm, LeadGate, Process, Question, Route, Snapshot,
    Tables, Timing,
};
use hubsub_types::NodeId;
use std::collections::VecDeque;

/// See the head of the crate. All times are this node's monotonic µs.
#[derive(Debug)]
pub struct Leads {
    me: Process,
    holder: Holder,
    grantor: Grantor,
    said: Beat,
    actions: VecDeque<Action>,
}

impl Leads {
    /// Of a process that leads nothing yet.
    ///
    /// # Panics
    /// The times of `timing` do not fit each other.
    #[must_use]
    pub fn new(me: Process, timing: Timing) -> Leads {
        Leads {
            me,
            holder: Holder::new(me, timing),
            grantor: Grantor::new(timing),
            said: Beat::default(),
            actions: VecDeque::new(),
        }
    }

    /// For every shard.
    #[must_use]
    pub fn gate(&self) -> LeadGate {
        self.holder.gate()
    }

    /// Whether this process may lead a hub in a term now.
    #[must_use]
    pub fn leads(&self, pair: HubTerm, now: u64) -> bool {
        self.holder.leads(pair, now)
    }

    /// The next thing to be done, in order. Taken after each call, before more input is read.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    // -- From the control plane --

    /// All hubs whose records name this process as their leader, after each change of them.
    pub fn routes(&mut self, routes: &[Route], now: u64) {
        self.holder.routes(routes, now, &mut self.actions);
    }

    /// The record of the census, after each change of it.
    pub fn census(&mut self, census: Census, now: u64) {
        self.grantor.census(census.revision, now);
        self.grantor.counts(census.clone());
        self.holder.census(census);
    }

    /// Grants name this revision of the census from now on, or a later one: the control plane that decides knows it,
    /// before `census` may have told.
    pub fn names_census(&mut self, revision: u64, now: u64) {
        self.grantor.census(revision, now);
    }

    /// This node is the controller, or still is, until a deadline of its lease at the coordinator, which had the
    /// mandate at `confirmed_us` or later.
    pub fn mandate(&mut self, number: u64, until_us: u64, confirmed_us: u64, now: u64) {
        self.grantor.mandate(number, until_us, confirmed_us, now);
        self.tend(now);
    }

    /// It is not, or no more.
    pub fn resign(&mut self, now: u64) {
        self.grantor.resign();
        self.tend(now);
    }

    /// What may be granted from now on, and the version of it that snapshots name.
    pub fn tables(&mut self, mandate: u64, version: u64, tables: Tables) {
        self.grantor.tables(mandate, version, tables);
    }

    /// Nobody asks for a process any more: another one has its name.
    pub fn forget(&mut self, process: Process) {
        self.grantor.forget(process);
    }

    /// A process is registered no more, and no other one has its name. Whether it is forgotten: as long as it may hold
    /// a lead that was granted here it is not, and this is to be called again.
    pub fn forget_left(&mut self, process: Process) -> bool {
        self.grantor.forget_left(process)
    }

    /// Whether what a controller decides by has changed, but for times that go on, since this was called last: who
    /// heeds it, gave something up, suspects whom.
    pub fn take_changed(&mut self) -> bool {
        self.grantor.take_changed()
    }

    /// What a decision is made from.
    pub fn snapshot(&mut self, now: u64) -> Snapshot {
        self.tend(now);
        Snapshot { alone_us: self.holder.majority_alone_us(now), ..self.grantor.snapshot(now) }
    }

    // -- From shards --

    /// A shard leads a hub no more in a term: the answer to [`Action::GiveUp`].
    pub fn gave_up(&mut self, pair: HubTerm, now: u64) {
        self.holder.gave_up(pair, now, &mut self.actions);
    }

    // -- From links --

    /// A ping came.
    pub fn ping(&mut self, from: Process, beat: Beat, now: u64) {
        self.grantor.hear(from, beat, now);
        self.hear(from, beat, now);
    }

    /// A pong came; `stamp_us` is its ping's.
    pub fn pong(&mut self, from: Process, stamp_us: u64, beat: Beat, now: u64) {
        self.grantor.answer(from, stamp_us, beat, now);
        self.holder.answered(from, stamp_us, beat, now);
        self.hear(from, beat, now);
    }

    /// A link of this process ended.
    pub fn gone(&mut self, process: Process, now: u64) {
        self.holder.lose(process);
        self.tend(now);
    }

    /// A node is suspected, or no more.
    pub fn suspects(&mut self, node: NodeId, is_suspected: bool) {
        self.holder.suspects(node, is_suspected);
    }

    /// A question came.
    pub fn ask(&mut self, from: Process, question: &Question, now: u64) {
        if let Some(grant) = self.grantor.ask(from, question, now) {
            self.actions.push_back(Action::Answer(from, grant));
        }
    }

    /// An answer came.
    pub fn answer(&mut self, from: Process, grant: &Grant, now: u64) {
        self.holder.granted(from, grant, now, &mut self.actions);
    }

    // -- Time --

    /// What is due. Called at the end of each turn with any of the above, and when `wake_at` has come.
    pub fn poll(&mut self, now: u64) {
        self.tend(now);
        let begun = self.actions.len();
        self.holder.poll(now, &mut self.actions);
        let is_own = |action: &Action| matches!(action, Action::Ask(of, _) if *of == self.me);
        if let Some(at) = self.actions.iter().skip(begun).position(is_own)
            && let Some(Action::Ask(_, question)) = self.actions.remove(begun + at)
            && let Some(grant) = self.grantor.ask(self.me, &question, now)
        {
            self.holder.granted(self.me, &grant, now, &mut self.actions);
        }
        self.say(now);
    }

    /// When `poll` is to be called at the latest.
    #[must_use]
    pub fn wake_at(&self) -> u64 {
        self.holder.wake_at().min(self.grantor.ends_at(self.said.mandate))
    }

    // -- Below --

    fn hear(&mut self, from: Process, beat: Beat, now: u64) {
        self.holder.heard(from, beat.mandate, now);
        self.say(now);
    }

    /// A controller hears itself, as long as its mandate runs.
    fn tend(&mut self, now: u64) {
        match self.grantor.running(now) {
            0 => self.holder.lose(self.me),
            mandate => self.holder.hear(self.me, mandate, now),
        }
        self.say(now);
    }

    fn say(&mut self, now: u64) {
        let beat = self.holder.beat(self.grantor.running(now));
        if beat != self.said {
            self.said = beat;
            self.actions.push_back(Action::Say(beat));
        }
        self.grantor.answer(self.me, now, beat, now);
    }
}
