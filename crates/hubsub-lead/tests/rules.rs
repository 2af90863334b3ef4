//! Each rule by itself, at the boundary times. See `simulation` for all of them together.

use hubsub_lead::{
    Action, Beat, Grant, HubTerm, LeaderLeases, LeaseGate, LeaseRequest, Process, Route, Timing, Voters,
};
use hubsub_types::{HubId, NodeId, Term};
use std::collections::{BTreeMap, BTreeSet};

const fn process(node: u16) -> Process {
    Process { node: NodeId(node), incarnation: 1 }
}

const ME: Process = process(1);
const CONTROLLER: Process = process(2);
const OTHER: Process = process(3);
const CONTROLLER_TERM: u64 = 5;
const NOW: u64 = 10_000_000;
const LEASE: u64 = 1_000_000;
const A: HubTerm = (HubId(7), Term(3));
const B: HubTerm = (HubId(8), Term(1));

fn route((hub, term): HubTerm) -> Route {
    Route { hub, term, gives_up: false }
}

fn all(leases: &mut LeaderLeases) -> Vec<Action> {
    std::iter::from_fn(|| leases.next_action()).collect()
}

fn request(actions: &[Action]) -> Option<&LeaseRequest> {
    actions.iter().find_map(|action| {
        if let Action::Request(CONTROLLER, request) = action { Some(request) } else { None }
    })
}

fn grant(stamp_us: u64, granted: &[HubTerm]) -> Grant {
    Grant {
        stamp_us,
        lease_us: LEASE,
        controller_term: CONTROLLER_TERM,
        voters_revision: 9,
        granted: granted.to_vec(),
    }
}

fn beat_of_controller() -> Beat {
    Beat { controller_term: CONTROLLER_TERM, acknowledges: CONTROLLER_TERM, acknowledgement: 1 }
}

/// A node of three that the controller granted `pairs`, requested at `NOW`.
fn leading(pairs: &[HubTerm]) -> (LeaderLeases, LeaseGate) {
    let mut leases = LeaderLeases::new(ME, Timing::default());
    leases.voters(Voters { revision: 9, nodes: vec![NodeId(1), NodeId(2), NodeId(3)], before: vec![] }, NOW);
    leases.routes(&pairs.iter().copied().map(route).collect::<Vec<_>>(), NOW);
    leases.ping(CONTROLLER, beat_of_controller(), NOW);
    leases.poll(NOW);
    assert_eq!(request(&all(&mut leases)).expect("it hears a controller").claim, pairs);
    leases.granted(CONTROLLER, &grant(NOW, pairs), NOW + 200_000);
    let gate = leases.gate();
    (leases, gate)
}

#[test]
fn a_lead_ends_one_length_after_the_question_however_late_the_answer_was() {
    let (mut leases, gate) = leading(&[A]);
    assert_eq!(all(&mut leases), [Action::Began(A.0, A.1), Action::Opened]);
    assert!(gate.may_lead(NOW + LEASE - 1) && leases.leads(A, NOW + LEASE - 1));
    assert!(!gate.may_lead(NOW + LEASE) && !leases.leads(A, NOW + LEASE));
    leases.poll(NOW + LEASE);
    assert!(all(&mut leases).contains(&Action::Closed));
}

#[test]
fn requests_repeat_after_a_third_of_a_lease_and_much_sooner_for_hubs_not_granted() {
    let (mut leases, _) = leading(&[A]);
    all(&mut leases);
    assert_eq!(leases.wake_at(), NOW + LEASE / 3);
    leases.routes(&[route(A), route(B)], NOW + 210_000);
    leases.poll(NOW + 210_000);
    assert_eq!(request(&all(&mut leases)).expect("a new claim is made at once").claim, [A, B]);
    let mut now = NOW + 211_000;
    leases.granted(CONTROLLER, &grant(NOW + 210_000, &[A]), now);
    let mut waits = Vec::new();
    for _ in 0..6 {
        waits.push(leases.wake_at() - now);
        now = leases.wake_at();
        leases.ping(CONTROLLER, beat_of_controller(), now);
        leases.poll(now);
        let stamp_us = request(&all(&mut leases)).expect("it asks again").stamp_us;
        leases.granted(CONTROLLER, &grant(stamp_us, &[A]), now);
    }
    assert!(
        waits[0] < LEASE / 50 && waits.windows(2).all(|two| two[1] == 2 * two[0] || two[1] == LEASE / 3),
        "{waits:?}"
    );
}

