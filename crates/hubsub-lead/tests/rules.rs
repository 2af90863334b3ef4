//! Each rule by itself, at the boundary times. See `simulation` for all of them together.

use hubsub_lead::{Action, Beat, Census, Grant, HubTerm, LeadGate, Leads, Process, Question, Route, Timing};
use hubsub_types::{HubId, NodeId, Term};
use std::collections::{BTreeMap, BTreeSet};

const fn process(node: u16) -> Process {
    Process { node: NodeId(node), incarnation: 1 }
}

const ME: Process = process(1);
const CONTROLLER: Process = process(2);
const OTHER: Process = process(3);
const MANDATE: u64 = 5;
const NOW: u64 = 10_000_000;
const LEAD: u64 = 1_000_000;
const A: HubTerm = (HubId(7), Term(3));
const B: HubTerm = (HubId(8), Term(1));

fn route((hub, term): HubTerm) -> Route {
    Route { hub, term, gives_up: false }
}

fn all(leads: &mut Leads) -> Vec<Action> {
    std::iter::from_fn(|| leads.next_action()).collect()
}

fn question(actions: &[Action]) -> Option<&Question> {
    actions
        .iter()
        .find_map(|action| if let Action::Ask(CONTROLLER, question) = action { Some(question) } else { None })
}

fn grant(stamp_us: u64, granted: &[HubTerm]) -> Grant {
    Grant { stamp_us, lead_us: LEAD, mandate: MANDATE, census: 9, granted: granted.to_vec() }
}

fn beat_of_controller() -> Beat {
    Beat { mandate: MANDATE, heeds: MANDATE, heed: 1 }
}

/// A node of three that the controller granted `pairs`, requested at `NOW`.
fn leading(pairs: &[HubTerm]) -> (Leads, LeadGate) {
    let mut leads = Leads::new(ME, Timing::default());
    leads.census(Census { revision: 9, nodes: vec![NodeId(1), NodeId(2), NodeId(3)], before: vec![] }, NOW);
    leads.routes(&pairs.iter().copied().map(route).collect::<Vec<_>>(), NOW);
    leads.ping(CONTROLLER, beat_of_controller(), NOW);
    leads.poll(NOW);
    assert_eq!(question(&all(&mut leads)).expect("it hears a controller").claim, pairs);
    leads.answer(CONTROLLER, &grant(NOW, pairs), NOW + 200_000);
    let gate = leads.gate();
    (leads, gate)
}

#[test]
fn a_lead_ends_one_length_after_the_question_however_late_the_answer_was() {
    let (mut leads, gate) = leading(&[A]);
    assert_eq!(all(&mut leads), [Action::Began(A.0, A.1), Action::Opened]);
    assert!(gate.may_lead(NOW + LEAD - 1) && leads.leads(A, NOW + LEAD - 1));
    assert!(!gate.may_lead(NOW + LEAD) && !leads.leads(A, NOW + LEAD));
    leads.poll(NOW + LEAD);
    assert!(all(&mut leads).contains(&Action::Closed));
}

#[test]
fn it_asks_again_after_a_third_of_a_lead_and_for_what_it_was_not_granted_much_sooner() {
    let (mut leads, _) = leading(&[A]);
    all(&mut leads);
    assert_eq!(leads.wake_at(), NOW + LEAD / 3);
    leads.routes(&[route(A), route(B)], NOW + 210_000);
    leads.poll(NOW + 210_000);
    assert_eq!(question(&all(&mut leads)).expect("a new claim is made at once").claim, [A, B]);
    let mut now = NOW + 211_000;
    leads.answer(CONTROLLER, &grant(NOW + 210_000, &[A]), now);
    let mut waits = Vec::new();
    for _ in 0..6 {
        waits.push(leads.wake_at() - now);
        now = leads.wake_at();
        leads.ping(CONTROLLER, beat_of_controller(), now);
        leads.poll(now);
        let stamp_us = question(&all(&mut leads)).expect("it asks again").stamp_us;
        leads.answer(CONTROLLER, &grant(stamp_us, &[A]), now);
    }
    assert!(
        waits[0] < LEAD / 50 && waits.windows(2).all(|two| two[1] == 2 * two[0] || two[1] == LEAD / 3),
        "{waits:?}"
    );
}

