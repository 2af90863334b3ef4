//! Tests of one node, and of several with a room between them under seeds.

use super::*;
use std::collections::VecDeque;

fn holder(number: u32) -> Holder {
    Holder { shard: ShardId(0), conn: ConnKey { index: number, generation: 0 } }
}

fn wants(who: Holder) -> Claimant {
    Claimant { who, aim: Aim::Clean }
}

fn adopts(who: Holder) -> Claimant {
    Claimant { who, aim: Aim::Adopt }
}

const AWAY: Heir = Heir::Away { is_clean: false };

fn token(run: u64, number: u64) -> Option<Token> {
    Some(Token { at_us: number, run, number })
}

fn act(claims: &mut Claims, act: impl FnOnce(&mut Claims, &mut Vec<Action>)) -> Vec<Action> {
    let mut actions = Vec::new();
    act(claims, &mut actions);
    actions
}

#[test]
fn on_a_lone_node_the_next_one_has_the_id_once_the_one_before_has_let_go() {
    let mut claims = Claims::default();
    let [first, second, third, fourth] = [1, 2, 3, 4].map(holder);
    let claim =
        |claims: &mut Claims, who| act(claims, |c, actions| c.claim("a".into(), wants(who), None, actions));
    let release = |claims: &mut Claims, who| act(claims, |c, actions| c.release("a", who, None, actions));
    assert_eq!(claim(&mut claims, first), [Action::Grant(first)]);
    assert_eq!(claim(&mut claims, second), [Action::Yield(first, Heir::Here(wants(second)))]);
    assert_eq!(claim(&mut claims, third), [], "who is being given it comes first");
    assert_eq!(claim(&mut claims, fourth), [Action::Displace(third)]);
    let given = release(&mut claims, first);
    assert_eq!(given, [Action::Grant(second), Action::Yield(second, Heir::Here(wants(fourth)))]);
    assert_eq!(release(&mut claims, first), []);
    assert_eq!(release(&mut claims, second), [Action::Grant(fourth)]);
    assert_eq!(claims.len(), 1);
    assert_eq!(release(&mut claims, fourth), []);
    assert!(claims.is_empty());
}

#[test]
fn who_was_to_be_given_an_id_and_ends_leaves_it_with_its_holder() {
    let mut claims = Claims::default();
    let [first, second, third] = [1, 2, 3].map(holder);
    for (who, next) in
        [(first, None), (second, Some(Action::Yield(first, Heir::Here(wants(second))))), (third, None)]
    {
        let got = act(&mut claims, |c, actions| c.claim("a".into(), wants(who), None, actions));
        assert!(who == first || got == next.into_iter().collect::<Vec<_>>(), "{got:?}");
    }
    assert_eq!(act(&mut claims, |c, actions| c.release("a", second, None, actions)), []);
    let got = act(&mut claims, |c, actions| c.keep("a", first, None, actions));
    assert_eq!(got, [Action::Yield(first, Heir::Here(wants(third)))], "and the next one is in its place");
    assert_eq!(act(&mut claims, |c, actions| c.release("a", third, None, actions)), []);
    assert_eq!(act(&mut claims, |c, actions| c.keep("a", first, None, actions)), []);
    assert_eq!(act(&mut claims, |c, actions| c.release("a", first, None, actions)), []);
    assert!(claims.is_empty());
}

#[test]
fn a_claim_that_no_room_takes_is_refused() {
    let mut claims = Claims::default();
    let who = holder(1);
    let got = act(&mut claims, |c, actions| c.claim("a".into(), wants(who), token(1, 1), actions));
    assert_eq!(got, [Action::Watch("a".into())]);
    let got = act(&mut claims, |c, actions| c.watched("a", false, token(1, 2), actions));
    assert_eq!(got, [Action::Refuse(who)]);
    assert!(claims.is_empty());
}