#[test]
fn hubs_no_longer_granted_stop_before_the_lease_is_extended() {
    let (mut leases, gate) = leading(&[A, B]);
    leases.ping(CONTROLLER, beat_of_controller(), NOW + 400_000);
    leases.poll(NOW + 400_000);
    all(&mut leases);
    leases.granted(CONTROLLER, &grant(NOW + 400_000, &[B]), NOW + 410_000);
    assert_eq!(all(&mut leases), [Action::GiveUp(A.0, A.1)]);
    assert!(!leases.leads(A, NOW + 410_000) && leases.leads(B, NOW + 410_000));
    assert_eq!(gate.until_us(), NOW + LEASE, "its shard may lead it until then");
    leases.poll(NOW + 800_000);
    let asked = all(&mut leases);
    let asked = request(&asked).expect("a third has passed");
    assert_eq!((&asked.claim, &asked.gave_up), (&vec![B], &vec![]), "the shard has not confirmed it yet");
    leases.gave_up(A, NOW + 810_000);
    assert_eq!(gate.until_us(), NOW + 400_000 + LEASE);
    leases.poll(NOW + 810_000);
    let asked = all(&mut leases);
    let asked = request(&asked).expect("the controller waits for it");
    assert_eq!((&asked.claim, &asked.gave_up), (&vec![B], &vec![A]));
}

#[test]
fn a_hub_that_is_to_move_is_given_up_and_not_claimed_again_in_its_term() {
    let (mut leases, _) = leading(&[A]);
    all(&mut leases);
    let moving = Route { gives_up: true, ..route(A) };
    leases.routes(&[moving], NOW + 300_000);
    assert_eq!(all(&mut leases), [Action::GiveUp(A.0, A.1)]);
    leases.gave_up(A, NOW + 301_000);
    // The proposal is withdrawn, but the term has ended nevertheless.
    leases.routes(&[route(A)], NOW + 302_000);
    leases.poll(NOW + 302_000);
    let asked = all(&mut leases);
    let asked = request(&asked).expect("it says so at once");
    assert_eq!((&asked.claim, &asked.gave_up), (&vec![], &vec![A]));
    let next = (A.0, Term(4));
    leases.routes(&[route(next)], NOW + 303_000);
    leases.poll(NOW + 303_000);
    let asked = all(&mut leases);
    let asked = request(&asked).expect("a new claim");
    assert_eq!((&asked.claim, &asked.gave_up), (&vec![next], &vec![]));
}

#[test]
fn a_hub_given_up_while_the_grant_was_in_flight_does_not_begin_again() {
    let (mut leases, _) = leading(&[A]);
    leases.ping(CONTROLLER, beat_of_controller(), NOW + 350_000);
    leases.poll(NOW + 350_000);
    all(&mut leases);
    leases.routes(&[Route { gives_up: true, ..route(A) }], NOW + 351_000);
    assert_eq!(all(&mut leases), [Action::GiveUp(A.0, A.1)]);
    leases.gave_up(A, NOW + 352_000);
    leases.granted(CONTROLLER, &grant(NOW + 350_000, &[A]), NOW + 353_000);
    assert_eq!(all(&mut leases), []);
    assert!(!leases.leads(A, NOW + 353_000));
}

#[test]
fn a_grant_that_an_answer_to_a_later_question_overtook_changes_nothing() {
    let (mut leases, gate) = leading(&[A]);
    for at in [NOW + 350_000, NOW + 700_000] {
        leases.ping(CONTROLLER, beat_of_controller(), at);
        leases.poll(at);
    }
    all(&mut leases);
    leases.granted(CONTROLLER, &grant(NOW + 700_000, &[A]), NOW + 710_000);
    leases.granted(CONTROLLER, &grant(NOW + 350_000, &[]), NOW + 711_000);
    leases.granted(CONTROLLER, &grant(NOW + 900_000, &[]), NOW + 712_000);
    leases.granted(OTHER, &grant(NOW + 700_000, &[]), NOW + 713_000);
    assert_eq!(all(&mut leases), [], "of an old request, of none, of another process");
    assert_eq!(gate.until_us(), NOW + 700_000 + LEASE);
}

