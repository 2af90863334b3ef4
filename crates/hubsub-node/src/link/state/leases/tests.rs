//! The rule of giving up, in every order in which shards and time may come: the leads of a process that is its own
//! controller, two shards beside it, and mail between them.

use super::*;
use hubsub_lead::{Action, LeaderLeases, Process, Timing, Voters};
use hubsub_types::NodeId;
use std::collections::{BTreeSet, VecDeque};

const ME: Process = Process { node: NodeId(0), incarnation: 3 };
const SHARDS: u16 = 3;
/// Of shard 1 and of shard 2.
const ONE: HubTerm = (HubId(4), Term(2));
const TWO: HubTerm = (HubId(5), Term(6));
const BEGIN: u64 = 10_000_000;
const STEP: u64 = 250_000;

/// An event that may happen next.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Next {
    /// A shard takes its next letter.
    Mail(usize),
    /// Time passes, and shard 0 has a turn.
    Time,
    /// The table has the first hub no more.
    Taken,
}

const ALL: [Next; 5] = [Next::Mail(0), Next::Mail(1), Next::Mail(2), Next::Time, Next::Taken];

struct World {
    now: u64,
    leads: LeaderLeases,
    led: [Led; SHARDS as usize],
    mail: [VecDeque<LeadMail>; SHARDS as usize],
    version: u64,
    /// The deadline when the table lost the hub.
    taken_until: Option<u64>,
}

impl World {
    /// Both hubs are led.
    fn new() -> World {
        let leads = LeaderLeases::new(ME, Timing::default());
        let led: [Led; 3] = Default::default();
        let mut world =
            World { now: BEGIN, leads, led, mail: Default::default(), version: 0, taken_until: None };
        let gate = world.leads.gate();
        world.led.iter_mut().for_each(|led| assert!(led.take(LeadMail::Life(gate.clone())).is_none()));
        let routes = [ONE, TWO].map(|(hub, term)| Route { hub, term, gives_up: false });
        world.leads.routes(&routes, BEGIN);
        // Alone among its voters, it confirms itself.
        world.leads.voters(Voters { revision: 1, nodes: vec![ME.node], before: vec![] }, BEGIN);
        world.leads.controller_term(1, u64::MAX, BEGIN, BEGIN);
        world.tables(&[ONE, TWO]);
        world.turn();
        (1..3).for_each(|shard| world.take(shard));
        assert_eq!((world.led(ONE), world.led(TWO)), (Some(ONE.1), Some(TWO.1)));
        world
    }

    fn tables(&mut self, pairs: &[HubTerm]) {
        self.version += 1;
        let of_me = BTreeSet::from_iter(pairs.iter().copied());
        self.leads.tables(1, self.version, Tables::from([(ME, of_me)]));
    }

    fn led(&self, (hub, _): HubTerm) -> Option<Term> {
        self.led[usize::from(home(hub, SHARDS).0)].leads(hub, self.now)
    }

    fn turn(&mut self) {
        self.leads.poll(self.now);
        while let Some(action) = self.leads.next_action() {
            let mut post = |hub, mail| self.mail[usize::from(home(hub, SHARDS).0)].push_back(mail);
            match action {
                Action::Began(hub, term) => post(hub, LeadMail::Began(hub, term)),
                Action::GiveUp(hub, term) => post(hub, LeadMail::GiveUp(hub, term)),
                _ => {}
            }
        }
    }

    fn take(&mut self, shard: usize) {
        // No two turns are at one time.
        self.now += 1;
        match self.mail[shard].pop_front() {
            Some(LeadMail::GaveUp(hub, term)) => {
                self.leads.gave_up((hub, term), self.now);
                self.turn();
            }
            Some(order) => self.mail[0].extend(self.led[shard].take(order)),
            None => {}
        }
    }

    /// Whether that changes anything.
    fn has(&self, next: Next) -> bool {
        match next {
            Next::Mail(shard) => !self.mail[shard].is_empty(),
            Next::Time => true,
            Next::Taken => self.taken_until.is_none(),
        }
    }