#[test]
fn what_came_of_a_subscription_is_not_taken_for_that_of_a_later_one() {
    let mut claims = Claims::default();
    let [first, second] = [1, 2].map(holder);
    let claim = |claims: &mut Claims, who, n| {
        act(claims, |c, actions| c.claim("a".into(), wants(who), token(1, n), actions))
    };
    assert_eq!(claim(&mut claims, first, 1), [Action::Watch("a".into())]);
    let got = act(&mut claims, |c, actions| c.release("a", first, token(1, 2), actions));
    assert_eq!((got, claims.len()), (vec![], 1), "its answer is on its way");
    assert_eq!(claim(&mut claims, second, 3), []);
    let own = token(1, 4);
    let got = act(&mut claims, |c, actions| c.watched("a", true, own, actions));
    assert_eq!(got, [Action::Say("a".into(), Word::Claim(own.unwrap(), Aim::Clean))]);
    let got = act(&mut claims, |c, actions| c.release("a", second, token(1, 5), actions));
    assert_eq!(got, [Action::Unwatch("a".into())]);

    assert_eq!(claim(&mut claims, first, 6), [Action::Watch("a".into())]);
    act(&mut claims, |c, actions| c.release("a", first, token(1, 7), actions));
    let got = act(&mut claims, |c, actions| c.watched("a", true, token(1, 8), actions));
    assert_eq!((got, claims.len()), (vec![Action::Unwatch("a".into())], 0), "nobody wants it any more");
    assert_eq!(claim(&mut claims, first, 9), [Action::Watch("a".into())]);
    act(&mut claims, |c, actions| c.release("a", first, token(1, 10), actions));
    let got = act(&mut claims, |c, actions| c.watched("a", false, token(1, 11), actions));
    assert_eq!((got, claims.len()), (vec![], 0));
}

#[test]
fn a_node_that_says_nothing_is_not_waited_for_longer_than_its_time() {
    let mut claims = Claims::default();
    let who = holder(1);
    let own = token(1, 2);
    act(&mut claims, |c, actions| c.claim("a".into(), wants(who), token(1, 1), actions));
    act(&mut claims, |c, actions| c.watched("a", true, own, actions));
    let claim = Word::Claim(own.unwrap(), Aim::Clean);
    assert_eq!(act(&mut claims, |c, actions| c.heard("a", claim, token(1, 3), actions)), []);
    let waits = act(&mut claims, |c, actions| c.said("a", own.unwrap(), Some(2), actions));
    assert_eq!(waits, [Action::Wait("a".into(), own.unwrap())]);
    let got = act(&mut claims, |c, actions| c.late("a", own.unwrap(), actions));
    assert_eq!(got, [Action::Grant(who)]);
}

#[test]
fn of_two_that_may_have_missed_each_other_the_earlier_one_lets_go() {
    let mut claims = Claims::default();
    let who = holder(1);
    let own = token(1, 2);
    act(&mut claims, |c, actions| c.claim("a".into(), wants(who), token(1, 1), actions));
    act(&mut claims, |c, actions| c.watched("a", true, own, actions));
    act(&mut claims, |c, actions| c.heard("a", Word::Claim(own.unwrap(), Aim::Clean), None, actions));
    act(&mut claims, |c, actions| c.said("a", own.unwrap(), Some(1), actions));
    let again = Word::Again(own.unwrap());
    assert_eq!(act(&mut claims, |c, actions| c.missed("a", actions)), [Action::Say("a".into(), again)]);
    let earlier = Word::Again(token(2, 1).unwrap());
    let got = act(&mut claims, |c, actions| c.heard("a", earlier, token(1, 3), actions));
    assert_eq!(got, [Action::Say("a".into(), again)], "who said it hears that it has to let go");
    let later = token(2, 9).unwrap();
    let got = act(&mut claims, |c, actions| c.heard("a", Word::Again(later), token(1, 4), actions));
    assert_eq!(got, [Action::Yield(who, AWAY)]);
    let got = act(&mut claims, |c, actions| c.release("a", who, token(1, 5), actions));
    assert_eq!(got, [Action::Say("a".into(), Word::Released(later)), Action::Unwatch("a".into())]);
}

#[test]
fn another_node_is_let_go_for_with_what_it_wants() {
    for (aim, is_clean) in [(Aim::Resume, false), (Aim::Clean, true)] {
        let mut claims = Claims::default();
        let who = inside(&mut claims);
        let got = act(&mut claims, |c, a| c.heard("a", Word::Claim(token(2, 9).unwrap(), aim), None, a));
        assert_eq!(got, [Action::Yield(who, Heir::Away { is_clean })]);
    }
}

fn inside(claims: &mut Claims) -> Holder {
    let (who, own) = (holder(1), token(1, 2));
    act(claims, |c, actions| c.claim("a".into(), wants(who), token(1, 1), actions));
    act(claims, |c, actions| c.watched("a", true, own, actions));
    act(claims, |c, actions| c.heard("a", Word::Claim(own.unwrap(), Aim::Clean), None, actions));
    let got = act(claims, |c, actions| c.said("a", own.unwrap(), Some(1), actions));
    assert_eq!(got.last(), Some(&Action::Grant(who)));
    who
}