#[test]
fn what_is_not_granted_any_more_stops_before_the_lead_gets_longer() {
    let (mut leads, gate) = leading(&[A, B]);
    leads.ping(CONTROLLER, beat_of_controller(), NOW + 400_000);
    leads.poll(NOW + 400_000);
    all(&mut leads);
    leads.answer(CONTROLLER, &grant(NOW + 400_000, &[B]), NOW + 410_000);
    assert_eq!(all(&mut leads), [Action::GiveUp(A.0, A.1)]);
    assert!(!leads.leads(A, NOW + 410_000) && leads.leads(B, NOW + 410_000));
    assert_eq!(gate.until_us(), NOW + LEAD, "its shard may lead it until then");
    leads.poll(NOW + 800_000);
    let asked = all(&mut leads);
    let asked = question(&asked).expect("a third has passed");
    assert_eq!((&asked.claim, &asked.gave_up), (&vec![B], &vec![]), "the shard has not said so yet");
    leads.gave_up(A, NOW + 810_000);
    assert_eq!(gate.until_us(), NOW + 400_000 + LEAD);
    leads.poll(NOW + 810_000);
    let asked = all(&mut leads);
    let asked = question(&asked).expect("the controller waits for it");
    assert_eq!((&asked.claim, &asked.gave_up), (&vec![B], &vec![A]));
}

#[test]
fn a_hub_that_is_to_move_is_given_up_and_not_claimed_again_in_its_term() {
    let (mut leads, _) = leading(&[A]);
    all(&mut leads);
    let moving = Route { gives_up: true, ..route(A) };
    leads.routes(&[moving], NOW + 300_000);
    assert_eq!(all(&mut leads), [Action::GiveUp(A.0, A.1)]);
    leads.gave_up(A, NOW + 301_000);
    // The proposal is withdrawn, but the term has ended nevertheless.
    leads.routes(&[route(A)], NOW + 302_000);
    leads.poll(NOW + 302_000);
    let asked = all(&mut leads);
    let asked = question(&asked).expect("it says so at once");
    assert_eq!((&asked.claim, &asked.gave_up), (&vec![], &vec![A]));
    let next = (A.0, Term(4));
    leads.routes(&[route(next)], NOW + 303_000);
    leads.poll(NOW + 303_000);
    let asked = all(&mut leads);
    let asked = question(&asked).expect("a new claim");
    assert_eq!((&asked.claim, &asked.gave_up), (&vec![next], &vec![]));
}

#[test]
fn what_was_given_up_while_the_answer_was_on_its_way_does_not_begin_again() {
    let (mut leads, _) = leading(&[A]);
    leads.ping(CONTROLLER, beat_of_controller(), NOW + 350_000);
    leads.poll(NOW + 350_000);
    all(&mut leads);
    leads.routes(&[Route { gives_up: true, ..route(A) }], NOW + 351_000);
    assert_eq!(all(&mut leads), [Action::GiveUp(A.0, A.1)]);
    leads.gave_up(A, NOW + 352_000);
    leads.answer(CONTROLLER, &grant(NOW + 350_000, &[A]), NOW + 353_000);
    assert_eq!(all(&mut leads), []);
    assert!(!leads.leads(A, NOW + 353_000));
}