/// The node's controller is gone, and `OTHER` answers a ping of `NOW + 500_000` that it hears none either.
fn alone(leases: &mut LeaderLeases) {
    leases.gone(CONTROLLER, NOW + 450_000);
    leases.pong(
        OTHER,
        NOW + 500_000,
        Beat { controller_term: 0, acknowledges: 0, acknowledgement: 4 },
        NOW + 600_000,
    );
    leases.poll(NOW + 600_000);
}

#[test]
fn without_a_controller_a_lead_runs_on_from_when_a_majority_was_asked() {
    let (mut leases, gate) = leading(&[A]);
    alone(&mut leases);
    assert_eq!(gate.until_us(), NOW + 500_000 + LEASE);
    assert!(leases.leads(A, NOW + LEASE));
}

#[test]
fn a_node_that_hears_a_controller_extends_nothing() {
    let (mut leases, gate) = leading(&[A]);
    leases.pong(OTHER, NOW + 300_000, Beat::default(), NOW + 310_000);
    leases.pong(process(4), NOW + 300_000, Beat::default(), NOW + 310_000);
    leases.poll(NOW + 310_000);
    assert_eq!(gate.until_us(), NOW + LEASE);
}

#[test]
fn a_lead_that_has_passed_is_not_prolonged() {
    let (mut leases, gate) = leading(&[A]);
    leases.gone(CONTROLLER, NOW + 450_000);
    leases.pong(OTHER, NOW + 500_000, Beat::default(), NOW + LEASE);
    leases.poll(NOW + LEASE);
    assert_eq!(gate.until_us(), NOW + LEASE);
}

#[test]
fn nodes_that_hear_a_controller_or_only_ping_do_not_count_for_an_extension() {
    let acknowledges = Beat { controller_term: 0, acknowledges: 6, acknowledgement: 4 };
    let is_one = Beat { controller_term: 6, acknowledges: 0, acknowledgement: 4 };
    for beat in [acknowledges, is_one] {
        let (mut leases, gate) = leading(&[A]);
        leases.gone(CONTROLLER, NOW + 450_000);
        leases.pong(OTHER, NOW + 500_000, beat, NOW + 600_000);
        leases.gone(OTHER, NOW + 610_000);
        leases.poll(NOW + 620_000);
        assert_eq!(gate.until_us(), NOW + LEASE, "{beat:?}");
    }
    let (mut leases, gate) = leading(&[A]);
    leases.gone(CONTROLLER, NOW + 450_000);
    leases.ping(OTHER, Beat::default(), NOW + 600_000);
    leases.poll(NOW + 600_000);
    assert_eq!(gate.until_us(), NOW + LEASE, "a ping says how it was some time ago");
}

#[test]
fn an_older_census_than_a_grant_named_prolongs_nothing() {
    let (mut leases, gate) = leading(&[A]);
    leases.voters(Voters { revision: 8, nodes: vec![NodeId(1), NodeId(3)], before: vec![] }, NOW);
    alone(&mut leases);
    assert_eq!(gate.until_us(), NOW + LEASE);
}

#[test]
fn a_controller_that_is_silent_is_heeded_no_more_and_each_heeding_has_a_number() {
    let (mut leases, _) = leading(&[A]);
    all(&mut leases);
    leases.poll(NOW + 500_000);
    assert_eq!(
        all(&mut leases),
        [Action::Report(Beat { controller_term: 0, acknowledges: 0, acknowledgement: 1 })]
    );
    leases.ping(CONTROLLER, beat_of_controller(), NOW + 510_000);
    assert_eq!(
        all(&mut leases),
        [Action::Report(Beat { controller_term: 0, acknowledges: CONTROLLER_TERM, acknowledgement: 2 })]
    );
    leases.ping(
        OTHER,
        Beat { controller_term: CONTROLLER_TERM - 1, acknowledges: 0, acknowledgement: 1 },
        NOW + 520_000,
    );
    assert_eq!(all(&mut leases), [], "an older controller_term");
    leases.ping(
        OTHER,
        Beat { controller_term: CONTROLLER_TERM + 1, acknowledges: 0, acknowledgement: 1 },
        NOW + 530_000,
    );
    assert_eq!(
        all(&mut leases),
        [Action::Report(Beat { controller_term: 0, acknowledges: CONTROLLER_TERM + 1, acknowledgement: 3 })]
    );
}