    fn act(&mut self, next: Next) {
        match next {
            Next::Mail(shard) => self.take(shard),
            Next::Time => {
                self.now += STEP;
                self.turn();
            }
            Next::Taken => {
                self.tables(&[TWO]);
                self.taken_until = Some(self.leads.gate().until_us());
            }
        }
    }

    fn gave_up(&mut self) -> Vec<HubTerm> {
        self.leads.snapshot(self.now).peers[&ME].gave_up.clone()
    }

    fn check(&mut self, how: &[Next]) {
        let is_led = self.led(ONE).is_some();
        if self.gave_up().contains(&ONE) {
            assert!(!is_led, "told as given up while a shard leads it: {how:?}");
        }
        let Some(until) = self.taken_until else { return };
        let has_it = self.led[1].hubs.contains_key(&ONE.0);
        assert!(!has_it || self.leads.gate().until_us() <= until, "raised before shard 1 confirmed: {how:?}");
    }
}

#[test]
fn no_order_of_mail_and_time_lets_a_hub_be_led_that_was_told_as_given_up() {
    let (mut confirmed, mut waited) = (0, 0);
    let mut orders = vec![Vec::new()];
    while let Some(how) = orders.pop() {
        let mut world = World::new();
        for (place, &next) in how.iter().enumerate() {
            world.act(next);
            world.check(&how[..=place]);
        }
        confirmed += usize::from(world.gave_up().contains(&ONE));
        waited += usize::from(!world.mail[1].is_empty() && world.led(TWO).is_none());
        if how.len() < 10 {
            let next = ALL.into_iter().filter(|&next| world.has(next));
            orders.extend(next.map(|next| how.iter().copied().chain([next]).collect()));
        }
    }
    assert!(confirmed > 50 && waited > 20, "both ends were seen: {confirmed}, {waited}");
}

#[test]
fn the_deadline_waits_for_a_shard_that_has_not_given_up_and_goes_on_with_its_answer() {
    let mut world = World::new();
    world.act(Next::Taken);
    world.act(Next::Time);
    world.act(Next::Time);
    let until = world.leads.gate().until_us();
    for _ in 0..8 {
        world.act(Next::Time);
    }
    assert_eq!(world.leads.gate().until_us(), until, "shard 1 has said nothing");
    assert_eq!((world.led(ONE), world.led(TWO)), (None, None), "the lead has ended");
    world.act(Next::Mail(1));
    assert!(world.gave_up().is_empty());
    world.act(Next::Mail(0));
    world.act(Next::Time);
    assert_eq!((world.led(ONE), world.led(TWO)), (None, Some(TWO.1)));
    assert_eq!(world.gave_up(), [ONE]);
}

#[test]
fn an_earlier_term_that_is_given_up_late_leaves_the_later_one() {
    let mut led = World::new().led.into_iter().nth(1).unwrap();
    assert!(led.take(LeadMail::Began(ONE.0, Term(3))).is_none());
    assert!(matches!(led.take(LeadMail::GiveUp(ONE.0, ONE.1)), Some(LeadMail::GaveUp(_, Term(2)))));
    assert_eq!(led.leads(ONE.0, BEGIN), Some(Term(3)));
    led.take(LeadMail::Life(LeaseGate::default()));
    assert_eq!(led.leads(ONE.0, 0), None);
}

/// A shard with a leader lease, the hub and term that it leads, and a time within the lease.
pub(crate) fn leading() -> (Led, HubTerm, u64) {
    let [_, led, _] = World::new().led;
    (led, ONE, BEGIN)
}

#[test]
fn a_process_that_stops_leads_nothing_on_any_shard_whatever_it_is_granted() {
    let mut world = World::new();
    world.led[2].end();
    assert_eq!((world.led(ONE), world.led(TWO)), (None, None));
    for _ in 0..8 {
        world.act(Next::Time);
    }
    assert_eq!((world.led(ONE), world.led(TWO), world.leads.gate().until_us()), (None, None, 0));
}