#[test]
fn a_grant_that_an_answer_to_a_later_question_overtook_changes_nothing() {
    let (mut leads, gate) = leading(&[A]);
    for at in [NOW + 350_000, NOW + 700_000] {
        leads.ping(CONTROLLER, beat_of_controller(), at);
        leads.poll(at);
    }
    all(&mut leads);
    leads.answer(CONTROLLER, &grant(NOW + 700_000, &[A]), NOW + 710_000);
    leads.answer(CONTROLLER, &grant(NOW + 350_000, &[]), NOW + 711_000);
    leads.answer(CONTROLLER, &grant(NOW + 900_000, &[]), NOW + 712_000);
    leads.answer(OTHER, &grant(NOW + 700_000, &[]), NOW + 713_000);
    assert_eq!(all(&mut leads), [], "of an old question, of none, of who was not asked");
    assert_eq!(gate.until_us(), NOW + 700_000 + LEAD);
}

/// The node's controller is gone, and `OTHER` answers a ping of `NOW + 500_000` that it hears none either.
fn alone(leads: &mut Leads) {
    leads.gone(CONTROLLER, NOW + 450_000);
    leads.pong(OTHER, NOW + 500_000, Beat { mandate: 0, heeds: 0, heed: 4 }, NOW + 600_000);
    leads.poll(NOW + 600_000);
}

#[test]
fn without_a_controller_a_lead_runs_on_from_when_a_majority_was_asked() {
    let (mut leads, gate) = leading(&[A]);
    alone(&mut leads);
    assert_eq!(gate.until_us(), NOW + 500_000 + LEAD);
    assert!(leads.leads(A, NOW + LEAD));
}

#[test]
fn who_hears_a_controller_prolongs_nothing_whatever_others_hear() {
    let (mut leads, gate) = leading(&[A]);
    leads.pong(OTHER, NOW + 300_000, Beat::default(), NOW + 310_000);
    leads.pong(process(4), NOW + 300_000, Beat::default(), NOW + 310_000);
    leads.poll(NOW + 310_000);
    assert_eq!(gate.until_us(), NOW + LEAD);
}

#[test]
fn a_lead_that_has_passed_is_not_prolonged() {
    let (mut leads, gate) = leading(&[A]);
    leads.gone(CONTROLLER, NOW + 450_000);
    leads.pong(OTHER, NOW + 500_000, Beat::default(), NOW + LEAD);
    leads.poll(NOW + LEAD);
    assert_eq!(gate.until_us(), NOW + LEAD);
}

#[test]
fn who_hears_a_controller_or_is_one_and_who_only_pings_helps_nobody_to_prolong() {
    let heeds = Beat { mandate: 0, heeds: 6, heed: 4 };
    let is_one = Beat { mandate: 6, heeds: 0, heed: 4 };
    for beat in [heeds, is_one] {
        let (mut leads, gate) = leading(&[A]);
        leads.gone(CONTROLLER, NOW + 450_000);
        leads.pong(OTHER, NOW + 500_000, beat, NOW + 600_000);
        leads.gone(OTHER, NOW + 610_000);
        leads.poll(NOW + 620_000);
        assert_eq!(gate.until_us(), NOW + LEAD, "{beat:?}");
    }
    let (mut leads, gate) = leading(&[A]);
    leads.gone(CONTROLLER, NOW + 450_000);
    leads.ping(OTHER, Beat::default(), NOW + 600_000);
    leads.poll(NOW + 600_000);
    assert_eq!(gate.until_us(), NOW + LEAD, "a ping says how it was some time ago");
}

#[test]
fn an_older_census_than_a_grant_named_prolongs_nothing() {
    let (mut leads, gate) = leading(&[A]);
    leads.census(Census { revision: 8, nodes: vec![NodeId(1), NodeId(3)], before: vec![] }, NOW);
    alone(&mut leads);
    assert_eq!(gate.until_us(), NOW + LEAD);
}