/// A controller under `CONTROLLER_TERM` until `NOW + 2 leads`, with `A` in the table of `OTHER`.
fn controlling() -> LeaderLeases {
    let mut leases = LeaderLeases::new(ME, Timing::default());
    leases.controller_term(CONTROLLER_TERM, NOW + 2 * LEASE, NOW, NOW);
    leases.tables(CONTROLLER_TERM, 1, [(OTHER, BTreeSet::from([A])), (ME, BTreeSet::from([B]))].into());
    all(&mut leases);
    leases
}

fn ask(leases: &mut LeaderLeases, by: Process, claim: &[HubTerm], now: u64) -> Option<Vec<HubTerm>> {
    leases.request(
        by,
        &LeaseRequest { stamp_us: now + 77, claim: claim.to_vec(), ..LeaseRequest::default() },
        now,
    );
    match all(leases).pop() {
        Some(Action::Grant(to, grant)) => {
            assert_eq!((to, grant.stamp_us, grant.controller_term), (by, now + 77, CONTROLLER_TERM));
            Some(grant.granted)
        }
        _ => None,
    }
}

#[test]
fn claimed_hubs_in_the_table_of_the_process_are_granted_during_the_controller_term() {
    let mut leases = controlling();
    assert_eq!(ask(&mut leases, OTHER, &[A, B], NOW + 1), Some(vec![A]));
    assert_eq!(ask(&mut leases, OTHER, &[B], NOW + 2), Some(vec![]), "what is not claimed is not granted");
    let restarted = Process { incarnation: 2, ..OTHER };
    assert_eq!(ask(&mut leases, restarted, &[A], NOW + 3), None, "it has no table");
    let snapshot = leases.snapshot(NOW + 4);
    assert_eq!((snapshot.tables, snapshot.controller_term), (1, CONTROLLER_TERM));
    assert_eq!(snapshot.peers[&OTHER].lease_until_us, Some(NOW + LEASE), "from when it was confirmed");
    assert_eq!(snapshot.peers[&restarted].lease_until_us, None);
    assert_eq!(ask(&mut leases, OTHER, &[A], NOW + 2 * LEASE), None, "the controller_term is over");
    leases.controller_term(CONTROLLER_TERM, NOW + 4 * LEASE, NOW + 2 * LEASE, NOW + 2 * LEASE);
    assert_eq!(ask(&mut leases, OTHER, &[A], NOW + 2 * LEASE), Some(vec![A]), "its lease was held after all");
    leases.controller_term(CONTROLLER_TERM + 1, NOW + 9 * LEASE, NOW + 5 * LEASE, NOW + 5 * LEASE);
    leases.tables(CONTROLLER_TERM, 7, [(OTHER, BTreeSet::from([A]))].into());
    assert_eq!(ask(&mut leases, OTHER, &[A], NOW + 5 * LEASE), None, "tables of another controller_term");
    assert_eq!(leases.snapshot(NOW + 5 * LEASE).peers[&OTHER].lease_until_us, None);
}

#[test]
fn a_controller_grants_itself_without_a_link() {
    let mut leases = controlling();
    leases.routes(&[route(B)], NOW + 1);
    leases.poll(NOW + 1);
    assert_eq!(all(&mut leases), [Action::Began(B.0, B.1), Action::Opened]);
    assert!(leases.leads(B, NOW + LEASE - 1) && !leases.leads(B, NOW + LEASE));
    leases.controller_term(CONTROLLER_TERM, NOW + 2 * LEASE, NOW + LEASE - 1, NOW + LEASE - 1);
    // Its lease ends, and it reports that at that moment.
    assert!(leases.wake_at() <= NOW + 2 * LEASE);
    leases.poll(NOW + 2 * LEASE);
    assert!(all(&mut leases).contains(&Action::Report(Beat {
        controller_term: 0,
        acknowledges: 0,
        acknowledgement: 1
    })));
}