#[test]
fn nobody_lets_go_for_one_that_adopts() {
    let mut claims = Claims::default();
    inside(&mut claims);
    let other = Word::Claim(token(2, 9).unwrap(), Aim::Adopt);
    assert_eq!(act(&mut claims, |c, actions| c.heard("a", other, token(1, 3), actions)), []);
    let late = holder(7);
    let got = act(&mut claims, |c, actions| c.claim("a".into(), adopts(late), token(1, 4), actions));
    assert_eq!(got, [Action::Refuse(late)], "nor on its own node");
}

#[test]
fn one_that_adopts_comes_to_nothing_where_somebody_holds_the_id_and_where_words_are_missed() {
    for holds in [token(2, 1), token(2, 9), None] {
        let (mut claims, first) = (Claims::default(), holder(1));
        act(&mut claims, |c, actions| c.claim("a".into(), adopts(first), token(1, 2), actions));
        act(&mut claims, |c, actions| c.watched("a", true, token(1, 3), actions));
        let got = act(&mut claims, |c, actions| match holds {
            Some(of) => c.heard("a", Word::Again(of), None, actions),
            None => c.missed("a", actions),
        });
        assert_eq!(got, [Action::Refuse(first), Action::Unwatch("a".into())], "{holds:?}");
        assert!(claims.is_empty());
    }
}

#[test]
fn one_that_adopts_has_the_id_if_nobody_else_is_in_its_room_and_gives_way_to_a_client() {
    let (first, second, own) = (holder(1), holder(2), token(1, 2));
    let word = Word::Claim(own.unwrap(), Aim::Adopt);
    for others in [0, 1] {
        let mut claims = Claims::default();
        act(&mut claims, |c, actions| c.claim("a".into(), adopts(first), token(1, 1), actions));
        let got = act(&mut claims, |c, actions| c.watched("a", true, own, actions));
        assert_eq!(got, [Action::Say("a".into(), word)]);
        assert_eq!(act(&mut claims, |c, actions| c.heard("a", word, None, actions)), []);
        let got = act(&mut claims, |c, actions| c.said("a", own.unwrap(), Some(1 + others), actions));
        match others {
            0 => assert_eq!(got, [Action::Grant(first)]),
            _ => assert_eq!(got, [Action::Refuse(first), Action::Unwatch("a".into())]),
        }
    }
    // A client of this node comes before that is known: the result of the takeover does not apply to it.
    let mut claims = Claims::default();
    act(&mut claims, |c, actions| c.claim("a".into(), adopts(first), token(1, 1), actions));
    act(&mut claims, |c, actions| c.watched("a", true, own, actions));
    let again = token(1, 5);
    let got = act(&mut claims, |c, actions| c.claim("a".into(), wants(second), again, actions));
    let said = Action::Say("a".into(), Word::Claim(again.unwrap(), Aim::Clean));
    assert_eq!(got, [Action::Displace(first), said]);
    assert_eq!(act(&mut claims, |c, actions| c.said("a", own.unwrap(), Some(2), actions)), []);
    // A claim of another node displaces the takeover.
    let mut claims = Claims::default();
    act(&mut claims, |c, actions| c.claim("a".into(), adopts(first), token(1, 1), actions));
    act(&mut claims, |c, actions| c.watched("a", true, own, actions));
    let other = token(2, 9).unwrap();
    let got = act(&mut claims, |c, a| c.heard("a", Word::Claim(other, Aim::Resume), token(1, 3), a));
    let released = Action::Say("a".into(), Word::Released(other));
    assert_eq!(got, [Action::Displace(first), released, Action::Unwatch("a".into())]);
}

#[test]
fn a_word_reads_back_what_it_wrote_and_another_text_is_refused() {
    let token = Token { at_us: u64::MAX, run: 7, number: 1 << 40 };
    let claims = [Aim::Resume, Aim::Clean, Aim::Adopt].map(|aim| Word::Claim(token, aim));
    for word in claims.into_iter().chain([Word::Released(token), Word::Again(token)]) {
        assert_eq!(word.to_string().parse(), Ok(word));
    }
    for text in ["", "claim", "claim 1-2", "claim 1-2-3-4", "take 1-2-3", "claim x-2-3"] {
        assert_eq!(text.parse::<Word>(), Err(BadWord), "{text}");
    }
}

/// Messages in flight between nodes and the room; in order per direction.
#[derive(Clone, Debug)]
enum Way {
    Watch(usize),
    Unwatch(usize),
    Say(usize, Word),
    Watched(usize),
    Said(usize, Token, u64),
    Heard(usize, Word),
    Released(usize, Holder),
}