#[test]
fn a_controller_that_is_silent_is_heeded_no_more_and_each_heeding_has_a_number() {
    let (mut leads, _) = leading(&[A]);
    all(&mut leads);
    leads.poll(NOW + 500_000);
    assert_eq!(all(&mut leads), [Action::Say(Beat { mandate: 0, heeds: 0, heed: 1 })]);
    leads.ping(CONTROLLER, beat_of_controller(), NOW + 510_000);
    assert_eq!(all(&mut leads), [Action::Say(Beat { mandate: 0, heeds: MANDATE, heed: 2 })]);
    leads.ping(OTHER, Beat { mandate: MANDATE - 1, heeds: 0, heed: 1 }, NOW + 520_000);
    assert_eq!(all(&mut leads), [], "an older mandate");
    leads.ping(OTHER, Beat { mandate: MANDATE + 1, heeds: 0, heed: 1 }, NOW + 530_000);
    assert_eq!(all(&mut leads), [Action::Say(Beat { mandate: 0, heeds: MANDATE + 1, heed: 3 })]);
}

/// A controller under `MANDATE` until `NOW + 2 leads`, with `A` in the table of `OTHER`.
fn controlling() -> Leads {
    let mut leads = Leads::new(ME, Timing::default());
    leads.mandate(MANDATE, NOW + 2 * LEAD, NOW, NOW);
    leads.tables(MANDATE, 1, [(OTHER, BTreeSet::from([A])), (ME, BTreeSet::from([B]))].into());
    all(&mut leads);
    leads
}

fn ask(leads: &mut Leads, by: Process, claim: &[HubTerm], now: u64) -> Option<Vec<HubTerm>> {
    leads.ask(by, &Question { stamp_us: now + 77, claim: claim.to_vec(), ..Question::default() }, now);
    match all(leads).pop() {
        Some(Action::Answer(to, grant)) => {
            assert_eq!((to, grant.stamp_us, grant.mandate), (by, now + 77, MANDATE));
            Some(grant.granted)
        }
        _ => None,
    }
}

#[test]
fn what_is_claimed_and_in_the_table_of_that_process_is_granted_while_the_mandate_runs() {
    let mut leads = controlling();
    assert_eq!(ask(&mut leads, OTHER, &[A, B], NOW + 1), Some(vec![A]));
    assert_eq!(ask(&mut leads, OTHER, &[B], NOW + 2), Some(vec![]), "what is not claimed is not granted");
    let restarted = Process { incarnation: 2, ..OTHER };
    assert_eq!(ask(&mut leads, restarted, &[A], NOW + 3), None, "it has no table");
    let snapshot = leads.snapshot(NOW + 4);
    assert_eq!((snapshot.tables, snapshot.mandate), (1, MANDATE));
    assert_eq!(snapshot.peers[&OTHER].lead_until_us, Some(NOW + LEAD), "from when it was confirmed");
    assert_eq!(snapshot.peers[&restarted].lead_until_us, None);
    assert_eq!(ask(&mut leads, OTHER, &[A], NOW + 2 * LEAD), None, "the mandate is over");
    leads.mandate(MANDATE, NOW + 4 * LEAD, NOW + 2 * LEAD, NOW + 2 * LEAD);
    assert_eq!(ask(&mut leads, OTHER, &[A], NOW + 2 * LEAD), Some(vec![A]), "its lease was held after all");
    leads.mandate(MANDATE + 1, NOW + 9 * LEAD, NOW + 5 * LEAD, NOW + 5 * LEAD);
    leads.tables(MANDATE, 7, [(OTHER, BTreeSet::from([A]))].into());
    assert_eq!(ask(&mut leads, OTHER, &[A], NOW + 5 * LEAD), None, "tables of another mandate");
    assert_eq!(leads.snapshot(NOW + 5 * LEAD).peers[&OTHER].lead_until_us, None);
}

#[test]
fn a_controller_grants_itself_without_a_link() {
    let mut leads = controlling();
    leads.routes(&[route(B)], NOW + 1);
    leads.poll(NOW + 1);
    assert_eq!(all(&mut leads), [Action::Began(B.0, B.1), Action::Opened]);
    assert!(leads.leads(B, NOW + LEAD - 1) && !leads.leads(B, NOW + LEAD));
    leads.mandate(MANDATE, NOW + 2 * LEAD, NOW + LEAD - 1, NOW + LEAD - 1);
    // Its lease ends, and it reports that at that moment.
    assert!(leads.wake_at() <= NOW + 2 * LEAD);
    leads.poll(NOW + 2 * LEAD);
    assert!(all(&mut leads).contains(&Action::Say(Beat { mandate: 0, heeds: 0, heed: 1 })));
}