#[test]
fn an_acknowledgement_is_known_from_its_report_until_the_last_answered_ping() {
    let mut leases = controlling();
    let heeding = |leases: &mut LeaderLeases| {
        let peer = leases.snapshot(NOW + LEASE).peers[&OTHER].clone();
        peer.acknowledges_us.map(|since| (since, peer.acknowledges_until_us))
    };
    let beat = Beat { controller_term: 0, acknowledges: CONTROLLER_TERM, acknowledgement: 3 };
    leases.ping(OTHER, beat, NOW + 10);
    leases.ping(OTHER, beat, NOW + 20);
    assert_eq!(heeding(&mut leases), Some((NOW + 10, 0)), "a ping answers nothing");
    leases.pong(OTHER, NOW + 15, beat, NOW + 30);
    assert_eq!(heeding(&mut leases), Some((NOW + 10, NOW + 15)));
    leases.pong(OTHER, NOW + 35, Beat { acknowledgement: 5, ..beat }, NOW + 40);
    assert_eq!(heeding(&mut leases), Some((NOW + 40, NOW + 35)), "it began again in between");
    leases.ping(OTHER, Beat { acknowledges: 0, ..beat }, NOW + 50);
    assert_eq!(heeding(&mut leases), None);
    leases.ping(OTHER, Beat { acknowledgement: 6, ..beat }, NOW + 60);
    assert_eq!(heeding(&mut leases), Some((NOW + 60, 0)));
    leases.controller_term(CONTROLLER_TERM + 1, NOW + 9 * LEASE, NOW + 70, NOW + 70);
    assert_eq!(heeding(&mut leases), None, "nobody has acknowledged the next controller_term yet");
}

#[test]
fn the_latest_request_defines_released_hubs_and_suspects() {
    let mut leases = controlling();
    let said = |stamp_us, gave_up: &[HubTerm], suspects: &[NodeId]| LeaseRequest {
        stamp_us,
        claim: vec![],
        gave_up: gave_up.to_vec(),
        suspects: suspects.to_vec(),
    };
    leases.request(OTHER, &said(20, &[A], &[NodeId(2)]), NOW);
    leases.request(OTHER, &said(10, &[], &[]), NOW + 1);
    let peer = leases.snapshot(NOW + 2).peers[&OTHER].clone();
    assert_eq!((peer.gave_up, peer.suspects), (vec![A], vec![NodeId(2)]));
    leases.request(OTHER, &said(30, &[], &[]), NOW + 3);
    assert!(leases.snapshot(NOW + 4).peers[&OTHER].gave_up.is_empty());
}

#[test]
fn suspicions_end_with_the_controller_term_in_which_they_were_reported() {
    let mut leases = controlling();
    let request = |stamp_us| LeaseRequest { stamp_us, suspects: vec![NodeId(2)], ..LeaseRequest::default() };
    let suspected = |leases: &mut LeaderLeases, now| leases.snapshot(now).peers[&OTHER].suspects.len();
    leases.request(OTHER, &request(20), NOW);
    assert_eq!(suspected(&mut leases, NOW + 1), 1);
    assert_eq!(suspected(&mut leases, NOW + 2 * LEASE), 0, "the term has expired");
    leases.resign(NOW + 1);
    assert_eq!(suspected(&mut leases, NOW + 1), 0);
    leases.controller_term(CONTROLLER_TERM + 1, NOW + 9 * LEASE, NOW + 2, NOW + 2);
    assert_eq!(suspected(&mut leases, NOW + 3), 0, "nobody has reported any in this term");
    leases.request(OTHER, &request(30), NOW + 3);
    assert_eq!(suspected(&mut leases, NOW + 4), 1);
}