struct Cluster {
    nodes: Vec<Claims>,
    inside: Vec<bool>,
    /// To the room from each node, and from it to each.
    ways: Vec<VecDeque<Way>>,
    /// By node, the holder of a grant that was not asked to release it.
    granted: Vec<Option<Holder>>,
    waits: Vec<(usize, Token)>,
    number: u64,
    seed: u64,
    first_seed: u64,
    /// Whether two nodes may hold the id until all messages have arrived: some were lost.
    has_gaps: bool,
    /// The number of refusals.
    refused: u64,
}

const ID: &str = "a";

impl Cluster {
    fn new(nodes: usize, seed: u64) -> Cluster {
        Cluster {
            nodes: (0..nodes).map(|_| Claims::default()).collect(),
            inside: vec![false; nodes],
            ways: vec![VecDeque::new(); 2 * nodes],
            granted: vec![None; nodes],
            waits: Vec::new(),
            number: 0,
            seed,
            first_seed: seed,
            has_gaps: false,
            refused: 0,
        }
    }

    fn below(&mut self, n: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) as usize % n
    }

    fn event(&mut self, node: usize, event: impl FnOnce(&mut Claims, Option<Token>, &mut Vec<Action>)) {
        self.number += 1;
        let token = token(node as u64, self.number);
        let mut actions = Vec::new();
        event(&mut self.nodes[node], token, &mut actions);
        for action in actions {
            match action {
                Action::Grant(who) => {
                    self.granted[node] = Some(who);
                    let holders = self.granted.iter().flatten().count();
                    assert!(
                        holders == 1 || self.has_gaps,
                        "seed {}: nobody has it before who had it has let go",
                        self.first_seed
                    );
                }
                Action::Refuse(_) => self.refused += 1,
                Action::Displace(_) => {}
                Action::Yield(who, _) => {
                    // It releases the id at once; its shard reports that later.
                    assert_eq!(self.granted[node].take(), Some(who));
                    self.ways[node].push_back(Way::Released(node, who));
                }
                Action::Watch(_) => self.ways[node].push_back(Way::Watch(node)),
                Action::Unwatch(_) => self.ways[node].push_back(Way::Unwatch(node)),
                Action::Say(_, word) => self.ways[node].push_back(Way::Say(node, word)),
                Action::Wait(_, token) => self.waits.push((node, token)),
            }
        }
    }

    /// Delivers one message in flight; returns whether there was one.
    fn step(&mut self) -> bool {
        let ways: Vec<usize> = (0..self.ways.len()).filter(|&way| !self.ways[way].is_empty()).collect();
        if ways.is_empty() {
            return false;
        }
        let way = ways[self.below(ways.len())];
        let nodes = self.nodes.len();
        match self.ways[way].pop_front().unwrap() {
            Way::Watch(node) => {
                self.inside[node] = true;
                self.ways[nodes + node].push_back(Way::Watched(node));
            }
            Way::Unwatch(node) => self.inside[node] = false,
            Way::Say(node, word) => {
                let inside: Vec<usize> = (0..nodes).filter(|&node| self.inside[node]).collect();
                inside.iter().for_each(|&to| self.ways[nodes + to].push_back(Way::Heard(to, word)));
                if let Word::Claim(token, _) = word {
                    self.ways[nodes + node].push_back(Way::Said(node, token, inside.len() as u64));
                }
            }
            Way::Watched(node) => self.event(node, |c, token, actions| c.watched(ID, true, token, actions)),
            Way::Said(node, of, count) => self.event(node, |c, _, a| c.said(ID, of, Some(count), a)),
            Way::Heard(node, word) => self.event(node, |c, token, a| c.heard(ID, word, token, a)),
            Way::Released(node, who) => self.event(node, |c, token, a| c.release(ID, who, token, a)),
        }
        true
    }

    /// A node's process dies, and another one starts.
    fn die(&mut self, node: usize) {
        let nodes = self.nodes.len();
        (self.nodes[node], self.inside[node], self.granted[node]) = (Claims::default(), false, None);
        self.ways[node].clear();
        self.ways[nodes + node].clear();
        self.waits.retain(|(of, _)| *of != node);
    }

    /// A node misses all messages in flight from the room, and is notified of that.
    fn miss(&mut self, node: usize) {
        let way = self.nodes.len() + node;
        let before = self.ways[way].len();
        self.ways[way].retain(|word| !matches!(word, Way::Heard(..)));
        if self.ways[way].len() < before {
            self.has_gaps = true;
            self.event(node, |c, _, actions| c.missed(ID, actions));
        }
    }

    /// Delivers all messages in flight, and lets all waiting times pass.
    fn settle(&mut self) {
        loop {
            while self.step() {}
            let waits = std::mem::take(&mut self.waits);
            if waits.is_empty() {
                break;
            }
            for (node, of) in waits {
                self.event(node, |c, _, actions| c.late(ID, of, actions));
            }
        }
    }

    /// At most one node holds the id, and a node without a holder or a claim has no entry.
    fn check(&self) {
        let (seed, holders) = (self.first_seed, self.granted.iter().flatten().count());
        let entries: Vec<usize> = self.nodes.iter().map(Claims::len).collect();
        assert!(holders <= 1, "seed {seed}: {:?}", self.granted);
        assert_eq!(entries.iter().sum::<usize>(), holders, "seed {seed}: {entries:?}: nobody waits for ever");
        for (node, claims) in self.nodes.iter().enumerate() {
            assert_eq!(self.inside[node], !claims.is_empty(), "seed {seed}");
        }
    }
}