#[test]
fn what_a_peer_heeds_is_known_from_when_it_said_so_until_when_it_was_asked() {
    let mut leads = controlling();
    let heeding = |leads: &mut Leads| {
        let peer = leads.snapshot(NOW + LEAD).peers[&OTHER].clone();
        peer.heeds_us.map(|since| (since, peer.heeds_until_us))
    };
    let beat = Beat { mandate: 0, heeds: MANDATE, heed: 3 };
    leads.ping(OTHER, beat, NOW + 10);
    leads.ping(OTHER, beat, NOW + 20);
    assert_eq!(heeding(&mut leads), Some((NOW + 10, 0)), "a ping answers nothing");
    leads.pong(OTHER, NOW + 15, beat, NOW + 30);
    assert_eq!(heeding(&mut leads), Some((NOW + 10, NOW + 15)));
    leads.pong(OTHER, NOW + 35, Beat { heed: 5, ..beat }, NOW + 40);
    assert_eq!(heeding(&mut leads), Some((NOW + 40, NOW + 35)), "it began again in between");
    leads.ping(OTHER, Beat { heeds: 0, ..beat }, NOW + 50);
    assert_eq!(heeding(&mut leads), None);
    leads.ping(OTHER, Beat { heed: 6, ..beat }, NOW + 60);
    assert_eq!(heeding(&mut leads), Some((NOW + 60, 0)));
    leads.mandate(MANDATE + 1, NOW + 9 * LEAD, NOW + 70, NOW + 70);
    assert_eq!(heeding(&mut leads), None, "nobody has heeded the next mandate yet");
}

#[test]
fn what_a_process_gave_up_and_whom_it_suspects_is_what_it_said_last() {
    let mut leads = controlling();
    let said = |stamp_us, gave_up: &[HubTerm], suspects: &[NodeId]| Question {
        stamp_us,
        claim: vec![],
        gave_up: gave_up.to_vec(),
        suspects: suspects.to_vec(),
    };
    leads.ask(OTHER, &said(20, &[A], &[NodeId(2)]), NOW);
    leads.ask(OTHER, &said(10, &[], &[]), NOW + 1);
    let peer = leads.snapshot(NOW + 2).peers[&OTHER].clone();
    assert_eq!((peer.gave_up, peer.suspects), (vec![A], vec![NodeId(2)]));
    leads.ask(OTHER, &said(30, &[], &[]), NOW + 3);
    assert!(leads.snapshot(NOW + 4).peers[&OTHER].gave_up.is_empty());
}

#[test]
fn suspicions_end_with_the_controller_term_in_which_they_were_reported() {
    let mut leads = controlling();
    let question = |stamp_us| Question { stamp_us, suspects: vec![NodeId(2)], ..Question::default() };
    let suspected = |leads: &mut Leads, now| leads.snapshot(now).peers[&OTHER].suspects.len();
    leads.ask(OTHER, &question(20), NOW);
    assert_eq!(suspected(&mut leads, NOW + 1), 1);
    assert_eq!(suspected(&mut leads, NOW + 2 * LEAD), 0, "the term has expired");
    leads.resign(NOW + 1);
    assert_eq!(suspected(&mut leads, NOW + 1), 0);
    leads.mandate(MANDATE + 1, NOW + 9 * LEAD, NOW + 2, NOW + 2);
    assert_eq!(suspected(&mut leads, NOW + 3), 0, "nobody has reported any in this term");
    leads.ask(OTHER, &question(30), NOW + 3);
    assert_eq!(suspected(&mut leads, NOW + 4), 1);
}