/// A controller that granted `OTHER` a leader lease under controller term 1.
fn granting() -> LeaderLeases {
    let mut leases = LeaderLeases::new(ME, Timing::default());
    leases.controller_term(1, u64::MAX, NOW, NOW);
    leases.tables(1, 1, BTreeMap::from([(OTHER, BTreeSet::from([A]))]));
    leases.request(OTHER, &LeaseRequest { stamp_us: 5, claim: vec![A], ..LeaseRequest::default() }, NOW);
    leases
}

#[test]
fn an_unregistered_process_is_remembered_while_its_lease_may_run() {
    let mut leases = granting();
    leases.ping(CONTROLLER, Beat::default(), NOW);
    assert!(leases.forget_left(CONTROLLER), "nothing was granted to it");
    for now in [NOW, NOW + LEASE, NOW + 100 * LEASE] {
        assert!(!leases.forget_left(OTHER), "nodes may have prolonged it among themselves");
        assert_eq!(leases.snapshot(now).peers[&OTHER].lease_until_us, Some(NOW + LEASE));
    }
    leases.controller_term(2, u64::MAX, NOW + LEASE, NOW + LEASE);
    assert!(leases.forget_left(OTHER), "a new controller_term waits for all leads of before");
    assert!(!leases.snapshot(NOW + LEASE).peers.contains_key(&OTHER));
    let mut leases = granting();
    leases.resign(NOW);
    assert!(leases.forget_left(OTHER), "nobody decides by it");
}

#[test]
fn grants_name_the_census_that_the_control_plane_decides_by() {
    let mut leases = granting();
    leases.names_voters(4, NOW);
    leases.names_voters(3, NOW + 1);
    let granted = leases.snapshot(NOW + 2);
    assert_eq!((granted.voters_revision, granted.voters_since_us), (4, NOW));
    all(&mut leases);
    leases.request(OTHER, &LeaseRequest { stamp_us: 6, ..LeaseRequest::default() }, NOW + 3);
    let named =
        |action| if let Action::Grant(OTHER, grant) = action { Some(grant.voters_revision) } else { None };
    assert_eq!(all(&mut leases).into_iter().find_map(named), Some(4));
}

#[test]
fn a_change_is_reported_once_and_advancing_times_are_not_changes() {
    let mut leases = granting();
    leases.take_changed();
    let heeding = Beat { controller_term: 0, acknowledges: 1, acknowledgement: 3 };
    let request = |stamp_us, gave_up: &[HubTerm]| LeaseRequest {
        stamp_us,
        gave_up: gave_up.to_vec(),
        ..LeaseRequest::default()
    };
    leases.ping(OTHER, heeding, NOW);
    assert!(leases.take_changed(), "it acknowledges this one");
    leases.pong(OTHER, NOW, heeding, NOW + 1);
    leases.request(OTHER, &request(6, &[]), NOW + 2);
    assert!(!leases.take_changed());
    leases.request(OTHER, &request(7, &[A]), NOW + 3);
    assert!(leases.take_changed(), "it gave up");
    leases.request(OTHER, &request(8, &[A]), NOW + 4);
    assert!(!leases.take_changed());
    leases.ping(OTHER, Beat { acknowledgement: 4, ..heeding }, NOW + 5);
    assert!(leases.take_changed(), "it began anew");
    leases.ping(OTHER, Beat::default(), NOW + 6);
    assert!(leases.take_changed(), "it acknowledges nobody");
    leases.ping(OTHER, Beat::default(), NOW + 7);
    assert!(!leases.take_changed());
}