#[test]
fn of_many_that_come_at_once_to_all_nodes_none_is_refused_and_one_stays() {
    for seed in 0..500 {
        let mut cluster = Cluster::new(3, seed);
        for number in 0..40 {
            let (node, who) = (cluster.below(3), holder(number));
            cluster.event(node, |c, token, actions| c.claim(ID.into(), wants(who), token, actions));
            for _ in 0..cluster.below(4) {
                cluster.step();
            }
        }
        cluster.settle();
        cluster.check();
        assert_eq!((cluster.refused, cluster.granted.iter().flatten().count()), (0, 1), "seed {seed}");
    }
}

#[test]
fn who_comes_while_its_node_lets_go_for_another_one_has_the_id_after_that() {
    let mut claims = Claims::default();
    let (who, late) = (inside(&mut claims), holder(7));
    let winner = token(2, 9).unwrap();
    act(&mut claims, |c, a| c.heard("a", Word::Claim(winner, Aim::Clean), token(1, 3), a));
    let got = act(&mut claims, |c, a| c.claim("a".into(), wants(late), token(1, 4), a));
    assert_eq!(got, [], "it waits, and is not told that the other one is later");
    let again = token(1, 5);
    let got = act(&mut claims, |c, a| c.release("a", who, again, a));
    let said = [Word::Released(winner), Word::Claim(again.unwrap(), Aim::Clean)];
    assert_eq!(got, said.map(|word| Action::Say("a".into(), word)));
}

#[test]
fn nodes_that_die_and_words_that_are_lost_leave_one_holder_and_nobody_waits() {
    let mut adopted = 0;
    for seed in 0..3_000 {
        let mut cluster = Cluster::new(3, seed);
        for number in 0..10 {
            let node = cluster.below(3);
            let claimant = if cluster.below(3) == 0 { adopts(holder(number)) } else { wants(holder(number)) };
            cluster.event(node, |c, token, actions| c.claim(ID.into(), claimant, token, actions));
            for _ in 0..cluster.below(12) {
                cluster.step();
            }
            match cluster.below(8) {
                0 => cluster.die(node),
                1 => cluster.miss(node),
                2 => cluster.settle(),
                _ => {}
            }
        }
        cluster.settle();
        cluster.check();
        // A takeover gets the id of a process that died.
        if let Some(node) = cluster.granted.iter().position(Option::is_some) {
            cluster.has_gaps = false;
            cluster.die(node);
            let (next, who) = ((node + 1) % 3, holder(99));
            cluster.event(next, |c, token, actions| c.claim(ID.into(), adopts(who), token, actions));
            cluster.settle();
            assert_eq!(cluster.granted[next], Some(who), "seed {seed}");
            cluster.check();
            adopted += 1;
        }
    }
    assert!(adopted > 1_000, "{adopted}");
}

#[test]
fn in_a_cluster_one_connection_has_the_id_when_all_has_been_said() {
    for seed in 0..3_000 {
        let mut cluster = Cluster::new(3, seed);
        for number in 0..8 {
            let node = cluster.below(3);
            cluster
                .event(node, |c, token, actions| c.claim(ID.into(), wants(holder(number)), token, actions));
            for _ in 0..cluster.below(12) {
                cluster.step();
            }
            if cluster.below(4) == 0
                && let Some(who) = cluster.granted[node].take()
            {
                cluster.event(node, |c, token, actions| c.release(ID, who, token, actions));
            }
        }
        // The last one to come is not the only claimant, and none comes after it.
        cluster.settle();
        cluster.check();
    }
}