/// A controller that granted `OTHER` a leader lease under controller term 1.
fn granting() -> Leads {
    let mut leads = Leads::new(ME, Timing::default());
    leads.mandate(1, u64::MAX, NOW, NOW);
    leads.tables(1, 1, BTreeMap::from([(OTHER, BTreeSet::from([A]))]));
    leads.ask(OTHER, &Question { stamp_us: 5, claim: vec![A], ..Question::default() }, NOW);
    leads
}

#[test]
fn who_is_registered_no_more_is_known_as_long_as_a_lead_of_this_mandate_may_run() {
    let mut leads = granting();
    leads.ping(CONTROLLER, Beat::default(), NOW);
    assert!(leads.forget_left(CONTROLLER), "nothing was granted to it");
    for now in [NOW, NOW + LEAD, NOW + 100 * LEAD] {
        assert!(!leads.forget_left(OTHER), "nodes may have prolonged it among themselves");
        assert_eq!(leads.snapshot(now).peers[&OTHER].lead_until_us, Some(NOW + LEAD));
    }
    leads.mandate(2, u64::MAX, NOW + LEAD, NOW + LEAD);
    assert!(leads.forget_left(OTHER), "a new mandate waits for all leads of before");
    assert!(!leads.snapshot(NOW + LEAD).peers.contains_key(&OTHER));
    let mut leads = granting();
    leads.resign(NOW);
    assert!(leads.forget_left(OTHER), "nobody decides by it");
}

#[test]
fn grants_name_the_census_that_the_control_plane_decides_by() {
    let mut leads = granting();
    leads.names_census(4, NOW);
    leads.names_census(3, NOW + 1);
    let granted = leads.snapshot(NOW + 2);
    assert_eq!((granted.census, granted.census_us), (4, NOW));
    all(&mut leads);
    leads.ask(OTHER, &Question { stamp_us: 6, ..Question::default() }, NOW + 3);
    let named = |action| if let Action::Answer(OTHER, grant) = action { Some(grant.census) } else { None };
    assert_eq!(all(&mut leads).into_iter().find_map(named), Some(4));
}

#[test]
fn a_change_is_told_once_and_times_that_go_on_are_none() {
    let mut leads = granting();
    leads.take_changed();
    let heeding = Beat { mandate: 0, heeds: 1, heed: 3 };
    let question = |stamp_us, gave_up: &[HubTerm]| Question {
        stamp_us,
        gave_up: gave_up.to_vec(),
        ..Question::default()
    };
    leads.ping(OTHER, heeding, NOW);
    assert!(leads.take_changed(), "it heeds this one");
    leads.pong(OTHER, NOW, heeding, NOW + 1);
    leads.ask(OTHER, &question(6, &[]), NOW + 2);
    assert!(!leads.take_changed());
    leads.ask(OTHER, &question(7, &[A]), NOW + 3);
    assert!(leads.take_changed(), "it gave up");
    leads.ask(OTHER, &question(8, &[A]), NOW + 4);
    assert!(!leads.take_changed());
    leads.ping(OTHER, Beat { heed: 4, ..heeding }, NOW + 5);
    assert!(leads.take_changed(), "it began anew");
    leads.ping(OTHER, Beat::default(), NOW + 6);
    assert!(leads.take_changed(), "it heeds nobody");
    leads.ping(OTHER, Beat::default(), NOW + 7);
    assert!(!leads.take_changed());
}