#[test]
fn a_controller_term_runs_for_one_lease_after_a_majority_or_the_coordinator_confirmed_it() {
    let mut leases = controlling();
    let until_us = NOW + 90 * LEASE;
    leases.controller_term(CONTROLLER_TERM, until_us, NOW, NOW);
    leases.voters(
        Voters { revision: 1, nodes: vec![ME.node, OTHER.node, CONTROLLER.node], before: vec![] },
        NOW,
    );
    let heeding = Beat { controller_term: 0, acknowledges: CONTROLLER_TERM, acknowledgement: 3 };
    // A majority acknowledges it: the ping was sent half a lease length ago.
    leases.pong(OTHER, NOW + LEASE / 2, heeding, NOW + LEASE - 1);
    assert_eq!(leases.snapshot(NOW + LEASE - 1).confirmed_us, NOW + LEASE / 2);
    assert_eq!(ask(&mut leases, OTHER, &[A], NOW + LEASE), Some(vec![A]));
    assert_eq!(leases.snapshot(NOW + LEASE).peers[&OTHER].lease_until_us, Some(NOW + LEASE / 2 + LEASE));
    // One lease length later the controller term has expired, and the node reports that. A majority may have
    // had another one since.
    let ends_us = NOW + LEASE / 2 + LEASE;
    assert!(leases.wake_at() <= ends_us);
    leases.poll(ends_us);
    assert!(all(&mut leases).contains(&Action::Report(Beat {
        controller_term: 0,
        acknowledges: 0,
        acknowledgement: 1
    })));
    for peer in [OTHER, CONTROLLER] {
        leases.pong(peer, ends_us, heeding, ends_us + 1);
    }
    assert_eq!(ask(&mut leases, OTHER, &[A], ends_us + 2), None, "a majority does not bring it back");
    leases.controller_term(CONTROLLER_TERM, until_us, ends_us + 3, ends_us + 4);
    assert_eq!(ask(&mut leases, OTHER, &[A], ends_us + 5), Some(vec![A]), "the coordinator does");
    assert_eq!(leases.snapshot(ends_us + 5).peers[&OTHER].lease_until_us, Some(ends_us + 3 + LEASE));
}

#[test]
fn both_majorities_confirm_a_controller_term_while_the_voters_change() {
    let mut leases = controlling();
    leases.controller_term(CONTROLLER_TERM, NOW + 90 * LEASE, NOW, NOW);
    let before = vec![NodeId(21), NodeId(22), CONTROLLER.node];
    leases.voters(Voters { revision: 1, nodes: vec![ME.node, OTHER.node], before }, NOW);
    let heeding = Beat { controller_term: 0, acknowledges: CONTROLLER_TERM, acknowledgement: 3 };
    let confirmed_by = |leases: &mut LeaderLeases, peer: Process| {
        leases.pong(peer, NOW + 10, heeding, NOW + 11);
        leases.snapshot(NOW + 12).confirmed_us
    };
    assert_eq!(confirmed_by(&mut leases, OTHER), NOW, "of those before there is none");
    assert_eq!(confirmed_by(&mut leases, CONTROLLER), NOW, "one of three");
    let another = Process { node: NodeId(21), incarnation: 1 };
    assert_eq!(confirmed_by(&mut leases, another), NOW + 10);
}

/// After a stall: the leader lease of `ME` ended, and a majority of three has had no controller.
#[test]
fn an_expired_lease_returns_by_nodes_that_had_no_controller_without_a_break() {
    for (acknowledgement, restarts, is_back) in [(4, false, true), (5, false, false), (4, true, false)] {
        let (mut leases, _) = leading(&[A]);
        let nodes = vec![ME.node, OTHER.node, CONTROLLER.node];
        leases.voters(Voters { revision: 9, nodes, before: vec![] }, NOW);
        leases.gone(CONTROLLER, NOW + 1);
        leases.poll(NOW + 1);
        let alone = |acknowledgement| Beat { controller_term: 0, acknowledges: 0, acknowledgement };
        leases.pong(OTHER, NOW + 2, alone(4), NOW + 3);
        leases.poll(NOW + 3);
        let ended_us = NOW + 2 + LEASE;
        assert!(leases.leads(A, ended_us - 1) && !leases.leads(A, ended_us));
        all(&mut leases);
        leases.poll(ended_us + LEASE);
        assert_eq!(all(&mut leases), [Action::Closed]);
        let other = if restarts { Process { incarnation: 9, ..OTHER } } else { OTHER };
        leases.pong(other, ended_us + LEASE, alone(acknowledgement), ended_us + LEASE + 1);
        leases.poll(ended_us + LEASE + 1);
        assert_eq!(leases.leads(A, ended_us + 2 * LEASE - 1), is_back, "{acknowledgement} {restarts}");
        assert_eq!(all(&mut leases).contains(&Action::Opened), is_back);
    }
}