#[test]
fn a_mandate_runs_for_one_lead_from_when_a_majority_or_the_coordinator_confirmed_it() {
    let mut leads = controlling();
    let until_us = NOW + 90 * LEAD;
    leads.mandate(MANDATE, until_us, NOW, NOW);
    leads.census(
        Census { revision: 1, nodes: vec![ME.node, OTHER.node, CONTROLLER.node], before: vec![] },
        NOW,
    );
    let heeding = Beat { mandate: 0, heeds: MANDATE, heed: 3 };
    // A majority acknowledges it: the ping was sent half a lease length ago.
    leads.pong(OTHER, NOW + LEAD / 2, heeding, NOW + LEAD - 1);
    assert_eq!(leads.snapshot(NOW + LEAD - 1).confirmed_us, NOW + LEAD / 2);
    assert_eq!(ask(&mut leads, OTHER, &[A], NOW + LEAD), Some(vec![A]));
    assert_eq!(leads.snapshot(NOW + LEAD).peers[&OTHER].lead_until_us, Some(NOW + LEAD / 2 + LEAD));
    // One lease length later the controller term has expired, and the node reports that. A majority may have
    // had another one since.
    let ends_us = NOW + LEAD / 2 + LEAD;
    assert!(leads.wake_at() <= ends_us);
    leads.poll(ends_us);
    assert!(all(&mut leads).contains(&Action::Say(Beat { mandate: 0, heeds: 0, heed: 1 })));
    for peer in [OTHER, CONTROLLER] {
        leads.pong(peer, ends_us, heeding, ends_us + 1);
    }
    assert_eq!(ask(&mut leads, OTHER, &[A], ends_us + 2), None, "a majority does not bring it back");
    leads.mandate(MANDATE, until_us, ends_us + 3, ends_us + 4);
    assert_eq!(ask(&mut leads, OTHER, &[A], ends_us + 5), Some(vec![A]), "the coordinator does");
    assert_eq!(leads.snapshot(ends_us + 5).peers[&OTHER].lead_until_us, Some(ends_us + 3 + LEAD));
}

#[test]
fn while_the_census_changes_both_majorities_confirm_a_mandate() {
    let mut leads = controlling();
    leads.mandate(MANDATE, NOW + 90 * LEAD, NOW, NOW);
    let before = vec![NodeId(21), NodeId(22), CONTROLLER.node];
    leads.census(Census { revision: 1, nodes: vec![ME.node, OTHER.node], before }, NOW);
    let heeding = Beat { mandate: 0, heeds: MANDATE, heed: 3 };
    let confirmed_by = |leads: &mut Leads, peer: Process| {
        leads.pong(peer, NOW + 10, heeding, NOW + 11);
        leads.snapshot(NOW + 12).confirmed_us
    };
    assert_eq!(confirmed_by(&mut leads, OTHER), NOW, "of those before there is none");
    assert_eq!(confirmed_by(&mut leads, CONTROLLER), NOW, "one of three");
    let another = Process { node: NodeId(21), incarnation: 1 };
    assert_eq!(confirmed_by(&mut leads, another), NOW + 10);
}

/// After a stall: the leader lease of `ME` ended, and a majority of three has had no controller.
#[test]
fn a_lead_that_has_ended_comes_back_from_who_had_no_controller_without_a_break_since_before() {
    for (heed, restarts, is_back) in [(4, false, true), (5, false, false), (4, true, false)] {
        let (mut leads, _) = leading(&[A]);
        let nodes = vec![ME.node, OTHER.node, CONTROLLER.node];
        leads.census(Census { revision: 9, nodes, before: vec![] }, NOW);
        leads.gone(CONTROLLER, NOW + 1);
        leads.poll(NOW + 1);
        let alone = |heed| Beat { mandate: 0, heeds: 0, heed };
        leads.pong(OTHER, NOW + 2, alone(4), NOW + 3);
        leads.poll(NOW + 3);
        let ended_us = NOW + 2 + LEAD;
        assert!(leads.leads(A, ended_us - 1) && !leads.leads(A, ended_us));
        all(&mut leads);
        leads.poll(ended_us + LEAD);
        assert_eq!(all(&mut leads), [Action::Closed]);
        let other = if restarts { Process { incarnation: 9, ..OTHER } } else { OTHER };
        leads.pong(other, ended_us + LEAD, alone(heed), ended_us + LEAD + 1);
        leads.poll(ended_us + LEAD + 1);
        assert_eq!(leads.leads(A, ended_us + 2 * LEAD - 1), is_back, "{heed} {restarts}");
        assert_eq!(all(&mut leads).contains(&Action::Opened), is_back);
    }
}
